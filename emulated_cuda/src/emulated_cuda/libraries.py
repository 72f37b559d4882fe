"""Replace NVIDIA's cuBLAS and cuRAND, whose kernels are machine code, with libraries for emulated devices.

CuPy's modules are linked to these libraries by soname, so the first library of that name in the process is used.
Functions that CuPy uses and the replacement lacks return "not supported" and print their name to standard error.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import re
import subprocess
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from .emulator import build

HERE = Path(__file__).parent
# Complex products by the textbook formula, as on a GPU, without C's special cases for infinities.
_OPTIONS = ("-O2", "-fcx-limited-range", "-Wall", "-Wextra")


class Library(NamedTuple):
    """A replaced library.

    Attributes
    ----------
    soname : str
    prefix : str
        Prefix of its functions.
    source : Path
        The C++ file of the replacement.
    not_supported : int
        Status code of functions that are missing there.
    """

    soname: str
    prefix: str
    source: Path
    not_supported: int


# By the names that cuda.pathfinder uses.
LIBRARIES = {
    "cublas": Library("libcublas.so.13", "cublas", HERE / "cublas.cpp", 15),
    "curand": Library("libcurand.so.10", "curand", HERE / "curand.cpp", 204),
}


def install(driver: Path, headers: Path) -> None:
    """Make CuPy load the replacements, whether or not NVIDIA's libraries are installed, and Numba its own driver.

    CuPy finds libraries by ``cuda.pathfinder``, whose function is replaced. A library is compiled when CuPy first asks
    for it.
    """
    pathfinder: Any = importlib.import_module("cuda.pathfinder")
    find_theirs = pathfinder.load_nvidia_dynamic_lib

    @cache
    def find(name: str) -> Any:
        if name not in LIBRARIES:
            return find_theirs(name)
        path = str(build_library(LIBRARIES[name], driver, headers))
        ctypes.CDLL(path)
        return SimpleNamespace(abs_path=path, was_already_loaded_from_elsewhere=False, found_via="emulated_cuda")

    pathfinder.load_nvidia_dynamic_lib = find
    if importlib.util.find_spec("numba") is not None:
        os.environ["NUMBA_CUDA_DRIVER"] = str(_numba(driver, headers))


def build_library(library: Library, driver: Path, headers: Path) -> Path:
    """Return the file of a replacement, compiling it if necessary."""
    stubs = build.generated(f"unsupported_{library.prefix}.cpp", _stubs(library))
    text = f"{library.soname} {{ global: {library.prefix}*; local: *; }};\n"  # CuPy needs versioned symbols
    versions = build.generated(f"{library.prefix}.map", text)
    linked = (f"-Wl,-soname,{library.soname}", f"-Wl,--version-script={versions}")
    included = (f"-I{HERE / 'host'}", f"-isystem{headers}")
    return build.shared_library(library.soname, [library.source, stubs, driver], (*_OPTIONS, *included, *linked))


def _numba(driver: Path, headers: Path) -> Path:
    """Return the driver for Numba, compiling it if necessary: it has cuInit, which libcuda.so.1 must not have."""
    included = (f"-I{HERE / 'host'}", f"-isystem{headers}")
    return build.shared_library("libcuda_of_numba.so", [HERE / "numba.cpp", driver], (*_OPTIONS, *included))


def functions_of(library: Library) -> set[str]:
    """Return the names of the library functions that CuPy's module uses; empty if CuPy has no such module."""
    spec = importlib.util.find_spec(f"cupy_backends.cuda.libs.{library.prefix}")
    if spec is None or spec.origin is None:
        return set()
    command = ("nm", "-D", "--undefined-only", spec.origin)
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return set(re.findall(rf"\bU ({library.prefix}\w+)", listing))


def _stubs(library: Library) -> str:
    """Return C++ source of weak functions that print their name and return "not supported"."""
    lines = ["// Made by libraries.py: in the place of what is not emulated.", "#include <cstdio>"]
    for name in sorted(functions_of(library)):
        body = f'std::fputs("emulated_cuda: {name} is not emulated\\n", stderr); return {library.not_supported};'
        lines.append(f'extern "C" __attribute__((weak)) int {name}() {{ {body} }}')
    return "\n".join(lines) + "\n"
