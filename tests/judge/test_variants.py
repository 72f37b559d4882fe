"""What other rules make of a problem, by numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from gpuconv.judge import cases, problems, variants
from gpuconv.judge.problems import Problem
from gpuconv.rules.cases import FLOATS, Case
from tests.judge.samples import problem

NAN, INF = np.nan, np.inf
LOWEST = float(np.finfo(np.float32).min)
RULE = cases.CASES[0].rule


def by(name: str, one: Problem, x: list[float] | None = None, w: list[float] | None = None) -> list[Any]:
    """What a variant gives, in one list for each output."""
    (variant,) = (variant for variant in variants.VARIANTS if variant.name == name)
    given = {}
    if x is not None:
        given["x"] = np.array(x, np.float32).reshape(one.case.x_shape)
    if w is not None:
        given["w"] = np.array(w, np.float32).reshape(one.case.w_shape or ())
    with pytest.MonkeyPatch.context() as patch:
        true = problems.operands
        changed = {**true(one), **given}
        for module in (problems, variants):
            patch.setattr(module, "operands", lambda _: changed)
        found = variant.answers(one)
    assert found is not None
    return [output.ravel().tolist() for output in found.outputs]


def made(op: str, x: int, w: int | None = None, indices: bool = False, **attributes: Any) -> Problem:
    shape = None if w is None else (1, 1, w)
    return Problem(Case("", op, (1, 1, x), shape, False, attributes, "integers", FLOATS, RULE), "float32", 22, indices)


def test_maxima_of_nan() -> None:
    pool = made("max_pool", 5, kernel_shape=[3], strides=[2], indices=True)
    x = [1, NAN, NAN, NAN, NAN]
    np.testing.assert_equal(by("last_nan", pool, x), [[NAN, NAN], [2, 4]])
    assert by("nan_ignored", pool, x) == [[1, -INF], [0, 2]]
    assert by("nan_lowest", pool, x) == [[1, LOWEST], [0, 2]]


def test_maxima_of_equals_and_of_nothing() -> None:
    assert by("last_tie", made("max_pool", 4, kernel_shape=[3], indices=True), [2, 2, 1, 2]) == [[2, 2], [1, 3]]
    empty = made("max_pool", 2, kernel_shape=[2], pads=[3, 0], indices=True)
    for name, value in (("empty_infinite", -INF), ("empty_zero", 0), ("empty_nan", NAN)):
        np.testing.assert_equal(by(name, empty, [7, 8]), [[value, value, 7, 8], [-1, -1, 0, 1]])
    for name, value in (("empty_lowest_0", LOWEST), ("empty_infinite_0", -INF), ("empty_zero_0", 0)):
        assert by(name, empty, [7, 8]) == [[value, value, 7, 8], [0, 0, 0, 1]]
    assert by("before_plane", empty, [7, 8]) == [[LOWEST, LOWEST, 7, 8], [-1, -1, 0, 1]]
    assert by("infinity_lowest", made("max_pool", 3, kernel_shape=[2]), [-INF, -INF, 1]) == [[LOWEST, 1]]
    assert by("zero_padded", made("max_pool", 2, kernel_shape=[2], pads=[1, 0]), [-3, -4]) == [[0, -3]]


def test_padding_and_gaps_that_are_multiplied() -> None:
    padded = made("conv", 2, 2, pads=[1, 0], kernel_shape=[2])
    np.testing.assert_equal(by("zeros_multiplied", padded, [1, 2], [INF, 1]), [[NAN, INF]])
    # 1 2 with gaps is 1 0 2; the kernel INF 1 reaches each of them and the padding.
    transposed = made("conv_transpose", 2, 2, strides=[2], kernel_shape=[2])
    np.testing.assert_equal(by("zeros_multiplied", transposed, [1, 2], [INF, 1]), [[INF, NAN, INF, NAN]])
    dilated = made("conv", 3, 2, dilations=[2], kernel_shape=[2])
    np.testing.assert_equal(by("gaps_multiplied", dilated, [1, INF, 2], [1, 1]), [[NAN]])


def test_sizes_of_transposed() -> None:
    beyond = made("conv_transpose", 1, 1, output_shape=[4], kernel_shape=[1])
    assert by("excess_shared", beyond, [5], [1]) == [[0, 0, 5, 0]]
    odd = made("conv_transpose", 1, 4, output_shape=[3], kernel_shape=[4])
    assert by("other_half", odd, [1], [1, 2, 3, 4]) == [[1, 2, 3]]
    assert problems.answer(odd).outputs[0].shape == (1, 1, 3)


def test_averages() -> None:
    overhang = made("average_pool", 4, kernel_shape=[3], strides=[2], pads=[1, 0], ceil_mode=1, count_include_pad=1)
    assert by("overhang_counted", overhang, [3, 3, 6, 9]) == [[2, 6]]
    longer = made("average_pool", 4, kernel_shape=[3], strides=[2], ceil_mode=1, count_include_pad=1)
    assert by("overhang_counted", longer, [3, 3, 6, 9]) == [[4, 5]]
    assert by("nothing_zero", made("average_pool", 1, kernel_shape=[1], pads=[1, 0]), [5]) == [[0, 5]]
    valid = made("average_pool", 4, kernel_shape=[3], strides=[2], auto_pad="VALID", ceil_mode=1)
    assert by("valid_floored", valid, [3, 3, 6, 9]) == [[4]]


def test_unpooling_in_the_wanted_shape() -> None:
    one = problem("max_unpool/2d/a larger output_shape")
    x, indices = (problems.operands(one)[name] for name in ("x", "indices"))
    flat = np.zeros(50, np.float32)
    flat[indices.ravel()] = x.ravel()
    assert by("number_output_shape", one) == [flat.tolist()]


@pytest.mark.parametrize(
    ("name", "x", "w", "expected", "attributes"),
    [
        ("other_same", 3, 2, [1, 3, 5], {"auto_pad": "SAME_UPPER"}),
        ("undilated_same", 3, 2, [4, 2], {"auto_pad": "SAME_UPPER", "dilations": [2], "kernel_shape": [2]}),
        ("towards_zero", 3, 4, [6], {"strides": [2], "kernel_shape": [4]}),
        ("no_auto_pad", 3, 2, [3, 5], {"auto_pad": "SAME_UPPER"}),
        ("no_pads", 3, 2, [3, 5], {"pads": [1, 0]}),
        ("begins_twice", 3, 2, [1, 3, 5, 3], {"pads": [1, 0]}),
        ("ends_first", 3, 2, [3, 5, 3], {"pads": [1, 0]}),
        ("no_strides", 3, 2, [3, 5], {"strides": [2]}),
        ("no_dilations", 3, 2, [3, 5], {"dilations": [2]}),
    ],
)
def test_attributes_read_otherwise(
    name: str, x: int, w: int, expected: list[float], attributes: dict[str, Any]
) -> None:
    assert by(name, made("conv", x, w, **attributes), [1, 2, 3], [1] * w) == [expected]


def test_every_variant_differs_somewhere() -> None:
    wanted = list(variants.VARIANTS)
    for number, case in enumerate(cases.CASES):
        for one in problems.of_case(case, number):
            if one.dtype == "float32" and wanted:
                right = problems.answer(one).outputs
                wanted = [variant for variant in wanted if not differs(variant, one, right)]
    assert not wanted


def test_gaps_that_are_multiplied_can_be_defended() -> None:
    """onnx.reference spreads the kernel of Conv, and multiplies what lies between its taps."""
    one = problem("conv/1d/an infinity between dilated taps")
    right = problems.answer(one)
    (other,) = [found for variant, found in variants.alternatives(one, right) if variant.name == "gaps_multiplied"]
    arrays = problems.operands(one)
    model = problems.model(one)
    with np.errstate(invalid="ignore"):
        (theirs,) = ReferenceEvaluator(model).run(None, {"X": arrays["x"]})
    np.testing.assert_array_equal(theirs, other.outputs[0])
    assert not variants.same((theirs,), right.outputs)


def differs(variant: variants.Variant, one: Problem, right: Any) -> bool:
    try:
        other = variant.answers(one)
    except ValueError:
        return False
    return other is not None and not variants.same(other.outputs, right)
