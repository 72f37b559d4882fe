"""On a device: gradients, unpooling and complex numbers of random problems, against their definition.

The problems are those of gpu/test_random.py, as many as GPUCONV_GPU_PROBLEMS says.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuconv
from tests.gpu.on_device import computed, drawn, laid_out, returned, seeds
from tests.harness import cuda_device
from tests.oracle import gradients
from tests.oracle.operands import CONV_DTYPES, complex_integers, values
from tests.oracle.oracle import assert_close, assert_same
from tests.oracle.strategies import Problem

pytestmark = [pytest.mark.gpu, cuda_device.sampled(40)]
operators = pytest.mark.parametrize("operator", ["conv", "conv_transpose"])


def there(array: Any, layout: str) -> tuple[Any, Any]:
    return laid_out(array, "contiguous" if layout == "broadcast" else layout)


@seeds
@pytest.mark.parametrize("dtype", CONV_DTYPES, ids=str)
@operators
def test_gradients_are_what_their_definition_says(operator: str, dtype: Any, seed: int) -> None:
    problem, random, layout = drawn(operator, dtype, seed)
    kinds = random.choice((("normal", "normal", "normal"), ("nonfinite", "integers", "integers")))
    shapes = (problem.x_shape, problem.w_shape, gradients.shape_of_result(problem))
    pairs = [
        there(values(kind, seed + i, s, dtype), layout) for i, (kind, s) in enumerate(zip(kinds, shapes, strict=True))
    ]
    (x, here_x), (w, here_w), (dy, here_dy) = pairs
    arithmetic = "tensor cores" if dtype.itemsize == 2 else "ieee"
    (dx,) = _computed(problem, "input", (dy, w, problem.x_shape), seed)
    assert_close(dx, gradients.input_grad(problem, here_dy, here_w), dtype, arithmetic)
    (dw,) = _computed(problem, "weight", (x, dy, problem.w_shape), seed)
    assert_close(dw, gradients.weight_grad(problem, here_x, here_dy), dtype)
    (db,) = returned(getattr(gpuconv, f"{operator}_bias_grad")(dy))
    assert_close(db, gradients.bias_grad(here_dy), dtype)


def _computed(problem: Problem, of: str, arrays: tuple[Any, ...], seed: int) -> list[Any]:
    call = Problem(f"{problem.operator}_{of}_grad", problem.x_shape, problem.w_shape, None, problem.attributes)
    return computed(call, list(arrays), seed)


@seeds
@operators
def test_complex_sums_agree_with_those_of_the_cpu(operator: str, seed: int) -> None:
    """Of integers, so that nothing is rounded."""
    problem, _, layout = drawn(operator, "complex", seed)
    dtype = ("complex64", "complex128")[seed % 2]
    (x, here_x), (w, here_w) = (
        there(complex_integers(seed + i, s, dtype), layout) for i, s in enumerate(problem.shapes[:2]) if s
    )
    (y,) = computed(problem, [x, w], seed)
    expected = getattr(gpuconv, operator)(here_x, here_w, **problem.attributes)
    assert_same(
        np.ascontiguousarray(y).view(y.real.dtype), np.ascontiguousarray(expected).view(y.real.dtype), bits=False
    )


@seeds
@pytest.mark.parametrize("dtype", CONV_DTYPES, ids=str)
def test_maxima_get_gradients_and_go_back(dtype: Any, seed: int) -> None:
    problem, _, layout = drawn("max_pool", dtype, seed)
    x = values("ties", seed, problem.x_shape, dtype)
    y, indices = gpuconv.max_pool(x, return_indices=True, **problem.attributes)
    (dy, here_dy), (places, here_places) = (
        there(values("integers", seed, y.shape, dtype), layout),
        there(indices, layout),
    )
    (dx,) = returned(gpuconv.max_pool_grad(dy, places, x.shape, **problem.attributes))
    order = problem.attributes.get("storage_order", 0)
    assert_close(dx, gradients.max_pool_grad(here_dy, here_places, x.shape, order), dtype)
    drawn_places = np.random.default_rng(seed).integers(-1, max(1, y.size), y.shape)
    kernel = [1] * problem.rank
    (back,) = returned(gpuconv.max_unpool(dy, there(drawn_places, layout)[0], kernel_shape=kernel))
    assert_same(back, gradients.max_unpool(here_dy, drawn_places, y.shape, y.shape))


def test_an_index_out_of_range_is_found_on_the_device() -> None:
    dy, indices = (gpuconv.to_device(a) for a in (np.ones((1, 2, 3), np.float32), np.array([[[0, 1, 6], [-2, 3, 4]]])))
    with pytest.raises(gpuconv.ArgumentError, match=r"indices hold 6 at \(0, 0, 2\)"):
        gpuconv.max_pool_grad(dy, indices, (1, 2, 3), kernel_shape=[1])
