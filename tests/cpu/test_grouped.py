"""Convolutions of groups with few channels on the CPU, by rows and by channels."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv import cpu
from gpuconv.cpu import _grouped
from gpuconv.cpu._workspace import Partition
from gpuconv.rules import geometry as geometries
from tests.oracle import oracle

pytestmark = pytest.mark.slow

WORKSPACE = 256 * 2**20
HUGE = 2**40
# Name: x, w, group, attributes, and whether it is computed by rows; None if neither method applies.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, dict[str, Any], bool | None]] = {
    "3x3 over long rows": ((2, 5, 9, 40), (5, 1, 3, 3), 5, {"pads": [1, 1, 1, 1]}, True),
    "two channels in, three out": ((1, 8, 7, 33), (12, 2, 3, 3), 4, {"pads": [1, 0, 2, 1]}, True),
    "stride 2 over long rows": ((1, 6, 11, 61), (6, 1, 5, 5), 6, {"pads": [2, 2, 2, 2], "strides": [2, 2]}, True),
    "stride 3, dilation 2 across": ((1, 3, 9, 99), (3, 1, 3, 4), 3, {"strides": [2, 3], "dilations": [1, 2]}, True),
    "dilation 4 at stride 6": ((1, 3, 5, 199), (3, 1, 3, 3), 3, {"strides": [1, 6], "dilations": [1, 4]}, True),
    "many taps over short rows": ((1, 4, 20, 20), (4, 1, 11, 11), 4, {"pads": [5, 5, 5, 5]}, True),
    "one dimension": ((2, 4, 60), (4, 1, 9), 4, {"pads": [4, 4]}, True),
    "windows wholly in the padding": ((1, 4, 3, 30), (4, 1, 3, 3), 4, {"pads": [5, 4, 6, 7]}, True),
    "3x3 over small planes": ((2, 40, 7, 7), (40, 1, 3, 3), 40, {"pads": [1, 1, 1, 1]}, False),
    "stride 2 over small planes": ((2, 80, 9, 10), (80, 1, 3, 3), 80, {"pads": [1, 1, 1, 1], "strides": [2, 2]}, False),
    "dilated": ((1, 40, 30, 30), (40, 1, 3, 3), 40, {"pads": [2, 4, 2, 4], "dilations": [2, 4]}, False),
    "planes of 4 KiB": ((1, 128, 32, 32), (128, 1, 2, 3), 128, {"pads": [0, 1, 1, 1]}, False),
    "planes wholly in the padding": ((1, 64, 2, 2), (64, 1, 3, 3), 64, {"pads": [5, 4, 6, 7]}, False),
    "one output, far apart": (
        (1, 70, 6, 6),
        (70, 1, 2, 1),
        70,
        {"strides": [HUGE, HUGE], "dilations": [3, HUGE]},
        False,
    ),
    "one row, far apart": ((1, 4, 9, 40), (4, 1, 9, 1), 4, {"strides": [HUGE, 1], "dilations": [1, HUGE]}, True),
    "few channels over small planes": ((1, 4, 6, 6), (4, 1, 3, 3), 4, {}, None),
    "many channels": ((1, 36, 9, 40), (4, 9, 3, 3), 4, {}, None),
    "a multiplier over small planes": ((1, 40, 7, 7), (80, 1, 3, 3), 40, {}, None),
    "three dimensions": ((1, 40, 3, 7, 7), (40, 1, 1, 3, 3), 40, {}, None),
    "one tap": ((1, 64, 9, 40), (64, 1, 1, 1), 64, {"strides": [2, 2]}, None),
}


class _Dirty:
    """Scratch memory that is never clean."""

    def take(self, _: str, shape: tuple[int, ...], dtype: Any) -> Any:
        return np.full(int(np.prod(shape)), np.nan, dtype).reshape(shape)


def _plan(x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any], threads: int = 1) -> Any:
    return _grouped._plan(geometries.conv(x, w, None, **attributes), "float32", Partition(x[0], threads), WORKSPACE)


def _integers(seed: int, *shapes: tuple[int, ...], dtype: Any = np.float32) -> list[Any]:
    draw = np.random.default_rng(seed)
    return [draw.integers(-3, 4, shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("name", CASES)
def test_every_way_gives_what_the_definition_says(name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x_shape, w_shape, group, attributes, by_rows = CASES[name]
    attributes = {"group": group, **attributes}
    work = _plan(x_shape, w_shape, attributes)
    assert (None if work is None else work.by_rows) == by_rows, "not what this test is about"
    monkeypatch.setattr(_grouped, "SCRATCH", _Dirty())
    x, w, b = _integers(1, x_shape, w_shape, w_shape[:1], dtype=dtype)
    expected = oracle.conv(x, w, b, **attributes).value
    assert np.array_equal(gpuconv.conv(x, w, b, **attributes), expected)
    last = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    (residual,) = _integers(2, expected.shape, dtype=dtype)
    y = gpuconv.conv(last, w, None, **attributes, residual=residual, activation="relu")
    sums = oracle.conv(x, w, None, **attributes).value.astype(np.float64) + residual
    assert np.array_equal(y, np.maximum(sums, 0).astype(dtype))


@pytest.mark.parametrize("tile", [2**12, 2**14, 2**20])
def test_blocks_of_any_size_give_the_same(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_grouped, "_TILE_BYTES", tile)
    monkeypatch.setattr(_grouped, "_threads", _Two())
    random, counts = Random(tile), []
    for _ in range(12):
        group, images = random.choice((3, 50, 96)), random.randint(1, 3)
        kernel = random.choice(((3, 3), (5, 4), (1, 9)))
        x_shape = (images, group, random.randint(9, 14), random.randint(17, 45))
        attributes = {
            "group": group,
            "pads": [random.randint(0, 3) for _ in range(4)],
            "strides": [random.randint(1, 2), random.randint(1, 2)],
            "dilations": [random.choice((1, 1, 2)), random.choice((1, 1, 2))],
        }
        x, w = _integers(tile, x_shape, (group, 1, *kernel))
        _grouped._plan.cache_clear()
        work = _plan(x_shape, w.shape, attributes, 2)
        if work is not None:
            counts.append(len(work.blocks))
            assert np.array_equal(gpuconv.conv(x, w, **attributes), oracle.conv(x, w, **attributes).value), work
    _grouped._plan.cache_clear()
    assert len(counts) > 5
    assert max(counts) > 2


class _Two:
    """Two threads, for which any work pays."""

    @staticmethod
    def count() -> int:
        return 2

    @staticmethod
    def pays(_: int) -> bool:
        return True


def test_blocks_cover_everything_once_and_hold_what_they_may() -> None:
    random = Random(5)
    for _ in range(300):
        group, rows = random.randint(2, 700), random.randint(1, 60)
        x_shape = (random.randint(1, 4), group, rows, random.randint(8, 60))
        attributes = {"group": group, "pads": [1] * 4, "strides": [random.randint(1, 2)] * 2}
        geometry = geometries.conv(x_shape, (group, 1, 3, 3), None, **attributes)
        bytes_, threads = random.choice((2**16, 2**18, WORKSPACE)), random.choice((1, 2, 3))
        work = _grouped._plan(geometry, "float32", Partition(geometry.x_shape[0], threads), bytes_)
        if work is None:
            continue
        covered = np.zeros((x_shape[0], group, geometry.y_shape[2]), int)
        for images, groups, lines in work.blocks:
            covered[slice(*images), slice(*groups), slice(*lines)] += 1
            size = work.elements(lines[1] - lines[0]) * (images[1] - images[0]) * (groups[1] - groups[0])
            assert 4 * size * threads <= bytes_ // 2
        assert (covered == 1).all()


def test_weights_that_are_not_finite_add_nothing_where_there_is_padding() -> None:
    for name in ("3x3 over long rows", "3x3 over small planes"):
        x_shape, w_shape, group, attributes, _ = CASES[name]
        x, w = _integers(3, x_shape, w_shape)
        w[1, 0, 0, 0] = np.inf
        y = gpuconv.conv(x, w, group=group, **attributes)
        assert np.array_equal(y, oracle.conv(x, w, group=group, **attributes).value, equal_nan=True)
        assert np.isfinite(y[:, 1, 0]).all()


def test_inputs_that_are_not_finite_reach_their_own_windows_only() -> None:
    for name in ("3x3 over long rows", "stride 2 over long rows", "3x3 over small planes", "dilated"):
        x_shape, w_shape, group, attributes, _ = CASES[name]
        x, w = _integers(4, x_shape, w_shape)
        x[0, 1, 2, ::9], x[0, 2, -1, -1] = np.inf, np.nan
        y = gpuconv.conv(x, w, group=group, **attributes)
        assert np.array_equal(y, oracle.conv(x, w, group=group, **attributes).value, equal_nan=True)


def test_weights_that_are_known_are_put_into_order_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = _integers(5, (1, 40, 7, 7), (40, 1, 3, 3))
    geometry = geometries.conv(x.shape, w.shape, None, group=40)
    facts, calls = cpu.known_weights(w), []
    matrices = _grouped._matrices
    monkeypatch.setattr(_grouped, "_matrices", lambda *given: calls.append(1) or matrices(*given))
    for _ in range(2):
        y = np.empty(geometry.y_shape, np.float32)
        cpu.conv(x, w, None, y, geometry, facts=facts)
        assert np.array_equal(y, oracle.conv(x, w, group=40).value)
    assert calls == [1]
