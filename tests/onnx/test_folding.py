"""Which nodes are folded into a convolution, which must not be, and how that changes results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

import gpuconv
from gpuconv.onnx import backend
from gpuconv.onnx.folding import fold
from gpuconv.onnx.model import Fact
from gpuconv.onnx.operators.affine import affine
from gpuconv.onnx.rewriting import Graph
from tests.onnx.models import BY_EVALUATOR, NEWEST, branching, floats, model, parse_nodes, value

UNIT = 2.0**-24
X = value("x", shape=("N", 4, "H", "W"))
Y = value("y", shape=4)


def node_types(proto: onnx.ModelProto, feeds: Any, **options: Any) -> tuple[list[str], list[Any]]:
    """Return the operators of the nodes that ran, and the outputs."""
    seen: list[str] = []
    outputs = backend.prepare(proto, **options).run(feeds, observer=lambda node, *_: seen.append(node.op_type))
    return seen, list(outputs)


def both(proto: onnx.ModelProto, feeds: Any, expected: list[str]) -> tuple[Any, Any]:
    """Return the first output of the folded graph, which must have these nodes, and of the unfolded one."""
    types, folded = node_types(proto, feeds)
    assert types == expected
    plain, outputs = node_types(proto, feeds, fold=False)
    assert plain == [node.op_type for node in proto.graph.node]
    return folded[0], outputs[0]


def check(
    nodes: str,
    expected: list[str],
    weights: dict[str, Any],
    *feeds: Any,
    inputs: Sequence[Any] = (X,),
    outputs: Sequence[Any] = (Y,),
    opset: int = NEWEST,
    tolerance: float = 0.0,
) -> Any:
    """Compare the folded graph, which must have the expected nodes, with the one that is not; return its output."""
    folded, plain = both(model(nodes, inputs, outputs, opset, weights), list(feeds), expected)
    np.testing.assert_allclose(folded, plain, rtol=tolerance, atol=tolerance)
    assert (folded.dtype, folded.shape) == (plain.dtype, plain.shape)
    return folded


def batch_norm(channels: int, seed: int = 10, dtype: Any = np.float32) -> dict[str, Any]:
    scale, bias, mean, var = (floats(channels, seed=seed + n, dtype=dtype) for n in range(4))
    return {"s": scale, "t": bias, "m": mean, "v": np.abs(var) + dtype(0.1)}


def of_channels(*numbers: float) -> Any:
    return np.float32(numbers).reshape(-1, 1, 1)


W, IMAGE = floats(3, 4, 1, 1), floats(1, 4, 3, 3)
BATCH_NORM = "BatchNormalization (c, s, t, m, v)"

# ---------------------------------------------------------------- what changes no bit


@pytest.mark.parametrize(
    "activation",
    [
        *("Relu (c)", "LeakyRelu (c)", "LeakyRelu <alpha = -0.5> (c)"),
        *("Clip (c)", "Clip (c, low)", "Clip (c, , high)", "Clip (c, low, high)"),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_activation_changes_no_bit(activation: str, dtype: Any) -> None:
    weights = {"w": floats(6, 2, 3, 3, dtype=dtype), "b": floats(6, seed=1, dtype=dtype)}
    weights |= {"low": np.array(-0.5, dtype), "high": np.array(1.5, dtype)}
    x = floats(2, 4, 5, 6, seed=2, dtype=dtype)
    x[0, 0, 0] = [np.nan, np.inf, -np.inf, -0.0, 0, 1]
    nodes = f"c = Conv <pads = [1, 0, 1, 0], group = 2> (x, w, b)  y = {activation}"
    declared = {"inputs": [value("x", dtype, 4)], "outputs": [value("y", dtype, 4)]}
    assert np.isnan(check(nodes, ["FusedConv"], weights, x, **declared, opset=13)).any()


@pytest.mark.parametrize("opset", [6, 7, 10, 11, NEWEST])
def test_clip_at_every_form_of_its_bounds(opset: int) -> None:
    clip = "Clip (c, low, high)" if opset >= 11 else "Clip <min = -0.5, max = 0.25> (c)"
    weights = {"w": W, "low": np.float32(-0.5), "high": np.float32(0.25)}
    folded = check(f"c = Conv (x, w)  y = {clip}", ["FusedConv"], weights, IMAGE, opset=opset)
    assert (folded.min(), folded.max()) == (-0.5, 0.25)


# name: (nodes, those that run, weights, x)
EXACT: dict[str, tuple[str, list[str], dict[str, Any], Any]] = {
    "a residual and an activation": (
        """c = Conv <pads = [1, 1, 1, 1]> (x, w)  a = Add (x, c)  r = Relu (a)
           d = ConvTranspose <pads = [1, 1, 1, 1]> (r, w)  y = Sum (d, x)""",
        *(["FusedConv", "FusedConvTranspose"], {"w": floats(4, 4, 3, 3)}, floats(2, 4, 5, 5, seed=1)),
    ),
    "one channel that becomes several": (
        "c = Conv (x, w)  p = Mul (c, f)  y = Add (p, g)",
        ["Conv", "Affine"],
        {"w": floats(1, 4, 1, 1), "f": floats(3, 1, 1, seed=20), "g": floats(3, 1, 1, seed=21)},
        floats(2, 4, 5, 6),
    ),
    "statistics that are not finite": (
        "c = Conv (x, w)  y = BatchNormalization <epsilon = 0.0> (c, s, t, m, v)",
        *(["Conv", "BatchNormalization"], {"w": W, **batch_norm(3), "v": np.float32([1, 0, 1])}, IMAGE),
    ),
    "infinite weights, where something is added": (
        "c = Conv (x, w)  y = Add (c, b)",
        *(["Conv", "Add"], {"w": np.where(W > 1, np.inf, W), "b": floats(3, 1, 1, seed=1)}, IMAGE),
    ),
    "weights of NaN, where something is added": (
        "c = Conv (x, w)  y = Add (c, b)",
        *(["Conv", "Add"], {"w": np.where(W > 1, np.nan, W), "b": floats(3, 1, 1, seed=1)}, IMAGE),
    ),
    "weights that would be too small": (
        "c = Conv (x, w)  y = Mul (c, f)",
        *(["Conv", "Mul"], {"w": W * np.float32(1e-15), "f": np.float32(1e-30)}, IMAGE * np.float32(1e30)),
    ),
    "factors whose product would be too small": (
        "p = Mul (x, f)  y = Mul (p, g)",
        ["Affine", "Affine"],
        {"f": of_channels(*[2.0**-100] * 4), "g": of_channels(*[2.0**-100] * 4)},
        np.full((1, 4, 1, 1), 2.0**120, np.float32),
    ),
    "factors whose product is 1": (
        "p = Mul (x, f)  y = Mul (p, g)",
        *(["Affine"], {"f": of_channels(*[2.0**-100] * 4), "g": of_channels(*[2.0**100] * 4)}, IMAGE),
    ),
    "no filters": ("c = Conv (x, w)  y = Mul (c, f)", ["Conv", "Mul"], {"w": W[:0], "f": np.float32(2)}, IMAGE),
    "a bound with an axis": (
        "c = Conv (x, w)  y = Clip (c, low)",
        *(["FusedConv"], {"w": W, "low": np.float32([0.5])}, IMAGE),
    ),
    "a constant over a value": (
        "c = Conv (x, w)  y = Div (f, c)",
        *(["Conv", "Div"], {"w": W, "f": of_channels(1, 2, 3)}, IMAGE),
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_what_is_folded_and_what_stays_changes_no_bit(name: str) -> None:
    nodes, expected, weights, x = EXACT[name]
    assert check(nodes, expected, weights, x).any() == (name != "no filters")


def test_what_broadcasts_is_added_as_before() -> None:
    nodes = "c = Conv (x, w)  a = Add (c, z)  y = Relu (a)"
    pairs = [(floats(2, 4, 5, 5), shape) for shape in ((2, 3, 5, 5), (1, 3, 1, 5), (2, 1, 5, 1))]
    for x, shape in (*pairs, (floats(1, 4, 1, 1), (2, 3, 5, 5))):
        check(nodes, ["FusedConv"], {"w": W}, x, floats(*shape, seed=3), inputs=[X, value("z", shape=4)])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_what_broadcasts_is_added_in_float32(dtype: Any) -> None:
    nodes = "c = Conv (x, w)  a = Add (c, z)  y = LeakyRelu <alpha = 0.3> (a)"
    w, x, z = (floats(*shape, seed=n).astype(dtype) for n, shape in enumerate([(3, 4, 1, 1), (1, 4, 9, 9), (3, 1, 1)]))
    proto = model(nodes, [value("x", dtype, 4), value("z", dtype)], [value("y", dtype, 4)], weights={"w": w})
    (y,) = backend.prepare(proto).run([x, z])
    total = gpuconv.conv(x, w).astype(np.float32) + z.astype(np.float32)
    expected = np.where(total < 0, total * np.float32(0.3), total).astype(dtype)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("bounds", ["zero", ", zero", "zero, one"])
def test_clip_leaves_zeros_as_they_are(bounds: str) -> None:
    weights = {"w": W, "zero": np.float32(-0.0), "one": np.float32(1)}
    proto = model(f"c = Conv (x, w)  y = Clip (c, {bounds})", [X], [Y], 13, weights)
    folded, plain = both(proto, [np.zeros_like(IMAGE)], ["FusedConv"])
    assert not (np.signbit(folded) | np.signbit(plain)).any()


def test_prelu_with_one_slope_is_leaky_relu() -> None:
    """Of a convolution; the slope must be one that an attribute, of float32, holds."""
    for kind, slope, expected in (
        (np.float32, np.full((1, 1), -0.3), ["FusedConv"]),
        (np.float32, np.full((), 0.3), ["FusedConv"]),
        (np.float64, np.full((1, 1, 1), 0.25), ["FusedConv"]),
        (np.float64, np.full((1,), 0.3), ["Conv", "PRelu"]),
        (np.float32, np.full((4, 1, 1), 0.25), ["Conv", "PRelu"]),
        (np.float32, np.full((1,), np.nan), ["Conv", "PRelu"]),
    ):
        weights = {"w": floats(4, 4, 1, 1, seed=1).astype(kind), "a": slope.astype(kind)}
        declared = {"inputs": [value("x", kind, ("N", 4, "H", "W"))], "outputs": [value("y", kind, 4)]}
        check("c = Conv (x, w)  y = PRelu (c, a)", expected, weights, floats(2, 4, 3, 3).astype(kind), **declared)


def test_a_slope_that_is_no_number_stays() -> None:
    nodes = [*parse_nodes("c = Conv (x, w)"), helper.make_node("LeakyRelu", ["c"], ["y"], alpha=math.nan)]
    folded, plain = both(model(nodes, [X], [Y], weights={"w": W}), [IMAGE], ["Conv", "LeakyRelu"])
    np.testing.assert_array_equal(folded, plain)


def test_16_bit_weights_stay_as_they_are() -> None:
    weights = {"w": W.astype(np.float16), **batch_norm(3, dtype=np.float16)}
    declared = {"inputs": [value("x", np.float16, 4)], "outputs": [value("y", np.float16, 4)]}
    expected = ["Conv", "BatchNormalization", "Relu"]
    check(f"c = Conv (x, w)  n = {BATCH_NORM}  y = Relu (n)", expected, weights, IMAGE.astype(np.float16), **declared)


def test_sums_that_name_an_axis_stay() -> None:
    bias = np.arange(4, dtype=np.float32)
    nodes, inputs = "c = Conv (x, w)  y = Add <broadcast = 1, axis = 1> (c, r)", [X, value("r", shape=1)]
    weights = {"w": floats(4, 4, 1, 1, seed=1)}
    folded = check(nodes, ["Conv", "Add"], weights, IMAGE, bias, inputs=inputs, opset=6)
    expected = np.einsum("mc,nchw->nmhw", weights["w"][:, :, 0, 0], IMAGE) + bias[:, None, None]
    np.testing.assert_allclose(folded, expected, rtol=1e-5)


@pytest.mark.parametrize(("opset", "factor"), [(6, "Mul <broadcast = 1> (x, f)"), (7, "Mul (x, f)")])
def test_factors_are_folded_from_opset_7_on(opset: int, factor: str) -> None:
    expected = ["Mul"] if opset < 7 else ["Affine"]
    check(f"y = {factor}", expected, {"f": of_channels(1, 2, 3, 4)}, IMAGE, opset=opset)


def test_parameters_that_do_not_fit_are_left_to_their_node() -> None:
    weights = {name: np.abs(floats(4, 3, 3, seed=seed)) for seed, name in enumerate("stmv", 1)}
    nodes = "y = BatchNormalization <spatial = 0> (x, s, t, m, v)"
    check(nodes, ["BatchNormalization"], weights, floats(2, 4, 3, 3), opset=8)


@BY_EVALUATOR
def test_a_model_without_the_default_domain() -> None:
    node = helper.make_node("Binarizer", ["x"], ["y"], domain="ai.onnx.ml", threshold=0.0)
    graph = helper.make_graph([node], "test", [value("x", shape=(3,))], [value("y", shape=(3,))])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 1)], ir_version=8)
    folded, _ = both(proto, [np.float32([-1, 0, 1])], ["Binarizer"])
    np.testing.assert_array_equal(folded, [0, 0, 1])


def test_a_function_with_the_name_of_an_operator() -> None:
    function = '<domain: "local", opset_import: ["" : 20]> CastLike (a) => (b) { b = Neg (a) }'
    x = floats(1, 2, 3)
    proto = model("y = local.CastLike (x)", ["x"], ["y"], 20, functions=[function], domains=["local"])
    np.testing.assert_array_equal(both(proto, [x], ["CastLike"])[0], -x)


# ---------------------------------------------------------------- what is rounded otherwise


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("with_bias", [True, False])
def test_batch_normalization_stays_within_the_bound_of_its_sum(op_type: str, with_bias: bool) -> None:
    """Each weight is rounded once more than in the sum of K terms, and the bias twice; all beside float64."""
    nodes = f"""c = {op_type} <group = 2, strides = [2, 1]> (x, w{", b" * with_bias})
                n = {BATCH_NORM}  p = Mul (n, f)  q = Sub (p, g)  y = Relu (q)"""
    shape = (6, 2, 3, 2) if op_type == "Conv" else (4, 3, 3, 2)
    weights = {"w": floats(*shape), "b": floats(6, seed=1), **batch_norm(6)}
    weights |= {"f": floats(1, 6, 1, 1, seed=20), "g": np.float32(0.25)}
    x = floats(2, 4, 5, 6, seed=2)
    folded, _ = both(model(nodes, [X], [Y], weights=weights), [x], [f"Fused{op_type}"])
    wide = {name: np.float64(array) for name, array in weights.items()}
    factor = wide["s"] / np.sqrt(wide["v"] + 1e-5) * wide["f"].reshape(-1)
    shift = (wide["t"] - wide["m"] * wide["s"] / np.sqrt(wide["v"] + 1e-5)) * wide["f"].reshape(-1) - 0.25
    shift = shift + wide["b"] * factor if with_bias else shift
    function = gpuconv.conv if op_type == "Conv" else gpuconv.conv_transpose
    channel = (slice(None), None, None)
    exact = factor[channel] * function(np.float64(x), wide["w"], group=2, strides=[2, 1]) + shift[channel]
    sums = function(np.abs(np.float64(x)), np.abs(wide["w"]), group=2, strides=[2, 1])
    bound = (np.prod(shape[1:]) + 3) * UNIT * (np.abs(factor[channel]) * sums + np.abs(shift[channel]))
    assert (np.abs(folded - np.maximum(exact, 0)) <= bound).all()
    assert (folded > 0).any()


def test_what_comes_before_a_convolution_becomes_one_node() -> None:
    nodes = "z = Neg (x)  n = BatchNormalization (z, s, t, m, v)  p = Mul (f, n)  q = Add (p, g)  y = Relu (q)"
    weights = {**batch_norm(4), "f": floats(4, 1, 1, seed=20), "g": floats(4, 1, 1, seed=21)}
    # A few roundings of numbers up to 10.
    check(nodes, ["Neg", "Affine"], weights, floats(2, 4, 5, 6), tolerance=1e-5)


@pytest.mark.parametrize(("dtype", "expected"), [(np.float16, "BatchNormalization"), (np.float64, "Affine")])
def test_parameters_of_another_type_than_x(dtype: Any, expected: str) -> None:
    """One number per channel is of the type of x, or there is none."""
    declared = {"inputs": [value("x", dtype, 4)], "outputs": [value("y", dtype, 4)]}
    x = floats(2, 4, 3, 3, dtype=dtype)
    nodes = "y = BatchNormalization (x, s, t, m, v)"
    assert check(nodes, [expected], batch_norm(4), x, **declared, opset=15, tolerance=1e-5).dtype == dtype


def test_a_bias_that_is_no_constant_keeps_its_convolution() -> None:
    weights = {"w": W, "f": floats(3, 1, 1, seed=1)}
    nodes, inputs = "c = Conv (x, w, b)  y = Mul (c, f)", [X, value("b", shape=(3,))]
    check(nodes, ["Conv", "Affine"], weights, IMAGE, floats(3, seed=2), inputs=inputs, tolerance=1e-6)
    check('c = Conv (x, w, "")  y = Mul (c, f)', ["Conv"], weights, IMAGE, tolerance=1e-5)


def test_names_that_are_taken_stay_theirs() -> None:
    nodes = f'c = Conv (x, w)  n = {BATCH_NORM}  y = Add (n, "n/weights")'
    inputs = [X, value("n/weights", shape=4), value("n/bias", shape=4)]
    feeds = IMAGE, floats(1, 3, 3, 3, seed=5), floats(1, 1, 1, 1)
    check(nodes, ["FusedConv"], {"w": W, **batch_norm(3)}, *feeds, inputs=inputs, tolerance=1e-5)


# ---------------------------------------------------------------- factors and shifts


@pytest.mark.parametrize(
    ("x_shape", "f_shape", "expected"),
    [
        ((2, 4), (1, 4), "Affine"),
        ((2, 4), (4,), "Affine"),
        ((2, 4), (2, 1), "Mul"),
        ((4,), (4,), "Mul"),  # its axis would be that of the images
        ((4,), (1,), "Mul"),
        ((1, 4, 4), (0, 1, 1), "Mul"),  # no elements
        ((2, 4, 4), (4, 1), "Affine"),
        ((2, 4, 4), (1, 4, 1), "Affine"),
        ((2, 4, 4), (4,), "Mul"),
        ((2, 4, 4), (4, 4), "Mul"),
        ((2, 4), (1, 1, 4), "Mul"),  # which has one more axis than x
    ],
)
def test_only_one_number_per_channel_is_a_factor(
    x_shape: tuple[int, ...], f_shape: tuple[int, ...], expected: str
) -> None:
    x, f = floats(*x_shape), floats(*f_shape, seed=1)
    declared = [value("x", shape=x_shape)], [value("y", shape=np.ndim(x * f))]
    folded, _ = both(model("y = Mul (x, f)", *declared, weights={"f": f}), [x], [expected])
    np.testing.assert_array_equal(folded, x * f)


@pytest.mark.parametrize(
    ("arithmetic", "expected"),
    [
        ("Add (x, f)", lambda x, f: x + f),
        ("Add (f, x)", lambda x, f: x + f),
        ("Sub (x, f)", lambda x, f: x - f),
        ("Sub (f, x)", lambda x, f: f - x),
        ("Mul (f, x)", lambda x, f: x * f),
        ("Div (x, f)", lambda x, f: x / f),
    ],
)
def test_arithmetic_on_either_side_of_a_convolution(arithmetic: str, expected: Any) -> None:
    """Powers of two and small integers, whose results are exact."""
    draw = np.random.default_rng(4)
    a, w = (draw.integers(-3, 4, shape).astype(np.float32) for shape in ((1, 4, 3, 3), (3, 4, 1, 1)))
    for f in (of_channels(2, -4, 0.5), np.float32(4)):
        proto = model(f"x = Conv (a, w)  y = {arithmetic}", [value("a", shape=4)], [Y], weights={"w": w, "f": f})
        types, (y,) = node_types(proto, [a])
        assert types == ["Conv"]
        np.testing.assert_array_equal(y, expected(np.einsum("mc,nchw->nmhw", w[:, :, 0, 0], a), f))


def test_shifts_leave_weights_as_they_are() -> None:
    """The convolution takes on constants of its own, and hands them on from node to node."""
    text = "v1 = Conv (v0, w)  v2 = Add (v1, n1)  v3 = Mul (v2, n2)  v4 = Sub (v3, n3)  v5 = Add (v4, n4)"
    nodes, draw = parse_nodes(text), np.random.default_rng(4)
    w, *numbers = (draw.integers(-3, 4, shape).astype(np.float32) for shape in ((3, 4, 1, 1), *[(3, 1, 1)] * 4))
    weights = {"w": w, **{f"n{at}": number for at, number in enumerate(numbers, 1)}}
    facts = {f"v{at}": Fact("float32", 4) for at in range(6)}
    once = fold(Graph(nodes[:2], weights, frozenset(["v2"]), NEWEST, facts))
    assert [len(once.nodes), once.constants[once.nodes[0].input[1]] is w] == [1, True]
    folded = fold(Graph(nodes, weights, frozenset(["v5"]), NEWEST, facts))
    (node,) = folded.nodes
    assert set(folded.constants) == set(node.input[1:])
    x = draw.integers(-3, 4, (1, 4, 3, 3)).astype(np.float32)
    declared = {"inputs": [value("v0", shape=(1, 4, 3, 3))], "outputs": [value("v5", shape=4)]}
    check(text, ["Conv"], weights, x, **declared)


def test_what_becomes_of_channels_is_the_same_in_blocks_and_at_once() -> None:
    channels = np.arange(1, 4, dtype=np.float32)
    for size in (1, 2**15):  # an image in one block, or a channel in each
        x = np.tile(np.float32([-2, 3]), (2, 3, size))
        for factor in (np.float32([2]), channels):
            for shift in (np.float32([-1]), -channels):
                expected = x * factor.reshape(-1, 1) + shift.reshape(-1, 1)
                np.testing.assert_array_equal(affine(x, factor, shift), expected)
                np.testing.assert_array_equal(affine(x, factor, shift, "relu"), np.maximum(expected, 0))


def test_one_channel_becomes_several_with_an_activation() -> None:
    """By the same steps as on a device."""
    x, factor, shift = np.float32([[[-2, 0, 3]]]), np.float32([1, 2]), np.float32([0, 1])
    expected = np.float32([[[-2, 0, 3], [-3, 1, 7]]])
    for activation, wanted in (
        (None, expected),
        ("relu", np.maximum(expected, 0)),
        (("leaky_relu", 0.5), np.where(expected < 0, expected / 2, expected)),
        (("clip", -2.5, 2), np.clip(expected, -2.5, 2)),
        (("clip", -2.5, math.inf), np.maximum(expected, -2.5)),
        (("clip", -math.inf, 2), np.minimum(expected, 2)),
    ):
        np.testing.assert_array_equal(affine(x, factor, shift, activation), wanted)


# ---------------------------------------------------------------- constants, and what is not known ahead


def test_a_value_that_is_needed_elsewhere_stays() -> None:
    z, weights = value("z", shape=4), {"w": W, "which": np.array(True)}
    relu = "c = Conv (x, w)  y = Relu (c)"
    check(relu, ["Conv", "Relu"], weights, IMAGE, outputs=[Y, value("c", shape=4)])
    check("c = Conv (x, w)  y = Add (c, c)", ["Conv", "Add"], weights, IMAGE)
    check(f"{relu}  z = Neg (c)", ["Conv", "Relu", "Neg"], weights, IMAGE, outputs=[Y, z])
    choice = branching("z", "which", "t = Neg (c)", result="float[A, B, C, D] t")
    check(f"{relu}  {choice}", ["Conv", "Relu", "If"], weights, IMAGE, outputs=[Y, z])


def test_bounds_that_are_computed_stay() -> None:
    nodes, inputs = "c = Conv (x, w)  y = Clip (c, low)", [X, value("low", shape=())]
    check(nodes, ["Conv", "Clip"], {"w": W}, IMAGE, np.array(0.5, np.float32), inputs=inputs)


def test_weights_that_the_caller_gives_are_used() -> None:
    weights = {"w": W, **batch_norm(3)}
    inputs = [X, *(value(name, shape=array.shape) for name, array in weights.items())]
    proto = model(f"c = Conv (x, w)  y = {BATCH_NORM}", inputs, [Y], weights=weights)
    given = {"x": IMAGE, "s": floats(3, seed=30)}
    rep = backend.prepare(proto)
    first, changed = rep.run([IMAGE])[0], rep.run(given)[0]
    np.testing.assert_array_equal(changed, backend.prepare(proto, fold=False).run(given)[0])
    assert not np.allclose(first, changed)
    np.testing.assert_allclose(rep.run([IMAGE])[0], first, rtol=1e-5, atol=1e-5)  # not folded any more


@BY_EVALUATOR
def test_what_is_constant_is_computed_once() -> None:
    constant = "n = Constant <value_ints = [3, 4, 1, 1]> ()  w = ConstantOfShape <value = float[1] {0.5}> (n)"
    noisy = f"{constant}  noise = RandomUniform <shape = [1]> ()  c = Conv (x, w)  y = Mul (c, noise)"
    assert node_types(model(noisy, [X], [Y]), [IMAGE])[0] == ["RandomUniform", "Conv", "Mul"]
    types, (w,) = node_types(model(constant, [], [value("w", shape=4)]), [])
    assert types == []
    np.testing.assert_array_equal(w, np.full((3, 4, 1, 1), 0.5, np.float32))


def test_a_type_that_is_known_is_enough_for_a_cast_to_it() -> None:
    """Of CastLike's second input only the type counts, and of the first one the elements."""
    x, weights = np.float64([0.5, 1.5]), {"k": np.array([3])}
    for nodes, expected, kind, result in (
        ("c = CastLike (k, x)  y = Add (x, c)", ["Add"], np.float64, [3.5, 4.5]),
        ("c = CastLike (x, k)  y = Identity (c)", ["CastLike", "Identity"], np.int64, [0, 1]),
    ):
        declared = {"inputs": [value("x", np.float64, 1)], "outputs": [value("y", kind, 1)]}
        y = check(nodes, expected, weights, x, **declared)
        assert (y.dtype, y.tolist()) == (kind, result)


def test_a_cast_to_a_type_that_is_not_known_stays() -> None:
    cast, constants = parse_nodes("y = CastLike (k, u)"), {"k": np.ones(1, np.float32)}
    graph = Graph(cast, constants, frozenset(["y"]), 22, {"k": Fact("float32", 1)})
    assert [node.op_type for node in fold(graph).nodes] == ["CastLike"]
    folded = fold(Graph(cast, constants, frozenset(["y"]), 22, {"u": Fact("int64", 1)}))
    assert folded.nodes == []
    assert folded.constants["y"].dtype == np.int64


def test_attributes_that_a_call_gives_are_not_known_ahead() -> None:
    conv, leaky = parse_nodes("c = Conv (x, w)  y = LeakyRelu <alpha : float = @slope> (c)")
    graph = Graph([conv, leaky], {"w": np.ones((1, 1, 1), np.float32)}, frozenset(["y"]), 22)
    assert [node.op_type for node in fold(graph).nodes] == ["Conv", "LeakyRelu"]
    del leaky.attribute[:]
    assert [node.op_type for node in fold(graph).nodes] == ["FusedConv"]


def test_errors_of_folded_nodes_name_them() -> None:
    inputs, weights = [value("x", shape=4), value("z", shape=4)], {"w": W, "f": np.float32(2)}
    added = backend.prepare(model("[first] c = Conv (x, w)  y = Add (c, z)", inputs, [Y], weights=weights))
    scaled = backend.prepare(model("[first] c = Conv <group = 0> (x, w)  y = Mul (c, f)", [X], [Y], weights=weights))
    for rep, shapes, message in (
        (added, [(1, 2, 5, 5), (1, 3, 5, 5)], "x has 2 channels"),
        (added, [(1, 4, 5, 5), (1, 2, 5, 5)], r"what is added has the shape \(1, 2, 5, 5\)"),
        (scaled, [(1, 4, 5, 5)], "group must be at least 1"),
    ):
        with pytest.raises(gpuconv.ArgumentError, match=f"^Conv node 'first': {message}"):
            rep.run([floats(*shape) for shape in shapes])
