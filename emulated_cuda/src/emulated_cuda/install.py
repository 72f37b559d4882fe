"""Install the emulated driver and runtime into the current process, so that CuPy runs on an emulated device.

The driver is a library whose soname is ``libcuda.so.1``, so CuPy finds it in place of NVIDIA's. CuPy's wheels also
have the CUDA runtime linked into an extension module, and that runtime works only with NVIDIA's driver. So the first
bytes of each of its functions in this process are overwritten with a jump: to a function of runtime.cpp, or to a stub
that returns cudaErrorNotSupported. CuPy's own code runs unchanged.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import mmap
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from . import compilers
from .emulator import build

HERE = Path(__file__).parent
SOURCES = [HERE / f"{name}.cpp" for name in ("device", "driver", "machine_code", "memory", "runtime", "schedule")]
_JUMP = b"\x49\xbb%s\x41\xff\xe3"  # movabs r11, address; jmp r11
_WRITE = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
_NOT_SUPPORTED = 801  # cudaErrorNotSupported
_OF_DRIVER = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvhost-gpu", "/dev/dxg")  # exist where NVIDIA's driver is loaded


class Unsuitable(Exception):
    """CuPy cannot run on an emulated device here; the message says why."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the emulated machine. The fields have the order of struct Settings in device.h.

    Attributes
    ----------
    devices : int
        Number of devices.
    capability : int
        Their compute capability: 90 for 9.0.
    memory_bytes : int
        Memory of each device.
    late : bool
        Whether work on a stream runs as late as CUDA allows, when something waits for it; otherwise at once.
    check_shared, check_global : bool
        Whether kernels are checked for races and uninitialised reads in shared memory, and for races in global memory.
        If `check_global` is off, only the bounds of global accesses are checked.
    check_initialised : bool
        Whether reads of global memory that was never written are reported.
    seed : int
        Seed of the scheduler of warps and blocks. 0: blocks run in order, and each warp runs until it must wait.
    host_threads : int
        Host threads that run the blocks of a grid.
    exact_bounds : bool
        Whether each array of a CuPy memory pool has its exact bounds; otherwise the bounds are those of the pool's
        blocks.
    sticky_errors : bool
        Whether all calls fail after a kernel has failed, as on a GPU; otherwise the next call works.
    multiprocessors : int
        Number of SMs of each device; 0 is 132 for capability 9.0 and 108 for others.
    async_order : int
        When asynchronous copies of kernels land: 0 as late as the kernel's waits allow, 1 when they are issued, 2 at
        random times in between, by the seed.
    max_steps : int
        Instructions that one warp may execute before its kernel fails as an endless loop.
    l2_bytes : int
        Size of the L2 cache that each device reports; benchmarks flush a cache of this size.
    schedule : int
        Which warp of a block runs next. 0: they take turns. Otherwise the runnable warp of highest priority: warp
        `seed` has the highest (1) or the lowest (2), later warps have priority (3), or priorities are random with three
        changes (4).
    sums : int
        How tensor cores accumulate: a code from `emulator.accumulation`; 0 is in order.
    """

    devices: int = 1
    capability: int = 90
    memory_bytes: int = 4 * 2**30
    late: bool = True
    check_shared: bool = True
    check_global: bool = True
    check_initialised: bool = True
    seed: int = 0
    host_threads: int = 1
    exact_bounds: bool = True
    sticky_errors: bool = False
    multiprocessors: int = 0
    async_order: int = 0
    max_steps: int = 200_000_000
    l2_bytes: int = 50 * 2**20
    schedule: int = 0
    sums: int = 0

    @classmethod
    def from_environment(cls) -> Settings:
        """Return settings from environment variables such as EMULATED_CUDA_DEVICES, with defaults for the others."""
        given = {field.name: os.environ.get(f"EMULATED_CUDA_{field.name.upper()}") for field in fields(cls)}
        return cls(**{name: int(value) for name, value in given.items() if value is not None})


_installed: list[Any] = []  # the driver, after `install`


@cache
def hardware() -> bool:
    """Return whether tests should use a GPU: whether NVIDIA's driver is there (on Windows, always), without loading it.

    With the environment variable EMULATED_CUDA=1 it returns False, and tests use the emulated device in any case.
    """
    return os.environ.get("EMULATED_CUDA") != "1" and (os.name == "nt" or any(map(os.path.exists, _OF_DRIVER)))


def installed() -> bool:
    """Return whether `install` has been called in this process."""
    return bool(_installed)


def install(settings: Settings | None = None, *, replace_nvrtc: bool = True) -> Any:
    """Make CuPy run on an emulated device in this process; return the emulated driver (a `ctypes.CDLL`).

    It must be called before CuPy is imported for the first time. Further calls return the same driver.

    Parameters
    ----------
    settings : Settings, optional
        The emulated machine; by default from the environment variables ``EMULATED_CUDA_…``.
    replace_nvrtc : bool
        Whether NVIDIA's binding ``cuda.bindings.nvrtc`` returns PTX where its caller asks for machine code, which
        cannot be emulated. Libraries that cache compiled kernels then need a separate cache folder. For CuPy and
        gpuconv it is set here, by CUPY_CACHE_DIR and GPUCONV_CACHE_DIR, unless the environment already sets it.

    Raises
    ------
    Unsuitable
        The platform or this version of CuPy is not supported, CuPy has already been imported, or settings are given
        although `install` has been called before.
    """
    if _installed:
        if settings is not None:
            raise Unsuitable("it is installed already; emulated_cuda.control.changed changes settings for a while")
        return _installed[0]
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise Unsuitable("only Linux on x86-64 is known")
    if "cupy" in sys.modules:
        raise Unsuitable("CuPy has been imported already; call emulated_cuda.install() before the first import of it")
    _installed.append(_install(settings or Settings.from_environment(), replace_nvrtc))
    return _installed[0]


def _install(settings: Settings, replace_nvrtc: bool) -> Any:
    """Set environment variables, load the emulated driver, and redirect the CUDA runtime inside CuPy to it."""
    folder = build.cache_folder()
    # CuPy compiles to PTX, and caches it apart from what it would load on a GPU.
    os.environ["CUPY_COMPILE_WITH_PTX"] = "1"
    os.environ.setdefault("CUPY_CACHE_DIR", str(folder / "cupy"))
    os.environ.setdefault("CUPY_ACCELERATORS", "")  # CUB's kernels are machine code inside CuPy
    if replace_nvrtc:
        os.environ.setdefault("GPUCONV_CACHE_DIR", str(folder / "gpuconv"))
        compilers.use_ptx()
    library = _driver()
    from . import libraries, modules

    modules.configure(library, settings)
    libraries.install(Path(library._name), headers())
    runtime = importlib.import_module("cupy_backends.cuda.api.runtime")
    module = Path(runtime.__file__)
    redirect(module, {name: getattr(library, f"emulated_{name}") for name in runtime_symbols(module)})
    cupy = importlib.import_module("cupy")
    # This module contains another copy of the runtime, and ignores its errors: see machine_code.cpp.
    module = Path(_extension("cupy.random._generator_api"))
    launching = {"cudaLaunchKernel", "cudaLaunchKernel_ptsz"} & set(runtime_symbols(module))
    redirect(module, dict.fromkeys(launching, library.emulated_machine_code))
    if settings.exact_bounds:
        from . import pools

        pools.tell(cupy, library)
    return library


def headers() -> Path:
    """Return the folder of the CUDA runtime's headers (cuda_runtime_api.h); raise Unsuitable if there is none."""
    pathfinder: Any = importlib.import_module("cuda.pathfinder")
    found = pathfinder.find_nvidia_header_directory("cudart")
    if found is None:
        raise Unsuitable("the headers of CUDA's runtime are not installed")
    return Path(found)


def _driver() -> ctypes.CDLL:
    """Build the emulated driver, and load it as libcuda.so.1."""
    names = runtime_symbols(Path(_extension("cupy_backends.cuda.api.runtime")))
    text = _stubs(sorted(set(names) - _defined())) + _error_names(headers())
    stubs = build.generated("unsupported.cpp", text)
    options = ("-O1", f"-I{HERE / 'host'}", f"-isystem{headers()}", "-Wl,-soname,libcuda.so.1", "-Wall", "-Wextra")
    library = build.shared_library("libcuda.so.1", [*SOURCES, stubs], options)
    return ctypes.CDLL(str(library))  # by its soname, later loads of libcuda.so.1 get this library


def _stubs(names: list[str]) -> str:
    """Return C++ source of runtime functions that return cudaErrorNotSupported."""
    lines = ["// Made by install.py: what runtime.cpp does not define.", '#include "%s"' % (HERE / "device.h")]
    lines += [
        f'extern "C" int emulated_{name}() {{ emulated::SetError({_NOT_SUPPORTED}, "{name} is not emulated"); '
        f"return {_NOT_SUPPORTED}; }}"
        for name in names
    ]
    return "\n".join(lines) + "\n"


def _error_names(folder: Path) -> str:
    """Return C++ source of RuntimeName and DriverName, which map error codes to the names in CUDA's headers."""
    lines = ["namespace emulated {"]
    for function, header, prefix in (("RuntimeName", "driver_types.h", "cuda"), ("DriverName", "cuda.h", "CUDA_")):
        text = (folder / header).read_text(encoding="utf-8", errors="replace")
        found = re.findall(rf"^\s*({prefix}(?:Success|SUCCESS|Error\w+|ERROR_\w+))\s*=\s*(\d+)", text, re.MULTILINE)
        lines.append(f"const char* {function}(int code) {{\n  switch (code) {{")
        lines += [f'    case {code}: return "{name}";' for name, code in found]
        lines.append("    default: return nullptr;\n  }\n}")
    return "\n".join([*lines, "}\n"])


def _extension(name: str) -> str:
    """Return the file of a module without importing it; raise Unsuitable if its package does not have it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise Unsuitable(f"{name} is not installed")
    return spec.origin


def _defined() -> set[str]:
    """Return the names of the runtime functions that runtime.cpp defines."""
    text = (HERE / "runtime.cpp").read_text(encoding="utf-8")
    return set(re.findall(r"^DEFINE\((cuda\w+)", text, re.MULTILINE)) | set(re.findall(r"emulated_(cuda\w+)\(", text))


def runtime_symbols(module: Path) -> dict[str, int]:
    """Return the offsets of the CUDA runtime's functions in a module's file, by name."""
    listing = subprocess.run(["nm", str(module)], check=True, capture_output=True, text=True).stdout
    found = re.findall(r"^([0-9a-f]+) t (cuda[A-Z]\w+)$", listing, re.MULTILINE)
    if not found:
        raise Unsuitable(f"CUDA's runtime is not inside of {module.name}, or has no symbols")
    return {name: int(offset, 16) for offset, name in found}


def redirect(module: Path, targets: Mapping[str, Any]) -> None:
    """Overwrite CUDA runtime functions in a loaded module with jumps to other functions.

    Parameters
    ----------
    module : Path
        File of the module.
    targets : mapping
        For each name of a runtime function, the ctypes function to jump to.

    Raises
    ------
    Unsuitable
        The module does not have one of the functions, or its code cannot be overwritten.
    """
    base, symbols = _base(module), runtime_symbols(module)
    absent = sorted(set(targets) - set(symbols))
    if absent:
        raise Unsuitable(f"the CUDA runtime inside of {module.name} has no {', '.join(absent[:3])}")
    for name, function in targets.items():
        target = ctypes.cast(function, ctypes.c_void_p).value or 0
        _overwrite(base + symbols[name], _JUMP % target.to_bytes(8, "little"))


def _base(module: Path) -> int:
    """Return the load address of a module, to which the offsets of its symbols are added."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        span, _, offset, _, _, *path = line.split(maxsplit=5)
        if path == [str(module)] and int(offset, 16) == 0:
            return int(span.partition("-")[0], 16)
    raise Unsuitable(f"{module.name} is not where the system says that loaded modules are")


def _overwrite(address: int, code: bytes) -> None:
    """Write machine code to an address of this process, after making its pages writable."""
    page = address // mmap.PAGESIZE * mmap.PAGESIZE
    size = address + len(code) - page
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(size), _WRITE):
        raise Unsuitable(f"code cannot be overwritten: {os.strerror(ctypes.get_errno())}")
    ctypes.memmove(address, code, len(code))
