"""Launches of the passes that bring channels together, without the convolution that they are for."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpuconv.cuda.call import device
from gpuconv.cuda.call.prepared import contiguous_strides
from gpuconv.cuda.conv import problem as correlation
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.conv.wgmma import operands
from gpuconv.cuda.passes import channels_last
from gpuconv.cuda.plan.launch import Launch
from gpuconv.cuda.plan.limits import nearest
from gpuconv.rules import geometry as geometries
from tests.emulator import emulated_cuda
from tests.emulator.device import EmulatedCuda
from tests.emulator.mirror import Mirror
from tests.emulator.moving import check_written
from tests.oracle.operands import LAYOUTS, values


def elements(array: Any) -> tuple[int, ...]:
    """Strides that count elements."""
    return tuple(stride // array.itemsize for stride in array.strides)


def problem_of(operator: str, x: Any, w: Any, precision: str = "ieee", **attributes: Any) -> Problem:
    """The problem of a call on these arrays."""
    geometry = getattr(geometries, operator)(x.shape, w.shape, None, **attributes)
    strides = elements(x), elements(w), None, contiguous_strides(geometry.y_shape)
    return correlation.of(geometry, x.dtype.name, *strides, precision)


def run(
    launch: Launch, arrays: dict[str, Any], results: dict[str, Any], architecture: str = "sm_90a", **options: Any
) -> EmulatedCuda:
    """Launch on these arrays, by their roles, and see that all of the results is written."""
    with emulated_cuda(architecture, **options) as emulated:
        mirror = Mirror(arrays.values(), results.values())
        addresses = {role: mirror.of(array).data.ptr for role, array in (arrays | results).items()}
        slot = device.parameters(launch.parameters)
        assert {role for role, _ in launch.pointers} == set(addresses)
        for role, offset in launch.pointers:
            slot.buffer[offset:][:8] = np.frombuffer(addresses[role].to_bytes(8, "little"), np.uint8)
        kernel = device.load(launch.variant, 0, launch.shared_bytes)
        with emulated.findings_raised():
            device.bind(kernel, launch.grid, launch.variant.threads, launch.shared_bytes, slot)()
        for array in results.values():
            check_written(mirror.of(array), emulated.launches)
        mirror.bring_back()
    return emulated


def _with_tickets(launch: Launch, arrays: dict[str, Any], role: str, result: Any, tickets: int, **options: Any) -> Any:
    results = {role: result}
    if tickets:
        results["workspace"] = np.full(tickets, -1, np.int32)
    emulated = run(launch, arrays, results, **options)
    assert not tickets or not results["workspace"].any()
    return emulated


def copy(x: Any, group: int, filled: int, precision: str, tickets: int = 0, **options: Any) -> tuple[Any, Any]:
    """What the pass makes of x, and the device that it ran on."""
    parts = 2 if precision == "3xtf32" else 1
    result = np.empty((x.shape[0], prod(x.shape[2:]), group, parts, filled), x.dtype)
    if precision == "ieee" and (x.itemsize >= 4 or not tickets):
        tickets = 0  # a copy of other elements than those of 16 bits is never before a split of wgmma
        roles = {"x": "x", "x_last": "x_last"}
        launch = channels_last.copy("conv", x.dtype.name, x.shape, elements(x), group, filled, roles)
    else:
        w = np.zeros((group, x.shape[1] // group, *(1 for _ in x.shape[2:])), x.dtype)
        problem = problem_of("conv", x, w, precision, group=group)
        launch = operands.of_x(problem, filled, parts, tickets)
        assert operands.x_bytes(problem, filled, parts) == result.nbytes
    return result, _with_tickets(launch, {"x": x}, "x_last", result, tickets, **options)


def pack(
    w: Any, operator: str, group: int, filled: int, precision: str, tickets: int = 0, **options: Any
) -> tuple[Any, Any]:
    """What the pass makes of w, and the device that it ran on."""
    channels, filters = (w.shape[1], w.shape[0] // group) if operator == "conv" else (w.shape[0] // group, w.shape[1])
    x = np.zeros((1, channels * group, *w.shape[2:]), w.dtype)
    problem = problem_of(operator, x, w, precision, group=group)
    parts = 2 if precision == "3xtf32" else 1
    launch = operands.of_weights(problem, filled, parts, tickets)
    assert launch.packs == (not tickets)
    result = np.empty((group, parts, filters, prod(w.shape[2:]), filled), w.dtype)
    assert operands.weight_bytes(problem, filled, parts) == result.nbytes
    return result, _with_tickets(launch, {"w": w}, "packed", result, tickets, **options)


def rounded(x: Any) -> Any:
    """What TF32 has of float32 numbers: the nearest one, of two that are as near the one farther from 0."""
    exact = x.astype(np.float64)
    with np.errstate(all="ignore"):
        step = np.exp2(np.floor(np.log2(np.abs(exact))) - 10)
        step = np.maximum(np.where(exact == 0, 1, step), 2.0**-136)
        nearest = np.sign(exact) * np.floor(np.abs(exact) / step + 0.5) * step
    return nearest.astype(np.float32)


def parts_of(array: Any, precision: str) -> list[Any]:
    """The parts of an array that are multiplied."""
    if precision == "ieee":
        return [array]
    large = rounded(array)
    return [large] if precision == "tf32" else [large, rounded(array - large)]


def x_last(x: Any, group: int, filled: int, precision: str) -> Any:
    """x with channels last, by NumPy: (N, pixels, group, part, filled)."""
    batch, channels = x.shape[0], x.shape[1] // group
    expected = np.zeros((batch, prod(x.shape[2:]), group, len(parts_of(x, precision)), filled), x.dtype)
    for number, part in enumerate(parts_of(x, precision)):
        whole = np.ascontiguousarray(part).reshape(batch, group, channels, -1)
        expected[:, :, :, number, :channels] = whole.transpose(0, 3, 1, 2)
    return expected


def rows(w: Any, operator: str, group: int, filled: int, precision: str) -> Any:
    """Weights as rows of K, by NumPy: (group, part, M, taps, filled)."""
    parts = parts_of(w, precision)
    taps = prod(w.shape[2:])
    if operator == "conv":
        filters, channels = w.shape[0] // group, w.shape[1]
    else:
        filters, channels = w.shape[1], w.shape[0] // group
    expected = np.zeros((group, len(parts), filters, taps, filled), w.dtype)
    for number, part in enumerate(parts):
        part = np.ascontiguousarray(part)
        if operator == "conv":
            expected[:, number, :, :, :channels] = part.reshape(group, filters, channels, taps).swapaxes(2, 3)
        else:
            expected[:, number, :, :, :channels] = part.reshape(group, channels, filters, taps).transpose(0, 2, 3, 1)
    return expected


def filled_up(channels: int, dtype: Any, whole: bool) -> int:
    """Channels in whole vectors, or in whole slices of K."""
    unit = (128 if whole else 16) // np.dtype(dtype).itemsize
    return -(-channels // unit) * unit


def same(found: Any, expected: Any) -> bool:
    """Bit for bit, but for the bits of NaN."""
    return np.array_equal(found.astype(np.float64), expected.astype(np.float64), equal_nan=True)


def every_other_channel(array: Any) -> Any:
    """Whole planes, with memory between them that is none of the array's."""
    apart = np.zeros((array.shape[0], 2 * array.shape[1], *array.shape[2:]), array.dtype)
    apart[:, ::2] = array
    return apart[:, ::2]


@dataclass(frozen=True)
class Moved:
    """One problem for the mutants of the kernel; of weights where there is an operator."""

    shape: tuple[int, ...]
    dtype: str = "float16"
    precision: str = "ieee"
    layout: str = "contiguous"
    group: int = 1
    whole: bool = False
    tickets: int = 0
    operator: str = ""

    def __call__(self, architecture: str = "sm_90a", **options: Any) -> EmulatedCuda:
        """Raise AssertionError where the result is wrong or the emulator finds something."""
        array = values("normal", 5, self.shape, self.dtype)
        array = every_other_channel(array) if self.layout == "every other channel" else LAYOUTS[self.layout](array)
        channels = self.shape[0] // self.group if self.operator == "conv_transpose" else self.shape[1]
        filled = filled_up(channels if self.operator else channels // self.group, self.dtype, self.whole)
        tail = self.group, filled, self.precision
        options = {"seed": 3, **options}
        if self.operator:
            found, emulated = pack(array, self.operator, *tail, self.tickets, architecture=architecture, **options)
            expected = rows(array, self.operator, *tail)
        else:
            found, emulated = copy(array, *tail, self.tickets, architecture=architecture, **options)
            expected = x_last(array, *tail)
        assert same(found, expected), "elements are wrong"
        returned: EmulatedCuda = emulated
        return returned


MANY = (
    Moved((3, 140, 7, 11), group=2, layout="off the vectors", tickets=5000),
    Moved((2, 72, 5, 50), whole=True),
    Moved((3, 16, 15, 9), layout="off the vectors"),
    Moved((9, 40, 3, 4)),
    Moved((9, 24, 3, 3), layout="off the vectors"),
    Moved((2, 33, 7, 7), layout="every other channel"),
    Moved((2, 20, 6, 11, 3), layout="strided", tickets=3),
    Moved((3, 200, 5, 9), layout="channels last"),
    Moved((2, 100, 13, 11), layout="channels last"),
    Moved((3, 16, 5, 7), layout="pixels off the vectors"),
    Moved((2, 40, 9, 13), "float32", "3xtf32", group=2, whole=True),
    Moved((4, 12, 5, 5), "float32", "tf32", layout="off the vectors"),
    Moved((3, 10, 9, 11), "float32", layout="channels last"),
    Moved((2, 21, 9, 13), "float64", layout="off the vectors"),
    Moved((2, 18, 5, 12, 3), "float64", group=2, layout="strided"),
    Moved((70, 20, 3, 3), operator="conv", group=2, whole=True),
    Moved((20, 30, 3, 3), "float32", "3xtf32", operator="conv_transpose"),
)


BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


WAYS = [
    (np.dtype("float16"), "ieee"),
    (BFLOAT16, "ieee"),
    (np.dtype("float32"), "tf32"),
    (np.dtype("float32"), "3xtf32"),
]


over_ways = pytest.mark.parametrize(("dtype", "precision"), WAYS, ids=str)
over_copies = pytest.mark.parametrize(
    ("dtype", "precision"), [*WAYS, (np.dtype("float32"), "ieee"), (np.dtype("float64"), "ieee")], ids=str
)


@dataclass(frozen=True)
class Cost:
    """Of a launch, beside a copy of as many bytes."""

    sectors: float
    wavefronts: float
    slots: float
    cycles: float


def cost(emulated: Any, nbytes: int) -> Cost:
    """What the launch cost, where so many bytes are read and written."""
    counters = emulated.launches[-1].counters
    device = nearest("sm_90a")
    seconds = nbytes / device.bandwidth
    traffic, total = counters.traffic(), counters.total
    shared, ideal = traffic.get("shared", (0, 1))
    sectors = traffic["loads"][0] + traffic["stores"][0]
    clocks = seconds * device.clock * device.limits.multiprocessors
    transfers = shared + 32 * sectors / 128  # what the L1 cache and shared memory pass on, 128 bytes a clock
    return Cost(sectors / (nbytes / 32), shared / ideal, total["instructions"] / (4 * clocks), transfers / clocks)
