"""Compile C++ sources into shared libraries with g++, and cache the results on disk.

A library's folder is named by a hash of its sources, headers, options, compiler version and CPU, so a changed source
or another machine gets a new build. The emulator's engine and the emulated driver are both built this way.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

HERE = Path(__file__).parent
# No fused multiply-add: PTX rounds a mul and an add separately. No strict aliasing: the register file is an array of
# bytes that is accessed as many types.
ENGINE_OPTIONS = ("-O2", "-ffp-contract=off", "-fno-strict-aliasing", "-fno-math-errno")
_COMMON = ("-std=c++20", "-fPIC", "-shared", "-pthread")


def compiler() -> str | None:
    """Return the path of g++, or None if it is not installed."""
    return shutil.which("g++")


@lru_cache(maxsize=1)
def cache_folder() -> Path:
    """Return the folder for compiled libraries and generated sources, creating it if necessary.

    It is ``EMULATED_CUDA_CACHE_DIR``, or else ``emulated_cuda`` in the user's cache folder. If that is not writable,
    it is a temporary folder which is removed when the process exits.
    """
    users = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("EMULATED_CUDA_CACHE_DIR") or Path(users) / "emulated_cuda").expanduser()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="emulated_cuda-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def generated(name: str, text: str) -> Path:
    """Write generated source text to a file in the cache folder and return its path; the name includes a hash."""
    stem, _, suffix = name.partition(".")
    path = cache_folder() / f"{stem}-{hashlib.sha256(text.encode()).hexdigest()[:20]}.{suffix}"
    if not path.exists():
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as made:
            made.write(text)
        Path(made.name).replace(path)
    return path


def _output(*command: str) -> str:
    """Run a command and return its standard output; raise CalledProcessError if it fails."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@lru_cache(maxsize=1)
def _machine_options(program: str) -> tuple[tuple[str, ...], str]:
    """Return the compiler options for the local CPU, and what g++ expands them to.

    The expansion is part of the cache key: a cache folder on a shared disk may serve machines with different CPUs.
    """
    try:
        return ("-march=native",), _output(program, "-march=native", "-Q", "--help=target")
    except subprocess.CalledProcessError:
        return (), ""


def _key(program: str, options: Sequence[str], sources: Sequence[Path]) -> str:
    """Return a hash of everything that determines a library.

    That is: the sources, the headers in their folders and in the engine's, the options, the compiler and the CPU.
    """
    digest = hashlib.sha256(_output(program, "--version").encode())
    for folder in sorted({source.parent for source in sources} | {HERE}):
        for path in sorted(folder.glob("*.h*")):
            digest.update(path.name.encode() + path.read_bytes())
    for source in sources:
        digest.update(source.name.encode() + source.read_bytes())
    for part in (*options, *_machine_options(program)[1:]):
        digest.update(part.encode())
    return digest.hexdigest()[:20]


def shared_library(name: str, sources: Sequence[Path], options: Sequence[str]) -> Path:
    """Return the path of a shared library, compiling it if the cache does not have it.

    Parameters
    ----------
    name : str
        File name, such as ``libcuda.so.1``. Its folder is unique to this version of the sources.
    sources : sequence of Path
        Files to compile and link.
    options : sequence of str
        Options for g++, in addition to C++20 and the options for the local CPU.

    Raises
    ------
    RuntimeError
        g++ is not installed, or it reports an error.
    """
    program = compiler()
    if program is None:
        raise RuntimeError("no C++ compiler")
    options = (*_COMMON, *options, *_machine_options(program)[0])
    place = cache_folder() / f"{name.partition('.')[0]}-{_key(program, options, sources)}"
    place.mkdir(exist_ok=True)
    library = place / name
    with _alone(place):
        if not library.exists():
            with tempfile.TemporaryDirectory(dir=place) as temporary:
                made = Path(temporary) / name
                command = [program, *options, "-o", str(made), *map(str, sources)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise RuntimeError(f"{name} cannot be compiled: {done.stderr}")
                made.replace(library)
    return library


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold an exclusive file lock in a folder, so that of several processes only the first one compiles."""
    import fcntl  # not available on Windows

    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, also if the process is killed
        yield


def build() -> Path:
    """Return the path of the emulator engine's shared library, compiling it if necessary."""
    return shared_library("engine.so", [HERE / "engine.cpp"], ENGINE_OPTIONS)


@lru_cache(maxsize=1)
def engine() -> ctypes.CDLL:
    """Return the emulator engine, loaded into this process."""
    library = ctypes.CDLL(str(build()))
    library.emulator_load.restype = ctypes.c_void_p
    return library
