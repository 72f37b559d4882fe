"""Many spatial axes on CUDA: axes of one element are dropped, and kernels support a limited number of longer ones."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv import ArgumentError
from gpuconv.cuda import planning
from gpuconv.rules.operators import OPERATORS
from tests.harness import cuda_device, emulated
from tests.harness.emulated import any_cuda
from tests.oracle import gradients, oracle
from tests.oracle.high_ranks import high_problem, integers
from tests.oracle.oracle import assert_same

BOTH = ("conv", "conv_transpose")


@pytest.mark.gpu
@pytest.mark.parametrize("operator", BOTH)
def test_convolutions_on_cuda(operator: str) -> None:
    random = Random(8)
    problem = high_problem(random, operator, 62)
    x, w, b = (integers(random, shape or ()) for shape in problem.shapes)
    value = getattr(oracle, operator)(x, w, b, **problem.attributes).value
    residual, dy = integers(random, value.shape), integers(random, value.shape)
    with any_cuda() as device:
        y = getattr(gpuconv, operator)(x, w, b, residual=residual, activation="relu", **problem.attributes)
        dx = getattr(gpuconv, f"{operator}_input_grad")(dy, w, x.shape, **problem.attributes)
        dw = getattr(gpuconv, f"{operator}_weight_grad")(x, dy, w.shape, **problem.attributes)
    assert value.any()
    assert device.launches or cuda_device.hardware()
    assert (y == np.maximum(value + residual, 0)).all()
    assert (dx == gradients.input_grad(problem, dy, w).value).all()
    assert (dw == gradients.weight_grad(problem, x, dy).value).all()


@pytest.mark.gpu
def test_pools_on_cuda() -> None:
    random = Random(5)
    problem = high_problem(random, "max_pool", 62)
    x = integers(random, problem.x_shape)
    values, places = oracle.max_pool(x, **problem.attributes)
    dy = integers(random, values.shape)
    ones = {"kernel_shape": [1] * 62}
    with any_cuda():
        y, indices = gpuconv.max_pool(x, return_indices=True, **problem.attributes)
        dx = gpuconv.max_pool_grad(dy, places, x.shape, **problem.attributes)
        unpooled = gpuconv.max_unpool(x, np.arange(x.size).reshape(x.shape)[::-1], check_indices=False, **ones)
    assert_same(y, values)
    assert_same(indices, places)
    assert (dx == gradients.max_pool_grad(dy, places, x.shape, 0).value).all()
    assert_same(unpooled, x[::-1])


@pytest.mark.parametrize("operator", [*BOTH, "max_pool", "conv_weight_grad", "max_pool_grad", "max_unpool"])
def test_axes_of_one_element_take_no_other_kernels(operator: str, capsys: pytest.CaptureFixture[str]) -> None:
    ones, x, w = (1,) * 59, (2, 8, 9, 10, 11), (8, 8, 3, 3, 3)
    shapes = [x] if "max" in operator else [x, w]
    few: dict[str, Any] = {"strides": [1, 2, 1], "pads": [0, 1, 0, 0, 1, 0]}
    many: dict[str, Any] = {"strides": [1, *ones, 2, 1], "pads": [0] * 60 + [1] + [0] * 61 + [1, 0]}
    if len(shapes) == 1:
        few["kernel_shape"], many["kernel_shape"] = w[2:], (3, *ones, 3, 3)
    expected = gpuconv.explain(operator, *shapes, **few)
    found = gpuconv.explain(operator, *((*shape[:3], *ones, *shape[3:]) for shape in shapes), **many)
    assert found.launches == expected.launches
    assert capsys.readouterr().out


def test_more_axes_than_parameters_have_room_for(capsys: pytest.CaptureFixture[str]) -> None:
    def explained(rank: int) -> gpuconv.Plan:
        """Explain an output of one element, whose input is cropped, along each of many axes."""
        attributes = {"dilations": [2] * rank, "output_padding": [1] * rank, "pads": [1] * rank + [0] * rank}
        return gpuconv.explain("conv_transpose", (1, 1, *(1,) * rank), (1, 1, *(1,) * rank), **attributes)

    assert max(len(launch.parameters) for launch in explained(51).launches) <= 4096
    sentence = (
        "conv_transpose: 52 spatial axes, those of one element left out, make 4120 bytes of parameters, "
        "more than the 4096 of one CUDA launch; pass NumPy arrays"
    )
    with pytest.raises(ArgumentError, match=f"^{sentence}$"):
        explained(52)
    capsys.readouterr()


def test_a_launch_may_have_all_bytes_of_parameters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem: tuple[Any, ...] = "conv", (1, 2, 9), (2, 2, 3)
    size = max(len(launch.parameters) for launch in gpuconv.explain(*problem).launches)
    monkeypatch.setattr(planning, "_PARAMETER_BYTES", size)
    gpuconv.explain(*problem)
    monkeypatch.setattr(planning, "_PARAMETER_BYTES", size - 1)
    with pytest.raises(ArgumentError, match=f"make {size} bytes of parameters, more than the {size - 1} of one CUDA"):
        gpuconv.explain(*problem)
    capsys.readouterr()


@pytest.mark.parametrize("operator", OPERATORS)
def test_32_axes_fit_into_the_parameters_of_every_call(operator: str, capsys: pytest.CaptureFixture[str]) -> None:
    has_weights = operator in OPERATORS and "pool" not in operator and "bias" not in operator
    for dtype in ("float32", "complex64") if has_weights else ("float32",):
        rank = 31 if dtype == "complex64" else 32
        shapes = [(1, 1, *(1,) * rank)] * (2 if has_weights else 1)
        attributes: dict[str, Any] = {"strides": [2] * rank, "pads": [1] * rank + [0] * rank}
        if "transpose" in operator:
            attributes = {"dilations": [2] * rank, "output_padding": [1] * rank, "pads": attributes["pads"]}
        elif operator == "max_unpool":
            attributes = {"kernel_shape": [2] * rank}
        elif operator.startswith("global"):
            attributes = {}
            shapes = [(1, 1, *(2,) * rank)] if "grad" in operator else shapes
        elif "pool" in operator:
            attributes["kernel_shape"] = [1] * rank
        if "bias" in operator:
            attributes, shapes = {}, [(1, 1, *(2,) * rank)]
        with emulated.indices(wide=True):
            plan = gpuconv.explain(operator, *shapes, dtype=dtype, **attributes)
        assert max(len(launch.parameters) for launch in plan.launches) <= 4096
        assert any("wide" in launch.variant.name for launch in plan.launches)
    capsys.readouterr()
