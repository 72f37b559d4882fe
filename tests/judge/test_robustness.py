"""Targets that reach for the judge's own pipes, damaged suites, failures of the judge itself: no test is lost."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuconv.cli.main import main
from gpuconv.judge import runner, suite, verdicts
from tests.judge.samples import copied_suite, problem, written

pytestmark = pytest.mark.slow

Run = Callable[..., str]
NAMES = ("conv/1d/plain", "conv/2d/a bias", "max_pool/1d/dilation")
BACKEND = """
import os, sys
from gpuconv.onnx import backend
class Rep:
    def __init__(self, model): self.model = model
    def run(self, inputs):
        {what}
        return backend.prepare(self.model).run(inputs)
def prepare(model, device="CPU"): return Rep(model)
"""


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[verdicts.Verdict]]:
    """Judge gpuconv's backend, which does something else before each run."""

    def judge(what: str) -> list[verdicts.Verdict]:
        (tmp_path / "target.py").write_text(BACKEND.format(what=what), encoding="utf-8")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        tests = [written(problem(name), tmp_path / "tests") for name in NAMES]
        outcomes = runner.run("backend:target", tests, 30, 1, lambda outcome: None)
        assert [outcome.test for outcome in outcomes] == tests
        return [outcome.verdict for outcome in outcomes]

    return judge


@pytest.mark.parametrize(
    "what",
    [
        "os.fork()",
        "assert sys.stdin.read() == ''",
        "sys.stdin.close()",
        "print('no reply', flush=True); os.write(1, b'nor this\\n')",
    ],
    ids=["forks", "reads_its_input", "closes_its_input", "prints"],
)
def test_a_target_cannot_disturb_the_judge(what: str, judged: Callable[[str], list[verdicts.Verdict]]) -> None:
    assert judged(what) == [verdicts.Verdict(verdicts.AGREES)] * len(NAMES)


@pytest.mark.parametrize("text", [b"junk", b'{"number": 99, "outputs": 1}'], ids=["text", "reply"])
def test_a_target_that_writes_into_every_descriptor_crashes_in_every_test(
    text: bytes, judged: Callable[[str], list[verdicts.Verdict]]
) -> None:
    what = f"""for descriptor in range(3, 64):
            try: os.write(descriptor, {text + bytes([10])!r})
            except OSError: pass"""
    expected = verdicts.Verdict(verdicts.CRASHES, "the target wrote into the pipe of the replies")
    assert judged(what) == [expected] * len(NAMES)


def test_control_characters_in_a_refusal_are_escaped(judged: Callable[[str], list[verdicts.Verdict]]) -> None:
    assert judged("raise ValueError('\\x1b[31mred')") == [
        verdicts.Verdict(verdicts.REFUSES, "ValueError: \\x1b[31mred")
    ] * len(NAMES)


@pytest.mark.parametrize(
    "what",
    [
        "sys.stdout.buffer.write(b'caf\\xe9')",
        "sys.stderr.buffer.write(b'caf\\xe9')",
        "subprocess.Popen(['sleep', '40'])",
    ],
    ids=["stdout_that_is_no_utf8", "stderr_that_is_no_utf8", "leaves_a_child"],
)
def test_what_a_command_prints_or_leaves_does_not_count(what: str, tmp_path: Path) -> None:
    program = tmp_path / "target.py"
    program.write_text(
        "import pathlib, shutil, subprocess, sys\n"
        "test, outputs = map(pathlib.Path, sys.argv[1:])\n"
        "shutil.copy(test / 'test_data_set_0' / 'input_0.pb', outputs / 'output_0.pb')\n"
        f"{what}\n"
    )
    tests = [written(problem("max_pool/1d/one element"), tmp_path)]
    (outcome,) = runner.run(f"command:{sys.executable} {program}", tests, 20, 1, lambda outcome: None)
    assert outcome.verdict == verdicts.Verdict(verdicts.AGREES)


def test_a_failure_of_the_judge_ends_the_run(tmp_path: Path) -> None:
    tests = [written(problem(name), tmp_path) for name in NAMES]

    def show(outcome: runner.Outcome) -> None:
        raise MemoryError("none left")

    with pytest.raises(MemoryError, match="none left"):
        runner.run("gpuconv", tests, 30, 2, show)


# ---------------------------------------------------------------- damaged suites


@pytest.fixture
def few(tmp_path: Path) -> Path:
    return copied_suite(tmp_path)


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"tests": 5}', '{"tests": [1], "seed": 0, "sweep": 1}', "{", '{"tests": []}']
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
        ("test_data_set_0/input_0.pb", b"\xff\xff", "DecodeError: "),
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
    (tmp_path / "target.py").write_text(BACKEND.format(what=what), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    words = ["judge", "backend:target", "--suite", str(few), "--filter", name, "--time-limit", "4"]
    assert main(words) == 1
    assert " 0 agrees, 0 differs, 0 inconsistent, 0 wrong, 0 refuses" in capsys.readouterr().out
