"""Every kernel of Conv and ConvTranspose adds a residual and applies an activation before it rounds."""

from __future__ import annotations

import pytest

from tests.harness import fused

SOURCES = (
    *(f"direct/{name}" for name in ("bands", "channels", "few", "rows", "transpose")),
    *(f"gemm/{name}" for name in ("conv", "split", "tap_rows", "conv_transpose", "split_transpose", "phase_rows")),
    *(f"gemm/{name}" for name in ("depth_to_space", "depth_to_space_matrix", "interleaved", "matrix", "pointwise")),
    *(f"gemm/{name}" for name in ("grouped", "stem")),
)
pytestmark = [pytest.mark.emulator, pytest.mark.kernels(*(f"conv/{name}.cu" for name in SOURCES))]

_NAMES = [f"{one.kernel}-{number}" for number, one in enumerate(fused.KERNELS)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", range(len(fused.KERNELS)), ids=_NAMES)
def test_whole_numbers_come_out_as_the_formula_says(number: int) -> None:
    fused.check(number, seed=number)
