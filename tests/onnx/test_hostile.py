"""Valid-looking models that crash a process in onnx's shape inference, and the errors that prepare raises instead."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper

import gpuconv
from gpuconv.onnx import backend
from gpuconv.onnx.checks import hiding, limits, structure
from gpuconv.onnx.checks.limits import Values

pytestmark = pytest.mark.slow

SCRIPT = """
import sys, warnings, onnx
from gpuconv import ArgumentError
from gpuconv.onnx import backend
warnings.simplefilter("ignore")
for path in sys.argv[1:]:
    try:
        backend.prepare(path)
        print("prepared")
    except ArgumentError as error:
        print(error)
"""
HEAD = '<ir_version: 9, opset_import: ["" : {opset}, "ai.onnx.ml" : 2, "own" : 1]>'
OWN = '<opset_import: ["" : 18], domain: "own">'

# Each refused model with the part of the message that follows the node's name.
REFUSED = {
    "GatherND before its first axis": (18,
        "g (float[1,1] x, int64[1,1,1] i) => (float[N] y) { y = GatherND <batch_dims = -2147483648> (x, i) }",
        "its attribute batch_dims is -2147483648, but must be from 0 to 10000"),
    "Split in more parts than outputs": (18,
        "g (float[4] x) => (float[N] y, float[N] z) { y, z = Split <num_outputs = 3> (x) }",
        "its attribute num_outputs is 3, but must be its number of outputs, 2"),
    "Split in fewer parts than outputs": (18,
        "g (float[4] x) => (float[N] y, float[N] z) { y, z = Split <num_outputs = 1> (x) }",
        "its attribute num_outputs is 1, but must be its number of outputs, 2"),
    "Split in very many parts": (18, "g (float[4] x) => (float[N] y) { y = Split <num_outputs = 1000000000000> (x) }",
        "its attribute num_outputs is 1000000000000, but must be its number of outputs, 1"),
    "blocks whose area is 0 modulo 2**64": (13,
        "g (float[1,4,4,4] x) => (float[A,B,C,D] y) { y = DepthToSpace <blocksize = 4294967296> (x) }",
        "its attribute blocksize is 4294967296, but must be from 1 to 32768"),
    "blocks of no extent": (13, "g (float[1,4,4,4] x) => (float[A,B,C,D] y) { y = SpaceToDepth <blocksize = 0> (x) }",
        "its attribute blocksize is 0, but must be from 1 to 32768"),
    "Attention of no heads": (23,
        "g (float[1,4,4] x) => (float[A,B,C] y) { y = Attention <q_num_heads = 1, kv_num_heads = 0> (x, x, x) }",
        "its attribute kv_num_heads is 0, but must be 1 or more"),
    "windows that do not move": (22,
        "g (float[1,1,4] x) => (float[A,B,C] y) { y = LpPool <kernel_shape = [2], strides = [0]> (x) }",
        "its attribute strides is 0, but must be 1 or more"),
    "regions of one extent": (1,
        "g (float[1,1,4,4] x, float[1,5] r) => (float[A,B,C] y) { y = MaxRoiPool <pooled_shape = [2]> (x, r) }",
        "its attribute pooled_shape is a list of 1, but must be one of 2 integers"),
    "Scan of more inputs than there are": (16,
        "g (float[4,4] x) => (float[A,B] y) { y = Scan <num_scan_inputs = 2, "
        "body = b (float[4] i) => (float[4] o) { o = Identity (i) }> (x) }",
        "its attribute num_scan_inputs is 2, but must be from 1 to 1, as it has 1 inputs"),
    "Scan with more states than outputs": (16,
        "g (float[4] s, float[4] t, float[4,4] x) => (float[A] y) { y = Scan <num_scan_inputs = 1, "
        "body = b (float[4] i, float[4] j, float k) => (float[4] o) { o = Identity (i) }> (s, t, x) }",
        "its attribute num_scan_inputs is 1, but must be from 2 to 3, as it has 3 inputs"),
    "n-grams behind their pool": (9,
        'g (int64[4] x) => (float[A] y) { y = TfIdfVectorizer <mode = "TF", min_gram_length = 1, max_gram_length = 1, '
        "max_skip_count = 0, ngram_counts = [0, 2147483647], ngram_indexes = [0], pool_int64s = [7, 8]> (x) }",
        "its attribute ngram_counts is 2147483647, but must be from 0 to 2"),
    "n-grams before their pool": (9,
        'g (int64[4] x) => (float[A] y) { y = TfIdfVectorizer <mode = "TF", min_gram_length = 1, max_gram_length = 1, '
        "max_skip_count = 0, ngram_counts = [-9223372036854775808], ngram_indexes = [0], pool_int64s = [7, 8]> (x) }",
        "its attribute ngram_counts is -9223372036854775808, but must be from 0 to 2"),
    "an axis far away": (17,
        "g (float[2,3] x) => (float[A,B] y, float[A,B] m) "
        "{ y, m = LayerNormalization <axis = 9223372036854775807> (x, x) }",
        "its attribute axis is 9223372036854775807, but must be from -10000 to 10000"),
    "in a branch": (18,
        "g (bool c, float[4] x) => (float[N] y) { y = If (c) <"
        "then_branch = t () => (float[N] a) { a, b = Split <num_outputs = 7> (x) }, "
        "else_branch = e () => (float[N] a) { a = Identity (x) }> }",
        "its attribute num_outputs is 7, but must be its number of outputs, 2"),
    "in a function": (
        18,
        "g (float[4] x) => (float[N] y) { y = own.F (x) } "
        + OWN
        + " F (x) => (y) { y, z = Split <num_outputs = 7> (x) }",
        "its attribute num_outputs is 7, but must be its number of outputs, 2",
    ),
    "in a function, of its caller": (
        18,
        "g (float[1,1] x, int64[1,1,1] i) => (float[N] y) { y = own.F <first = -7> (x, i) } "
        + OWN
        + " F <first> (x, i) => (y) { y = GatherND <batch_dims : int = @first> (x, i) }",
        "its attribute batch_dims is -7, but must be from 0 to 10000",
    ),
    "in a function of a function, of a caller of both": (
        18,
        "g (float[1,1] x, int64[1,1,1] i) => (float[N] y) "
        "{ z = own.G <second = 0> (x, i) y = own.G <second = -8> (x, i) } "
        + OWN
        + " F <first> (x, i) => (y) { y = GatherND <batch_dims : int = @first> (x, i) } "
        + OWN.replace("18]", '18, "own" : 1]')
        + " G <second> (x, i) => (y) { y = own.F <first : int = @second> (x, i) }",
        "its attribute batch_dims is -8, but must be from 0 to 10000",
    ),
    "in a function, of another type than its attribute": (
        23,
        'g (float[1,4,4] x) => (float[A,B,C] y) { y = own.F <heads = "many"> (x) } '
        + OWN.replace("18", "23")
        + " F <heads> (x) => (y) { y = Attention <q_num_heads = 1, kv_num_heads : int = @heads> (x, x, x) }",
        "its attribute kv_num_heads is 0, but must be 1 or more",
    ),
}  # fmt: skip

# Models that cannot be told from valid ones before they run: they are prepared, and inference skips the node.
PREPARED = {
    "GatherND behind its first axis": (13,
        "g (float[1,2,3] x, int64[1,1] i) => (float[N] y) { p = Constant <value = int64[4] {0, -2, 0, -2}> () "
        "j = Pad (i, p) y = GatherND (x, j) }"),
    "GatherND with a negative extent": (13,
        "g (float[1,2,3] x, int64[1,-3] i) => (float[N] y) { y = GatherND (x, i) }"),
    "Reshape by an extent of -1": (13,
        "g (float[1,4611686018427387904,2] x) => (float[A,B] y) { p = Constant <value = int64[6] {-2,0,0,0,0,0}> () "
        "q = Pad (x, p) s = Constant <value = int64[2] {0,-1}> () y = Reshape (q, s) }"),
    "Reshape by an extent of -1, of a list": (14,
        "g (float[1,4611686018427387904,2] x) => (float[A,B] y) { p = Constant <value = int64[6] {-2,0,0,0,0,0}> () "
        "q = Pad (x, p) s = Constant <value_ints = [0,-1]> () y = Reshape (q, s) }"),
    "Reshape by an extent of -1, in a branch": (13,
        "g (bool c, float[1,4611686018427387904,2] x) => (float[A,B] y) "
        "{ p = Constant <value = int64[6] {-2,0,0,0,0,0}> () q = Pad (x, p) y = If (c) <"
        "then_branch = t () => (float[A,B] a) <int64[2] s = {0,-1}> { a = Reshape (q, s) }, "
        "else_branch = e () => (float[A,B] a) <int64[2] s = {0,-1}> { a = Reshape (q, s) }> }"),
    "Reshape by an extent of -1, in the branches of two": (13,
        "g (bool c, float[1,4611686018427387904,2] x) => (float[A,B] y, float[A,B] z) "
        "{ p = Constant <value = int64[6] {-2,0,0,0,0,0}> () q = Pad (x, p) y = If (c) <"
        "then_branch = t () => (float[A,B] a) <int64[2] s = {0,-1}> { a = Reshape (q, s) }, "
        "else_branch = e () => (float[A,B] a) <int64[2] s = {0,-1}> { a = Reshape (q, s) }> z = If (c) <"
        "then_branch = t () => (float[A,B] a) <int64[2] s = {0,-1}> { a = Reshape (q, s) }, "
        "else_branch = e () => (float[A,B] a) <int64[2] s = {0,-1}> { a = Reshape (q, s) }> }"),
    "dots that are no ellipsis": (12, 'g (float[2,4] x) => (float[A] y) { y = Einsum <equation = "i.j->i"> (x) }'),
    "a shape of very many extents": (8, "g (float[4] x, int64[1099511627776] s) => (float[A] y) { y = Expand (x, s) }"),
    "a shape that doubles": (
        11,
        "g (float[4] x, int64[8] s0) => (float[A] y) { "
        + " ".join(f"s{n + 1} = Concat <axis = 0> (s{n}, s{n})" for n in range(36))
        + " y = Expand (x, s36) }",
    ),
    "a rank that doubles": (
        13,
        "g (int64[2,2] v0) => (int64[A] y) { "
        + " ".join(f"v{n + 1} = Gather (v{n}, v{n})" for n in range(36))
        + " y = Identity (v36) }",
    ),
    "a rank that doubles in a function": (
        18,
        "g (int64[2,2] v0) => (int64[A] y) { "
        + " ".join(f"v{n + 1} = own.F (v{n})" for n in range(30))
        + " y = Identity (v30) } "
        + OWN
        + " F (a) => (b) { b = Gather (a, a) }",
    ),
    "no type, but a pattern": (20, 'g (x) => (bool[N] y) { y = RegexFullMatch <pattern = "a"> (x) }'),
    "no type, but a dtype": (22, "g (x) => (float[A,B] y) { y = EyeLike <dtype = 1> (x) }"),
    "no type, but labels": (15,
        'g (x) => (int64[N] y) { y = ai.onnx.ml.LabelEncoder <keys_strings = ["a"], values_int64s = [1]> (x) }'),
}  # fmt: skip


def written(folder: Path, opset: int, text: str) -> str:
    """Write a model to a file; inputs without a type are written in the text without one, too."""
    path = folder / f"{len(list(folder.iterdir()))}.onnx"
    typed = text.replace("g (x)", "g (float[N] x)")
    model = onnx.parser.parse_model(f"{HEAD.format(opset=opset)} {typed}")
    if typed != text:
        model.graph.input[0].ClearField("type")
    path.write_bytes(model.SerializeToString())
    return str(path)


def said(*paths: str) -> list[str]:
    """Prepare models in one process, which must survive; return a line for each."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *paths], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_integers_that_inference_would_not_survive_are_refused(tmp_path: Path) -> None:
    lines = said(*(written(tmp_path, opset, text) for opset, text, _ in REFUSED.values()))
    assert [line.partition(": ")[2] for line in lines] == [message for *_, message in REFUSED.values()]


def test_nodes_that_inference_would_not_survive_are_kept_from_it(tmp_path: Path) -> None:
    lines = said(*(written(tmp_path, opset, text) for opset, text in PREPARED.values()))
    assert dict(zip(PREPARED, lines, strict=True)) == dict.fromkeys(PREPARED, "prepared")


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"data_type": TensorProto.INT64, "dims": [3], "raw_data": bytes(16)}, "of 3 elements has 16 bytes"),
        ({"data_type": TensorProto.FLOAT, "dims": [2, 2], "float_data": [1, 2]}, "of 4 elements has 2 numbers"),
        ({"data_type": TensorProto.FLOAT, "dims": [-1], "float_data": [1]}, r"has the shape \(-1,\)"),
        ({"data_type": TensorProto.INT4, "dims": [33], "int32_data": [1, 2]}, "of 33 elements has 2 numbers"),
    ],
)
def test_tensors_with_too_little_data(made: dict[str, Any], message: str) -> None:
    node = helper.make_node("Constant", [], ["k"])
    node.attribute.add(name="value", type=AttributeProto.TENSOR, t=TensorProto(name="t", **made))
    with pytest.raises(gpuconv.ArgumentError, match=rf"^Constant node with output 'k': its tensor 't' {message}"):
        limits.check(node, node.attribute[0], 18, {})


def test_tensors_with_enough_data() -> None:
    enough = [
        TensorProto(data_type=TensorProto.INT64, dims=[2], raw_data=bytes(16)),
        TensorProto(data_type=TensorProto.FLOAT, dims=[0]),
        TensorProto(data_type=TensorProto.FLOAT, float_data=[1]),
        TensorProto(data_type=TensorProto.COMPLEX64, dims=[1], float_data=[1, 2]),
        TensorProto(data_type=TensorProto.INT4, dims=[3], raw_data=bytes(2)),
        TensorProto(data_type=TensorProto.STRING, dims=[1], string_data=[b"text"]),
        TensorProto(data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL),
    ]
    for made in enough:
        node = helper.make_node("Constant", [], ["k"])
        node.attribute.add(name="value", type=AttributeProto.TENSOR, t=made)
        limits.check(node, node.attribute[0], 18, {})


def test_bounds_of_what_several_callers_give() -> None:
    function = helper.make_function("own", "F", ["x"], ["y"], [], [], ["first"], [helper.make_attribute("second", 4)])
    calls = [
        helper.make_node("F", ["x"], ["y"], domain="own", first=first, second=second)
        for first, second in ((3, 9), (-2, 5))
    ]
    assert limits.given([function], [calls, []]) == [
        {},
        {
            "first": Values((-2, 3), (0, 0), (0, 0)),
            "second": Values((4, 9), (0, 0), (0, 0)),
        },
    ]
    assert Values.of(helper.make_attribute("a", [5, -1, 3])) == Values((0, 0), (-1, 5), (3, 3))


# ---------------------------------------------------------------- what valid models keep


def test_a_hidden_node_hides_nothing_else_and_runs() -> None:
    model = onnx.parser.parse_model(
        HEAD.format(opset=13) + "g (float[2,3] x, int64[2,1] i) => (float[A,B] y, float[2,3] z) "
        "{ y = GatherND (x, i) z = Relu (x) }"
    )
    rep = backend.prepare(model)
    assert rep._evaluator._facts is not None
    assert rep._evaluator._facts["z"].shape == (2, 3)
    assert "y" not in rep._evaluator._facts
    x = np.float32([[1, 2, 3], [4, 5, 6]])
    y, _ = rep.run([x, np.int64([[1], [0]])])
    assert y.tolist() == [[4, 5, 6], [1, 2, 3]]
    assert [node.op_type for node in model.graph.node] == ["GatherND", "Relu"]


def test_shapes_with_0_and_minus_1_keep_their_values_for_the_run() -> None:
    model = onnx.parser.parse_model(
        HEAD.format(opset=14) + "g (float[2,3,4] x) => (float[A,B] y) "
        "{ s = Constant <value = int64[2] {0, -1}> () y = Reshape (x, s) }"
    )
    rep = backend.prepare(model)
    assert rep._evaluator._facts is not None
    assert (rep._evaluator._facts["y"].dtype, rep._evaluator._facts["y"].rank) == ("float32", 2)
    assert rep.run([np.zeros((2, 3, 4), np.float32)])["y"].shape == (2, 12)


@pytest.mark.parametrize(
    ("shape", "known"),
    [
        ("s = Shape (w)", True),
        ("t = Shape (w) c = Constant <value = int64[1] {1}> () s = Mul (t, c)", True),
        ("c = Constant <value = int64[3] {2, 3, 4}> () s = Identity (c)", True),
        ("c = Constant <value = int64[1] {3}> () s = ConstantOfShape <value = int64[1] {1}> (c)", True),
        ("t = Shape (w) u = Shape (t) s = ConstantOfShape <value = int64[1] {1}> (u)", True),
        ("c = Constant <value = int64[1] {9}> () s = ConstantOfShape <value = int64[1] {1}> (c)", False),
        ("t = Shape (w) s = Concat <axis = 0> (t, t)", False),
        ("t = Shape (w) s = Concat <axis = 0> (s, t)", False),
        ("s = NonZero (w)", False),
    ],
)
def test_which_computed_shapes_inference_sees(shape: str, known: bool) -> None:
    text = f"g (float[1] x, float[2,3,4] w) => (float[A] y) {{ {shape} y = Expand (x, s) }}"
    graph = onnx.parser.parse_graph(text)
    body = hiding.Body(list(graph.node), 11, list(graph.input))
    with hiding.hidden([body]):
        assert (graph.node[-1].op_type == "Expand") == known
    assert graph.node[-1].op_type == "Expand"


@pytest.mark.parametrize(
    ("equation", "known"),
    [
        *(("ij,jk->ik", True), ("...ij, ...jk -> ...ik", True), ("b h i d , b h j d -> b h i j", True), ("ii", True)),
        *(("", True), ("i.j->i", False), ("ij->i..", False), ("......->i", False), ("i1->i", False), ("\xe9", False)),
    ],
)
def test_which_equations_inference_sees(equation: str, known: bool) -> None:
    node = helper.make_node("Einsum", ["x"], ["y"], equation=equation.encode("latin-1"))
    with hiding.hidden([hiding.Body([node], 12, [])]):
        assert (node.op_type == "Einsum") == (known and not hiding._BEFORE_1_23)


# ---------------------------------------------------------------- one place for each fact


def test_only_one_module_calls_the_native_checker_and_inference() -> None:
    root = Path(gpuconv.__file__).parent
    native = ("checker", "shape_inference", "parser", "inliner", "version_converter", "compose")
    calls = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in native and isinstance(node.value, ast.Name)
    }
    assert calls == {"onnx/checks/native.py"}


def test_functions_of_functions_are_followed_as_deep_as_they_may_be() -> None:
    assert structure.DEEPEST == 32
    names = [f"F{n}" for n in range(structure.DEEPEST)]
    linked = [helper.make_node(name, ["x"], ["y"], domain="own") for name in names[1:]]
    for node in linked:
        node.attribute.add(name="a", type=AttributeProto.INT, ref_attr_name="a")
    functions = [helper.make_function("own", name, ["x"], ["y"], [], [], ["a"]) for name in names]
    bodies = [[helper.make_node("F0", ["x"], ["y"], domain="own", a=7)], *([node] for node in linked), []]
    assert limits.given(functions, bodies)[-1] == {"a": Values((7, 7), (0, 0), (0, 0))}
