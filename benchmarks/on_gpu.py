"""All that needs a GPU, in one go and within a time: ``python -m benchmarks.on_gpu --help``.

The parts: kernels compiled ahead, the tests marked ``gpu``, compute-sanitizer over small problems, every layer against
PyTorch, the host's time of a call. Each has a limit of its own and runs whatever became of those before it. All output
goes to on_gpu.log, and what became of the parts to on_gpu.json, in the folder OUT or benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("compile", "tests", "sanitizer", "layers", "host")
_TOOLS = ("memcheck", "racecheck", "initcheck")
_LEAST = 5.0  # seconds left below which nothing is begun
_RESUMES = 4
_LOST = 3  # what the layers return where the process lost its device
_FOUND = 9  # what compute-sanitizer is told to return where it found something
_LINES_SHOWN = 150


@dataclass
class Outcome:
    """What became of one command.

    Attributes
    ----------
    part, name : str
    seconds : float
    status : {"passed", "failed", "timed out", "not run"}
    detail : str
        Counts, or the reason why it was not run.
    failures : list of str
    """

    part: str
    name: str
    seconds: float
    status: str
    detail: str = ""
    failures: list[str] = field(default_factory=list)

    @property
    def bad(self) -> bool:
        """Whether it ran and did not pass."""
        return self.status in ("failed", "timed out")


@dataclass
class Visit:
    """The time that is left, and where output goes."""

    deadline: float
    log: Path

    def left(self, limit: float = float("inf")) -> float:
        """Return the seconds that a command may take: its limit, or what is left of everything."""
        return min(limit, self.deadline - time.monotonic())

    def call(self, command: list[str], limit: float) -> tuple[int | None, str, float]:
        """Run a command from the checkout; return its code (None where it ran into the limit), output and seconds."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "GPUCONV_REQUIRE_GPU": "1"}
        start = time.monotonic()
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                code: int | None = process.wait(max(0.1, self.left(limit)))
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end(process)
            output.seek(0)
            text = output.read()
        seconds = time.monotonic() - start
        with self.log.open("a", encoding="utf-8", errors="replace") as log:
            log.write(f"\n$ {' '.join(command)}\n{text}\n({seconds:.1f} s, code {code})\n")
        return code, text, seconds


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a command's own processes."""
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main(argv: list[str] | None = None) -> int:
    """Run the parts; 1 where one failed, the host's time apart: it is a number, not a result."""
    arguments = _parser().parse_args(argv)
    folder = Path(os.environ["OUT"]) if os.environ.get("OUT") else Path(__file__).parent / "results"
    folder.mkdir(parents=True, exist_ok=True)
    visit = Visit(time.monotonic() + arguments.seconds, folder / "on_gpu.log")
    visit.log.unlink(missing_ok=True)
    outcomes: list[Outcome] = []
    shown = ""
    for part in PARTS:
        if part in arguments.skip:
            continue
        for outcome, text in _PARTS[part](visit, arguments, folder):
            outcomes.append(outcome)
            shown = text if part == "layers" else shown
            print(line(outcome), flush=True)
            _write(folder / "on_gpu.json", outcomes)
    _print(outcomes, shown, visit.log)
    return int(any(outcome.bad for outcome in outcomes if outcome.part != "host"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.on_gpu", description=__doc__)
    parser.add_argument("--seconds", type=float, default=540, help="for everything (default %(default)s)")
    parser.add_argument("--compile", type=float, default=60, help="at most for the kernels (default %(default)s)")
    parser.add_argument("--tests", type=float, default=150, help="at most for the tests (default %(default)s)")
    parser.add_argument("--sanitizer", type=float, default=40, help="at most for each tool (default %(default)s)")
    parser.add_argument("--host", type=float, default=30, help="kept for the host's time (default %(default)s)")
    parser.add_argument("--skip", nargs="*", choices=PARTS, default=[], help="parts to leave out")
    parser.add_argument("--layers-arguments", nargs=argparse.REMAINDER, default=[], help="the rest is for the layers")
    return parser


Results = Iterator[tuple[Outcome, str]]


def _compile(visit: Visit, arguments: argparse.Namespace, folder: Path) -> Results:
    jobs = str(os.cpu_count() or 1)
    code, text, seconds = visit.call([sys.executable, "-m", "gpuconv", "compile", "--jobs", jobs], arguments.compile)
    yield Outcome("compile", "kernels", seconds, status(code), last_line(text)), text


def _tests(visit: Visit, arguments: argparse.Namespace, folder: Path) -> Results:
    """Run each file in a process of its own: after an illegal access, a process has no device any more."""
    end = time.monotonic() + arguments.tests
    for path in sorted((ROOT / "tests").glob("test_gpu_*.py")):
        limit = visit.left(end - time.monotonic())
        if limit < _LEAST:
            yield Outcome("tests", path.stem, 0.0, "not run", "no time was left"), ""
            continue
        with tempfile.TemporaryDirectory() as scratch:
            report = Path(scratch, "junit.xml")
            command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", str(path.relative_to(ROOT))]
            command += [f"--junitxml={report}", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=60"]
            command += ["-W", "default", "--maxfail=25", "--durations=5"]  # a library's new warning is no failure here
            code, text, seconds = visit.call(command, limit)
            detail, failures = junit(report)
        yield Outcome("tests", path.stem, seconds, status(code), detail or last_line(text), failures), text


def junit(report: Path) -> tuple[str, list[str]]:
    """Return the counts of pytest's report, and its failures by name with their first line."""
    if not report.exists():
        return "", []
    suite = next(ElementTree.parse(report).getroot().iter("testsuite"))
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    failures = [
        f"{case.get('name')}: {(trouble.get('message') or '').strip().partition(chr(10))[0][:200]}"
        for case in suite.iter("testcase")
        for trouble in (*case.findall("failure"), *case.findall("error"))
    ]
    passed = counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"]
    return f"{passed} passed, {len(failures)} failed, {counts['skipped']} skipped", failures


def _sanitizer(visit: Visit, arguments: argparse.Namespace, folder: Path) -> Results:
    tool = find_sanitizer()
    if tool is None:
        yield Outcome("sanitizer", "all", 0.0, "not run", "compute-sanitizer is not installed here"), ""
        return
    for name in _TOOLS:
        limit = visit.left(arguments.sanitizer)
        if limit < 3 * _LEAST:
            yield Outcome("sanitizer", name, 0.0, "not run", "no time was left"), ""
            continue
        inner = [sys.executable, "-m", "benchmarks.small_shapes", "--seconds", f"{limit - 2 * _LEAST:.0f}"]
        options = ["--tool", name, "--error-exitcode", str(_FOUND), "--print-limit", "20"]
        options += ["--report-api-errors", "no"] if name == "memcheck" else []  # CuPy tries calls that may fail
        code, text, seconds = visit.call([tool, *options, *inner], limit)
        failures = [found for found in text.splitlines() if "ERROR SUMMARY" in found or "WRONG" in found]
        detail = next((found for found in text.splitlines() if " calls of " in found), last_line(text))
        yield Outcome("sanitizer", name, seconds, status(code), detail, failures if code else []), text


def find_sanitizer() -> str | None:
    """Return compute-sanitizer's path: from PATH, CUDA's folders, or a package of NVIDIA's in this environment."""
    found = shutil.which("compute-sanitizer")
    if found is not None:
        return found
    folders = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    packages = Path(sysconfig.get_path("purelib"), "nvidia")
    places = [folder / "bin" for folder in (*folders, Path("/usr/local/cuda"))]
    places += [folder / "compute-sanitizer" for folder in (*folders, Path("/usr/local/cuda"))]
    places += sorted(path.parent for path in packages.rglob("compute-sanitizer")) if packages.is_dir() else []
    for place in places:
        candidate = place / "compute-sanitizer"
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return str(candidate)
    return None


def _layers(visit: Visit, arguments: argparse.Namespace, folder: Path) -> Results:
    """Measure until the time is up; where a kernel broke the process, go on with what follows it in a new one."""
    target = ["--json", str(folder / "gpu.json"), "--picture", str(folder / "gpu.png")]
    end = visit.deadline - (0 if "host" in arguments.skip else arguments.host)
    for attempt in range(_RESUMES):
        limit = end - time.monotonic()
        if limit < 3 * _LEAST:
            yield Outcome("layers", "all", 0.0, "not run", "no time was left"), ""
            return
        command = [sys.executable, "-m", "benchmarks", "gpu", "--budget", f"{limit - 3 * _LEAST:.0f}", *target]
        command += ["--resume"] * bool(attempt) + arguments.layers_arguments
        code, text, seconds = visit.call(command, limit)
        name = "all" if attempt == 0 else f"resumed, {attempt}"
        yield Outcome("layers", name, seconds, status(code), last_line(text)), text
        if code is None or not (code == _LOST or code < 0):
            return


def _host(visit: Visit, arguments: argparse.Namespace, folder: Path) -> Results:
    limit = visit.left()
    if limit < _LEAST:
        yield Outcome("host", "calls", 0.0, "not run", "no time was left"), ""
        return
    code, text, seconds = visit.call(
        [sys.executable, "-m", "benchmarks", "host", "--json", str(folder / "host.json")], limit
    )
    yield Outcome("host", "calls", seconds, status(code), last_line(text)), text


_PARTS = {"compile": _compile, "tests": _tests, "sanitizer": _sanitizer, "layers": _layers, "host": _host}


def status(code: int | None) -> str:
    """Return in words how a command ended."""
    if code is None:
        return "timed out"
    return "failed" if code else "passed"


def last_line(text: str) -> str:
    """Return the last line of an output that says anything."""
    return next((found.strip()[:160] for found in reversed(text.splitlines()) if found.strip()), "")


def line(outcome: Outcome) -> str:
    """Return one line of the table."""
    return f"{outcome.part:10} {outcome.name:28} {outcome.status:10} {outcome.seconds:6.1f} s  {outcome.detail}"


def _write(path: Path, outcomes: list[Outcome]) -> None:
    path.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1) + "\n", encoding="utf-8")


def _print(outcomes: list[Outcome], shown: str, log: Path) -> None:
    lines = shown.rstrip().splitlines()
    print("", *lines[-_LINES_SHOWN:], "", sep="\n")
    for outcome in outcomes:
        for failure in outcome.failures[:10]:
            print(f"FAILED {outcome.part} {outcome.name}: {failure}")
    print("", *map(line, outcomes), sep="\n")
    print(f"everything is in {log}")


if __name__ == "__main__":
    sys.exit(main())
