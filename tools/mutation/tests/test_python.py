"""The engine that breaks Python modules; every break of the geometry is noticed, and some of other modules are."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tools.mutation import geometry, mutation_table, python, python_equivalent, time_model
from tools.mutation.geometry import EQUIVALENT
from tools.mutation.python import divides_as_before
from tools.mutation.python_changes import mutants

pytestmark = pytest.mark.slow


def test_the_module_itself_answers_every_question() -> None:
    unbroken = compile(geometry.SOURCE.read_text(), "rules/geometry.py", "exec")
    assert geometry.survives(unbroken, geometry.corpus())


def test_every_mutant_is_noticed_save_those_known_to_compute_the_same() -> None:
    count, unnoticed = geometry.survivors()
    assert sorted(unnoticed) == sorted(EQUIVALENT)
    assert count > 300, "the engine hardly changes anything"


# ---------------------------------------------------------------- the engine

SOURCE = '''
LIMIT: int = 2

def f(low: int = 0, *, high: float = 0.5) -> int:
    """Not 3."""
    if low >= high:
        raise ValueError(f"{low + 1} is too much")
    assert low != 7
    check(low)
    return -(-low // LIMIT)
'''


def test_what_computes_is_changed_and_nothing_else() -> None:
    assert [mutant.name for mutant in mutants(ast.parse(SOURCE))] == [
        "module: LIMIT: int = 2  ->  LIMIT: int = 3",
        "module: LIMIT: int = 2  ->  LIMIT: int = 1",
        "f: def f(low: int=0, *, high: float=0.5) -> int:  ->  def f(low: int=0, *, high: float=1.5) -> int:",
        "f: def f(low: int=0, *, high: float=0.5) -> int:  ->  def f(low: int=1, *, high: float=0.5) -> int:",
        "f: def f(low: int=0, *, high: float=0.5) -> int:  ->  def f(low: int=-1, *, high: float=0.5) -> int:",
        "f: if low >= high:  ->  if False:",
        "f: if low >= high:  ->  if low > high:",
        "f: if low >= high:  ->  if low < high:",
        "f: if low >= high:  ->  if high >= high:",
        "f: if low >= high:  ->  if low >= low:",
        "f: check(low)  ->  pass",
        "f: check(low)  ->  check(high)",
        "f: return -(-low // LIMIT)  ->  return -low // LIMIT",
        "f: return -(-low // LIMIT)  ->  return -(-low * LIMIT)",
        "f: return -(-low // LIMIT)  ->  return -(-low % LIMIT)",
        "f: return -(-low // LIMIT)  ->  return --(--low // LIMIT)",
        "f: return -(-low // LIMIT)  ->  return -(low // LIMIT)",
        "f: return -(-low // LIMIT)  ->  return -(-high // LIMIT)",
    ]


def test_a_mutant_is_one_change_and_leaves_the_next_one_none() -> None:
    tree = ast.parse(SOURCE)
    texts = [mutant.text() for mutant in mutants(tree)]
    assert len(set(texts)) == len(texts)
    assert ast.unparse(tree) == ast.unparse(ast.parse(SOURCE))


def test_the_extent_that_reshape_finds_is_one_whatever_its_negative_number() -> None:
    names = [mutant.name for mutant in mutants(ast.parse("a.reshape(-1, a[-1])"))]
    assert [name.partition("->")[2].strip() for name in names] == [
        "pass",
        "a.reshape(1, a[-1])",
        "a.reshape(-0, a[-1])",
        "a.reshape(-1, a[1])",
        "a.reshape(-1, a[-2])",
        "a.reshape(-1, a[-0])",
    ]


def test_overloads_are_for_type_checkers_alone() -> None:
    tree = ast.parse("@overload\ndef f(a=1): ...\ndef f(a=1): return a")
    assert [mutant.name for mutant in mutants(tree)] == [
        "f: def f(a=1):  ->  def f(a=2):",
        "f: def f(a=1):  ->  def f(a=0):",
    ]


def test_the_second_mutant_of_the_same_words_has_a_number() -> None:
    tree = ast.parse("def f(a):\n    a(1)\n    a(1)\ndef g(a):\n    a(1)")
    names = [mutant.name for mutant in mutants(tree)]
    assert names.count("f: a(1)  ->  pass") == 1
    assert names.count("f: a(1)  ->  pass  no. 2") == 1
    assert names.count("g: a(1)  ->  pass") == 1


def test_the_model_of_time_is_what_only_the_model_reads() -> None:
    kernel = """
_RATE, _SHARE = 4, 2
_TILE = 8
class Tile:
    def words(self): return self.rows() * _TILE
    def rows(self): return _TILE
    def lines(self): return self.words() // _SHARE
    def seconds(self) -> float: return self.lines() / _RATE
"""
    plan = """
from gpuconv.cuda import tile
def bytes_of(one): return one.words() * 4
def plan(one): return one.words(), one.seconds(bytes_of(one))
"""
    trees = {"cuda/tile.py": ast.parse(kernel), "cuda/plan/launch.py": ast.parse(plan)}
    found = sorted(getattr(node, "name", ast.unparse(node)) for node in time_model.nodes(trees))
    assert found == ["_RATE, _SHARE = (4, 2)", "bytes_of", "lines", "one.seconds(bytes_of(one))", "seconds"]
    assert not time_model.nodes({"cpu/tile.py": ast.parse(kernel)})


# ---------------------------------------------------------------- the table


def test_every_module_has_tests_and_every_row_of_the_table_a_module() -> None:
    for module in python.modules():
        assert python.tests_of(module), module
    for pattern, tests in mutation_table.TESTS.items():
        assert any(fnmatch(module, pattern) for module in python.modules()), pattern
        for test in tests:
            assert (Path(__file__).parents[1] / test.split()[0]).is_file(), test


def test_the_list_of_equivalent_mutants_names_mutants() -> None:
    listed = [name for names in python_equivalent.EQUIVALENT.values() for name in names]
    assert len(set(listed)) == len(listed)
    modules = {name.split()[0] for name in listed}
    assert set(listed) <= {target.name for module in modules for target in python.targets(module)}


def test_the_divisions_without_remainders_are_there() -> None:
    listed = [
        (name, text) for modules in python_equivalent.EXACT.values() for name in modules for text in modules[name]
    ]
    assert len(set(listed)) == len(listed)
    found = {
        (target.module, ast.unparse(target.mutant.place.node))
        for module in {name for name, _ in listed}
        for target in python.targets(module)
        if python.rounds_nothing(target)
    }
    assert found == set(listed)
    known = [target.name for target in python.targets("cuda/conv/gemm/stem_tile.py") if divides_as_before(target)]
    assert (
        "cuda/conv/gemm/stem_tile.py _row_taps: pair = 4 // problem.itemsize  ->  pair = 5 // problem.itemsize" in known
    )
    assert not any(map(divides_as_before, python.targets("cuda/pool/tiles.py")))


def test_the_functions_and_constants_that_choose_are_there() -> None:
    assert len(set(python.CHOOSING)) == len(python.CHOOSING)
    for beginning in python.CHOOSING:
        names = [target.name for target in python.targets(beginning.split()[0])]
        assert any(name.startswith(beginning) for name in names), beginning


def test_mutants_of_all_modules_are_drawn_by_the_seed() -> None:
    first, again, other = (python.chosen(40, seed, ["*"]) for seed in (1, 1, 2))
    assert [target.name for target in first] == [target.name for target in again]
    assert [target.name for target in first] != [target.name for target in other]
    assert len({target.module for target in first}) > 20
    assert {target.module for target in python.chosen(40, 1, ["gpuconv/cpu/*"])} <= {
        module for module in python.modules() if module.startswith("cpu/")
    }


# ---------------------------------------------------------------- running them

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that are forked")


def run(*options: str) -> list[str]:
    """The lines that the tool prints."""
    command = [sys.executable, "-m", "tools.mutation.python", "--modules", "rules/layout.py"]
    found = subprocess.run([*command, *options], cwd=python.ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout.splitlines()


@forks
def test_the_tool_tells_what_is_noticed_from_what_is_equivalent() -> None:
    """Two entries are in order in either layout; three and four are not."""
    change = "channels_second: if layout == 'NCHW' or len(entries) < 3:  ->  if layout == 'NCHW' or len(entries)"
    *lines, _, score = run("--named", change)
    assert sorted(line.partition(" s  ")[2] for line in lines) == [
        f"known to be equivalent: rules/layout.py {change} < 2:",
        *(f"noticed: rules/layout.py {change} {wrong}:" for wrong in ("< 4", "<= 3", "> 3")),
    ]
    assert score == "score: 3 of 3 that are not equivalent, 100.0%"


@forks
def test_a_sample_is_noticed() -> None:
    assert run("--count", "2", "--seed", "1")[-1] == "score: 2 of 2 that are not equivalent, 100.0%"
