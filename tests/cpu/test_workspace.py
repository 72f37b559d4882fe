"""How the NumPy backend cuts its work into blocks: sizes by hand, and every position in one block."""

from __future__ import annotations

from itertools import product
from math import prod
from random import Random
from typing import Any

import numpy as np
import pytest

from gpuconv.cpu import _gather, _scatter, _workspace
from gpuconv.cpu._finish import Finish
from gpuconv.cpu._workspace import BlockSize, Partition
from gpuconv.cpu.pool import _blocks
from gpuconv.rules import geometry

Ints = tuple[int, ...]


@pytest.mark.parametrize(
    ("extents", "volume", "box"),
    [
        ((4, 5), 20, (4, 5)),
        ((4, 5), 19, (2, 5)),  # three rows would fit, but that makes two parts as well, of three and one
        ((4, 5), 10, (2, 5)),
        ((4, 5), 9, (1, 5)),
        ((4, 5), 4, (1, 3)),
        ((4, 5), 1, (1, 1)),
        ((4, 5), 0, (1, 1)),
        ((2, 3, 7), 21, (1, 3, 7)),
        ((2, 3, 7), 20, (1, 2, 7)),
        ((7,), 3, (3,)),
        ((), 1, ()),
    ],
)
def test_extents_are_cut_from_the_outermost_axis_on_in_equal_parts(extents: Ints, volume: int, box: Ints) -> None:
    assert _workspace.shrink(extents, volume) == box


@pytest.mark.parametrize(
    ("rows", "pieces", "threads", "expected"),
    [(100, 4, 4, 100), (100, 5, 4, 100), (100, 3, 4, 75), (101, 3, 4, 76), (100, 1, 8, 16), (12, 1, 8, 12)],
)
def test_rows_are_shared_where_there_are_fewer_pieces_than_threads(
    rows: int, pieces: int, threads: int, expected: int
) -> None:
    assert _workspace.share_rows(rows, pieces, threads) == expected


@pytest.mark.parametrize(
    ("box", "extents", "others", "threads", "expected"),
    [
        ((40, 8), (100, 8), 1, 4, (25, 8)),  # 2.5 boxes become four
        ((40, 8), (100, 8), 2, 4, (50, 8)),  # five become four
        ((40, 8), (100, 8), 7, 4, (40, 8)),  # 17.5 are enough for four threads
        ((100, 8), (100, 8), 1, 4, (25, 8)),  # a whole array too
        ((1, 8), (100, 80), 1, 4, (1, 8)),  # already 1000
        ((1, 40), (3, 40), 1, 4, (1, 10)),  # three rows, cut along the next axis: twelve
        ((1, 1), (1, 1), 1, 4, (1, 1)),
        ((3, 8), (3, 8), 1, 4, (3, 8)),  # three cannot be cut into four
        ((4, 8), (4, 8), 1, 4, (1, 8)),
        ((4, 1), (4, 1), 1, 4, (4, 1)),  # one position each would be too small
    ],
)
def test_boxes_come_out_even(box: Ints, extents: Ints, others: int, threads: int, expected: Ints) -> None:
    assert _workspace.balance(box, extents, others, threads, 8) == expected


def test_boxes_cover_every_position_once() -> None:
    random = Random(0)
    for _ in range(100):
        extents = tuple(random.randint(0, 7) for _ in range(random.randint(1, 3)))
        chunk = tuple(random.randint(1, 8) for _ in extents)
        found = list(_workspace.boxes(extents, chunk))
        met = [place for box in found for place in product(*(range(*span) for span in box))]
        assert met == sorted(met, key=lambda place: [n // c for n, c in zip(place, chunk, strict=True)])
        assert sorted(met) == list(product(*map(range, extents)))
        assert all(stop - start <= size for box in found for (start, stop), size in zip(box, chunk, strict=True))
        assert _workspace.pieces(chunk, extents) == len(found)


def test_the_position_of_a_box() -> None:
    places = np.arange(3 * 5 * 7).reshape(3, 5, 7)
    for box in _workspace.boxes((3, 5, 7), (2, 2, 3)):
        assert _workspace.flat_index(box, (3, 5, 7)) == places[tuple(start for start, _ in box)]


def test_blocks_are_of_some_images_each() -> None:
    found = _workspace.blocks(5, (3, 4), BlockSize(1, 1, 2, (2, 4)))
    images = [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert [(block.images, block.box) for block in found] == [
        (some, box) for some in images for box in (((0, 2), (0, 4)), ((2, 3), (0, 4)))
    ]
    assert [block.positions for block in found[:2]] == [(2, 4), (1, 4)]


def test_indices_of_the_first_and_the_last_axes() -> None:
    array = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    rows, columns = slice(1, 2), slice(0, 3)
    np.testing.assert_array_equal(array[_workspace.last_axes([rows, columns])], array[:, 1:2, :3])
    np.testing.assert_array_equal(array[_workspace.first_axes(1, (rows, columns))], array[1, 1:2, :3])


def test_memory_is_used_again_where_it_suffices() -> None:
    scratch = _workspace.Scratch()
    first = scratch.take("a", (4, 6), np.float32)
    assert (first.shape, first.dtype) == ((4, 6), np.float32)
    for again in (scratch.take("a", (24,), np.float32), scratch.take("a", (2, 3), np.float32)):
        assert np.shares_memory(first, again)
    for other in (scratch.take("a", (5, 5), np.float32), scratch.take("b", (4, 6), np.float32)):
        assert not np.shares_memory(first, other)
        assert prod(other.shape) == other.size
    assert not np.shares_memory(scratch.take("a", (4, 6), np.int32), scratch.take("a", (4, 6), np.float32))


def test_no_more_memory_is_kept_than_a_bound() -> None:
    scratch, size = _workspace.Scratch(), 12 * 2**20
    first, second = (scratch.take(name, (size,), np.int8) for name in "ab")
    assert np.shares_memory(scratch.take("a", (size,), np.int8), first)
    assert np.shares_memory(scratch.take("b", (size,), np.int8), second)
    third = scratch.take("c", (1,), np.int8)
    assert not np.shares_memory(scratch.take("c", (1,), np.int8), third)


@pytest.mark.parametrize(("text", "expected"), [("16384", 16384), ("123456789", 123456789)])
def test_the_limit_is_that_of_the_environment(text: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_WORKSPACE_BYTES", text)
    assert _workspace.limit() == expected


def _gathered(x: Ints, w: Ints, box: Ints, rows: int, **attributes: Any) -> int:
    return _gather._elements(geometry.conv(x, w, None, **attributes), box, rows)


def test_a_gathered_block_holds_its_inputs_rows_windows_and_results() -> None:
    """Counted by hand, channel by channel: inputs, the inputs of every tap of the last axis, all windows."""
    assert _gathered((1, 2, 9), (7, 2, 3), (5,), 4) == 2 * (7 + 3 * 5 + 3 * 5) + 4 * 5
    assert _gathered((1, 2, 29), (7, 2, 3), (5,), 4, strides=[3]) == 2 * (15 + 3 * 5 + 3 * 5) + 4 * 5
    assert _gathered((1, 2, 29), (7, 2, 3), (5,), 4, dilations=[4]) == 2 * (13 + 3 * 5 + 3 * 5) + 4 * 5
    assert _gathered((1, 2, 4), (7, 2, 3), (5,), 4, pads=[2, 2]) == 2 * (4 + 3 * 5 + 3 * 5) + 4 * 5
    assert _gathered((1, 2, 4), (7, 2, 5), (5,), 4, pads=[3, 3]) == 2 * (9 + 5 * 5 + 5 * 5) + 4 * 5  # zeros around
    planes = (1, 2, 10, 11), (7, 2, 3, 2)
    assert _gathered(*planes, (4, 5), 1) == 2 * (6 * 6 + 6 * 2 * 5 + 6 * 4 * 5) + 4 * 5
    assert _gathered(*planes, (4, 5), 1, strides=[2, 1]) == 2 * (9 * 6 + 9 * 2 * 5 + 6 * 4 * 5) + 4 * 5
    assert _gathered((1, 2, 10, 11), (7, 2, 1, 2), (4, 5), 3, strides=[2, 1]) == 2 * (
        4 * 6 + 4 * 2 * 5 + 2 * 4 * 5
    ) + 3 * (4 * 5)


def _added(x: Ints, w: Ints, box: Ints, rows: int, stride: int, offsets: Any) -> int:
    arrays = (np.zeros(shape, np.float32) for shape in (x, w))
    y = np.zeros((1, 1, *(99 for _ in box)), np.float32)
    strides = (stride,) * len(box)
    problem = _scatter.ScatterProblem(*arrays, None, y, Finish(), strides, offsets, "float32")
    return _scatter._elements(problem, box, rows)


def test_a_block_that_is_added_up_holds_inputs_products_and_sums() -> None:
    """Counted by hand: an output of a phase reads the inputs of all taps, whose offsets are in strides."""
    assert _added((1, 2, 50), (1, 2, 4, 3), (5,), 3, 1, (range(3),)) == 7 * 2 + 7 * 3 * 3 + 3 * 5
    assert _added((1, 2, 50), (1, 2, 4, 3), (5,), 3, 1, (range(0, -3, -1),)) == 7 * 2 + 7 * 3 * 3 + 3 * 5
    assert _added((1, 2, 50), (1, 2, 4, 4), (5,), 3, 2, (range(-1, 3),)) == 7 * 2 + 7 * 3 * 4 + 3 * 5
    assert _added((1, 2, 6), (1, 2, 4, 3), (5,), 3, 1, (range(3),)) == 6 * 2 + 6 * 3 * 3 + 3 * 5
    planes = (1, 2, 50, 50), (1, 2, 4, 3, 2)
    assert _added(*planes, (5, 4), 1, 1, (range(3), range(2))) == 35 * 2 + 35 * 6 + 5 * 4


def test_as_many_axes_as_numpy_has_room_for() -> None:
    for rank in range(1, 40):
        try:
            np.empty((1,) * (2 * rank + 3))  # those of taps and of positions, and three more
        except ValueError:
            assert not _scatter.serves(rank)
        else:
            assert _scatter.serves(rank)


def _pooled(random: Random) -> Any:
    """Return a MaxPool of a random shape with at least one output."""
    rank = random.randint(1, 3)
    kernel, dilations = ([random.randint(1, most) for _ in range(rank)] for most in (4, 3))
    extents = [random.randint((k - 1) * d + 1, 14) for k, d in zip(kernel, dilations, strict=True)]
    pads = [random.randint(0, k - 1) for k in (*kernel, *kernel)]
    strides = [random.randint(1, 3) for _ in range(rank)]
    shape = (random.randint(1, 4), random.randint(1, 5), *extents)
    return geometry.max_pool(shape, kernel_shape=kernel, dilations=dilations, pads=pads, strides=strides)


def _span(places: Any, extent: int) -> int:
    """Return the extent from the first to the last place, at most the whole extent."""
    return min(extent, max(places) - min(places) + 1)


def test_maxima_are_made_in_blocks_that_see_few_inputs_and_cover_all_outputs() -> None:
    random = Random(3)
    for _ in range(150):
        g, volume = _pooled(random), random.choice((1, 10, 100, 1000, 10**6))
        times = np.zeros(g.y_shape, int)
        blocks = _blocks.blocks(g, volume, g.x_shape[0])
        for block in blocks:
            times[block.place] += 1
            seen = (block.images.stop - block.images.start) * (block.channels.stop - block.channels.start)
            for (a, b), s, offsets, n in zip(block.box, g.strides, g.offsets, g.x_shape[2:], strict=True):
                seen *= _span([q * s + offset for q in (a, b - 1) for offset in offsets], n)
            assert seen <= volume or times[block.place].size == 1 or prod(b - a for a, b in block.box) == 1
        assert (times == 1).all()
        if prod(g.x_shape) <= volume:
            assert len(blocks) == 1


def test_windows_are_cut_where_one_sees_too_many_inputs() -> None:
    random = Random(4)
    for _ in range(150):
        g, volume = _pooled(random), random.choice((1, 3, 10, 100))
        parts = _blocks.windows_within(g, volume)
        taps = [tap for part in parts for tap in product(*part)]
        assert sorted(taps) == sorted(product(*g.offsets)), "every tap once"
        for part in parts:
            seen = prod(_span(offsets, n) for offsets, n in zip(part, g.x_shape[2:], strict=True))
            assert seen <= volume or all(len(offsets) == 1 for offsets in part)
        if prod(_span(offsets, n) for offsets, n in zip(g.offsets, g.x_shape[2:], strict=True)) <= volume:
            assert len(parts) == 1


def test_blocks_of_sums_fit_their_share_of_the_workspace() -> None:
    random = Random(5)
    for _ in range(300):
        group, threads, bytes_ = random.choice((1, 1, 2, 6)), random.randint(1, 4), 2 ** random.randint(14, 24)
        kernel = [random.randint(1, 4) for _ in range(random.randint(1, 3))]
        w = (group * random.randint(1, 40), random.randint(1, 40), *kernel)
        x = (random.randint(1, 5), group * w[1], *(random.randint(k, 40) for k in kernel))
        g, item = geometry.conv(x, w, None, group=group, pads=[0] * 2 * len(kernel)), random.choice((4, 8))
        plan = _gather._plan(g, True, False, False, item, Partition(x[0], threads), 1, bytes_)
        budget = bytes_ // (2 * threads * item)  # the other half is for weights and what is not counted
        least = _gather._elements(g, (1,) * len(kernel), w[0] // group)
        assert (plan is None) <= (least > budget or prod(w[1:]) > 1)
        if plan is not None:
            assert _gather._elements(g, plan.box, plan.rows) * plan.images * plan.groups <= budget or plan.groups == 1
            assert _gather._elements(g, plan.box, plan.rows) * plan.images <= budget
            assert 1 <= plan.groups <= group
            assert 1 <= plan.rows <= w[0] // group
            assert plan.groups == 1 or plan.rows == w[0] // group


def test_images_that_are_matrices_in_memory() -> None:
    x = np.zeros((2, 3, 4, 5))
    last = np.zeros((2, 4, 5, 3)).transpose(0, 3, 1, 2)
    assert _gather._flattens(x)
    assert _gather._flattens(last)
    for other in (x[..., ::2], x[:, ::2], x.transpose(0, 1, 3, 2), last[..., 1:], x.transpose(1, 0, 2, 3)):
        assert not _gather._flattens(other)
