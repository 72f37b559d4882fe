"""Repeated calls on Hopper's tensor cores, by graphs and by threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.offers import Candidate
from tests.emulator import emulated_cuda
from tests.gpu.on_device import cupy, moved
from tests.oracle import oracle

pytestmark = [pytest.mark.emulator, pytest.mark.kernels("conv/wgmma/slices.cu", "conv/wgmma/strips.cu")]


def integers(seed: int, *shape: int, dtype: Any = np.float16) -> Any:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def picking(wanted: str) -> Any:
    """Select the first candidate with this end of its name."""

    def pick(candidates: Sequence[Candidate]) -> Candidate:
        return next(one for one in candidates if one.name.endswith(wanted))

    return offers.picking(pick)


# Operator, what the candidate's name ends with, precision, layout, shape of w.
CALLS = {
    "a copy of x": ("conv", "64x256", "ieee", "NCHW", (70, 72, 3, 2)),
    "x as it is": ("conv", "64x256_direct", "ieee", "NHWC", (70, 72, 3, 2)),
    "x and w as they are": ("conv", "64x256_direct", "ieee", "NHWC", (70, 72, 1, 1)),
    "tiles that several blocks make": ("conv", "64x256_split", "ieee", "NCHW", (70, 72, 3, 2)),
    "a launch that adds up": ("conv", "64x256_direct_split", "ieee", "NHWC", (70, 200, 1, 1)),
    "phases": ("conv_transpose", "64x256", "ieee", "NCHW", (72, 70, 3, 2)),
    "rows of x": ("conv", "64x256_rows", "ieee", "NCHW", (70, 72, 3, 2)),
    "patches of x": ("conv", "64x256_patches_direct_split", "ieee", "NHWC", (70, 72, 3, 2)),
    "two parts of each number": ("conv", "64x256", "3xtf32", "NCHW", (70, 40, 3, 2)),
}
every_call = pytest.mark.parametrize("name", CALLS)


class Call:
    """A call of one operator, repeated on arrays of the same shapes."""

    def __init__(self, name: str) -> None:
        self.operator, self.wanted, self.precision, self.layout, self.w_shape = CALLS[name]
        self.dtype = np.float16 if self.precision == "ieee" else np.float32
        self.attributes = {"strides": [2, 1]} if self.operator == "conv_transpose" else {}

    @property
    def x_shape(self) -> tuple[int, ...]:
        channels = self.w_shape[self.operator == "conv"]
        width = 16 if "rows" in self.wanted else 9
        return (2, 8, 9, channels) if self.layout == "NHWC" else (2, channels, 8, width)

    def arrays(self, seed: int) -> tuple[Any, Any]:
        return integers(seed, *self.x_shape, dtype=self.dtype), integers(seed + 1, *self.w_shape, dtype=self.dtype)

    def expected(self, x: Any, w: Any) -> Any:
        second = np.moveaxis(x, -1, 1) if self.layout == "NHWC" else x
        y = getattr(oracle, self.operator)(second, w, **self.attributes).value
        return (np.moveaxis(y, 1, -1) if self.layout == "NHWC" else y).astype(self.dtype)

    def __call__(self, x: Any, w: Any) -> Any:
        with gpuconv.precision(self.precision):
            return getattr(gpuconv, self.operator)(x, w, layout=self.layout, **self.attributes)

    @contextmanager
    def emulated(self, **options: Any) -> Iterator[None]:
        with picking(self.wanted), emulated_cuda(multiprocessors=3, **options):
            yield


@every_call
def test_a_graph_launched_again_reads_what_its_arrays_hold_by_then(name: str) -> None:
    call = Call(name)
    with call.emulated(seed=1, async_order="random"), cupy().cuda.Stream(non_blocking=True) as stream:
        x, w = moved(call.arrays(0))
        np.testing.assert_array_equal(gpuconv.to_host(call(x, w)), call.expected(*call.arrays(0)))
        stream.begin_capture()
        y = call(x, w)
        graph = stream.end_capture()
        others = call.arrays(7)  # the same prepared call, with other addresses
        np.testing.assert_array_equal(call(*others), call.expected(*others))
        for seed in (20, 30):
            changed = call.arrays(seed)
            for array, host in zip((x, w), changed, strict=True):
                array.set(host)
            y.fill(np.nan)
            graph.launch(stream)
            np.testing.assert_array_equal(gpuconv.to_host(y), call.expected(*changed))


def test_threads_that_make_the_same_call_do_not_disturb_each_other() -> None:
    call = Call("tiles that several blocks make")
    sets = [call.arrays(seed) for seed in range(4)]
    expected = [call.expected(*arrays) for arrays in sets]

    def work(number: int) -> None:
        with picking(call.wanted):
            for _ in range(3):
                np.testing.assert_array_equal(call(*sets[number]), expected[number])

    with call.emulated(seed=3), ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
