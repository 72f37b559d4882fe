"""How the tests run the CUDA backend in the emulator: which architecture, index width and tile a problem gets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
from emulator import emulated_cuda

from gpuconv.cuda import gemm_plan, params

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
_DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8")


def architecture(dtype: Any, rank: int) -> str:
    """One architecture for each dtype and rank, so that a run compiles every kernel once and meets all of them."""
    return ARCHITECTURES[(_DTYPES.index(np.dtype(dtype).name) + rank) % len(ARCHITECTURES)]


@contextmanager
def indices(wide: bool) -> Iterator[None]:
    """Give small arrays 64-bit indices, by a limit of 0 for those of 32 bits."""
    before = params.INDEX_LIMIT
    params.INDEX_LIMIT = 0 if wide else before
    try:
        yield
    finally:
        params.INDEX_LIMIT = before


@contextmanager
def preferred_tile(number: int) -> Iterator[None]:
    """Let the planner of Conv and ConvTranspose take one of its tiles wherever that is a candidate at all."""
    before = dict(gemm_plan._TILES)
    for dtype, tiles in before.items():
        chosen = tiles[number % len(tiles)]
        gemm_plan._TILES[dtype] = tuple(
            replace(tile, efficiency=1e6 * tile.efficiency) if tile is chosen else tile for tile in tiles
        )
    try:
        yield
    finally:
        gemm_plan._TILES.update(before)


@contextmanager
def varied_cuda(dtype: Any, rank: int, seed: int) -> Iterator[Any]:
    """The emulated device; width, tile, schedule and the time of asynchronous copies follow the seed."""
    random = Random(seed)
    with (
        indices(wide=random.random() < 0.3),
        preferred_tile(random.randrange(3)),
        emulated_cuda(architecture(dtype, rank), seed=seed, late_async=random.random() < 0.7) as emulated,
    ):
        yield emulated
