"""Construction of the dask graph of a call: one task per block of the result, and one per slice of an input block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph

from gpuconv._arrays import plain
from gpuconv.dask import _tasks
from gpuconv.dask._spans import Chunks, Span, starts
from gpuconv.dask._tasks import Window
from gpuconv.rules import layout as layouts

Block = tuple[Span, ...]  # the spans of one block of the result, in the order N, C, D1, ...
Cover = tuple[int, slice, slice]  # (index of a chunk, slice of it that is needed, position of that slice in the window)
Key = tuple[Any, ...]


class Graph:
    """Builds the tasks of one call.

    Parameters
    ----------
    name : str
        Unique name of the resulting array.
    layout : str
        Axis order of blocks and keys; all other axis lists here are in the order N, C, D1, ...
    """

    def __init__(self, name: str, layout: str) -> None:
        self._name, self._layout = name, layout
        self._tasks: dict[Key, Any] = {}

    def array(
        self,
        x: Array,
        axes: Sequence[Sequence[Span]],
        task: Callable[[Block, Window], Callable[..., Any]],
        whole_arrays: Mapping[str, Any],
        alongside: Sequence[Array] = (),
    ) -> Array:
        """Return the dask array of all blocks.

        Parameters
        ----------
        x : dask array
        axes : sequence of sequences of Span
            The blocks along every axis.
        task : callable
            Takes a block's spans and its window; returns the callable that computes the block. That takes a list of the
            window's pieces, the arrays ``whole_arrays``, and the blocks of the arrays ``alongside``.
        whole_arrays : dict of str to array
            Arrays that every block needs as a whole: dask arrays of one chunk, and others.
        alongside : sequence of dask arrays
            Arrays of the result's shape, of which each block needs the part at its own position.
        """
        result_chunks = self._in_layout(tuple(span.stop - span.start for span in spans) for spans in axes)
        alongside = [array.rechunk(result_chunks) for array in alongside]
        others = [self._whole(label, array) for label, array in whole_arrays.items()]
        chunks = layouts.channels_second(self._layout, x.chunks)
        covers = [_covers(sizes, spans) for sizes, spans in zip(chunks, axes, strict=True)]
        for numbers in product(*(range(len(spans)) for spans in axes)):
            block = tuple(spans[number] for spans, number in zip(axes, numbers, strict=True))
            keys, places = [], []
            for pieces in product(*(cover[number] for cover, number in zip(covers, numbers, strict=True))):
                keys.append(self._piece(x, pieces))
                places.append(self._in_layout(place for _, _, place in pieces))
            window = Window(self._in_layout(span.high - span.low for span in block), tuple(places), x._meta)
            here = self._in_layout(numbers)
            beside = [(array.name, *here) for array in alongside]
            self._tasks[(self._name, *here)] = (task(block, window), keys, *others, *beside)
        sources = [x, *(array for array in whole_arrays.values() if isinstance(array, Array)), *alongside]
        layers = HighLevelGraph.from_collections(self._name, self._tasks, dependencies=sources)
        return Array(layers, self._name, result_chunks, meta=plain(x._meta))

    def _whole(self, label: str, array: Any) -> Key:
        if isinstance(array, Array):
            return (array.name, *(0 for _ in array.shape))
        key = (f"{label}-{self._name}",)
        self._tasks[key] = array
        return key

    def _piece(self, x: Array, pieces: Sequence[Cover]) -> Key:
        """Return the key of a slice of one of x's blocks; the key of the block itself if all of it is needed."""
        block = self._in_layout(number for number, _, _ in pieces)
        part = self._in_layout(needed for _, needed, _ in pieces)
        sizes = (along[number] for along, number in zip(x.chunks, block, strict=True))
        if all(needed == slice(0, size) for needed, size in zip(part, sizes, strict=True)):
            return (x.name, *block)
        ends = (end for needed in part for end in (needed.start, needed.stop))
        key = (f"piece-{self._name}", *block, *ends)
        self._tasks[key] = (partial(_tasks.cut, part), (x.name, *block))
        return key

    def _in_layout(self, entries: Iterable[Any]) -> tuple[Any, ...]:
        """Return entries in the order N, C, D1, ... rearranged to the array's layout."""
        return layouts.as_given(self._layout, tuple(entries))


def _covers(chunks: Chunks, spans: Sequence[Span]) -> list[list[Cover]]:
    """Return, for every span of an axis, the chunks that contain its input."""
    bounds = list(enumerate(zip(starts(chunks), chunks, strict=True)))
    return [list(_cover(bounds, span.low, span.high)) for span in spans]


def _cover(bounds: Sequence[tuple[int, tuple[int, int]]], low: int, high: int) -> Iterator[Cover]:
    for number, (start, size) in bounds:
        first, last = max(low, start), min(high, start + size)
        if first < last:
            yield number, slice(first - start, last - start), slice(first - low, last - low)
