"""Plans of calls with a residual and an activation: the kernels of plain calls, which finish the sums."""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import Any
from unittest import mock

import numpy as np
import pytest

import gpuconv
from gpuconv import _trial
from gpuconv.cuda import planning
from gpuconv.cuda.call import device
from gpuconv.cuda.plan import floor, limits
from gpuconv.cuda.plan.launch import Launch, Plan, Space
from gpuconv.rules import geometry as geometries
from tests.emulator import emulated_cuda
from tests.harness.emulated import indices, preferred
from tests.harness.idle_kernels import Sent
from tests.oracle.finish import assert_equal, finished
from tests.oracle.operands import LAYOUTS, values

SHAPES: dict[str, Any] = {"x": (2, 64, 9, 7), "w": (70, 64, 3, 3), "b": (70,), "y": (2, 70, 7, 5)}
NBYTES = 4 * 2 * 70 * 7 * 5  # of y in float32


def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))


def plan(activation: Any = None, residual: tuple[int, ...] | None = None, dtype: str = "float32", **other: Any) -> Plan:
    """Return the plan of a Conv with a bias and a residual with these strides."""
    geometry = geometries.conv(SHAPES["x"], SHAPES["w"])
    steps = {role: strides(shape) for role, shape in SHAPES.items()} | other
    if residual is not None:
        steps["residual"] = residual
    act = gpuconv.rules.activation.parse("conv", activation)
    return planning.plan("conv", geometry, dtype, steps, limits.representative("sm_90a").limits, "ieee", act)


def finish(launch: Launch) -> dict[str, int]:
    struct = np.frombuffer(launch.parameters, launch.variant.layout)[0]["common"]["finish"]
    return {name: int(struct[name]) for name in struct.dtype.names}


def parts(launch: Launch) -> int:
    """Return which part of split-K a launch computes; 0: both the partial sums and the total."""
    return int(np.frombuffer(launch.parameters, launch.variant.layout)[0]["splits"]["part"])


def bits(number: float, kind: str) -> int:
    return int(np.array(number, kind).view(f"u{kind[1:]}"))


@pytest.mark.parametrize(("dtype", "kind"), [("float16", "f4"), ("float32", "f4"), ("float64", "f8")])
def test_numbers_are_passed_as_bits_of_the_type_of_the_sums(dtype: str, kind: str) -> None:
    found = finish(plan(("clip", -0.1, 1e300), dtype=dtype).launches[-1])
    high = np.inf if kind == "f4" else 1e300
    assert found == {
        "residual": 0, "slope": bits(1, kind), "low": bits(-0.1, kind), "high": bits(high, kind), "acts": 1
    }  # fmt: skip
    assert finish(plan("leaky_relu", dtype=dtype).launches[-1])["slope"] == bits(0.01, kind)
    assert finish(plan(("clip", -0.0, None), dtype=dtype).launches[-1])["low"] == bits(-0.0, kind)


@pytest.mark.parametrize("activation", [None, "clip", ("clip", None, None), ("leaky_relu", 1)])
def test_what_changes_nothing_is_no_activation(activation: Any) -> None:
    assert plan(activation).launches == plan().launches


@pytest.mark.parametrize("split", [False, True], ids=["whole tiles", "splits"])
def test_the_kernels_are_those_of_the_plain_call(split: bool) -> None:
    with preferred("_split" if split else "conv_float32_3d_64x64x16_uniform"):
        plain, fused = plan(), plan("relu", strides(SHAPES["y"]))
    assert ("split" in plain.kernel) == split
    for before, after in ((plain.launches, fused.launches), (plain.sharing, fused.sharing)):
        assert [launch.variant for launch in before] == [launch.variant for launch in after]
        for one, other in zip(before, after, strict=True):
            writes = "y" in dict(one.pointers)
            added = set(other.pointers) - set(one.pointers)
            assert {role for role, _ in added} == ({"residual"} if writes else set())
            assert (one.parameters != other.parameters) == writes
    assert len(fused.sharing) == (3 if split else 0)
    assert fused.spaces == plain.spaces


def test_a_residual_that_lies_otherwise_is_copied_first() -> None:
    with preferred("_split"):
        plain, fused = plan(), plan("relu", (2450, 1, 350, 70))
    for before, after in ((plain.launches, fused.launches), (plain.sharing, fused.sharing)):
        (copy,) = (launch for launch in after if launch.variant.source == "passes/copy.cu")
        assert {role for role, _ in copy.pointers} == {"residual", "copied"}
        assert after.index(copy) < min(number for number, one in enumerate(after) if "y" in dict(one.pointers))
        assert len(after) == len(before) + 1
        assert all("residual" not in dict(one.pointers) for one in after if one is not copy)
    assert fused.spaces == (*plain.spaces, Space("copied", "the residual as the result lies", NBYTES))
    assert fused.reasons[-1].startswith("the residual is copied first")


def test_axes_of_one_element_may_have_any_stride() -> None:
    geometry = geometries.conv((1, 2, 1, 9), (3, 2, 1, 1))
    steps = {"x": (18, 9, 9, 1), "w": (2, 1, 1, 1), "y": (27, 9, 9, 1), "residual": (1, 9, 5, 1)}
    found = planning.plan("conv", geometry, "float32", steps, limits.representative("sm_90a").limits, "ieee")
    assert found.bytes_of("copied") == 0


def test_a_copy_begins_where_the_first_element_of_the_result_would() -> None:
    backwards = tuple(-step for step in strides(SHAPES["y"]))
    found = plan("relu", strides(SHAPES["y"]), y=backwards)
    assert found.spaces[-1] == ("copied", "the residual as the result lies", NBYTES, NBYTES - 4)


# ---------------------------------------------------------------- calls


def test_a_call_is_prepared_once_for_each_activation(sent: Sent) -> None:
    x, w, y = (sent.cupy.empty(SHAPES[name], np.float32) for name in "xwy")
    given: list[dict[str, Any]] = [
        {},
        {"activation": "relu"},
        {"activation": ("clip", 0.0, None)},
        {"activation": ("clip", -0.0, None)},  # equal numbers, but different bits
        {"residual": y},
        {"residual": y, "activation": "relu"},
    ]
    for number, keywords in enumerate(given, 1):
        for _ in range(2):
            gpuconv.conv(x, w, **keywords)
            assert len(device.prepared) == number
    gpuconv.conv(x, w, sent.cupy.empty((70,), np.float32))
    assert len(device.prepared) == len(given) + 1
    gpuconv.conv(x, w, pads=[np.int64(0)] * 4, activation="relu")  # attributes of unusual types have a key of their own
    assert len(device.prepared) == len(given) + 2


def test_parts_of_a_workspace_lie_one_after_the_other(sent: Sent) -> None:
    x, w = (sent.cupy.empty(SHAPES[name], np.float32) for name in "xw")
    with preferred("_split"):
        gpuconv.conv(x, w)
    (prepared,) = device.prepared.values()
    (packed, nbytes), (sums, _) = ((space.role, space.bytes) for space in prepared.plan.spaces)
    found = {}
    for planned, launch in zip(prepared.plan.launches, sent.launches, strict=True):
        found |= {role: int.from_bytes(launch.parameters[at : at + 8], "little") for role, at in planned.pointers}
    assert found[packed] % 512 == 0
    assert found[sums] == found[packed] + -(-nbytes // 512) * 512
    assert nbytes >= w.nbytes


def test_explain_has_the_plan_of_the_call(sent: Sent, capsys: pytest.CaptureFixture[str]) -> None:
    x, w, b, y = (sent.cupy.empty(SHAPES[name], np.float32) for name in "xwby")
    with mock.patch.object(device, "limits", return_value=limits.representative("sm_90a").limits):
        gpuconv.conv(x, w, b, activation=("clip", 0, 6), residual=y)
    (prepared,) = device.prepared.values()
    shapes = SHAPES["x"], SHAPES["w"]
    assert gpuconv.explain("conv", *shapes, bias=True, activation=("clip", 0, 6), residual=True) == prepared.plan
    printed = capsys.readouterr().out
    assert printed.startswith("conv float32 clip(0.0, 6.0) on sm_90a: ")
    assert f"b (70,), residual {SHAPES['y']} -> y {SHAPES['y']}\n" in printed
    gpuconv.explain("conv", *shapes, activation="relu", dtype="bfloat16")
    assert capsys.readouterr().out.startswith("conv bfloat16 relu on")


def test_a_residual_is_read_once() -> None:
    geometry = geometries.conv(SHAPES["x"], SHAPES["w"])
    plain, fused = (floor.work(geometry, "float32", residual=residual) for residual in (False, True))
    assert fused == floor.Work(plain.flops, plain.bytes + NBYTES)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gpuconv.explain("max_pool", (1, 1, 9), kernel_shape=[2], residual=True), "max_pool takes no residual"),
        (
            lambda: gpuconv.explain("conv_input_grad", (1, 1, 9), (1, 1, 2), activation="relu"),
            "conv_input_grad takes no activation",
        ),
        (
            lambda: gpuconv.explain("conv", (1, 1, 9), (1, 1, 2), dtype="complex64", activation="relu"),
            "conv: x has dtype complex64, but an activation compares real numbers",
        ),
        (lambda: gpuconv.tune("max_pool", np.ones((1, 1, 9)), activation="relu"), "has no attribute 'activation'"),
    ],
)
def test_errors_name_the_rule(call: Any, message: str) -> None:
    with pytest.raises(gpuconv.ArgumentTypeError, match=re.escape(message)):
        call()


def test_fused_calls_are_tuned(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_trial, "_difference", lambda *_: "")  # kernels that do nothing leave arbitrary results
    x, w, y = (sent.cupy.empty(SHAPES[name], np.float32) for name in "xwy")
    sent.times = {"conv_float32_3d_16x128x16": 0.25}
    found = gpuconv.tune("conv", x, w, activation="relu", residual=y)
    assert next(iter(found)) == "conv_float32_3d_16x128x16"
    for keywords in ({}, {"activation": "relu"}, {"residual": y}):
        gpuconv.conv(x, w, **keywords)
        assert sent.launches[-1].name == "conv_float32_3d_16x128x16"


# ---------------------------------------------------------------- in the emulator


@pytest.mark.emulator
@pytest.mark.kernels("conv/gemm/tap_rows.cu", "conv/gemm/split.cu")
@pytest.mark.parametrize("split", [False, True], ids=["whole tiles", "splits"])
@pytest.mark.parametrize("lies", ["contiguous", "channels last"])
def test_calls_that_share_weights_are_finished_too(split: bool, lies: str) -> None:
    x, w, b = (values("normal", seed, SHAPES[name], "float32") for seed, name in enumerate("xwb"))
    residual = LAYOUTS[lies](values("normal", 3, SHAPES["y"], "float32"))
    with preferred("_split" if split else "conv_float32_3d_64x64x16_uniform"), emulated_cuda() as emulated:
        expected = finished(gpuconv.conv(x, w, b), residual, "relu")
        packed = gpuconv.pack(w)
        for _ in range(2):
            assert_equal(gpuconv.conv(x, packed, b, residual=residual, activation="relu"), expected)
        assert (parts(emulated.launches[-1]) != 0) == split


@pytest.mark.emulator
@pytest.mark.kernels("passes/copy.cu")
@pytest.mark.parametrize(
    ("dtype", "wide", "lies"),
    [
        ("float16", False, ("reversed", "contiguous")),
        ("float32", False, ("fortran", "reversed")),
        ("float32", True, ("broadcast", "strided")),
        ("float64", True, ("reversed", "channels last")),
        ("complex64", False, ("fortran", "strided")),
        ("complex128", True, ("reversed", "channels last")),
    ],
)
def test_residuals_are_found_wherever_they_lie(dtype: str, wide: bool, lies: tuple[str, str]) -> None:
    shapes = (1, 2, 3, 2, 2, 3, 2), (3, 2, 1, 1, 1, 1, 1), (1, 3, 3, 2, 2, 3, 2)  # more axes than kernels built ahead
    x, w, residual = (values("integers", seed, shape, dtype) for seed, shape in enumerate(shapes))
    residual = LAYOUTS[lies[0]](residual)
    with indices(wide), emulated_cuda():
        y = gpuconv.conv(x, w, residual=residual, out=LAYOUTS[lies[1]](np.zeros(shapes[2], dtype)))
    assert (y == np.einsum("nc...,mc->nm...", x, w.reshape(3, 2)) + residual).all()


@pytest.mark.emulator
@pytest.mark.kernels("complex.cu")
@pytest.mark.parametrize("operator", ["conv", "conv_transpose"])
@pytest.mark.parametrize("bias", [False, True])
def test_complex_residuals_come_after_the_bias(operator: str, bias: bool) -> None:
    """Bit for bit, on both backends."""
    x, w, b, residual = (
        (values("normal", seed, shape, "float32") + 1j * values("normal", seed + 9, shape, "float32")).astype("c8")
        for seed, shape in enumerate(((2, 3, 5), (3, 3, 1), (3,), (2, 3, 5)))
    )
    call = {"b": b} if bias else {}
    for backend in (nullcontext, emulated_cuda):
        with backend():
            plain = getattr(gpuconv, operator)(x, w, **call)
            fused = getattr(gpuconv, operator)(x, w, **call, residual=residual)
        assert fused.tobytes() == (plain + residual).tobytes()


@pytest.mark.emulator
@pytest.mark.kernels("conv/direct/few.cu")
@pytest.mark.parametrize("operator", ["conv", "conv_transpose"])
def test_channels_may_be_last(operator: str) -> None:
    x, w, b = (values("integers", seed, shape, "float32") for seed, shape in enumerate(((2, 4, 5, 6), (4, 4, 2, 3), 4)))
    plain = getattr(gpuconv, operator)(x, w, b)
    residual = values("normal", 3, plain.shape, "float32")
    expected = np.moveaxis(finished(plain, residual, "leaky_relu"), 1, -1)
    given = {"layout": "NHWC", "residual": np.ascontiguousarray(np.moveaxis(residual, 1, -1))}
    last = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    assert_equal(getattr(gpuconv, operator)(last, w, b, activation="leaky_relu", **given), expected)
    with emulated_cuda() as emulated:
        assert_equal(getattr(gpuconv, operator)(last, w, b, activation="leaky_relu", **given), expected)
    assert all(launch.variant.source != "passes/copy.cu" for launch in emulated.launches)
