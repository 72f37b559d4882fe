"""Verdicts on outputs made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpuconv.judge import problems, verdicts
from gpuconv.judge.verdicts import AGREES, DIFFERS, INCONSISTENT, WRONG
from tests.judge.samples import problem, written


def test_the_bound_decides(tmp_path: Path) -> None:
    test = written(problem("conv/2d/a bias"), tmp_path)
    (y,), (bound,) = test.tensors("output"), test.tensors("bound")
    assert verdicts.judge(test, [y]).kind == AGREES
    nearly = y.copy()
    nearly[1, 2, 0, 1] += np.float32(0.9 * bound[1, 2, 0, 1])
    assert verdicts.judge(test, [nearly]).kind == AGREES
    nearly[1, 2, 0, 1] = y[1, 2, 0, 1] + np.float32(2000 * bound[1, 2, 0, 1])
    verdict = verdicts.judge(test, [nearly])
    assert verdict.kind == WRONG
    assert verdict.reason.startswith("output 0[1, 2, 0, 1] is ")
    assert "(1 of 224 elements differ, by up to 2e+03 times" in verdict.reason


def test_an_error_of_exactly_the_bound_is_right() -> None:
    expected, bound = np.array([1, 8, 0], np.float32), np.array([0.5, 0.25, 0])
    at_the_bound = np.array([1.5, 7.75, 0], np.float32)
    assert verdicts.difference([expected], [bound], [at_the_bound], bits=False) is None
    beyond = np.nextafter(at_the_bound, np.array([9, 0, 1], np.float32))
    for index in range(3):
        got = at_the_bound.copy()
        got[index] = beyond[index]
        reason = verdicts.difference([expected], [bound], [got], bits=False)
        assert reason is not None
        assert reason.startswith(f"output 0[{index}] is ")


def test_shapes_types_and_numbers_of_outputs(tmp_path: Path) -> None:
    test = written(problem("conv/2d/a bias"), tmp_path)
    (y,) = test.tensors("output")
    assert verdicts.judge(test, []).reason == "0 outputs, expected 1"
    assert verdicts.judge(test, [y[..., :1]]).reason == "output 0 has the shape (2, 4, 4, 1), expected (2, 4, 4, 7)"
    assert verdicts.judge(test, [y.astype(np.int32)]).reason == "output 0 is int32, expected float32"
    wider = verdicts.judge(test, [y.astype(np.float64)])
    assert (wider.kind, wider.reason) == (DIFFERS, "right values, in float64")
    assert verdicts.judge(test, [y.astype(np.float64) + 1]).kind == WRONG


def test_nan_equals_nan_only(tmp_path: Path) -> None:
    test = written(problem("max_pool/1d/NaN"), tmp_path)
    (y,) = test.tensors("output")
    assert np.isnan(y).any()
    assert verdicts.judge(test, [y]).kind == AGREES
    assert verdicts.judge(test, [np.where(np.isnan(y), np.float32(99), y)]).kind == WRONG


def test_alternatives_can_be_defended(tmp_path: Path) -> None:
    one = problem("max_pool/1d/pads beyond the kernel")
    test = written(one, tmp_path)
    (y,) = test.tensors("output")
    lowest = np.finfo(np.float32).min
    verdict = verdicts.judge(test, [np.where(y == lowest, np.float32(-np.inf), y)])
    assert (verdict.kind, verdict.reason) == (DIFFERS, "minus infinity for a window of nothing")
    assert verdicts.judge(test, [np.where(y == lowest, np.float32(7), y)]).kind == WRONG


def test_bits_count_where_a_rule_is_about_them(tmp_path: Path) -> None:
    test = written(problem("max_pool/2d/NaN of many payloads and both signs", indices=True), tmp_path)
    y, indices = test.tensors("output")
    assert verdicts.judge(test, [y, indices]).kind == AGREES
    verdict = verdicts.judge(test, [np.where(np.isnan(y), np.float32(np.nan), y), indices])
    assert (verdict.kind, verdict.reason) == (DIFFERS, "equal values, other bits")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_in_16_bits_can_be_defended_and_claimed(dtype: str, tmp_path: Path) -> None:
    test = written(problem("conv/2d/a bias", dtype), tmp_path)
    (y,), (wide,) = test.tensors("output"), test.tensors("wide_bound")
    kind = np.dtype(np.float16 if dtype == "float16" else ml_dtypes.bfloat16)
    half = (y.astype(np.float64) + 0.5 * wide).astype(kind)
    verdict = verdicts.judge(test, [half])
    assert verdict.kind == DIFFERS
    assert verdict.reason.startswith("sums in the 16-bit type itself, ")
    assert verdicts.judge(test, [half], accumulate=dtype).kind == AGREES
    assert verdicts.judge(test, [half], "tf32", "float32").kind == DIFFERS
    assert verdicts.judge(test, [(y.astype(np.float64) + 3 * wide).astype(kind)]).kind == WRONG


def truncated(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Keep 10 bits of the significand, as TF32 does."""
    return (array.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def test_factors_in_tf32_can_be_defended_and_claimed(tmp_path: Path) -> None:
    test = written(problem("conv/2d/1 + 2^-12 in x, 16 channels"), tmp_path)
    (y,) = test.tensors("output")
    verdict = verdicts.judge(test, [truncated(y)])
    assert verdict.kind == DIFFERS
    assert verdict.reason.startswith("factors rounded to TF32, ")
    assert verdict.reason.endswith(" times the bound")
    assert verdicts.judge(test, [truncated(y)], precision="tf32").kind == AGREES
    assert verdicts.judge(test, [y * np.float32(1.01)], precision="tf32").kind == WRONG


def test_float64_in_float32_differs(tmp_path: Path) -> None:
    test = written(problem("average_pool/1d/pads", "float64"), tmp_path)
    (exact,) = test.tensors("output")
    verdict = verdicts.judge(test, [exact.astype(np.float32).astype(np.float64)])
    assert verdict.kind == DIFFERS
    assert verdict.reason.startswith("float64 computed in float32, ")
    assert verdicts.judge(test, [exact.astype(np.float16).astype(np.float64)]).kind == WRONG


def test_float64_beyond_the_range_of_float32(tmp_path: Path) -> None:
    """Infinity may replace numbers beyond the range, but the largest float32 may not replace infinity."""
    test = written(problem("max_pool/2d/lowest and largest", "float64"), tmp_path)
    (y,) = test.tensors("output")
    with np.errstate(over="ignore"):
        assert verdicts.judge(test, [y.astype(np.float32).astype(np.float64)]).kind == DIFFERS
    sums = written(problem("conv/1d/sums beyond the largest", "float64"), tmp_path)
    (y,) = sums.tensors("output")
    assert np.isinf(y).any()
    saturated = np.clip(y, -float(np.finfo(np.float32).max), float(np.finfo(np.float32).max))
    assert verdicts.judge(sums, [saturated]).kind == WRONG


def test_elements_may_mix_and_whole_answers_may_not(tmp_path: Path) -> None:
    test = written(problem("max_pool/1d/pads beyond the kernel", indices=True), tmp_path)
    y, places = test.tensors("output")
    empty = np.argwhere(places < 0)
    mixed, first = y.copy(), places.copy()
    for turn, at in enumerate(map(tuple, empty)):
        mixed[at] = (-np.inf, 0, np.nan, mixed[at])[turn % 4]
        first[at] = (0, -1)[turn % 2]
    assert verdicts.judge(test, [mixed, first]).kind == DIFFERS
    beyond = first.copy()
    beyond[tuple(empty[0])] = y.size
    assert verdicts.judge(test, [mixed, beyond]).kind == WRONG
    ties = written(problem("max_pool/2d/all equal", indices=True), tmp_path)
    y, places = ties.tensors("output")
    (_, last) = ties.tensors("alternative_last_tie")
    assert verdicts.judge(ties, [y, last]).reason == "the index of the last of equals"
    half = np.where(np.arange(places.size).reshape(places.shape) % 2, places, last)
    assert verdicts.judge(ties, [y, half]).kind == WRONG


def test_an_index_of_another_channel_is_wrong(tmp_path: Path) -> None:
    test = written(problem("max_pool/1d/windows of two channels in the padding only", indices=True), tmp_path)
    y, places = test.tensors("output")
    assert places.ravel().tolist() == [-1] * 4
    assert verdicts.judge(test, [y, np.array([[[0, -1], [1, 1]]])]).kind == DIFFERS
    assert verdicts.judge(test, [y, np.array([[[0, 0], [0, 1]]])]).kind == WRONG
    assert verdicts.judge(test, [y, np.array([[[0, 0], [1, 2]]])]).kind == WRONG


def test_nan_that_depends_on_its_position_is_inconsistent(tmp_path: Path) -> None:
    test = written(problem("max_pool/1d/NaN"), tmp_path)
    (y,), (ignored,) = test.tensors("output"), test.tensors("alternative_nan_ignored")
    assert verdicts.judge(test, [ignored]).kind == DIFFERS
    once = np.where(np.cumsum(np.isnan(y)).reshape(y.shape) == 1, ignored, y)
    verdict = verdicts.judge(test, [once])
    assert (verdict.kind, verdict.reason[:22]) == (INCONSISTENT, "NaN or not, depending ")
    assert verdicts.judge(test, [once + np.float32(1)]).kind == WRONG


def test_one_whole_answer_holds_for_all_outputs(tmp_path: Path) -> None:
    """Y of one reading together with Indices of another is wrong."""
    test = written(problem("max_pool/1d/NaN", indices=True), tmp_path)
    y, places = test.tensors("output")
    ignored = test.tensors("alternative_nan_ignored")
    assert verdicts.judge(test, ignored).kind == DIFFERS
    assert verdicts.judge(test, [ignored[0], places]).kind in (WRONG, INCONSISTENT)
    assert verdicts.judge(test, [y, ignored[1]]).kind in (WRONG, INCONSISTENT)


def test_biases_alone_may_be_flushed(tmp_path: Path) -> None:
    test = written(problem("conv/2d/subnormals"), tmp_path)
    (unbiased,) = test.tensors("alternative_flushed_b")
    assert verdicts.judge(test, [unbiased]).reason == "subnormal biases flushed to zero"
    (y,) = test.tensors("output")
    mixed = np.where(np.arange(y.size).reshape(y.shape) % 2, unbiased, 0).astype(np.float32)
    assert verdicts.judge(test, [mixed]).kind == DIFFERS
    assert verdicts.judge(test, [y * np.float32(2)]).kind == WRONG


def winograd(x: np.ndarray[Any, Any], w: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """F(4x4, 3x3) in float32 (Lavin and Gray, 2016): x (C, H, W), w (M, C, 3, 3), both without padding."""
    inputs = np.array(
        [[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0], [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0],
         [0, 4, 0, -5, 0, 1]], np.float32)  # fmt: skip
    weights = np.array(
        [[1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6], [1 / 24, 1 / 12, 1 / 6],
         [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]], np.float32)  # fmt: skip
    results = np.array([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]], np.float32)
    height, width = x.shape[1] - 2, x.shape[2] - 2
    x = np.pad(x, [(0, 0), (0, 3 + -height % 4), (0, 3 + -width % 4)])
    y = np.zeros((len(w), height + 4, width + 4), np.float32)
    transformed = weights @ w @ weights.T
    for i in range(0, height, 4):
        for j in range(0, width, 4):
            tile = inputs @ x[:, i : i + 6, j : j + 6] @ inputs.T
            y[:, i : i + 4, j : j + 4] = results @ (transformed * tile).sum(1, dtype=np.float32) @ results.T
    return y[:, :height, :width]


@pytest.mark.parametrize(
    "name",
    [
        "conv/2d/pads of four different sizes",
        "conv/2d/a sum of 630 terms",
        "conv/2d/two output channels of many inputs",
    ],
)
def test_winograd_s_algorithm_differs_at_most(name: str, tmp_path: Path) -> None:
    one = problem(name)
    test = written(one, tmp_path)
    (y,), (loose,) = test.tensors("output"), test.tensors("transform_bound")
    x, w, b = problems.operands(one).values()
    top, left, bottom, right = one.case.attributes["pads"]
    got = winograd(np.pad(x[0], [(0, 0), (top, bottom), (left, right)]), w)[None] + b[:, None, None]
    assert (got != y).any()  # it is not exact by chance
    assert verdicts.judge(test, [got]).kind in (AGREES, DIFFERS)
    assert verdicts.judge(test, [(y + 2 * loose + 2 * test.tensors("tf32_bound")[0]).astype(np.float32)]).kind == WRONG


def test_refusing_an_invalid_model_agrees(tmp_path: Path) -> None:
    invalid = written(problem("conv_transpose/1d/output_shape with N and C"), tmp_path)
    assert verdicts.refused(invalid, "no").kind == AGREES
    assert verdicts.judge(invalid, invalid.tensors("output")).kind == AGREES
    below = written(problem("conv_transpose/1d/output_shape smaller than the input"), tmp_path)
    assert verdicts.refused(below, "no").kind == AGREES
    (y,) = below.tensors("output")
    assert verdicts.judge(below, (y + 1,)).kind == WRONG
    assert verdicts.refused(written(problem("conv/2d/a bias"), tmp_path), "no").kind == verdicts.REFUSES


def test_the_reason_cites_what_no_alternative_explains(tmp_path: Path) -> None:
    """NaN of padding that is multiplied is defensible; the number after it is not."""
    test = written(problem("conv/1d/infinite weights on padding"), tmp_path)
    (y,), (other,) = test.tensors("output"), test.tensors("alternative_zeros_multiplied")
    mixed = other.copy()
    first = tuple(np.argwhere(np.isnan(other) & ~np.isnan(y))[0])
    at = tuple(np.argwhere(np.isfinite(y) | np.isinf(y))[-1])
    assert first < at
    mixed[at] = 77
    verdict = verdicts.judge(test, [mixed])
    assert (verdict.kind, verdict.element) == (WRONG, (0, *at))
    assert verdict.reason.startswith(f"output 0{[int(i) for i in at]} is 77.0, expected ")
    assert verdict.reason.endswith("1 of them from every alternative, too)")


def test_a_mixture_of_whole_answers_is_cited_where_it_is_not_the_right_one(tmp_path: Path) -> None:
    test = written(problem("conv_transpose/1d/output_shape above natural"), tmp_path)
    (y,) = test.tensors("output")
    name = next(name for name, about in test.facts["alternatives"].items() if about["kind"] == "whole")
    (other,) = test.tensors(f"alternative_{name}")
    differ = np.argwhere(y != other)
    mixed = y.copy()
    mixed[tuple(differ[-1])] = other[tuple(differ[-1])]
    verdict = verdicts.judge(test, [mixed])
    assert (verdict.kind, verdict.element) == (WRONG, (0, *differ[-1]))


def test_where_a_sum_may_overflow_anything_is_right(tmp_path: Path) -> None:
    test = written(problem("average_pool/1d/extremes", "bfloat16"), tmp_path)
    (y,), (bound,) = test.tensors("output"), test.tensors("bound")
    assert np.isinf(bound).any()
    infinite = np.where(np.isinf(bound), np.array(np.inf).astype(y.dtype), y)
    assert verdicts.judge(test, [infinite]).kind == AGREES
    assert verdicts.judge(test, [np.full_like(y, 3)]).kind == (AGREES if np.isinf(bound).all() else WRONG)


def test_alternatives_may_overflow_where_the_right_answer_may(tmp_path: Path) -> None:
    """Only there: an element that is infinite in an alternative must be infinite in the result."""
    half = np.float32(np.finfo(np.float32).max / 2)
    other = [np.array([2 * half, half, np.inf, 1], np.float32)]
    bounds = [np.array([0, np.inf, 0, 1e-3])]
    for first in (np.inf, np.nan, 7):
        assert verdicts.matches(other, bounds, [np.array([first, half, np.inf, 1], np.float32)])
    for wrong in ([0, half, 2 * half, 1], [0, 7, np.inf, 1], [0, half, np.inf, 2]):
        assert not verdicts.matches(other, bounds, [np.array(wrong, np.float32)])
    assert not verdicts.matches(other, [np.zeros(4)], [np.array([np.inf, half, np.inf, 1], np.float32)])


def test_nan_as_the_lowest_value_of_float32_differs_in_float64(tmp_path: Path) -> None:
    """A target that computes float64 in float32 may treat NaN as the lowest value, which is then float32's."""
    like = problem("max_pool/1d/NaN", "float64")
    attributes = {"kernel_shape": [2]}
    one = replace(
        like,
        case=replace(like.case, x_shape=(1, 1, 3), attributes=attributes),
        arrays={"x": np.array([[[np.nan, np.nan, 1]]])},
    )
    test, lowest = written(one, tmp_path), float(np.finfo(np.float32).min)
    verdict = verdicts.judge(test, [np.array([[[lowest, 1]]])])
    assert (verdict.kind, verdict.reason) == (DIFFERS, "float64 computed in float32")
    assert verdicts.judge(test, [np.array([[[lowest, 2]]])]).kind == WRONG
    assert verdicts.judge(test, [np.array([[[-lowest, 1]]])]).kind == WRONG
