"""Reading files that nobody else could have written: a kernel that is loaded does what its writer wants.

What is looked at, of the folder and of every file in it once it is open, so that no name can be given to another
meanwhile: nobody but the owner may write it (the group's bit stands for access control lists too), and the owner is
this user or root. A folder that somebody named, to use what others prepared, may belong to anybody, with its files.

On the way to the folder, through every link: in a folder that others may write to, as /tmp, there must lie something
of this user's or root's, since anybody could have put something else there. Where such a folder is not sticky, they can
still put it elsewhere, and what is found must be this user's or root's even in a folder that was named.

A file that somebody named, wherever it is, is looked at as such a folder would be, with the way to it.

Not looked at are owners of other folders on the way, whoever is root on a file server, and other processes of this
user. On Windows nothing is: folders of a user are not open to others there.
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
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0)  # O_PATH: it need not be listed
_FILE = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)  # a FIFO would wait for a writer
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)

_LINKS = 40  # of a path, as Linux counts

Read = Callable[[str, int], bytes]


class Untrusted(PermissionError):
    """Somebody else can write what is to be read; the message names it and says who."""


@contextmanager
def opened(folder: Path, of_anybody: bool) -> Iterator[Read]:
    """Open a folder, and give what reads a file in it, by its name and the most bytes that it may have.

    Untrusted as the module says, of the folder and of the file; OSError where either is absent or not what it should
    be.
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
    """Return what a file holds that somebody named, of so many bytes at most; errors as in :func:`opened`."""
    file = os.open(path, _FILE)
    try:
        owners = _owners(path, of_anybody=True) if hasattr(os, "getuid") else None
        content = _content(path, file, owners, limit)
        if not os.path.samestat(os.fstat(file), os.stat(path)):  # the way that was looked at led to another
            raise Untrusted(f"{path} has become another file meanwhile")
        return content
    finally:
        os.close(file)


def _owners(folder: Path, of_anybody: bool) -> set[int] | None:
    """Return to whom the folder and its files may belong, None for anybody."""
    known = {os.getuid(), 0}
    for place in _way(folder):
        holder = os.stat(place.parent)
        if holder.st_mode & _OTHERS_WRITE:
            _check_owner(place, os.lstat(place), known)
            of_anybody = of_anybody and bool(holder.st_mode & stat.S_ISVTX)
    return None if of_anybody else known


def _way(path: Path, links: int = _LINKS) -> Iterator[Path]:
    """Yield every folder and link that the system goes through to an absolute path, and the path itself."""
    if not links:  # somebody lays them in circles meanwhile: the folder was open before
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    for place in [*reversed(path.parents), path][1:]:
        yield place
        if place.is_symlink():
            yield from _way(Path(os.path.realpath(place.parent), os.readlink(place)), links - 1)


def _check(path: Path, status: os.stat_result, owners: set[int] | None) -> None:
    if status.st_mode & _OTHERS_WRITE:
        raise Untrusted(f"others than its owner can write to {path} (mode {stat.S_IMODE(status.st_mode):o})")
    _check_owner(path, status, owners)


def _check_owner(path: Path, status: os.stat_result, owners: set[int] | None) -> None:
    if owners is not None and status.st_uid not in owners:
        raise Untrusted(f"{path} belongs to user {status.st_uid}, who is neither this one nor root")


def _read(folder: Path, descriptor: int | None, owners: set[int] | None, name: str, limit: int) -> bytes:
    path = folder / name
    if os.path.basename(name) != name:
        raise OSError(f"{name!r} lies elsewhere than in {folder}")
    file = os.open(path if descriptor is None else name, _FILE | _NO_LINK, dir_fd=descriptor)
    try:
        return _content(path, file, owners, limit)
    finally:
        os.close(file)


def _content(path: Path, file: int, owners: set[int] | None, limit: int) -> bytes:
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
        raise OSError(f"{path} is not a file of at most {limit} bytes")
    if hasattr(os, "getuid"):
        _check(path, status, owners)
    with open(file, "rb", closefd=False) as content:
        return content.read(status.st_size)
