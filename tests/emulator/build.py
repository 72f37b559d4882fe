"""Compiles the engine once per machine and keeps it in gpuconv's cache folder."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from gpuconv.cuda.build import cache

HERE = Path(__file__).parent
USERS_CACHE = cache.folder()  # as it is before any test points gpuconv to a folder of its own
# Contracted products would round once where PTX rounds twice; the register file is seen through many types.
OPTIONS = (
    "-std=c++20",
    "-O2",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fno-math-errno",
    "-fPIC",
    "-shared",
    "-pthread",
)


def compiler() -> str | None:
    return shutil.which("g++")


def cache_folder() -> Path:
    """Return a folder in gpuconv's cache, or in one of this process where that cannot be written."""
    folder = (USERS_CACHE or cache.private.make()) / "emulator"
    try:
        cache.make(folder, 0o700)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return cache.private.make()
    return folder


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _machine_options(program: str) -> tuple[tuple[str, ...], str]:
    """Return the options for the CPU at hand, and what they mean, since a cache may go from one CPU to another."""
    try:
        return ("-march=native",), _output(program, "-march=native", "-Q", "--help=target")
    except subprocess.CalledProcessError:
        return (), ""


def _key(program: str, options: tuple[str, ...], meaning: str) -> str:
    digest = hashlib.sha256()
    for path in sorted(HERE.glob("*.[ch]pp")):
        digest.update(path.name.encode() + path.read_bytes())
    for part in (_output(program, "--version"), *options, meaning):
        digest.update(part.encode())
    return digest.hexdigest()[:20]


def build() -> Path:
    """Return the engine's shared library, compiling it where there is none yet."""
    program = compiler()
    if program is None:
        raise RuntimeError("no C++ compiler")
    machine_options, meaning = _machine_options(program)
    options = (*OPTIONS, *machine_options)
    folder = cache_folder()
    library = folder / f"engine-{_key(program, options, meaning)}.so"
    with _alone(folder):
        if not library.exists():
            _compile(program, options, library)
    return library


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time compile: of several that start together, all but the first find what it made."""
    import fcntl  # which Windows lacks

    with (folder / "engine.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go when the file is closed, however that comes about
        yield


def _compile(program: str, options: tuple[str, ...], library: Path) -> None:
    handle, name = tempfile.mkstemp(dir=library.parent, suffix=".so.part")
    os.close(handle)
    try:
        subprocess.run([program, *options, "-o", name, str(HERE / "engine.cpp")], check=True)
        Path(name).replace(library)
    finally:
        Path(name).unlink(missing_ok=True)


@lru_cache(maxsize=1)
def engine() -> ctypes.CDLL:
    library = ctypes.CDLL(str(build()))
    library.emulator_load.restype = ctypes.c_void_p
    return library
