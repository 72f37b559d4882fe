"""Every specimen has the right result, by the kernel that it names, in several blocks; every form has a specimen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuconv.cuda.conv.direct import bands
from gpuconv.cuda.conv.direct import rows as rows_plan
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import ffma, fragments, matrix, mma, mma_tile, pointwise
from gpuconv.cuda.conv.gemm import interleaved as interleaved_plan
from gpuconv.cuda.conv.wgmma import tiles as wgmma_tiles
from gpuconv.cuda.variants import all_variants
from gpuconv.rules import dtypes
from tests.kernels import gradients, wgmma
from tests.kernels.convolutions import (
    BANDS,
    CONVOLUTIONS,
    DIRECT,
    DISJOINT,
    DISJOINT_TENSOR,
    GEMMS,
    INTERLEAVED,
    MATRIX,
    PHASE_ROWS,
    POINTWISE,
    TAP_ROWS,
    TENSOR,
)
from tests.kernels.fused import FUSED
from tests.kernels.passes import PASSES
from tests.kernels.pools import FORWARD_POOLS, POOLS
from tests.kernels.registry import by_source, files, params, problems_of, sources_of
from tests.kernels.specimen import Forward, Specimen, is_split

emulated = pytest.mark.emulator
FORWARD = (*CONVOLUTIONS, *FORWARD_POOLS)


def assert_right(one: Specimen, **options: Any) -> None:
    """Run a specimen, then check the launches of its kernel."""
    launches = [launch for launch in one(**options).launches if launch.variant.name == one.variant]
    assert launches, f"{one.kernel} is not launched"
    for launch in launches:
        assert min(one.blocks(launch)) >= one.least_blocks
    if isinstance(one, Forward):
        assert is_split(launches[-1]) == one.kernel.endswith("_split")
    if isinstance(one, gradients.CheckEach):
        assert launches[0].grid[0] * launches[0].threads == one.threads


@emulated
@pytest.mark.sampled(2)
@pytest.mark.parametrize("one", params(FORWARD))
def test_a_convolution_or_a_pool_is_right(one: Specimen) -> None:
    assert_right(one, seed=5)


@emulated
@pytest.mark.parametrize("one", params((*gradients.GRADIENTS, *PASSES)))
def test_a_gradient_or_a_pass_is_right(one: Specimen) -> None:
    assert_right(one, seed=4)


DOUBLE = [one for one in gradients.LARGE_WEIGHTS if one.dtype == np.float64]


@emulated
@pytest.mark.parametrize("one", params(DOUBLE))
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_products_of_float64_are_right_in_both_shapes(one: Specimen, architecture: str) -> None:
    """Newer tensor cores multiply larger fragments, in the only source that depends on the architecture."""
    assert_right(one, architecture=architecture, seed=4)


def test_there_are_products_of_float64() -> None:
    assert len(DOUBLE) == 2


# ---------------------------------------------------------------- wgmma


def assert_right_in_turns(one: Forward, seed: int, order: str) -> None:
    """Run a specimen and check its launch.

    Without split tiles, each block computes two tiles or more; strips stay in shared memory in only one specimen.
    """
    last = one(seed=seed, async_order=order).launches[-1]
    struct = np.frombuffer(last.parameters, last.variant.layout)[0]
    assert last.variant.name == one.variant
    assert is_split(last) == one.kernel.endswith("_split")
    if not is_split(last):
        assert one.blocks(last)[0] >= 2 * last.grid[0] == 2 * (one.multiprocessors or 0)
    if one in wgmma.STRIPS:
        assert struct["strips"]["resident"] == (one is wgmma.STAYING)


@emulated
@pytest.mark.sampled(3)
@pytest.mark.parametrize("one", params(wgmma.TILES))
@pytest.mark.parametrize(("seed", "order"), [(0, "at once"), (3, "late"), (4, "random")])
def test_wgmma_is_right_in_every_order_of_copies(one: Forward, seed: int, order: str) -> None:
    assert_right_in_turns(one, seed, order)


@emulated
@pytest.mark.parametrize("one", params([*wgmma.STRIPS, *wgmma.PIXELS]))
def test_wgmma_of_strips_is_right(one: Forward) -> None:
    """In one order of copies: the tests of each kernel of strips run all orders."""
    assert_right_in_turns(one, 4, "random")


def test_every_tile_of_wgmma_is_there() -> None:
    names = [one.kernel.partition("_wgmma_")[2] for one in wgmma.TILES]
    tiles = {f"{tile.block_m}x{tile.block_n}" for tile in wgmma_tiles.TILES}
    assert {name.partition("_")[0] for name in names} == tiles
    assert {(one.problem.operator, one.precision) for one in wgmma.TILES} >= {("conv", "tf32"), ("conv", "3xtf32")}
    for is_divided in (False, True):
        assert {one.problem.operator for one in wgmma.TILES if one.kernel.endswith("_split") == is_divided} == {
            "conv",
            "conv_transpose",
        }


def test_every_form_of_strips_is_there() -> None:
    forms = {(tile.rows, tile.ping_pong) for tile in wgmma_tiles.STRIPS}
    assert len({one.kernel.removesuffix("_split") for one in wgmma.STRIPS}) > len(forms)
    assert {"rows" in one.kernel for one in wgmma.STRIPS} == {True, False}
    assert any("x32_" in one.kernel for one in wgmma.STRIPS)
    assert {one.problem.operator for one in wgmma.STRIPS} == {"conv", "conv_transpose"}
    assert any(one.kernel.endswith("_split") for one in wgmma.STRIPS)


def test_every_form_of_pixels_is_there() -> None:
    kernels = {one.variant.partition("_wgmma_")[2] for one in wgmma.PIXELS}
    tiles = {f"{tile.block_m}x{tile.block_n}" for tile in wgmma_tiles.PIXELS}
    assert {kernel.partition("_")[0] for kernel in kernels} == tiles
    assert {"rows" in kernel for kernel in kernels} == {True, False}
    assert {one.precision for one in wgmma.PIXELS} == {"tf32", "3xtf32"}
    assert any(one.kernel.endswith("_split") for one in wgmma.PIXELS)


# ---------------------------------------------------------------- contents of the registry


@pytest.mark.slow
def test_specimens_name_the_sources_of_all_kernels_that_they_launch() -> None:
    """Except for complex numbers and copies, whose further kernels depend on the planner."""
    checked = (*FORWARD, *wgmma.WGMMA, *FUSED, *gradients.GRADIENTS)
    for one in checked:
        if not isinstance(one, (gradients.Complex, gradients.Copy, gradients.Check, gradients.CheckWindows)):
            launched = {launch.variant.source for _, launch, _ in one.planned().launches()}
            assert launched <= set(sources_of(one)), one.kernel


def test_every_source_has_specimens() -> None:
    assert by_source().keys() == {variant.source for variant in all_variants()}
    assert all(problems_of(path) for path in files())


FIXED = {  # parameters that kernels have equal for all axes, or for height and width
    "_vectors_": {"kernel", "strides", "dilations"},
    "1x7_5x5": {"kernel", "strides", "dilations"},
    "conv_bands_": {"strides", "dilations"},
    "_channels": {"dilations"},
    "_transpose_depthwise": {"dilations"},
    "_depth_to_space_": {"dilations"},
    "_transpose_matrix_": {"dilations"},
    "_phase_rows_": {"strides", "dilations"},
    "_tap_rows_": {"strides"},
}


# Without families that have none of these parameters on any axis, or the same on all.
_SEVERAL_AXES = [one for one in FORWARD if one.problem.rank > 1 and one not in (*DIRECT, *POINTWISE, *MATRIX)]


@pytest.mark.parametrize("one", _SEVERAL_AXES, ids=lambda one: one.kernel)
def test_no_two_axes_are_alike(one: Forward) -> None:
    attributes, rank = one.problem.attributes, one.problem.rank
    numbers = {
        "extents": one.problem.x_shape[2:],
        "kernel": attributes.get("kernel_shape") or one.problem.shapes[1][2:],  # type: ignore[index]
        "strides": attributes.get("strides", ()),
        "dilations": attributes.get("dilations", ()),
        "begin": attributes["pads"][:rank],
        "end": attributes["pads"][rank:],
    }
    fixed = next((names for part, names in FIXED.items() if part in one.kernel), set())
    for name in set(numbers) - fixed:
        assert len(set(numbers[name])) > 1, name


def test_every_tile_of_every_dtype_is_there() -> None:
    forms = {
        f"{dtype} {tile}{'_uniform' if uniform else ''}"
        for dtype in dtypes.CONV_DTYPES
        for tile in gemm_base.TILES[dtype]
        for uniform in (False, True)
        if (tile.uniform if uniform else tile.rowwise)
    }
    assert {one.kernel.split("d_")[-1] for one in DIRECT} == {str(form) for form in rows_plan.FORMS}
    assert {one.kernel.split("d_")[-1] for one in BANDS} == {str(form) for form in bands.forms("float32")}
    assert {str(one.dtype) for one in BANDS} == set(dtypes.CONV_DTYPES)
    met = {f"{one.dtype} {one.kernel.split('d_')[-1].removesuffix('_wide')}" for one in GEMMS}
    assert forms <= met
    kernels = {one.kernel.replace("bfloat16", "float16") for one in TENSOR}
    forms = {
        f"{form.gather} {tile.block_m}" for tiles in mma_tile.TILES.values() for tile in tiles for form in tile.forms
    }
    assert forms <= {f"{name.split('_')[-1]} {name.split('_')[-2].split('x')[0]}" for name in kernels}
    assert {one.kernel.split("_")[2] for one in POOLS} == set(dtypes.MAX_POOL_DTYPES)


def test_every_product_of_matrices_is_there() -> None:
    kernels = {matrix.variant(*form).name for form in matrix.forms()}
    met = {one.kernel for one in (*MATRIX, *DISJOINT_TENSOR)}
    assert met <= kernels
    found, expected = ({name.replace("bfloat16", "float16") for name in names} for names in (met, kernels))
    assert found == expected


def test_every_tile_whose_filters_have_several_rows_is_there() -> None:
    for operator, problems in (("conv", TAP_ROWS), ("conv_transpose", PHASE_ROWS)):
        kernels = {
            mma.rows_variant(operator, *operands, tile, form).name
            for operands, arithmetic in fragments.ARITHMETICS.items()
            for tile, form in mma_tile.of_rows(arithmetic, operator)
        }
        kernels |= {ffma.rows_variant(operator, *form).name for form in ffma.ROWS[operator]}
        assert kernels == {one.kernel.removesuffix("_split") for one in problems}


def test_every_tile_that_writes_whole_rows_is_there_and_every_dtype() -> None:
    interleaved, disjoint = (
        list(interleaved_plan.forms()),
        [form[1:] for form in pointwise.forms() if form[0] == "conv_transpose"],
    )
    tiles = {f"{tile}{'_uniform' if uniform else ''}" for _, tile, uniform in interleaved}
    assert tiles == {one.kernel.split("_3d_")[1] for one in INTERLEAVED}
    assert {str(tile) for _, tile in disjoint} == {one.kernel.split("_3d_")[1] for one in DISJOINT}
    for found, forms in ((INTERLEAVED, interleaved), (DISJOINT, disjoint)):
        assert {str(one.dtype) for one in found} == {form[0] for form in forms}
