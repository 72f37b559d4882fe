"""Bugs in what finishes sums, and in copies of residuals, are noticed by the tests of fused calls."""

from __future__ import annotations

from typing import Any

import pytest

from tests.emulator import EmulatorError
from tests.harness import fused, many_gradients
from tests.harness.mutate_kernels import changed_kernels
from tests.harness.test_planted_bugs import exchanged

pytestmark = [pytest.mark.emulator, pytest.mark.usefixtures("cache_of_broken_kernels")]

COPY, COMPLEX, FINISH = "passes/copy.cu", "complex.cu", "conv/finish.cuh"
# A kernel with a clip and a residual, and one with a leaky relu.
_GENERAL = [number for number, one in enumerate(fused.KERNELS) if one.kernel == "conv_float32_3d_16x128x16"][:2]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("path", "old", "new", "trial"),
    [
        (COPY, "source += at[axis] * p.source_stride[axis]", "source += at[axis] * p.target_stride[axis]", 0),
        (COPY, "target += at[axis] * p.target_stride[axis]", "target += at[axis] * p.source_stride[axis]", 1),
        (COPY, "if (element >= p.elements) return;", "", 2),
        (COMPLEX, "its += at[axis] * p.residual_stride[axis]", "its += at[axis] * p.y_stride[axis]", 0),
        (COMPLEX, "its = channel * p.residual_channel", "its = channel * p.y_channel", 0),
        (COMPLEX, "if (p.residual != nullptr) sum +=", "sum +=", 0),
    ],
)
def test_a_residual_that_is_sought_elsewhere_shows(path: str, old: str, new: str, trial: int) -> None:
    trials: dict[str, Any] = {COPY: many_gradients.COPIES, COMPLEX: many_gradients.COMPLEX}
    with changed_kernels({path: exchanged(path, old, new)}), pytest.raises((AssertionError, EmulatorError)):
        trials[path][trial]("sm_90a")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return sum > high ? high : sum;", "return sum;"),
        ("sum = sum < low ? low : sum;", ""),
        ("sum * number<Acc>(finish.slope) : sum;", "sum : sum;"),
        ("static_cast<const char*>(finish.residual) + away", "static_cast<const char*>(finish.residual) - away"),
    ],
)
def test_a_wrong_formula_shows(old: str, new: str) -> None:
    with changed_kernels({FINISH: exchanged(FINISH, old, new)}), pytest.raises((AssertionError, EmulatorError)):
        _both()


def _both() -> None:
    for number in _GENERAL:
        fused.check(number)
