"""Plan layers without a GPU: what gpuconv would launch on an architecture, and the planner's modelled time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from benchmarks import calls, floors, layers
from benchmarks.layers import Layer
from gpuconv.cuda import planning
from gpuconv.cuda.call.prepared import contiguous_strides
from gpuconv.cuda.plan import floor, offers
from gpuconv.cuda.plan.launch import Plan
from gpuconv.cuda.plan.limits import Representative
from gpuconv.cuda.plan.offers import Candidate
from gpuconv.rules import layout as layouts
from gpuconv.rules.operators import OPERATORS
from gpuconv.rules.precision import PRECISIONS

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A layer in one dtype, layout and precision of float32."""

    layer: Layer
    dtype: str
    layout: str = "NCHW"
    precision: str = "ieee"

    def __str__(self) -> str:
        name = f"{self.layer.id} {label(self)}"
        return name if self.layout == "NCHW" else f"{name} {self.layout}"


def cases(pattern: str = "") -> list[Case]:
    """Return the cases of every layer whose id contains ``pattern``, in each of its dtypes.

    Layers are planned in NCHW, in NHWC, and as TF32 and 3xTF32 in NCHW. Gradients and other derived calls are planned
    in NCHW, as 3xTF32, and in NHWC for bfloat16. Fused calls are skipped: they use the layers' kernels, and the model
    ignores residual and activation.
    """
    chosen = _in_dtypes(layers.load(), pattern)
    derived = _in_dtypes([layer for layer in layers.load_derived() if layer.call != "fused"], pattern)
    return [
        *(Case(*pair) for pair in chosen),
        *(Case(*pair, precision=precision) for precision in PRECISIONS[1:] for pair in _sums(chosen)),
        *(Case(*pair, layout="NHWC") for pair in chosen),
        *(Case(*pair) for pair in derived),
        *(Case(*pair, precision=PRECISIONS[-1]) for pair in _sums(derived)),
        *(Case(layer, dtype, layout="NHWC") for layer, dtype in derived if dtype == "bfloat16"),
    ]


def label(case: Case) -> str:
    """Return the case's dtype, or its precision if that is not "ieee"."""
    return floors.label(case.dtype, case.precision)


def _in_dtypes(known: list[Layer], pattern: str) -> list[tuple[Layer, str]]:
    return [(layer, floors.DTYPES[short]) for layer in layers.select(known, pattern) for short in layer.dtypes]


def _sums(pairs: list[tuple[Layer, str]]) -> list[tuple[Layer, str]]:
    """Return the pairs in float32 whose operator multiplies."""
    return [(layer, dtype) for layer, dtype in pairs if layer.multiplies and dtype == "float32"]


class Chooser:
    """Picks the candidate with a given name, or the fastest one, and remembers it."""

    def __init__(self, name: str | None = None) -> None:
        self._name = name
        self.picked: Candidate | None = None

    def __call__(self, candidates: Sequence[Candidate]) -> Candidate:
        """Return the candidate; raises LookupError if none has the name."""
        named = [one for one in candidates if self._name in (None, one.name)]
        if not named:
            raise LookupError(self._name)
        self.picked = offers.quickest(named)
        return self.picked


def plan(case: Case, device: Representative, chooser: offers.Pick) -> Plan:
    """Plan the case for contiguous arrays with a bias; ``chooser`` picks the candidates."""
    planner = planner_of(case, device)
    with offers.picking(chooser):
        return planner()


def planner_of(case: Case, device: Representative) -> Callable[[], Plan]:
    """Return a function that plans the case for contiguous arrays with a bias."""
    call = calls.of(case.layer, case.layout)
    called, geometry = OPERATORS[call.operator], call.geometry
    arrays = [(called.inputs[name], shape, called.order(name, case.layout)) for name, shape in call.inputs.items()]
    order = called.order("out", case.layout)
    made = layouts.as_given(order, call.result_shape)
    roles = ["y", "indices"] if case.layer.indices and not case.layer.call else ["y"]
    arrays += [(role, made, order) for role in roles]
    strides = {role: layouts.channels_second(order, contiguous_strides(shape)) for role, shape, order in arrays}
    return partial(planning.plan, called.kernel, geometry, case.dtype, strides, device.limits, case.precision)


def planned(case: Case, device: Representative) -> Row:
    """Return the planner's row of a case, with times in microseconds."""
    chooser = Chooser()
    found = plan(case, device, chooser)
    memory, least = floors_of(case, device)
    modelled = chooser.picked.seconds if chooser.picked else None
    return {
        "layer": case.layer.id,
        "class": case.layer.kind,
        "dtype": label(case),
        "layout": case.layout,
        "main": main_kernel(found, chooser.picked),
        "launches": [
            {"kernel": launch.variant.name, "grid": list(launch.grid), "shared_bytes": launch.shared_bytes}
            for launch in found.launches
        ],
        "workspace_bytes": found.bytes_of("packed") + found.bytes_of("workspace"),
        "bound": "memory" if least == memory else "math",
        "floor_us": _micro(least),
        "modelled_us": modelled and _micro(modelled),
        "over_floor": modelled and float(f"{modelled / least:.4g}"),
        "gflop": float(f"{floors.work(case.layer, case.dtype).flops / 1e9:.4g}"),
        "over_measured": _over_measured(case, device, modelled),
    }


def main_kernel(found: Plan, picked: Candidate | None) -> str:
    """Return the kernel that the candidate is named after; without a choice, the kernel with the most threads.

    A candidate's name is its kernel's name, with suffixes for splits of K or copies of arrays.
    """
    of_picked = [launch for launch in found.launches if picked and picked.name.startswith(launch.variant.name)]
    if of_picked:
        return max((launch.variant.name for launch in of_picked), key=len)
    return max(found.launches, key=lambda launch: prod(launch.grid) * launch.variant.threads).variant.name


def floors_of(case: Case, device: Representative) -> tuple[float, float]:
    """Return the memory time and the floor in seconds; the floor is the larger of memory and arithmetic time."""
    work = floors.work(case.layer, case.dtype)
    rate = floor.rate(calls.of(case.layer).geometry, case.dtype, case.precision, device)
    return work.bytes / device.bandwidth, work.seconds(rate, device.bandwidth)


def _over_measured(case: Case, device: Representative, modelled: float | None) -> float | None:
    """Return the modelled time over the floor by measured rates, if such a device was measured; else None."""
    if modelled is None or device.name not in floors.RATES_OF:
        return None
    return float(f"{modelled / floors.of(case.layer, case.dtype, floors.COPY, case.precision).seconds:.4g}")


def _micro(seconds: float) -> float:
    return float(f"{seconds * 1e6:.5g}")
