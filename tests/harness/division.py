"""Run the kernels' division by precomputed divisors on numbers of every size."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuconv.cuda.build import params, sources, structs
from gpuconv.cuda.build.variant import index_name
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import ffma
from tests.emulator import Array, compile_ptx, empty, module

ENTRY = """
extern "C" __global__ void divides(
    const {index}* numbers, const Divider<{index}>* prepared, {index}* results, int count)
{{
    const Divider<{index}> by = {prepared};
    for (int i = threadIdx.x; i < count; i += 32) {{
        {index} rest;
        results[3 * i] = by.split(numbers[i], rest);
        results[3 * i + 1] = rest;
        results[3 * i + 2] = by.quotient(numbers[i]);
    }}
}}
"""
DIVISORS = (
    *range(1, 70),
    127,
    128,
    129,
    1000,
    4095,
    4097,
    2**16 - 1,
    2**16 + 1,
    10**6 + 3,
    2**30,
    2**30 + 1,
    2**31 - 1,
)


def numbers_beside_multiples(divisor: int, limit: int) -> Any:
    """Return numbers around the first and last multiples, where a quotient that is off by one shows."""
    last = (limit - 1) // divisor
    multiples = {q * divisor for q in (0, 1, 2, 3, last // 3, last // 2, last - 1, last) if q >= 0}
    return sorted({n + off for n in multiples for off in (-1, 0, 1) if 0 <= n + off < limit} | {limit - 1})


# Dividers prepared by the host, and those that ConvTranspose kernels prepare themselves.
PREPARED = {"by the host": "*prepared", "by the kernel": "divider(static_cast<{index}>(prepared->divisor))"}


def check(wide: bool, side: str) -> None:
    """Raise AssertionError if a quotient or a remainder is wrong."""
    index, limit = index_name(wide), 2**63 if wide else 2**31
    entry = ENTRY.format(index=index, prepared=PREPARED[side].format(index=index))
    tile = gemm_base.TILES["float32"][1]
    text = sources.source(ffma.variant("conv_transpose", "float32", wide, 4, tile, True)) + entry
    kernel = module(compile_ptx("divides", "sm_80", source=text))["divides"]
    for divisor in DIVISORS:
        numbers = np.array(numbers_beside_multiples(divisor, limit), np.int64 if wide else np.int32)
        divider = structs.layout(f"Divider<{index}>", "base/geometry.cuh")
        prepared = np.array([params.division(divisor, wide)], divider)
        results = empty(3 * len(numbers), numbers.dtype, "results")
        fields = Array(prepared.view(np.uint8), "prepared", writable=False)
        kernel(1, 32, [Array(numbers, "numbers", writable=False), fields, results, len(numbers)])
        expected = [[int(n) // divisor, int(n) % divisor, int(n) // divisor] for n in numbers]
        assert results.data.reshape(-1, 3).tolist() == expected, divisor
