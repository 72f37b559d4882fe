"""Tiles of weight gradients, how pixels are divided among splits, and the SASS of the tiles."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpuconv
from benchmarks import sass
from gpuconv.cuda.conv.gemm.fragments import Arithmetic
from gpuconv.cuda.plan.limits import representative
from gpuconv.cuda.weight_grad import families as weight_grad_families
from gpuconv.cuda.weight_grad import tiles
from gpuconv.cuda.weight_grad.problem import WeightGradProblem, pixels_of_part
from gpuconv.cuda.weight_grad.tiles import WeightGradTile
from tests.harness import machine_code
from tests.harness.offered import candidates
from tests.harness.plans import Ints, fields, weight_grad
from tests.harness.steady import steady
from tests.harness.toolchain import needs_disassembler, needs_nvrtc

LIMITS = representative("sm_90a").limits
KERNELS = [one for one in tiles.kernels() if one[0] != "bfloat16"]  # which has the kernels of float16


def problem_of(x_shape: Ints, w_shape: Ints, dtype: str, last: bool = False, **attributes: Any) -> WeightGradProblem:
    return weight_grad(x_shape, w_shape, dtype, "NHWC" if last else "NCHW", **attributes)


def names(problem: WeightGradProblem) -> list[str]:
    return [one.name for one in candidates(tiles, problem, LIMITS)]


def test_the_fields_of_a_small_problem() -> None:
    # x (2, 2·3, 9, 8), w (2·4, 3, 3, 2): y (2, 8, 3, 4)
    attributes: dict[str, Any] = {"group": 2, "strides": [3, 2], "dilations": [2, 1], "pads": [1, 1, 1, 0]}
    problem = problem_of((2, 6, 9, 8), (8, 3, 3, 2), "float32", **attributes)
    assert (problem.filters, problem.columns, problem.pixels) == (4, 3 * 6, 2 * 3 * 4)
    assert problem.reach() == [2 * 3 + 2 * 2, 3 * 2 + 1]
    assert not problem.wide()
    assert problem.fields(3, (5, 7), 11) == {
        "filters": 4, "channels": 3, "columns": 18, "pixels": 24, "each": 11, "all": 8 * 18, "x_batch": 6 * 72,
        "x_channel": 72, "dy_batch": 8 * 12, "dy_channel": 12, "x_extent": [1, 9, 8], "x_stride": [0, 8, 1],
        "dy_stride": [0, 4, 1], "stride": [1, 3, 2], "pad": [0, 1, 1], "dilation": [1, 2, 1], "extent": [1, 3, 4],
        "count": [1, 3, 2], "groups": 2, "m_tiles": 5, "n_tiles": 7,
    }  # fmt: skip


def test_the_fields_of_a_small_problem_in_tiles() -> None:
    # x (2, 2·3, 1, 2, 8) without a step along its only depth, w (2·4, 3, 1, 1, 3): y (2, 8, 1, 2, 6)
    problem = problem_of((2, 6, 1, 2, 8), (8, 3, 1, 1, 3), "float16", group=2)
    arithmetic, tile = tiles.ARITHMETICS["float16", "ieee"], tiles.TILES["HalfProducts"][-1]
    launch, _ = tiles._plan(problem, tile, arithmetic, 1).launches
    struct = fields(launch)
    names = ("channels", "image", "dy_rows", "x_rows", "dy_chunks")
    assert [struct[name] for name in names] == [4, 12, True, False, False]
    common = struct["common"]
    assert (common["x_extent"], common["x_stride"]) == ([1, 2, 8], [0, 8, 1])
    assert (common["m_tiles"], common["n_tiles"], common["each"]) == (1, 1, 32)
    assert launch.grid == (2, 1, 1)


def test_strides_of_a_single_output_and_dilations_of_a_single_tap_do_not_matter() -> None:
    problem = problem_of((1, 1, 5, 6), (1, 1, 5, 1), "float32", strides=[4, 2], dilations=[1, 3])
    fields = problem.fields(2, (1, 1), 1)
    assert (fields["stride"], fields["dilation"]) == ([1, 2], [1, 1])
    assert (fields["extent"], fields["count"]) == ([1, 3], [5, 1])
    assert problem.reach() == [4, 2 * 2]


def test_padding_counts_where_it_is_wider_than_the_outputs() -> None:
    assert problem_of((1, 1, 3), (1, 1, 9), "float32", pads=[7, 2]).reach() == [7 + 8]


# ---------------------------------------------------------------- what tiles take


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_tiles_may_have_all_shared_memory_of_a_block_and_no_more(dtype: str, last: bool) -> None:
    problem = problem_of((4, 64, 20, 20), (64, 64, 3, 3), dtype, last)
    for candidate in candidates(tiles, problem, LIMITS):
        shared = max(launch.shared_bytes for launch in candidate.make().launches)
        for room, expected in ((shared, True), (shared - 1, False)):
            limits = replace(LIMITS, shared_bytes_per_block=room)
            found = [one.name for one in candidates(tiles, problem, limits)]
            assert (candidate.name in found) is expected
    assert names(problem)


def test_parts_of_complex_numbers_are_not_for_them() -> None:
    plan = gpuconv.explain("conv_weight_grad", (1, 8, 9), (8, 8, 1), dtype="complex64")
    assert plan.reasons[-1] == "not by large tiles: products of parts of complex64 are added up apart"


def test_float32_stays_with_ieee_arithmetic_unless_asked() -> None:
    shapes = (4, 64, 20, 20), (64, 64, 3, 3), "float32"
    assert all("_ffma_" in name for name in names(problem_of(*shapes)))
    for precision in ("tf32", "3xtf32"):
        found = names(problem_of(*shapes, precision=precision))
        assert found
        assert all(f"_{precision}_" in name for name in found)


@pytest.mark.parametrize(("dtype", "chunk"), [("float16", 8), ("float64", 2)])
def test_channels_are_copied_at_once_where_all_are_whole_16_bytes(dtype: str, chunk: int) -> None:
    def taken(problem: WeightGradProblem) -> bool:
        return any(name.endswith("_channels") for name in names(problem))

    whole = problem_of((2, 2 * chunk, 5, 6), (4 * chunk, chunk, 3, 2), dtype, last=True, group=2)
    assert taken(whole)
    assert not taken(problem_of((2, 2 * chunk, 5, 6), (4 * chunk, chunk, 3, 2), dtype, group=2))
    assert not taken(problem_of((2, 2 * chunk + 2, 5, 6), (4 * chunk, chunk + 1, 3, 2), dtype, last=True, group=2))
    assert not taken(problem_of((2, 2 * chunk, 5, 6), (4 * chunk + 2, chunk, 3, 2), dtype, last=True, group=2))
    batch, *rest = whole.x_strides
    assert not taken(replace(whole, x_strides=(batch + 1, *rest)))


@pytest.mark.parametrize(("dtype", "chunk"), [("float16", 8), ("float32", 4)])
@pytest.mark.parametrize("array", ["x_strides", "dy_strides"])
def test_every_axis_of_several_elements_moves_by_whole_chunks(array: str, dtype: str, chunk: int) -> None:
    whole = problem_of((2, 16, 5, 6), (32, 16, 3, 2), dtype, last=True)
    strides = list(getattr(whole, array))
    for axis in range(4):
        for less in (1, chunk // 2):
            moved = tuple(stride + less * (at == axis) for at, stride in enumerate(strides))
            assert not in_chunks(replace(whole, **{array: moved})), axis
        if axis != 1:
            further = tuple(stride + chunk * (at == axis) for at, stride in enumerate(strides))
            assert in_chunks(replace(whole, **{array: further})), axis
    single = problem_of((1, 16, 5, 6), (32, 16, 3, 2), dtype, last=True)
    image, *rest = getattr(single, array)
    assert in_chunks(replace(single, **{array: (image + 1, *rest)}))


def in_chunks(problem: WeightGradProblem) -> bool:
    return tiles.x_in_chunks(problem) and tiles.dy_in_chunks(problem)


def test_parts_have_all_pixels_and_each_has_some() -> None:
    for n, size in ((1, 3), (3, 17), (32, 56), (50, 7)):
        problem = problem_of((n, 24, size, size), (40, 24, 1, 1), "float16")
        for tile in tiles.TILES["HalfProducts"]:
            arithmetic = tiles.ARITHMETICS[problem.dtype, problem.precision]
            parts, seconds = tiles.parts(problem, tile, arithmetic, LIMITS)
            each = pixels_of_part(problem.pixels, tile.block_k, parts)
            assert each % tile.block_k == 0
            assert (parts - 1) * each < problem.pixels <= parts * each
            assert seconds > 0


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("dtype", "precision"), [("float16", "ieee"), ("bfloat16", "ieee"), ("float32", "tf32"), ("float32", "3xtf32")]
)
def test_usual_layers_get_tensor_cores(dtype: str, precision: str, last: bool) -> None:
    for c, m, size, kernel in ((64, 64, 56, 3), (256, 64, 56, 1), (128, 128, 28, 3), (512, 512, 7, 3), (3, 64, 112, 7)):
        pads = [kernel // 2] * 4
        problem = problem_of((16, c, size, size), (m, c, kernel, kernel), dtype, last, pads=pads, precision=precision)
        best = min(candidates(weight_grad_families, problem, LIMITS), key=lambda one: one.seconds)
        assert tiles.ARITHMETICS[problem.dtype, problem.precision].label in best.name, best.name
        assert not last or c == 3 or best.name.endswith("_channels")


# ---------------------------------------------------------------- SASS


def copies(size: int, tile: WeightGradTile, rows: bool) -> Counter[str]:
    """Return the copy instructions for one slice: 16 bytes at a time, or single elements of x."""
    of_x, of_dy = (block * tile.block_k // tile.threads for block in (tile.block_n, tile.block_m))
    if rows or tile.gather == "channels":
        return Counter(LDGSTS=(of_x + of_dy) * size // 16)
    elements = Counter({"LDG" if size == 2 else "LDGSTS": of_x})
    return elements + Counter(LDGSTS=of_dy * size // 16)


def issued(dtype: str, arithmetic: Arithmetic, tile: WeightGradTile, rows: bool) -> float:
    """Return the ratio of all instructions of a slice to its multiplications."""
    body = machine_code.code(tiles.variant(dtype, arithmetic, tile))
    size = np.dtype(dtype).itemsize
    needed = copies(size, tile, rows)
    if arithmetic is tiles.OWN:
        found = [loop for loop in sass.loops(body) if sass.multiplications(body, loop) > 1]
        inner, outer = min(found, key=len), max(found, key=len)
        once, products = sass.multiplications(body, inner), 64 * tile.block_k
        way = steady(body, needed | Counter(FFMA=once), outer)
        return (len(way) + (products // once - 1) * len(inner)) / products
    depth = 16 if size == 8 else 32 // size
    products = tile.warp_m // 16 * (tile.warp_n // 8) * (tile.block_k // depth) * arithmetic.products
    return len(steady(body, needed | Counter({"DMMA" if size == 8 else "HMMA": products}))) / products


@machine_code.of_kernels("weight_grad/tiles.cu")
@pytest.mark.slow
@needs_nvrtc
@needs_disassembler
@pytest.mark.parametrize(("dtype", "arithmetic", "tile"), KERNELS, ids=[tiles.variant(*one).name for one in KERNELS])
def test_the_plan_knows_how_many_instructions_go_with_a_multiplication(
    dtype: str, arithmetic: Arithmetic, tile: WeightGradTile
) -> None:
    assert tile.issued == pytest.approx(issued(dtype, arithmetic, tile, rows=False), rel=0.1)
    assert tile.issued_in_rows == pytest.approx(issued(dtype, arithmetic, tile, rows=True), rel=0.1)


# ---------------------------------------------------------------- what is copied at once, by hand


def weights_of(**more: Any) -> Any:
    """Return a problem with one tap: x (2, 24, 5, 6, 8) and dy (2, 16, 5, 6, 8) in two groups of contiguous pixels."""
    found: dict[str, Any] = {
        "x_shape": (2, 24, 5, 6, 8), "y_shape": (2, 16, 5, 6, 8), "w_shape": (16, 12, 1, 1, 1),
        "kernel_shape": (1, 1, 1), "pads_begin": (0, 0, 0), "strides": (1, 1, 1), "group": 2,
    }  # fmt: skip
    arrays: dict[str, Any] = {"x_strides": (5760, 240, 48, 8, 1), "dy_strides": (3840, 240, 48, 8, 1)}
    found |= {name: value for name, value in more.items() if name in found}
    arrays |= {name: value for name, value in more.items() if name in arrays}
    dtype = more.get("dtype", "float16")
    arrays |= {"dtype": dtype, "itemsize": 4 if dtype == "float32" else 2, "filters": 8}
    return SimpleNamespace(geometry=SimpleNamespace(**found), **arrays)


@pytest.mark.parametrize(
    ("more", "x_in_rows", "dy_in_rows"),
    [
        ({}, True, True),
        ({"kernel_shape": (1, 2, 1)}, False, True),
        ({"kernel_shape": (2, 1, 1)}, False, True),
        ({"pads_begin": (0, 0, 1)}, False, True),
        ({"strides": (1, 2, 1)}, False, True),
        ({"x_shape": (2, 24, 5, 6, 9)}, False, True),
        ({"x_strides": (5760, 240, 48, 9, 1)}, False, True),
        ({"x_strides": (5760, 240, 48, 16, 2)}, False, True),
        ({"x_strides": (9999, 999, 48, 8, 1)}, True, True),
        ({"dy_strides": (3840, 240, 49, 8, 1)}, True, False),
        ({"dy_strides": (3840, 1, 768, 128, 16)}, True, False),
        ({"x_shape": (2, 24, 1, 1, 8), "y_shape": (2, 16, 1, 1, 8), "strides": (3, 2, 1)}, True, True),
        ({"x_shape": (2, 24, 1, 1, 1), "y_shape": (2, 16, 1, 1, 1), "x_strides": (24, 1, 7, 7, 7)}, True, True),
    ],
)
def test_which_pixels_follow_each_other(more: dict[str, Any], x_in_rows: bool, dy_in_rows: bool) -> None:
    one = weights_of(**more)
    assert (tiles.x_in_rows(one), tiles.dy_in_rows(one)) == (x_in_rows, dy_in_rows)


def test_columns_are_filled_up_to_whole_units() -> None:
    one = weights_of(w_shape=(16, 10, 2, 3, 5))
    for tile in tiles.TILES["HalfProducts"]:
        of_tap = 16 if tile.gather == "channels" else 12
        assert tiles.of_tap(one, tile) == of_tap  # 8 channels are copied at once, or units of 4 are filled
        assert tiles.columns(one, tile) == 30 * of_tap
        assert tiles.grid(one, tile) == (1, -(-30 * of_tap // tile.block_n))
    assert [pixels_of_part(7 * 32 + 1, 32, parts) for parts in (1, 2, 3, 8)] == [8 * 32, 4 * 32, 3 * 32, 32]
