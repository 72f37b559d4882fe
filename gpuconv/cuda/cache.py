"""Compiled kernels on disk: found again only if nothing that made them has changed, and every byte is as written.

An entry is two files: what was compiled, named after its own content, and a manifest that holds the key, that content's
digest and the compiler's log. Both appear whole (``os.replace``), the manifest last. Whatever is not as it was written
is as good as absent, so that processes may race and nothing needs a lock.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import NamedTuple

_FORMAT = 1


class Entry(NamedTuple):
    """What a key stands for: a file to load, and the log of making it."""

    path: Path
    log: str


def folder() -> Path | None:
    """Return ``GPUCONV_CACHE_DIR``, or ``gpuconv`` among the user's caches; None where the user has no such folder."""
    chosen = os.environ.get("GPUCONV_CACHE_DIR")
    if chosen:
        return Path(chosen).absolute()
    for variable in ("LOCALAPPDATA",) if os.name == "nt" else ("XDG_CACHE_HOME",):
        base = os.environ.get(variable, "")
        if os.path.isabs(base):
            return Path(base, "gpuconv")
    home = os.path.expanduser("~")
    return Path(home, ".cache", "gpuconv") if os.path.isabs(home) else None


def can_be_written(folder: Path) -> bool:
    """Tell whether a folder takes new entries, or can be made, as far as permissions say; others may stand in it."""
    there = next(place for place in (folder, *folder.parents) if os.path.exists(place))
    return os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)


def key(*parts: str) -> str:
    """Return the digest of everything that makes an entry what it is."""
    return hashlib.sha256(json.dumps([_FORMAT, *parts]).encode()).hexdigest()


def find(folder: Path, title: str, key: str) -> Entry | None:
    """Return an entry that is whole, or None."""
    try:
        manifest = json.loads(_manifest(folder, title, key).read_bytes())
        path = folder / manifest["file"]
        content = path.read_bytes()
        log = manifest["log"]
        if manifest == _description(key, path.name, content, log) and path.parent == folder:
            return Entry(path, log)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):  # all that a file of anybody's can hold
        return None
    return None


def store(folder: Path, title: str, key: str, suffix: str, content: bytes, log: str) -> Entry:
    """Write an entry.

    Raises
    ------
    OSError
        Where the folder cannot be made or written, or is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{title}.{_digest(content)[:16]}{suffix}"
    write(path, content)
    write(_manifest(folder, title, key), json.dumps(_description(key, path.name, content, log), indent=1).encode())
    return Entry(path, log)


def _manifest(folder: Path, title: str, key: str) -> Path:
    return folder / f"{title}.{key[:16]}.json"


def _description(key: str, name: str, content: bytes, log: str) -> dict[str, str]:
    lines = {"key": key, "file": name, "sha256": _digest(content), "log": log}
    return {**lines, "sha256 of these": _digest(json.dumps(lines).encode())}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write(path: Path, content: bytes) -> None:
    """Write a file that others see whole or not at all; OSError where that fails."""
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")  # not mkstemp: others may read what the umask lets them
    try:
        with open(temporary, "xb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


class _Private:
    """A temporary folder of this process, made when first needed, removed when the process ends."""

    def __init__(self) -> None:
        self._process = 0
        self._path = Path()
        self._lock = Lock()

    def existing(self) -> Path | None:
        return self._path if self._process == os.getpid() else None

    def make(self) -> Path:
        with self._lock:
            path = self.existing()
            if path is None:
                path = self._path = Path(tempfile.mkdtemp(prefix="gpuconv-"))
                self._process = os.getpid()
                atexit.register(_remove, path, self._process)
            return path


def _remove(path: Path, process: int) -> None:
    if os.getpid() == process:  # and not a child, which inherits what is registered
        shutil.rmtree(path, ignore_errors=True)


private = _Private()
