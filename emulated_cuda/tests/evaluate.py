"""Evaluate CUDA C++ expressions in the emulator, on arrays of operands; also operand values and exact rounding."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

from emulated_cuda.emulator.engine import module
from emulated_cuda.emulator.memory import Array, empty
from own_kernels import compile_ptx

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_120a")
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
CUDA_TYPES = {
    "int8": "signed char",
    "uint8": "unsigned char",
    "int32": "int",
    "uint32": "unsigned",
    "int64": "long long",
    "uint64": "unsigned long long",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float32": "float",
    "float64": "double",
}


def number_format(dtype: Any) -> tuple[int, int, float]:
    """Return a format's bits of the significand, exponent of the smallest subnormal, and largest finite value."""
    limits = ml_dtypes.finfo(dtype)
    return limits.nmant + 1, int(limits.minexp - limits.nmant), float(limits.max)


def run(architecture: str, expressions: Sequence[str], operands: Sequence[Any], result: Any) -> Any:
    """Evaluate expressions in x, y and z, one row of operands per thread; return an array (expression, thread)."""
    kinds = [CUDA_TYPES[operand.dtype.name] for operand in operands]
    letters = "xyz"[: len(operands)]
    inputs = ", ".join(f"const {kind}* {letter}s" for kind, letter in zip(kinds, letters, strict=True))
    reads = "\n".join(
        f"    const {kind} {letter} = {letter}s[threadIdx.x];" for kind, letter in zip(kinds, letters, strict=True)
    )
    writes = "\n".join(f"    results[{n} * blockDim.x + threadIdx.x] = {text};" for n, text in enumerate(expressions))
    source = f"""#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void evaluate({inputs}, {CUDA_TYPES[np.dtype(result).name]}* results)
{{
{reads}
{writes}
}}
"""
    count = len(operands[0])
    results = empty((len(expressions), count), result, "results")
    program = module(compile_ptx("evaluate", architecture, (), source))["evaluate"]
    program(1, count, [*(Array(operand, "operand") for operand in operands), results])
    return results.data


def integers(dtype: Any, seed: int) -> Any:
    """Return 64 integers of a type, small and large ones at random, beginning with special values."""
    limits = np.iinfo(dtype)
    generator = np.random.default_rng(seed)
    small = generator.integers(-100, 101, 64)
    large = generator.integers(limits.min, limits.max, 64, dtype, endpoint=True)
    values = np.where(generator.random(64) < 0.5, small, large).astype(dtype)
    values[:6] = 0, 1, -1, limits.min, limits.max, limits.min + 1
    return values


def nearest(value: Fraction, dtype: Any) -> Any:
    """Return an exact value rounded once to a floating-point type, to nearest, ties to even."""
    dtype = np.dtype(dtype)
    bits, smallest, largest = number_format(dtype)
    if value == 0:
        return dtype.type(0)
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    while abs(value) < Fraction(2) ** (exponent - 1):
        exponent -= 1
    while abs(value) >= Fraction(2) ** exponent:
        exponent += 1
    quantum = Fraction(2) ** max(exponent - bits, smallest)
    rounded = round(value / quantum) * quantum
    return dtype.type(float(rounded) if abs(rounded) <= largest else np.inf if rounded > 0 else -np.inf)


def finite_values(dtype: Any, seed: int, count: int = 64) -> Any:
    """Return random finite values: normal numbers, neighbours of 1, subnormals and large numbers."""
    dtype = np.dtype(dtype)
    bits, smallest, largest = number_format(dtype)
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(count)
    values[::5] *= 2.0 ** (smallest + 3)  # subnormals
    values[1::5] = 1 + generator.integers(-4, 5, values[1::5].size) * 2.0 ** (1 - bits)
    values[2::9] *= largest / 8
    return values.astype(dtype)


def same_bits(a: Any, b: Any) -> bool:
    """Return whether two arrays have the same bits, so that -0 differs from +0; any NaN equals any NaN."""
    nan = np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
    kind = f"u{a.dtype.itemsize}"
    return bool((nan | (a.view(kind) == b.view(kind))).all())
