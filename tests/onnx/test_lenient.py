"""Models that onnx's checker refuses, but ONNX Runtime runs: they run here with the same values, and a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

import gpuconv
from gpuconv.onnx import backend
from gpuconv.onnx.checks.constants import MOST_SPARSE
from tests.onnx.models import branching, floats, model, value
from tests.onnx.networks import onnxruntime_run

X, W = floats(1, 3, 8, 6), floats(3, 3, 3, 3, seed=1)
Change = Callable[[ModelProto], Any]


def network() -> ModelProto:
    """Make a network that nothing is wrong with, of IR version 8 and opset 17."""
    nodes = "[conv] c = Conv <pads = [1, 1, 1, 1]> (x, w)  [relu] y = Relu (c)"
    return model(nodes, [value("x", shape=(1, 3, "H", "W"))], [value("y", shape=(1, 3, "H", "W"))], 17, {"w": W})


def changed(change: Change) -> ModelProto:
    proto = network()
    change(proto)
    return proto


def heard(run: Callable[[], Any]) -> tuple[Any, list[str]]:
    """Return a function's result and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = run()
    assert all(warning.filename == __file__ for warning in caught)
    return result, [str(warning.message) for warning in caught]


def check_beside_onnxruntime(proto: ModelProto, *messages: str) -> None:
    """Compare the outputs of a model with ONNX Runtime's, and its warnings with the beginnings of messages."""
    expected = onnxruntime_run(proto, {"x": X})
    results, said = heard(lambda: backend.run_model(proto, [X]))
    for result, other in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, other, rtol=1e-5, atol=1e-5)
    assert len(said) == len(messages)
    for text, beginning in zip(said, messages, strict=True):
        assert text.startswith(beginning)


# --- extents ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["?", "None", "", "-1", " ", "unk__12", "2*N"])
def test_an_extent_without_a_name_is_unknown(name: str) -> None:
    def rename(proto: ModelProto) -> None:
        proto.graph.input[0].CopyFrom(value("x", shape=(name,) * 4))  # as Paddle2ONNX writes "?" on every axis
        proto.graph.output[0].CopyFrom(value("y", shape=(name,) * 4))

    proto = changed(rename)
    check_beside_onnxruntime(proto)
    assert backend.prepare(proto).inputs[0].shape == (None,) * 4


def test_extents_of_one_name_that_differ_are_told_of_once() -> None:
    proto = changed(lambda proto: proto.graph.input[0].CopyFrom(value("x", shape=("N", 3, "batch", "batch"))))
    rep = backend.prepare(proto)
    results, said = heard(lambda: [rep.run(X), rep.run(X)])
    assert said == [
        "run: axis 3 of 'x' is 6 and axis 2 of 'x' is 8, but the model names both 'batch'; it is run all the same"
    ]
    np.testing.assert_allclose(results[1][0], onnxruntime_run(proto, {"x": X})[0], rtol=1e-5, atol=1e-5)


def test_an_input_that_is_declared_without_axes_may_have_some() -> None:
    proto = model([helper.make_node("Abs", ["x"], ["y"])], [value("x", shape=())], [value("y", shape=())], 17)
    rep = backend.prepare(proto)
    results, said = heard(lambda: [rep.run(X[0, 0, 0]), rep.run(X[0, 0, 1])])
    np.testing.assert_array_equal(results[0][0], onnxruntime_run(proto, {"x": X[0, 0, 0]})[0])
    assert said == ["run: the input 'x' (float32 ()) was given with shape (6,), which is taken as it is"]
    assert not heard(lambda: backend.prepare(proto).run(X[0, 0, 0, 0]))[1]


# --- what the checker refuses -----------------------------------------------------------------------------------------


def _without_shape(proto: ModelProto, values: str) -> None:
    getattr(proto.graph, values)[0].type.tensor_type.ClearField("shape")


_VAGUE = "the model does not say of what type and shape these inputs and outputs are, so anything fits: "
_FIXABLE: dict[str, tuple[Change, tuple[str, ...]]] = {
    "an input without a shape": (lambda proto: _without_shape(proto, "input"), (f"{_VAGUE}'x'",)),
    "an output without a shape": (lambda proto: _without_shape(proto, "output"), (f"{_VAGUE}'y'",)),
    "an output without a type": (lambda proto: proto.graph.output[0].ClearField("type"), (f"{_VAGUE}'y'",)),
    "an intermediate value": (lambda proto: proto.graph.output.append(ValueInfoProto(name="c")), (f"{_VAGUE}'c'",)),
    "a graph without a name": (lambda proto: proto.graph.ClearField("name"), ("the model has a graph without a name",)),
    "an initializer without a name": (lambda proto: proto.graph.initializer.append(numpy_helper.from_array(W)),
        ("the model has an initializer without a name, which nothing can read; it is left out",)),
    "initializers that are no inputs": (lambda proto: setattr(proto, "ir_version", 3),
        ("the model has initializers that are no inputs, which IR version 3 does not allow: 'w'",)),
    "imports of opsets": (
        lambda proto: setattr(proto, "ir_version", 2),
        (
            "the model has initializers that are no inputs, which IR version 2 does not allow: 'w'",
            "the model imports opsets, which IR version 2 does not allow",
        ),
    ),
    "metadata twice": (
        lambda proto: proto.metadata_props.extend([onnx.StringStringEntryProto(key="k", value=v) for v in "ab"]),
        ("the model has the key 'k' more than once in its metadata",),
    ),
    "a bare type": (lambda proto: proto.graph.value_info.append(ValueInfoProto(name="c")), ()),
    "an output of another shape": (lambda proto: proto.graph.output[0].CopyFrom(value("y", shape=(2, 9))), ()),
}  # fmt: skip


@pytest.mark.parametrize("name", _FIXABLE)
def test_what_cannot_change_a_result_is_a_warning(name: str) -> None:
    change, messages = _FIXABLE[name]
    check_beside_onnxruntime(changed(change), *messages)


@pytest.mark.parametrize("field", ["type", "elem_type"])
def test_an_input_without_a_type_takes_anything(field: str) -> None:
    def clear(proto: ModelProto) -> None:
        declared = proto.graph.input[0]
        (declared if field == "type" else declared.type.tensor_type).ClearField(field)

    results, said = heard(lambda: backend.run_model(changed(clear), [X]))
    np.testing.assert_array_equal(results[0], backend.run_model(network(), [X])[0])
    assert said == [f"{_VAGUE}'x'"]


def test_a_declared_shape_that_is_wrong_changes_no_result() -> None:
    factor = floats(6, seed=2)  # along the last axis, which would be the channels of a value with two axes
    nodes = [helper.make_node("Abs", ["x"], ["a"]), helper.make_node("Mul", ["a", "f"], ["y"])]
    outputs = [value("a", shape=(3, 6)), value("y", shape=4)]
    proto = model(nodes, [value("x", shape=4)], outputs, 17, {"f": factor})
    np.testing.assert_array_equal(backend.run_model(proto, [X])["y"], np.abs(X) * factor)


def test_the_model_of_the_caller_stays_as_it_is() -> None:
    proto = changed(lambda proto: proto.graph.output.append(ValueInfoProto(name="c")))
    before = proto.SerializeToString()
    heard(lambda: backend.prepare(proto))
    assert proto.SerializeToString() == before


def test_sparse_initializers_have_their_zeros() -> None:
    dense = np.where(np.abs(W) > 1, W, 0)
    places = np.flatnonzero(dense)
    for indices in (places, np.stack(np.unravel_index(places, W.shape), axis=1)):
        values = numpy_helper.from_array(dense.ravel()[places], "w")
        sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(indices.astype(np.int64)), W.shape)
        proto = network()
        del proto.graph.initializer[:]
        proto.graph.sparse_initializer.append(sparse)
        np.testing.assert_array_equal(backend.run_model(proto, [X])[0], np.maximum(gpuconv.conv(X, dense, pads=1), 0))
    proto.graph.sparse_initializer[0].dims[:] = [MOST_SPARSE + 1, 1, 1, 1]
    with pytest.raises(
        gpuconv.ArgumentError, match=f"of {MOST_SPARSE + 1} elements together, .* {MOST_SPARSE} at most"
    ):
        backend.prepare(proto)


# --- the order of nodes -----------------------------------------------------------------------------------------------


def _reverse(nodes: Any) -> None:
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del nodes[:]
    nodes.extend(reversed(copies))


def test_nodes_out_of_order_are_sorted() -> None:
    proto = changed(lambda proto: _reverse(proto.graph.node))
    message = "the model has nodes out of order, which are sorted now (Relu node 'relu': its input 'c' is "
    check_beside_onnxruntime(proto, message)
    seen: list[str] = []
    rep, _ = heard(lambda: backend.prepare(proto, fold=False))
    rep.run(X, observer=lambda node, *_: seen.append(node.op_type))
    assert seen == ["Conv", "Relu"]


def test_nodes_wait_for_what_graphs_inside_of_them_read() -> None:
    choice = branching("y", "k", "t = Neg (n)  n = Exp (c)", result="float[A, B, C, D] t")
    nodes, weights = f"{choice}  c = Conv <pads = [1, 1, 1, 1]> (x, w)", {"w": W, "k": np.array(True)}
    proto = model(nodes, [value("x", shape=4)], [value("y", shape=4)], 17, weights)
    results, said = heard(lambda: backend.run_model(proto, [X]))
    np.testing.assert_allclose(results[0], -np.exp(gpuconv.conv(X, W, pads=1)))
    assert len(said) == 1


def test_nodes_keep_their_places_where_they_can() -> None:
    names = [("b", "c"), ("x", "a"), ("a", "b"), ("x", "d"), ("d", "y")]
    nodes = [helper.make_node("Abs", [read], [made]) for read, made in names]
    seen: list[str] = []
    rep, _ = heard(lambda: backend.prepare(model(nodes, ["x"], ["y", "c"]), fold=False))
    rep.run(floats(1, 1, 1), observer=lambda node, *_: seen.append(node.output[0]))
    assert seen == ["a", "b", "c", "d", "y"]


def test_nodes_of_functions_are_sorted() -> None:
    function = '<domain: "local", opset_import: ["" : 17]> F (i) => (t) { t = Neg (n)  n = Exp (i) }'
    declared = [value("x", shape=4)], [value("y", shape=4)]
    proto = model("y = local.F (x)", *declared, 17, functions=[function], domains=["local"])
    results, said = heard(lambda: backend.run_model(proto, [X]))
    np.testing.assert_array_equal(results[0], -np.exp(X))
    assert len(said) == 1


def test_a_graph_inside_sees_its_own_initializer_first() -> None:
    inner = [numpy_helper.from_array(np.float32(2), "w")]
    branch = helper.make_graph([helper.make_node("Add", ["c", "w"], ["t"])], "b", [], [value("t", shape=4)], inner)
    choice = helper.make_node("If", ["k"], ["z"], then_branch=branch, else_branch=branch)

    def add(proto: ModelProto) -> None:
        proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "k"))
        proto.graph.node.append(choice)
        proto.graph.output.append(value("z", shape=4))

    check_beside_onnxruntime(changed(add))


# --- what stays refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda proto: proto.graph.node[0].input.__setitem__(0, "y"),
            "nodes need each other's outputs, in a cycle: (Conv node 'conv', Relu node 'relu'|Relu .*, Conv .*)$",
            id="cycle"),
        pytest.param(lambda proto: proto.graph.node.append(helper.make_node("Abs", ["c"], ["y"], name="twin")),
            "Abs node 'twin': its output 'y' is there already; rename one of the two$", id="output"),
        pytest.param(lambda proto: proto.graph.input.append(proto.graph.input[0]), "the model is not valid: .*'x'",
            id="input"),
        pytest.param(lambda proto: proto.graph.initializer.append(proto.graph.initializer[0]),
            "the model is not valid: the initializer 'w' is there twice; keep one of them$", id="initializer"),
        pytest.param(lambda proto: setattr(proto.graph.initializer[0], "raw_data", b"abcd"),
            "the model is not valid: the initializer 'w': .* size 1 into shape", id="too few numbers"),
        pytest.param(lambda proto: proto.graph.initializer[0].float_data.append(1),
            "the model is not valid: the initializer 'w': it has values in float_data and in raw_data",
            id="numbers in two places"),
        pytest.param(lambda proto: proto.graph.initializer[0].dims.__setitem__(0, -1),
            r"the model is not valid: the initializer 'w': its shape \(-1, 3, 3, 3\) has a negative extent$",
            id="negative extent"),
        pytest.param(lambda proto: setattr(proto.graph.initializer[0], "data_type", 0),
            "the model is not valid: the initializer 'w': .*UNDEFINED", id="no type"),
    ],
)  # fmt: skip
def test_what_changes_results_is_refused_by_name(change: Change, message: str) -> None:
    with pytest.raises(gpuconv.ArgumentError, match=f"^{message}"):
        backend.prepare(changed(change))
