"""Run the tests of a suite against a target, in worker processes that may die.

Every test gets exactly one outcome; otherwise the run raises :class:`Incomplete` or another error.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from gpuconv._errors import one_line
from gpuconv.judge.adapters import FOR_COMPARISON
from gpuconv.judge.definition import Array
from gpuconv.judge.suite import DATA
from gpuconv.judge.verdicts import (
    CRASHES,
    DIFFERS,
    FAILURES,
    HANGS,
    WRONG,
    DamagedTest,
    Test,
    Verdict,
    judge,
    read,
    refused,
)

_START = 120.0  # seconds in which a target must be imported
_LONGEST_REPLY = 2**20  # bytes
_TAIL = 4096  # bytes of a target's last messages that are kept
_LOOK = 0.1  # seconds between checks whether a silent process still runs
_MARK = "GPUCONV_JUDGE_WORKER"  # environment variable of a worker and of its child processes


class TargetMissing(Exception):
    """The target cannot be imported; the message says why, `module` names the module that is not installed, if any."""

    def __init__(self, message: str, module: str | None = None) -> None:
        super().__init__(message)
        self.module = module


class Incomplete(Exception):
    """The judge itself failed in some tests; `outcomes` has the outcomes of all other tests, in order."""

    def __init__(self, message: str, outcomes: list[Outcome]) -> None:
        super().__init__(message)
        self.outcomes = outcomes


class _Died(Exception):
    """The process ended or was killed; the message says how."""


class _DiedBefore(_Died):
    """The process ended before it started the test, so that another process can run the test."""


class _Late(_Died):
    """The process was killed because it exceeded the time limit."""


@dataclass(frozen=True)
class Outcome:
    """A test, its verdict, the outputs if they are wrong, and the seconds for running and judging."""

    test: Test
    verdict: Verdict
    got: tuple[Array, ...] = ()
    seconds: float = 0.0


class Worker:
    """A worker process of one target.

    Raises
    ------
    TargetMissing
        If the target cannot be imported.
    """

    def __init__(self, target: str, living: set[Worker] | None = None) -> None:
        self.living: set[Worker] = set() if living is None else living
        self._said = b""  # the end of the target's messages
        self._read = b""  # bytes of replies that were not parsed yet
        self._mark = secrets.token_hex(16)
        self._answered = 0
        self._ended = False
        words = [sys.executable, "-m", "gpuconv.judge.worker", target]
        pipe, where = subprocess.PIPE, {**os.environ, _MARK: self._mark}
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, env=where)
        self.living.add(self)
        try:
            first = self._answer(time.monotonic() + _START, _START)
            if "missing" in first:
                raise TargetMissing(str(first["missing"]), first.get("module"))
            self.version = str(first.get("version", ""))
        except _Died as error:
            self.end()
            raise TargetMissing(f"its process died when it was imported: {error}") from None
        except BaseException:
            self.end()
            raise

    @property
    def is_fresh(self) -> bool:
        """Whether no test has run in this process yet."""
        return self._answered == 0

    def ask(self, test: Path, outputs: Path, limit: float) -> dict[str, Any]:
        """Send a test and wait up to `limit` seconds for the reply to it."""
        identifier, end = secrets.token_hex(8), time.monotonic() + limit
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps([identifier, str(test), str(outputs)]).encode() + b"\n")
            self._process.stdin.flush()
            begun = self._answer(end, limit)
        except _Late:
            raise
        except (_Died, OSError) as error:
            raise _DiedBefore(str(error)) from None
        if begun != {"id": identifier, "begun": True}:
            raise _DiedBefore("the target wrote into the pipe of the replies")
        reply = self._answer(end, limit)
        if reply.get("id") != identifier:
            raise _Died("the target wrote into the pipe of the replies")
        self._answered += 1
        return reply

    def _answer(self, end: float, limit: float) -> dict[str, Any]:
        """Read the next line of the replies, and keep the end of the messages that the target prints meanwhile."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._read and len(self._read) <= _LONGEST_REPLY:
            dead = self._process.poll() is not None  # checked first, so that its last output is read below
            ready = self._listen([pipe], 0.0 if dead else min(_LOOK, max(0.0, end - time.monotonic())))
            part = os.read(pipe, 65536) if ready else b""
            self._read += part
            if part:
                continue
            if dead:
                raise _Died(self._last_words())
            if time.monotonic() >= end:
                self.end()
                raise _Late(f"no answer within {limit:g} s")
            if ready:  # it closed the pipe, but lives
                time.sleep(_LOOK / 10)
        line, _, self._read = self._read.partition(b"\n")
        try:
            reply = json.loads(line)
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise _Died("the target wrote into the pipe of the replies")
        return reply

    def _listen(self, pipes: list[int], seconds: float) -> bool:
        """Wait until one of the pipes can be read; drain standard error, so that its pipe never fills up."""
        assert self._process.stderr is not None
        errors = self._process.stderr
        ready, _, _ = select.select(pipes if errors.closed else [*pipes, errors.fileno()], [], [], seconds)
        if not errors.closed and errors.fileno() in ready:
            part = os.read(errors.fileno(), 65536)
            self._said = (self._said + part)[-_TAIL:]
            if not part:
                errors.close()
        return any(pipe in ready for pipe in pipes)

    def _last_words(self) -> str:
        code = self._process.wait()
        for _ in range(64):  # a remaining child process may continue to print
            before = self._said
            self._listen([], 0.0)
            if self._said == before:
                break
        lines = self._said.decode(errors="replace").strip().splitlines()
        how = _signal_name(-code) if code < 0 else f"exit code {code}"
        return f"{how}{': ' + one_line(lines[-1], 200) if lines else ''}"

    def kill(self) -> None:
        """Kill the process group; a thread that waits for an answer then raises `_Died`."""
        with suppress(ProcessLookupError, PermissionError):  # macOS has the latter for a process that has ended
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill the process and all its child processes, including daemons, and close its pipes."""
        if self._ended:
            return
        self._ended = True
        self.living.discard(self)
        self.kill()
        self._process.wait()
        _kill_marked(self._mark)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names
        return f"signal {number}"


def _kill_marked(mark: str) -> None:
    """Kill processes that left the session but inherited the worker's mark, on systems with /proc."""
    wanted = f"{_MARK}={mark}".encode()
    for _ in range(5):  # a process may start another one during the search
        found = [pid for pid in _processes() if wanted in _environment(pid)]
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return []


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")  # empty once the process has ended
    except OSError:  # it has ended, or belongs to another user
        return []


def run(
    target: str,
    tests: Sequence[Test],
    limit: float,
    jobs: int,
    show: Callable[[Outcome], None],
    first: Worker | None = None,
    claims: Mapping[str, str] | None = None,
) -> list[Outcome]:
    """Run tests and judge the outputs of each.

    Parameters
    ----------
    target : str
    tests : sequence of Test
    limit : float
        Seconds for a test; after that it hangs.
    jobs : int
        Number of concurrent processes.
    show : callable
        Called with each outcome.
    first : Worker, optional
        A running process of this target, which is used and ended.
    claims : mapping, optional
        Keywords of :func:`gpuconv.judge.verdicts.judge`: the precision and the accumulation that the target claims.

    Returns
    -------
    list of Outcome
        One for each test, in their order.

    Raises
    ------
    DamagedTest
        A test that cannot be read. This and any exception of ``show`` or of a signal's handler ends the run.
    Incomplete
        The judge failed in some tests; all others have been judged.

    Notes
    -----
    No process of the target outlives the call.
    """
    made = _Run(tests, show, first)
    runners = [_Runner(target, made.living, limit, claims or {}, made.spare) for _ in range(min(jobs, len(tests)))]
    made.finish([threading.Thread(target=made.serve, args=[runner], daemon=True) for runner in runners])
    _check_complete(tests, made.outcomes, made.failures)
    return [made.outcomes[number] for number in range(len(tests))]


class _Run:
    """The shared state of the threads of one run."""

    def __init__(self, tests: Sequence[Test], show: Callable[[Outcome], None], first: Worker | None) -> None:
        self._tests, self._show = tests, show
        self._waiting: SimpleQueue[int] = SimpleQueue()
        for number in range(len(tests)):
            self._waiting.put(number)
        self._stopped = threading.Event()
        # What ended each thread. Not Thread.join: what interrupts it makes is_alive lie.
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self.outcomes: dict[int, Outcome] = {}
        self.failures: dict[int, str] = {}
        self.spare = [] if first is None else [first]
        self.living: set[Worker] = set(self.spare)
        if first is not None:
            first.living = self.living

    def serve(self, runner: _Runner) -> None:
        """Thread body: judge tests until the queue is empty, then report the exception that ended it, if any."""
        failure: BaseException | None = None
        try:
            with suppress(Empty):
                while not self._stopped.is_set():
                    self._judge(runner, self._waiting.get_nowait())
        except BaseException as error:
            failure = error
        try:
            runner.end()
        finally:
            self._done.put(failure)

    def _judge(self, runner: _Runner, number: int) -> None:
        try:
            outcome = runner.outcome(self._tests[number])
        except DamagedTest:
            raise
        except Exception as error:  # of the judge: all other tests are judged nevertheless
            self.failures[number] = one_line(f"{type(error).__name__}: {error}")
            return
        self.outcomes[number] = outcome
        self._show(outcome)

    def finish(self, threads: Sequence[threading.Thread]) -> None:
        """Run the threads; if one raises, stop all threads and processes, then raise that exception."""
        busy = 0
        try:
            for thread in threads:
                thread.start()
                busy += 1
            while busy:
                failure = self._done.get()
                busy -= 1
                if failure is not None:
                    raise failure
        except BaseException:
            self._stopped.set()
            while busy:  # each may be about to start another process
                for worker in tuple(self.living):
                    worker.kill()
                with suppress(Empty):
                    self._done.get(timeout=0.02)
                    busy -= 1
            raise
        finally:
            for worker in tuple(self.living):
                worker.end()


def _check_complete(tests: Sequence[Test], outcomes: Mapping[int, Outcome], failures: Mapping[int, str]) -> None:
    missing = [number for number in range(len(tests)) if number not in outcomes]
    if missing:
        name, why = tests[missing[0]].folder.name, failures.get(missing[0], "no reason is known")
        text = f"{len(missing)} of {len(tests)} tests could not be judged, the first is {name} ({why})"
        raise Incomplete(text, [outcomes[number] for number in sorted(outcomes)])


class _Runner:
    """Judges tests in one process, which is replaced if it dies."""

    def __init__(
        self, target: str, living: set[Worker], limit: float, claims: Mapping[str, str], spare: list[Worker]
    ) -> None:
        self._target, self._living, self._limit, self._claims = target, living, limit, claims
        self._worker: Worker | None = None
        with suppress(IndexError):
            self._worker = spare.pop()

    def outcome(self, test: Test) -> Outcome:
        """Judge one test. If a process dies that has run other tests, the test is repeated in a new process."""
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="gpuconv-judge-", ignore_cleanup_errors=True) as temporary:
            outputs = Path(temporary, "outputs")
            got: tuple[Array, ...] = ()
            try:
                reply = self._reply(test, Path(temporary), outputs)
            except _Late as error:
                verdict = Verdict(HANGS, str(error))
            except (_Died, TargetMissing) as error:  # it could be imported before
                verdict = Verdict(CRASHES, str(error))
            else:
                verdict, got = _judged(test, reply, outputs, self._claims)
                if self._target.partition(":")[0] in FOR_COMPARISON and verdict.kind in FAILURES:
                    verdict, got = (verdict if verdict.kind == CRASHES else Verdict(DIFFERS, verdict.reason)), ()
        return Outcome(test, verdict, got, time.monotonic() - start)

    def _reply(self, test: Test, temporary: Path, outputs: Path) -> dict[str, Any]:
        while True:
            worker = self._worker = self._worker or Worker(self._target, self._living)
            fresh = worker.is_fresh
            copy = _copied(test, temporary / f"test_{secrets.token_hex(4)}")
            shutil.rmtree(outputs, ignore_errors=True)
            outputs.mkdir(parents=True)
            try:
                return worker.ask(copy, outputs, self._limit)
            except _Late:
                self.end()
                raise
            except _Died:
                self.end()
                if fresh:
                    raise

    def end(self) -> None:
        """End the process, if there is one."""
        if self._worker is not None:
            self._worker.end()
        self._worker = None


def _copied(test: Test, folder: Path) -> Path:
    """Copy the model and inputs of a test, so that the target sees neither the suite nor expected outputs."""
    (folder / DATA).mkdir(parents=True)
    try:
        for name in ("model.onnx", "case.json"):
            shutil.copyfile(test.folder / name, folder / name)
        for path in (test.folder / DATA).iterdir():
            if path.name.startswith(("input_", "constant_")):
                shutil.copyfile(path, folder / DATA / path.name)
    except OSError as error:
        raise DamagedTest(f"{test.folder.name}: {error}") from None
    return folder


def _judged(
    test: Test, reply: Mapping[str, Any], outputs: Path, claims: Mapping[str, str]
) -> tuple[Verdict, tuple[Array, ...]]:
    """Return the verdict on a reply, and the outputs if they are wrong."""
    if "unreadable" in reply:
        raise DamagedTest(f"{test.folder.name}: {reply['unreadable']}")
    if "refused" in reply:
        return refused(test, str(reply["refused"])), ()
    for word, kind in (("crashed", CRASHES), ("wrong", WRONG)):
        if word in reply:
            return Verdict(kind, str(reply[word])), ()
    try:
        got = tuple(read(outputs / f"output_{number}.pb") for number in range(reply["outputs"]))
    except Exception as error:
        return Verdict(CRASHES, one_line(f"its outputs cannot be read: {type(error).__name__}: {error}", 200)), ()
    verdict = judge(test, got, **claims)
    return verdict, got if verdict.kind in FAILURES else ()
