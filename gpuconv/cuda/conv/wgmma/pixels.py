"""Strips of x for ``conv/wgmma/pixels.cu``: inputs fetched once for several taps, and where pixels lie in them.

A strip holds one slice of channels for one tap along D; taps along H and W share it. It consists of *pieces*, one TMA
copy each: rows of pixels per channel (NCHW), or patches of pixels with contiguous channels (NHWC).

A tile's columns come in *runs*, a power of two of adjacent outputs along W. Short runs fit short rows of y; long runs
share more of the halo. Axes are ordered outermost first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from gpuconv.cuda.build import params
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.conv.wgmma.tiles import SLICE_BYTES, PixelsTile
from gpuconv.rules.geometry import Ints

_RUNS = (128, 64, 32, 16, 8)  # a thread's pixels are 8 apart
_MOST = 256  # TMA's limit on a box's extent per axis
_LEAST_STAGES = 2  # one strip is fetched while another is multiplied


@dataclass(frozen=True, slots=True)
class PixelStrips:
    """The fields of the struct ``PixelStrips`` in ``conv/wgmma/params.cuh``, and the TMA box of a piece."""

    extent: Ints  # tiles per image along D, H and W
    rows: int  # outputs along H between adjacent tiles
    columns: int  # outputs along W between adjacent tiles
    taps: Ints  # strips per slice of channels, along D, H and W
    inner_h: int  # taps along H that share a strip
    inner_w: int  # taps along W that share a strip
    pieces: int  # pieces per strip, one TMA copy each
    piece_bytes: int
    piece_h: int  # input coordinates along H between adjacent pieces
    piece_w: int  # input coordinates along W between adjacent pieces
    run: int  # adjacent outputs along W per run of a tile's columns
    column_h: int  # output coordinates along H between adjacent runs
    column_w: int  # output coordinates along W between adjacent runs
    place_run: int  # bytes of a strip between adjacent runs' pixels
    place_column: int  # bytes between adjacent pixels
    shift_h: int  # bytes between the pixels of adjacent taps along H
    shift_w: int  # bytes between the pixels of adjacent taps along W
    pitch: int  # bytes between adjacent channels, for rows
    stages: int  # pipeline stages: strips that fit shared memory
    bytes: int  # bytes per strip
    box: Ints  # pixels per piece along H and W

    @property
    def inner(self) -> int:
        """Taps that share a strip."""
        return self.inner_h * self.inner_w

    def fields(self) -> Mapping[str, Any]:
        """Return the fields of the kernel's struct."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "box"}


def of(problem: Problem, tile: PixelsTile) -> Iterator[PixelStrips]:
    """Yield the possible strips of a Conv: for each length of runs, those shared by the most taps."""
    problem = problem.lifted
    if problem.operator != "conv":
        return
    for run in _RUNS:
        if run > tile.block_n:
            continue
        for inner_h, inner_w in _shares(problem):
            strips = _strips(problem, tile, run, inner_h, inner_w)
            if strips is not None:
                yield strips
                break


def _shares(problem: Problem) -> Iterator[tuple[int, int]]:
    """Yield the (H, W) taps that may share a strip, most taps first."""
    _, taps_h, taps_w = problem.taps
    if problem.columns[1] > 1:
        yield taps_h, taps_w
    if taps_h > 1 or problem.columns[1] == 1:
        yield 1, taps_w
    if taps_w > 1:
        yield 1, 1


def _strips(problem: Problem, tile: PixelsTile, run: int, inner_h: int, inner_w: int) -> PixelStrips | None:
    """Return the strips with runs on adjacent rows of y, or along its only row; None if they do not fit."""
    depth, height, width = problem.columns
    _, stride_h, stride_w = problem.column_strides
    _, dilation_h, dilation_w = problem.dilations
    tall, runs = height > 1, tile.block_n // run
    rows, columns = (runs, run) if tall else (1, tile.block_n)
    extent = depth, -(-height // rows), -(-width // columns)
    high = (rows - 1) * stride_h + 1 + (inner_h - 1) * dilation_h
    wide = (run - 1) * stride_w + 1 + (inner_w - 1) * dilation_w
    box = _row(wide) if tile.rows else _patch(high, wide)
    pixel, piece_bytes = 4 if tile.rows else SLICE_BYTES, prod(box) * SLICE_BYTES
    row_bytes = box[1] * SLICE_BYTES  # bytes between adjacent rows of x
    if not tall:
        pieces, piece_h, piece_w, place_run = runs, 0, run * stride_w, piece_bytes
    elif not tile.rows:
        pieces, piece_h, piece_w, place_run = 1, 0, 0, stride_h * row_bytes
    elif inner_h > 1:
        pieces, piece_h, piece_w, place_run = high, 1, 0, stride_h * row_bytes
    else:
        pieces, piece_h, piece_w, place_run = rows, stride_h, 0, row_bytes
    stages = tile.x_bytes // (pieces * piece_bytes)
    if max(box) > _MOST or stages < _LEAST_STAGES or problem.batch * prod(extent) * tile.block_n > params.INDEX_LIMIT:
        return None
    return PixelStrips(
        extent=extent,
        rows=rows,
        columns=columns,
        taps=(problem.taps[0], problem.taps[1] // inner_h, problem.taps[2] // inner_w),
        inner_h=inner_h,
        inner_w=inner_w,
        pieces=pieces,
        piece_bytes=piece_bytes,
        piece_h=piece_h,
        piece_w=piece_w,
        run=run,
        column_h=int(tall),
        column_w=0 if tall else run,
        place_run=place_run,
        place_column=stride_w * pixel,
        shift_h=dilation_h * row_bytes,
        shift_w=dilation_w * pixel,
        pitch=box[1] * 4 if tile.rows else 0,
        stages=stages,
        bytes=pieces * piece_bytes,
        box=box,
    )


def _row(wide: int) -> Ints:
    """Return the box of a row of ``wide`` pixels, padded so that 4 channels × 8 adjacent pixels hit each bank once."""
    return 1, wide + (8 - wide) % 16


def _patch(high: int, wide: int) -> Ints:
    """Return the box of a patch, padded so that its 128-byte pixels fill whole swizzle patterns."""
    return high, next(size for size in range(wide, wide + 8) if size * high % 8 == 0)
