"""ArgMax, ArgMin, the reductions, Range and STFT, compared with ONNX Runtime, or the definition where it differs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from gpuconv._errors import ArgumentError
from gpuconv.onnx import backend
from tests.harness.device_arrays import device_arrays
from tests.onnx.models import floats
from tests.onnx.networks import both

X = np.float32([[1, 3, 3], [2, 2, -1]])


def run(op_type: str, inputs: list[Any], device: str = "CPU", opset: int = 20, **attributes: Any) -> Any:
    names = ["" if array is None else f"x{at}" for at, array in enumerate(inputs)]
    node = helper.make_node(op_type, names, ["y"], **attributes)
    return backend.run_node(node, [a for a in inputs if a is not None], device, opset_version=opset)[0]


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_places_of_extremes(op_type: str, last: int, keepdims: int, axis: int) -> None:
    (got,), (expected,) = both(op_type, 13, [X], axis=axis, keepdims=keepdims, select_last_index=last)
    np.testing.assert_array_equal(got, expected)


def test_an_extreme_of_nothing_has_no_place() -> None:
    with pytest.raises(ArgumentError, match=r"axis 1 of x.shape=\(2, 0\) has no elements"):
        run("ArgMax", [np.zeros((2, 0), np.float32)], axis=1)


@pytest.mark.parametrize("op_type", ["ReduceL1", "ReduceL2", "ReduceProd", "ReduceSumSquare"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("axes", [None, [1], [0, -1]])
def test_reductions(op_type: str, dtype: Any, axes: Any) -> None:
    x = (floats(3, 4, 5, seed=3) * 3).astype(dtype)
    (got,), (expected,) = both(op_type, 18, [x, None if axes is None else np.array(axes)])
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "start", "limit", "delta"),
    [
        *((np.int64, *bounds) for bounds in ((0, 5, 1), (5, 0, -2), (0, 7, 3), (3, 3, 1), (4, 2, 1), (-7, -1, 4))),
        *((np.float32, *bounds) for bounds in ((0, 2, 0.5), (1, 0, -0.25), (0, 1, 0.4), (1, 2, -1))),
        (np.int16, 32760, 32767, 4),
    ],
)
def test_ranges(dtype: Any, start: float, limit: float, delta: float) -> None:
    (got,), (expected,) = both("Range", 11, [np.array(value, dtype) for value in (start, limit, delta)])
    np.testing.assert_array_equal(got, expected)


def test_every_element_of_a_range_is_rounded_once() -> None:
    """By the specification's formula; a running sum would have an error of 24 ulps."""
    got = run("Range", [np.float32(0), np.float32(100), np.float32(0.1)])
    exact = np.arange(len(got)) * float(np.float32(0.1))
    np.testing.assert_array_equal(got, exact.astype(np.float32))


@pytest.mark.parametrize(
    ("bounds", "message"),
    [((0, 5, 0), "delta is 0"), ((0.0, np.inf, 1.0), "from 0.0 to inf by 1.0 there are inf steps")],
)
def test_ranges_without_an_end(bounds: tuple[float, ...], message: str) -> None:
    dtype = np.float32 if isinstance(bounds[0], float) else np.int64
    with pytest.raises(ArgumentError, match=message):
        run("Range", [np.array(value, dtype) for value in bounds])


@pytest.mark.parametrize("size", [7, 8])
@pytest.mark.parametrize(("parts", "onesided"), [(1, 1), (1, 0), (2, 0)])
@pytest.mark.parametrize("given", ["window", "length", "both"])
def test_frames_are_transformed(size: int, parts: int, onesided: int, given: str) -> None:
    """By the definition of the discrete Fourier transform, in float64."""
    signal, window = floats(2, 23, parts, seed=5), np.abs(floats(size, seed=6))
    inputs = [signal, np.array(3), None if given == "length" else window, None if given == "window" else np.array(size)]
    numbers = signal[..., 0].astype(complex) + (1j * signal[..., 1] if parts == 2 else 0)
    frames = np.stack([numbers[:, at : at + size] for at in range(0, 23 - size + 1, 3)], axis=1)
    frames = frames * (1 if given == "length" else window)
    bins = size // 2 + 1 if onesided else size
    y = frames @ np.exp(-2j * np.pi * np.outer(np.arange(size), np.arange(bins)) / size)
    expected = np.stack([y.real, y.imag], axis=-1)
    got = run("STFT", inputs, onesided=onesided)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, atol=1e-5)
    with device_arrays():
        on_device = run("STFT", inputs, "CUDA", onesided=onesided)
    np.testing.assert_allclose(on_device, expected, atol=1e-5)


def test_a_signal_without_an_axis_of_parts() -> None:
    (got,), (expected,) = both("STFT", 17, [floats(1, 64), np.array(8), np.hanning(16).astype(np.float32)])
    np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([floats(1, 9, 3), np.array(1), None, np.array(4)], r"must be \(N, L, 1\) or \(N, L, 2\), not \(1, 9, 3\)"),
        ([floats(1, 9, 1), np.array(1)], "one must be given"),
        ([floats(1, 9, 1), np.array(1), floats(3), np.array(4)], "frame_length is 4, and window has 3 elements"),
        ([floats(1, 9, 1), np.array(0), floats(3)], "frame_step 0 and frame_length 3 do not fit a signal of 9"),
        ([floats(1, 9, 1), np.array(1), floats(10)], "frame_step 1 and frame_length 10 do not fit"),
        ([floats(1, 9, 2), np.array(1), floats(3)], "onesided must be 0"),
    ],
)
def test_signals_that_do_not_fit_are_refused(inputs: list[Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        run("STFT", inputs)
