"""Strips of x for ``conv/wgmma/strips.cu``: inputs that are fetched once and shared by all taps along H.

A strip holds one slice of channels for one tap along D and W: rows of pixels per channel (NCHW), or a patch of pixels
with contiguous channels (NHWC). A tile is several adjacent output rows, so the next tap along H finds its inputs in the
same strip, some rows further down. Tiles may extend beyond the ends of rows and columns. Axes are ordered outermost
first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from gpuconv.cuda.build import params
from gpuconv.cuda.conv.gemm import fragments
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.conv.wgmma.tiles import StripsTile
from gpuconv.rules.geometry import Ints

ROW = 64  # pixels per TMA copy of a row
PATCH = 16  # pixels along W of a patch
_LEAST_STAGES = 2  # one strip is fetched while another is multiplied


@dataclass(frozen=True, slots=True)
class Strips:
    """The fields of the struct ``Strips`` in ``conv/wgmma/params.cuh``."""

    extent: Ints  # tiles per image along D, H and W
    rows: int  # outputs along H between adjacent tiles
    columns: int  # outputs along W between adjacent tiles
    taps: Ints  # strips per slice of channels, along D, H and W
    inner: int  # taps along H that share a strip
    pieces: int  # pieces per strip, one TMA copy each
    piece_h: int  # input coordinates along H between adjacent pieces
    piece_w: int  # input coordinates along W between adjacent pieces
    column_h: int  # output coordinates along H between adjacent runs of a tile's columns
    column_w: int  # output coordinates along W between adjacent runs
    shift: int  # bytes between the pixels of adjacent inner taps
    stages: int  # pipeline stages: strips that fit shared memory
    bytes: int  # bytes per strip
    # weights can stay in shared memory: all tiles use the same ones, and all their slices of K fit
    resident: bool

    def fields(self) -> Mapping[str, Any]:
        """Return the fields of the kernel's struct."""
        return params.members(self, *self.__slots__)


def of(problem: Problem, tile: StripsTile) -> Strips | None:
    """Return the strips of a Conv that the most taps share; None if the problem allows none of the tile's form."""
    problem = problem.lifted
    if problem.operator != "conv" or problem.column_strides[2] != 1:
        return None
    for strips in _rows(problem, tile) if tile.rows else _patches(problem, tile):
        columns = problem.batch * prod(strips.extent) * tile.block_n
        if strips.stages >= _LEAST_STAGES and columns <= params.INDEX_LIMIT:
            return strips
    return None


def _rows(problem: Problem, tile: StripsTile) -> Iterator[Strips]:
    """Yield strips of rows: along a single row if y has only one, else of adjacent rows."""
    pieces, size = tile.block_n // ROW, tile.slice_bytes * ROW
    if problem.columns[1] == 1:
        long = {"rows": 1, "columns": tile.block_n, "column_h": 0, "column_w": ROW}
        yield _strips(problem, tile, pieces * size, 0, pieces=pieces, piece_h=0, piece_w=ROW, **long)
        return
    tall = {"rows": pieces, "columns": ROW, "column_h": 1, "column_w": 0}
    if _shareable(problem):
        high, shift = pieces + _reach(problem), problem.dilations[1] * size
        yield _strips(problem, tile, high * size, shift, pieces=high, piece_h=1, piece_w=0, **tall)
    yield _strips(problem, tile, pieces * size, 0, pieces=pieces, piece_h=problem.column_strides[1], piece_w=0, **tall)


def _patches(problem: Problem, tile: StripsTile) -> Iterator[Strips]:
    """Yield strips of patches; only if taps share them, since they would otherwise be no better than im2col columns."""
    if not _shareable(problem):
        return
    rows, row = tile.block_n // PATCH, tile.slice_bytes * PATCH
    tall = {"rows": rows, "columns": PATCH, "column_h": 1, "column_w": 0}
    size, shift = (rows + _reach(problem)) * row, problem.dilations[1] * row
    yield _strips(problem, tile, size, shift, pieces=1, piece_h=0, piece_w=0, **tall)


def _shareable(problem: Problem) -> bool:
    """Return whether taps along H read the same rows of x: several taps, stride 1."""
    return problem.taps[1] > 1 and problem.column_strides[1] == 1


def _reach(problem: Problem) -> int:
    """Return the rows of x between the first and the last tap along H (the halo)."""
    return (problem.taps[1] - 1) * problem.dilations[1]


def _resident(problem: Problem, tile: StripsTile) -> bool:
    """Return whether all of a block's weights fit its pipeline stages, so that they are loaded once."""
    slices = prod(problem.taps) * -(-problem.channels * problem.itemsize // tile.slice_bytes)
    slices *= fragments.arithmetic(problem).products
    return problem.group == 1 and problem.filters <= tile.block_m and slices <= tile.stages


def _strips(
    problem: Problem, tile: StripsTile, size: int, shift: int, *, rows: int, columns: int, **runs: int
) -> Strips:
    """Return strips of ``size`` bytes; with a ``shift``, the bytes between adjacent taps along H, taps share them."""
    depth, height, width = problem.columns
    inner = problem.taps[1] if shift else 1
    return Strips(
        extent=(depth, -(-height // rows), -(-width // columns)),
        rows=rows,
        columns=columns,
        taps=(problem.taps[0], problem.taps[1] // inner, problem.taps[2]),
        inner=inner,
        shift=shift,
        stages=tile.x_bytes // size,
        bytes=size,
        resident=_resident(problem, tile),
        **runs,
    )
