"""The framework of the fuzzers: numbered cases, worker processes, and findings, deduplicated and shrunk.

A case is derived only from the fuzzer's seed and its number. It runs in a worker process, since it may crash, hang or
exhaust memory. The worker writes a line for every case that it has finished, so that the case in which it died is
known.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import IO, Any

from gpuconv._errors import printable
from gpuconv.cli.terminal import Progress

ROOT = Path(__file__).parents[2]
LONGEST = 500  # characters of an error's message
MEMORY = 2 * 2**30  # bytes that a worker may allocate beyond its size at the start
_STATISTICS = Path("/proc/self/statm")
LIMITS_MEMORY = _STATISTICS.exists()
_SHRINKING = 2.0  # seconds to search for a smaller case
_END, _LASTS = "end", "lasts"


class Wrong(Exception):
    """Something does not hold. ``rule`` and the error in ``__cause__`` identify the finding."""

    def __init__(self, rule: str, detail: str = "") -> None:
        super().__init__(f"{rule}: {detail}" if detail else rule)
        self.rule = rule


class Fuzzer:
    """Generates cases and checks them.

    Attributes
    ----------
    limit : float
        Seconds that a case may take.
    spoiled : bool
        Whether a case has left the process in a state in which no further case may run.
    """

    limit = 30.0
    spoiled = False

    def lasts(self) -> None:
        """Announce that the next step may take long: exceeding the time limit is then not a finding."""

    def case(self, random: Random) -> Any:
        """Return a case, always the same for the same random numbers."""
        raise NotImplementedError

    def check(self, case: Any) -> str:
        """Run a case; return its outcome in a word, or raise what is wrong with it."""
        raise NotImplementedError

    def show(self, case: Any) -> str:
        """Return a readable description of a case."""
        return repr(case)

    def smaller(self, case: Any) -> Iterator[Any]:
        """Yield slightly smaller cases."""
        return iter(())


@dataclass
class Finding:
    """The first case with a key, and the number of cases with that key."""

    number: int
    text: str
    count: int = 1
    smallest: str = ""


@dataclass
class Report:
    """Outcomes of all cases."""

    outcomes: Counter[str] = field(default_factory=Counter)
    findings: dict[str, Finding] = field(default_factory=dict)
    cases: int = 0

    def add(self, key: str, number: int, text: str) -> None:
        """Record a finding, or count one more with the same key."""
        if key in self.findings:
            self.findings[key].count += 1
        else:
            self.findings[key] = Finding(number, text)


def random_of(seed: int, number: int) -> Random:
    """Return the random number generator of a case."""
    return Random(f"{seed}:{number}")


def key_of(error: BaseException) -> str:
    """Return the key of a finding: the rule or error type, and the innermost function of gpuconv in the traceback."""
    name = error.rule if isinstance(error, Wrong) else type(error).__name__
    source = error.__cause__ if isinstance(error, Wrong) and error.__cause__ is not None else error
    frames = traceback.extract_tb(source.__traceback__)
    places = [f"{_module(frame.filename)}:{frame.name}" for frame in frames if _module(frame.filename)]
    return f"{name} at {places[-1]}" if places else name


def _module(path: str) -> str:
    """Return a file's path inside the package gpuconv, or "" for other files."""
    found = re.search(r"[/\\](gpuconv[/\\].+)\.py$", path)
    return found[1] if found and "site-packages" not in path else ""


# ---------------------------------------------------------------- the worker


def work(fuzzer: Fuzzer, seed: int, first: int, count: int | None, seconds: float) -> None:
    """Run cases from ``first`` on in this process, writing a line about each to the original standard output."""
    stream = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output of the cases goes to the log
    faulthandler.enable()
    limit_memory(MEMORY)
    fuzzer.lasts = lambda: print(_LASTS, file=stream)  # type: ignore[method-assign]
    end, number, seen = time.monotonic() + seconds, first, set[str]()
    while time.monotonic() < end and (count is None or number < first + count):
        stream.write(_run(fuzzer, seed, number, seen, stream) + "\n")
        number += 1
        if fuzzer.spoiled:
            os._exit(0)  # do not wait for threads that the case has left
    stream.write(f"{_END}\n")


def limit_memory(more: int) -> None:
    """Limit this process to ``more`` bytes beyond its current size, where the system reports that size."""
    if LIMITS_MEMORY:
        import resource

        limit = int(_STATISTICS.read_text().split()[0]) * resource.getpagesize() + more
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _run(fuzzer: Fuzzer, seed: int, number: int, seen: set[str], stream: IO[str]) -> str:
    case = fuzzer.case(random_of(seed, number))
    try:
        return fuzzer.check(case)
    except (Exception, KeyboardInterrupt) as error:
        key = key_of(error)
        text = f"{fuzzer.show(case)}\n{_last_lines(error)}"
        stream.write(json.dumps({"key": key, "text": text}) + "\n")
        if key not in seen and not fuzzer.spoiled:
            seen.add(key)
            stream.write(json.dumps({"key": key, "smallest": fuzzer.show(_shrunk(fuzzer, case, key))}) + "\n")
        return "finding"


def _last_lines(error: BaseException) -> str:
    lines = "".join(traceback.format_exception(error)).splitlines()
    kept = lines if len(lines) < 24 else [*lines[:6], "…", *lines[-16:]]
    return "\n".join(line[:300] for line in kept)


def _shrunk(fuzzer: Fuzzer, case: Any, key: str) -> Any:
    """Return the smallest case with the same finding that a short search finds."""
    end, found = time.monotonic() + _SHRINKING, True
    while found and time.monotonic() < end:
        found = False
        for smaller in fuzzer.smaller(case):
            if _is_found(fuzzer, smaller, key):
                case, found = smaller, True
                break
            if time.monotonic() > end or fuzzer.spoiled:
                return case
    return case


def _is_found(fuzzer: Fuzzer, case: Any, key: str) -> bool:
    try:
        fuzzer.check(case)
    except (Exception, KeyboardInterrupt) as error:
        return key_of(error) == key
    return False


# ---------------------------------------------------------------- the supervising process


class _Worker:
    """A worker process and its lines."""

    def __init__(self, name: str, seed: int, first: int, count: int | None, seconds: float) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # lives as long as the process
        command = [sys.executable, "-m", "tests.fuzz", name, "--seed", str(seed), "--worker", str(first)]
        command += ["--seconds", str(seconds), *(["--count", str(count)] if count is not None else [])]
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # only the supervising process handles Ctrl-C
        )
        assert self.process.stdout is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.process.stdout, selectors.EVENT_READ)
        self._rest = b""

    def lines(self, patience: float) -> list[str] | None:
        """Return the next lines: [] if none came within ``patience`` seconds, None at the end of the output."""
        assert self.process.stdout is not None
        if not self._selector.select(patience):
            return []
        data = os.read(self.process.stdout.fileno(), 2**20)
        if not data:
            return None
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [line.decode() for line in whole]

    def kill(self) -> None:
        """End the process, by SIGABRT first, so that faulthandler prints its threads' stacks."""
        for number, patience in ((signal.SIGABRT, 5), (signal.SIGKILL, 60)):
            try:
                self.process.send_signal(number)
                self.process.wait(patience)
                return
            except subprocess.TimeoutExpired:
                continue

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()


def run(name: str, fuzzer: Fuzzer, seed: int, first: int, count: int | None, seconds: float) -> tuple[Report, bool]:
    """Run cases in workers, one worker at a time; return the report, and whether Ctrl-C ended the run."""
    report, end = Report(), time.monotonic() + seconds
    with Progress() as progress:
        try:
            print(f"cases of {name} for {seconds:.0f} s, seed {seed}", flush=True)
            while (left := end - time.monotonic()) > 0 and (count is None or report.cases < count):
                more = None if count is None else count - report.cases
                worker = _Worker(name, seed, first + report.cases, more, left)
                try:
                    if _follow(worker, fuzzer, seed, report, first, progress):
                        break
                finally:
                    if worker.process.poll() is None:
                        worker.process.kill()
        except KeyboardInterrupt:
            return report, True
    return report, False


def _follow(worker: _Worker, fuzzer: Fuzzer, seed: int, report: Report, first: int, progress: Progress) -> bool:
    """Record a worker's lines; return whether it finished all its cases."""

    def died(how: str) -> None:
        shown = fuzzer.show(fuzzer.case(random_of(seed, first + report.cases)))
        _died(report, first, how, shown, worker.log())

    start, begun, last, lasts = time.monotonic(), report.cases, time.monotonic(), False
    while (lines := worker.lines(0.5)) is not None:
        for line in lines:
            if line == _END:
                worker.process.wait()
                return True
            lasts = line == _LASTS
            if not lasts:
                _note(report, first, line)
        last = time.monotonic() if lines else last
        rate = (report.cases - begun) / (time.monotonic() - start)
        progress.show(f"{report.cases} cases, {rate:.0f} a second, {len(report.findings)} findings")
        allowance = fuzzer.limit + (_SHRINKING + 60 if report.cases == begun else _SHRINKING)  # first: imports
        if time.monotonic() - last > allowance:
            worker.kill()
            if lasts:
                _note(report, first, "past its time")
                return False
            died(f"no end after {allowance:.0f} s")
            return False
    code = worker.process.wait()
    if code:
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        died(f"the process died ({how})")
    return False


def _note(report: Report, first: int, line: str) -> None:
    if not line.startswith("{"):
        report.outcomes[line] += 1
        report.cases += 1
        return
    entry = json.loads(line)
    if "smallest" in entry:
        report.findings[entry["key"]].smallest = entry["smallest"]
    else:
        report.add(entry["key"], first + report.cases, entry["text"])


def _died(report: Report, first: int, how: str, shown: str, log: str) -> None:
    """Record the case in which a worker died, with the stacks of its threads."""
    if report.cases == 0 and "most recent call first" not in log:
        raise SystemExit(f"the worker did not start: {log[-4000:]}")
    threads = log[max(0, log.rfind("Fatal Python error")) :]
    current = threads[max(0, threads.find("Current thread")) :]
    pattern = r'File ".*[/\\](gpuconv[/\\][^"]+)\.py", line \d+ in (\S+)'
    places = re.findall(pattern, current) or re.findall(pattern, threads)
    key = f"{how} at {':'.join(places[0])}" if places else how
    report.add(key, first + report.cases, f"{shown}\n{threads[:4000] or log[-2000:]}")
    report.outcomes["finding"] += 1
    report.cases += 1


def print_report(name: str, seed: int, report: Report, seconds: float) -> None:
    """Print each finding with the command that repeats it, then the totals."""
    for key, finding in report.findings.items():
        print(f"FINDING ({finding.count} cases): {printable(key)}")
        print(f"  python -m tests.fuzz {name} --seed {seed} --only {finding.number}")
        for line in finding.text.splitlines():
            print(f"    {printable(line)[:1500]}")
        if finding.smallest:
            print("  smaller:")
            for line in finding.smallest.splitlines():
                print(f"    {printable(line)}")
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in report.outcomes.most_common())
    print(f"{name}, seed {seed}: {report.cases} cases in {seconds:.0f} s, {len(report.findings)} findings ({outcomes})")


def repeat(fuzzer: Fuzzer, seed: int, number: int) -> int:
    """Run one case in this process with its output."""
    faulthandler.enable()
    limit_memory(MEMORY)
    case = fuzzer.case(random_of(seed, number))
    print(fuzzer.show(case), flush=True)
    try:
        print(fuzzer.check(case))
    except Exception:
        traceback.print_exc()
        return 1
    return 0
