"""Reads files only if no other user could have written them: a loaded kernel runs with this user's rights.

Checked on open descriptors, so that names cannot be swapped meanwhile:

- The folder and each file must be writable by their owner only (the group bit also covers ACLs). The owner must be this
  user or root. A folder that was named explicitly, and its files, may belong to anybody.
- On the path, through every link: an entry of a folder that others may write to, such as /tmp, must belong to this user
  or root. If such a folder is not sticky, this also applies to the contents of an explicitly named folder.
- A single file that was named is checked like such a folder.

Not checked: owners of other folders on the path, root on a file server, other processes of this user. On Windows
nothing is checked, since user folders are private there.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0)  # O_PATH does not require read permission
# O_NONBLOCK: opening a FIFO would wait for a writer
_FILE = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)

_LINKS = 40  # most links of a path, as in Linux

Read = Callable[[str, int], bytes]


class Untrusted(PermissionError):
    """Another user could have written the file; the message says which and who."""


@contextmanager
def opened(folder: Path, of_anybody: bool) -> Iterator[Read]:
    """Open a folder, and yield a function (name, most bytes) → content of a file in it.

    Raises Untrusted, for the folder or the file, by the rules of this module; OSError if either is missing or of the
    wrong kind.
    """
    if not hasattr(os, "getuid"):
        yield partial(_read, folder, None, None)
        return
    descriptor = os.open(folder, _FOLDER)
    try:
        owners = _owners(folder, of_anybody)
        _check(folder, os.fstat(descriptor), owners)
        yield partial(_read, folder, descriptor, owners)
    finally:
        os.close(descriptor)


def read(path: Path, limit: int) -> bytes:
    """Return the content of an explicitly named file of at most ``limit`` bytes; errors as in :func:`opened`."""
    file = os.open(path, _FILE)
    try:
        owners = _owners(path, of_anybody=True) if hasattr(os, "getuid") else None
        content = _content(path, file, owners, limit)
        if not os.path.samestat(os.fstat(file), os.stat(path)):  # the path that was checked led to another file
            raise Untrusted(f"{path} has become another file meanwhile")
        return content
    finally:
        os.close(file)


def _owners(folder: Path, of_anybody: bool) -> set[int] | None:
    """Return the user ids that the folder and its files may belong to; None for anybody."""
    known = {os.getuid(), 0}
    for place in _way(folder):
        holder = os.stat(place.parent)
        if holder.st_mode & _OTHERS_WRITE:
            _check_owner(place, os.lstat(place), known)
            of_anybody = of_anybody and bool(holder.st_mode & stat.S_ISVTX)
    return None if of_anybody else known


def _way(path: Path, links: int = _LINKS) -> Iterator[Path]:
    """Yield every folder and link on the way to an absolute path, and the path itself."""
    if not links:  # a loop of links that was created meanwhile: the folder could be opened before
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    for place in [*reversed(path.parents), path][1:]:
        yield place
        if place.is_symlink():
            yield from _way(Path(os.path.realpath(place.parent), os.readlink(place)), links - 1)


def _check(path: Path, status: os.stat_result, owners: set[int] | None) -> None:
    """Raise Untrusted if others can write to it, or it belongs to somebody else."""
    if status.st_mode & _OTHERS_WRITE:
        raise Untrusted(f"others than its owner can write to {path} (mode {stat.S_IMODE(status.st_mode):o})")
    _check_owner(path, status, owners)


def _check_owner(path: Path, status: os.stat_result, owners: set[int] | None) -> None:
    """Raise Untrusted unless it belongs to one of ``owners``; None allows anybody."""
    if owners is not None and status.st_uid not in owners:
        raise Untrusted(f"{path} belongs to user {status.st_uid}, who is neither this one nor root")


def _read(folder: Path, descriptor: int | None, owners: set[int] | None, name: str, limit: int) -> bytes:
    """Return the content of a file in an open folder."""
    path = folder / name
    if os.path.basename(name) != name:
        raise OSError(f"{name!r} lies elsewhere than in {folder}")
    file = os.open(path if descriptor is None else name, _FILE | _NO_LINK, dir_fd=descriptor)
    try:
        return _content(path, file, owners, limit)
    finally:
        os.close(file)


def _content(path: Path, file: int, owners: set[int] | None, limit: int) -> bytes:
    """Return the content of an open regular file of at most ``limit`` bytes, after checking its owner and mode."""
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
        raise OSError(f"{path} is not a file of at most {limit} bytes")
    if hasattr(os, "getuid"):
        _check(path, status, owners)
    with open(file, "rb", closefd=False) as content:
        return content.read(status.st_size)
