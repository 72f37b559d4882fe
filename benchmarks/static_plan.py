"""What gpuconv would launch for a layer on an architecture, and how long the planner's model says it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import floors, layers
from benchmarks.layers import Layer
from gpuconv import _dtypes
from gpuconv.cuda import choice, conv_plan, floor, pool_plan
from gpuconv.cuda.choice import Candidate
from gpuconv.cuda.limits import Representative
from gpuconv.cuda.plan import Plan
from gpuconv.cuda.prepared import contiguous_strides

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A layer in one dtype."""

    layer: Layer
    dtype: str

    def __str__(self) -> str:
        return f"{self.layer.id} {self.dtype}"


def cases(pattern: str = "") -> list[Case]:
    """Return every layer whose id contains the pattern in each of its dtypes."""
    chosen = layers.select(layers.load(), pattern)
    return [Case(layer, floors.DTYPES[short]) for layer in chosen for short in layer.dtypes]


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
    x_strides, y_strides = contiguous_strides(geometry.x_shape), contiguous_strides(geometry.y_shape)
    with choice.picking(chooser):
        if layer.op == "MaxPool":
            places = y_strides if layer.indices else None
            return pool_plan.for_max_pool(geometry, case.dtype, x_strides, y_strides, places, limits)
        make = conv_plan.for_conv if layer.op == "Conv" else conv_plan.for_conv_transpose
        return make(geometry, case.dtype, x_strides, contiguous_strides(layer.w_shape), 1, y_strides, limits)


def planned(case: Case, device: Representative) -> Row:
    """Return what the planner says, with times in microseconds."""
    chooser = Chooser()
    found = plan(case, device, chooser)
    work = floor.work(case.layer.geometry, case.dtype, bias=case.layer.op != "MaxPool", indices=case.layer.indices)
    least = work.seconds(device.rate(_dtypes.entry(case.dtype).accumulator), device.bandwidth)
    modelled = chooser.picked.seconds if chooser.picked else None
    return {
        "class": case.layer.kind,
        "launches": [
            {"kernel": launch.variant.name, "grid": list(launch.grid), "shared_bytes": launch.shared_bytes}
            for launch in found.launches
        ],
        "workspace_bytes": found.packed_bytes + found.workspace_bytes,
        "floor_us": _micro(least),
        "modelled_us": modelled and _micro(modelled),
        "over_floor": modelled and float(f"{modelled / least:.4g}"),
    }


def _micro(seconds: float) -> float:
    return float(f"{seconds * 1e6:.5g}")
