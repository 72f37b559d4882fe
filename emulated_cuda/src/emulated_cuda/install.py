"""Puts the emulated driver where CuPy finds it, and the emulated runtime in the place of the one that is inside of it.

CuPy's wheels carry CUDA's runtime inside of an extension module, and that runtime accepts NVIDIA's driver only. So the
first bytes of each of its functions are overwritten, in this process's memory, with a jump to one of runtime.cpp, or
to one that answers "not supported". All of CuPy's own code runs as it does with a GPU.
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
_NOT_SUPPORTED = 801
_OF_DRIVER = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvhost-gpu", "/dev/dxg")  # files of NVIDIA's driver


class Unsuitable(Exception):
    """CuPy cannot be run like this here; the message says why."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The emulated machine, in the order of device.h.

    Attributes
    ----------
    devices, capability, memory_bytes : how many there are, what each is (90 for 9.0) and has.
    late : whether what is given to a stream runs only when something waits for it, else at once.
    check_shared, check_global, check_initialised : races in shared memory, between blocks; reads of what nobody wrote.
    seed : of the scheduler that interleaves warps; 0: each runs as far as it can.
    host_threads : that run the blocks of a grid.
    exact_bounds : whether arrays of a pool have nothing beside them, else whole blocks of the pool are what there is.
    sticky_errors : whether all calls fail after a kernel has failed, else the next one works.
    multiprocessors : of each device; 0: as many as the well-known one of its capability has.
    async_order : asynchronous copies of kernels land as late as allowed (0), at once (1), or at any time between, by
        the seed (2).
    max_steps : instructions of one warp before its kernel counts as endless.
    l2_bytes : of each device's L2 cache, which whoever measures times fills.
    schedule : warps take turns (0), or the most important one that can go on does: warp `seed` first (1) or last (2),
        the last one first (3), or by the seed, with three changes (4). Copies then land when no warp can go on.
    sums : how tensor cores add: 0, or a number of `emulator.accumulation`.
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
        """Return what variables like EMULATED_CUDA_DEVICES say, and the defaults."""
        given = {field.name: os.environ.get(f"EMULATED_CUDA_{field.name.upper()}") for field in fields(cls)}
        return cls(**{name: int(value) for name, value in given.items() if value is not None})


_installed: list[Any] = []  # the library, once there is one


@cache
def hardware() -> bool:
    """Return whether this machine has a GPU that tests should use, without loading its driver.

    With the variable EMULATED_CUDA=1 they should use the emulated device all the same.
    """
    return os.environ.get("EMULATED_CUDA") != "1" and (os.name == "nt" or any(map(os.path.exists, _OF_DRIVER)))


def installed() -> bool:
    """Return whether `install` has put the emulated driver into this process."""
    return bool(_installed)


def install(settings: Settings | None = None, *, replace_nvrtc: bool = True) -> Any:
    """Let CuPy run in this process on an emulated device; return the library that is its driver.

    It must come before CuPy is imported for the first time. Further calls return the same library.

    Parameters
    ----------
    settings : Settings, optional
        The emulated machine; by default what the variables EMULATED_CUDA_… say.
    replace_nvrtc : bool
        Whether NVIDIA's binding ``cuda.bindings.nvrtc`` gives PTX to those who ask it for machine code, which cannot be
        emulated. Libraries that keep what they compile then need a cache folder of their own: CuPy's and gpuconv's are
        set here, by CUPY_CACHE_DIR and GPUCONV_CACHE_DIR, unless the environment names others.

    Raises
    ------
    Unsuitable
        The platform or this CuPy is not a known one, CuPy has been imported already, or another call has installed
        another machine.
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
    folder = build.cache_folder()
    # PTX is compiled and kept apart from what a device would load.
    os.environ["CUPY_COMPILE_WITH_PTX"] = "1"
    os.environ.setdefault("CUPY_CACHE_DIR", str(folder / "cupy"))
    os.environ.setdefault("CUPY_ACCELERATORS", "")  # CUB's kernels are machine code inside of CuPy
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
    # It has a runtime of its own, at whose errors it does not look: its kernels, of machine code, fail loudly.
    module = Path(_extension("cupy.random._generator_api"))
    launching = {"cudaLaunchKernel", "cudaLaunchKernel_ptsz"} & set(runtime_symbols(module))
    redirect(module, dict.fromkeys(launching, library.emulated_machine_code))
    if settings.exact_bounds:
        from . import pools

        pools.tell(cupy, library)
    return library


def headers() -> Path:
    """Return the folder of cuda_runtime_api.h."""
    pathfinder: Any = importlib.import_module("cuda.pathfinder")
    found = pathfinder.find_nvidia_header_directory("cudart")
    if found is None:
        raise Unsuitable("the headers of CUDA's runtime are not installed")
    return Path(found)


def _driver() -> ctypes.CDLL:
    names = runtime_symbols(Path(_extension("cupy_backends.cuda.api.runtime")))
    text = _stubs(sorted(set(names) - _defined())) + _error_names(headers())
    stubs = build.generated("unsupported.cpp", text)
    options = ("-O1", f"-I{HERE / 'host'}", f"-isystem{headers()}", "-Wl,-soname,libcuda.so.1", "-Wall", "-Wextra")
    library = build.shared_library("libcuda.so.1", [*SOURCES, stubs], options)
    return ctypes.CDLL(str(library))  # who opens libcuda.so.1 later gets this one, by its soname


def _stubs(names: list[str]) -> str:
    lines = ["// Made by install.py: what runtime.cpp does not define.", '#include "%s"' % (HERE / "device.h")]
    lines += [
        f'extern "C" int emulated_{name}() {{ emulated::SetError({_NOT_SUPPORTED}, "{name} is not emulated"); '
        f"return {_NOT_SUPPORTED}; }}"
        for name in names
    ]
    return "\n".join(lines) + "\n"


def _error_names(folder: Path) -> str:
    """Return the functions RuntimeName and DriverName, which know all codes of CUDA's headers."""
    lines = ["namespace emulated {"]
    for function, header, prefix in (("RuntimeName", "driver_types.h", "cuda"), ("DriverName", "cuda.h", "CUDA_")):
        text = (folder / header).read_text(encoding="utf-8", errors="replace")
        found = re.findall(rf"^\s*({prefix}(?:Success|SUCCESS|Error\w+|ERROR_\w+))\s*=\s*(\d+)", text, re.MULTILINE)
        lines.append(f"const char* {function}(int code) {{\n  switch (code) {{")
        lines += [f'    case {code}: return "{name}";' for name, code in found]
        lines.append("    default: return nullptr;\n  }\n}")
    return "\n".join([*lines, "}\n"])


def _extension(name: str) -> str:
    """Return a module's file without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise Unsuitable(f"{name} is not installed")
    return spec.origin


def _defined() -> set[str]:
    text = (HERE / "runtime.cpp").read_text(encoding="utf-8")
    return set(re.findall(r"^DEFINE\((cuda\w+)", text, re.MULTILINE)) | set(re.findall(r"emulated_(cuda\w+)\(", text))


def runtime_symbols(module: Path) -> dict[str, int]:
    """Return where the functions of CUDA's runtime are in a module's file."""
    listing = subprocess.run(["nm", str(module)], check=True, capture_output=True, text=True).stdout
    found = re.findall(r"^([0-9a-f]+) t (cuda[A-Z]\w+)$", listing, re.MULTILINE)
    if not found:
        raise Unsuitable(f"CUDA's runtime is not inside of {module.name}, or has no symbols")
    return {name: int(offset, 16) for offset, name in found}


def redirect(module: Path, targets: Mapping[str, Any]) -> None:
    """Let functions of CUDA's runtime inside of a loaded module be others, by their names."""
    base, symbols = _base(module), runtime_symbols(module)
    absent = sorted(set(targets) - set(symbols))
    if absent:
        raise Unsuitable(f"the CUDA runtime inside of {module.name} has no {', '.join(absent[:3])}")
    for name, function in targets.items():
        target = ctypes.cast(function, ctypes.c_void_p).value or 0
        _overwrite(base + symbols[name], _JUMP % target.to_bytes(8, "little"))


def _base(module: Path) -> int:
    """Return the address that a loaded module's symbols count from."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        span, _, offset, _, _, *path = line.split(maxsplit=5)
        if path == [str(module)] and int(offset, 16) == 0:
            return int(span.partition("-")[0], 16)
    raise Unsuitable(f"{module.name} is not where the system says that loaded modules are")


def _overwrite(address: int, code: bytes) -> None:
    page = address // mmap.PAGESIZE * mmap.PAGESIZE
    size = address + len(code) - page
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(size), _WRITE):
        raise Unsuitable(f"code cannot be overwritten: {os.strerror(ctypes.get_errno())}")
    ctypes.memmove(address, code, len(code))
