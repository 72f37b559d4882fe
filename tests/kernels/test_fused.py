"""Every kernel of Conv and ConvTranspose adds a residual and applies an activation before it rounds."""

from __future__ import annotations

import pytest

from tests.kernels.convolutions import CONVOLUTIONS, DIRECT, POINTWISE
from tests.kernels.fused import FUSED, zeros
from tests.kernels.registry import params
from tests.kernels.specimen import Forward, Specimen
from tests.kernels.wgmma import LAST, WGMMA

pytestmark = pytest.mark.emulator


@pytest.mark.sampled(3)
@pytest.mark.parametrize("one", params(FUSED))
def test_whole_numbers_come_out_as_the_formula_says(one: Specimen) -> None:
    one(seed=5)


EACH_RUN = (POINTWISE[0], DIRECT[0], LAST)


@pytest.mark.parametrize("one", params(EACH_RUN))
def test_sums_of_zero_keep_their_sign_at_bounds(one: Forward) -> None:
    """Relu and clip do not change sums of -0 and 0."""
    zeros(one)()


@pytest.mark.thorough
@pytest.mark.parametrize("one", params(one for one in (*CONVOLUTIONS, *WGMMA) if one not in EACH_RUN))
def test_sums_of_zero_keep_their_sign_in_every_kernel(one: Forward) -> None:
    zeros(one)()
