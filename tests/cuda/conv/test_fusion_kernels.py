"""Every kernel of Conv and ConvTranspose adds a residual and applies an activation before it rounds."""

from __future__ import annotations

import pytest

from tests.harness import fused
from tests.harness.sources_of_kernels import CONV, CONV_TRANSPOSE, DIRECT, OTHER_GEMMS, PLAIN_GEMMS

pytestmark = [pytest.mark.emulator, pytest.mark.kernels(*DIRECT, *CONV, *CONV_TRANSPOSE, *PLAIN_GEMMS, *OTHER_GEMMS)]

_NAMES = [f"{one.kernel}-{number}" for number, one in enumerate(fused.KERNELS)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", range(len(fused.KERNELS)), ids=_NAMES)
def test_whole_numbers_come_out_as_the_formula_says(number: int) -> None:
    fused.check(number, seed=number)
