"""Files that somebody else names: regular ones alone, as a pipe may keep whoever opens it, and a device do anything."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file, or a link to one, for reading.

    Raises
    ------
    OSError
        It cannot be opened, or is a folder, a pipe, a socket or a device.
    """
    _check(os.stat(path).st_mode, path)
    stream = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 - the caller closes it
    try:
        _check(os.fstat(stream.fileno()).st_mode, path)  # it may have been replaced in between
    except OSError:
        stream.close()
        raise
    return stream


def _check(mode: int, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "Not a regular file", os.fspath(path))


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
