"""Shared parts of the direct kernels: the problem as they see it, their weights' order, and plans of one launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.conv.problem import Problem, as_conv
from gpuconv.cuda.plan import RANK, Launch, Plan, Refusal
from gpuconv.cuda.plan.strided import filled

THREADS, WARP = 128, 32


def unfit(problem: Problem) -> Refusal | None:
    """Return why the direct kernels reject a problem whatever its windows: an empty sum, or 64-bit indices."""
    if 0 in problem.x_shape or 0 in problem.taps:
        return Refusal("there is nothing to sum")
    return Refusal("it needs 64-bit indices") if problem.wide() else None


def view_of(problem: Problem) -> Problem:
    """Return a Conv, or a ConvTranspose of stride 1, as a Conv with three axes and taps in the order of its inputs."""
    conv = as_conv(problem.lifted)
    assert conv is not None, "ConvTranspose with strides"
    return conv


def weights_of(problem: Problem) -> tuple[int, list[int]]:
    """Return the offset in w of the first tap in input order, and the strides of w from there.

    For ConvTranspose taps are reversed, so the strides are negative.
    """
    strides = filled(problem.w_strides[3:], RANK, 0)
    if not problem.phases:
        return 0, strides
    last = sum((k - 1) * stride for k, stride in zip(problem.lifted.taps, strides, strict=True))
    return last, [-stride for stride in strides]


def on_arrays(
    problem: Problem, kernel: Variant, blocks: int, fields: Mapping[str, Any], reason: str, shared_bytes: int = 0
) -> Plan:
    """Return the plan of a single launch that reads w in place; the struct's pointers are named after the arrays."""
    roles = {"x": "x", "w": "w", "y": "y"} | ({} if problem.b_stride is None else {"b": "b"})
    launch = Launch.of_blocks(problem.operator, kernel, blocks, fields, roles, shared_bytes)
    return Plan(problem.operator, (launch,), (reason,))


def even_shares(needed: int) -> list[int]:
    """Return the numbers of threads, up to each power of two, that divide an axis most evenly."""
    return sorted({-(-needed // -(-needed // most)) for most in (1, 2, 4, 8, 16, 32, 64, 128)})
