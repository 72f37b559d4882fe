"""The tests of the geometry notice every small break of it."""

from __future__ import annotations

import mutate_geometry
from mutate_geometry import EQUIVALENT


def test_the_module_itself_answers_every_question() -> None:
    unbroken = compile(mutate_geometry.SOURCE.read_text(), "_geometry.py", "exec")
    assert mutate_geometry.survives(unbroken, mutate_geometry.corpus())


def test_every_mutant_is_noticed_save_those_known_to_compute_the_same() -> None:
    count, unnoticed = mutate_geometry.survivors()
    assert sorted(unnoticed) == sorted(EQUIVALENT)
    assert count > 300, "the engine hardly changes anything"
