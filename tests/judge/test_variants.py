"""Results of other rules for a problem, compared with numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from gpuconv.judge import cases, problems, readings, variants
from gpuconv.judge.problems import Problem
from gpuconv.rules.cases import FLOATS, Case
from tests.judge.samples import problem

NAN, INF = np.nan, np.inf
LOWEST = float(np.finfo(np.float32).min)
RULE = cases.CASES[0].rule


def by(name: str, one: Problem, x: list[float] | None = None, w: list[float] | None = None) -> list[Any]:
    """Return the outputs of a reading or a mistake as lists."""
    given = {}
    if x is not None:
        given["x"] = np.array(x, np.float32).reshape(one.case.x_shape)
    if w is not None:
        given["w"] = np.array(w, np.float32).reshape(one.case.w_shape or ())
    one = replace(one, arrays={**problems.operands(one), **given})
    found = [each.outputs for each in readings.alternatives(one, problems.answer(one)) if each.name == name]
    for variant in variants.VARIANTS:
        if variant.name == name:
            answered = variant.answers(one)
            assert answered is not None
            found.append(answered.outputs)
    (outputs,) = found
    return [output.ravel().tolist() for output in outputs]


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
    assert by("empty_index_first", empty, [7, 8]) == [[LOWEST, LOWEST, 7, 8], [0, 0, 0, 1]]
    of_two = replace(empty, case=replace(empty.case, x_shape=(1, 2, 2)))
    assert by("empty_index_first", of_two, [7, 8, 5, 6])[1] == [0, 0, 0, 1, 2, 2, 2, 3]
    assert by("empty_0", of_two, [7, 8, 5, 6])[1] == [0, 0, 0, 1, 0, 0, 2, 3]
    # Where NaN is ignored, a window of only NaN is treated as empty, and may be NaN nevertheless.
    nan = made("max_pool", 3, kernel_shape=[2], indices=True)
    np.testing.assert_equal(by("nan_ignored_empty_nan", nan, [NAN, NAN, 1]), [[NAN, 1], [0, 2]])
    assert by("nan_ignored_empty_index_minus_one", nan, [NAN, NAN, 1]) == [[-INF, 1], [-1, 2]]
    assert by("before_plane", empty, [7, 8]) == [[LOWEST, LOWEST, 7, 8], [-1, -1, 0, 1]]
    assert by("infinity_lowest", made("max_pool", 3, kernel_shape=[2]), [-INF, -INF, 1]) == [[LOWEST, 1]]
    assert by("zero_padded", made("max_pool", 2, kernel_shape=[2], pads=[1, 0]), [-3, -4]) == [[0, -3]]


def test_padding_and_gaps_that_are_multiplied() -> None:
    padded = made("conv", 2, 2, pads=[1, 0], kernel_shape=[2])
    np.testing.assert_equal(by("zeros_multiplied", padded, [1, 2], [INF, 1]), [[NAN, INF]])
    # 1 2 with gaps is 1 0 2; the kernel INF 1 reaches each of them and the padding.
    transposed = made("conv_transpose", 2, 2, strides=[2], kernel_shape=[2])
    np.testing.assert_equal(by("zeros_multiplied", transposed, [1, 2], [INF, 1]), [[INF, NAN, INF, NAN]])
    # Three more elements at the end, of output_padding: the kernel reaches them from zeros only.
    padded = made("conv_transpose", 2, 2, strides=[4], output_padding=[3], kernel_shape=[2])
    expected = [[INF, NAN, NAN, NAN, INF, NAN, NAN, NAN, NAN]]
    np.testing.assert_equal(by("zeros_multiplied", padded, [1, 2], [INF, 1]), expected)
    same = made("conv", 2, 2, auto_pad="SAME_UPPER", kernel_shape=[2])
    np.testing.assert_equal(by("zeros_multiplied", same, [1, 2], [1, INF]), [[INF, NAN]])
    dilated = made("conv", 3, 2, dilations=[2], kernel_shape=[2])
    np.testing.assert_equal(by("gaps_multiplied", dilated, [1, INF, 2], [1, 1]), [[NAN]])


def test_sizes_of_transposed() -> None:
    beyond = made("conv_transpose", 1, 1, output_shape=[4], kernel_shape=[1])
    # The total padding is -3: halved to -2 (floor) or -1 (C), the larger half first. SAME does the same.
    assert by("excess_floored", beyond, [5], [1]) == [[0, 5, 0, 0]]
    assert by("excess_truncated", beyond, [5], [1]) == [[0, 0, 5, 0]]
    same = made("conv_transpose", 1, 1, auto_pad="SAME_LOWER", strides=[4], kernel_shape=[1])
    assert by("excess_floored", same, [5], [1]) == [[0, 5, 0, 0]]
    assert by("excess_truncated", same, [5], [1]) == [[0, 0, 5, 0]]
    assert by("not_enlarged", same, [5], [1]) == [[5]]
    odd = made("conv_transpose", 1, 4, output_shape=[3], kernel_shape=[4])
    assert by("other_half", odd, [1], [1, 2, 3, 4]) == [[1, 2, 3]]
    assert problems.answer(odd).outputs[0].shape == (1, 1, 3)


def test_averages() -> None:
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
        ("pads_win", 3, 2, [1, 3, 5], {"auto_pad": "SAME_UPPER", "pads": [1, 0]}),
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


def test_windows_behind_the_input_are_kept_by_older_texts() -> None:
    """n = 4, k = 2, s = 2, one pad at the end: ceil((4 + 1 - 2) / 2) + 1 = 3 windows, the last in the padding."""
    attributes = {"kernel_shape": [2], "strides": [2], "pads": [0, 1], "ceil_mode": 1}
    older = replace(made("max_pool", 4, **attributes), opset=12)
    assert by("window_kept", older, [1, 2, 3, 4]) == [[2, 4, LOWEST]]
    average = replace(made("average_pool", 4, **attributes, count_include_pad=1), opset=19)
    assert by("window_kept", average, [1, 3, 5, 7]) == [[2, 6, 0]]
    newest = made("max_pool", 4, **attributes)
    assert not list(readings.alternatives(newest, problems.answer(newest)))
    assert by("window_kept_by_text", newest, [1, 2, 3, 4]) == [[2, 4, LOWEST]]


def test_same_of_a_stride_above_the_kernel_may_leave_out_elements() -> None:
    """n = 2, k = 1, s = 2: pad_shape is (1 - 1) * 2 + 1 - 2 = -1, whose half is -1 (floor) or 0 (C)."""
    pool = made("max_pool", 2, kernel_shape=[1], strides=[2], auto_pad="SAME_UPPER")
    assert problems.answer(replace(pool, arrays={"x": np.array([[[3, 4]]], np.float32)})).outputs[0].ravel() == [3]
    assert by("cropped_floored", pool, [3, 4]) == [[4]]


def test_flushed_sums_keep_their_nan() -> None:
    step = 2.0**-149
    case = Case(
        "", "average_pool", (1, 1, 2), None, False, {"kernel_shape": [1], "pads": [1, 0]}, "subnormals", FLOATS, RULE
    )
    np.testing.assert_equal(by("flushed", Problem(case, "float32", 22), [step, 2 * step]), [[NAN, 0, 0]])


def test_every_variant_differs_somewhere() -> None:
    wanted = list(variants.VARIANTS)
    for number, case in enumerate(cases.CASES):
        for one in problems.of_case(case, number):
            if one.dtype == "float32" and wanted:
                right = problems.answer(one).outputs
                wanted = [variant for variant in wanted if not differs(variant, one, right)]
    assert not wanted


def test_gaps_that_are_multiplied_can_be_defended() -> None:
    """onnx.reference expands the kernel of Conv, and multiplies the elements between its taps."""
    one = problem("conv/1d/an infinity between dilated taps")
    right = problems.answer(one)
    (other,) = [variant for variant in readings.alternatives(one, right) if variant.name == "gaps_multiplied"]
    arrays = problems.operands(one)
    model = problems.model(one)
    with np.errstate(invalid="ignore"):
        (theirs,) = ReferenceEvaluator(model).run(None, {"X": arrays["x"]})
    np.testing.assert_array_equal(theirs, other.outputs[0])
    assert not readings.same((theirs,), right.outputs)


def differs(variant: variants.Variant, one: Problem, right: Any) -> bool:
    try:
        other = variant.answers(one)
    except ValueError:
        return False
    return other is not None and not readings.same(other.outputs, right)
