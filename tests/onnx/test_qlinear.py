"""8-bit operators of ONNX Runtime's domain com.microsoft: their formulas, ONNX Runtime's results, and a device's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.onnx import backend
from gpuconv.onnx.contrib import qlinear
from tests.onnx.contributed import UNTYPED, by_onnxruntime, on_host_and_device, one_node

pytestmark = [pytest.mark.slow, UNTYPED]
Drawn = tuple[list[Any], dict[str, Any], tuple[int, ...]]  # inputs, attributes, positions without an initializer


class Draw:
    """Seeded operands of one 8-bit type."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = np.dtype((np.uint8, np.int8)[seed % 2])

    def integers(self, *shape: int) -> Any:
        ends = np.iinfo(self.dtype)
        return self.rng.integers(ends.min, ends.max, shape, endpoint=True).astype(self.dtype)

    def zero(self) -> Any:
        return self.integers().reshape(())

    def scale(self) -> Any:
        return np.exp(self.rng.uniform(-6, 0)).astype(np.float32)

    def quantization(self) -> list[Any]:
        return [self.scale(), self.zero()]

    def shape(self, axes: int = 4, most: int = 6) -> tuple[int, ...]:
        return tuple(self.rng.integers(1, most + 1, self.rng.integers(1, axes + 1)).tolist())

    def part(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return a shape that broadcasts to another shape."""
        kept = shape[self.rng.integers(0, len(shape) + 1) :]
        return tuple(n if self.rng.random() < 0.7 else 1 for n in kept)

    def choice(self, *values: Any) -> Any:
        return values[self.rng.integers(len(values))]


def one(draw: Draw) -> Drawn:
    inputs = [draw.integers(*draw.shape()), *draw.quantization(), *draw.quantization()]
    return [*inputs[:4], draw.choice(inputs[4], None)], {}, (0,)  # ONNX Runtime crashes with four inputs


def leaky(draw: Draw) -> Drawn:
    inputs, _, free = one(draw)
    return inputs, draw.choice({}, {"alpha": float(draw.rng.uniform(-0.5, 2))}), free


def two(draw: Draw) -> Drawn:
    shape = draw.shape()
    a, b = draw.choice((shape, draw.part(shape)), (draw.part(shape), shape))
    inputs = [draw.integers(*a), *draw.quantization(), draw.integers(*b), *draw.quantization(), *draw.quantization()]
    return inputs, {}, (0, 3)


def averages(draw: Draw) -> Drawn:
    axes = int(draw.rng.integers(1, 4))
    kernel = draw.rng.integers(1, 4, axes).tolist()
    attributes: dict[str, Any] = {"kernel_shape": kernel, "channels_last": draw.choice(0, 1)}
    attributes["count_include_pad"] = draw.choice(0, 1)
    attributes["strides"] = draw.rng.integers(1, 4, axes).tolist()
    if draw.rng.random() < 0.5:
        attributes["pads"] = [int(draw.rng.integers(0, k)) for k in kernel * 2]
    elif draw.rng.random() < 0.5:
        attributes["auto_pad"] = draw.choice("SAME_UPPER", "SAME_LOWER", "VALID")
    if "auto_pad" not in attributes and not attributes["count_include_pad"]:
        attributes["ceil_mode"] = draw.choice(0, 1)
    extents, channels = draw.rng.integers(3, 8, axes).tolist(), int(draw.rng.integers(1, 4))
    shape = (2, *extents, channels) if attributes["channels_last"] else (2, channels, *extents)
    return [draw.integers(*shape), *draw.quantization(), *draw.quantization()], attributes, (0,)


def whole_images(draw: Draw) -> Drawn:
    inputs = [draw.integers(2, *draw.rng.integers(1, 8, draw.choice(2, 3)).tolist()), *draw.quantization()]
    return [*inputs, *draw.choice(inputs[1:], draw.quantization())], {"channels_last": draw.choice(0, 1)}, (0,)


def joined(draw: Draw) -> Drawn:
    shape, inputs = list(draw.shape()), draw.quantization()
    axis = int(draw.rng.integers(-len(shape), len(shape)))
    for _ in range(draw.rng.integers(1, 4)):
        shape[axis] = int(draw.rng.integers(1, 5))
        inputs += [draw.integers(*shape), *draw.choice(inputs[:2], draw.quantization())]
    return inputs, {"axis": axis}, tuple(range(2, len(inputs), 3))


def chosen(draw: Draw) -> Drawn:
    shape, of_z = draw.shape(), draw.quantization()
    inputs = [
        draw.rng.random(draw.part(shape)) < 0.5,
        draw.integers(*draw.part(shape)),
        *draw.choice(of_z, draw.quantization()),
    ]
    return [*inputs, draw.integers(*draw.part(shape)), *draw.quantization(), *of_z], {}, (0, 1, 4)


def softmax(draw: Draw) -> Drawn:
    """Return Softmax as the quantizer writes it: with a scale of 1 / 256 and the lowest integer as the zero point."""
    shape = draw.shape(most=9)
    axis, least = int(draw.rng.integers(-len(shape), len(shape))), np.array(np.iinfo(draw.dtype).min, draw.dtype)
    inputs = [draw.integers(*shape), *draw.quantization(), np.float32(1 / 256), least]
    return inputs, {"axis": axis, "of_opset": draw.choice(9, 12, 13)}, (0,)


def gemm(draw: Draw) -> Drawn:
    m, k, n = draw.rng.integers(1, 40, 3).tolist()
    attributes = {"transA": draw.choice(0, 1), "transB": draw.choice(0, 1), "alpha": float(draw.rng.uniform(0.5, 2))}
    a, b = draw.integers(m, k), draw.integers(k, n)
    a, b = a.T.copy() if attributes["transA"] else a, b.T.copy() if attributes["transB"] else b
    of_b = draw.choice(draw.quantization(), [np.linspace(0.01, 0.1, n, dtype=np.float32), draw.integers(n)])
    c = draw.rng.integers(-9999, 9999, draw.choice((n,), (1, n), (m, n), (m, 1), (1,))).astype(np.int32)
    of_y = draw.choice([], [np.float32(5), draw.zero()])
    return [a, *draw.quantization(), b, *of_b, draw.choice(c, None), *of_y], attributes, draw.choice((0,), (0, 3))


CASES: dict[str, Callable[[Draw], Drawn]] = {
    "QGemm": gemm, "QLinearAdd": two, "QLinearAveragePool": averages, "QLinearConcat": joined,
    "QLinearGlobalAveragePool": whole_images, "QLinearLeakyRelu": leaky, "QLinearMul": two, "QLinearSigmoid": one,
    "QLinearSoftmax": softmax, "QLinearWhere": chosen,
}  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("op_type", CASES)
def test_random_nodes_beside_onnx_runtime(op_type: str, seed: int) -> None:
    """ONNX Runtime rounds the same scales in another way, so near ties may differ by one step."""
    inputs, attributes, free = CASES[op_type](Draw(seed))
    proto, feeds = one_node(op_type, inputs, free=free, **attributes)
    (y,), (expected,) = on_host_and_device(proto, feeds), by_onnxruntime(proto, feeds)
    assert (y.dtype, y.shape) == (expected.dtype, expected.shape)
    if y.dtype == np.float32:
        np.testing.assert_allclose(y, expected, rtol=1e-6)
    else:
        off = np.abs(y.astype(int) - expected)
        assert off.max(initial=0) <= 1
        assert np.count_nonzero(off) <= 1 + y.size // 200


# ---------------------------------------------------------------- by the formula


def all_values(dtype: Any) -> Any:
    return np.arange(np.iinfo(dtype).min, np.iinfo(dtype).max + 1).astype(dtype)


def quantized(number: Fraction, zero: int, dtype: Any) -> int:
    """Return a quotient rounded half to even, with its zero point, saturated."""
    ends = np.iinfo(dtype)
    return int(min(max(round(number) + zero, ends.min), ends.max))


def run(op_type: str, inputs: list[Any], **attributes: Any) -> Any:
    free = tuple(at for at, value in enumerate(inputs) if value is not None and np.ndim(value))
    proto, feeds = one_node(op_type, inputs, free=free, **attributes)
    return on_host_and_device(proto, feeds)[0]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_every_pair_of_values_is_added_and_multiplied_exactly(dtype: Any) -> None:
    """Scales are powers of two, so that float32 rounds only the result; many results are ties."""
    values, zeros = all_values(dtype), [np.array(zero, dtype) for zero in (3, 100, 7)]
    scales = [np.float32(scale) for scale in (0.5, 0.25, 1)]
    a, b = values[:, None], values[None, ::3]
    inputs = [a, scales[0], zeros[0], b, scales[1], zeros[1], scales[2], zeros[2]]
    for op_type, combine in (
        ("QLinearAdd", lambda x, y: Fraction(x - 3, 2) + Fraction(y - 100, 4)),
        ("QLinearMul", lambda x, y: Fraction((x - 3) * (y - 100), 8)),
    ):
        expected = [[quantized(combine(x, y), 7, dtype) for y in b[0].tolist()] for x in values.tolist()]
        np.testing.assert_array_equal(run(op_type, inputs), expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_every_value_of_a_curve(dtype: Any) -> None:
    values = all_values(dtype)
    x, y = [np.float32(0.5), np.array(10, dtype)], [np.float32(0.25), np.array(-5 if dtype == np.int8 else 5, dtype)]
    expected = [
        quantized(Fraction(v - 10, 2) * 4 * (1 if v >= 10 else Fraction(3, 4)), int(y[1]), dtype)
        for v in values.tolist()
    ]
    np.testing.assert_array_equal(run("QLinearLeakyRelu", [values, *x, *y], alpha=0.75), expected)
    real = (values.astype(np.float64) - 10) / 2
    shares = np.clip(np.rint(1 / (1 + np.exp(-real)) * 128), 0, None)
    of_y = [np.float32(1 / 128), np.array(0, dtype)]
    np.testing.assert_array_equal(
        run("QLinearSigmoid", [values, *x, *of_y]), np.clip(shares, None, np.iinfo(dtype).max)
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_means_are_rounded_once_from_exact_sums(dtype: Any) -> None:
    """Compared with the formula, since ONNX Runtime has no kernel of QLinearReduceMean."""
    draw = np.random.default_rng(1)
    x = draw.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (3, 4, 5), endpoint=True).astype(dtype)
    scales = [np.float32(0.5), np.array(9, dtype), np.float32(0.25), np.array(1, dtype)]
    for axes, keepdims in (([1], 1), ([0, 2], 0), ([-1], 0)):
        total = (x.astype(int) - 9).sum(axis=tuple(axes), keepdims=bool(keepdims))
        count = x.size // total.size
        expected = [quantized(Fraction(int(one) * 2, count), 1, dtype) for one in total.reshape(-1)]
        y = run("QLinearReduceMean", [x, *scales], axes=axes, keepdims=keepdims)
        assert y.shape == total.shape
        assert y.reshape(-1).tolist() == expected


def test_padding_is_the_zero_point_and_what_ceil_mode_adds_is_no_padding() -> None:
    """ONNX Runtime divides by the size of the kernel there, as its AveragePool does before opset 19."""
    x = np.array([[[13, 15, 17]]], np.uint8)
    one, zero = np.float32(1), np.uint8(13)
    attributes = {"kernel_shape": [2], "strides": [2], "ceil_mode": 1, "count_include_pad": 1}
    assert run("QLinearAveragePool", [x, one, zero, one, zero], **attributes).tolist() == [[[14, 17]]]
    padded = run("QLinearAveragePool", [x, one, zero, one, zero], **attributes, pads=[1, 0])
    assert padded.tolist() == [[[13, 16]]]


def test_absent_zero_points_are_zero() -> None:
    a, b = np.array([1, 2, 250], np.uint8), np.array([3, 4, 250], np.uint8)
    one, two = np.float32(1), np.float32(2)
    assert run("QLinearAdd", [a, one, None, b, one, None, two]).tolist() == [2, 3, 250]
    assert run("QLinearSigmoid", [a, one, None, np.float32(0.25)]).tolist() == [3, 4, 4]
    assert run("QLinearReduceMean", [a, one, None, two], axes=[0], keepdims=0).tolist() == round(253 / 6)


def test_large_arrays_are_computed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Draw(3)
    inputs = [draw.integers(3, 50, 40), *draw.quantization(), draw.integers(3, 50, 40), *draw.quantization()]
    inputs += draw.quantization()
    whole = [run(op_type, inputs) for op_type in ("QLinearAdd", "QLinearMul")]
    monkeypatch.setattr(qlinear, "_BLOCK", 1001)
    for op_type, expected in zip(("QLinearAdd", "QLinearMul"), whole, strict=True):
        np.testing.assert_array_equal(run(op_type, inputs), expected)


def test_sums_of_gemm_are_exact() -> None:
    """Beyond 2 ** 24, and with a C that float32 cannot represent."""
    a, b = np.full((1, 700), 255, np.uint8), np.full((700, 1), -128, np.int8)
    c, one = np.array([2**24 + 1], np.int32), np.float32(1)
    total = 2**24 + 1 - 700 * 255 * 128
    inputs = [a, one, np.uint8(0), b, one, np.int8(0), c]
    assert run("QGemm", inputs).tolist() == [[np.float32(total)]]
    scale = np.float32(abs(total) / 100.3)
    assert run("QGemm", [*inputs, scale, np.uint8(200)]).tolist() == [[200 + round(total / float(scale))]]


def test_the_softmax_of_one_element_is_the_greatest_integer() -> None:
    for dtype in (np.uint8, np.int8):
        ends = np.iinfo(dtype)
        inputs = [np.array([[5], [7]], dtype), np.float32(1), dtype(0), np.float32(1 / 256), dtype(ends.min)]
        assert run("QLinearSoftmax", inputs, of_opset=13).tolist() == [[ends.max]] * 2


# ---------------------------------------------------------------- refusals


def faults() -> Iterator[tuple[str, list[Any], dict[str, Any], str]]:
    x, one, zero = np.zeros((1, 2, 3), np.uint8), np.float32(1), np.uint8(0)
    unary = [x, one, zero, one, zero]
    yield "QLinearSigmoid", unary[:3], {}, r"has 3 inputs, but needs 4 to 5 \(X, X_scale, X_zero_point, Y_scale"
    yield "QLinearSigmoid", [x, None, zero, one, zero], {}, "input X_scale is required and cannot be left out"
    yield "QLinearSigmoid", unary, {"alpha": 1.0}, "'alpha' is no attribute that gpuconv knows of it"
    yield "QLinearLeakyRelu", unary, {"alpha": 1}, "attribute alpha must be of type float, not int"
    yield "QLinearConcat", [one, zero, x, one, zero], {}, "attribute axis is required"
    yield "QLinearConcat", [one, zero, x, one], {"axis": 0}, "a scale and a zero point each, but there are 2 in all"
    yield "QLinearAveragePool", unary, {}, "attribute kernel_shape is required"
    yield "QLinearSigmoid", [x, np.ones(2, np.float32), zero, one, zero], {}, r"a scale must be one number.*\(2,\)"
    yield "QLinearSigmoid", [x, one, np.int8(0), one, zero], {}, "a zero point has dtype int8, but its tensor.*uint8"
    yield "QLinearAveragePool", unary, {"kernel_shape": [2, 2]}, "kernel_shape"
    yield "QLinearReduceMean", unary, {"axes": [3], "keepdims": 1}, "axis 3 is out of range"
    yield "QLinearGlobalAveragePool", [x[..., :0], *unary[1:]], {}, "there is no mean of no elements"
    matrix = np.zeros((2, 2), np.uint8)
    gemm_of = [matrix, one, zero, matrix, one, zero, np.zeros((3, 2), np.int32)]
    yield "QGemm", gemm_of, {}, r"C of shape \(3, 2\) does not broadcast to the product's shape \(2, 2\)"


@pytest.mark.parametrize(("op_type", "inputs", "attributes", "message"), list(faults()))
def test_faults_name_the_node(op_type: str, inputs: list[Any], attributes: dict[str, Any], message: str) -> None:
    free = tuple(at for at, value in enumerate(inputs) if value is not None and np.ndim(value) > 1)
    proto, feeds = one_node(op_type, inputs, free=free, **attributes)
    with pytest.raises(gpuconv.ArgumentError, match=f"^{op_type} node 'one': .*{message}"):
        backend.prepare(proto).run(feeds)
