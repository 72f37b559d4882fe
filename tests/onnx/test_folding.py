"""Which nodes are folded into a convolution, which must not be, and how that changes results."""

from __future__ import annotations

import math
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
from tests.onnx.models import BY_EVALUATOR, NEWEST, floats, model, value

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


def batch_norm(channels: int, seed: int = 10, dtype: Any = np.float32) -> dict[str, Any]:
    scale, bias, mean, var = (floats(channels, seed=seed + n, dtype=dtype) for n in range(4))
    return {"s": scale, "t": bias, "m": mean, "v": np.abs(var) + dtype(0.1)}


ACTIVATIONS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("Relu", {}, []),
    ("LeakyRelu", {}, []),
    ("LeakyRelu", {"alpha": -0.5}, []),
    ("Clip", {}, []),
    ("Clip", {}, ["low"]),
    ("Clip", {}, ["", "high"]),
    ("Clip", {}, ["low", "high"]),
]


@pytest.mark.parametrize(("op_type", "attributes", "bounds"), ACTIVATIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_activation_changes_no_bit(op_type: str, attributes: dict[str, Any], bounds: list[str], dtype: Any) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 0, 1, 0], group=2),
        helper.make_node(op_type, ["c", *bounds], ["y"], **attributes),
    ]
    weights = {"w": floats(6, 2, 3, 3, dtype=dtype), "b": floats(6, seed=1, dtype=dtype)}
    weights |= {"low": np.array(-0.5, dtype), "high": np.array(1.5, dtype)}
    x = floats(2, 4, 5, 6, seed=2, dtype=dtype)
    x[0, 0, 0] = [np.nan, np.inf, -np.inf, -0.0, 0, 1]
    proto = model(nodes, [value("x", dtype, 4)], [value("y", dtype, 4)], 13, weights)
    folded, plain = both(proto, [x], ["FusedConv"])
    np.testing.assert_array_equal(folded, plain)
    assert np.isnan(folded).any()


@pytest.mark.parametrize("opset", [6, 7, 10, 11, NEWEST])
def test_clip_at_every_form_of_its_bounds(opset: int) -> None:
    clip = helper.make_node("Clip", ["c", "low", "high"] if opset >= 11 else ["c"], ["y"])
    if opset < 11:
        clip.attribute.extend([helper.make_attribute("min", -0.5), helper.make_attribute("max", 0.25)])
    weights = {"w": floats(3, 4, 1, 1), "low": np.float32(-0.5), "high": np.float32(0.25)}
    proto = model([helper.make_node("Conv", ["x", "w"], ["c"]), clip], [X], [Y], opset, weights)
    folded, plain = both(proto, [floats(1, 4, 3, 3)], ["FusedConv"])
    np.testing.assert_array_equal(folded, plain)
    assert (folded.min(), folded.max()) == (-0.5, 0.25)


def test_a_residual_and_an_activation_change_no_bit() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["x", "c"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("ConvTranspose", ["r", "w"], ["d"], pads=[1, 1, 1, 1]),
        helper.make_node("Sum", ["d", "x"], ["y"]),
    ]
    proto = model(nodes, [X], [Y], weights={"w": floats(4, 4, 3, 3)})
    folded, plain = both(proto, [floats(2, 4, 5, 5, seed=1)], ["FusedConv", "FusedConvTranspose"])
    np.testing.assert_array_equal(folded, plain)


def test_what_broadcasts_is_added_as_before() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Add", ["c", "z"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    proto = model(nodes, [X, value("z", shape=4)], [Y], weights={"w": floats(3, 4, 1, 1)})
    for shape in ((2, 3, 5, 5), (1, 3, 1, 5), (2, 1, 5, 1)):
        folded, plain = both(proto, [floats(2, 4, 5, 5), floats(*shape, seed=3)], ["FusedConv"])
        np.testing.assert_array_equal(folded, plain)
    folded, plain = both(proto, [floats(1, 4, 1, 1), floats(2, 3, 5, 5, seed=3)], ["FusedConv"])
    assert folded.shape == (2, 3, 5, 5)
    np.testing.assert_array_equal(folded, plain)


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("with_bias", [True, False])
def test_batch_normalization_stays_within_the_bound_of_its_sum(op_type: str, with_bias: bool) -> None:
    """Compared with float64: each weight is rounded once more than in the sum of K terms, and the bias twice more."""
    nodes = [
        helper.make_node(op_type, ["x", "w", "b"] if with_bias else ["x", "w"], ["c"], group=2, strides=[2, 1]),
        helper.make_node("BatchNormalization", ["c", "s", "t", "m", "v"], ["n"]),
        helper.make_node("Mul", ["n", "f"], ["p"]),
        helper.make_node("Sub", ["p", "g"], ["q"]),
        helper.make_node("Relu", ["q"], ["y"]),
    ]
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
    nodes = [
        helper.make_node("Neg", ["x"], ["z"]),
        helper.make_node("BatchNormalization", ["z", "s", "t", "m", "v"], ["n"]),
        helper.make_node("Mul", ["f", "n"], ["p"]),
        helper.make_node("Add", ["p", "g"], ["q"]),
        helper.make_node("Relu", ["q"], ["y"]),
    ]
    weights = {**batch_norm(4), "f": floats(4, 1, 1, seed=20), "g": floats(4, 1, 1, seed=21)}
    folded, plain = both(model(nodes, [X], [Y], weights=weights), [floats(2, 4, 5, 6)], ["Neg", "Affine"])
    np.testing.assert_allclose(folded, plain, rtol=1e-5, atol=1e-5)  # a few roundings of numbers up to 10


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
    nodes = [helper.make_node("Mul", ["x", "f"], ["y"])]
    x, f = floats(*x_shape), floats(*f_shape, seed=1)
    proto = model(nodes, [value("x", shape=x_shape)], [value("y", shape=np.ndim(x * f))], weights={"f": f})
    folded, _ = both(proto, [x], [expected])
    np.testing.assert_array_equal(folded, x * f)


def test_one_channel_may_become_several() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Mul", ["c", "f"], ["p"]),
        helper.make_node("Add", ["p", "g"], ["y"]),
    ]
    weights = {"w": floats(1, 4, 1, 1), "f": floats(3, 1, 1, seed=20), "g": floats(3, 1, 1, seed=21)}
    folded, plain = both(model(nodes, [X], [Y], weights=weights), [floats(2, 4, 5, 6)], ["Conv", "Affine"])
    assert folded.shape == (2, 3, 5, 6)
    np.testing.assert_array_equal(folded, plain)


def test_16_bit_weights_stay_as_they_are() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "s", "t", "m", "v"], ["n"]),
        helper.make_node("Relu", ["n"], ["y"]),
    ]
    weights = {"w": floats(3, 4, 1, 1, dtype=np.float16), **batch_norm(3, dtype=np.float16)}
    proto = model(nodes, [value("x", np.float16, 4)], [value("y", np.float16, 4)], weights=weights)
    folded, plain = both(proto, [floats(1, 4, 3, 3, dtype=np.float16)], ["Conv", "BatchNormalization", "Relu"])
    np.testing.assert_array_equal(folded, plain)


def test_statistics_that_are_not_finite_stay_as_they_are() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "s", "t", "m", "v"], ["y"], epsilon=0.0),
    ]
    weights = {"w": floats(3, 4, 1, 1), **batch_norm(3)}
    weights["v"][1] = 0
    folded, plain = both(model(nodes, [X], [Y], weights=weights), [floats(1, 4, 3, 3)], ["Conv", "BatchNormalization"])
    np.testing.assert_array_equal(folded, plain)
    assert not np.isfinite(folded[0, 1]).any()


def test_a_value_that_is_needed_elsewhere_stays() -> None:
    conv = helper.make_node("Conv", ["x", "w"], ["c"])
    relu = helper.make_node("Relu", ["c"], ["y"])
    weights = {"w": floats(3, 4, 1, 1)}
    x = floats(1, 4, 3, 3)
    both(model([conv, relu], [X], [value("c", shape=4), Y], weights=weights), [x], ["Conv", "Relu"])
    twice = helper.make_node("Add", ["c", "c"], ["y"])
    both(model([conv, twice], [X], [Y], weights=weights), [x], ["Conv", "Add"])
    other = helper.make_node("Neg", ["c"], ["z"])
    both(model([conv, relu, other], [X], [Y, value("z", shape=4)], weights=weights), [x], ["Conv", "Relu", "Neg"])
    branch = helper.make_graph([helper.make_node("Neg", ["c"], ["t"])], "branch", [], [value("t", shape=4)])
    choice = helper.make_node("If", ["which"], ["z"], then_branch=branch, else_branch=branch)
    proto = model([conv, relu, choice], [X], [Y, value("z", shape=4)], weights={**weights, "which": np.array(True)})
    both(proto, [x], ["Conv", "Relu", "If"])


def test_bounds_that_are_computed_stay() -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Clip", ["c", "low"], ["y"])]
    proto = model(nodes, [X, value("low", shape=())], [Y], weights={"w": floats(3, 4, 1, 1)})
    folded, plain = both(proto, [floats(1, 4, 3, 3), np.array(0.5, np.float32)], ["Conv", "Clip"])
    np.testing.assert_array_equal(folded, plain)


def test_weights_that_the_caller_gives_are_used() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "s", "t", "m", "v"], ["y"]),
    ]
    weights = {"w": floats(3, 4, 1, 1), **batch_norm(3)}
    inputs = [X, *(value(name, shape=array.shape) for name, array in weights.items())]
    proto = model(nodes, inputs, [Y], weights=weights)
    x, scale = floats(1, 4, 3, 3), floats(3, seed=30)
    rep = backend.prepare(proto)
    first = rep.run([x])[0]
    changed = rep.run({"x": x, "s": scale})[0]
    expected = backend.prepare(proto, fold=False).run({"x": x, "s": scale})[0]
    np.testing.assert_array_equal(changed, expected)
    assert not np.allclose(first, changed)
    np.testing.assert_allclose(rep.run([x])[0], first, rtol=1e-5, atol=1e-5)  # not folded any more


@BY_EVALUATOR
def test_what_is_constant_is_computed_once() -> None:
    nodes = [
        helper.make_node("Constant", [], ["n"], value_ints=[3, 4, 1, 1]),
        helper.make_node("ConstantOfShape", ["n"], ["w"], value=onnx.numpy_helper.from_array(np.float32([0.5]))),
        helper.make_node("RandomUniform", [], ["noise"], shape=[1]),
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Mul", ["c", "noise"], ["y"]),
    ]
    proto = model(nodes, [X], [Y])
    assert node_types(proto, [floats(1, 4, 3, 3)])[0] == ["RandomUniform", "Conv", "Mul"]
    constant = model(nodes[:2], [], [value("w", shape=4)])
    types, (w,) = node_types(constant, [])
    assert types == []
    np.testing.assert_array_equal(w, np.full((3, 4, 1, 1), 0.5, np.float32))


def test_names_that_are_taken_stay_theirs() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "s", "t", "m", "v"], ["n"]),
        helper.make_node("Add", ["n", "n/weights"], ["y"]),
    ]
    inputs = [X, value("n/weights", shape=4), value("n/bias", shape=4)]
    feeds = {"x": floats(1, 4, 3, 3), "n/weights": floats(1, 3, 3, 3, seed=5), "n/bias": floats(1, 1, 1, 1)}
    weights = {"w": floats(3, 4, 1, 1), **batch_norm(3)}
    folded, plain = both(model(nodes, inputs, [Y], weights=weights), feeds, ["FusedConv"])
    np.testing.assert_allclose(folded, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_what_broadcasts_is_added_in_float32(dtype: Any) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Add", ["c", "z"], ["a"]),
        helper.make_node("LeakyRelu", ["a"], ["y"], alpha=0.3),
    ]
    w, x, z = (floats(*shape, seed=n).astype(dtype) for n, shape in enumerate([(3, 4, 1, 1), (1, 4, 9, 9), (3, 1, 1)]))
    proto = model(nodes, [value("x", dtype, 4), value("z", dtype)], [value("y", dtype, 4)], weights={"w": w})
    (y,) = backend.prepare(proto).run([x, z])
    total = gpuconv.conv(x, w).astype(np.float32) + z.astype(np.float32)
    expected = np.where(total < 0, total * np.float32(0.3), total).astype(dtype)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, expected)


def test_errors_of_folded_nodes_name_them() -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], name="first"), helper.make_node("Add", ["c", "z"], ["y"])]
    proto = model(nodes, [value("x", shape=4), value("z", shape=4)], [Y], weights={"w": floats(3, 4, 1, 1)})
    rep = backend.prepare(proto)
    with pytest.raises(gpuconv.ArgumentError, match=r"^Conv node 'first': x has 2 channels"):
        rep.run([floats(1, 2, 5, 5), floats(1, 3, 5, 5)])
    with pytest.raises(gpuconv.ArgumentError, match=r"^Conv node 'first': what is added has the shape \(1, 2, 5, 5\)"):
        rep.run([floats(1, 4, 5, 5), floats(1, 2, 5, 5)])
    scaled = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="first", group=0),
        helper.make_node("Mul", ["c", "f"], ["y"]),
    ]
    weights = {"w": floats(3, 4, 1, 1), "f": np.float32(2)}
    with pytest.raises(gpuconv.ArgumentError, match=r"^Conv node 'first': group must be at least 1"):
        backend.prepare(model(scaled, [X], [Y], weights=weights)).run([floats(1, 4, 5, 5)])


def test_shifts_leave_weights_as_they_are() -> None:
    """The convolution gets its own constants, which are passed on from node to node."""
    kinds = ["Add", "Mul", "Sub", "Add"]
    nodes = [helper.make_node("Conv", ["v0", "w"], ["v1"])]
    nodes += [helper.make_node(kind, [f"v{at}", f"n{at}"], [f"v{at + 1}"]) for at, kind in enumerate(kinds, 1)]
    draw = np.random.default_rng(4)
    w, *numbers = (draw.integers(-3, 4, shape).astype(np.float32) for shape in ((3, 4, 1, 1), *[(3, 1, 1)] * 4))
    weights = {"w": w, **{f"n{at}": number for at, number in enumerate(numbers, 1)}}
    facts = {f"v{at}": Fact("float32", 4) for at in range(6)}
    once = fold(Graph(nodes[:2], weights, frozenset(["v2"]), NEWEST, facts))
    assert [len(once.nodes), once.constants[once.nodes[0].input[1]] is w] == [1, True]
    folded = fold(Graph(nodes, weights, frozenset(["v5"]), NEWEST, facts))
    (node,) = folded.nodes
    assert set(folded.constants) == set(node.input[1:])
    proto = model(nodes, [value("v0", shape=(1, 4, 3, 3))], [value("v5", shape=4)], weights=weights)
    x = draw.integers(-3, 4, (1, 4, 3, 3)).astype(np.float32)
    mended, plain = both(proto, [x], ["Conv"])
    np.testing.assert_array_equal(mended, plain)


@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_weights_that_are_not_finite_stay_where_something_is_added(number: float) -> None:
    w = floats(3, 4, 1, 1)
    w[1, 2] = number
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Add", ["c", "b"], ["y"])]
    proto = model(nodes, [X], [Y], weights={"w": w, "b": floats(3, 1, 1, seed=1)})
    folded, plain = both(proto, [floats(1, 4, 3, 3, seed=2)], ["Conv", "Add"])
    np.testing.assert_array_equal(folded, plain)


def test_weights_that_would_be_too_small_stay_as_they_are() -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Mul", ["c", "f"], ["y"])]
    x, weights = floats(1, 4, 3, 3) * np.float32(1e30), {"w": floats(3, 4, 1, 1) * np.float32(1e-15)}
    proto = model(nodes, [X], [Y], weights={**weights, "f": np.float32(1e-30)})
    folded, plain = both(proto, [x], ["Conv", "Mul"])
    np.testing.assert_array_equal(folded, plain)
    assert np.abs(folded).max() > 1e-16


def test_no_filters_have_no_factors() -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Mul", ["c", "f"], ["y"])]
    proto = model(nodes, [X], [Y], weights={"w": floats(0, 4, 1, 1), "f": np.float32(2)})
    folded, _ = both(proto, [floats(1, 4, 3, 3)], ["Conv", "Mul"])
    assert folded.shape == (1, 0, 3, 3)


@pytest.mark.parametrize(("dtype", "expected"), [(np.float16, "BatchNormalization"), (np.float64, "Affine")])
def test_parameters_of_another_type_than_x(dtype: Any, expected: str) -> None:
    """One number per channel has the type of x, or is absent."""
    node = helper.make_node("BatchNormalization", ["x", "s", "t", "m", "v"], ["y"])
    proto = model([node], [value("x", dtype, 4)], [value("y", dtype, 4)], 15, batch_norm(4))
    folded, plain = both(proto, [floats(2, 4, 3, 3, dtype=dtype)], [expected])
    assert folded.dtype == dtype
    np.testing.assert_allclose(folded, plain, rtol=1e-5, atol=1e-5)


def test_arguments_of_activations_that_are_no_plain_numbers() -> None:
    conv = helper.make_node("Conv", ["x", "w"], ["c"])
    weights, x = {"w": floats(3, 4, 1, 1), "low": np.float32([0.5])}, floats(1, 4, 3, 3)
    for node, expected in (
        (helper.make_node("Clip", ["c", "low"], ["y"]), ["FusedConv"]),
        (helper.make_node("LeakyRelu", ["c"], ["y"], alpha=math.nan), ["Conv", "LeakyRelu"]),
    ):
        folded, plain = both(model([conv, node], [X], [Y], 13, weights), [x], expected)
        np.testing.assert_array_equal(folded, plain)


@pytest.mark.parametrize("bounds", [["zero"], ["", "zero"], ["zero", "one"]])
def test_clip_leaves_zeros_as_they_are(bounds: list[str]) -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Clip", ["c", *bounds], ["y"])]
    weights = {"w": floats(3, 4, 1, 1), "zero": np.float32(-0.0), "one": np.float32(1)}
    folded, plain = both(model(nodes, [X], [Y], 13, weights), [np.zeros((1, 4, 3, 3), np.float32)], ["FusedConv"])
    np.testing.assert_array_equal(np.signbit(folded), np.signbit(plain))
    assert not np.signbit(folded).any()


@BY_EVALUATOR
def test_a_model_without_the_default_domain() -> None:
    node = helper.make_node("Binarizer", ["x"], ["y"], domain="ai.onnx.ml", threshold=0.0)
    graph = helper.make_graph([node], "test", [value("x", shape=(3,))], [value("y", shape=(3,))])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 1)], ir_version=8)
    folded, _ = both(proto, [np.float32([-1, 0, 1])], ["Binarizer"])
    np.testing.assert_array_equal(folded, [0, 0, 1])


def test_a_function_with_the_name_of_an_operator() -> None:
    body = [helper.make_node("Neg", ["a"], ["b"])]
    function = helper.make_function("local", "CastLike", ["a"], ["b"], body, [helper.make_opsetid("", 20)])
    node, domains = helper.make_node("CastLike", ["x"], ["y"], domain="local"), [helper.make_opsetid("local", 1)]
    x = floats(1, 2, 3)
    folded, _ = both(model([node], ["x"], ["y"], 20, functions=[function], domains=domains), [x], ["CastLike"])
    np.testing.assert_array_equal(folded, -x)


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


def test_prelu_with_one_slope_is_leaky_relu() -> None:
    """After a convolution, if a float32 attribute represents the slope exactly."""
    x = floats(2, 4, 3, 3)
    for kind, slope, expected in (
        (np.float32, np.full((1, 1), -0.3), ["FusedConv"]),
        (np.float32, np.full((), 0.3), ["FusedConv"]),
        (np.float64, np.full((1, 1, 1), 0.25), ["FusedConv"]),
        (np.float64, np.full((1,), 0.3), ["Conv", "PRelu"]),
        (np.float32, np.full((4, 1, 1), 0.25), ["Conv", "PRelu"]),
        (np.float32, np.full((1,), np.nan), ["Conv", "PRelu"]),
    ):
        nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("PRelu", ["c", "a"], ["y"])]
        weights = {"w": floats(4, 4, 1, 1, seed=1).astype(kind), "a": slope.astype(kind)}
        shapes = [value("x", kind, shape=("N", 4, "H", "W"))], [value("y", kind, shape=4)]
        np.testing.assert_array_equal(*both(model(nodes, *shapes, weights=weights), [x.astype(kind)], expected))


def test_a_type_that_is_known_is_enough_for_a_cast_to_it() -> None:
    """CastLike uses only the type of its second input, and only the elements of its first."""
    nodes = [helper.make_node("CastLike", ["k", "x"], ["c"]), helper.make_node("Add", ["x", "c"], ["y"])]
    proto = model(nodes, [value("x", np.float64, 1)], [value("y", np.float64, 1)], weights={"k": np.array([3])})
    y, _ = both(proto, [np.float64([0.5, 1.5])], ["Add"])
    assert (y.dtype, y.tolist()) == (np.float64, [3.5, 4.5])
    nodes = [helper.make_node("CastLike", ["x", "k"], ["c"]), helper.make_node("Identity", ["c"], ["y"])]
    proto = model(nodes, [value("x", np.float64, 1)], [value("y", np.int64, 1)], weights={"k": np.array([3])})
    y, _ = both(proto, [np.float64([0.5, 1.5])], ["CastLike", "Identity"])
    assert (y.dtype, y.tolist()) == (np.int64, [0, 1])


def test_sums_that_name_an_axis_stay() -> None:
    x, w, bias = floats(1, 4, 3, 3), floats(4, 4, 1, 1, seed=1), np.arange(4, dtype=np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Add", ["c", "r"], ["y"], broadcast=1, axis=1),
    ]
    proto = model(nodes, [X, value("r", shape=1)], [Y], 6, {"w": w})
    folded, plain = both(proto, [x, bias], ["Conv", "Add"])
    np.testing.assert_array_equal(folded, plain)
    np.testing.assert_allclose(folded, np.einsum("mc,nchw->nmhw", w[:, :, 0, 0], x) + bias[:, None, None], rtol=1e-5)


def test_parameters_that_do_not_fit_are_left_to_their_node() -> None:
    batch = helper.make_node("BatchNormalization", ["x", "s", "t", "m", "v"], ["y"], spatial=0)
    weights = {name: np.abs(floats(4, 3, 3, seed=seed)) for seed, name in enumerate("stmv", 1)}
    folded, plain = both(model([batch], [X], [Y], 8, weights), [floats(2, 4, 3, 3)], ["BatchNormalization"])
    np.testing.assert_array_equal(folded, plain)


def test_a_bias_that_is_no_constant_keeps_its_convolution() -> None:
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c"]), helper.make_node("Mul", ["c", "f"], ["y"])]
    weights = {"w": floats(3, 4, 1, 1), "f": floats(3, 1, 1, seed=1)}
    proto = model(nodes, [X, value("b", shape=(3,))], [Y], weights=weights)
    folded, plain = both(proto, [floats(1, 4, 3, 3), floats(3, seed=2)], ["Conv", "Affine"])
    np.testing.assert_allclose(folded, plain, rtol=1e-6)
    without = model([helper.make_node("Conv", ["x", "w", ""], ["c"]), nodes[1]], [X], [Y], weights=weights)
    folded, plain = both(without, [floats(1, 4, 3, 3)], ["Conv"])
    np.testing.assert_allclose(folded, plain, rtol=1e-5, atol=1e-6)


def test_factors_whose_product_would_be_too_small_stay_apart() -> None:
    tiny = np.full((4, 1, 1), 2.0**-100, np.float32)
    nodes = [helper.make_node("Mul", ["x", "f"], ["p"]), helper.make_node("Mul", ["p", "g"], ["y"])]
    x = np.full((1, 4, 1, 1), 2.0**120, np.float32)
    proto = model(nodes, [X], [Y], weights={"f": tiny, "g": tiny})
    folded, plain = both(proto, [x], ["Affine", "Affine"])
    assert folded.tolist() == plain.tolist() == [[[[2.0**-80]]] * 4]
    proto = model(nodes, [X], [Y], weights={"f": tiny, "g": 1 / tiny})
    folded, _ = both(proto, [x], ["Affine"])
    assert folded.tolist() == x.tolist()


@pytest.mark.parametrize(
    ("op_type", "names", "expected"),
    [
        ("Add", ["x", "f"], lambda x, f: x + f),
        ("Add", ["f", "x"], lambda x, f: x + f),
        ("Sub", ["x", "f"], lambda x, f: x - f),
        ("Sub", ["f", "x"], lambda x, f: f - x),
        ("Mul", ["f", "x"], lambda x, f: x * f),
        ("Div", ["x", "f"], lambda x, f: x / f),
    ],
)
def test_arithmetic_on_either_side_of_a_convolution(op_type: str, names: list[str], expected: Any) -> None:
    """With powers of two and small integers, whose results are exact."""
    conv = helper.make_node("Conv", ["a", "w"], ["x"])
    draw = np.random.default_rng(4)
    a, w = (draw.integers(-3, 4, shape).astype(np.float32) for shape in ((1, 4, 3, 3), (3, 4, 1, 1)))
    for f in (np.float32([2, -4, 0.5]).reshape(3, 1, 1), np.float32(4)):
        proto = model(
            [conv, helper.make_node(op_type, names, ["y"])], [value("a", shape=4)], [Y], weights={"w": w, "f": f}
        )
        (types, (y,)) = node_types(proto, [a])
        assert types == ["Conv"]
        np.testing.assert_array_equal(y, expected(np.einsum("mc,nchw->nmhw", w[:, :, 0, 0], a), f))


def test_a_constant_over_a_value_is_no_factor() -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Div", ["f", "c"], ["y"])]
    weights = {"w": np.ones((3, 4, 1, 1), np.float32), "f": np.float32([1, 2, 3]).reshape(3, 1, 1)}
    folded, _ = both(model(nodes, [X], [Y], weights=weights), [np.ones((1, 4, 1, 1), np.float32)], ["Conv", "Div"])
    assert folded.tolist() == [[[[0.25]], [[0.5]], [[0.75]]]]


def test_attributes_that_a_call_gives_are_not_known_ahead() -> None:
    conv, leaky = helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("LeakyRelu", ["c"], ["y"])
    leaky.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    graph = Graph([conv, leaky], {"w": np.ones((1, 1, 1), np.float32)}, frozenset(["y"]), 22)
    assert [node.op_type for node in fold(graph).nodes] == ["Conv", "LeakyRelu"]
    del leaky.attribute[:]
    assert [node.op_type for node in fold(graph).nodes] == ["FusedConv"]


def test_a_cast_to_a_type_that_is_not_known_stays() -> None:
    cast = helper.make_node("CastLike", ["k", "u"], ["y"])
    facts = {"k": Fact("float32", 1)}
    graph = Graph([cast], {"k": np.ones(1, np.float32)}, frozenset(["y"]), 22, facts)
    assert [node.op_type for node in fold(graph).nodes] == ["CastLike"]
    graph = Graph([cast], {"k": np.ones(1, np.float32)}, frozenset(["y"]), 22, {"u": Fact("int64", 1)})
    folded = fold(graph)
    assert folded.nodes == []
    assert folded.constants["y"].dtype == np.int64
