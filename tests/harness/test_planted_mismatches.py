"""Kernels and the host's side that do not fit together: it does not compile, or the emulator or a result shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv import CompileError
from gpuconv.cuda.build import structs
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import ffma
from gpuconv.cuda.conv.problem import Problem
from tests.emulator import EmulatorError, emulated_cuda
from tests.harness.emulated import preferred
from tests.oracle import oracle
from tests.oracle.operands import filled

pytestmark = [pytest.mark.emulator, pytest.mark.usefixtures("cache_of_broken_kernels")]

OUT_OF_BOUNDS = "global memory out of bounds: {} of . bytes"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda names: [{"x_batch": "x_channel", "x_channel": "x_batch"}.get(name, name) for name in names],
         "common.x_(batch|channel) is not at byte"),
        (lambda names: [name.replace("pixels", "pixel") for name in names], 'has no member "pixel"'),
    ],
)  # fmt: skip
def test_a_struct_that_was_read_wrongly_does_not_compile(
    change: Callable[[Any], Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant = ffma.variant("conv", "float32", False, 4, gemm_base.TILES["float32"][1], True)
    right = variant.layout
    common = np.dtype({**_described(right["common"]), "names": change(right["common"].names)})
    wrong = np.dtype({**_described(right), "formats": [common, right["taps"]]})
    monkeypatch.setattr(structs, "layout", lambda name, source: wrong)
    with pytest.raises(CompileError, match=message), emulated_cuda() as emulated:
        emulated.load(variant, 0, 0)


def _described(struct: np.dtype[Any]) -> dict[str, Any]:
    assert struct.fields is not None
    formats, offsets = zip(*(struct.fields[name][:2] for name in struct.names or ()), strict=True)
    return {"names": list(struct.names or ()), "formats": formats, "offsets": offsets, "itemsize": struct.itemsize}


@pytest.mark.parametrize(
    ("name", "other", "message"),
    [
        ("x_batch", lambda fields: fields["x_channel"], None),
        ("x_channel", lambda fields: fields["x_batch"], OUT_OF_BOUNDS.format("read") + ".*(of x|at address)"),
        ("x_extent", lambda fields: [n + 1 for n in fields["x_extent"]], None),
        ("filters", lambda fields: fields["filters"] + 1, OUT_OF_BOUNDS.format("(read|write)")),
        ("pixels", lambda fields: fields["pixels"] - 1, "140 of .* elements of y, of shape .*, were never written"),
        ("all_rows", lambda fields: fields["all_rows"] + 1, None),
        ("pitch", lambda fields: fields["pitch"] - 1, "misaligned cp.async"),
    ],
)
def test_a_wrong_number_in_the_struct_is_noticed(
    name: str, other: Callable[[Any], Any], message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a report, or else (`message` None) by one or by a wrong result."""
    right = gemm_base.common
    monkeypatch.setattr(gemm_base, "common", lambda *given: {**right(*given), name: other(right(*given))})
    attributes = {"group": 2, "pads": [1, 1, 1, 1]}
    (x, w, _), _ = filled("conv", (2, 6, 11, 13), (140, 3, 3, 2), attributes, "float32")
    exact = oracle.conv(x, w, **attributes)
    with pytest.raises(AssertionError, match=message):
        oracle.assert_close(emulated_conv(x, w, **attributes), exact, "float32")


def emulated_conv(x: Any, w: Any, **attributes: Any) -> Any:
    with emulated_cuda():
        return gpuconv.conv(x, w, **attributes)


def test_buffers_that_the_launch_does_not_provide_are_out_of_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_base, "_STAGES", 2)
    (x, w, _), _ = filled("conv", (1, 80, 11, 13), (70, 80, 3, 2), {}, "float32")
    with pytest.raises(EmulatorError, match=r"shared memory out of bounds: .* bytes at offset"), preferred("64x64x16"):
        emulated_conv(x, w)


def test_a_plan_with_too_few_blocks_leaves_elements_out(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Problem.blocks
    monkeypatch.setattr(Problem, "blocks", lambda problem, *tile: right(problem, *tile) - 1)
    (x, w, _), _ = filled("conv", (1, 20, 11, 13), (70, 20, 3, 2), {}, "float32")
    with pytest.raises(EmulatorError, match=r"elements of y, of shape .*, were never written"):
        emulated_conv(x, w)
    x = np.ones((1, 1, 4), np.float32)
    with emulated_cuda():  # nothing of the broken plan stays behind
        assert (gpuconv.max_pool(x, kernel_shape=[2]) == 1).all()
