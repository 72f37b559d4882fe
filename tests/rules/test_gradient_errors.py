"""Special cases of wrong calls of gradients and of unpooling; tests/rules/test_errors.py has their messages."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import gpuconv
from tests.emulator import emulated_cuda
from tests.rules.wrong_gradients import MAXIMA, numbers


@pytest.mark.emulator
@pytest.mark.parametrize("on_device", [False, True])
def test_indices_need_not_be_looked_at(on_device: bool) -> None:
    """Invalid indices are ignored then; max_unpool writes outside of windows where indices say, gradients do not."""
    unchecked: dict[str, Any] = {"kernel_shape": [2], "strides": [2], "check_indices": False}
    with emulated_cuda() if on_device else nullcontext() as emulated:
        for wild, more in ((numbers(0, 2**62, -5, 8), {}), (numbers(0, 2**62, -5, 4), {"indices_in": "plane"})):
            dx = gpuconv.max_pool_grad(MAXIMA, wild, (1, 2, 4), **unchecked, **more)
            x = gpuconv.max_unpool(MAXIMA, wild, **unchecked, **more)
            assert dx.tolist() == x.tolist() == [[[1, 0, 0, 0], [0, 0, 0, 0]]]
        elsewhere = numbers(3, 2, 0, 1)
        dx = gpuconv.max_pool_grad(MAXIMA, elsewhere, (1, 2, 4), **unchecked)
        x = gpuconv.max_unpool(MAXIMA, elsewhere, **unchecked)
    assert dx.tolist() == [[[0, 0, 1, 0], [0, 0, 0, 0]]]
    assert x.tolist() == [[[1, 1, 1, 1], [0, 0, 0, 0]]]
    if emulated is not None:
        assert not any(launch.variant.name.startswith("check_indices") for launch in emulated.launches)


def test_an_out_stays_as_it_was_where_an_index_is_out_of_range() -> None:
    out = np.full((1, 2, 4), 7, np.float32)
    with pytest.raises(gpuconv.ArgumentError):
        gpuconv.max_unpool(MAXIMA, numbers(0, 1, 2, 8), kernel_shape=[2], strides=[2], out=out)
    assert (out == 7).all()
