"""Exact products of 8-bit integers, on the host and as on a device, compared with 64-bit sums and ONNX Runtime."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

from gpuconv.onnx import backend
from gpuconv.onnx.operators import integers
from tests.harness.device_arrays import device_arrays
from tests.onnx.models import model, run, value
from tests.onnx.networks import both

pytestmark = pytest.mark.slow

TYPES = list(product(("uint8", "int8"), repeat=2))


def drawn(kind: str, *shape: int, seed: int = 0) -> Any:
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    return np.asarray(np.random.default_rng(seed).integers(low, high, shape, endpoint=True)).astype(kind)


def wrapped(sums: Any) -> Any:
    return sums.astype(np.int64).astype(np.int32)


def extremes(kind: str, *shape: int) -> Any:
    """Return integers as far as possible from their zero point, and that zero point."""
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    return np.full(shape, high, kind), np.array(low, kind)


@pytest.mark.parametrize("inner", [1, 257, 258, 259, 515, 777])
@pytest.mark.parametrize("kinds", TYPES)
def test_the_longest_sums_are_exact(kinds: tuple[str, str], inner: int) -> None:
    """Even odd sums beyond 2 ** 24, which float32 cannot represent."""
    (a, a_zero), (b, b_zero) = (
        extremes(kind, *shape) for kind, shape in zip(kinds, ((3, inner), (inner, 2)), strict=True)
    )
    a[0, 0] -= 1
    expected = wrapped((a.astype(np.int64) - a_zero) @ (b.astype(np.int64) - b_zero))
    x, w = a[..., None], b.T[..., None]
    for device in ("CPU", "CUDA"):
        with device_arrays():
            assert run("MatMulInteger", [a, b, a_zero, b_zero], 21, device=device).tolist() == expected.tolist()
            y = run("ConvInteger", [x, w, a_zero, b_zero], 21, device=device)
        assert (y.dtype, y[..., 0].tolist()) == (np.int32, expected.tolist())


def test_sums_wrap_beyond_32_bits() -> None:
    a, b = np.full((1, 33100), 255, np.uint8), np.full((33100, 1), 255, np.uint8)
    assert run("MatMulInteger", [a, b], 21).tolist() == [[33100 * 255**2 - 2**32]]


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("kinds", TYPES)
def test_windows_of_many_channels_are_exact(kinds: tuple[str, str], group: int) -> None:
    """In blocks of channels, equal for each group, with taps and padding; then one channel with taps beyond 2 ** 24."""
    for channels, taps in ((130, 3), (1, 300)):
        x, w = drawn(kinds[0], 2, group * channels, 301), extremes(kinds[1], 2 * group, channels, taps)[0]
        x_zero, w_zero = np.array(np.iinfo(kinds[0]).min, kinds[0]), drawn(kinds[1], 2 * group, seed=1)
        centred = np.pad(x.astype(np.int64) - x_zero, ((0, 0), (0, 0), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(centred, taps, 2)[:, :, ::2]
        windows = windows.reshape(2, group, channels, -1, taps)
        weights = (w.astype(np.int64) - w_zero[:, None, None]).reshape(group, 2, channels, taps)
        expected = wrapped(np.einsum("ngcqt,gmct->ngmq", windows, weights)).reshape(2, 2 * group, -1)
        for device in ("CPU", "CUDA"):
            with device_arrays():
                y = run("ConvInteger", [x, w, x_zero, w_zero], 21, device=device, pads=[1, 1], strides=[2], group=group)
            np.testing.assert_array_equal(y, expected)


def test_pieces_are_as_long_as_they_may_be() -> None:
    rng = np.random.default_rng(0)
    for most in (9, 10, 25, 1000):
        sizes = rng.integers(0, 10, (3, 40))
        pieces = integers._cut(sizes, most)
        assert pieces is not None
        assert [low for low, _ in pieces] == [0, *(high for _, high in pieces[:-1])]
        assert pieces[-1][1] == 40
        for low, high in pieces:
            assert sizes[:, low:high].sum(axis=1).max() <= most
            assert high == 40 or sizes[:, low : high + 1].sum(axis=1).max() > most
    assert integers._cut(np.array([[5, 6, 5]]), 10) == [(0, 1), (1, 2), (2, 3)]
    assert integers._cut(np.array([[5, 5, 5]]), 10) == [(0, 2), (2, 3)]
    assert integers._cut(np.array([[1, 11, 1]]), 10) is None


@pytest.mark.parametrize("kinds", TYPES)
@pytest.mark.parametrize(
    "shapes", [((3, 40), (40, 5)), ((2, 3, 900), (900, 4)), ((2, 3, 7), (2, 7, 4)), ((7,), (7, 3))]
)
def test_matrices_beside_onnx_runtime(shapes: tuple[tuple[int, ...], tuple[int, ...]], kinds: tuple[str, str]) -> None:
    a, b = (drawn(kind, *shape, seed=at) for at, (kind, shape) in enumerate(zip(kinds, shapes, strict=True)))
    a_zero, b_zero = drawn(kinds[0], seed=2), drawn(kinds[1], seed=3)
    of_columns = drawn(kinds[1], shapes[1][-1], seed=3)
    ((got,), (expected,)) = both("MatMulInteger", 10, [a, b, a_zero, of_columns if b.ndim < 3 else b_zero])
    np.testing.assert_array_equal(got, expected)
    if kinds != ("int8", "uint8"):  # which ONNX Runtime lacks
        scales = np.asarray(np.float32(0.01)), np.asarray(np.float32(0.3))
        for scale, zero in ((scales[0], b_zero), (np.linspace(0.01, 0.1, b.shape[-1], dtype=np.float32), of_columns)):
            if zero.ndim and b.ndim > 2:
                continue
            inputs = [a, scales[0], a_zero, b, scale, zero, scales[1], a_zero]
            ((got,), (expected,)) = both("QLinearMatMul", 10, inputs)
            np.testing.assert_array_equal(got, expected)
            with device_arrays():
                np.testing.assert_array_equal(run("QLinearMatMul", inputs, 10, device="CUDA"), got)


def test_rows_have_zero_points_and_scales_of_their_own() -> None:
    """Zero points of rows are a vector, or a column for each matrix of a stack."""
    a, b, zeros = drawn("uint8", 2, 3, 5), drawn("int8", 5, 4, seed=1), drawn("uint8", 3, seed=2)
    expected = (a.astype(int) - zeros[:, None]) @ b.astype(int)
    for zero in (zeros, np.stack([zeros, zeros])[..., None]):
        np.testing.assert_array_equal(run("MatMulInteger", [a, b, zero], 21), expected)
    np.testing.assert_array_equal(run("MatMulInteger", [a, b[:, 0], zeros], 21), expected[..., 0])
    scales, one, none = np.float32([0.5, 2, 1]), np.float32(1), np.int8(0)
    y = run("QLinearMatMul", [a, scales, zeros, b, one, none, np.float32(64), none], 21)
    np.testing.assert_array_equal(y, np.clip(np.rint(expected * scales[:, None] / 64), -128, 127))


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 9), (4, 3, 3), {"pads": [1, 2], "strides": [2]}),
    ((1, 4, 8, 7), (6, 2, 3, 2), {"group": 2, "dilations": [2, 1]}),
    ((1, 200, 5, 5), (3, 200, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((2, 5, 6, 6), (5, 1, 3, 3), {"group": 5, "pads": [1, 1, 1, 1]}),
]


@pytest.mark.parametrize("kinds", TYPES)
@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), CONVOLUTIONS)
def test_convolutions_beside_onnx_runtime(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], attributes: dict[str, Any], kinds: tuple[str, str]
) -> None:
    x, w = drawn(kinds[0], *x_shape), drawn(kinds[1], *w_shape, seed=1)
    attributes = {"kernel_shape": w_shape[2:], **attributes}
    x_zero, w_zero, count = drawn(kinds[0], seed=2), drawn(kinds[1], seed=3), w_shape[0]
    ((got,), (expected,)) = both("ConvInteger", 10, [x, w, x_zero, w_zero], **attributes)
    np.testing.assert_array_equal(got, expected)
    if kinds == ("int8", "uint8"):  # which ONNX Runtime lacks
        return
    one, of_y = np.asarray(np.float32(0.01)), np.asarray(np.float32(0.7))
    scales = np.linspace(0.01, 0.1, count, dtype=np.float32)
    for scale, zero in ((one, w_zero), (scales, np.zeros(count, kinds[1]))):
        for bias in (None, np.arange(count, dtype=np.int32) * 1000, np.full(count, 2**30 + 1, np.int32)):
            inputs = [x, one, x_zero, w, scale, zero, of_y, x_zero, bias]
            ((got,), (expected,)) = both("QLinearConv", 10, inputs, **attributes)
            np.testing.assert_array_equal(got, expected)
            with device_arrays():
                np.testing.assert_array_equal(run("QLinearConv", inputs, 10, device="CUDA", **attributes), got)


def test_images_of_many_blocks_have_the_scale_of_each_channel() -> None:
    x, w = drawn("uint8", 1, 2, 300, 300), drawn("int8", 3, 2, 1, 1, seed=1)
    scales, one = np.float32([0.01, 0.02, 0.03]), np.asarray(np.float32(1))
    inputs = [x, one, np.asarray(np.uint8(3)), w, scales, np.zeros(3, np.int8), one, np.asarray(np.uint8(9))]
    ((got,), (expected,)) = both("QLinearConv", 10, inputs)
    np.testing.assert_array_equal(got, expected)


def test_a_bias_is_exact_where_float32_does_not_hold_it() -> None:
    x, w = np.zeros((1, 518, 1), np.uint8), np.full((1, 518, 1), 127, np.int8)
    zero, one, none = np.uint8(255), np.float32(1), np.int8(0)
    bias = np.int32([2**24 + 1])
    total = 2**24 + 1 - 255 * 127 * 518
    scale = np.float32(7.02)  # one less would be rounded down
    assert (round(total / 7.02), round((total - 1) / 7.02)) == (255, 254)
    y = run("QLinearConv", [x, one, zero, w, one, none, scale, np.uint8(0), bias], 21)
    assert y.tolist() == [[[255]]]


@pytest.mark.parametrize("op_type", ["ConvInteger", "MatMulInteger"])
def test_constant_weights_may_be_given_anew(op_type: str) -> None:
    """Values precomputed from an initializer are used only in runs that use the initializer."""
    x, w, other = drawn("uint8", 1, 700, 4), drawn("int8", 2, 700, 1, seed=1), drawn("int8", 2, 700, 1, seed=2)
    x, w, other = (x, w, other) if op_type == "ConvInteger" else (x[0].T, w[..., 0].T, other[..., 0].T)
    node = helper.make_node(op_type, ["x", "w"], ["y"])
    inputs = [value("x", np.uint8, x.shape), value("w", np.int8, w.shape)]
    proto = model([node], inputs, [value("y", np.int32, x.ndim)], 10, {"w": w})
    for fold in (True, False):
        rep = backend.prepare(proto, fold=fold)
        for given in (w, w, other, w):
            feeds = {"x": x} if given is w else {"x": x, "w": given}
            (y,) = rep.run(feeds)
            np.testing.assert_array_equal(y, run(op_type, [x, given], 21))


@pytest.mark.parametrize("op_type", ["ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"])
def test_constant_weights_are_looked_at_once(op_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []
    factor = integers._factor
    monkeypatch.setattr(integers, "_factor", lambda values, zero: (seen.append(values.shape), factor(values, zero))[1])
    x = np.full((1, 3, 5) if "Conv" in op_type else (5, 3), 2, np.uint8)
    w, of_x, of_w, one = np.ones((3, 3, 1), np.int8), np.uint8(0), np.int8(0), np.float32(1)
    w = w if "Conv" in op_type else w[..., 0]
    constants = [w, of_x, of_w] if op_type.endswith("Integer") else [one, of_x, w, one, of_w, one, of_x]
    weights = {f"w{at}": np.asarray(constant) for at, constant in enumerate(constants)}
    names = ["x", *weights]
    result = value("y", np.int32 if op_type.endswith("Integer") else np.uint8, x.ndim)
    proto = model([helper.make_node(op_type, names, ["y"])], [value("x", np.uint8, x.shape)], [result], 21, weights)
    rep = backend.prepare(proto)
    for _ in range(3):
        (y,) = rep.run([x])
        assert np.unique(y).tolist() == [6]
    assert sorted(seen) == sorted([w.shape, *[x.shape] * 3])


def test_images_of_integers_are_convolved_on_the_device() -> None:
    """Integers from the host stay there while everything else is there; weights are copied once."""
    x, w = drawn("uint8", 1, 3, 5), drawn("int8", 2, 3, 2, seed=1)
    nodes = [helper.make_node("ConvInteger", ["x", "w"], ["c"]), helper.make_node("Neg", ["c"], ["y"])]
    proto = model(nodes, [value("x", np.uint8, x.shape)], [value("y", np.int32, 3)], 10, {"w": w})
    with device_arrays() as device:
        rep = backend.prepare(proto, "CUDA")
        for copied in ([x.shape, w.shape], [x.shape]):
            device.to_device.clear()
            (y,) = rep.run([x])
            assert (device.to_device, device.computed.pop(), device.to_host.pop()) == (copied, "conv", y.shape)
    np.testing.assert_array_equal(-y, run("ConvInteger", [x, w], 21))


def test_nothing_to_add_up() -> None:
    assert run("MatMulInteger", [np.empty((2, 0), np.uint8), np.empty((0, 3), np.int8)], 21).tolist() == [[0] * 3] * 2
    y = run("ConvInteger", [np.empty((0, 3, 5), np.uint8), drawn("int8", 2, 3, 2)], 21)
    assert (y.dtype, y.shape) == (np.int32, (0, 2, 4))


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2"])
def test_short_floats_are_multiplied_as_float32(kind: str) -> None:
    dtype = getattr(ml_dtypes, kind)
    rng, zero, one = np.random.default_rng(0), np.array(0, dtype), np.float32(1)
    a_zero, b_zero = np.array(1, dtype), np.array(-2, dtype)
    a, b = (rng.integers(-4, 5, shape).astype(dtype) for shape in ((3, 5), (5, 2)))
    product_ = (a.astype(np.float32) - 1) @ (b.astype(np.float32) + 2)
    for device in ("CPU", "CUDA"):
        with device_arrays():
            y = run("QLinearMatMul", [a, one, a_zero, b, np.float32(2), b_zero, np.float32(4), zero], 21, device=device)
        np.testing.assert_array_equal(y, (product_ / 2).astype(dtype))
    scales = {"one": one, "two": np.float32(2), "four": np.float32(4)}
    weights = {name: np.asarray(scale) for name, scale in scales.items()} | {
        "b": b,
        "za": a_zero,
        "zb": b_zero,
        "z": zero,
    }
    node = helper.make_node("QLinearMatMul", ["a", "one", "za", "b", "two", "zb", "four", "z"], ["y"])
    proto = model([node], [value("a", dtype, a.shape)], [value("y", dtype, 2)], 21, weights, ir_version=10)
    (constant,) = backend.prepare(proto).run([a])
    np.testing.assert_array_equal(constant, y)
