"""What the kernels of direct sums share: a problem as ``rows.cu`` and ``channels.cu`` see it, blocks of 128 threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import launching
from gpuconv.cuda.plan.launch import Plan
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
    axes = 3 - problem.rank
    reaches = [(k - 1) * d for k, d in zip(problem.taps, problem.dilations, strict=True)]
    pads = problem.pads
    if problem.phases:
        pads = tuple(reach - pad for reach, pad in zip(reaches, pads, strict=True))
    return DirectView(
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


def even_shares(needed: int) -> list[int]:
    """Return how many threads may stand along an axis so that all have about as much of it: up to each power of two."""
    return sorted({-(-needed // -(-needed // most)) for most in (1, 2, 4, 8, 16, 32, 64, 128)})
