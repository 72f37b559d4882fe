"""Compiled kernels on disk: found again only if nothing that made them has changed, and every byte is as written.

An entry is two files: what was compiled, named after its own content, and a manifest that holds the key, that content's
digest and the compiler's log. Both appear whole (``os.replace``), the manifest last. Whatever is not as it was written
is as good as absent, so that processes may race and nothing needs a lock; so is what others than this user could have
written (``trust``), after a warning. The bytes that were looked at are those that a device loads.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gpuconv import _environment
from gpuconv.cuda.build import trust

_FORMAT = 1
_MANIFEST_BYTES, _CONTENT_BYTES = 2**20, 2**26  # at most, to be read
_OWN = 0o600  # nobody else reads what this user computes
_SHARED = 0o644
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")
_ABANDONED = 3600.0  # seconds; writing takes a moment

_warned: dict[Path, Exception] = {}  # by folder, which one warning is enough for
_tidied: set[Path] = set()


class Entry(NamedTuple):
    """What a key stands for: a file, the log of making it, and what it held when it was looked at."""

    path: Path
    log: str
    content: bytes


def folder() -> Path | None:
    """Return ``GPUCONV_CACHE_DIR``, or ``gpuconv`` among the user's caches; None where the user has no such folder.

    ArgumentError where ``GPUCONV_CACHE_DIR`` names nothing.
    """
    return _environment.folder("GPUCONV_CACHE_DIR") or _usual()


def _usual() -> Path | None:
    variable = "LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME"
    base, home = os.path.expanduser(os.environ.get(variable, "")), os.path.expanduser("~")
    if os.path.isabs(base):  # others are to be ignored, by the specification of XDG's folders
        return Path(base, "gpuconv")
    return Path(home, ".cache", "gpuconv") if os.path.isabs(home) else None


def _is_named(folder: Path) -> bool:
    """Tell whether somebody chose a folder, by the variable or by an argument."""
    return bool(os.environ.get("GPUCONV_CACHE_DIR")) or folder != _usual()


def can_be_written(folder: Path) -> bool:
    """Tell whether a folder takes new entries, or can be made, as far as permissions say; others may stand in it."""
    there = next(place for place in (folder, *folder.parents) if os.path.exists(place))
    return os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)


def distrust(folder: Path) -> str | None:
    """Return why a folder is not used though it is there: somebody else can write to it. None where all is well."""
    try:
        with trust.opened(folder, _is_named(folder)):
            return None
    except trust.Untrusted as error:
        return str(error)
    except OSError:
        return None


def key(*parts: str) -> str:
    """Return the digest of everything that makes an entry what it is."""
    return hashlib.sha256(json.dumps([_FORMAT, *parts]).encode()).hexdigest()


def find(folder: Path, title: str, key: str) -> Entry | None:
    """Return an entry that is whole, or None; with a RuntimeWarning where others than this user could have written it.

    That comes once for each folder.
    """
    try:
        with trust.opened(folder, _is_named(folder)) as read:
            manifest = json.loads(read(_manifest(title, key), _MANIFEST_BYTES))
            name, log = manifest["file"], str(manifest["log"])
            content = read(name, _CONTENT_BYTES)
        if manifest == _description(key, name, content, log):
            return Entry(folder / name, log, content)
    except trust.Untrusted as error:
        _warn(folder, error)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):  # all that a file of anybody's can hold
        return None
    return None


def read(folder: Path, name: str) -> bytes | None:
    """Return what a file of the cache holds, as `find` does; None where it is absent, or nothing to be read."""
    try:
        with trust.opened(folder, _is_named(folder)) as content:
            return content(name, _CONTENT_BYTES)
    except trust.Untrusted as error:
        _warn(folder, error)
    except OSError:
        return None
    return None


def _warn(folder: Path, error: trust.Untrusted) -> None:
    if _warned.setdefault(folder, error) is error:
        warnings.warn(
            f"the cache of compiled kernels in {folder} is not used as it is, since {error}; take that right from "
            "others (chmod go-w), or set GPUCONV_CACHE_DIR to a folder that only its owner can write to",
            RuntimeWarning,
            stacklevel=3,
        )


def warn_unwritable(folder: Path | None, error: OSError | None) -> None:
    """Warn, once for each folder, that compiled kernels cannot be kept for later processes; None where there is none.

    A folder that is not trusted has had its warning.
    """
    cause = error or OSError("neither XDG_CACHE_HOME nor HOME names a folder")
    if _warned.setdefault(folder or Path(), cause) is cause:
        place = f"be stored in {folder}" if folder else "be kept"
        warnings.warn(
            f"compiled kernels cannot {place} ({cause.strerror or cause}), so that every process compiles them again; "
            "set GPUCONV_CACHE_DIR to a folder that can be written",
            RuntimeWarning,
            stacklevel=3,
        )


def store(
    folder: Path, title: str, key: str, suffix: str, content: bytes, log: str, *, for_others: bool = False
) -> Entry:
    """Write an entry, for this user alone or also ``for_others`` to read, as far as the umask lets them.

    OSError where the folder cannot be made or written, is full, or is one that others can write to.
    """
    name = f"{title}.{_digest(content)[:16]}{suffix}"
    mode = _SHARED if for_others else _OWN
    path = write(folder, name, content, mode)
    description = json.dumps(_description(key, name, content, log), indent=1)
    write(folder, _manifest(title, key), description.encode(), mode)
    return Entry(path, log, content)


def _manifest(title: str, key: str) -> str:
    return f"{title}.{key[:16]}.json"


def _description(key: str, name: str, content: bytes, log: str) -> dict[str, str]:
    lines = {"key": key, "file": name, "sha256": _digest(content), "log": log}
    return {**lines, "sha256 of these": _digest(json.dumps(lines).encode())}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write(folder: Path, name: str, content: bytes, mode: int = _OWN) -> Path:
    """Write a file that others see whole or not at all, if they see it; OSError as `store`."""
    _prepare(folder, mode | (mode & 0o444) >> 2)  # who may read a file may enter the folder
    put(folder / name, [content], mode)
    return folder / name


def put(path: Path, parts: Iterable[bytes], mode: int) -> None:
    """Write a file in a folder that is there, whole or not at all."""
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb", opener=lambda place, flags: os.open(place, flags, mode)) as file:
            file.writelines(parts)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def make(folder: Path, mode: int) -> None:
    """Make a folder unless it is there, and all that it lies in."""
    missing = [place for place in (folder, *folder.parents) if not os.path.exists(place)]
    for place in reversed(missing):
        place.mkdir(mode, exist_ok=True)


def _prepare(folder: Path, mode: int) -> None:
    """Make a folder if need be, refuse one that others can write to, and tidy it up once."""
    make(folder, mode)
    with trust.opened(folder, _is_named(folder)):
        if folder not in _tidied:
            _tidied.add(folder)
            _tidy(folder)


def _tidy(folder: Path) -> None:
    """Remove what was left by writers that were killed."""
    with suppress(OSError), os.scandir(folder) as files:
        for file in files:
            if _TEMPORARY.fullmatch(file.name):
                with suppress(OSError):
                    if file.stat(follow_symlinks=False).st_mtime < time.time() - _ABANDONED:
                        os.unlink(file)


class _Private:
    """A temporary folder of this process, made when first needed, removed when the process ends."""

    def __init__(self) -> None:
        self._paths: dict[int, Path] = {}  # by process: a forked child has another

    def existing(self) -> Path | None:
        return self._paths.get(os.getpid())

    def make(self) -> Path:
        process, path = os.getpid(), self.existing()
        if path is None:
            made = Path(tempfile.mkdtemp(prefix="gpuconv-"))
            atexit.register(_remove, made, process)
            path = self._paths.setdefault(process, made)  # another thread may have come first
        return path


def _remove(path: Path, process: int) -> None:
    if os.getpid() == process:  # and not a child, which inherits what is registered
        shutil.rmtree(path, ignore_errors=True)


private = _Private()
