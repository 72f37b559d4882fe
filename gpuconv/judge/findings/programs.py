"""The program of a finding: at most 30 lines that reproduce it with the target only, ready for an issue."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuconv.judge.definition import Array
from gpuconv.judge.problems import KINDS, NAMES, Problem, attributes, fed_by_name, operands, stored

WIDTH = 116  # characters of a line

# Imports and code of each target that run `model` on `feeds`, a dictionary of arrays by the names of its inputs.
RUN: dict[str, tuple[str, str]] = {
    "backend": ("import {option} as backend", "got = backend.prepare(model).run(list(feeds.values()))"),
    "gpuconv": ("from gpuconv.onnx import backend", "got = backend.prepare(model).run(list(feeds.values()))"),
    "onnxruntime": (
        "import onnxruntime",
        "got = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)",
    ),
    "opencv": (
        "import cv2",
        "net = cv2.dnn.readNetFromONNX(np.frombuffer(model.SerializeToString(), np.uint8))\n"
        "for name, array in feeds.items():\n"
        "    net.setInput(array, name)\n"
        "got = net.forward([value.name for value in model.graph.output])",
    ),
    "openvino": (
        "import openvino",
        "core = openvino.Core()\n"
        'hint = {"EXECUTION_MODE_HINT": "ACCURACY"}\n'
        'compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", hint)\n'
        "got = list(compiled(list(feeds.values())).values())",
    ),
    "reference": (
        "from onnx.reference import ReferenceEvaluator",
        "got = ReferenceEvaluator(model).run(None, feeds)",
    ),
    "tinygrad": (
        "from tinygrad import Tensor\nfrom tinygrad.nn.onnx import OnnxRunner",
        "runner = OnnxRunner(Tensor(np.frombuffer(model.SerializeToString(), np.uint8)))\n"
        "got = [y.numpy() for y in runner({name: Tensor(array) for name, array in feeds.items()}).values()]",
    ),
    "tvm": (
        "import tvm\nfrom tvm import relax\nfrom tvm.relax.frontend.onnx import from_onnx",
        "module = relax.transform.DecomposeOpsForInference()(from_onnx(model, keep_params_in_input=False))\n"
        'machine = relax.VirtualMachine(tvm.compile(module, "llvm"), tvm.cpu())\n'
        'found = machine["main"](*(tvm.runtime.tensor(array) for array in feeds.values()))\n'
        "got = [y.numpy() for y in ([found] if isinstance(found, tvm.runtime.Tensor) else found)]",
    ),
}


def program(target: str, comments: Sequence[str], problem: Problem, expected: Sequence[Array], why: str) -> str:
    """Write the program.

    Parameters
    ----------
    target : str
        As on the command line; :func:`writes` must be true for it.
    comments : sequence of str
        The comment at the top: the version, the rule, its quotation.
    problem : Problem
    expected : sequence of array
        The right outputs.
    why : str
        One line of arithmetic; may be empty.
    """
    kind, _, option = target.partition(":")
    imports, run = RUN[kind]
    arrays, bfloat16 = operands(problem), problem.dtype == "bfloat16"
    lines = [f"# {line}" for text in comments for line in textwrap.wrap(text, WIDTH - 2)]
    lines += ["import numpy as np", "import onnx.numpy_helper", *["from ml_dtypes import bfloat16"] * bfloat16]
    lines += ["from onnx import helper", *imports.format(option=option).splitlines(), ""]
    lines += [*["nan, inf = np.nan, np.inf"] * _has_special((*arrays.values(), *expected))]
    lines += [f"{name} = {_literal(array, problem.bits)}" for name, array in arrays.items()]
    fed = {NAMES[name]: name for name in fed_by_name(problem)}
    lines += [f"feeds = {{{', '.join(f'{given!r}: {name}' for given, name in fed.items())}}}"]
    lines += _model(problem, arrays, fed, expected)
    lines += ["", *run.splitlines(), "for y in got:", '    print("got     ", y.shape, y.tolist())']
    for y in expected:
        lines.append(f'print("expected", {y.shape}, {_nested(y, problem.bits)})')
    lines += [f"# {line}" for line in textwrap.wrap(why, WIDTH - 2)]
    return "\n".join(line if line.startswith("#") else line.replace("'", '"') for line in lines) + "\n"


def writes(target: str) -> bool:
    """Return whether there is a program for a target: not for commands and for libraries that are called directly."""
    return target.partition(":")[0] in RUN


def _model(problem: Problem, arrays: dict[str, Array], fed: dict[str, str], expected: Sequence[Array]) -> list[str]:
    settings = "".join(f", {name}={_attribute(value)}" for name, value in attributes(problem).items())
    outputs = ["Y", "Indices"][: len(expected)]
    node = (
        f'node = helper.make_node("{KINDS[problem.case.op]}", {[NAMES[name] for name in arrays]}, {outputs}{settings})'
    )
    constants = [f'onnx.numpy_helper.from_array({name}, "{NAMES[name]}")' for name in stored(problem)]
    kinds = [_kind(arrays["x"]), "INT64"][: len(expected)]
    inputs = [_info(given, _kind(arrays[name]), list(arrays[name].shape)) for given, name in fed.items()]
    results = [_info(name, kind, list(y.shape)) for name, kind, y in zip(outputs, kinds, expected, strict=True)]
    opset = f'[helper.make_opsetid("", {problem.opset})]'
    return [
        *_wrapped(node),
        f"inputs = [{', '.join(inputs)}]",
        f"outputs = [{', '.join(results)}]",
        *([f"constants = [{', '.join(constants)}]"] if constants else []),
        f'graph = helper.make_graph([node], "test", inputs, outputs{", constants" if constants else ""})',
        f"model = helper.make_model(graph, opset_imports={opset}, ir_version=10)",
    ]


def _info(name: str, kind: str, shape: list[int]) -> str:
    return f'helper.make_tensor_value_info("{name}", onnx.TensorProto.{kind}, {shape})'


def _kind(array: Array) -> str:
    return {"float32": "FLOAT", "float64": "DOUBLE"}.get(array.dtype.name, array.dtype.name.upper())


def _attribute(value: Any) -> str:
    return repr(value.decode() if isinstance(value, bytes) else list(value) if isinstance(value, tuple) else value)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def _has_special(arrays: Sequence[Array]) -> bool:
    return any(not np.isfinite(array.astype(np.float64)).all() for array in arrays)


def _literal(array: Array, bits: bool) -> str:
    kind = "bfloat16" if array.dtype.name == "bfloat16" else repr(array.dtype.name)
    if bits and array.dtype.kind not in "iu":
        words = array.view(f"u{array.dtype.itemsize}")
        return f'np.array({words.tolist()}, "{words.dtype.name}").view({kind})'
    if array.size == 0:
        return f"np.zeros({array.shape}, {kind})"
    text = f"np.array({_nested(array, False)}, {kind})"
    flat = f"np.array({array.ravel().tolist()}, {kind}).reshape({array.shape})"
    return min(text, flat, key=len)


def _nested(array: Array, bits: bool) -> str:
    values = array.view(f"u{array.dtype.itemsize}") if bits and array.dtype.kind not in "iu" else array
    return repr(_plain(values.tolist()))


def _plain(value: Any) -> Any:
    """Replace floats by equal integers, which are shorter; the array's type is given explicitly."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e6 and str(value)[0] != "-":
        return int(value)
    return value
