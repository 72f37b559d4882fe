"""The problems of `many_blocks` have what they are there for, and the kernels make them right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuconv.cuda.conv.direct import bands
from gpuconv.cuda.conv.direct import rows as rows_plan
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import ffma, fragments, matrix, mma, mma_tile, pointwise
from gpuconv.cuda.conv.gemm import interleaved as interleaved_plan
from gpuconv.rules import dtypes
from tests.harness import many_blocks
from tests.harness.many_blocks import (
    ALL,
    BANDS,
    DIRECT,
    DISJOINT,
    DISJOINT_TENSOR,
    GEMMS,
    INTERLEAVED,
    MATRIX,
    PHASE_ROWS,
    POINTWISE,
    POOLS,
    TAP_ROWS,
    TENSOR,
    ManyBlocks,
)

pytestmark = pytest.mark.emulator


def _blocks(launch: Any) -> list[int]:
    """Blocks each way: of output channels and of pixels, or of all outputs."""
    sources = ("conv/direct/rows.cu", "conv/direct/bands.cu", "conv/direct/channels.cu", "conv/direct/transpose.cu")
    if launch.variant.name.startswith(("max_pool", "average_pool")) or launch.variant.source in sources:
        return [launch.grid[0]]
    struct = np.frombuffer(launch.parameters, launch.variant.layout)
    inner = next((name for name in ("all", "problem") if name in (struct.dtype.names or ())), None)
    common = struct["common"] if inner is None else struct[inner]["common"]
    names = ("n_tiles",) if launch.variant.name.startswith("conv_few") else ("m_tiles", "n_tiles")
    if launch.variant.name.startswith("conv_stem"):  # which makes all output channels in passes
        passes = int(np.frombuffer(launch.parameters, launch.variant.layout)["passes"][0])
        return [int(common["m_tiles"]["divisor"][0]) * passes, int(common["n_tiles"]["divisor"][0])]
    return [int(common[name]["divisor"][0]) for name in names]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("one", ALL, ids=lambda one: f"{one.kernel}-{ALL.index(one)}")
def test_many_blocks_are_right(one: ManyBlocks) -> None:
    emulated = many_blocks.run(one, seed=5)
    last = emulated.launches[-1]
    assert last.variant.name == one.kernel.removesuffix("_split")
    assert min(_blocks(last)) >= 3
    assert many_blocks.is_split(last) == one.kernel.endswith("_split")


FIXED = {  # what kernels have the same of for all axes, or for height and width
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


# Without those that have nothing on any axis, or the same on all.
_SEVERAL_AXES = [one for one in ALL if one.problem.rank > 1 and one not in (*DIRECT, *POINTWISE, *MATRIX)]


@pytest.mark.parametrize("one", _SEVERAL_AXES, ids=lambda one: one.kernel)
def test_no_two_axes_are_alike(one: ManyBlocks) -> None:
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
