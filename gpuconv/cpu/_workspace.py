"""How much memory the NumPy backend may take beside inputs and output, and how a problem is cut to fit it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from math import gcd, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuconv import _environment

Array = NDArray[Any]
Ints = tuple[int, ...]
Span = tuple[int, int]
Box = tuple[Span, ...]

MOST_AXES = 64  # of NumPy's arrays
_DEFAULT_LIMIT = 256 * 2**20
_LEAST = 16 * 2**10
_MOST_ALONE = 8  # threads for which the workspace suffices, where blocks must not depend on how many there are
_FEW_ALONE = 2  # the same of a small workspace: its blocks would be too small otherwise, and no more threads are let in
_SMALL_BYTES = 64 * 2**20


def limit() -> int:
    """Return the bound on extra memory in bytes: ``GPUCONV_WORKSPACE_BYTES``, or 256 MiB."""
    return _environment.once(_limit)


def _limit() -> int:
    return _environment.integer("GPUCONV_WORKSPACE_BYTES", _LEAST) or _DEFAULT_LIMIT


def shrink(extents: Ints, volume: int) -> Ints:
    """Cut extents, outermost axis first, until their product is at most ``volume`` (or every extent is 1)."""
    box = list(extents)
    for axis, extent in enumerate(box):
        inner = prod(box[axis + 1 :])
        if extent * inner <= volume:
            break
        parts = -(-extent // max(1, volume // max(1, inner)))
        box[axis] = -(-extent // parts)
    return tuple(box)


def balance(box: Ints, extents: Ints, others: int, threads: int, least: int) -> Ints:
    """Cut a box, or a little larger one, so that the threads finish together.

    There are ``others`` times as many boxes as cover ``extents``; none gets much smaller than ``least`` positions.
    """
    cut = [axis for axis, (size, extent) in enumerate(zip(box, extents, strict=True)) if 1 < size < extent]
    cut = cut or [axis for axis, size in enumerate(box) if size > 1]
    if not cut:
        return box
    axis = cut[0]
    whole = others * pieces(box, extents) // -(-extents[axis] // box[axis])
    step = threads // gcd(whole, threads)  # the fewest parts that come out even
    parts = extents[axis] / box[axis]
    if whole * parts >= 4 * threads or step > extents[axis]:
        return box
    even = max(1, round(parts / step)) * step
    if prod(box) * parts < least * even:
        return box
    return (*box[:axis], -(-extents[axis] // even), *box[axis + 1 :])


def share_rows(rows: int, pieces: int, threads: int) -> int:
    """Cut the output channels too where there are fewer pieces of work than threads."""
    return rows if pieces >= threads else max(min(rows, 16), -(-rows * pieces // threads))


def pieces(box: Ints, extents: Ints) -> int:
    """Return how many boxes cover ``extents``."""
    return prod(-(-extent // size) for extent, size in zip(extents, box, strict=True))


def boxes(extents: Ints, chunk: Ints) -> Iterator[Box]:
    """Cover ``extents`` with boxes of at most ``chunk``, in row-major order."""
    return product(*(list(spans(extent, step)) for extent, step in zip(extents, chunk, strict=True)))


def spans(extent: int, step: int) -> Iterator[tuple[int, int]]:
    """Cover ``range(extent)`` with half-open spans of at most ``step``."""
    for start in range(0, extent, max(1, step)):
        yield start, min(start + step, extent)


def flat_index(box: Box, extents: Ints) -> int:
    """Return the row-major position of a box's first element."""
    index = 0
    for (start, _), extent in zip(box, extents, strict=True):
        index = index * extent + start
    return index


def last_axes(parts: Iterable[slice]) -> Any:
    """Return the index of these parts of the last axes."""
    return (..., *parts)


def first_axes(*parts: slice | int | tuple[slice | int, ...]) -> Any:
    """Return the index of these parts of the first axes, tuples spelled out."""
    return tuple(index for part in parts for index in (part if isinstance(part, tuple) else (part,)))


@dataclass(frozen=True, slots=True)
class Cut:
    """For how many images and threads a convolution is cut into blocks.

    Attributes
    ----------
    images, threads : int
    alone : bool
        Whether sums must not depend on what other images there are, nor on how often the weights have come before.
        Then there may be more images and threads than it is cut for.
    """

    images: int
    threads: int
    alone: bool = False

    def share_of(self, workspace: int) -> int:
        """Return how many bytes of the workspace a block may take: half of a thread's share."""
        if not self.alone:
            return workspace // (2 * self.threads)
        return workspace // (2 * (_FEW_ALONE if workspace < _SMALL_BYTES else _MOST_ALONE))

    def at_once(self, workspace: int) -> int | None:
        """Return how many threads may have a block at the same time, or None for any number."""
        return _FEW_ALONE if self.alone and workspace < _SMALL_BYTES else None


ALONE = Cut(1, 2, alone=True)  # every block lies inside one image; more parts would gather inputs more often


@dataclass(frozen=True, slots=True)
class BlockSize:
    """How much one block of a convolution takes: groups, output channels of a group, images, positions."""

    groups: int
    rows: int
    images: int
    box: Ints


@dataclass(frozen=True, slots=True)
class Block:
    """The images and positions of one block."""

    images: slice
    box: Box

    @property
    def positions(self) -> Ints:
        """Extent along every axis."""
        return tuple(stop - start for start, stop in self.box)


def blocks(images: int, extents: Ints, plan: BlockSize) -> list[Block]:
    """Cut all images and positions as planned."""
    return [Block(slice(*span), box) for span, box in product(spans(images, plan.images), boxes(extents, plan.box))]


def in_order(layout: str, x: Array, y: Array, compute: Callable[[Array, Array, slice], None]) -> None:
    """Call ``compute(x, y, images)`` on arrays (N, C, …) that lie in memory as C-contiguous ones of a layout do.

    Where x or y lies otherwise, on copies of some images at a time.
    """
    if _lies(layout, x) and _lies(layout, y):
        compute(x, y, slice(None))
        return
    step = max(1, limit() // (4 * max(1, (x.nbytes + y.nbytes) // x.shape[0])))
    for span in spans(x.shape[0], step):
        images = slice(*span)
        part, result = x[images], y[images]
        if not _lies(layout, part):
            part = _like(layout, part)
            part[...] = x[images]
        target = result if _lies(layout, result) else _like(layout, result)
        compute(part, target, images)
        if target is not result:
            result[...] = target


def _lies(layout: str, array: Array) -> bool:
    flags = (np.moveaxis(array, 1, -1) if layout.endswith("C") else array).flags
    return flags.c_contiguous and flags.aligned


def _like(layout: str, array: Array) -> Array:
    """Return an uninitialised array of the same shape and type that lies as one of a layout does."""
    if layout.endswith("C"):
        return np.moveaxis(np.empty((array.shape[0], *array.shape[2:], array.shape[1]), array.dtype), -1, 1)
    return np.empty(array.shape, array.dtype)


class Scratch(threading.local):
    """Named buffers that each thread uses again from block to block and from call to call.

    Memory that a thread has given back has to be mapped anew, page by page, which costs more than what is done in
    it. What is kept from call to call is bounded.
    """

    _KEPT_BYTES = 24 * 2**20

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, str], Array] = {}

    def take(self, name: str, shape: Ints, dtype: Any) -> Array:
        """Return an uninitialised array of this shape, in the memory that the name had before if it suffices."""
        size, key = prod(shape), (name, np.dtype(dtype).str)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.size < size:
            self._buffers.pop(key, None)
            del buffer  # before there is another: only one of them counts against the limit
            buffer = np.empty(size, dtype)
            if buffer.nbytes + sum(kept.nbytes for kept in self._buffers.values()) <= self._KEPT_BYTES:
                self._buffers[key] = buffer
        return buffer[:size].reshape(shape)


SCRATCH = Scratch()
