"""How kernels go about memory: the emulator's counts of sectors and wavefronts, for layers scaled down to it.

The emulator is part of the tests, so this needs a checkout, and g++.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  # teaches NumPy the name bfloat16
import numpy as np

import gpuconv
from benchmarks import shrink, static_plan
from benchmarks.layers import Ints, Layer
from benchmarks.static_plan import Case, Chooser
from gpuconv.cuda import choice, floor
from gpuconv.cuda.limits import Representative

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
import emulator

Row = dict[str, Any]
WORK = {"Conv": 3e7, "ConvTranspose": 3e7, "MaxPool": 1e6}  # operations; some tenths of a second
_HOST_THREADS = 2
_SECTOR = 32  # bytes


def unavailable_reason() -> str | None:
    """Return why nothing can be emulated here, or None where it can."""
    return emulator.unavailable_reason()


def scaled(case: Case, device: Representative) -> Case:
    """Return a smaller case with the very kernels that the case gets; see `shrink.shrunk`."""
    chooser = Chooser()
    kernels = _kernels(case, device, chooser)
    name = chooser.picked.name if chooser.picked else None

    def accepted(layer: Layer) -> bool:
        try:
            return _kernels(replace(case, layer=layer), device, Chooser(name)) == kernels
        except LookupError:
            return False

    return replace(case, layer=shrink.shrunk(case.layer, WORK[case.layer.op], accepted))


def _kernels(case: Case, device: Representative, chooser: Chooser) -> list[str]:
    return [launch.variant.name for launch in static_plan.plan(case, device, chooser).launches]


def counted(case: Case, device: Representative) -> Row:
    """Return the scaled case's shapes and, by kernel, pairs of what the emulator counted and what is ideal.

    ``moved`` are the bytes of all sectors that a call touches, each time anew, over the fewest that can do: above 1 is
    what caches must hold.
    """
    chooser = Chooser()
    kernels = _kernels(case, device, chooser)
    small = scaled(case, device)
    layer = small.layer
    picked = Chooser(chooser.picked.name if chooser.picked else None)
    options = {"counters": True, "check_shared": False, "check_global": False, "threads": _HOST_THREADS}
    with choice.picking(picked), emulator.emulated_cuda(device.limits.architecture, **options) as emulated:
        _call(layer, [_normal(shape, case.dtype) for shape in _shapes(layer)])
    traffic = {name: counters.traffic() for name, counters in emulated.counters().items()}
    assert list(traffic) == list(dict.fromkeys(kernels)), f"{small} runs {list(traffic)}, not {kernels}"
    sectors = sum(pair[0] for sums in traffic.values() for key, pair in sums.items() if key != "shared")
    work = floor.work(layer.geometry, case.dtype, bias=layer.op != "MaxPool", indices=layer.indices)
    shapes = {"x": list(layer.x)} | ({} if layer.op == "MaxPool" else {"w": list(layer.w_shape)})
    return {**shapes, "moved": float(f"{sectors * _SECTOR / work.bytes:.4g}"), "kernels": traffic}


def _shapes(layer: Layer) -> list[Ints]:
    return [layer.x] if layer.op == "MaxPool" else [layer.x, layer.w_shape, (layer.k_out,)]


def _normal(shape: Ints, dtype: str) -> Any:
    """Return normal numbers; for types of integers any that they have."""
    random = np.random.default_rng(0)
    if dtype in ("int8", "uint8"):
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max + 1, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)


def _call(layer: Layer, arrays: list[Any]) -> None:
    if layer.op == "MaxPool":
        gpuconv.max_pool(*arrays, return_indices=layer.indices, **layer.attributes())
    else:
        (gpuconv.conv if layer.op == "Conv" else gpuconv.conv_transpose)(*arrays, **layer.attributes())
