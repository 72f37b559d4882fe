"""Convolution by wgmma in the emulator, launched without its planner: every tile, type and form of outputs."""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.conv.wgmma import tiles
from gpuconv.cuda.conv.wgmma.family import variant
from gpuconv.cuda.conv.wgmma.tiles import TILES, WgmmaTile
from tests.cuda.conv.wgmma.wgmma_launch import Call, Run, result, run
from tests.emulated_cuda.emulator.counters import FIELDS
from tests.oracle import oracle
from tests.oracle.operands import BFLOAT16, operands, values
from tests.oracle.strategies import Problem

pytestmark = pytest.mark.emulator

HALF, SINGLE = np.dtype("float16"), np.dtype("float32")
ARITHMETIC = [(BFLOAT16, "ieee"), (HALF, "ieee"), (SINGLE, "tf32"), (SINGLE, "3xtf32")]
over_tiles = pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile.block_m}x{tile.block_n}")
over_arithmetic = pytest.mark.parametrize(("dtype", "precision"), ARITHMETIC, ids=lambda value: str(value))
INTEGERS = ("integers", "integers", "integers")
ASYNCHRONOUS = ("late", "at once", "random")


def problem(operator: str, x: tuple[int, ...], w: tuple[int, ...], bias: bool = True, **attributes: Any) -> Problem:
    out = w[0] if operator == "conv" else w[1] * attributes.get("group", 1)
    return Problem(operator, x, w, (out,) if bias else None, attributes)


PROBLEMS = {
    "several images in a tile": problem("conv", (3, 72, 5, 7), (150, 72, 3, 3), pads=[1, 1, 1, 1]),
    "all unequal": problem(
        "conv", (2, 40, 9, 11), (130, 40, 3, 2), False, pads=[2, 1, 0, 1], strides=[2, 1], dilations=[1, 2]
    ),
    "vectors of eight": problem("conv", (2, 64, 8, 16), (80, 64, 1, 1)),
    "vectors of four": problem("conv", (3, 64, 6, 6), (96, 64, 3, 3), pads=[1, 1, 1, 1]),
    "groups": problem("conv", (2, 80, 5, 7), (140, 40, 2, 2), False, group=2),
    "one axis": problem("conv", (5, 100, 37), (70, 100, 4), pads=[1, 3], strides=[2], dilations=[3]),
    "three axes": problem(
        "conv",
        (2, 40, 5, 7, 6),
        (300, 40, 2, 3, 2),
        pads=[1, 1, 0, 1, 0, 2],
        strides=[2, 1, 3],
        dilations=[1, 2, 1],
    ),
    "phases": problem(
        "conv_transpose", (2, 72, 3, 5), (72, 80, 3, 4), strides=[2, 3], dilations=[1, 2], pads=[1, 0, 0, 1]
    ),
    "one phase of vectors": problem("conv_transpose", (2, 72, 4, 8), (72, 72, 3, 3), pads=[1, 1, 1, 1]),
    "a phase without taps": problem("conv_transpose", (2, 144, 5), (144, 70, 2), strides=[3]),
    "groups of phases": problem("conv_transpose", (2, 144, 7, 5), (144, 70, 3, 2), group=2, strides=[2, 2]),
}
over_problems = pytest.mark.parametrize("name", PROBLEMS)


def exact_of(given: Problem, arrays: Any) -> oracle.Exact:
    found: oracle.Exact = getattr(oracle, given.operator)(*arrays, **given.attributes)
    return found


@pytest.mark.sampled(2)
@over_problems
@over_tiles
@over_arithmetic
def test_integers_are_exact(dtype: Any, precision: str, tile: WgmmaTile, name: str) -> None:
    given = PROBLEMS[name]
    arrays = operands(given, INTEGERS, 1, dtype)
    expected = exact_of(given, arrays).value.astype(dtype)
    random = Random(f"{dtype} {precision} {tile} {name}")
    layout = random.choice(("contiguous", "channels last", "strided"))
    options = {"seed": random.randrange(100), "async_order": random.choice(ASYNCHRONOUS)}
    y = run(given, arrays, Call(tile, precision, blocks=random.choice((1, 3))), layout, **options)
    assert np.array_equal(y, expected), layout


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stages", [3, 4, 5, 6])
@over_tiles
def test_every_number_of_stages_in_every_order_of_arrival(tile: WgmmaTile, stages: int) -> None:
    given, tile = PROBLEMS["several images in a tile"], replace(tile, stages=stages)
    arrays = operands(given, INTEGERS, 2, BFLOAT16)
    if (tile.block_m + tile.block_n) * 128 * stages > 200_000:
        pytest.skip("more shared memory than a block can have")
    expected = exact_of(given, arrays).value.astype(BFLOAT16)
    for seed, order in enumerate(ASYNCHRONOUS):
        y = run(given, arrays, Call(tile, blocks=1 + 2 * (seed % 2)), seed=seed, async_order=order)
        assert np.array_equal(y, expected), (seed, order)


@pytest.mark.sampled(3)
@over_arithmetic
@over_tiles
def test_random_numbers_are_within_the_bound(tile: WgmmaTile, dtype: Any, precision: str) -> None:
    given = PROBLEMS["all unequal"]
    arrays = operands(given, ("normal", "normal", "normal"), 3, dtype)
    y = run(given, arrays, Call(tile, precision))
    arithmetic = "tensor cores" if precision == "ieee" else precision
    oracle.assert_close(y, exact_of(given, arrays), dtype, arithmetic)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("kinds", [("integers", "nonfinite"), ("nonfinite", "integers")])
@pytest.mark.parametrize("name", ["vectors of four", "phases"])
@over_arithmetic
def test_padding_adds_nothing_to_what_is_not_finite(
    dtype: Any, precision: str, name: str, kinds: tuple[str, str], layout: str
) -> None:
    given = PROBLEMS[name]
    x, w, b = operands(given, (*kinds, "integers"), 4, dtype)
    for array in (x, w):  # few enough for most outputs to be numbers
        odd = np.random.default_rng(5).random(array.shape) < 0.995
        array[odd & ~np.isfinite(array.astype(np.float64))] = 1
    tile = TILES[{"ieee": 0, "tf32": 1, "3xtf32": 1}[precision]]
    y = run(given, (x, w, b), Call(tile, precision), layout)
    exact = exact_of(given, (x, w, b))
    assert np.isfinite(exact.value).any()
    assert not np.isfinite(exact.value).all()
    oracle.assert_close(y, exact, dtype, "tensor cores" if precision == "ieee" else precision)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("layout", ["contiguous", "channels last", "strided"])
@pytest.mark.parametrize("name", ["vectors of four", "vectors of eight", "phases"])
@over_arithmetic
def test_residual_and_activation(dtype: Any, precision: str, name: str, layout: str) -> None:
    given = PROBLEMS[name]
    arrays = operands(given, INTEGERS, 6, dtype)
    sums = exact_of(given, arrays).value
    residual = result(given, dtype, layout)
    residual[...] = values("integers", 7, residual.shape, dtype) * 16
    for added, finish in ((residual, None), (None, (0.5, -20.0, 30.0)), (residual, (0.25, -np.inf, 100.0))):
        before = sums + (0 if added is None else added.astype(np.float64))
        slope, low, high = finish or (1, -np.inf, np.inf)
        expected = np.minimum(np.maximum(np.where(before < 0, before * slope, before), low), high)
        y = run(given, arrays, Call(TILES[1], precision, residual=added, finish=finish), layout)
        assert np.array_equal(y, expected.astype(np.float32).astype(dtype))


@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("dtype", [BFLOAT16, HALF], ids=str)
def test_bounds_do_not_hide_what_padding_spoils(dtype: Any, layout: str) -> None:
    given = PROBLEMS["vectors of four"]
    x, w, b = operands(given, INTEGERS, 8, dtype)
    w[3, 5, 0, 0] = np.inf
    exact = exact_of(given, (x, w, b)).value
    y = run(given, (x, w, b), Call(TILES[0], finish=(1.0, 0.0, 6.0)), layout)
    assert np.array_equal(y, np.clip(exact, 0, 6).astype(dtype), equal_nan=True)


@pytest.mark.parametrize("name", ["vectors of eight"])
@pytest.mark.parametrize("dtype", [BFLOAT16, HALF], ids=str)
def test_inputs_and_weights_that_lie_as_they_are_needed(dtype: Any, name: str) -> None:
    given = PROBLEMS[name]
    x, w, b = operands(given, INTEGERS, 9, dtype)
    x = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    y = run(given, (x, w, b), Call(TILES[1], direct=True))
    assert np.array_equal(y, exact_of(given, (x, w, b)).value.astype(dtype))


@pytest.mark.parametrize("kernel", [("conv", "bfloat16", TILES[0]), ("conv_transpose", "float32", TILES[1])])
def test_warps_hand_over_no_more_registers_than_a_launch_has(kernel: tuple[str, str, WgmmaTile]) -> None:
    text = compiler.ptx(variant(*kernel), "sm_90a")
    handed = dict(re.findall(r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32\s+(\d+);", text))
    assert tiles.registers_fit(int(handed["inc"]), int(handed["dec"]))
    assert not tiles.registers_fit(240, 40)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize(("name", "most"), [("vectors of eight", 1), ("vectors of four", 2)])
def test_vectors_fill_sectors_as_far_as_planes_begin_with_one(name: str, most: int, layout: str) -> None:
    given = PROBLEMS[name]
    arrays = operands(given, INTEGERS, 10, BFLOAT16)
    call = Run(given, arrays, result(given, BFLOAT16, layout), Call(TILES[0]), counters=True)
    counted = call.counters[0]
    assert counted is not None
    stores = [row for key, row in zip(counted.keys, counted.counts, strict=True) if key.startswith("st.global")]
    sectors, ideal = (
        sum(int(row[FIELDS.index(field)]) for row in stores) for field in ("global_sectors", "global_ideal")
    )
    assert ideal == call.y.data.nbytes / 32
    assert sectors <= most * ideal
