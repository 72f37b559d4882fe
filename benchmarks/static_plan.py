"""What gpuconv would launch for a layer on an architecture, and how long the planner's model says it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import floors, layers
from benchmarks.layers import Ints, Layer
from gpuconv import _dtypes, _layout
from gpuconv._precision import PRECISIONS
from gpuconv.cuda import choice, conv_plan, floor, pool_plan
from gpuconv.cuda.choice import Candidate
from gpuconv.cuda.limits import Representative
from gpuconv.cuda.plan import Plan
from gpuconv.cuda.prepared import contiguous_strides

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A layer in one dtype, layout and precision of float32."""

    layer: Layer
    dtype: str
    layout: str = "NCHW"
    precision: str = "ieee"

    def __str__(self) -> str:
        name = f"{self.layer.id} {floors.label(self.dtype, self.precision)}"
        return name if self.layout == "NCHW" else f"{name} {self.layout}"


def cases(pattern: str = "") -> list[Case]:
    """Return every layer whose id contains the pattern in each of its dtypes: as NCHW, as NHWC, and by TF32 (NCHW)."""
    chosen = [
        (layer, floors.DTYPES[short]) for layer in layers.select(layers.load(), pattern) for short in layer.dtypes
    ]
    sums = [(layer, dtype) for layer, dtype in chosen if layer.op != "MaxPool" and dtype == "float32"]
    return [
        *(Case(*pair) for pair in chosen),
        *(Case(*pair, precision=precision) for precision in PRECISIONS[1:] for pair in sums),
        *(Case(*pair, layout="NHWC") for pair in chosen),
    ]


class Chooser:
    """Picks the candidate with a certain name, or the quickest, and remembers it."""

    def __init__(self, name: str | None = None) -> None:
        self._name = name
        self.picked: Candidate | None = None

    def __call__(self, candidates: Sequence[Candidate]) -> Candidate:
        """Return the candidate; raises LookupError where none has the name."""
        named = [one for one in candidates if self._name in (None, one.name)]
        if not named:
            raise LookupError(self._name)
        self.picked = choice.quickest(named)
        return self.picked


def plan(case: Case, device: Representative, chooser: Chooser) -> Plan:
    """Plan the case for new arrays with a bias, by the chooser."""
    layer, geometry, limits = case.layer, case.layer.geometry, device.limits
    x_strides, y_strides = (_strides(case.layout, shape) for shape in (geometry.x_shape, geometry.y_shape))
    with choice.picking(chooser):
        if layer.op == "MaxPool":
            places = y_strides if layer.indices else None
            return pool_plan.for_max_pool(geometry, case.dtype, x_strides, y_strides, places, limits)
        make = conv_plan.for_conv if layer.op == "Conv" else conv_plan.for_conv_transpose
        w_strides = contiguous_strides(layer.w_shape)
        return make(geometry, case.dtype, x_strides, w_strides, 1, y_strides, limits, case.precision)


def _strides(layout: str, shape: Ints) -> Ints:
    """Return the strides of a new array of the layout, in the order N, C, D1, … like its shape."""
    return _layout.channels_second(layout, contiguous_strides(_layout.as_given(layout, shape)))


def planned(case: Case, device: Representative) -> Row:
    """Return what the planner says, with times in microseconds."""
    chooser = Chooser()
    found = plan(case, device, chooser)
    memory, least = _floor(case, device)
    modelled = chooser.picked.seconds if chooser.picked else None
    return {
        "layer": case.layer.id,
        "class": case.layer.kind,
        "dtype": floors.label(case.dtype, case.precision),
        "layout": case.layout,
        "launches": [
            {"kernel": launch.variant.name, "grid": list(launch.grid), "shared_bytes": launch.shared_bytes}
            for launch in found.launches
        ],
        "workspace_bytes": found.packed_bytes + found.workspace_bytes,
        "bound": "memory" if least == memory else "math",
        "floor_us": _micro(least),
        "modelled_us": modelled and _micro(modelled),
        "over_floor": modelled and float(f"{modelled / least:.4g}"),
    }


def _floor(case: Case, device: Representative) -> tuple[float, float]:
    """Return the seconds of the fewest bytes, and the larger one of these and those of the arithmetic."""
    work = floor.work(case.layer.geometry, case.dtype, bias=case.layer.op != "MaxPool", indices=case.layer.indices)
    cores = device.rate(_dtypes.entry(case.dtype).accumulator)
    rate = cores if floors.alone(case.layer) else device.peak(case.dtype, case.precision)
    return work.bytes / device.bandwidth, work.seconds(rate, device.bandwidth)


def _micro(seconds: float) -> float:
    return float(f"{seconds * 1e6:.5g}")
