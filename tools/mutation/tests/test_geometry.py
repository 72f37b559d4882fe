"""Mutation testing of the geometry: expected answers are right, and mutants of every part are noticed."""

from __future__ import annotations

import pytest

from tools.mutation import geometry
from tools.mutation.geometry import EQUIVALENT


@pytest.fixture(autouse=True)
def few_random_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geometry, "RANDOM", 60)


def test_the_module_itself_answers_every_question() -> None:
    unbroken = compile(geometry.SOURCE.read_text(), "rules/geometry.py", "exec")
    assert geometry.survives(unbroken, geometry.corpus())


def test_the_list_of_equivalent_mutants_names_mutants() -> None:
    names = [mutant.name for mutant in geometry.every_mutant()]
    assert set(EQUIVALENT) <= set(names)
    assert len(names) > 300, "the engine hardly changes anything"


def test_mutants_of_properties_and_methods_are_noticed() -> None:
    questions = geometry.questions_of_properties()
    for member in ("offsets", "met", "counted", "constant", "of_images"):
        found = [one for one in geometry.every_mutant() if one.place.function.endswith(f".{member}")]
        assert found, member
        assert not [one.name for one in found if geometry.survives(one.code("rules/geometry.py"), questions)]
