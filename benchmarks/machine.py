"""Describe the machine that a result was measured on, and write results as JSON."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from gpuconv.cli.terminal import as_json


def describe(packages: Iterable[str] = ("numpy",)) -> dict[str, Any]:
    """Return the CPU model, the number of cores this process may use, and the versions of Python and packages."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{package: metadata.version(package) for package in packages},
    }


class Others:
    """Measures how many cores other processes kept busy since this object was made (0 without /proc/stat)."""

    def __init__(self) -> None:
        self._wall, self._busy = time.perf_counter(), _other_processes_seconds()

    def cores(self) -> float:
        """Return the average number of busy cores so far; values well above 0 make a measurement doubtful."""
        return max(0.0, (_other_processes_seconds() - self._busy) / (time.perf_counter() - self._wall))


def command() -> str:
    """Return the command line that repeats this measurement, without its ``--json`` option."""
    words = iter(sys.argv[1:])
    kept = [word for word in words if not word.startswith("--json=") and not (word == "--json" and next(words, True))]
    return shlex.join(["python", "-m", "benchmarks", *kept])


def write(path: Path | None, result: dict[str, Any]) -> None:
    """Write a result as JSON, one line per table row, if a path was given."""
    if path is not None:
        path.write_text(as_json(result) + "\n", encoding="utf-8", newline="\n")


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _other_processes_seconds() -> float:
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _idle, _wait, *interrupts_and_steal = map(int, stat.read_text().split("\n", 1)[0].split()[1:9])
    ticks = user + nice + system + sum(interrupts_and_steal)
    return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()
