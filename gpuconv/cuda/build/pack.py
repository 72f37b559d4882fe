"""Packs: precompiled kernels in one portable file, found by their sources, usable without a compiler.

``gpuconv compile --pack`` writes a pack, ``GPUCONV_PACK`` names it. Layout: one header line (title, size and digest of
the index), the xz-compressed index, then xz-compressed groups. A group holds a few similar kernels, so reading one
kernel decompresses only its group.

The index has, per kernel, its position, digest and compiler log, under a key of everything that determines it except
the compiler. The file, a few megabytes, is read once and kept in memory, so it may be replaced or removed meanwhile.
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
TOGETHER = 24  # kernels per group, about 2 MB; larger groups compress better, but slow down reading one kernel
_TITLE = "gpuconv kernels 1"
_HEADER = re.compile(rb"%s (\d{1,12}) ([0-9a-f]{64})\n" % _TITLE.encode())
_FILE_BYTES, _EXPANDED_BYTES = 2**30, 2**28  # most bytes of the file, and of its index or a group when decompressed
_MEMORY = 2**27  # the decompressor's memory limit in bytes, beyond its output


class Kernel(NamedTuple):
    """A kernel to pack: a cubin or PTX, with its log."""

    name: str
    architecture: str
    key: str
    content: bytes
    log: str


class Group(NamedTuple):
    """Kernels compressed together: the bytes, and their rows of the index without the group's number."""

    content: bytes
    rows: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Pack:
    """An opened pack."""

    path: Path
    compiler: str  # the compiler's name, for messages
    architectures: frozenset[str]
    kernels: dict[str, dict[str, Any]]  # rows of the index, by key
    _groups: list[memoryview]

    def find(self, key: str) -> tuple[bytes, str] | None:
        """Return a kernel's content and log; None if it is missing or damaged.

        Damage gives a RuntimeWarning, once per file.
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
    """Return the file that ``GPUCONV_PACK`` names; None if it is not set, ArgumentError if it is invalid."""
    return _environment.file(VARIABLE)


def in_use() -> Pack | None:
    """Return the pack that ``GPUCONV_PACK`` names; None if it is not set or cannot be used.

    An unusable pack gives a RuntimeWarning, once per file.
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
    """Return whether this is the first warning about a file, over all threads."""
    marker = object()
    return told.setdefault(path, marker) is marker


def examined(path: Path) -> Pack | str:
    """Return the pack in a file, or why it cannot be used; the file is read once per process."""
    result = _examined.get(path)
    if result is None:
        result = _examined.setdefault(path, _examine(path))
    return result


def _examine(path: Path) -> Pack | str:
    """Read a pack, or return why it cannot be used."""
    try:
        return _read(path)
    except FileNotFoundError:
        return "there is no such file"
    except (OSError, _Malformed) as error:
        return str(error)


class _Malformed(Exception):
    """A file is not a valid pack; the message says why."""


def _read(path: Path) -> Pack:
    """Read and verify a pack's header and index."""
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
    """Yield the groups of a pack, which must fill the rest of the file exactly."""
    if sum(sizes) != len(content):
        raise _Malformed(f"{sum(sizes)} bytes should follow its index, and {len(content)} do")
    begin = 0
    for size in sizes:
        yield content[begin : begin + size]
        begin += size


def _expanded(compressed: memoryview, size: int) -> bytes:
    """Return at most ``size`` decompressed bytes; ValueError if the data is damaged."""
    import lzma  # on use: some builds of Python lack it

    if not 0 <= size <= _EXPANDED_BYTES:
        raise ValueError(f"{size} bytes are not what a group has")
    try:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY).decompress(compressed, size)
    except (lzma.LZMAError, EOFError) as error:
        raise ValueError(str(error)) from error


def _digest(content: bytes | memoryview) -> str:
    """Return the SHA-256 of ``content`` in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


# ---------------------------------------------------------------- writing


def together(kernels: Iterable[Kernel]) -> Group:
    """Compress kernels into one group; similar kernels compress better."""
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
    """Write a pack atomically, readable by others as far as the umask allows; return its size in bytes.

    Equal kernels in equal groups give equal bytes. OSError if it cannot be written.
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
