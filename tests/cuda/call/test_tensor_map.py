"""Tensor maps: the driver's arguments, and that each launch has the maps of its own call's arrays."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

import gpuconv
from gpuconv import ArgumentError, DeviceError
from gpuconv._packed import PackedWeights
from gpuconv.cuda.build import kernel_files
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.call import device, tensor_map
from gpuconv.cuda.call.prepared import Prepared, Result
from gpuconv.cuda.conv import finish
from gpuconv.cuda.plan.launch import Launch, Plan, Space, TensorMap
from gpuconv.rules import activation
from tests.emulator import emulated_cuda
from tests.emulator.device import EmulatedCuda
from tests.harness import toolchain
from tests.harness.idle_kernels import Sent

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


@dataclass
class Library:
    """The driver's functions for maps, with the prototypes of cuda.h.

    Attributes
    ----------
    maps : of each map that was to be encoded the function's name and its arguments, but for where the map goes.
    version, version_code : of the driver; what asking for it returns.
    map_code : what encoding a map returns: 0 for success, 201 where the thread has no context yet.
    """

    maps: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    version: int = 13020
    version_code: int = 0
    map_code: int = 0

    def load(self) -> Any:
        """Return the library, as loading it would."""
        enum, u32, pointer = ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p
        u32s, u64s, ints = map(ctypes.POINTER, (u32, ctypes.c_uint64, enum))
        array, loading = (pointer, enum, u32, pointer, u64s, u64s), (enum, enum, enum, enum)
        tiled, im2col = "cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col"
        prototypes: dict[str, tuple[Any, tuple[Any, ...]]] = {
            tiled: (partial(self._encode, tiled), (*array, u32s, u32s, *loading)),
            im2col: (partial(self._encode, im2col), (*array, ints, ints, u32, u32, u32s, *loading)),
            "cuDriverGetVersion": (self._tell_version, (ints,)),
            "cuGetErrorName": (self._name_error, (enum, ctypes.POINTER(ctypes.c_char_p))),
        }
        made = {name: ctypes.CFUNCTYPE(enum, *types)(function) for name, (function, types) in prototypes.items()}
        return SimpleNamespace(**made)

    def _encode(self, function: str, room: int, *arguments: Any) -> int:
        """Write a map whose first word is the address; all bits of the second are set."""
        assert room % 64 == 0
        dtype, rank, address, *rest = arguments
        corners = (rank - 2, rank - 2) if function.endswith("Im2col") else (rank,)
        lengths = iter((rank, rank - 1, *corners, rank))
        read = [one[: next(lengths)] if hasattr(one, "contents") else one for one in rest]
        self.maps.append((function, (dtype, rank, address, *read)))
        if self.map_code == 0:
            (ctypes.c_uint64 * 16).from_address(room)[:] = [address, 2**64 - 1, *range(3, 17)]
        return self.map_code

    def _tell_version(self, found: Any) -> int:
        found[0] = self.version
        return self.version_code

    def _name_error(self, code: int, name: Any) -> int:
        name[0] = b"CUDA_ERROR_INVALID_VALUE" if code == 1 else None
        return 0 if code == 1 else 1

    def attach(self) -> None:
        """Make a context current, as calls of the runtime do."""
        self.map_code = 0 if self.map_code == 201 else self.map_code

    def encoder(self, described: TensorMap) -> tensor_map.Encoder:
        return tensor_map.Encoder(described, self.attach)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    library = Library()
    monkeypatch.setattr(tensor_map, "load", library.load)
    tensor_map.driver.cache_clear()
    yield library
    tensor_map.driver.cache_clear()


# ---------------------------------------------------------------- what the driver is asked for


def test_a_map_of_boxes_is_encoded_as_described(driver: Library) -> None:
    words = driver.encoder(ROWS)(0x7F0000001230)
    wanted = (7, 2, 0x7F0000001230, [32, 100], [256], [32, 32], [1, 1], 0, 0, 2, 0)  # CU_TENSOR_MAP_DATA_TYPE_FLOAT32
    assert driver.maps == [("cuTensorMapEncodeTiled", wanted)]
    assert (words.format, words.nbytes) == ("Q", 128)
    assert words[0] == 0x7F0000001230


def test_a_map_of_pixels_is_encoded_as_described(driver: Library) -> None:
    driver.encoder(PIXELS)(2**47)
    sizes, strides, steps = [64, 9, 7, 5, 2], [128, 1280, 9216, 46080], [1, 2, 3, 1, 1]
    corners = [-1, -2, 0], [-3, 4, -2]
    wanted = (9, 5, 2**47, sizes, strides, *corners, 64, 256, steps, 0, 3, 2, 0)
    assert driver.maps == [("cuTensorMapEncodeIm2col", wanted)]


@pytest.mark.parametrize(("swizzle", "code"), [(0, 0), (32, 1), (64, 2), (128, 3)])
@pytest.mark.parametrize(("dtype", "number"), [("float16", 6), ("float32", 7), ("bfloat16", 9)])
def test_dtypes_and_swizzles_have_the_drivers_numbers(
    driver: Library, dtype: str, number: int, swizzle: int, code: int
) -> None:
    driver.encoder(replace(ROWS, dtype=dtype, swizzle=swizzle))(4096)
    ((_, arguments),) = driver.maps
    assert (arguments[0], arguments[-3]) == (number, code)


def test_sizes_and_strides_of_more_than_32_bits_arrive(driver: Library) -> None:
    driver.encoder(replace(ROWS, sizes=(32, 2**32), strides=(2**39,)))(2**56)
    assert driver.maps[0][1][2:5] == (2**56, [32, 2**32], [2**39])


@pytest.mark.parametrize(
    ("described", "small"),
    [
        (replace(ROWS, sizes=(32, 1023), strides=(128,)), True),
        (replace(ROWS, sizes=(31, 1024), strides=(128,)), True),
        (replace(ROWS, sizes=(32, 1024), strides=(128,)), False),
        (replace(ROWS, sizes=(32, 3), strides=(65536,)), False),  # few elements, far apart
        (replace(PIXELS, sizes=(64, 8, 8, 1, 16), strides=(128, 1024, 8192, 8192)), False),
        (replace(PIXELS, sizes=(64, 8, 8, 1, 15), strides=(128, 1024, 8192, 8192)), True),
    ],
)
@pytest.mark.parametrize(("version", "old"), [(12080, True), (13010, True), (13020, False)])
def test_maps_of_small_arrays_are_mended_where_the_driver_is_old(
    driver: Library, described: TensorMap, small: bool, version: int, old: bool
) -> None:
    driver.version = version
    words = driver.encoder(described)(4096)
    assert words[1] == (2**64 - 1 - 2**21 if small and old else 2**64 - 1)
    assert [words[0], *words[2:]] == [4096, *range(3, 17)]


def test_what_the_driver_refuses_is_named(driver: Library) -> None:
    encoder = driver.encoder(ROWS)
    driver.map_code = 1
    with pytest.raises(DeviceError, match=r"refused to encode TensorMap\(role='x', .*0x40: CUDA_ERROR_INVALID_VALUE"):
        encoder(64)
    driver.map_code = 999
    with pytest.raises(DeviceError, match="error 999"):
        encoder(64)
    driver.map_code = 0
    assert encoder(64)[0] == 64


def test_a_driver_that_does_not_say_its_version_is_refused(driver: Library) -> None:
    driver.version_code = 999
    with pytest.raises(DeviceError, match="does not report its version: error 999"):
        driver.encoder(ROWS)
    driver.version_code = 0
    assert driver.encoder(ROWS)(64)[0] == 64


def test_a_thread_without_a_context_gets_one(driver: Library) -> None:
    encoder = driver.encoder(ROWS)
    driver.map_code = 201
    assert encoder(64)[0] == 64
    assert [arguments[2] for _, arguments in driver.maps] == [64, 64]


def test_a_machine_without_the_library_says_so(driver: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> Any:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(tensor_map, "load", load)
    with pytest.raises(DeviceError, match=r"does not encode tensor maps: libcuda\.so\.1: cannot open"):
        driver.encoder(ROWS)


def test_a_map_is_encoded_once_for_an_address_and_few_are_kept(driver: Library) -> None:
    encoder = driver.encoder(ROWS)
    for _ in range(3):
        assert [encoder(512 * k)[0] for k in range(1, 65)] == [512 * k for k in range(1, 65)]
    assert len(driver.maps) == 64
    assert encoder(2**20)[0] == 2**20
    assert encoder(512)[0] == 512
    assert len(driver.maps) == 66, "all were dropped"


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
ROOT = Path(__file__).parents[3]
SOURCES = (
    ROOT / "tests" / "emulator" / "kernels" / "map_copy.cu",
    *sorted((ROOT / "emulated_cuda" / "tests" / "kernels").glob("*.cuh")),  # which it includes
)
BY_MAP = Variant("map_copy", "map_copy.cu", "copy_by_map", (), "MapCopy", 64, 1, ("sm_90a",))
BY_ROW = Variant("row_copy", "map_copy.cu", "copy_by_row", (), "RowCopy", 32, 1)


def by_map(rows: int, pitch: int, source: str = "x", target: str = "y") -> Launch:
    described = replace(ROWS, role=source, sizes=(32, rows), strides=(4 * pitch,))
    return Launch(BY_MAP, (-(-rows // 32), 1, 1), 0, {"rows": rows}, {"y": target}, (described,))


def by_row(rows: int, pitch: int, source: str = "x", target: str = "y") -> Launch:
    return Launch(BY_ROW, (4, 1, 1), 0, {"rows": rows, "pitch": pitch}, {"x": source, "y": target})


def plan(rows: int, pitch: int = 32) -> Plan:
    """Return a plan that reads rows of x through a tensor map, with a fallback for unaligned x."""
    otherwise = Plan("conv", (by_row(rows, pitch),), ())
    return Plan("conv", (by_map(rows, pitch),), (), alignment=(("x", 16),), otherwise=lambda: otherwise)


def twice(rows: int) -> Plan:
    """Return a plan that copies x into the workspace first, between other buffers."""
    launches = by_row(rows, 32, "x", "x_last"), by_map(rows, 32, "x_last")
    spaces = Space("x_last", "x with its channels last", rows * 128), Space("workspace", "nothing", 100)
    return Plan("conv", launches, (), spaces)


def prepared(made: Plan, x: Any, out: Any = None) -> Prepared:
    results = [Result("y", "out", (x.shape[0], 32), np.dtype(np.float32))]
    return Prepared(0, made, {"x": x}, {}, results, (out,))


@pytest.fixture(autouse=True)
def _sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the kernels above the only sources."""
    files = {path.name: path.read_text(encoding="utf-8") for path in SOURCES}
    written = toolchain.write(tmp_path / "kernels_cu", files | {"finished.cu": FINISHED})
    monkeypatch.setattr(kernel_files, "folder", lambda: written)


@pytest.fixture
def emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedCuda]:
    """An emulated device."""
    monkeypatch.setenv("GPUCONV_CACHE_DIR", str(tmp_path / "cache"))
    with emulated_cuda(seed=3, async_order="random") as opened:
        yield opened


def numbers(rows: int, columns: int = 32, first: float = 0) -> Any:
    """Return an array on the device whose elements are distinct."""
    return gpuconv.to_device(np.arange(first, first + rows * columns, dtype=np.float32).reshape(rows, columns))


def assert_copied(y: Any, x: Any) -> None:
    np.testing.assert_array_equal(gpuconv.to_host(y), gpuconv.to_host(x))


@pytest.mark.emulator
def test_every_call_has_the_map_of_its_own_array(emulated: EmulatedCuda) -> None:
    arrays = [numbers(70, first=first) for first in range(5)]
    call = prepared(plan(70), arrays[0])
    for x in arrays:
        assert_copied(*call.run((x,), (None,)), x)
    assert [record.variant for record in emulated.launches] == [BY_MAP] * 5
    assert len({record.parameters[:8] for record in emulated.launches}) == 5, "all arrays lay elsewhere"


@pytest.mark.emulator
@pytest.mark.usefixtures("emulated")
def test_an_array_that_takes_the_place_of_another_one_is_read() -> None:
    x = numbers(70)
    call = prepared(plan(70), x)
    assert_copied(*call.run((x,), (None,)), x)
    x.set(gpuconv.to_host(numbers(70, first=9)))
    assert_copied(*call.run((x,), (None,)), x)


@pytest.mark.emulator
def test_views_are_read_at_their_elements(emulated: EmulatedCuda) -> None:
    x = numbers(80, 64)[5:75, 8:40]
    assert_copied(*prepared(plan(70, 64), x).run((x,), (None,)), x)
    assert emulated.launches[-1].variant == BY_MAP


@pytest.mark.emulator
def test_what_is_not_aligned_goes_another_way(emulated: EmulatedCuda) -> None:
    whole = numbers(70, 64)
    call = prepared(plan(70, 64), whole[:, :32])
    for first in (0, 3, 4, 17, 20):
        x = whole[:, first : first + 32]
        assert_copied(*call.run((x,), (None,)), x)
    kernels = [record.variant for record in emulated.launches]
    assert kernels == [BY_MAP, BY_ROW, BY_MAP, BY_ROW, BY_MAP]


@pytest.mark.emulator
@pytest.mark.usefixtures("emulated")
def test_out_is_written_whichever_way_the_call_goes() -> None:
    whole, out = numbers(70, 64), numbers(70)
    call = prepared(plan(70, 64), whole[:, :32], out)
    for first in (16, 1):
        x = whole[:, first : first + 32]
        assert call.run((x,), (out,))[0] is out
        assert_copied(out, x)


@pytest.mark.emulator
@pytest.mark.usefixtures("emulated")
def test_a_map_of_a_copy_in_the_workspace() -> None:
    for rows in (3, 70):
        x = numbers(rows)
        call = prepared(twice(rows), x)
        for _ in range(2):
            assert_copied(*call.run((x,), (None,)), x)


@pytest.mark.emulator
@pytest.mark.usefixtures("emulated")
def test_the_runtime_gives_a_thread_its_context() -> None:
    """A thread that has not called CuPy yet has none, and the driver encodes nothing."""
    encoder, address = device.tensor_map(ROWS), numbers(100, 64).data.ptr
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(encoder, address).result()[0] == address


# ---------------------------------------------------------------- what is launched


def map_words(parameters: bytes) -> list[int]:
    return list(memoryview(parameters).cast("Q")[:16])


def test_addresses_of_maps_and_pointers_are_the_calls(sent: Sent, driver: Library) -> None:
    x = sent.cupy.empty((70, 32), np.float32)
    call = prepared(plan(70), x)
    for array in (x, sent.cupy.empty((70, 32), np.float32), x):
        (y,) = call.run((array,), (None,))
        parameters = sent.launches[-1].parameters
        assert map_words(parameters) == [array.data.ptr, 2**64 - 1, *range(3, 17)]
        assert int.from_bytes(parameters[128:136], "little") == y.data.ptr
        assert int.from_bytes(parameters[136:140], "little") == 70
    assert len(driver.maps) == 2


def test_nothing_is_encoded_twice_for_one_address(sent: Sent, driver: Library) -> None:
    x = sent.cupy.empty((70, 32), np.float32)
    call = prepared(plan(70), x)
    with mock.patch.object(device, "parameters", wraps=device.parameters) as made:
        for _ in range(5):
            call.run((x,), (None,))
    assert (made.call_count, len(driver.maps)) == (1, 1)


def test_addresses_within_an_element_are_refused_as_ever(sent: Sent, driver: Library) -> None:
    x = sent.cupy.empty((71, 32), np.float32)
    call = prepared(plan(70), x[:70])
    with pytest.raises(ArgumentError, match="x is not aligned to its elements of 4 bytes"):
        call.run((sent.cupy.ndarray((70, 32), np.float32, x.data + 2),), (None,))


def test_a_captured_launch_keeps_its_map_whatever_comes_after(sent: Sent, driver: Library) -> None:
    """The driver has copied the parameters, and replaying a graph launches these bytes."""
    x, other = (sent.cupy.empty((70, 32), np.float32) for _ in range(2))
    call = prepared(twice(70), x)
    stream = sent.cupy.cuda.Stream(non_blocking=True)
    with stream, mock.patch.object(device, "_drop", side_effect=device._drop) as drop:
        stream.begin_capture()
        (y,) = call.run((x,), (None,))
        stream.end_capture()
    captured = sent.launches[-1].parameters
    assert map_words(captured)[0] == int.from_bytes(sent.launches[-2].parameters[8:16], "little"), "the copy of x"
    for array in (other, x, other):
        call.run((array,), (None,))
    gc.collect()
    assert drop.call_count == 0, "the workspace that the map leads to"
    assert map_words(captured)[0] not in {map_words(launch.parameters)[0] for launch in sent.launches[3::2]}
    del y
    gc.collect()
    assert drop.call_count == 1


def test_threads_do_not_share_maps(sent: Sent, driver: Library) -> None:
    count, calls = 8, 40
    barrier = Barrier(count)
    arrays = [sent.cupy.empty((70, 32), np.float32) for _ in range(count)]
    call = prepared(plan(70), arrays[0])

    def work(x: Any) -> list[tuple[int, int]]:
        barrier.wait()
        return [(x.data.ptr, call.run((x,), (None,))[0].data.ptr) for _ in range(calls)]

    with ThreadPoolExecutor(count) as pool:
        expected = [pair for pairs in pool.map(work, arrays) for pair in pairs]
    launched = [memoryview(launch.parameters).cast("Q") for launch in sent.launches]
    assert sorted((words[0], words[16]) for words in launched) == sorted(expected)


def test_plans_without_maps_ask_for_none(sent: Sent, driver: Library) -> None:
    x = sent.cupy.empty((70, 32), np.float32)
    with mock.patch.object(device, "tensor_map", side_effect=AssertionError("there is no map")):
        prepared(Plan("conv", (by_row(70, 32),), ()), x).run((x,), (None,))
    assert driver.maps == []


# ---------------------------------------------------------------- packed weights, and what comes after the sums


def weighted(aligned: bool) -> Plan:
    """Return a plan that packs w, then copies x; if x is not aligned, another launch copies it."""
    copy = by_map(70, 64) if aligned else by_row(70, 64)
    uses = replace(copy, roles={**copy.roles, "y" if aligned else "x": "packed"})
    launches = by_row(70, 32, "w", "packed"), uses
    return Plan("conv", launches, (), (Space.packed(70 * 128),))


def test_weights_packed_once_serve_arrays_of_any_alignment(sent: Sent, driver: Library) -> None:
    whole, w = sent.cupy.empty((70, 64), np.float32), sent.cupy.empty((70, 32), np.float32)
    made = replace(weighted(True), alignment=(("x", 16),), otherwise=lambda: weighted(False))
    results = [Result("y", "out", (70, 32), np.dtype(np.float32))]
    call = Prepared(0, made, {"x": whole[:, :32], "w": w}, {}, results, (None,))
    weights = PackedWeights("conv", w)
    for first in (0, 1, 8, 3):
        call.run_packed(weights, (whole[:, first : first + 32], w), (None,))
    assert [launch.name for launch in sent.launches] == ["row_copy", "map_copy", "row_copy", "map_copy", "row_copy"]


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
