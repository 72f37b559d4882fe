"""Run the tests of a suite against a target, in processes that may die."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from gpuconv._errors import one_line
from gpuconv.judge.definition import Array
from gpuconv.judge.verdicts import CRASHES, FAILURES, HANGS, DamagedTest, Test, Verdict, judge, read, refused

_START = 120.0  # seconds in which a target must be imported
_LONGEST_REPLY = 2**20  # bytes


class TargetMissing(Exception):
    """The target cannot be imported; the message says why."""


class _Died(Exception):
    """The process ended, or was ended; the message says how."""


class _Late(_Died):
    """It was ended since it took too long."""


@dataclass(frozen=True)
class Outcome:
    """A test, what became of it, and the outputs where they are wrong."""

    test: Test
    verdict: Verdict
    got: tuple[Array, ...] = ()


class _Worker:
    """A process that answers for one target."""

    def __init__(self, target: str, living: set[_Worker]) -> None:
        self._living = living
        self._asked = 0
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115, as long as the process
        words = [sys.executable, "-m", "gpuconv.judge.worker", target]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True
        )
        living.add(self)
        try:
            first = self._answer(_START)
            if "missing" in first:
                raise TargetMissing(str(first["missing"]))
            self.version = str(first.get("version", ""))
        except BaseException:
            self.end()
            raise

    def ask(self, test: Path, outputs: Path, limit: float) -> dict[str, Any]:
        """Send a test and wait for the reply to it."""
        assert self._process.stdin is not None
        self._asked += 1
        with suppress(BrokenPipeError):  # the answer will tell
            self._process.stdin.write(json.dumps([self._asked, str(test), str(outputs)]).encode() + b"\n")
            self._process.stdin.flush()
        reply = self._answer(limit)
        if reply.get("number") != self._asked:
            raise _Died("the target wrote into the pipe of the replies")
        return reply

    def _answer(self, limit: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        pipe, line, end = self._process.stdout.fileno(), b"", time.monotonic() + limit
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([pipe], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                self.end()
                raise _Late(f"no answer within {limit:g} s")
            part = os.read(pipe, 65536)
            if not part:
                raise _Died(self._last_words())
            line += part
            if len(line) > _LONGEST_REPLY:
                break
        try:
            reply = json.loads(line)
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise _Died("the target wrote into the pipe of the replies")
        return reply

    def _last_words(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"{how}{': ' + one_line(lines[-1], 200) if lines else ''}"

    def kill(self) -> None:
        """Stop the process and what it started; whoever waits for its answer is told that it died."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Stop the process and what it started, and leave nothing open."""
        if self not in self._living:
            return
        self._living.discard(self)
        self.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def version(target: str) -> str:
    """Name what is judged; raise TargetMissing where it cannot be imported."""
    try:
        worker = _Worker(target, set())
    except _Died as error:
        raise TargetMissing(f"its process died when it was imported: {error}") from None
    worker.end()
    return worker.version


def run(target: str, tests: Sequence[Test], limit: float, jobs: int, show: Callable[[Outcome], None]) -> list[Outcome]:
    """Run tests and judge what comes out of each.

    Parameters
    ----------
    target : str
    tests : sequence of Test
    limit : float
        Seconds for a test; after that it hangs.
    jobs : int
        How many processes run at once.
    show : callable
        Told each outcome as it comes.

    Returns
    -------
    list of Outcome
        One for each test, in their order.

    Raises
    ------
    DamagedTest
        A test that cannot be read. This and any other exception, of ``show`` or of a signal's handler for example, ends
        the run, and leaves no process behind.
    """
    waiting: SimpleQueue[int] = SimpleQueue()
    for number in range(len(tests)):
        waiting.put(number)
    outcomes: dict[int, Outcome] = {}
    living: set[_Worker] = set()
    stopped = threading.Event()
    # What ended each thread. Not Thread.join: what interrupts it makes is_alive lie.
    done: SimpleQueue[BaseException | None] = SimpleQueue()

    def serve() -> None:
        worker: _Worker | None = None
        failure: BaseException | None = None
        try:
            with suppress(Empty):
                while not stopped.is_set():
                    number = waiting.get_nowait()
                    outcomes[number], worker = _judged(worker, living, target, tests[number], limit)
                    show(outcomes[number])
        except BaseException as error:
            failure = error
        try:
            if worker is not None:
                worker.end()
        finally:
            done.put(failure)

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(min(jobs, len(tests)))]
    for thread in threads:
        thread.start()
    busy = len(threads)
    try:
        while busy:
            failure = done.get()
            busy -= 1
            if failure is not None:
                raise failure
    except BaseException:
        stopped.set()
        while busy:  # each may be about to start another process
            for worker in tuple(living):
                worker.kill()
            with suppress(Empty):
                done.get(timeout=0.02)
                busy -= 1
        raise
    return [outcomes[number] for number in range(len(tests))]


def _judged(
    worker: _Worker | None, living: set[_Worker], target: str, test: Test, limit: float
) -> tuple[Outcome, _Worker | None]:
    """Judge one test; a process that does not live any longer is not handed back."""
    with tempfile.TemporaryDirectory() as outputs:
        try:
            worker = worker or _Worker(target, living)
            reply = worker.ask(test.folder, Path(outputs), limit)
        except _Late as error:
            return Outcome(test, Verdict(HANGS, str(error))), None
        except (_Died, TargetMissing) as error:  # it could be imported before
            if worker is not None:
                worker.end()
            return Outcome(test, Verdict(CRASHES, str(error))), None
        if "unreadable" in reply:
            raise DamagedTest(f"{test.folder.name}: {reply['unreadable']}")
        if "refused" in reply:
            return Outcome(test, refused(test, reply["refused"])), worker
        if "crashed" in reply:
            return Outcome(test, Verdict(CRASHES, reply["crashed"])), worker
        try:
            got = tuple(read(Path(outputs, f"output_{number}.pb")) for number in range(reply["outputs"]))
        except Exception as error:
            why = one_line(f"its outputs cannot be read: {type(error).__name__}: {error}", 200)
            return Outcome(test, Verdict(CRASHES, why)), worker
        verdict = judge(test, got)
        return Outcome(test, verdict, got if verdict.kind in FAILURES else ()), worker
