"""Count the memory traffic of kernels in the emulator: sectors and shared-memory wavefronts, for shrunken layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import ml_dtypes  # noqa: F401  # teaches NumPy the name bfloat16
import numpy as np

import gpuconv
from benchmarks import calls, emulated, floors, shrink, static_plan
from benchmarks.layers import Ints, Layer
from benchmarks.static_plan import Case, Chooser
from emulated_cuda.control import Launch
from emulated_cuda.emulator.counters import Counters
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.limits import Representative
from gpuconv.rules import layout
from gpuconv.rules.operators import OPERATORS

Row = dict[str, Any]
WORK = {"Conv": 1e7, "ConvTranspose": 1e7, "MaxPool": 1e6, "AveragePool": 1e6}  # operations; some tenths of a second
_HOST_THREADS = 2
_SECTOR = 32  # bytes


def scaled(case: Case, device: Representative) -> Case:
    """Return a smaller case that is computed by the very same kernels; see `shrink.shrunk`."""
    name, kernels = _choice(case, device)

    def accepted(layer: Layer) -> bool:
        return _uses_only(replace(case, layer=layer), device, name, kernels)

    return replace(case, layer=shrink.shrunk(case.layer, WORK[case.layer.op], accepted, case.layout))


def _choice(case: Case, device: Representative) -> tuple[str | None, list[str]]:
    """Return the candidate's name (None without a choice) and the names of the launched kernels."""
    chooser = Chooser()
    plan = static_plan.plan(case, device, chooser)
    return chooser.picked and chooser.picked.name, [launch.variant.name for launch in plan.launches]


def _uses_only(case: Case, device: Representative, name: str | None, kernels: list[str]) -> bool:
    """Return whether the candidate of this name computes the case by exactly these kernels."""
    try:
        plan = static_plan.plan(case, device, Chooser(name))
    except LookupError:
        return False
    return [launch.variant.name for launch in plan.launches] == kernels


def counted(case: Case, device: Representative) -> Row:
    """Return the shrunken case's shapes and, per kernel, pairs of counted and ideal numbers.

    ``moved`` is the bytes of all touched sectors over the fewest bytes of the layer: above 1, caches must absorb the
    rest.
    """
    name, kernels = _choice(case, device)
    small = scaled(case, device)
    plain = replace(small, precision="ieee")
    if _uses_only(plain, device, name, kernels):  # same kernels in "ieee": share the emulated result
        small = plain
    layer = small.layer
    traffic = _emulated(small, name, device)
    assert list(traffic) == list(dict.fromkeys(kernels)), f"{small} runs {list(traffic)}, not {kernels}"
    sectors = sum(pair[0] for sums in traffic.values() for key, pair in sums.items() if key != "shared")
    work = floors.work(layer, case.dtype)
    weights = {} if layer.pools else {"w": list(layer.w_shape)}
    x = {"x": list(layout.as_given(case.layout, layer.x))}
    return x | weights | {"moved": float(f"{sectors * _SECTOR / work.bytes:.4g}"), "kernels": traffic}


@cache
def _emulated(case: Case, name: str | None, device: Representative) -> dict[str, dict[str, list[int]]]:
    """Return the traffic of each kernel of a call; the emulator's checks are off, since tests make them."""
    call = _prepared(case)
    launches: list[Launch] = []
    settings = {"check_shared": False, "check_global": False, "host_threads": _HOST_THREADS}
    with emulated.planned_for(device.limits, launches.append, counters=True, **settings), offers.picking(Chooser(name)):
        call()
    sums: dict[str, Counters] = {}
    for launch in launches:
        if launch.counters is not None:
            sums[launch.name] = sums[launch.name] + launch.counters if launch.name in sums else launch.counters
    return {kernel: counters.traffic() for kernel, counters in sums.items()}


def _prepared(case: Case) -> Callable[[], Any]:
    """Return the call of a case on normal numbers on the device; Indices come from a MaxPool."""
    layer, call = case.layer, calls.of(case.layer, case.layout)
    keywords = dict(call.keywords)
    if call.operator == "max_pool":
        keywords["return_indices"] = layer.indices
    if OPERATORS[call.operator].has_weights:
        keywords["precision"] = case.precision
    arrays = {name: _normal(shape, case.dtype) for name, shape in call.inputs.items() if name != "indices"}
    if "indices" in call.inputs:
        numbered = getattr(call.geometry, "numbered_shape", layer.x)
        x = _normal(layout.as_given(case.layout, numbered), case.dtype)
        arrays["indices"] = gpuconv.max_pool(x, return_indices=True, layout=case.layout, **layer.attributes())[1]
        keywords["check_indices"] = False  # the check would launch kernels of its own
    moved = [gpuconv.to_device(array) for array in arrays.values()]
    return lambda: getattr(gpuconv, call.operator)(*moved, **keywords)


def _normal(shape: Ints, dtype: str) -> Any:
    """Return normal numbers, or for integer dtypes numbers of the whole range."""
    random = np.random.default_rng(0)
    if dtype in ("int8", "uint8"):
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max + 1, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)
