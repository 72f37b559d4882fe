"""The gradient of depthwise weights down rows: when, how walks and taps are dealt, and right in every form and layout."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.cuda.call.prepared import contiguous_strides
from gpuconv.cuda.plan.limits import representative
from gpuconv.cuda.weight_grad import rows
from gpuconv.cuda.weight_grad.problem import WeightGradProblem
from gpuconv.cuda.weight_grad.rows import FORMS, RowForm, RowTile, RowView
from gpuconv.rules import geometry as geometries
from tests.emulator import emulated_cuda
from tests.harness.emulated import architecture, preferred
from tests.harness.offered import candidates, why_not
from tests.harness.plans import fields, strides
from tests.oracle import gradients
from tests.oracle.operands import CONV_DTYPES, CONV_KINDS, LAYOUTS, values
from tests.oracle.oracle import assert_close
from tests.oracle.strategies import Problem

LIMITS = representative("sm_90a").limits
Ints = tuple[int, ...]

over_forms = pytest.mark.parametrize("form", FORMS, ids=str)


def made(x: Ints, w: Ints, dtype: str = "float32", layout: str = "NCHW", **attributes: Any) -> WeightGradProblem:
    geometry = geometries.conv(x, w, **attributes)
    lie = strides(x, layout), strides(geometry.y_shape, layout), contiguous_strides(w)
    return WeightGradProblem(geometry, dtype, *lie, dtype)


# ---------------------------------------------------------------- in the emulator


def some(random: Random) -> Problem:
    """A random problem of one channel a group; extents that leave outputs."""
    rank = random.choice((1, 2, 2, 3))
    group, filters = random.choice((1, 2, 3, 8, 12, 40)), random.choice((1, 1, 1, 2, 3))
    taps = [random.choice((1, 2, 3, 5, 7, 9)) for _ in range(rank)]
    if rank == 1:
        taps = [random.choice((1, 4, 17, 31))]
    steps = [random.choice((1, 1, 2, 3)) for _ in range(rank)]
    dilations = [random.choice((1, 1, 2, 3)) for _ in range(rank)]
    ends = [[random.randrange((k - 1) * d + 2) for k, d in zip(taps, dilations, strict=True)] for _ in range(2)]
    least = [max(1, (k - 1) * d + 1 - a - b + s) for k, d, s, a, b in zip(taps, dilations, steps, *ends, strict=True)]
    extents = [n + random.randrange({1: 60, 2: 20, 3: 5}[rank]) for n in least]
    attributes = {"group": group, "strides": steps, "dilations": dilations, "pads": [*ends[0], *ends[1]]}
    return Problem("conv", (random.choice((1, 2, 3)), group, *extents), (group * filters, 1, *taps), None, attributes)


def check(problem: Problem, kernel: str, x: Any, dy: Any, dtype: Any, **options: Any) -> Any:
    """Compute it by the kernel that is meant, and by no other."""
    with preferred(kernel), emulated_cuda(**options) as emulated:
        dw = gpuconv.conv_weight_grad(x, dy, problem.w_shape, **problem.attributes)
    assert emulated.launches[0].variant.name == kernel
    assert_close(dw, gradients.weight_grad(problem, x, dy), dtype)
    return dw


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", CONV_DTYPES, ids=str)
@over_forms
def test_random_problems_of_every_form(form: RowForm, dtype: Any) -> None:
    random = Random(f"{form} {dtype}")
    for number in range(4):
        problem = some(random)
        kinds = CONV_KINDS[(number + random.randrange(2) * 6) % len(CONV_KINDS)]
        shapes = problem.x_shape, gradients.shape_of_result(problem)
        layout = random.choice([one for one in LAYOUTS if one != "unaligned"])
        arrays = [
            LAYOUTS[layout](values(kind, number + i, shape, dtype))
            for i, (shape, kind) in enumerate(zip(shapes, kinds[:2], strict=True))
        ]
        multiprocessors = random.choice((None, 1, 2, 3))
        options = {"limits_of": architecture(dtype, 3), "seed": number, "multiprocessors": multiprocessors}
        check(problem, rows.variant(str(dtype), form).name, *arrays, dtype, **options)
