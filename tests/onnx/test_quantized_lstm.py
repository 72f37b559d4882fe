"""ONNX Runtime's own LSTM of integers, compared with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from gpuconv._errors import ArgumentError
from gpuconv.onnx import backend
from gpuconv.onnx.operators.quantizing import centred
from tests.harness.device_arrays import device_arrays
from tests.onnx.contributed import by_onnxruntime
from tests.onnx.models import floats

SIZE, FEATURES = 5, 7
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]


def model(inputs: dict[str, Any], **attributes: Any) -> Any:
    """Return a model of one node: x and the states are its inputs, everything else is constant."""
    order = ["x", "w", "r", "b", "lengths", "h", "c", "p", "w_scale", "w_zero", "r_scale", "r_zero"]
    names = [name if name in inputs else "" for name in order]
    node = helper.make_node("DynamicQuantizeLSTM", names, ["y", "yh", "yc"], domain="com.microsoft", **attributes)
    free = [helper.make_tensor_value_info(name, 1, inputs[name].shape) for name in ("x", "h", "c") if name in inputs]
    outputs = [helper.make_tensor_value_info(name, 1, [None] * (4 if name == "y" else 3)) for name in node.output]
    fixed = [helper.make_tensor(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape, a.tobytes(), raw=True)
             for n, a in inputs.items() if n not in ("x", "h", "c")]  # fmt: skip
    graph = helper.make_graph([node], "lstm", free, outputs, fixed)
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=8)


def operands(steps: int, directions: int, dtype: Any, batch: int = 1, per_column: bool = False) -> dict[str, Any]:
    rng, width = np.random.default_rng(7), 4 * SIZE
    ends = np.iinfo(dtype)

    def weights(rows: int) -> Any:
        return rng.integers(ends.min, ends.max + 1, (directions, rows, width)).astype(dtype)

    shape = (directions, width) if per_column else (directions,)
    middle = np.full((directions,), (int(ends.max) + int(ends.min) + 1) // 2 + (0 if per_column else 3), dtype)
    return {
        "x": floats(steps, batch, FEATURES, seed=1),
        "w": weights(FEATURES),
        "r": weights(SIZE),
        "b": floats(directions, 2 * width, seed=2),
        "h": floats(directions, batch, SIZE, seed=3),
        "c": floats(directions, batch, SIZE, seed=4),
        "w_scale": (rng.random(shape) / 100 + 0.005).astype(np.float32),
        "w_zero": middle,
        "r_scale": (rng.random(shape) / 100 + 0.005).astype(np.float32),
        "r_zero": middle,
    }


def free_of(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: inputs[name] for name in ("x", "h", "c") if name in inputs}


def check(inputs: dict[str, Any], tolerance: float, **attributes: Any) -> None:
    """Compare with ONNX Runtime on one thread: each of several would quantize sequences of its own."""
    made = model(inputs, hidden_size=SIZE, **attributes)
    got = backend.prepare(made).run(free_of(inputs))
    for value, wanted in zip(got, by_onnxruntime(made, free_of(inputs)), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=2e-6, atol=tolerance)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_step_is_onnx_runtime_s(direction: str, dtype: Any, batch: int) -> None:
    check(operands(1, 2 if direction == "bidirectional" else 1, dtype, batch), 2e-6, direction=direction)


def test_many_steps_drift_by_quanta() -> None:
    """A last bit may change what a state is rounded to: by 1/255 of its range, which the next product sees."""
    check(operands(20, 2, np.int8, 1), 1e-2, direction="bidirectional")


def test_a_scale_for_each_column_and_no_states() -> None:
    inputs = operands(1, 1, np.int8, per_column=True)
    check({name: array for name, array in inputs.items() if name not in ("b", "h", "c")}, 2e-6)


def test_weights_that_are_computed() -> None:
    """Without constants, nothing is precomputed."""
    inputs = operands(2, 1, np.int8)
    made = model(inputs, hidden_size=SIZE)
    fixed = backend.prepare(made).run(free_of(inputs))
    order = [inputs.get(name) for name in made.graph.node[0].input]
    free = backend.run_node(made.graph.node[0], [a for a in order if a is not None], opset_version=17)
    for value, wanted in zip(free, fixed, strict=True):
        np.testing.assert_array_equal(value, wanted)


def test_on_a_device() -> None:
    inputs = operands(2, 2, np.int8)
    made = model(inputs, direction="bidirectional", hidden_size=SIZE)
    wanted = backend.prepare(made).run(free_of(inputs))
    with device_arrays():
        got = backend.prepare(made, "CUDA").run(free_of(inputs))
    for value, host in zip(got, wanted, strict=True):
        np.testing.assert_allclose(value, host, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("w", np.zeros((1, FEATURES, 6), np.int8), r"4 \* hidden_size\), not \(1, 7, 6\)"),
        ("w_scale", np.ones(3, np.float32), r"scale of weights \(1, 7, 20\) must have the shape \(1,\) or \(1, 20\)"),
    ],
)
def test_weights_that_do_not_fit_are_refused(name: str, array: Any, message: str) -> None:
    inputs = operands(1, 1, np.int8)
    with pytest.raises(ArgumentError, match=message):
        backend.prepare(model({**inputs, name: array}, hidden_size=SIZE)).run(free_of(inputs))


def quantized(row: list[float]) -> tuple[list[float], float]:
    """Return numbers quantized in their range, which includes 0, one by one like DynamicQuantizeLinear."""
    numbers = [np.float32(number) for number in row]
    low = min([np.float32(0), *(n for n in numbers if n == n)])
    high = max([np.float32(0), *(n for n in numbers if n == n)])
    step = np.float32(1) if low == high else (high - low) / np.float32(255)
    zero = np.float32(min(max(np.rint(-low / step), 0), 255))
    steps = [-zero if n != n else min(max(np.rint(n / step), -zero), 255 - zero) for n in numbers]
    return [float(n) for n in steps], float(step)


@pytest.mark.parametrize(
    "row",
    [
        [0, 0, 0],
        [-1, 0.5, 2],
        [5, 6, 5.5],
        [-3, -1, -2],
        [1.5, 2.5, 255, 254.5],
        [-127.5, 127.5, 0.5, -0.5],
        [np.nan, 1, -1],
        [1e-37, -3e-38, 5e-38],
    ],
)
def test_rows_are_quantized_by_their_range(row: list[float]) -> None:
    steps, step = quantized(row)
    got, scale = centred(np.array([row], np.float32))
    np.testing.assert_array_equal(got, [steps])
    assert got.dtype == np.float32
    assert scale == np.float32(step)
