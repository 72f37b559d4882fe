"""Untrusted models: what they may read, how large and how deep they may be, and how they are refused."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, helper

import gpuconv
from gpuconv.onnx import backend, files
from gpuconv.onnx.checks.constants import MOST_SPARSE
from gpuconv.onnx.checks.structure import DEEPEST, MOST_FUNCTIONS, MOST_NODES
from gpuconv.onnx.messages import LONGEST
from gpuconv.onnx.operators import pooling
from gpuconv.rules import geometry
from tests.onnx.models import BY_EVALUATOR, NEWEST, branching, model, value

pytestmark = pytest.mark.slow

Run = Callable[..., str]
EVIL = "\x1b[2J\nname\u202e"
node = helper.make_node
FOREIGN = np.array([7, 8, 9, 10], np.float32)
LOCAL = ["local"]


def floats(name: str, shape: Any = (4,)) -> onnx.ValueInfoProto:
    return value(name, shape=shape)


def alone(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Python code in a separate process, which may crash or hang."""
    start = "import sys\nfrom gpuconv import ArgumentError\nfrom gpuconv.onnx import backend\n"
    command = [sys.executable, "-W", "ignore", "-c", start + code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


PREPARE = """
for path in sys.argv[1:]:
    try:
        backend.prepare(path)
    except ArgumentError as error:
        print(error)
"""


# --- data in other files ----------------------------------------------------------------------------------------------


def external(location: str, dtype: int = TensorProto.FLOAT) -> TensorProto:
    tensor = TensorProto(name="t", data_type=dtype, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return tensor


def attribute(name: str, kind: str, **content: Any) -> AttributeProto:
    return AttributeProto(name=name, type=AttributeProto.AttributeType.Value(kind), **content)


def with_attribute(made: NodeProto, *added: AttributeProto) -> NodeProto:
    made.attribute.extend(added)
    return made


def sums(constant: NodeProto) -> list[NodeProto]:
    return [constant, node("Add", ["x", "k"], ["y"])]


def function(*body: NodeProto, inputs: Any = ("a",), outputs: Any = ("b",), name: str = "F", **options: Any) -> Any:
    imports = [helper.make_opsetid("", NEWEST), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, list(inputs), list(outputs), list(body), imports, **options)


def calling(*functions: Any, **attributes: Any) -> ModelProto:
    call = node(functions[-1].name, ["x"], ["y"], domain="local", **attributes)
    return model([call], [floats("x")], [floats("y")], functions=functions, domains=LOCAL)


def models_with_external_data(location: str) -> Iterator[tuple[str, ModelProto]]:
    tensor = external(location)
    sparse = SparseTensorProto(dims=[4], values=tensor, indices=external(location, TensorProto.INT64))
    x, y, c = floats("x"), floats("y"), value("c", np.bool_, ())
    constant = with_attribute(node("Constant", [], ["k"]), attribute("value", "TENSOR", t=tensor))
    same = node("Identity", ["x"], ["y"])

    weights = model([node("Add", ["x", "t"], ["y"])], [x], [y])
    weights.graph.initializer.append(tensor)
    yield "an initializer", weights
    yield "a constant", model(sums(constant), [x], [y])
    untyped = with_attribute(node("Constant", [], ["k"]), AttributeProto(name="value", t=tensor))
    yield "an attribute without a type", model(sums(untyped), [x], [y])
    several = with_attribute(node("Constant", [], ["k"]), attribute("values", "TENSORS", tensors=[tensor]))
    yield "several tensors", model(sums(several), [x], [y])
    kept = with_attribute(node("Constant", [], ["k"]), attribute("sparse_value", "SPARSE_TENSOR", sparse_tensor=sparse))
    yield "a sparse tensor", model(sums(kept), [x], [y])
    kept = with_attribute(node("Constant", [], ["k"]), attribute("sparse", "SPARSE_TENSORS", sparse_tensors=[sparse]))
    yield "several sparse tensors", model(sums(kept), [x], [y])
    branch = helper.make_graph([constant, node("Add", ["x", "k"], ["o"])], "branch", [], [floats("o")])
    yield "a graph inside", model([node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)], [x, c], [y])
    added = with_attribute(node("Identity", ["x"], ["y"]), attribute("graphs", "GRAPHS", graphs=[branch]))
    yield "several graphs inside", model([added], [x], [y])
    body = [constant, node("Add", ["a", "k"], ["b"])]
    yield "a function", calling(function(*body))
    linked = with_attribute(node("Constant", [], ["k"]), attribute("value", "TENSOR", ref_attr_name="v"))
    default = function(linked, body[1], attribute_protos=[attribute("v", "TENSOR", t=tensor)])
    yield "a function's default", calling(default)
    called = calling(function(linked, body[1], attributes=["v"]))
    called.graph.node[0].attribute.append(attribute("v", "TENSOR", t=tensor))
    yield "an attribute of a call", called
    scattered = model([same], [x], [y])
    scattered.graph.sparse_initializer.append(sparse)
    yield "a sparse initializer", scattered
    trained = model([same], [x], [y])
    trained.training_info.add(initialization=weights.graph, algorithm=branch)
    yield "training", trained


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with a file that models may name."""
    (tmp_path / "foreign.bin").write_bytes(FOREIGN.tobytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", dict(models_with_external_data("foreign.bin")))
def test_a_model_in_memory_reads_no_file(here: Path, name: str) -> None:
    proto = dict(models_with_external_data("foreign.bin"))[name]
    for source in (proto, proto.SerializeToString()):
        with pytest.raises(
            gpuconv.ArgumentError, match=r"^the model keeps the tensor 't' in another file; pass the path"
        ):
            backend.prepare(source)


@pytest.mark.parametrize("name", dict(models_with_external_data("")))
def test_a_model_in_a_file_reads_its_own_folder_alone(here: Path, name: str) -> None:
    (here / "models").mkdir()
    (here / "models" / "link.bin").symlink_to(here / "foreign.bin")
    path = here / "models" / "model.onnx"
    for location in ("../foreign.bin", str(here / "foreign.bin"), "link.bin", "foreign.bin"):
        path.write_bytes(dict(models_with_external_data(location))[name].SerializeToString())
        with pytest.raises(gpuconv.ArgumentError, match="cannot be read"):
            backend.prepare(path)


@pytest.mark.parametrize(
    "name", ["an initializer", "a constant", "a graph inside", "a function", "an attribute of a call"]
)
@BY_EVALUATOR
def test_data_beside_a_model_is_read_wherever_it_belongs(here: Path, name: str) -> None:
    (here / "models").mkdir()
    path = here / "models" / "model.onnx"
    path.write_bytes(dict(models_with_external_data("beside.bin"))[name].SerializeToString())
    (here / "models" / "beside.bin").write_bytes((2 * FOREIGN).tobytes())
    feeds = {"x": np.ones(4, np.float32), "c": np.array(True)}
    rep = backend.prepare(path)
    given = {name: array for name, array in feeds.items() if name in {spec.name for spec in rep.inputs}}
    np.testing.assert_array_equal(rep.run(given)["y"], 2 * FOREIGN + 1)


@pytest.mark.parametrize("extension", ["json", "textproto"])
def test_models_in_text_read_their_own_folder_alone(here: Path, extension: str) -> None:
    (here / "models").mkdir()
    inside, outside = (here / "models" / f"{name}.{extension}" for name in ("inside", "outside"))
    for path, location in ((inside, "beside.bin"), (outside, "../foreign.bin")):
        proto = dict(models_with_external_data(location))["a constant"]
        path.write_bytes(onnx.serialization.registry.get(extension).serialize_proto(proto))
    (here / "models" / "beside.bin").write_bytes(FOREIGN.tobytes())
    np.testing.assert_array_equal(backend.run_model(inside, [np.zeros(4, np.float32)])[0], FOREIGN)  # type: ignore[arg-type]
    with pytest.raises(gpuconv.ArgumentError, match=r"outside of the model's folder"):
        backend.prepare(outside)


def test_a_node_on_its_own_reads_no_file(here: Path) -> None:
    constant = with_attribute(node("Constant", [], ["k"]), attribute("value", "TENSOR", t=external("foreign.bin")))
    with pytest.raises(gpuconv.ArgumentError, match=r"^the node keeps the tensor 't' in another file"):
        backend.run_node(constant, [])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_and_devices_are_no_models(here: Path) -> None:
    os.mkfifo(here / "pipe.onnx")
    proto = dict(models_with_external_data("pipe.onnx"))["an initializer"]
    (here / "model.onnx").write_bytes(proto.SerializeToString())
    said = alone(PREPARE, "pipe.onnx", "model.onnx", "/dev/zero").stdout
    assert said.count("Not a regular file") == 3


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_and_devices_are_no_inputs(here: Path, pool: str) -> None:
    os.mkfifo(here / "x.npy")
    code = (
        "from gpuconv.cli.main import main\nfor file in sys.argv[2:]:\n    main(['run', sys.argv[1], '--input', file])"
    )
    said = alone(code, pool, "x=x.npy", "x=/dev/zero").stderr
    assert said == "".join(f"gpuconv: error: --input x={file}: Not a regular file\n" for file in ("x.npy", "/dev/zero"))


# --- text -------------------------------------------------------------------------------------------------------------


NAMES = ["Relu", "node", "first", "second", "input", "extent", "attribute", "given", "weight", "called", "function"]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_are_no_text(tmp_path: Path, error: Run, name: str) -> None:
    body = with_attribute(node("LeakyRelu", ["a"], ["b"]), attribute("alpha", "FLOAT", ref_attr_name="attribute"))
    nodes = [
        node("Relu", ["input"], ["first"], name="node"),
        node("function", ["first"], ["called"], domain="local", attribute=0.5),
        node("Sum", ["called", "weight"], ["second"]),
        node("MaxPool", ["second"], ["y"], kernel_shape=[1], auto_pad="given"),
    ]
    proto = model(
        nodes,
        [value("input", shape=(1, 1, "extent"))],
        ["y"],
        weights={"weight": np.float32([1])},
        functions=[function(body, name="function", attributes=["attribute"])],
        domains=LOCAL,
    )
    data = proto.SerializeToString()
    assert name.encode() in data
    path = tmp_path / "model.onnx"
    path.write_bytes(data.replace(name.encode(), name[:-1].encode() + b"\xff"))
    with pytest.raises(gpuconv.ArgumentError, match=r"is not UTF-8 text|must be text"):
        backend.prepare(path)
    assert "text" in error("run", path)


def refused(source: Any, feeds: Any = None) -> str:
    """Return the message of the error that refuses a model, or with which it fails."""
    with pytest.raises(gpuconv.GpuconvError) as caught:
        backend.prepare(source).run(feeds)
    assert type(caught.value) in (gpuconv.ArgumentError, gpuconv.ArgumentTypeError, gpuconv.GpuconvError)
    return str(caught.value)


@pytest.mark.parametrize("length", [1, 50_000])
@pytest.mark.parametrize(
    "make",
    [
        lambda evil: (model([node("Conv", ["x"], ["y"], name=evil)], ["x"], ["y"]), None),
        lambda evil: (model([node("Add", ["x", evil], ["y"])], ["x"], ["y"]), None),
        lambda evil: (model([node(evil, ["x"], ["y"])], ["x"], ["y"]), None),
        lambda evil: (model([node("Relu", ["x"], ["y"], domain=evil)], ["x"], ["y"]), None),
        lambda evil: (model([node("Relu", ["x"], ["y"], **{evil: 1})], ["x"], ["y"]), None),
        lambda evil: (model([node("MaxPool", ["x"], ["y"], kernel_shape=[1], **{evil: 1})], ["x"], ["y"]), None),
        lambda evil: (model([node("Relu", ["x"], ["y"])], ["x"], ["y", evil]), None),
        lambda evil: (model([node("Relu", [evil], ["y"])], [evil], ["y"]), []),
        lambda evil: (model([node("Relu", [evil], ["y"])], [evil], ["y"]), {evil + evil: 1}),
        lambda evil: (model([node("Sum", list("abc"), ["y"])], [f"{evil}{n}" for n in range(99)], ["y"]), None),
        lambda evil: (model([node("Relu", ["x"], ["y"])], [value("x", shape=(evil, 1))], ["y"]), [np.float32([1])]),
        lambda evil: (model([node("Det", ["x"], ["y"], name=evil)], ["x"], ["y"]), [np.ones((1, 2, 3), np.float32)]),
        lambda evil: (model([node("Add", ["x", "x"], [evil])], ["x"], [evil]), [np.array(["text"])]),
        lambda evil: (Path("/nowhere") / evil[:200].replace("\n", "/"), None),
    ],
)
@BY_EVALUATOR
def test_names_reach_messages_escaped_and_clipped(make: Any, length: int) -> None:
    text = refused(*make(EVIL * length))
    assert 0 < len(text) <= LONGEST
    assert text.isprintable()


def test_a_long_name_leaves_the_message_its_end() -> None:
    text = refused(model([node("Add", ["x", "w"], ["y"], name="long" * 10_000)], ["x"], ["y"]))
    assert text.startswith("Add node 'longlong")
    assert text.endswith("…': its input 'w' is no input of the graph, no initializer, and no output of an earlier node")


# --- what functions and attributes refer to ---------------------------------------------------------------------------


def test_attributes_that_refer_to_nothing() -> None:
    linked = with_attribute(node("LeakyRelu", ["a"], ["b"]), attribute("alpha", "FLOAT", ref_attr_name="slope"))
    outside = model([linked], ["a"], ["b"])
    assert refused(outside) == (
        "LeakyRelu node with output 'b': its attribute 'alpha' refers to 'slope', an attribute that no function around "
        "it has"
    )
    assert "'slope', an attribute that its function has not" in refused(calling(function(linked, attributes=["other"])))
    with pytest.raises(gpuconv.ArgumentError, match="refers to 'slope'"):
        backend.run_node(linked, [np.ones(1, np.float32)])


@pytest.mark.parametrize(("given", "slope"), [({}, 0.5), ({"slope": 0.25}, 0.25)])
def test_defaults_of_a_function_s_attributes(given: dict[str, float], slope: float) -> None:
    linked = with_attribute(node("LeakyRelu", ["a"], ["b"]), attribute("alpha", "FLOAT", ref_attr_name="slope"))
    proto = calling(function(linked, attribute_protos=[helper.make_attribute("slope", 0.5)]), **given)
    x = np.float32([-8, 8, 0, -4])
    np.testing.assert_array_equal(backend.run_model(proto, [x])[0], np.where(x < 0, x * slope, x))


def test_functions_with_values_that_nothing_makes() -> None:
    made = node("Neg", ["a"], ["c"])
    assert refused(calling(function(made))) == "the function 'F': no node makes its output 'b'"
    assert "its input 'z' is no input of the function" in refused(calling(function(node("Add", ["a", "z"], ["b"]))))
    assert refused(model([made], ["a"], ["y"])) == "the graph 'test': no node makes its output 'y'"


def test_calls_with_another_number_of_inputs_and_outputs() -> None:
    both = function(node("Add", ["a", "z"], ["b"]), inputs=["a", "z"])
    assert refused(calling(both), [np.ones(4, np.float32)]).startswith("Add node with output 'b': ")
    proto = calling(function(node("Neg", ["a"], ["b"])))
    proto.graph.node[0].output.append("more")
    proto.graph.output[0].name = "more"
    assert "the output 'more'" in refused(proto, [np.ones(4, np.float32)])


def test_the_domain_of_folded_nodes_is_reserved() -> None:
    affine = node("Affine", ["x", "x", "x"], ["y"], domain="gpuconv")
    assert "the domain 'gpuconv' is reserved" in refused(model([affine], ["x"], ["y"]))
    domains = ["gpuconv"]
    assert "uses the domain 'gpuconv'" in refused(model([affine], ["x"], ["y"], domains=domains))
    proto = model(branching("z", "c", "t = gpuconv.Affine (x, x, x)"), ["x", value("c", np.bool_, ())], ["z"])
    assert "the domain 'gpuconv' is reserved" in refused(proto)
    with pytest.raises(gpuconv.ArgumentError, match="the domain 'gpuconv' is reserved"):
        backend.run_node(affine, [np.ones((1, 1, 1), np.float32)])


def test_attributes_of_another_type_than_the_operator_s() -> None:
    cast = with_attribute(node("Cast", ["x"], ["y"]), helper.make_attribute("to", 999))
    assert "Cast node with output 'y'" in refused(model([cast], ["x"], ["y"]))


def test_an_attribute_that_is_no_text_names_the_node() -> None:
    text = with_attribute(
        node("StringSplit", ["x"], ["y", "n"], name="split"), helper.make_attribute("delimiter", b"\xff")
    )
    outputs = [value("y", np.str_, 4), value("n", np.int64)]
    assert refused(model([text], [value("x", np.str_)], outputs)).startswith(
        "StringSplit node 'split' is not valid: 'utf-8' codec can't decode byte 0xff"
    )


# --- depth and size ---------------------------------------------------------------------------------------------------


def call(name: str, source: str, target: str) -> NodeProto:
    return node(name, [source], [target], domain="local")


def test_functions_that_call_themselves(tmp_path: Path) -> None:
    once = calling(function(call("F", "a", "b")))
    assert refused(once) == "the model is not valid: a function of it calls itself ('F' -> 'F')"
    twice = calling(function(call("G", "a", "b")), function(call("F", "a", "b"), name="G"))
    assert "calls itself ('G' -> 'F' -> 'G')" in refused(twice)
    default = helper.make_function(
        "ai.onnx", "F", ["a"], ["b"], [node("F", ["a"], ["b"])], [helper.make_opsetid("", 22)]
    )
    assert "calls itself ('F' -> 'F')" in refused(model([node("F", ["x"], ["y"])], ["x"], ["y"], functions=[default]))
    never = model([node("Neg", ["x"], ["y"])], ["x"], ["y"], functions=[function(call("F", "a", "b"))], domains=LOCAL)
    assert "calls itself" in refused(never)


def chain(length: int) -> ModelProto:
    functions = [function(node("Neg", ["a"], ["b"]), name="F1")]
    functions += [function(call(f"F{n - 1}", "a", "b"), name=f"F{n}") for n in range(2, length + 1)]
    return calling(*functions)


def test_functions_that_call_others_too_deep() -> None:
    x = np.ones(4, np.float32)
    np.testing.assert_array_equal(backend.run_model(chain(DEEPEST), [x])[0], -x)
    assert f"more than {DEEPEST} deep" in refused(chain(DEEPEST + 1))


def test_functions_that_multiply(tmp_path: Path) -> None:
    """Ten levels of ten calls each would be 10**10 nodes, and the calls themselves."""
    functions = [function(node("Neg", ["a"], ["v10"]), outputs=["v10"], name="F0")]
    for level in range(1, 11):
        names = ["a", *(f"v{n}" for n in range(1, 11))]
        calls = [call(f"F{level - 1}", source, target) for source, target in pairwise(names)]
        functions.append(function(*calls, outputs=["v10"], name=f"F{level}"))
    path = tmp_path / "model.onnx"
    path.write_bytes(calling(*functions).SerializeToString())
    ran = alone(PREPARE, path)
    assert "has 21111111111 nodes with functions written out" in ran.stdout, ran.stderr


def test_more_functions_than_there_may_be() -> None:
    functions = [function(node("Neg", ["a"], ["b"]), name=f"F{n}") for n in range(MOST_FUNCTIONS + 1)]
    assert f"has {MOST_FUNCTIONS + 1} functions" in refused(calling(*functions))


def nested(depth: int) -> str:
    """Return an ONNX graph in protobuf's text form, with nested subgraphs."""
    inner = 'node { input: "x" output: "y" op_type: "Neg" } output { name: "y" }'
    for _ in range(depth):
        branches = " ".join(f'attribute {{ name: "{name}_branch" type: GRAPH g {{ {inner} }} }}' for name in ("then",))
        inner = f'node {{ input: "c" output: "y" op_type: "If" {branches} }} output {{ name: "y" }}'
    return f'ir_version: 10 opset_import {{ version: 22 }} graph {{ name: "g" {inner} }}'


@pytest.mark.parametrize("depth", [DEEPEST + 1, 100, 5000])
def test_graphs_inside_of_graphs_too_deep(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "model.textproto"
    path.write_text(nested(depth))
    text = refused(path)
    assert f"more than {DEEPEST} deep" in text or "recursion" in text


def test_files_of_nothing_but_depth(tmp_path: Path) -> None:
    contents = [b"\x3a\x0a" * 40_000, b"{" * 100_000, b'{"graph":' * 5_000, b"[" * 100_000]
    paths = [tmp_path / f"{n}.{form}" for n in range(4) for form in ("onnx", "json", "textproto", "onnxtxt")]
    for path in paths:
        path.write_bytes(contents[int(path.stem)])
    ran = alone(PREPARE, *paths)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert [line.split("'")[1] for line in ran.stdout.splitlines()] == list(map(str, paths))


def test_onnx_s_text_form_too_deep(tmp_path: Path) -> None:
    """onnx's parser recurses at every bracket, until the process crashes."""
    header, many = '<ir_version: 10, opset_import: ["" : 22]>\n', 200_000
    kinds = {
        "sequences": f"{'seq(' * many}float[1]{')' * many}",
        "optionals": f"{'optional(' * many}float[1]{')' * many}",
        "strings": "seq(" * many + '"' + ")" * many + '"',
    }
    paths = [tmp_path / f"{name}.onnxtxt" for name in kinds]
    for path in paths:
        path.write_text(f"{header}g ({kinds[path.stem]} x) => (float[1] y) {{ y = Neg (x) }}")
    ran = alone(PREPARE, *paths)
    assert ran.stdout.count("its brackets are more than 100 deep") == len(paths), ran.returncode


@BY_EVALUATOR
def test_brackets_in_strings_and_comments_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "model.onnxtxt"
    path.write_text(
        '<ir_version: 10, opset_import: ["" : 22]>\n'
        f"g (float[1] x) => (string[1] y) {{ # {'(' * 200}\n"
        f'y = Constant <value_strings = ["{"(" * 200}\\""]> () }}'
    )
    with pytest.warns(UserWarning, match="experimental"):
        (y,) = backend.run_model(path, [np.zeros(1, np.float32)])  # type: ignore[arg-type]
    assert y.tolist() == ["(" * 200 + '"']


def test_axes_that_no_array_has(tmp_path: Path) -> None:
    """onnx's inference takes the lower bits of some axes for an address; its Scan counts up to any given number."""
    normalized = model([node("LayerNormalization", ["x", "x"], ["y", "m"], axis=2**63 - 1)], ["x"], ["y", "m"])
    body = helper.make_graph([node("Identity", ["s"], ["t"])], "body", [floats("s")], [floats("t")])
    scan = node("Scan", ["x"], ["y"], body=body, num_scan_inputs=2**62)
    paths = tmp_path / "axis.onnx", tmp_path / "scan.onnx"
    for path, proto in zip(paths, (normalized, model([scan], ["x"], ["y"])), strict=True):
        path.write_bytes(proto.SerializeToString())
    said = alone(PREPARE, *paths).stdout.splitlines()
    assert said == [
        "LayerNormalization node with output 'y': its attribute axis is 9223372036854775807, but must be from -10000 "
        "to 10000",
        "Scan node with output 'y': its attribute num_scan_inputs is 4611686018427387904, but must be from 1 to 1, as "
        "it has 1 inputs",
    ]


# --- what is computed ahead -------------------------------------------------------------------------------------------


def one(extent: int, rank: int = 1, axis: int = -1) -> Any:
    shape = [1] * rank
    shape[axis] = extent
    return np.ones(shape, np.float32)


BOMBS: dict[str, tuple[list[NodeProto], dict[str, Any]]] = {
    "ConstantOfShape": ([node("ConstantOfShape", ["s"], ["k"])], {"s": np.array([2**12, 2**13])}),
    "more than there is": ([node("ConstantOfShape", ["s"], ["k"])], {"s": np.array([2**60])}),
    "Expand": ([node("Expand", ["o", "s"], ["e"]), node("Neg", ["e"], ["k"])], {"o": one(1), "s": np.array([2**25])}),
    "broadcasting": ([node("Mul", ["a", "b"], ["k"])], {"a": one(2**13, 2, 0), "b": one(2**12, 2)}),
    "MatMul": ([node("MatMul", ["a", "b"], ["k"])], {"a": one(2**13, 2, 0), "b": one(2**12, 2)}),
    "Gemm": ([node("Gemm", ["a", "b", "b"], ["k"])], {"a": one(2**13, 2, 0), "b": one(2**12, 2)}),
    "Tile": ([node("Tile", ["o", "s"], ["k"])], {"o": one(1), "s": np.array([2**25])}),
    "Pad": ([node("Pad", ["o", "s"], ["k"])], {"o": one(1), "s": np.array([2**24, 2**24])}),
    "Resize": ([node("Resize", ["o", "", "", "s"], ["k"])], {"o": one(1, 3), "s": np.array([1, 1, 2**25])}),
    "Resize by turns": ([node("Resize", ["o", "", "", "s"], ["k"])], {"o": one(2**13, 2), "s": np.array([2**12, 1])}),
    "Gather": ([node("Gather", ["o", "s"], ["k"])], {"o": one(2**12, 2), "s": np.zeros(2**13, np.int64)}),
    "BatchNormalization": ([node("BatchNormalization", ["o", "v", "v", "v", "v"], ["k"])],
        {"o": np.ones((1, 1, 2**13), np.float32), "v": one(2**12)}),
    "LayerNormalization": ([node("LayerNormalization", ["a", "b"], ["k"])],
        {"a": one(2**13, 2, 0), "b": one(2**12, 2)}),
    "AveragePool": ([node("AveragePool", ["o"], ["k"], kernel_shape=[2**24], pads=[2**24 - 1, 2**25])],
        {"o": one(4, 3)}),
    "many together": (
        [node("ConstantOfShape", ["s"], ["k0"]), *(node("Neg", [f"k{n}"], [f"k{n + 1}"]) for n in range(40))],
        {"s": np.array([2**21])},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_small_models_stay_small(name: str) -> None:
    nodes, weights = BOMBS[name]
    total = node("ReduceSum", [nodes[-1].output[0]], ["r"], keepdims=0)
    proto = model([*nodes, total, node("Add", ["x", "r"], ["y"])], [floats("x")], [floats("y")], weights=weights)
    tracemalloc.start()
    try:
        rep = backend.prepare(proto)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 2**26 + 2**22
    if name == "broadcasting":
        assert rep.run([np.zeros(4, np.float32)])[0].tolist() == [2**25] * 4


def test_weights_that_are_scaled_often_are_kept_once() -> None:
    weights = {"w": np.ones((2**9, 2**9, 1), np.float32), "f": np.float32(1)}
    scales = [node("Mul", [f"c{n}", "f"], [f"c{n + 1}"]) for n in range(120)]
    proto = model([node("Conv", ["x", "w"], ["c0"]), *scales], ["x"], ["c120"], weights=weights)
    tracemalloc.start()
    try:
        backend.prepare(proto)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 16 * weights["w"].nbytes


def test_constants_that_the_model_brings_are_computed_however_large_they_are() -> None:
    weights = {"w": np.ones((4, 2**22), np.float16)}
    nodes = [
        node("Cast", ["w"], ["f"], to=TensorProto.FLOAT),
        node("Transpose", ["f"], ["t"]),
        node("ReduceMax", ["t"], ["r"], keepdims=0),
        node("Add", ["x", "r"], ["y"]),
    ]
    seen: list[str] = []
    rep = backend.prepare(model(nodes, [floats("x")], [floats("y")], 13, weights))
    (y,) = rep.run([np.zeros(4, np.float32)], observer=lambda node, *_: seen.append(node.op_type))
    assert seen == ["Add"]
    assert y.tolist() == [1] * 4


def test_memory_that_is_not_there_is_said_to_be_that(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, weights = BOMBS["more than there is"]
    proto = model(nodes, [], [floats("k", ("N",))], weights=weights)
    rep = backend.prepare(proto)
    with pytest.raises(MemoryError):
        rep.run([])

    def none_left(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("onnx.numpy_helper.to_array", none_left)
    with pytest.raises(MemoryError):
        backend.prepare(proto)


def test_no_evaluators_are_made_for_operators_of_ours_that_onnx_has_as_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[object] = []
    before = backend.Evaluator.__init__

    def counted(self: Any, proto: Any, *args: Any, **kwargs: Any) -> None:
        made.append(proto)
        before(self, proto, *args, **kwargs)

    monkeypatch.setattr(backend.Evaluator, "__init__", counted)
    nodes = [node("MeanVarianceNormalization", [f"v{n}"], [f"v{n + 1}"], axes=[0]) for n in range(50)]
    rep = backend.prepare(model(nodes, ["v0"], ["v50"], 13), fold=False)
    assert len(made) == 1
    x = np.float32([1, 3]).reshape(2, 1, 1)
    np.testing.assert_allclose(rep.run([x])[0].reshape(-1), [-1, 1], rtol=1e-5)


# --- AveragePool ------------------------------------------------------------------------------------------------------


def test_the_mean_of_a_window_without_end() -> None:
    code = """
import numpy as np
from onnx import helper
node = helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[2**40], pads=[2**39, 2**39])
print(backend.run_node(node, [np.arange(4, dtype=np.float32).reshape(1, 1, 4)])[0].tolist())
"""
    assert alone(code).stdout == "[[[1.5, 1.5, 1.5, 1.5, 1.5]]]\n"


@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2, 2**20])
@pytest.mark.parametrize("pads", [(2**30 - 1, 2**30), (2**30, 2**30 - 1), (2**31, 0), (2**30 + 3, 2**30)])
def test_a_device_s_filter_is_as_large_as_what_it_sees(
    dilation: int, stride: int, pads: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    filters: list[int] = []

    def seen(x: Any, w: Any, **attributes: Any) -> Any:
        filters.append(w.shape[2])
        return conv(x, w, **attributes)

    conv = gpuconv.conv
    monkeypatch.setattr(pooling.gpuconv, "conv", seen)
    x = np.float64([1, 2, 4, 8]).reshape(1, 1, -1)
    g = geometry.max_pool(
        x.shape, kernel_shape=[2**31 // dilation], strides=[stride], pads=pads, dilations=[dilation], ceil_mode=1
    )
    sums = []
    for q in range(g.y_shape[2]):
        seen = [n for n in range(4) if (n + pads[0] - q * stride) % dilation == 0 and n + pads[0] - q * stride >= 0]
        sums.append(sum(2.0**n for n in seen if (n + pads[0] - q * stride) // dilation < 2**31 // dilation))
    assert pooling._sums_by_conv(x, g).reshape(-1).tolist() == sums
    # From the first tap that the last output has after the beginning to the last one that the first has before the end.
    first = math.ceil(max(Fraction(0), Fraction(pads[0] - (g.y_shape[2] - 1) * stride, dilation)))
    last = math.floor(Fraction(pads[0] + 3, dilation))
    assert filters == [max(1, min(2**31 // dilation - 1, last) - min(2**31 // dilation - 1, first) + 1)]


def test_a_device_s_only_window_may_begin_far_before_what_it_sees() -> None:
    x = np.float64([1, 2, 4, 8]).reshape(1, 1, -1)
    g = geometry.max_pool(x.shape, kernel_shape=[2], pads=[1, 0], dilations=[4])  # its taps are at -1 and 3
    assert pooling._sums_by_conv(x, g).tolist() == [[[8.0]]]


def test_limits_are_those_of_the_documentation() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "security.md").read_text(encoding="utf-8")
    for what, most in {
        "graphs inside graphs, and functions called by functions": f"{DEEPEST} deep, together",
        "functions": f"{MOST_FUNCTIONS:,}; none may call itself",
        "nodes, with those of functions counted at every call": f"{MOST_NODES:,}",
        "elements of sparse initializers, zeros too": f"{MOST_SPARSE:,}, together",
    }.items():
        assert f"\n| {what} | {most} |\n" in page


def test_brackets_that_were_never_open_do_not_make_room_for_others() -> None:
    files._check_brackets("(" * 100 + ")" * 300 + "(" * 100)
    with pytest.raises(ValueError, match="more than 100 deep"):
        files._check_brackets(")" * 7 + "[" * 101)


def test_brackets_that_are_closed_again_are_not_deep(tmp_path: Path) -> None:
    path = tmp_path / "model.onnxtxt"
    many = "".join(f"t{n + 1} = Neg (t{n})\n" for n in range(150))
    path.write_text(
        f'<ir_version: 10, opset_import: ["" : 22]>\ng (float[1] t0) => (float[1] y) {{ {many} y = Neg (t150) }}'
    )
    with pytest.warns(UserWarning, match="experimental"):
        (y,) = backend.run_model(path, [np.ones(1, np.float32)])  # type: ignore[arg-type]
    assert y.tolist() == [-1]


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4)])
def test_a_device_s_average_of_no_images_or_channels_is_empty(shape: tuple[int, ...]) -> None:
    x = np.ones(shape, np.float32)
    sums = pooling._sums_by_conv(x, geometry.max_pool(shape, kernel_shape=[2]))
    assert (sums.shape, sums.dtype) == ((*shape[:2], 3), np.float32)
