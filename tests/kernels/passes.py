"""Specimens of the passes that move channels last or pack weights, launched without the convolution that uses them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest

from gpuconv.cuda.call import device
from gpuconv.cuda.call.prepared import contiguous_strides
from gpuconv.cuda.conv import problem as correlation
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.conv.wgmma import operands
from gpuconv.cuda.passes import channels_last
from gpuconv.cuda.plan.launch import Launch, Plan
from gpuconv.cuda.plan.limits import nearest
from gpuconv.rules import geometry as geometries
from tests.emulator import emulated_cuda
from tests.emulator.device import EmulatedCuda
from tests.emulator.mirror import Mirror
from tests.emulator.moving import check_written
from tests.kernels.planning import Recorded
from tests.kernels.specimen import Specimen
from tests.oracle.operands import LAYOUTS, values


def elements(array: Any) -> tuple[int, ...]:
    """Return strides in elements."""
    return tuple(stride // array.itemsize for stride in array.strides)


def problem_of(operator: str, x: Any, w: Any, precision: str = "ieee", **attributes: Any) -> Problem:
    """Return the problem of a call on these arrays."""
    geometry = getattr(geometries, operator)(x.shape, w.shape, None, **attributes)
    strides = elements(x), elements(w), None, contiguous_strides(geometry.y_shape)
    return correlation.of(geometry, x.dtype.name, *strides, precision)


def run(
    launch: Launch, arrays: dict[str, Any], results: dict[str, Any], architecture: str = "sm_90a", **options: Any
) -> EmulatedCuda:
    """Launch on arrays given by role, and check that all results are written."""
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


def launch_of_copy(x: Any, group: int, filled: int, precision: str, tickets: int = 0) -> Launch:
    """Return the launch of the pass over x; only 16-bit elements can precede a split of wgmma, which uses tickets."""
    if precision == "ieee" and (x.itemsize >= 4 or not tickets):
        roles = {"x": "x", "x_last": "x_last"}
        return channels_last.copy("conv", x.dtype.name, x.shape, elements(x), group, filled, roles)
    parts = 2 if precision == "3xtf32" else 1
    w = np.zeros((group, x.shape[1] // group, *(1 for _ in x.shape[2:])), x.dtype)
    problem = problem_of("conv", x, w, precision, group=group)
    assert operands.x_bytes(problem, filled, parts) == x.size // x.shape[1] * group * parts * filled * x.itemsize
    return operands.of_x(problem, filled, parts, tickets)


def copy(x: Any, group: int, filled: int, precision: str, tickets: int = 0, **options: Any) -> tuple[Any, Any]:
    """Return the result of the pass over x, and the device that it ran on."""
    launch = launch_of_copy(x, group, filled, precision, tickets)
    result = np.empty((x.shape[0], prod(x.shape[2:]), group, 2 if precision == "3xtf32" else 1, filled), x.dtype)
    tickets = tickets if precision != "ieee" or x.itemsize < 4 else 0
    return result, _with_tickets(launch, {"x": x}, "x_last", result, tickets, **options)


def launch_of_weights(w: Any, operator: str, group: int, filled: int, precision: str, tickets: int = 0) -> Launch:
    """Return the launch of the pass over w."""
    channels = w.shape[1] if operator == "conv" else w.shape[0] // group
    x = np.zeros((1, channels * group, *w.shape[2:]), w.dtype)
    problem = problem_of(operator, x, w, precision, group=group)
    parts = 2 if precision == "3xtf32" else 1
    assert operands.weight_bytes(problem, filled, parts) == w.size // channels * parts * filled * w.itemsize
    return operands.of_weights(problem, filled, parts, tickets)


def pack(
    w: Any, operator: str, group: int, filled: int, precision: str, tickets: int = 0, **options: Any
) -> tuple[Any, Any]:
    """Return the packed weights, and the device that the pass ran on."""
    launch = launch_of_weights(w, operator, group, filled, precision, tickets)
    assert launch.packs == (not tickets)
    filters = w.shape[0] // group if operator == "conv" else w.shape[1]
    result = np.empty((group, 2 if precision == "3xtf32" else 1, filters, prod(w.shape[2:]), filled), w.dtype)
    return result, _with_tickets(launch, {"w": w}, "packed", result, tickets, **options)


def rounded(x: Any) -> Any:
    """Round float32 to TF32, to nearest with ties away from zero."""
    exact = x.astype(np.float64)
    with np.errstate(all="ignore"):
        step = np.exp2(np.floor(np.log2(np.abs(exact))) - 10)
        step = np.maximum(np.where(exact == 0, 1, step), 2.0**-136)
        nearest = np.sign(exact) * np.floor(np.abs(exact) / step + 0.5) * step
    return nearest.astype(np.float32)


def parts_of(array: Any, precision: str) -> list[Any]:
    """Return the parts of an array that tensor cores multiply: itself, TF32, or TF32 of it and of its remainder."""
    if precision == "ieee":
        return [array]
    large = rounded(array)
    return [large] if precision == "tf32" else [large, rounded(array - large)]


def x_last(x: Any, group: int, filled: int, precision: str) -> Any:
    """Return the expected x with channels last, by NumPy: (N, pixels, group, part, filled)."""
    batch, channels = x.shape[0], x.shape[1] // group
    expected = np.zeros((batch, prod(x.shape[2:]), group, len(parts_of(x, precision)), filled), x.dtype)
    for number, part in enumerate(parts_of(x, precision)):
        whole = np.ascontiguousarray(part).reshape(batch, group, channels, -1)
        expected[:, :, :, number, :channels] = whole.transpose(0, 3, 1, 2)
    return expected


def rows(w: Any, operator: str, group: int, filled: int, precision: str) -> Any:
    """Return the expected weights as rows of K, by NumPy: (group, part, M, taps, filled)."""
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
    """Return channels rounded up to whole 16-byte vectors, or to whole slices of K."""
    unit = (128 if whole else 16) // np.dtype(dtype).itemsize
    return -(-channels // unit) * unit


def same(found: Any, expected: Any) -> bool:
    """Return whether arrays are equal, where any NaN equals any NaN."""
    return np.array_equal(found.astype(np.float64), expected.astype(np.float64), equal_nan=True)


def every_other_channel(array: Any) -> Any:
    """Return the array as contiguous planes with unused memory between them."""
    apart = np.zeros((array.shape[0], 2 * array.shape[1], *array.shape[2:]), array.dtype)
    apart[:, ::2] = array
    return apart[:, ::2]


@dataclass(frozen=True, eq=False)
class Moved(Specimen):
    """One launch of a pass: over weights if ``operator`` is set, else over x."""

    shape: tuple[int, ...]
    element: str = "float16"
    factors: str = "ieee"
    layout: str = "contiguous"
    group: int = 1
    whole: bool = False  # round channels up to whole slices of K, not only to whole vectors
    tickets: int = 0
    operator: str = ""

    least_blocks: ClassVar[int] = 1  # some test how rows are aligned, and fill one block

    @property
    def tail(self) -> tuple[int, int, str, int]:
        """Arguments of `copy`, `pack` and the references: groups, filled-up channels, precision, tickets."""
        channels = self.shape[0] // self.group if self.operator == "conv_transpose" else self.shape[1]
        channels = channels if self.operator else channels // self.group
        return self.group, filled_up(channels, self.element, self.whole), self.factors, self.tickets

    @cached_property
    def inputs(self) -> Any:
        array = values("normal", 5, self.shape, self.element)
        return every_other_channel(array) if self.layout == "every other channel" else LAYOUTS[self.layout](array)

    def __call__(self, architecture: str | None = None, **options: Any) -> EmulatedCuda:
        options = {"seed": 3, "architecture": architecture or "sm_90a", **options}
        if self.operator:
            found, emulated = pack(self.inputs, self.operator, *self.tail, **options)
            expected = rows(self.inputs, self.operator, *self.tail[:3])
        else:
            found, emulated = copy(self.inputs, *self.tail, **options)
            expected = x_last(self.inputs, *self.tail[:3])
        assert same(found, expected), "elements are wrong"
        returned: EmulatedCuda = emulated
        return returned

    def planned(self) -> Recorded:
        launch = launch_of_weights if self.operator else launch_of_copy
        operator = (self.operator,) if self.operator else ()
        plan = Plan("pass", (launch(self.inputs, *operator, *self.tail),), (), kernel=self.kernel)
        return Recorded(calls=[plan])


PASSES = (
    Moved("channels_last_16bit_3d", (3, 140, 7, 11), group=2, layout="off the vectors", tickets=5000),
    Moved("channels_last_16bit_3d", (2, 72, 5, 50), whole=True),
    Moved("channels_last_16bit_3d", (3, 16, 15, 9), layout="off the vectors"),
    Moved("channels_last_16bit_3d", (9, 40, 3, 4)),
    Moved("channels_last_16bit_3d", (9, 24, 3, 3), layout="off the vectors"),
    Moved("channels_last_16bit_3d", (2, 33, 7, 7), layout="every other channel"),
    Moved("channels_last_16bit_3d", (2, 20, 6, 11, 3), layout="strided", tickets=3),
    Moved("channels_last_16bit_3d", (3, 200, 5, 9), layout="channels last"),
    Moved("channels_last_16bit_3d", (2, 100, 13, 11), layout="channels last"),
    Moved("channels_last_16bit_3d", (3, 16, 5, 7), layout="pixels off the vectors"),
    Moved("channels_last_float32_3d_3xtf32", (2, 40, 9, 13), "float32", "3xtf32", group=2, whole=True),
    Moved("channels_last_float32_3d_tf32", (4, 12, 5, 5), "float32", "tf32", layout="off the vectors"),
    Moved("channels_last_32bit_3d", (3, 10, 9, 11), "float32", layout="channels last"),
    Moved("channels_last_64bit_3d", (2, 21, 9, 13), "float64", layout="off the vectors"),
    Moved("channels_last_64bit_3d", (2, 18, 5, 12, 3), "float64", group=2, layout="strided"),
    Moved("pack_rows_16bit_3d", (70, 20, 3, 3), operator="conv", group=2, whole=True),
    Moved("pack_rows_float32_3d_3xtf32", (20, 30, 3, 3), "float32", "3xtf32", operator="conv_transpose"),
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
    """Costs of a launch relative to a copy of the same number of bytes."""

    sectors: float
    wavefronts: float
    slots: float
    cycles: float


def cost(emulated: Any, nbytes: int) -> Cost:
    """Return the costs of the last launch, which reads and writes ``nbytes`` bytes in total."""
    counters = emulated.launches[-1].counters
    device = nearest("sm_90a")
    seconds = nbytes / device.bandwidth
    traffic, total = counters.traffic(), counters.total
    shared, ideal = traffic.get("shared", (0, 1))
    sectors = traffic["loads"][0] + traffic["stores"][0]
    clocks = seconds * device.clock * device.limits.multiprocessors
    transfers = shared + 32 * sectors / 128  # L1 and shared memory transfer 128 bytes per clock
    return Cost(sectors / (nbytes / 32), shared / ideal, total["instructions"] / (4 * clocks), transfers / clocks)
