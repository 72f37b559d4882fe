"""Everything that is refused: the type of the error, its whole message, and nothing allocated or written before it."""

from __future__ import annotations

import ast
import re
import tracemalloc
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from emulator import emulated_cuda
from wrong_calls import LONGS, W, Wrong, X, Y, array
from wrong_calls import WRONGS as FORWARD
from wrong_gradients import GRADIENTS

import gpuconv
from gpuconv import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    _activation,
    _api,
    _arrays,
    _dtypes,
    _geometry,
    _gradient_api,
    _gradients,
    _layout,
    _memory,
    _packed,
    _precision,
    _transfer,
)
from gpuconv.cuda import device

WRONGS = [*FORWARD, *GRADIENTS]
every_wrong_call = pytest.mark.parametrize("wrong", WRONGS, ids=lambda wrong: wrong.name)


@every_wrong_call
def test_the_error_has_its_type_and_names_the_rule_and_the_numbers(wrong: Wrong) -> None:
    with pytest.raises(wrong.error) as caught:
        wrong.call()
    assert type(caught.value) is wrong.error
    assert str(caught.value) == wrong.message


_SAME_ON_CUDA = [wrong for wrong in WRONGS if not re.search("(NumPy|CuPy) array", wrong.message)]


@pytest.mark.emulator
@pytest.mark.parametrize("wrong", _SAME_ON_CUDA, ids=lambda wrong: wrong.name)
def test_the_cuda_backend_says_the_same(wrong: Wrong) -> None:
    with emulated_cuda() as emulated, pytest.raises(wrong.error) as caught:
        wrong.call()
    assert type(caught.value) is wrong.error
    assert str(caught.value) == wrong.message
    assert {launch.variant.source for launch in emulated.launches} <= {"indices.cu"}  # which is where they are read
    assert bool(emulated.launches) == ("indices hold" in wrong.message)


@every_wrong_call
def test_nothing_is_allocated_before_the_error(wrong: Wrong) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(wrong.error):
            wrong.call()
        assert tracemalloc.get_traced_memory()[1] < 2**17
    finally:
        tracemalloc.stop()


def test_the_names_of_the_wrong_calls_are_unique() -> None:
    assert len({wrong.name for wrong in WRONGS}) == len(WRONGS)


# ---------------------------------------------------------------- no raise without a test


def _raise_statements(module: ModuleType) -> set[tuple[str, int, int]]:
    path = str(module.__file__)
    nodes = ast.walk(ast.parse(Path(path).read_text(encoding="utf-8")))
    return {(path, node.lineno, node.end_lineno or 0) for node in nodes if isinstance(node, ast.Raise)}


def _raised_at(wrong: Wrong) -> tuple[str, int]:
    with pytest.raises(wrong.error) as caught:
        wrong.call()
    innermost = caught.traceback[-1]
    return str(innermost.path), innermost.lineno + 1


MODULES = (
    *(_activation, _api, _arrays, _dtypes, _geometry, _gradient_api, _gradients),
    *(_layout, _memory, _packed, _precision, _transfer),
)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_raise_statement_is_reached_by_a_wrong_call(module: ModuleType) -> None:
    reached = [_raised_at(wrong) for wrong in WRONGS]
    missed = {
        f"{Path(path).name}:{first}"
        for path, first, last in _raise_statements(module)
        if not any(path == where and first <= line <= last for where, line in reached)
    }
    assert missed == set()


# ---------------------------------------------------------------- what Python itself refuses


@pytest.mark.parametrize("typo", ["stride", "padding", "groups", "dilation", "autopad", "return_indices", "ceil_mode"])
def test_a_misspelt_attribute_of_conv_is_an_error(typo: str) -> None:
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{typo}'"):
        gpuconv.conv(X, W, **{typo: 1})


@pytest.mark.parametrize("typo", ["group", "kernel", "stride", "output_shape", "indices"])
def test_a_misspelt_attribute_of_max_pool_is_an_error(typo: str) -> None:
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{typo}'"):
        gpuconv.max_pool(X, kernel_shape=[1, 1], **{typo: 1})


def test_attributes_are_given_by_name() -> None:
    with pytest.raises(TypeError, match="positional argument"):
        gpuconv.conv(X, W, None, "SAME_UPPER")  # type: ignore[misc]
    with pytest.raises(TypeError, match="positional argument"):
        gpuconv.max_pool(X, [3, 2])  # type: ignore[misc]
    with pytest.raises(TypeError, match="kernel_shape"):
        gpuconv.max_pool(X)  # type: ignore[call-arg]


# ---------------------------------------------------------------- out, and the device


def test_an_out_stays_as_it_was_where_the_call_is_refused() -> None:
    out = np.full((1, 4, 3, 5), 7, np.float32)
    for arguments in ({"strides": [0, 0]}, {"b": array(3)}, {"group": 3}):
        with pytest.raises(ArgumentError):
            gpuconv.conv(X, W, out=out, **arguments)
    with pytest.raises(ArgumentTypeError):
        gpuconv.max_pool(X, kernel_shape=[3, 2], return_indices=True, out=(out, LONGS.astype(np.int8)))
    assert (out == 7).all()


def test_an_out_is_refused_where_sharing_cannot_be_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_hard(*_: Any, **__: Any) -> bool:
        raise np.exceptions.TooHardError("too hard")

    monkeypatch.setattr(np, "shares_memory", too_hard)
    with pytest.raises(ArgumentError, match="out shares memory with x"):
        gpuconv.conv(X, W, out=np.zeros(Y, np.float32))


@pytest.mark.skipif(device.unavailable_reason() is None, reason="there is a CUDA device")
def test_moving_without_a_device_says_why() -> None:
    with pytest.raises(DeviceError) as caught:
        gpuconv.to_device(X)
    reason = re.escape(str(device.unavailable_reason()))
    assert re.fullmatch(
        rf"no CUDA device was found \({reason}\); pass NumPy arrays to run on the CPU", str(caught.value)
    )


def test_errors_are_the_usual_ones_too() -> None:
    assert issubclass(ArgumentError, ValueError)
    assert issubclass(ArgumentTypeError, TypeError)
    assert issubclass(DeviceError, RuntimeError)
    assert issubclass(gpuconv.OutOfDeviceMemory, (DeviceError, MemoryError))
    assert issubclass(gpuconv.CompileError, DeviceError)
    assert all(issubclass(error, gpuconv.GpuconvError) for error in (ArgumentError, ArgumentTypeError, DeviceError))
