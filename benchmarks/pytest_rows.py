"""pytest plugin that logs each test as a row of a GPU run, and skips tests whose rows have ended.

    python -m pytest -p benchmarks.pytest_rows --rows FILE --step NAME …

If a test makes this process lose its CUDA context, the process exits, as no later test could pass; another continues.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from benchmarks.progress import Rows, spread
from benchmarks.supervision import LOST
from gpuconv.cuda.call import device

_NO_TESTS = 5  # pytest's exit code
_SEND_SECONDS = 0.5  # seconds for a report to reach the process that collects them


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this plugin."""
    group = parser.getgroup("rows")
    group.addoption("--rows", type=Path, required=True, metavar="FILE", help="append a row per test to FILE")
    group.addoption("--step", required=True, help="name of the step in these rows")
    group.addoption("--most", type=int, metavar="N", help="run only N tests, evenly spaced over the files")


class Reporter:
    """Writes the rows; with pytest-xdist, in the controller, which collects all reports."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._found: dict[str, tuple[str, str]] = {}  # status and detail of tests before their teardown

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Begin a row."""
        next(self._rows.left([nodeid]), None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """End a row with the first phase that did not pass."""
        status, detail = self._found.pop(report.nodeid, ("passed", ""))
        if status == "passed":
            status, detail = report.outcome, _first_line(report)
        if report.when in ("setup", "call"):
            self._found[report.nodeid] = (status, detail)
        else:  # the teardown, or the single report of a test whose process was lost
            self._rows.end(report.nodeid, status, detail=detail)


class Watcher:
    """Exits the process if the CUDA context is lost, after its last report was sent."""

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Check the CUDA context after a failure."""
        if report.failed and device.unavailable_reason() is None and not alive():
            print("the CUDA context of this process is lost", flush=True)
            time.sleep(_SEND_SECONDS)
            os._exit(LOST)


def alive() -> bool:
    """Return whether the CUDA context still works; after an illegal access it fails until the process ends."""
    import cupy  # type: ignore[import-not-found]

    try:
        cupy.cuda.Device().synchronize()
    except cupy.cuda.runtime.CUDARuntimeError:
        return False
    return True


def _first_line(report: pytest.TestReport) -> str:
    """Return the first line of a failure's message, or ""."""
    if not report.failed:
        return ""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else report.longrepr)
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:300]


def pytest_configure(config: pytest.Config) -> None:
    """Register the reporter in the controller, and a watcher in each process that runs tests without a controller."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Reporter(_rows(config)), "rows of a visit")
    if hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(Watcher(), "watcher of the device")


@pytest.hookimpl(trylast=True)  # after the selection by marks and tiers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests whose rows have ended.

    All processes select the same tests, as rows are written only after all have collected.
    """
    ended = _rows(config).ended
    left = {item: None for item in spread(items, config.getoption("--most")) if item.nodeid not in ended}
    config.hook.pytest_deselected(items=[item for item in items if item not in left])
    items[:] = left


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Exit successfully if no test is left to run."""
    if exitstatus == _NO_TESTS:
        session.exitstatus = 0


def _rows(config: pytest.Config) -> Rows:
    return Rows(config.getoption("--rows"), config.getoption("--step"))
