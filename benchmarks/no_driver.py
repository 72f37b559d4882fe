"""CuPy on a machine without a GPU: the CUDA runtime inside of it replaced by functions that do nothing.

CuPy's wheels carry the CUDA runtime inside of an extension module, and that runtime accepts NVIDIA's driver only. So
the first bytes of some of its functions are overwritten, in this process's memory, with jumps to those of
``no_driver.cpp``. All of CuPy's own code runs as it does with a GPU.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("no_driver.cpp")
_JUMP = b"\x49\xbb%s\x41\xff\xe3"  # movabs r11, address; jmp r11
_WRITE = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC


class Unsuitable(Exception):
    """CuPy cannot be run like this here; the message says why."""


def install(folder: str) -> tuple[Any, Any]:
    """Build the replacement in a folder, put it into CuPy, and return CuPy and the replacement's library."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise Unsuitable("only Linux on x86-64 is known")
    missing = [tool for tool in ("g++", "nm") if shutil.which(tool) is None]
    if missing:
        raise Unsuitable(f"{' and '.join(missing)} not found")
    library = _build(Path(folder))
    try:
        import cupy  # finds the library above as its driver
        from cupy_backends.cuda.api import runtime
    except ImportError as error:
        raise Unsuitable(f"CuPy cannot be imported: {error}") from error
    _redirect(Path(runtime.__file__), library)
    if cupy.cuda.runtime.getDeviceCount() != 1:
        raise Unsuitable("the CUDA runtime of this CuPy does not let itself be replaced")
    return cupy, library


def _build(folder: Path) -> ctypes.CDLL:
    target = folder / "libcuda.so.1"
    command = [
        "g++",
        "-std=c++17",
        "-O2",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libcuda.so.1",
        "-o",
        str(target),
        str(SOURCE),
    ]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(target), mode=os.RTLD_NOW | os.RTLD_GLOBAL)


def _redirect(module: Path, library: ctypes.CDLL) -> None:
    listing = subprocess.run(["nm", str(module)], check=True, capture_output=True, text=True).stdout
    symbols = {
        name: int(offset, 16) for offset, name in re.findall(r"^([0-9a-f]+) t (cuda\w+)$", listing, re.MULTILINE)
    }
    names = re.findall(r"^int no_(cuda\w+)\(", SOURCE.read_text(encoding="utf-8"), re.MULTILINE)
    absent = [name for name in names if name not in symbols]
    if absent:
        raise Unsuitable(
            f"the CUDA runtime is not inside of {module.name}, or has no symbols ({', '.join(absent[:3])})"
        )
    base = _base(module)
    for name in names:
        target = ctypes.cast(getattr(library, f"no_{name}"), ctypes.c_void_p).value or 0
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
