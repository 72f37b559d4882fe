"""Implicit GEMM for layers with few filters.

One row of M per filter would leave most of a tile empty. So M enumerates (filter, phase) for ConvTranspose, or (filter,
tap along W) for Conv. The tile is full and each element of x is loaded once.

- ConvTranspose, kernel equal to the stride, no dilation: M = (filter, tap). Outputs do not overlap, so the kernel
  scatters them (depth to space). An axis of x with one element allows any kernel size.
- ConvTranspose in general: M = (filter, phase), and each row sums over its taps (``conv/gemm/phase_rows.cu``).
- Conv: M = (filter, tap along W or run of such taps). The epilogue adds up the rows of a filter, shifted
  (``conv/gemm/tap_rows.cu``).

Both forms of ConvTranspose write blocks of outputs with ``conv/gemm/depth_to_space.cuh``. All use 32-bit indices and
three spatial axes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, ClassVar

from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import split
from gpuconv.cuda.conv.problem import Axis, Problem, merged_stride
from gpuconv.cuda.plan import Launch
from gpuconv.cuda.plan.numbers import empty_rows

ROW_BYTES = 32  # sizeof(OutputRow) in the kernels
WRITING = 20  # epilogue instructions of a warp for 32 outputs that padding does not cut off (counted)
_MOST_PHASES = 32  # limit on phases along W: the lanes of a warp divide a chunk's columns among them


# ---------------------------------------------------------------- one tap


def unfit(problem: Problem) -> str | None:
    """Return why a ConvTranspose is not a single GEMM with scattered outputs; None if it is."""
    if problem.rank > 3:
        return f"{problem.rank} spatial axes; it has three"
    if any(axis.dilation != 1 or (axis.x != 1 and axis.taps != axis.stride) for axis in problem.axes):
        numbers = f"{problem.taps} taps, strides {problem.strides}, dilations {problem.dilations}"
        return f"{numbers}: the outputs of neighbours overlap or lie apart"
    if any(axis.y > axis.x * axis.taps - axis.pad for axis in problem.axes):
        return "y has outputs that no tap reaches"
    if problem.taps[-1] > _MOST_PHASES:
        return f"{problem.taps[-1]} taps along W; it takes up to {_MOST_PHASES}"
    if _w_step(problem) is None:
        return "the taps of a channel are not contiguous in w"
    rows = problem.filters * prod(problem.taps) + gemm_base.pitch(problem)
    weights, pixels = problem.group * problem.channels * rows, problem.batch * prod(problem.x_shape[2:])
    blocks = [axis.x * axis.taps for axis in problem.axes]
    if problem.wide() or max(_reach(problem, blocks), weights, pixels) >= params.INDEX_LIMIT:
        return "it needs 64-bit indices"
    return None


def _w_step(problem: Problem) -> int | None:
    """Return the stride of w between rows, which enumerate (channel, tap); None if it is not uniform."""
    return merged_stride((problem.filters, *problem.taps), (problem.w_strides[1], *problem.w_strides[3:]))


def _reach(problem: Problem, extents: Sequence[int]) -> int:
    """Return the largest offset into y, including outputs that padding cuts off; ``extents`` covers all blocks."""
    sizes = (*problem.y_shape[:2], *extents)
    return sum(size * abs(stride) for size, stride in zip(sizes, problem.y_strides, strict=True))


def rows_of(problem: Problem) -> Problem:
    """Return the GEMM as a problem with a single tap: filters are (output channel, tap), columns are input pixels."""
    w_group, _, w_channel, *_ = problem.w_strides
    return replace(
        problem.with_axes(
            axis._replace(taps=1, w_stride=1, columns=axis.x, pad=0, stride=axis.taps) for axis in problem.axes
        ),
        filters=problem.filters * prod(problem.taps),
        w_strides=(w_group, _w_step(problem) or 0, w_channel, *(1,) * problem.rank),
        phases=(),
    )


# ---------------------------------------------------------------- several GEMM rows per filter


# Epilogue instructions per thread (counted). For phase rows: per block of outputs, for each phase along W. For
# tap rows: per group of neighbouring outputs of several filters; per output of one filter; per tap of an output.
_BLOCK, _NEIGHBOURS, _OUTPUT, _TAP = 95, 55, 60, 4.5
_SPREAD = 64  # padding in bytes between rows of accumulators in shared memory


@dataclass(frozen=True)
class FilterRows(ABC):
    """A problem seen as a GEMM with several rows per filter, for one tile size."""

    problem: Problem
    tile: gemm_base.BlockTile

    order: ClassVar[str]  # suffix for the name of the order of summation

    @property
    @abstractmethod
    def gemm(self) -> Problem:
        """The GEMM as a Conv problem whose filters are the rows of M."""

    @property
    @abstractmethod
    def rows_per_filter(self) -> gemm_base.RowsPerFilter:
        """How packed weights map to rows of M."""

    @property
    @abstractmethod
    def tiles(self) -> tuple[int, int]:
        """Tiles along M and along N, for one group."""

    @property
    @abstractmethod
    def instructions(self) -> float:
        """Epilogue instructions of all threads of all tiles."""

    @property
    @abstractmethod
    def fields(self) -> Mapping[str, Any]:
        """The kernel's struct fields that do not belong to the GEMM."""

    @property
    @abstractmethod
    def reasons(self) -> tuple[str, ...]:
        """Reasons for ``explain``: what the rows are, and how many rows of the tiles are empty."""

    @property
    def blocks(self) -> int:
        """Tiles over all groups."""
        return prod(self.tiles) * self.problem.group

    def shared_bytes(self, stages: int) -> int:
        """Return the bytes of shared memory: ``stages`` bytes of pipeline, reused by the epilogue for accumulators."""
        return max(stages, self.tile.block_m * (self.tile.block_n * self.problem.word + _SPREAD))

    def launch(self, chosen: Variant, weights: gemm_base.PackedWeights, shared_bytes: int) -> Launch:
        """Return the launch that multiplies packed weights and writes the outputs."""
        fields = {
            **gemm_base.operands(self.gemm, self.tiles, weights),
            **self.fields,
            "splits": split.splits(self.blocks),
        }
        roles = gemm_base.roles(self.gemm)
        return Launch.of_blocks(self.problem.operator, chosen, self.blocks, fields, roles, shared_bytes)


def of(problem: Problem, tile: gemm_base.BlockTile) -> FilterRows | None:
    """Return the problem with phases (ConvTranspose) or taps along W (Conv) as rows; None if it cannot be seen so."""
    return TapRows.of(problem, tile) if problem.operator == "conv" else PhaseRows.of(problem, tile)


def kernel(operator: str, multiplier: str) -> Kernel:
    """Return the operator's kernel with several rows per filter, for multiplier "ffma" or "mma"."""
    name, source, struct = {
        "conv": ("conv_tap_rows", "conv/gemm/tap_rows.cu", "TapRowsParams"),
        "conv_transpose": ("conv_transpose_phase_rows", "conv/gemm/phase_rows.cu", "PhaseRowsParams"),
    }[operator]
    return Kernel(source, f"{name}_{multiplier}", struct, name=name)


# ---------------------------------------------------------------- phases


class PhaseRows(FilterRows):
    """A ConvTranspose as one GEMM over all phases: filters are (output channel, phase).

    Columns are blocks of outputs as large as the stride; taps run backwards.
    """

    order = ", of all phases together"

    @classmethod
    def of(cls, problem: Problem, tile: gemm_base.BlockTile) -> PhaseRows | None:
        """Return the problem in this form, or None.

        None without strides, for a dilated axis with a stride, or where indices need 64 bits.
        """
        apart = any(axis.dilation != 1 and axis.stride != 1 for axis in problem.axes)
        if apart or all(stride == 1 for stride in problem.strides) or problem.strides[-1] > _MOST_PHASES:
            return None
        if prod(problem.strides) * problem.filters >= params.INDEX_LIMIT:
            return None
        rows_gemm = cls(problem, tile)
        blocks = [columns * stride for columns, stride in zip(rows_gemm.gemm.columns, problem.strides, strict=True)]
        return None if rows_gemm.gemm.far() or _reach(problem, blocks) >= params.INDEX_LIMIT else rows_gemm

    @cached_property
    def gemm(self) -> Problem:
        return replace(
            self.problem.with_axes(map(_of_blocks, self.problem.axes)),
            operator="conv",
            filters=self.problem.filters * prod(self.problem.strides),
            phases=(),
            strides=(),
            backwards=True,
        )

    @property
    def rows_per_filter(self) -> gemm_base.RowsPerFilter:
        strides = self.problem.strides
        return gemm_base.RowsPerFilter(self.gemm, strides, (1,) * len(strides), strides)

    @property
    def tiles(self) -> tuple[int, int]:
        return self.gemm.tiles(self.tile.block_m, self.tile.block_n)

    @property
    def instructions(self) -> float:
        rows = min(self.tile.block_m, self.gemm.filters)
        of_column = self.problem.strides[-1] * _BLOCK + rows * WRITING
        return self.blocks * self.tile.block_n * of_column

    @property
    def fields(self) -> Mapping[str, Any]:
        return fields(self.problem, by_phase=True)

    @property
    def reasons(self) -> tuple[str, ...]:
        phases = f"{prod(self.problem.strides)} phases of each filter, in {prod(self.gemm.taps)} taps"
        rows = f"{self.gemm.filters} rows of one GEMM are the {phases}"
        empty = empty_rows(self.problem.filters, self.tile.block_m, prod(self.problem.strides))
        return f"{rows}: x is fetched once for all", *empty

    def shared_bytes(self, stages: int) -> int:
        """Return the bytes of shared memory, including the table of rows."""
        return super().shared_bytes(stages) + self.tile.block_m * ROW_BYTES


def _of_blocks(axis: Axis) -> Axis:
    """Return a ConvTranspose's axis as the axis of its GEMM: a column is a block of ``stride`` adjacent outputs."""
    # skipped: whole blocks that the padding cuts off
    taps, skipped = -(-axis.taps // axis.stride), axis.pad // axis.stride
    columns = -(-(axis.y + axis.pad) // axis.stride) - skipped
    return axis._replace(taps=taps, columns=columns, pad=(taps - 1) * axis.dilation - skipped)


# ---------------------------------------------------------------- taps along W


class TapRows(FilterRows):
    """A Conv with its taps along W as rows of M; tiles hold whole filters.

    With a stride s along W, rows are runs of s adjacent taps, and columns are runs of s input pixels.
    """

    order = ", then over taps along W"

    @classmethod
    def of(cls, problem: Problem, tile: gemm_base.BlockTile) -> TapRows | None:
        """Return the problem in this form, or None.

        None if a filter would have a single row, if taps form no runs, or if a filter does not fit a tile.
        """
        width, rows_gemm = problem.axes[-1], cls(problem, tile)
        if width.column_stride > 1 and (width.dilation > 1 or problem.backwards):
            return None
        if rows_gemm.rows == 1 or rows_gemm.filters == 0 or 2 * rows_gemm.reach > tile.block_n:
            return None
        return None if rows_gemm.gemm.far() else rows_gemm

    @property
    def width(self) -> Axis:
        """The spatial axis whose taps are rows: W."""
        return self.problem.axes[-1]

    @property
    def run(self) -> int:
        """Taps along W per row."""
        return self.width.column_stride

    @property
    def rows(self) -> int:
        """Rows per filter."""
        return -(-self.width.taps // self.run)

    @property
    def reach(self) -> int:
        """Columns that an output reads beyond its first one (the halo)."""
        return (self.rows - 1) * self.width.dilation

    @property
    def filters(self) -> int:
        """Filters per tile."""
        return self.tile.block_m // self.rows

    @property
    def outputs(self) -> int:
        """Output columns per tile: its columns without the halo."""
        return self.tile.block_n - self.reach

    @cached_property
    def gemm(self) -> Problem:
        *outer, width = self.problem.axes
        rows = -(-self.problem.filters // self.filters) * self.tile.block_m
        columns = width._replace(taps=self.run, columns=width.columns + self.reach)
        return replace(self.problem.with_axes((*outer, columns)), filters=rows)

    @property
    def rows_per_filter(self) -> gemm_base.RowsPerFilter:
        outer = (1,) * (self.problem.rank - 1)
        of_tile = self.tile.block_m, self.filters
        return gemm_base.RowsPerFilter(self.gemm, (*outer, self.rows), (*outer, self.run), (*outer, 1), of_tile)

    @property
    def tiles(self) -> tuple[int, int]:
        return self.gemm.filters // self.tile.block_m, -(-self.gemm.pixels // self.outputs)

    @property
    def instructions(self) -> float:
        filters = min(self.filters, self.problem.filters)
        return self.blocks * self.outputs * (_NEIGHBOURS + filters * (_OUTPUT + _TAP * self.rows))

    @property
    def fields(self) -> Mapping[str, Any]:
        backwards, dilation = self.problem.backwards, self.width.dilation
        return {
            "filters": self.problem.filters,
            "of_tile": self.filters,
            "along": self.rows,
            "run": self.run,
            "kernel": self.width.taps,
            "first": self.reach if backwards else 0,
            "step": -dilation if backwards else dilation,
            "outputs": self.outputs,
            "width": self.width.columns,
        }

    @property
    def reasons(self) -> tuple[str, ...]:
        taps = f"{self.width.taps} taps along W"
        taps = taps if self.run == 1 else f"{self.rows} runs of {taps}, {self.run} each,"
        rows = f"{taps} are rows of {self.filters} filters a tile"
        empty = empty_rows(self.problem.filters, self.tile.block_m, self.rows, self.tiles[0])
        return f"{rows}: x is fetched once for all of them", *empty


# ---------------------------------------------------------------- launch


def fields(problem: Problem, by_phase: bool = False) -> Mapping[str, Any]:
    """Return the fields of ``DepthToSpaceParams`` that do not belong to the GEMM.

    With ``by_phase``, blocks of outputs are as large as the stride (rows per phase); otherwise as large as the kernel.
    """
    return {"axes": [_fields(axis, by_phase) for axis in problem.lifted.axes], "out_channels": problem.filters}


def _fields(axis: Axis, by_phase: bool) -> Mapping[str, int]:
    """Return the fields of the kernel's parameter struct."""
    phases, pad = (axis.stride, axis.pad % axis.stride) if by_phase else (axis.taps, axis.pad)
    return {"pad": pad, "extent": axis.y, "y_stride": axis.y_stride, "kernel": axis.taps, "phases": phases}
