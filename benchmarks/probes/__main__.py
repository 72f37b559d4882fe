"""Run the probes: ``python -m benchmarks.probes --rows FILE [--bits FILE.npz] [--seconds S]``.

Rows that the file has already are skipped. Probes that can hang or crash the process come last.
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

_FAILURES = ("failed", "hung", "died")
_MOST_KEPT, _MOST_SHOWN = 1500, 160  # characters of a detail


def probes(recorder: bits.Recorder) -> list[Probe]:
    """Return all probes, in order."""
    recorded = bits.probes(recorder)
    plain = [probe for probe in recorded if not probe.architectures]
    of_hopper = [probe for probe in recorded if probe.architectures]
    return [*basic.PROBES, *mma.PROBES, *plain, *basic.RISKY, *tma.PROBES, *wgmma.PROBES, *of_hopper]


def main(argv: Sequence[str] | None = None, device: Device | None = None) -> int:
    """Run the missing probes; return 1 if one failed, 2 without a device, 3 if one lost the device (its row stays
    open)."""
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
        print(f"{name:66} {status:8} {seconds:6.2f} s  {_shortened(detail)}", flush=True)
        if time.monotonic() > end:
            break
    return int(any(row["status"] in _FAILURES for row in rows.ended.values()))


def _shortened(detail: str) -> str:
    return detail if len(detail) <= _MOST_SHOWN else f"{detail[:_MOST_SHOWN]}…"


def _outcome(probe: Probe, device: Device) -> tuple[str, str] | None:
    """Run a probe and return its status and detail; None if the device is lost."""
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
    parser.add_argument("--rows", type=Path, required=True, metavar="FILE", help="append rows to FILE (JSON lines)")
    parser.add_argument("--step", default="probes", help="name of the step in these rows (default %(default)s)")
    parser.add_argument("--bits", type=Path, metavar="FILE", help="record the tensor cores' sums in this .npz file")
    parser.add_argument("--share", type=int, default=1, metavar="N", help="record only 1/N of the sums (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="start no probe after this time (%(default)s)")
    return parser


if __name__ == "__main__":
    leave(main())
