"""Arithmetic instructions give the results of Python's integers and fractions, rounded once, subnormals included."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from evaluate import ARCHITECTURES, BFLOAT16, finite_values, integers, nearest, run

pytestmark = pytest.mark.emulator
Row = tuple[str, Callable[..., Any]]


@pytest.fixture(params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# ---------------------------------------------------------------- integers


def wrap(value: int, dtype: Any) -> int:
    """Return an integer wrapped to the range of a type."""
    bits = 8 * np.dtype(dtype).itemsize
    value %= 2**bits
    return value - 2**bits if np.dtype(dtype).kind == "i" and value >= 2 ** (bits - 1) else value


def quotient(x: int, y: int) -> int:
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def u32(x: int) -> int:
    return x % 2**32


INT32: list[Row] = [
    ("x + y", lambda x, y: x + y),
    ("x - y", lambda x, y: x - y),
    ("x * y", lambda x, y: x * y),
    (
        "y == 0 || (y == -1 && x == 1 << 31) ? 0 : x / y",
        lambda x, y: 0 if y == 0 or (y == -1 and x == -(2**31)) else quotient(x, y),
    ),
    ("y == 0 || y == -1 ? 0 : x % y", lambda x, y: 0 if y in (0, -1) else x - y * quotient(x, y)),
    ("y ? unsigned(x) / unsigned(y) : 0", lambda x, y: u32(x) // u32(y) if y else 0),
    ("y ? unsigned(x) % unsigned(y) : 0", lambda x, y: u32(x) % u32(y) if y else 0),
    ("x / 7", lambda x, y: quotient(x, 7)),
    ("unsigned(x) % 12u", lambda x, y: u32(x) % 12),
    ("x << (y & 31)", lambda x, y: x << (y & 31)),
    ("x >> (y & 31)", lambda x, y: x >> (y & 31)),
    ("unsigned(x) >> (y & 31)", lambda x, y: u32(x) >> (y & 31)),
    ("min(x, y)", min),
    ("max(unsigned(x), unsigned(y))", lambda x, y: max(u32(x), u32(y))),
    ("abs(x)", lambda x, y: abs(x)),
    ("__popc(x)", lambda x, y: u32(x).bit_count()),
    ("__clz(x)", lambda x, y: 32 - u32(x).bit_length()),
    ("__ffs(x)", lambda x, y: (u32(x) & -u32(x)).bit_length()),
    ("__brev(x)", lambda x, y: int(f"{u32(x):032b}"[::-1], 2)),
    ("__mulhi(x, y)", lambda x, y: x * y >> 32),
    ("__umulhi(x, y)", lambda x, y: u32(x) * u32(y) >> 32),
    (
        "__byte_perm(x, y, 0x5143)",
        lambda x, y: sum(((u32(y) << 32 | u32(x)) >> 8 * s & 255) << 8 * k for k, s in enumerate((3, 4, 1, 5))),
    ),
    ("__funnelshift_l(x, y, 7)", lambda x, y: (u32(y) << 32 | u32(x)) << 7 >> 32),
    ("__funnelshift_r(x, y, x)", lambda x, y: (u32(y) << 32 | u32(x)) >> (x & 31)),
    ("__funnelshift_lc(x, y, x & 63)", lambda x, y: (u32(y) << 32 | u32(x)) << min(x & 63, 32) >> 32),
    ("(signed char)x", lambda x, y: wrap(x, np.int8)),
    ("(unsigned char)x + (unsigned short)y", lambda x, y: x % 256 + y % 65536),
    ("(short)x * (short)y", lambda x, y: wrap(x, np.int16) * wrap(y, np.int16)),
    ("(x & y) ^ (x | ~y)", lambda x, y: (x & y) ^ (x | ~y)),
    ("x > y ? x : -y", lambda x, y: x if x > y else -y),
    ("__sad(x, y, 3)", lambda x, y: abs(x - y) + 3),
    ("(x >> 5 & 127) + (unsigned(y) >> 27)", lambda x, y: (x >> 5 & 127) + (u32(y) >> 27)),
    ("x << 20 >> 23", lambda x, y: wrap(x << 20, np.int32) >> 23),
    ("int(unsigned(x) < unsigned(y)) + 2 * (x <= y)", lambda x, y: (u32(x) < u32(y)) + 2 * (x <= y)),
]
INT64: list[Row] = [
    ("x + y", lambda x, y: x + y),
    ("x * y", lambda x, y: x * y),
    ("y == 0 || y == -1 ? 0 : x / y", lambda x, y: 0 if y in (0, -1) else quotient(x, y)),
    ("y == 0 || y == -1 ? 0 : x % y", lambda x, y: 0 if y in (0, -1) else x - y * quotient(x, y)),
    ("x << (y & 63)", lambda x, y: x << (y & 63)),
    ("x >> (y & 63)", lambda x, y: x >> (y & 63)),
    ("(unsigned long long)x >> (y & 63)", lambda x, y: x % 2**64 >> (y & 63)),
    ("__mul64hi(x, y)", lambda x, y: x * y >> 64),
    ("__umul64hi(x, y)", lambda x, y: (x % 2**64) * (y % 2**64) >> 64),
    ("(long long)(int)x * (int)y", lambda x, y: wrap(x, np.int32) * wrap(y, np.int32)),
    ("(int)x * (long long)(int)y + x", lambda x, y: wrap(x, np.int32) * wrap(y, np.int32) + x),
    ("(unsigned long long)(unsigned)x * (unsigned)y", lambda x, y: (x % 2**32) * (y % 2**32)),
    ("min(x, y) - max(x, y)", lambda x, y: min(x, y) - max(x, y)),
    ("x < y ? llabs(x) : -y", lambda x, y: abs(x) if x < y else -y),
    ("__popcll(x) + 100 * __clzll(y)", lambda x, y: (x % 2**64).bit_count() + 100 * (64 - (y % 2**64).bit_length())),
    ("__brevll(x) ^ ~y", lambda x, y: int(f"{x % 2**64:064b}"[::-1], 2) ^ ~y),
    ("(x >> 40) + (int)y", lambda x, y: (x >> 40) + wrap(y, np.int32)),
]


@pytest.mark.parametrize(("dtype", "rows"), [(np.int32, INT32), (np.int64, INT64)], ids=["32 bits", "64 bits"])
def test_integer_arithmetic_wraps(architecture: str, dtype: Any, rows: list[Row]) -> None:
    x, y = integers(dtype, 1), np.roll(integers(dtype, 2), 7)
    results = run(architecture, [text for text, _ in rows], [x, y], dtype)
    pairs = [(int(a), int(b)) for a, b in zip(x, y, strict=True)]
    wrong = [
        text
        for (text, function), row in zip(rows, results, strict=True)
        if row.tolist() != [wrap(function(a, b), dtype) for a, b in pairs]
    ]
    assert wrong == []


# ---------------------------------------------------------------- floating point


def multiply_add(x: Fraction, y: Fraction, z: Fraction) -> Fraction:
    return x * y + z


EXACT: dict[str, list[Row]] = {
    "float32": [
        ("x + y", lambda x, y, z: x + y),
        ("x - y", lambda x, y, z: x - y),
        ("x * y", lambda x, y, z: x * y),
        ("x / y", lambda x, y, z: x / y),
        ("1.f / x", lambda x, y, z: 1 / x),
        ("fmaf(x, y, z)", multiply_add),
        ("fmaf(x, y, -x)", lambda x, y, z: x * y - x),
        ("fminf(x, y)", lambda x, y, z: min(x, y)),
        ("fmaxf(x, fabsf(y))", lambda x, y, z: max(x, abs(y))),
        ("float(double(x) * y)", lambda x, y, z: x * y),
        ("floorf(x * 4)", lambda x, y, z: Fraction(math.floor(nearest(4 * x, "float32"))) if abs(x) < 2**60 else 4 * x),
        ("x < y ? 1.f : -1.f", lambda x, y, z: Fraction(1 if x < y else -1)),
        ("__saturatef(x)", lambda x, y, z: min(max(x, Fraction(0)), Fraction(1))),
    ],
    "float64": [
        ("x + y", lambda x, y, z: x + y),
        ("x * y", lambda x, y, z: x * y),
        ("x / y", lambda x, y, z: x / y),
        ("fma(x, y, z)", multiply_add),
        ("fmin(x, -y)", lambda x, y, z: min(x, -y)),
        ("x >= y ? x : y", lambda x, y, z: max(x, y)),
    ],
    "float16": [
        ("x + y", lambda x, y, z: x + y),
        ("x - y", lambda x, y, z: x - y),
        ("x * y", lambda x, y, z: x * y),
        ("__hfma(x, y, z)", multiply_add),
        ("__hmax(x, y)", lambda x, y, z: max(x, y)),
        ("__hmin(x, y)", lambda x, y, z: min(x, y)),
        ("__habs(x)", lambda x, y, z: abs(x)),
        ("-x", lambda x, y, z: -x),
        ("__float2half(__half2float(x) * 0.75f)", lambda x, y, z: x * Fraction(3, 4)),
        ("__low2half(__hfma2(__halves2half2(x, y), __halves2half2(y, z), __halves2half2(z, x)))", multiply_add),
        ("__high2half(__hmul2(__halves2half2(x, y), __halves2half2(z, z)))", lambda x, y, z: y * z),
        ("x <= y ? x : z", lambda x, y, z: x if x <= y else z),
    ],
    "bfloat16": [
        ("x + y", lambda x, y, z: x + y),
        ("x - y", lambda x, y, z: x - y),
        ("x * y", lambda x, y, z: x * y),
        ("__hfma(x, y, z)", multiply_add),
        ("__hmax(x, y)", lambda x, y, z: max(x, y)),
        ("__hmin(x, y)", lambda x, y, z: min(x, y)),
        ("-x", lambda x, y, z: -x),
        ("__float2bfloat16(__bfloat162float(x) * 0.75f)", lambda x, y, z: x * Fraction(3, 4)),
        ("__high2bfloat16(__hadd2(__halves2bfloat162(x, y), __halves2bfloat162(z, z)))", lambda x, y, z: y + z),
        ("x > y ? x : z", lambda x, y, z: x if x > y else z),
    ],
}


@pytest.mark.parametrize("name", EXACT)
def test_arithmetic_rounds_once(architecture: str, name: str) -> None:
    dtype = BFLOAT16 if name == "bfloat16" else np.dtype(name)
    operands = [finite_values(dtype, seed) for seed in (1, 2, 3)]
    operands[1] = np.roll(operands[1], 3)
    operands[1][operands[1] == 0] = 1
    operands[0][operands[0] == 0] = 1
    exact = [tuple(Fraction(float(value)) for value in row) for row in zip(*operands, strict=True)]
    rows = EXACT[name]
    results = run(architecture, [text for text, _ in rows], operands, dtype)
    expected = [np.array([nearest(function(*row), dtype) for row in exact], dtype) for _, function in rows]
    wrong = [text for (text, _), got, want in zip(rows, results, expected, strict=True) if not (got == want).all()]
    assert wrong == []


FUNCTIONS: list[Row] = [
    ("sqrtf(fabsf(x))", lambda x: math.sqrt(abs(x))),
    ("rsqrtf(fabsf(x) + 1)", lambda x: 1 / math.sqrt(abs(x) + 1)),
    ("expf(x)", math.exp),
    ("__expf(x)", math.exp),
    ("exp2f(x)", lambda x: 2.0**x),
    ("logf(fabsf(x) + 1)", lambda x: math.log(abs(x) + 1)),
    ("tanhf(x)", math.tanh),
    ("sinf(x)", math.sin),
    ("erff(x)", math.erf),
    ("powf(fabsf(x), 1.5f)", lambda x: abs(x) ** 1.5),
    ("__fdividef(x, 3.f)", lambda x: x / 3),
    ("rintf(x)", round),
    ("truncf(x)", math.trunc),
    ("ceilf(x)", math.ceil),
    ("copysignf(2.f, x)", lambda x: math.copysign(2, x)),
    ("float(exp(double(x)))", math.exp),
]


def test_functions_are_close(architecture: str) -> None:
    x = (np.random.default_rng(0).standard_normal(64) * 3).astype(np.float32)
    results = run(architecture, [text for text, _ in FUNCTIONS], [x], np.float32)
    expected = [[function(float(value)) for value in x] for _, function in FUNCTIONS]
    wrong = [
        text
        for (text, _), got, want in zip(FUNCTIONS, results, expected, strict=True)
        if not np.allclose(got, want, 1e-5, 1e-6)
    ]
    assert wrong == []
