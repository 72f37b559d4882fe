"""Check many rows in one test and report every row that fails, not only the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

Row = Callable[[object], AbstractContextManager[None]]


@contextmanager
def every_row(inputs: object = "") -> Iterator[Row]:
    """Yield a context manager for one row, which collects its failure so that later rows are still checked.

    Parameters
    ----------
    inputs
        Description of what all rows share, such as a named case; printed once above the failed rows.

    Raises
    ------
    AssertionError
        At the end, if any row failed: names and messages of all failed rows, and the traceback of the first.

    Examples
    --------
    >>> with every_row("a sum") as row:
    ...     for dtype in ("float32", "float64"):
    ...         with row(dtype):
    ...             assert np.ones(3, dtype).sum() == 3
    """
    rows: list[object] = []
    failures: list[tuple[object, BaseException]] = []

    @contextmanager
    def row(name: object) -> Iterator[None]:
        rows.append(name)
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            failures.append((name, error))

    yield row
    assert rows, f"no row was checked: {inputs}"
    if failures:
        lines = [f"{name}: {type(error).__name__}: {error}" for name, error in failures]
        text = "\n\n".join((f"{len(failures)} of {len(rows)} rows failed: {inputs}", *lines))
        raise AssertionError(text) from failures[0][1]
