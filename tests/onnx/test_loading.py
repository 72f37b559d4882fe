"""The forms in which a model may be given, and what is refused before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import gpuconv
from gpuconv import ArgumentError
from gpuconv.onnx import backend
from tests.onnx.models import BY_EVALUATOR, NEWEST, branching, floats, model, network, parse_nodes, pool, value

WEIGHTS = floats(20, 20, seed=1)


def test_a_model_may_be_a_proto_bytes_or_a_path(tmp_path: Path) -> None:
    proto, _ = network(NEWEST)
    path = tmp_path / "network.onnx"
    onnx.save(proto, path)
    x = floats(1, 3, 4, 4)
    expected = backend.run_model(proto, [x])[0]
    for source in (path, str(path), proto.SerializeToString()):
        np.testing.assert_array_equal(backend.run_model(source, [x])[0], expected)


def constant(name: str, array: Any, **fields: Any) -> onnx.NodeProto:
    made: onnx.NodeProto = helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array), **fields)
    return made


def with_constant(*others: onnx.NodeProto, outputs: tuple[str, ...] = ("y",)) -> onnx.ModelProto:
    nodes = [constant("w", WEIGHTS), helper.make_node("MatMul", ["x", "w"], ["y"]), *others]
    return model(nodes, ["x"], list(outputs))


def test_large_constants_are_initializers(tmp_path: Path) -> None:
    """They run the same with and without folding, and the caller's model is not changed."""
    proto, x = with_constant(), floats(1, 2, 20)
    before, path = proto.SerializeToString(), tmp_path / "model.onnx"
    onnx.save(proto, path)
    for source in (proto, before, path):
        rep = backend.prepare(source)
        np.testing.assert_allclose(rep.run([x])[0], x @ WEIGHTS, rtol=1e-5, atol=1e-6)
        assert rep.report().folded == ()
        assert [spec.name for spec in rep.get_inputs()] == ["x"]
    assert proto.SerializeToString() == before
    np.testing.assert_array_equal(backend.prepare(proto, fold=False).run([x])[0], backend.prepare(proto).run([x])[0])


def test_large_constants_that_are_no_plain_ones() -> None:
    """Constants that are outputs, used in subgraphs, or not one array of float32 are computed like any node."""
    x = floats(1, 2, 20)
    y, w = backend.prepare(with_constant(outputs=("y", "w"))).run([x])
    np.testing.assert_array_equal(w, WEIGHTS)
    (choice,) = parse_nodes(branching("z", "which", "t = Neg (w)", result="float[A, B] t"))
    proto = with_constant(constant("which", np.array(True)), choice, outputs=("y", "z"))
    np.testing.assert_array_equal(backend.prepare(proto).run([x])[1], -WEIGHTS)
    for typed in (WEIGHTS.astype(np.float64), WEIGHTS.astype(np.float16)):
        proto = model([constant("w", typed), helper.make_node("Cast", ["w"], ["z"], to=1)], ["x"], ["z"])
        np.testing.assert_array_equal(backend.prepare(proto).run([x])[0], typed.astype(np.float32))
    numbers = helper.make_tensor("w", 1, WEIGHTS.shape, WEIGHTS.ravel().tolist())
    proto = with_constant()
    proto.graph.node[0].attribute[0].t.CopyFrom(numbers)
    np.testing.assert_array_equal(backend.prepare(proto).run([x])[0], y)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda graph: graph.node.append(constant("w", WEIGHTS)), "its output 'w' is there already"),
        (lambda graph: graph.initializer.append(numpy_helper.from_array(WEIGHTS, "w")), "'w' is there already"),
        (lambda graph: graph.input.append(value("w", shape=2)), "'w' is there already"),
        (lambda graph: graph.node[0].input.append("x"), "Constant"),
        (lambda graph: graph.node[0].output.append("v"), "Constant"),
        (lambda graph: graph.node[0].attribute[0].t.dims.append(2), r"Constant node|is not valid"),
        (lambda graph: graph.node[0].attribute[0].t.dims.append(0), r"Constant node|is not valid"),
        (lambda graph: graph.node[0].attribute[0].t.float_data.append(1), "is not valid"),
        (lambda graph: graph.node[0].attribute.append(helper.make_attribute("other", 1)), "is not valid"),
    ],
)
def test_large_constants_are_checked(change: Any, message: str) -> None:
    proto = with_constant()
    change(proto.graph)
    with pytest.raises(ArgumentError, match=message):
        backend.prepare(proto)


def test_external_data_is_read_from_beside_the_path(tmp_path: Path) -> None:
    proto, _ = network(NEWEST)
    x = floats(1, 3, 4, 4)
    expected = backend.run_model(proto, [x])[0]
    path = tmp_path / "network.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    np.testing.assert_array_equal(backend.run_model(path, [x])[0], expected)
    with pytest.raises(ArgumentError, match=r"the model keeps the tensor '[wbv]' in another file; pass the path"):
        backend.prepare(path.read_bytes())
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ArgumentError, match=r"the model '.*network\.onnx' cannot be read: .*weights\.bin"):
        backend.prepare(path)


def test_files_that_are_no_models(tmp_path: Path) -> None:
    proto, _ = network(NEWEST)
    contents = proto.SerializeToString()
    cases = {
        "missing": (None, "cannot be read: .*No such file"),
        "text": (b"hello, this is no model\n", r"is not an ONNX model, or is truncated \(24 bytes\)"),
        "truncated": (contents[: len(contents) // 2], r"is not an ONNX model, or is truncated \(\d+ bytes\)"),
        "empty": (b"", "is not an ONNX model, or is truncated: it holds no graph"),
    }
    for name, (data, message) in cases.items():
        path = tmp_path / f"{name}.onnx"
        if data is not None:
            path.write_bytes(data)
            with pytest.raises(ArgumentError, match=f"^the model {message}"):
                backend.prepare(data)
        with pytest.raises(ArgumentError, match=rf"^the model '.*{name}\.onnx' {message}") as caught:
            backend.prepare(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(ArgumentError, match=r"cannot be read: .*directory"):
        backend.prepare(tmp_path)


def test_things_that_are_no_models() -> None:
    with pytest.raises(gpuconv.ArgumentTypeError, match=r"must be a ModelProto, bytes or a path, not GraphProto"):
        backend.prepare(pool().graph)  # type: ignore[arg-type]
    with pytest.raises(gpuconv.ArgumentTypeError, match=r"not NoneType"):
        backend.is_compatible(None)


def test_invalid_models_are_refused_in_one_line() -> None:
    proto = pool()
    proto.graph.node.append(helper.make_node("Relu", ["y"], ["z"], name="act", made_up=1))
    with pytest.raises(ArgumentError, match=r"^the model is not valid: .*made_up.*act") as caught:
        backend.prepare(proto)
    assert "\n" not in str(caught.value)
    assert not backend.is_compatible(proto)


def test_ir_versions_that_onnx_does_not_know() -> None:
    proto = pool(ir_version=onnx.IR_VERSION + 1)
    with pytest.raises(ArgumentError, match=rf"is of IR version {onnx.IR_VERSION + 1}, .* update onnx$"):
        backend.prepare(proto)


def test_opsets_that_onnx_does_not_know() -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"])], ["x"], ["y"])
    proto.opset_import[0].version = NEWEST + 1
    with pytest.raises(ArgumentError, match=f"imports opset {NEWEST + 1} .*knows opsets up to {NEWEST}"):
        backend.prepare(proto)
    proto.opset_import[0].version = 0
    with pytest.raises(ArgumentError, match=r"opset 0 .*the oldest one is 1"):
        backend.prepare(proto)


# --- opset features ---------------------------------------------------------------------------------------------------


def test_features_before_their_opset_are_found_by_prepare() -> None:
    assert backend.is_compatible(pool(10, ceil_mode=1))
    assert not backend.is_compatible(pool(9, ceil_mode=1))
    with pytest.raises(ArgumentError, match=r"^MaxPool node 'pool': the attribute ceil_mode needs opset 10, "):
        backend.prepare(pool(9, ceil_mode=1))
    with pytest.raises(ArgumentError, match=r"^MaxPool node 'pool': the output Indices needs opset 8, "):
        backend.prepare(pool(7, outputs=["y", "i"]))


@pytest.mark.parametrize(("dtype", "since"), [(np.int8, 12), (np.uint8, 12), (ml_dtypes.bfloat16, 22)])
def test_dtypes_before_their_opset_are_found_by_prepare(dtype: Any, since: int) -> None:
    backend.prepare(pool(since, dtype))
    with pytest.raises(ArgumentError, match=f"needs opset {since}, but the model imports opset {since - 1}"):
        backend.prepare(pool(since - 1, dtype))


def test_dtypes_of_weights_are_found_where_nothing_else_tells() -> None:
    node = helper.make_node("MaxPool", ["w"], ["y"], kernel_shape=[2])
    weights = {"w": np.zeros((1, 1, 4), np.uint8)}
    assert backend.is_compatible(model([node], [], [value("y", np.uint8)], 12, weights))
    assert not backend.is_compatible(model([node], [], [value("y", np.uint8)], 11, weights))


def test_dtypes_of_weights_and_of_intermediate_values_are_found_by_prepare() -> None:
    w = floats(1, 1, 2, dtype=ml_dtypes.bfloat16)
    x, y = value("x", ml_dtypes.bfloat16), value("y", ml_dtypes.bfloat16)
    for opset, fails in ((21, True), (22, False)):
        by_weight = model([helper.make_node("Conv", ["x", "w"], ["y"])], [x], [y], opset, {"w": w})
        nodes = [
            helper.make_node("Cast", ["x"], ["h"], to=onnx.TensorProto.BFLOAT16),
            helper.make_node("MaxPool", ["h"], ["y"], kernel_shape=[2]),
        ]
        by_inference = model(nodes, ["x"], [y], opset)
        for proto in (by_weight, by_inference):
            assert backend.is_compatible(proto) is not fails


def test_features_inside_graphs_and_functions_are_found_by_prepare() -> None:
    pool, inputs = "[inner] t = MaxPool <kernel_shape = [2], ceil_mode = 1> (x)", [value("which", np.bool_, ()), "x"]
    function = f'<domain: "local", opset_import: ["" : 9]> Pool (x) => (t) {{ {pool} }}'
    for proto in (
        model(branching("y", "which", pool), inputs, ["y"], 9),
        model("y = local.Pool (x)", ["x"], ["y"], 12, functions=[function], domains=["local"]),
    ):
        with pytest.raises(ArgumentError, match=r"^MaxPool node 'inner': the attribute ceil_mode needs opset 10"):
            backend.prepare(proto)


def test_values_that_nothing_makes() -> None:
    nothing = "its input 'w' is no input of the graph, no initializer, and no output of an earlier node"
    inside = branching("y", "which", "[c] t = Conv (x, w)")
    for nodes, inputs in (("[c] y = Conv (x, w)", ["x"]), (inside, ["x", value("which", np.bool_, ())])):
        with pytest.raises(ArgumentError, match=rf"^Conv node 'c': {nothing}$"):
            backend.prepare(model(nodes, inputs, ["y"]))


def test_operators_and_domains_that_nobody_knows() -> None:
    with pytest.raises(ArgumentError, match=r"^Frobnicate node 'f': 'Frobnicate' is no operator of the domain ''"):
        backend.prepare(model("[f] y = Frobnicate (x)", ["x"], ["y"]))
    with pytest.raises(ArgumentError, match=r"^Gelu node 'g': 'Gelu' is no operator of .* at opset 19$"):
        backend.prepare(model("[g] y = Gelu (x)", ["x"], ["y"], 19))
    other = helper.make_node("Relu", ["x"], ["y"], name="r", domain="vendor")
    with pytest.raises(ArgumentError, match=r"^Relu node 'r': the domain 'vendor' is not imported; .* are ''$"):
        backend.prepare(model([other], ["x"], ["y"]))
    domains = ["vendor"]
    with pytest.raises(ArgumentError, match=r"^Relu node 'r': neither gpuconv .* knows 'Relu' of domain 'vendor'"):
        backend.prepare(model([other], ["x"], ["y"], domains=domains))


def test_operators_that_the_evaluator_does_not_know() -> None:
    node = helper.make_node("MaxRoiPool", ["x", "r"], ["y"], name="m", pooled_shape=[1, 1])
    with pytest.raises(ArgumentError, match=r"^MaxRoiPool node 'm': neither .* \(opset imported: 9\)"):
        backend.prepare(model([node], [value("x", shape=4), value("r", shape=2)], [value("y", shape=4)], 9))


@BY_EVALUATOR
def test_failures_of_other_operators_name_the_node() -> None:
    inputs = [value("x", shape=1), value("z", shape=1)]
    proto = model([helper.make_node("Add", ["x", "z"], ["y"], name="sum")], inputs, [value("y", shape=1)])
    with pytest.raises(gpuconv.GpuconvError, match=r"^Add node 'sum': ValueError: .*\(2,\)"):
        backend.run_model(proto, [floats(2), floats(3)])
    proto = model("[c] y = CumProd (x, axis)", [value("x", shape=1), value("axis", np.int64, 0)], [value("y", shape=1)])
    with pytest.raises(gpuconv.GpuconvError, match=r"^CumProd node 'c': onnx's reference evaluator failed: .*axis"):
        backend.run_model(proto, [floats(2), np.array(5)])


def test_failures_of_our_operators_name_the_node() -> None:
    proto, _ = network(NEWEST)
    proto.graph.input[0].CopyFrom(value("x", shape=4))
    with pytest.raises(ArgumentError, match=r"^Conv node 'first': x has 5 channels, but w expects 3"):
        backend.run_model(proto, [floats(1, 5, 4, 4)])
