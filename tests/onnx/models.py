"""Small ONNX models for the tests of gpuconv.onnx."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from onnx.backend.test import loader

from gpuconv.onnx import backend, operators
from gpuconv.onnx.evaluator import Evaluator
from gpuconv.onnx.operators.form import NARROW

BY_EVALUATOR = pytest.mark.filterwarnings("ignore:.* is left to onnx's reference evaluator:UserWarning")
NEWEST = onnx.defs.onnx_opset_version()


def floats(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    """Seeded random values of any float dtype, bfloat16 included."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


def value(name: str, dtype: Any = np.float32, shape: int | Sequence[int | str | None] | None = 3) -> ValueInfoProto:
    """Declare a tensor; a number for its shape is that of axes of any extent, None leaves the shape open."""
    dims = [None] * shape if isinstance(shape, int) else shape
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), dims)


def tensors(folder: Path, kind: str) -> list[Any]:
    """Read the arrays of kind "input" or "output" from one of ONNX's folders of test data."""
    count = len(list(folder.glob(f"{kind}_*.pb")))
    return [numpy_helper.to_array(onnx.load_tensor(folder / f"{kind}_{n}.pb")) for n in range(count)]


def data_of(test: Any) -> tuple[ModelProto, list[tuple[list[Any], list[Any]]]]:
    """Return the model of one of ONNX's test cases with its inputs and outputs, which older versions keep in files."""
    if test.model is not None:
        return test.model, [(list(inputs), list(outputs)) for inputs, outputs in test.data_sets]
    folder = Path(test.model_dir)
    data = [(tensors(item, "input"), tensors(item, "output")) for item in sorted(folder.glob("test_data_set_*"))]
    return onnx.load(folder / "model.onnx"), data


@pytest.fixture
def referred(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Operators of the nodes that go to the reference evaluator from now on."""
    names: list[str] = []
    method = Evaluator.by_reference

    def spy(self: Evaluator, node: Any, *arguments: Any) -> Any:
        names.append(node.onnx_node.op_type)
        return method(self, node, *arguments)

    monkeypatch.setattr(Evaluator, "by_reference", spy)
    return names


@lru_cache
def node_tests() -> dict[str, Any]:
    """ONNX's node tests by their names, without "test_" in front."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of onnx's operators, while expected results are computed
        return {test.name.removeprefix("test_"): test for test in loader.load_model_tests(kind="node")}


def parsed(text: str, opset: int = 22, domains: Sequence[str] = ()) -> ModelProto:
    """Return a model, given in ONNX's text form without its header; other domains have version 1."""
    imports = ", ".join([f'"" : {opset}', *(f'"{domain}" : 1' for domain in domains)])
    return onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{imports}]>\n{text}")


def parse_nodes(text: str) -> list[NodeProto]:
    """Return the nodes of a graph in ONNX's text form, as "c = Conv <group = 2> (x, w)  y = Relu (c)"."""
    return list(onnx.parser.parse_graph(f"g () => () {{ {text} }}").node)


def branching(output: str, flag: str, then: str, otherwise: str = "", result: str = "float[A, B, C] t") -> str:
    """Return an If in text form, whose graphs make the result by these nodes; both are the same if one is given."""
    then, otherwise = (f"b () => ({result}) {{ {nodes} }}" for nodes in (then, otherwise or then))
    return f"{output} = If ({flag}) <then_branch = {then}, else_branch = {otherwise}>"


def node_of(op_type: str, inputs: Sequence[Any], outputs: int = 1, **attributes: Any) -> tuple[NodeProto, list[Any]]:
    """Return a node with an input for each value, where None leaves one out, and the values that are not None."""
    names = ["" if value is None else f"x{at}" for at, value in enumerate(inputs)]
    node = helper.make_node(op_type, names, [f"y{at}" for at in range(outputs)], **attributes)
    return node, [np.asarray(value) if np.isscalar(value) else value for value in inputs if value is not None]


def run(
    op_type: str, inputs: Sequence[Any], opset: int = NEWEST, outputs: int = 1, device: str = "CPU", **attributes: Any
) -> Any:
    """Compute one node, whose inputs of None are left out; return its output, or a list of several."""
    node, given = node_of(op_type, inputs, outputs, **attributes)
    results = list(backend.run_node(node, given, device, opset_version=opset))
    return results[0] if outputs == 1 else results


def model(
    nodes: Sequence[NodeProto] | str,
    inputs: Sequence[ValueInfoProto | str],
    outputs: Sequence[ValueInfoProto | str],
    opset: int = NEWEST,
    weights: Mapping[str, Any] | None = None,
    **fields: Any,
) -> ModelProto:
    """Make a model of nodes, or of their text; inputs and outputs given by name are float32 tensors of three axes.

    Functions may be texts, too; domains are names, all of version 1.
    """
    graph = helper.make_graph(
        parse_nodes(nodes) if isinstance(nodes, str) else nodes,
        "test",
        [value(item) if isinstance(item, str) else item for item in inputs],
        [value(item) if isinstance(item, str) else item for item in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(name, 1) for name in fields.pop("domains", ()))]
    functions = [
        onnx.parser.parse_function(one) if isinstance(one, str) else one for one in fields.pop("functions", ())
    ]
    return helper.make_model(graph, opset_imports=imports, functions=functions, **{"ir_version": 8, **fields})


def pool(
    opset: int = NEWEST,
    dtype: Any = np.float32,
    outputs: Sequence[str] = ("y",),
    ir_version: int = 8,
    **attributes: Any,
) -> ModelProto:
    """Make a model of one MaxPool of kernel 2, named "pool", over x of shape (1, 1, N)."""
    node = helper.make_node("MaxPool", ["x"], outputs, **{"kernel_shape": [2], "name": "pool", **attributes})
    declared = [value(name, kind) for name, kind in zip(outputs, (dtype, np.int64), strict=False)]
    proto = model([node], [value("x", dtype, (1, 1, "N"))], declared, opset, ir_version=ir_version)
    if ir_version < 3:
        proto.ClearField("opset_import")
    return proto


def network(opset: int) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Make Conv, Relu, MaxPool with Indices, ConvTranspose without bias and Add, with the outputs Y and Indices."""
    weights = {"w": floats(4, 3, 3, 3, seed=1), "b": floats(4, seed=2), "v": floats(4, 2, 2, 2, seed=3)}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p", "i"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("ConvTranspose", ["p", "v", ""], ["t"], strides=[2, 2]),
        helper.make_node("Add", ["t", "t"], ["y"]),
    ]
    inputs = [value("x", shape=("N", 3, "H", "W"))]
    return model(nodes, inputs, [value("y", shape=4), value("i", np.int64, 4)], opset, weights), weights


# Without those that have no inputs or no test of their own.
OPERATORS = sorted(set(operators.TABLE) - {"Constant", "GlobalLpPool", "Optional", "Upsample"})


CONTROL_TESTS = [
    *("if", "if_opt", "if_seq", "loop11", "loop13_seq", "loop16_seq_none"),
    *("scan9_multi_state", "scan9_scalar", "scan9_sum", "scan_sum"),
    *("sequence_map_identity_1_sequence", "sequence_map_identity_2_sequences", "sequence_map_extract_shapes"),
    *("sequence_map_identity_1_sequence_1_tensor", "sequence_map_add_2_sequences"),
    "sequence_map_add_1_sequence_1_tensor",
]


# Left to onnx's reference evaluator: training, text, sequences, floating-point numbers of 8 bits and fewer, and
# integers of fewer.
LEFT = {
    "BatchNormalization": ["training_mode"], "Cast": ["FLOAT8", "FLOAT4", "INT4", "INT2"],
    "CastLike": ["FLOAT8", "FLOAT4", "INT4", "INT2"], "Dropout": ["training"], "Equal": ["string"],
    "Identity": ["sequence", "opt"],
}  # fmt: skip


def is_left(op_type: str, test: Any) -> bool:
    return any(part in test.name for part in LEFT.get(op_type, ()))


def values(items: Any) -> list[Any]:
    found = [numpy_helper.to_array(item) if isinstance(item, TensorProto) else item for item in items]
    return [np.asarray(item) if isinstance(item, np.generic) else item for item in found]


def assert_expected(got: Any, expected: list[Any], test: Any) -> None:
    for actual, wanted in zip(got, expected, strict=True):
        if not isinstance(wanted, np.ndarray):
            assert repr(actual) == repr(wanted)
            continue
        assert type(actual) is np.ndarray
        assert (actual.dtype, actual.shape) == (wanted.dtype, wanted.shape)
        if wanted.dtype.kind in "OUT":
            np.testing.assert_array_equal(actual, wanted)
        else:
            pair = actual.astype(np.float64), wanted.astype(np.float64)
            # ONNX's own results of bfloat16 are rounded at every step: errors of two units in eight bits are fine.
            rtol = max(test.rtol, 2.0**-6) if wanted.dtype.name == "bfloat16" else test.rtol
            np.testing.assert_allclose(*pair, rtol=rtol, atol=test.atol, err_msg=test.name)


def on_host(node: NodeProto, opset: int, feeds: Sequence[Any]) -> set[int]:
    """Return the positions, among the inputs that are present, of those that stay on the host."""
    found = operators.find(node, opset)
    assert found is not None
    there = [at for at, name in enumerate(node.input) if name]
    reads = {position for position, at in enumerate(there) if at in found[0].on_host}
    return reads | {at for at, array in enumerate(feeds) if is_narrow(array)}


def is_narrow(array: Any) -> bool:
    """Return whether an array has a type that CuPy lacks."""
    return getattr(array, "dtype", np.dtype(np.float32)).name in NARROW
