"""Tests run if what they use has changed, and otherwise in rotation, so that none is skipped forever."""

from __future__ import annotations

import fnmatch
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import selection
from tests.harness import tiers
from tests.selection import ROOT, TURNS, Choice, Fingerprints

MARK = re.compile(r"mark\.kernels\(\s*((?:\"[^\"]+\",?\s*)+)\)")
SOURCES = {path.relative_to(ROOT / "kernels_cu").as_posix() for path in (ROOT / "kernels_cu").rglob("*.cu")}
RECORD = Fingerprints(
    *("v1", "judges", {"visit": "same"}, {"gpuconv": "1", "judge": "2"}),
    *({"conv/a.cu": "1", "pool/b.cu": "2"}, {"tests/test_a.py": "3"}),
)


class Item(NamedTuple):
    """The properties of a test that selection uses."""

    nodeid: str = "tests/test_a.py::test_one"
    kernels: tuple[str, ...] = ("conv/a.cu",)
    marks: tuple[str, ...] = ()
    sample: int = 0

    path = property(lambda self: Path(__file__))  # a module whose text has the word judge
    name = property(lambda self: self.nodeid.partition("::")[2])

    def iter_markers(self, name: str) -> list[pytest.Mark]:
        return [pytest.mark.kernels(*self.kernels).mark] if name == "kernels" and self.kernels else []

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        if name == "sampled" and self.sample:
            return pytest.mark.sampled(self.sample).mark
        return getattr(pytest.mark, name).mark if name in self.marks else None


def taken(choice: Choice, item: Item) -> bool:
    chosen, others = tiers.select([item], False, None, choice)  # type: ignore[list-item]
    assert len(chosen) + len(others) == 1
    return bool(chosen)


def turns_of(item: Item, **changes: Any) -> list[bool]:
    return [taken(Choice(turn=turn, **changes), item) for turn in range(TURNS)]


# ---------------------------------------------------------------- which tests run


def test_a_test_whose_kernel_changed_runs_at_every_turn() -> None:
    assert all(turns_of(Item(), kernels=frozenset({"conv/a.cu"})))
    assert all(turns_of(Item(kernels=("pool/b.cu", "conv/*")), kernels=frozenset({"conv/a.cu"})))


def test_a_test_whose_module_changed_runs_at_every_turn() -> None:
    assert all(turns_of(Item(), tests=frozenset({"tests/test_a.py"})))


def test_others_run_in_one_of_twelve_turns() -> None:
    for number in range(40):
        item = Item(f"tests/test_a.py::test_one[{number}]")
        assert sum(turns_of(item, kernels=frozenset({"pool/b.cu"}))) == 1


@pytest.mark.parametrize("mark", ["quick", "every_run"])
def test_quick_tests_and_those_of_every_run_run_at_every_turn(mark: str) -> None:
    assert all(turns_of(Item(kernels=(), marks=(mark,))))
    assert not any(turns_of(Item(kernels=(), marks=(mark, "thorough"))))


def test_a_test_without_kernels_runs_when_the_package_or_a_room_that_it_names_changed() -> None:
    item = Item(kernels=())
    assert sum(turns_of(item)) == 1
    assert all(turns_of(item, rooms=frozenset({"gpuconv"})))
    assert all(turns_of(item, rooms=frozenset({"judge"})))
    assert sum(turns_of(item, rooms=frozenset({"d" + "ask"}))) == 1  # a word that this module does not contain
    assert not any(turns_of(item._replace(marks=("thorough",))))


def test_a_test_of_kernels_does_not_run_for_what_plans_others() -> None:
    assert sum(turns_of(Item(), rooms=frozenset({"gpuconv"}))) == 1


def test_a_thorough_test_of_kernels_runs_when_they_changed_alone() -> None:
    item = Item(marks=("thorough",))
    assert not any(turns_of(item))
    assert all(turns_of(item, kernels=frozenset({"conv/a.cu"})))
    assert not any(turns_of(item, everything="there is no record"))
    assert taken(selection.all_of_them(), item._replace(kernels=("conv/gemm/conv.cu",)))


def test_what_is_sampled_stays_so_when_kernels_changed() -> None:
    items = [Item(f"tests/test_a.py::test_one[{number}]", sample=10**9) for number in range(5)]
    chosen, _ = tiers.select(items, False, None, Choice("that is asked for"))  # type: ignore[arg-type]
    assert len(chosen) == 1


def test_tests_of_the_emulated_device_take_turns_too() -> None:
    assert sum(turns_of(Item("emulated_cuda/tests/test_a.py::test_one", kernels=()))) == 1


def test_a_choice_can_be_sent_to_other_processes() -> None:
    choice = Choice("", frozenset({"conv/a.cu"}), frozenset({"tests/test_a.py"}), frozenset({"judge"}), 5, "v1")
    assert Choice.from_json(choice.to_json()) == choice


# ---------------------------------------------------------------- what changed


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Fingerprints]:
    """Return the fingerprints of the working tree, under "now", with a record of the same fingerprints."""
    path, found = tmp_path / "proven.json", {"now": RECORD}
    monkeypatch.setattr(selection, "RECORD", path)
    monkeypatch.setattr(selection, "now", lambda: found["now"])
    monkeypatch.setattr(selection, "_git", lambda *words: {"rev-list": "30", "rev-parse": "false"}.get(words[0], ""))
    selection.write(path)
    return found


def test_nothing_changed(found: dict[str, Fingerprints]) -> None:
    assert selection.choice() == Choice(turn=30 % TURNS, revision="v1")


def test_what_differs_from_the_record_or_is_not_in_it_has_changed(found: dict[str, Fingerprints]) -> None:
    found["now"] = replace(RECORD, kernels={**RECORD.kernels, "pool/b.cu": "9", "pool/new.cu": "1"}, tests={"new": "1"})
    choice = selection.choice()
    assert (choice.everything, choice.kernels, choice.tests) == ("", {"pool/b.cu", "pool/new.cu"}, {"new"})


def test_a_room_that_differs_has_changed(found: dict[str, Fingerprints]) -> None:
    found["now"] = replace(RECORD, rooms={"gpuconv": "1", "judge": "3"})
    assert selection.choice().rooms == {"judge"}


def test_all_tests_run_where_they_are_judged_otherwise(found: dict[str, Fingerprints]) -> None:
    found["now"] = replace(RECORD, judges="others")
    assert "oracle" in selection.choice().everything


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"revision": "v1"}), "{"])
def test_all_tests_run_without_a_record(found: dict[str, Fingerprints], text: str) -> None:
    selection.RECORD.write_text(text)
    assert "no record" in selection.choice().everything
    selection.RECORD.unlink()
    assert "no record" in selection.choice().everything


def test_all_tests_run_in_a_shallow_clone_and_without_git(
    found: dict[str, Fingerprints], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "_git", lambda *words: {"rev-list": "1", "rev-parse": "true"}.get(words[0], ""))
    assert "shallow" in selection.choice().everything

    def missing(*_: str) -> str:
        raise FileNotFoundError("git")

    monkeypatch.setattr(selection, "_git", missing)
    assert "no git" in selection.choice().everything


def test_a_step_is_due_where_what_it_runs_changed_and_for_every_sixth_commit(
    found: dict[str, Fingerprints], monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = iter(range(12))
    monkeypatch.setattr(selection, "_turn", lambda: next(turns))
    monkeypatch.setattr(selection, "_steps", lambda: {"visit": "same"})
    assert [bool(selection.why_due("visit")) for _ in range(12)] == [turn % 6 == 0 for turn in range(12)]
    monkeypatch.setattr(selection, "_steps", lambda: {"visit": "other"})
    assert "changed" in selection.why_due("visit")
    selection.RECORD.unlink()
    assert "no record" in selection.why_due("visit")


# ---------------------------------------------------------------- fingerprints


def test_comments_and_docstrings_do_not_count(tmp_path: Path) -> None:
    module, kernel = tmp_path / "a.py", tmp_path / "a.cu"

    def digests(python: str, cuda: str) -> tuple[str, str]:
        module.write_text(python)
        kernel.write_text(cuda)
        return selection._digest_of(module), selection._digest_of(kernel)

    before = digests('"""One."""\ndef f():\n    """Two."""\n    return "#3"\n', 'int a; // 1\nasm("// 2");\n')
    same = digests('def f():\n    # other\n    return "#3"\n', '/* a\n b */ int  a;\n\nasm("// 2");  // 3\n')
    python, cuda = digests('def f():\n    return "#4"\n', 'int a; asm("// 3");\n')
    assert before == same
    assert python != before[0]
    assert cuda != before[1]


def test_modules_count_for_the_kernels_that_they_plan() -> None:
    planners = {source: {line.split()[0] for line in lines} for source, lines in selection._planners().items()}
    assert planners.keys() == SOURCES
    by_module = {name: {source for source in SOURCES if name in planners[source]} for name in planners["complex.cu"]}
    for everywhere in ("cuda.plan.offers", "cuda.call.prepared", "cuda.call.device", "cuda.build.params"):
        assert by_module[everywhere] == SOURCES
    axis = {source for source in SOURCES if "cuda.pool.axis" in planners[source]}
    assert axis == {"pool/axis.cu", "complex.cu"}  # calls of complex numbers use parts of any family
    mma = {source for source in SOURCES if "cuda.conv.gemm.mma_tile" in planners[source]}
    assert "conv/gemm/conv.cu" in mma
    assert not any(source.startswith(("pool/", "conv/direct/", "passes/")) for source in mma)


@pytest.mark.slow
def test_a_plan_of_a_small_problem_launches_every_kernel() -> None:
    found = selection._kernels()
    assert found.keys() == SOURCES
    assert len(set(found.values())) == len(SOURCES)


@pytest.mark.slow
def test_every_module_and_every_room_has_a_fingerprint_of_its_own() -> None:
    tests, rooms = selection._tests(), selection._rooms()
    names = ("tests/test_selection.py", "tests/cpu/test_products.py", "emulated_cuda/tests/test_bounds.py")
    assert {*names} <= tests.keys()
    assert rooms.keys() == selection.ROOMS.keys()
    assert len({*rooms.values()}) == len(rooms)


def test_the_package_and_its_parts_that_are_apart_import_each_other_in_functions_only() -> None:
    """Otherwise a change of the judge would run the tests of the whole package."""
    imports = re.compile(rf"^(?:from|import) gpuconv\.({'|'.join(selection._APART)})\b", re.MULTILINE)
    for path in (ROOT / "gpuconv").rglob("*.py"):
        if path.relative_to(ROOT / "gpuconv").parts[0] not in selection._APART:
            assert imports.findall(path.read_text(encoding="utf-8")) == [], path


def test_every_mark_names_kernels() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    named = {name for text in texts for words in MARK.findall(text) for name in re.findall('"([^"]+)"', words)}
    assert named
    assert not [name for name in named if not fnmatch.filter(SOURCES, name)]


def test_helpers_beside_a_module_of_tests_count_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "ROOT", tmp_path)
    monkeypatch.setattr(selection, "_helpers", selection._helpers.__wrapped__)
    texts = {"tests/a/test_a.py": "from tests.b import more\n", "tests/a/help.py": "1\n", "tests/b/more.py": "2\n"}

    def digest(**changed: str) -> str:
        for name, text in {**texts, "tests/c/other.py": "3\n", **changed}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return selection._tests()["tests/a/test_a.py"]

    before = digest()
    for name, text in texts.items():
        assert digest(**{name: text + "4\n"}) != before
    assert digest(**{"tests/c/other.py": "5\n"}) == digest(**{"tests/b/test_b.py": "6\n"}) == before
