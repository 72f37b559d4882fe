"""Launches through the real device module, on a stand-in for CuPy: what is sent, where to, and what is not done."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any
from unittest import mock

import numpy as np
import pytest

import gpuconv
from gpuconv import cuda
from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.call import device
from gpuconv.cuda.conv import families as conv_families
from gpuconv.rules import cases as _cases
from gpuconv.rules import geometry as geometries
from tests.emulator import emulated_cuda
from tests.harness.cupy_stand_in import Launch, StandIn, cupy_stand_in

pytestmark = pytest.mark.usefixtures("general_kernels")


@pytest.fixture
def cupy(tmp_path: Path) -> Iterator[StandIn]:
    with cupy_stand_in(tmp_path) as standin:
        yield standin


def operands(cupy: StandIn, rows: int = 2) -> tuple[Any, Any, Any]:
    shapes = (rows, 4, 6, 7), (5, 4, 3, 2), (5,)
    return tuple(cupy.module.ndarray(shape, np.float32) for shape in shapes)  # type: ignore[return-value]


def pointers(launch: Launch) -> dict[str, int]:
    """The addresses in a launch's struct, by their roles."""
    plans = [prepared.plan for prepared in device.prepared.values()]
    found = next(item for plan in plans for item in plan.launches if item.variant.name == launch.name)
    return {role: int.from_bytes(launch.parameters[at : at + 8], "little") for role, at in found.pointers}


def without_pointers(parameters: bytes, layout: np.dtype[Any]) -> bytes:
    """Return a struct with zeros for its pointers and maps, the only fields of their types, at any depth."""
    struct = np.frombuffer(bytearray(parameters), layout)  # a copy would leave what lies between members undefined
    pending = [struct]
    while pending:
        fields = pending.pop()
        for name in fields.dtype.names or ():
            if fields.dtype[name].base == np.uint64:
                fields[name] = 0
            pending.append(fields[name])
    return struct.tobytes()


# ---------------------------------------------------------------- what is sent


def test_addresses_stand_where_the_plan_says(cupy: StandIn) -> None:
    x, w, b = operands(cupy)
    y = gpuconv.conv(x, w, b, pads=[1, 1, 1, 1])
    pack, gemm = cupy.launches
    packed = pointers(pack)["packed"]
    assert pointers(pack) == {"w": w.data.ptr, "packed": packed}
    assert pointers(gemm) == {"x": x.data.ptr, "b": b.data.ptr, "packed": packed, "y": y.data.ptr}
    assert packed % 256 == 0
    assert (y.shape, y.dtype) == ((2, 5, 6, 8), np.float32)


def test_the_launch_is_the_plans(cupy: StandIn) -> None:
    x, w, _ = operands(cupy)
    gpuconv.conv(x, w)
    geometry = geometries.conv(x.shape, w.shape)
    strides = (168, 42, 7, 1), (24, 6, 2, 1), None, (120, 24, 6, 1)
    plan = conv_families.for_conv(geometry, "float32", *strides, device.limits(0))
    assert len(plan.launches) == len(cupy.launches)
    for planned, sent in zip(plan.launches, cupy.launches, strict=True):
        assert (sent.name, sent.grid, sent.shared_bytes) == (planned.variant.name, planned.grid, planned.shared_bytes)
        assert sent.block == (planned.variant.threads, 1, 1)
        assert without_pointers(sent.parameters, planned.variant.layout) == planned.parameters


def test_out_is_written_and_returned(cupy: StandIn) -> None:
    x, w, b = operands(cupy)
    out = cupy.module.ndarray((2, 5, 8, 6), np.float32).transpose((0, 1, 3, 2))
    before = len(cupy.allocations)
    assert gpuconv.conv(x, w, b, pads=[1, 1, 1, 1], out=out) is out
    assert pointers(cupy.launches[-1])["y"] == out.data.ptr
    assert len(cupy.allocations) == before + 1, "the workspace"


def test_max_pool_takes_one_out_of_a_pair(cupy: StandIn) -> None:
    x = cupy.module.ndarray((2, 3, 8), np.int8)
    out = cupy.module.ndarray((2, 3, 7), np.int64)
    y, indices = gpuconv.max_pool(x, kernel_shape=[2], return_indices=True, out=(None, out))
    assert indices is out
    assert pointers(cupy.launches[0]) == {"x": x.data.ptr, "y": y.data.ptr, "indices": out.data.ptr}
    assert (y.shape, y.dtype, y.strides) == ((2, 3, 7), np.int8, (21, 7, 1))


def test_launches_go_to_the_current_stream(cupy: StandIn) -> None:
    x, w, _ = operands(cupy)
    with cupy.stream(7000):
        gpuconv.conv(x, w)
    gpuconv.conv(x, w)
    assert [launch.stream for launch in cupy.launches] == [7000, 7000, 0, 0]
    assert cupy.synchronisations == 0


def test_an_empty_result_launches_and_loads_nothing(cupy: StandIn) -> None:
    _, w, b = operands(cupy)
    y = gpuconv.conv(cupy.module.ndarray((0, 4, 6, 7), np.float32), w, b)
    assert y.shape == (0, 5, 4, 6)
    assert (cupy.launches, cupy.loads) == ([], [])


def test_more_than_48_kib_of_shared_memory_are_asked_for(cupy: StandIn) -> None:
    x, w, _ = operands(cupy)
    y = gpuconv.conv(x, w)
    (prepared,) = device.prepared.values()
    variant = prepared.plan.launches[1].variant
    for nbytes in (48 * 1024, 60_000, 100_000, 60_000):
        device.load(variant, 0, nbytes)
    assert cupy.shared_limits == [(variant.name, 60_000), (variant.name, 100_000)]
    assert y.shape == (2, 5, 4, 6)


def test_modules_are_loaded_from_memory(cupy: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, _ = operands(cupy)
    compiled, cubin, loaded = [], compiler.cubin, []

    def noted(variant: Variant, architecture: str) -> bytes:
        compiled.append(cubin(variant, architecture))
        return compiled[-1]

    module = type(cupy.module.cuda.Module())
    load = module.load
    monkeypatch.setattr(compiler, "cubin", noted)
    monkeypatch.setattr(module, "load", lambda self, content: loaded.append(content) or load(self, content))
    gpuconv.conv(x, w)
    assert len(loaded) == 2
    assert all(one is other for one, other in zip(loaded, compiled, strict=True))


# ---------------------------------------------------------------- what is not done again


def test_a_second_call_looks_nothing_up_but_the_prepared_call(cupy: StandIn) -> None:
    x, w, b = operands(cupy)
    gpuconv.conv(x, w, b, strides=[2, 1])
    other_x, other_w, other_b = operands(cupy)
    with mock.patch.object(cuda, "prepare", side_effect=AssertionError("prepared again")):
        y = gpuconv.conv(other_x, other_w, other_b, strides=(2, 1))
    assert pointers(cupy.launches[-1]) | {"packed": 0} == {
        "x": other_x.data.ptr,
        "b": other_b.data.ptr,
        "packed": 0,
        "y": y.data.ptr,
    }


def test_slots_are_used_again(cupy: StandIn) -> None:
    x, w, _ = operands(cupy)
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
def test_other_attributes_are_another_call(cupy: StandIn, changed: str, attributes: dict[str, Any]) -> None:
    x, w, b = operands(cupy)
    gpuconv.conv(x, w, b)
    gpuconv.conv(x, w, b, **attributes)
    gpuconv.conv(x, w, b, **attributes)
    assert len(device.prepared) == 2, changed


def test_other_strides_dtypes_and_operands_are_other_calls(cupy: StandIn) -> None:
    x, w, b = operands(cupy)
    turned = cupy.module.ndarray((2, 4, 7, 6), np.float32).transpose((0, 1, 3, 2))
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
def test_attributes_of_unusual_types_mean_the_same(cupy: StandIn, attributes: dict[str, Any]) -> None:
    x, w, b = operands(cupy)
    expected = gpuconv.conv(x, w, b, strides=[2, 1]).shape
    assert gpuconv.conv(x, w, b, **attributes).shape == expected
    assert gpuconv.conv(x, w, b, strides=[2, 1]).shape == expected


@pytest.mark.parametrize(
    "attributes",
    [{"strides": [2.0, 1]}, {"strides": (step for step in (1.5, 1, 1))}, {"group": 1.0}],
    ids=["list", "generator", "group"],
)
def test_floats_are_refused_after_equal_integers_were_taken(cupy: StandIn, attributes: dict[str, Any]) -> None:
    x, w, b = operands(cupy)
    gpuconv.conv(x, w, b, strides=[2, 1])
    gpuconv.conv(x, w, b)
    with pytest.raises(gpuconv.ArgumentTypeError, match="integer"):
        gpuconv.conv(x, w, b, **attributes)


def test_prepared_calls_are_bounded(cupy: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_MOST_PREPARED", 3)
    for size in range(4, 12):
        gpuconv.max_pool(cupy.module.ndarray((1, 1, size), np.float32), kernel_shape=[2])
        assert len(device.prepared) <= 3
    assert len(cupy.loads) == len({launch.name for launch in cupy.launches}), "kernels stay loaded"


# ---------------------------------------------------------------- graphs, threads, devices


def test_streams_that_every_thread_has_capture_nothing(cupy: StandIn) -> None:
    """CUDA's legacy stream, 1, may not even be asked while another stream captures."""
    for ptr, asked in ((0, False), (1, False), (2, True), (7000, True)):
        cupy.queries = 0
        with cupy.stream(ptr, capturing=True):
            assert device.is_capturing() is asked
        assert cupy.queries == asked


@pytest.mark.parametrize("holder", ["result", "out"])
def test_a_capturing_stream_keeps_the_workspace_as_long_as_the_results_memory(cupy: StandIn, holder: str) -> None:
    x, w, _ = operands(cupy)
    memory = cupy.module.ndarray((2, 2, 5, 4, 6), np.float32)
    with cupy.stream(7000, capturing=True), mock.patch.object(device, "_drop", side_effect=device._drop) as drop:
        kept: Any = gpuconv.conv(x, w) if holder == "result" else gpuconv.conv(x, w, out=memory[0]).base
    gc.collect()
    assert drop.call_count == 0
    assert kept is memory or holder == "result"
    del kept, memory
    gc.collect()
    assert drop.call_count == 1


def test_the_null_stream_is_not_even_asked_whether_it_captures(cupy: StandIn) -> None:
    x, w, _ = operands(cupy)
    gpuconv.conv(x, w)
    assert cupy.queries == 0
    with cupy.stream(7000):
        gpuconv.conv(x, w)
    assert cupy.queries == 1


def test_threads_do_not_share_parameters(cupy: StandIn) -> None:
    count, calls = 8, 50
    barrier = Barrier(count)
    sets = [operands(cupy) for _ in range(count)]

    def work(arrays: tuple[Any, ...]) -> list[tuple[int, int]]:
        barrier.wait()
        return [(arrays[0].data.ptr, gpuconv.conv(*arrays).data.ptr) for _ in range(calls)]

    with ThreadPoolExecutor(count) as pool:
        expected = [pair for pairs in pool.map(work, sets) for pair in pairs]
    seen = [pointers(launch) for launch in cupy.launches if "x" in pointers(launch)]
    assert sorted((at["x"], at["y"]) for at in seen) == sorted(expected)
    own = {arrays[0].data.ptr: arrays[2].data.ptr for arrays in sets}
    assert all(at["b"] == own[at["x"]] for at in seen)
    assert len(device.prepared) == 1


def test_every_device_has_kernels_of_its_own(tmp_path: Path) -> None:
    with cupy_stand_in(tmp_path, ("90", "80")) as cupy:
        for number in (0, 1, 0, 1):
            with cupy.module.cuda.Device(number):
                x, w, b = operands(cupy)
                assert gpuconv.conv(x, w, b).data.device_id == number
        assert [launch.device for launch in cupy.launches] == [0, 0, 1, 1] * 2
        assert sorted(number for _, number in cupy.loads) == [0, 0, 1, 1]
        assert [device.limits(number).architecture for number in (0, 1)] == ["sm_90a", "sm_80"]


def test_a_capability_of_three_digits_is_read(tmp_path: Path) -> None:
    known = mock.patch("gpuconv.cuda.build.nvrtc.capabilities", return_value=((9, 0), (12, 0), (12, 1)))
    with cupy_stand_in(tmp_path, ("120", "121")), known:
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
def test_the_memory_is_as_fast_as_the_driver_says(tmp_path: Path, attributes: dict[str, int], bandwidth: float) -> None:
    with cupy_stand_in(tmp_path) as cupy:
        described = cupy.module.cuda.Device(0)
        described.attributes |= attributes
        with mock.patch.object(cupy.module.cuda, "Device", return_value=described):
            assert device.limits(0).bandwidth == pytest.approx(bandwidth, rel=1e-3)


# ---------------------------------------------------------------- the emulator shows the same

_SHOWN = [
    case
    for _, cases in itertools.groupby(_cases.CASES, key=lambda case: (case.op, len(case.x_shape)))
    for case in itertools.islice(cases, 4)
    if np.prod(case.x_shape) < 500
]


def _call(case: _cases.Case, move: Callable[[Any], Any]) -> None:
    arrays = {name: move(a) for name, a in _cases.inputs(case, case.dtypes[0]).items()}
    getattr(gpuconv, case.op)(*arrays.values(), **case.attributes)


@pytest.mark.emulator
@pytest.mark.parametrize("case", _SHOWN, ids=lambda case: case.name)
def test_the_device_is_sent_what_the_emulator_runs(case: _cases.Case, tmp_path: Path) -> None:
    with emulated_cuda() as emulated:
        _call(case, lambda a: a)
    with cupy_stand_in(tmp_path) as cupy:
        _call(case, gpuconv.to_device)
    assert len(cupy.launches) == len(emulated.launches)
    for sent, run in zip(cupy.launches, emulated.launches, strict=True):
        assert (sent.name, sent.grid, sent.block) == (run.variant.name, run.grid, (run.threads, 1, 1))
        assert (sent.shared_bytes, len(sent.parameters)) == (run.shared_bytes, len(run.parameters))
        layout = run.variant.layout
        assert without_pointers(sent.parameters, layout) == without_pointers(run.parameters, layout)


def test_axes_of_one_element_may_have_any_stride() -> None:
    """As one image of a huge array has."""
    x, w = np.arange(162, dtype=np.float32).reshape(2, 1, 9, 9)[:1], np.ones((4, 1, 3, 3), np.float32)
    far = np.lib.stride_tricks.as_strided(x, x.shape, (2**40, -(2**36), *x.strides[2:]))
    with emulated_cuda():
        y = gpuconv.conv(far, w)
        dw = gpuconv.conv_weight_grad(far, y, w.shape)
        pooled = gpuconv.max_pool(far, kernel_shape=[2, 2])
    assert (y == gpuconv.conv(x, w)).all()
    assert (dw == gpuconv.conv_weight_grad(x, y, w.shape)).all()
    assert (pooled == gpuconv.max_pool(x, kernel_shape=[2, 2])).all()
