"""Whole calls by wgmma, and the problems that tests of its strip kernels share."""

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

# With any strides; inputs are loaded slice by slice.
_UNEQUAL: dict[str, Any] = {"strides": [2, 3], "dilations": [1, 2], "pads": [1, 0, 2, 1]}
SLICED = {
    "several images in a tile": conv((3, 72, 5, 7), (150, 72, 3, 3), pads=[1, 1, 1, 1]),
    "all unequal": conv((2, 40, 9, 11), (130, 40, 3, 2), False, pads=[2, 1, 0, 1], strides=[2, 1], dilations=[1, 2]),
    "vectors of eight": conv((2, 64, 8, 16), (80, 64, 1, 1)),
    "vectors of four": conv((3, 64, 6, 6), (96, 64, 3, 3), pads=[1, 1, 1, 1]),
    "groups": conv((2, 80, 5, 7), (140, 40, 2, 2), False, group=2),
    "one axis": conv((5, 100, 37), (70, 100, 4), pads=[1, 3], strides=[2], dilations=[3]),
    "three axes": conv(
        (2, 40, 5, 7, 6), (300, 40, 2, 3, 2), pads=[1, 1, 0, 1, 0, 2], strides=[2, 1, 3], dilations=[1, 2, 1]
    ),
    "phases": conv_transpose((2, 72, 3, 5), (72, 80, 3, 4), **_UNEQUAL, output_padding=[1, 0]),
    "one phase of vectors": conv_transpose((2, 72, 4, 8), (72, 72, 3, 3), pads=[1, 1, 1, 1]),
    "a phase without taps": conv_transpose((2, 144, 5), (144, 70, 2), strides=[3]),
    "groups of phases": conv_transpose((2, 144, 7, 5), (144, 70, 3, 2), group=2, strides=[2, 2]),
    "phases of three axes": conv_transpose(
        (1, 24, 3, 4, 5), (24, 66, 3, 2, 4), strides=[1, 2, 2], pads=[1, 0, 1, 1, 1, 2]
    ),
    "fewer outputs than phases": conv_transpose((1, 40, 1, 3), (40, 64, 2, 3), strides=[4, 2]),
    "crops beyond the windows": conv_transpose((1, 40, 6, 7), (40, 64, 3, 3), strides=[2, 2], pads=[3, 2, 0, 3]),
    "filters of several tiles": conv_transpose((1, 40, 4, 5), (40, 300, 3, 2), strides=[2, 1]),
}


def call(
    given: Problem, arrays: Sequence[Any], wanted: str, precision: str = "ieee", *, more: Any = None, **options: Any
) -> tuple[Any, Any]:
    """Return the result of the first candidate with this end of its name, and its last launch's parameters."""
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
    """Return the same for split tiles, on a number of multiprocessors for which plans split them."""
    for count in (5, 7, 11):
        with suppress(StopIteration):
            y, struct = call(given, arrays, f"{wanted}_split", *more, multiprocessors=count, **options)
            assert struct["splits"]["count"]["divisor"] > 1
            return y, struct
    pytest.fail("there is no such candidate")


def exact_of(given: Problem, arrays: Sequence[Any]) -> oracle.Exact:
    exact: oracle.Exact = getattr(oracle, given.operator)(*arrays, **given.attributes)
    return exact


def check_exact(
    given: Problem, wanted: str, dtype: Any, precision: str = "ieee", *, split: bool = False, **options: Any
) -> Any:
    """Compare a call's result of integers with the exact one; return the parameters of its last launch."""
    arrays = operands(given, INTEGERS, 4, dtype)
    y, struct = (divided if split else call)(given, arrays, wanted, precision, **options)
    np.testing.assert_array_equal(y, exact_of(given, arrays).value.astype(dtype), err_msg=str(options))
    return struct


def in_every_order(given: Problem, wanted: str, dtype: Any, precision: str, multiprocessors: Sequence[int]) -> Any:
    """Yield the parameters of a call for each order in which copies may arrive, on so many multiprocessors."""
    for seed, (order, count) in enumerate(zip(ASYNCHRONOUS, multiprocessors, strict=True)):
        yield check_exact(given, wanted, dtype, precision, seed=seed, async_order=order, multiprocessors=count)


def check_finished(given: Problem, wanted: str, dtype: Any, precision: str, split: bool) -> None:
    """Check a call with a residual and an activation."""
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
