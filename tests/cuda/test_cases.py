"""Every named case through the CUDA backend, with all checks on the emulated device.

Each run has one dtype of each case, with 32-bit indices; the thorough tier has all dtypes, and 64-bit indices too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes  # noqa: F401  # teaches NumPy the name bfloat16
import pytest

import gpuconv
from gpuconv.cuda.plan import offers
from gpuconv.rules import cases
from gpuconv.rules.cases import Case
from tests.harness import cuda_device
from tests.harness.emulated import any_cuda, architecture, indices
from tests.oracle.case_rows import ONE_DTYPE, every_case
from tests.oracle.every_row import every_row
from tests.oracle.oracle import assert_same

pytestmark = pytest.mark.gpu

every = pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=cuda_device.thorough_if_emulated())], ids=["one row", "every row"]
)


def rows_of(case: Case, every: bool) -> list[tuple[str, bool]]:
    """Return (dtype, wide) pairs, where ``wide`` means 64-bit indices."""
    if not every:
        return [(ONE_DTYPE[case.name], False)]
    return [(dtype, wide) for dtype in case.dtypes for wide in (False, True)]


@contextmanager
def cuda(case: Case, dtype: str, wide: bool) -> Iterator[Any]:
    """Emulate a device on which all kernels use indices of the requested width."""
    with indices(wide), any_cuda(limits_of=architecture(dtype, len(case.x_shape) - 2)) as emulated:
        yield emulated
    assert all(launch.variant.name.endswith("_wide") == wide for launch in emulated.launches)


@pytest.mark.kernels("conv/*", "passes/*")
@every
@every_case("conv", "conv_transpose")
def test_sums_are_exact_up_to_their_one_rounding(case: Case, every: bool) -> None:
    with every_row(case) as row:
        for dtype, wide in rows_of(case, every):
            with row((dtype, wide)):
                (expected,) = cases.expected(case, dtype)
                arrays = cases.inputs(case, dtype)
                with cuda(case, dtype, wide) as emulated:
                    actual = getattr(gpuconv, case.op)(**arrays, **case.attributes)
                assert_same(actual, expected, bits=False)
                assert cuda_device.hardware() or bool(emulated.launches) == bool(expected.size)


@pytest.mark.kernels("conv/*", "pool/*", "passes/*")
@cuda_device.sampled(2)
@every_case("conv_transpose", "average_pool")
def test_every_kernel_that_takes_a_case_makes_it_right(case: Case) -> None:
    dtype = ONE_DTYPE[case.name]
    (expected,) = cases.expected(case, dtype)
    arrays = cases.inputs(case, dtype)
    for turn in offers.every_candidate():
        with turn, cuda(case, dtype, wide=False):
            actual = getattr(gpuconv, case.op)(**arrays, **case.attributes)
        assert_same(actual, expected, bits=False)


def check_maxima(case: Case, dtype: str, wide: bool) -> None:
    """Compare the maxima of every kernel that takes a case, and their Indices, with what the case expects."""
    expected_y, expected_indices = cases.expected(case, dtype)
    arrays = cases.inputs(case, dtype)
    for turn in offers.every_candidate():
        with turn, cuda(case, dtype, wide) as emulated:
            y, places = gpuconv.max_pool(**arrays, **case.attributes, return_indices=True)
            values = gpuconv.max_pool(**arrays, **case.attributes)
        assert_same(y, expected_y)
        assert_same(places, expected_indices)
        assert_same(values, expected_y, bits=False)
        launched = len(emulated.launches)
        assert cuda_device.hardware() or (launched >= 2 if expected_y.size else launched == 0)


@pytest.mark.kernels("pool/*")
@every
@every_case("max_pool")
def test_maxima_and_their_indices_agree_bit_for_bit(case: Case, every: bool) -> None:
    with every_row(case) as row:
        for dtype, wide in rows_of(case, every):
            with row((dtype, wide)):
                check_maxima(case, dtype, wide)
