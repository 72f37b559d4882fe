"""The backend compared with ONNX's own runner: node tests, single nodes, devices."""

from __future__ import annotations

import subprocess
import sys
import unittest

import numpy as np
import pytest
from onnx import helper
from onnx.backend.test.runner import Runner

import gpuconv
from gpuconv.cuda.call import device as cuda_device
from gpuconv.onnx import backend
from tests.onnx.models import BY_EVALUATOR, NEWEST, data_of, floats, node_tests, pool

pytestmark = pytest.mark.slow

CONVOLUTIONS = [
    *("basic_conv_with_padding", "basic_conv_without_padding", "conv_with_autopad_same", "conv_with_strides_padding"),
    *("conv_with_strides_and_asymmetric_padding", "conv_with_strides_no_padding"),
]
TRANSPOSES = ["", "_1d", "_3d", "_autopad_same", "_dilations", "_group_2", "_group_2_image_3", "_kernel_shape"]
TRANSPOSES += ["_output_shape", "_pad", "_pads"]
POOLS = [
    *("1d_default", "2d_ceil", "2d_ceil_output_size_reduce_by_one", "2d_default", "2d_dilations", "2d_pads"),
    *("2d_precomputed_pads", "2d_precomputed_same_upper", "2d_precomputed_strides", "2d_same_lower", "2d_same_upper"),
    *("2d_strides", "2d_uint8", "3d_default", "3d_dilations", "3d_dilations_use_ref_impl"),
    *("3d_dilations_use_ref_impl_large", "with_argmax_2d_precomputed_pads", "with_argmax_2d_precomputed_strides"),
]
NODE_TESTS = [*CONVOLUTIONS, *(f"convtranspose{name}" for name in TRANSPOSES), *(f"maxpool_{name}" for name in POOLS)]


# --- ONNX's node tests ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runner_case() -> type[unittest.TestCase]:
    node_tests()  # makes them without warnings of other operators, in any order of tests
    case: type[unittest.TestCase] = Runner(backend, __name__).test_cases["OnnxBackendNodeModelTest"]
    return case


def test_these_are_all_node_tests_of_the_three_operators() -> None:
    found = {op_type: set() for op_type in ("Conv", "ConvTranspose", "MaxPool")}
    for name, test in node_tests().items():
        if name.startswith(("basic_conv", "conv", "maxpool")):
            nodes = data_of(test)[0].graph.node
            found.get(nodes[0].op_type if len(nodes) == 1 else "", set()).add(name)
    assert {op_type: len(names) for op_type, names in found.items()} == {"Conv": 6, "ConvTranspose": 11, "MaxPool": 19}
    assert set().union(*found.values()) == set(NODE_TESTS)


@pytest.mark.parametrize("name", NODE_TESTS)
def test_node_test_in_onnx_s_runner(name: str, runner_case: type[unittest.TestCase]) -> None:
    try:
        runner_case(f"test_{name}_cpu").debug()
    except unittest.SkipTest as reason:
        pytest.fail(f"onnx's runner skipped it: {reason}")


# --- single nodes -----------------------------------------------------------------------------------------------------


def test_run_node() -> None:
    node = helper.make_node("MaxPool", ["x"], ["y", "i"], kernel_shape=[2])
    x = floats(1, 2, 5)
    expected = gpuconv.max_pool(x, kernel_shape=[2], return_indices=True)
    for inputs in ([x], x, {"x": x}):
        outputs = backend.run_node(node, inputs)
        np.testing.assert_array_equal(outputs["y"], expected[0])
        np.testing.assert_array_equal(outputs["i"], expected[1])


def test_run_node_with_an_absent_input() -> None:
    x, w = floats(1, 2, 5), floats(3, 2, 2, seed=1)
    outputs = backend.run_node(helper.make_node("Conv", ["x", "w", ""], ["y"]), [x, w])
    np.testing.assert_array_equal(outputs[0], gpuconv.conv(x, w))


@BY_EVALUATOR
def test_run_node_of_other_operators_and_domains() -> None:
    x = floats(2, 3)
    outputs = backend.run_node(helper.make_node("Relu", ["x"], ["y"]), [x], opset_version=6)
    np.testing.assert_array_equal(outputs[0], np.maximum(x, 0))
    binary = helper.make_node("Binarizer", ["x"], ["y"], domain="ai.onnx.ml", threshold=0.0)
    np.testing.assert_array_equal(backend.run_node(binary, [x])[0], (x > 0).astype(np.float32))


@BY_EVALUATOR
def test_run_node_of_one_value_twice_and_of_a_value_that_is_no_array() -> None:
    x = floats(2, 3)
    np.testing.assert_array_equal(backend.run_node(helper.make_node("Mul", ["x", "x"], ["y"]), [x])[0], x * x)
    assert backend.run_node(helper.make_node("SequenceLength", ["s"], ["n"]), [[x, x, x]])[0] == 3


def test_run_node_of_an_operator_that_onnx_defines_by_others() -> None:
    (y,) = backend.run_node(helper.make_node("Gelu", ["x"], ["y"]), [np.float32([-1, 0, 2])], opset_version=20)
    np.testing.assert_allclose(y, [-0.158655, 0, 1.954500], rtol=1e-5)


def test_run_node_obeys_the_opset() -> None:
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2], ceil_mode=1)
    x = floats(1, 1, 4)
    for opsets in ({"opset_version": 10}, {"opset_imports": [helper.make_opsetid("ai.onnx", 10)]}):
        assert backend.run_node(node, [x], **opsets)[0].shape == (1, 1, 3)
    for opsets in ({"opset_version": 9}, {"opset_imports": [helper.make_opsetid("ai.onnx", 9)]}):
        with pytest.raises(gpuconv.ArgumentError, match=r"ceil_mode needs opset 10, but the model imports opset 9"):
            backend.run_node(node, [x], **opsets)
    with pytest.raises(gpuconv.ArgumentError, match=f"knows opsets up to {NEWEST}"):
        backend.run_node(helper.make_node("Relu", ["x"], ["y"]), [x], opset_version=NEWEST + 1)


def test_run_node_checks_what_it_is_given() -> None:
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2])
    x = floats(1, 1, 4)
    with pytest.raises(gpuconv.ArgumentError, match=r"got 2 input\(s\), but the model takes 1; the inputs are 'x'"):
        backend.run_node(node, [x, x])
    with pytest.raises(gpuconv.ArgumentError, match=r"^Relu node with output 'y' is not valid: .*slope"):
        backend.run_node(helper.make_node("Relu", ["x"], ["y"], slope=1.0), [x])
    backend.run_node(node, [x], outputs_info=[(np.float32, (1, 1, 3))])
    for info in ((np.float32, (1, 1, 4)), (np.float64, (1, 1, 3))):
        with pytest.raises(
            gpuconv.ArgumentError, match=r"outputs_info expects 'y' of dtype .*, but it has dtype float32"
        ):
            backend.run_node(node, [x], outputs_info=[info])


# --- devices ----------------------------------------------------------------------------------------------------------


def test_devices_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_device, "unavailable_reason", lambda: "the driver sleeps")
    assert [d for d in ("CPU", "CUDA", "CUDA:0", "TPU", "cpu", "") if backend.supports_device(d)] == ["CPU", "cpu"]
    for device in ("CUDA", "CUDA:0"):
        with pytest.raises(
            gpuconv.DeviceError, match=r"^no CUDA device was found \(the driver sleeps\); use device='CPU'"
        ):
            backend.prepare(pool(), device)
        assert not backend.is_compatible(pool(), device)
        with pytest.raises(gpuconv.DeviceError, match=r"the driver sleeps"):
            backend.run_node(pool().graph.node[0], [floats(1, 1, 4)], device)
    with pytest.raises(gpuconv.ArgumentError, match=r"^device must be one of CPU, CUDA, CUDA:0, not 'TPU'"):
        backend.prepare(pool(), "TPU")


# --- importing --------------------------------------------------------------------------------------------------------


def test_gpuconv_does_not_import_onnx() -> None:
    code = "import sys, gpuconv; sys.exit(any(name.split('.')[0] == 'onnx' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_onnx_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['onnx'] = None; import gpuconv; import gpuconv.onnx"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: gpuconv.onnx needs the onnx package")
    assert "pip install gpuconv[onnx]" in done.stderr.splitlines()[-1]
