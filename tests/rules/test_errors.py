"""All refused calls: the type of the error, its whole message, and nothing allocated or written before it."""

from __future__ import annotations

import ast
import re
import tracemalloc
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    _arrays,
    _call,
    _conv,
    _gradients,
    _packed,
    _pooling,
    _transfer,
)
from gpuconv.cuda.call import device
from gpuconv.rules import (
    activation,
    dtypes,
    geometry,
    gradients,
    integers,
    invariance,
    layout,
    memory,
    precision,
    signatures,
    strictness,
)
from tests.emulator import emulated_cuda
from tests.oracle.every_row import every_row
from tests.rules.wrong_arguments import ARGUMENTS
from tests.rules.wrong_calls import LONGS, W, Wrong, X, Y, array
from tests.rules.wrong_calls import WRONGS as FORWARD
from tests.rules.wrong_gradients import GRADIENTS

WRONGS = [*FORWARD, *GRADIENTS, *ARGUMENTS]
wrong_calls = pytest.mark.parametrize(
    "wrongs", [FORWARD, GRADIENTS, ARGUMENTS], ids=["operators", "gradients", "arguments"]
)


@wrong_calls
def test_the_error_has_its_type_and_names_the_rule_and_the_numbers(wrongs: list[Wrong]) -> None:
    with every_row() as row:
        for wrong in wrongs:
            with row(wrong.name):
                with pytest.raises(wrong.error) as caught:
                    wrong.call()
                assert type(caught.value) is wrong.error
                assert str(caught.value) == wrong.message


@pytest.mark.emulator
@wrong_calls
def test_the_cuda_backend_says_the_same(wrongs: list[Wrong]) -> None:
    with every_row() as row:
        for wrong in wrongs:
            if re.search("(NumPy|CuPy) array|read-only", wrong.message):
                continue  # CuPy's arrays cannot be read-only
            with row(wrong.name):
                with emulated_cuda() as emulated, pytest.raises(wrong.error) as caught:
                    wrong.call()
                assert type(caught.value) is wrong.error
                assert str(caught.value) == wrong.message
                sources = {launch.variant.source for launch in emulated.launches}
                assert sources == ({"pool/indices.cu"} if "indices hold" in wrong.message else set())  # it reads them


def _peak(wrong: Wrong) -> int:
    """Return the most bytes that all threads together hold during a call."""
    tracemalloc.start()
    try:
        with pytest.raises(wrong.error):
            wrong.call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@wrong_calls
def test_nothing_is_allocated_before_the_error(wrongs: list[Wrong]) -> None:
    with every_row() as row:
        for wrong in wrongs:
            with row(wrong.name):  # in one of three calls, since the test runner's thread sometimes allocates
                assert any(_peak(wrong) < 2**17 for _ in range(3)), "128 KiB or more are allocated"


def test_the_names_of_the_wrong_calls_are_unique() -> None:
    assert len({wrong.name for wrong in WRONGS}) == len(WRONGS)


class Unprintable:
    """An object whose representation raises."""

    def __repr__(self) -> str:
        raise ZeroDivisionError


_LONG = "x" * 100_000
UNSHOWABLE = {
    "a matrix for an attribute": lambda: gpuconv.conv(X, W, pads=np.zeros((30, 30))),
    "a matrix for a number": lambda: gpuconv.conv(X, W, group=np.zeros((30, 30))),
    "a long list": lambda: gpuconv.conv(X, W, strides=[0.5] * 100_000),
    "far too many entries": lambda: gpuconv.max_pool(X, kernel_shape=[1] * 100_000),
    "far too many extents": lambda: gpuconv.conv_transpose(X, W, output_shape=[1] * 100_000),
    "far too many axes of a shape": lambda: gpuconv.conv_weight_grad(X, X, [1] * 100_000),
    "a number of too many digits": lambda: gpuconv.conv(X, W, group=10**5000),
    "an entry of too many digits": lambda: gpuconv.conv(X, W, dilations=[-(10**5000), 1]),
    "an object that cannot be shown": lambda: gpuconv.conv(X, W, group=Unprintable()),
    "a list of one that cannot be shown": lambda: gpuconv.conv(X, W, pads=[Unprintable()]),
    "a long auto_pad": lambda: gpuconv.conv(X, W, auto_pad=_LONG),
    "a long layout": lambda: gpuconv.conv(X, W, layout=_LONG),
    "a long precision": lambda: gpuconv.conv(X, W, precision=_LONG),
    "a long word of invariance": lambda: gpuconv.conv(X, W, invariant=_LONG),
    "a long activation": lambda: gpuconv.conv(X, W, activation=_LONG),
    "a long operator to pack for": lambda: gpuconv.pack(W, _LONG),
    "a long operator to explain": lambda: gpuconv.explain(_LONG, X.shape),
    "many extents, one of them negative": lambda: gpuconv.conv_weight_grad(X, X, [*[1] * 100_000, -1]),
    "extents of a product of too many digits": lambda: gpuconv.conv_input_grad(X, W, range(1, 100_000)),
    "extents of too many digits to explain": lambda: gpuconv.explain("conv", X.shape, [4, 4, 3, 10**5000]),
    "negative extents to explain": lambda: gpuconv.explain("max_pool", [1, 1, -3], kernel_shape=[1]),
    "no extents to explain": lambda: gpuconv.explain("max_pool", None, kernel_shape=[1]),  # type: ignore[arg-type]
    "an array for an operator to pack for": lambda: gpuconv.pack(W, np.zeros(0)),  # type: ignore[arg-type]
    "a number for an operator": lambda: gpuconv.explain(10**5000, X.shape),  # type: ignore[arg-type]
    "a long architecture": lambda: gpuconv.explain("conv", X.shape, W.shape, arch=_LONG),
    "an architecture of too many digits": lambda: gpuconv.explain("conv", X.shape, W.shape, arch=f"sm_{10**4000}9"),
    "a number for an architecture": lambda: gpuconv.explain("conv", X.shape, W.shape, arch=10**5000),  # type: ignore[arg-type]
    "a number for a dtype to explain": lambda: gpuconv.explain("conv", X.shape, W.shape, dtype=10**5000),
    "a long dtype to explain": lambda: gpuconv.explain("conv", X.shape, W.shape, dtype=_LONG),
    "a dtype of two lines to explain": lambda: gpuconv.explain("conv", X.shape, W.shape, dtype="two\nlines"),
    "a long attribute to explain": lambda: gpuconv.explain("conv", X.shape, W.shape, **{_LONG: 1}),
    "a dtype of long names": lambda: gpuconv.conv(array(1, 4, 5, 6, dtype=[("x" * 600, "f4")]), W),
    "another dtype of long names": lambda: gpuconv.conv(X, array(4, 4, 3, 2, dtype=[("x" * 600, "f4")])),
    "an out of long names": lambda: gpuconv.conv(X, W, out=array(*Y, dtype=[("x" * 600, "f4")])),
}


def test_whatever_is_passed_is_shown_on_one_short_line() -> None:
    with every_row() as row:
        for name, call in UNSHOWABLE.items():
            with row(name):
                with pytest.raises((ArgumentError, ArgumentTypeError)) as caught:
                    call()
                assert len(str(caught.value)) <= 440
                assert str(caught.value).isprintable()


def test_flags_of_explain_may_be_anything_that_is_true(capsys: pytest.CaptureFixture[str]) -> None:
    shapes = X.shape, W.shape
    plain = gpuconv.explain("conv", *shapes, bias=True, residual=True)
    assert gpuconv.explain("conv", *shapes, bias="yes", residual=[1]) == plain  # type: ignore[arg-type]
    indices = gpuconv.explain("max_pool", X.shape, kernel_shape=[1, 1], return_indices=True)
    assert gpuconv.explain("max_pool", X.shape, kernel_shape=[1, 1], return_indices=2) == indices  # type: ignore[arg-type]


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
    *(activation, _arrays, _call, _conv, dtypes, geometry, _gradients, gradients),
    *(integers, invariance, layout, memory, _packed, _pooling, precision, signatures, strictness, _transfer),
)


def test_every_raise_statement_is_reached_by_a_wrong_call() -> None:
    reached = [_raised_at(wrong) for wrong in WRONGS]
    missed = {
        f"{Path(path).name}:{first}"
        for module in MODULES
        for path, first, last in _raise_statements(module)
        if not any(path == where and first <= line <= last for where, line in reached)
    }
    assert missed == set()


def test_attributes_are_given_by_name() -> None:
    with pytest.raises(TypeError, match="positional argument"):
        gpuconv.conv(X, W, None, "SAME_UPPER")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="positional argument"):
        gpuconv.max_pool(X, [3, 2], "SAME_UPPER")  # type: ignore[call-overload]


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
