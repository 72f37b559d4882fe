"""What of `gpuconv/cuda` belongs to the model of time, which only chooses among kernels that are all right.

These are the functions that return a float or make what returns one, and whatever is read by these alone: functions,
properties and constants, again and again until nothing is added. A name that a module defines is its own there;
elsewhere it may be that of any module that is imported. What `__str__` tells people is no use of a number. Measured
times, the least time that `explain` tells of, and what devices can do are no model.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_FOLDER, _NO_MODEL = "cuda/", ("cuda/device.py", "cuda/floor.py", "cuda/limits.py")


@dataclass(frozen=True)
class Definition:
    """A function or constant of a module, or a member of one of its classes."""

    module: str
    name: str
    statement: ast.stmt
    member: bool


@dataclass(frozen=True)
class Read:
    """A name that stands in a function or in another statement of a module, alone or after a dot."""

    module: str
    name: str
    reader: ast.stmt | None
    alone: bool


def statements(trees: Mapping[str, ast.Module]) -> set[ast.stmt]:
    """Return the functions and assignments of the model, of all modules by their names."""
    trees = {module: tree for module, tree in trees.items() if module.startswith(_FOLDER)}
    definitions = [found for module, tree in trees.items() for found in _definitions(module, tree)]
    own = {(one.module, one.name) for one in definitions}
    imported = {module: _imported(tree) for module, tree in trees.items()}
    reads: defaultdict[str, list[Read]] = defaultdict(list)
    for read in (read for module, tree in trees.items() for read in _reads(module, tree, None)):
        reads[read.name].append(read)

    def may_mean(read: Read, one: Definition) -> bool:
        if one.member and read.alone:
            return False
        if (read.module, read.name) in own:
            return read.module == one.module
        return one.module in imported[read.module]

    mine = [one for one in definitions if one.module not in _NO_MODEL]
    readers: dict[ast.stmt, set[ast.stmt | None]] = {one.statement: set() for one in mine}
    for one in mine:
        readers[one.statement] |= {read.reader for read in reads[one.name] if may_mean(read, one)}
    others = {statement: found - {statement} for statement, found in readers.items()}
    model = {statement for statement in readers if _returns_float(statement)}
    while True:
        more = {statement for statement, found in others.items() if found and found <= model}
        if more <= model:
            return model
        model |= more


def _imported(tree: ast.Module) -> set[str]:
    """Return the modules of the folder that one imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            found |= {f"{name.removeprefix('gpuconv.').replace('.', '/')}.py" for name in names}
    return found


def _returns_float(statement: ast.stmt) -> bool:
    returns = getattr(statement, "returns", None)
    return returns is not None and re.fullmatch(r"(Callable\[.*, )?float\]?", ast.unparse(returns)) is not None


def _definitions(module: str, tree: ast.Module | ast.ClassDef) -> Iterator[Definition]:
    member = isinstance(tree, ast.ClassDef)
    for statement in tree.body:
        match statement:
            case ast.FunctionDef(name=name):
                yield Definition(module, name, statement, member)
            case ast.ClassDef():
                yield from _definitions(module, statement)
            case ast.Assign(targets=[target]) | ast.AnnAssign(target=target):
                names = [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]
                yield from (Definition(module, name, statement, member) for name in names)


def _reads(module: str, node: ast.AST, reader: ast.stmt | None) -> Iterator[Read]:
    """Yield every name that is read, by the outermost function or assignment that it stands in."""
    if isinstance(node, ast.FunctionDef) and node.name == "__str__":
        return
    if reader is None and isinstance(node, (ast.FunctionDef, ast.Assign, ast.AnnAssign)):
        reader = node
    match node:
        case ast.Name(id=name, ctx=ast.Load()):
            yield Read(module, name, reader, True)
        case ast.Attribute(attr=name, ctx=ast.Load()):
            yield Read(module, name, reader, False)
        case ast.Constant(value=str(name)):  # fields may be read by their names
            yield Read(module, name, reader, False)
    for child in ast.iter_child_nodes(node):
        yield from _reads(module, child, reader)
