"""Break gpuconv/_geometry.py in every small way and see that each break is noticed.

`python tests/mutate_geometry.py` prints the mutants that survive. A mutant is the module with one operator, constant or
name replaced. It is noticed where, on any problem of the corpus, its geometry differs from what counting and the oracle
give, or where it accepts what must be refused or refuses it in other words.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from answers import answer
from refusals import REFUSALS
from strategies import GENERATORS, Problem

from gpuconv import _cases, _geometry
from gpuconv._errors import ArgumentError, ArgumentTypeError

SOURCE = Path(_geometry.__file__)
KINDS = {"value": ArgumentError, "type": ArgumentTypeError}

# Mutants that compute the same as the module, by name, and why.
EQUIVALENT = {
    "_split: small = tuple((max(0, total) // 2 for total in totals))"
    "  ->  small = tuple((max(1, total) // 2 for total in totals))": "half of 1 is 0 as well, rounded down",
    **{
        f"taps_met: if len(offsets) <= count * limit:  ->  if len(offsets) {other}:": "both ways find the same taps"
        for other in ("< count * limit", "> count * limit", "<= count + limit")
    },
}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One replacement, in words, and the module that it makes."""

    name: str
    code: types.CodeType


# ---------------------------------------------------------------- replacements

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
    ast.FloorDiv: (ast.Mult, ast.Mod),
    ast.Mod: (ast.FloorDiv,),
}
_NAMES = {
    "begin": "end",
    "end": "begin",
    "b": "e",
    "e": "b",
    "small": "large",
    "large": "small",
    "min": "max",
    "max": "min",
    "any": "all",
    "low": "high",
    "stride": "dilation",
    "dilation": "stride",
    "s": "d",
    "d": "s",
}
_CONSTANTS = {0: (1, -1), 1: (0, 2), 2: (1, 3), 3: (2, 4), 8: (4, 16), 63: (62, 64)}


def _replacements(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                for other in _COMPARISONS[type(op)]:
                    yield _changed(node, ops=[*ops[:i], other(), *ops[i + 1 :]])
        case ast.BinOp(op=op):
            yield from (_changed(node, op=other()) for other in _OPERATORS.get(type(op), ()))
            if isinstance(op, ast.FloorDiv):
                yield _ceiled(node)
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.BoolOp(op=op):
            yield _changed(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.IfExp(body=body, orelse=orelse):
            yield _changed(node, body=orelse, orelse=body)
        case ast.Slice(lower=lower, upper=upper):
            yield _changed(node, lower=upper, upper=lower)
        case ast.Name(id=name, ctx=ast.Load()) if name in _NAMES:
            yield _changed(node, id=_NAMES[name])
        case ast.Constant(value=value):
            yield from (_changed(node, value=other) for other in _other_constants(value))


def _other_constants(value: Any) -> Iterable[Any]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return _CONSTANTS.get(value, ())
    if isinstance(value, str) and value.isupper():
        return ("SAME_UPPER" if value == "SAME_LOWER" else "SAME_LOWER",)
    return ()


def _changed(node: ast.AST, **fields: Any) -> ast.AST:
    twin = copy.copy(node)
    for name, value in fields.items():
        setattr(twin, name, value)
    return twin


def _ceiled(node: ast.BinOp) -> ast.AST:
    """-(-a // b) for a // b."""
    negative = ast.UnaryOp(ast.USub(), node.left)
    return ast.UnaryOp(ast.USub(), ast.BinOp(negative, ast.FloorDiv(), node.right))


def _removals(node: ast.AST) -> Iterator[ast.AST]:
    """A check that is never made: `if …: raise` and calls whose result nobody takes."""
    if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise):
        yield _changed(node, test=ast.Constant(value=False))
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield ast.Pass()


_SILENT = ("annotation", "returns", "decorator_list")


def _live(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below this one that computes something, the words of errors left out."""
    for field, value in ast.iter_fields(node):
        if field in _SILENT or isinstance(node, ast.Raise):
            continue
        for child in value if isinstance(value, list) else [value]:
            # The arguments of every zip have one length, so that its `strict` changes nothing.
            if isinstance(child, ast.AST) and getattr(child, "arg", None) != "strict":
                yield child
                yield from _live(child)


class _Swap(ast.NodeTransformer):
    """Puts one node in the place of another."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.old else self.generic_visit(node)


def _changed_line(before: str, after: str) -> str:
    pairs = zip(before.splitlines(), after.splitlines(), strict=False)
    return next((f"{old.strip()}  ->  {new.strip()}" for old, new in pairs if old != new), "no change")


def mutants() -> Iterator[Mutant]:
    """Every mutant of the functions and constants; the dataclasses stay as they are."""
    tree = ast.parse(SOURCE.read_text())
    for top in tree.body:
        if isinstance(top, (ast.FunctionDef, ast.Assign)):
            yield from _mutants_in(top, tree)


def _mutants_in(top: ast.stmt, tree: ast.Module) -> Iterator[Mutant]:
    source = ast.unparse(top)
    for old in list(_live(top)):
        for new in (*_replacements(old), *_removals(old)):
            _Swap(old, new).visit(top)
            ast.fix_missing_locations(tree)
            name = f"{getattr(top, 'name', 'module')}: {_changed_line(source, ast.unparse(top))}"
            yield Mutant(name, compile(tree, SOURCE.name, "exec"))
            _Swap(new, old).visit(top)


# ---------------------------------------------------------------- the corpus

Ask = Callable[[types.ModuleType], Any]


def _ask_fields(problem: Problem) -> Ask:
    def ask(module: types.ModuleType) -> Any:
        geometry = getattr(module, problem.operator)(*problem.shapes, **problem.attributes)
        return {field.name: getattr(geometry, field.name) for field in dataclasses.fields(geometry)}

    return ask


def _ask_output(problem: Problem) -> Ask:
    return lambda module: _ask_fields(problem)(module)["y_shape"]


def _problem_of(case: _cases.Case) -> Problem:
    bias = _cases.inputs(case, case.dtypes[-1]).get("b")
    b_shape = None if bias is None else bias.shape
    return Problem(case.op, case.x_shape, case.w_shape, b_shape, dict(case.attributes))


def _problems() -> Iterator[Problem]:
    random = Random(20)
    yield from map(_problem_of, _cases.CASES)
    for _ in range(400):
        yield from (generate(random) for generate in GENERATORS.values())


def _ask_range(count: int, *arguments: int) -> Ask:
    """What is in the range, and whether it is a range within the count."""

    def ask(module: types.ModuleType) -> Any:
        low, high = module.tap_range(count, *arguments)
        return list(range(low, high)), 0 <= low <= high <= count

    return ask


def _range_by_trying(count: int, limit: int, stride: int, offset: int) -> Any:
    return [q for q in range(count) if 0 <= q * stride + offset < limit], True


def _ranges() -> Iterator[tuple[int, int, int, int]]:
    random = Random(21)
    for _ in range(300):
        yield random.randint(0, 7), random.randint(0, 9), random.randint(1, 4), random.randint(-12, 12)


def _at_the_limits() -> Iterator[tuple[Problem, tuple[int, ...]]]:
    """What nobody can count, with the output that follows without counting: the largest sizes, the longest stride."""
    largest, most = (2**63 - 1) // 16, (1,) * 64
    yield Problem("conv", (1, 1, largest), (1, 1, 1)), (1, 1, largest)
    yield Problem("max_pool", (1, 1, largest), attributes={"kernel_shape": [1]}), (1, 1, largest)
    yield Problem("conv", (1, 1, 5), (1, 1, 1), attributes={"strides": [2**63 - 1]}), (1, 1, 1)
    yield Problem("max_pool", most, attributes={"kernel_shape": most[2:]}), most
    yield Problem("max_pool", (1, 1, 2**53 + 1), attributes={"kernel_shape": [2], "strides": [2]}), (1, 1, 2**52)


def _ask_met(count: int, limit: int, stride: int, offsets: range) -> Ask:
    return lambda module: module.taps_met(count, limit, stride, offsets)


def _met_by_trying(count: int, limit: int, stride: int, offsets: range) -> Any:
    places = [{q * stride + offset for q in range(count)} for offset in offsets]
    return tuple(tap for tap, there in enumerate(places) if there & set(range(limit)))


def _kernels() -> Iterator[tuple[int, int, int, range]]:
    random = Random(22)
    for _ in range(300):
        first, step = random.randint(-12, 6), random.randint(1, 4)
        offsets = range(first, first + random.randint(1, 30) * step, step)
        yield random.randint(0, 4), random.randint(0, 4), random.randint(1, 5), offsets


def _past_the_axes() -> tuple[Problem, tuple[type, str]]:
    """A rank that no array of the tests of errors has."""
    sentence = "max_pool: x has 63 spatial axes, but beside batch and channels an array has at most 62"
    return Problem("max_pool", (1,) * 65, attributes={"kernel_shape": [1] * 63}), (ArgumentError, sentence)


def corpus() -> list[tuple[Ask, Any]]:
    """Questions and answers; the answer to what must be refused is the type and the words of the error."""
    asked = [(_ask_fields(problem), answer(problem)) for problem in _problems()]
    asked += [(_ask_fields(row.problem), (KINDS[row.kind], row.message)) for row in REFUSALS]
    asked += [(_ask_range(*arguments), _range_by_trying(*arguments)) for arguments in _ranges()]
    asked += [(_ask_met(*arguments), _met_by_trying(*arguments)) for arguments in _kernels()]
    problem, refusal = _past_the_axes()
    asked.append((_ask_fields(problem), refusal))
    return asked + [(_ask_output(problem), y_shape) for problem, y_shape in _at_the_limits()]


def _answered(ask: Ask, module: types.ModuleType) -> Any:
    try:
        return ask(module)
    except Exception as error:
        return type(error), str(error)


def survives(mutant: Mutant, questions: list[tuple[Ask, Any]]) -> bool:
    module = types.ModuleType("gpuconv._mutant")
    sys.modules[module.__name__] = module  # where its dataclasses look for it
    try:
        exec(mutant.code, module.__dict__)
    except Exception:
        return False
    return all(_answered(ask, module) == expected for ask, expected in questions)


def survivors() -> tuple[int, list[str]]:
    """How many mutants there are, and the names of those that nothing notices."""
    questions, all_mutants = corpus(), list(mutants())
    return len(all_mutants), [mutant.name for mutant in all_mutants if survives(mutant, questions)]


if __name__ == "__main__":
    count, names = survivors()
    print(f"{count} mutants, {len(names)} unnoticed:", *names, sep="\n")
