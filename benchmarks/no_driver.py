"""CuPy on a machine without a GPU: the CUDA runtime inside of it replaced by functions that do nothing.

As the emulated driver does it (emulated_cuda/src/emulated_cuda/install.py), but some functions alone, and to those of
``no_driver.cpp``. All of CuPy's own code runs as it does with a GPU.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from emulated_cuda.install import Unsuitable, redirect

SOURCE = Path(__file__).with_name("no_driver.cpp")


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
    names = re.findall(r"^int no_(cuda\w+)\(", SOURCE.read_text(encoding="utf-8"), re.MULTILINE)
    redirect(Path(runtime.__file__), {name: getattr(library, f"no_{name}") for name in names})
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
