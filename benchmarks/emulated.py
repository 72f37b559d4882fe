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
    """Install the emulated device in this process if needed; return why that is impossible, or None."""
    if hardware():
        return "the device is a real one; EMULATED_CUDA=1 has the emulated one instead"
    reason = nvrtc.unavailable_reason()
    if reason is None and find_spec("cupy") is None:
        reason = "CuPy is not installed"
    if reason is None and not installed():
        try:
            install(replace_nvrtc=False)  # keep the real NVRTC: benchmarks also inspect machine code
        except (Unsuitable, RuntimeError) as error:
            reason = str(error)
    return reason and f"the emulated device cannot be had: {reason}"


def ptx(variant: Variant, architecture: str) -> bytes:
    """Return the PTX of a kernel, which the emulated device loads in place of a cubin."""
    return compiler.ptx(variant, architecture).encode()


@contextmanager
def planned_for(
    limits: Limits, see: Callable[[control.Launch], None], *, counters: bool = False, **settings: Any
) -> Iterator[None]:
    """Make calls on CuPy arrays plan for another GPU and run their launches on the emulated device.

    Parameters
    ----------
    limits : Limits
        That GPU as the planners know it. Kernels are compiled for its architecture.
    see : callable
        Called with each launch before it runs.
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
    """Run the module named on the command line; return 2 if the emulated device is not available."""
    os.environ.setdefault("EMULATED_CUDA_MULTIPROCESSORS", "2")  # so that even small grids put several blocks on each
    os.environ.setdefault("EMULATED_CUDA_L2_BYTES", str(2**16))  # small, as it is flushed before each timed call
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
