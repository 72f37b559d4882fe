"""The emulator's wgmma against NumPy, with kernels that are generated for each case.

Cases: shapes and element types, B stored K-major and MN-major, all steps along K of a tile, and A in registers. NumPy
lays out and swizzles the operands; the kernels copy them to shared memory unchanged.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from emulated_cuda.emulator.engine import EmulatorError, module
from emulated_cuda.emulator.memory import Array, empty
from own_kernels import compile_ptx

pytestmark = pytest.mark.emulator

TYPES = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "tf32": np.dtype(np.float32)}
_HEAD = r"""
#include "hopper.cuh"
extern "C" __global__ void __launch_bounds__(128)
products(const uint4* a, const uint4* b, float* d, unsigned long long a_fields, unsigned long long b_fields, int a_step,
         int b_step)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const int a_bytes = 64 * 128, b_bytes = COLUMNS * 128;
    for (int i = threadIdx.x; i < a_bytes / 16; i += 128) reinterpret_cast<uint4*>(memory)[i] = a[i];
    for (int i = threadIdx.x; i < b_bytes / 16; i += 128) reinterpret_cast<uint4*>(memory + a_bytes)[i] = b[i];
    fence_proxy_async();
    __syncthreads();
    float sums[COLUMNS / 2] = {};
    const unsigned at = smem_addr(memory);
    FENCE
    for (int step = 0; step < 4; ++step) {
        const unsigned long long a_place = a_fields | at + step * a_step >> 4;
        const unsigned long long b_place = b_fields | at + a_bytes + step * b_step >> 4;
        asm volatile("MULTIPLY" : OUTPUTS : "l"(a_place), "l"(b_place));
    }
    wgmma_commit();
    wgmma_wait<0>();
    for (int i = 0; i < COLUMNS / 2; ++i) {
        const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 % 2 * 8;
        d[row * COLUMNS + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2] = sums[i];
    }
}
"""


def source(kind: str, columns: int, transposed: bool, fenced: bool = True) -> str:
    """Return the source of a kernel for an element type and N (`columns`); `transposed`: B is MN-major."""
    count = columns // 2
    registers = ", ".join(f"%{number}" for number in range(count))
    orders = "" if kind == "tf32" else f", 0, {int(transposed)}"
    depth = 8 if kind == "tf32" else 16
    multiply = (
        f"wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.f32.{kind}.{kind} "
        f"{{{registers}}}, %{count}, %{count + 1}, 1, 1, 1{orders};"
    )
    text = _HEAD.replace("COLUMNS", str(columns)).replace("MULTIPLY", multiply)
    text = text.replace("OUTPUTS", ", ".join(f'"+f"(sums[{number}])' for number in range(count)))
    return text.replace("FENCE", "wgmma_fence();" if fenced else "")


def swizzled(rows: Any) -> Any:
    """Apply the 128-byte swizzle to rows of 128 bytes: 16-byte chunk c of row r moves to chunk c ^ (r % 8)."""
    pieces = np.ascontiguousarray(rows).view(np.uint8).reshape(-1, 8, 16)
    result = np.empty_like(pieces)
    for row in range(len(pieces)):
        for piece in range(8):
            result[row, piece ^ row % 8] = pieces[row, piece]
    return result


def fields(leading: int, stride: int) -> int:
    """Return a matrix descriptor for 128-byte swizzle without its start address; byte offsets as in PTX."""
    return leading // 16 << 16 | stride // 16 << 32 | 1 << 62


_FROM_REGISTERS = r"""
#include "hopper.cuh"
extern "C" __global__ void __launch_bounds__(128)
products(const float* a, const uint4* b, float* d, unsigned long long b_fields, int b_step)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    for (int i = threadIdx.x; i < COLUMNS * 128 / 16; i += 128) reinterpret_cast<uint4*>(memory)[i] = b[i];
    fence_proxy_async();
    __syncthreads();
    float sums[COLUMNS / 2] = {};
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4;
    const volatile float* from = a + row * 32 + column;
    float rows[4], others[4];
    auto read = [&](float (&rows)[4], int step) {
        for (int i = 0; i < 4; ++i) rows[i] = from[i % 2 * 8 * 32 + i / 2 * 4 + step * 8];
    };
    auto multiply = [&](const float (&rows)[4], int step) {
        const unsigned long long b_place = b_fields | smem_addr(memory) + step * b_step >> 4;
        wgmma_fence();
        asm volatile("MULTIPLY" : OUTPUTS : "f"(rows[0]), "f"(rows[1]), "f"(rows[2]), "f"(rows[3]), "l"(b_place));
        wgmma_commit();
    };
    MAIN
    wgmma_wait<0>();
    for (int i = 0; i < COLUMNS / 2; ++i) d[(row + i / 2 % 2 * 8) * COLUMNS + i / 4 * 8 + column * 2 + i % 2] = sums[i];
}
"""
_LOOP = """
#pragma unroll 1
    for (int step = 0; step < 4; ++step) {
        read(rows, step);
        multiply(rows, step);
        wgmma_wait<KEEP>();
    }
"""
_LOOP_OF_TWO = """
#pragma unroll 1
    for (int step = 0; step < 4; step += 2) {
        read(rows, step);
        multiply(rows, step);
        wgmma_wait<KEEP>();
        read(others, step + 1);
        multiply(others, step + 1);
        wgmma_wait<KEEP>();
    }
"""


def check(kind: str, columns: int, transposed: bool = False, *, fenced: bool = True, inexact: bool = False) -> None:
    dtype, depth = TYPES[kind], 32 if kind == "tf32" else 64
    generator = np.random.default_rng(columns)
    a, b = (generator.integers(-9, 10, (rows, depth)).astype(np.float32) for rows in (64, columns))
    given_a, given_b = (np.nextafter(number, 2 * number) if inexact else number for number in (a, b))
    if transposed:  # MN-major: tiles of 64 columns by 64 along K, one row per k
        laid = np.concatenate([given_b[first : first + 64].T for first in range(0, columns, 64)])
        b_fields, b_step = fields(64 * 128, 8 * 128), 16 * 128
    else:
        laid, b_fields, b_step = given_b, fields(16, 8 * 128), 32
    operands = [
        Array(swizzled(number.astype(dtype)), name, writable=False) for number, name in ((given_a, "a"), (laid, "b"))
    ]
    d = empty((64, columns), np.float32, "d")
    program = module(compile_ptx("products", source=source(kind, columns, transposed, fenced)))["products"]
    arguments = [*operands, d, fields(16, 8 * 128), b_fields, 32, b_step]
    program(1, 128, arguments, shared_bytes=(64 + columns) * 128)
    np.testing.assert_array_equal(d.data, a @ b.T)


@pytest.mark.parametrize("columns", [128, 256])
@pytest.mark.parametrize("kind", TYPES)
def test_rows_of_both_factors_are_multiplied(kind: str, columns: int) -> None:
    check(kind, columns)


@pytest.mark.parametrize("columns", [128, 256])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_columns_of_the_second_factor_may_be_neighbours(kind: str, columns: int) -> None:
    check(kind, columns, transposed=True)


def test_bits_that_tf32_does_not_have_are_cut_off() -> None:
    check("tf32", 128, inexact=True)


def test_a_product_needs_a_fence() -> None:
    with pytest.raises(EmulatorError, match=r"without wgmma\.fence"):
        check("f16", 128, fenced=False)


# ---------------------------------------------------------------- the first factor in registers


def check_registers(columns: int, main: str, *, inexact: bool = False) -> None:
    generator = np.random.default_rng(columns)
    a, b = (generator.integers(-9, 10, (rows, 32)).astype(np.float32) for rows in (64, columns))
    given_a = np.nextafter(a, 2 * a) if inexact else a
    count = columns // 2
    factors = ", ".join(f"%{count + number}" for number in range(4))
    multiply = (
        f"wgmma.mma_async.sync.aligned.m64n{columns}k8.f32.tf32.tf32 "
        f"{{{', '.join(f'%{number}' for number in range(count))}}}, {{{factors}}}, %{count + 4}, 1, 1, 1;"
    )
    text = _FROM_REGISTERS.replace("COLUMNS", str(columns)).replace("MAIN", main).replace("MULTIPLY", multiply)
    text = text.replace("OUTPUTS", ", ".join(f'"+f"(sums[{number}])' for number in range(count)))
    d = empty((64, columns), np.float32, "d")
    program = module(compile_ptx("products", source=text))["products"]
    inputs = [Array(given_a, "a", writable=False), Array(swizzled(b), "b", writable=False)]
    program(1, 128, [*inputs, d, fields(16, 8 * 128), 32], shared_bytes=columns * 128)
    np.testing.assert_array_equal(d.data, a @ b.T)


@pytest.mark.parametrize("columns", [64, 128])
def test_the_first_factor_may_be_in_registers(columns: int) -> None:
    check_registers(columns, _LOOP.replace("KEEP", "0"))


def test_bits_that_tf32_does_not_have_are_cut_off_in_registers() -> None:
    check_registers(64, _LOOP.replace("KEEP", "0"), inexact=True)


def test_several_products_may_read_the_same_registers() -> None:
    twice = "read(rows, 0); multiply(rows, 0); multiply(rows, 0); wgmma_wait<0>(); for (float& sum : sums) sum /= 2;"
    others = "for (int step = 1; step < 4; ++step) { read(rows, step); multiply(rows, step); wgmma_wait<0>(); }"
    check_registers(64, f"{twice} {others}")


def test_registers_are_free_as_soon_as_their_own_products_are_done() -> None:
    """A wgmma group that reads other registers may still be pending."""
    check_registers(64, _LOOP_OF_TWO.replace("KEEP", "1"))


@pytest.mark.parametrize(
    ("main", "what"),
    [
        (_LOOP.replace("KEEP", "1"), "factors"),
        (_LOOP_OF_TWO.replace("KEEP", "2"), "factors"),
        ("read(rows, 0); multiply(rows, 0); d[0] = rows[0];", "factors"),
        ("read(rows, 0); multiply(rows, 0); wgmma_wait<1>(); d[0] = rows[3];", "factors"),
        ("read(rows, 0); multiply(rows, 0); rows[1] = sums[0]; multiply(rows, 1);", "sums"),
    ],
    ids=["written in a loop", "written in a loop of two", "read", "read, with one group left", "sums as factors"],
)
def test_registers_must_not_be_touched_before_wgmma_has_read_them(main: str, what: str) -> None:
    with pytest.raises(EmulatorError, match=rf"{what} of a wgmma that is not waited for.*\n    products.cu:"):
        check_registers(64, main)
