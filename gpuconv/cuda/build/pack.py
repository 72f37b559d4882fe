"""Compiled kernels in one file that is carried along: found by their sources, whatever compiler is there, or none.

``gpuconv compile --pack`` writes it, ``GPUCONV_PACK`` names it. It begins with a line of text: what it is, the bytes of
the index and the index's digest. Then come the index and the groups, each compressed. A group is a few kernels that are
alike, one behind the other: to read one, no more than its group is expanded. The index tells of each kernel where it
stands, its digest and the compiler's log, under a key that holds everything that makes the kernel but the compiler.

The file is read once and kept in memory as it is, a few megabytes, so that it may be replaced or removed meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gpuconv import _environment
from gpuconv.cuda.build import cache, trust

VARIABLE = "GPUCONV_PACK"
TOGETHER = 24  # kernels of a group, some 2 MB; more of them would take less space, and longer to read one
_TITLE = "gpuconv kernels 1"
_HEADER = re.compile(rb"%s (\d{1,12}) ([0-9a-f]{64})\n" % _TITLE.encode())
_FILE_BYTES, _EXPANDED_BYTES = 2**30, 2**28  # at most, of the file, and of its index or a group when expanded
_MEMORY = 2**27  # bytes that the decompressor may take beside what it gives


class Kernel(NamedTuple):
    """What is packed of a kernel: a cubin, or PTX, with the log of making it."""

    name: str
    architecture: str
    key: str
    content: bytes
    log: str


class Group(NamedTuple):
    """Kernels that are compressed together: the bytes, and the rows of the index without the group's number."""

    content: bytes
    rows: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Pack:
    """A file of packed kernels."""

    path: Path
    compiler: str  # what compiled them, for people
    architectures: frozenset[str]
    kernels: dict[str, dict[str, Any]]  # rows of the index, by key
    _groups: list[memoryview]

    def find(self, key: str) -> tuple[bytes, str] | None:
        """Return a kernel's content and log; None where it is not here, or, with a RuntimeWarning, where it is damaged.

        That comes once for each file.
        """
        row = self.kernels.get(key)
        if row is None:
            return None
        try:
            start, size = row["start"], row["size"]
            content = _expanded(self._groups[row["group"]], start + size)[start:]
            if _digest(content) == row["sha256"]:
                return content, str(row["log"])
        except (ValueError, LookupError, TypeError):
            pass
        if _is_first(_damaged, self.path):
            warnings.warn(
                f"{row.get('name')} in the packed kernels {self.path} is damaged, and is compiled anew; write the file "
                "again (gpuconv compile --pack)",
                RuntimeWarning,
                stacklevel=3,
            )
        return None


_examined: dict[Path, Pack | str] = {}
_warned: dict[Path, object] = {}
_damaged: dict[Path, object] = {}


def path() -> Path | None:
    """Return what ``GPUCONV_PACK`` names, None where it is not set; ArgumentError where it names nothing."""
    return _environment.file(VARIABLE)


def in_use() -> Pack | None:
    """Return the packed kernels that ``GPUCONV_PACK`` names; None where it is not set, or they cannot be used.

    That gives a RuntimeWarning, once for each file.
    """
    named = path()
    if named is None:
        return None
    packed = examined(named)
    if isinstance(packed, Pack):
        return packed
    if _is_first(_warned, named):
        warnings.warn(
            f"the packed kernels {named} are not used, since {packed}; {VARIABLE} should name a file that `gpuconv "
            "compile --pack` wrote, and that only its owner can write to (chmod go-w)",
            RuntimeWarning,
            stacklevel=3,
        )
    return None


def _is_first(told: dict[Path, object], path: Path) -> bool:
    """Tell whether nobody, in any thread, has been told of a file."""
    marker = object()
    return told.setdefault(path, marker) is marker


def examined(path: Path) -> Pack | str:
    """Return the packed kernels in a file, or why they cannot be used; looked at once in a process."""
    result = _examined.get(path)
    if result is None:
        result = _examined.setdefault(path, _examine(path))
    return result


def _examine(path: Path) -> Pack | str:
    try:
        return _read(path)
    except FileNotFoundError:
        return "there is no such file"
    except (OSError, _Malformed) as error:
        return str(error)


class _Malformed(Exception):
    """A file is not as it was written; the message says in what."""


def _read(path: Path) -> Pack:
    content = memoryview(trust.read(path, _FILE_BYTES))
    header = _HEADER.match(content)
    if header is None:
        raise _Malformed(f"it does not begin with {_TITLE!r} as the file of another version, or of something else")
    begin, count = header.end(), int(header[1])
    compressed = content[begin : begin + count]
    if _digest(compressed) != header[2].decode():
        raise _Malformed("it is cut off, or its index is damaged")
    try:
        index = json.loads(_expanded(compressed, _EXPANDED_BYTES))
        kernels = {str(key): dict(row) for key, row in index["kernels"].items()}
        architectures = frozenset(str(row["architecture"]) for row in kernels.values())
        groups = list(_cut(content[begin + count :], index["groups"]))
        return Pack(path, str(index["compiler"]), architectures, kernels, groups)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise _Malformed("its index is not one of packed kernels") from error


def _cut(content: memoryview, sizes: Sequence[int]) -> Iterable[memoryview]:
    if sum(sizes) != len(content):
        raise _Malformed(f"{sum(sizes)} bytes should follow its index, and {len(content)} do")
    begin = 0
    for size in sizes:
        yield content[begin : begin + size]
        begin += size


def _expanded(compressed: memoryview, size: int) -> bytes:
    """Return at most so many of the bytes that were compressed; ValueError where they are not what they were."""
    import lzma  # not before it is needed: some builds of Python have none

    if not 0 <= size <= _EXPANDED_BYTES:
        raise ValueError(f"{size} bytes are not what a group has")
    try:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY).decompress(compressed, size)
    except (lzma.LZMAError, EOFError) as error:
        raise ValueError(str(error)) from error


def _digest(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()


# ---------------------------------------------------------------- writing


def together(kernels: Iterable[Kernel]) -> Group:
    """Compress some kernels, the better the more they are alike."""
    import lzma

    contents, rows, start = [], [], 0
    for kernel in kernels:
        where = {"start": start, "size": len(kernel.content), "sha256": _digest(kernel.content)}
        about = {"key": kernel.key, "name": kernel.name, "architecture": kernel.architecture, "log": kernel.log}
        rows.append(about | where)
        contents.append(kernel.content)
        start += len(kernel.content)
    return Group(lzma.compress(b"".join(contents), lzma.FORMAT_XZ), tuple(rows))


def store(path: Path, compiler: str, groups: Sequence[Group]) -> int:
    """Write a file that others see whole or not at all, and can read as far as the umask lets them; return its bytes.

    The same kernels in the same groups give the same bytes. OSError where it cannot be written.
    """
    import lzma

    kernels = {}
    for number, group in enumerate(groups):
        for row in group.rows:
            kernels[row["key"]] = {name: value for name, value in row.items() if name != "key"} | {"group": number}
    index = {"compiler": compiler, "groups": [len(group.content) for group in groups], "kernels": kernels}
    compressed = lzma.compress(json.dumps(index, sort_keys=True).encode(), lzma.FORMAT_XZ)
    header = f"{_TITLE} {len(compressed)} {_digest(compressed)}\n".encode()
    cache.make(path.parent, 0o755)
    cache.put(path, [header, compressed, *(group.content for group in groups)], 0o644)
    _examined.pop(path, None)
    return path.stat().st_size
