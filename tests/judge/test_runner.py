"""Targets that crash, hang or refuse; what is reported about them; programs that reproduce findings without gpuconv."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuconv.cli.main import main
from gpuconv.judge import runner, suite, verdicts
from gpuconv.judge.findings import report
from tests.judge.samples import copied_suite, problem, sample, written

pytestmark = pytest.mark.slow

Run = Callable[..., str]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nobody"], "judge: there is no target 'nobody', only backend, command, "),
        ([], "judge: a TARGET is missing (gpuconv judge --list shows them)"),
        (["backend"], "judge: backend needs more: backend:MODULE"),
        (["reference", "--suite", "/nowhere"], "judge: /nowhere is no suite ("),
        (["reference", "--time-limit", "0"], "argument --time-limit: '0' is not a positive number of seconds"),
        (["reference", "--time-limit", "٣"], "argument --time-limit: '٣' is not a positive number of seconds"),
    ],
)
def test_wrong_words(words: list[str], message: str, error: Run) -> None:
    assert error("judge", *words).startswith(message)


def test_a_target_that_is_not_there(error: Run, few: Path) -> None:
    line = error("judge", "backend:no_such_backend", "--suite", few)
    assert line.startswith("judge: backend:no_such_backend cannot be judged here: ModuleNotFoundError: No module named")
    assert error("judge", "reference", "--suite", few, "--filter", "q") == "judge: no test's name contains 'q'"
    told = {
        "command:/no/such/program": "there is no program '/no/such/program'",
        "backend:json": "the module json has no function prepare",
        "onnxruntime:NoProvider": "it has no provider 'NoProvider', only ",
    }
    for target, message in told.items():
        assert message in error("judge", target, "--suite", few)
    assert "--suite names one that is there" in error("judge", "reference", "--suite", few, "--seed", "3")


def test_a_target_that_refuses_everything_does_not_pass(few: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["judge", "command:sh -c 'echo not today >&2; exit 1'", "--suite", str(few), "--filter", "conv_1d"]
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert err == "gpuconv: error: judge: nothing was judged: every test was refused, the first for: not today\n"
    assert out.startswith("refused: ")


def test_a_target_that_cannot_start_again_crashes_in_every_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "starts_once.py").write_text(
        "import os, pathlib\n"
        "mark = pathlib.Path(__file__).with_name('mark')\n"
        "if mark.exists(): raise ImportError('once is enough')\n"
        "def prepare(model, device): mark.touch(); os.abort()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    names = ("conv/1d/SAME_LOWER with an odd total", "conv/2d/a bias", "conv/1d/infinite weights on padding")
    tests = [written(problem(name), tmp_path / "tests") for name in names]
    outcomes = runner.run("backend:starts_once", tests, 30, 1, lambda outcome: None)
    assert [outcome.verdict.kind for outcome in outcomes] == ["crashes"] * 3
    assert outcomes[2].verdict.reason == "ImportError: once is enough"


@pytest.fixture
def few(tmp_path: Path) -> Path:
    return copied_suite(tmp_path)


def test_gpuconv_agrees_with_all_of_a_few_tests(few: Path, ok: Run) -> None:
    last = ok("judge", "gpuconv", "--suite", few).splitlines()[-1]
    count = len(list(sample()))
    assert last.endswith(
        f": {count} tests, {count} agrees, 0 differs, 0 inconsistent, 0 wrong, 0 refuses, 0 crashes, 0 hangs"
    )


def test_the_reference_is_found_wrong_and_told_why(
    few: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "judge",
        "reference",
        "--suite",
        str(few),
        "--report",
        str(tmp_path / "report"),
        "--json",
        "--operator",
        "max_pool",
    ]
    assert main(words) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["version"].startswith("onnx.reference ")
    assert {row["rule"] for row in facts["rules"]} >= {"MaxPool of NaN"}
    nan = [finding for finding in facts["findings"] if finding["rule"] == "MaxPool of NaN"]
    assert {finding["verdict"] for finding in nan} == {"inconsistent"}
    text = (tmp_path / "report" / "report.md").read_text()
    assert "## MaxPool: inconsistent (MaxPool of NaN)" in text
    program = tmp_path / "report" / nan[0]["file"]
    assert program.read_text().rstrip() in text
    assert len(program.read_text().splitlines()) <= 30
    done = _without_gpuconv(program)
    assert (done.returncode, done.stderr) == (0, "")
    got, expected = (line.split(maxsplit=1)[1] for line in done.stdout.splitlines()[:2])
    assert "nan" in expected
    assert got != expected
    assert len(program.read_text()) < 2_000  # a small reproducer is shown


def _without_gpuconv(program: Path) -> subprocess.CompletedProcess[str]:
    code = f"import runpy, sys; sys.modules['gpuconv'] = None; runpy.run_path({str(program)!r})"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_wrong_answers_are_explained(tmp_path: Path) -> None:
    """Named are the upper half of the padding instead of the lower, and exchanged pads."""
    one = problem("conv/1d/SAME_LOWER with an odd total")
    test = written(one, tmp_path)
    other = suite.answer(one, {"auto_pad": "SAME_UPPER"})
    assert verdicts.judge(test, other.outputs).kind == verdicts.WRONG
    assert report.explanations_of(one, test, other.outputs)[0] == "SAME_UPPER and SAME_LOWER exchanged"
    assert report.explanations_of(one, test, [other.outputs[0] + 1]) == []


def test_rules_that_fail_by_one_explanation_are_one_finding(tmp_path: Path) -> None:
    """Indices within each plane also make tests of ties and of NaN fail, if these have two channels."""
    problems = []
    for name in ("max_pool/1d/ties", "max_pool/1d/NaN"):
        one = problem(name, indices=True)
        problems.append(replace(one, case=replace(one.case, x_shape=(1, 2, *one.case.x_shape[2:]))))
    outcomes = []
    for one in problems:
        y, indices = suite.answer(one).outputs
        got = y, np.where(indices < 0, indices, indices % one.case.x_shape[2])
        outcomes.append(runner.Outcome(written(one, tmp_path), verdicts.Verdict(verdicts.WRONG, "planted"), got))
    found = report.findings(outcomes, {one.name: one for one in problems})
    assert [each.explanation for each in found] == ["indices within each plane"]
    assert found[0].also == ("MaxPool of NaN (1)",)


def test_combinations_are_listed_under_a_rule_that_takes_part(tmp_path: Path) -> None:
    """case.json names these rules in a list; its sentences are not read."""
    outcomes = []
    for name in ("max_pool/1d/ties", "max_pool/1d/plain", "max_pool/1d/dilation"):
        test = written(problem(name, indices="ties" in name), tmp_path)
        outcomes.append(runner.Outcome(test, verdicts.Verdict(verdicts.WRONG, "planted")))
    about = {"rule": "combination: strides and pads", "sentence": "These: MaxPool ties; sizes."}
    for outcome, rules in zip(outcomes[1:], (["sizes", "MaxPool ties"], ["sizes", "MaxPool padding"]), strict=True):
        outcome.test.facts.update(about, rules=rules)
    found = report.findings(outcomes[:2], {})
    assert [each.also for each in found] == [("combination: strides and pads (1)",)]
    assert [each.also for each in report.findings([outcomes[0], outcomes[2]], {})] == [(), ()]


def test_a_command_is_called_with_two_folders(tmp_path: Path) -> None:
    program = tmp_path / "target.py"
    program.write_text(
        "import sys, shutil, pathlib\n"
        "test, outputs = map(pathlib.Path, sys.argv[1:])\n"
        "shutil.copy(test / 'test_data_set_0' / 'input_0.pb', outputs / 'output_0.pb')\n"
    )
    identity = written(problem("max_pool/1d/one element"), tmp_path)
    tests = [identity, *(written(problem(f"max_pool/1d/{name}"), tmp_path) for name in ("dilation", "plain"))]
    outcomes = runner.run(f"command:{sys.executable} {program}", tests, 30, 2, lambda outcome: None)
    assert [outcome.verdict.kind for outcome in outcomes] == ["agrees", "wrong", "wrong"]
    dead = runner.run("command:sh -c 'kill -11 $$'", tests[:1], 30, 1, lambda outcome: None)
    refused = runner.run("command:sh -c 'echo no >&2; exit 3'", tests[:1], 30, 1, lambda outcome: None)
    assert [dead[0].verdict.kind, refused[0].verdict.kind] == ["crashes", "refuses"]
    assert refused[0].verdict.reason.endswith("no")
    silent = runner.run("command:true", tests[:1], 30, 1, lambda outcome: None)
    garbage = runner.run(
        """command:sh -c 'echo nonsense > "$2/output_0.pb"' sh""", tests[:1], 30, 1, lambda outcome: None
    )
    left = runner.run("command:sh -c 'exit 255'", tests[:1], 30, 1, lambda outcome: None)
    assert silent[0].verdict == verdicts.Verdict(verdicts.CRASHES, "the command ended well, but wrote no output_0.pb")
    assert garbage[0].verdict.kind == verdicts.CRASHES
    assert "what it wrote cannot be read" in garbage[0].verdict.reason
    assert left[0].verdict.kind == verdicts.REFUSES


@pytest.mark.thorough
def test_gpuconv_agrees_with_the_whole_suite(ok: Run) -> None:
    assert (
        ", 0 differs, 0 inconsistent, 0 wrong, 0 refuses, 0 crashes, 0 hangs"
        in ok("judge", "gpuconv", "-j", "2").splitlines()[-1]
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_no_process_behind(number: signal.Signals, tmp_path: Path) -> None:
    """The target hangs in a process of a separate session, and has started another process."""
    copied_suite(tmp_path)
    (tmp_path / "hangs.py").write_text(
        "import os, pathlib, subprocess, sys, time\n"
        "def prepare(model, device):\n"
        "    words = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "    more = subprocess.Popen(words, start_new_session=True)\n"
        "    mark = pathlib.Path(__file__).with_name('mark')\n"
        "    mark.with_suffix('.new').write_text(f'{os.getpid()} {more.pid}')\n"
        "    mark.with_suffix('.new').rename(mark)\n"
        "    time.sleep(600)\n"
    )
    words = [sys.executable, "-m", "gpuconv", "judge", "backend:hangs", "--suite", str(tmp_path / "suite")]
    path = os.pathsep.join([str(tmp_path), *sys.path])

    def heed() -> None:  # in the background, tests may inherit that Ctrl-C is ignored
        signal.signal(number, signal.SIG_DFL)

    judge = subprocess.Popen([*words, "--time-limit", "500"], env={**os.environ, "PYTHONPATH": path}, preexec_fn=heed)
    try:
        left = _once(lambda: (tmp_path / "mark").exists() and (tmp_path / "mark").read_text().split())
        judge.send_signal(number)
        judge.wait(timeout=60)
        assert judge.returncode in (128 + number, -number, 130)
        _once(lambda: not any(map(_runs, left)))
    finally:
        judge.kill()
        judge.wait()


def _once(condition: Callable[[], Any]) -> Any:
    """Wait until a condition holds, up to a minute."""
    end = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def _runs(pid: str) -> bool:
    """Return whether a process exists and is not a zombie."""
    done = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True, check=False)
    return done.stdout.strip()[:1] not in ("", "Z")


def test_the_table_and_the_report_say_why_tests_are_refused(
    few: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = "Error: no such thing as [7] in /usr/lib/x.so"
    words = ["judge", f"command:sh -c 'echo {message} >&2; exit 1'", "--suite", str(few), "--filter", "conv_2d"]
    assert main([*words, "--report", str(tmp_path / "report")]) == 2
    first, _ = capsys.readouterr().out.splitlines()
    assert first.startswith("refused: ")
    assert first.endswith(" conv; most often for: Error: no such thing as in (2)")
    report_row = (tmp_path / "report" / "report.md").read_text().splitlines()[6]
    assert report_row.endswith("|  |  | Error: no such thing as in |")


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (
            "Fail: [RuntimeError] : 1 : FAIL : Exception during initialization: /a/b.cc:3 no rank 4",
            "Fail: FAIL: no rank 4",
        ),
        ("TypeError: Issues with types ['a', 'b'] | more", "TypeError: Issues with types / more"),
        ("NotImplemented: for Conv(22) node with name 'x'", "NotImplemented: for Conv(22) node with name"),
        ("word " * 30, "word " * 11 + "word…"),
    ],
)
def test_refusals_in_few_words(reason: str, expected: str) -> None:
    assert report.short(reason) == expected
