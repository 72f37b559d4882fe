"""Mutation testing of gpuconv/rules/geometry.py: run every mutant, and compare its answers with counted ones.

`python -m tools.mutation.geometry` prints the mutants that survive. A mutant is the module with one operator, constant
or name changed. It is noticed if its geometry of any problem in the corpus differs from the one found by counting taps,
or if it accepts what must be refused or refuses it with another message.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import math
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from gpuconv._errors import ArgumentError, ArgumentTypeError
from gpuconv.rules import cases, strictness
from gpuconv.rules import geometry as geometries
from tests.oracle.answers import answer
from tests.oracle.strategies import GENERATORS, Problem
from tests.rules.refusals import REFUSALS
from tools.mutation import python_changes
from tools.mutation.python_changes import Mutant

SOURCE = Path(geometries.__file__)
RANDOM = 400  # random problems per operator
KINDS = {"value": ArgumentError, "type": ArgumentTypeError}

# Mutants that compute the same as the module, by name, with the reason.
EQUIVALENT = {
    "_split: small = tuple((max(0, total) // 2 for total in totals))"
    "  ->  small = tuple((max(1, total) // 2 for total in totals))": "half of 1 is 0 as well, rounded down",
    **{
        f"taps_met: if len(offsets) <= count * limit:  ->  if len(offsets) {other}:": "both ways find the same taps"
        for other in ("< count * limit", "> count * limit", "<= count + limit")
    },
    **{
        f"taps_met: outputs = range(count if limit else 0)  ->  outputs = range(count if limit else {other})": why
        for other, why in (("1", "one output meets no input either"), ("-1", "that is no output either"))
    },
}


def every_mutant() -> list[Mutant]:
    """Return every mutant of functions, constants, properties and methods; fields of dataclasses do not change."""
    return python_changes.mutants(ast.parse(SOURCE.read_text()), lambda node: isinstance(node, ast.AnnAssign))


# ---------------------------------------------------------------- the corpus

Ask = Callable[[types.ModuleType], Any]


def _ask_fields(problem: Problem) -> Ask:
    def ask(module: types.ModuleType) -> Any:
        geometry = getattr(module, problem.operator)(*problem.shapes, **problem.attributes)
        return {field.name: getattr(geometry, field.name) for field in dataclasses.fields(geometry)}

    return ask


def _ask_properties(problem: Problem) -> Ask:
    def ask(module: types.ModuleType) -> Any:
        return _properties(getattr(module, problem.operator)(*problem.shapes, **problem.attributes))

    return ask


def _properties(geometry: Any) -> dict[str, Any]:
    """Return the values of a geometry's properties and methods, in the form of `_counted_properties`."""
    five = geometry.of_images(5)
    found = {
        "offsets": tuple(map(tuple, geometry.offsets)),
        "met": geometry.met,
        "of 5 images": (five.x_shape, five.y_shape),
        "of its own images": geometry.of_images(geometry.x_shape[0]) is geometry,
    }
    if hasattr(geometry, "counted"):
        found["counted"] = geometry.counted
        if 0 not in geometry.y_shape:
            found["constant"] = geometry.constant
    if hasattr(geometry, "plane_step"):
        found["plane_step"], windows = geometry.plane_step, geometry.index_windows
        found["windows"] = [
            [
                {q * stride - pad + i for i in range(0, reach, dilation)} & set(range(extent))
                for q in range(windows.shape[2 + axis])
            ]
            for axis, (stride, pad, reach, dilation, extent) in enumerate(
                zip(windows.strides, windows.pads, windows.reach, windows.dilations, windows.numbered[2:], strict=True)
            )
        ]
    return found


def _counted_properties(problem: Problem) -> dict[str, Any]:
    """Return the same values by counting taps, from the fields of `answer`."""
    fields = answer(problem)
    names = ("kernel_shape", "dilations", "strides", "pads_begin", "pads_end")
    inputs, outputs = fields["x_shape"][2:], fields["y_shape"][2:]
    met, windows, counted, taps_of_all = [], [], [], []
    for k, d, s, begin, end, n, q in zip(*(fields[name] for name in names), inputs, outputs, strict=True):
        one, other = (n, q) if problem.operator == "conv_transpose" else (q, n)  # strides step over `one`
        places = [[i * s + tap * d - begin for i in range(one)] for tap in range(k)]
        met.append(tuple(tap for tap in range(k) if set(places[tap]) & set(range(other))))
        windows.append([{place[i] for place in places} & set(range(other)) for i in range(one)])
        counts = (-begin, n + end) if fields.get("count_include_pad") else (0, n)
        counted.append(counts)
        taps_of_all.append(all(counts[0] <= place < counts[1] for tap in places for place in tap))
    batches = ((5, *fields["x_shape"][1:]), (5, *fields["y_shape"][1:]))
    axes = zip(fields["kernel_shape"], fields["dilations"], fields["pads_begin"], strict=True)
    found: dict[str, Any] = {
        "offsets": tuple(tuple(tap * d - begin for tap in range(k)) for k, d, begin in axes),
        "met": tuple(met),
        "of 5 images": batches,
        "of its own images": True,
    }
    if problem.operator == "average_pool":
        found["counted"] = tuple(counted)
        if 0 not in fields["y_shape"]:
            found["constant"] = all(taps_of_all)
    if problem.operator == "max_pool":
        found |= {"plane_step": math.prod(inputs), "windows": windows}
    return found


def _ask_plane_step(module: types.ModuleType) -> Any:
    geometry = module.max_pool((2, 3, 4, 5), kernel_shape=2, indices_in="plane")
    return geometry.plane_step, geometry.index_windows.in_planes


def _ask_strictly(operator: str, shapes: tuple[Any, ...], attributes: dict[str, Any]) -> Ask:
    """Return a question for a call within `gpuconv.strict`: the shape of its result, or its error."""

    def ask(module: types.ModuleType) -> Any:
        with strictness.strict():
            return getattr(module, operator)(*shapes, **attributes).y_shape

    return ask


def _strict() -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any], Any]]:
    """Yield calls that only `gpuconv.strict` refuses, with a word of the message; and calls that it accepts."""
    image, batch, w = (1, 2, 8), (1, 2, 8, 9), (4, 2, 3)
    yield "conv", ((1, 2, 2), w), {}, "kernel"
    yield "conv", (image, w), {}, (1, 4, 6)
    yield "conv_transpose", ((1, 4, 1), w), {"pads": [2, 1]}, "pads"
    yield "conv_transpose", ((1, 4, 1), w), {"output_shape": [0]}, (1, 2, 0)
    yield "conv_transpose", ((1, 4, 2), w), {}, (1, 2, 4)
    for operator in ("max_pool", "average_pool"):
        yield operator, (image,), {"kernel_shape": 3}, "leave open"
        yield operator, (image,), {"kernel_shape": 3, "strides": [1]}, (1, 2, 6)
        yield operator, (image,), {"kernel_shape": 3, "dilations": [1]}, (1, 2, 6)
        yield operator, (image,), {"kernel_shape": 3, "pads": [0, 0]}, (1, 2, 6)
        yield operator, (batch,), {"kernel_shape": 3}, (1, 2, 6, 7)
        yield operator, (batch,), {"kernel_shape": 3, "pads": 3}, "pads"
        yield operator, (batch,), {"kernel_shape": 9}, "kernel"
    yield "global_average_pool", (image,), {}, "leave open"
    yield "global_average_pool", (batch,), {}, (1, 2, 1, 1)


def _strict_questions() -> Iterator[tuple[Ask, Any]]:
    for operator, shapes, attributes, expected in _strict():
        ask = _ask_strictly(operator, shapes, attributes)
        if isinstance(expected, str):
            kind, sentence = _answered(ask, geometries)
            if kind is not ArgumentError or expected not in sentence:
                raise AssertionError(f"strict {operator} of {shapes} with {attributes}: {kind}, {sentence}")
            yield ask, (kind, sentence)
        else:
            yield ask, expected


def _ask_output(problem: Problem) -> Ask:
    return lambda module: _ask_fields(problem)(module)["y_shape"]


def _problem_of(case: cases.Case) -> Problem:
    bias = cases.inputs(case, case.dtypes[-1]).get("b")
    b_shape = None if bias is None else bias.shape
    return Problem(case.op, case.x_shape, case.w_shape, b_shape, dict(case.attributes))


def _problems() -> Iterator[Problem]:
    random = Random(20)
    yield from map(_problem_of, cases.CASES)
    for _ in range(RANDOM):
        yield from (generate(random) for generate in GENERATORS.values())


def _ask_range(count: int, *arguments: int) -> Ask:
    """Return a question for `tap_range`: its elements, and whether it is a range within the count."""

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
    """Yield problems too large to count, with outputs that follow by other means: largest sizes, longest stride."""
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
    """Return a problem of a rank that no test of errors has, and its error."""
    sentence = "max_pool: x has 63 spatial axes, but beside batch and channels an array has at most 62"
    return Problem("max_pool", (1,) * 65, attributes={"kernel_shape": [1] * 63}), (ArgumentError, sentence)


def _averages() -> Iterator[tuple[Problem, Any]]:
    """Yield problems of AveragePool with answers worked out by hand: its flag, and global pooling."""
    refused = "average_pool: count_include_pad must be 0 or 1, not 2"
    flag = {"kernel_shape": [2], "count_include_pad": 2}
    yield Problem("average_pool", (1, 1, 5), attributes=flag), (ArgumentError, refused)
    refused = "average_pool: kernel_shape is required, one integer per spatial axis or one for all of them"
    yield Problem("average_pool", (1, 1, 5), attributes={"kernel_shape": None}), (ArgumentTypeError, refused)
    refused = "global_average_pool: layout must be one of NCHW, NHWC, not 'NWC'"
    yield Problem("global_average_pool", (1, 1, 5), attributes={"layout": "NWC"}), (ArgumentError, refused)
    for extents, kernel in (((4, 5), (4, 5)), ((0, 5), (1, 5))):
        ones, zeros = {"strides": (1, 1), "dilations": (1, 1)}, {"pads_begin": (0, 0), "pads_end": (0, 0)}
        shapes = {"x_shape": (2, 3, *extents), "y_shape": (2, 3, 1, 1), "kernel_shape": kernel}
        yield Problem("global_average_pool", (2, 3, *extents)), shapes | ones | zeros | {"count_include_pad": 0}


def questions_of_properties() -> list[tuple[Ask, Any]]:
    asked = [(_ask_properties(problem), _counted_properties(problem)) for problem in _problems()]
    return [*asked, (_ask_plane_step, (0, True))]


def corpus() -> list[tuple[Ask, Any]]:
    """Return questions with answers; for refused problems the answer is the type and message of the error."""
    asked = [(_ask_fields(problem), answer(problem)) for problem in _problems()]
    asked += questions_of_properties()
    asked += _strict_questions()
    asked += [(_ask_fields(row.problem), (KINDS[row.kind], row.message)) for row in REFUSALS]
    asked += [(_ask_range(*arguments), _range_by_trying(*arguments)) for arguments in _ranges()]
    asked += [(_ask_met(*arguments), _met_by_trying(*arguments)) for arguments in _kernels()]
    asked += [(_ask_fields(problem), expected) for problem, expected in _averages()]
    problem, refusal = _past_the_axes()
    asked.append((_ask_fields(problem), refusal))
    return asked + [(_ask_output(problem), y_shape) for problem, y_shape in _at_the_limits()]


def _answered(ask: Ask, module: types.ModuleType) -> Any:
    try:
        return ask(module)
    except Exception as error:
        return type(error), str(error)


def survives(code: types.CodeType, questions: list[tuple[Ask, Any]]) -> bool:
    """Return whether the module of this code gives every answer."""
    module = types.ModuleType("gpuconv._mutant")
    sys.modules[module.__name__] = module  # dataclasses look their module up there
    try:
        exec(code, module.__dict__)
    except Exception:
        return False
    return all(_answered(ask, module) == expected for ask, expected in questions)


def survivors() -> tuple[int, list[str]]:
    """Return the number of mutants, and the names of those that nothing notices."""
    questions, found = corpus(), every_mutant()
    return len(found), [mutant.name for mutant in found if survives(mutant.code(SOURCE.name), questions)]


def main() -> int:
    """Run all mutants and print those that survive; return 1 if the survivors differ from `EQUIVALENT`."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    count, unnoticed = survivors()
    print(f"{count} mutants, {count - len(unnoticed)} noticed")
    print(*(f"known to be equivalent: {name}" for name in unnoticed if name in EQUIVALENT), sep="\n")
    wrong = [f"not noticed: {name}" for name in unnoticed if name not in EQUIVALENT]
    wrong += [f"noticed, though listed as equivalent: {name}" for name in EQUIVALENT if name not in unnoticed]
    print(*wrong, sep="\n")
    return min(1, len(wrong))


if __name__ == "__main__":
    sys.exit(main())
