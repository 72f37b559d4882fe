"""Static performance report without a GPU: for each layer and dtype, what gpuconv launches and how good it can be.

For each row it shows the chosen kernels and the planner's modelled time over the floor, by the datasheet of the device
that represents the architecture; registers and spills from ptxas; resident blocks per SM; shares of the main loop's
instructions from the disassembly; and L2 sectors and shared-memory wavefronts, counted by the emulator on a smaller
layer that uses the very same kernels.

The main loop is the loop with the most multiply-adds, or an inner loop with more than half of them. In kernels without
multiply-adds, global loads count instead; kernels without such a loop count as a whole.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from benchmarks import (
    emulated,
    invariance,
    machine,
    occupancy,
    sass,
    static_aims,
    static_kernels,
    static_plan,
    static_summary,
    static_traffic,
)
from benchmarks.static_plan import Case
from gpuconv._errors import ArgumentError
from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.plan.limits import Representative, representative

Row = dict[str, Any]
_COLUMNS = (
    "main_loop: number of instructions, or null if the whole kernel counts; instructions: by kind; emulated: on a "
    "smaller layer with shapes x and w, pairs of counted and ideal numbers for the requested elements (shared-memory "
    "wavefronts, sectors loaded and stored; fewer if threads share an element), and moved: bytes of all sectors over "
    'the fewest bytes of the layer; invariant: modelled time of the fixed summation order of invariant="batch" over '
    "that of the free choice, geometric mean over batch sizes 1 to 64"
)


def run(arguments: argparse.Namespace) -> int:
    """Print the tables; return 2 if a required tool, architecture or layer is missing."""
    try:
        device = _device(arguments.arch)
        cases = _cases(arguments.layers)
    except ArgumentError as reason:
        print(f"python -m benchmarks static: {reason}", file=sys.stderr)
        return 2
    kernels = static_kernels.described(variants(cases, device), device.limits.architecture)
    rows: dict[str, Row] = {}
    print(static_summary.HEAD)
    for number, case in enumerate(cases, 1):
        _progress(f"[{number}/{len(cases)}] {case}")
        planned = with_occupancy(static_plan.planned(case, device), kernels, device.limits.architecture)
        rows[str(case)] = planned | priced(case, device) | {"emulated": static_traffic.counted(case, device)}
        _progress("")
        print(static_summary.line(rows[str(case)], kernels), flush=True)
    classes = static_summary.classes(rows.values())
    print("\n".join(["", *static_summary.table(classes), "", *static_aims.beyond(rows, kernels)]))
    machine.write(arguments.json, _head(device) | {"kernels": kernels, "classes": classes, "rows": rows})
    return 0


def _device(architecture: str) -> Representative:
    reason = emulated.unavailable_reason()  # first: the known architectures are asked from NVRTC
    if reason is None and sass.disassembler() is None:
        reason = sass.MISSING
    if reason is not None:
        raise ArgumentError(reason)
    device = representative(architecture)
    compiler.checked(device.limits.architecture)
    return device


def _cases(pattern: str) -> list[Case]:
    cases = static_plan.cases(pattern)
    if not cases:
        raise ArgumentError(f"no layer's name contains {pattern!r}; benchmarks/layers.json has the names")
    return cases


def variants(cases: list[Case], device: Representative) -> list[Variant]:
    """Return the kernels that the cases launch, without duplicates."""
    plans = [static_plan.plan(case, device, static_plan.Chooser()) for case in cases]
    found = {launch.variant.name: launch.variant for plan in plans for launch in plan.launches}
    return list(found.values())


def priced(case: Case, device: Representative) -> Row:
    """Return the modelled cost of ``invariant``, its mean over batch sizes; None for calls that lack the keyword."""
    promised = case.layer.multiplies and case.layer.call in ("", "input_grad") and case.dtype != "complex64"
    return {"invariant": float(f"{invariance.price(case, device).mean:.4g}") if promised else None}


def with_occupancy(planned: Row, kernels: dict[str, Row], architecture: str) -> Row:
    """Return the planner's row with resident blocks and occupancy added to each launch."""
    launches = [launch | _occupancy(launch, kernels[launch["kernel"]], architecture) for launch in planned["launches"]]
    return planned | {"launches": launches}


def _occupancy(launch: Row, kernel: Row, architecture: str) -> Row:
    shared = launch["shared_bytes"] + kernel["static_shared_bytes"]
    blocks = occupancy.blocks(architecture, kernel["threads"], kernel["registers"], shared)
    most = occupancy.threads_per_multiprocessor(architecture)
    return {"blocks_per_sm": blocks, "occupancy": round(blocks * kernel["threads"] / most, 3)}


def _head(device: Representative) -> Row:
    return {"architecture": device.limits.architecture, "device": device.name, "columns": _COLUMNS}


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
