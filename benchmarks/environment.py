"""Record what a GPU run executes on, one row per item: ``python -m benchmarks.environment --rows FILE``.

Items are the versions of gpuconv, Python, CuPy, NVRTC and other packages, the device and nvidia-smi's readings. A
missing library or tool is recorded as such and stops nothing.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import gpuconv
from benchmarks.progress import Rows

_PACKAGES = ("numpy", "onnx", "onnxruntime", "torch", "ml_dtypes", "pytest-xdist", "pytest-timeout", "hypothesis")
_TOOLS = ("compute-sanitizer", "cuda-gdb", "ncu", "nvcc")
_QUERY = "name,driver_version,memory.total,clocks.sm,clocks.max.sm,clocks.mem,temperature.gpu,power.draw,power.limit"


def main() -> int:
    """Write every row; return 1 without a usable device."""
    rows = Rows(*_arguments())
    for name in rows.left(ITEMS):
        try:
            rows.end(name, value=str(ITEMS[name]()))
        except Exception as error:  # a missing or broken library is recorded like any other result
            status = "failed" if name == "device" else "skipped"
            rows.end(name, status, value=f"{type(error).__name__}: {str(error)[:200]}")
        print(f"{name}: {rows.ended[name]['value']}", flush=True)
    return int(rows.ended["device"]["status"] == "failed")


def _arguments() -> tuple[Path, str]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.environment", description=__doc__)
    parser.add_argument("--rows", type=Path, required=True, metavar="FILE", help="append rows to FILE (JSON lines)")
    parser.add_argument("--step", default="environment", help="name of the step in these rows (%(default)s)")
    arguments = parser.parse_args()
    return arguments.rows, arguments.step


def _device() -> str:
    from gpuconv.cuda.call import device

    reason = device.unavailable_reason()
    if reason is not None:
        raise RuntimeError(reason)
    limits = device.limits(device.current_device())
    return f"{limits.name}, {limits.architecture}, {limits.multiprocessors} multiprocessors"


def _cupy() -> str:
    import cupy  # type: ignore[import-not-found]

    runtime = cupy.cuda.runtime
    return f"{cupy.__version__}, runtime {runtime.runtimeGetVersion()}, driver {runtime.driverGetVersion()}"


def _nvrtc() -> str:
    from gpuconv.cuda.build import nvrtc

    return f"{nvrtc.version()}, {nvrtc.identity()}"


def _attributes() -> str:
    import cupy

    wanted = ("ClockRate", "MemoryClockRate", "GlobalMemoryBusWidth", "L2CacheSize", "MaxSharedMemoryPerBlockOptin")
    found: dict[str, Any] = cupy.cuda.Device().attributes
    return ", ".join(f"{name} {found.get(name, 'absent')}" for name in wanted)


def _smi() -> str:
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader", "--id=0"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout.strip()


def _packages() -> str:
    return ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def _tools() -> str:
    return ", ".join(f"{name} {'there' if shutil.which(name) else 'absent'}" for name in _TOOLS)


ITEMS: dict[str, Callable[[], str]] = {
    "gpuconv": lambda: gpuconv.__version__,
    "python": lambda: f"{platform.python_version()} {sys.executable}",
    "device": _device,
    "cupy": _cupy,
    "nvrtc": _nvrtc,
    "attributes": _attributes,
    "nvidia-smi": _smi,
    "packages": _packages,
    "tools": _tools,
}


if __name__ == "__main__":
    sys.exit(main())
