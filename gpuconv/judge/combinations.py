"""The rule that a test is about; of a combination, all rules that take part."""

from __future__ import annotations

from gpuconv.judge import rulings
from gpuconv.judge.problems import Problem
from gpuconv.judge.rulings import Ruling, ruled
from gpuconv.rules import cases as named

COMBINATION = "combination: "  # prefix of the names of combinations


def of(problem: Problem) -> Ruling:
    """Return the rule that a problem tests."""
    case = problem.case
    return _combined(problem) if case.rule == rulings.SWEPT else ruled(case.rule, case.op, problem.opset)


ORDER = (rulings.SPECIFIED, rulings.REFERENCE, rulings.DISPUTED, rulings.RULED)
_WORDS = {
    "nan": "NaN",
    "infinities": "infinities",
    "infinite bias": "infinite bias",
    "subnormals": "subnormals",
    "overflow": "overflow",
    "zeros of both signs": "zeros of both signs",
}


def _combined(problem: Problem) -> Ruling:
    """Return a combination as a ruling: all rules that take part, with the weakest of their statuses."""
    op, found = problem.case.op, [*dict.fromkeys(_taking_part(problem))]
    each = [ruled(rule, op, problem.opset) for rule in found]
    status = max((ruling.status for ruling in each), key=ORDER.index)
    given, mode = problem.case.attributes, str(problem.case.attributes.get("auto_pad", "NOTSET"))
    words = [mode.partition("_")[0]] if mode != "NOTSET" else []
    shown = ("ceil_mode", "count_include_pad", "storage_order", "output_padding", "output_shape", "dilations")
    words += [name for name in shown if given.get(name) and not (name == "storage_order" and not problem.indices)]
    words += [_WORDS[problem.case.values]] if problem.case.values in _WORDS else []
    name = f"{COMBINATION}{' + '.join(words) or 'strides and pads'}"
    discussions = tuple(dict.fromkeys(link for ruling in each for link in ruling.discussions))
    upstream: dict[str, tuple[str, ...]] = {}
    for ruling in each:
        for target, links in ruling.upstream.items():
            upstream[target] = tuple(dict.fromkeys((*upstream.get(target, ()), *links)))
    parts = tuple(ruling.name for ruling in each)
    sentence = f"These rules together: {'; '.join(parts)}."
    return Ruling(name, status, discussions, upstream, sentence, parts=parts)


def _taking_part(problem: Problem) -> list[str]:
    """List the rules that take part in a combination, from its attributes, values and type."""
    given = problem.case.attributes
    mode = str(given.get("auto_pad", "NOTSET"))
    kind = "SAME" if mode.startswith("SAME") else mode
    parts = {"conv": _of_conv, "conv_transpose": _of_transposed, "max_pool": _of_maxima, "average_pool": _of_averages}
    rules = (
        [*parts[problem.case.op](problem, kind)]
        if problem.case.op in parts
        else [rulings.UNPOOLED, rulings.UNPOOL_SHAPE]
    )
    if problem.case.op == "max_unpool" and "output_shape" in given:
        rules.append(rulings.UNPOOL_LARGER)
    if problem.case.op != "max_unpool" and problem.case.x_shape[0] == 0:
        rules.append(named._NOTHING)
    return rules


def _of_windows(problem: Problem, kind: str) -> list[str]:
    given = problem.case.attributes
    if kind == "SAME":
        dilated = [named._SAME_DILATED] * ("dilations" in given)
        return [named._SAME, named._ODD_SAME, *dilated, *[named._CEIL_SAME] * bool(given.get("ceil_mode"))]
    ceil = [named._CEIL, named._DROPPED, *[named._CEIL_VALID] * (kind == "VALID")]
    return [named._FORMULA, *(ceil if given.get("ceil_mode") else ())]


def _of_sums(problem: Problem) -> list[str]:
    special = {
        "nan": named._IEEE,
        "infinities": named._IEEE,
        "infinite bias": named._IEEE,
        "subnormals": named._SUBNORMAL,
        "overflow": rulings.OVERFLOWING,
    }
    rules = [special[problem.case.values]] if problem.case.values in special else []
    return rules + [named._ONCE] * (problem.dtype in ("float16", "bfloat16"))


def _of_conv(problem: Problem, kind: str) -> list[str]:
    bias = [named._BIAS] * problem.case.bias
    return [*_of_windows(problem, kind), named._LAYOUT, *bias, *_of_sums(problem)]


def _of_transposed(problem: Problem, kind: str) -> list[str]:
    given = problem.case.attributes
    if "output_shape" in given:
        sizes = [named._OUTPUT_SHAPE, named._ODD, named._EXCESS]
    else:
        sizes = [named._T_SAME if kind == "SAME" else named._NATURAL]
    padding = [named._OUTPUT_PADDING] * ("output_padding" in given)
    bias = [named._BIAS] * problem.case.bias
    return [*sizes, *padding, named._T_LAYOUT, named._GATHER, *bias, *_of_sums(problem)]


def _of_maxima(problem: Problem, kind: str) -> list[str]:
    special = {"nan": named._NAN, "infinities": named._MINUS_INF, "zeros of both signs": named._ZEROS}
    rules = [*_of_windows(problem, kind), named._CLIPPED]
    if problem.case.values in special:
        rules.append(special[problem.case.values])
    if problem.indices:
        rules += [named._INDICES, named._TIES, *[named._COLUMNS] * bool(problem.case.attributes.get("storage_order"))]
        rules += [named._TINY] * (problem.case.values == "subnormals")
    return rules


def _of_averages(problem: Problem, kind: str) -> list[str]:
    given = problem.case.attributes
    counted = (
        [rulings.COUNT_PAD, *[rulings.OVERHANG] * bool(given.get("ceil_mode"))]
        if given.get("count_include_pad")
        else []
    )
    return [*_of_windows(problem, kind), rulings.AVERAGE, *counted, *_of_sums(problem)]
