"""The gradient of depthwise weights along rows: when, walks and tiles, and right results in every form and layout."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest

import gpuconv
from benchmarks import sass
from gpuconv.cuda.plan.limits import representative
from gpuconv.cuda.weight_grad import families as weight_grad_families
from gpuconv.cuda.weight_grad import rows
from gpuconv.cuda.weight_grad.problem import WeightGradProblem
from gpuconv.cuda.weight_grad.rows import FORMS, RowForm, RowTile, RowView
from tests.emulator import emulated_cuda
from tests.harness import machine_code
from tests.harness.emulated import architecture, preferred
from tests.harness.offered import candidates, said
from tests.harness.plans import fields, weight_grad
from tests.harness.toolchain import needs_disassembler, needs_nvrtc
from tests.oracle import gradients
from tests.oracle.operands import CONV_DTYPES, CONV_KINDS, LAYOUTS, values
from tests.oracle.oracle import assert_close
from tests.oracle.strategies import Problem

LIMITS = representative("sm_90a").limits

over_forms = pytest.mark.parametrize("form", FORMS, ids=str)


def tiles_of(problem: WeightGradProblem, form: RowForm) -> list[RowTile]:
    return list(rows._tiles(RowView(problem), form, LIMITS))


# ---------------------------------------------------------------- what it sees


def test_parts_of_complex_numbers_are_not_for_it() -> None:
    plan = gpuconv.explain("conv_weight_grad", (1, 8, 9), (8, 1, 1), dtype="complex64", group=8)
    assert said(plan, rows) == "products of parts of complex64 are added up apart"


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("k", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2), (7, 1), (7, 2)])
def test_depthwise_layers_go_down_rows(k: int, stride: int, dtype: str, layout: str) -> None:
    """Except NCHW with stride 2 and few taps, where rows have no advantage: each tile of taps reads all rows of x."""
    for filters in (1, 2):
        shapes = (32, 144, 56, 56), (144 * filters, 1, k, k)
        problem = weight_grad(*shapes, dtype, layout, strides=[stride] * 2, pads=[k // 2] * 4, group=144)
        best = min(candidates(weight_grad_families, problem, LIMITS), key=lambda one: one.seconds)
        assert "_rows_" in best.name or (k, stride, layout) == (3, 2, "NCHW")


# ---------------------------------------------------------------- tiles


def test_the_fields_of_a_small_problem() -> None:
    # x (2, 3, 9, 8), w (2·3, 1, 3, 5): y (2, 6, 4, 6). Rows: stride 3, dilation 2. Columns: stride 2, dilation 4.
    attributes: dict[str, Any] = {"strides": [3, 2], "dilations": [2, 4], "pads": [1, 10, 4, 10], "group": 3}
    problem = weight_grad((2, 3, 9, 8), (6, 1, 3, 5), layout="NHWC", **attributes)
    tile = RowTile(RowView(problem), FORMS[2], 4, 1, 2)
    launch, _ = rows._plan(problem, tile).launches
    assert fields(launch) | {"x": 0, "dy": 0, "sums": 0} == {
        "x": 0, "dy": 0, "sums": 0, "filters": 6, "all": 6 * 15,
        "x_batch": 9 * 8 * 3, "x_channel": 1, "x_extent": [1, 9, 8], "x_stride": [0, 8 * 3, 3],
        "dy_batch": 4 * 6 * 6, "dy_channel": 1, "dy_extent": [1, 4, 6], "dy_stride": [0, 6 * 6, 6],
        "stride": [1, 3, 2], "pad": [0, 1, 10], "dilation": [1, 2, 4], "taps": [1, 3, 5],
        "step": [6, 4], "apart": [2, 2], "phases": [3, 1], "items": 2 * 4 * 2, "each": 8, "walk": 1,
        # Each of 3 row taps, which are 3 apart, is a separate tile; 5 columns are two tiles.
        "tap_tiles": [1, 3, 2], "filter_blocks": 2, "walks": [1, 4, 2], "lanes": 4, "multiplier": 2,
    }  # fmt: skip
    assert launch.grid == (3 * 2 * 2 * 2, 1, 1)


def test_images_take_the_place_of_rows_on_a_single_axis() -> None:
    view = RowView(weight_grad((5, 3, 40), (3, 1, 7), layout="NHWC", strides=[2], pads=[3, 3], group=3))
    assert (view.batch, view.extents, view.x_extents, view.taps) == (1, (1, 5, 20), (1, 5, 40), (1, 1, 7))
    assert (view.x_strides, view.dy_strides) == ((0, 1, 0, 120, 3), (0, 1, 0, 60, 3))
    assert (view.strides, view.pads) == ((1, 1, 2), (0, 0, 3))


def made_at_random() -> list[tuple[RowTile, Problem]]:
    random, found = Random(0), []
    for form, dtype, _ in product(range(len(FORMS)), ("float16", "float64"), range(8)):
        problem = some(random)
        assert problem.w_shape is not None
        layout = random.choice(("NCHW", "NHWC"))
        of = weight_grad(problem.x_shape, problem.w_shape, dtype, layout, **problem.attributes)
        found += [(tile, problem) for tile in tiles_of(of, rows.forms(dtype)[form])]
    return found


def numbers(tiles: int, apart: int, made: int) -> list[int]:
    """Return the numbers of all outputs of ``tiles`` tiles, each with ``made`` outputs ``apart`` apart, as in the
    kernel."""
    tile = np.arange(tiles)[:, None]
    found: list[int] = (tile // apart * apart * made + tile % apart + np.arange(made) * apart).ravel().tolist()
    return found


def test_walks_and_tiles_have_all_outputs_and_taps_once() -> None:
    for tile, _ in made_at_random():
        view, form = tile.view, tile.form
        _, *extents = view.extents
        _, *taps = view.taps
        for count, *dealt in (
            *zip(extents, tile.walks[1:], view.apart, (tile.walk, form.columns), strict=True),
            *zip(taps, tile.tap_tiles[1:], view.phases, (form.rows, form.across), strict=True),
        ):
            found = numbers(*dealt)
            assert len(set(found)) == len(found)
            assert set(range(count)) <= set(found)


def test_outputs_and_taps_of_a_thread_share_inputs() -> None:
    for tile, _ in made_at_random():
        view = tile.view
        for axis in (1, 2):
            if view.extents[axis] > view.apart[axis - 1]:
                assert view.apart[axis - 1] * view.strides[axis] == view.steps[axis - 1]
            if view.taps[axis] > view.phases[axis - 1]:
                assert view.phases[axis - 1] * view.dilations[axis] == view.steps[axis - 1]


def test_parts_have_all_walks_and_each_has_some() -> None:
    for tile, _ in made_at_random():
        assert (tile.parts - 1) * tile.each < tile.items <= tile.parts * tile.each
        assert (tile.filter_blocks - 1) * tile.lanes < tile.view.filters <= tile.filter_blocks * tile.lanes
        assert tile.seconds(LIMITS) > 0


# ---------------------------------------------------------------- SASS


@machine_code.of_kernels("weight_grad/rows.cu")
@pytest.mark.slow
@needs_nvrtc
@needs_disassembler
@pytest.mark.parametrize(
    ("dtype", "form"),
    [(dtype, form) for dtype in ("float16", "float32", "float64") for form in rows.forms(dtype)],
    ids=str,
)
def test_the_plan_knows_how_many_instructions_walks_and_rows_take(dtype: str, form: RowForm) -> None:
    body = machine_code.code(rows.variant(dtype, form))
    products = form.rows * form.rows * form.across * form.columns
    found = [loop for loop in sass.loops(body) if sass.multiplications(body, loop) == products]
    inner, outer = min(found, key=len), max(found, key=len)
    size = np.dtype(dtype).itemsize // 4
    assert form.row[size] == pytest.approx(len(inner) / form.rows, rel=0.05)
    assert form.walk[size] + form.before == pytest.approx(len(outer) - len(inner), rel=0.1)


# ---------------------------------------------------------------- in the emulator


def some(random: Random) -> Problem:
    """Return a random problem with one channel a group, in which outputs remain."""
    rank = random.choice((1, 2, 2, 3))
    group, filters = random.choice((1, 2, 3, 8, 12, 40)), random.choice((1, 1, 1, 2, 3))
    taps = [random.choice((1, 2, 3, 5, 7, 9)) for _ in range(rank)]
    if rank == 1:
        taps = [random.choice((1, 4, 17, 31))]
    steps = [random.choice((1, 1, 2, 3)) for _ in range(rank)]
    dilations = [random.choice((1, 1, 2, 3)) for _ in range(rank)]
    ends = [[random.randrange((k - 1) * d + 2) for k, d in zip(taps, dilations, strict=True)] for _ in range(2)]
    least = [max(1, (k - 1) * d + 1 - a - b + s) for k, d, s, a, b in zip(taps, dilations, steps, *ends, strict=True)]
    extents = [n + random.randrange({1: 60, 2: 20, 3: 5}[rank]) for n in least]
    attributes = {"group": group, "strides": steps, "dilations": dilations, "pads": [*ends[0], *ends[1]]}
    return Problem("conv", (random.choice((1, 2, 3)), group, *extents), (group * filters, 1, *taps), None, attributes)


def check(problem: Problem, kernel: str, x: Any, dy: Any, dtype: Any, **options: Any) -> Any:
    """Compute the problem with this kernel only."""
    with preferred(kernel), emulated_cuda(**options) as emulated:
        dw = gpuconv.conv_weight_grad(x, dy, problem.w_shape, **problem.attributes)
    assert emulated.launches[0].variant.name == kernel
    assert_close(dw, gradients.weight_grad(problem, x, dy), dtype)
    return dw


@pytest.mark.emulator
@pytest.mark.kernels("weight_grad/rows.cu")
@pytest.mark.parametrize("dtype", CONV_DTYPES, ids=str)
@over_forms
def test_random_problems_of_every_form(form: RowForm, dtype: Any) -> None:
    random = Random(f"{form} {dtype}")
    for number in range(4):
        problem = some(random)
        kinds = CONV_KINDS[(number + random.randrange(2) * 6) % len(CONV_KINDS)]
        shapes = problem.x_shape, gradients.shape_of_result(problem)
        layout = random.choice([one for one in LAYOUTS if one != "unaligned"])
        arrays = [
            LAYOUTS[layout](values(kind, number + i, shape, dtype))
            for i, (shape, kind) in enumerate(zip(shapes, kinds[:2], strict=True))
        ]
        multiprocessors = random.choice((None, 1, 2, 3))
        options = {"limits_of": architecture(dtype, 3), "seed": number, "multiprocessors": multiprocessors}
        check(problem, rows.variant(str(dtype), form).name, *arrays, dtype, **options)


@pytest.mark.emulator
@pytest.mark.kernels("weight_grad/rows.cu")
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@over_forms
def test_padding_takes_no_part(form: RowForm, layout: str) -> None:
    """An infinite gradient next to the padding, and an infinite input that no window covers there, add nothing."""
    attributes = {"group": 3, "pads": [2, 1, 1, 3], "strides": [2, 1], "dilations": [1, 2]}
    problem = Problem("conv", (2, 3, 8, 10), (3, 1, 3, 4), None, attributes)
    x = np.ones(problem.x_shape, np.float32)
    dy = np.ones(gradients.shape_of_result(problem), np.float32)
    dy[0, 0, 0, 0], dy[1, 1, -1, -1], x[0, 2, -1, -1], x[1, 2, 0, 0] = np.inf, np.nan, -np.inf, np.nan
    arrays = LAYOUTS[layout](x), LAYOUTS[layout](dy)
    dw = check(problem, rows.variant("float32", form).name, *arrays, "float32")
    for channel in range(3):
        assert np.isfinite(dw[channel]).any()
        assert not np.isfinite(dw[channel]).all()


@pytest.mark.emulator
@pytest.mark.kernels("weight_grad/rows.cu")
@over_forms
def test_every_run_gives_the_same_bits(form: RowForm) -> None:
    problem = Problem("conv", (3, 5, 12, 13), (10, 1, 3, 3), None, {"group": 5, "pads": [1, 1, 1, 1]})
    shapes = problem.x_shape, gradients.shape_of_result(problem)
    arrays = [values("normal", seed, shape, "float32") for seed, shape in enumerate(shapes)]
    name = rows.variant("float32", form).name
    first, *others = (check(problem, name, *arrays, "float32", seed=seed, multiprocessors=4) for seed in range(3))
    assert all(np.array_equal(first, other) for other in others)
