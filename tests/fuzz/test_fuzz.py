"""Run the first cases of every fuzzer (more with --thorough), and test the framework on planted faults."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.fuzz import frame, loading
from tests.fuzz.itself import FAULTS, FUZZER

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers that interrupt"),
]


def _fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.parametrize(
    ("fuzzer", "count"),
    [
        *[("api", 1000), ("onnx", 400), ("operators", 800), ("interrupts", 100)],
        pytest.param("api", 6000, marks=pytest.mark.thorough),
        pytest.param("onnx", 2000, marks=pytest.mark.thorough),
        pytest.param("operators", 4000, marks=pytest.mark.thorough),
        pytest.param("interrupts", 400, marks=pytest.mark.thorough),
    ],
)
def test_no_case_is_a_finding(fuzzer: str, count: int) -> None:
    done = _fuzz(fuzzer, "--seed", "1", "--count", str(count), "--seconds", "500")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} cases" in done.stdout


# ---------------------------------------------------------------- the framework


SEED, CASES = "607", 40  # these cases include every planted fault


def test_every_planted_fault_is_found_and_told_apart() -> None:
    done = _fuzz("itself", "--seed", SEED, "--count", str(CASES), "--seconds", "100")
    assert done.returncode == 1, done.stderr
    found = re.findall(r"^FINDING \((\d+) cases\): (.*)$", done.stdout, re.MULTILINE)
    faults = [FUZZER().case(frame.random_of(int(SEED), number))[0] for number in range(CASES)]
    assert {key: int(count) for count, key in found} == {
        "a planted fault": faults.count("wrong"),
        "KeyError": faults.count("error"),
        "the process died (SIGABRT)": faults.count("dies"),
        "the process died (exit status 3)": faults.count("exits"),
        "no end after 2 s": faults.count("hangs"),
    }
    assert set(faults) == set(FAULTS)
    assert "1 past its time" in done.stdout
    assert f"{CASES} cases in" in done.stdout
    assert re.search(r"smaller:\n +\('wrong', 2\)\n", done.stdout)


def test_a_case_alone_is_the_one_that_was_found() -> None:
    cases = [FUZZER().case(frame.random_of(int(SEED), number)) for number in range(CASES)]
    wrong, right = (next(n for n, (fault, _) in enumerate(cases) if fault == kind) for kind in ("wrong", "none"))
    done = _fuzz("itself", "--seed", SEED, "--only", str(wrong))
    assert done.returncode == 1
    assert repr(cases[wrong]) in done.stdout
    assert "Wrong: a planted fault" in done.stderr
    assert _fuzz("itself", "--seed", SEED, "--only", str(right)).returncode == 0


def test_the_time_ends_a_run() -> None:
    done = _fuzz("itself", "--seed", SEED, "--seconds", "0.1", "--first", "1000000")
    assert re.search(r"^itself, seed 607: \d+ cases in ", done.stdout, re.MULTILINE)


def test_ctrl_c_ends_a_run_with_its_summary() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "api", "--seed", "1", "--seconds", "100"]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # background processes of a shell ignore SIGINT
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, preexec_fn=heard)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("cases of api")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert re.search(r"^api, seed 1: \d+ cases in ", output, re.MULTILINE)


# ---------------------------------------------------------------- the comparison of models' results


def test_models_are_judged_by_what_is_determined() -> None:
    inf, nan = float("inf"), float("nan")
    pairs = [([inf, 1.0], [-inf, 1.0], ()), ([2.0, nan], [nan, nan], ("Conv", "Resize"))]
    for got, want, operators in pairs:  # the sign of a zero's reciprocal; NaN times an interpolation weight of 0
        loading._compare("y", np.float32(got), np.float32(want), frozenset(operators))
    for got, want in [([inf, 1.0], [1.0, 1.0]), ([2.0, nan], [nan, nan]), ([2.0], [2.01]), ([2.0], [nan])]:
        with pytest.raises(frame.Wrong):
            loading._compare("y", np.float32(got), np.float32(want), frozenset({"Conv"}))
