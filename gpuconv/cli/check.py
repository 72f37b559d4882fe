"""The command ``gpuconv check``: runs the named cases and ONNX's own tests on every available backend."""

from __future__ import annotations

import argparse
import importlib.util
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import gpuconv
from gpuconv import cuda
from gpuconv._errors import printable
from gpuconv.cli.compare import Mismatch, exactly
from gpuconv.cli.terminal import CommandError, Progress, as_json, table
from gpuconv.rules import cases

_FAILURES_SHOWN = 20


class Skip(Exception):
    """A check cannot run on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison: ``run`` returns the largest error in units of its bound (0 if exact), or raises."""

    group: str
    name: str
    backend: str
    run: Callable[[], float]

    def __str__(self) -> str:
        return f"{self.group}: {self.name} ({self.backend})"


@dataclass(slots=True)
class Tally:
    """The outcomes of one group's checks on one backend."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    worst: float = 0.0

    def row(self, group: str, backend: str) -> list[str]:
        """Return the cells of this group's row in the table."""
        counts = [self.passed + self.failed + self.skipped, self.passed, self.failed, self.skipped]
        worst = "exact" if self.worst == 0 else f"{self.worst:.2g} of bound"
        return [group, backend, *map(str, counts), worst if self.passed else "-"]


@dataclass(slots=True)
class Report:
    """All outcomes of one run: tallies by (group, backend), messages of failures, and reasons for skips."""

    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    skips: Counter[str] = field(default_factory=Counter)

    def count(self, check: Check) -> None:
        """Run one check and record its outcome; any exception except Skip is a failure."""
        tally = self.tallies.setdefault((check.group, check.backend), Tally())
        try:
            tally.worst = max(tally.worst, check.run())
            tally.passed += 1
        except Skip as reason:
            tally.skipped += 1
            self.skips[str(reason)] += 1
        except Mismatch as error:
            tally.failed += 1
            self.failures.append(f"{check}: {error}")
        except Exception as error:
            tally.failed += 1
            self.failures.append(f"{check}: raised {type(error).__name__}: {error}")

    def total(self, outcome: str) -> int:
        """Return how many checks have an outcome ("passed", "failed" or "skipped"), over all groups and backends."""
        return sum(getattr(tally, outcome) for tally in self.tallies.values())


def cuda_missing() -> str | None:
    """Return why the CUDA backend is not available, or None if it is."""
    reason = cuda.runtime.unavailable_reason()
    return None if reason is None else f"no CUDA device was found ({reason})"


def command(arguments: argparse.Namespace) -> int:
    """Run the checks selected by ``--backend`` and ``--filter``, and print the table; return 0 if all pass, or 1."""
    backends, notes = _backends(arguments.backend)
    report = Report()
    with Progress() as progress:
        checks, missing = _collect(backends, arguments.filter, progress)
        for number, check in enumerate(checks, 1):
            progress.show(f"{number}/{len(checks)} {check}")
            report.count(check)
    if not checks:
        raise CommandError(f"check: no check's name contains {arguments.filter!r}")
    if arguments.json:
        print(as_json(_facts(report, notes + missing)))
        return _code(report)
    return _print(report, notes + missing)


def _backends(wanted: str | None) -> tuple[list[str], list[str]]:
    reason = cuda_missing()
    if wanted == "cuda" and reason is not None:
        raise CommandError(f"check: the cuda backend cannot be checked here: {reason}")
    if wanted is not None:
        return [wanted], []
    return (["cpu", "cuda"], []) if reason is None else (["cpu"], [f"cuda: {reason}"])


def _collect(backends: list[str], wanted: str, progress: Progress) -> tuple[list[Check], list[str]]:
    progress.show("reading the cases")
    checks = [check for backend in backends for check in _named(backend)]
    missing = []
    if importlib.util.find_spec("onnx") is None:
        missing.append("ONNX's tests: onnx is not installed (pip install 'gpuconv[onnx]')")
    else:
        from gpuconv.cli import check_onnx

        progress.show("reading ONNX's tests")
        models, missing = check_onnx.models()
        checks += [
            Check(model.group, model.name, backend, partial(check_onnx.compare, model, backend))
            for backend in backends
            for model in models
        ]
    return [check for check in checks if wanted in str(check)], missing


def _named(backend: str) -> Iterator[Check]:
    for case in cases.CASES:
        for dtype in case.dtypes:
            yield Check(case.op, f"{case.name} {dtype}", backend, partial(_compare_case, case, dtype, backend))


def _compare_case(case: cases.Case, dtype: str, backend: str) -> float:
    if dtype == "bfloat16" and importlib.util.find_spec("ml_dtypes") is None:
        raise Skip("ml_dtypes is not installed, which bfloat16 needs")
    arrays = cases.inputs(case, dtype)
    expected = cases.expected(case, dtype)
    if backend == "cuda":
        arrays = {name: gpuconv.to_device(a) for name, a in arrays.items()}
    if case.op != "max_pool":
        operator = getattr(gpuconv, case.op)
        exactly("y", gpuconv.to_host(operator(**arrays, **case.attributes)), expected[0])
        return 0.0
    x = arrays["x"]
    y, indices = gpuconv.max_pool(x, **case.attributes, return_indices=True)
    exactly("y", gpuconv.to_host(y), expected[0], bits=True)
    exactly("indices", gpuconv.to_host(indices), expected[1])
    exactly("y without indices", gpuconv.to_host(gpuconv.max_pool(x, **case.attributes)), expected[0])
    return 0.0


def _facts(report: Report, notes: Iterable[str]) -> dict[str, Any]:
    """Return the report for JSON output, with all failures."""
    groups = [
        {"group": group, "backend": backend, **asdict(tally)} for (group, backend), tally in report.tallies.items()
    ]
    return {
        "gpuconv": gpuconv.__version__,
        "groups": groups,
        "failures": report.failures,
        "skipped": dict(report.skips),
        "not_checked": list(notes),
    }


def _code(report: Report) -> int:
    return 0 if report.total("passed") and not report.total("failed") else 1


def _print(report: Report, notes: Iterable[str]) -> int:
    header = ["group", "backend", "cases", "passed", "failed", "skipped", "worst error"]
    print(table(header, [tally.row(*key) for key, tally in report.tallies.items()], left=2))
    for reason, count in report.skips.items():
        print(f"skipped {count}: {reason}")
    for note in notes:
        print(f"not checked: {note}")
    for failure in report.failures[:_FAILURES_SHOWN]:
        print(f"FAILED {printable(failure)}")
    if len(report.failures) > _FAILURES_SHOWN:
        print(f"… and {len(report.failures) - _FAILURES_SHOWN} more failures; --filter shows them by name")
    passed, failed = report.total("passed"), report.total("failed")
    if failed:
        print(f"gpuconv {gpuconv.__version__}: {failed} of {passed + failed} checks FAILED")
    elif not passed:
        print(f"gpuconv {gpuconv.__version__}: NOTHING was checked")
    else:
        print(f"gpuconv {gpuconv.__version__}: all {passed} checks passed")
    return _code(report)
