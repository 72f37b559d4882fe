"""Supervise a step in its own process: kill it when it makes no progress, record the row, and restart after that row.

Progress is a new row (`progress.Rows`) or new output. If a kernel hangs, the driver is first asked for a GPU core dump,
in which cuda-gdb shows where the warps are.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from benchmarks.progress import Rows

ROOT = Path(__file__).resolve().parents[1]
LOST = 3  # exit status of a step that lost its CUDA context and can continue in a new process
ABSENT = 4  # exit status of a step whose library is not installed: "not run", not a failure
NO_DEBUGGER = "cuda-gdb is not installed, so there is no backtrace"
_POLL = 0.1
_KILL_SECONDS = 10.0  # seconds to wait for a killed process; one blocked in the driver may never end
_DUMP_SECONDS, _READ_SECONDS = 8.0, 20.0
_RESTARTS = 20
_TAIL = 4096  # bytes of output to inspect when a step hangs
_IN_DUMP = ("info cuda kernels", "info cuda warps", "bt 4")
_DUMP_FLAGS = "skip_nonrelocated_elf_images,skip_global_memory,skip_local_memory,skip_abort"


@dataclass(frozen=True)
class Step:
    """One step of a GPU run.

    Attributes
    ----------
    name : str
    command : tuple of str
        Command to run; its rows go to the file given by ``--rows``.
    seconds : float
        Time limit of the step.
    quiet : float
        Seconds without progress after which it counts as hung.
    waking : float
        Seconds allowed until the first progress: imports take long on a cold disk.
    of : str
        Name of the step whose rows it continues; empty: its own.
    dumps : bool
        Whether GPU core dumps are enabled. They slow kernels down, so timed steps do without.
    why : str
        Why the step cannot run, if it has no command.
    """

    name: str
    command: tuple[str, ...]
    seconds: float
    quiet: float = 25.0
    waking: float = 90.0
    of: str = ""
    dumps: bool = False
    why: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a step ended: "passed", "failed", "hung", "died", "out of time" or "not run", with seconds and a detail."""

    step: str
    status: str
    seconds: float
    detail: str = ""


def supervise(
    step: Step, rows_path: Path, log: Path, deadline: float, extra: Mapping[str, str] | None = None
) -> Outcome:
    """Run a step, restarting its process after every row that hung or died.

    Parameters
    ----------
    step : Step
    rows_path, log : Path
        Files shared by all steps; the output is appended to the log.
    deadline : float
        In the time of `time.monotonic`; the step's own limit applies, too.
    extra : mapping, optional
        Further environment variables.
    """
    start, blamed = time.monotonic(), 0
    deadline = min(deadline, start + step.seconds)
    for _ in range(_RESTARTS):
        with _Process(step, log, extra or {}) as process:
            how = _watch(process, step, rows_path, deadline)
            stuck = process.where_it_stands() if how == "hung" else ""
            tail = process.tail()
        seconds = time.monotonic() - start
        if how in ("out of time", "not run"):
            return Outcome(step.name, how, seconds, tail)
        lost = how != "passed" and _end_open_rows(rows_path, step.of or step.name, how, stuck or tail)
        if how in ("passed", "failed") and not lost:
            return Outcome(step.name, "failed" if blamed else how, seconds, _failed_rows(blamed) or tail)
        if not lost and process.poll() != LOST:  # a process that exits with LOST has ended its row itself
            return Outcome(step.name, how, seconds, f"in no row: {stuck or tail}")
        blamed += max(lost, 1)
    return Outcome(step.name, "failed", time.monotonic() - start, f"given up: {_failed_rows(blamed)}")


def _failed_rows(count: int) -> str:
    return f"{count} rows hung or died" if count else ""


def _end_open_rows(rows_path: Path, step: str, how: str, detail: str) -> int:
    """End the rows that were running in a lost process (several with pytest-xdist); return their number."""
    rows = Rows(rows_path, step)
    lost = rows.open()
    for name in lost:
        rows.end(name, "hung" if how == "hung" else "died", detail=detail)
    return len(lost)


def _watch(process: _Process, step: Step, rows_path: Path, deadline: float) -> str:
    """Wait until the process has ended, hangs or is out of time; return which."""
    seen, since, allowed = process.sizes(rows_path), time.monotonic(), step.waking
    while (code := process.poll()) is None:
        time.sleep(_POLL)
        now, sizes = time.monotonic(), process.sizes(rows_path)
        if sizes != seen:
            seen, since, allowed = sizes, now, step.quiet
        if now >= deadline:
            return "out of time"
        if now - since >= allowed:
            return "hung"
    if code == 0:
        return "passed"
    if code == ABSENT:
        return "not run"
    return "died" if code == LOST or code < 0 else "failed"


class _Process:
    """A step's process, with its output appended to the log; on exit it and its children are killed."""

    def __init__(self, step: Step, log: Path, extra: Mapping[str, str]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="gpuconv-visit-"))
        self._log, self._begin = log, log.stat().st_size if log.exists() else 0
        self._dumps = step.dumps
        environment = environment_of(os.environ, extra) | (self._dump_variables() if step.dumps else {})
        with log.open("ab") as output:
            output.write(f"\n$ {' '.join(step.command)}\n".encode())
            output.flush()
            self._begin = output.tell()
            self._process = subprocess.Popen(
                step.command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def poll(self) -> int | None:
        return self._process.poll()

    def sizes(self, rows_path: Path) -> tuple[int, int]:
        """Return the sizes of the rows and of the log, which grow with progress."""
        return (rows_path.stat().st_size if rows_path.exists() else 0, self._log.stat().st_size)

    def tail(self) -> str:
        """Return the last two lines of the output."""
        with self._log.open("rb") as file:
            file.seek(max(self._begin, self._log.stat().st_size - _TAIL))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        return " | ".join(lines[-2:])[-300:]

    def end(self) -> None:
        """Kill the process group, and wait a limited time: the driver may hold a process forever."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_SECONDS)

    def _dump_variables(self) -> dict[str, str]:
        return {
            "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1",
            "CUDA_COREDUMP_PIPE": str(self._folder / "pipe.%p"),
            "CUDA_COREDUMP_FILE": str(self._folder / "core.%p"),
            "CUDA_COREDUMP_GENERATION_FLAGS": _DUMP_FLAGS,
        }

    def where_it_stands(self) -> str:
        """Return cuda-gdb's report on a GPU core dump, or the reason why there is none."""
        if not self._dumps:
            return ""
        said, tool = self.tail(), shutil.which("cuda-gdb")
        if tool is None:
            return f"{said} ({NO_DEBUGGER})"
        dump = self._dump()
        if dump is None:
            return f"{said} (no core dump in {_DUMP_SECONDS:g} s)"
        command = [tool, "-batch", "-ex", f"target cudacore {dump}"]
        for question in _IN_DUMP:
            command += ["-ex", question]
        with suppress(OSError, subprocess.SubprocessError):
            found = subprocess.run(command, capture_output=True, text=True, timeout=_READ_SECONDS, check=False).stdout
            with self._log.open("a", encoding="utf-8") as log:
                log.write(f"\n$ {' '.join(command)}\n{found}\n")
            return f"{said} ({' '.join(found.split())[-600:]})"
        return f"{said} (cuda-gdb cannot read the core dump)"

    def _dump(self) -> Path | None:
        """Request a GPU core dump by writing to the driver's pipe; return the file once it has stopped growing."""
        for pipe in self._folder.glob("pipe.*"):
            with suppress(OSError):
                descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
                os.write(descriptor, b"x")
                os.close(descriptor)
        size, until = -1, time.monotonic() + _DUMP_SECONDS
        while time.monotonic() < until:
            time.sleep(0.5)
            found = max(self._folder.glob("core.*"), default=None, key=lambda path: path.stat().st_size)
            if found is not None and found.stat().st_size == size > 0:
                return found
            size = found.stat().st_size if found is not None else -1
        return None


def environment_of(given: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """Return a step's environment: the checkout comes first in PYTHONPATH, and output is unbuffered."""
    path = os.pathsep.join(part for part in (str(ROOT), given.get("PYTHONPATH", "")) if part)
    return {**given, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "GPUCONV_REQUIRE_GPU": "1", **extra}


def leave(code: int) -> NoReturn:
    """Exit a step's process; a lost device exits at once, since destructors would fail and hide the message."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code == LOST:
        os._exit(code)
    sys.exit(code)


def interpreter(*words: str) -> tuple[str, ...]:
    """Return a command for this Python interpreter."""
    return (sys.executable, *words)
