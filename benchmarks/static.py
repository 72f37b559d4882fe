"""All that can be said of speed without a GPU: for every layer in every dtype, what gpuconv launches for it.

For each the kernels that are chosen and the time that the planner's model gives them, over the floor of the device that
stands for the architecture (by its datasheet: nothing here is measured); registers and spills by the assembler, blocks
of a multiprocessor, shares of the main loop's instructions by the disassembler; sectors and wavefronts as the emulator
counts them, for the layer scaled down to it, in the very same kernels.

The main loop is the loop with the most multiplications in it, or a loop inside of that with more than half of them;
kernels that multiply nothing are looked at by their loads from global memory, and those without such a loop as a whole.
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
    "main_loop: instructions of it, or null: then the whole kernel counts; instructions: by kind; emulated, in a "
    "smaller layer of shapes x and w: pairs of what was counted and what would do for the elements asked for "
    "(wavefronts of shared memory, sectors loaded and stored; less where threads share an element), and moved: bytes "
    "of all sectors over the layer's fewest bytes; invariant: predicted time in the layer's one order of sums, which "
    'invariant="batch" keeps to, over that of the free choice, geometric mean over batch sizes 1 to 64'
)


def run(arguments: argparse.Namespace) -> int:
    """Print the tables; return 2 where something that they take is missing."""
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
    reason = emulated.unavailable_reason()  # first, since what architectures there are is NVRTC's to say
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
        raise ArgumentError(f"no layer's name contains {pattern!r}")
    return cases


def variants(cases: list[Case], device: Representative) -> list[Variant]:
    """Return the kernels that the cases launch, each once."""
    plans = [static_plan.plan(case, device, static_plan.Chooser()) for case in cases]
    found = {launch.variant.name: launch.variant for plan in plans for launch in plan.launches}
    return list(found.values())


def priced(case: Case, device: Representative) -> Row:
    """Return what invariant bits cost, as the mean over batch sizes; null without the promise, and for complex ones."""
    promised = case.layer.multiplies and case.layer.call in ("", "input_grad") and case.dtype != "complex64"
    return {"invariant": float(f"{invariance.price(case, device).mean:.4g}") if promised else None}


def with_occupancy(planned: Row, kernels: dict[str, Row], architecture: str) -> Row:
    """Return what the planner said with what follows from the kernels' registers."""
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
