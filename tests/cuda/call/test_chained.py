"""Overlapping launches of a call: which may overlap, that results are the same, and that each planted fault is
detected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv import ArgumentError, _environment
from gpuconv.cli.compile import _for as built_ahead
from gpuconv.cuda.build import variant as variants
from gpuconv.cuda.call import device
from tests.emulator import emulated_cuda
from tests.harness.emulated import preferred
from tests.harness.toolchain import variant
from tests.oracle.operands import values
from tests.oracle.oracle import assert_same

SWITCH = "GPUCONV_CHAINED_LAUNCHES"
# Operator, kernel that is preferred, dtype, shapes of x and w, attributes; how the kernels' names begin
CHAINS: dict[str, tuple[Any, ...]] = {
    "pack, product": (
        *("conv", "conv_float32_3d_128x128", np.float32, (1, 16, 9, 8), (20, 16, 3, 2), {}),
        ["pack_weights", "conv_float32"],
    ),
    "pack, product on tensor cores": (
        *("conv", "mma_64x64", np.float16, (1, 24, 9, 8), (20, 24, 3, 3), {}),
        ["pack_fragments", "conv_float16"],
    ),
    "pack, product in splits": (
        *("conv", "mma_64x64x32_scalar_split", np.float16, (1, 96, 5, 5), (64, 96, 3, 3), {}),
        ["pack_fragments", "conv_float16"],
    ),
    "pack, copy, product": (
        *("conv", "wgmma_128x256", np.float16, (1, 40, 9, 8), (40, 40, 3, 3), {"strides": [2, 2]}),
        ["pack_rows", "channels_last", "conv_float16_3d_wgmma"],
    ),
    "pack, strips": (
        *("conv", "wgmma_64x256_rows", np.float16, (1, 64, 9, 64), (40, 64, 3, 3), {"pads": [1, 1, 1, 1]}),
        ["pack_rows", "conv_float16_3d_wgmma"],
    ),
    "pack, copy, product in splits": (
        *("conv_transpose", "wgmma_64x256_split", np.float16, (1, 128, 5, 4), (128, 40, 3, 3), {"strides": [2, 2]}),
        ["pack_rows", "channels_last", "conv_transpose_float16_3d_wgmma"],
    ),
}
chains = pytest.mark.parametrize("name", CHAINS)


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "1")


def convolve(name: str) -> Any:
    """Return the result of a call whose sums are exact."""
    operator, kernel, dtype, x_shape, w_shape, attributes, _ = CHAINS[name]
    x, w = (values("integers", seed, shape, dtype) for seed, shape in enumerate((x_shape, w_shape), 1))
    with preferred(kernel):
        return getattr(gpuconv, operator)(x, w, **attributes)


def overlapping(emulated: Any) -> list[bool]:
    """Return for each launch whether it may overlap the previous one."""
    return [record.launch.chained for record in emulated.launches]


# ---------------------------------------------------------------- what overlaps


@pytest.mark.emulator
@chains
def test_all_but_the_first_launch_of_a_call_overlap(name: str) -> None:
    expected = convolve(name)
    with emulated_cuda("sm_90a", seed=3) as emulated:
        for _ in range(2):  # the second call's first launch may overwrite what the first call's last one reads
            assert_same(convolve(name), expected)
        begins = CHAINS[name][-1]
        assert overlapping(emulated) == 2 * [False, *(True for _ in begins[1:])]
        for record, begin in zip(emulated.launches, 2 * begins, strict=True):
            assert record.variant.name.startswith(begin)
            assert record.variant.chained


@pytest.mark.emulator
def test_sums_of_parts_overlap() -> None:
    dy, x = values("integers", 1, (3, 8, 40, 40), np.float32), values("integers", 2, (3, 4, 42, 42), np.float32)
    expected = gpuconv.conv_bias_grad(dy), gpuconv.conv_weight_grad(x, dy, (8, 4, 3, 3))
    with emulated_cuda("sm_90a") as emulated:
        found = gpuconv.conv_bias_grad(dy), gpuconv.conv_weight_grad(x, dy, (8, 4, 3, 3))
        assert overlapping(emulated) == [False, True, False, True]
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)


@pytest.mark.emulator
@pytest.mark.parametrize("why", ["by default", "switched off", "before 9.0", "no binding", "one launch"])
def test_what_cannot_overlap_follows(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "pack, product on tensor cores"
    expected, switch = convolve(name), {"by default": "", "switched off": "0"}
    monkeypatch.setenv(SWITCH, switch.get(why, "1"))
    if why == "no binding":
        monkeypatch.setattr(device, "_bindings", lambda: None)
    with emulated_cuda("sm_89" if why == "before 9.0" else "sm_90a") as emulated:
        if why == "one launch":
            x = values("integers", 1, (1, 3, 9, 8), np.float32)
            gpuconv.max_pool(x, [2, 2])
        else:
            assert_same(convolve(name), expected)
        assert not any(overlapping(emulated))
        assert not any(record.variant.chained for record in emulated.launches)


@pytest.mark.emulator
def test_packed_weights_leave_the_copy_and_the_product() -> None:
    x, w = values("integers", 1, (1, 40, 9, 8), np.float16), values("integers", 2, (40, 40, 3, 3), np.float16)
    expected = gpuconv.conv(x, w, strides=[2, 2])
    with preferred("wgmma_128x256"), emulated_cuda("sm_90a") as emulated:
        weights = gpuconv.pack(w)
        assert_same(gpuconv.conv(x, weights, strides=[2, 2]), expected)
        assert overlapping(emulated) == [False, False, True]


@pytest.mark.emulator
def test_a_graph_of_calls_overlaps_each_time() -> None:
    x, w = values("integers", 1, (1, 24, 9, 8), np.float16), values("integers", 2, (20, 24, 3, 3), np.float16)
    with preferred("mma_64x64"), emulated_cuda("sm_90a") as emulated:
        cupy = pytest.importorskip("cupy")
        there = cupy.asarray(x), cupy.asarray(w)
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.get_current_stream().synchronize()
        with stream:
            stream.begin_capture()
            y = gpuconv.conv(*there)
            z = gpuconv.conv(*there, pads=[1, 1, 1, 1])
            graph = stream.end_capture()
        for factor in (1, 2):
            there[0][...] = cupy.asarray(factor * x)
            cupy.cuda.Device().synchronize()
            graph.launch(stream)
            stream.synchronize()
            assert_same(y.get(), gpuconv.conv(factor * x, w))
            assert_same(z.get(), gpuconv.conv(factor * x, w, pads=[1, 1, 1, 1]))
        assert [record.launch.chained for record in emulated.launches][:4] == [False, True, False, True]


# ---------------------------------------------------------------- without a device


def test_the_switch_is_0_or_1(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, expected in (("", False), ("0", False), ("1", True)):
        monkeypatch.setenv(SWITCH, text)
        assert _environment.chained_launches() is expected
    for text in ("2", "yes", "-1"):
        monkeypatch.setenv(SWITCH, text)
        with pytest.raises(ArgumentError, match=f"^{SWITCH} must be an integer from 0 to 1, not "):
            _environment.chained_launches()


def test_kernels_can_overlap_from_9_0_on() -> None:
    names = ("sm_80", "sm_89", "compute_90", "sm_90a", "sm_100a", "sm_120a")
    assert [variants.can_chain(name) for name in names] == [False, False, True, True, True, True]


def test_both_forms_of_kernels_are_built_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = variant()
    assert built_ahead("sm_90a", [plain]) == [plain, plain.chained_on("sm_90a")]
    assert built_ahead("sm_89", [plain]) == [plain]
    monkeypatch.setenv(SWITCH, "0")
    assert built_ahead("sm_90a", [plain]) == [plain]
