"""Calls on Hopper's tensor cores, again and again: by graphs, by threads; and what the driver is asked for."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import gpuconv
from gpuconv.cuda.call import device
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.offers import Candidate
from tests.emulator import emulated_cuda
from tests.emulator.device import EmulatedDevice, LaunchRecord
from tests.harness.cupy_stand_in import cupy_stand_in
from tests.oracle import oracle

pytestmark = pytest.mark.emulator

CODES = {2: 6, 4: 7}  # of float16 and float32, by the bytes of an element


def integers(seed: int, *shape: int, dtype: Any = np.float16) -> Any:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def picking(wanted: str) -> Any:
    """Let the first candidate be taken whose name ends like this."""

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
    """A call of one operator on arrays of the same shapes, again and again."""

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
    def emulated(self, **options: Any) -> Iterator[EmulatedDevice]:
        with picking(self.wanted), emulated_cuda(multiprocessors=3, **options) as emulated:
            yield emulated


def replay(emulated: EmulatedDevice, records: Sequence[LaunchRecord], inputs: Any, y: Any, workspace: Any) -> None:
    """Launch what a graph has captured: kernels, and the bytes of their structs."""
    emulated.current_device()
    for array in inputs:
        emulated.address(array)
    emulated.result_address(y)
    if workspace is not None:
        emulated.result_address(workspace)
    for one in records:
        handle = emulated.load(one.variant, 0, one.shared_bytes)
        emulated.bind(handle, one.grid, one.threads, one.shared_bytes, emulated.parameters(one.parameters))()
    emulated.check_written()


@every_call
def test_a_graph_launched_again_reads_what_its_arrays_hold_by_then(name: str) -> None:
    call = Call(name)
    with call.emulated(seed=1, async_order="random") as emulated, mock.patch.object(emulated, "keep") as keep:
        x, w = call.arrays(0)
        y = call(x, w)
        np.testing.assert_array_equal(y, call.expected(x, w))
        captured, workspace = list(emulated.launches), keep.call_args.args[0]
        others = call.arrays(7)  # the same prepared call, with other addresses
        np.testing.assert_array_equal(call(*others), call.expected(*others))
        for seed in (20, 30):
            x[...], w[...] = call.arrays(seed)
            y[...] = np.nan
            replay(emulated, captured, (x, w), y, workspace)
            np.testing.assert_array_equal(y, call.expected(x, w))


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


# ---------------------------------------------------------------- the driver is asked for what the emulator takes


def decoded(words: bytes) -> tuple[Any, ...]:
    """A map of the emulator, as the driver's arguments would be."""
    _, _, _, rank, itemsize, swizzle, im2col = struct.unpack_from("<QIIBBBB", words)
    numbers = struct.unpack_from("<5I4Q5H5BB3h3hHH", words, 20)
    sizes, strides, box, steps = numbers[:5], numbers[5:9], numbers[9:14], numbers[14:19]
    lower, upper, channels, pixels = numbers[20:23], numbers[23:26], *numbers[26:]
    first = CODES[itemsize], rank, list(sizes[:rank]), list(strides[: rank - 1])
    if im2col:
        axes = rank - 2
        where = (list(lower[:axes]), list(upper[:axes]), channels, pixels, list(steps[:rank]))
    else:
        where = (list(box[:rank]), list(steps[:rank]))
    return (*first, *where, 0, swizzle, 2, 0)


@every_call
def test_the_driver_encodes_the_maps_that_the_emulator_runs_with(name: str, tmp_path: Path) -> None:
    call = Call(name)
    x, w = call.arrays(0)
    with call.emulated() as emulated:
        call(x, w)
    run = next(record for record in emulated.launches if "wgmma" in record.variant.name)
    with cupy_stand_in(tmp_path) as cupy, picking(call.wanted):
        call(gpuconv.to_device(x), gpuconv.to_device(w))
        made = [one for prepared in device.prepared.values() for one in prepared.plan.launches if one.maps]
    assert [launch.name for launch in cupy.launches] == [record.variant.name for record in emulated.launches]
    sent = next(launch.parameters for launch in cupy.launches if "wgmma" in launch.name)
    asked = {found.arguments[2]: found for found in cupy.maps}
    for one in made[0].maps:
        begin = made[0].offset(one.member)
        address = int.from_bytes(sent[begin : begin + 8], "little")
        function, arguments = asked[address].function, asked[address].arguments
        assert function == ("cuTensorMapEncodeTiled" if one.box else "cuTensorMapEncodeIm2col")
        assert (*arguments[:2], *arguments[3:]) == decoded(run.parameters[begin : begin + 128])
    if "x as it is" in name:
        n, h, width, channels = x.shape
        first = asked[int.from_bytes(sent[:8], "little")].arguments
        assert first[1:5] == (4, first[2], [channels, width, h, n], [*x.strides[2::-1]])
