"""Workspace and blocking of the CPU backend: the limit on temporary memory, block sizes, and per-thread buffers."""

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

MOST_AXES = 64  # of a NumPy array
_DEFAULT_LIMIT = 256 * 2**20  # bytes
_LEAST = 16 * 2**10  # bytes
_MOST_INVARIANT = 8  # batch-invariant calls: threads among which the workspace is divided, however many there are
_FEW_INVARIANT = 2  # the same for a small workspace, and then no more threads run: blocks would be too small
_SMALL_BYTES = 64 * 2**20


def limit() -> int:
    """Return the limit on temporary memory per call in bytes: ``GPUCONV_WORKSPACE_BYTES``, or 256 MiB."""
    return _environment.once(_limit)


def _limit() -> int:
    return _environment.integer("GPUCONV_WORKSPACE_BYTES", _LEAST) or _DEFAULT_LIMIT


def shrink(extents: Ints, volume: int) -> Ints:
    """Return smaller extents, cut from the outermost axis on, with a product of at most ``volume`` (or all 1)."""
    box = list(extents)
    for axis, extent in enumerate(box):
        inner = prod(box[axis + 1 :])
        if extent * inner <= volume:
            break
        parts = -(-extent // max(1, volume // max(1, inner)))
        box[axis] = -(-extent // parts)
    return tuple(box)


def balance(box: Ints, extents: Ints, others: int, threads: int, least: int) -> Ints:
    """Return a box of about the size of ``box`` such that the threads get equal numbers of boxes (wave quantisation).

    ``others`` is the number of copies of ``extents`` that are covered, such as images. The box gets about ``least``
    positions or more.
    """
    partition = [axis for axis, (size, extent) in enumerate(zip(box, extents, strict=True)) if 1 < size < extent]
    partition = partition or [axis for axis, size in enumerate(box) if size > 1]
    if not partition:
        return box
    axis = partition[0]
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
    """Return the output channels per block: all ``rows``, or fewer if there are fewer ``pieces`` than threads."""
    return rows if pieces >= threads else max(min(rows, 16), -(-rows * pieces // threads))


def pieces(box: Ints, extents: Ints) -> int:
    """Return how many boxes cover ``extents``."""
    return prod(-(-extent // size) for extent, size in zip(extents, box, strict=True))


def boxes(extents: Ints, chunk: Ints) -> Iterator[Box]:
    """Yield boxes of at most ``chunk`` that cover ``extents``, in row-major order."""
    return product(*(list(spans(extent, step)) for extent, step in zip(extents, chunk, strict=True)))


def spans(extent: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield half-open spans of at most ``step`` that cover ``range(extent)``."""
    for start in range(0, extent, max(1, step)):
        yield start, min(start + step, extent)


def flat_index(box: Box, extents: Ints) -> int:
    """Return the row-major position of a box's first element."""
    index = 0
    for (start, _), extent in zip(box, extents, strict=True):
        index = index * extent + start
    return index


def last_axes(parts: Iterable[slice]) -> Any:
    """Return the index expression that applies ``parts`` to the last axes."""
    return (..., *parts)


def first_axes(*parts: slice | int | tuple[slice | int, ...]) -> Any:
    """Return the index expression that applies ``parts`` to the first axes; tuples among them are flattened."""
    return tuple(index for part in parts for index in (part if isinstance(part, tuple) else (part,)))


@dataclass(frozen=True, slots=True)
class Partition:
    """What the blocks of a convolution are planned for.

    Attributes
    ----------
    images, threads : int
        Number of images and of threads to divide the work among.
    invariant : bool
        Whether the call is batch-invariant: an image's bits must not depend on other images, nor on whether the weights
        have been used before. Then ``images`` and ``threads`` are nominal, and the call may have more.
    """

    images: int
    threads: int
    invariant: bool = False

    def share_of(self, workspace: int) -> int:
        """Return the bytes that one block may use: half of one thread's share of the workspace."""
        if not self.invariant:
            return workspace // (2 * self.threads)
        return workspace // (2 * (_FEW_INVARIANT if workspace < _SMALL_BYTES else _MOST_INVARIANT))

    def at_once(self, workspace: int) -> int | None:
        """Return how many threads may compute blocks at the same time; None if any number may."""
        return _FEW_INVARIANT if self.invariant and workspace < _SMALL_BYTES else None


INVARIANT = Partition(1, 2, invariant=True)  # blocks never span images; planning for more threads would enlarge halos


@dataclass(frozen=True, slots=True)
class BlockSize:
    """Size of a convolution's block: groups, output channels of a group, images, and positions per spatial axis."""

    groups: int
    rows: int
    images: int
    box: Ints


@dataclass(frozen=True, slots=True)
class Block:
    """The images and output positions of one block."""

    images: slice
    box: Box

    @property
    def positions(self) -> Ints:
        """Number of outputs along each spatial axis."""
        return tuple(stop - start for start, stop in self.box)


def blocks(images: int, extents: Ints, plan: BlockSize) -> list[Block]:
    """Return the blocks of a planned size that cover all images and output positions."""
    return [Block(slice(*span), box) for span, box in product(spans(images, plan.images), boxes(extents, plan.box))]


def in_order(layout: str, x: Array, y: Array, compute: Callable[[Array, Array, slice], None]) -> None:
    """Call ``compute(x, y, images)`` with x and y (N, C, …) contiguous in ``layout`` ("NCHW" or "NHWC").

    Arrays with other strides are copied, some images at a time. Used by batch-invariant calls, whose bits must not
    depend on strides.
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
    """Return an uninitialised array of the same shape (N, C, …) and dtype that is contiguous in ``layout``."""
    if layout.endswith("C"):
        return np.moveaxis(np.empty((array.shape[0], *array.shape[2:], array.shape[1]), array.dtype), -1, 1)
    return np.empty(array.shape, array.dtype)


class Scratch(threading.local):
    """Named buffers that each thread reuses from block to block and from call to call.

    Freed memory returns to the system and has to be mapped page by page again, which costs more than filling it. At
    most 24 MiB per thread are kept between calls.
    """

    _KEPT_BYTES = 24 * 2**20

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, str], Array] = {}

    def take(self, name: str, shape: Ints, dtype: Any) -> Array:
        """Return an uninitialised array, in the memory of the last one of this name and dtype if it is large enough."""
        size, key = prod(shape), (name, np.dtype(dtype).str)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.size < size:
            self._buffers.pop(key, None)
            del buffer  # before its replacement is allocated: the limit allows for one of them
            buffer = np.empty(size, dtype)
            if buffer.nbytes + sum(kept.nbytes for kept in self._buffers.values()) <= self._KEPT_BYTES:
                self._buffers[key] = buffer
        return buffer[:size].reshape(shape)


SCRATCH = Scratch()
