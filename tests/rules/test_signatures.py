"""How functions may be called: one integer for all axes, and the parameters that introspection shows."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.cuda import planning
from gpuconv.rules.operators import OPERATORS
from tests.harness.emulated import any_cuda

Backend = Callable[[], AbstractContextManager[Any]]
FUNCTIONS = [
    getattr(gpuconv, name)
    for name in gpuconv.__all__
    if name.startswith(("conv", "max_")) and callable(getattr(gpuconv, name))
]
every_function = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)


@pytest.fixture(params=["numpy", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest) -> Backend:
    return any_cuda if request.param == "cuda" else nullcontext


def ones(*shape: int) -> Any:
    return np.ones((1, 1, *shape), np.float32)


def array(rows: Any, dtype: Any = np.float32) -> Any:
    return np.array(rows, dtype)[None, None]


def by_both(along: list[int], across: list[int]) -> list[list[int]]:
    return np.multiply.outer(along, across).tolist()


# ---------------------------------------------------------------- one integer for all axes

# Windows of two, every two elements: from the padding before an axis to its end, or past it.
TILES: dict[str, Any] = {"strides": 2, "pads": 1, "dilations": 1}
# Per axis, inputs 0 and 1 reach outputs 0, 1 and 1, 2, 3 through three taps.
UP: dict[str, Any] = {"strides": 2, "pads": 1, "output_padding": 1, "kernel_shape": 3}
NUMBERS = array([[0, 1, 2], [3, 4, 5]])
PLACES = array([[0, 2], [3, 5]], np.int64)
CALLS: list[tuple[str, Callable[[], Any], list[list[int]]]] = [
    ("conv", lambda: gpuconv.conv(ones(3, 4), ones(2, 2), **TILES, kernel_shape=2), by_both([1, 2], [1, 2, 1])),
    ("conv, dilated", lambda: gpuconv.conv(ones(3, 4), ones(2, 2), dilations=2), [[4, 4]]),
    ("conv, of NumPy's integers", lambda: gpuconv.conv(ones(3, 4), ones(2, 2), dilations=np.int8(2)), [[4, 4]]),
    ("conv, of an array of one", lambda: gpuconv.conv(ones(3, 4), ones(2, 2), dilations=np.array(2)), [[4, 4]]),
    ("conv_transpose", lambda: gpuconv.conv_transpose(ones(2, 2), ones(3, 3), **UP),
        by_both([1, 2, 1, 1], [1, 2, 1, 1])),
    ("max_pool", lambda: gpuconv.max_pool(NUMBERS, 2), [[4, 5]]),
    ("max_pool, by name", lambda: gpuconv.max_pool(NUMBERS, kernel_shape=2, **TILES), [[0, 2], [3, 5]]),
    ("max_pool, of a list", lambda: gpuconv.max_pool(NUMBERS, [2, 1]), [[3, 4, 5]]),
    ("conv_input_grad", lambda: gpuconv.conv_input_grad(ones(2, 3), ones(2, 2), (1, 1, 3, 4), **TILES),
        by_both([1, 1, 1], [1, 1, 1, 1])),
    ("conv_weight_grad", lambda: gpuconv.conv_weight_grad(ones(3, 4), ones(2, 3), (1, 1, 2, 2), **TILES),
        by_both([1, 2], [2, 2])),
    ("conv_transpose_input_grad", lambda: gpuconv.conv_transpose_input_grad(ones(4, 4), ones(3, 3), (1, 1, 2, 2), **UP),
        by_both([2, 3], [2, 3])),
    ("conv_transpose_weight_grad",
        lambda: gpuconv.conv_transpose_weight_grad(ones(2, 2), ones(4, 4), (1, 1, 3, 3), **UP),
        by_both([1, 2, 2], [1, 2, 2])),
    ("max_pool_grad",
        lambda: gpuconv.max_pool_grad(array([[1, 2], [3, 4]]), PLACES, (1, 1, 2, 3), kernel_shape=2, **TILES),
        [[1, 0, 2], [3, 0, 4]]),
    (
        "max_unpool",
        lambda: gpuconv.max_unpool(
            array([[5, 6], [7, 8]]), array([[0, 1], [2, 3]], np.int64), kernel_shape=2, pads=1, strides=2
        ),
        [[5, 6], [7, 8]],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "call", "expected"), CALLS, ids=[name for name, _, _ in CALLS])
def test_an_integer_stands_for_every_axis_and_both_of_its_ends(
    backend: Backend, name: str, call: Callable[[], Any], expected: list[list[int]]
) -> None:
    with backend():
        assert gpuconv.to_host(call())[0, 0].tolist() == expected


def test_an_integer_and_a_list_of_one_are_not_taken_for_each_other(backend: Backend) -> None:
    x, w = ones(3, 4), ones(2, 2)
    with backend():
        assert gpuconv.to_host(gpuconv.conv(x, w, strides=2)).shape == (1, 1, 1, 2)
        assert gpuconv.to_host(gpuconv.conv(x, w, strides=[2, 1])).shape == (1, 1, 1, 3)
        with pytest.raises(gpuconv.ArgumentError, match="strides must have 2 entries"):
            gpuconv.conv(x, w, strides=[2])


@pytest.mark.gpu
@pytest.mark.parametrize("two", [2, np.int64(2), np.array(2), [2, 2]], ids=repr)
def test_a_call_is_planned_once_however_an_integer_is_written(two: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Any] = []
    plan = planning.plan
    monkeypatch.setattr(planning, "plan", lambda *given, **more: plans.append(plan(*given, **more)) or plans[-1])
    with any_cuda():
        for _ in range(3):
            assert gpuconv.to_host(gpuconv.conv(ones(3, 4), ones(2, 2), dilations=two))[0, 0].tolist() == [[4, 4]]
    assert len(plans) == 1


@pytest.mark.parametrize("rank", [1, 3, 4])
def test_an_integer_stands_for_as_many_axes_as_there_are(rank: int) -> None:
    y = gpuconv.conv(ones(*(5,) * rank), ones(*(3,) * rank), pads=1, strides=2)
    assert y.shape == (1, 1, *(3,) * rank)
    assert y.max() == 3**rank
    assert y.ravel()[0] == 2**rank


def test_explain_takes_what_calls_take(capsys: pytest.CaptureFixture[str]) -> None:
    shapes = (8, 64, 56, 56), (64, 64, 3, 3)
    plan = gpuconv.explain("conv", *shapes, pads=1, strides=2, dilations=1, kernel_shape=3)
    assert "-> y (8, 64, 28, 28)" in capsys.readouterr().out
    lists: dict[str, Any] = {"pads": [1] * 4, "strides": [2, 2], "dilations": [1, 1], "kernel_shape": [3, 3]}
    assert plan == gpuconv.explain("conv", *shapes, **lists)
    for theirs, ours in {"stride": "strides", "padding": "pads"}.items():
        with pytest.raises(gpuconv.ArgumentTypeError, match=f"^explain: {theirs} of conv is called {ours} here, as in"):
            gpuconv.explain("conv", *shapes, **{theirs: 2})


@pytest.mark.gpu
def test_tune_takes_what_calls_take() -> None:
    with any_cuda():
        x, w = gpuconv.to_device(ones(6, 6)), gpuconv.to_device(ones(2, 2))
        times = gpuconv.tune("conv", x, w, pads=1, strides=2)
        assert set(times) == set(gpuconv.tune("conv", x, w, pads=[1] * 4, strides=[2, 2]))
        assert gpuconv.tune("max_pool", x, 2, strides=2)
        with pytest.raises(gpuconv.ArgumentTypeError, match=r"^tune: groups of conv is called group here, as in ONNX$"):
            gpuconv.tune("conv", x, w, groups=2)


# ---------------------------------------------------------------- what everybody sees

EXTRAS = ["layout", "precision", "invariant", "activation", "residual", "check_indices", "return_indices"]
EXTRAS += ["indices_in", "out"]
SPECIFIED = [
    *("auto_pad", "ceil_mode", "dilations", "group", "kernel_shape"),
    *("output_padding", "output_shape", "pads", "storage_order", "strides"),
]


@every_function
def test_no_signature_shows_keywords_of_any_name(function: Callable[..., Any]) -> None:
    parameters = inspect.signature(function).parameters.values()
    assert not any(one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL) for one in parameters)


@every_function
def test_attributes_of_the_specification_come_before_the_others(function: Callable[..., Any]) -> None:
    parameters = inspect.signature(function).parameters
    by_name = [name for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY]
    split = by_name.index("layout")
    assert set(by_name[:split]) <= set(SPECIFIED)
    assert by_name[split:] == [name for name in EXTRAS if name in by_name]


def test_the_kernel_of_a_pooling_is_required_and_may_be_second() -> None:
    for function in (gpuconv.max_pool, gpuconv.max_pool_grad, gpuconv.max_unpool):
        kernel = inspect.signature(function).parameters["kernel_shape"]
        assert kernel.default is kernel.empty
    assert list(inspect.signature(gpuconv.max_pool).parameters)[:2] == ["x", "kernel_shape"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="typing keeps overloads since Python 3.11")
@every_function
def test_type_checkers_see_the_parameters_that_there_are(function: Callable[..., Any]) -> None:
    expected = [(name, one.kind, one.default) for name, one in inspect.signature(function).parameters.items()]
    overloads = typing.get_overloads(function)  # type: ignore[attr-defined,unused-ignore]
    assert len(overloads) >= 2
    for overload in overloads:
        seen = [
            (name, one.kind, False if name == "return_indices" else one.default)  # a different one in each form
            for name, one in inspect.signature(overload).parameters.items()
        ]
        assert seen == expected


def test_attributes_have_onnx_s_defaults() -> None:
    defaults = {"auto_pad": "NOTSET", "group": 1, "ceil_mode": 0, "storage_order": 0, "layout": "NCHW"}
    defaults["indices_in"] = "tensor"
    defaults |= dict.fromkeys(("dilations", "pads", "strides", "output_padding"), None)
    for name in OPERATORS:
        for parameter in inspect.signature(getattr(gpuconv, name)).parameters.values():
            if parameter.name in defaults:
                assert parameter.default == defaults[parameter.name], (name, parameter)
