"""Conv with few output channels without a GEMM: when, how, and right results for many taps, channels, infinities."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.cuda.conv.direct import few as few_plan
from gpuconv.cuda.plan.launch import Plan
from tests.emulator import emulated_cuda
from tests.harness.emulated import preferred
from tests.harness.plans import fields, plan, problem
from tests.oracle import oracle


def few(x_shape: Any, w_shape: Any, operator: str = "conv", **more: Any) -> Plan | None:
    with preferred("conv_few"):
        made = plan(operator, x_shape, w_shape, **more)
    return made if made.launches[-1].variant.name.startswith("conv_few") else None


def test_one_launch_reads_the_weights_as_they_are() -> None:
    made = few((2, 6, 30, 40), (10, 3, 3, 5), group=2, bias=True, dilations=[2, 1])
    assert made is not None
    (launch,) = made.launches
    assert (made.bytes_of("workspace"), made.bytes_of("packed"), made.sharing) == (0, 0, ())
    assert dict(launch.pointers) == {"x": 0, "w": 8, "b": 16, "y": 24}
    struct = fields(launch)
    steps = {"w_group": 5 * 45, "w_filter": 45, "w_channel": 15, "w_stride": [0, 5, 1]}
    assert {**steps, "all_taps": 15, "channels_at_once": 3}.items() <= struct.items()
    assert struct["taps"]["advance"] == [1, 2, 1]
    pixels = 2 * 26 * 36
    assert launch.grid == (2 * -(-pixels // 512), 1, 1)
    assert launch.shared_bytes == 3 * 15 * 8 * 4


@pytest.mark.parametrize(("dtype", "at_once"), [("float16", 48), ("float32", 48), ("float64", 24)])
def test_shared_memory_holds_the_weights_of_some_channels(dtype: str, at_once: int) -> None:
    made = few((1, 100, 30, 40), (3, 100, 5, 7), dtype=dtype)
    assert made is not None
    (launch,) = made.launches
    assert fields(launch)["channels_at_once"] == at_once
    assert launch.shared_bytes == few_plan._WEIGHT_BYTES


@pytest.mark.parametrize(("filters", "most"), [(1, 4), (4, 4), (5, 8), (8, 8), (9, None)])
def test_the_kernel_follows_the_output_channels(filters: int, most: int | None) -> None:
    made = few((1, 16, 30, 40), (filters, 16, 3, 3))
    assert (made and made.launches[0].variant.name) == (most and f"conv_few_float32_3d_{most}x512")


@pytest.mark.emulator
@pytest.mark.kernels("conv/direct/few.cu")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("x_shape", "w_shape"), [((2, 50, 9, 13), (3, 50, 5, 7)), ((1, 7, 300), (8, 7, 40))])
def test_taps_and_channels_come_in_parts(dtype: str, x_shape: Any, w_shape: Any) -> None:
    random = np.random.default_rng(0)
    x, w, b = (random.standard_normal(shape).astype(dtype) for shape in (x_shape, w_shape, w_shape[:1]))
    w[0, ::3] = np.inf
    pads = [3] * (2 * (x.ndim - 2))
    results = []
    for seed in (0, 1):
        with preferred("conv_few"), emulated_cuda(seed=seed) as emulated:
            results.append(gpuconv.conv(x, w, b, pads=pads))
        (launch,) = emulated.launches
        assert launch.variant.name.startswith("conv_few")
    oracle.assert_close(results[0], oracle.conv(x, w, b, pads=pads), dtype)
    assert results[0].tobytes() == results[1].tobytes()


def test_a_block_of_few_filters_has_the_weights_of_its_channels_within_24_kib() -> None:
    one = problem("conv", (1, 400, 9, 11), (2, 400, 3, 3), "float32")
    room = 24 * 1024 // (9 * 4 * 4)  # bytes, divided by those of nine taps of four filters: 170 channels
    for channels in (400, room, 99):
        assert few_plan._channels_at_once(replace(one, channels=channels), 4) == min(channels, room)
