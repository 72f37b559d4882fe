"""Maps of arrays: what the driver is asked for, and that each launch has those of its own call's arrays."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any
from unittest import mock

import numpy as np
import pytest

from gpuconv import ArgumentError, DeviceError
from gpuconv._packed import PackedWeights
from gpuconv.cuda.build import kernel_files
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.call import device, tensor_map
from gpuconv.cuda.call.prepared import Prepared, Result
from gpuconv.cuda.conv import finish
from gpuconv.cuda.plan.launch import Launch, Plan, Space, TensorMap
from gpuconv.rules import activation
from tests.emulator import EmulatorError, emulated_cuda
from tests.emulator.device import EmulatedDevice
from tests.harness import toolchain
from tests.harness.cupy_stand_in import StandIn, cupy_stand_in

ROWS = TensorMap("x", "x_map", "float32", sizes=(32, 100), strides=(256,), steps=(1, 1), box=(32, 32), swizzle=0)
PIXELS = TensorMap(
    *("x", "x_map", "bfloat16"),
    sizes=(64, 9, 7, 5, 2),
    strides=(128, 1280, 9216, 46080),
    steps=(1, 2, 3, 1, 1),
    lower=(-1, -2, 0),
    upper=(-3, 4, -2),
    channels=64,
    pixels=256,
)


@pytest.fixture
def cupy(tmp_path: Path) -> Iterator[StandIn]:
    with cupy_stand_in(tmp_path) as standin:
        yield standin


# ---------------------------------------------------------------- what the driver is asked for


def test_a_map_of_boxes_is_encoded_as_described(cupy: StandIn) -> None:
    words = device.tensor_map(ROWS)(0x7F0000001230)
    (found,) = cupy.maps
    assert found.function == "cuTensorMapEncodeTiled"
    wanted = (7, 2, 0x7F0000001230, [32, 100], [256], [32, 32], [1, 1], 0, 0, 2, 0)  # CU_TENSOR_MAP_DATA_TYPE_FLOAT32
    assert found.arguments == wanted
    assert (words.format, words.nbytes) == ("Q", 128)
    assert words[0] == 0x7F0000001230


def test_a_map_of_pixels_is_encoded_as_described(cupy: StandIn) -> None:
    device.tensor_map(PIXELS)(2**47)
    (found,) = cupy.maps
    assert found.function == "cuTensorMapEncodeIm2col"
    sizes, strides, steps = [64, 9, 7, 5, 2], [128, 1280, 9216, 46080], [1, 2, 3, 1, 1]
    corners = [-1, -2, 0], [-3, 4, -2]
    assert found.arguments == (9, 5, 2**47, sizes, strides, *corners, 64, 256, steps, 0, 3, 2, 0)


@pytest.mark.parametrize(("swizzle", "code"), [(0, 0), (32, 1), (64, 2), (128, 3)])
@pytest.mark.parametrize(("dtype", "number"), [("float16", 6), ("float32", 7), ("bfloat16", 9)])
def test_dtypes_and_swizzles_have_the_drivers_numbers(
    cupy: StandIn, dtype: str, number: int, swizzle: int, code: int
) -> None:
    device.tensor_map(replace(ROWS, dtype=dtype, swizzle=swizzle))(4096)
    assert (cupy.maps[0].arguments[0], cupy.maps[0].arguments[-3]) == (number, code)


def test_sizes_and_strides_of_more_than_32_bits_arrive(cupy: StandIn) -> None:
    device.tensor_map(replace(ROWS, sizes=(32, 2**32), strides=(2**39,)))(2**56)
    assert cupy.maps[0].arguments[2:5] == (2**56, [32, 2**32], [2**39])


@pytest.mark.parametrize(
    ("described", "small"),
    [
        (replace(ROWS, sizes=(32, 1023), strides=(128,)), True),
        (replace(ROWS, sizes=(31, 1024), strides=(128,)), True),
        (replace(ROWS, sizes=(32, 1024), strides=(128,)), False),
        (replace(ROWS, sizes=(32, 3), strides=(65536,)), False),  # of few elements, that lie far apart
        (replace(PIXELS, sizes=(64, 8, 8, 1, 16), strides=(128, 1024, 8192, 8192)), False),
        (replace(PIXELS, sizes=(64, 8, 8, 1, 15), strides=(128, 1024, 8192, 8192)), True),
    ],
)
@pytest.mark.parametrize(("version", "old"), [(12080, True), (13010, True), (13020, False)])
def test_maps_of_small_arrays_are_mended_where_the_driver_is_old(
    cupy: StandIn, described: TensorMap, small: bool, version: int, old: bool
) -> None:
    cupy.driver_version = version
    words = device.tensor_map(described)(4096)
    assert words[1] == (2**64 - 1 - 2**21 if small and old else 2**64 - 1)
    assert [words[0], *words[2:]] == [4096, *range(3, 17)]


def test_what_the_driver_refuses_is_named(cupy: StandIn) -> None:
    encoder = device.tensor_map(ROWS)
    cupy.map_code = 1
    with pytest.raises(DeviceError, match=r"refused to encode TensorMap\(role='x', .*0x40: CUDA_ERROR_INVALID_VALUE"):
        encoder(64)
    cupy.map_code = 999
    with pytest.raises(DeviceError, match="error 999"):
        encoder(64)
    cupy.map_code = 0
    assert encoder(64)[0] == 64


def test_a_driver_that_does_not_say_its_version_is_refused(cupy: StandIn) -> None:
    cupy.version_code = 999
    with pytest.raises(DeviceError, match="does not report its version: error 999"):
        device.tensor_map(ROWS)
    cupy.version_code = 0
    assert device.tensor_map(ROWS)(64)[0] == 64


def test_a_thread_without_a_context_gets_one(cupy: StandIn) -> None:
    encoder = device.tensor_map(ROWS)
    cupy.map_code = 201
    assert encoder(64)[0] == 64
    assert [found.arguments[2] for found in cupy.maps] == [64, 64]


def test_a_machine_without_the_library_says_so(cupy: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> Any:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(tensor_map, "load", load)
    with pytest.raises(DeviceError, match=r"does not encode tensor maps: libcuda\.so\.1: cannot open"):
        device.tensor_map(ROWS)


def test_a_map_is_encoded_once_for_an_address_and_few_are_kept(cupy: StandIn) -> None:
    encoder = device.tensor_map(ROWS)
    for _ in range(3):
        assert [encoder(512 * k)[0] for k in range(1, 65)] == [512 * k for k in range(1, 65)]
    assert len(cupy.maps) == 64
    assert encoder(2**20)[0] == 2**20
    assert encoder(512)[0] == 512
    assert len(cupy.maps) == 66, "all were dropped"


# ---------------------------------------------------------------- structs


def test_a_struct_with_maps_is_as_long_as_their_alignment_asks_for() -> None:
    launch = by_map(5, 32)
    assert (BY_MAP.layout.itemsize, launch.offset("y"), launch.offset("rows")) == (192, 128, 136)
    assert launch.parameters == bytes(136) + b"\5" + bytes(55)


# ---------------------------------------------------------------- launches

FINISHED = """struct Finish {
    const void* residual;
    unsigned long long slope, low, high;
    int acts;
};
struct Finished {
    CUtensorMap x_map;
    void* y;
    Finish finish;
};
"""
KERNELS = Path(__file__).parents[2] / "emulator" / "kernels"
BY_MAP = Variant("map_copy", "map_copy.cu", "copy_by_map", (), "MapCopy", 64, 1, ("sm_90a",))
BY_ROW = Variant("row_copy", "map_copy.cu", "copy_by_row", (), "RowCopy", 32, 1)


def by_map(rows: int, pitch: int, source: str = "x", target: str = "y") -> Launch:
    described = replace(ROWS, role=source, sizes=(32, rows), strides=(4 * pitch,))
    return Launch(BY_MAP, (-(-rows // 32), 1, 1), 0, {"rows": rows}, {"y": target}, (described,))


def by_row(rows: int, pitch: int, source: str = "x", target: str = "y") -> Launch:
    return Launch(BY_ROW, (4, 1, 1), 0, {"rows": rows, "pitch": pitch}, {"x": source, "y": target})


def plan(rows: int, pitch: int = 32) -> Plan:
    """The rows of x, by way of its map; of x that is not aligned, without."""
    otherwise = Plan("conv", (by_row(rows, pitch),), ())
    return Plan("conv", (by_map(rows, pitch),), (), alignment=(("x", 16),), otherwise=lambda: otherwise)


def twice(rows: int) -> Plan:
    """By way of a copy in the workspace, between whose parts there are others."""
    launches = by_row(rows, 32, "x", "x_last"), by_map(rows, 32, "x_last")
    spaces = Space("x_last", "x with its channels last", rows * 128), Space("workspace", "nothing", 100)
    return Plan("conv", launches, (), spaces)


def prepared(runtime: Any, made: Plan, x: Any, out: Any = None) -> Prepared:
    results = [Result("y", "out", (x.shape[0], 32), np.dtype(np.float32))]
    return Prepared(runtime, 0, made, {"x": x}, {}, results, (out,))


@pytest.fixture(autouse=True)
def _sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernels above be the only ones there are."""
    files = {name: (KERNELS / name).read_text(encoding="utf-8") for name in ("map_copy.cu", "hopper.cuh", "ptx.cuh")}
    written = toolchain.write(tmp_path / "kernels_cu", files | {"finished.cu": FINISHED})
    monkeypatch.setattr(kernel_files, "folder", lambda: written)


@pytest.fixture
def emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedDevice]:
    """An emulated device."""
    monkeypatch.setenv("GPUCONV_CACHE_DIR", str(tmp_path / "cache"))
    with emulated_cuda(seed=3, async_order="random") as opened:
        yield opened


def numbers(rows: int, columns: int = 32, first: float = 0) -> Any:
    return np.arange(first, first + rows * columns, dtype=np.float32).reshape(rows, columns)


@pytest.mark.emulator
def test_every_call_has_the_map_of_its_own_array(emulated: EmulatedDevice) -> None:
    call = prepared(emulated, plan(70), numbers(70))
    for first in range(5):
        x = numbers(70, first=first)
        (y,) = call.run((x,), (None,))
        assert (y == x).all()
        del x
        gc.collect()
    assert [record.variant for record in emulated.launches] == [BY_MAP] * 5
    assert len({record.parameters[:8] for record in emulated.launches}) == 5, "all arrays lay elsewhere"


@pytest.mark.emulator
def test_an_array_that_takes_the_place_of_a_freed_one_is_read(emulated: EmulatedDevice) -> None:
    memory = numbers(70)
    call = prepared(emulated, plan(70), memory)
    assert (call.run((memory,), (None,))[0] == numbers(70)).all()
    memory[...] = numbers(70, first=9)
    assert (call.run((memory,), (None,))[0] == numbers(70, first=9)).all()


@pytest.mark.emulator
def test_a_map_of_another_calls_array_would_be_reported(emulated: EmulatedDevice) -> None:
    call = prepared(emulated, plan(70), numbers(70))
    first, encode = emulated.address(numbers(70)), emulated.tensor_map
    with mock.patch.object(emulated, "tensor_map", lambda described: lambda _: encode(described)(first)):
        forgetful = prepared(emulated, plan(70), numbers(70))
    emulated.current_device()
    with pytest.raises(EmulatorError, match="map_copy: global memory out of bounds"):
        forgetful.run((numbers(70, first=1),), (None,))
    x = numbers(70, first=2)
    assert (call.run((x,), (None,))[0] == x).all()


@pytest.mark.emulator
def test_views_are_read_at_their_elements(emulated: EmulatedDevice) -> None:
    whole = numbers(80, 64)
    x = whole[5:75, 8:40]
    call = prepared(emulated, plan(70, 64), x)
    assert (call.run((x,), (None,))[0] == x).all()
    assert emulated.launches[-1].variant == BY_MAP


@pytest.mark.emulator
def test_what_is_not_aligned_goes_another_way(emulated: EmulatedDevice) -> None:
    whole = numbers(70, 64)
    call = prepared(emulated, plan(70, 64), whole[:, :32])
    for first in (0, 3, 4, 17, 20):
        x = whole[:, first : first + 32]
        assert (call.run((x,), (None,))[0] == x).all()
    kernels = [record.variant for record in emulated.launches]
    assert kernels == [BY_MAP, BY_ROW, BY_MAP, BY_ROW, BY_MAP]


@pytest.mark.emulator
def test_out_is_written_whichever_way_the_call_goes(emulated: EmulatedDevice) -> None:
    whole, out = numbers(70, 64), np.zeros((70, 32), np.float32)
    call = prepared(emulated, plan(70, 64), whole[:, :32], out)
    for first in (16, 1):
        x = whole[:, first : first + 32]
        assert call.run((x,), (out,))[0] is out
        assert (out == x).all()


@pytest.mark.emulator
def test_a_map_of_a_copy_in_the_workspace(emulated: EmulatedDevice) -> None:
    for rows in (3, 70):
        x = numbers(rows)
        call = prepared(emulated, twice(rows), x)
        for _ in range(2):
            assert (call.run((x,), (None,))[0] == x).all()


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sizes": (32, 2**32)}, "sizes"),
        ({"strides": (132,)}, "multiples of 16 bytes"),
        ({"strides": (2**40,)}, "below"),
        ({"box": (32, 257)}, "box dimensions"),
        ({"steps": (1, 9)}, "element strides"),
        ({"swizzle": 32}, "swizzle span"),
        ({"box": (), "channels": 32, "pixels": 32}, "for im2col 3 to 5"),
    ],
)
def test_the_emulator_refuses_what_the_driver_refuses(
    emulated: EmulatedDevice, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(EmulatorError, match=f"the driver would refuse TensorMap.*{message}"):
        emulated.tensor_map(replace(ROWS, **changes))(4096)


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lower": (-17, 0, 0)}, "corner out of range"),
        ({"upper": (0, 16, 0)}, "corner out of range"),
        ({"lower": (0, 0)}, "corners have a number"),
        ({"channels": 257}, "256 channels"),
        ({"pixels": 1025}, "1024 pixels"),
        ({"channels": 128}, "swizzle span"),
    ],
)
def test_the_emulator_refuses_maps_of_pixels_as_the_driver_does(
    emulated: EmulatedDevice, changes: dict[str, Any], message: str
) -> None:
    assert len(emulated.tensor_map(PIXELS)(4096)) == 16
    with pytest.raises(EmulatorError, match=message):
        emulated.tensor_map(replace(PIXELS, **changes))(4096)
    with pytest.raises(EmulatorError, match="multiple of 16 bytes"):
        emulated.tensor_map(PIXELS)(4104)


# ---------------------------------------------------------------- launches on the real device module


def map_words(parameters: bytes) -> list[int]:
    return list(memoryview(parameters).cast("Q")[:16])


def test_addresses_of_maps_and_pointers_are_the_calls(cupy: StandIn) -> None:
    x = cupy.module.ndarray((70, 32), np.float32)
    call = prepared(device, plan(70), x)
    for array in (x, cupy.module.ndarray((70, 32), np.float32), x):
        (y,) = call.run((array,), (None,))
        sent = cupy.launches[-1].parameters
        assert map_words(sent) == [array.data.ptr, 2**64 - 1, *range(3, 17)]
        assert int.from_bytes(sent[128:136], "little") == y.data.ptr
        assert int.from_bytes(sent[136:140], "little") == 70
    assert len(cupy.maps) == 2


def test_nothing_is_encoded_twice_for_one_address(cupy: StandIn) -> None:
    x = cupy.module.ndarray((70, 32), np.float32)
    call = prepared(device, plan(70), x)
    with mock.patch.object(device, "parameters", wraps=device.parameters) as made:
        for _ in range(5):
            call.run((x,), (None,))
    assert (made.call_count, len(cupy.maps)) == (1, 1)


def test_views_that_are_not_aligned_are_launched_otherwise(cupy: StandIn) -> None:
    whole = cupy.module.ndarray((70, 64), np.float32)
    call = prepared(device, plan(70, 64), whole[:, :32])
    for first in (0, 1, 4, 2):
        x = whole[:, first : first + 32]
        call.run((x,), (None,))
        sent = cupy.launches[-1]
        assert (sent.name, map_words(sent.parameters.ljust(128))[0]) == (
            "row_copy" if first % 4 else "map_copy",
            x.data.ptr,
        )
    assert cupy.loads == [("map_copy", 0), ("row_copy", 0)]


def test_addresses_within_an_element_are_refused_as_ever(cupy: StandIn) -> None:
    x = cupy.module.ndarray((70, 32), np.float32)
    call = prepared(device, plan(70), x)
    x.data.ptr += 2
    with pytest.raises(ArgumentError, match="x is not aligned to its elements of 4 bytes"):
        call.run((x,), (None,))


def test_a_captured_launch_keeps_its_map_whatever_comes_after(cupy: StandIn) -> None:
    """The driver has copied the parameters: replaying a graph launches these bytes."""
    x, other = (cupy.module.ndarray((70, 32), np.float32) for _ in range(2))
    call = prepared(device, twice(70), x)
    with cupy.stream(7000, capturing=True), mock.patch.object(device, "_drop", side_effect=device._drop) as drop:
        (y,) = call.run((x,), (None,))
    captured = cupy.launches[-1].parameters
    assert map_words(captured)[0] == int.from_bytes(cupy.launches[-2].parameters[8:16], "little"), "the copy of x"
    for array in (other, x, other):
        call.run((array,), (None,))
    gc.collect()
    assert drop.call_count == 0, "the workspace that the map leads to"
    assert map_words(captured)[0] not in {map_words(sent.parameters)[0] for sent in cupy.launches[3::2]}
    del y
    gc.collect()
    assert drop.call_count == 1


def test_threads_do_not_share_maps(cupy: StandIn) -> None:
    count, calls = 8, 40
    barrier = Barrier(count)
    arrays = [cupy.module.ndarray((70, 32), np.float32) for _ in range(count)]
    call = prepared(device, plan(70), arrays[0])

    def work(x: Any) -> list[tuple[int, int]]:
        barrier.wait()
        return [(x.data.ptr, call.run((x,), (None,))[0].data.ptr) for _ in range(calls)]

    with ThreadPoolExecutor(count) as pool:
        expected = [pair for pairs in pool.map(work, arrays) for pair in pairs]
    sent = [memoryview(launch.parameters).cast("Q") for launch in cupy.launches]
    assert sorted((words[0], words[16]) for words in sent) == sorted(expected)


def test_plans_without_maps_ask_for_none(cupy: StandIn) -> None:
    x = cupy.module.ndarray((70, 32), np.float32)
    with mock.patch.object(device, "tensor_map", side_effect=AssertionError("there is no map")):
        prepared(device, Plan("conv", (by_row(70, 32),), ()), x).run((x,), (None,))
    assert cupy.maps == []


# ---------------------------------------------------------------- packed weights, and what comes after the sums


def weighted(aligned: bool) -> Plan:
    """w is packed, then x is copied; x that is not aligned is copied by another launch."""
    copy = by_map(70, 64) if aligned else by_row(70, 64)
    uses = replace(copy, roles={**copy.roles, "y" if aligned else "x": "packed"})
    launches = by_row(70, 32, "w", "packed"), uses
    return Plan("conv", launches, (), (Space.packed(70 * 128),))


def test_weights_packed_once_serve_arrays_of_any_alignment(cupy: StandIn) -> None:
    whole, w = cupy.module.ndarray((70, 64), np.float32), cupy.module.ndarray((70, 32), np.float32)
    made = replace(weighted(True), alignment=(("x", 16),), otherwise=lambda: weighted(False))
    results = [Result("y", "out", (70, 32), np.dtype(np.float32))]
    call = Prepared(device, 0, made, {"x": whole[:, :32], "w": w}, {}, results, (None,))
    weights = PackedWeights("conv", w)
    for first in (0, 1, 8, 3):
        call.run_packed(weights, (whole[:, first : first + 32], w), (None,))
    assert [sent.name for sent in cupy.launches] == ["row_copy", "map_copy", "row_copy", "map_copy", "row_copy"]


def test_what_comes_after_the_sums_comes_after_those_of_the_other_plan_too() -> None:
    variant = replace(BY_MAP, source="finished.cu", parameter="Finished")
    launch = Launch(variant, (1, 1, 1), 0, {}, {"y": "y"}, (ROWS,))
    made = Plan("conv", (launch,), (), alignment=(("x", 16),), otherwise=lambda: Plan("conv", (launch,) * 2, ()))
    strides = {"y": (32, 1), "residual": (32, 1)}
    found = finish.finished(made, activation.parse("conv", "relu"), "float32", (70, 32), strides)
    assert found.otherwise is not None
    other = found.otherwise()
    assert len(other.launches) == 2
    for one in (*found.launches, *other.launches):
        assert one.maps == (ROWS,)
        assert one.pointers == (("y", 128), ("residual", 136))
        assert any(one.parameters)
