"""A plugin of pytest: every test is a row of a visit, and tests whose rows have ended are not run again.

    python -m pytest -p benchmarks.pytest_rows --rows FILE --step NAME …

Where a test has cost its process the device, the process ends, as no later test could pass; another one goes on.
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
_SENDING = 0.5  # seconds until a report of this process is where it is gathered


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("rows")
    group.addoption("--rows", type=Path, required=True, metavar="FILE")
    group.addoption("--step", required=True)
    group.addoption("--most", type=int, metavar="N", help="only N tests, from the first file to the last")


class Reporter:
    """Writes the rows; of several processes the one that gathers what the others report."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._found: dict[str, tuple[str, str]] = {}  # status and detail of tests that have not been torn down

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Begin a row."""
        next(self._rows.left([nodeid]), None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """End a row with the first phase that did not pass."""
        status, detail = self._found.pop(report.nodeid, ("passed", ""))
        if status == "passed":
            status, detail = report.outcome, _said(report)
        if report.when in ("setup", "call"):
            self._found[report.nodeid] = (status, detail)
        else:  # the teardown, or what stands for all of a test whose process was lost
            self._rows.end(report.nodeid, status, detail=detail)


class Watcher:
    """Ends a process that has no device any more, after what it found was reported."""

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Look at the device after a failure."""
        if report.failed and device.unavailable_reason() is None and not alive():
            print("the device does not answer this process any more", flush=True)
            time.sleep(_SENDING)
            os._exit(LOST)


def alive() -> bool:
    """Tell whether the device still answers: after an illegal access it does not until the process ends."""
    import cupy  # type: ignore[import-not-found]

    try:
        cupy.cuda.Device().synchronize()
    except cupy.cuda.runtime.CUDARuntimeError:
        return False
    return True


def _said(report: pytest.TestReport) -> str:
    """Return the line that says what was wrong."""
    if not report.failed:
        return ""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else report.longrepr)
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:300]


def pytest_configure(config: pytest.Config) -> None:
    """Let one process write, and every one watch its own device."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Reporter(_rows(config)), "rows of a visit")
    if hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(Watcher(), "watcher of the device")


@pytest.hookimpl(trylast=True)  # behind marks and the tiers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what has ended; every process finds the same, as rows are written only after all have collected."""
    ended = _rows(config).ended
    left = {item: None for item in spread(items, config.getoption("--most")) if item.nodeid not in ended}
    config.hook.pytest_deselected(items=[item for item in items if item not in left])
    items[:] = left


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Take it for success that no test is left."""
    if exitstatus == _NO_TESTS:
        session.exitstatus = 0


def _rows(config: pytest.Config) -> Rows:
    return Rows(config.getoption("--rows"), config.getoption("--step"))
