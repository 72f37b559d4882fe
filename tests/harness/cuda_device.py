"""Which CUDA device the tests have: a real one where there is one, else the emulated one, where that can be had.

Both run the unmodified CuPy. The emulated one takes PTX, so the compiler is asked for no machine code.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec

from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.call import device
from tests import emulated_cuda
from tests.emulated_cuda import Unsuitable
from tests.emulator import compile as architectures

_OF_DRIVER = ("/dev/nvidiactl", "/dev/dxg")  # one of which is there where NVIDIA's driver runs
_installed = False


@cache
def hardware() -> bool:
    """Tell whether this machine has a device of its own, without loading its driver."""
    return os.name == "nt" or any(map(os.path.exists, _OF_DRIVER))


@cache
def install() -> str | None:
    """Let CuPy find the emulated device, unless there is a real one; return why it cannot, if so.

    It must come before CuPy is imported.
    """
    global _installed
    if hardware():
        return None
    reason = architectures.unavailable_reason()
    if reason is None and find_spec("cupy") is None:
        reason = "CuPy is not installed"
    if reason is not None:
        return f"the emulated device cannot be had: {reason}"
    os.environ.setdefault("EMULATED_CUDA_DEVICES", "2")  # some tests need a second one
    try:
        emulated_cuda.install()
    except Unsuitable as error:
        return f"the emulated device cannot be had: {error}"
    compiler.cubin = _ptx
    _installed = True
    return None


def emulated() -> bool:
    """Tell whether CuPy's device is the emulated one."""
    return _installed


def unavailable_reason() -> str | None:
    """Return why there is neither a real device nor an emulated one, or None."""
    return install() or device.unavailable_reason()


def real_unavailable_reason() -> str | None:
    """Return why there is no real device, or None."""
    return "the device is an emulated one" if emulated() else device.unavailable_reason()


def _ptx(variant: Variant, architecture: str) -> bytes:
    """Return what to load: usually compiled for the architecture that all other tests have the kernel for."""
    if "EMULATED_CUDA_CAPABILITY" not in os.environ:
        architecture = architectures.turn(variant)
    return compiler.ptx(variant, architecture).encode()
