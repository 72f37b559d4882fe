"""Results of wgmma kernels: within their bounds, next to non-finite values, from any address."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.offers import Candidate
from tests.cuda.conv.wgmma.wgmma_calls import (
    HALF,
    INTEGERS,
    PROBLEMS,
    SINGLE,
    SLICED,
    call,
    conv,
    conv_transpose,
    divided,
    exact_of,
)
from tests.emulator import emulated_cuda
from tests.oracle import oracle
from tests.oracle.operands import BFLOAT16, LAYOUTS, operands
from tests.oracle.strategies import Problem

pytestmark = pytest.mark.emulator

ARITHMETIC = [(BFLOAT16, "ieee"), (HALF, "ieee"), (SINGLE, "tf32"), (SINGLE, "3xtf32")]


def row(wanted: str, dtype: Any, precision: str, *more: Any) -> Any:
    """Return test parameters: a kernel by the end of its name, dtype and precision, and further values."""
    file = "pixels" if "pixel" in wanted else "strips" if "rows" in wanted or "patches" in wanted else "slices"
    names = [value for value in more if isinstance(value, (str, bool))]
    label = "-".join(map(str, (wanted, dtype, precision, *names)))
    return pytest.param(wanted, dtype, precision, *more, id=label, marks=pytest.mark.kernels(f"conv/wgmma/{file}.cu"))


def bound(precision: str) -> str:
    return "tensor cores" if precision == "ieee" else precision


# ---------------------------------------------------------------- bounds

ROWS = conv((1, 40, 5, 40), (66, 40, 3, 2), False, pads=[2, 1, 0, 1], dilations=[1, 2])  # of multiples of 16 bytes
RANDOM = [
    *(
        row(form, *arithmetic, SLICED["several images in a tile"], split)
        for arithmetic in ARITHMETIC
        for form in ("128x256", "64x256")
        for split in (False, True)
    ),
    row("128x256_rows", HALF, "ieee", PROBLEMS["all unequal"], False),
    *(row("64x256_patches", SINGLE, precision, PROBLEMS["all unequal"], False) for precision in ("tf32", "3xtf32")),
    *(
        row(f"{size}_pixel_{form}", SINGLE, "3xtf32", ROWS, False)
        for size in ("128x128", "64x256")
        for form in ("rows", "patches_direct")
    ),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("wanted", "dtype", "precision", "given", "split"), RANDOM)
def test_random_numbers_are_within_the_bound(
    wanted: str, dtype: Any, precision: str, given: Problem, split: bool
) -> None:
    arrays = operands(given, ("normal", "normal", "normal"), 3, dtype)
    y, _ = (divided if split else call)(given, arrays, wanted, precision)
    oracle.assert_close(y, exact_of(given, arrays), dtype, bound(precision))


# ---------------------------------------------------------------- what is not finite

NOT_FINITE = {
    "conv": conv((1, 64, 7, 72), (64, 64, 3, 2), pads=[1, 2, 1, 0]),
    "half slices": conv((1, 32, 7, 72), (64, 32, 3, 2), pads=[1, 2, 1, 0]),
    "conv_transpose": conv_transpose((1, 64, 7, 72), (64, 64, 3, 2), pads=[1, 0, 0, 1]),
    **SLICED,
}
PADDED = [
    *(
        row(("128x256", "64x256")[precision == "tf32"] + split, dtype, precision, name)
        for dtype, precision in ARITHMETIC
        for name in ("vectors of four", "phases")
        for split in ("", "_split")
    ),
    row("128x256_rows", BFLOAT16, "ieee", "conv"),
    row("64x256_rows", HALF, "ieee", "conv"),
    row("64x256_patches_direct", BFLOAT16, "ieee", "conv"),
    row("64x256_patches", SINGLE, "3xtf32", "conv"),
    row("64x256x32_rows", HALF, "ieee", "half slices"),
    row("64x256x32_patches_direct", BFLOAT16, "ieee", "half slices"),
    row("64x256_rows", BFLOAT16, "ieee", "conv_transpose"),
    row("64x256_patches_direct", HALF, "ieee", "conv_transpose"),
    row("64x256_patches", SINGLE, "tf32", "conv_transpose"),
    row("128x128_pixel_rows", SINGLE, "3xtf32", "conv"),
    row("64x256_pixel_rows", SINGLE, "tf32", "conv"),
    row("128x128_pixel_patches_direct", SINGLE, "tf32", "conv"),
    row("64x256_pixel_patches_direct", SINGLE, "3xtf32", "conv"),
    row("128x128_pixel_rows", SINGLE, "tf32", "conv_transpose"),
    row("64x256_pixel_patches_direct", SINGLE, "3xtf32", "conv_transpose"),
]
AS_THEY_ARE = [row(wanted, HALF, "ieee", "conv") for wanted in ("64x256_rows", "64x256_patches_direct")]


def check_padding(wanted: str, dtype: Any, precision: str, name: str, kinds: Sequence[str], w_layout: str) -> None:
    x, w, b = operands(NOT_FINITE[name], (*kinds, "integers"), 6, dtype)
    for array in (x, w):  # few, so that most outputs are numbers
        odd = np.random.default_rng(5).random(array.shape) < 0.995
        array[odd & ~np.isfinite(array.astype(np.float64))] = 1
    count = 5 if name in SLICED else None
    y, _ = call(NOT_FINITE[name], (x, LAYOUTS[w_layout](w), b), wanted, precision, multiprocessors=count)
    exact = exact_of(NOT_FINITE[name], (x, w, b))
    assert np.isfinite(exact.value).any()
    assert not np.isfinite(exact.value).all()
    oracle.assert_close(y, exact, dtype, bound(precision))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kinds", [("integers", "nonfinite"), ("nonfinite", "integers")])
@pytest.mark.parametrize(("wanted", "dtype", "precision", "name"), PADDED)
def test_padding_adds_nothing_to_what_is_not_finite(
    wanted: str, dtype: Any, precision: str, name: str, kinds: tuple[str, str]
) -> None:
    check_padding(wanted, dtype, precision, name, kinds, "contiguous")


@pytest.mark.parametrize(("wanted", "dtype", "precision", "name"), AS_THEY_ARE)
def test_infinite_weights_that_are_read_as_they_are_add_nothing_to_padding(
    wanted: str, dtype: Any, precision: str, name: str
) -> None:
    check_padding(wanted, dtype, precision, name, ("integers", "nonfinite"), "channels last")


# ---------------------------------------------------------------- addresses


@pytest.mark.sampled(3)
@pytest.mark.parametrize("share", [False, True], ids=["w", "packed w"])
@pytest.mark.parametrize(
    ("wanted", "dtype", "precision", "given"),
    [
        *(
            row(form, HALF, "ieee", conv((2, 72, 6, 24), (70, 72, 3, 3)))
            for form in ("128x256_rows", "64x256_rows_split")
        ),
        *(
            row(form, SINGLE, "3xtf32", conv((1, 72, 6, 24), (66, 72, 2, 2)))
            for form in ("128x128_pixel_rows", "64x256_pixel_rows_split")
        ),
    ],
)
def test_rows_from_other_addresses_are_copied_after_all(
    wanted: str, dtype: Any, precision: str, given: Problem, share: bool
) -> None:
    """For addresses that are not multiples of 16 bytes: the same plan, other launches."""
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
    launches = 2 if share and "_split" in wanted else 1  # the second one adds up sums
    assert sum(name.endswith("_rows") for name in names) == 2 * launches
