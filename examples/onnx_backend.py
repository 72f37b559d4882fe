# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Verifying an ONNX backend
#
# Whoever writes kernels, a compiler or an exporter for ONNX needs something to compare with. Two things make that
# harder than `allclose`: implementations disagree about what the right answer is, and a tolerance that lets rounding
# pass lets many bugs pass too. This page compares backends with `gpuconv.onnx` on the contested cases, with a bound
# that is computed for every single output, and then lets a backend with a common shortcut be caught.
#
# To run it: `pip install -e ".[examples]"` in a checkout, then `jupyter lab examples/onnx_backend.ipynb`. ONNX Runtime
# joins in where it is installed (`pip install onnxruntime`).

# %%
from collections.abc import Callable
from importlib.util import find_spec
from itertools import product
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import onnx
from matplotlib.colors import ListedColormap
from onnx import helper
from onnx.reference import ReferenceEvaluator

from gpuconv.onnx import backend

# %% [markdown]
# ## Cases
#
# A case is a model of one node and its inputs. The ordinary ones are like ONNX's own node tests; each of the remaining
# ones tests a question on which implementations differ.

# %%
random = np.random.default_rng(1)


def case(
    operator: str, *inputs: Any, outputs: int = 1, **attributes: Any
) -> tuple[Any, dict[str, Any]]:
    """Make a model of one node, and its inputs by name."""
    arrays = {
        f"in{number}": np.asarray(array, np.float32)
        for number, array in enumerate(inputs)
    }
    names = [f"out{number}" for number in range(outputs)]
    node = helper.make_node(operator, list(arrays), names, **attributes)
    kinds, unknown = (
        [onnx.TensorProto.FLOAT, onnx.TensorProto.INT64],
        [None] * arrays["in0"].ndim,
    )
    graph = helper.make_graph(
        [node],
        operator,
        [
            helper.make_tensor_value_info(name, kinds[0], array.shape)
            for name, array in arrays.items()
        ],
        [
            helper.make_tensor_value_info(name, kind, unknown)
            for name, kind in zip(names, kinds, strict=False)
        ],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10
    ), arrays


def normal(*shape: int) -> Any:
    return random.standard_normal(shape)


nan_twice = np.array([1, np.nan, 5, np.nan, 2, 0])[None, None]
infinite = np.array([[[np.inf, 1, 1]]])
cases = {
    "Conv, ordinary": case(
        "Conv", normal(1, 2, 6, 6), normal(3, 2, 3, 3), pads=[1, 1, 1, 1]
    ),
    "Conv, uneven pads": case(
        "Conv", normal(1, 2, 6), normal(3, 2, 3), pads=[2, 0], strides=[2]
    ),
    "Conv, SAME and dilation": case(
        "Conv", normal(1, 1, 7), normal(1, 1, 3), auto_pad="SAME_UPPER", dilations=[2]
    ),
    "Conv, infinite weight on padding": case(
        "Conv", normal(1, 1, 4), infinite, pads=[1, 1]
    ),
    "ConvTranspose, ordinary": case(
        "ConvTranspose", normal(1, 2, 4, 4), normal(2, 3, 3, 3), strides=[2, 2]
    ),
    "ConvTranspose, groups": case(
        "ConvTranspose", normal(1, 4, 5), normal(4, 2, 3), group=2, strides=[2]
    ),
    "ConvTranspose, odd output_shape": case(
        "ConvTranspose", normal(1, 1, 4), normal(1, 1, 4), output_shape=[7], strides=[2]
    ),
    "MaxPool, ordinary": case(
        "MaxPool", normal(1, 2, 6, 6), kernel_shape=[2, 2], strides=[2, 2]
    ),
    "MaxPool, Indices over two channels": case(
        "MaxPool", normal(1, 2, 6), kernel_shape=[3], outputs=2
    ),
    "MaxPool, column-major Indices": case(
        "MaxPool", normal(1, 1, 4, 5), kernel_shape=[2, 2], storage_order=1, outputs=2
    ),
    "MaxPool, two NaN in a window": case(
        "MaxPool", nan_twice, kernel_shape=[4], outputs=2
    ),
    "MaxPool, equal maxima": case(
        "MaxPool", np.ones((1, 1, 5)), kernel_shape=[3], outputs=2
    ),
    "MaxPool, ceil_mode past the end": case(
        "MaxPool", normal(1, 1, 4), kernel_shape=[1], strides=[2], ceil_mode=1
    ),
    "MaxPool, SAME_LOWER": case(
        "MaxPool",
        -abs(normal(1, 1, 5)),
        kernel_shape=[2],
        auto_pad="SAME_LOWER",
        outputs=2,
    ),
}

# %% [markdown]
# ## A second opinion on gpuconv itself
#
# The rules can be written down without any kernel: for every output, go through every tap, and take those inside the
# input. These few lines know one axis, in float64, and nothing of gpuconv. The sizes of paddings are worked out by
# hand for each case.


# %%
def conv_by_definition(
    x: Any, w: Any, before: int, outputs: int, stride: int, dilation: int
) -> Any:
    y = np.zeros((x.shape[0], w.shape[0], outputs))
    for n, m, q, c, t in product(*map(range, (*y.shape, *w.shape[1:]))):
        i = q * stride - before + t * dilation
        if 0 <= i < x.shape[2]:
            y[n, m, q] += float(x[n, c, i]) * float(w[m, c, t])
    return y


def conv_transpose_by_definition(
    x: Any, w: Any, before: int, outputs: int, stride: int, group: int
) -> Any:
    y = np.zeros((x.shape[0], w.shape[1] * group, outputs))
    for n, c, i, m, t in product(*map(range, (*x.shape, *w.shape[1:]))):
        o = i * stride + t - before
        if 0 <= o < outputs:
            y[n, c * group // x.shape[1] * w.shape[1] + m, o] += float(
                x[n, c, i]
            ) * float(w[c, m, t])
    return y


by_definition = {
    "Conv, uneven pads": lambda x, w: conv_by_definition(
        x, w, before=2, outputs=3, stride=2, dilation=1
    ),
    # Seven outputs need (7 - 1) * 1 + (2 * 2 + 1) - 7 = 4 elements of padding:
    # the dilated kernel counts.
    "Conv, SAME and dilation": lambda x, w: conv_by_definition(
        x, w, before=2, outputs=7, stride=1, dilation=2
    ),
    "Conv, infinite weight on padding": lambda x, w: conv_by_definition(
        x, w, before=1, outputs=4, stride=1, dilation=1
    ),
    "ConvTranspose, groups": lambda x, w: conv_transpose_by_definition(
        x, w, before=0, outputs=11, stride=2, group=2
    ),
    # 10 elements by nature, 7 asked for: of 3 to crop the larger half goes first,
    # unless auto_pad is SAME_UPPER.
    "ConvTranspose, odd output_shape": lambda x, w: conv_transpose_by_definition(
        x, w, before=2, outputs=7, stride=2, group=1
    ),
}
ours = {
    name: backend.prepare(model).run(inputs) for name, (model, inputs) in cases.items()
}
for name, function in by_definition.items():
    np.testing.assert_allclose(
        ours[name][0], function(*cases[name][1].values()), rtol=1e-5, atol=1e-6
    )
print(f"{len(by_definition)} cases are as by definition")

# %% [markdown]
# Of MaxPool we can say what must come out.

# %%
y, indices = ours["MaxPool, two NaN in a window"]
print("NaN:", y.tolist(), indices.tolist())
assert np.isnan(y).all()
assert indices.tolist() == [[[1, 1, 3]]]  # the first NaN of each window
assert ours["MaxPool, equal maxima"][1].tolist() == [[[0, 1, 2]]]  # the first of equals
x = cases["MaxPool, Indices over two channels"][1]["in0"]
assert (
    x.ravel()[ours["MaxPool, Indices over two channels"][1]]
    == ours["MaxPool, Indices over two channels"][0]
).all()
x = cases["MaxPool, column-major Indices"][1]["in0"]
assert (
    x[0, 0].T.ravel()[ours["MaxPool, column-major Indices"][1]]
    == ours["MaxPool, column-major Indices"][0]
).all()
assert ours["MaxPool, ceil_mode past the end"][0].shape == (
    1,
    1,
    2,
)  # a third window would start past the input
assert (ours["MaxPool, SAME_LOWER"][0] < 0).all()  # padding is no zero

# %% [markdown]
# ## A bound instead of a tolerance
#
# Two correct implementations add up in different orders. For K terms with magnitudes that add up to S, a sum in
# float32 is within (K + 1)·u·S of the exact one, u = 2⁻²⁴. S is itself a convolution, of magnitudes, so the bound of
# every output costs one call.


# %%
def bounds(model: Any, inputs: dict[str, Any]) -> Any:
    """Return how far each output may be from that of another correct sum."""
    node = model.graph.node[0]
    if node.op_type == "MaxPool":
        return 0.0  # a maximum is exact
    magnitudes = {
        name: np.nan_to_num(abs(value), posinf=0) for name, value in inputs.items()
    }
    terms = (
        inputs["in1"].size // inputs["in1"].shape[node.op_type == "ConvTranspose"] + 1
    )
    return 2 * (terms + 1) * 2.0**-24 * backend.prepare(model).run(magnitudes)[0]


def agree(expected: Any, actual: Any, bound: Any) -> bool:
    if len(expected) != len(actual) or any(
        a.shape != b.shape for a, b in zip(expected, actual, strict=True)
    ):
        return False
    with np.errstate(invalid="ignore"):
        near = abs(expected[0] - actual[0]) <= bound
    same = (
        near
        | (expected[0] == actual[0])
        | (np.isnan(expected[0]) & np.isnan(actual[0]))
    )
    return bool(same.all()) and all(
        (a == b).all() for a, b in zip(expected[1:], actual[1:], strict=True)
    )


Run = Callable[[Any, dict[str, Any]], list[Any]]


def verdict(run: Run, name: str) -> tuple[str, str]:
    """Tell if a backend agrees, differs or refuses in a case, and in what words."""
    model, inputs = cases[name]
    try:
        result = run(model, inputs)
    except Exception as error:  # whatever a backend says when it refuses
        return "refuses", " ".join(str(error).split())[:80]
    if agree(ours[name], result, bounds(model, inputs)):
        return "agrees", ""
    return "differs", f"{[array.ravel().tolist()[:4] for array in result]}"


# %% [markdown]
# ## The backends
#
# ONNX's reference evaluator, ONNX Runtime on the CPU if it is here, and one of our own that takes a shortcut: it
# rounds factors to the 11 bits of TF32, as frameworks let tensor cores do with float32.


# %%
def reference(model: Any, inputs: dict[str, Any]) -> list[Any]:
    with np.errstate(invalid="ignore"):  # of its infinite weight times its zeros
        return list(ReferenceEvaluator(model).run(None, inputs))


def onnx_runtime(model: Any, inputs: dict[str, Any]) -> list[Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what it refuses comes back as an exception
    return list(
        onnxruntime.InferenceSession(model.SerializeToString(), options).run(
            None, inputs
        )
    )


def shortened(value: Any) -> Any:
    bits = (value.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(value), bits.view(np.float32), value)


def shortcut(model: Any, inputs: dict[str, Any]) -> list[Any]:
    if model.graph.node[0].op_type != "MaxPool":
        inputs = {name: shortened(value) for name, value in inputs.items()}
    return list(backend.prepare(model).run(inputs))


backends: dict[str, Run] = {"onnx.reference": reference, "rounds to TF32": shortcut}
if find_spec("onnxruntime"):
    backends["ONNX Runtime"] = onnx_runtime
verdicts = {
    (name, peer): verdict(run, name) for name in cases for peer, run in backends.items()
}
for (name, peer), (word, detail) in verdicts.items():
    if word != "agrees":
        print(f"{peer} {word}: {name} {detail}")

# %% [markdown]
# Where a peer differs, the specification is silent or vague, and somebody has to say which is right: the page on
# semantics has a rule for each of these questions. What is ordinary is not contested, except by the shortcut, which
# the bound catches in every sum:

# %%
for peer in backends:
    ordinary = [
        verdicts[name, peer][0]
        for name in ("Conv, ordinary", "ConvTranspose, ordinary")
    ]
    assert ordinary == ["differs" if peer == "rounds to TF32" else "agrees"] * 2, (
        peer,
        ordinary,
    )

# %% [markdown]
# A tolerance of 10⁻², which is not rare in test suites, would have let it pass:

# %%
model, inputs = cases["Conv, ordinary"]
distance = abs(shortcut(model, inputs)[0] - ours["Conv, ordinary"][0])
most = bounds(model, inputs).max()
print(f"off by up to {distance.max():.1e}, where the bound is {most:.1e} at most")
assert np.allclose(
    shortcut(model, inputs)[0], ours["Conv, ordinary"][0], rtol=1e-2, atol=1e-2
)

# %% [markdown]
# ## Inputs that tell how a sum was made
#
# Sums of integers that float32 holds are exact in any order: no bound is needed. And one element tells which factors
# or which sums were cut short.

# %%
probes = {
    "sums in float16": ([2048, 1, 1, 1, 1], [1] * 5, 2052),  # 2048 + 1 is 2048 there
    "sums in bfloat16": ([256, 1, 1, 1, 1], [1] * 5, 260),
    "factors in TF32": ([1 + 2.0**-12], [1], 1 + 2.0**-12),
}
for name, (x, w, exact) in probes.items():
    model, inputs = case("Conv", [[x]], [[w]])
    found = {peer: run(model, inputs)[0].item() for peer, run in backends.items()}
    print(f"{name:17} exact {exact}, found {found}")
    assert backend.prepare(model).run(inputs)[0].item() == exact
    assert (found["rounds to TF32"] == exact) == (name != "factors in TF32")

# %% [markdown]
# ## The picture

# %%
words = ["agrees", "differs", "refuses"]
codes = np.array(
    [[words.index(verdicts[name, peer][0]) for peer in backends] for name in cases]
)
figure, axis = plt.subplots(figsize=(7, 5), layout="constrained")
axis.imshow(
    codes,
    cmap=ListedColormap(["#3a7d44", "#d1495b", "#edae49"]),
    vmin=0,
    vmax=2,
    aspect="auto",
)
for (row, column), code in np.ndenumerate(codes):
    axis.text(column, row, words[code], ha="center", va="center", color="white")
axis.set(
    xticks=range(len(backends)),
    xticklabels=backends,
    yticks=range(len(cases)),
    yticklabels=cases,
)
axis.set_title("against gpuconv, output by output")
plt.show()
