"""Every named case in every dtype through the CUDA backend: with all checks on where the device is the emulated one."""

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
from tests.oracle.case_rows import case_rows
from tests.oracle.oracle import assert_same

pytestmark = pytest.mark.gpu


@pytest.fixture(params=["32-bit", "64-bit"])
def wide(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "64-bit")


@contextmanager
def cuda(case: Case, dtype: str, wide: bool) -> Iterator[Any]:
    """A device, on which all kernels have indices of the width that was asked for."""
    with indices(wide), any_cuda(limits_of=architecture(dtype, len(case.x_shape) - 2)) as emulated:
        yield emulated
    assert all(launch.variant.name.endswith("_wide") == wide for launch in emulated.launches)


@cuda_device.sampled(3)
@pytest.mark.parametrize(("case", "dtype"), case_rows("conv", "conv_transpose"))
def test_sums_are_exact_up_to_their_one_rounding(case: Case, dtype: str, wide: bool) -> None:
    (expected,) = cases.expected(case, dtype)
    arrays = cases.inputs(case, dtype)
    with cuda(case, dtype, wide) as emulated:
        actual = getattr(gpuconv, case.op)(**arrays, **case.attributes)
    assert_same(actual, expected, bits=False)
    assert cuda_device.hardware() or bool(emulated.launches) == bool(expected.size)


SEVERAL = [case for case in cases.CASES if case.op in ("conv_transpose", "average_pool")]


@cuda_device.sampled(2)
@pytest.mark.parametrize("case", SEVERAL, ids=lambda case: str(case.name))
def test_every_kernel_that_takes_a_case_makes_it_right(case: Case) -> None:
    """One dtype of each case, another one from case to case."""
    dtype = case.dtypes[SEVERAL.index(case) % len(case.dtypes)]
    (expected,) = cases.expected(case, dtype)
    arrays = cases.inputs(case, dtype)
    for turn in offers.every_candidate():
        with turn, cuda(case, dtype, wide=False):
            actual = getattr(gpuconv, case.op)(**arrays, **case.attributes)
        assert_same(actual, expected, bits=False)


@cuda_device.sampled(3)
@pytest.mark.parametrize(("case", "dtype"), case_rows("max_pool"))
def test_maxima_and_their_indices_agree_bit_for_bit(case: Case, dtype: str, wide: bool) -> None:
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
