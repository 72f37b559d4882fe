"""Independent implementations agree wherever they are reliable; on small integers, so agreeing means equality."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuconv
from tests.oracle import peers
from tests.oracle.operands import operands
from tests.oracle.oracle import assert_same
from tests.oracle.strategies import Problem, checked, problems

pytestmark = pytest.mark.slow

seeds = st.integers(0, 2**32 - 1)
convolutions = pytest.mark.parametrize("operator", ["conv", "conv_transpose"])
every_operator = pytest.mark.parametrize("operator", ["conv", "conv_transpose", "max_pool"])


def ordinary(operator: str, may_judge: Any, **tamed: Any) -> st.SearchStrategy[Problem]:
    """Return problems of up to three spatial axes, made tame, that a peer can judge."""
    ranks = st.integers(1, 3).flatmap(lambda rank: problems(operator, rank))
    return ranks.map(lambda problem: peers.tame(problem, **tamed)).filter(may_judge)


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not peers.installed(package), reason=f"{package} is not installed")


@needs("onnx")
@every_operator
@checked(6)
@given(data=st.data())
def test_shape_inference_agrees(operator: str, data: Any) -> None:
    problem = data.draw(problems(operator).filter(peers.shape_inference_may_judge))
    assert peers.inferred_shape(problem) == peers.geometry_of(problem).y_shape


@needs("onnxruntime")
@convolutions
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@checked(2)
@given(data=st.data(), seed=seeds)
def test_onnxruntime_sums_alike(operator: str, dtype: str, data: Any, seed: int) -> None:
    problem = data.draw(ordinary(operator, peers.onnxruntime_may_judge))
    arrays = operands(problem, ("integers", "integers", "integers"), seed, np.float32)
    (expected,) = peers.by_onnxruntime(problem, arrays)
    given_arrays = [None if array is None else array.astype(dtype) for array in arrays]
    actual = getattr(gpuconv, operator)(*given_arrays, **problem.attributes)
    assert_same(actual, expected.astype(dtype), bits=False)


@needs("onnxruntime")
@checked(4)
@given(data=st.data(), seed=seeds, kind=st.sampled_from(["ties", "integers", "normal"]))
def test_onnxruntime_finds_the_same_maxima_at_the_same_places(data: Any, seed: int, kind: str) -> None:
    problem = data.draw(ordinary("max_pool", peers.onnxruntime_may_judge))
    arrays = operands(problem, [kind], seed, np.float32)
    expected, expected_indices = peers.by_onnxruntime(problem, arrays, outputs=2)
    y, indices = gpuconv.max_pool(*arrays, **problem.attributes, return_indices=True)
    assert_same(y, expected, bits=False)
    assert_same(indices, expected_indices)


@needs("torch")
@convolutions
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@checked(2)
@given(data=st.data(), seed=seeds)
def test_torch_sums_alike(operator: str, dtype: str, data: Any, seed: int) -> None:
    problem = data.draw(ordinary(operator, peers.torch_may_judge, pads_alike=True))
    arrays = operands(problem, ("integers", "integers", "integers"), seed, dtype)
    (expected,) = peers.by_torch(problem, arrays)
    assert_same(getattr(gpuconv, operator)(*arrays, **problem.attributes), expected, bits=False)


@needs("torch")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@checked(4)
@given(data=st.data(), seed=seeds, kind=st.sampled_from(["ties", "integers", "normal"]))
def test_torch_finds_the_same_maxima_at_the_same_places(dtype: str, data: Any, seed: int, kind: str) -> None:
    problem = data.draw(ordinary("max_pool", peers.torch_may_judge, pads_alike=True))
    arrays = operands(problem, [kind], seed, dtype)
    expected, expected_indices = peers.by_torch(problem, arrays)
    y, indices = gpuconv.max_pool(*arrays, **problem.attributes, return_indices=True)
    assert_same(y, expected, bits=False)
    assert_same(indices, expected_indices)
