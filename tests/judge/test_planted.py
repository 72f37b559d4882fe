"""Wrong implementations, one for each of many rules, judged directly: the findings are exactly those rules."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from gpuconv.judge import cases, definition, problems, readings, runner, suite, verdicts
from gpuconv.judge.findings import report
from gpuconv.judge.problems import Problem, answer, attributes, operands
from gpuconv.judge.verdicts import FAILURES

Array = Any
Outputs = tuple[Array, ...]


class Stored(verdicts.Test):
    """A test whose files are kept in memory."""

    def __init__(self, one: Problem) -> None:
        super().__init__(Path(one.name))
        found = {name.rpartition("/")[2]: content for name, content in suite.files(one).items()}
        arrays = {name[:-3]: content for name, content in found.items() if name.endswith(".pb")}
        object.__setattr__(self, "arrays", arrays)
        object.__setattr__(self, "size", sum(map(len, arrays.values())))
        self.__dict__["facts"] = json.loads(found["case.json"])

    def tensors(self, kind: str) -> list[Array]:
        found: list[Array] = []
        arrays: dict[str, bytes] = self.__dict__["arrays"]
        while f"{kind}_{len(found)}" in arrays:
            tensor = onnx.TensorProto.FromString(arrays[f"{kind}_{len(found)}"])
            found.append(onnx.numpy_helper.to_array(tensor))
        return found


@functools.cache
def asked(op: str) -> tuple[tuple[Problem, Stored], ...]:
    """Return the named cases of an operator in float32, or in their own type, at the newest opset."""
    found = []
    for number, case in enumerate(cases.CASES):
        if case.op == op:
            for one in problems.of_case(case, number):
                newest = problems.opsets(case, one.dtype, one.indices)[-1]
                if one.opset == newest and one.dtype == ("float32" if "float32" in case.dtypes else case.dtypes[0]):
                    found.append((one, Stored(one)))
    return tuple(found)


@dataclass(frozen=True)
class Planted:
    """A wrong implementation of an operator, and the names of the rules that it breaks."""

    name: str
    op: str
    run: Callable[[Problem], Outputs]
    broken: set[str]
    kind: str = verdicts.WRONG


def outputs(one: Problem, changed: dict[str, Any] | None = None, arrays: dict[str, Array] | None = None) -> Outputs:
    return answer(one, changed, arrays).outputs


def given(one: Problem, name: str, value: Callable[[Any], Any]) -> dict[str, Any]:
    """Replace the value of an attribute of a problem."""
    found = attributes(one).get(name)
    return {} if found is None else {name: value(found)}


def same_always_upper(one: Problem) -> Outputs:
    return outputs(one, {"auto_pad": "SAME_UPPER"} if readings.mode_of(one) == "SAME_LOWER" else {})


def undilated_same(one: Problem) -> Outputs:
    """Compute SAME with pads for the kernel without its dilation."""
    if not readings.mode_of(one).startswith("SAME"):
        return outputs(one)
    sizes = zip(one.case.x_shape[2:], attributes(one)["kernel_shape"], readings.per_axis(one, "strides"), strict=True)
    totals = [max(0, (-(-n // s) - 1) * s + k - n) for n, k, s in sizes]
    less, more = [t // 2 for t in totals], [t - t // 2 for t in totals]
    pads = [*less, *more] if readings.mode_of(one) == "SAME_UPPER" else [*more, *less]
    return outputs(one, {"auto_pad": "NOTSET", "pads": pads})


def within_planes(one: Problem) -> Outputs:
    y, *rest = outputs(one)
    plane = max(1, int(np.prod(one.case.x_shape[2:])))
    return (y, *(np.where(places < 0, places, places % plane) for places in rest))


def index_0_of_nothing(one: Problem) -> Outputs:
    y, *rest = outputs(one)
    return (y, *(np.maximum(places, 0) for places in rest))


def lowest_for_infinity(one: Problem) -> Outputs:
    y, *rest = outputs(one)
    return (np.where(np.isneginf(y), np.finfo(y.dtype).min, y), *rest)


def compared(one: Problem, keys: Callable[[Array], Array]) -> Outputs:
    """Return the elements at the positions of the maxima of other numbers."""
    x = operands(one)["x"]
    _, places = definition.max_pool(keys(x.astype(np.float64)), **attributes(one))
    flat = x.reshape(-1)
    if attributes(one).get("storage_order"):
        flat = x.transpose(0, 1, *reversed(range(2, x.ndim))).reshape(-1)
    lowest = np.finfo(x.dtype).min if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    y = np.where(places < 0, lowest, flat[np.maximum(places, 0)] if flat.size else lowest).astype(x.dtype)
    return (y, places) if one.indices else (y,)


def positive_zero_larger(one: Problem) -> Outputs:
    return compared(one, lambda x: np.where((x == 0) & ~np.signbit(x), 1e-300, x))


def nan_by_position(one: Problem) -> Outputs:
    """Propagate NaN to every second maximum that has one in its window, and ignore it in the rest."""
    right = outputs(one)
    x = operands(one)["x"]
    ignored = compared(one, lambda values: np.where(np.isnan(values), -np.inf, values))
    if not np.isnan(x).any() or all(np.array_equal(a, b, equal_nan=True) for a, b in zip(right, ignored, strict=True)):
        return right
    turn = np.arange(right[0].size).reshape(right[0].shape) % 2 == 0
    differ = np.argwhere(np.isnan(right[0]) & ~np.isnan(ignored[0]))
    for number, at in enumerate(map(tuple, differ)):
        turn[at] = number % 2 == 0
    return tuple(np.where(turn, a, b) for a, b in zip(right, ignored, strict=True))


def first_bias_for_each_group(one: Problem) -> Outputs:
    arrays = operands(one)
    group = attributes(one).get("group", 1)
    if "b" not in arrays or group == 1:
        return outputs(one)
    return outputs(one, arrays={"b": np.tile(arrays["b"][: len(arrays["b"]) // group], group)})


def window_kept(one: Problem) -> Outputs:
    other = readings._with_overhang(one, False, False)
    return outputs(one) if other is None else outputs(other)


def saturated(one: Problem) -> Outputs:
    (y,) = outputs(one)
    if not np.isfinite(operands(one)["x"]).all() or one.case.values == "infinite bias":
        return (y,)
    return (np.clip(y, np.finfo(y.dtype).min, np.finfo(y.dtype).max),)


def without_bias(one: Problem) -> Outputs:
    arrays = operands(one)
    return outputs(one, arrays={"b": np.zeros_like(arrays["b"])}) if "b" in arrays else outputs(one)


def pads_below_kernel(one: Problem) -> Outputs:
    """Pads of the kernel's size or more taken as one less than it."""
    kernel = attributes(one)["kernel_shape"] if one.case.w_shape is None else one.case.w_shape[2:]
    pads = readings.per_axis(one, "pads", 0)
    return outputs(one, {"pads": [min(p, k - 1) for p, k in zip(pads, [*kernel, *kernel], strict=True)]})


def lost_nan(one: Problem) -> Outputs:
    (y,) = outputs(one)
    return (np.where(np.isnan(y), np.float32(0), y),)


def negative_indices(one: Problem) -> Outputs:
    (y,) = outputs(one)
    return (np.where(y == 0, y.dtype.type(-1), y),)


PLANTED = (
    Planted(
        "SAME_LOWER as SAME_UPPER",
        "conv",
        same_always_upper,
        {
            "all ranks",
            "SAME, which end",
            "SAME, dilated",
        },
    ),
    Planted(
        "SAME without dilation",
        "conv",
        undilated_same,
        {
            "all ranks",
            "SAME, dilated",
        },
    ),
    Planted(
        "SAME of maxima without dilation",
        "max_pool",
        undilated_same,
        {
            "SAME, dilated",
        },
    ),
    Planted(
        "dilations ignored",
        "average_pool",
        lambda p: outputs(p, given(p, "dilations", lambda d: [1] * len(d))),
        {
            "AveragePool, empty windows",
            "AveragePool sizes",
            "SAME, dilated",
        },
    ),
    Planted(
        "bias of the first group",
        "conv_transpose",
        first_bias_for_each_group,
        {
            "ConvTranspose layout and groups",
            "all ranks",
            "many terms",
        },
    ),
    Planted(
        "bias of the first group",
        "conv",
        first_bias_for_each_group,
        {
            "Conv layout and groups",
            "many terms",
            "all ranks",
            "nothing times padding",
        },
    ),
    Planted(
        "bias ignored",
        "conv",
        without_bias,
        {
            "bias",
            "Conv layout and groups",
            "sizes",
            "kernel_shape",
            "kernel_shape missing",
            "pads as large as the kernel",
            "many terms",
            "all ranks",
            "SAME sizes",
            "SAME, which end",
            "SAME, dilated",
            "auto_pad beside pads",
            "auto_pad as text",
            "empty inputs",
            "16-bit sums in float32",
            "NaN and infinity in a window",
            "nothing times padding",
        },
    ),
    Planted(
        "output_padding ignored",
        "conv_transpose",
        lambda p: outputs(p, given(p, "output_padding", lambda o: [0] * len(o))),
        {
            "all ranks",
            "ConvTranspose sizes",
            "output_padding",
            "ConvTranspose, SAME",
            "nothing times padding",
        },
    ),
    Planted(
        "output_shape ignored",
        "conv_transpose",
        lambda p: outputs(p, {"output_shape": None}),
        {
            "all ranks",
            "output_shape",
            "ConvTranspose, odd padding",
            "output_shape beyond the inputs",
            "output_shape below the input",
            "output_shape with N and C",
            "output of size 0",
            "empty inputs",
        },
    ),
    Planted(
        "lost NaN",
        "conv",
        lost_nan,
        {
            "NaN and infinity in a window",
            "nothing times padding",
        },
    ),
    Planted(
        "saturated sums",
        "conv",
        saturated,
        {
            "nothing times padding",
            "sums beyond the largest",
        },
    ),
    Planted(
        "indices in planes",
        "max_pool",
        within_planes,
        {
            "Indices",
            "storage_order",
        },
    ),
    Planted(
        "index 0 of nothing",
        "max_pool",
        index_0_of_nothing,
        {
            "MaxPool, empty windows",
            "storage_order",
        },
    ),
    Planted(
        "storage_order ignored",
        "max_pool",
        lambda p: outputs(p, given(p, "storage_order", lambda s: 0)),
        {
            "storage_order",
        },
    ),
    Planted(
        "lowest for minus infinity",
        "max_pool",
        lowest_for_infinity,
        {
            "MaxPool of minus infinity",
            "MaxPool of NaN",
        },
    ),
    Planted(
        "+0 above -0",
        "max_pool",
        positive_zero_larger,
        {
            "MaxPool, zeros of both signs",
        },
    ),
    Planted(
        "NaN by position",
        "max_pool",
        nan_by_position,
        {
            "MaxPool of NaN",
            "MaxPool, the element's bits",
        },
        verdicts.INCONSISTENT,
    ),
    Planted(
        "window behind the input",
        "max_pool",
        window_kept,
        {
            "ceil_mode, dropped windows",
            "ceil_mode with VALID",
        },
    ),
    Planted(
        "ceil_mode ignored",
        "max_pool",
        lambda p: outputs(p, given(p, "ceil_mode", lambda c: 0)),
        {
            "ceil_mode",
            "ceil_mode, dropped windows",
        },
    ),
    Planted(
        "pads never counted",
        "average_pool",
        lambda p: outputs(p, {"count_include_pad": 0}),
        {
            "count_include_pad",
            "AveragePool, overhang",
        },
    ),
    Planted(
        "-1 elsewhere",
        "max_unpool",
        negative_indices,
        {
            "MaxUnpool",
            "MaxUnpool sizes",
            "MaxUnpool, larger output_shape",
        },
    ),
)


def findings(planted: Planted) -> dict[str, set[str]]:
    """Return the verdicts of failures by the rule's name."""
    found: dict[str, set[str]] = {}
    for outcome, _ in failures(planted):
        found.setdefault(outcome.test.facts["rule"], set()).add(outcome.verdict.kind)
    return found


def failures(planted: Planted) -> list[tuple[runner.Outcome, Problem]]:
    found = []
    for one, test in asked(planted.op):
        try:
            got = planted.run(one)
        except ValueError:  # a size below 0: refused
            continue
        verdict = verdicts.judge(test, got)
        if verdict.kind in FAILURES:
            found.append((runner.Outcome(test, verdict, got), one))
    return found


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: f"{planted.op} {planted.name}".replace(" ", "_"))
def test_findings_are_the_rules_that_are_broken(planted: Planted) -> None:
    found = findings(planted)
    assert found.keys() == planted.broken
    assert set().union(*found.values()) == {planted.kind}


def test_one_fault_breaks_each_rule_once_and_is_one_finding_where_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report lists all rules that are broken, each once; a fault that has a name is one finding by that name."""
    monkeypatch.setattr(report, "_weight", lambda test: (test.facts["type"] != "float32", test.size))
    named = 0
    for planted in PLANTED:
        failed = failures(planted)
        made = report.findings([outcome for outcome, _ in failed], {one.name: one for _, one in failed})
        others = [name for each in made for name in each.also]
        rules = [each.outcome.test.facts["rule"] for each in made] + [each.rpartition(" (")[0] for each in others]
        assert sorted(rules) == sorted(planted.broken), planted.name
        counts = sum(each.count for each in made) + sum(int(each.rpartition(" (")[2][:-1]) for each in others)
        assert counts == len(failed)
        if any(each.explanation for each in made):
            named += 1
            assert len(made) == 1, planted.name
    assert named > 10


@pytest.mark.parametrize("op", list(problems.KINDS))
def test_the_definition_agrees(op: str) -> None:
    assert findings(Planted("nothing", op, outputs, set())) == {}
