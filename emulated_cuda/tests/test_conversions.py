"""Conversions round once, min and max order zeros and NaN as PTX defines, and rounding modes are applied."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from evaluate import (
    ARCHITECTURES,
    BFLOAT16,
    CUDA_TYPES,
    finite_values,
    integers,
    nearest,
    number_format,
    run,
    same_bits,
)

pytestmark = pytest.mark.emulator


@pytest.fixture(params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# ---------------------------------------------------------------- minimum and maximum

SPECIAL = (0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan)


def chosen(a: float, b: float, largest: bool, nan_wins: bool) -> float:
    if math.isnan(a) or math.isnan(b):
        return math.nan if nan_wins or (math.isnan(a) and math.isnan(b)) else (b if math.isnan(a) else a)
    below = sorted((a, b), key=lambda value: (value, math.copysign(1, value)))
    return below[1 if largest else 0]


def instruction(name: str) -> str:
    """Return an expression that applies one PTX instruction to the floats x and y."""
    return f"""[](float a, float b) {{
        float result;
        asm("{name}.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
        return result;
    }}(x, y)"""


# For each type: expressions, and whether the result is NaN if either operand is.
EXTREMES: dict[str, list[tuple[str, bool]]] = {
    "float32": [("f{}f(x, y)", False), (instruction("{}"), False), (instruction("{}.NaN"), True)],
    "float64": [("f{}(x, y)", False)],
    "float16": [("__h{}(x, y)", False), ("__h{}_nan(x, y)", True)],
    "bfloat16": [("__h{}(x, y)", False), ("__h{}_nan(x, y)", True)],
}


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("kind", EXTREMES)
def test_negative_zero_is_less_than_zero_and_nan_wins_where_asked(architecture: str, kind: str, name: str) -> None:
    dtype = BFLOAT16 if kind == "bfloat16" else np.dtype(kind)
    pairs = [(a, b) for a in SPECIAL for b in SPECIAL]
    x, y = (np.array(values).astype(dtype) for values in zip(*pairs, strict=True))
    results = run(architecture, [text.replace("{}", name) for text, _ in EXTREMES[kind]], [x, y], dtype)
    for (_, nan_wins), got in zip(EXTREMES[kind], results, strict=True):
        want = [chosen(a, b, name == "max", nan_wins) for a, b in pairs]
        assert same_bits(got, np.array(want).astype(dtype))


def test_a_nan_that_is_made_is_the_canonical_one(architecture: str) -> None:
    x = np.array([np.inf, np.nan], np.float32)
    sums = run(architecture, ["x - x", "x * 0.f", "fmaf(x, 0.f, 1.f)"], [x], np.float32)
    assert (sums.view(np.uint32) == 0x7FFFFFFF).all()
    halves = run(architecture, ["__float2half(x - x)"], [x], np.float16)
    assert (halves.view(np.uint16) == 0x7FFF).all()


# ---------------------------------------------------------------- conversions


def ties(dtype: Any) -> Any:
    """Return doubles at and next to midpoints between neighbours of a format, for subnormals and near overflow too."""
    bits, smallest, largest = number_format(dtype)
    steps = np.arange(0.5, 8, 0.5)
    top = largest + 2.0 ** (math.frexp(largest)[1] - bits) * np.array([-1, 0.25, 0.5, 0.75, 1])
    middle = np.concatenate([steps * 2.0**smallest, (1 + steps * 2.0 ** (1 - bits)) * 3, top])
    return np.concatenate([middle, -middle, middle * (1 + 2.0**-40), middle * (1 - 2.0**-40), np.array([0.0])])


@pytest.mark.parametrize(
    ("source", "target", "expression"),
    [
        (np.float32, np.float16, "__float2half(x)"),
        (np.float64, np.float16, "__double2half(x)"),
        (np.float32, BFLOAT16, "__float2bfloat16(x)"),
        (np.float32, BFLOAT16, "__low2bfloat16(__floats2bfloat162_rn(x, 1.f))"),
        (np.float32, np.float16, "__high2half(__floats2half2_rn(1.f, x))"),
        (np.float64, np.float32, "float(x)"),
        (np.float16, np.float32, "float(x)"),
        (BFLOAT16, np.float32, "float(x)"),
        (np.float16, np.float64, "double(float(x))"),
    ],
)
def test_conversions_round_once(architecture: str, source: Any, target: Any, expression: str) -> None:
    narrower = target if np.dtype(target).itemsize < np.dtype(source).itemsize else source
    with np.errstate(over="ignore"):
        x = ties(narrower).astype(source)
    (results,) = run(architecture, [expression], [x], target)
    expected = [nearest(Fraction(float(v)), target) if np.isfinite(v) else np.dtype(target).type(v) for v in x]
    assert (results == np.array(expected, target)).all()


def test_infinities_and_nan_are_converted(architecture: str) -> None:
    x = np.array([np.inf, -np.inf, np.nan, -0.0])
    for target, expression in (
        (np.float16, "__double2half(x)"),
        (BFLOAT16, "__float2bfloat16(float(x))"),
        (np.float32, "float(x)"),
    ):
        (results,) = run(architecture, [expression], [x], target)
        assert same_bits(results, x.astype(target))


def clamped(value: float, dtype: Any) -> int:
    limits = np.iinfo(dtype)
    if math.isnan(value):
        return 0
    return max(
        limits.min, min(limits.max, int(value) if math.isfinite(value) else (limits.max if value > 0 else limits.min))
    )


@pytest.mark.parametrize(
    ("target", "expression"),
    [
        (np.int32, "int(x)"),
        (np.uint32, "unsigned(x)"),
        (np.int64, "(long long)x"),
        (np.uint64, "(unsigned long long)x"),
    ],
)
@pytest.mark.parametrize("source", [np.float32, np.float64, np.float16])
def test_floats_become_integers_by_cutting_off_and_clamping(
    architecture: str, source: Any, target: Any, expression: str
) -> None:
    values = [0.0, -0.5, 1.5, -1.5, 2.5, 1e3, -1e3, 6e4, 3e9, -3e9, 2.0**31, 2.0**63, -(2.0**63), 1e30, -1e30]
    with np.errstate(over="ignore"):
        x = np.array([*values, np.inf, -np.inf, np.nan]).astype(source)
    text = expression if source != np.float16 else expression.replace("x)", "float(x))").replace(")x", ")float(x)")
    defined = x[np.isfinite(x)] if np.dtype(target).itemsize == 8 else x  # PTX does not define NaN to 64-bit integers
    (results,) = run(architecture, [text], [defined], target)
    assert results.tolist() == [clamped(float(value), target) for value in defined]


def test_rounding_to_integers_follows_the_mode(architecture: str) -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 2.4999998, -7.3, 7.7], np.float32)
    results = run(
        architecture,
        ["__float2int_rn(x)", "__float2int_rd(x)", "__float2int_ru(x)", "__float2int_rz(x)"],
        [x],
        np.int32,
    )
    expected = [np.rint(x), np.floor(x), np.ceil(x), np.trunc(x)]
    assert (results == np.array(expected)).all()


@pytest.mark.parametrize("source", [np.int8, np.uint8])
def test_bytes_keep_their_values_in_every_type(architecture: str, source: Any) -> None:
    x = np.arange(256, dtype=np.uint8).view(source)
    for target in (np.int32, np.int64, np.float32, np.float64):
        (results,) = run(architecture, [f"({CUDA_TYPES[np.dtype(target).name]})x"], [x], target)
        assert (results == x).all()
    (results,) = run(architecture, [f"({CUDA_TYPES[np.dtype(source).name]})(x + 300)"], [x], source)
    assert (results == (x.astype(np.int64) + 300).astype(source)).all()
    (results,) = run(architecture, [f"max(x, ({CUDA_TYPES[np.dtype(source).name]})3)"], [x], source)
    assert (results == np.maximum(x, 3)).all()


@pytest.mark.parametrize("source", [np.int32, np.int64])
def test_integers_become_floats_rounded_once(architecture: str, source: Any) -> None:
    x = integers(source, 5)
    x[10:18] = [2049, 2051, 65519, 65520, 257, 259, 16777217, 16777219]
    cases = [(np.float32, "float(x)"), (np.float64, "double(x)")]
    cases += [(np.float16, "__int2half_rn(x)"), (BFLOAT16, "__int2bfloat16_rn(x)")] if source is np.int32 else []
    for target, expression in cases:
        (results,) = run(architecture, [expression], [x], target)
        assert (results == np.array([nearest(Fraction(int(v)), target) for v in x], target)).all()


@pytest.mark.parametrize("operation", ["add", "sub", "mul", "div"])
def test_directed_rounding_encloses_the_result(architecture: str, operation: str) -> None:
    x, y = finite_values(np.float32, 8), np.roll(finite_values(np.float32, 9), 1)
    x, y = x[np.abs(x) > 1e-30], y[: len(x[np.abs(x) > 1e-30])]
    y[np.abs(y) < 1e-3] = 1
    down, up = run(architecture, [f"__f{operation}_rd(x, y)", f"__f{operation}_ru(x, y)"], [x, y], np.float32)
    apply: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a / b,
    }
    for a, b, low, high in zip(x, y, down, up, strict=True):
        exact = apply[operation](Fraction(float(a)), Fraction(float(b)))
        if np.isfinite(low):
            assert Fraction(float(low)) <= exact
        if np.isfinite(high):
            assert exact <= Fraction(float(high))
        assert high == low or high == np.nextafter(low, np.float32(np.inf))
