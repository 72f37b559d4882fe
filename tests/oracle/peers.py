"""ONNX Runtime, PyTorch and ONNX's shape inference as independent references, each within its limits.

``…_may_judge`` selects the problems that a peer computes by the undisputed rules. Disputed rules, and problems on which
a peer hangs or crashes, are excluded. Each peer is imported when it is first used.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from typing import Any

import numpy as np

from gpuconv.rules import geometry as geometries
from tests.oracle.strategies import Problem

KINDS = {"conv": "Conv", "conv_transpose": "ConvTranspose", "max_pool": "MaxPool"}


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def geometry_of(problem: Problem) -> Any:
    return getattr(geometries, problem.operator)(*problem.shapes, **problem.attributes)


def _mode(problem: Problem) -> str:
    mode = problem.attributes.get("auto_pad", "NOTSET")
    return mode.decode() if isinstance(mode, bytes) else mode


def _nothing_is_empty(problem: Problem) -> bool:
    shapes = (*(shape for shape in problem.shapes if shape is not None), geometry_of(problem).y_shape)
    return all(math.prod(shape) > 0 for shape in shapes)


def _windows_are_ordinary(geometry: Any) -> bool:
    """Return whether padding is at most half a kernel, so that every window has an element of the input."""
    pads = zip(geometry.kernel_shape, geometry.pads_begin, geometry.pads_end, strict=True)
    return all(2 * max(begin, end) <= k for k, begin, end in pads)


def tame(problem: Problem, *, pads_alike: bool = False) -> Problem:
    """Return the nearest problem with no empty array and room for the kernel; with ``pads_alike``, symmetric pads."""
    group, kernel = problem.attributes.get("group", 1), geometry_of(problem).kernel_shape
    spatial = tuple(n + 3 * k for n, k in zip(problem.x_shape[2:], kernel, strict=True))
    attributes = dict(problem.attributes)
    if attributes.get("pads"):
        pads = [min(p, k // 2) for p, k in zip(attributes["pads"], kernel * 2, strict=True)]
        attributes["pads"] = pads[: problem.rank] * 2 if pads_alike else pads
    batch, channels = max(1, problem.x_shape[0]), max(1, problem.x_shape[1])
    if problem.w_shape is None:
        return Problem(problem.operator, (batch, channels, *spatial), attributes=attributes)
    first, second = max(group, problem.w_shape[0]), max(1, problem.w_shape[1])
    channels, outputs = (second * group, first) if problem.operator == "conv" else (first, second * group)
    b_shape = None if problem.b_shape is None else (outputs,)
    return Problem(problem.operator, (batch, channels, *spatial), (first, second, *kernel), b_shape, attributes)


# ---------------------------------------------------------------- ONNX: models, and the shapes it infers


def model_of(problem: Problem, outputs: list[str]) -> Any:
    """Return a float32 model with one node of opset 22; zero pads with an auto_pad are left out."""
    onnx = importlib.import_module("onnx")
    kinds = (onnx.TensorProto.FLOAT, onnx.TensorProto.INT64)
    inputs = [
        onnx.helper.make_tensor_value_info(name, kinds[0], shape)
        for name, shape in zip("xwb", problem.shapes, strict=False)
        if shape is not None
    ]
    results = [onnx.helper.make_tensor_value_info(name, kind, None) for name, kind in zip(outputs, kinds, strict=False)]
    names = [tensor.name for tensor in inputs]
    node = onnx.helper.make_node(KINDS[problem.operator], names, outputs, **_node_attributes(problem))
    graph = onnx.helper.make_graph([node], "one node", inputs, results)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 22)], ir_version=10)


def _node_attributes(problem: Problem) -> dict[str, Any]:
    attributes = {name: value for name, value in problem.attributes.items() if value is not None}
    if _mode(problem) not in ("NOTSET", ""):
        attributes.pop("pads", None)
    elif attributes.get("auto_pad") == "":
        del attributes["auto_pad"]
    return attributes


def shape_inference_may_judge(problem: Problem) -> bool:
    """It truncates a negative room, knows no SAME of ConvTranspose, and no output_shape below the input's."""
    if problem.operator != "conv_transpose":
        return min((*problem.x_shape[2:], *geometry_of(problem).y_shape[2:])) > 0
    wanted, spatial = problem.attributes.get("output_shape", problem.x_shape[2:]), problem.x_shape[2:]
    known = len(wanted) == problem.rank and all(size >= max(1, n) for size, n in zip(wanted, spatial, strict=True))
    return not _mode(problem).startswith("SAME") and ("output_shape" not in problem.attributes or known)


def inferred_shape(problem: Problem) -> tuple[int, ...]:
    onnx = importlib.import_module("onnx")
    model = onnx.shape_inference.infer_shapes(model_of(problem, ["y"]), strict_mode=True)
    return tuple(axis.dim_value for axis in model.graph.output[0].type.tensor_type.shape.dim)


# ---------------------------------------------------------------- ONNX Runtime


def onnxruntime_may_judge(problem: Problem) -> bool:
    """Return whether ONNX Runtime may judge: at most three spatial axes, nothing empty; else it may hang, abort or
    crash."""
    if problem.rank > 3 or not _nothing_is_empty(problem):
        return False
    geometry = geometry_of(problem)
    if problem.operator == "conv_transpose":
        more = problem.attributes.get("output_padding", [0] * problem.rank)
        explicit = not _mode(problem).startswith("SAME") and "output_shape" not in problem.attributes
        return explicit and all(o < s for o, s in zip(more, geometry.strides, strict=True))
    if _mode(problem).startswith("SAME") and not _kernels_touch(geometry):
        return False
    return problem.operator == "conv" or _windows_are_ordinary(geometry)


def _kernels_touch(geometry: Any) -> bool:
    """Return whether there is no dilation and no stride beyond the kernel, where its SAME padding would be negative."""
    steps = zip(geometry.kernel_shape, geometry.strides, geometry.dilations, strict=True)
    return all(s <= k and d == 1 for k, s, d in steps)


def by_onnxruntime(problem: Problem, arrays: list[Any], outputs: int = 1) -> list[Any]:
    onnxruntime = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    model = model_of(problem, ["y", "indices"][:outputs]).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    given = {name: array for name, array in zip("xwb", arrays, strict=False) if array is not None}
    return list(session.run(None, given))


# ---------------------------------------------------------------- PyTorch


def torch_may_judge(problem: Problem) -> bool:
    """Return whether PyTorch may judge: it has only symmetric pads, no SAME with strides, and no output_shape."""
    if problem.rank > 3 or not _nothing_is_empty(problem) or _mode(problem) not in ("NOTSET", "", "VALID"):
        return False
    geometry = geometry_of(problem)
    if geometry.pads_begin != geometry.pads_end or "output_shape" in problem.attributes:
        return False
    return problem.operator != "max_pool" or (_windows_are_ordinary(geometry) and geometry.storage_order == 0)


def by_torch(problem: Problem, arrays: list[Any]) -> list[Any]:
    """Return the result; for MaxPool also the indices, converted from PyTorch's numbering within each plane."""
    torch = importlib.import_module("torch")
    geometry = geometry_of(problem)
    tensors = [None if array is None else torch.from_numpy(array) for array in arrays]
    window = {"stride": geometry.strides, "padding": geometry.pads_begin, "dilation": geometry.dilations}
    if problem.operator == "max_pool":
        ceil_mode = bool(problem.attributes.get("ceil_mode", 0))
        function = getattr(torch.nn.functional, f"max_pool{problem.rank}d")
        y, places = function(*tensors, geometry.kernel_shape, ceil_mode=ceil_mode, return_indices=True, **window)
        planes = np.arange(math.prod(problem.x_shape[:2])).reshape(*problem.x_shape[:2], *[1] * problem.rank)
        return [y.numpy(), places.numpy() + planes * math.prod(problem.x_shape[2:])]
    if problem.operator == "conv_transpose":
        window["output_padding"] = tuple(problem.attributes.get("output_padding", [0] * problem.rank))
    function = getattr(torch.nn.functional, f"{problem.operator}{problem.rank}d")
    return [function(*tensors, groups=geometry.group, **window).numpy()]
