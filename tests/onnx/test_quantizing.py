"""Quantization: by definition, compared with ONNX Runtime, and with the same bits on a device."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import gpuconv
from gpuconv.onnx import backend
from gpuconv.onnx.operators import quantizing
from tests.harness.device_arrays import device_arrays
from tests.onnx.models import floats, model, run, value
from tests.onnx.networks import both, onnxruntime_run

pytestmark = pytest.mark.slow

INTEGERS = {
    **{kind: (int(np.iinfo(kind).min), int(np.iinfo(kind).max)) for kind in ("int8", "uint8", "int16", "uint16")},
    "int4": (-8, 7),
    "uint4": (0, 15),
    "int2": (-2, 1),
    "uint2": (0, 3),
}
INF, NAN = float("inf"), float("nan")


def agrees(op_type: str, opset: int, inputs: list[Any], outputs: int = 1, **attributes: Any) -> None:
    """Compare with ONNX Runtime, and a device's results with the host's."""
    inputs = [array if array is None else np.asarray(array) for array in inputs]
    got, expected = both(op_type, opset, inputs, outputs, **attributes)
    with device_arrays():
        moved = run(op_type, inputs, opset, outputs=outputs, device="CUDA", **attributes)
    for actual, wanted, there in zip(got, expected, [moved] if outputs == 1 else moved, strict=True):
        np.testing.assert_array_equal(actual, wanted)
        np.testing.assert_array_equal(there, actual)


@pytest.mark.parametrize("kind", INTEGERS)
def test_integers_are_rounded_to_even_and_saturated(kind: str) -> None:
    low, high = INTEGERS[kind]
    dtype = np.dtype(kind if kind[-1] in "68" else getattr(ml_dtypes, kind))
    x = np.float32([*np.arange(-9, 9, 0.25), 1e4, -1e4, 7e4, -7e4, 1e30, -1e30, INF, -INF])
    for zero in {low, high, 1}:
        expected = [max(low, min(high, zero + round(Fraction(one) / 2))) if abs(one) < INF else 0 for one in x.tolist()]
        expected[-2:] = [high, low]
        for device in ("CPU", "CUDA"):
            with device_arrays():
                y = run("QuantizeLinear", [x, np.float32(2), np.array(zero, dtype)], 25, device=device)
                assert (y.dtype, y.astype(int).tolist()) == (dtype, expected)
                back = run("DequantizeLinear", [y, np.float32(2), np.array(zero, dtype)], 25, device=device)
            assert (back.dtype, back.tolist()) == (np.float32, [2.0 * (one - zero) for one in expected])


def test_nan_becomes_the_least_integer() -> None:
    x = np.float32([NAN, 1, INF, -INF, NAN])
    for zero in (np.uint8(10), np.int8(10), np.int16(10), np.uint16(10)):
        agrees("QuantizeLinear", 21, [x, np.float32(1), zero])


@pytest.mark.parametrize("opset", [10, 13, 19, 21, 23, 24, 25, 28])
def test_opsets_agree(opset: int) -> None:
    """One scale for all elements has the same effect at every opset; ONNX Runtime supports the first few."""
    x, scale, zero = 100 * floats(3, 4), np.float32(0.7), np.uint8(100)
    y = np.clip(np.rint(x / scale) + 100, 0, 255)
    np.testing.assert_array_equal(run("QuantizeLinear", [x, scale, zero], opset), y)
    np.testing.assert_array_equal(run("QuantizeLinear", [x, scale], opset), np.clip(np.rint(x / scale), 0, 255))
    back = run("DequantizeLinear", [y.astype(np.uint8), scale, zero], opset)
    np.testing.assert_array_equal(back, (y.astype(np.float32) - 100) * scale)
    if opset <= 21:
        agrees("QuantizeLinear", opset, [x, scale, zero])


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("axis", [-3, -1, 0, 1])
def test_a_scale_for_all_or_along_an_axis_or_for_each_block(axis: int, kind: str) -> None:
    x, rng = 50 * floats(4, 5, 6), np.random.default_rng(0)
    shapes = [((), {}), ((x.shape[axis],), {"axis": axis})]
    for block in (1, 2, 4, 7):
        blocked = list(x.shape)
        blocked[axis] = -(-blocked[axis] // block)
        shapes.append((tuple(blocked), {"axis": axis, "block_size": block}))
    for shape, attributes in shapes:
        scale = rng.uniform(0.1, 1, shape).astype(np.float32)
        zero = rng.integers(*INTEGERS[kind], shape, endpoint=True).astype(kind)
        for scales in (scale, scale.astype(np.float16)):
            of_x = x.astype(scales.dtype)
            agrees("QuantizeLinear", 21, [of_x, scales, zero], **attributes)
            agrees("QuantizeLinear", 21, [of_x, scales], **attributes)
            agrees(
                "DequantizeLinear",
                21,
                [rng.integers(*INTEGERS[kind], x.shape).astype(kind), scales, zero],
                **attributes,
            )


def test_many_elements_are_computed_in_blocks() -> None:
    x, scale, zero = floats(3, 300, 301), np.float32(0.01), np.int8(3)
    x[1, 2, 3] = NAN
    agrees("QuantizeLinear", 13, [x, scale, zero])
    agrees("DequantizeLinear", 13, [np.random.default_rng(0).integers(-128, 128, x.shape).astype(np.int8), scale, zero])
    agrees("DynamicQuantizeLinear", 11, [x], 3)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_bytes_with_scales_along_an_axis_are_computed_some_rows_at_a_time(
    axis: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantizing, "_BLOCK", 18)
    draw = np.random.default_rng(axis)
    x, zero = (draw.integers(*INTEGERS[kind], size, endpoint=True).astype(kind) for size in ((5, 5, 5), 5))
    scale, place = 2.0 ** draw.integers(-3, 4, 5), tuple(5 if at == axis else 1 for at in range(3))
    for zeros in (zero, np.zeros_like(zero), None):
        expected = (x - (0 if zeros is None else zeros.astype(int).reshape(place))) * scale.reshape(place)
        y = run("DequantizeLinear", [x, scale.astype(np.float32), zeros], 13, axis=axis)
        np.testing.assert_array_equal(y, expected)


def test_large_filters_stay_bytes_where_one_convolution_alone_uses_them() -> None:
    size = (257, 1024, 1, 1)  # the smallest multiple of 1024 with more than 2 ** 18 elements
    draw = np.random.default_rng(0)
    x, w = draw.integers(-2, 3, (1, 1024, 2, 2)).astype(np.float32), draw.integers(-2, 3, size).astype(np.int8)
    scale = np.full(257, 0.5, np.float32)
    for uses, kinds in ((1, {"int8"}), (2, {"float32"})):
        nodes = [helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=0)]
        nodes += [helper.make_node("Conv", ["x", "w"], [f"y{at}"]) for at in range(uses)]
        outputs = [value(f"y{at}", shape=4) for at in range(uses)]
        rep = backend.prepare(model(nodes, [value("x", shape=4)], outputs, 13, {"q": w, "s": scale}))
        large = [array for array in rep._evaluator.rt_inits_.values() if array.size == w.size]
        assert {array.dtype.name for array in large} == kinds
        expected = np.einsum("mc,nchw->nmhw", w[:, :, 0, 0].astype(np.float64), x) / 2
        for _ in range(2):
            for y in rep.run([x]):
                np.testing.assert_array_equal(y, expected)


def test_the_scale_s_type_is_that_of_the_quotient_since_opset_23() -> None:
    """Before, and in ONNX Runtime, the quotient of float16 numbers has float32."""
    x, scale = (30 * floats(4000)).astype(np.float16), np.float16(0.37)
    narrow = np.clip(np.rint((x / scale).astype(np.float32)), -128, 127)
    wide = np.clip(np.rint(x.astype(np.float32) / np.float32(scale)), -128, 127)
    assert (narrow != wide).any()
    for opset, attributes, expected in (
        (21, {}, wide),
        (23, {}, narrow),
        (23, {"precision": TensorProto.FLOAT}, wide),
        (23, {"precision": TensorProto.FLOAT16}, narrow),
    ):
        y = run("QuantizeLinear", [x, scale], opset, output_dtype=TensorProto.INT8, **attributes)
        np.testing.assert_array_equal(y, expected)
    rounded = run(
        "QuantizeLinear", [x.astype(np.float32), np.float32(scale), np.int8(0)], 25, precision=TensorProto.FLOAT16
    )
    np.testing.assert_array_equal(rounded, narrow)


def test_integers_are_divided() -> None:
    x = np.array([2**24 + 1, -7, 5, 3], np.int32)
    assert run("QuantizeLinear", [x, np.float32(2), np.int16(0)], 13).tolist() == [32767, -4, 2, 2]
    assert run("QuantizeLinear", [x, np.int32(2**20), np.int16(0)], 25).tolist() == [16, 0, 0, 0]
    for zero in (None, np.int32(0), np.int32(1)):
        agrees("DequantizeLinear", 10, [np.array([1, 2, 2**31 - 1, -(2**24) - 1], np.int32), np.float32(0.1), zero])


# Numbers, their values in each type with saturation, and without it where that differs.
FLOATS: dict[str, list[tuple[float, float, float]]] = {
    "float8_e4m3fn": [
        (449, 448, 448),
        (1e9, 448, NAN),
        (INF, 448, NAN),
        (-INF, -448, NAN),
        (NAN, NAN, NAN),
        (17, 16, 16),
    ],
    "float8_e4m3fnuz": [(241, 240, 240), (1e9, 240, NAN), (-INF, -240, NAN), (19, 20, 20)],
    "float8_e5m2": [(57345, 57344, 57344), (1e9, 57344, INF), (-INF, -57344, -INF), (9, 8, 8), (11, 12, 12)],
    "float8_e5m2fnuz": [(57345, 57344, 57344), (1e9, 57344, NAN), (INF, 57344, NAN), (3.25, 3, 3)],
    "float4_e2m1fn": [(1e9, 6, 6), (-INF, -6, -6), (5, 4, 4), (0.25, 0, 0), (0.75, 1, 1)],
}


@pytest.mark.parametrize("kind", FLOATS)
def test_short_floats(kind: str) -> None:
    dtype, rows = np.dtype(getattr(ml_dtypes, kind)), np.float32(FLOATS[kind])
    for at, saturate in ((1, 1), (2, 0)):
        for device in ("CPU", "CUDA"):
            with device_arrays():
                zero = np.array(0, dtype)
                y = run("QuantizeLinear", [2 * rows[:, 0], np.float32(2), zero], 25, device=device, saturate=saturate)
            assert y.dtype == dtype
            np.testing.assert_array_equal(y.astype(np.float32), rows[:, at])
    back = run("DequantizeLinear", [y, np.float32(2), zero], 25)
    np.testing.assert_array_equal(back, 2 * y.astype(np.float32))
    negative = run("QuantizeLinear", [np.float32([-0.0]), np.float32(1), np.array(0, ml_dtypes.float8_e5m2)], 25)
    assert np.signbit(negative.astype(np.float32)[0])


def test_scales_that_are_powers_of_two() -> None:
    """Their type is none that the result could have."""
    x, scale = np.array([3, -4], np.int8), np.array(0.5, ml_dtypes.float8_e8m0fnu)
    for device in ("CPU", "CUDA"):
        with device_arrays():
            y = run("DequantizeLinear", [x, scale], 25, device=device, output_dtype=TensorProto.FLOAT16)
        assert (y.dtype, y.tolist()) == (np.float16, [1.5, -2])
    with pytest.raises(gpuconv.ArgumentError, match="the attribute output_dtype must be given"):
        run("DequantizeLinear", [x, scale], 25)
    assert run("QuantizeLinear", [np.float32([1.3]), scale], 28).tolist() == [3]


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "message"),
    [
        ("QuantizeLinear", [floats(2, 3), floats(2)], {}, r"element of axis 1 must have the shape \(3,\), not \(2,\)"),
        ("DequantizeLinear", [np.zeros((2, 3), np.int8), floats(3)], {"axis": 0}, r"axis 0 must have the shape \(2,\)"),
        ("QuantizeLinear", [floats(2, 3), floats(3)], {"axis": 2}, "axis 2 is out of range"),
        ("QuantizeLinear", [floats(2, 5), floats(2, 2)], {"block_size": 2}, r"axis 1 must have the shape \(2, 3\)"),
        ("QuantizeLinear", [floats(2, 5), floats(2, 5)], {"block_size": -1}, "a scale or zero point per block of -1"),
        (
            "QuantizeLinear",
            [floats(2), np.float32(1), np.int8(0)],
            {"output_dtype": TensorProto.UINT8},
            "output_dtype is uint8, but y_zero_point has dtype int8",
        ),
    ],
)
def test_errors(op_type: str, inputs: list[Any], attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(gpuconv.ArgumentError, match=f"^{op_type} node.*{message}"):
        run(op_type, inputs, 25, **attributes)


@pytest.mark.parametrize(
    "x",
    [[0, 0, 0], [], [1, NAN, -3], [NAN], [1, 2, 3], [-1, -2], [-1e-3, 700], [INF, 1, -3], np.zeros((2, 0, 3))],
)
def test_the_range_of_x_decides(x: Any) -> None:
    agrees("DynamicQuantizeLinear", 11, [np.float32(x)], 3)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("opset", [10, 13, 19])
def test_a_network_of_quantized_layers(opset: int, per_channel: bool) -> None:
    """As tools write it: each layer between QuantizeLinear and DequantizeLinear; by channel since opset 13."""
    channels = (8,) if per_channel and opset >= 13 else ()
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.integers(-127, 128, (8, 3, 3, 3)).astype(np.int8), "b": rng.integers(-99, 99, 8).astype(np.int32),
        "sx": np.float32(0.02), "zx": np.uint8(128), "sy": np.float32(0.5), "zy": np.uint8(3),
        "sw": np.full(channels, 0.01, np.float32), "zw": np.zeros(channels, np.int8),
        "sb": np.full(channels, 0.0002, np.float32),
    }  # fmt: skip
    axis = "<axis = 0>" if opset >= 13 else ""
    nodes = f"""xq = QuantizeLinear (x, sx, zx)  xd = DequantizeLinear (xq, sx, zx)
                wd = DequantizeLinear {axis} (w, sw, zw)  bd = DequantizeLinear {axis} (b, sb)
                c = Conv <pads = [1, 1, 1, 1]> (xd, wd, bd)  r = Relu (c)
                q = QuantizeLinear (r, sy, zy)  y = DequantizeLinear (q, sy, zy)"""
    proto = model(nodes, [value("x", shape=(1, 3, 9, 9))], [value("y", shape=4)], opset, weights)
    x = floats(1, 3, 9, 9)
    (expected,) = onnxruntime_run(proto, {"x": x})
    for fold in (True, False):
        (y,) = backend.prepare(proto, fold=fold).run([x])
        # Sums in another order may round a tie the other way: one step of the scale, in a few elements.
        assert np.abs(y - expected).max() <= 0.5
        assert np.count_nonzero(y != expected) <= 3
    with device_arrays() as device:
        np.testing.assert_array_equal(backend.prepare(proto, "CUDA").run([x])[0], y)
        assert device.to_host == [y.shape]
