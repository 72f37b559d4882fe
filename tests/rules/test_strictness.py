"""`gpuconv.strict`: which calls it refuses and which it does not change, and how the settings of a context behave."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from contextvars import copy_context
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.rules import invariance, precision, strictness
from tests.harness.emulated import any_cuda

ArgumentError = gpuconv.ArgumentError


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


SIGNALS, IMAGES = zeros(2, 3, 9), zeros(2, 3, 9, 9)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: gpuconv.max_pool(SIGNALS, 3), id="a number"),
        pytest.param(lambda: gpuconv.max_pool(SIGNALS, 3, strides=2, pads=1, dilations=1), id="numbers"),
        pytest.param(lambda: gpuconv.average_pool(SIGNALS, np.array(3)), id="an array of no axes"),
        pytest.param(lambda: gpuconv.global_average_pool(SIGNALS), id="no attributes"),
        pytest.param(lambda: gpuconv.global_average_pool_grad(zeros(2, 3, 1), (2, 3, 9)), id="a gradient"),
    ],
)
def test_three_axes_that_nothing_says_the_meaning_of_are_refused(call: Callable[[], Any]) -> None:
    call()
    with gpuconv.strict():
        with pytest.raises(ArgumentError, match="must not leave open whether it is"):
            call()
        with gpuconv.strict(False):
            call()


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: gpuconv.max_pool(SIGNALS, [3], strides=2), id="a kernel in a list"),
        pytest.param(lambda: gpuconv.average_pool(SIGNALS, 3, strides=(2,)), id="strides in a tuple"),
        pytest.param(lambda: gpuconv.max_pool(SIGNALS, 3, pads=np.array([1, 1])), id="pads in an array"),
        pytest.param(lambda: gpuconv.max_pool(SIGNALS, iter([3])), id="an iterator"),
        pytest.param(lambda: gpuconv.max_pool(IMAGES, 3, strides=2, pads=2), id="images"),
        pytest.param(lambda: gpuconv.global_average_pool(IMAGES), id="averages of images"),
        pytest.param(lambda: gpuconv.conv(SIGNALS, zeros(4, 3, 3), pads=1, strides=2), id="weights of signals"),
        pytest.param(lambda: gpuconv.conv(SIGNALS, zeros(4, 3, 3), pads=7), id="pads longer than a filter"),
        pytest.param(lambda: gpuconv.conv_bias_grad(SIGNALS), id="the gradient of a bias"),
        pytest.param(lambda: gpuconv.max_pool(zeros(2, 3, 0, 9), 3, pads=1), id="images without rows"),
        pytest.param(lambda: gpuconv.conv(zeros(0, 3, 9), zeros(4, 3, 3)), id="no images"),
        pytest.param(
            lambda: gpuconv.conv_transpose(SIGNALS, zeros(3, 4, 3), output_shape=[0]), id="an empty output_shape"
        ),
        pytest.param(
            lambda: gpuconv.max_unpool(SIGNALS, np.full((2, 3, 9), -1), [2, 3, 18], kernel_shape=2, strides=2),
            id="an output_shape",
        ),
        pytest.param(lambda: gpuconv.max_pool(zeros(1, 1, 2), [3], strides=[2], ceil_mode=1), id="a window in part"),
        pytest.param(lambda: gpuconv.max_pool(IMAGES, 3, auto_pad="SAME_UPPER", dilations=4), id="pads of SAME"),
    ],
)
def test_calls_that_say_what_they_mean_are_computed(call: Callable[[], Any]) -> None:
    expected = call()
    with gpuconv.strict():
        np.testing.assert_array_equal(call(), expected)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: gpuconv.conv(zeros(1, 3, 2), zeros(4, 3, 3), strides=2), "the kernel covers 3 elements, and x has 2"),
        (lambda: gpuconv.max_pool(zeros(1, 3, 2), [3], strides=[2]), "the kernel covers 3 elements, and x has 2"),
        (lambda: gpuconv.conv_transpose(SIGNALS, zeros(3, 4, 3), pads=[5, 6]), "crop all of 11 outputs"),
        (lambda: gpuconv.conv_input_grad(zeros(1, 4, 0), zeros(4, 3, 3), (1, 3, 2)), "and x has 2 with pads of 0"),
        (
            lambda: gpuconv.max_unpool(zeros(1, 1, 1), np.full((1, 1, 1), -1), kernel_shape=[2], pads=[1, 1]),
            "of 2 outputs",
        ),
        (lambda: gpuconv.max_pool(IMAGES, 3, pads=3), "they have 3 before and 3 after, and the kernel covers 3"),
        (lambda: gpuconv.average_pool(IMAGES, [3, 2], dilations=2, pads=[0, 3, 0, 0]), "on spatial axis 1 they have 3"),
    ],
)
def test_empty_results_and_windows_of_padding_are_refused(call: Callable[[], Any], said: str) -> None:
    call()
    with gpuconv.strict(), pytest.raises(ArgumentError, match=said):
        call()


@pytest.mark.gpu
def test_a_device_refuses_what_it_has_computed_before() -> None:
    with any_cuda():
        x, signals = gpuconv.to_device(IMAGES), gpuconv.to_device(SIGNALS)
        for _ in range(2):
            gpuconv.max_pool(signals, 3)
            gpuconv.max_pool(x, iter([3, 3]))
            with gpuconv.strict():
                gpuconv.max_pool(x, iter([3, 3]))
                with pytest.raises(ArgumentError, match="must not leave open"):
                    gpuconv.max_pool(signals, 3)
                with pytest.raises(ArgumentError, match="must not leave open"):
                    gpuconv.tune("max_pool", signals, 3)


def test_dask_refuses_when_it_is_called_and_its_blocks_are_free() -> None:
    da, api = pytest.importorskip("dask.array"), importlib.import_module("gpuconv.dask")
    x = np.arange(24, dtype=np.float32).reshape(1, 1, 24)
    lazy = da.from_array(x, chunks=(1, 1, 2))
    with gpuconv.strict():
        with pytest.raises(ArgumentError, match="must not leave open"):
            api.average_pool(lazy, 3)
        got = api.max_pool(lazy, [5], pads=[4, 4]).compute(scheduler="synchronous")  # blocks need pads of 4 and more
    np.testing.assert_array_equal(got, gpuconv.max_pool(x, [5], pads=[4, 4]))


def test_models_say_what_they_mean() -> None:
    onnx = pytest.importorskip("onnx")
    backend = importlib.import_module("gpuconv.onnx.backend")
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 22]> g (float[3, 8, L] x) => (float[3, 8, M] y, float[3, 8, 1] z)'
        "{ y = MaxPool <kernel_shape = [2], pads = [2, 0]> (x) z = GlobalAveragePool (x) }"
    )
    x = np.ones((3, 8, 4), np.float32)
    expected = backend.prepare(model).run([x])
    with gpuconv.strict():
        got = backend.prepare(model).run([x])
        with pytest.raises(ArgumentError):  # the setting is restored
            gpuconv.global_average_pool(x)
        reference = importlib.import_module("onnx.reference")
        ours = importlib.import_module("gpuconv.onnx").OPS
        by_onnx = reference.ReferenceEvaluator(model, new_ops=ours).run(None, {"x": x})
    for values in (got, by_onnx):
        for value, right in zip(values, expected, strict=True):
            np.testing.assert_array_equal(value, right)


# ---------------------------------------------------------------- all settings of a context

Make = Callable[[], AbstractContextManager[None]]
SETTINGS = {
    "precision": (lambda: gpuconv.precision("tf32"), precision.CURRENT, "ieee", "tf32"),
    "invariant": (lambda: gpuconv.invariant("batch"), invariance.CURRENT, None, "batch"),
    "strict": (gpuconv.strict, strictness.CURRENT, False, True),
}
every_setting = pytest.mark.parametrize(("make", "current", "before", "inside"), SETTINGS.values(), ids=SETTINGS)


@every_setting
def test_one_context_manager_may_be_entered_again(make: Make, current: Any, before: Any, inside: Any) -> None:
    manager = make()
    for _ in range(2):
        with manager:
            assert current.get() == inside
            with manager:
                assert current.get() == inside
            assert current.get() == inside
        assert current.get() == before
    with pytest.raises(KeyError), manager:
        raise KeyError
    assert current.get() == before


@every_setting
def test_a_context_manager_that_threads_share_is_each_one_s_own(
    make: Make, current: Any, before: Any, inside: Any
) -> None:
    manager, both = make(), threading.Barrier(2, timeout=60)

    def enter() -> list[Any]:
        seen = [current.get()]
        with manager:
            both.wait()
            seen.append(current.get())
            both.wait()
        return [*seen, current.get()]

    with ThreadPoolExecutor(2) as pool:
        results = [each.result() for each in [pool.submit(enter) for _ in range(2)]]
    assert results == [[before, inside, before]] * 2


@every_setting
def test_functions_are_decorated(make: Make, current: Any, before: Any, inside: Any) -> None:
    decorate: Any = make()

    @decorate
    def factorial(n: int) -> int:
        """Multiply."""
        assert current.get() == inside
        return n * factorial(n - 1) if n else 1

    assert factorial(4) == 24
    assert factorial.__doc__ == "Multiply."
    assert current.get() == before


@every_setting
def test_suspended_blocks_that_end_out_of_order_leave_nothing(
    make: Make, current: Any, before: Any, inside: Any
) -> None:
    def suspended() -> Iterator[None]:
        with make():
            yield

    first, second = suspended(), suspended()
    next(first)
    next(second)
    first.close()  # type: ignore[attr-defined]
    assert current.get() == inside
    second.close()  # type: ignore[attr-defined]
    assert current.get() == before


@every_setting
def test_a_block_that_ends_in_another_context_is_no_error(make: Make, current: Any, before: Any, inside: Any) -> None:
    manager = make()
    copy_context().run(manager.__enter__)
    manager.__exit__(None, None, None)
    assert current.get() == before
