"""What ``rows.cu`` and ``channels.cu`` see of a problem, and the forms of the former."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import launching, limits
from gpuconv.cuda.plan.launch import Plan
from gpuconv.rules.geometry import Ints

THREADS = 128
GROUPED = 4  # filters of a thread where it makes more than one


@dataclass(frozen=True, slots=True)
class Work:
    """A problem with three axes: depth, row and column. Output q meets input ``q * stride - pad + tap * dilation``."""

    dtype: str
    images: int
    groups: int
    channels: int
    filters: int
    x_extent: Ints
    y_extent: Ints
    taps: Ints
    strides: Ints
    dilations: Ints
    pads: Ints


@dataclass(frozen=True, slots=True)
class Form:
    """One form of the kernel.

    Attributes
    ----------
    filters, rows : int
        What a thread makes, for each of its 16 bytes of columns.
    kernel : int
        Taps of both axes of the plane, 0 for any.
    stride : int
        Of both axes of the plane, 0 for any and for any dilation.
    line : bool
        A single axis: rows are strips of it.
    registers : int
        That a thread needs for float32 sums.
    efficiency : float
        Share of multiplications among the main loop's instructions.
    """

    filters: int
    rows: int
    kernel: int
    stride: int
    line: bool
    registers: int
    efficiency: float

    def __str__(self) -> str:
        if self.kernel:
            return f"{self.kernel}x{self.kernel}s{self.stride}"
        return "line" if self.line else "rows" if self.stride else "taps"

    def blocks_per_sm(self, accumulator: str) -> int:
        """Return how many blocks the registers leave room for."""
        return limits.blocks_by_registers(self.registers, accumulator, THREADS)

    def takes(self, work: Work) -> bool:
        """Tell whether this form can solve a problem."""
        if (self.filters == 1) != (work.channels == 1 and work.filters < GROUPED):
            return False
        plane = work.taps[1:], work.strides[1:], work.dilations[1:]
        if self.kernel:
            return plane == ((self.kernel,) * 2, (self.stride,) * 2, (1, 1))
        if self.stride:
            flat = work.y_extent[:2] + work.taps[:2] == (1, 1, 1, 1)
            return self.line == flat and plane[1:] == ((1, 1), (1, 1))
        return True


FORMS = (
    Form(1, 7, 3, 1, False, 72, 0.84),
    Form(1, 7, 3, 2, False, 96, 0.72),
    Form(1, 7, 5, 1, False, 96, 0.92),
    Form(1, 7, 5, 2, False, 112, 0.85),
    Form(1, 7, 7, 1, False, 128, 0.95),
    Form(1, 7, 7, 2, False, 128, 0.91),
    Form(1, 7, 0, 1, False, 96, 0.69),
    Form(1, 8, 0, 1, True, 96, 0.77),
    Form(1, 1, 0, 0, False, 64, 0.15),
    Form(GROUPED, 3, 3, 1, False, 128, 0.91),
    Form(GROUPED, 3, 3, 2, False, 128, 0.88),
    Form(GROUPED, 1, 0, 0, False, 80, 0.38),
)


# ---------------------------------------------------------------- problems


def work_of(problem: Problem) -> Work:
    """Return the problem with three axes, its taps in the order of its inputs."""
    axes = 3 - problem.rank
    reaches = [(k - 1) * d for k, d in zip(problem.taps, problem.dilations, strict=True)]
    pads = problem.pads
    if problem.phases:
        pads = tuple(reach - pad for reach, pad in zip(reaches, pads, strict=True))
    return Work(
        dtype=problem.dtype,
        images=problem.batch,
        groups=problem.group,
        channels=problem.channels,
        filters=problem.filters,
        x_extent=(1,) * axes + problem.x_shape[2:],
        y_extent=(1,) * axes + problem.y_shape[2:],
        taps=(1,) * axes + problem.taps,
        strides=(1,) * axes + problem.column_strides,
        dilations=(1,) * axes + problem.dilations,
        pads=(0,) * axes + pads,
    )


def axes_of(problem: Problem, values: Ints) -> list[int]:
    """Return strides of three axes, those added outside being 0."""
    return [0] * (3 - problem.rank) + list(values)


def weights_of(problem: Problem) -> tuple[int, list[int]]:
    """Return where the first tap in the order of its inputs stands in w, and the strides from there."""
    strides = axes_of(problem, problem.w_strides[3:])
    if not problem.phases:
        return 0, strides
    taps = (1,) * (3 - problem.rank) + problem.taps
    return sum((k - 1) * stride for k, stride in zip(taps, strides, strict=True)), [-stride for stride in strides]


def on_arrays(
    problem: Problem, chosen: Variant, blocks: int, fields: Mapping[str, Any], reason: str, shared_bytes: int = 0
) -> Plan:
    """Return the plan of one launch that reads w as it is, if the struct's pointers have the arrays' names."""
    roles = {"x": "x", "w": "w", "y": "y"} | ({} if problem.b_stride is None else {"b": "b"})
    launch = launching.of_blocks(problem.operator, chosen, blocks, fields, roles, shared_bytes)
    return Plan(problem.operator, (launch,), (reason,))
