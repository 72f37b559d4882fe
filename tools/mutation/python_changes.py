"""Every small change of a Python module: an operator, number, name, condition or statement replaced, one at a time.

`geometry` and `python` run them. Text does not change: error messages (all of a `raise`), f-strings and docstrings.
Neither do annotations, decorators, assertions and overloads, which compute nothing; the `strict` of `zip`, whose
arguments have equal lengths here; and the -1 of `reshape`, for which NumPy also accepts -2.
"""

from __future__ import annotations

import ast
import builtins
import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import takewhile
from typing import Any

_COMPARISONS: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_OPERATORS: dict[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add, ast.FloorDiv),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult, ast.Mod),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitOr,),
}
_PAIRS = (
    ("begin", "end"),
    ("b", "e"),
    ("small", "large"),
    ("min", "max"),
    ("any", "all"),
    ("low", "high"),
    ("stride", "dilation"),
    ("s", "d"),
    ("first", "last"),
    ("rows", "columns"),
    ("height", "width"),
    ("channels", "filters"),
    ("before", "after"),
)
_NAMES = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}
_WORDS = {
    "NOTSET": "SAME_LOWER",
    "VALID": "SAME_LOWER",
    "SAME_LOWER": "SAME_UPPER",
    "SAME_UPPER": "SAME_LOWER",
    "NCHW": "NHWC",
    "NHWC": "NCHW",
}
_SILENT = ("annotation", "returns", "decorator_list", "type_params")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, eq=False)
class Mutant:
    """A replacement of a node in a module's tree; ``siblings`` are all mutants of the same function."""

    tree: ast.Module
    place: Place
    new: ast.AST
    siblings: list[Mutant]

    @cached_property
    def change(self) -> str:
        """The function, the changed line, and its replacement."""
        return self.place.described(self.new)

    @property
    def name(self) -> str:
        """The change in words; numbered from the second mutant with the same words in a function."""
        before = takewhile(lambda sibling: sibling is not self, self.siblings)
        number = 1 + sum(sibling.change == self.change for sibling in before)
        return self.change if number == 1 else f"{self.change}  no. {number}"

    def code(self, path: str) -> Any:
        """Compile the mutated module."""
        with self.place.holding(self.new):
            return compile(ast.fix_missing_locations(self.tree), path, "exec")

    def text(self) -> str:
        """Return the mutated module's source, without comments."""
        with self.place.holding(self.new):
            return ast.unparse(ast.fix_missing_locations(self.tree))


@dataclass(frozen=True, eq=False)
class Place:
    """The position of a node: parent and field, innermost statement, and function."""

    function: str
    statement: ast.stmt
    names: frozenset[str]
    parent: ast.AST
    field: str
    index: int | None
    is_found: bool = False  # it is, or is in, the -1 of a reshape

    @property
    def node(self) -> Any:
        held = getattr(self.parent, self.field)
        return held if self.index is None else held[self.index]

    @contextmanager
    def holding(self, new: ast.AST) -> Iterator[None]:
        """Put another node here temporarily."""
        old = self.node
        self._put(new)
        try:
            yield
        finally:
            self._put(old)

    def _put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node

    def described(self, new: ast.AST) -> str:
        whole = self.node is self.statement
        before = _unparsed(self.statement)
        with self.holding(new):
            after = ast.unparse(ast.fix_missing_locations(new if whole else self.statement))
        pairs = zip(before.splitlines(), after.splitlines(), strict=False)
        changed = next((_shortened(old.strip(), new.strip()) for old, new in pairs if old != new), "no change")
        return f"{self.function or 'module'}: {changed}"


@cache
def _unparsed(statement: ast.stmt) -> str:
    """Return the text of an unchanged statement; cached, since it has many mutants."""
    return ast.unparse(statement)


def _shortened(old: str, new: str) -> str:
    """Return both lines; of long ones only the parts around the difference."""
    if len(old) <= 120:
        return f"{old}  ->  {new}"
    begin = _in_common(old, new)
    end = min(_in_common(old[::-1], new[::-1]), min(len(old), len(new)) - begin)
    begin, end = max(0, begin - 40), max(0, end - 40)
    return f"… {old[begin : len(old) - end]} …  ->  … {new[begin : len(new) - end]} …"


def _in_common(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((number for number, (a, b) in pairs if a != b), min(len(one), len(other)))


Left = Callable[[ast.AST], bool]


def mutants(tree: ast.Module, left_out: Left = lambda _: False, floats: bool = True) -> list[Mutant]:
    """Return every mutant of a module except in nodes left out; without ``floats``, floats do not change."""
    siblings: defaultdict[str, list[Mutant]] = defaultdict(list)
    made = []
    for place in _places_in(tree, left_out):
        for new in (*_replacements(place, floats), *_removals(place.node)):
            mutant = Mutant(tree, place, new, siblings[place.function])
            mutant.siblings.append(mutant)
            made.append(mutant)
    return made


# ---------------------------------------------------------------- places


def _places_in(tree: ast.Module, left_out: Left) -> Iterator[Place]:
    """Yield the places of all nodes that compute something."""
    known = frozenset(vars(builtins)) | _bound(tree)
    for index, statement in enumerate(tree.body):
        yield from _places(Place("", statement, known, tree, "body", index), left_out)


def _places(place: Place, left_out: Left) -> Iterator[Place]:
    node = place.node
    if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)):
        return
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return
    if left_out(node) or _is_overload(node):
        return
    if isinstance(node, ast.stmt):
        place = replace(place, statement=node)
    yield place
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        place = replace(place, function=f"{place.function}.{node.name}".lstrip("."), names=place.names | _bound(node))
    for field, value in ast.iter_fields(node):
        if field not in _SILENT:
            for index, child in _children(value):
                if isinstance(child, ast.AST):
                    found = _is_found(node, child) or (place.is_found and isinstance(node, ast.UnaryOp))
                    yield from _places(replace(place, parent=node, field=field, index=index, is_found=found), left_out)


def _is_overload(node: ast.AST) -> bool:
    """Return whether a function exists only for type checkers."""
    return isinstance(node, _FUNCTIONS) and any(ast.unparse(one) == "overload" for one in node.decorator_list)


def _is_found(node: ast.AST, child: ast.AST) -> bool:
    """Return whether a node is a call of ``reshape`` and its child the extent -1."""
    match node, child:
        case ast.Call(func=ast.Attribute(attr="reshape")), ast.UnaryOp(ast.USub(), ast.Constant(value=1)):
            return True
    return False


def _children(value: Any) -> Iterable[tuple[int | None, Any]]:
    return enumerate(value) if isinstance(value, list) else [(None, value)]


def _bound(node: ast.AST) -> frozenset[str]:
    """Return the names that code under this node assigns."""
    names = {child.id for child in ast.walk(node) if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store)}
    return frozenset(names | {child.arg for child in ast.walk(node) if isinstance(child, ast.arg)})


# ---------------------------------------------------------------- replacements


def _replacements(place: Place, floats: bool) -> Iterator[ast.AST]:
    """Yield replacements of a node."""
    node = place.node
    if isinstance(node, (ast.BinOp, ast.AugAssign, ast.UnaryOp, ast.Compare, ast.BoolOp)):
        if place.function or not isinstance(getattr(node, "op", None), ast.BitOr):  # which is a union of types there
            yield from _other_operators(node)
        return
    match node:
        case ast.IfExp(body=body, orelse=orelse):
            yield _changed(node, body=orelse, orelse=body)
        case ast.If(test=ast.Name() | ast.Call() | ast.Attribute() as test):
            yield _changed(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Slice(lower=lower, upper=upper) if lower is not upper:
            yield _changed(node, lower=upper, upper=lower)
        case ast.Name(id=name, ctx=ast.Load()) if _NAMES.get(name) in place.names:
            yield _changed(node, id=_NAMES[name])
        case ast.Constant(value=value):
            others = _other_constants(value, floats)
            yield from (_changed(node, value=other) for other in others if not (place.is_found and other == 2))


def _other_operators(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                for other in _COMPARISONS[type(op)]:
                    yield _changed(node, ops=[*ops[:i], other(), *ops[i + 1 :]])
        case ast.BoolOp(op=op):
            yield _changed(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.BinOp(op=op) | ast.AugAssign(op=op):
            yield from (_changed(node, op=other()) for other in _OPERATORS.get(type(op), ()))
            if isinstance(node, ast.BinOp) and isinstance(op, ast.FloorDiv):
                yield rounded_up(node)


def _other_constants(value: Any, floats: bool) -> Iterable[Any]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return value + 1, value - 1
    if isinstance(value, float) and floats:
        return (value + 1,)
    if isinstance(value, str) and value in _WORDS:
        return (_WORDS[value],)
    return ()


def _changed(node: ast.AST, **fields: Any) -> ast.AST:
    twin = copy.copy(node)
    for name, value in fields.items():
        setattr(twin, name, value)
    return twin


def rounded_up(node: ast.BinOp) -> ast.AST:
    """Return -(-a // b) for a // b."""
    negative = ast.UnaryOp(ast.USub(), node.left)
    return ast.UnaryOp(ast.USub(), ast.BinOp(negative, ast.FloorDiv(), node.right))


def _removals(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the removal of a check (`if …: raise`) or of a call whose result is unused."""
    if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise):
        yield _changed(node, test=ast.Constant(value=False))
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield ast.Pass()
