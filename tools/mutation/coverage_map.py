"""Which tests execute which lines of gpuconv, and how long each takes: measured by coverage.py in one run of the tests.

Each test is a dynamic context of coverage.py. Caches of functions (`functools.cache`) are cleared before each test, so
that a test also counts for lines whose results an earlier test has cached. Lines executed in a child process count for
the test that started it, if the process inherits the environment and exits normally: one that is killed, or ends by
`os._exit` as forks of multiprocessing do, records nothing. Tests that fail, are skipped or are expected to fail are
left out.

The map is a coverage data file (SQLite) in the folder `.mutation` of the checkout, which git ignores. Its name is a
hash of the files that tests execute, so any change to them requires a new run.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.mutation.lines import Lines
from tools.mutation.working_copy import ROOT, start_pytest, wait, working_copy

if TYPE_CHECKING:
    import pytest

FOLDER = ROOT / ".mutation"
_SEEN = ("gpuconv", "tests", "kernels_cu", "emulated_cuda", "benchmarks", "pyproject.toml")
_TEST = "MUTATION_TEST"  # environment variable with the running test, for coverage.py in processes that it starts
_LEAST = 0.01  # seconds of overhead per test, added to the measured time


class CoverageMap:
    """The tests of each line, read from a file of `measured`; ``seconds`` has the duration of each test."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.seconds: dict[str, float] = dict(self._rows("SELECT test, seconds FROM duration"))
        self._executed: Counter[str] = Counter()  # lines of each test
        for test, bits in self._rows("SELECT context, numbits FROM line_bits JOIN context ON context.id = context_id"):
            self._executed[test] += _number(bits).bit_count()

    def _rows(self, query: str, *values: str) -> list[Any]:
        with closing(sqlite3.connect(self._path)) as database:  # forked processes must not share a connection
            return database.execute(query, values).fetchall()

    def tests(self, lines: Lines) -> list[str]:
        """Return the tests that execute any of the lines, the most promising first.

        Quick tests that execute few lines come first, and each test function once before its further parameters.
        """
        query = (
            "SELECT context, numbits FROM line_bits JOIN context ON context.id = context_id "
            "JOIN file ON file.id = file_id WHERE path LIKE ?"
        )
        found = set()
        for module, wanted in lines.items():
            mask = sum(1 << line for line in wanted)
            rows = self._rows(query, f"%/checkout/gpuconv/{module}")
            found |= {test for test, bits in rows if test in self.seconds and _number(bits) & mask}
        return self._ordered(found)

    def _ordered(self, tests: Iterable[str]) -> list[str]:
        functions: Counter[str] = Counter()
        rounds: dict[str, int] = {}
        by_cost = sorted(tests, key=lambda test: ((self.seconds[test] + _LEAST) * self._executed[test], test))
        for test in by_cost:
            function = test.partition("[")[0]
            rounds[test], functions[function] = functions[function], functions[function] + 1
        return sorted(by_cost, key=lambda test: rounds[test])  # stable


def _number(bits: bytes) -> int:
    """Return coverage.py's set of line numbers as an integer with these bits."""
    return int.from_bytes(bits, "little")


# ---------------------------------------------------------------- measuring


def measured(folders: Sequence[str], emulated: bool, jobs: int) -> CoverageMap:
    """Return the map of the tests in some folders; run them unless there is a file for the current content.

    Tests that run kernels on the emulated device are included if ``emulated``. ``jobs`` processes share the tests.
    """
    path = FOLDER / f"{_key(folders, emulated)}.sqlite"
    if not path.is_file():
        FOLDER.mkdir(exist_ok=True)
        with working_copy() as root:
            _measure(root, path, folders, emulated, jobs)
    return CoverageMap(path)


def _key(folders: Sequence[str], emulated: bool) -> str:
    digest = hashlib.sha256(repr((sorted(folders), emulated, sys.version)).encode())
    for path in _files():
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:20]


def _files() -> Iterator[Path]:
    for name in _SEEN:
        for path in sorted([ROOT / name, *(ROOT / name).rglob("*")]):
            if path.is_file() and not {"__pycache__", "_build"} & set(path.parts):
                yield path


def _measure(root: Path, path: Path, folders: Sequence[str], emulated: bool, jobs: int) -> None:
    from coverage import CoverageData

    files = sorted(str(one.relative_to(root)) for folder in folders for one in _modules(root / folder))
    start, cpu = time.monotonic(), _cpu_seconds()
    parts = [root.parent / f"part{number}" for number in range(jobs)]
    for part in parts:
        part.mkdir()
    processes = [
        start_pytest(
            files[number::jobs],
            part / "log.txt",
            functools.partial(Recorder, root, part, emulated),
            write_bytecode=True,
        )
        for number, part in enumerate(parts)
    ]
    for process, part in zip(processes, parts, strict=True):
        if wait(process) not in (0, 1, 5) or not (part / "seconds.sqlite").is_file():
            sys.exit(f"{(part / 'log.txt').read_text()}\nThe tests do not run without any mutant.")
    whole = CoverageData(basename=str(root.parent / "whole"))
    for part in parts:
        for data in part.glob("lines*"):
            one = CoverageData(basename=str(data))
            one.read()
            whole.update(one)
    whole.close()
    with sqlite3.connect(root.parent / "whole") as database:
        database.execute("CREATE TABLE duration (test TEXT, seconds REAL)")
        for part in parts:
            rows = sqlite3.connect(part / "seconds.sqlite").execute("SELECT test, seconds FROM duration")
            database.executemany("INSERT INTO duration VALUES (?, ?)", rows)
    os.replace(root.parent / "whole", path)
    count = len(CoverageMap(path).seconds)
    print(
        f"baseline: {count} tests in {time.monotonic() - start:.0f} s, {_cpu_seconds() - cpu:.0f} s of CPU", flush=True
    )


def _modules(place: Path) -> list[Path]:
    return [place] if place.is_file() else list(place.rglob("test_*.py"))


def _cpu_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


class Recorder:
    """A pytest plugin that records lines and seconds of each test, and writes both into a folder."""

    def __init__(self, root: Path, folder: Path, emulated: bool) -> None:
        from coverage import Coverage

        settings = folder / "coverage.ini"
        settings.write_text(
            f"[run]\nsource = {root / 'gpuconv'}\ndata_file = {folder / 'lines'}\nparallel = true\n"
            f"core = ctrace\ncontext = ${{{_TEST}}}\n"
        )
        os.environ.update(COVERAGE_PROCESS_START=str(settings), COVERAGE_CORE="ctrace")
        self._coverage = Coverage(data_file=str(folder / "lines"), config_file=False, source=[str(root / "gpuconv")])
        self._emulated, self._folder = emulated, folder
        self._seconds: dict[str, float] = {}
        self._unusable: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if not self._emulated:
            items[:] = [item for item in items if not runs_kernels(item)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed or hasattr(report, "wasxfail"):
            self._unusable.add(report.nodeid)

    def pytest_runtestloop(self) -> None:
        self._coverage.start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        clear_caches()
        os.environ[_TEST] = nodeid
        self._coverage.switch_context(nodeid)
        self._seconds[nodeid] = -time.perf_counter()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._seconds[nodeid] += time.perf_counter()
        self._coverage.switch_context("")

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        self._coverage.save()
        usable = [(test, seconds) for test, seconds in self._seconds.items() if test not in self._unusable]
        with sqlite3.connect(self._folder / "seconds.sqlite") as database:
            database.execute("CREATE TABLE duration (test TEXT, seconds REAL)")
            database.executemany("INSERT INTO duration VALUES (?, ?)", usable)


def runs_kernels(item: pytest.Item) -> bool:
    """Return whether a test emulates kernels; with the fixture ``sent`` kernels do nothing."""
    return "sent" not in getattr(item, "fixturenames", ()) and any(map(item.get_closest_marker, ("emulator", "gpu")))


_DATA = "gpuconv.rules.cases"  # its cache holds files that are slow to read, and it has no mutants
_cached: dict[str, list[Any]] = {}  # cached functions by module


def clear_caches() -> None:
    """Clear the caches of `functools.cache` and `lru_cache` on functions and methods of gpuconv."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "gpuconv" and name not in (*_cached, _DATA):
            values = list(vars(module).values())
            values += [value for one in values if isinstance(one, type) for value in vars(one).values()]
            _cached[name] = [value for value in values if isinstance(value, functools._lru_cache_wrapper)]
    for functions in _cached.values():
        for function in functions:
            function.cache_clear()
