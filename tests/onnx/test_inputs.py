"""The inputs of a model: how they may be given, and the errors for those that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import gpuconv
from gpuconv.onnx import backend
from gpuconv.onnx.inputs import Input, NodeArg, bind
from tests.harness.device_arrays import device_arrays
from tests.onnx.models import BY_EVALUATOR, floats, model, parsed, pool, run, value


@pytest.fixture(scope="module")
def two_inputs() -> backend.Rep:
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"])
    inputs = [value("x", shape=("N", "C", "L", None)), value("w", shape=("M", "C", 1, 1)), value("b", shape=(2,))]
    return backend.prepare(model([node], inputs, [value("y", shape=4)], weights={"b": np.zeros(2, np.float32)}))


def test_inputs_by_position_by_name_and_alone(two_inputs: backend.Rep) -> None:
    x, w = floats(1, 3, 4, 5), floats(2, 3, 1, 1, seed=1)
    expected = gpuconv.conv(x, w)
    for inputs in ([x, w], (x, w), {"w": w, "x": x}):
        np.testing.assert_array_equal(two_inputs.run(inputs)["y"], expected)
    np.testing.assert_array_equal(backend.run_model(pool(), floats(1, 1, 4))[0].shape, (1, 1, 3))


def test_an_input_with_an_initializer_may_be_given_by_name(two_inputs: backend.Rep) -> None:
    x, w, b = floats(1, 3, 4, 5), floats(2, 3, 1, 1, seed=1), floats(2, seed=2)
    np.testing.assert_array_equal(two_inputs.run({"x": x, "w": w, "b": b})["y"], gpuconv.conv(x, w, b))


X, W = floats(1, 3, 4, 5), floats(2, 3, 1, 1)


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        pytest.param([X], ValueError, r"got 1 input\(s\), but the model takes 2; the inputs are 'x' \(float32 ",
            id="too few"),
        pytest.param([X, W, W], ValueError, r"got 3 input\(s\), but the model takes 2", id="too many"),
        pytest.param(X, ValueError, r"got 1 input\(s\), but the model takes 2", id="one array for two inputs"),
        pytest.param({"x": X}, ValueError,
            r"the input 'w' \(float32 \(M, C, 1, 1\)\) is missing \(given: 'x'\); the inputs are 'x'", id="missing"),
        pytest.param({}, ValueError, r"the input 'x' .* is missing \(given: nothing\)", id="nothing"),
        pytest.param({"x": X, "w": W, "z": X}, ValueError, r"there is no input 'z'; the inputs are 'x' .*, 'w' ",
            id="unexpected"),
        pytest.param([X.astype(np.float64), W], TypeError,
            r"the input 'x' \(float32 \(N, C, L, \?\)\) was given with dtype float64; "
            r"convert it with .astype\('float32'\)",
            id="dtype"),
        pytest.param([X.tolist(), W], TypeError, "the input 'x' .* must be a NumPy array, not builtins.list",
            id="list"),
        pytest.param([X, None], TypeError, "the input 'w' .* must be a NumPy array, not builtins.NoneType", id="None"),
        pytest.param([X.astype(X.dtype.newbyteorder()), W], TypeError, "the input 'x' .* has the byte order of another",
            id="order"),
        pytest.param([X[0], W], ValueError, r"the input 'x' .* must have 4 axes, but was given with shape \(3, 4, 5\)",
            id="rank"),
        pytest.param([X, floats(2, 3, 1, 2)], ValueError,
            r"the input 'w' .* was given with shape \(2, 3, 1, 2\), but axis 3 must be 1", id="extent"),
        pytest.param({"x": X, "w": W, "b": floats(3)}, ValueError,
            r"the input 'b' \(float32 \(2,\)\) was given with shape \(3,\)", id="b"),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit(inputs: Any, error: type[Exception], message: str, two_inputs: backend.Rep) -> None:
    with pytest.raises(gpuconv.GpuconvError, match=f"^run: {message}") as caught:
        two_inputs.run(inputs)
    assert isinstance(caught.value, error)
    assert "\n" not in str(caught.value)


def test_a_negative_extent_stands_for_any() -> None:
    proto = pool()
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_value = -1
    assert backend.run_model(proto, floats(1, 1, 4))[0].shape == (1, 1, 3)


def test_a_numpy_scalar_is_an_array_without_axes() -> None:
    bound = bind([Input("x", "float32", ())], np.float32(3))
    assert isinstance(bound["x"], np.ndarray)
    assert bound["x"].shape == ()


def test_a_model_without_inputs() -> None:
    node = helper.make_node("Constant", [], ["y"], value=numpy_helper.from_array(floats(2)))
    rep = backend.prepare(model([node], [], [value("y", shape=1)]))
    np.testing.assert_array_equal(rep.run([])[0], floats(2))
    with pytest.raises(
        gpuconv.ArgumentError, match=r"^run: got 1 input\(s\), but the model takes 0; no inputs are needed"
    ):
        rep.run(floats(2))


@BY_EVALUATOR
def test_inputs_that_are_no_tensors_are_left_to_their_operators() -> None:
    sequence = onnx.ValueInfoProto(name="s", type=helper.make_sequence_type_proto(value("x").type))
    rep = backend.prepare(model("n = SequenceLength (s)", [sequence], [value("n", np.int64, ())]))
    assert rep.run({"s": [floats(2), floats(3)]})[0] == 2


@BY_EVALUATOR
def test_strings_fit_where_strings_are_declared() -> None:
    rep = backend.prepare(model("y = Identity (x)", [value("x", np.object_, 1)], [value("y", np.object_, 1)]))
    for dtype in (np.object_, np.str_):
        assert rep.run(np.array(["a", "b"], dtype))[0].tolist() == ["a", "b"]
    with pytest.raises(gpuconv.ArgumentTypeError, match=r"was given with dtype float32"):
        rep.run(floats(2))


# --- arrays of other libraries, and calls like ONNX Runtime's ---------------------------------------------------------


class Foreign:
    """An array of a library unknown to NumPy, on the host or on a device."""

    requires_grad = False

    def __init__(self, array: Any, device: int = 1) -> None:
        self._array, self._device = array, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0

    def __dlpack__(self, **keywords: Any) -> Any:
        return self._array.__dlpack__(**keywords)


def test_arrays_of_other_libraries_are_taken_as_conv_takes_them(two_inputs: backend.Rep) -> None:
    expected = gpuconv.conv(X, W)
    np.testing.assert_array_equal(two_inputs.run([Foreign(X), W])["y"], expected)
    np.testing.assert_array_equal(two_inputs.run(None, {"x": X, "w": Foreign(W)})[0], expected)
    np.testing.assert_array_equal(run("Abs", [Foreign(X)]), np.abs(X))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda x: np.ma.masked_array(x, x > 0), id="masked"),
        pytest.param(lambda x: Foreign(x, device=7), id="device"),
        pytest.param(lambda x: setattr(x := Foreign(x), "requires_grad", True) or x, id="gradients"),
    ],
)
def test_what_conv_refuses_is_refused_in_its_words(change: Any, two_inputs: backend.Rep) -> None:
    with pytest.raises(gpuconv.ArgumentTypeError) as of_conv:
        gpuconv.conv(change(X), W)
    with pytest.raises(gpuconv.ArgumentTypeError) as of_run:
        two_inputs.run([change(X), W])
    assert str(of_run.value) == str(of_conv.value).replace("conv:", "run:")
    with pytest.raises(gpuconv.ArgumentTypeError):
        run("Abs", [change(X)])


@pytest.fixture(scope="module")
def two_outputs() -> Any:
    nodes = [helper.make_node("Abs", ["x"], ["y"]), helper.make_node("Neg", ["y"], ["z"])]
    return model(nodes, [value("x", shape=("N", 2))], [value("y", shape=2), value("z", shape=2)], 17)


@pytest.mark.parametrize("names", [None, [], ["z"], ("z",), ["z", "y", "z"], ["y"]])
@pytest.mark.parametrize("x", [floats(3, 2), [[1.0, -2.0], [3, 4]]], ids=["array", "list"])
def test_run_may_be_called_as_onnxruntime_s(names: Any, x: Any, two_outputs: Any) -> None:
    session = onnxruntime.InferenceSession(two_outputs.SerializeToString(), providers=["CPUExecutionProvider"])
    rep = backend.prepare(two_outputs)
    expected = session.run(names, {"x": x})
    ways = rep.run(names, {"x": x}), rep.run(names, {"x": x}, None), rep.run(output_names=names, input_feed={"x": x})
    for got in ways:
        assert isinstance(got, list)
        np.testing.assert_equal(got, expected)


def test_names_of_outputs_that_do_not_fit(two_outputs: Any) -> None:
    rep, feeds = backend.prepare(two_outputs), {"x": floats(3, 2)}
    with pytest.raises(gpuconv.ArgumentError, match=r"^run: there is no output 'q'; the outputs are 'y', 'z'$"):
        rep.run(["y", "q"], feeds)
    with pytest.raises(
        gpuconv.ArgumentTypeError, match=r"^run: output_names must be a sequence of names or None, not "
    ):
        rep.run("z", feeds)
    with pytest.raises(
        gpuconv.ArgumentTypeError, match=r"^run: input_feed must be a dict of names to arrays, not list"
    ):
        rep.run(None, [floats(3, 2)])
    with pytest.raises(gpuconv.ArgumentTypeError, match=r"^run: the input 'x': .*inhomogeneous"):
        rep.run(None, {"x": [[1], [2, 3]]})
    with pytest.raises(gpuconv.ArgumentError, match=r"^run: the input 'x' \(float32 \(N, 2\)\) is missing"):
        rep.run(["y"], {})


@pytest.mark.parametrize("device", ["cpu", "CPU", "cuda", "CUDA", "cuda:0"])
def test_devices_are_named_as_pytorch_names_them(device: str, two_outputs: Any) -> None:
    with device_arrays():
        assert backend.supports_device(device)
        np.testing.assert_array_equal(
            backend.prepare(two_outputs, device).run([X[0, 0, :, :2]])["y"], np.abs(X[0, 0, :, :2])
        )


def test_arrays_of_a_device_are_not_taken_on_the_cpu(two_outputs: Any) -> None:
    with device_arrays() as device:
        x = device.array(floats(3, 2))
        with pytest.raises(gpuconv.ArgumentTypeError, match=r"not .*; pass it through gpuconv.to_host, or "):
            backend.prepare(two_outputs).run([x])


def test_inputs_and_outputs_are_told_as_onnx_runtime_does() -> None:
    """But for inputs with an initializer, and names of axes that say nothing."""
    text = """g (float[N, 3, 4] x, int64 k, double[2] d, float16[M] h, bool[3] f)
        => (float[N, 3, 4] y, bfloat16[N, 3, 4] z) { y = Relu(x) z = Cast<to = 16>(x) }"""
    proto = parsed(text, 20)
    rep, session = backend.prepare(proto), onnxruntime.InferenceSession(proto.SerializeToString())
    for ours, theirs in ((rep.get_inputs(), session.get_inputs()), (rep.get_outputs(), session.get_outputs())):
        assert [(arg.name, arg.shape, arg.type) for arg in ours] == [(arg.name, arg.shape, arg.type) for arg in theirs]
    text = model([helper.make_node("Identity", ["t"], ["u"])], [value("t", object, ("?",))], ["u"])
    assert backend.prepare(text).get_inputs()[0] == NodeArg("t", [None], "tensor(string)")


def test_an_input_with_an_initializer_need_not_be_told(two_inputs: backend.Rep) -> None:
    assert [arg.name for arg in two_inputs.get_inputs()] == ["x", "w"]
