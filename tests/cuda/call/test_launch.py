"""Launches of kernels that do nothing: the parameters and streams that the driver gets, and what is skipped."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

import gpuconv
from emulated_cuda.control import Launch
from gpuconv import cuda
from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.call import device
from gpuconv.cuda.conv import families as conv_families
from gpuconv.rules import geometry as geometries
from tests.emulator import emulated_cuda
from tests.harness.idle_kernels import Sent

pytestmark = pytest.mark.usefixtures("general_kernels")


def operands(sent: Sent, rows: int = 2) -> tuple[Any, Any, Any]:
    shapes = (rows, 4, 6, 7), (5, 4, 3, 2), (5,)
    return tuple(sent.cupy.empty(shape, "f") for shape in shapes)  # type: ignore[return-value]


def pointers(launch: Launch) -> dict[str, int]:
    """Return the addresses in a launch's struct, by their roles."""
    plans = [prepared.plan for prepared in device.prepared.values()]
    found = next(item for plan in plans for item in plan.launches if item.variant.name == launch.name)
    return {role: int.from_bytes(launch.parameters[at : at + 8], "little") for role, at in found.pointers}


def without_pointers(parameters: bytes, layout: np.dtype[Any]) -> bytes:
    """Return a struct with zeros for its pointers and maps, the only fields of their types, at any depth."""
    struct = np.frombuffer(bytearray(parameters), layout)  # a copy would leave the padding between members undefined
    pending = [struct]
    while pending:
        fields = pending.pop()
        for name in fields.dtype.names or ():
            if fields.dtype[name].base == np.uint64:
                fields[name] = 0
            pending.append(fields[name])
    return struct.tobytes()


# ---------------------------------------------------------------- what is sent


def test_addresses_stand_where_the_plan_says(sent: Sent) -> None:
    x, w, b = operands(sent)
    y = gpuconv.conv(x, w, b, pads=[1, 1, 1, 1])
    pack, gemm = sent.launches
    packed = pointers(pack)["packed"]
    assert pointers(pack) == {"w": w.data.ptr, "packed": packed}
    assert pointers(gemm) == {"x": x.data.ptr, "b": b.data.ptr, "packed": packed, "y": y.data.ptr}
    assert packed % 256 == 0
    assert (y.shape, y.dtype) == ((2, 5, 6, 8), np.float32)


def test_the_launch_is_the_plans(sent: Sent) -> None:
    x, w, _ = operands(sent)
    gpuconv.conv(x, w)
    geometry = geometries.conv(x.shape, w.shape)
    strides = (168, 42, 7, 1), (24, 6, 2, 1), None, (120, 24, 6, 1)
    plan = conv_families.for_conv(geometry, "float32", *strides, device.limits(0))
    assert len(plan.launches) == len(sent.launches)
    for planned, one in zip(plan.launches, sent.launches, strict=True):
        assert (one.name, one.grid, one.shared_bytes) == (planned.variant.name, planned.grid, planned.shared_bytes)
        assert one.block == (planned.variant.threads, 1, 1)
        assert without_pointers(one.parameters, planned.variant.layout) == planned.parameters


def test_out_is_written_and_returned(sent: Sent) -> None:
    x, w, b = operands(sent)
    out = sent.cupy.empty((2, 5, 8, 6), "f").transpose((0, 1, 3, 2))
    before = len(sent.allocations)
    assert gpuconv.conv(x, w, b, pads=[1, 1, 1, 1], out=out) is out
    assert pointers(sent.launches[-1])["y"] == out.data.ptr
    assert len(sent.allocations) == before + 1, "the workspace"


def test_an_empty_result_launches_and_loads_nothing(sent: Sent) -> None:
    _, w, b = operands(sent)
    y = gpuconv.conv(sent.cupy.empty((0, 4, 6, 7), "f"), w, b)
    assert y.shape == (0, 5, 4, 6)
    assert (sent.launches, sent.loads) == ([], [])


def test_more_than_48_kib_of_shared_memory_are_asked_for(sent: Sent) -> None:
    x, w, _ = operands(sent)
    gpuconv.conv(x, w)
    (prepared,) = device.prepared.values()
    variant = prepared.plan.launches[1].variant
    driver = sent.cupy.cuda.driver
    with mock.patch.object(driver, "funcSetAttribute", wraps=driver.funcSetAttribute) as asked:
        for nbytes in (48 * 1024, 48 * 1024 + 16, 90_000, 60_000):
            kernel = device.load(variant, 0, nbytes)
    maximum = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert [call.args for call in asked.call_args_list] == [
        (kernel.function.ptr, maximum, nbytes) for nbytes in (48 * 1024 + 16, 90_000)
    ]


def test_modules_are_loaded_from_memory(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, _ = operands(sent)
    compiled, cubin, loaded = [], compiler.cubin, []

    def noted(variant: Variant, architecture: str) -> bytes:
        compiled.append(cubin(variant, architecture))
        return compiled[-1]

    module = sent.cupy.cuda.Module
    load = module.load
    monkeypatch.setattr(compiler, "cubin", noted)
    monkeypatch.setattr(module, "load", lambda self, content: loaded.append(content) or load(self, content))
    gpuconv.conv(x, w)
    assert len(loaded) == 2
    assert all(one is other for one, other in zip(loaded, compiled, strict=True))


# ---------------------------------------------------------------- what is not done again


def test_a_second_call_looks_nothing_up_but_the_prepared_call(sent: Sent) -> None:
    x, w, b = operands(sent)
    gpuconv.conv(x, w, b, strides=[2, 1])
    other_x, other_w, other_b = operands(sent)
    with mock.patch.object(cuda, "prepare", side_effect=AssertionError("prepared again")):
        y = gpuconv.conv(other_x, other_w, other_b, strides=(2, 1))
    assert pointers(sent.launches[-1]) | {"packed": 0} == {
        "x": other_x.data.ptr,
        "b": other_b.data.ptr,
        "packed": 0,
        "y": y.data.ptr,
    }


def test_slots_are_used_again(sent: Sent) -> None:
    x, w, _ = operands(sent)
    with mock.patch.object(device, "parameters", wraps=device.parameters) as made:
        for _ in range(5):
            gpuconv.conv(x, w)
    assert made.call_count == 2, "one for each of the two launches"


@pytest.mark.parametrize(
    ("changed", "attributes"),
    [
        ("an attribute", {"strides": [2, 1]}),
        ("a large attribute", {"pads": [0, 0, 0, 300]}),
        ("auto_pad", {"auto_pad": "SAME_UPPER"}),
    ],
)
def test_other_attributes_are_another_call(sent: Sent, changed: str, attributes: dict[str, Any]) -> None:
    x, w, b = operands(sent)
    gpuconv.conv(x, w, b)
    gpuconv.conv(x, w, b, **attributes)
    gpuconv.conv(x, w, b, **attributes)
    assert len(device.prepared) == 2, changed


def test_other_strides_dtypes_and_operands_are_other_calls(sent: Sent) -> None:
    x, w, b = operands(sent)
    turned = sent.cupy.empty((2, 4, 7, 6), "f").transpose((0, 1, 3, 2))
    for arrays in ((x, w, b), (turned, w, b), (x, w), (x.view(np.int32).view(np.float32), w, b)):
        gpuconv.conv(*arrays)
    gpuconv.conv(*(array.view(np.float16)[..., ::2] for array in (x, w, b)))
    assert len(device.prepared) == 4


@pytest.mark.parametrize(
    "attributes",
    [
        {"strides": np.array([2, 1])},
        {"strides": (step for step in (2, 1))},
        {"strides": [np.int64(2), 1]},
        {"group": np.int8(1), "strides": (2, True)},
        {"group": np.array(1), "strides": [2, 1]},
        {"auto_pad": b"NOTSET", "strides": [2, 1]},
    ],
    ids=["array", "generator", "numpy integers", "small integers", "0-d array", "bytes"],
)
def test_attributes_of_unusual_types_mean_the_same(sent: Sent, attributes: dict[str, Any]) -> None:
    x, w, b = operands(sent)
    expected = gpuconv.conv(x, w, b, strides=[2, 1]).shape
    assert gpuconv.conv(x, w, b, **attributes).shape == expected
    assert gpuconv.conv(x, w, b, strides=[2, 1]).shape == expected


@pytest.mark.parametrize(
    "attributes",
    [{"strides": [2.0, 1]}, {"strides": (step for step in (1.5, 1, 1))}, {"group": 1.0}],
    ids=["list", "generator", "group"],
)
def test_floats_are_refused_after_equal_integers_were_taken(sent: Sent, attributes: dict[str, Any]) -> None:
    x, w, b = operands(sent)
    gpuconv.conv(x, w, b, strides=[2, 1])
    gpuconv.conv(x, w, b)
    with pytest.raises(gpuconv.ArgumentTypeError, match="integer"):
        gpuconv.conv(x, w, b, **attributes)


def test_prepared_calls_are_bounded(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_MOST_PREPARED", 3)
    for size in range(4, 12):
        gpuconv.max_pool(sent.cupy.empty((1, 1, size), "f"), kernel_shape=[2])
        assert len(device.prepared) <= 3
    assert len(sent.loads) == len({launch.name for launch in sent.launches}), "kernels stay loaded"


# ---------------------------------------------------------------- graphs, threads, devices


@pytest.mark.parametrize("kind", ["non-blocking", "blocking", "per thread"])
def test_streams_are_asked_whether_they_capture(sent: Sent, kind: str) -> None:
    """Except CUDA's legacy stream, which must not be queried while a blocking stream captures."""
    streams = sent.cupy.cuda.Stream
    stream = streams.ptds if kind == "per thread" else streams(non_blocking=kind == "non-blocking")
    legacy = streams.from_external(SimpleNamespace(__cuda_stream__=lambda: (0, 1)))
    with stream:
        stream.begin_capture()
        assert device.is_capturing()
        for other in (streams.null, legacy, streams(non_blocking=True)):
            with other:
                assert not device.is_capturing()
        stream.end_capture()
        assert not device.is_capturing()


@pytest.mark.parametrize("holder", ["result", "out"])
def test_a_capturing_stream_keeps_the_workspace_as_long_as_the_results_memory(sent: Sent, holder: str) -> None:
    x, w, _ = operands(sent)
    memory, stream = sent.cupy.empty((2, 2, 5, 4, 6), "f"), sent.cupy.cuda.Stream(non_blocking=True)
    with stream, mock.patch.object(device, "_drop", side_effect=device._drop) as drop:
        stream.begin_capture()
        kept: Any = gpuconv.conv(x, w) if holder == "result" else gpuconv.conv(x, w, out=memory[0]).base
        stream.end_capture()
        gc.collect()
        assert drop.call_count == 0
        assert kept is memory or holder == "result"
        del kept, memory
        gc.collect()
        assert drop.call_count == 1


def test_threads_do_not_share_parameters(sent: Sent) -> None:
    count, calls = 8, 50
    barrier = Barrier(count)
    sets = [operands(sent) for _ in range(count)]

    def work(arrays: tuple[Any, ...]) -> list[tuple[int, int]]:
        barrier.wait()
        return [(arrays[0].data.ptr, gpuconv.conv(*arrays).data.ptr) for _ in range(calls)]

    with ThreadPoolExecutor(count) as pool:
        expected = [pair for pairs in pool.map(work, sets) for pair in pairs]
    seen = [pointers(launch) for launch in sent.launches if "x" in pointers(launch)]
    assert sorted((at["x"], at["y"]) for at in seen) == sorted(expected)
    own = {arrays[0].data.ptr: arrays[2].data.ptr for arrays in sets}
    assert all(at["b"] == own[at["x"]] for at in seen)
    assert len(device.prepared) == 1


def test_every_device_has_kernels_of_its_own(sent: Sent) -> None:
    for number in (0, 1, 0, 1):
        with sent.cupy.cuda.Device(number):
            x, w, b = operands(sent)
            assert gpuconv.conv(x, w, b).data.device_id == number
    assert [launch.device for launch in sent.launches] == [0, 0, 1, 1] * 2
    assert sorted(number for _, number in sent.loads) == [0, 0, 1, 1]


@contextmanager
def described(sent: Sent, *capabilities: str, **attributes: int) -> Iterator[None]:
    """Make devices report these compute capabilities and additional attributes."""
    found = sent.cupy.cuda.Device(0).attributes | attributes
    devices = [SimpleNamespace(compute_capability=number, attributes=found) for number in capabilities]
    with mock.patch.object(sent.cupy.cuda, "Device", devices.__getitem__):
        yield


def test_a_capability_of_three_digits_is_read(sent: Sent) -> None:
    known = mock.patch("gpuconv.cuda.build.nvrtc.capabilities", return_value=((8, 0), (12, 0), (12, 1)))
    with described(sent, "120", "121"), known:
        assert [device.limits(number).architecture for number in (0, 1)] == ["sm_120a", "sm_121a"]


@pytest.mark.parametrize(
    ("attributes", "bandwidth"),
    [
        ({"MemoryClockRate": 2_619_000, "GlobalMemoryBusWidth": 5120}, 3.352e12),  # an H100
        ({"MemoryClockRate": 10_501_000, "GlobalMemoryBusWidth": 384}, 1.008e12),  # an RTX 4090
        ({"MemoryClockRate": 0, "GlobalMemoryBusWidth": 5120}, 0),
        ({"MemoryClockRate": 2_619_000}, 0),
        ({"MemoryClockRate": -1, "GlobalMemoryBusWidth": -1}, 0),
        ({}, 0),
    ],
)
def test_the_memory_is_as_fast_as_the_driver_says(sent: Sent, attributes: dict[str, int], bandwidth: float) -> None:
    with described(sent, "90", **attributes):
        assert device.limits(0).bandwidth == pytest.approx(bandwidth, rel=1e-3)


@pytest.mark.emulator
def test_axes_of_one_element_may_have_any_stride() -> None:
    """Such as a single image of a huge array."""
    x, w = np.arange(162, dtype=np.float32).reshape(2, 1, 9, 9)[:1], np.ones((4, 1, 3, 3), np.float32)
    far = np.lib.stride_tricks.as_strided(x, x.shape, (2**40, -(2**36), *x.strides[2:]))
    with emulated_cuda():
        y = gpuconv.conv(far, w)
        dw = gpuconv.conv_weight_grad(far, y, w.shape)
        pooled = gpuconv.max_pool(far, kernel_shape=[2, 2])
    assert (y == gpuconv.conv(x, w)).all()
    assert (dw == gpuconv.conv_weight_grad(x, y, w.shape)).all()
    assert (pooled == gpuconv.max_pool(x, kernel_shape=[2, 2])).all()
