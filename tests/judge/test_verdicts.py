"""Verdicts on outputs made by hand."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from gpuconv.judge import problems, verdicts
from gpuconv.judge.verdicts import AGREES, DIFFERS, WRONG
from tests.judge.samples import problem, written


def test_the_bound_decides(tmp_path: Path) -> None:
    test = written(problem("conv/2d/a bias"), tmp_path)
    (y,), (bound,) = test.tensors("output"), test.tensors("bound")
    assert verdicts.judge(test, [y]).kind == AGREES
    nearly = y.copy()
    nearly[1, 2, 0, 1] += np.float32(0.9 * bound[1, 2, 0, 1])
    assert verdicts.judge(test, [nearly]).kind == AGREES
    nearly[1, 2, 0, 1] = y[1, 2, 0, 1] + np.float32(20 * bound[1, 2, 0, 1])
    verdict = verdicts.judge(test, [nearly])
    assert verdict.kind == WRONG
    assert verdict.reason.startswith("output 0[1, 2, 0, 1] is ")
    assert "(1 of 224 elements differ, by up to 20" in verdict.reason


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
def test_sums_in_16_bits_can_be_defended(dtype: str, tmp_path: Path) -> None:
    test = written(problem("conv/2d/a bias", dtype), tmp_path)
    (y,), (wide,) = test.tensors("output"), test.tensors("wide_bound")
    kind = np.dtype(np.float16 if dtype == "float16" else ml_dtypes.bfloat16)
    verdict = verdicts.judge(test, [(y.astype(np.float64) + 0.5 * wide).astype(kind)])
    assert (verdict.kind, verdict.reason) == (DIFFERS, f"sums in {dtype}")
    assert verdicts.judge(test, [(y.astype(np.float64) + 3 * wide).astype(kind)]).kind == WRONG


def test_where_a_sum_may_overflow_anything_is_right(tmp_path: Path) -> None:
    test = written(problem("average_pool/1d/extremes", "bfloat16"), tmp_path)
    (y,), (bound,) = test.tensors("output"), test.tensors("bound")
    assert np.isinf(bound).any()
    infinite = np.where(np.isinf(bound), np.array(np.inf).astype(y.dtype), y)
    assert verdicts.judge(test, [infinite]).kind == AGREES
    assert verdicts.judge(test, [np.full_like(y, 3)]).kind == (AGREES if np.isinf(bound).all() else WRONG)


def test_float64_in_float32_is_named(tmp_path: Path) -> None:
    test = written(problem("average_pool/1d/pads", "float64"), tmp_path)
    exact = problems.answer(problem("average_pool/1d/pads", "float64")).outputs[0]
    verdict = verdicts.judge(test, [exact.astype(np.float32).astype(np.float64)])
    assert verdict.kind == WRONG
    assert "as sums in float32 are" in verdict.reason


def test_alternatives_may_overflow_where_the_right_answer_may(tmp_path: Path) -> None:
    """And nowhere else: what is infinite in an alternative is so in the result."""
    half = np.float32(np.finfo(np.float32).max / 2)
    other = [np.array([2 * half, half, np.inf, 1], np.float32)]
    bounds = [np.array([0, np.inf, 0, 1e-3])]
    for first in (np.inf, np.nan, 7):
        assert verdicts.matches(other, bounds, [np.array([first, half, np.inf, 1], np.float32)])
    for wrong in ([0, half, 2 * half, 1], [0, 7, np.inf, 1], [0, half, np.inf, 2]):
        assert not verdicts.matches(other, bounds, [np.array(wrong, np.float32)])
    assert not verdicts.matches(other, [np.zeros(4)], [np.array([np.inf, half, np.inf, 1], np.float32)])
