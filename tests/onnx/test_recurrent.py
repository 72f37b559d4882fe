"""LSTM, GRU, RNN and CausalConvWithState: compared with ONNX Runtime, or the definition where it lacks some."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.onnx.operators import recurrent
from tests.harness.device_arrays import device_arrays
from tests.onnx import models
from tests.onnx.models import floats
from tests.onnx.networks import both

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
ACTIVATIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
DIRECTIONS = ["forward", "reverse", "bidirectional"]


OUTPUTS = {"RNN": 2, "GRU": 2, "LSTM": 3}


def run(op_type: str, inputs: list[Any], device: str = "CPU", opset: int = 22, **attributes: Any) -> list[Any]:
    outputs: list[Any] = models.run(op_type, inputs, opset, OUTPUTS[op_type], device, **attributes)
    return outputs


def agrees(op_type: str, inputs: list[Any], opset: int = 14, **attributes: Any) -> None:
    for got, wanted in zip(*both(op_type, opset, inputs, OUTPUTS[op_type], **attributes), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def weights(op_type: str, directions: int, inputs: int, size: int) -> list[Any]:
    """Return W, R and B."""
    rows = GATES[op_type] * size
    return [
        floats(directions, rows, inputs, seed=1),
        floats(directions, rows, size, seed=2) / 2,
        floats(directions, 2 * rows, seed=3),
    ]


def states(op_type: str, directions: int, batch: int, size: int) -> list[Any]:
    return [floats(directions, batch, size, seed=4 + n) for n in range(1 + (op_type == "LSTM"))]


# ---------------------------------------------------------------- layers


@pytest.mark.parametrize("opset", [7, 14])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("op_type", GATES)
def test_layers_are_onnx_runtime_s(op_type: str, direction: str, opset: int) -> None:
    count = 1 + (direction == "bidirectional")
    x, given = floats(6, 3, 5), weights(op_type, count, 5, 4)
    initial, lengths = states(op_type, count, 3, 4), np.int32([6, 2, 4])
    attributes = {"hidden_size": 4, "direction": direction}
    for inputs in ([x, *given[:2]], [x, *given], [x, *given, lengths], [x, *given, lengths, *initial]):
        agrees(op_type, inputs, opset, **attributes)
    agrees(op_type, [x, *given, None, *initial], opset, **attributes)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_gru_that_resets_after_the_product(direction: str) -> None:
    count = 1 + (direction == "bidirectional")
    x, given = floats(5, 2, 3), weights("GRU", count, 3, 4)
    for inputs in ([x, *given[:2]], [x, *given]):
        agrees("GRU", inputs, hidden_size=4, direction=direction, linear_before_reset=1)


@pytest.mark.parametrize("coupled", [0, 1])
def test_an_lstm_that_sees_its_cell(coupled: int) -> None:
    x, peepholes = floats(5, 2, 3), floats(2, 12, seed=9)
    inputs = [x, *weights("LSTM", 2, 3, 4), None, *states("LSTM", 2, 2, 4), peepholes]
    agrees("LSTM", inputs, hidden_size=4, direction="bidirectional", input_forget=coupled)
    agrees("LSTM", inputs[:-1], hidden_size=4, direction="bidirectional", input_forget=coupled)


# Each with its alphas and betas, which are consumed in order by the functions that have any.
NAMED: list[tuple[str, list[float], list[float]]] = [
    *(("Relu", [], []), ("Tanh", [], []), ("Sigmoid", [], []), ("Softsign", [], []), ("Softplus", [], [])),
    *(("Affine", [0.5], [0.3]), ("LeakyRelu", [0.3], []), ("ThresholdedRelu", [0.4], [])),
    *(("ScaledTanh", [0.7], [0.6]), ("HardSigmoid", [0.4], [0.3]), ("Elu", [0.6], [])),
]


@pytest.mark.parametrize("at", range(len(NAMED)))
@pytest.mark.parametrize("op_type", GATES)
def test_every_activation(op_type: str, at: int) -> None:
    """Consecutive functions differ, so that parameters passed to the wrong one are detected."""
    count = ACTIVATIONS[op_type]
    chosen = [NAMED[(at + n) % len(NAMED)] for n in range(count * 2)]
    attributes: dict[str, Any] = {"activations": [name for name, _, _ in chosen]}
    for name, place in (("activation_alpha", 1), ("activation_beta", 2)):
        numbers = [number for one in chosen for number in one[place]]
        attributes |= {name: numbers} if numbers else {}
    inputs = [floats(3, 2, 3), *weights(op_type, 2, 3, 2)]
    agrees(op_type, inputs, hidden_size=2, direction="bidirectional", **attributes)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Affine", [-2, 0.5, 3]),
        ("Elu", [math.expm1(-2), 0.5, 3]),
        ("HardSigmoid", [0.1, 0.6, 1]),
        ("LeakyRelu", [-0.02, 0.5, 3]),
        ("ScaledTanh", [math.tanh(-2), math.tanh(0.5), math.tanh(3)]),
        ("ThresholdedRelu", [0, 0, 3]),  # as in ONNX Runtime, with a threshold of 0
    ],
)
def test_numbers_of_activations_are_by_default_those_of_the_operators(name: str, expected: list[float]) -> None:
    x, one = np.float32([-2, 0.5, 3]).reshape(3, 1, 1), np.ones((1, 1, 1), np.float32)
    y, _ = run("RNN", [x, one, 0 * one], activations=[name])
    np.testing.assert_allclose(y.ravel(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("op_type", ["RNN", "GRU"])
def test_what_activations_get_is_clipped(op_type: str) -> None:
    agrees(op_type, [3 * floats(4, 2, 3), *weights(op_type, 1, 3, 4)], hidden_size=4, clip=0.5)


def test_a_cell_is_clipped_as_its_activation_gets_it() -> None:
    """Clip applies to the input of every activation; ONNX Runtime omits the last one."""
    w, r, b = np.zeros((1, 4, 1), np.float32), np.zeros((1, 4, 1), np.float32), np.zeros((1, 8), np.float32)
    y, _, cell = run("LSTM", [np.ones((1, 1, 1), np.float32), w, r, b, None, None, np.float32([[[9]]])], clip=0.25)
    assert cell.item() == 4.5  # half of it is kept
    assert y.item() == pytest.approx(0.5 * np.tanh(0.25))


@pytest.mark.parametrize("op_type", GATES)
def test_batches_may_come_first(op_type: str) -> None:
    x, given = floats(4, 3, 5), weights(op_type, 2, 5, 2)
    lengths, initial = np.int32([4, 1, 3]), states(op_type, 2, 3, 2)
    expected = run(op_type, [x, *given, lengths, *initial], direction="bidirectional")
    turned = [x.swapaxes(0, 1), *given, lengths, *(a.swapaxes(0, 1) for a in initial)]
    y, *last = run(op_type, turned, direction="bidirectional", layout=1)
    np.testing.assert_array_equal(y, expected[0].transpose(2, 0, 1, 3))
    for got, wanted in zip(last, expected[1:], strict=True):
        np.testing.assert_array_equal(got, wanted.swapaxes(0, 1))


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize(
    ("steps", "batch", "size", "shares", "on_threads"),
    [(3, 24, 128, [[0], [1]], True), (200, 1, 48, [[0, 1]], True), (2, 1, 48, [[0, 1]], False)],
)
def test_directions_share_threads_by_the_size_of_steps(
    op_type: str, steps: int, batch: int, size: int, shares: Any, on_threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread for each direction if steps are large, one for both if steps are many, otherwise the caller's."""
    x, (w, r, b) = floats(steps, batch, 6), weights(op_type, 2, 6, size)
    found: list[Any] = []

    def spy(function: Any, items: Any, by: Any) -> None:
        found.append((items, by is recurrent._blas.Workers.POOL))
        original(function, items, by)

    original = recurrent._blas.run
    with monkeypatch.context() as patch:
        patch.setattr(recurrent._blas, "run", spy)
        y, *last = run(op_type, [x, w, r / 8, b], direction="bidirectional")
    assert found == [(shares, on_threads)]
    for at, direction in enumerate(("forward", "reverse")):
        alone = run(op_type, [x, w[at : at + 1], r[at : at + 1] / 8, b[at : at + 1]], direction=direction)
        np.testing.assert_allclose(y[:, at : at + 1], alone[0], rtol=1e-5, atol=1e-6)
        for got, wanted in zip(last, alone[1:], strict=True):
            np.testing.assert_allclose(got[at : at + 1], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_states_are_kept_wide(dtype: Any) -> None:
    """float16 is rounded once, at the end: compared with the same numbers in float32."""
    inputs = [array.astype(dtype) for array in (floats(5, 2, 3), *weights("GRU", 1, 3, 4))]
    expected = run("GRU", [array.astype(np.float32) for array in inputs])
    for got, wanted in zip(run("GRU", inputs), expected, strict=True):
        assert got.dtype == dtype
        if dtype == np.float16:
            np.testing.assert_array_equal(got, wanted.astype(dtype))
        else:
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op_type", GATES)
def test_nothing_has_no_steps(op_type: str) -> None:
    initial = states(op_type, 1, 2, 4)
    y, *last = run(op_type, [np.zeros((0, 2, 3), np.float32), *weights(op_type, 1, 3, 4), None, *initial])
    assert y.shape == (0, 1, 2, 4)
    for got, wanted in zip(last, initial, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("op_type", GATES)
def test_a_sequence_without_elements_keeps_its_state(op_type: str, direction: str) -> None:
    """Its output is 0, as in ONNX Runtime."""
    initial = states(op_type, 1, 2, 4)
    inputs = [floats(3, 2, 3), *weights(op_type, 1, 3, 4), np.int32([0, 2]), *initial]
    y, *last = run(op_type, inputs, direction=direction)
    assert not y[:, :, 0].any()
    for got, wanted in zip(last, initial, strict=True):
        np.testing.assert_array_equal(got[:, 0], wanted[:, 0])
        assert (got[:, 1] != wanted[:, 1]).any()


@pytest.mark.parametrize("op_type", GATES)
def test_layers_on_a_device(op_type: str) -> None:
    inputs = [floats(3, 2, 3), *weights(op_type, 2, 3, 4), np.int32([3, 1])]
    expected = run(op_type, inputs, direction="bidirectional")
    with device_arrays() as device:
        got = run(op_type, inputs, "CUDA", direction="bidirectional")
        assert set(device.computed) == {"conv"}, "the products"
        assert len(device.to_host) == len(expected), "the outputs alone"
    for actual, wanted in zip(got, expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6)


def test_layers_that_do_not_fit_are_refused() -> None:
    x, (w, r, b) = floats(4, 2, 3), weights("LSTM", 1, 3, 5)
    initial = states("LSTM", 1, 2, 5)
    wrong: list[tuple[list[Any], dict[str, Any], str]] = [
        ([x[0], w, r], {}, "must have three axes"),
        ([x, w[:, :4], r], {}, r"W must have the shape \(1, 20, 3\), not \(1, 4, 3\)"),
        ([x, w, r[:, :15]], {}, r"R must have the shape \(1, 20, 5\), not \(1, 15, 5\)"),
        ([x, w, r, b[:, :20]], {}, r"B must have the shape \(1, 40\), not \(1, 20\)"),
        ([x, w, r, b, np.int32([1])], {}, r"sequence_lens must have the shape \(2,\), not \(1,\)"),
        ([x, w, r, b, np.int32([1, 5])], {}, "sequence_lens has 5, but must be from 0 to the 4 steps of X"),
        ([x, w, r, b, None, initial[0][:, :1]], {}, r"initial_h must have the shape \(1, 2, 5\), not \(1, 1, 5\)"),
        ([x, w, r, b, None, *initial, b], {}, r"P must have the shape \(1, 15\), not \(1, 40\)"),
        ([x, w, r], {"hidden_size": 4}, "hidden_size is 4, but R has the shape"),
        ([x, w, r], {"direction": "bidirectional"}, r"W must have the shape \(2, 20, 3\)"),
        ([x, w, r], {"direction": "sideways"}, "direction must be one of forward, reverse, bidirectional"),
        ([x, w, r], {"activations": ["Tanh"]}, "activations must name 3 functions for each of 1 directions, not 1"),
        ([x, w, r], {"activations": ["Tanh"] * 6}, "activations must name 3 functions for each of 1 directions, not 6"),
        ([x, w, r], {"activations": ["Tanh", "Tanh", "Sine"]}, "'Sine' is none of the activations affine, elu"),
    ]
    for inputs, attributes, message in wrong:
        with pytest.raises(gpuconv.ArgumentError, match=f"^LSTM node .*{message}"):
            run("LSTM", inputs, **attributes)


# ---------------------------------------------------------------- CausalConvWithState


causal = partial(models.run, "CausalConvWithState", opset=27, outputs=2)


@pytest.mark.parametrize("activation", ["none", "silu", "swish"])
def test_a_sequence_in_parts_is_the_whole_sequence(activation: str) -> None:
    """The state carries what a later part needs; compared with the sum over taps in float64."""
    x, w, b = floats(2, 3, 10), floats(3, 1, 4, seed=1), floats(3, seed=2)
    padded = np.concatenate([np.zeros((2, 3, 3)), x.astype(np.float64)], axis=2)
    exact = b[:, None] + sum(w[:, 0, tap : tap + 1] * padded[:, :, tap : tap + 10] for tap in range(4))
    expected = exact if activation == "none" else exact / (1 + np.exp(-exact))
    state, parts = None, []
    for low, high in ((0, 1), (1, 3), (3, 10)):
        y, state = causal([x[:, :, low:high], w, b, state], activation=activation)
        parts.append(y)
    np.testing.assert_allclose(np.concatenate(parts, axis=2), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(state, x[:, :, -3:])


def test_a_part_of_no_elements_leaves_the_state() -> None:
    past = floats(2, 3, 3)
    y, state = causal([np.zeros((2, 3, 0), np.float32), floats(3, 1, 4), None, past])
    assert y.shape == (2, 3, 0)
    np.testing.assert_array_equal(state, past)


def test_what_a_causal_convolution_refuses() -> None:
    x, w = floats(1, 2, 5), floats(2, 1, 3)
    wrong: list[tuple[list[Any], dict[str, Any], str]] = [
        ([x, w[:1]], {}, r"input must be \(N, C, L\) and weight \(C, 1, K\), but they are \(1, 2, 5\) and \(1, 1, 3\)"),
        ([x, w, None, floats(1, 2, 3)], {}, r"past_state must have the shape \(1, 2, 2\), not \(1, 2, 3\)"),
        ([x, w], {"activation": "relu"}, "activation must be one of none, silu, swish, not 'relu'"),
    ]
    for inputs, attributes, message in wrong:
        with pytest.raises(gpuconv.ArgumentError, match=f"^CausalConvWithState node .*{message}"):
            causal(inputs, **attributes)
