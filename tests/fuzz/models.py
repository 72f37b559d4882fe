"""Random small valid ONNX models with inputs: chains of every operator that gpuconv.onnx implements itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import ModelProto, helper, numpy_helper

NEWEST = onnx.defs.onnx_opset_version()
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_POOL = np.random.default_rng(1).integers(-3, 4, 2**12)


@dataclass(frozen=True)
class Value:
    """A tensor of the graph; ``exact`` means that it holds integers that no rounding has affected."""

    name: str
    dtype: Any
    shape: tuple[int, ...]
    exact: bool = True

    @property
    def is_float(self) -> bool:
        return self.dtype.kind == "f" or self.dtype == _BFLOAT16


@dataclass
class Graph:
    """A graph under construction."""

    random: Random
    opset: int
    prefix: str = ""
    nodes: list[Any] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    initializers: list[Any] = field(default_factory=list)
    feeds: dict[str, Any] = field(default_factory=dict)
    values: list[Value] = field(default_factory=list)
    made: int = 0

    def name(self) -> str:
        self.made += 1
        return f"{self.prefix}v{self.made}"

    def numbers(self, shape: tuple[int, ...], dtype: Any, positive: bool = False) -> Any:
        start = self.random.randrange(2**11)
        flat = np.resize(_POOL[start:], math.prod(shape))
        if positive or dtype.kind == "u":
            flat = np.abs(flat) + positive
        return (flat > 0 if dtype.kind == "b" else flat).reshape(shape).astype(dtype)

    def constant(self, array: Any) -> str:
        """Add a constant: an initializer, with or without a graph input, or a Constant node."""
        name, turn = self.name(), self.random.random()
        array = np.asarray(array)
        tensor = numpy_helper.from_array(array, name)
        if turn < 0.15 and (self.opset >= 9 or array.dtype.kind == "f"):
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
            return name
        self.initializers.append(tensor)
        if turn < 0.25:
            self.inputs.append(helper.make_tensor_value_info(name, tensor.data_type, array.shape))
        return name

    def ints(self, values: Any) -> str:
        return self.constant(np.array(values, np.int64))

    def add(self, kind: str, inputs: list[str], first: Value, /, *more: Value, **attributes: Any) -> Value:
        """Add a node with these outputs, which are given names, and return the first output."""
        outputs = [Value(self.name(), each.dtype, each.shape, each.exact) for each in (first, *more)]
        name = f"n{self.made}" if self.random.random() < 0.5 else ""
        attributes = {key: value for key, value in attributes.items() if not isinstance(value, list) or value}
        self.nodes.append(helper.make_node(kind, inputs, [each.name for each in outputs], name=name, **attributes))
        self.values += [each for each in outputs if math.prod(each.shape) <= 2**12]
        return outputs[0]

    def input(self, shape: tuple[int, ...], dtype: Any) -> Value:
        value = Value(self.name(), dtype, shape)
        dims = [extent if self.random.random() < 0.7 else self.random.choice((None, f"d{i}_{self.name()}"))
                for i, extent in enumerate(shape)]  # fmt: skip
        self.inputs.append(helper.make_tensor_value_info(value.name, helper.np_dtype_to_tensor_dtype(dtype), dims))
        self.feeds[value.name] = self.numbers(shape, dtype)
        self.values.append(value)
        return value


def like(x: Value, shape: tuple[int, ...] | None = None, dtype: Any = None, exact: bool | None = None) -> Value:
    """Return a value like another one."""
    kept = x.exact if exact is None else exact
    return Value("", dtype or x.dtype, x.shape if shape is None else tuple(shape), kept)


# ---------------------------------------------------------------- recipes: each may add a node that reads x

_ROUNDING = (
    "Sigmoid", "Tanh", "Exp", "Sqrt", "Erf", "HardSigmoid", "Softplus", "Log", "Reciprocal", "LeakyRelu", "Elu",
)  # fmt: skip
_STEEP = ("Log", "Reciprocal", "Sqrt")  # beside zero, where the least rounding shows
_INTEGRAL = ("Abs", "Neg", "Relu", "Identity", "Ceil", "Floor")


def _unary(g: Graph, x: Value) -> None:
    exact = g.random.random() < 0.5
    kind = g.random.choice(_INTEGRAL if exact else _ROUNDING)
    if not x.is_float or (kind in ("Ceil", "Floor") and not x.exact) or (kind == "Erf" and g.opset < 9):
        return
    if kind in _STEEP and not x.exact:
        return
    if x.dtype == _BFLOAT16 and g.opset < 22:
        return
    attributes = {"alpha": 0.25} if kind in ("LeakyRelu", "Elu", "HardSigmoid") and g.random.random() < 0.5 else {}
    g.add(kind, [x.name], like(x, exact=x.exact and exact), **attributes)


def _newer_unary(g: Graph, x: Value) -> None:
    kind, since = g.random.choice(
        (
            *(("HardSwish", 14), ("Gelu", 20), ("LogSoftmax", 13), ("Softmax", 13), ("Hardmax", 13)),
            *(("Celu", 28), ("Mish", 18), ("Selu", 6), ("Swish", 24)),
        )
    )
    if g.opset < since or not x.is_float or not x.shape or (kind == "Hardmax" and not x.exact):
        return
    if kind == "LogSoftmax" and x.dtype.itemsize < 4:  # onnx's evaluator rounds before it takes the logarithm
        return
    if x.dtype == _BFLOAT16 and g.opset < 22:
        return
    attributes = {"axis": g.random.randrange(-len(x.shape), len(x.shape))} if "max" in kind else {}
    g.add(kind, [x.name], like(x, exact=kind == "Hardmax"), **attributes)


def _clip(g: Graph, x: Value) -> None:
    if not x.is_float or x.dtype == _BFLOAT16:
        return
    if g.opset < 11:
        g.add("Clip", [x.name], like(x), min=-1.0, max=2.0)
        return
    low = g.constant(np.array(-1, x.dtype)) if g.random.random() < 0.6 else ""
    high = g.constant(np.array(2, x.dtype)) if g.random.random() < 0.6 else ""
    g.add("Clip", [x.name, low, high], like(x))


def _operand(g: Graph, x: Value) -> tuple[str, tuple[int, ...]]:
    """Return another operand of x's dtype, with a shape that broadcasts with x's."""
    fit = [v for v in g.values if v.dtype == x.dtype and v.shape == x.shape and v.exact]
    if fit and g.random.random() < 0.5:
        return g.random.choice(fit).name, x.shape
    shape = tuple(1 if g.random.random() < 0.4 else extent for extent in x.shape)
    shape = shape[g.random.randint(0, len(shape)) :] if g.random.random() < 0.3 else shape
    return g.constant(g.numbers(shape, x.dtype, positive=True)), shape


def _binary(g: Graph, x: Value) -> None:
    kind = g.random.choice(("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "PRelu"))
    if x.dtype.kind in "bu" or x.dtype.itemsize < 4 or (kind in ("Max", "Min", "Sum", "Mean") and g.opset < 8):
        return
    if not x.is_float and (kind not in ("Add", "Sub", "Mul") or x.dtype.itemsize < 4):
        return
    other, shape = _operand(g, x)
    if kind == "PRelu" and len(shape) > len(x.shape):
        return
    exact = x.exact and kind in ("Add", "Sub", "Mul", "Max", "Min", "Sum") and x.dtype == np.float64
    either = kind in ("Add", "Sub", "Mul")  # onnx's evaluator gives Mean and Sum the shape of the first operand
    operands = [other, x.name] if either and g.random.random() < 0.3 else [x.name, other]
    if kind == "Pow":
        operands[1] = g.constant(np.array(g.random.choice((2, 1, 3)), x.dtype))
    g.add(kind, operands, like(x, exact=exact))


def _comparison(g: Graph, x: Value) -> None:
    kind = g.random.choice(("Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal"))
    since = {"GreaterOrEqual": 16, "LessOrEqual": 16, "Equal": 11, "Greater": 9, "Less": 9}[kind]
    if not x.exact or x.dtype not in (np.float32, np.float64, np.int64) or g.opset < since:
        return
    other, _ = _operand(g, x)
    g.add(kind, [x.name, other], like(x, dtype=np.dtype(np.bool_)))


def _logical(g: Graph, x: Value) -> None:
    masks = [v for v in g.values if v.dtype == np.bool_]
    if not masks:
        return
    mask = g.random.choice(masks)
    if g.random.random() < 0.4:
        g.add("Not", [mask.name], like(mask))
    elif g.random.random() < 0.5 or g.opset < 9:
        g.add(g.random.choice(("And", "Or")), [mask.name, g.constant(g.numbers(mask.shape, mask.dtype))], like(mask))
    elif mask.shape == x.shape and x.dtype != _BFLOAT16:
        g.add("Where", [mask.name, x.name, _operand(g, x)[0]], like(x))


def _cast(g: Graph, x: Value) -> None:
    if not x.exact or x.dtype == np.bool_:
        return
    kinds = ["float16", "float32", "float64", "int32", "int64", "bool", *([_BFLOAT16] if g.opset >= 13 else [])]
    dtype = np.dtype(g.random.choice(kinds))
    if g.opset >= 15 and g.random.random() < 0.3:
        g.add("CastLike", [x.name, g.constant(np.zeros(1, dtype))], like(x, dtype=dtype))
    else:
        g.add("Cast", [x.name], like(x, dtype=dtype), to=helper.np_dtype_to_tensor_dtype(dtype))


def _reshape(g: Graph, x: Value) -> None:
    shape = list(x.shape)
    if len(shape) > 1 and g.random.random() < 0.5:
        shape = [shape[0] * shape[1], *shape[2:]]
    else:
        shape.insert(g.random.randint(0, len(shape)), 1)
    wanted = list(shape)
    if 0 not in shape and g.random.random() < 0.5 and wanted:
        wanted[g.random.randrange(len(wanted))] = -1
    if len(shape) <= 6:
        g.add("Reshape", [x.name, g.ints(wanted)], like(x, shape))


def _transpose(g: Graph, x: Value) -> None:
    perm = list(range(len(x.shape)))
    g.random.shuffle(perm)
    g.add("Transpose", [x.name], like(x, [x.shape[axis] for axis in perm]), perm=perm)


def _flatten(g: Graph, x: Value) -> None:
    axis = g.random.randint(0, len(x.shape))
    g.add("Flatten", [x.name], like(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))), axis=axis)


def _with_axes(g: Graph, kind: str, x: Value, axes: list[int], result: Value, since: int, **attributes: Any) -> None:
    """Add a node whose axes are an attribute before opset ``since``, and an input from then on."""
    if g.opset < since:
        g.add(kind, [x.name], result, axes=axes, **attributes)
    else:
        g.add(kind, [x.name, g.ints(axes)], result, **attributes)


def _unsqueeze(g: Graph, x: Value) -> None:
    if len(x.shape) > 5:
        return
    axis = g.random.randint(0, len(x.shape))
    _with_axes(g, "Unsqueeze", x, [axis], like(x, (*x.shape[:axis], 1, *x.shape[axis:])), 13)


def _squeeze(g: Graph, x: Value) -> None:
    axes = [axis for axis, extent in enumerate(x.shape) if extent == 1]
    if axes:
        dropped = g.random.sample(axes, g.random.randint(1, len(axes)))
        shape = [extent for axis, extent in enumerate(x.shape) if axis not in dropped]
        _with_axes(g, "Squeeze", x, sorted(dropped), like(x, shape), 13)


def _concat(g: Graph, x: Value) -> None:
    if x.shape:
        axis = g.random.randrange(len(x.shape))
        shape = (*x.shape[:axis], 2 * x.shape[axis], *x.shape[axis + 1 :])
        g.add("Concat", [x.name, g.constant(g.numbers(x.shape, x.dtype))], like(x, shape), axis=axis)


def _split(g: Graph, x: Value) -> None:
    axes = [axis for axis, extent in enumerate(x.shape) if extent > 1]
    if not axes:
        return
    axis = g.random.choice(axes)
    sizes = [1, x.shape[axis] - 1]
    parts = [like(x, (*x.shape[:axis], size, *x.shape[axis + 1 :])) for size in sizes]
    if g.opset < 13:
        g.add("Split", [x.name], *parts, axis=axis, split=sizes)
    else:
        g.add("Split", [x.name, g.ints(sizes)], *parts, axis=axis)


def _slice(g: Graph, x: Value) -> None:
    axes = [axis for axis, extent in enumerate(x.shape) if extent > 1]
    if not axes:
        return
    axis = g.random.choice(axes)
    step = 1 if g.opset < 10 else g.random.choice((1, 2, -1))
    start, end = (1, 2**31 - 1) if step > 0 else (-1, -(2**31))
    count = len(range(x.shape[axis])[start:end:step])
    result = like(x, (*x.shape[:axis], count, *x.shape[axis + 1 :]))
    if g.opset < 10:
        g.add("Slice", [x.name], result, axes=[axis], starts=[start], ends=[end])
    else:
        g.add("Slice", [x.name, g.ints([start]), g.ints([end]), g.ints([axis]), g.ints([step])], result)


def _pad(g: Graph, x: Value) -> None:
    if not x.is_float or not x.shape or 0 in x.shape or x.dtype == _BFLOAT16:
        return
    mode = g.random.choice(("constant", "constant", "edge", "reflect"))
    pads = [g.random.randint(0, min(2, n - 1)) if mode == "reflect" else g.random.randint(0, 2) for n in x.shape * 2]
    shape = [n + b + e for n, b, e in zip(x.shape, pads[: len(x.shape)], pads[len(x.shape) :], strict=True)]
    if g.opset < 11:
        g.add("Pad", [x.name], like(x, shape), mode=mode, pads=pads)
    else:
        value = [g.constant(np.array(1, x.dtype))] if mode == "constant" and g.random.random() < 0.5 else []
        g.add("Pad", [x.name, g.ints(pads), *value], like(x, shape), mode=mode)


def _gather(g: Graph, x: Value) -> None:
    axes = [axis for axis, extent in enumerate(x.shape) if extent]
    if axes:
        axis = g.random.choice(axes)
        indices = np.array([g.random.randrange(x.shape[axis]) for _ in range(3)], np.int64)
        g.add("Gather", [x.name, g.constant(indices)], like(x, (*x.shape[:axis], 3, *x.shape[axis + 1 :])), axis=axis)


def _expand(g: Graph, x: Value) -> None:
    shape = tuple(3 if extent == 1 else extent for extent in x.shape)
    if g.opset >= 8 and math.prod(shape) < 500:
        g.add("Expand", [x.name, g.ints(shape)], like(x, shape))


def _tile(g: Graph, x: Value) -> None:
    repeats = [g.random.choice((1, 1, 2)) for _ in x.shape]
    shape = [n * count for n, count in zip(x.shape, repeats, strict=True)]
    if math.prod(shape) < 500:
        g.add("Tile", [x.name, g.ints(repeats)], like(x, shape))


def _shapes(g: Graph, x: Value) -> None:
    shape = g.add("Shape", [x.name], Value("", np.dtype(np.int64), (len(x.shape),)))
    if g.random.random() < 0.4 and g.opset >= 9:
        value = numpy_helper.from_array(np.array([2], np.float32))
        attributes = {"value": value} if g.random.random() < 0.5 else {}
        g.add("ConstantOfShape", [shape.name], Value("", np.dtype(np.float32), x.shape), **attributes)
    elif g.random.random() < 0.3:
        g.add("Size", [x.name], Value("", np.dtype(np.int64), ()))


def _reduce(g: Graph, x: Value) -> None:
    if not x.is_float or not x.shape or 0 in x.shape or x.dtype.itemsize < 4:
        return
    kind = g.random.choice(("ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum"))
    axes = sorted(g.random.sample(range(len(x.shape)), g.random.randint(1, len(x.shape))))
    keep = g.random.randint(0, 1)
    shape = [1 if axis in axes else n for axis, n in enumerate(x.shape) if keep or axis not in axes]
    exact = x.exact and kind in ("ReduceMax", "ReduceMin")
    _with_axes(g, kind, x, axes, like(x, shape, exact=exact), 13 if kind == "ReduceSum" else 18, keepdims=keep)


def _image(g: Graph, x: Value) -> bool:
    floats = ("float16", "float32", "float64", *(("bfloat16",) if g.opset >= 22 else ()))
    return x.dtype.name in floats and 3 <= len(x.shape) <= 5 and 0 not in x.shape


def _conv(g: Graph, x: Value) -> None:
    if not _image(g, x):
        return
    n, c, *spatial = x.shape
    kernel = [g.random.randint(1, min(3, extent)) for extent in spatial]
    transposed, m, group = g.random.random() < 0.4, g.random.choice((1, 2, 4)), 1
    if c % 2 == 0 and g.random.random() < 0.3:
        group = 2
    attributes: dict[str, Any] = {"group": group} if group > 1 or g.random.random() < 0.5 else {}
    if g.random.random() < 0.5:
        attributes["kernel_shape"] = kernel
    if transposed:
        strides = [g.random.randint(1, 2) for _ in spatial]
        w, shape = (c, m, *kernel), [s * (d - 1) + k for d, k, s in zip(spatial, kernel, strides, strict=True)]
        attributes["strides"] = strides
    else:
        pads = [g.random.randint(0, 1) for _ in spatial * 2]
        w, rank = (m * group, c // group, *kernel), len(spatial)
        shape = [d + b + e - k + 1 for d, k, b, e in zip(spatial, kernel, pads[:rank], pads[rank:], strict=True)]
        attributes["pads"] = pads
    inputs = [x.name, g.constant(g.numbers(w, x.dtype))]
    if g.random.random() < 0.5:
        inputs.append(g.constant(g.numbers((m * group,), x.dtype)))
    exact = x.exact and x.dtype == np.float64
    result = like(x, (n, m * group, *shape), exact=exact)
    y = g.add("ConvTranspose" if transposed else "Conv", inputs, result, **attributes)
    if g.random.random() < 0.3:  # a node that can be fused into the convolution
        g.random.choice((_batch_normalization, _unary, _clip, _binary))(g, y)


def _pool(g: Graph, x: Value) -> None:
    if not _image(g, x):
        return
    n, c, *spatial = x.shape
    kind = g.random.choice(("MaxPool", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"))
    if kind.startswith("Global"):
        g.add(kind, [x.name], like(x, (n, c, *[1] * len(spatial)), exact=x.exact and kind == "GlobalMaxPool"))
        return
    kernel = [g.random.randint(1, min(3, extent)) for extent in spatial]
    shape = (n, c, *((d - k) // 2 + 1 for d, k in zip(spatial, kernel, strict=True)))
    attributes = {"kernel_shape": kernel, "strides": [2] * len(spatial)}
    if kind == "MaxPool" and g.opset >= 8 and x.exact and g.random.random() < 0.4:
        indices = Value("", np.dtype(np.int64), shape)
        y = g.add(kind, [x.name], like(x, shape), indices, **attributes)
        if g.opset >= 9 and g.random.random() < 0.5 and y.dtype != _BFLOAT16 and len(shape) == 4 and n == c == 1:
            numbered = (n, c, *(2 * (q - 1) + k for q, k in zip(shape[2:], kernel, strict=True)))
            if numbered == x.shape:
                g.add("MaxUnpool", [y.name, g.nodes[-1].output[1]], like(x, numbered), **attributes)
        return
    g.add(kind, [x.name], like(x, shape, exact=x.exact and kind == "MaxPool"), **attributes)


def _batch_normalization(g: Graph, x: Value) -> None:
    if len(x.shape) < 2 or x.dtype not in (np.float32, np.float64) or g.opset < 9:
        return
    numbers = [g.constant(g.numbers((x.shape[1],), x.dtype, positive=True)) for _ in range(4)]
    g.add("BatchNormalization", [x.name, *numbers], like(x, exact=False))


def _normalization(g: Graph, x: Value) -> None:
    if not _image(g, x) or x.dtype != np.float32:
        return
    kind = g.random.choice(("InstanceNormalization", "LRN", "LayerNormalization", "GroupNormalization"))
    if kind == "LRN" and len(x.shape) == 4:
        g.add(kind, [x.name], like(x, exact=False), size=g.random.choice((1, 3)))
    elif kind == "InstanceNormalization":
        factors = [g.constant(g.numbers((x.shape[1],), x.dtype)) for _ in range(2)]
        g.add(kind, [x.name, *factors], like(x, exact=False), epsilon=0.1)
    elif kind == "GroupNormalization" and g.opset >= 21:
        factors = [g.constant(g.numbers((x.shape[1],), x.dtype)) for _ in range(2)]
        g.add(kind, [x.name, *factors], like(x, exact=False), num_groups=1, epsilon=0.1)
    elif kind == "LayerNormalization" and g.opset >= 17:
        factors = [g.constant(g.numbers(x.shape[-1:], x.dtype)) for _ in range(2)]
        g.add(kind, [x.name, *factors], like(x, exact=False), axis=-1, epsilon=0.1)


def _blocks(g: Graph, x: Value) -> None:
    if len(x.shape) != 4 or not x.is_float or 0 in x.shape or x.dtype == _BFLOAT16:
        return
    n, c, h, w = x.shape
    if c % 4 == 0:
        mode = {"mode": g.random.choice(("DCR", "CRD"))} if g.opset >= 11 else {}
        g.add("DepthToSpace", [x.name], like(x, (n, c // 4, 2 * h, 2 * w)), blocksize=2, **mode)
    elif h % 2 == w % 2 == 0:
        g.add("SpaceToDepth", [x.name], like(x, (n, 4 * c, h // 2, w // 2)), blocksize=2)


def _resize(g: Graph, x: Value) -> None:
    if len(x.shape) != 4 or x.dtype != np.float32 or 0 in x.shape or g.opset < 13:
        return
    shape = (*x.shape[:2], *(2 * extent for extent in x.shape[2:]))
    mode = g.random.choice(("nearest", "linear", "cubic"))
    scales = g.constant(np.array([1, 1, 2, 2], np.float32))
    g.add("Resize", [x.name, "", scales], like(x, shape, exact=x.exact and mode == "nearest"), mode=mode)


def _sampled(g: Graph, x: Value) -> None:
    """Add GridSample at multiples of 1/8, which are exact and never midway between two elements."""
    if len(x.shape) != 4 or x.dtype != np.float32 or 0 in x.shape or g.opset < 20:
        return
    shape = (x.shape[0], 2, 3, 2)
    grid = g.constant(((g.numbers(shape, np.dtype(np.float32)) + 0.25) / 2).astype(np.float32))
    mode = g.random.choice(("linear", "nearest"))
    padding = g.random.choice(("zeros", "border", "reflection"))
    y = like(x, (*x.shape[:2], *shape[1:3]), exact=False)
    g.add("GridSample", [x.name, grid], y, mode=mode, padding_mode=padding)


def _recurrent(g: Graph, x: Value) -> None:
    if len(x.shape) != 3 or x.dtype != np.float32 or 0 in x.shape or g.opset < 7:
        return
    kind = g.random.choice(("RNN", "GRU", "LSTM"))
    direction = g.random.choice(("forward", "reverse", "bidirectional"))
    directions, rows = 1 + (direction == "bidirectional"), 2 * {"RNN": 1, "GRU": 3, "LSTM": 4}[kind]
    shapes = ((directions, rows, x.shape[2]), (directions, rows, 2), (directions, 2 * rows))
    weights = [g.constant(g.numbers(shape, x.dtype)) for shape in shapes]
    y = like(x, (x.shape[0], directions, x.shape[1], 2), exact=False)
    g.add(kind, [x.name, *weights], y, direction=direction, hidden_size=2)


def _products(g: Graph, x: Value) -> None:
    if x.dtype not in (np.float32, np.float64) or len(x.shape) < 2:
        return
    inner, columns = x.shape[-1], g.random.choice((1, 2, 3))
    exact = x.exact and x.dtype == np.float64
    if len(x.shape) == 2 and g.random.random() < 0.5:
        flag = g.random.randint(0, 1)
        w = g.constant(g.numbers((columns, inner) if flag else (inner, columns), x.dtype))
        bias = (
            [g.constant(g.numbers((columns,), x.dtype))]
            if g.opset >= 11
            else [g.constant(g.numbers((1, columns), x.dtype))]
        )
        g.add("Gemm", [x.name, w, *bias], like(x, (x.shape[0], columns), exact=exact), transB=flag)
    elif g.opset >= 9:
        w = g.constant(g.numbers((inner, columns), x.dtype))
        g.add("MatMul", [x.name, w], like(x, (*x.shape[:-1], columns), exact=exact))


def _dropout(g: Graph, x: Value) -> None:
    if x.is_float and x.dtype != _BFLOAT16 and g.opset >= 12:
        g.add("Dropout", [x.name], like(x))


def _condition(g: Graph, x: Value) -> None:
    """Add an If whose branches read x from the outer graph."""
    if g.opset < 13 or g.prefix:
        return
    branches = []
    for name in ("then", "else"):
        inner = Graph(g.random, g.opset, prefix=f"{name}{g.made}_")
        y = inner.add(
            g.random.choice(("Identity", "Neg", "Abs") if x.is_float and x.dtype != _BFLOAT16 else ("Identity",)),
            [x.name],
            like(x),
        )
        output = helper.make_tensor_value_info(y.name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        branches.append(helper.make_graph(inner.nodes, name, [], [output], inner.initializers))
    flag = g.constant(np.array(g.random.random() < 0.5))
    g.add("If", [flag], like(x), then_branch=branches[0], else_branch=branches[1])


def _loop(g: Graph, x: Value) -> None:
    """Add a Loop that carries a value through a few iterations."""
    if g.opset < 13 or g.prefix or not x.is_float or x.dtype == _BFLOAT16:
        return
    prefix = f"loop{g.made}_"
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    nodes = [
        helper.make_node("Identity", [f"{prefix}c"], [f"{prefix}d"]),
        helper.make_node("Neg", [f"{prefix}x"], [f"{prefix}y"]),
    ]
    inputs = [helper.make_tensor_value_info(f"{prefix}i", onnx.TensorProto.INT64, []),
              helper.make_tensor_value_info(f"{prefix}c", onnx.TensorProto.BOOL, []),
              helper.make_tensor_value_info(f"{prefix}x", kind, x.shape)]  # fmt: skip
    outputs = [helper.make_tensor_value_info(f"{prefix}d", onnx.TensorProto.BOOL, []),
               helper.make_tensor_value_info(f"{prefix}y", kind, x.shape)]  # fmt: skip
    body = helper.make_graph(nodes, "body", inputs, outputs)
    g.add("Loop", [g.ints(g.random.randint(0, 3)), g.constant(np.array(True)), x.name], like(x), body=body)


_RECIPES: tuple[Callable[[Graph, Value], None], ...] = (
    *(_unary, _newer_unary, _clip, _binary, _comparison, _logical, _cast, _reshape, _transpose, _flatten, _unsqueeze),
    *(_squeeze, _concat, _split, _slice, _pad, _gather, _expand, _tile, _shapes, _reduce, _conv, _conv, _conv, _pool),
    *(_pool, _batch_normalization, _normalization, _blocks, _resize, _products, _dropout, _condition, _loop),
    *(_sampled, _recurrent),
)


@dataclass(frozen=True)
class Sample:
    """A model and inputs for it."""

    model: ModelProto
    feeds: dict[str, Any]


def sample(random: Random) -> Sample:
    """Return a valid model with inputs."""
    opset = random.choice((7, 8, 9, 10, 11, 12, 13, 15, 17, 18, 19, 20, 21, 22, 23, NEWEST, NEWEST, NEWEST))
    g = Graph(random, opset)
    rank = random.choice((1, 2, 2, 2, 3))
    shape = (random.choice((1, 1, 2)), random.choice((1, 2, 4)), *(random.randint(1, 5) for _ in range(rank)))
    g.input(shape, np.dtype(random.choice(("float32", "float32", "float32", "float64", "float16"))))
    for _ in range(random.choice((1, 1, 2, 3, 5, 8))):
        random.choice(_RECIPES)(g, random.choice(g.values[-3:]))
    return Sample(_model(g, random), g.feeds)


def _model(g: Graph, random: Random) -> ModelProto:
    used = {name for node in g.nodes for name in node.input}
    ends = [value for value in g.values if value.name not in used and value.name not in g.feeds] or g.values[-1:]
    outputs = [
        helper.make_tensor_value_info(end.name, helper.np_dtype_to_tensor_dtype(end.dtype), [None] * len(end.shape))
        for end in ends
    ]
    functions, imports = [], [helper.make_opsetid("", g.opset)]
    plain = [n for n in g.nodes if not any(a.HasField("g") for a in n.attribute) and n.op_type != "Constant"]
    if plain and random.random() < 0.15:
        functions.append(_as_function(g, random.choice(plain), random))
        imports.append(helper.make_opsetid("own", 1))
    graph = helper.make_graph(g.nodes, "graph", g.inputs, outputs, g.initializers)
    ir_version = random.choice((8, 9, 10)) if functions or g.opset > 13 else random.choice((4, 6, 8))
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=ir_version)


def _as_function(g: Graph, node: Any, random: Random) -> Any:
    """Move a node into a function of the model, sometimes with an attribute passed by reference."""
    inner = type(node)()
    inner.CopyFrom(node)
    inputs, outputs = [f"i{n}" for n in range(len(node.input))], [f"o{n}" for n in range(len(node.output))]
    inner.input[:] = [name if given else "" for name, given in zip(inputs, node.input, strict=True)]
    inner.output[:] = outputs
    passed: list[Any] = []
    if node.attribute and random.random() < 0.5:
        moved = random.choice(inner.attribute)
        passed = [attribute for attribute in node.attribute if attribute.name == moved.name]
        kind, name = moved.type, moved.name
        moved.Clear()
        moved.name, moved.type, moved.ref_attr_name = name, kind, name
    function = helper.make_function(
        "own", "Moved", inputs, outputs, [inner], [helper.make_opsetid("", g.opset)], [each.name for each in passed]
    )
    kept = [type(each).FromString(each.SerializeToString()) for each in passed]
    node.op_type, node.domain = "Moved", "own"
    del node.attribute[:]
    node.attribute.extend(kept)
    return function
