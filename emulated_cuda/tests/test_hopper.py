"""TMA, mbarriers and wgmma of sm_90a: correct kernels give right results; missing fences and waits are reported."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from emulated_cuda.emulator.engine import EmulatorError, module
from emulated_cuda.emulator.memory import Array, TensorMap, empty
from emulated_cuda.nvrtc import CompileError
from own_kernels import compile_ptx

pytestmark = pytest.mark.emulator


def tma(name: str, *defines: str) -> Any:
    return module(compile_ptx("tma", "sm_90a", defines))[name]


def rows(count: int) -> tuple[Array, TensorMap]:
    array = empty((count, 32), np.float32, "global tile")
    return array, TensorMap(array, (32, 32), swizzle=0)


@pytest.mark.parametrize("late_async", [True, False])
@pytest.mark.parametrize("seed", [0, 5])
def test_a_tile_that_reaches_beyond_its_tensor_is_cut_off_and_filled_with_zeros(seed: int, late_async: bool) -> None:
    array, tensor_map = rows(30)
    tma("stores_a_tile")(1, 128, [tensor_map], seed=seed, late_async=late_async)
    assert (array.data.ravel() == np.arange(960)).all()
    y = empty(1024, np.float32, "y")
    options = {"late_async": True, "async_order": "random"} if seed else {"late_async": late_async}
    tma("loads_a_tile")(1, 128, [tensor_map, y], seed=seed, **options)
    assert (y.data == np.where(np.arange(1024) < 960, np.arange(1024), 0)).all()


@pytest.mark.parametrize(
    ("define", "message"),
    [("NO_FENCE", r"without fence\.proxy\.async"), ("NO_BARRIER", "shared memory race: read after write")],
)
def test_a_tile_must_be_fenced_and_complete_before_it_is_stored(define: str, message: str) -> None:
    with pytest.raises(EmulatorError, match=message):
        tma("stores_a_tile", define)(1, 128, [rows(32)[1]])


@pytest.mark.parametrize(
    ("define", "message"), [("NO_WAIT", "in flight"), ("NO_FENCE", "initialisation was not fenced")]
)
def test_a_tile_must_be_waited_for_at_a_fenced_mbarrier(define: str, message: str) -> None:
    array, tensor_map = rows(32)
    tma("stores_a_tile")(1, 128, [tensor_map])
    with pytest.raises(EmulatorError, match=message):
        tma("loads_a_tile", define)(1, 128, [tensor_map, empty(1024, np.float32, "y")])
    assert (array.data.ravel() == np.arange(1024)).all()


@pytest.mark.parametrize(
    ("waits", "message"),
    [(0, "shared memory race: write after read"), (1, "exits while a TMA store still reads"), (2, "")],
)
def test_a_tile_is_read_until_its_store_is_waited_for(waits: int, message: str) -> None:
    array, tensor_map = rows(64)
    kernel = tma("stores_two_tiles", f"WAITS={waits}")
    if not message:
        kernel(1, 128, [tensor_map])
        assert (array.data.ravel() == np.arange(2048)).all()
        return
    with pytest.raises(EmulatorError, match=message):
        kernel(1, 128, [tensor_map])


def test_a_tile_without_values_cannot_be_loaded() -> None:
    with pytest.raises(EmulatorError, match="uninitialised global read of global tile"):
        tma("loads_a_tile")(1, 128, [rows(32)[1], empty(1024, np.float32, "y")])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"box": (32, 512)}, "box dimensions"),
        ({"box": (32, 3), "swizzle": 0}, "multiple of 16"),
        ({"box": (8, 64)}, "swizzle span"),
        ({"box": (8, 8), "steps": (9, 1)}, "element strides"),
    ],
)
def test_tensor_maps_are_refused_as_the_driver_does(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TensorMap(Array(np.zeros((64, 64), np.float32), "x"), **arguments)


PREFETCH = """
#include "hopper.cuh"
extern "C" __global__ void prefetches(const __grid_constant__ TensorMap map)
{
    asm volatile("prefetch.tensormap [%0];" :: "l"(reinterpret_cast<const char*>(&map) + AT) : "memory");
}
"""


@pytest.mark.parametrize(
    ("at", "message"), [(0, ""), (16, "tensor map is not 64-byte aligned"), (64, "kernel parameter out of bounds")]
)
def test_what_is_prefetched_must_be_a_tensor_map(at: int, message: str) -> None:
    kernel = module(compile_ptx("prefetches", "sm_90a", (f"AT={at}",), PREFETCH))["prefetches"]
    if not message:
        kernel(1, 1, [rows(32)[1]])
        return
    with pytest.raises(EmulatorError, match=message):
        kernel(1, 1, [rows(32)[1]])


# ---------------------------------------------------------------- windows of im2col


@pytest.mark.parametrize(("axes", "least"), [(1, -(2**15)), (2, -(2**7)), (3, -(2**4))])
def test_corners_have_fewer_bits_the_more_axes_there_are(axes: int, least: int) -> None:
    array = Array(np.zeros((2, *[64] * axes, 64), np.uint16), "x")
    no, beyond, steps = [0] * axes, [*[0] * (axes - 1), least - 1], [1] * (axes + 2)
    TensorMap(array, im2col=([least] * axes, no, 64, 64), steps=steps)
    with pytest.raises(ValueError, match="corner out of range"):
        TensorMap(array, im2col=(beyond, no, 64, 64), steps=steps)
    with pytest.raises(ValueError, match="corner out of range"):
        TensorMap(array, im2col=(no, [-least] * axes, 64, 64), steps=steps)


@pytest.mark.parametrize(
    ("im2col", "message"),
    [
        (((0, 0), (0, -8), 64, 64), "no area"),
        (((0, 5), (0, -3), 64, 64), "no area"),
        (((0,), (0,), 64, 64), "a number for each spatial axis"),
        (((0, 0), (0, 0), 0, 64), "1 to 256 channels"),
        (((0, 0), (0, 0), 64, 0), "1 to 1024 pixels"),
        (((0, 0), (0, 0), 64, 1025), "1 to 1024 pixels"),
    ],
)
def test_windows_are_refused_as_the_driver_does(im2col: Any, message: str) -> None:
    array = Array(np.zeros((2, 8, 8, 64), np.uint16), "x")
    TensorMap(array, im2col=((0, 5), (0, -2), 64, 64), steps=(1, 1, 1, 1))
    with pytest.raises(ValueError, match=message):
        TensorMap(array, im2col=im2col, steps=(1, 1, 1, 1))


WINDOWS = """
#include "hopper.cuh"
extern "C" __global__ void loads_pixels(const __grid_constant__ TensorMap map)
{
    __shared__ __align__(128) char pixels[16 * 16];
    __shared__ __align__(8) unsigned long long bar;
    mbarrier_init(smem_addr(&bar), 1);
    fence_mbarrier_init();
    mbarrier_expect_tx(smem_addr(&bar), 16 * 16);
    const unsigned short offset = OFFSET;
    asm volatile("cp.async.bulk.tensor." RANK "d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {" ZEROS "}], [%2], {" OFFSETS "};"
                 :: "r"(smem_addr(pixels)), "l"(&map), "r"(smem_addr(&bar)), "r"(0), "h"(offset) : "memory");
    mbarrier_wait(smem_addr(&bar), 0);
}
"""


@pytest.mark.parametrize(("axes", "most"), [(1, 2**16 - 1), (2, 2**8 - 1), (3, 2**5 - 1)])
def test_offsets_have_fewer_bits_the_more_axes_there_are(axes: int, most: int) -> None:
    array = Array(np.zeros((2, *[4] * axes, 8), np.uint16), "x")
    tensor_map = TensorMap(array, im2col=([0] * axes, [0] * axes, 8, 16), steps=[1] * (axes + 2), swizzle=0)
    zeros, offsets = ", ".join(["%3"] * (axes + 2)), ", ".join(["%4"] * axes)
    for offset in (most, most + 1) if axes > 1 else (most,):
        defines = (f'RANK="{axes + 2}"', f'ZEROS="{zeros}"', f'OFFSETS="{offsets}"', f"OFFSET={offset}")
        kernel = module(compile_ptx("windows", "sm_90a", defines, WINDOWS))["loads_pixels"]
        if offset == most:
            kernel(1, 1, [tensor_map])
            continue
        with pytest.raises(EmulatorError, match=f"im2col offset {offset} out of range"):
            kernel(1, 1, [tensor_map])


# ---------------------------------------------------------------- registers that warpgroups hand to each other

REGISTERS = """
extern "C" __global__ void __launch_bounds__(384, 1) hands_registers_over(int* y)
{
    if (threadIdx.x >= 256) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(GIVES));
    else asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(TAKES));
    y[threadIdx.x] = threadIdx.x;
}
"""


def hands_over(gives: int, takes: int, **options: Any) -> Array:
    ptx = compile_ptx("registers", "sm_90a", (f"GIVES={gives}", f"TAKES={takes}"), REGISTERS)
    y = empty(384, np.int32, "y")
    module(ptx)["hands_registers_over"](1, 384, [y], **options)
    return y


@pytest.mark.parametrize(("gives", "takes"), [(40, 232), (24, 240), (168, 168)])
def test_warps_may_take_the_registers_that_others_give_back(gives: int, takes: int) -> None:
    for seed in (0, 3, 4):
        assert (hands_over(gives, takes, seed=seed).data == np.arange(384)).all()


@pytest.mark.parametrize(("gives", "takes"), [(40, 240), (48, 232), (168, 176)])
def test_registers_that_nobody_gives_back_are_waited_for_in_vain(gives: int, takes: int) -> None:
    with pytest.raises(EmulatorError, match=r"deadlock(.|\n)*\[setmaxnreg.inc"):
        hands_over(gives, takes)


@pytest.mark.parametrize(
    ("gives", "takes", "message"), [(176, 232, "the wrong way: each thread has 168"), (40, 100, "multiples of 8")]
)
def test_registers_are_handed_over_as_the_instruction_allows(gives: int, takes: int, message: str) -> None:
    with pytest.raises((EmulatorError, CompileError), match=message):
        hands_over(gives, takes)


# ---------------------------------------------------------------- a whole convolution

# N, C, H, W, K, R, S, strides, pads (the same at both ends), dilations
CONVOLUTIONS = {
    "unit strides": (2, 64, 9, 11, 40, 3, 3, (1, 1), (1, 1), (1, 1)),
    "channels that do not fill a step": (2, 40, 9, 11, 40, 3, 3, (2, 2), (1, 1), (1, 1)),
    "unequal strides, pads and dilations": (1, 128, 9, 11, 70, 3, 2, (1, 2), (2, 1), (2, 1)),
    "several blocks": (3, 64, 8, 8, 70, 5, 5, (2, 2), (2, 2), (1, 1)),
}


def convolved(x: Any, weights: Any, strides: Any, pads: Any, dilations: Any) -> Any:
    """Return the exact convolution (N, K, P, Q) of integers (N, C, H, W) with filters (K, C, R, S)."""
    padded = np.pad(x, ((0, 0), (0, 0), *((pad, pad) for pad in pads)))
    spans = [d * (count - 1) for d, count in zip(dilations, weights.shape[2:], strict=True)]  # from first to last tap
    total: Any = 0
    for r, s in np.ndindex(weights.shape[2:]):
        top, left = r * dilations[0], s * dilations[1]
        bottom, right = (padded.shape[2 + axis] - spans[axis] + start for axis, start in enumerate((top, left)))
        seen = padded[:, :, top : bottom : strides[0], left : right : strides[1]]
        total = total + np.einsum("nchw,kc->nkhw", seen, weights[:, :, r, s])
    return total.astype(np.float32)


def convolve(problem: str, *defines: str, **options: Any) -> None:
    n, c, h, w, k, r, s, strides, pads, dilations = CONVOLUTIONS[problem]
    generator = np.random.default_rng(0)
    x, weights = generator.integers(-3, 4, (n, c, h, w)), generator.integers(-3, 4, (k, c, r, s))
    exact = convolved(x, weights, strides, pads, dilations)
    p, q = exact.shape[2:]
    x_nhwc = Array(x.transpose(0, 2, 3, 1).astype(ml_dtypes.bfloat16, order="C"), "x", writable=False)
    w_krsc = Array(
        weights.transpose(0, 2, 3, 1).reshape(k, -1).astype(ml_dtypes.bfloat16, order="C"), "w", writable=False
    )
    y = empty((n, p, q, k), ml_dtypes.bfloat16, "y")
    lower = (-pads[1], -pads[0])
    upper = (pads[1] - (s - 1) * dilations[1], pads[0] - (r - 1) * dilations[0])
    x_map = TensorMap(x_nhwc, im2col=(lower, upper, 64, 64), steps=(1, *strides, 1))
    parameters = np.array([n, c, h, w, k, r, s, p, q, *strides, *pads, *dilations], np.int32)
    grid = (-(-n * p * q // 64), -(-k // 64))
    program = module(compile_ptx("conv_wgmma", "sm_90a", defines))["conv_wgmma"]
    program(grid, 160, [x_map, TensorMap(w_krsc, (64, 64)), y, parameters], shared_bytes=3 * 16384, **options)
    assert (y.data.transpose(0, 3, 1, 2) == exact.astype(ml_dtypes.bfloat16)).all()  # sums of integers, rounded once


@pytest.mark.parametrize("async_order", ["late", "at once", "random"])
@pytest.mark.parametrize("problem", CONVOLUTIONS)
def test_a_convolution_with_tma_and_wgmma_is_right(problem: str, async_order: str) -> None:
    for seed in (0, 7):
        convolve(problem, seed=seed, async_order=async_order)


def test_a_stage_must_not_be_released_before_wgmma_has_read_it() -> None:
    with pytest.raises(EmulatorError, match="shared memory race: write after read"):
        convolve("unit strides", "RELEASES_EARLY")


def test_sums_must_not_be_read_before_wgmma_has_made_them() -> None:
    with pytest.raises(EmulatorError, match=r"sums of a wgmma that is not waited for.*\n    conv_wgmma.cu:"):
        convolve("unit strides", "WAITS_FOR_TOO_FEW")


def test_waiting_for_more_bytes_than_come_is_a_deadlock() -> None:
    with pytest.raises(EmulatorError, match="deadlock"):
        convolve("unit strides", "EXPECTS_TOO_MUCH")
