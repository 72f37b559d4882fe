"""Operators that onnx's reference evaluator computes wrongly: cases that the sweep's random nodes do not cover."""

from __future__ import annotations

import locale
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import gpuconv
from gpuconv.onnx import backend
from tests.onnx.models import BY_EVALUATOR, parsed
from tests.onnx.networks import onnxruntime_run

pytestmark = pytest.mark.filterwarnings("ignore:the model does not say of what type:UserWarning")
ML = "ai.onnx.ml"


def run(op_type: str, inputs: list[Any], opset: int = 22, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
    names = ["" if array is None else f"x{at}" for at, array in enumerate(inputs)]
    node = helper.make_node(op_type, names, [f"y{at}" for at in range(outputs)], domain=domain, **attributes)
    given = [array for array in inputs if array is not None]
    if not domain:
        got = backend.run_node(node, given, opset_version=opset)
    else:
        kinds = [helper.np_dtype_to_tensor_dtype(array.dtype) for array in given]
        infos = [helper.make_tensor_value_info(f"x{at}", kind, None) for at, kind in enumerate(kinds)]
        graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name=name) for name in node.output])
        imports = [helper.make_opsetid("", 22), helper.make_opsetid(domain, opset)]
        got = list(backend.run_model(helper.make_model(graph, opset_imports=imports, ir_version=10), given))
    return got[0] if outputs == 1 else list(got)


# ---------------------------------------------------------------- norms


@pytest.mark.parametrize("opset", [1, 21, 22])
def test_the_first_norm_sums_magnitudes(opset: int) -> None:
    x = np.float32([[1, -1], [-1, -2], [0, 0]])
    np.testing.assert_array_equal(
        run("LpNormalization", [x], opset, p=1), np.float32([[0.5, -0.5], [-1 / 3, -2 / 3], [0, 0]])
    )


@pytest.mark.parametrize("size", [1e30, 1e-30, 1.0])
def test_norms_neither_overflow_nor_vanish(size: float) -> None:
    x = np.float32([[3, 4], [-4, 3]]) * np.float32(size)
    np.testing.assert_allclose(run("LpNormalization", [x]), [[0.6, 0.8], [-0.8, 0.6]], rtol=1e-6)


def test_norms_of_nothing() -> None:
    assert run("LpNormalization", [np.zeros((2, 0), np.float32)]).shape == (2, 0)


# ---------------------------------------------------------------- reductions by logarithms


def test_logarithms_of_sums_over_nothing_over_no_axes_and_of_infinities() -> None:
    for op_type in ("ReduceLogSum", "ReduceLogSumExp"):
        assert run(op_type, [np.zeros((2, 0), np.float32), np.array([1])], keepdims=0).tolist() == [-np.inf] * 2
    x = np.float32([[1, 2], [4, 8]])
    np.testing.assert_allclose(run("ReduceLogSum", [x], noop_with_empty_axes=1), np.log(x), rtol=1e-6)
    np.testing.assert_array_equal(run("ReduceLogSumExp", [x], noop_with_empty_axes=1), x)
    y = run("ReduceLogSumExp", [np.float32([[np.inf, 1], [-np.inf, -np.inf], [np.nan, 0], [200, 200]]), np.array([1])])
    np.testing.assert_allclose(y[:, 0], [np.inf, -np.inf, np.nan, 200 + np.log(2)], rtol=1e-6)


def test_logarithms_of_integers_are_cut_until_opset_27() -> None:
    x = np.int32([[1, 2, 20]])
    assert run("ReduceLogSum", [x], 18).tolist() == [[3]]  # ln 23 = 3.135
    assert run("ReduceLogSumExp", [x], 13).tolist() == [[20]]


# ---------------------------------------------------------------- attention


def test_the_scores_of_mode_0_are_from_before_the_soft_cap() -> None:
    q, k, v = (np.float32(n).reshape(1, 1, 1, 1) for n in (3, 4, 5))
    y, _, _, raw = run("Attention", [q, k, v], 24, 4, softcap=2.0, scale=1.0)
    assert (y.item(), raw.item()) == (5, 12)
    _, _, _, capped = run("Attention", [q, k, v], 24, 4, softcap=2.0, scale=1.0, qk_matmul_output_mode=1)
    np.testing.assert_allclose(capped.item(), 2 * np.tanh(6), rtol=1e-6)


def test_a_query_that_may_attend_nothing_gets_zeros() -> None:
    q, k, v = (np.ones((1, 1, 2, 3), np.float32) * n for n in (1, 2, 5))
    mask = np.array([[True, False], [False, False]])
    y = run("Attention", [q, k, v, mask], 23)
    np.testing.assert_array_equal(y[0, 0], [[5] * 3, [0] * 3])


def test_negative_scales_and_masks_that_are_short() -> None:
    q, k = np.float64([[1, 2]]).reshape(1, 1, 1, 2), np.float64([[1, 0], [0, 1], [5, 5]]).reshape(1, 1, 3, 2)
    y = run("Attention", [q, k, k, np.zeros((1, 2))], 23, scale=-1.0)
    shares = np.exp([-1.0, -2.0])
    np.testing.assert_allclose(y[0, 0, 0], shares / shares.sum(), rtol=1e-12)


# ---------------------------------------------------------------- windows, grids, matrices


@pytest.mark.parametrize("op_type", ["BlackmanWindow", "HannWindow", "HammingWindow"])
def test_a_window_of_one_element_is_1_and_none_has_fewer_than_0(op_type: str) -> None:
    for periodic in (0, 1):
        y = run(op_type, [np.array(1)], periodic=periodic)
        assert (y.dtype, y.tolist()) == (np.float32, [1.0] if not periodic else [pytest.approx(y[0])])
    with pytest.raises(gpuconv.ArgumentError, match="size is -2"):
        run(op_type, [np.array(-2)])


def test_a_grid_of_one_place_is_its_middle() -> None:
    theta = np.float64([[[1, 0, 0.25], [0, 1, -0.5]]])
    y = run("AffineGrid", [theta, np.array([1, 1, 1, 1])], align_corners=1)
    assert (y.dtype, y.tolist()) == (np.float64, [[[[0.25, -0.5]]]])


@pytest.mark.parametrize("k", [-(2**63), 2**63 - 1])
def test_diagonals_far_outside(k: int) -> None:
    x = np.ones((2, 3), np.float32)
    assert run("Trilu", [x, np.array(k)], upper=0).sum() == (6 if k > 0 else 0)
    assert run("Trilu", [x, np.array(k)], upper=1).sum() == (0 if k > 0 else 6)
    assert run("EyeLike", [x], k=k).sum() == 0


# ---------------------------------------------------------------- sequences and optional values

MAPS = {
    "two sequences": ("s, s", "float[2] a, float[2] c", "d = Sub (a, c)", [0, 0]),
    "a sequence and an array": ("s, x", "float[2] a, float[2] c", "d = Sub (a, c)", [2, 2]),
    "two sequences and an array": (
        "s, s, x",
        "float[2] a, float[2] c, float[2] e",
        "f = Sub (a, c) d = Add (f, e)",
        [1, 2],
    ),
    "a value from outside": ("s", "float[2] a", "d = Sub (a, z)", [0, 0]),
}


@pytest.mark.parametrize("name", MAPS)
@BY_EVALUATOR
def test_a_graph_for_every_element_of_a_sequence(name: str) -> None:
    given, inputs, body, expected = MAPS[name]
    text = f"""g (float[2] x, float[2] z) => (float[2] y) {{
        s = SequenceConstruct (x, z)
        q = SequenceMap <body = b ({inputs}) => (float[2] d) {{ {body} }}> ({given})
        i = Constant <value_int = 1> ()
        y = SequenceAt (q, i)
    }}"""
    model, feeds = parsed(text, 18), [np.float32([1, 2]), np.float32([3, 4])]
    (y,) = backend.prepare(model).run(feeds)
    assert y.tolist() == expected
    assert onnxruntime_run(model, dict(zip("xz", feeds, strict=True)))[0].tolist() == expected


@BY_EVALUATOR
def test_a_graph_for_every_element_of_an_empty_sequence() -> None:
    text = """g (float[2] x) => (int64 y) {
        s = SequenceEmpty <dtype = 1> ()
        q = SequenceMap <body = b (float[2] a) => (float[2] d) { d = Add (a, a) }> (s)
        y = SequenceLength (q)
    }"""
    (y,) = backend.prepare(parsed(text, 18)).run([np.float32([1, 2])])
    assert y.tolist() == 0


@BY_EVALUATOR
def test_optional_values_that_are_there_are_themselves() -> None:
    x = np.float32([1, 2])
    for text, expected in (
        ("g (float[2] x) => (float[2] y) { o = Optional (x) y = OptionalGetElement (o) }", [1, 2]),
        ("g (float[2] x) => (bool y) { o = Optional (x) y = OptionalHasElement (o) }", True),
        (
            "g (float[2] x) => (float[2] y) { s = SequenceConstruct (x, x) o = Optional (s) "
            "q = OptionalGetElement (o) i = Constant <value_int = 1> () y = SequenceAt (q, i) }",
            [1, 2],
        ),
    ):
        (y,) = backend.prepare(parsed(text, 18)).run([x])
        assert y.tolist() == expected


def test_an_optional_value_that_is_not_there() -> None:
    nothing = "o = Optional <type : type_proto = float[2]> ()"
    (there,) = backend.prepare(parsed(f"g () => (bool y) {{ {nothing} y = OptionalHasElement (o) }}", 18)).run([])
    assert there.tolist() is False
    rep = backend.prepare(parsed(f"g () => (float[2] y) {{ {nothing} y = OptionalGetElement (o) }}", 18))
    with pytest.raises(gpuconv.ArgumentError, match="the optional value has no element"):
        rep.run([])


@pytest.mark.parametrize(
    ("at", "order"), [(2, "abc"), (-2, "cab"), (1, "acb"), (-1, "acb"), (None, "abc"), (3, ""), (-3, "")]
)
def test_places_in_a_sequence(at: int | None, order: str) -> None:
    a, b, c = (np.float32([n]) for n in range(3))
    inputs = [[a, b], c] + ([] if at is None else [np.array(at)])
    declared, given = ("", "") if at is None else (", int64 p", ", p")
    text = f"g (seq(float[N]) s, float[N] t{declared}) => (seq(float[N]) y) {{ y = SequenceInsert (s, t{given}) }}"
    rep = backend.prepare(parsed(text, 18))
    if not order:
        with pytest.raises(gpuconv.ArgumentError, match=f"position is {at}, but must be -2 to 2"):
            rep.run(inputs)
    else:
        assert [v.item() for v in next(iter(rep.run(inputs)))] == ["abc".index(letter) for letter in order]


# ---------------------------------------------------------------- attributes that a function hands on


@pytest.mark.parametrize(
    ("attribute", "value", "node", "expected"),
    [
        ("alpha: float", "0.0", "ThresholdedRelu", [[1, 0], [0, 4]]),
        ("p: int", "1", "LpNormalization", [[1 / 3, -2 / 3], [-3 / 7, 4 / 7]]),
        ("axis: int", "0", "LpNormalization", [[10**-0.5, -(20**-0.5) * 2], [-3 * 10**-0.5, 4 * 20**-0.5]]),
        ("upper: int", "0", "Trilu", [[1, 0], [-3, 4]]),
        ("keepdims: int", "0", "ReduceL1", 10),
    ],
)
def test_attributes_that_a_function_hands_on_may_be_0(attribute: str, value: str, node: str, expected: Any) -> None:
    text = f"""g (float[2,2] x) => (float[m,n] y) {{ y = f.call <k = {value}> (x) }}
        <domain: "f", opset_import: ["" : 18]>
        call <k> (x) => (y) {{ y = {node} <{attribute} = @k> (x) }}"""
    (y,) = backend.prepare(parsed(text, 18, ["f"])).run([np.float32([[1, -2], [-3, 4]])])
    np.testing.assert_allclose(y, expected, rtol=1e-6)


# ---------------------------------------------------------------- text


def test_stop_words_are_whole_elements_and_the_locale_stays() -> None:
    before = locale.setlocale(locale.LC_ALL)
    x = np.array(["the", "The cat", "", "naïve"], object)
    y = run("StringNormalizer", [x], stopwords=["the"], case_change_action="UPPER", locale="C")
    assert (y.dtype, y.tolist()) == (np.dtype(object), ["THE CAT", "", "NAÏVE"])
    assert locale.setlocale(locale.LC_ALL) == before
    assert run("StringNormalizer", [x[:1][None]], stopwords=["THE"]).tolist() == [[""]]


# ---------------------------------------------------------------- ai.onnx.ml

TREE = {
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_featureids": [0, 0, 0],
    "nodes_modes": ["BRANCH_NEQ", "LEAF", "LEAF"],
    "nodes_values": [1.0, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
}
VOTES = {"class_treeids": [0, 0], "class_nodeids": [1, 2]}
TARGETS = {"target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [10.0, 20.0]}


@pytest.mark.parametrize(("missing", "expected"), [(None, 20), ([0, 0, 0], 20), ([1, 0, 0], 10)])
def test_nan_takes_the_branch_that_the_node_says(missing: Any, expected: float) -> None:
    """Not the true branch of BRANCH_NEQ, which a comparison would take."""
    more = {} if missing is None else {"nodes_missing_value_tracks_true": missing}
    x = np.float32([[np.nan], [1], [2]])
    y = run("TreeEnsembleRegressor", [x], 3, domain=ML, n_targets=1, **TREE, **TARGETS, **more)
    assert y[:, 0].tolist() == [expected, 20, 10]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"nodes_modes": ["BRANCH_NEQ", "BRANCH_EQ", "LEAF"]}, "lead around in a circle"),
        ({"nodes_truenodeids": [7, 0, 0]}, "node 0 of tree 0 branches to 7, which is none of it"),
        ({"nodes_modes": ["BRANCH_NE", "LEAF", "LEAF"]}, "nodes_modes has 'BRANCH_NE'"),
        ({"nodes_featureids": [1, 0, 0]}, "nodes test the features 1 to 1, but X has 1"),
        ({"nodes_values": [1.0]}, "must have one length"),
        ({"target_ids": [0, 1]}, "target_ids has 0 to 1, but must have 0 to 0"),
    ],
)
def test_trees_that_are_none(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(gpuconv.GpuconvError, match=message):
        run(
            "TreeEnsembleRegressor",
            [np.zeros((2, 1), np.float32)],
            3,
            domain=ML,
            n_targets=1,
            **TREE | TARGETS | changed,
        )


@pytest.mark.parametrize("voted", [0, 1])
@pytest.mark.parametrize("weights", [[0.25, 0.75], [-0.5, 0.5], [0.2, 0.3]])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
def test_votes_for_one_of_two_classes(voted: int, weights: list[float], transform: str) -> None:
    """As ONNX Runtime does: the specification does not define this case."""
    node = helper.make_node(
        "TreeEnsembleClassifier", ["x"], ["label", "scores"], domain=ML, **TREE, **VOTES, class_ids=[voted] * 2,
        class_weights=weights, classlabels_int64s=[3, 4], post_transform=transform,
    )  # fmt: skip
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1])]
    results = [
        helper.make_tensor_value_info(name, kind, None)
        for name, kind in (("label", TensorProto.INT64), ("scores", TensorProto.FLOAT))
    ]
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(ML, 3)]
    model = helper.make_model(helper.make_graph([node], "g", infos, results), opset_imports=imports, ir_version=10)
    x = np.float32([[1], [2]])
    for got, expected in zip(backend.prepare(model).run([x]), onnxruntime_run(model, {"x": x}), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_categories_are_mapped_both_ways() -> None:
    cats = {"cats_strings": ["a", "b"], "cats_int64s": [7, 9]}
    texts = np.array([["b", "x"]], object)
    assert run("CategoryMapper", [texts], 1, domain=ML, default_int64=-3, **cats).tolist() == [[9, -3]]
    assert run("CategoryMapper", [np.array([7, 8])], 1, domain=ML, default_string="?", **cats).tolist() == ["a", "?"]


# ---------------------------------------------------------------- nodes whose inputs and attributes do not fit


@pytest.mark.parametrize(
    ("op_type", "opset", "inputs", "attributes", "message"),
    [
        ("Attention", 23, [(1, 2, 3)] * 3, {}, "cannot be divided among None heads"),
        ("Attention", 23, [(1, 2, 3)] * 3, {"q_num_heads": 2, "kv_num_heads": 1}, "cannot be divided among 2 heads"),
        ("Attention", 23, [(1, 3, 2, 4), *[(1, 2, 2, 4)] * 2], {}, "Q must have a multiple of their heads"),
        ("Attention", 23, [(1, 2, 2, 4), *[(1, 2, 2, 3)] * 2], {}, "K and Q in the size of a head"),
        ("Attention", 23, [(1, 2, 2, 4), *[(1, 2, 4)] * 2], {}, "must all have 3 axes, or 4"),
        ("CenterCropPad", 22, [(2, 3), [-1]], {"axes": [0]}, r"shape is \[-1\], but must have an extent"),
        ("CenterCropPad", 22, [(2, 3), [1]], {}, r"for each of the axes \[0, 1\]"),
        ("CenterCropPad", 22, [(2, 3), [1, 2]], {"axes": [0, -2]}, r"for each of the axes \[0, 0\]"),
        ("LinearRegressor", ML, [(1, 3)], {"coefficients": [1.0, 2.0]}, "2 coefficients do not fit X"),
        ("LinearRegressor", ML, [(1, 1)], {"coefficients": [1.0], "post_transform": "X"}, "post_transform must be"),
        ("Normalizer", ML, [(1, 3)], {"norm": "L3"}, "norm must be MAX, L1 or L2, not 'L3'"),
        ("Scaler", ML, [(1, 3)], {"offset": [1.0, 2.0], "scale": [1.0]}, "offset has 2 numbers"),
        ("OneHotEncoder", ML, [(1, 3)], {"cats_int64s": [5], "zeros": 0}, "0 is none of the categories"),
        ("LabelEncoder", ML, [(1, 3)], {"keys_floats": [1.0], "values_int64s": [1, 2]}, "1 keys, but 2 values"),
        ("FeatureVectorizer", ML, [(1, 3)], {"inputdimensions": [1, 2]}, "inputdimensions is"),
    ],
)
def test_inputs_and_attributes_that_do_not_fit(
    op_type: str, opset: Any, inputs: list[Any], attributes: dict[str, Any], message: str
) -> None:
    """Inputs are zeros of a shape, or the numbers of a list; nodes of ai.onnx.ml are of its version 3."""
    arrays = [np.zeros(given, np.float32) if isinstance(given, tuple) else np.array(given) for given in inputs]
    version, domain = (3, ML) if opset == ML else (opset, "")
    with pytest.raises(gpuconv.ArgumentError, match=message):
        run(op_type, arrays, version, domain=domain, **attributes)
