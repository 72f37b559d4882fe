"""Targets that misbehave in every way, damaged suites, failures of the judge itself: each test gets a verdict."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
import pytest

from gpuconv.cli.main import main
from gpuconv.judge import runner, suite, verdicts
from gpuconv.judge.verdicts import AGREES, CRASHES, HANGS, REFUSES, WRONG
from tests.judge.misbehaving import BEFORE, INSTEAD
from tests.judge.samples import copied_suite, problem, written

pytestmark = pytest.mark.slow

Run = Callable[..., str]
PIPE = "the target wrote into the pipe of the replies"
EXPECTED = {  # the verdict and how its reason begins; tests that end the process come last, so that few are started
    "forks": (AGREES, ""),
    "writes into low descriptors": (AGREES, ""),
    "starts a daemon": (AGREES, ""),
    "prints no UTF-8": (AGREES, ""),
    "prints megabytes": (AGREES, ""),
    "changes directory": (AGREES, ""),
    "changes the umask": (AGREES, ""),
    "deletes the test": (AGREES, ""),
    "reads its input": (AGREES, ""),
    "returns an iterator": (AGREES, ""),
    "refuses": (REFUSES, "NotImplementedError: no \\x1b[31mred"),
    "recurses": (REFUSES, "RecursionError: "),
    "is wrong": (WRONG, "output 0[0, 0, 0] is "),
    "returns nothing": (WRONG, "it returned NoneType instead of a list of arrays"),
    "returns text": (WRONG, "output 0 is no array of numbers, but "),
    "returns objects": (WRONG, "output 0 is no array of numbers, but ndarray"),
    "returns too much": (WRONG, "2 outputs, expected 1"),
    "returns a mapping": (WRONG, "it returned dict instead of a list of arrays"),
    "raises SystemExit": (CRASHES, "SystemExit: done"),
    "raises BaseException": (CRASHES, "Ended: all of it"),
    "exits later": (AGREES, ""),
    "closes its streams": (AGREES, ""),
    "exits": (CRASHES, "exit code 0"),
    "aborts": (CRASHES, "SIGABRT"),
    "kills its group": (CRASHES, "SIGKILL"),
    "writes into every descriptor": (CRASHES, PIPE),
    "forges a reply": (CRASHES, PIPE),
    "closes every descriptor": (CRASHES, "exit code 1: OSError: [Errno 9] Bad file descriptor"),
    "closes every descriptor and hangs": (HANGS, "no answer within 5 s"),
    "hangs": (HANGS, "no answer within 5 s"),
}
KEPT = (AGREES, REFUSES, WRONG)  # after these, the process continues with the next test


def _tests(names: Sequence[str], folder: Path) -> list[verdicts.Test]:
    """Write one test many times, with the target's behaviour in the name of the model."""
    one = written(problem("max_pool/1d/one element"), folder)
    tests = []
    for number, name in enumerate(names):
        copy = Path(shutil.copytree(one.folder, folder / f"test_{number}"))
        model = onnx.load(copy / "model.onnx")
        model.graph.name = name
        onnx.save(model, copy / "model.onnx")
        tests.append(verdicts.Test(copy))
    return tests


def _in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process and its children use a folder for temporary files."""
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))


def test_each_target_that_misbehaves_gets_its_verdict_and_no_other_test_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {*BEFORE, *INSTEAD} == {*EXPECTED, "nothing"}
    monkeypatch.setenv("DAEMON", str(tmp_path / "daemon"))
    _in_folder(tmp_path / "temporary", monkeypatch)
    names = [name for each, (kind, _) in EXPECTED.items() for name in ([each, "nothing"] if kind in KEPT else [each])]
    names.append("nothing")
    tests = _tests(names, tmp_path / "suite")
    outcomes = runner.run("backend:tests.judge.misbehaving", tests, 5, 1, lambda outcome: None)
    found = {name: outcome.verdict for name, outcome in zip(names, outcomes, strict=True) if name != "nothing"}
    assert {name: verdict.kind for name, verdict in found.items()} == {
        name: kind for name, (kind, _) in EXPECTED.items()
    }
    assert {name: found[name].reason[: len(reason)] for name, (_, reason) in EXPECTED.items()} == {
        name: reason for name, (_, reason) in EXPECTED.items()
    }
    assert [outcome.test for outcome in outcomes] == tests
    others = {outcome.verdict for name, outcome in zip(names, outcomes, strict=True) if name == "nothing"}
    assert others == {verdicts.Verdict(AGREES)}
    daemon = (tmp_path / "daemon").read_text().strip()
    left = subprocess.run(["ps", "-o", "stat=", "-p", daemon], capture_output=True, text=True, check=False)
    assert left.stdout.strip()[:1] in ("", "Z")
    assert not [*(tmp_path / "temporary").iterdir()]


def test_libraries_that_promise_nothing_about_onnx_differ_at_worst(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "FOR_COMPARISON", ("backend",))
    tests = _tests(["is wrong", "returns nothing", "nothing", "raises SystemExit"], tmp_path)
    outcomes = runner.run("backend:tests.judge.misbehaving", tests, 30, 1, lambda outcome: None)
    assert [outcome.verdict.kind for outcome in outcomes] == ["differs", "differs", AGREES, CRASHES]
    assert outcomes[0].verdict.reason.startswith("output 0[0, 0, 0] is ")


def _command(tmp_path: Path, lines: str) -> str:
    program = tmp_path / "target.py"
    program.write_text(
        "import os, pathlib, shutil, subprocess, sys, time\n"
        "def answer(test, outputs):\n"
        "    shutil.copy(pathlib.Path(test, 'test_data_set_0', 'input_0.pb'), pathlib.Path(outputs, 'output_0.pb'))\n"
        f"{lines}\n"
    )
    return f"{sys.executable} {program}"


def test_what_a_command_prints_or_leaves_does_not_count(tmp_path: Path) -> None:
    target = _command(
        tmp_path,
        "answer(*sys.argv[1:])\n"
        "for stream in (1, 2): os.write(stream, b'caf\\xe9' * 100_000)\n"
        "subprocess.Popen(['sleep', '600'])\n"
        "shutil.rmtree(sys.argv[1])\n",
    )
    (outcome,) = runner.run(f"command:{target}", _tests(["one"], tmp_path), 20, 1, lambda outcome: None)
    assert outcome.verdict == verdicts.Verdict(AGREES)


STREAM = """
names = pathlib.Path(__file__).with_name('names').read_text().splitlines()
for number, line in enumerate(sys.stdin):
    test, outputs = line.rstrip('\\n').split('\\t')
    name = next(name for name in names if name.encode() in pathlib.Path(test, 'model.onnx').read_bytes())
    print('about to do', name, flush=True)
    if name == 'refuses': print('refused: no such thing', flush=True); continue
    if name == 'is silent': continue
    if name == 'dies': sys.stderr.write('what now\\n'); os.abort()
    if name == 'exits': sys.exit(3)
    if name == 'says ok twice': print('ok', flush=True)
    if name != 'writes nothing': answer(test, outputs)
    if name == 'prints megabytes': os.write(1, b'x' * 5_000_000 + b'\\n'); os.write(2, b'y' * 5_000_000)
    print('ok', flush=True)
    if name == 'exits afterwards': sys.exit(0)
    pathlib.Path(__file__).with_name('count').write_text(str(number))
"""


def test_a_stream_of_tests(tmp_path: Path) -> None:
    """One process runs many tests; if it ends, a new one is started."""
    expected = {
        "plain": verdicts.Verdict(AGREES),
        "refuses": verdicts.Verdict(REFUSES, "no such thing"),
        "prints megabytes": verdicts.Verdict(AGREES),
        "writes nothing": verdicts.Verdict(CRASHES, "the command said ok, but wrote no output_0.pb"),
        "last of the first process": verdicts.Verdict(AGREES),
        "dies": verdicts.Verdict(CRASHES, "the command ended with code -6 without a reply: what now"),
        "exits": verdicts.Verdict(CRASHES, "the command ended with code 3 without a reply: no message"),
        "exits afterwards": verdicts.Verdict(AGREES),
        "after that": verdicts.Verdict(AGREES),
        "is silent": verdicts.Verdict(HANGS, "no answer within 5 s"),
        "the end": verdicts.Verdict(AGREES),
    }
    target = f"command-stream:{_command(tmp_path, STREAM)}"
    (tmp_path / "names").write_text("\n".join(sorted(expected, reverse=True)))  # "exits" is part of "exits afterwards"
    tests = _tests([*expected], tmp_path / "suite")
    outcomes = runner.run(target, tests[:5], 30, 1, lambda outcome: None)
    assert (tmp_path / "count").read_text() == "4"
    outcomes += runner.run(target, tests[5:], 5, 1, lambda outcome: None)
    assert dict(zip(expected, [outcome.verdict for outcome in outcomes], strict=True)) == expected


def test_npy_outputs_of_a_command(tmp_path: Path) -> None:
    """A bfloat16 array is stored as its bits in uint16."""
    target = _command(
        tmp_path,
        "import numpy, onnx\n"
        "data = onnx.load_tensor(pathlib.Path(sys.argv[1], 'test_data_set_0', 'input_0.pb'))\n"
        "array = onnx.numpy_helper.to_array(data)\n"
        "numpy.save(pathlib.Path(sys.argv[2], 'output_0.npy'), array.view('u2'))\n",
    )
    one = written(problem("max_pool/1d/one element", "bfloat16"), tmp_path)
    (outcome,) = runner.run(f"command:{target}", [one], 20, 1, lambda outcome: None)
    assert outcome.verdict == verdicts.Verdict(AGREES)


# ---------------------------------------------------------------- failures of the judge


def test_a_failure_of_the_terminal_ends_the_run(tmp_path: Path) -> None:
    def show(outcome: runner.Outcome) -> None:
        raise MemoryError("none left")

    with pytest.raises(MemoryError, match="none left"):
        runner.run("gpuconv", _tests(["one", "two"], tmp_path), 30, 2, show)


def test_a_failure_of_the_judge_in_one_test_is_exit_code_2_and_loses_no_other(
    few: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = json.loads((few / "suite.json").read_text())["tests"]
    judge = verdicts.judge

    def broken(test: verdicts.Test, *words: object, **claims: str) -> verdicts.Verdict:
        if test.folder.name == names[1]:
            raise MemoryError("none left")
        return judge(test, *words, **claims)  # type: ignore[arg-type]

    monkeypatch.setattr(runner, "judge", broken)
    assert main(["judge", "gpuconv", "--suite", str(few)]) == 2
    out, err = capsys.readouterr()
    assert f"{len(names) - 1} tests, {len(names) - 1} agrees" in out
    text = f"1 of {len(names)} tests could not be judged, the first is {names[1]} (MemoryError: none left)"
    assert err == f"gpuconv: error: judge: {text}\n"


def test_a_missing_outcome_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner._Run, "_judge", lambda self, worker, number: None)
    with pytest.raises(runner.Incomplete, match=r"2 of 2 tests could not be judged, the first is test_0 \(no reason"):
        runner.run("gpuconv", _tests(["one", "two"], tmp_path), 30, 1, lambda outcome: None)


# ---------------------------------------------------------------- damaged suites


@pytest.fixture
def few(tmp_path: Path) -> Path:
    return copied_suite(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        '{"format": 2, "tests": 5}',
        '{"format": 2, "tests": [1], "seed": 0, "sweep": 1, "sha256": ""}',
        '{"format": 2, "tests": ["../x"], "seed": 0, "sweep": 1, "sha256": ""}',
        '{"format": 1, "tests": ["x"], "seed": 0, "sweep": 1, "sha256": ""}',
        "{",
        "[" * 100_000,
        '{"format": 2, "tests": [], "seed": 0, "sweep": 1, "sha256": ""}',
    ],
)
def test_a_list_of_tests_that_is_none(text: str, few: Path, error: Run) -> None:
    (few / "suite.json").write_text(text)
    assert error("judge", "gpuconv", "--suite", few).startswith(f"judge: {few} is no suite (")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("case.json", b"{", "case.json cannot be read (JSONDecodeError: "),
        ("case.json", b"{}", "case.json has no 'name'"),
        ("case.json", None, "case.json cannot be read (FileNotFoundError: "),
        ("model.onnx", b"\xff\xff", "model.onnx cannot be read (DecodeError: "),
        ("model.onnx", None, "model.onnx cannot be read (FileNotFoundError: "),
        ("test_data_set_0/input_0.pb", None, "there is no test_data_set_0/input_0.pb"),
        ("test_data_set_0/input_0.pb", b"\xff\xff", "test_data_set_0/input_0.pb cannot be read (DecodeError: "),
        ("test_data_set_0/output_0.pb", None, "there is no test_data_set_0/output_0.pb"),
        ("test_data_set_0/output_0.pb", b"\xff\xff", "test_data_set_0/output_0.pb cannot be read (DecodeError: "),
        ("test_data_set_0/bound_0.pb", b"\xff\xff", "test_data_set_0/bound_0.pb cannot be read (DecodeError: "),
    ],
)
def test_a_damaged_test_ends_the_command_with_a_line_that_names_it(
    name: str, content: bytes | None, message: str, few: Path, error: Run
) -> None:
    test = json.loads((few / "suite.json").read_text())["tests"][1]
    (few / test / name).unlink()
    if content is not None:
        (few / test / name).write_bytes(content)
    assert error("judge", "gpuconv", "--suite", few).startswith(f"judge: the suite is damaged: {test}: {message}")


def test_a_suite_with_a_changed_byte_is_damaged(few: Path, error: Run) -> None:
    test = json.loads((few / "suite.json").read_text())["tests"][1]
    path = few / test / "test_data_set_0" / "output_0.pb"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert error("judge", "gpuconv", "--suite", few).startswith(
        "judge: the suite is damaged: its files do not have the hash in "
    )


def test_a_target_is_imported_before_a_suite_is_written(error: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "write", lambda *_: pytest.fail("a suite was written"))
    assert error("judge", "backend:no_such_backend").startswith(
        "judge: backend:no_such_backend cannot be judged here: "
    )


@pytest.mark.parametrize("what", ["os.abort()", "import time; time.sleep(60)"], ids=["crashes", "hangs"])
def test_a_target_that_crashes_or_hangs_is_exit_code_1(
    what: str, tmp_path: Path, few: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = json.loads((few / "suite.json").read_text())["tests"][0]
    (tmp_path / "target.py").write_text(f"import os\ndef prepare(model, device):\n    {what}\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    words = ["judge", "backend:target", "--suite", str(few), "--filter", name, "--time-limit", "4"]
    assert main(words) == 1
    assert " 0 agrees, 0 differs, " in capsys.readouterr().out
