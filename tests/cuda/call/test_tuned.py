"""Choices that were measured: stored on disk, found again, and ignored if the file or the device differs."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from gpuconv.cuda.call import tuned
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.launch import Plan
from gpuconv.cuda.plan.limits import Limits
from gpuconv.cuda.plan.offers import Candidate
from tests.harness.offered import family


@dataclass(frozen=True)
class Pool:
    """A dataclass that serves as a problem; any would do."""

    x_shape: tuple[int, ...]
    dtype: str


FIRST, SECOND = Pool((1, 2), "float32"), Pool((1, 3), "float32")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("GPUCONV_CACHE_DIR", str(tmp_path / "cache"))
    before = os.umask(0o077)  # others must not be able to write what tests write
    yield tmp_path / "cache"
    os.umask(before)


def another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "_read", {})


def test_a_choice_holds_for_its_problem_and_device_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuned.store("A", FIRST, "quick") == folder / "choices.json"
    tuned.store("A", SECOND, "small")
    tuned.store("B", FIRST, "other")
    for _ in range(2):
        assert [tuned.find(*pair) for pair in (("A", FIRST), ("A", SECOND), ("B", FIRST))] == [
            "quick",
            "small",
            "other",
        ]
        assert tuned.find("B", SECOND) is None
        assert (tuned.store("", FIRST, "nameless"), tuned.find("", FIRST)) == (None, None)
        another_process(monkeypatch)
    assert [path.name for path in folder.iterdir()] == ["choices.json"]


def test_the_file_is_readable(folder: Path) -> None:
    tuned.store("A", FIRST, "quick")
    assert json.loads((folder / "choices.json").read_text()) == {
        "format": 1,
        "choices": {"A": {"x_shape (1, 2), dtype float32": "quick"}},
    }


def test_what_other_processes_stored_stays_and_a_plan_does_not_change_meanwhile(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tuned.find("A", FIRST) is None
    there = {"format": 1, "choices": {"A": {tuned.key(FIRST): "theirs"}}}
    folder.mkdir()
    (folder / "choices.json").write_text(json.dumps(there))
    assert tuned.find("A", FIRST) is None
    tuned.store("A", SECOND, "ours")
    assert tuned.find("A", FIRST) is None
    another_process(monkeypatch)
    assert (tuned.find("A", FIRST), tuned.find("A", SECOND)) == ("theirs", "ours")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"format": 1}',
     b'{"format": 1, "choices": []}', b'{"format": 1, "choices": {"A": 3}}', b"[" * 100_000],
)  # fmt: skip
def test_a_file_of_anything_else_counts_as_empty(content: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    (folder / "choices.json").write_bytes(content)
    assert tuned.find("A", FIRST) is None
    tuned.store("A", FIRST, "quick")
    another_process(monkeypatch)
    assert tuned.find("A", FIRST) == "quick"


@pytest.mark.parametrize(("version", "found"), [(0, None), (1, "theirs"), (2, None), ("1", None), (None, None)])
def test_choices_of_other_formats_are_not_read(version: object, found: str | None, folder: Path) -> None:
    folder.mkdir()
    content = {"format": version, "choices": {"A": {tuned.key(FIRST): "theirs"}}}
    (folder / "choices.json").write_text(json.dumps(content))
    assert tuned.find("A", FIRST) == found


@pytest.mark.skipif(os.name != "posix", reason="needs permissions")
@pytest.mark.parametrize("which", ["folder", "file"])
def test_choices_that_others_could_have_written_do_not_count(
    which: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tuned.store("A", FIRST, "quick")
    assert path is not None
    (folder if which == "folder" else path).chmod(0o777)
    another_process(monkeypatch)
    with pytest.warns(RuntimeWarning, match=f"others than its owner can write to {folder}"):
        assert tuned.find("A", FIRST) is None
    if which == "folder":
        with pytest.raises(PermissionError, match="others than its owner"):
            tuned.store("A", FIRST, "quick")
        assert tuned.find("A", FIRST) == "quick", "in this process"


@pytest.mark.skipif(os.name != "posix", reason="needs pipes")
def test_a_pipe_in_place_of_the_file_is_not_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    os.mkfifo(folder / "choices.json")
    found: list[str | None] = []
    reader = threading.Thread(target=lambda: found.append(tuned.find("A", FIRST)), daemon=True)
    reader.start()
    reader.join(10)
    assert found == [None]
    tuned.store("A", FIRST, "quick")
    another_process(monkeypatch)
    assert tuned.find("A", FIRST) == "quick"


def test_where_nothing_can_be_written_the_choice_holds_in_this_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.parent.joinpath("file").write_text("")
    monkeypatch.setenv("GPUCONV_CACHE_DIR", str(folder.parent / "file"))
    with pytest.raises(OSError, match=r"File exists|Not a directory"):
        tuned.store("A", FIRST, "quick")
    assert tuned.find("A", FIRST) == "quick"


def _choose(name: str) -> Plan:
    plans = [Plan(kernel, (), ()) for kernel in ("slow", "quick")]
    candidates = [Candidate(p.operator, 2e-6 - 1e-6 * n, [p].pop) for n, p in enumerate(plans)]
    limits = Limits("sm_90a", 132, 1, 1, name, measured=partial(tuned.find, name))
    return offers.choose(FIRST, [family(candidates)], limits)


def test_what_was_measured_goes_before_the_model() -> None:
    assert _choose("A").operator == "quick"
    tuned.store("A", FIRST, "slow")
    plan = _choose("A")
    assert plan.operator == "slow"
    assert plan.reasons == (
        "slow: predicted 2.0 us, chosen, as measured on A",
        "quick: predicted 1.0 us (0.50x)",
    )
    assert _choose("B").operator == "quick"
    tuned.store("A", FIRST, "a kernel of another version")
    assert _choose("A").operator == "quick"


def test_what_is_picked_goes_before_what_was_measured() -> None:
    tuned.store("A", FIRST, "slow")
    with offers.picking(lambda candidates: candidates[1]):
        assert _choose("A").operator == "quick"
