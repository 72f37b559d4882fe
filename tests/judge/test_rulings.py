"""The suite's rulings on each test: the specification's words, and where ONNX's own shape inference disagrees."""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from typing import Any

import onnx
import pytest

from gpuconv.judge import cases, combinations, problems, readings, rulings, shapes, suite, sweep
from gpuconv.judge.problems import Problem

PINNED = pytest.mark.skipif(onnx.__version__ != shapes.ONNX, reason=f"the suite is compared with onnx {shapes.ONNX}")


@functools.cache
def all_problems() -> tuple[Problem, ...]:
    return (
        *(one for number, case in enumerate(cases.CASES) for one in problems.of_case(case, number)),
        *sweep.problems(0),
    )


@functools.cache
def text(operator: str, opset: int) -> str:
    """Return the whole specification of an operator, with single spaces."""
    schema = onnx.defs.get_schema(operator, opset, "")
    parts = [schema.doc, *(each.description for each in (*schema.attributes.values(), *schema.inputs, *schema.outputs))]
    return re.sub(r"\s+", " ", " ".join(parts))


@PINNED
def test_quotations_are_the_specification_s_words() -> None:
    checked = 0
    for rule, operators in rulings.QUOTATIONS.items():
        for operator, texts in operators.items():
            for since, _ in texts:
                found = rulings.quotation(rule, operator, since)
                assert found is not None
                assert found["link"].endswith(f"Changelog.md#{found['operator']}-{since}")
    for one in all_problems():
        found = combinations.of(one).quotation
        if found is not None:
            checked += 1
            assert (found["operator"], found["opset"]) == (problems.KINDS[one.case.op], one.opset)
            assert re.sub(r"\s+", " ", found["text"]) in text(found["operator"], found["opset"]), one.name
    assert checked > 500


def test_only_what_is_quoted_is_specified() -> None:
    statuses = Counter()
    for one in all_problems():
        ruling = combinations.of(one)
        statuses[ruling.status] += 1
        if one.case.rule != rulings.SWEPT:
            assert ruling.quotation is not None or ruling.status != rulings.SPECIFIED, one.name
        assert "Python" not in ruling.sentence
        assert ruling.name != "combinations"
    assert min(statuses[status] for status in combinations.ORDER) > 20


@pytest.mark.parametrize(
    ("rule", "operator", "opset", "status"),
    [
        ("ceil_mode, dropped windows", "max_pool", 12, "disputed"),
        ("ceil_mode, dropped windows", "max_pool", 22, "specified"),
        ("ceil_mode, dropped windows", "average_pool", 19, "disputed"),
        ("ceil_mode, dropped windows", "average_pool", 22, "specified"),
        ("windows longer than the input", "conv", 22, "disputed"),
        ("output_padding", "conv_transpose", 1, "ruled here"),
        ("output_padding", "conv_transpose", 11, "specified"),
        ("MaxPool of NaN", "max_pool", 22, "ruled here"),
    ],
)
def test_the_status_depends_on_the_opset(rule: str, operator: str, opset: int, status: str) -> None:
    (sentence,) = (sentence for sentence, ruling in rulings.RULINGS.items() if ruling.name == rule)
    assert rulings.ruled(sentence, operator, opset).status == status


def inferred(one: Problem) -> list[int] | str | None:
    model = problems.model(one)
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    try:
        found = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph.output[0].type.tensor_type
    except onnx.shape_inference.InferenceError as error:
        return str(error)
    return [axis.dim_value for axis in found.shape.dim] if found.HasField("shape") else None


@PINNED
def test_each_shape_is_onnx_s_or_the_difference_is_told() -> None:
    """The text is unclear, and ONNX's shape is among the answers; or ONNX has a bug; or the model is invalid."""
    classes = Counter()
    for one in all_problems():
        theirs, valid = inferred(one), one.case.name not in rulings.INVALID
        if isinstance(theirs, str):
            assert not valid, one.name
            continue
        assert shapes.inferred(one) == theirs, one.name
        right = problems.answer(one)
        told = shapes.difference(one, right.outputs[0].shape)
        mine = list(right.outputs[0].shape)
        assert (told is None) == (theirs in (None, mine)), one.name
        if told is not None:
            assert told["shape"] == theirs
            classes[told["class"]] += 1
            carried = [list(each.outputs[0].shape) for each in readings.alternatives(one, right) if each.whole]
            assert told["class"] == shapes.BUG or theirs in carried, one.name
    assert classes[shapes.UNCLEAR] > 20
    assert classes[shapes.BUG] > 5


@PINNED
def test_only_what_a_strict_checker_or_the_text_rejects_is_invalid() -> None:
    """An output_shape below the input leaves an inferred shape that lacks axes, which the checker rejects."""
    named, below = 0, []
    for one in all_problems():
        try:
            onnx.checker.check_model(problems.model(one), full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
            assert not shapes.is_valid(one), one.name
            if one.case.name not in rulings.INVALID:
                below.append(one)
        else:
            assert shapes.is_valid(one) or one.case.name in rulings.INVALID, one.name
            named += not shapes.is_valid(one)
    assert named > 5  # the text forbids pads beside auto_pad, but the checker looks for them in ConvTranspose only
    assert len(below) > 10
    for one in below:
        pairs = zip(one.case.attributes["output_shape"], one.case.x_shape[2:], strict=True)
        assert any(size < n for size, n in pairs), one.name


def facts(name: str, opset: int, dtype: str = "float32") -> dict[str, Any]:
    (case,) = (case for case in cases.CASES if case.name == name)
    one = Problem(case, dtype, opset)
    return dict(json.loads(suite.files(one)[f"{one.name}/case.json"]))


def test_other_readings_of_sizes_make_a_test_disputed() -> None:
    first, newest = (facts("conv/2d/SAME_UPPER, even kernels and strides", opset) for opset in (1, 22))
    assert (first["status"], newest["status"]) == ("disputed", "specified")
    assert first["quotation"]["text"].startswith(
        "In case of odd number add the extra padding at the end for SAME_UPPER"
    )
    wide = facts("conv_transpose/1d/SAME_UPPER with stride above the kernel", 22)
    assert (wide["status"], wide["onnx_shape"]) == ("disputed", {"shape": [1, 3, 17], "class": "text unclear"})
    assert {"excess_floored", "not_enlarged"} <= wide["alternatives"].keys()
    both = facts("max_pool/2d/SAME_UPPER with pads of zeros", 22)
    assert (both["valid"], wide["valid"]) == (False, True)
    assert both["alternatives"]["pads_win"]["kind"] == "whole"


def test_a_combination_lists_the_rules_that_take_part() -> None:
    single = facts("max_pool/1d/ties", 22)
    assert single["rules"] == [single["rule"]] == ["MaxPool ties"]
    combined = [one for one in all_problems() if one.case.rule == rulings.SWEPT]
    for one in combined:
        ruling = combinations.of(one)
        assert ruling.parts
        assert len({*ruling.parts}) == len(ruling.parts)
        assert set(ruling.parts) <= {each.name for each in rulings.RULINGS.values()}
    written = json.loads(suite.files(combined[0])[f"{combined[0].name}/case.json"])
    assert written["rules"] == [*combinations.of(combined[0]).parts]


def test_tests_of_one_rule_have_one_plane() -> None:
    several = {case.rule for case in cases.CASES if case.op == "max_pool" and case.x_shape[0] * case.x_shape[1] > 1}
    names = {rulings.RULINGS[rule].name for rule in several}
    assert names == {
        "Indices",
        "storage_order",
        "all ranks",
        "empty inputs",
        "output of size 0",
        "MaxPool, empty windows",
    }
