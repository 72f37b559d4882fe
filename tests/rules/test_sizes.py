"""Results larger than any array: errors that say so at once, even for empty operands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import prod
from random import Random
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import gpuconv
from gpuconv import ArgumentError
from tests.harness.emulated import any_cuda
from tests.rules.refusal_rows import too_large

_ROOM = 2**24  # bytes of memory of the machine that some of these tests simulate
HUGE = (2**31, 2**32, 2**40, 2**58, 2**59, 2**60, 2**62, 2**63 - 1, 2**63, 2**64)
FLOATS = ("float16", "float32", "float64", "complex64", "complex128")
ELEMENTS = ("float16", "float32", "float64", "int8", "uint8")


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a machine with little memory, except for arrays that NumPy itself refuses as too big."""

    def limited(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(shape: Any, dtype: Any = float, *others: Any, **more: Any) -> Any:
            extents = shape if isinstance(shape, tuple | list) else (shape,)
            nbytes = prod(extents) * np.dtype(dtype).itemsize
            if _ROOM < nbytes < 2**63 and min(extents, default=0) >= 0:
                raise MemoryError(f"{nbytes} bytes")
            return make(shape, dtype, *others, **more)

        return made

    monkeypatch.setattr(np, "empty", limited(np.empty))
    monkeypatch.setattr(np, "zeros", limited(np.zeros))


# ---------------------------------------------------------------- one by one


@pytest.mark.parametrize("dtype", FLOATS)
def test_an_empty_result_is_as_large_as_its_other_extents(dtype: str) -> None:
    most = (2**63 - 1) // 16
    images, filters = np.ones((0, 1, 1), dtype), np.ones((0, 1, 1), dtype)
    one = np.ones((1, 1, 1), dtype)
    for x, w, shape in ((images, one, (0, 1)), (one, filters, (1, 0))):
        y = gpuconv.conv(x, w, pads=[most - 1, 0], activation=None)
        assert y.shape == (*shape, most)
        with pytest.raises(ArgumentError) as caught:
            gpuconv.conv(x, w, pads=[most, 0])
        assert str(caught.value) == f"conv: {too_large((*shape, most + 1))}"


def test_an_empty_result_is_finished_without_a_look_at_its_other_extents() -> None:
    x, w, b = np.ones((0, 1, 1), np.float32), np.ones((2, 1, 1), np.float32), np.ones(2, np.float32)
    assert gpuconv.conv(x, w, b, pads=[2**57, 0], activation="relu").shape == (0, 2, 2**57 + 1)
    assert gpuconv.max_pool(x, kernel_shape=[1], pads=[0, 0], strides=[2**62]).shape == (0, 1, 1)


def test_the_widest_elements_count_for_every_dtype() -> None:
    x = np.ones((1, 1, 1), np.complex128)
    with pytest.raises(ArgumentError, match="more than the 576460752303423487 that 64-bit byte offsets can address"):
        gpuconv.conv_transpose(x, x, output_shape=[2**59])
    pooled = np.ones((1, 1, 1), np.int8)  # Indices have eight bytes each
    with pytest.raises(ArgumentError, match="has 576460752303423489 elements, more than"):
        gpuconv.max_pool(pooled, kernel_shape=[2**59 + 1], pads=[2**59, 2**59], return_indices=True)


def test_what_an_array_could_be_and_memory_is_not_is_a_memory_error() -> None:
    x = np.ones((1, 1, 1), np.float32)
    for call in (
        lambda: gpuconv.conv(x, x, pads=[2**50, 0]),
        lambda: gpuconv.conv_transpose(x, x, output_shape=[2**50]),
        lambda: gpuconv.max_unpool(x, np.zeros(x.shape, np.int64), [2**50], kernel_shape=[1]),
        lambda: gpuconv.conv_input_grad(x, x, (1, 1, 2**50), strides=[2**50]),
    ):
        with pytest.raises(MemoryError):
            call()


def test_few_outputs_far_apart_are_computed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    products = [Mock(wraps=np.matmul), Mock(wraps=np.multiply)]
    for name, counted in zip(("matmul", "multiply"), products, strict=True):
        monkeypatch.setattr(np, name, counted)
    x, w = np.full((1, 1, 2), 3, np.complex64), np.full((2, 1, 2), 2, np.complex64)
    y = gpuconv.conv(x, w, pads=[2**58, 0], strides=[2**40])
    assert y.shape == (1, 2, 2**18 + 1)
    assert np.flatnonzero(y[0, 1]).tolist() == [2**18]
    assert y[0, 0, 2**18] == 12
    assert 1 <= sum(counted.call_count for counted in products) <= 2  # not once for every output


def test_explain_says_the_same_of_shapes_that_no_array_has(capsys: pytest.CaptureFixture[str]) -> None:
    for x, w, what, shape in (
        ((1, 1, 2**62), (1, 1, 1), "x_shape", (1, 1, 2**62)),
        ((0, 2, 3), (3, 2, 2**62), "w_shape", (3, 2, 2**62)),
        ((1, 1, 2**58), (2, 1, 1), "the output shape", (1, 2, 2**58)),
    ):
        with pytest.raises(ArgumentError) as caught:
            gpuconv.explain("conv", x, w)
        assert str(caught.value) == f"conv: {too_large(shape, what)}"
    assert not gpuconv.explain("max_pool", (1, 1, 2), kernel_shape=[2**40], strides=[2**60]).launches
    for shape in ((0, 1, 2**58), (0, 2**16, 2**16), (2, 3, 0, 2**40)):
        assert gpuconv.explain("conv_bias_grad", shape).launches
    pads = [0, 0, 2**32, 0]  # windows, if the second axis had any
    assert gpuconv.explain("max_pool_grad", (2, 2, 1, 1), kernel_shape=[4, 2], pads=pads).launches
    assert "max_pool" in capsys.readouterr().out


@pytest.mark.gpu
def test_sums_over_nothing_on_cuda_do_not_ask_how_large_it_is() -> None:
    for shape in ((0, 1, 2**58), (0, 2**16, 2**16), (2, 3, 0, 2**40)):
        with any_cuda():
            db = gpuconv.conv_bias_grad(np.empty(shape, np.float16))
        assert db.shape == shape[1:2]
        assert not db.any()


# ---------------------------------------------------------------- at random


def _number(random: Random, least: int, share: float) -> int:
    if random.random() < share:
        return max(least, random.choice(HUGE) + random.choice((-1, 0, 0, 1)))
    return random.randint(least, least + 3)


def _call(random: Random, operator: str) -> Any:
    """Call an operator on operands of a few elements, or none, with some attributes far beyond any array."""
    rank, share = random.choice((1, 1, 2, 3)), random.choice((0.1, 0.3, 0.6))

    def numbers(least: int, count: int = rank) -> list[int]:
        return [_number(random, least, share) for _ in range(count)]

    n, c, m = random.choice((0, 0, 1, 2)), random.choice((0, 1, 2)), random.choice((0, 1, 2))
    spatial, kernel = ([random.randint(least, 3) for _ in range(rank)] for least in (0, 1))
    attributes: dict[str, Any] = {"strides": numbers(1), "pads": numbers(0, 2 * rank)}
    attributes = {name: value for name, value in attributes.items() if random.random() < 0.7}
    if "pool" in operator:
        dtype = random.choice(ELEMENTS if operator != "max_pool_grad" else FLOATS[:3])
        x = np.ones((n, c, *spatial), dtype)
        attributes["kernel_shape"] = numbers(1)
        if operator == "max_pool":
            return gpuconv.max_pool(x, return_indices=random.random() < 0.5, dilations=numbers(1), **attributes)
        indices = np.full(x.shape, random.choice((-1, 0)))
        if operator == "max_unpool":
            return gpuconv.max_unpool(x, indices, numbers(0) if random.random() < 0.6 else None, **attributes)
        return gpuconv.max_pool_grad(x, indices, [n, c, *numbers(0)], **attributes)
    dtype, transposed = random.choice(FLOATS), "transpose" in operator
    attributes["dilations"] = numbers(1) if random.random() < 0.5 else [1] * rank
    if transposed and random.random() < 0.5:
        attributes |= {random.choice(("output_shape", "output_padding")): numbers(0)}
    x, w_shape = np.ones((n, c, *spatial), dtype), ((c, m) if transposed else (m, c))
    if "weight_grad" in operator:
        dy = np.ones((n, m, *(random.randint(0, 3) for _ in range(rank))), dtype)
        return getattr(gpuconv, operator)(x, dy, (*w_shape, *numbers(1)), **attributes)
    w = np.ones((*w_shape, *kernel), dtype)
    if "input_grad" in operator:
        dy = np.ones((n, m, *spatial), dtype)
        return getattr(gpuconv, operator)(dy, w, (n, c, *numbers(0)), **attributes)
    more = {"activation": "relu"} if dtype.startswith("float") and random.random() < 0.5 else {}
    return getattr(gpuconv, operator)(x, w, np.ones(m, dtype), **more, **attributes)


OPERATORS = (
    *("conv", "conv_input_grad", "conv_weight_grad"),
    *("conv_transpose", "conv_transpose_input_grad", "conv_transpose_weight_grad"),
    *("max_pool", "max_pool_grad", "max_unpool"),
)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("operator", OPERATORS)
def test_any_attributes_give_a_result_or_an_error_that_is_documented(operator: str) -> None:
    met: Counter[str] = Counter()
    for seed in range(400):
        try:
            _call(Random(f"{operator} {seed}"), operator)
            met["result"] += 1
        except (ArgumentError, MemoryError) as error:
            met[type(error).__name__] += 1
    assert set(met) <= {"result", "ArgumentError", "MemoryError"}
    assert met["ArgumentError"]
    assert met["result"]
