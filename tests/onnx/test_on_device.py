"""Whole models on a device: where values are kept between nodes, what is copied, what the reference evaluator gets."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import gpuconv
from gpuconv.onnx import backend
from tests.harness.device_arrays import device_arrays
from tests.onnx.models import NEWEST, branching, floats, model, network, run, value


def test_only_inputs_and_outputs_are_copied() -> None:
    proto, _ = network(NEWEST)
    x = floats(1, 3, 4, 4)
    expected = backend.run_model(proto, [x])
    with device_arrays() as device:
        rep = backend.prepare(proto, "CUDA")
        assert sorted(device.to_device) == [(4, 2, 2, 2), (4, 3, 3, 3)], "the weights, when it is prepared"
        outputs = rep.run([x])
        assert device.computed == ["conv", "max_pool", "conv_transpose"]
        assert device.to_device[2:] == [x.shape, (4,)], "the bias, on the first run"
        assert device.to_host == [output.shape for output in expected]
        rep.run([x])
        assert device.to_device[4:] == [x.shape], "the weights stay"
    for actual, wanted in zip(outputs, expected, strict=True):
        assert type(actual) is np.ndarray
        np.testing.assert_array_equal(actual, wanted)


def test_arrays_of_the_device_come_in_and_go_out() -> None:
    proto, _ = network(NEWEST)
    x = floats(1, 3, 4, 4)
    expected = backend.run_model(proto, [x])
    with device_arrays() as device:
        outputs = backend.prepare(proto, "CUDA").run({"x": device.array(x)})
        assert device.to_host == []
        for actual, wanted in zip(outputs, expected, strict=True):
            np.testing.assert_array_equal(device.memory(actual), wanted)
        with pytest.raises(gpuconv.ArgumentError, match=r"'x' .* was given with shape \(1, 2, 4, 4\)"):
            backend.prepare(proto, "CUDA").run([device.array(x[:, :2])])
        with pytest.raises(gpuconv.ArgumentTypeError, match=r"'x' .* must be a NumPy array, not cupy\.ndarray"):
            backend.prepare(proto, "CPU").run([device.array(x)])


def shape_computation() -> onnx.ModelProto:
    """Flatten x as PyTorch exports it: by Shape, Gather, Unsqueeze, Concat, Reshape."""
    nodes = """r = Relu (x)  s = Shape (r)  n = Gather (s, zero)  m = Unsqueeze (n, axes)
               t = Concat <axis = 0> (m, rest)  y = Reshape (r, t)"""
    weights = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])}
    return model(nodes, ["x"], [value("y", shape=2)], 17, weights)


def test_shapes_are_computed_on_the_host() -> None:
    x = floats(2, 3, 4)
    with device_arrays() as device:
        (y,) = backend.prepare(shape_computation(), "CUDA").run([x])
        assert device.to_device == [x.shape]
        assert device.to_host == [(2, 12)]
    np.testing.assert_array_equal(y, np.maximum(x, 0).reshape(2, 12))


def test_other_operators_run_on_the_host_with_one_warning() -> None:
    nodes = "r = Relu (x)  [first] s = Sinh (r)  t = Sinh (s)  y = Neg (t)"
    x = floats(2, 3, 4)
    proto = model(nodes, ["x"], ["y"])
    with device_arrays() as device:
        rep = backend.prepare(proto, "CUDA")
        with pytest.warns(UserWarning, match=r"^Sinh node 'first': Sinh is left .* on the host, with copies") as caught:
            (y,) = rep.run([x])
        assert len(caught) == 1
        assert device.to_host == [x.shape] * 3
        assert device.to_device == [x.shape] * 3
        rep.run([x])  # warned before
    np.testing.assert_allclose(y, -np.sinh(np.sinh(np.maximum(x, 0))), rtol=1e-6)
    with pytest.warns(UserWarning, match="which is made to be right, not to be fast") as caught:
        backend.run_model(proto, [x])
    assert len(caught) == 1


def test_graphs_inside_see_values_on_the_device() -> None:
    choice = branching("y", "which", *(f"t = Conv <strides = [{stride}]> (h, w)" for stride in (1, 2)))
    w, x = floats(4, 3, 2), floats(1, 3, 5, seed=1)
    inputs = [value("which", np.bool_, ()), "x"]
    proto = model(f"h = Relu (x)  {choice}  z = Neg (y)", inputs, ["z"], weights={"w": w})
    expected = backend.run_model(proto, [np.array(False), x])[0]
    with device_arrays() as device:
        (z,) = backend.prepare(proto, "CUDA").run([np.array(False), x])
        assert device.computed == ["conv"]
    np.testing.assert_array_equal(z, expected)


def test_functions_stay_on_the_device() -> None:
    """Of the model, and those that define operators, such as Gelu by Tanh."""
    function = '<domain: "local", opset_import: ["" : 20]> Block (a, k) => (c) { b = Conv (a, k)  c = Relu (b) }'
    nodes = 'h = local.Block (x, w)  y = Gelu <approximate = "tanh"> (h)'
    proto = model(nodes, ["x"], ["y"], 20, {"w": floats(2, 3, 2)}, functions=[function], domains=["local"])
    x = floats(1, 3, 5, seed=1)
    expected = backend.run_model(proto, [x])[0]
    with device_arrays() as device:
        (y,) = backend.prepare(proto, "CUDA").run([x])
        assert device.to_host == [y.shape]
    np.testing.assert_array_equal(y, expected)


def test_products_are_made_by_our_kernels() -> None:
    cases: list[tuple[str, list[Any], dict[str, Any]]] = [
        ("Gemm", [floats(3, 4), floats(4, 5, seed=1), floats(5, seed=2)], {}),
        ("Gemm", [floats(4, 3), floats(5, 4, seed=1), floats(3, 1, seed=2)], {"transA": 1, "transB": 1, "alpha": 0.5}),
        ("MatMul", [floats(2, 3, 4), floats(4, 5, seed=1)], {}),
        ("MatMul", [floats(2, 1, 3, 4), floats(3, 4, 5, seed=1)], {}),
        ("MatMul", [floats(4), floats(3, 4, 5, seed=1)], {}),
    ]
    for op_type, arrays, attributes in cases:
        expected = run(op_type, arrays, **attributes)
        with device_arrays() as device:
            y = run(op_type, arrays, device="CUDA", **attributes)
            assert device.computed == ["conv"]
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_outputs_that_are_no_numbers_stay_on_the_host() -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["parts"]),
        helper.make_node("Cast", ["x"], ["text"], to=onnx.TensorProto.STRING),
        helper.make_node("Shape", ["x"], ["shape"]),
    ]
    outputs = [
        helper.make_tensor_sequence_value_info("parts", onnx.TensorProto.FLOAT, None),
        helper.make_tensor_value_info("text", onnx.TensorProto.STRING, [None]),
        value("shape", np.int64, (1,)),
    ]
    proto = model(nodes, [value("x", shape=(2,))], outputs)
    with device_arrays() as device, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # copies to the host
        parts, text, shape = backend.prepare(proto, "CUDA").run([device.array(np.float32([1, 2]))])
        np.testing.assert_array_equal(device.memory(shape), [2])
    assert [part.tolist() for part in parts] == [[1], [2]]
    assert isinstance(text, np.ndarray)
    assert text.tolist() == ["1.0", "2.0"]


DATA = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_a_network_stays_on_the_device(name: str) -> None:
    x = floats(1, 3, 224, 224)
    path = DATA / f"light_{name}.onnx"
    with device_arrays() as device:
        rep = backend.prepare(path, "CUDA")
        (y,) = rep.run([x])
        assert device.to_host == [y.shape]
        before = len(device.to_device)
        rep.run([x])
        assert device.to_device[before:] == [x.shape]
    np.testing.assert_array_equal(y, backend.prepare(path).run([x])[0])
