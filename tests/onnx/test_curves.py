"""Functions of one number on NumPy arrays, single and as chains: their results, and where they are written."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from gpuconv.onnx import backend
from gpuconv.onnx.model import load
from gpuconv.onnx.operators import special
from tests.onnx.models import floats, model, parse_nodes, run, value

SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 88.0, -88.0, 1e30, -1e30])
ERF_ULPS = 5

# In float64, and the largest error of float32: a few roundings of the result and of intermediate values.
EXACT: dict[str, tuple[dict[str, Any], Any, float]] = {
    "Sigmoid": ({}, lambda x: 1 / (1 + np.exp(-x)), 0),
    "Tanh": ({}, np.tanh, 0),
    "Elu": ({"alpha": 1.5}, lambda x: np.where(x < 0, 1.5 * np.expm1(x), x), 0),
    "Celu": ({"alpha": 1.5}, lambda x: np.where(x < 0, 1.5 * np.expm1(x / 1.5), x), 0),
    "Selu": ({"alpha": 1.5, "gamma": 2.0}, lambda x: 2 * np.where(x < 0, 1.5 * np.expm1(x), x), 0),
    "Mish": ({}, lambda x: x * np.tanh(np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0)), 2.0**-22),
    "Swish": ({"alpha": 1.5}, lambda x: x / (1 + np.exp(-1.5 * x)), 0),
    "LeakyRelu": ({"alpha": 0.1}, lambda x: np.where(x < 0, np.float32(0.1) * x, x), 0),
    "HardSigmoid": ({"alpha": 0.25, "beta": 0.375}, lambda x: np.clip(x / 4 + 0.375, 0, 1), 0),
    "HardSwish": ({}, lambda x: x * np.clip(x / 6 + 0.5, 0, 1), 2.0**-22),
    "Softplus": ({}, lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), 0),
    "Gelu": ({}, lambda x: x / 2 * (1 + np.array([math.erf(v / math.sqrt(2)) for v in x])), 2.0**-22),
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(special, "BLOCK", 100)


def _run(op_type: str, x: Any, attributes: dict[str, Any]) -> Any:
    with np.errstate(all="ignore"):
        return run(op_type, [x], 24, **attributes)


@pytest.mark.parametrize("op_type", EXACT)
def test_curves_beside_their_formulas_in_float64(op_type: str) -> None:
    attributes, formula, slack = EXACT[op_type]
    x = np.concatenate([floats(1237, seed=3) * 8, np.float32(SPECIAL)])
    with np.errstate(all="ignore"):
        exact = formula(x.astype(np.float64))
    y = _run(op_type, x, attributes)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, exact, rtol=2e-6, atol=max(slack * 30, 2e-38))
    np.testing.assert_allclose(_run(op_type, x.astype(np.float64), attributes), exact, rtol=1e-7, atol=1e-15)
    short = x.astype(ml_dtypes.bfloat16)
    rounded = _run(op_type, short.astype(np.float32), attributes).astype(short.dtype)
    assert _run(op_type, short, attributes).dtype == short.dtype
    np.testing.assert_array_equal(_run(op_type, short, attributes).astype(np.float32), rounded.astype(np.float32))


@pytest.mark.parametrize("alpha", [0.0, -0.5, 1.0, 3.0, math.inf])
def test_leaky_relu_multiplies_negative_numbers_and_no_others(alpha: float) -> None:
    x = np.concatenate([floats(210, seed=4), np.float32(SPECIAL)])
    with np.errstate(all="ignore"):
        expected = np.where(x < 0, x * np.float32(alpha), x)
    np.testing.assert_array_equal(_run("LeakyRelu", x, {"alpha": alpha}), expected)


def test_erf_is_within_its_bound_in_float32() -> None:
    draw = np.random.default_rng(5)
    sizes = np.concatenate([np.exp(draw.uniform(np.log(1e-38), np.log(6), 40_000)), draw.uniform(0, 4.5, 60_000)])
    x = np.float32(sizes * draw.choice([-1, 1], sizes.size))
    exact = np.array([math.erf(v) for v in x.tolist()])
    error = np.abs(_run("Erf", x, {}) - exact) / np.spacing(np.abs(exact).astype(np.float32))
    assert error.max() <= ERF_ULPS
    np.testing.assert_array_equal(_run("Erf", np.float32([np.inf, -np.inf, np.nan]), {}), np.float32([1, -1, np.nan]))
    assert np.signbit(_run("Erf", np.float32([-0.0]), {})[0])


# ---------------------------------------------------------------- chains

N = helper.make_node
NUMBERS = {"three": 3, "zero": 0, "six": 6, "root": math.sqrt(2), "one": 1, "half": 0.5}
CHAINS = {
    "SiLU": [N("Sigmoid", ["x"], ["s"]), N("Mul", ["x", "s"], ["y"])],
    "Gelu": [
        *(N("Div", ["x", "root"], ["a"]), N("Erf", ["a"], ["e"]), N("Add", ["e", "one"], ["f"])),
        *(N("Mul", ["x", "f"], ["g"]), N("Mul", ["g", "half"], ["y"])),
    ],
    "Gelu, halves first": [
        *(N("Mul", ["half", "x"], ["h"]), N("Div", ["x", "root"], ["a"]), N("Erf", ["a"], ["e"])),
        *(N("Add", ["one", "e"], ["f"]), N("Mul", ["h", "f"], ["y"])),
    ],
    "HardSwish": [
        *(N("Add", ["x", "three"], ["a"]), N("Clip", ["a", "zero", "six"], ["b"])),
        *(N("Mul", ["x", "b"], ["c"]), N("Div", ["c", "six"], ["y"])),
    ],
    "Mish": [N("Softplus", ["x"], ["a"]), N("Tanh", ["a"], ["b"]), N("Mul", ["b", "x"], ["y"])],
    "many values at a time": [
        *(N("Abs", ["x"], ["a"]), N("Neg", ["x"], ["b"]), N("Exp", ["x"], ["c"]), N("Max", ["a", "b", "c"], ["d"])),
        *(N("Sub", ["d", "x"], ["e"]), N("Clip", ["e", "", "six"], ["y"])),
    ],
}


def _chained(nodes: list[Any], shape: tuple[int, ...] = (2, 3, 5, 7), kind: Any = np.float32) -> onnx.ModelProto:
    used = {name for node in nodes for name in node.input}
    numbers = [numpy_helper.from_array(np.array(NUMBERS[name], kind), name) for name in sorted(used & set(NUMBERS))]
    proto = model(nodes, [value("x", kind, shape=shape)], [value("y", kind, shape=shape)])
    proto.graph.initializer.extend(numbers)
    return proto


def _types(proto: onnx.ModelProto, x: Any) -> tuple[list[str], Any]:
    seen: list[str] = []
    (y,) = backend.prepare(proto).run([x], observer=lambda node, *_: seen.append(node.op_type))
    return seen, y


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_one_node_and_changes_no_bit(name: str, kind: Any) -> None:
    proto, x = _chained(CHAINS[name], kind=kind), (floats(2, 3, 5, 7, seed=6) * 4).astype(kind)
    types, y = _types(proto, x)
    assert types == ["Chain"]
    (plain,) = backend.prepare(proto, fold=False).run([x])
    assert y.dtype == kind
    np.testing.assert_array_equal(y, plain)


def test_what_is_needed_elsewhere_or_comes_from_elsewhere_is_no_part_of_a_chain() -> None:
    two = [N("Sigmoid", ["x"], ["s"]), N("Mul", ["x", "s"], ["y"]), N("Identity", ["s"], ["z"])]
    proto = _chained(two)
    proto.graph.output.append(value("z", shape=4))
    assert [node.op_type for node in backend.prepare(proto)._evaluator.nodes_] == ["Sigmoid", "Mul", "Identity"]
    channels = numpy_helper.from_array(floats(3, 1, 1, seed=1), "w")
    for nodes in (
        [N("Exp", ["x"], ["a"]), N("Add", ["a", "w"], ["b"]), N("Tanh", ["b"], ["y"])],
        [N("Transpose", ["x"], ["t"], perm=[0, 1, 2, 3]), N("Add", ["x", "t"], ["b"]), N("Tanh", ["b"], ["y"])],
    ):
        proto = _chained(nodes)
        proto.graph.initializer.append(channels)
        assert "Chain" not in _types(proto, floats(2, 3, 5, 7))[0][:2]


def test_a_number_with_more_axes_than_the_value_adds_them() -> None:
    proto = _chained([N("Exp", ["x"], ["a"]), N("Mul", ["a", "w"], ["y"])], shape=(5,))
    proto.graph.initializer.append(numpy_helper.from_array(np.full((1, 1), 2, np.float32), "w"))
    proto.graph.output[0].CopyFrom(value("y", shape=2))
    types, y = _types(proto, np.zeros(5, np.float32))
    assert types == ["Exp", "Mul"]
    np.testing.assert_array_equal(y, np.full((1, 5), 2))


def test_of_a_value_whose_axes_are_not_known_only_numbers_without_axes_are_part_of_a_chain() -> None:
    """ONNX infers nothing of a mean's shape where its axes are an input."""
    x = floats(2, 3, 5, 7, seed=3)
    for shape, expected in (((), ["ReduceMean", "Chain"]), ((1,), ["ReduceMean", "Exp", "Mul"])):
        proto = _chained([N("ReduceMean", ["x", "axes"], ["r"]), N("Exp", ["r"], ["a"]), N("Mul", ["a", "w"], ["y"])])
        proto.graph.initializer.append(numpy_helper.from_array(np.full(shape, 2, np.float32), "w"))
        proto.graph.initializer.append(numpy_helper.from_array(np.array([2, 3]), "axes"))
        types, y = _types(proto, x)
        assert types == expected
        np.testing.assert_allclose(y, 2 * np.exp(x.mean((2, 3), keepdims=True)), rtol=1e-5)


def test_what_follows_a_number_of_the_model_has_known_axes() -> None:
    nodes = parse_nodes("i = Identity (x)  m = Mul (i, w)  s = Softmax (m)  y = Exp (s)")
    proto = _chained(nodes)
    proto.graph.initializer.append(numpy_helper.from_array(np.array(2, np.float32), "w"))
    facts = load(proto).facts
    assert [facts[name].rank for name in "imsy"] == [4, 4, 4, 4]


def test_a_chain_writes_over_the_convolution_before_it_and_over_nothing_else() -> None:
    w = numpy_helper.from_array(floats(3, 3, 1, 1, seed=8), "w")
    silu = [N("Sigmoid", ["c"], ["s"]), N("Mul", ["c", "s"], ["y"])]
    conv = N("Conv", ["x", "w"], ["c"])
    x = floats(2, 3, 5, 7, seed=9)
    for nodes, overwrites in (
        ([conv, *silu], {"y"}),
        ([N("Identity", ["x"], ["c"]), *silu], set()),
        ([conv, *silu[:1], N("Mul", ["c", "s"], ["m"]), N("Add", ["m", "c"], ["y"])], {"y"}),
        ([conv, *silu[:1], N("Mul", ["c", "s"], ["m"]), N("Concat", ["m", "c"], ["y"], axis=1)], set()),
    ):
        proto = _chained(nodes)
        proto.graph.initializer.append(w)
        proto.graph.output[0].CopyFrom(value("y", shape=4))
        rep, before = backend.prepare(proto), x.copy()
        assert rep._evaluator._joins.overwriting == overwrites
        for _ in range(2):
            (y,) = rep.run([x])
            np.testing.assert_array_equal(x, before)
            np.testing.assert_array_equal(y, backend.prepare(proto, fold=False).run([x])[0])


# ---------------------------------------------------------------- LayerNormalization as it was exported before opset 17


def _normalization(opset: int, axis: int = -1, keepdims: int = 1, power: float = 2, more: bool = False) -> Any:
    def mean(name: str, result: str) -> Any:
        if opset < 18:
            return N("ReduceMean", [name], [result], axes=[axis], keepdims=keepdims)
        return N("ReduceMean", [name, "axis"], [result], keepdims=keepdims)

    nodes = [
        *(mean("x", "m"), N("Sub", ["x", "m"], ["d"]), N("Pow", ["d", "power"], ["p"]), mean("p", "v")),
        *(N("Add", ["v", "epsilon"], ["e"]), N("Sqrt", ["e"], ["r"]), N("Div", ["d", "r"], ["n"])),
        *(N("Mul", ["n", "scale"], ["s"]), N("Add", ["bias", "s"], ["y"])),
    ]
    nodes += [N("Neg", ["d"], ["z"])] if more else []
    proto = model(nodes, [value("x", shape=(6, 6, 6))], [value("y", shape=3)], opset=opset)
    numbers = {"power": np.float32(power), "epsilon": np.float32([1e-5]), "axis": np.array([axis])}
    numbers |= {"scale": floats(6, seed=1), "bias": floats(6, seed=2)}
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), name) for name, a in numbers.items())
    if more:
        proto.graph.output.append(value("z", shape=3))
    return proto


@pytest.mark.parametrize(("opset", "axis"), [(13, -1), (17, 2), (18, -1), (21, -1)])
def test_the_nodes_of_a_layer_normalization_become_one(opset: int, axis: int) -> None:
    proto, x = _normalization(opset, axis), floats(6, 6, 6, seed=3)
    types, y = _types(proto, x)
    assert types == ["LayerNormalization"]
    exact = x - x.astype(np.float64).mean(axis=-1, keepdims=True)
    exact /= np.sqrt((exact * exact).mean(axis=-1, keepdims=True) + np.float32(1e-5))
    np.testing.assert_allclose(y, exact * floats(6, seed=1) + floats(6, seed=2), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("changed", [{"axis": 1}, {"keepdims": 0}, {"power": 3.0}, {"more": True}])
def test_what_is_no_layer_normalization_stays(changed: dict[str, Any]) -> None:
    proto, x = _normalization(13, **changed), floats(6, 6, 6, seed=3)
    types, y = (
        _types(proto, x)
        if not changed.get("more")
        else ([node.op_type for node in backend.prepare(proto)._evaluator.nodes_], backend.prepare(proto).run([x])[0])
    )
    assert "LayerNormalization" not in types
    np.testing.assert_array_equal(y, backend.prepare(proto, fold=False).run([x])[0])
