"""The CUDA device of the tests: a real one if present, otherwise the emulated one if it can be installed.

Both run the unmodified CuPy. The emulated one loads PTX, so tests on it do not compile to machine code.
"""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

import emulated_cuda
from emulated_cuda import Settings, Unsuitable, nvrtc
from emulated_cuda.install import hardware
from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.call import device
from tests.emulator import compile as architectures

if TYPE_CHECKING:
    from tests.harness.tiers import Part

_CAPABILITY = "EMULATED_CUDA_CAPABILITY"
_CAPABILITIES = (90, 80, 120)  # compute capabilities that parts of the thorough tests use in rotation
_L2_BYTES = 2**16  # L2 size of the emulated device; small, since timing flushes it before each call
_reasons: list[str | None] = []  # the result of `install`, once it was called


def install(part: Part | None = None) -> str | None:
    """Install the emulated device unless there is a real one; return why that is impossible, or None.

    Call it before CuPy is imported; later calls return the same. There are two emulated devices. Their compute
    capability is EMULATED_CUDA_CAPABILITY if set, otherwise chosen by the part of the thorough tests.
    """
    if not _reasons:
        if part is not None:
            os.environ.setdefault(_CAPABILITY, str(_CAPABILITIES[part.number % len(_CAPABILITIES) - 1]))
        _reasons.append(None if hardware() else _installed())
    return _reasons[0]


def _installed() -> str | None:
    reason = nvrtc.unavailable_reason()
    if reason is None and find_spec("cupy") is None:
        reason = "CuPy is not installed"
    if reason is None:
        machine = replace(Settings.from_environment(), devices=2, l2_bytes=_L2_BYTES)
        try:
            emulated_cuda.install(machine, replace_nvrtc=False)  # keep the real NVRTC: tests also inspect machine code
        except (Unsuitable, RuntimeError) as error:
            reason = str(error)
    if reason is not None:
        return f"the emulated device cannot be had: {reason}"
    return None


def emulated() -> bool:
    """Return whether CuPy's device is the emulated one."""
    return install() is None and not hardware()


def unavailable_reason() -> str | None:
    """Return why there is neither a real nor an emulated device, or None."""
    return install() or device.unavailable_reason()


def emulated_unavailable_reason() -> str | None:
    """Return why there is no emulated device, or None."""
    return "the device is a real one; EMULATED_CUDA=1 has the emulated one instead" if hardware() else install()


def real_unavailable_reason() -> str | None:
    """Return why there is no real device, or None."""
    return "the device is an emulated one" if emulated() else device.unavailable_reason()


def header() -> str:
    """Return the line on the device in pytest's header."""
    if hardware():
        return "CUDA: a real device, or none"
    return f"CUDA: the emulated device, of capability {os.environ.get(_CAPABILITY, '90')}, if it can be had"


def sampled(count: int) -> pytest.MarkDecorator:
    """Mark tests that run only once in ``count`` by default on the emulated device; a real one runs all."""
    return pytest.mark.sampled(count if emulated() else 1)


def thorough_if_emulated() -> pytest.MarkDecorator:
    """Mark tests that are slow only on the emulated device."""
    return pytest.mark.thorough if emulated() else pytest.mark.gpu


def ptx(variant: Variant, architecture: str) -> bytes:
    """Return the PTX that the emulated device loads, usually for the architecture that other tests also compile for."""
    if _CAPABILITY not in os.environ:
        architecture = architectures.turn(variant)
    return compiler.ptx(variant, architecture).encode()
