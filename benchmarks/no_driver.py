"""Run CuPy on a machine without a GPU, with its CUDA runtime and driver replaced by stubs that do nothing.

Some runtime functions inside CuPy are redirected to those of ``no_driver.cpp``, by the same mechanism as the emulated
driver's (emulated_cuda/src/emulated_cuda/install.py). All of CuPy's own code runs as it does with a GPU.
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
    """Build the stub library in ``folder``, redirect CuPy to it, and return CuPy and the library.

    Raises
    ------
    Unsuitable
        The platform, the compiler or this build of CuPy does not allow it.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise Unsuitable("only Linux on x86-64 is supported")
    missing = [tool for tool in ("g++", "nm") if shutil.which(tool) is None]
    if missing:
        raise Unsuitable(f"{' and '.join(missing)} not found")
    library = _build(Path(folder))
    try:
        import cupy  # loads the library above as its driver
        from cupy_backends.cuda.api import runtime
    except ImportError as error:
        raise Unsuitable(f"CuPy cannot be imported: {error}") from error
    names = re.findall(r"^int no_(cuda\w+)\(", SOURCE.read_text(encoding="utf-8"), re.MULTILINE)
    redirect(Path(runtime.__file__), {name: getattr(library, f"no_{name}") for name in names})
    if cupy.cuda.runtime.getDeviceCount() != 1:
        raise Unsuitable("the CUDA runtime in this build of CuPy cannot be replaced")
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
