"""Failing tests are shrunk, keep their fault, and are reproduced by programs that run without gpuconv."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from gpuconv.judge import cases
from gpuconv.judge.findings import arithmetic, programs, shrink
from gpuconv.judge.problems import Problem, answer, operands
from gpuconv.judge.variants import VARIANTS, same

WRONG = {variant.name: variant.answers for variant in VARIANTS}


def problem(name: str, dtype: str = "float32", indices: bool = False) -> Problem:
    return Problem(next(case for case in cases.CASES if case.name == name), dtype, 22, indices)


def made(op: str, arrays: dict[str, Any], indices: bool = False, **attributes: Any) -> Problem:
    """Make a problem from arrays, at opset 22 in float32."""
    like = problem(next(case.name for case in cases.CASES if case.op == op), indices=indices)
    return shrink._with(like, {name: np.array(array, np.float32) for name, array in arrays.items()}, attributes)


def outputs(variant: str, one: Problem) -> tuple[Any, ...] | None:
    """Return a planted mistake's outputs, or None where the mistake does not apply."""
    try:
        found = WRONG[variant](one)
    except (ValueError, IndexError):
        return None
    return None if found is None else found.outputs


def shrunk(variant: str, one: Problem) -> Problem:
    """Shrink a problem that a planted mistake gets wrong."""
    first = outputs(variant, one)
    assert first is not None
    kept = shrink.signature(answer(one).outputs, first)

    def fails(asked: Sequence[tuple[str, Problem]]) -> list[bool]:
        found = []
        for _, each in asked:
            try:
                right, wrong = answer(each).outputs, outputs(variant, each)
            except (ValueError, IndexError):
                found.append(False)
                continue
            differs = wrong is not None and not same(right, wrong)
            found.append(differs and shrink.signature(right, wrong) == kept)  # type: ignore[arg-type]
        return found

    return shrink.smallest({"it": one}, fails)["it"]


IMAGES = np.arange(2 * 3 * 6 * 5).reshape(2, 3, 6, 5) % 11


@pytest.mark.parametrize(
    ("variant", "one", "needed"),
    [
        (
            "undilated_same",
            made(
                "conv",
                {"x": IMAGES, "w": IMAGES[:, :, :3, :2]},
                auto_pad="SAME_LOWER",
                dilations=[2, 2],
                strides=[1, 2],
            ),
            {"auto_pad", "dilations"},
        ),
        ("no_strides", made("max_pool", {"x": IMAGES}, kernel_shape=[2, 3], strides=[2, 2]), {"strides"}),
        ("in_planes", made("max_pool", {"x": IMAGES}, indices=True, kernel_shape=[3, 2], pads=[1, 0, 1, 0]), set()),
        ("no_bias", made("conv", {"x": IMAGES, "w": IMAGES[:, :, :3, :2], "b": [5, 6]}, pads=[1, 1, 1, 1]), set()),
        ("turned", made("conv", {"x": IMAGES, "w": IMAGES[:, :, :3, :2]}), set()),
        (
            "no_output_padding",
            made(
                "conv_transpose",
                {"x": IMAGES, "w": IMAGES[:1, :, :3, :2].swapaxes(0, 1)},
                strides=[2, 2],
                output_padding=[1, 0],
            ),
            {"output_padding"},
        ),
        ("zero_padded", made("max_pool", {"x": -1 - IMAGES}, kernel_shape=[2, 2], pads=[1, 1, 0, 0]), {"pads"}),
        (
            "no_bias",
            made(
                "conv",
                {"x": IMAGES[:, [0, 1, 2, 0, 1, 2]], "w": IMAGES[:, :2, :2, :2].repeat(3, 0), "b": range(6)},
                group=3,
            ),
            set(),
        ),
    ],
)
def test_a_planted_mistake_is_shown_by_few_numbers(variant: str, one: Problem, needed: set[str]) -> None:
    small = shrunk(variant, one)
    assert sum(array.size for array in operands(small).values()) <= 8
    assert needed <= {key for key, value in small.case.attributes.items() if value is not None}
    assert len(small.case.attributes) <= len(needed | {"kernel_shape"})
    assert not same(answer(small).outputs, outputs(variant, small) or ())


@pytest.mark.parametrize("group", [1, 2])
def test_axes_of_size_0_are_shrunk_too(group: int) -> None:
    x, w = np.zeros((2, 4, 0)), np.zeros((6, 4 // group, 3))
    one = made("conv", {"x": x, "w": w, "b": range(6)}, pads=[2, 2], group=group)

    def has_outputs(each: Problem) -> bool:
        with suppress(ValueError):  # a size below 0
            return answer(each).outputs[0].size > 0
        return False

    small = shrink.smallest({"it": one}, lambda asked: [has_outputs(each) for _, each in asked])["it"]
    assert small.case.x_shape == (1, 1, 0)
    assert small.case.w_shape in {(1, 1, 1), (1, 1, 2)}


def test_weights_of_size_0_are_shrunk_too() -> None:
    one = made("conv", {"x": np.zeros((1, 0, 5)), "w": np.zeros((2, 0, 3)), "b": [1, 2]})
    small = shrink.smallest({"it": one}, lambda asked: [True] * len(asked))["it"]
    assert small.case.w_shape == (1, 0, 1)


def test_what_is_wrong_with_nan_stays_a_matter_of_nan() -> None:
    assert shrink.signature((np.float32([1, np.nan]),), (np.float32([1, 2]),)) == (0, "nan", "finite")
    assert shrink.signature((np.float32([1, -np.inf]),), (np.float32([1, 2]),)) == (0, "infinite", "finite")
    assert shrink.signature((np.zeros((1, 2)),), (np.zeros((1, 3)),)) == (0, "shape", True)
    assert shrink.signature((np.zeros(2), np.int64([1, 2])), (np.zeros(2), np.int64([1, 3]))) == (1, "finite", "finite")


def test_rounds_end_where_nothing_smaller_fails() -> None:
    one = problem("conv/2d/plain")
    assert shrink.smallest({"a": one, "b": one}, lambda asked: [False] * len(asked)) == {"a": one, "b": one}


# ---------------------------------------------------------------- programs and arithmetic


LINE = np.arange(1, 5).reshape(1, 1, 4)


@pytest.mark.parametrize(
    ("one", "got", "line"),
    [
        (
            made("conv", {"x": LINE, "w": [[[2, 3]]], "b": [5]}, strides=[2]),
            np.float32([[[13, 0]]]),
            "Y[0, 0, 1] = 3 * 2 + 4 * 3 + 5 = 23",
        ),
        (
            made("conv", {"x": LINE, "w": [[[2, 3]]]}, pads=[1, 0]),
            np.zeros((1, 1, 3)),
            "floor((4 + 1 + 0 - ((2 - 1) * 1 + 1)) / 1) + 1 = 4",
        ),
        (
            made("max_pool", {"x": LINE}, kernel_shape=[2], auto_pad="SAME_UPPER", strides=[3]),
            np.zeros((1, 1, 1)),
            "ceil(4 / 3) = 2",
        ),
        (
            made("max_pool", {"x": LINE}, kernel_shape=[3]),
            np.float32([[[3, 0]]]),
            "Y[0, 0, 1]: the maximum of {2, 3, 4}, so 4.0",
        ),
        (
            made("max_pool", {"x": LINE}, kernel_shape=[1], strides=[5], ceil_mode=1, pads=[0, 0]),
            np.zeros((1, 1, 2)),
            "ceil((4 + 0 + 0 - ((1 - 1) * 1 + 1)) / 5) + 1 = 2, less the last window, which would start in the padding "
            "at the end: 1",
        ),
        (
            made("conv_transpose", {"x": LINE[:, :, :2], "w": [[[3, 4]]]}, strides=[2], pads=[1, 0]),
            np.float32([[[4, 0, 8]]]),
            "Y[0, 0, 1] = 2 * 3 = 6.0",
        ),
        (
            made("conv_transpose", {"x": LINE, "w": [[[3, 4]]]}, strides=[2], pads=[1, 0]),
            np.zeros((1, 1, 9)),
            "2 * (4 - 1) + 0 + ((2 - 1) * 1 + 1) - 1 - 0 = 7",
        ),
    ],
)
def test_the_line_of_arithmetic(one: Problem, got: Any, line: str) -> None:
    found = arithmetic.line(one, answer(one).outputs, (got,))
    assert found.removesuffix(".0") == line.removesuffix(".0")


def test_the_line_of_arithmetic_is_of_the_element_that_the_verdict_cites() -> None:
    one = made("max_pool", {"x": LINE}, kernel_shape=[3])
    got = (np.float32([[[1, 0]]]),)  # the other element is off by more
    found = arithmetic.line(one, answer(one).outputs, got, (0, 0, 0, 0))
    assert found.startswith("Y[0, 0, 0]: the maximum of {1, 2, 3}, so 3")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("one", "shown"),
    [
        (
            made("max_pool", {"x": [[[0, 1], [2, 3]]]}, indices=True, kernel_shape=[1]),
            "got      (1, 2, 2) [[[0, 1], [0, 1]]]",
        ),
        (
            made("conv_transpose", {"x": [[[0], [0]]], "w": [[[1]], [[1]]], "b": [1, 2]}, group=2),
            "got      (1, 2, 1) [[[1.0], [1.0]]]",
        ),
    ],
)
def test_a_program_runs_alone_and_shows_the_fault(one: Problem, shown: str, tmp_path: Path) -> None:
    """Two faults of onnx.reference: Indices start anew in each channel, and every group gets the first bias."""
    right = answer(one).outputs
    path = tmp_path / "program.py"
    path.write_text(programs.program("reference", ["onnx.reference", "a rule " * 30], one, right, "1 + 1 = 2"))
    text = path.read_text()
    assert len(text.splitlines()) <= 30
    assert "gpuconv" not in text
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert shown in done.stdout
    assert sum(line.startswith("expected") for line in done.stdout.splitlines()) == len(right)


@pytest.mark.parametrize("target", ["command:./it", "torch", "jax", "scipy"])
def test_commands_and_libraries_that_are_called_directly_have_no_program(target: str) -> None:
    assert not programs.writes(target)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "float32"])
def test_literals_have_the_same_bits(dtype: str) -> None:
    from ml_dtypes import bfloat16

    values = [1, -3, 100] if dtype == "int8" else [1.5, -0.0, np.nan, np.inf, 1e-40 if dtype != "float16" else 6e-8]
    array = np.array(values).astype(bfloat16 if dtype == "bfloat16" else dtype)
    names = {"np": np, "nan": np.nan, "inf": np.inf, "bfloat16": bfloat16}
    for bits in (False, True):
        again = eval(programs._literal(array, bits).replace("'", '"'), names)
        assert again.dtype == array.dtype
        assert again.tobytes() == array.tobytes() or (not bits and np.isnan(array.astype(float)).any())
