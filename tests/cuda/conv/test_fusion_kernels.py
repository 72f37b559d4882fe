"""Every kernel of Conv and ConvTranspose adds a residual and applies an activation before it rounds."""

from __future__ import annotations

import pytest

from tests.harness import fused, many_blocks, many_wgmma
from tests.harness.many_blocks import ManyBlocks
from tests.harness.sources_of_kernels import CONV, CONV_TRANSPOSE, DIRECT, OTHER_GEMMS, PLAIN_GEMMS

pytestmark = [pytest.mark.emulator, pytest.mark.kernels(*DIRECT, *CONV, *CONV_TRANSPOSE, *PLAIN_GEMMS, *OTHER_GEMMS)]

_NAMES = [f"{one.kernel}-{number}" for number, one in enumerate(fused.KERNELS)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", range(len(fused.KERNELS)), ids=_NAMES)
def test_whole_numbers_come_out_as_the_formula_says(number: int) -> None:
    fused.check(number, seed=number)


@pytest.mark.parametrize("one", [many_blocks.POINTWISE[0], many_blocks.DIRECT[0]], ids=lambda one: one.kernel)
def test_sums_of_zero_keep_their_sign_at_bounds(one: ManyBlocks) -> None:
    """Zero is neither below nor above a bound of -0.0, and leaky_relu does not multiply it."""
    fused.check_zeros(one)


def test_sums_of_zero_keep_their_sign_at_bounds_in_wgmma() -> None:
    many_wgmma.check_zeros(many_wgmma.LAST)
