"""The lines of which a test must execute at least one to notice a mutant.

In a function these are the lines of the changed expression, and the first line of its statement. Statements of a module
or class (constants, tables, defaults of parameters) run once at import, in no particular test. Their mutants are judged
by the tests of functions that read the names bound by the statement, directly or through other such statements.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tools.mutation.python_changes import Place
from tools.mutation.time_model import imported

Lines = dict[str, set[int]]  # by module
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def lines_of(module: str, place: Place, trees: Mapping[str, ast.Module]) -> Lines:
    """Return the lines, by module, that a test of a mutant at this place executes."""
    node, statement = place.node, place.statement
    function = _function(trees[module], node.lineno)
    if function is not None:
        last = node.lineno if hasattr(node, "body") and isinstance(node, ast.stmt) else node.end_lineno
        return {module: {statement.lineno, *range(node.lineno, last + 1)}}
    if isinstance(statement, _FUNCTIONS):  # the default of a parameter
        return {module: _body(statement)}
    return _readers(module, statement, trees) or functions_of(module, trees)


def _function(tree: ast.Module, line: int) -> ast.AST | None:
    """Return the function whose body contains a line, or None if the line runs at import."""
    return next((one for one in ast.walk(tree) if isinstance(one, _FUNCTIONS) and line in _body(one)), None)


def _body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[int]:
    return set(range(function.body[0].lineno, (function.end_lineno or 0) + 1))


def functions_of(module: str, trees: Mapping[str, ast.Module]) -> Lines:
    """Return all lines of a module's functions; if it has none, those of modules that import it."""
    own = {line for one in ast.walk(trees[module]) if isinstance(one, _FUNCTIONS) for line in _body(one)}
    if own:
        return {module: own}
    users = [name for name, tree in trees.items() if module in imported(tree)]
    return {
        name: {line for one in ast.walk(trees[name]) if isinstance(one, _FUNCTIONS) for line in _body(one)}
        for name in users
    }


class Part(NamedTuple):
    """A function, or a statement that runs at import: the names it binds and reads, and the lines of its body."""

    binds: frozenset[str]
    reads: frozenset[str]
    lines: frozenset[int]


def _readers(module: str, statement: ast.stmt, trees: Mapping[str, ast.Module]) -> Lines:
    """Return the lines of functions that read what a statement binds, in its module and in those that import it."""
    near = {name: list(_parts(tree)) for name, tree in trees.items() if name == module or module in imported(tree)}
    names, more, found = set[str](), set(_binds(statement)), set[tuple[str, Part]]()
    while not more <= names:
        names |= more
        found = {(name, part) for name, parts in near.items() for part in parts if not part.reads.isdisjoint(names)}
        more = {name for _, part in found for name in part.binds}
    lines: Lines = {}
    for name, part in found:
        lines.setdefault(name, set()).update(part.lines)
    return {name: some for name, some in lines.items() if some}


def _parts(tree: ast.Module | ast.ClassDef) -> Iterator[Part]:
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef):
            yield from _parts(statement)
        elif isinstance(statement, _FUNCTIONS):
            yield Part(frozenset(), _reads(statement), frozenset(_body(statement)))
        else:
            yield Part(_binds(statement), _reads(statement), frozenset())


def _binds(statement: ast.stmt) -> frozenset[str]:
    names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return frozenset(names | ({statement.name} if isinstance(statement, ast.ClassDef) else set()))


def _reads(statement: ast.stmt) -> frozenset[str]:
    names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return frozenset(names | {node.attr for node in ast.walk(statement) if isinstance(node, ast.Attribute)})
