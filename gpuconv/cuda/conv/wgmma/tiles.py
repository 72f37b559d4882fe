"""Tiles of the wgmma kernels, and the threads, registers and shared memory of their blocks."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import RANK

THREADS = 384  # two consumer warpgroups that multiply, and one producer warpgroup that fetches
SLICE_BYTES = 128  # bytes per row of a slice of K: the widest swizzle
STEP_BYTES = 32  # bytes of K that one wgmma instruction multiplies
HALF_SLICE = 64  # bytes, for channels that would leave half of a slice empty
CONSUMER_REGISTERS, PRODUCER_REGISTERS = 232, 40  # per thread, after setmaxnreg
_WARPGROUP = 128
_REGISTERS = 65536  # registers per SM
_PIECES = 8 * 16 * 40 * 4  # bytes of epilogue buffers: 16 × 32 accumulators per consumer warp, rows padded by 8
_BARRIERS = 2 * 8  # bytes of a stage's two mbarriers
_ANSWER = 16  # bytes of the ticket that a block reads


@dataclass(frozen=True, slots=True)
class WgmmaTile:
    """A tile: the outputs of one block, and its pipeline."""

    block_m: int
    block_n: int
    stages: int  # pipeline stages: slices of K in shared memory
    # True ("ping-pong"): the warpgroups compute alternate tiles; False ("cooperative"): each computes half of every
    # tile
    ping_pong: bool


TILES = (
    WgmmaTile(128, 256, 4, ping_pong=False),
    WgmmaTile(64, 256, 5, ping_pong=True),
)


@dataclass(frozen=True, slots=True)
class SharingTile(WgmmaTile):
    """A tile whose taps share strips of x; ``stages`` counts slices of weights."""

    x_bytes: int  # bytes of shared memory for strips
    rows: bool  # strips are rows of pixels per channel; otherwise patches of pixels with contiguous channels
    slice_bytes: int = SLICE_BYTES  # bytes per row of a slice of K


class StripsTile(SharingTile):
    """Tiles of ``conv/wgmma/strips.cu``, where taps along H share strips."""

    __slots__ = ()


class PixelsTile(SharingTile):
    """Tiles of ``conv/wgmma/pixels.cu``, where taps along H and W share strips; ping-pong."""

    __slots__ = ()


STRIPS = (
    StripsTile(128, 256, 6, False, 98304, rows=True),
    StripsTile(64, 256, 9, True, 131072, rows=True),
    StripsTile(64, 256, 12, True, 110592, rows=False),
    StripsTile(64, 256, 27, True, 98304, rows=True, slice_bytes=HALF_SLICE),
    StripsTile(64, 256, 27, True, 98304, rows=False, slice_bytes=HALF_SLICE),
)


PIXELS = tuple(
    PixelsTile(*sizes, stages, True, 131072, rows)
    for sizes, stages in (((128, 128), 6), ((64, 256), 12))
    for rows in (True, False)
)


def registers_fit(consumer: int, producer: int, threads: int = THREADS) -> bool:
    """Return whether setmaxnreg can give this many registers per thread to two consumer warpgroups and one producer.

    If the launch leaves too few registers, setmaxnreg would wait forever.
    """
    launched = threads * (_REGISTERS // threads // 8 * 8)
    asked = _WARPGROUP * (2 * consumer + producer)
    return asked <= launched and all(24 <= count <= 256 and count % 8 == 0 for count in (consumer, producer))


assert registers_fit(CONSUMER_REGISTERS, PRODUCER_REGISTERS)
# registers per thread at launch
LAUNCH_REGISTERS = _WARPGROUP * (2 * CONSUMER_REGISTERS + PRODUCER_REGISTERS) // THREADS


# ---------------------------------------------------------------- shared memory


def shared_bytes(problem: Problem, tile: WgmmaTile) -> int:
    """Return the bytes of shared memory: slices, epilogue buffers, barriers, and the taps of all phases.

    For strips, which have a single phase, this does not depend on the problem.
    """
    if isinstance(tile, SharingTile):
        most = tile.x_bytes // (tile.block_n * tile.slice_bytes)  # most strips: none is smaller than its tile
        weights = tile.stages * tile.block_m * tile.slice_bytes
        pieces = _PIECES if isinstance(tile, StripsTile) else 0
        return tile.x_bytes + weights + pieces + (tile.stages + most) * _BARRIERS + _ANSWER
    slices = tile.stages * (tile.block_m + tile.block_n) * SLICE_BYTES
    taps = prod(problem.phases) * gemm_base.taps_bytes(RANK) if problem.phases else 0
    return slices + _PIECES + tile.stages * _BARRIERS + _ANSWER + taps
