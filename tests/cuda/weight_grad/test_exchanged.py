"""The gradient of weights with x and dy exchanged: the same sums, from fuller tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.offers import Candidate
from gpuconv.cuda.weight_grad import exchanged, tiles
from gpuconv.rules import dtypes
from tests.emulator import emulated_cuda
from tests.harness.emulated import every_candidate
from tests.harness.offered import candidates
from tests.harness.plans import HOPPER, weight_grad
from tests.oracle import gradients
from tests.oracle.operands import LAYOUTS, values
from tests.oracle.oracle import assert_close
from tests.oracle.strategies import Problem


def test_filters_are_channels_and_taps_come_in_reverse_order() -> None:
    # x (2, 5, 9, 8), w (3, 5, 4, 2): y (2, 3, 6, 9)
    given = weight_grad((2, 5, 9, 8), (3, 5, 4, 2), "float32", dilations=[2, 1], pads=[1, 1, 2, 1])
    other = exchanged.of(given)
    assert other is not None
    g = other.geometry
    assert (g.x_shape, g.y_shape, g.w_shape) == ((2, 3, 6, 9), (2, 5, 9, 8), (5, 3, 4, 2))
    assert (g.strides, g.dilations, g.pads_begin, g.group) == ((1, 1), (2, 1), (3 * 2 - 1, 1 * 1 - 1), 1)
    assert (other.x_strides, other.dy_strides) == (given.dy_strides, given.x_strides)
    assert (given.w_strides, other.w_strides) == ((40, 8, 2, 1), (8, 40, -2, -1))
    assert (given.roles, other.roles) == (("x", "dy"), ("dy", "x"))


def test_the_result_is_written_from_its_last_tap() -> None:
    given = weight_grad((2, 5, 9, 8), (3, 5, 4, 2), "float16", pads=[1] * 4)
    other = exchanged.of(given)
    assert other is not None
    for candidate in candidates(tiles, other, HOPPER):
        plan = exchanged.candidate(given, candidate).make()
        assert plan.views == (("y from its last tap", "y", 2 * (3 * 2 + 1)),)
        assert {role for role, _ in plan.launches[-1].pointers} == {"workspace", "y from its last tap"}
        assert {role for launch in plan.launches for role, _ in launch.pointers} >= {"x", "dy"}
        assert plan.reasons[0].startswith("x and dy are exchanged")
        copied = {reason.split()[0] for reason in plan.reasons if "is copied first" in reason}
        assert {space.role for space in plan.spaces} == {"workspace", *(f"{role}_last" for role in copied)}


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "attributes"),
    [
        ((2, 4, 9), (4, 2, 3), {"group": 2}),
        ((2, 4, 9), (4, 4, 3), {"strides": [2]}),
        ((2, 4, 9), (4, 4, 3), {"pads": [3, 0]}),
        ((0, 4, 9), (4, 4, 3), {}),
        ((2, 4, 0), (4, 4, 3), {"pads": [2, 2]}),
    ],
)
def test_groups_strides_and_more_padding_than_taps_reach_are_not_exchanged(
    x_shape: Any, w_shape: Any, attributes: Any
) -> None:
    given = weight_grad(x_shape, w_shape, "float32", **attributes)
    assert exchanged.of(given) is None
    assert exchanged.of(weight_grad((2, 4, 9), (4, 4, 3), "float32", pads=[2, 5])) is not None
    assert exchanged.of(weight_grad((2, 4, 3), (4, 4, 3), "float32", strides=[2])) is not None  # with a single output
    assert exchanged.of(replace(weight_grad((2, 4, 9), (4, 4, 3), "float32"), result="complex64")) is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_few_filters_of_many_channels_are_summed_by_it(dtype: str) -> None:
    """As in the last layer of a network that makes images."""
    plan = gpuconv.explain("conv_weight_grad", (8, 64, 256, 256), (3, 64, 7, 7), dtype=dtype, pads=[3] * 4)
    assert plan.kernel.endswith("_exchanged")
    turned = gpuconv.explain("conv_weight_grad", (8, 3, 256, 256), (64, 3, 7, 7), dtype=dtype, pads=[3] * 4)
    assert not turned.kernel.endswith("_exchanged")


def _problem(random: Random) -> Problem:
    rank = random.choice((1, 2, 2, 3))
    taps = [random.choice((1, 2, 3, 5)) for _ in range(rank)]
    dilations = [random.choice((1, 1, 2)) for _ in range(rank)]
    pads = [random.randint(0, (k - 1) * d) for k, d in zip(taps, dilations, strict=True)]
    ends = [random.randint(0, k) for k in taps]
    extents = [(k - 1) * d + random.randint(1, 40 // rank**2) for k, d in zip(taps, dilations, strict=True)]
    channels, filters = random.choice((1, 5, 16, 40)), random.choice((1, 2, 3, 8, 20))
    attributes = {"dilations": dilations, "pads": pads + ends}
    return Problem("conv", (random.randint(1, 3), channels, *extents), (filters, channels, *taps), None, attributes)


@pytest.mark.emulator
@pytest.mark.kernels("weight_grad/plain.cu", "weight_grad/few.cu", "weight_grad/tiles.cu", "weight_grad/rows.cu")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", dtypes.CONV_DTYPES)
def test_every_kernel_makes_the_same_sums(dtype: str, seed: int) -> None:
    random = Random(f"{dtype} {seed}")
    problem = _problem(random)
    shapes = problem.x_shape, gradients.shape_of_result(problem)
    x, dy = (values("integers", number, shape, dtype) for number, shape in enumerate(shapes))
    x.reshape(-1)[random.randrange(x.size)] = dy.reshape(-1)[random.randrange(dy.size)] = np.inf
    x, dy = (LAYOUTS[random.choice(("contiguous", "channels last", "reversed"))](array) for array in (x, dy))
    exact, names = gradients.weight_grad(problem, x, dy), list[str]()
    assert problem.w_shape is not None
    for turn in every_candidate(names):
        out = LAYOUTS[random.choice(("contiguous", "reversed", "strided"))](np.zeros(problem.w_shape, dtype))
        with turn, emulated_cuda(seed=seed):
            dw = gpuconv.conv_weight_grad(x, dy, problem.w_shape, **problem.attributes, out=out)
        assert_close(dw, exact, dtype, "tensor cores" if dtype in ("float16", "bfloat16") else "ieee")
    assert any(name.endswith("_exchanged") for name in names)


@pytest.mark.emulator
@pytest.mark.kernels("weight_grad/tiles.cu")
@pytest.mark.parametrize("precision", ["tf32", "3xtf32"])
def test_float32_by_tensor_cores(precision: Any) -> None:
    problem = Problem("conv", (2, 24, 19, 17), (3, 24, 3, 3), None, {"pads": [1] * 4})
    x, dy = (values("integers", 0, shape, "float32") for shape in (problem.x_shape, (2, 3, 19, 17)))

    def pick(found: Sequence[Candidate]) -> Candidate:
        return next(one for one in found if f"_{precision}_" in one.name and one.name.endswith("_exchanged"))

    with offers.picking(pick), emulated_cuda() as emulated:
        dw = gpuconv.conv_weight_grad(x, dy, (3, 24, 3, 3), pads=[1] * 4, precision=precision)
    assert "weight_grad/tiles.cu" in {launch.variant.source for launch in emulated.launches}
    assert_close(dw, gradients.weight_grad(problem, x, dy), "float32", precision)
