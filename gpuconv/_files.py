"""Opens files whose names come from untrusted models: regular files only, as a pipe could block and a device act."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file, or a link to one, for reading in binary mode.

    Raises
    ------
    OSError
        The file cannot be opened, or is a folder, a pipe, a socket or a device.
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
