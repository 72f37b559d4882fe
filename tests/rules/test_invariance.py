"""`invariant=` and `gpuconv.invariant`: the setting that a call requests, from any thread, and that its plan gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import onnx
import pytest

import gpuconv
from gpuconv.cuda import planning
from gpuconv.cuda.call import device
from gpuconv.onnx import backend
from tests.harness.idle_kernels import Sent

Told = Callable[..., bool]
X, W = np.ones((2, 3, 6), np.float32), np.ones((3, 3, 2), np.float32)
WRONG: list[tuple[Any, type[Exception], str]] = [
    ("image", gpuconv.ArgumentError, "invariant must be \"batch\" or None, not 'image'"),
    (True, gpuconv.ArgumentTypeError, 'invariant must be "batch" or None, not bool'),
]
wrong_words = pytest.mark.parametrize(("word", "error", "said"), WRONG)


@pytest.fixture
def told(sent: Sent) -> Iterator[Told]:
    """Return a function that calls an operator on a device that computes nothing, and returns the planner's setting."""

    def call(operator: str = "conv", **keywords: Any) -> bool:
        x, w = sent.cupy.empty(X.shape, np.float32), sent.cupy.empty(W.shape, np.float32)
        arrays: dict[str, tuple[Any, ...]] = {
            "conv_input_grad": (sent.cupy.empty((2, 3, 5), np.float32), w, X.shape),
            "conv_transpose_input_grad": (sent.cupy.empty((2, 3, 7), np.float32), w, X.shape),
            "max_pool": (x, [2]),
        }
        device.prepared.clear()
        with mock.patch.object(planning, "plan", wraps=planning.plan) as plan:
            getattr(gpuconv, operator)(*arrays.get(operator, (x, w)), **keywords)
        return bool(plan.call_args.kwargs["invariant"])

    with mock.patch.dict(device.prepared):
        yield call


@pytest.mark.parametrize("operator", ["conv", "conv_transpose", "conv_input_grad", "conv_transpose_input_grad"])
def test_a_call_says_it_or_takes_it_from_its_context(told: Told, operator: str) -> None:
    assert not told(operator)
    assert told(operator, invariant="batch")
    with gpuconv.invariant("batch"):
        assert told(operator)
        with gpuconv.invariant(None):
            assert not told(operator)
        assert told(operator)
    assert not told(operator)


def test_max_pool_takes_it_from_its_context(told: Told) -> None:
    assert not told("max_pool")
    with gpuconv.invariant("batch"):
        assert told("max_pool")


def test_calls_with_and_without_it_are_prepared_apart(sent: Sent) -> None:
    x, w = sent.cupy.empty(X.shape, np.float32), sent.cupy.empty(W.shape, np.float32)
    with mock.patch.dict(device.prepared, clear=True):
        for word in ("batch", None, "batch", None):
            gpuconv.conv(x, w, invariant=word)
        assert len(device.prepared) == 2


@wrong_words
def test_other_words_are_refused(told: Told, word: Any, error: type[Exception], said: str) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 22]> g (float[N, 3, 6] x) => (float[N, 3, 6] y) { y = Relu (x) }'
    )
    calls = {
        "conv": lambda: gpuconv.conv(X, W, invariant=word),
        "conv_input_grad": lambda: gpuconv.conv_input_grad(X, W, (2, 3, 7), invariant=word),
        "conv_transpose": lambda: told("conv_transpose", invariant=word),
        "explain": lambda: gpuconv.explain("conv", X.shape, W.shape, invariant=word),
        "invariant": lambda: gpuconv.invariant(word),
        "prepare": lambda: backend.prepare(model, invariant=word),
    }
    for name, call in calls.items():
        with pytest.raises(error) as caught:
            call()
        assert str(caught.value) == f"{'conv' if name == 'explain' else name}: {said}"


def test_gradients_that_add_images_up_have_no_such_word() -> None:
    with pytest.raises(gpuconv.ArgumentTypeError, match="conv_weight_grad: there is no argument 'invariant'"):
        gpuconv.conv_weight_grad(X, X, (3, 3, 1), invariant="batch")  # type: ignore[call-overload]
    with pytest.raises(gpuconv.ArgumentTypeError, match="explain: conv_weight_grad takes no invariant"):
        gpuconv.explain("conv_weight_grad", X.shape, W.shape, invariant="batch")


def test_explain_says_that_it_was_asked_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    gpuconv.explain("conv", (8, 3, 16), (4, 3, 3), invariant="batch")
    assert "conv float32 batch-invariant on sm_90a" in capsys.readouterr().out
