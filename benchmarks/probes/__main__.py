"""The command line: ``python -m benchmarks.probes --rows FILE [--bits FILE.npz] [--seconds S]``.

Rows that a file has already are left out. What can hang or break the process comes last.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.probes import basic, bits, mma, tma, wgmma
from benchmarks.probes.launch import Absent, Cuda, Device, Refused
from benchmarks.probes.probe import Probe, Wrong, check
from benchmarks.progress import Rows
from benchmarks.supervision import LOST, leave
from gpuconv import CompileError

_BAD = ("failed", "hung", "died")
_MOST_KEPT, _MOST_SHOWN = 1500, 160  # characters of a detail


def probes(recorder: bits.Recorder) -> list[Probe]:
    """Return all probes, in order."""
    recorded = bits.probes(recorder)
    plain = [probe for probe in recorded if not probe.architectures]
    of_hopper = [probe for probe in recorded if probe.architectures]
    return [*basic.PROBES, *mma.PROBES, *plain, *basic.RISKY, *tma.PROBES, *wgmma.PROBES, *of_hopper]


def main(argv: Sequence[str] | None = None, device: Device | None = None) -> int:
    """Run the probes that are left; 1 where one failed, 2 without a device, 3 where one lost it, which stays open."""
    arguments = _parser().parse_args(argv)
    end = time.monotonic() + arguments.seconds
    rows = Rows(arguments.rows, arguments.step)
    every = {probe.name: probe for probe in probes(bits.Recorder(arguments.bits))}
    try:
        device = Cuda(arguments.share) if device is None else device
    except Absent as reason:
        print(f"probes: {reason}", file=sys.stderr)
        return 2
    device.compile_ahead(
        program
        for name, probe in every.items()
        if name not in rows.ended and probe.runs_on(device.architecture)
        for program in probe.programs
    )
    for name in rows.left(every):
        begin = time.monotonic()
        outcome = _outcome(every[name], device)
        if outcome is None:
            return LOST
        status, detail = outcome
        seconds = round(time.monotonic() - begin, 3)
        rows.end(name, status, detail=detail[:_MOST_KEPT], seconds=seconds)
        print(f"{name:66} {status:8} {seconds:6.2f} s  {_cut(detail)}", flush=True)
        if time.monotonic() > end:
            break
    return int(any(row["status"] in _BAD for row in rows.ended.values()))


def _cut(detail: str) -> str:
    return detail if len(detail) <= _MOST_SHOWN else f"{detail[:_MOST_SHOWN]}…"


def _outcome(probe: Probe, device: Device) -> tuple[str, str] | None:
    """Run a probe and return its status and what is to be said; None where the device is lost."""
    if not probe.runs_on(device.architecture):
        return "skipped", f"{device.architecture} does not have the instruction, or no kernel uses it there"
    try:
        return "passed", check(probe.run(device))
    except (Wrong, Refused, CompileError) as error:
        return "failed", str(error)
    except Exception as error:
        print(f"{probe.name}: {type(error).__name__}: {' '.join(str(error).split())}", flush=True)
        return ("failed", f"{type(error).__name__}: {error}") if device.alive() else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.probes", description=__doc__)
    parser.add_argument("--rows", type=Path, required=True, metavar="FILE", help="of all steps; rows are added")
    parser.add_argument("--step", default="probes", help="whose rows they are (default %(default)s)")
    parser.add_argument("--bits", type=Path, metavar="FILE", help="an .npz for the sums of tensor cores")
    parser.add_argument("--share", type=int, default=1, metavar="N", help="record one sum in N (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="after which no row is begun (default %(default)s)")
    return parser


if __name__ == "__main__":
    leave(main())
