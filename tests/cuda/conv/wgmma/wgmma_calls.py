"""Whole calls by wgmma, and the problems that tests of its kernels of strips share."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.offers import Candidate
from tests.emulator import emulated_cuda
from tests.oracle import oracle
from tests.oracle.finish import finished
from tests.oracle.operands import LAYOUTS, operands, values
from tests.oracle.strategies import Problem

HALF, SINGLE = np.dtype("float16"), np.dtype("float32")


ASYNCHRONOUS = ("late", "at once", "random")


INTEGERS = ("integers", "integers", "integers")


def conv(x: tuple[int, ...], w: tuple[int, ...], bias: bool = True, **attributes: Any) -> Problem:
    return Problem("conv", x, w, w[:1] if bias else None, attributes)


def conv_transpose(x: tuple[int, ...], w: tuple[int, ...], **attributes: Any) -> Problem:
    return Problem("conv_transpose", x, w, (w[1] * attributes.get("group", 1),), attributes)


# Rows of x are whole multiples of 16 bytes in all of them.
PROBLEMS = {
    "as large as x": conv((1, 72, 9, 72), (72, 72, 3, 3), pads=[1, 1, 1, 1]),
    "all unequal": conv((1, 40, 7, 80), (130, 40, 3, 2), False, pads=[2, 1, 0, 1], dilations=[1, 2]),
    "far taps along H": conv((1, 64, 9, 64), (64, 64, 3, 3), pads=[2, 2, 2, 2], dilations=[2, 2]),
    "a stride along H": conv((1, 64, 11, 64), (64, 64, 3, 3), pads=[1, 1, 1, 1], strides=[2, 1]),
    "one tap": conv((2, 130, 8, 16), (72, 130, 1, 1)),
    "one axis": conv((2, 100, 304), (70, 100, 4), pads=[1, 3], dilations=[3]),
    "three axes": conv(
        (2, 24, 3, 5, 72), (64, 24, 2, 3, 2), pads=[1, 1, 0, 0, 0, 2], strides=[2, 1, 1], dilations=[1, 2, 1]
    ),
    "groups": conv((1, 128, 5, 64), (140, 64, 3, 2), False, group=2, pads=[1, 1, 1, 1]),
    "one slice": conv((1, 64, 5, 72), (64, 64, 3, 3), pads=[1, 0, 1, 1]),
    "no padding": conv((1, 72, 6, 64), (64, 72, 3, 3)),
}


def call(
    given: Problem, arrays: Sequence[Any], wanted: str, precision: str = "ieee", *, more: Any = None, **options: Any
) -> tuple[Any, Any]:
    """The result of the first candidate whose name ends so, and the parameters of its last launch."""
    x, w, b = arrays
    with_last = "_direct" in wanted
    x = LAYOUTS["channels last"](x) if with_last else x

    def pick(candidates: Sequence[Candidate]) -> Candidate:
        return next(one for one in candidates if one.name.endswith(wanted))

    with offers.picking(pick), gpuconv.precision(precision), emulated_cuda(**options) as emulated:
        y = getattr(gpuconv, given.operator)(x, w, b, **given.attributes, **(more or {}))
    last = emulated.launches[-1]
    assert last.variant.name.endswith(f"_{wanted.removesuffix('_split').removesuffix('_direct')}")
    return y, np.frombuffer(last.parameters, last.variant.layout)[0]


def divided(given: Problem, arrays: Sequence[Any], wanted: str, *more: Any, **options: Any) -> tuple[Any, Any]:
    """The same by shares of tiles, on multiprocessors that these are left over for."""
    for count in (5, 7, 11):
        with suppress(StopIteration):
            y, struct = call(given, arrays, f"{wanted}_split", *more, multiprocessors=count, **options)
            assert struct["splits"]["count"]["divisor"] > 1
            return y, struct
    pytest.fail("there is no such candidate")


def exact_of(given: Problem, arrays: Sequence[Any]) -> oracle.Exact:
    exact: oracle.Exact = getattr(oracle, given.operator)(*arrays, **given.attributes)
    return exact


def check_finished(given: Problem, wanted: str, dtype: Any, precision: str, split: bool) -> None:
    """With a residual and an activation."""
    random = Random(f"{wanted} {dtype} {precision} {given}")
    arrays = operands(given, INTEGERS, random.randrange(100), dtype)
    exact = exact_of(given, arrays).value
    activation = random.choice((None, "relu", ("leaky_relu", -2), ("clip", -1.5, 6)))
    added = random.choice((None, "contiguous", "channels last"))
    residual = None if added is None else LAYOUTS[added](values("integers", 7, exact.shape, dtype))
    expected = finished(exact.astype(np.float32), residual, activation).astype(dtype)
    out = LAYOUTS[random.choice(("contiguous", "channels last", "strided"))](np.zeros(exact.shape, dtype))
    options = {"seed": random.randrange(100), "async_order": random.choice(ASYNCHRONOUS)}
    more = {"activation": activation, "residual": residual, "out": out}
    if split:
        y, _ = divided(given, arrays, wanted, precision, more=more, **options)
    else:
        count = random.choice((1, 2, 3))
        y, _ = call(given, arrays, wanted, precision, more=more, multiprocessors=count, **options)
    np.testing.assert_array_equal(y, expected)


TRANSPOSED = {
    "as large as x": conv_transpose((1, 72, 9, 72), (72, 72, 3, 3), pads=[1, 1, 1, 1]),
    "larger than x": conv_transpose((2, 40, 5, 80), (40, 70, 3, 2), dilations=[1, 2]),
    "cropped": conv_transpose((1, 40, 12, 80), (40, 130, 2, 3), pads=[3, 1, 2, 5], dilations=[2, 1]),
    "groups": conv_transpose((1, 128, 5, 64), (128, 70, 3, 2), group=2, pads=[1, 0, 0, 1]),
    "three axes": conv_transpose((2, 24, 3, 5, 72), (24, 64, 2, 3, 2), pads=[1, 0, 0, 0, 1, 1], dilations=[1, 1, 2]),
    "one axis": conv_transpose((2, 100, 304), (100, 70, 4), pads=[1, 3], dilations=[3]),
}


NOT_FINITE = {
    "conv": conv((1, 64, 7, 72), (64, 64, 3, 2), pads=[1, 2, 1, 0]),
    "slices of half as many channels": conv((1, 32, 7, 72), (64, 32, 3, 2), pads=[1, 2, 1, 0]),
    "conv_transpose": conv_transpose((1, 64, 7, 72), (64, 64, 3, 2), pads=[1, 0, 0, 1]),
}


def check_not_finite(
    given: Problem,
    wanted: str,
    dtype: Any,
    precision: str,
    kinds: tuple[str, str],
    w_layout: str = "contiguous",
    **options: Any,
) -> None:
    x, w, b = operands(given, (*kinds, "integers"), 6, dtype)
    for array in (x, w):  # few enough for most outputs to be numbers
        odd = np.random.default_rng(5).random(array.shape) < 0.995
        array[odd & ~np.isfinite(array.astype(np.float64))] = 1
    y, _ = call(given, (x, LAYOUTS[w_layout](w), b), wanted, precision, **options)
    exact = exact_of(given, (x, w, b))
    assert np.isfinite(exact.value).any()
    assert not np.isfinite(exact.value).all()
    oracle.assert_close(y, exact, dtype, "tensor cores" if precision == "ieee" else precision)


def check_rows_from_other_addresses(wanted: str, share: bool, dtype: Any, precision: str, given: Problem) -> None:
    """From an address on that is no multiple of 16 bytes: the same plan, other launches."""
    x, w, _ = operands(given, INTEGERS, 8, dtype)
    memory = np.append(x.reshape(-1), x.reshape(-1)[:1])

    def pick(candidates: Sequence[Candidate]) -> Candidate:
        return next(one for one in candidates if one.name.endswith(wanted))

    device = emulated_cuda(seed=1, async_order="random", multiprocessors=3)
    with offers.picking(pick), gpuconv.precision(precision), device as emulated:
        weights = gpuconv.pack(w) if share else w
        for k in (0, 1, 0, 1):
            x = memory[k : memory.size - 1 + k].reshape(given.x_shape)
            np.testing.assert_array_equal(gpuconv.conv(x, weights), oracle.conv(x, w).value.astype(dtype))
    names = [launch.variant.name for launch in emulated.launches]
    assert sum("channels_last" in name for name in names) == 2
    launches = 2 if share and "_split" in wanted else 1  # of which the second one adds up
    assert sum(name.endswith("_rows") for name in names) == 2 * launches
