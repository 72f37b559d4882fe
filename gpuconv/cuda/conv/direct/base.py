"""What the kernels of direct sums share: a problem as ``rows.cu`` and ``channels.cu`` see it, blocks of 128 threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan.launch import Launch, Plan
from gpuconv.cuda.plan.numbers import RANK
from gpuconv.cuda.plan.strided import filled
from gpuconv.rules.geometry import Ints

THREADS, WARP = 128, 32


@dataclass(frozen=True, slots=True)
class DirectView:
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


def view_of(problem: Problem) -> DirectView:
    """Return the problem with three axes, its taps in the order of its inputs."""
    lifted = problem.lifted
    pads = lifted.pads
    if problem.phases:
        axes = zip(lifted.taps, lifted.dilations, pads, strict=True)
        pads = tuple((k - 1) * dilation - pad for k, dilation, pad in axes)
    return DirectView(
        dtype=problem.dtype,
        images=problem.batch,
        groups=problem.group,
        channels=problem.channels,
        filters=problem.filters,
        x_extent=lifted.x_shape[2:],
        y_extent=lifted.y_shape[2:],
        taps=lifted.taps,
        strides=lifted.column_strides,
        dilations=lifted.dilations,
        pads=pads,
    )


def weights_of(problem: Problem) -> tuple[int, list[int]]:
    """Return where the first tap in the order of its inputs stands in w, and the strides from there."""
    strides = filled(problem.w_strides[3:], RANK, 0)
    if not problem.phases:
        return 0, strides
    last = sum((k - 1) * stride for k, stride in zip(problem.lifted.taps, strides, strict=True))
    return last, [-stride for stride in strides]


def on_arrays(
    problem: Problem, kernel: Variant, blocks: int, fields: Mapping[str, Any], reason: str, shared_bytes: int = 0
) -> Plan:
    """Return the plan of one launch that reads w as it is, if the struct's pointers have the arrays' names."""
    roles = {"x": "x", "w": "w", "y": "y"} | ({} if problem.b_stride is None else {"b": "b"})
    launch = Launch.of_blocks(problem.operator, kernel, blocks, fields, roles, shared_bytes)
    return Plan(problem.operator, (launch,), (reason,))


def even_shares(needed: int) -> list[int]:
    """Return how many threads may stand along an axis so that all have about as much of it: up to each power of two."""
    return sorted({-(-needed // -(-needed // most)) for most in (1, 2, 4, 8, 16, 32, 64, 128)})
