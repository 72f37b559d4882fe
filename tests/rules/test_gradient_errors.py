"""What is special about wrong calls of gradients and of unpooling; their messages are with all others."""

from __future__ import annotations

import numpy as np
import pytest

import gpuconv
from tests.emulator import emulated_cuda
from tests.rules.wrong_gradients import MAXIMA, numbers


@pytest.mark.emulator
def test_indices_need_not_be_looked_at() -> None:
    """What numbers nothing then counts for nothing."""
    wild = numbers(0, 2**62, -5, 8)
    with emulated_cuda() as emulated:
        dx = gpuconv.max_pool_grad(MAXIMA, wild, (1, 2, 4), kernel_shape=[2], strides=[2], check_indices=False)
        x = gpuconv.max_unpool(MAXIMA, wild, kernel_shape=[2], strides=[2], check_indices=False)
    assert dx.tolist() == x.tolist() == [[[1, 0, 0, 0], [0, 0, 0, 0]]]
    assert not any(launch.variant.name.startswith("check_indices") for launch in emulated.launches)


def test_an_out_stays_as_it_was_where_an_index_is_out_of_range() -> None:
    out = np.full((1, 2, 4), 7, np.float32)
    with pytest.raises(gpuconv.ArgumentError):
        gpuconv.max_unpool(MAXIMA, numbers(0, 1, 2, 8), kernel_shape=[2], strides=[2], out=out)
    assert (out == 7).all()
