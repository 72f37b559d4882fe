"""Whole models: convolutions among other operators, in graphs and functions, and the lifetime of values."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

import gpuconv
from gpuconv.onnx import backend, steps
from tests.onnx.models import NEWEST, floats, model, network, pool, value


@pytest.mark.parametrize("opset", [8, 10, 11, 12, 22, NEWEST])
def test_a_network_of_our_operators_and_others(opset: int) -> None:
    proto, w = network(opset)
    x = floats(2, 3, 8, 6)
    c = np.maximum(gpuconv.conv(x, w["w"], w["b"], pads=[1, 1, 1, 1]), 0)
    p, i = gpuconv.max_pool(c, kernel_shape=[2, 2], strides=[2, 2], return_indices=True)
    outputs = backend.run_model(proto, [x])
    np.testing.assert_array_equal(outputs["y"], 2 * gpuconv.conv_transpose(p, w["v"], strides=[2, 2]))
    np.testing.assert_array_equal(outputs[1], i)


def test_a_model_of_the_newest_opset_of_the_installed_onnx() -> None:
    """Each operator of gpuconv, with disjoint windows of two."""
    newest = onnx.defs.onnx_opset_version()
    tile: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p", "i"], **tile),
        helper.make_node("MaxUnpool", ["p", "i"], ["u"], **tile),
        helper.make_node("Conv", ["u", "w"], ["c"], **tile),
        helper.make_node("ConvTranspose", ["c", "w"], ["y"], **tile),
    ]
    graph = helper.make_graph(
        nodes,
        "newest",
        [value("x", shape=(1, 1, 2, 4))],
        [value(name, shape=4) for name in "ucy"],
        [onnx.numpy_helper.from_array(np.array([[[[1, 2], [3, 4]]]], np.float32), "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", newest)])  # also of the newest format
    x = np.array([[[[5, 1, 0, 2], [3, 2, 6, 1]]]], np.float32)
    for fold in (True, False):
        u, c, y = backend.prepare(proto, fold=fold).run([x])
        assert u[0, 0].tolist() == [[5, 0, 0, 0], [0, 0, 6, 0]]
        assert c[0, 0].tolist() == [[5, 18]]
        assert y[0, 0].tolist() == [[5, 10, 18, 36], [15, 20, 54, 72]]


@pytest.mark.parametrize("opset", [1, 6])
def test_a_network_of_the_first_opsets(opset: int) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w", ""], ["c"], kernel_shape=[3]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2]),
        helper.make_node("ConvTranspose", ["p", "v"], ["y"]),
    ]
    w, v, x = floats(2, 3, 3), floats(2, 1, 2, seed=1), floats(1, 3, 9, seed=2)
    (y,) = backend.run_model(model(nodes, ["x"], ["y"], opset, {"w": w, "v": v}), x)
    p = gpuconv.max_pool(np.maximum(gpuconv.conv(x, w), 0), kernel_shape=[2])
    np.testing.assert_array_equal(y, gpuconv.conv_transpose(p, v))


def test_one_rep_runs_again_and_again() -> None:
    proto, _ = network(NEWEST)
    rep = backend.prepare(proto)
    first = rep.run([floats(1, 3, 8, 6)])
    rep.run([floats(2, 3, 4, 4)])
    np.testing.assert_array_equal(rep.run([floats(1, 3, 8, 6)])[0], first[0])


def test_bfloat16_runs_through() -> None:
    w = floats(2, 3, 2, dtype=ml_dtypes.bfloat16)
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=onnx.TensorProto.BFLOAT16),
        helper.make_node("Conv", ["h", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["y"], kernel_shape=[2]),
    ]
    outputs = [value("y", ml_dtypes.bfloat16)]
    x = floats(1, 3, 9, seed=1)
    (y,) = backend.run_model(model(nodes, ["x"], outputs, 22, {"w": w}), [x])
    c = gpuconv.conv(x.astype(ml_dtypes.bfloat16), w)
    assert y.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(y, gpuconv.max_pool(np.maximum(c, 0), kernel_shape=[2]))


def test_our_operators_compute_inside_if_with_values_from_outside() -> None:
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("ConvTranspose", ["h", "w"], ["t"], output_shape=[size], group=2)], name, [], [value("t")]
        )
        for name, size in (("then", 5), ("else", 7))
    }
    nodes = [
        helper.make_node("Relu", ["x"], ["h"]),
        helper.make_node("If", ["which"], ["y"], **branches),
        helper.make_node("Neg", ["y"], ["z"]),
    ]
    w, x = floats(4, 3, 2), floats(1, 4, 5, seed=1)
    rep = backend.prepare(model(nodes, [value("which", np.bool_, ()), "x"], ["z"], weights={"w": w}))
    for which, size in ((True, 5), (False, 7)):
        expected = -gpuconv.conv_transpose(np.maximum(x, 0), w, group=2, output_shape=[size])
        np.testing.assert_array_equal(rep.run([np.array(which), x])[0], expected)


def test_refusals_inside_if_keep_their_type_and_name_the_node() -> None:
    node = helper.make_node("Conv", ["x", "w"], ["t"], name="inner")
    branch = helper.make_graph([node], "branch", [], [value("t")])
    choice = helper.make_node("If", ["which"], ["y"], then_branch=branch, else_branch=branch)
    proto = model([choice], [value("which", np.bool_, ()), "x", value("w", np.float64)], ["y"])
    with pytest.raises(gpuconv.ArgumentTypeError, match=r"^Conv node 'inner': w has dtype float64, but x has float32"):
        backend.run_model(proto, [np.array(True), floats(1, 1, 4), floats(1, 1, 2, dtype=np.float64)])


def test_our_operators_compute_inside_functions_with_their_attributes() -> None:
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], group=2)
    node.attribute.add(name="output_shape", type=onnx.AttributeProto.INTS, ref_attr_name="size")
    function = helper.make_function("local", "Up", ["x", "w"], ["y"], [node], [helper.make_opsetid("", 12)], ["size"])
    calls = [
        helper.make_node("Up", ["x", "w"], ["a"], domain="local", size=[5]),
        helper.make_node("Up", ["x", "w"], ["b"], domain="local", size=[7]),
    ]
    x, w = floats(1, 4, 5), floats(4, 3, 2, seed=1)
    domains = [helper.make_opsetid("local", 1)]
    proto = model(calls, ["x", "w"], ["a", "b"], 12, functions=[function], domains=domains)
    outputs = backend.run_model(proto, [x, w])
    for name, size in (("a", 5), ("b", 7)):
        np.testing.assert_array_equal(outputs[name], gpuconv.conv_transpose(x, w, group=2, output_shape=[size]))
    with pytest.raises(gpuconv.ArgumentError, match=r"ConvTranspose node with output 'y': no entry of output_shape"):
        backend.run_model(_with_size(proto, -1), [x, w])


def _with_size(proto: onnx.ModelProto, size: int) -> onnx.ModelProto:
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    changed.graph.node[0].attribute[0].ints[:] = [size]
    return changed


def test_operators_of_the_table_compute_inside_functions_with_their_attributes() -> None:
    nodes = [helper.make_node("LeakyRelu", ["x"], ["a"]), helper.make_node("Concat", ["x", "a"], ["y"])]
    nodes[0].attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    nodes[1].attribute.add(name="axis", type=onnx.AttributeProto.INT, ref_attr_name="along")
    imports, names = [helper.make_opsetid("", 16)], ["slope", "along"]
    function = helper.make_function("local", "Both", ["x"], ["y"], nodes, imports, names)
    x = floats(2, 3, 4)
    for slope, along in ((0.5, 0), (-2.0, 2)):
        call = helper.make_node("Both", ["x"], ["y"], domain="local", slope=slope, along=along)
        proto = model([call], ["x"], ["y"], 16, functions=[function], domains=[helper.make_opsetid("local", 1)])
        expected = np.concatenate([x, np.where(x < 0, np.float32(slope) * x, x)], axis=along)
        np.testing.assert_array_equal(backend.run_model(proto, [x])[0], expected)


def test_fused_operators_are_those_of_one_domain() -> None:
    for op_type in ("FusedConv", "Affine"):
        assert steps.find(helper.make_node(op_type, ["x", "w"], ["y"], domain="com.microsoft"), 16) is None
    assert steps.find(helper.make_node("Affine", ["x", "f", "s"], ["y"], domain=steps.DOMAIN), 16) is not None
    assert steps.find(helper.make_node("Neg", ["x"], ["y"], domain=steps.DOMAIN), 16) is None


def test_an_output_that_is_left_out_does_not_become_an_optional_input() -> None:
    nodes = [
        helper.make_node("Dropout", ["x"], ["d", ""]),
        helper.make_node("Conv", ["d", "w", ""], ["y"]),
    ]
    x, w = floats(1, 1, 4), floats(1, 1, 2, seed=1)
    (y,) = backend.run_model(model(nodes, ["x", "w"], ["y"]), [x, w])
    np.testing.assert_array_equal(y, gpuconv.conv(x, w))


def test_the_default_domain_may_be_written_out() -> None:
    proto = pool(12)
    proto.opset_import[0].domain = proto.graph.node[0].domain = "ai.onnx"
    np.testing.assert_array_equal(backend.run_model(proto, floats(1, 1, 4))[0].shape, (1, 1, 3))
    np.testing.assert_array_equal(backend.run_node(proto.graph.node[0], [floats(1, 1, 4)])[0].shape, (1, 1, 3))
    assert proto.graph.node[0].domain == "ai.onnx", "the caller's model stays as it is"


def test_models_older_than_opset_imports_are_of_opset_1() -> None:
    proto = pool(1, ir_version=2)
    np.testing.assert_array_equal(backend.run_model(proto, floats(1, 1, 4))[0].shape, (1, 1, 3))
    with pytest.raises(gpuconv.ArgumentError, match=r"needs opset 10, but the model imports opset 1"):
        backend.prepare(pool(1, ir_version=2, ceil_mode=1))


def test_infinities_raise_no_warning() -> None:
    x = value("x", shape=1)
    nodes = [helper.make_node("Exp", ["x"], ["e"]), helper.make_node("Log", ["x"], ["y"])]
    outputs = backend.run_model(model(nodes, [x], [value("e", shape=1), value("y", shape=1)]), np.float32([1e3, 0]))
    np.testing.assert_array_equal(outputs["e"], [np.inf, 1])
    np.testing.assert_array_equal(outputs["y"], np.float32([np.log(np.float32(1e3)), -np.inf]))


def test_the_observer_sees_every_node_in_order() -> None:
    proto, _ = network(NEWEST)
    calls: list[tuple[Any, int, int, float]] = []
    backend.prepare(proto, fold=False).run([floats(1, 3, 4, 4)], observer=lambda *call: calls.append(call))
    assert [node.op_type for node, _, _, _ in calls] == ["Conv", "Relu", "MaxPool", "ConvTranspose", "Add"]
    assert [index for _, index, _, _ in calls] == [0, 1, 2, 3, 4]
    assert {count for _, _, count, _ in calls} == {5}
    assert all(0 < seconds < 60 for _, _, _, seconds in calls)


def test_values_are_freed_after_their_last_use() -> None:
    names = ["x", *(f"v{n}" for n in range(20)), "y"]
    nodes = [helper.make_node("Neg", [a], [b]) for a, b in pairwise(names)]
    nodes += [helper.make_node("Neg", ["v0"], [f"unused{n}"]) for n in range(20)]
    nodes.append(helper.make_node("Shape", ["v0"], ["s"]))  # v0 is needed until the end, the remaining 39 are not
    rep = backend.prepare(model(nodes, ["x"], ["y", value("s", np.int64, 1)]))
    x = np.zeros((1, 1, 2**18), np.float32)
    tracemalloc.start()
    try:
        rep.run([x])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4.5 * x.nbytes
