"""The tiles of convolution by wgmma, and what a block of each takes of a multiprocessor."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import RANK

THREADS = 384  # two warpgroups that multiply, the consumers, and one that fetches, the producer
SLICE_BYTES = 128  # of a row of a slice of K
STEP_BYTES = 32  # of these, those that an instruction multiplies
HALF_SLICE = 64  # where the channels of a group leave the half of a slice empty
CONSUMER_REGISTERS, PRODUCER_REGISTERS = 232, 40  # of a thread of each, from when the kernel has begun
_WARPGROUP = 128
_REGISTERS = 65536  # of a multiprocessor
_PIECES = 8 * 16 * 40 * 4  # bytes of the epilogue; of each consumer warp, 16 x 32 sums, and 8 columns between
_BARRIERS = 2 * 8  # bytes of a stage's two mbarriers
_ANSWER = 16  # bytes, of the ticket


@dataclass(frozen=True, slots=True)
class WgmmaTile:
    """The outputs of a block."""

    block_m: int
    block_n: int
    stages: int  # pipeline stages: slices of K in shared memory
    # The two warpgroups make a tile each, in turns ("ping-pong"); otherwise each makes one half of every tile
    # ("cooperative")
    turns: bool


TILES = (
    WgmmaTile(128, 256, 4, turns=False),
    WgmmaTile(64, 256, 5, turns=True),
)


@dataclass(frozen=True, slots=True)
class SharingTile(WgmmaTile):
    """The outputs of a block in which several taps read one strip of x; ``stages`` are of weights."""

    x_bytes: int  # room for strips in shared memory
    rows: bool  # strips are rows of pixels, of each channel; otherwise patches of pixels with contiguous channels
    slice_bytes: int = SLICE_BYTES  # of a row of a slice of K


class StripsTile(SharingTile):
    """Tiles of ``conv/wgmma/strips.cu``, where taps along H share strips."""

    __slots__ = ()


class PixelsTile(SharingTile):
    """Tiles of ``conv/wgmma/pixels.cu``, where taps along H and W share strips; warpgroups make them in turns."""

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
    """Tell whether two warpgroups that multiply and one that fetches get so many registers a thread.

    Those that a launch leaves free nobody gets: the kernel would wait for ever.
    """
    launched = threads * (_REGISTERS // threads // 8 * 8)
    asked = _WARPGROUP * (2 * consumer + producer)
    return asked <= launched and all(24 <= count <= 256 and count % 8 == 0 for count in (consumer, producer))


assert registers_fit(CONSUMER_REGISTERS, PRODUCER_REGISTERS)
LAUNCH_REGISTERS = _WARPGROUP * (2 * CONSUMER_REGISTERS + PRODUCER_REGISTERS) // THREADS  # of a thread: what they share


# ---------------------------------------------------------------- shared memory


def shared_bytes(problem: Problem, tile: WgmmaTile) -> int:
    """Return the bytes of the slices, of pieces of the result, of the barriers, and the taps of all phases.

    Those of strips, of which there is one phase, do not depend on the problem.
    """
    if isinstance(tile, SharingTile):
        most = tile.x_bytes // (tile.block_n * tile.slice_bytes)  # of strips: none is smaller than its tile
        weights = tile.stages * tile.block_m * tile.slice_bytes
        pieces = _PIECES if isinstance(tile, StripsTile) else 0
        return tile.x_bytes + weights + pieces + (tile.stages + most) * _BARRIERS + _ANSWER
    slices = tile.stages * (tile.block_m + tile.block_n) * SLICE_BYTES
    taps = prod(problem.phases) * gemm_base.taps_bytes(RANK) if problem.phases else 0
    return slices + _PIECES + tile.stages * _BARRIERS + _ANSWER + taps
