"""Run benchmarks on the emulated CUDA device: `planned_for` in this process, or a whole module as a command.

``python -m benchmarks.emulated benchmarks.smoke --rows FILE`` installs the emulated driver before anything imports
CuPy, makes the kernel compiler produce PTX, and then runs the module as on a GPU. Do not run a module that stores
cubins: it would store PTX in their place.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any
from unittest import mock

from emulated_cuda import Unsuitable, compilers, control, install, nvrtc
from emulated_cuda.install import hardware, installed
from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.call import device
from gpuconv.cuda.plan.limits import Limits


def unavailable_reason() -> str | None:
    """Install the emulated device in this process unless it is there; return why it cannot be had, or None."""
    if hardware():
        return "the device is a real one; EMULATED_CUDA=1 has the emulated one instead"
    reason = nvrtc.unavailable_reason()
    if reason is None and find_spec("cupy") is None:
        reason = "CuPy is not installed"
    if reason is None and not installed():
        try:
            install(replace_nvrtc=False)  # machine code is looked at, too
        except (Unsuitable, RuntimeError) as error:
            reason = str(error)
    return reason and f"the emulated device cannot be had: {reason}"


def ptx(variant: Variant, architecture: str) -> bytes:
    """Return what the emulated device loads, in place of a cubin."""
    return compiler.ptx(variant, architecture).encode()


@contextmanager
def planned_for(
    limits: Limits, see: Callable[[control.Launch], None], *, counters: bool = False, **settings: Any
) -> Iterator[None]:
    """Let calls on CuPy arrays launch at once, on the emulated device, what is planned for another one.

    Parameters
    ----------
    limits : Limits
        What planners know of that device. Kernels are compiled for its architecture.
    see : callable
        Called with every launch before it runs.
    counters : bool
        Whether launches count instructions, bank conflicts and sectors.
    **settings
        Fields of `emulated_cuda.Settings`.
    """
    capability = int(limits.architecture.removeprefix("sm_").rstrip("a"))
    machine = {"capability": capability, "multiprocessors": limits.multiprocessors, "late": False}
    known = mock.patch.multiple(device, prepared={}, _kernels={}, limits=lambda _: limits)
    with (
        control.changed(**machine | settings),
        control.watched(see, counters),
        mock.patch.object(compiler, "cubin", ptx),
        known,
    ):
        yield


def main() -> int:
    """Run the module that the command line names; 2 where there is no emulated device."""
    os.environ.setdefault("EMULATED_CUDA_MULTIPROCESSORS", "2")  # few blocks are several on each
    os.environ.setdefault("EMULATED_CUDA_L2_BYTES", str(2**16))  # which is filled before each call that is timed
    reason = unavailable_reason()
    if reason is not None:
        print(f"emulated: {reason}", file=sys.stderr)
        return 2
    vars(compiler)["cubin"] = ptx
    compilers.use_ptx()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
