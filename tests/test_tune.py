"""tune(): every candidate is measured, the quickest taken from then on; with a stand-in for CuPy, and emulated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from cupy_stand_in import StandIn, cupy_stand_in
from emulator import emulated_cuda
from operands import filled

import gpuconv
from gpuconv.cuda import device, tuned

QUICK = "conv_float32_2d_16x128x16"  # as the stand-in measures it; the model takes another one


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Choices stay out of the user's cache, and out of other tests."""
    monkeypatch.setenv("GPUCONV_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def cupy(tmp_path: Path) -> Iterator[StandIn]:
    with cupy_stand_in(tmp_path) as standin:
        standin.times = {QUICK: 0.25}
        yield standin


def arrays(cupy: StandIn, rows: int = 9) -> tuple[Any, Any]:
    return cupy.module.ndarray((8, 16, rows, 9), np.float32), cupy.module.ndarray((20, 16, 3, 3), np.float32)


def kernel(cupy: StandIn, x: Any, w: Any, **attributes: Any) -> str:
    """The kernel that a call takes."""
    gpuconv.conv(x, w, **attributes)
    return cupy.launches[-1].name


def test_the_quickest_kernel_is_taken_from_then_on(cupy: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = arrays(cupy)
    modelled = kernel(cupy, x, w)
    assert modelled != QUICK
    times = gpuconv.tune("conv", x, w)
    assert len(times) > 2
    assert (times[QUICK], times[modelled]) == pytest.approx((1.25e-3, 2e-3))  # with a millisecond for the packing
    assert list(times.values()) == sorted(times.values())
    assert next(iter(times)) == kernel(cupy, x, w) == QUICK
    monkeypatch.setattr(tuned, "_read", {})  # another process
    device.prepared.clear()
    assert kernel(cupy, x, w) == QUICK
    (prepared,) = device.prepared.values()
    assert any(reason.endswith("chosen, as measured on Stand-in 90") for reason in prepared.plan.reasons)


def test_other_calls_are_chosen_by_the_model_still(cupy: StandIn) -> None:
    x, w = arrays(cupy)
    gpuconv.tune("conv", x, w)
    assert kernel(cupy, *arrays(cupy, rows=10)) != QUICK
    assert kernel(cupy, x, w, pads=[1, 1, 1, 1]) != QUICK


def test_a_device_of_another_name_is_modelled_still(tmp_path: Path) -> None:
    with cupy_stand_in(tmp_path, ("90",)) as first:
        first.times = {QUICK: 0.25}
        gpuconv.tune("conv", *arrays(first))
        assert kernel(first, *arrays(first)) == QUICK
    with cupy_stand_in(tmp_path, ("80",)) as second:
        assert kernel(second, *arrays(second)) != QUICK


def test_a_kernel_whose_workspace_does_not_fit_takes_for_ever(cupy: StandIn) -> None:
    x, w = arrays(cupy)
    gpuconv.conv(x, w)
    cupy.memory_left = 110 * 2**20  # what fills the L2 cache, and no more
    real, cupy.module.cuda.alloc = cupy.module.cuda.alloc, lambda nbytes: _only_the_largest(cupy, nbytes)
    times = gpuconv.tune("conv", x, w)
    cupy.module.cuda.alloc = real
    assert set(times.values()) == {float("inf")}


def _only_the_largest(cupy: StandIn, nbytes: int) -> Any:
    if nbytes < 2**26:
        raise MemoryError("no room")
    return cupy.allocate(nbytes)


def test_a_choice_that_cannot_be_kept_is_warned_of(cupy: StandIn, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GPUCONV_CACHE_DIR", str(tmp_path / "file"))
    x, w = arrays(cupy)
    with pytest.warns(RuntimeWarning, match="^tune: the choice is not kept for later processes: "):
        best = next(iter(gpuconv.tune("conv", x, w)))
    assert kernel(cupy, x, w) == best


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x, w: gpuconv.tune("convolve", x, w), gpuconv.ArgumentError, "^tune: operator must be one of conv, "),
        (lambda x, w: gpuconv.tune("conv", x, w, stride=[1, 1]), gpuconv.ArgumentTypeError,
         "^tune: conv has no attribute 'stride'; it has auto_pad, "),
        (lambda x, w: gpuconv.tune("conv", np.ones((1, 1, 3)), np.ones((1, 1, 3))), gpuconv.ArgumentTypeError,
         "^tune: kernels are measured on a CUDA device; pass CuPy arrays"),
        (lambda x, w: gpuconv.tune("max_pool", x), gpuconv.ArgumentTypeError, "^max_pool: kernel_shape"),
        (lambda x, w: gpuconv.tune("conv", x, w, pads=[1]), gpuconv.ArgumentError, "^conv: pads"),
        (lambda x, w: gpuconv.tune("conv", x, w, precision="half"), gpuconv.ArgumentError, "^conv: precision"),
    ],
)  # fmt: skip
def test_errors_name_the_rule(call: Any, error: Any, message: str, cupy: StandIn) -> None:
    with pytest.raises(error, match=message) as caught:
        call(*arrays(cupy))
    assert "\n" not in str(caught.value)


@pytest.mark.emulator
def test_results_stay_right_whatever_is_chosen() -> None:
    (x, w, b), attributes = filled("conv_transpose", (1, 5, 6, 7), (5, 4, 3, 2), {"strides": [2, 1]}, "float32")
    expected = oracle.conv_transpose(x, w, b, **attributes)
    with emulated_cuda() as emulated:
        emulated._limits = replace(emulated._limits, name="emulated")
        times = gpuconv.tune("conv_transpose", x, w, b, **attributes)
        assert len(times) > 1
        oracle.assert_close(gpuconv.conv_transpose(x, w, b, **attributes), expected, "float32")
        assert emulated.launches[-1].variant.name == next(iter(times))
        pooled = gpuconv.tune("max_pool", x, kernel_shape=[2, 2], return_indices=True)
        assert all(name.startswith("max_pool_float32") for name in pooled)
        assert gpuconv.tune("conv", x[:0], np.ones((4, 5, 2, 2), np.float32)) == {}
