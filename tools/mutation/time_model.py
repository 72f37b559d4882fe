"""Find the parts of `gpuconv/cuda` that belong to the cost model, which only chooses among right kernels.

These are functions that return a float or build one that does, the arguments of their calls, and everything that only
such code reads: functions, properties and constants, repeated until nothing is added. A name defined in a module means
that module's; otherwise it may be that of any imported module. Uses in `__str__` do not count. Measured times, the
lower bound that `explain` prints, and the limits of devices are not part of the model.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

_FOLDER, _NO_MODEL = "cuda/", ("cuda/call/device.py", "cuda/plan/floor.py", "cuda/plan/limits.py")


@dataclass(frozen=True)
class Definition:
    """A function or constant of a module, or a member of one of its classes."""

    module: str
    name: str
    statement: ast.stmt
    member: bool


@dataclass(frozen=True)
class Read:
    """A name that is read, by itself or after a dot, in a function, in a call of a model function or in another
    statement."""

    module: str
    name: str
    reader: ast.AST | None
    alone: bool


def nodes(trees: Mapping[str, ast.Module]) -> set[ast.AST]:
    """Return the AST nodes of the model in all modules: functions, assignments, and calls of its functions."""
    trees = {module: tree for module, tree in trees.items() if module.startswith(_FOLDER)}
    imports = {module: imported(tree) for module, tree in trees.items()}
    definitions = [found for module, tree in trees.items() for found in _definitions(module, tree)]
    mine = [one for one in definitions if one.module not in _NO_MODEL]
    model: set[ast.AST] = set()
    reads: defaultdict[str, list[Read]] = defaultdict(list)
    for module, tree in trees.items():
        near = [one for one in mine if one.module in (module, *imports[module]) and _returns_float(one.statement)]
        model |= {one.statement for one in near if one.module == module}
        with_any = {one.module for one in near}
        others = {name for name, of in _modules(tree).items() if of in trees and of not in with_any}
        for read in _reads(module, tree, None, {one.name for one in near}, others):
            reads[read.name].append(read)
            if isinstance(read.reader, ast.Call):
                model.add(read.reader)
    own = {(one.module, one.name) for one in definitions}

    def may_mean(read: Read, one: Definition) -> bool:
        if one.member and read.alone:
            return False
        if (read.module, read.name) in own:
            return read.module == one.module
        return one.module in imports[read.module]

    readers: dict[ast.stmt, set[ast.AST | None]] = {one.statement: set() for one in mine}
    for one in mine:
        readers[one.statement] |= {read.reader for read in reads[one.name] if may_mean(read, one)} - {one.statement}
    while True:
        more = {statement for statement, found in readers.items() if found and found <= model}
        if more <= model:
            return model
        model |= more


def _modules(tree: ast.Module) -> dict[str, str]:
    """Return the local names of imports, each with the path that it would have as a module."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {
        alias.asname or alias.name: f"{f'{node.module}.{alias.name}'.removeprefix('gpuconv.').replace('.', '/')}.py"
        for node in imports
        for alias in node.names
    }


def imported(tree: ast.Module) -> set[str]:
    """Return the modules of the folder that a module imports."""
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


def _reads(module: str, node: ast.AST, reader: ast.AST | None, model: Set[str], others: Set[str]) -> Iterator[Read]:
    """Yield every name that is read, with its reader: a call of the model, or the outermost function or assignment.

    ``model`` has the names of the model's functions, ``others`` the modules that have none of them.
    """
    if isinstance(node, ast.FunctionDef) and node.name == "__str__":
        return
    if reader is None and isinstance(node, (ast.FunctionDef, ast.Assign, ast.AnnAssign)):
        reader = node
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name))) if name in others:
            pass
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in model:
            reader = node
        case ast.Name(id=name, ctx=ast.Load()):
            yield Read(module, name, reader, True)
        case ast.Attribute(attr=name, ctx=ast.Load()):
            yield Read(module, name, reader, False)
        case ast.Constant(value=str(name)):  # fields may be read by name
            yield Read(module, name, reader, False)
    for child in ast.iter_child_nodes(node):
        yield from _reads(module, child, reader, model, others)
