"""Strips of x: what convolution by wgmma fetches once for all taps along H, and the tiles of columns that lie so.

A strip is of one slice of channels, and of one tap along D and W. It holds rows of pixels of each channel, or a patch
of pixels with contiguous channels. Tiles are of neighbouring rows of the output, or of one row; they may reach
beyond the ends of an image's rows, and of its columns. Axes stand outermost first.
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

ROW = 64  # pixels of a row that are fetched together
PATCH = 16  # pixels along W of a patch
_LEAST_STAGES = 2  # one strip is fetched while another one is multiplied


@dataclass(frozen=True, slots=True)
class Strips:
    """The numbers of ``Strips`` in ``conv/wgmma/params.cuh``."""

    extent: Ints  # tiles along D, H and W of an image
    rows: int  # outputs along H from one tile to the next
    columns: int  # along W
    taps: Ints  # strips of a slice of channels, along D, H and W
    inner: int  # taps along H that share a strip
    pieces: int  # of a strip, each of them one copy
    piece_h: int  # input coordinates along H from a piece to the next
    piece_w: int  # along W
    column_h: int  # output coordinates along H from one run of a tile's columns to the next
    column_w: int  # along W
    shift: int  # bytes from the pixels of one of the inner taps to those of the next
    stages: int  # strips that there is room for
    bytes: int  # of a strip
    # Whether weights can stay in shared memory: whole tiles have the same ones, for whose slices of K there is room
    resident: bool

    def fields(self) -> Mapping[str, Any]:
        """Return those of the struct."""
        return params.members(self, *self.__slots__)


def of(problem: Problem, tile: StripsTile) -> Strips | None:
    """Return the strips of a Conv for a kernel, those that most taps share; None where there are none of that form."""
    problem = problem.lifted
    if problem.operator != "conv" or problem.column_strides[2] != 1:
        return None
    for strips in _rows(problem, tile) if tile.rows else _patches(problem, tile):
        columns = problem.batch * prod(strips.extent) * tile.block_n
        if strips.stages >= _LEAST_STAGES and columns <= params.INDEX_LIMIT:
            return strips
    return None


def _rows(problem: Problem, tile: StripsTile) -> Iterator[Strips]:
    """Yield strips of rows: of one row alone where the output has no other, else of neighbouring ones."""
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
    """Yield strips of patches, which are no better than single columns where no taps share them."""
    if not _shareable(problem):
        return
    rows, row = tile.block_n // PATCH, tile.slice_bytes * PATCH
    tall = {"rows": rows, "columns": PATCH, "column_h": 1, "column_w": 0}
    size, shift = (rows + _reach(problem)) * row, problem.dilations[1] * row
    yield _strips(problem, tile, size, shift, pieces=1, piece_h=0, piece_w=0, **tall)


def _shareable(problem: Problem) -> bool:
    """Tell whether taps along H meet the same rows of x."""
    return problem.taps[1] > 1 and problem.column_strides[1] == 1


def _reach(problem: Problem) -> int:
    """Return the rows of x from the first tap's to the last one's."""
    return (problem.taps[1] - 1) * problem.dilations[1]


def _resident(problem: Problem, tile: StripsTile) -> bool:
    """Tell whether a block needs no other weights than those that it has room for."""
    slices = prod(problem.taps) * -(-problem.channels * problem.itemsize // tile.slice_bytes)
    slices *= fragments.arithmetic(problem).products
    return problem.group == 1 and problem.filters <= tile.block_m and slices <= tile.stages


def _strips(
    problem: Problem, tile: StripsTile, size: int, shift: int, *, rows: int, columns: int, **runs: int
) -> Strips:
    """Return strips of so many bytes; taps along H share them if there is a shift from one's pixels to the next's."""
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
