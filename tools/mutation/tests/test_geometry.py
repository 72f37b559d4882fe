"""Mutation testing of the geometry: the questions have right answers, and mutants of every part are noticed."""

from __future__ import annotations

import pytest

from tools.mutation import geometry
from tools.mutation.geometry import EQUIVALENT


@pytest.fixture(scope="module")
def corpus() -> list[tuple[geometry.Ask, object]]:
    return geometry.corpus()


def test_the_module_itself_answers_every_question(corpus: list[tuple[geometry.Ask, object]]) -> None:
    unbroken = compile(geometry.SOURCE.read_text(), "rules/geometry.py", "exec")
    assert geometry.survives(unbroken, corpus)


def test_the_list_of_equivalent_mutants_names_mutants() -> None:
    names = [mutant.name for mutant in geometry.every_mutant()]
    assert set(EQUIVALENT) <= set(names)
    assert len(names) > 300, "the engine hardly changes anything"


@pytest.mark.parametrize("member", ["offsets", "met", "counted", "constant", "of_images"])
def test_mutants_of_properties_and_methods_are_noticed(member: str, corpus: list[tuple[geometry.Ask, object]]) -> None:
    found = [one for one in geometry.every_mutant() if one.place.function.endswith(f".{member}")]
    assert found
    assert not [one.name for one in found if geometry.survives(one.code("rules/geometry.py"), corpus)]
