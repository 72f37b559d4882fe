"""The on-disk cache of compiled kernels: entries are valid only if every input and every byte is unchanged.

An entry is two files: the compiled content, named after its digest, and a manifest with the key, the digest and the
compiler's log. Both are written atomically (``os.replace``), the manifest last. A damaged entry counts as missing, so
processes may race without locks.

Entries that other users could have written (``trust``) are ignored too, with a warning. The bytes that were verified
are the bytes that a device loads.
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
_MANIFEST_BYTES, _CONTENT_BYTES = 2**20, 2**26  # most bytes to read of a manifest, and of content
_OWN = 0o600  # only this user may read it
_SHARED = 0o644
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")
_ABANDONED = 3600.0  # seconds after which a temporary file counts as abandoned; writing takes a moment

_warned: dict[Path, Exception] = {}  # by folder: one warning each
_tidied: set[Path] = set()


class Entry(NamedTuple):
    """A cache hit: the content's file, the compiler's log, and the verified content."""

    path: Path
    log: str
    content: bytes


def folder() -> Path | None:
    """Return the cache folder: ``GPUCONV_CACHE_DIR``, else ``gpuconv`` in the user's cache folder, else None.

    Raises ArgumentError if ``GPUCONV_CACHE_DIR`` does not name a folder.
    """
    return _environment.folder("GPUCONV_CACHE_DIR") or _usual()


def _usual() -> Path | None:
    """Return the user's default cache folder; None if the environment names none."""
    variable = "LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME"
    base, home = os.path.expanduser(os.environ.get(variable, "")), os.path.expanduser("~")
    if os.path.isabs(base):  # relative paths must be ignored (XDG Base Directory Specification)
        return Path(base, "gpuconv")
    return Path(home, ".cache", "gpuconv") if os.path.isabs(home) else None


def _is_named(folder: Path) -> bool:
    """Return whether the folder was chosen explicitly, by the variable or by an argument."""
    return bool(os.environ.get("GPUCONV_CACHE_DIR")) or folder != _usual()


def can_be_written(folder: Path) -> bool:
    """Return whether permissions allow new entries in a folder, or creating it."""
    there = next(place for place in (folder, *folder.parents) if os.path.exists(place))
    return os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)


def distrust(folder: Path) -> str | None:
    """Return why an existing folder is not used, because others can write to it; None if it is fine."""
    try:
        with trust.opened(folder, _is_named(folder)):
            return None
    except trust.Untrusted as error:
        return str(error)
    except OSError:
        return None


def key(*parts: str) -> str:
    """Return the digest of everything that determines an entry."""
    return hashlib.sha256(json.dumps([_FORMAT, *parts]).encode()).hexdigest()


def find(folder: Path, title: str, key: str) -> Entry | None:
    """Return an intact entry, or None.

    Warns once per folder (RuntimeWarning) if other users could have written it.
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
    except (OSError, ValueError, LookupError, TypeError, RecursionError):  # whatever a malformed file can raise
        return None
    return None


def read(folder: Path, name: str) -> bytes | None:
    """Return the content of a file in the cache; None if it is missing or unusable. Warns as :func:`find`."""
    try:
        with trust.opened(folder, _is_named(folder)) as content:
            return content(name, _CONTENT_BYTES)
    except trust.Untrusted as error:
        _warn(folder, error)
    except OSError:
        return None
    return None


def _warn(folder: Path, error: trust.Untrusted) -> None:
    """Warn, once per folder, that a cache is not trusted."""
    if _warned.setdefault(folder, error) is error:
        warnings.warn(
            f"the cache of compiled kernels in {folder} is not used as it is, since {error}; take that right from "
            "others (chmod go-w), or set GPUCONV_CACHE_DIR to a folder that only its owner can write to",
            RuntimeWarning,
            stacklevel=3,
        )


def warn_unwritable(folder: Path | None, error: OSError | None) -> None:
    """Warn, once per folder, that compiled kernels cannot be kept for later processes.

    ``folder`` is None if the user has no cache folder. A folder that is not trusted has been warned about already.
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
    """Write an entry, readable by this user only, or ``for_others`` too as far as the umask allows.

    OSError if the folder cannot be created or written, is full, or is writable by others.
    """
    name = f"{title}.{_digest(content)[:16]}{suffix}"
    mode = _SHARED if for_others else _OWN
    path = write(folder, name, content, mode)
    description = json.dumps(_description(key, name, content, log), indent=1)
    write(folder, _manifest(title, key), description.encode(), mode)
    return Entry(path, log, content)


def _manifest(title: str, key: str) -> str:
    """Return the file name of an entry's manifest."""
    return f"{title}.{key[:16]}.json"


def _description(key: str, name: str, content: bytes, log: str) -> dict[str, str]:
    """Return the content of a manifest: key, file, digest, log, and a digest of these."""
    lines = {"key": key, "file": name, "sha256": _digest(content), "log": log}
    return {**lines, "sha256 of these": _digest(json.dumps(lines).encode())}


def _digest(content: bytes) -> str:
    """Return the SHA-256 of ``content`` in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def write(folder: Path, name: str, content: bytes, mode: int = _OWN) -> Path:
    """Write a file atomically: others see all of it or nothing. OSError as :func:`store`."""
    _prepare(folder, mode | (mode & 0o444) >> 2)  # whoever may read a file may enter the folder
    put(folder / name, [content], mode)
    return folder / name


def put(path: Path, parts: Iterable[bytes], mode: int) -> None:
    """Write a file into an existing folder atomically."""
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
    """Create a folder and its parents, unless they exist."""
    missing = [place for place in (folder, *folder.parents) if not os.path.exists(place)]
    for place in reversed(missing):
        place.mkdir(mode, exist_ok=True)


def _prepare(folder: Path, mode: int) -> None:
    """Create a folder if needed, refuse one that others can write to, and clean it up once."""
    make(folder, mode)
    with trust.opened(folder, _is_named(folder)):
        if folder not in _tidied:
            _tidied.add(folder)
            _tidy(folder)


def _tidy(folder: Path) -> None:
    """Remove temporary files of writers that were killed."""
    with suppress(OSError), os.scandir(folder) as files:
        for file in files:
            if _TEMPORARY.fullmatch(file.name):
                with suppress(OSError):
                    if file.stat(follow_symlinks=False).st_mtime < time.time() - _ABANDONED:
                        os.unlink(file)


class _Private:
    """A temporary folder per process, created on first use and removed at exit."""

    def __init__(self) -> None:
        self._paths: dict[int, Path] = {}  # by process: a forked child gets its own

    def existing(self) -> Path | None:
        """Return this process's folder; None if it has not been created."""
        return self._paths.get(os.getpid())

    def make(self) -> Path:
        """Return this process's folder, creating it on first use."""
        process, path = os.getpid(), self.existing()
        if path is None:
            made = Path(tempfile.mkdtemp(prefix="gpuconv-"))
            atexit.register(_remove, made, process)
            path = self._paths.setdefault(process, made)  # another thread may have been faster
        return path


def _remove(path: Path, process: int) -> None:
    """Remove the temporary folder at the exit of the process that created it."""
    if os.getpid() == process:  # not in a child, which inherits exit handlers
        shutil.rmtree(path, ignore_errors=True)


private = _Private()
