"""The cost model of pools: few blocks cannot saturate memory, and threads wait for its latency."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.cuda.plan import model, offers
from gpuconv.cuda.plan.limits import Limits, representative
from gpuconv.cuda.plan.offers import Candidate
from gpuconv.cuda.pool import families
from gpuconv.cuda.pool.grad import families as grad_families
from gpuconv.cuda.pool.grad.problem import PoolGradProblem
from gpuconv.cuda.pool.problem import PoolProblem, used
from gpuconv.rules import geometry as geometries
from tests.cuda.pool.problems import lying
from tests.emulator import emulated_cuda

pytestmark = pytest.mark.slow

Ints = tuple[int, ...]
HOPPER = representative("sm_90a").limits
# Bytes per second of the L2 cache that a multiprocessor has: 30 a clock, at 1.41 GHz (A100) and 1.98 GHz (H200).
RATE = {"sm_80": 30 * 1.41e9, "sm_90a": 30 * 1.98e9}
# x, kernel, strides: whole images with few and with many channels, disjoint windows, overlapping windows.
SHAPES: tuple[tuple[Ints, Ints, Ints], ...] = (
    ((1, 64, 112, 112), (112, 112), (1, 1)),
    ((1, 512, 28, 28), (28, 28), (1, 1)),
    ((1, 2048, 7, 7), (7, 7), (1, 1)),
    ((1, 3, 512, 512), (512, 512), (1, 1)),
    ((8, 64, 4096), (4096,), (1,)),
    ((1, 4, 16, 56, 56), (16, 56, 56), (1, 1, 1)),
    ((1, 16, 56, 56), (2, 2), (2, 2)),
    ((1, 8, 112, 112), (7, 7), (7, 7)),
    ((1, 8, 112, 112), (56, 56), (56, 56)),
    ((1, 64, 112, 112), (3, 3), (2, 2)),
    ((1, 256, 13, 13), (13, 1), (1, 1)),
    ((32, 64, 112, 112), (3, 3), (1, 1)),
)
KINDS = ("values", "indices", "averages", "gradient of maxima", "gradient of averages")


def strides_of(shape: Ints, last: bool) -> Ints:
    return used(shape, lying(shape, last))


def candidates(kind: str, dtype: str, x: Ints, kernel: Ints, strides: Ints, last: bool, limits: Limits) -> Any:
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides}
    geometry = (geometries.average_pool if "averages" in kind else geometries.max_pool)(x, **attributes)
    of_x, of_y = strides_of(x, last), strides_of(geometry.y_shape, last)
    places = of_y if kind in ("indices", "gradient of maxima") else None
    problem: Any = PoolProblem(geometry, dtype, of_x, of_y, places)
    known = families.FAMILIES
    if "gradient" in kind:
        problem, known = PoolGradProblem(geometry, dtype, of_y, places, of_x), grad_families.FAMILIES
    return offers.of(known, problem, limits)[0], geometry.y_shape


def every_candidate(kind: str, dtype: str) -> Iterator[tuple[str, str, Candidate, int]]:
    """Yield architectures, texts for messages, candidates, and the bytes that each has to move."""
    size, index = np.dtype(dtype).itemsize, 8 * (kind in ("indices", "gradient of maxima"))
    for architecture in RATE:
        limits = representative(architecture).limits
        for (x, kernel, strides), last in ((shape, last) for shape in SHAPES for last in (False, True)):
            found, y = candidates(kind, dtype, x, kernel, strides, last, limits)
            assert found
            moved = size * prod(x) + (size + index) * prod(y)
            if kernel[0] < strides[0]:
                raise AssertionError("some elements of x are in no window")
            for one in found:
                yield architecture, f"{architecture} {one.name} {x} {kernel} {last}", one, moved


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_plan_moves_more_than_its_multiprocessors_can(kind: str, dtype: str) -> None:
    """The blocks of the largest launch move all bytes, on at most as many multiprocessors."""
    for architecture, words, one, moved in every_candidate(kind, dtype):
        blocks = max(prod(launch.grid) for launch in one.make().launches)
        busy = min(blocks, representative(architecture).limits.multiprocessors)
        assert one.seconds >= 0.99 * moved / (busy * RATE[architecture]), words


@pytest.mark.parametrize("kind", KINDS)
def test_no_plan_is_faster_than_one_load(kind: str) -> None:
    for _, words, one, _ in every_candidate(kind, "float32"):
        assert one.seconds >= 0.6e-6, words


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_chosen_keeps_the_device_busy(kind: str) -> None:
    """A plan has a block for every 64 KiB that it moves, or for half of the multiprocessors."""
    for architecture in RATE:
        limits = representative(architecture).limits
        for (x, kernel, strides), last in ((shape, last) for shape in SHAPES for last in (False, True)):
            if kernel == (56, 56):
                continue  # few windows, several in a channel: no kernel has many threads for each
            found, _ = candidates(kind, "float16", x, kernel, strides, last, limits)
            best = offers.quickest(found)
            blocks = max(prod(launch.grid) for launch in best.make().launches)
            assert blocks >= min(0.5 * limits.multiprocessors, 2 * prod(x) / 2**16), (best.name, x, kernel, last)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float64"])
@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("architecture", RATE)
@pytest.mark.parametrize("kind", ["values", "indices"])
def test_a_global_maximum_of_few_channels_has_a_block_for_each(
    kind: str, dtype: str, last: bool, architecture: str
) -> None:
    """A single block would have 64 threads with 12,544 elements each: a millisecond instead of half a microsecond."""
    limits = representative(architecture).limits
    found, _ = candidates(kind, dtype, (1, 64, 112, 112), (112, 112), (1, 1), last, limits)
    best = offers.quickest(found)
    assert prod(best.make().launches[0].grid) >= 64
    assert 0.6e-6 < best.seconds < 20e-6
    one_block = next(one for one in found if one.name.removesuffix("_indices") == f"max_pool_{dtype}_3d")
    assert one_block.seconds > 100e-6


# ---------------------------------------------------------------- the formula, by hand


def test_the_busiest_multiprocessor_by_hand() -> None:
    """132 multiprocessors at 1.98 GHz; 85 % of 4.8 TB/s of memory; 30 bytes per clock from the L2 cache."""
    # 64 blocks of 8 warps: the bytes of one, 25,088, take 25,088 / 30 clocks; a trip 0.6 us, seven 4.2.
    blocks = model.Blocks(64, 8, 1000.0, trips=7.0, resident=4)
    memory = 64 * 25_088 / (0.85 * 4.8e12)
    issued = 1000 / 128 / 1.98e9
    assert model.streaming(blocks, 64 * 25_088, HOPPER) == pytest.approx(4.2e-6 + 0.2 * issued + 0.2 * memory)
    # One block transfers at most 30 bytes a clock, with any number of bytes in flight.
    alone = replace_in(blocks, number=1, trips=1.0)
    cached = 64 * 25_088 / 30 / 1.98e9
    assert model.streaming(alone, 64 * 25_088, HOPPER) == pytest.approx(cached + 0.2 * issued + 0.2 * memory)


def test_warps_hide_each_others_waits() -> None:
    """Two warps on each of four schedulers issue 128 instructions a clock, counted by thread; one warp issues 16."""
    eight = model.Blocks(132, 8, 128e6)
    one = replace_in(eight, warps=1)
    assert model.streaming(eight, 132, HOPPER) == pytest.approx(1e6 / 1.98e9, rel=1e-2)
    assert model.streaming(one, 132, HOPPER) == pytest.approx(8e6 / 1.98e9, rel=1e-2)
    # Resident blocks share the multiprocessor; further blocks run after them.
    assert model.streaming(replace_in(one, number=8 * 132, resident=8), 132, HOPPER) == pytest.approx(
        8e6 / 1.98e9, rel=1e-2
    )
    # One thread issues an instruction every other clock, independently of other threads.
    assert model.streaming(replace_in(eight, longest=4e6), 132, HOPPER) == pytest.approx(8e6 / 1.98e9, rel=1e-2)


def test_blocks_wait_in_turns() -> None:
    """264 blocks on 132 multiprocessors, one resident block each, wait twice as long as with two."""
    many = model.Blocks(264, 8, 0.0, trips=5.0, resident=1)
    assert model.streaming(many, 264, HOPPER) == pytest.approx(6e-6, rel=1e-2)
    assert model.streaming(replace_in(many, resident=2), 264, HOPPER) == pytest.approx(3e-6, rel=1e-2)
    slow = replace(HOPPER, rates=replace(HOPPER.rates, latency=2e-6))
    assert model.streaming(many, 264, slow) == pytest.approx(20e-6, rel=1e-2)


def replace_in(blocks: model.Blocks, **changes: Any) -> model.Blocks:
    return blocks._replace(**changes)


# ---------------------------------------------------------------- results of what is planned anew


@pytest.mark.emulator
@pytest.mark.kernels("pool/planes.cu")
@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("x", "dtype", "architecture"),
    [
        ((1, 64, 112, 112), "float16", "sm_90a"),
        ((2, 5, 37, 41), "float32", "sm_80"),
        ((1, 70, 9, 11), "int8", "sm_80"),
        ((1, 3, 4096), "float64", "sm_90a"),
        ((1, 3, 5, 24, 24), "uint8", "sm_90a"),
    ],
)
def test_global_maxima_are_right(x: Ints, dtype: str, architecture: str, last: bool) -> None:
    generator = np.random.default_rng(1)
    given = generator.integers(0, 127, x).astype(dtype)
    if np.dtype(dtype).kind == "f":
        given = (-1 - generator.random(x)).astype(dtype)  # all negative, so that an identity of 0 would be detected
        given[0, 1] = -np.inf
        given[0, 2].ravel()[-1] = np.nan
    strided = np.moveaxis(np.ascontiguousarray(np.moveaxis(given, 1, -1)), -1, 1) if last else given
    expected = given.max(axis=tuple(range(2, len(x))), keepdims=True)  # NaN if there is any
    with emulated_cuda(architecture) as emulated:
        y = gpuconv.max_pool(strided, kernel_shape=x[2:])
        places = gpuconv.max_pool(strided, kernel_shape=x[2:], return_indices=True)[1]
    np.testing.assert_array_equal(y, expected)
    named = np.asarray(given).ravel()[np.asarray(places).ravel()]
    np.testing.assert_array_equal(named.reshape(expected.shape), expected)
    assert emulated.launches


@pytest.mark.emulator
@pytest.mark.kernels("pool/general.cu", "pool/vectors.cu", "pool/tiles.cu")
@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("x", "kernel", "strides"), [((1, 8, 56, 56), 7, 7), ((1, 4, 40, 40), 20, 20), ((1, 16, 24, 24), 2, 2)]
)
def test_windows_side_by_side_are_right(x: Ints, kernel: int, strides: int, last: bool) -> None:
    given = np.random.default_rng(2).integers(-50, 50, x).astype("float32")
    cut = given.reshape(*x[:2], x[2] // kernel, kernel, x[3] // kernel, kernel)
    strided = np.moveaxis(np.ascontiguousarray(np.moveaxis(given, 1, -1)), -1, 1) if last else given
    attributes: dict[str, Any] = {"kernel_shape": [kernel] * 2, "strides": [strides] * 2}
    with emulated_cuda("sm_90a"):
        maxima = gpuconv.max_pool(strided, **attributes)
        averages = gpuconv.average_pool(strided, **attributes)
    np.testing.assert_array_equal(maxima, cut.max((3, 5)))
    np.testing.assert_allclose(averages, cut.mean((3, 5)), rtol=1e-6, atol=1e-6)
