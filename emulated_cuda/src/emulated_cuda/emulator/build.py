"""Compiles shared libraries of C++ once per machine and version, and keeps them in a cache folder."""

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
# Contracted products would round once where PTX rounds twice; the register file is seen through many types.
ENGINE_OPTIONS = ("-O2", "-ffp-contract=off", "-fno-strict-aliasing", "-fno-math-errno")
_COMMON = ("-std=c++20", "-fPIC", "-shared", "-pthread")


def compiler() -> str | None:
    return shutil.which("g++")


@lru_cache(maxsize=1)
def cache_folder() -> Path:
    """Return the folder for all that is compiled, or one of this process where that cannot be written.

    EMULATED_CUDA_CACHE_DIR names it.
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
    """Keep a source that a program makes in the cache folder, beside others of that name."""
    stem, _, suffix = name.partition(".")
    path = cache_folder() / f"{stem}-{hashlib.sha256(text.encode()).hexdigest()[:20]}.{suffix}"
    if not path.exists():
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as made:
            made.write(text)
        Path(made.name).replace(path)
    return path


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@lru_cache(maxsize=1)
def _machine_options(program: str) -> tuple[tuple[str, ...], str]:
    """Return the options for the CPU at hand, and what they mean, since a cache may go from one CPU to another."""
    try:
        return ("-march=native",), _output(program, "-march=native", "-Q", "--help=target")
    except subprocess.CalledProcessError:
        return (), ""


def _key(program: str, options: Sequence[str], sources: Sequence[Path]) -> str:
    """Hash all that makes a library: its sources, with the headers beside them and the engine's, and the compiler."""
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
    """Compile a library unless that is done; ``name`` is that of the file, in a folder of this version's own.

    Raises
    ------
    RuntimeError
        There is no compiler, or it fails.
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
    """Let one process at a time compile: of several that start together, all but the first find what it made."""
    import fcntl  # which Windows lacks

    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go when the file is closed, however that comes about
        yield


def build() -> Path:
    """Return the engine's shared library, compiling it where there is none yet."""
    return shared_library("engine.so", [HERE / "engine.cpp"], ENGINE_OPTIONS)


@lru_cache(maxsize=1)
def engine() -> ctypes.CDLL:
    library = ctypes.CDLL(str(build()))
    library.emulator_load.restype = ctypes.c_void_p
    return library
