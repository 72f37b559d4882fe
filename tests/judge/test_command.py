"""``gpuconv judge`` and ``gpuconv suite`` around a run: filters, cache, expected failures, JUnit, exit codes."""

from __future__ import annotations

import json
import shutil
import time
import zipfile
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from threading import Barrier, Thread
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from gpuconv.cli import judge_suites, terminal
from gpuconv.cli.judge_filters import Filters
from gpuconv.cli.main import main
from gpuconv.judge import runner, suite, verdicts
from tests.judge.samples import copied_suite, sample

pytestmark = pytest.mark.slow

Run = Callable[..., str]
SECONDS = terminal._SECONDS_BETWEEN_SIGNS_OF_LIFE
NOTHING: dict[str, list[str]] = {name: [] for name in ("operator", "opset", "type", "rank", "rule")}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Replace the suite by a few problems, and the cache by an empty one."""
    monkeypatch.setattr(suite, "problems", lambda seed, count: sample())
    monkeypatch.setenv("GPUCONV_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the verdicts by part of a test's name, which replace running the target; all other tests agree."""
    wanted: dict[str, str] = {}

    def run(target: str, tests: Sequence[verdicts.Test], *_: Any) -> list[runner.Outcome]:
        found = [next((kind for part, kind in wanted.items() if part in test.folder.name), "agrees") for test in tests]
        return [runner.Outcome(t, verdicts.Verdict(k, f"\x01 <{k}>")) for t, k in zip(tests, found, strict=True)]

    monkeypatch.setattr(runner, "run", run)
    monkeypatch.setattr(runner, "Worker", lambda target: SimpleNamespace(version="made up 1", end=lambda: None))
    return wanted


# ---------------------------------------------------------------- filters


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--operator", "ConvTranspose"], {"conv_transpose"}),
        (["--operator", "conv,max_unpool"], {"conv", "max_unpool"}),
        (["--operator", "conv", "--operator", "max_unpool", "--rank", "2"], {"conv"}),
        (["--rule", "SAME, which end"], {"conv"}),
        (["--rule", "nothing times padding,bias"], {"conv"}),
        (["--type", "float32", "--rule", "ties"], {"max_pool"}),
    ],
)
def test_a_suite_of_what_is_asked_for(words: list[str], expected: set[str], few: None, ok: Run, tmp_path: Path) -> None:
    ok("suite", "--output", tmp_path / "suite", *words)
    names = json.loads((tmp_path / "suite" / "suite.json").read_text())["tests"]
    folders = {path.name for path in (tmp_path / "suite").iterdir() if path.is_dir()}
    assert folders == {*names}
    facts = [json.loads((tmp_path / "suite" / name / "case.json").read_text()) for name in names]
    assert {each["operator"] for each in facts} == expected
    for option, values in zip(words[::2], words[1::2], strict=True):
        if option == "--type":
            assert {each["type"] for each in facts} <= {*values.split(",")}


def test_filters_that_match_nothing_say_what_there_is(few: None, error: Run, tmp_path: Path) -> None:
    words = ["suite", "--output", tmp_path / "suite"]
    assert error(*words, "--type", "float8").startswith("suite: --type float8 is in no test; there are bfloat16, ")
    assert error(*words, "--opset", "x").startswith("suite: --opset x is in no test; there are ")
    text = "suite: no test has all that the filters ask for"
    assert error(*words, "--operator", "conv", "--rule", "ties") == text
    assert error(*words, "--filter", "q") == "suite: no test's name contains 'q'"
    assert not (tmp_path / "suite").exists()


def test_the_judge_writes_only_what_it_runs(
    few: None, kinds: dict[str, str], ok: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, files = [], suite.files
    monkeypatch.setattr(suite, "files", lambda one: stored.append(one.name) or files(one))
    wanted = [one.name for one in sample() if one.case.op == "max_pool" and one.dtype == "float32"]
    out = ok("judge", "gpuconv", "--operator", "max_pool", "--type", "float32")
    assert f"made up 1: {len(wanted)} tests, {len(wanted)} agrees" in out
    assert stored == wanted


# ---------------------------------------------------------------- files


def test_a_zip_file_has_the_same_bytes_every_time(few: None, ok: Run, tmp_path: Path) -> None:
    for place in "ab":
        (tmp_path / place).mkdir()
        ok("suite", "--output", tmp_path / place / "suite", "--zip", "--filter", "conv_1d")
    first, second = (tmp_path / place / "suite.zip" for place in "ab")
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as archive:
        archive.extractall(tmp_path / "c")
    for path in (path for path in (tmp_path / "a" / "suite").rglob("*") if path.is_file()):
        assert (tmp_path / "c" / path.relative_to(tmp_path / "a")).read_bytes() == path.read_bytes()


def test_the_written_suite_is_kept(
    few: None, kinds: dict[str, str], ok: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    count = len(list(sample()))
    assert f": {count} tests" in ok("judge", "gpuconv")
    with monkeypatch.context() as patch:
        patch.setattr(suite, "write", lambda *_: pytest.fail("it is written again"))
        assert f": {count} tests" in ok("judge", "gpuconv")
        assert ": 2 tests" in ok("judge", "gpuconv", "--filter", "conv_2d")
    (kept,) = (tmp_path / "cache" / "suites").iterdir()
    path = next(kept.rglob("output_0.pb"))
    path.write_bytes(path.read_bytes() + b"\0")  # a damaged one is written again
    assert f": {count} tests" in ok("judge", "gpuconv")
    assert judge_suites._is_whole(kept)
    assert [*(tmp_path / "cache" / "suites").iterdir()] == [kept]
    assert judge_suites._key(0, None) != judge_suites._key(1, None) != judge_suites._key(0, 5)


@pytest.mark.parametrize("name", ["suite.py", "standalone/judge.c", "standalone/judge.py", "standalone/max_pool.c"])
def test_a_changed_source_makes_another_suite(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(suite.__file__).parents[1]
    for folder in ("judge", "rules"):
        shutil.copytree(source / folder, tmp_path / folder)
    monkeypatch.setattr(judge_suites.gpuconv, "__file__", str(tmp_path / "__init__.py"))
    before = judge_suites._key(0, None)
    assert before == judge_suites._key(0, None)
    path = tmp_path / "judge" / name
    path.write_bytes(path.read_bytes() + b"\n")
    assert judge_suites._key(0, None) != before


def test_judges_that_write_the_same_suite_at_once(few: None, tmp_path: Path) -> None:
    arguments, barrier, found = SimpleNamespace(seed=0, count=None), Barrier(3), []

    def judge() -> None:
        barrier.wait()
        with judge_suites.opened(arguments, Filters("", NOTHING), lambda text: None) as (tests, _):
            found.append([test.folder for test in tests if (test.folder / "model.onnx").exists()])

    threads = [Thread(target=judge) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [found[0]] * 3
    assert len(found[0]) == len(list(sample()))
    (kept,) = (tmp_path / "cache" / "suites").iterdir()
    assert judge_suites._is_whole(kept)


# ---------------------------------------------------------------- results


def test_exit_codes(kinds: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["judge", "gpuconv", "--suite", str(copied_suite(tmp_path))]
    for kind, code in {"agrees": 0, "differs": 0, "refuses": 0, "wrong": 1, "crashes": 1, "hangs": 1}.items():
        kinds.clear()
        kinds["ties"] = kind
        assert main(words) == code, kind
    kinds["ties"] = "differs"
    assert main([*words, "--strict"]) == 1
    kinds[""] = "refuses"
    kinds.pop("ties")
    assert main(words) == 2
    assert main(["judge", "onnx.reference:x", "--suite", "/nowhere"]) == 2
    assert "/nowhere is no suite" in capsys.readouterr().err


def test_headlines_count_by_status(kinds: dict[str, str], ok: Run, tmp_path: Path) -> None:
    kinds |= {"ties": "wrong", "conv_1d_same_lower": "wrong", "overhang": "hangs"}
    few = copied_suite(tmp_path)
    lines = ok("judge", "gpuconv", "--suite", few, "--expected-failures", tmp_path / "e", "--update-expected")
    count = {part: sum(part in one.name for one in sample()) for part in kinds}
    assert f"wrong: {count['conv_1d_same_lower']} specified, {count['ties']} ruled here" in lines.splitlines()
    assert f"hangs: 0 specified, {count['overhang']} disputed" in lines.splitlines()


@pytest.mark.parametrize("name", ["expected.txt", "expected.json"])
def test_only_what_is_new_fails(
    name: str, kinds: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    words = ["judge", "gpuconv", "--suite", str(copied_suite(tmp_path)), "--expected-failures", str(path)]
    kinds |= {"ties": "wrong", "overhang": "hangs"}
    assert main(words) == 2  # the file does not exist yet
    assert main([*words, "--update-expected"]) == 0
    text = path.read_text()
    entries = json.loads(text) if name.endswith("json") else dict(line.split() for line in text.splitlines())
    assert entries == {one.name: kinds[part] for part in ("ties", "overhang") for one in sample() if part in one.name}
    assert list(entries) == sorted(entries)
    assert main(words) == 0
    kinds["overhang"] = "refuses"  # which is not a failure, but not fixed either
    assert main(words) == 0
    assert " expected, 0 fixed" in capsys.readouterr().out
    kinds["ties"] = "crashes"  # another verdict than expected
    assert main(words) == 1
    kinds |= {"ties": "wrong", "unpool": "wrong"}
    kinds["overhang"] = "agrees"
    capsys.readouterr()
    assert main(words) == 1
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line.startswith("new: ")] == [
        f"new: {one.name} wrong" for one in sample() if "unpool" in one.name
    ]
    fixed = sorted(one.name for one in sample() if "overhang" in one.name)
    assert f"fixed: {', '.join(fixed)} (--update-expected takes them out of {path})" in out
    assert main([*words, "--update-expected", "--filter", "unpool"]) == 0  # tests that do not run keep their entries
    assert main(words) == 0
    assert f"0 new, {len(entries) - len(fixed) + out.count('new: ')} expected, {len(fixed)} fixed" in (
        capsys.readouterr().out
    )


def test_expected_failures_that_cannot_be_read(error: Run, tmp_path: Path) -> None:
    path = tmp_path / "expected"
    for text in ("one", "one two three", "{", '{"one": 5}', "one badly"):
        path.write_text(text)
        assert error("judge", "gpuconv", "--expected-failures", path).startswith(f"judge: --expected-failures {path}")
    assert error("judge", "gpuconv", "--update-expected") == "judge: --update-expected needs --expected-failures FILE"
    assert error("judge", "gpuconv", "--junit", "/nowhere/x.xml").endswith("there is no folder /nowhere")


def test_junit(kinds: dict[str, str], tmp_path: Path) -> None:
    kinds |= {"ties": "wrong", "overhang": "hangs", "unpool": "refuses", "subnormals": "differs"}
    words = ["judge", "gpuconv", "--suite", str(copied_suite(tmp_path)), "--junit", str(tmp_path / "found.xml")]
    assert main(words) == 1
    root = ElementTree.parse(tmp_path / "found.xml").getroot()
    (found,) = root
    cases = {case.get("name"): case for case in found}
    names = [one.name for one in sample()]
    assert list(cases) == names
    count = {part: sum(part in name for name in names) for part in kinds}
    assert found.get("name") == "gpuconv judge made up 1"
    numbers = [int(found.get(key, "")) for key in ("tests", "failures", "errors", "skipped")]
    assert numbers == [len(names), count["ties"], count["overhang"], count["unpool"]]
    tags = {"ties": "failure", "overhang": "error", "unpool": "skipped", "subnormals": "system-out"}
    for name, case in cases.items():
        part = next((part for part in kinds if part in name), None)
        assert [child.tag for child in case] == ([] if part is None else [tags[part]]) or part is None
    (failure,) = (case for name, case in cases.items() if "ties_with_indices_float32" in name)
    assert failure[0].get("message") == "wrong: \\x01 <wrong>"
    assert failure.get("classname") == "max_pool.MaxPool ties"


def test_claims_reach_the_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ok: Run) -> None:
    seen = []

    def judge(test: verdicts.Test, got: Any, **claims: str) -> verdicts.Verdict:
        seen.append(claims)
        return verdicts.Verdict("agrees")

    monkeypatch.setattr(runner, "judge", judge)
    words = ["judge", "gpuconv", "--suite", copied_suite(tmp_path), "--filter", "conv_2d_a_bias_float32"]
    ok(*words, "--precision", "tf32", "--accumulate", "float16")
    assert seen == [{"precision": "tf32", "accumulate": "float16"}]


def test_a_missing_package_is_named_with_its_command(error: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(target: str) -> None:
        raise runner.TargetMissing("ModuleNotFoundError: No module named 'cv2'", "cv2")

    monkeypatch.setattr(runner, "Worker", missing)
    assert error("judge", "opencv") == (
        "judge: opencv cannot be judged here: ModuleNotFoundError: No module named 'cv2' "
        "(pip install opencv-python-headless)"
    )


def test_a_silent_terminal_shows_that_time_goes_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line changes every second during any long step."""
    texts: list[str] = []
    stream = SimpleNamespace(isatty=lambda: True, write=texts.append, flush=lambda: None)
    monkeypatch.setattr(terminal.sys, "stderr", stream)
    monkeypatch.setattr(terminal, "_SECONDS_BETWEEN_SIGNS_OF_LIFE", 0.01)
    with terminal.Progress() as progress:
        progress.show("importing torch")
        progress._stopped.wait(0.2)
    assert sum("importing torch (0 s)" in text for text in texts) >= 2
    assert not progress._clock.is_alive()


def test_a_pipe_gets_a_line_at_least_every_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is being done, with the time if that has not changed; no control characters."""
    stream = StringIO()
    monkeypatch.setattr(terminal.sys, "stderr", stream)
    assert SECONDS * 1.5 < 2  # looked at twice in this time
    monkeypatch.setattr(terminal, "_SECONDS_BETWEEN_SIGNS_OF_LIFE", 0.01)
    with terminal.Progress(lines=True) as progress:
        progress.show("importing torch")
        progress._stopped.wait(0.2)
    lines = stream.getvalue().splitlines()
    assert len(lines) >= 3
    assert {*lines} <= {"gpuconv: importing torch", "gpuconv: importing torch (0 s)"}
    assert stream.getvalue().endswith("\n")
    with terminal.Progress() as silent:  # other commands
        silent.show("importing torch")
        silent._stopped.wait(0.1)
    assert stream.getvalue().splitlines() == lines


def test_the_judge_writes_such_lines(
    few: None, kinds: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "_SECONDS_BETWEEN_SIGNS_OF_LIFE", 0.01)
    judged = runner.run

    def slow(*words: Any) -> Any:
        time.sleep(0.2)
        return judged(*words)

    monkeypatch.setattr(runner, "run", slow)
    assert main(["judge", "gpuconv", "--filter", "conv_2d"]) == 0
    err = capsys.readouterr().err
    assert "gpuconv: 0/2" in err
    assert "\r" not in err
