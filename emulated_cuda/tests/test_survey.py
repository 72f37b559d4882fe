"""The CuPy functions of emulated_cuda.survey give NumPy's results on the emulated device."""

from __future__ import annotations

import pytest

from emulated_cuda.survey import CASES, NOT_SERVED, UNARY, compare

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("emulated")]

SERVED = [name for name in CASES if name not in NOT_SERVED]
OF_ONE_ARGUMENT = [name for name in SERVED if name.split()[0] in UNARY.split()]
OTHERS = [name for name in SERVED if name not in OF_ONE_ARGUMENT]


@pytest.mark.parametrize("name", OTHERS)
def test_results_are_those_of_numpy(name: str) -> None:
    compare(CASES[name])


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", OF_ONE_ARGUMENT)
def test_functions_of_one_argument(name: str) -> None:
    compare(CASES[name])


@pytest.mark.parametrize("name", NOT_SERVED)
def test_what_is_not_served_is_an_error(name: str) -> None:
    with pytest.raises((ImportError, RuntimeError)):
        compare(CASES[name])
