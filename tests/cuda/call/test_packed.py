"""`gpuconv.pack`: the results of plain weights, with one packing launch for all calls that can share it."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest

import gpuconv
from emulated_cuda.control import Launch
from gpuconv._packed import PackedWeights
from gpuconv.cuda.call import device
from gpuconv.cuda.conv import families as conv_families
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan.launch import Plan, Space
from gpuconv.cuda.plan.limits import Limits
from gpuconv.rules import cases
from gpuconv.rules.cases import Case
from tests.emulator import EmulatorError, emulated_cuda
from tests.harness.emulated import architecture, indices, preferred
from tests.harness.idle_kernels import Sent
from tests.oracle.case_rows import one_dtype_a_case
from tests.oracle.operands import values
from tests.oracle.oracle import assert_same

pytestmark = pytest.mark.usefixtures("general_kernels")
every_case = one_dtype_a_case("conv", "conv_transpose")
operators = pytest.mark.parametrize("operator", ["conv", "conv_transpose"])


def packs(launches: list[Any]) -> list[bool]:
    """Return for each launch whether it packs weights."""
    names = [launch.name if isinstance(launch, Launch) else launch.variant.name for launch in launches]
    return [name.startswith("pack_weights") for name in names]


def arrays(sent: Sent, rows: int = 2) -> tuple[Any, Any]:
    return sent.cupy.empty((rows, 4, 6, 7), np.float32), sent.cupy.zeros((5, 4, 3, 2), np.float32)


def of_calls(sent: Sent) -> list[Launch]:
    """Return the launches of gpuconv's kernels, without those that take snapshots."""
    return [launch for launch in sent.launches if not launch.name.startswith("cupy_copy")]


@contextmanager
def capture(sent: Sent) -> Iterator[None]:
    """Make the current stream capture a graph."""
    stream = sent.cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        yield
        stream.end_capture()


# ---------------------------------------------------------------- results


@every_case
def test_a_case_on_the_cpu(case: Case, dtype: str) -> None:
    inputs = cases.inputs(case, dtype)
    inputs["w"] = gpuconv.pack(inputs["w"], operator=case.op)
    found = getattr(gpuconv, case.op)(**inputs, **case.attributes)
    assert_same(found, cases.expected(case, dtype)[0], bits=False)


@pytest.mark.emulator
@every_case
def test_a_case_through_the_kernels_twice(case: Case, dtype: str) -> None:
    inputs, (expected,) = cases.inputs(case, dtype), cases.expected(case, dtype)
    with emulated_cuda(limits_of=architecture(dtype, len(case.x_shape) - 2)) as emulated:
        inputs["w"] = gpuconv.pack(inputs["w"], operator=case.op)
        for _ in range(2):
            assert_same(getattr(gpuconv, case.op)(**inputs, **case.attributes), expected, bits=False)
        assert len(packs(emulated.launches)) <= 3
        assert sum(packs(emulated.launches)) <= 1


@pytest.mark.emulator
def test_calls_of_many_kinds_share_one_packing_launch() -> None:
    x, w = values("integers", 1, (3, 16, 9, 8), np.float32), values("integers", 2, (20, 16, 3, 2), np.float32)
    b = values("integers", 3, (20,), np.float32)
    x_last = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    calls: list[tuple[Any, dict[str, Any]]] = [
        (x, {}),
        (x[:1], {"b": b}),
        (x, {"strides": [2, 1], "pads": [1, 1, 2, 0]}),
        (x[:, :, ::-1], {"dilations": [2, 3]}),
        (x_last, {"layout": "NHWC", "out": np.zeros((3, 7, 7, 20), np.float32)}),
        (x, {}),
    ]
    wanted = [gpuconv.conv(x, w=w, **attributes).copy() for x, attributes in calls]
    with emulated_cuda() as emulated:
        weights = gpuconv.pack(w)
        found = [gpuconv.conv(x, weights, **attributes) for x, attributes in calls]
        assert packs(emulated.launches) == [True] + [False] * len(calls)
    for one, other in zip(found, wanted, strict=True):
        assert_same(one, other)


@pytest.mark.emulator
def test_every_order_that_comes_up_is_packed_once() -> None:
    x, w = values("integers", 1, (2, 4, 9, 8), np.float32), values("integers", 2, (8, 2, 3, 2), np.float32)
    expected = [gpuconv.conv(x, w, group=2), gpuconv.conv(x[:, :2], w)]
    with preferred("conv_float32"), emulated_cuda() as emulated:
        weights = gpuconv.pack(w)
        for wide in (False, True, False, True):
            with indices(wide):
                emulated.prepared.clear()
                assert_same(gpuconv.conv(x, weights, group=2), expected[0])
                assert_same(gpuconv.conv(x[:, :2], weights), expected[1])
    assert sum(packs(emulated.launches)) == 4, "two groupings, each with two widths of indices"


@operators
@pytest.mark.parametrize("on_device", [False, pytest.param(True, marks=pytest.mark.emulator)])
def test_later_changes_of_w_have_no_effect(operator: str, on_device: bool) -> None:
    x, w = values("integers", 1, (1, 4, 9), np.float32), values("integers", 2, (4, 4, 3), np.float32)
    expected = getattr(gpuconv, operator)(x, w)
    with emulated_cuda() if on_device else mock.MagicMock():
        given = gpuconv.to_device(w) if on_device else w
        weights = gpuconv.pack(given[::-1][::-1], operator=operator)
        for later in (77, 78):
            given[...] = later
            assert_same(getattr(gpuconv, operator)(x, weights), expected)


# ---------------------------------------------------------------- the object


def test_packed_weights_look_like_their_array() -> None:
    w = np.ones((4, 2, 3), np.float16)
    weights = gpuconv.pack(w, operator="conv_transpose")
    assert (weights.operator, weights.shape, weights.ndim, weights.dtype) == ("conv_transpose", (4, 2, 3), 3, w.dtype)
    assert weights.nbytes == 48
    assert repr(weights) == "<PackedWeights for conv_transpose: numpy float16 (4, 2, 3)>"
    with pytest.raises(AttributeError):
        weights.shape = (1,)  # type: ignore[misc]
    with pytest.raises(gpuconv.ArgumentTypeError, match="cannot be pickled or copied"):
        copy.deepcopy(weights)
    assert gpuconv.to_host(weights) is weights


def test_packed_weights_move_between_the_sides(sent: Sent) -> None:
    x, w = arrays(sent)
    host = np.arange(120, dtype=np.float32).reshape(5, 4, 3, 2)
    w.set(host)
    there = gpuconv.pack(w)
    assert repr(there) == "<PackedWeights for conv: cupy float32 (5, 4, 3, 2)>"
    assert gpuconv.to_device(there) is there
    gpuconv.conv(x, there)
    here = gpuconv.to_host(there)
    assert isinstance(here, PackedWeights)
    assert (here.operator, here.nbytes) == ("conv", 480), "the device's packing stays there"
    ones = np.ones((2, 4, 6, 7), np.float32)
    assert_same(gpuconv.conv(ones, here), gpuconv.conv(ones, host))
    gpuconv.conv(x, there)
    back = gpuconv.to_device(here)
    assert isinstance(back, PackedWeights)
    assert sent.have_run == len(sent.launches), "every stream may read it"
    with capture(sent):
        assert gpuconv.to_device(back) is back
        with pytest.raises(gpuconv.DeviceError, match=r"^to_device: the current stream captures a graph"):
            gpuconv.to_device(here)


def test_nbytes_counts_what_is_packed_and_goes_with_the_object(sent: Sent) -> None:
    x, w = arrays(sent)
    weights = gpuconv.pack(w)
    assert weights.nbytes == 480
    gpuconv.conv(x, weights)
    (prepared,) = device.prepared.values()
    assert weights.nbytes == 480 + prepared.plan.bytes_of("packed") == 480 + 12 * 64 * 4  # rows of K, rows of a tile
    kept = [weakref.ref(array) for array in (weights._array, *weights._buffers.values())]
    assert len(kept) == 2
    del weights
    gc.collect()
    assert [reference() for reference in kept] == [None, None]


# ---------------------------------------------------------------- launches, streams


def addresses(launch: Launch) -> dict[str, int]:
    """Return the addresses in a launch's struct, by their roles."""
    plans = [prepared.plan for prepared in device.prepared.values()]
    planned = next(one for plan in plans for one in plan.launches if one.variant.name == launch.name)
    return {role: int.from_bytes(launch.parameters[at : at + 8], "little") for role, at in planned.pointers}


def test_only_the_first_call_packs_and_waits(sent: Sent) -> None:
    x, w = arrays(sent)
    first, second = (sent.cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    weights = gpuconv.pack(w)
    assert sent.have_run == 1, "the copy is there for every stream"
    with first:
        gpuconv.conv(x, weights)
    assert sent.have_run == 2, "the packed weights are there, the result is not"
    before = len(sent.allocations)
    with second:
        gpuconv.conv(x, weights)
    gpuconv.conv(x, weights)
    assert (sent.have_run, len(sent.allocations)) == (2, before + 2), "nothing but the results"
    launches = of_calls(sent)
    assert [(launch.stream, pack) for launch, pack in zip(launches, packs(launches), strict=True)] == [
        (first.ptr, True),
        (first.ptr, False),
        (second.ptr, False),
        (0, False),
    ]
    packed, *others = (addresses(launch) for launch in launches)
    assert packed["w"] == weights._array.data.ptr != w.data.ptr
    assert {other["packed"] for other in others} == {packed["packed"]}


def test_plain_weights_are_packed_by_every_call_as_ever(sent: Sent) -> None:
    x, w = arrays(sent)
    weights = gpuconv.pack(w)
    for one in (w, weights, w, weights):
        gpuconv.conv(x, one)
    assert packs(of_calls(sent)) == [True, False, True, False, True, False, False]
    assert len(device.prepared) == 1


def test_threads_pack_once(sent: Sent) -> None:
    x, w = arrays(sent)
    weights, count = gpuconv.pack(w), 8
    barrier = threading.Barrier(count)

    def work(_: int) -> None:
        barrier.wait()
        for _ in range(20):
            gpuconv.conv(x, weights)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(work, range(count)))
    assert sum(packs(of_calls(sent))) == 1
    assert len(of_calls(sent)) == 1 + 20 * count
    assert len({addresses(launch)["packed"] for launch in of_calls(sent)}) == 1


def test_devices_do_not_share_packed_weights(sent: Sent) -> None:
    x, w = arrays(sent)
    weights = gpuconv.pack(w)
    with sent.cupy.cuda.Device(1):
        with pytest.raises(
            gpuconv.DeviceError, match="conv: the current device is 1, but there is x on device 1, w on device 0"
        ):
            gpuconv.conv(arrays(sent)[0], weights)
        with pytest.raises(gpuconv.DeviceError, match="pack: the current device is 1, but there is w on device 0"):
            gpuconv.pack(w)
        moved = gpuconv.to_device(weights)
        gpuconv.conv(arrays(sent)[0], moved)
    gpuconv.conv(x, weights)
    assert [launch.device for launch in of_calls(sent)] == [1, 1, 0, 0]


# ---------------------------------------------------------------- graphs


def test_a_graph_uses_what_was_packed_before_and_keeps_it(sent: Sent) -> None:
    x, w = arrays(sent)
    weights = gpuconv.pack(w)
    gpuconv.conv(x, weights)
    with capture(sent):
        result = gpuconv.conv(x, weights)
    assert packs(of_calls(sent)) == [True, False, False]
    kept = weakref.ref(weights)
    del weights
    gc.collect()
    assert kept() is not None
    del result
    gc.collect()
    assert kept() is None


def test_a_graph_that_comes_first_packs_for_itself(sent: Sent) -> None:
    x, w = arrays(sent)
    weights = gpuconv.pack(w)
    with capture(sent):
        results = [gpuconv.conv(x, weights) for _ in range(2)]
    assert packs(of_calls(sent)) == [True, False, True, False]
    assert (sent.have_run, weights.nbytes) == (1, 480)
    gpuconv.conv(x, weights)
    assert packs(of_calls(sent)[4:]) == [True, False], "until a graph is launched there is nothing for others"
    assert addresses(of_calls(sent)[4])["packed"] not in {addresses(launch)["packed"] for launch in of_calls(sent)[:4]}
    kept = weakref.ref(weights)
    del weights
    gc.collect()
    assert kept() is not None, "the graph reads the snapshot"
    del results
    gc.collect()
    assert kept() is None


def test_a_stream_that_captures_cannot_pack(sent: Sent) -> None:
    _, w = arrays(sent)
    before = len(sent.allocations)
    with capture(sent), pytest.raises(gpuconv.DeviceError) as caught:
        gpuconv.pack(w)
    assert str(caught.value) == (
        "pack: the current stream captures a graph, which would copy the weights only later; call it before the capture"
    )
    assert len(sent.allocations) == before


# ---------------------------------------------------------------- what goes wrong


def test_memory_that_does_not_suffice(sent: Sent) -> None:
    x, w = arrays(sent)
    with (
        sent.room(511),
        pytest.raises(gpuconv.OutOfDeviceMemory, match=r"^pack: a copy of w of shape \(5, 4, 3, 2\) needs 480 bytes"),
    ):
        gpuconv.pack(w)
    with sent.room(512 + 3071):
        weights = gpuconv.pack(w)
        with pytest.raises(gpuconv.OutOfDeviceMemory, match=r"^conv: the packed weights needs 3072 bytes"):
            gpuconv.conv(x, weights)
    gpuconv.conv(x, weights)
    assert packs(of_calls(sent)) == [True, False]


def test_a_packing_launch_that_is_refused_is_made_again(sent: Sent) -> None:
    x, w = arrays(sent)
    weights = gpuconv.pack(w)
    refused = mock.Mock(side_effect=sent.cupy.cuda.driver.CUDADriverError(1))
    with (
        mock.patch.object(device, "bind", return_value=refused),
        pytest.raises(gpuconv.DeviceError, match="conv: the driver of device 0 refused to launch pack_weights_float32"),
    ):
        gpuconv.conv(x, weights)
    assert weights.nbytes == 480
    gpuconv.conv(x, weights)
    assert packs(of_calls(sent)) == [True, False]


# ---------------------------------------------------------------- plans with more in their workspace


def _with_partial_sums(problem: Problem, limits: Limits) -> Plan:
    """Return the general kernel's plan with another part of the workspace instead of the bias."""
    pack, gemm = (plan := _general(problem, limits)).launches
    roles = {member: "workspace" if role == "b" else role for member, role in gemm.roles.items()}
    spaces = (*plan.spaces, Space("workspace", "partial sums", 999))
    return replace(plan, launches=(pack, replace(gemm, roles=roles)), spaces=spaces)


_general = conv_families.plan


def test_packed_weights_and_other_things_share_a_workspace(sent: Sent) -> None:
    x, w = arrays(sent)
    b = sent.cupy.empty((5,), np.float32)
    weights = gpuconv.pack(w)
    with mock.patch.object(conv_families, "plan", _with_partial_sums):
        before = len(sent.allocations)
        gpuconv.conv(x, w, b)
        assert sent.allocations[before:] == [960, 3072 + 999], "the result; the packed weights, and the sums"
        packed, sums = (addresses(of_calls(sent)[-1])[role] for role in ("packed", "workspace"))
        assert sums == packed + 3072
        gpuconv.conv(x, weights, b)
        gpuconv.conv(x, weights, b)
        assert packs(of_calls(sent)) == [True, False, True, False, False]
        before = len(sent.allocations)
        gpuconv.conv(x, weights, b)
        assert sent.allocations[before:] == [960, 999], "the sums alone"
        with (
            sent.room(1500),
            pytest.raises(gpuconv.OutOfDeviceMemory, match=r"the workspace \(the packed weights and partial sums\)"),
        ):
            gpuconv.conv(x, w, b)


@pytest.mark.emulator
@pytest.mark.parametrize("packed", [False, True])
def test_the_emulator_knows_the_parts_of_a_workspace(packed: bool) -> None:
    x, w = values("integers", 1, (2, 4, 6, 7), np.float32), values("integers", 2, (5, 4, 3, 2), np.float32)
    with mock.patch.object(conv_families, "plan", _with_partial_sums), emulated_cuda() as emulated:
        with pytest.raises(EmulatorError, match="uninitialised global read of b"):
            gpuconv.conv(x, gpuconv.pack(w) if packed else w, np.ones(5, np.float32))
        assert packs(emulated.launches) == [True, False], "it was the second launch"
