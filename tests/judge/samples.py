"""A few of the suite's problems, written once for all tests of a process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from unittest import mock

from gpuconv.judge import cases, problems, suite
from gpuconv.judge.problems import Problem
from gpuconv.judge.verdicts import Test

NAMES = (
    "conv/1d/SAME_LOWER with an odd total",
    "conv/1d/infinite weights on padding",
    "conv/2d/a bias",
    "conv_transpose/1d/output_shape above natural",
    "conv_transpose/1d/SAME_UPPER with an odd total",
    "max_pool/1d/NaN",
    "max_pool/1d/ties",
    "max_pool/1d/pads beyond the kernel",
    "max_pool/2d/NaN of many payloads and both signs",
    "average_pool/1d/an overhang beside pads that count",
    "average_pool/1d/pads beyond the kernel",
    "max_unpool/1d/a larger output_shape",
    "max_pool/1d/subnormals",
)


def sample() -> Iterator[Problem]:
    for number, case in enumerate(cases.CASES):
        if case.name in NAMES:
            yield from problems.of_case(case, number)


def problem(name: str, dtype: str = "float32", indices: bool = False) -> Problem:
    """Return the problem of a case at its newest opset."""
    (case,) = (case for case in cases.CASES if case.name == name)
    return Problem(case, dtype, problems.opsets(case, dtype, indices)[-1], indices)


def written(one: Problem, folder: Path) -> Test:
    suite.store(folder, suite.files(one))
    return Test(folder / one.name)


@cache
def _suite() -> Path:
    folder = Path(mkdtemp()) / "suite"
    with mock.patch.object(suite, "problems", return_value=sample()):
        suite.write(folder, 0, None, lambda name: None)
    return folder


def copied_suite(folder: Path) -> Path:
    """Copy the suite of these problems, which is written once, into a folder; return its path."""
    return Path(shutil.copytree(_suite(), folder / "suite"))


@cache
def tests() -> tuple[Test, ...]:
    folder = Path(mkdtemp())
    return tuple(written(one, folder) for one in sample())
