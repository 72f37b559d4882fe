"""Convolution by wgmma without its planner: structs, maps and the arrays that other kernels prepare, made by NumPy.

What the planner and these kernels do is written down here once more, from the description of conv/wgmma/slices.cu.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.conv import problem as correlation
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.wgmma import family as wgmma
from gpuconv.cuda.conv.wgmma import tiles
from gpuconv.cuda.conv.wgmma.tiles import WgmmaTile
from gpuconv.rules import geometry as geometries
from tests.emulated_cuda.emulator.counters import Counters
from tests.emulated_cuda.emulator.engine import Options
from tests.emulated_cuda.emulator.memory import UNWRITTEN, without_values
from tests.emulator import Array, TensorMap, empty, module
from tests.oracle import oracle
from tests.oracle.operands import BFLOAT16, operands
from tests.oracle.strategies import Problem

_SUMS, _TOTALS = 1, 2  # Splits::Part


@dataclass(frozen=True, slots=True)
class Call:
    """How a problem is solved.

    Attributes
    ----------
    tile : WgmmaTile
    precision : "ieee", "tf32" or "3xtf32".
    direct : x and w are taken as they are, both with channels last.
    blocks : of the launch.
    whole, splits : tiles of one share, and into how many the others are divided; without `whole`, none is.
    tickets : divided tiles are added up by the last block to arrive, not by a second launch.
    residual : which lies as y does.
    finish : slope, low and high of an activation.
    """

    tile: WgmmaTile
    precision: str = "ieee"
    direct: bool = False
    blocks: int = 3
    whole: int | None = None
    splits: int = 1
    tickets: bool = True
    residual: Any = None
    finish: tuple[float, float, float] | None = None


# ---------------------------------------------------------------- what passes before the kernel make


def _rounded(values: Any) -> Any:
    """TF32, to nearest; what is not finite shows in the result."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    nearest = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(values), nearest, values)


def _parts(values: Any, precision: str) -> list[Any]:
    """What is not finite has nothing besides its large part."""
    if precision == "ieee":
        return [values]
    large = _rounded(values)
    if precision == "tf32":
        return [large]
    with np.errstate(invalid="ignore"):
        return [large, np.where(np.isfinite(values), _rounded(values - large), 0).astype(np.float32)]


def _up(number: int, step: int) -> int:
    return -(-number // step) * step


def _filled_up(array: Any, size: int) -> Any:
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, size - array.shape[-1])])


def channels_last(x: Any, group: int, precision: str, slice_channels: int) -> Any:
    """[N][spatial ...][group, part, channel], channels filled up with zeros."""
    parts = _parts(x, precision)
    channels = x.shape[1] // group
    alone = group * len(parts) == 1
    size = _up(channels, 16 // x.itemsize if alone else slice_channels)
    last = [np.moveaxis(part, 1, -1).reshape(x.shape[0], *x.shape[2:], group, 1, channels) for part in parts]
    joined = _filled_up(np.concatenate(last, axis=-2), size)
    return np.ascontiguousarray(joined.reshape(*joined.shape[:-3], -1)).astype(x.dtype)


def packed_rows(w: Any, operator: str, group: int, precision: str, slice_channels: int) -> Any:
    """[group, part, M][tap, channel], channels filled up with zeros."""
    if operator == "conv":
        by_group = w.reshape(group, w.shape[0] // group, w.shape[1], -1)
    else:
        by_group = np.swapaxes(w.reshape(group, w.shape[0] // group, w.shape[1], -1), 1, 2)
    last = np.swapaxes(by_group, 2, 3)  # group, M, tap, channel
    stacked = np.stack(_parts(last, precision), axis=1)
    rows = _filled_up(stacked, _up(last.shape[-1], slice_channels))
    return np.ascontiguousarray(rows.reshape(prod(rows.shape[:2]), rows.shape[2], -1)).astype(w.dtype)


# ---------------------------------------------------------------- geometry, by looking at all outputs


def _reach(found: correlation.Problem, axis: int) -> int:
    """The lowest input coordinate that an output of column 0 meets through a tap."""
    taps, dilation, pad = found.taps[axis], found.dilations[axis], found.pads[axis]
    if found.operator == "conv":
        return -pad
    stride = found.strides[axis]
    sums = (phase + pad - t * dilation for phase, t in product(range(found.phases[axis]), range(taps)))
    return min((total // stride for total in sums if total % stride == 0), default=0)


def _x_map(array: Array, found: correlation.Problem, slice_channels: int, block_n: int) -> tuple[TensorMap, list[int]]:
    axes = range(found.rank)
    lower = [_reach(found, axis) for axis in axes]
    upper = [
        low + (q - 1) * stride + 1 - extent
        for low, q, stride, extent in zip(lower, found.columns, found.column_strides, found.x_shape[2:], strict=True)
    ]
    corners = (lower[::-1], upper[::-1], slice_channels, block_n)
    return TensorMap(array, im2col=corners, steps=(1, *found.column_strides, 1)), lower


# ---------------------------------------------------------------- a launch


class Run:
    """One call: ``y`` is the result, ``counters`` what the emulator has counted."""

    def __init__(self, problem: Problem, arrays: Sequence[Any], y: Any, call: Call, **options: Any) -> None:
        x, w, b = arrays
        assert problem.w_shape is not None
        self.call, self.options = call, Options(**options)
        self.dtype = str(x.dtype)
        self.slice_channels = tiles.SLICE_BYTES // x.itemsize
        geometry = getattr(geometries, problem.operator)(*problem.shapes, **problem.attributes)
        strides = [tuple(step // array.itemsize for step in array.strides) for array in (x, w, y)]
        b_stride = None if b is None else b.strides[0] // b.itemsize
        of = getattr(correlation, f"of_{problem.operator}")
        self.found = of(geometry, self.dtype, strides[0], strides[1], b_stride, strides[2], call.precision)
        self.y = Array(y, "y", initialised=False)
        self.arrays = {"x": Array(x, "x", writable=False), "y": self.y}
        if b is not None:
            self.arrays["b"] = Array(b, "b", writable=False)
        if call.residual is not None:
            self.arrays["residual"] = Array(call.residual, "residual", writable=False)
        self.counters: list[Counters | None] = []
        self._launch(problem, w)

    def _launch(self, problem: Problem, w: Any) -> None:
        call, found, tile = self.call, self.found, self.call.tile
        parts = 2 if call.precision == "3xtf32" else 1
        if call.direct:
            x_last = Array(np.moveaxis(self.arrays["x"].data, 1, -1), "x", writable=False)
            by_group = w.reshape(found.group * found.filters, *w.shape[1:])
            rows = Array(np.moveaxis(by_group, 1, -1).reshape(found.group, found.filters, -1), "w", writable=False)
        else:
            x_last = Array(
                channels_last(self.arrays["x"].data, found.group, call.precision, self.slice_channels), "x_last"
            )
            packed = packed_rows(w, problem.operator, found.group, call.precision, self.slice_channels)
            rows = Array(packed, "packed", writable=False)
        self.arrays |= {"x_last": x_last, "packed": rows}
        lifted = found.lifted
        counts = lifted.tiles(tile.block_m, tile.block_n)
        row = rows.data.shape[-1]
        weights = gemm_base.PackedWeights(row, found.filters * parts, row // prod(found.taps))
        x_map, lower = _x_map(x_last, found, self.slice_channels, tile.block_n)
        each = x_last.data.shape[-1] // found.group
        loading = {
            "axes": found.rank,
            "lower": [*[0] * (3 - found.rank), *lower],
            "channel_slices": -(-found.channels // self.slice_channels),
            "parts": parts,
            "x_group": each,
            "x_part": each // parts,
        }
        w_map = TensorMap(rows, box=(1, tile.block_m, self.slice_channels))
        all_tiles = prod(counts) * found.group * prod(found.phases)
        whole = all_tiles if call.whole is None else call.whole
        divided = all_tiles - whole
        self._workspace(divided)
        values: dict[str, Any] = {
            "x_map": np.frombuffer(x_map, np.uint64),
            "w_map": np.frombuffer(w_map, np.uint64),
            "problem": gemm_base.operands(lifted, counts, weights),
            "loading": loading,
            "splits": {
                "count": call.splits,
                "whole": whole,
                "ticket_bytes": _up(4 * divided, 16) if call.tickets else 0,
                "part": 0 if call.tickets or not divided else _SUMS,
            },
            "items": whole + divided * call.splits,
        }
        chosen = wgmma.variant(problem.operator, self.dtype, tile)
        self._run(chosen, values)
        if divided and not call.tickets:
            values["splits"]["part"] = _TOTALS
            values["items"] = divided
            self._run(chosen, values)
        missing = int((self.y.element_states() == UNWRITTEN).any(-1).sum())
        assert missing == 0, f"{missing} of {self.y.data.size} elements of y were never written"

    def _workspace(self, divided: int) -> None:
        if not divided:
            return
        ticket_bytes = _up(4 * divided, 16) if self.call.tickets else 0
        sums = divided * self.call.splits * self.call.tile.block_m * self.call.tile.block_n
        workspace = Array(without_values(ticket_bytes + 4 * sums, np.uint8), "workspace", initialised=False)
        workspace.data[:ticket_bytes] = 0
        workspace.element_states()[:ticket_bytes] = 2
        self.arrays["workspace"] = workspace

    def _run(self, chosen: Variant, values: dict[str, Any]) -> None:
        packed = np.frombuffer(params.pack(chosen.layout, values), chosen.layout).copy()
        common = packed["problem"]["common"]
        for field, role in (("x", "x"), ("weights", "packed"), ("b", "b"), ("y", "y")):
            if role in self.arrays:
                common[field] = self.arrays[role].address
        if "workspace" in self.arrays:
            packed["splits"]["workspace"] = self.arrays["workspace"].address
        if "residual" in self.arrays:
            common["finish"]["residual"] = self.arrays["residual"].address
        if self.call.finish is not None:
            with np.errstate(over="ignore"):
                bits = np.array(self.call.finish).astype(np.float32).view(np.uint32)
            for field, number in zip(("slope", "low", "high"), bits, strict=True):
                common["finish"][field] = number
            common["finish"]["acts"] = 1
        program = module(compiler.ptx(chosen, "sm_90a"))[chosen.name]
        shared = tiles.shared_bytes(self.found.lifted, self.call.tile)
        grid = (min(self.call.blocks, int(values["items"])), 1, 1)
        seen = list({array.base: array for array in self.arrays.values()}.values())
        counted = program.launch(grid, (chosen.threads, 1, 1), shared, packed.tobytes(), seen, self.options)
        self.counters.append(counted)


def result(problem: Problem, dtype: Any, layout: str = "contiguous") -> Any:
    """An array for y without values: contiguous, with channels last, or with every second element of each axis."""
    shape = getattr(geometries, problem.operator)(*problem.shapes, **problem.attributes).y_shape
    if layout == "channels last":
        return np.moveaxis(empty((shape[0], *shape[2:], shape[1]), dtype, "y").data, -1, 1)
    if layout == "strided":
        return empty([2 * n for n in shape], dtype, "y").data[tuple(slice(None, None, 2) for _ in shape)]
    return empty(shape, dtype, "y").data


def run(problem: Problem, arrays: Sequence[Any], call: Call, layout: str = "contiguous", **options: Any) -> Any:
    """Return y, every element of which was written."""
    return Run(problem, arrays, result(problem, arrays[0].dtype, layout), call, **options).y.data


INTEGERS, NORMAL, ODD = ("integers",) * 3, ("normal",) * 3, ("nonfinite", "integers", "integers")


EVERYTHING: dict[str, Any] = {"strides": [2, 3], "dilations": [1, 2], "pads": [1, 0, 2, 1], "output_padding": [1, 0]}


def check(
    problem: Problem,
    call: Call,
    dtype: Any = BFLOAT16,
    kinds: Any = INTEGERS,
    layout: str = "contiguous",
    **options: Any,
) -> None:
    """Compare a launch with the oracle; infinities and NaN must be where they belong."""
    arrays = operands(problem, kinds, 0, dtype)
    x, w, b = (*arrays, None)[:3]
    y = run(problem, (x, w, b), call, layout, **options)
    exact = getattr(oracle, problem.operator)(x, w, b, **problem.attributes)
    oracle.assert_close(y, exact, dtype, "tensor cores" if call.precision == "ieee" else call.precision)


def transposed(x_shape: Any, w_shape: Any, bias: bool = True, **attributes: Any) -> Problem:
    filters = w_shape[1] * attributes.get("group", 1)
    return Problem("conv_transpose", x_shape, w_shape, (filters,) if bias else None, attributes)
