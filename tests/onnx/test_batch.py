"""Models with `invariant="batch"`: an image does not depend on its batch, and nodes that cannot keep this are named.

Graphs are written in ONNX's textual syntax. Weights are inputs with values of their own, named w0, w1, …
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import gpuconv
from benchmarks import networks
from benchmarks.architectures import mobile, sequences, vision
from gpuconv.onnx import backend, operators
from gpuconv.onnx.batch import axes
from tests.harness.device_arrays import device_arrays
from tests.onnx.models import floats, parsed

pytestmark = pytest.mark.filterwarnings("ignore:the model does not say of what type:UserWarning")  # nor need it

# name: (shape of an image, shapes of the weights, nodes from x to y, axis of the batch in y)
KEPT: dict[str, tuple[tuple[int, ...], list[tuple[int, ...]], str, int]] = {
    "a classifier": (
        (3, 12, 12),
        [(8, 3, 3, 3), (8,), (10, 8), (10,)],
        "a = Conv<pads = [1, 1, 1, 1]>(x, w0, w1) b = Relu(a) c = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(b) "
        "d = GlobalAveragePool(c) e = Flatten(d) f = Gemm<transB = 1>(e, w2, w3) y = Softmax(f)",
        0,
    ),
    "rows of a matrix": ((37,), [(37, 255)], "y = MatMul(x, w0)", 0),
    "columns of a matrix": ((37,), [(20, 37)], "a = Transpose<perm = [1, 0]>(x) y = MatMul(w0, a)", 1),
    "Gemm with a bias of the batch": (
        (20,),
        [(20, 9), (20, 9)],
        "a = MatMul(x, w0) y = Gemm<alpha = 0.5, beta = 2.0>(x, w1, a)",
        0,
    ),
    "Gemm of a transpose": ((30,), [(30, 17)], "a = Transpose<perm = [1, 0]>(x) y = Gemm<transA = 1>(a, w0)", 0),
    "attention": (
        (6, 16),
        [(16, 48), (16,), (16,), (16, 16)],
        "n = LayerNormalization(x, w1, w2) p = MatMul(n, w0) s = Constant<value_ints = [0, 6, 3, 4, 4]>() "
        "h = Reshape(p, s) t = Transpose<perm = [2, 0, 3, 1, 4]>(h) q, k, v = Split<axis = 0, num_outputs = 3>(t) "
        "i = Constant<value_ints = [0]>() q0 = Squeeze(q, i) k0 = Squeeze(k, i) v0 = Squeeze(v, i) "
        "kt = Transpose<perm = [0, 1, 3, 2]>(k0) z = MatMul(q0, kt) r = Softmax(z) o = MatMul(r, v0) "
        "u = Transpose<perm = [0, 2, 1, 3]>(o) j = Constant<value_ints = [-1, 16]>() m = Reshape(u, j) "
        "f = MatMul(m, w3) l = Constant<value_ints = [-1, 6, 16]>() y = Reshape(f, l)",
        0,
    ),
    "windows of attention": (
        (4, 6, 8),
        [(8, 8)],
        "s = Constant<value_ints = [-1, 2, 2, 3, 2, 8]>() a = Reshape(x, s) "
        "b = Transpose<perm = [0, 1, 3, 2, 4, 5]>(a) t = Constant<value_ints = [-1, 4, 8]>() c = Reshape(b, t) "
        "d = MatMul(c, w0) e = Transpose<perm = [0, 2, 1]>(d) f = MatMul(d, e) y = Softmax<axis = 1>(f)",
        0,
    ),
    "steps first": (
        (7, 5),
        [(1, 32, 5), (1, 32, 8), (1, 64)],
        "a = Transpose<perm = [1, 0, 2]>(x) b, h, c = LSTM<hidden_size = 8>(a, w0, w1, w2) "
        "i = Constant<value_ints = [1]>() d = Squeeze(b, i) y = Softmax<axis = 2>(d)",
        1,
    ),
    "reductions": (
        (5, 9, 11),
        [(5, 1, 1)],
        "i = Constant<value_ints = [2, -1]>() j = Constant<value_ints = [1]>() a = Mul(x, w0) "
        "b = ReduceMean<keepdims = 0>(a, i) c = ReduceSum<keepdims = 0>(x, j) d = ReduceL2<keepdims = 0>(c, j) "
        "e = ReduceSumSquare<keepdims = 0>(d, j) f = InstanceNormalization(x, b0, b0) g = ReduceMax(f, i) "
        "h = GlobalLpPool(g) k = LogSoftmax<axis = 1>(b) l = Add(k, b) m = Flatten(h) n = Add(l, m) "
        "o = Transpose<perm = [1, 0]>(n) p = Add(o, e) y = Transpose<perm = [1, 0]>(p)",
        0,
    ),
    "images along axis 1 of a grid": (
        (4, 6),
        [(6, 5), (3,)],
        "i = Constant<value_ints = [1]>() a = Unsqueeze(x, i) b = Concat<axis = 1>(a, a) c = MatMul(b, w0) "
        "j = Constant<value_ints = [0]>() k = Constant<value_ints = [3]>() l = Constant<value_ints = [2]>() "
        "d = Slice(c, j, k, l) e = Gather<axis = 3>(d, j) m = Constant<value_ints = [0, 0, 0, 1, 0, 0, 0, 0]>() "
        "f = Pad(c, m) g = ReduceSum<keepdims = 0>(f, l) h = Transpose<perm = [1, 0, 2]>(g) y = Softmax<axis = 0>(h)",
        1,
    ),
    "a choice": (
        (4, 3),
        [(3, 3)],
        "c = Constant<value = bool {1}>() y = If(c) <then_branch = t () => (float[N, 4, 3] u) { u = MatMul(x, w0) }, "
        "else_branch = e () => (float[N, 4, 3] v) { v = Relu(x) }>",
        0,
    ),
    "a loop": (
        (3, 3),
        [(3, 3)],
        "n = Constant<value = int64 {3}>() c = Constant<value = bool {1}>() a, y = Loop(n, c, x) <body = "
        "b (int64 i, bool go, float[N, 3, 3] s) => (bool on, float[N, 3, 3] u, float[N, 3, 3] v) "
        "{ on = Identity(go) u = MatMul(s, w0) v = Softmax(u) }>",
        1,
    ),
}
# name: (shape of an image, weights, nodes, the outputs of named nodes)
MET: dict[str, tuple[tuple[int, ...], list[tuple[int, ...]], str, list[str]]] = {
    "a mean of images": ((4,), [], "i = Constant<value_ints = [0]>() a = ReduceMean(x, i) y = Sub(x, a)", ["a"]),
    "a sum of everything": ((4,), [], "a = ReduceSum(x) y = Add(x, a)", ["a"]),
    "Softmax of images": ((4,), [], "y = Softmax<axis = 0>(x)", ["y"]),
    "a product of images": ((4,), [], "a = Transpose<perm = [1, 0]>(x) b = MatMul(a, x) y = MatMul(x, b)", ["b", "y"]),
    "images folded away": (
        (6,),
        [(2, 2)],
        "s = Constant<value_ints = [-1, 2]>() a = Transpose<perm = [1, 0]>(x) b = Reshape(a, s) y = MatMul(b, w0)",
        ["y"],
    ),
    "a range of all": ((4,), [], "q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z)", ["q"]),
    "running sums": ((4,), [], "i = Constant<value = int64 {0}>() y = CumSum(x, i)", ["y"]),
}


def built(name: str) -> tuple[onnx.ModelProto, tuple[int, ...]]:
    """Return a model, and the shape of its images."""
    shape, weights, nodes, _ = {**KEPT, **MET}[name]
    dims = ", ".join(map(str, ("N", *shape)))
    proto = parsed(f"g (float[{dims}] x) => (float y) {{ {nodes} }}")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    arrays = {f"w{at}": floats(*extents, seed=at) for at, extents in enumerate(weights)} | {"b0": floats(5)}
    used = {inner for node in proto.graph.node for inner in (*node.input, *("w0",) * bool(node.attribute))}
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items() if n in used)
    return proto, shape


def quietly(rep: backend.Rep, x: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return rep.run([x])[0]


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("name", KEPT)
def test_every_image_has_the_same_bits_in_every_batch(name: str, fold: bool) -> None:
    proto, shape = built(name)
    rep, free = (backend.prepare(proto, fold=fold, invariant=word) for word in ("batch", None))
    x, axis = floats(5, *shape, seed=9), KEPT[name][3]
    y = quietly(rep, x)
    np.testing.assert_allclose(y, free.run([x])[0], rtol=1e-4, atol=1e-5)
    apart = np.split(y, 5, axis)
    for images in (slice(0, 1), slice(3, 4), slice(1, 3), slice(0, 5)):
        for batch in (x[images], np.asfortranarray(x[images])):
            assert quietly(rep, batch).tobytes() == np.concatenate(apart[images], axis).tobytes()
    assert rep.report().meets == ()


@pytest.mark.parametrize("name", MET)
def test_nodes_in_which_images_meet_are_named_once(name: str) -> None:
    proto, shape = built(name)
    rep, x = backend.prepare(proto, invariant="batch"), floats(3, *shape)
    expected = backend.prepare(proto).run([x])[0]
    for told in (MET[name][3], []):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            np.testing.assert_allclose(rep.run([x])[0], expected, rtol=1e-5, atol=1e-6)
        said = [str(warning.message) for warning in caught if "invariant" in str(warning.message)]
        assert [text.split("'")[1] for text in said] == told
    assert [node.output[0] for node in rep.report().meets] == MET[name][3]
    assert "images meet in: " in str(rep.report())


def test_a_context_of_the_run_counts_too() -> None:
    proto, shape = built("rows of a matrix")
    rep, x = backend.prepare(proto), floats(4, *shape)
    with gpuconv.invariant("batch"):
        y = quietly(rep, x)
        assert all(quietly(rep, x[at : at + 1])[0].tobytes() == y[at].tobytes() for at in range(4))


def test_a_model_says_the_same_when_its_weights_come_again() -> None:
    """The first run of a Conv inspects its weights, later runs use what it found."""
    proto, shape = built("a classifier")
    x = floats(4, *shape)
    first, again = (backend.prepare(proto, invariant="batch") for _ in range(2))
    y = quietly(first, x)
    for batch in (x[:1], x[:3], x, x):
        assert quietly(again, batch).tobytes() == y[: len(batch)].tobytes()


@pytest.mark.parametrize("name", ["attention", "rows of a matrix", "a classifier"])
def test_on_a_device_products_are_made_image_by_image(name: str) -> None:
    proto, shape = built(name)
    x = floats(3, *shape)
    with device_arrays() as device:
        rep = backend.prepare(proto, "CUDA", invariant="batch")
        y = quietly(rep, x)
        at_once = len(device.computed)
        for image in range(3):
            assert quietly(rep, x[image : image + 1])[0].tobytes() == y[image].tobytes()
        single = (len(device.computed) - at_once) // 3
    whole = {"attention": 0, "rows of a matrix": 0, "a classifier": 2}[name]  # Conv and MaxPool
    assert at_once == 3 * (single - whole) + whole


def test_an_operator_is_in_the_table_of_axes_or_brings_images_together() -> None:
    unknown = {
        *("AffineGrid", "Attention", "BlackmanWindow", "CenterCropPad", "Det", "DynamicQuantizeLinear", "EyeLike"),
        *("HammingWindow", "HannWindow", "LpNormalization", "MeanVarianceNormalization", "NegativeLogLikelihoodLoss"),
        *("NonMaxSuppression", "Optional", "OptionalGetElement", "OptionalHasElement", "RMSNormalization"),
        *("RegexFullMatch", "ReverseSequence", "RoiAlign", "SequenceInsert", "SoftmaxCrossEntropyLoss"),
        *("SplitToSequence", "StringNormalizer", "StringSplit", "TfIdfVectorizer", "Trilu", "Unique"),
    }
    assert set(operators.TABLE) - axes._RULES.keys() - axes._SHAPES == unknown


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("build", "size", "axis"),
    [
        (vision.convnext_tiny, 64, 0),
        (vision.style_transfer, 32, 0),
        (vision.unet, 32, 0),
        (mobile.efficientnet_b0, 64, 0),
        (mobile.mobilenet_v3, 64, 0),
        (mobile.shufflenet_v2, 64, 0),
        (sequences.crnn, 32, 1),
        (sequences.wav2vec2_features, 2000, 0),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_networks_keep_their_images_apart(build: Any, size: int, axis: int) -> None:
    proto = build(size=size, part=0.25)
    (shape,) = (array.shape for array in networks.feeds(proto).values())
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    for tensor in proto.graph.initializer:  # Reshape's, which have the batch of one
        if tensor.data_type == onnx.TensorProto.INT64 and tensor.dims and numpy_helper.to_array(tensor)[0] == 1:
            extents = numpy_helper.to_array(tensor).copy()
            extents[0] = 0
            tensor.CopyFrom(numpy_helper.from_array(extents, tensor.name))
    del proto.graph.value_info[:]
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    rep, x = backend.prepare(proto, invariant="batch"), floats(4, *shape[1:])
    apart = np.split(rep.run([x])[0], 4, axis)
    for image, wanted in enumerate(apart):
        assert rep.run([x[image : image + 1]])[0].tobytes() == wanted.tobytes()
    assert rep.report().meets == ()


@pytest.mark.parametrize("equation", ["nij,jk->nik", "nij,nkj->nik", "jk,nij->kin"])
def test_einsum_is_cut_along_the_letter_of_the_batch(equation: str) -> None:
    terms, result = equation.split("->")
    sizes = {"i": 5, "j": 7, "k": 4}
    shapes = [["N" if letter == "n" else sizes[letter] for letter in term] for term in terms.split(",")]
    given = [f"float[{', '.join(map(str, shape))}] x{at}" for at, shape in enumerate(shapes) if "N" in shape]
    proto = parsed(f'g ({", ".join(given)}) => (float y) {{ y = Einsum<equation = "{equation}">(x0, x1) }}')
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    arrays = [floats(*(3 if size == "N" else size for size in shape), seed=at) for at, shape in enumerate(shapes)]
    for at, shape in enumerate(shapes):
        if "N" not in shape:
            proto.graph.initializer.append(numpy_helper.from_array(arrays[at], f"x{at}"))
    rep = backend.prepare(proto, invariant="batch")
    batched = [array for array, shape in zip(arrays, shapes, strict=True) if "N" in shape]
    with pytest.warns(UserWarning, match="Einsum is left to onnx's reference evaluator"):
        y = rep.run(batched)[0]
    np.testing.assert_allclose(y, np.einsum(equation, *arrays), rtol=1e-5)
    for image in range(3):
        alone = rep.run([array[image : image + 1] for array in batched])[0]
        assert alone.tobytes() == np.take(y, [image], result.index("n")).tobytes()
    assert rep.report().meets == ()


@pytest.mark.parametrize(
    "name", ["Sigmoid", "Tanh", "Exp", "Erf", "Gelu", "Elu", "Selu", "Mish", "Softplus", "Swish", "Log"]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_curves_have_the_same_bits_at_every_place_length_and_stride(name: str, dtype: Any) -> None:
    node = onnx.helper.make_node(name, ["x"], ["y"])
    found = operators.find(node, onnx.defs.onnx_opset_version())
    assert found is not None
    operator, form = found
    x = (3 * floats(1000)).astype(dtype)
    with np.errstate(all="ignore"):
        y = operator.function(form, x)
        for step in (1, 2, 7):
            for low, high in ((0, 1), (3, 10), (5, 900), (17, 18), (100, 133)):
                spaced = np.zeros((high - low, step), dtype)
                spaced[:, 0] = x[low:high]
                assert operator.function(form, spaced[:, 0]).tobytes() == y[low:high].tobytes()


@pytest.mark.parametrize("name", sorted(axes._BY_PLACE))
def test_curves_of_numpy_see_the_same_rows_in_every_batch(name: str) -> None:
    """NumPy computes cosines of float16 otherwise where they do not follow each other, as rows cut in two do not."""
    nodes = f"a, b = Split<axis = 1, num_outputs = 2>(x)  y = {name}(a)"
    proto = parsed(f"g (float16[N, 4] x) => (float16[N, 2] y) {{ {nodes} }}")
    rep, x = backend.prepare(proto, invariant="batch"), (floats(500, 4) / 4).astype(np.float16)
    x = x + np.float16(2) if name == "Acosh" else x
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are left to the reference evaluator
        y = rep.run([x])[0]
        apart = [rep.run([x[image : image + 1]])[0] for image in range(len(x))]
    assert np.concatenate(apart).tobytes() == y.tobytes()
    assert rep.report().meets == ()
