"""Differences between ONNX's own shape inference and the suite, and their causes.

The functions repeat the arithmetic of `onnx.shape_inference` of the version `ONNX`, including its faults, so that the
suite does not depend on the installed version. A test compares them with that version for every test of the suite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuconv.judge import rulings
from gpuconv.judge.problems import Problem
from gpuconv.judge.readings import DROPPED_BY_TEXT, extents, mode_of, per_axis

ONNX = "1.23.2"
UNCLEAR = "text unclear"  # the specification can be read in both ways: the status is "disputed", and both are carried
BUG = "onnx bug"  # the specification's text is clear, and stands


def difference(problem: Problem, shape: Sequence[int]) -> dict[str, Any] | None:
    """Return the shape that ONNX infers and the class of the difference; None where it infers the same, or nothing.

    An inferred shape with fewer axes than the output, and SAME together with ceil_mode, are bugs of ONNX: the text
    gives `output_shape`, and ceil(n / stride). All other differences are readings of an unclear text: divisions of
    negative numbers, windows in the end padding before opset 22, SAME of ConvTranspose, auto_pad together with pads.
    """
    found = inferred(problem)
    if found is None or found == list(shape):
        return None
    same_pool = problem.case.op.endswith("pool") and mode_of(problem).startswith("SAME")
    bug = len(found) != len(shape) or (same_pool and bool(problem.case.attributes.get("ceil_mode")))
    return {"shape": found, "class": BUG if bug else UNCLEAR}


def is_valid(problem: Problem) -> bool:
    """Return whether a strict checker accepts the model; if not, a target may refuse it.

    It does not where the specification forbids the model (:data:`gpuconv.judge.rulings.INVALID`). Nor does
    ``onnx.checker.check_model(full_check=True)`` where onnx infers fewer axes than the output has: it stops at the
    first axis of ConvTranspose whose `output_shape` is below the input.
    """
    found = inferred(problem)
    return problem.case.name not in rulings.INVALID and (found is None or len(found) == len(problem.case.x_shape))


def inferred(problem: Problem) -> list[int] | None:
    """Return the shape of Y that onnx infers, which may lack axes; None if it infers none."""
    case = problem.case
    if case.op == "max_unpool":
        return None if "output_shape" in case.attributes else _unpooled(problem)
    spatial = case.x_shape[2:]
    if case.op == "conv_transpose":
        assert case.w_shape is not None
        return [case.x_shape[0], case.w_shape[1] * case.attributes.get("group", 1), *_transposed(problem, spatial)]
    channels = case.x_shape[1] if case.w_shape is None else case.w_shape[0]
    return [case.x_shape[0], channels, *(_windows(problem, a) for a in range(len(spatial)))]


def _same_total(n: int, extent: int, stride: int) -> int:
    rest = n % stride
    return max(0, extent - (rest or stride))


def _windows(problem: Problem, a: int) -> int:
    n, extent, stride = problem.case.x_shape[2 + a], extents(problem)[a], per_axis(problem, "strides")[a]
    pads, ceil = per_axis(problem, "pads", 0), problem.case.attributes.get("ceil_mode", 0)
    begin, around = pads[a], pads[a] + pads[len(pads) // 2 + a]
    if mode_of(problem).startswith("SAME") and "pads" not in problem.case.attributes:
        begin = around = _same_total(n, extent, stride)
    moves = n + around - extent
    count = 1 + (-(-moves // stride) if ceil else _towards_zero(moves, stride))
    dropped = ceil and problem.opset >= DROPPED_BY_TEXT and (count - 1) * stride >= n + begin
    return count - dropped


def _towards_zero(number: int, divisor: int) -> int:
    return number // divisor if number >= 0 else -(-number // divisor)


def _transposed(problem: Problem, spatial: Sequence[int]) -> list[int]:
    rank, wanted = len(spatial), problem.case.attributes.get("output_shape")
    if wanted is not None:
        sizes: list[int] = []
        for n, size in zip(spatial, wanted, strict=False):  # N and C are refused
            if size < n:
                return sizes
            sizes.append(size)
        return sizes
    pads, strides = per_axis(problem, "pads", 0), per_axis(problem, "strides")
    more, reach = per_axis(problem, "output_padding", 0), extents(problem)
    same = mode_of(problem).startswith("SAME")
    totals = [max(0, reach[a] - strides[a]) if same else pads[a] + pads[rank + a] for a in range(rank)]
    return [strides[a] * (spatial[a] - 1) + more[a] + reach[a] - totals[a] for a in range(rank)]


def _unpooled(problem: Problem) -> list[int]:
    """Return the spatial sizes that the attributes give for the windows of the MaxPool whose Indices are unpooled."""
    sizes = []
    strides, pads, reach = per_axis(problem, "strides"), per_axis(problem, "pads", 0), extents(problem)
    for a, n in enumerate(problem.case.x_shape[2:]):
        around = pads[a] + pads[len(strides) + a]
        sizes.append(strides[a] * ((n + around - reach[a]) // strides[a]) + reach[a] - around)
    return [*problem.case.x_shape[:2], *sizes]
