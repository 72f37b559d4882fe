"""Strips of x for ``conv/wgmma/pixels.cu``: what it fetches once for all taps along H and W, and where pixels stand.

A strip is of one slice of channels, and of one tap along D. It holds pieces: rows of pixels of each channel, or patches
of pixels with contiguous channels. The columns of a tile come in runs of neighbours along W, a power of two of
them: short runs fit short rows of y, long ones share more of what lies between taps. Axes stand outermost first.
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
_MOST = 256  # elements of a box along an axis
_LEAST_STAGES = 2  # one strip is fetched while another one is multiplied


@dataclass(frozen=True, slots=True)
class PixelStrips:
    """The numbers of ``PixelStrips`` in ``conv/wgmma/params.cuh``, and the box that a piece is."""

    extent: Ints  # tiles along D, H and W of an image
    rows: int  # outputs along H from one tile to the next
    columns: int  # along W
    taps: Ints  # strips of a slice of channels, along D, H and W
    inner_h: int  # taps along H that share a strip
    inner_w: int  # along W
    pieces: int  # of a strip, each of them one copy
    piece_bytes: int
    piece_h: int  # input coordinates along H from a piece to the next
    piece_w: int  # along W
    run: int  # a tile's columns that are neighbours along W
    column_h: int  # output coordinates along H from one run to the next
    column_w: int  # along W
    place_run: int  # bytes of a strip from a run's pixels to those of the next
    place_column: int  # from a pixel to the next
    shift_h: int  # from a tap's pixels to those of the next along H
    shift_w: int  # along W
    pitch: int  # bytes from a channel to the next, of rows
    stages: int  # strips that there is room for
    bytes: int  # of a strip
    box: Ints  # pixels of a piece along H and W

    @property
    def inner(self) -> int:
        """Taps that share a strip."""
        return self.inner_h * self.inner_w

    def fields(self) -> Mapping[str, Any]:
        """Return those of the struct."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "box"}


def of(problem: Problem, tile: PixelsTile) -> Iterator[PixelStrips]:
    """Yield the strips of a Conv for a kernel: with runs of every length, those that most taps share."""
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
    """Yield how many taps along H and along W may share a strip, the most first."""
    _, taps_h, taps_w = problem.taps
    if problem.columns[1] > 1:
        yield taps_h, taps_w
    if taps_h > 1 or problem.columns[1] == 1:
        yield 1, taps_w
    if taps_w > 1:
        yield 1, 1


def _strips(problem: Problem, tile: PixelsTile, run: int, inner_h: int, inner_w: int) -> PixelStrips | None:
    """Return the strips with runs on neighbouring rows of y, or on its only row; None where they do not fit."""
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
    row_bytes = box[1] * SLICE_BYTES  # from a row of x to the next
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
    """Return the box of a row of so many pixels: four channels of eight neighbours are to meet each bank once."""
    return 1, wide + (8 - wide) % 16


def _patch(high: int, wide: int) -> Ints:
    """Return the box of a patch, whose pixels take 128 bytes: whole patterns of swizzling."""
    return high, next(size for size in range(wide, wide + 8) if size * high % 8 == 0)
