"""Mutation testing of Python modules: what is changed, drawn and listed, which tests judge, and what is reported."""

from __future__ import annotations

import ast
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from coverage import CoverageData

from tools.mutation import python, python_equivalent, time_model
from tools.mutation.coverage_map import CoverageMap
from tools.mutation.lines import lines_of
from tools.mutation.python import divides_as_before
from tools.mutation.python_changes import mutants
from tools.mutation.working_copy import ROOT

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


# ---------------------------------------------------------------- the lists


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


# ---------------------------------------------------------------- which tests judge

TREES = {
    "tile.py": ast.parse("""
WIDTH = 8
LENGTH = 4
TABLE = {"a": (WIDTH, 2)}
class Tile:
    rows: int = 3
    def words(self, times=1):
        if (times >
                self.rows):
            raise ValueError(times)
        return TABLE["a"][0] * (
            times
            + 5
        )
"""),
    "plan.py": ast.parse("from gpuconv import tile\n\ndef area():\n    return tile.LENGTH ** 2\n"),
    "unrelated.py": ast.parse("def f(self):\n    return self.LENGTH + self.rows\n"),
}


def judged_by(change: str) -> dict[str, set[int]]:
    """The lines of the one mutant of `tile.py` whose name ends so."""
    (found,) = [one for one in mutants(TREES["tile.py"]) if one.name.endswith(change)]
    return lines_of("tile.py", found.place, TREES)


def test_a_mutant_of_a_function_is_judged_by_its_own_lines() -> None:
    """A changed condition by its line, a changed number of a long expression by its line and the statement's."""
    assert judged_by("if times > self.rows:  ->  if times >= self.rows:") == {"tile.py": {8, 9}}
    assert judged_by("if times > self.rows:  ->  if False:") == {"tile.py": {8}}
    assert judged_by("(times + 5)  ->  return TABLE['a'][0] * (times + 6)") == {"tile.py": {11, 13}}


def test_a_mutant_of_a_constant_is_judged_by_the_functions_that_read_it() -> None:
    """`WIDTH` through `TABLE`, `rows` as an attribute, `LENGTH` in the module that imports this one."""
    words = set(range(8, 15))
    assert judged_by("module: WIDTH = 8  ->  WIDTH = 9") == {"tile.py": words}
    assert judged_by("Tile: rows: int = 3  ->  rows: int = 4") == {"tile.py": words}
    assert judged_by("def words(self, times=1):  ->  def words(self, times=2):") == {"tile.py": words}
    assert judged_by("module: LENGTH = 4  ->  LENGTH = 5") == {"plan.py": {4}}


def test_quick_and_specific_tests_come_first_and_each_function_once_before_its_parameters(tmp_path: Path) -> None:
    """Written with coverage.py itself; a context without a duration is a test that does not pass."""
    data = CoverageData(basename=str(tmp_path / "map"))
    lines = {"t.py::slow": {3}, "t.py::f[0]": {3}, "t.py::f[1]": {3, 4}, "t.py::wide": {3, 4, 5, 6}, "t.py::fails": {3}}
    for test, executed in lines.items():
        data.set_context(test)
        data.add_lines({"/copy/checkout/gpuconv/cpu/a.py": executed | {9}, "/copy/checkout/gpuconv/b.py": {3, 7}})
    data.close()
    with sqlite3.connect(tmp_path / "map") as database:
        database.execute("CREATE TABLE duration (test TEXT, seconds REAL)")
        seconds = [("t.py::slow", 2.0), ("t.py::f[0]", 0.1), ("t.py::f[1]", 0.1), ("t.py::wide", 0.1)]
        database.executemany("INSERT INTO duration VALUES (?, ?)", seconds)
    found = CoverageMap(tmp_path / "map")
    assert found.tests({"cpu/a.py": {3}}) == ["t.py::f[0]", "t.py::wide", "t.py::slow", "t.py::f[1]"]
    assert found.tests({"cpu/a.py": {4}}) == ["t.py::f[1]", "t.py::wide"]
    assert found.tests({"a.py": {3}}) == []


# ---------------------------------------------------------------- running them


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that are forked")
def test_the_tool_tells_what_is_noticed_from_what_is_equivalent() -> None:
    """Two entries are in order in either layout; three are not."""
    change = "channels_second: if layout == 'NCHW' or len(entries) < 3:  ->  if layout == 'NCHW' or len(entries)"
    command = [sys.executable, "-m", "tools.mutation.python", "--modules", "rules/layout.py", "--named", f"{change} < "]
    command += ["--tests", "tests/rules/test_axis_order.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    fates = {line.partition(" s  ")[2] for line in done.stdout.splitlines() if " s  " in line}
    assert fates == {
        f"known to be equivalent: rules/layout.py {change} < 2:",
        f"noticed: rules/layout.py {change} < 4:",
    }
    assert "by tests/rules/test_axis_order.py::test_" in done.stdout
    assert done.stdout.splitlines()[-1] == "score: 1 of 1 that are not equivalent, 100.0%"
