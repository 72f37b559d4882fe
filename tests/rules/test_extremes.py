"""Attributes and shapes far beyond the size of any array: only existing elements count, in little time and memory."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.rules import dtypes

pytestmark = pytest.mark.slow

X = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 8)
HUGE = 2**62


def _ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def test_a_stride_past_the_input_gives_one_output() -> None:
    assert gpuconv.conv(X, _ones(1, 1, 3), strides=[HUGE]).tolist() == [[[6.0]]]
    y, indices = gpuconv.max_pool(X, kernel_shape=[3], strides=[HUGE], return_indices=True)
    assert (y.tolist(), indices.tolist()) == ([[[3.0]]], [[[2]]])


def test_the_dilation_of_a_single_tap_does_not_matter() -> None:
    for strides in ([1], [2]):
        expected = X[..., :: strides[0]].tolist()
        assert gpuconv.conv(X, _ones(1, 1, 1), dilations=[HUGE], strides=strides).tolist() == expected
        assert gpuconv.max_pool(X, kernel_shape=[1], dilations=[HUGE], strides=strides).tolist() == expected
    assert gpuconv.conv_transpose(X, _ones(1, 1, 1), dilations=[HUGE]).tolist() == X.tolist()


def test_a_tap_that_dilation_carries_into_the_padding_adds_nothing() -> None:
    y = gpuconv.conv(X, _ones(1, 1, 2), dilations=[HUGE], pads=[HUGE, 0])
    assert y.tolist() == X.tolist()


def test_outputs_between_far_strides_are_not_computed() -> None:
    y = gpuconv.conv_transpose(X[..., :1], _ones(1, 1, 2), strides=[HUGE], pads=[0, 0])
    assert y.tolist() == [[[1.0, 1.0]]]


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64"])
def test_a_window_of_2_to_the_40_taps_holds_what_exists(dtype: str) -> None:
    x = X.astype(dtype)
    attributes: dict[str, Any] = {"kernel_shape": [2**40], "pads": [2**40, 2**39], "strides": [2**39]}
    y, indices = gpuconv.max_pool(x, return_indices=True, **attributes)
    assert indices.tolist() == [[[-1, 7]]]
    assert y[0, 0, 1] == 8
    assert gpuconv.max_pool(x, **attributes).tolist() == y.tolist()


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64"])
def test_a_window_that_spans_2_to_the_33_elements_reads_its_taps_only(dtype: str) -> None:
    x = np.broadcast_to(np.ones((), dtype), (1, 1, 2**34))
    y, indices = gpuconv.max_pool(x, kernel_shape=[2], dilations=[2**33], strides=[2**31], return_indices=True)
    assert y.tolist() == [[[1, 1, 1, 1]]]
    assert indices.tolist() == [[[0, 2**31, 2**32, 3 * 2**31]]]


def test_a_stride_of_2_to_the_30_reads_its_outputs_only() -> None:
    x = np.broadcast_to(np.float32(3), (1, 1, 2**33))
    assert gpuconv.conv(x, _ones(1, 1, 1), strides=[2**30]).tolist() == [[[3.0] * 8]]


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "float32", "float64"])
def test_a_window_in_parts_gives_the_same_bits(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ml_dtypes")
    position = np.arange(2 * 6 * 5 * 4)
    x = (position * 7919 % 11).astype(dtype).reshape(1, 2, 6, 5, 4)  # eleven values: many ties
    attributes: dict[str, Any] = {"kernel_shape": [4, 3, 5], "pads": [1, 2, 3, 2, 0, 3], "dilations": [2, 1, 1]}
    whole = gpuconv.max_pool(x, return_indices=True, **attributes)
    monkeypatch.setattr(import_module("gpuconv.cpu.pool.max_pool"), "_TILE_BYTES", 56 * 5)  # five inputs a block
    parts = gpuconv.max_pool(x, return_indices=True, **attributes)
    assert [a.tobytes() for a in parts] == [a.tobytes() for a in whole]
    assert gpuconv.max_pool(x, **attributes).tobytes() == whole[0].tobytes()


@pytest.mark.parametrize("dtype", dtypes.MAX_POOL_DTYPES)
def test_a_window_that_holds_nothing_gives_the_least_number_of_its_type(dtype: str) -> None:
    limits = pytest.importorskip("ml_dtypes").finfo if dtype not in ("int8", "uint8") else np.iinfo
    least = limits(np.dtype(dtype)).min
    x = np.ones((1, 1, 2), dtype)
    y, indices = gpuconv.max_pool(x, kernel_shape=[1], pads=[1, 1], dilations=[1], return_indices=True)
    assert y[0, 0].tolist() == [least, 1, 1, least]
    assert indices[0, 0].tolist() == [-1, 0, 1, -1]


@pytest.mark.parametrize("dtype", [*dtypes.MAX_POOL_DTYPES, *dtypes.COMPLEX_DTYPES])
def test_an_element_type_has_numpy_s_size(dtype: str) -> None:
    pytest.importorskip("ml_dtypes")
    assert dtypes.entry(dtype).itemsize == np.dtype(dtype).itemsize
