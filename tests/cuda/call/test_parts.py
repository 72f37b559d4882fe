"""Complex data with real weights, and real data with complex weights: two real convolutions, on both backends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any
from unittest import mock

import numpy as np
import pytest

import gpuconv
from gpuconv import _conv
from tests.emulator import emulated_cuda
from tests.oracle import oracle
from tests.oracle.high_ranks import as_given, in_order
from tests.oracle.operands import complex_integers, values

BACKENDS = [pytest.param(nullcontext, id="numpy"), pytest.param(emulated_cuda, marks=pytest.mark.emulator, id="cuda")]
ATTRIBUTES = {"group": 2, "pads": [1, 0, 1, 1], "strides": [2, 1], "dilations": [1, 2]}


def operands(complex_x: bool, dtype: str = "complex64") -> tuple[Any, Any, Any]:
    """Return x, w and b of small integers, where either x or w is real."""
    real = "float32" if dtype == "complex64" else "float64"
    shapes = (2, 4, 6, 7), (4, 2, 3, 2)
    made = [
        complex_integers(seed, shape, dtype) if is_complex else values("integers", seed, shape, real)
        for seed, (shape, is_complex) in enumerate(zip(shapes, (complex_x, not complex_x), strict=True))
    ]
    return made[0], made[1], complex_integers(2, (4,), dtype)


def expected(operator: str, x: Any, w: Any, b: Any, **attributes: Any) -> Any:
    """Sum the oracle's real results for the parts."""
    compute = getattr(oracle, operator)
    pairs = ((x.real, w), (x.imag, w)) if np.iscomplexobj(x) else ((x, w.real), (x, w.imag))
    real, imag = (compute(*pair, part, **attributes).value for pair, part in zip(pairs, (b.real, b.imag), strict=True))
    return real + 1j * imag


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("operator", ["conv", "conv_transpose"])
@pytest.mark.parametrize("complex_x", [True, False], ids=["complex x", "complex w"])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_a_real_operand_takes_no_copy(backend: Any, operator: str, complex_x: bool, dtype: str) -> None:
    x, w, b = operands(complex_x, dtype)
    whole = expected(operator, x, w, b, **ATTRIBUTES)
    residual = complex_integers(3, whole.shape, dtype)
    for layout in ("NCHW", "NHWC"):
        given, more = np.ascontiguousarray(as_given(layout, x)), np.ascontiguousarray(as_given(layout, residual))
        with backend():
            y = getattr(gpuconv, operator)(given, w, b, residual=more, layout=layout, **ATTRIBUTES)
        assert y.dtype == dtype
        assert y.flags.c_contiguous
        assert (in_order(layout, y) == whole + residual).all()


def test_there_are_two_real_products() -> None:
    x, w, b = operands(True)
    with mock.patch.object(_conv, "_on_cpu", wraps=_conv._on_cpu) as calls:
        gpuconv.conv(x, w, b, group=2)
    assert [call.args[1].dtype for call in calls.call_args_list] == [np.float32] * 2
    assert all(np.shares_memory(call.args[1], x) and call.args[2] is w for call in calls.call_args_list)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("complex_x", [True, False], ids=["complex x", "complex w"])
def test_weights_may_be_packed_and_the_result_s_place_given(backend: Any, complex_x: bool) -> None:
    x, w, b = operands(complex_x)
    out = np.zeros((2, 4, 4, 12), np.complex64)[..., ::2]
    with backend():
        y = gpuconv.conv(x, gpuconv.pack(w), b, out=out, group=2)
    assert y is out
    assert (y == expected("conv", x, w, b, group=2)).all()


def test_attributes_may_come_once() -> None:
    x, w, b = operands(True)
    pads: Iterator[int] = iter([1, 0, 1, 1])
    assert (gpuconv.conv(x, w, b, group=2, pads=pads) == expected("conv", x, w, b, group=2, pads=[1, 0, 1, 1])).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_out_may_share_no_part_with_an_operand(backend: Any) -> None:
    memory = np.zeros(2 * 4 * 6 * 7 * 2 + 1, np.float32)
    x = memory[:-1].view(np.complex64).reshape(2, 4, 6, 7)
    out = memory[1:].view(np.complex64).reshape(2, 4, 6, 7)  # its real parts are the imaginary parts of x
    with backend(), pytest.raises(gpuconv.ArgumentError, match=r"^conv: out shares memory with x"):
        gpuconv.conv(x, np.ones((4, 4, 1, 1), np.float32), out=out)
    assert not memory.any()


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"b": np.ones(4, np.float32)}, TypeError, "b has dtype float32, but must have the result's dtype complex64"),
        (
            {"residual": np.ones((2, 4, 4, 6), np.float32)},
            TypeError,
            "residual has dtype float32, but must have the result's dtype complex64",
        ),
        ({"activation": "relu"}, TypeError, "x has dtype complex64, but an activation compares real numbers"),
        ({"out": np.ones((2, 4, 4, 6), np.float32)}, TypeError, "out must have the result's dtype complex64"),
        ({"precision": "fp8"}, ValueError, "precision must be one of"),
        (
            {"x": np.ones((2, 4, 6, 7), np.complex128)},
            TypeError,
            "w has dtype float32, but x has complex128; all",
        ),
    ],
)
def test_what_does_not_fit(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    x, w, b = operands(True)
    with pytest.raises(gpuconv.GpuconvError, match=rf"^conv: {message}") as caught:
        gpuconv.conv(**{"x": x, "w": w, "b": b, "group": 2, **changed})
    assert isinstance(caught.value, error)
