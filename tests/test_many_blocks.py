"""The problems of `many_blocks` have what they are there for, and the kernels make them right."""

from __future__ import annotations

from typing import Any

import many_blocks
import numpy as np
import pytest
from emulated import architecture
from many_blocks import ALL, GEMMS, POOLS, TENSOR, ManyBlocks

from gpuconv import _dtypes
from gpuconv.cuda import gemm_plan, mma_plan

pytestmark = pytest.mark.emulator


def _blocks(launch: Any) -> list[int]:
    """Blocks each way: of output channels and of pixels, or of outputs."""
    if launch.variant.name.startswith("max_pool"):
        return [launch.grid[0]]
    common = np.frombuffer(launch.parameters, launch.variant.layout)["common"]
    return [int(common[name]["divisor"][0]) for name in ("m_tiles", "n_tiles")]


@pytest.mark.parametrize("one", ALL, ids=lambda one: f"{one.kernel}-{ALL.index(one)}")
def test_many_blocks_are_right(one: ManyBlocks) -> None:
    emulated = many_blocks.run(one, architecture(one.dtype, one.problem.rank), seed=5)
    assert emulated.launches[-1].variant.name == one.kernel
    assert min(_blocks(emulated.launches[-1])) >= 3


FIXED = {  # what kernels have the same of for all axes, or for height and width
    "_vectors_": {"kernel", "strides", "dilations"},
    "_bands": {"dilations"},
    "_planes": {"strides", "dilations"},
    "_channels": {"dilations"},
}


@pytest.mark.parametrize("one", [one for one in ALL if one.problem.rank > 1], ids=lambda one: one.kernel)
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
        for dtype in _dtypes.CONV_DTYPES
        for tile in gemm_plan._TILES[dtype]
        for uniform in (False, True)
        if (tile.uniform if uniform else tile.rowwise)
    }
    met = {f"{one.dtype} {one.kernel.split('d_')[-1].removesuffix('_wide')}" for one in GEMMS}
    assert forms <= met
    kernels = {one.kernel.replace("bfloat16", "float16") for one in TENSOR}
    forms = {
        f"{form.gather} {tile.block_m}" for tiles in mma_plan._TILES.values() for tile in tiles for form in tile.forms
    }
    assert forms <= {f"{name.split('_')[-1]} {name.split('_')[-2].split('x')[0]}" for name in kernels}
    assert {one.kernel.split("_")[2] for one in POOLS} == set(_dtypes.MAX_POOL_DTYPES)
