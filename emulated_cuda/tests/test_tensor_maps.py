"""Tensor maps, by the driver's documentation of cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.gpu

INVALID_VALUE, INVALID_CONTEXT = 1, 201
FLOAT32 = 7
NONE, BYTES_32, BYTES_64, BYTES_128 = range(4)  # CU_TENSOR_MAP_SWIZZLE_…


class Tiled(NamedTuple):
    """Arguments of cuTensorMapEncodeTiled, innermost first: by default 8 x 16 floats in boxes of 4 x 8."""

    sizes: tuple[int, ...] = (16, 8)
    strides: tuple[int, ...] = (64,)
    box: tuple[int, ...] = (8, 4)
    steps: tuple[int, ...] = (1, 1)
    swizzle: int = NONE
    offset: int = 0


class Im2col(NamedTuple):
    """Arguments of cuTensorMapEncodeIm2col: by default 2 images of 6 x 5 pixels, 8 channels, for a 3 x 3 filter.

    The corners -1 are those of a filter with a padding of one pixel on each side.
    """

    sizes: tuple[int, ...] = (8, 5, 6, 2)
    strides: tuple[int, ...] = (32, 160, 960)
    lower: tuple[int, ...] = (-1, -1)
    upper: tuple[int, ...] = (-1, -1)
    channels: int = 8
    pixels: int = 16
    steps: tuple[int, ...] = (1, 1, 1, 1)


@pytest.fixture
def driver(cuda: Any) -> Any:
    if int(cuda.cupy.cuda.Device().compute_capability) < 90:
        pytest.skip("maps of tensors are for compute capability 9.0 and newer")
    cuda.runtime.free(0)
    return ctypes.CDLL("libcuda.so.1")


@pytest.fixture
def x(cuda: Any) -> Any:
    return cuda.cupy.zeros(2048, "f")


def words(kind: Any, values: tuple[int, ...]) -> Any:
    return (kind * len(values))(*values)


def room() -> Any:
    """Return the address of memory for a tensor map, aligned to 64 bytes, and the object that owns the memory."""
    memory = ctypes.create_string_buffer(192)
    return ctypes.c_void_p(-(-ctypes.addressof(memory) // 64) * 64), memory


def encode(driver: Any, x: Any, what: Tiled | Im2col) -> int:
    """Encode a tensor map of x, and return the driver's error code."""
    place, _memory = room()
    address = ctypes.c_void_p(x.data.ptr + (what.offset if isinstance(what, Tiled) else 0))
    begin = (place, FLOAT32, len(what.sizes), address)
    shape = (words(ctypes.c_uint64, what.sizes), words(ctypes.c_uint64, what.strides))
    steps = words(ctypes.c_uint32, what.steps)
    if isinstance(what, Tiled):
        box = words(ctypes.c_uint32, what.box)
        return int(driver.cuTensorMapEncodeTiled(*begin, *shape, box, steps, 0, what.swizzle, 0, 0))
    corners = words(ctypes.c_int, what.lower), words(ctypes.c_int, what.upper)
    return int(driver.cuTensorMapEncodeIm2col(*begin, *shape, *corners, what.channels, what.pixels, steps, 0, 0, 0, 0))


TILED = {
    "as usual": (Tiled(), True),
    "the address is a multiple of 16 bytes": (Tiled(offset=4), False),
    "strides are multiples of 16 bytes": (Tiled(strides=(68,)), False),
    "strides are below 2**40": (Tiled(strides=(2**40,)), False),
    "sizes are not 0": (Tiled(sizes=(16, 0)), False),
    "sizes are up to 2**32": (Tiled(sizes=(16, 2**32 + 1)), False),
    "boxes have 256 elements along an axis": (Tiled(sizes=(16, 512), box=(8, 256)), True),
    "boxes have no more than 256 elements along an axis": (Tiled(sizes=(16, 512), box=(8, 257)), False),
    "boxes are not empty": (Tiled(box=(8, 0)), False),
    "a box's rows are multiples of 16 bytes": (Tiled(box=(7, 4)), False),
    "rows of 32 bytes are swizzled by 32": (Tiled(swizzle=BYTES_32), True),
    "rows of 64 bytes are not swizzled by 32": (Tiled(box=(16, 4), swizzle=BYTES_32), False),
    "rows of 64 bytes are swizzled by 64": (Tiled(box=(16, 4), swizzle=BYTES_64), True),
    "rows of 128 bytes are swizzled by 128": (Tiled((32, 8), (128,), (32, 4), swizzle=BYTES_128), True),
    "elements are up to 8 apart": (Tiled(steps=(1, 8)), True),
    "elements are not more than 8 apart": (Tiled(steps=(1, 9)), False),
    "elements are not 0 apart": (Tiled(steps=(1, 0)), False),
    "5 axes": (Tiled((8,) * 5, (32, 256, 2048, 16384), (8, 1, 1, 1, 1), (1,) * 5), True),
    "6 axes": (Tiled((8,) * 6, (32, 256, 2048, 16384, 16384), (8, 1, 1, 1, 1, 1), (1,) * 6), False),
}
IM2COL = {
    "as usual": (Im2col(), True),
    "256 channels at most": (Im2col(channels=257), False),
    "1024 pixels at most": (Im2col(pixels=1025), False),
    "some pixels": (Im2col(pixels=0), False),
    "corners of 8 bits for two axes": (Im2col(lower=(-129, 0)), False),
    "corners leave room": (Im2col(lower=(0, 0), upper=(-5, 0)), False),
    "3 axes": (Im2col((8, 5, 2), (32, 160), (-1,), (-1,), 8, 16, (1, 1, 1)), True),
    "2 axes": (Im2col((8, 5), (32,), (), (), 8, 16, (1, 1)), False),
}


@pytest.mark.parametrize(("what", "fits"), TILED.values(), ids=TILED)
def test_tiled(driver: Any, x: Any, what: Tiled, fits: bool) -> None:
    assert encode(driver, x, what) == (0 if fits else INVALID_VALUE)


@pytest.mark.parametrize(("what", "fits"), IM2COL.values(), ids=IM2COL)
def test_im2col(driver: Any, x: Any, what: Im2col, fits: bool) -> None:
    assert encode(driver, x, what) == (0 if fits else INVALID_VALUE)


def test_the_same_map_has_the_same_bytes(driver: Any, x: Any) -> None:
    maps = []
    for sizes in ((16, 8), (16, 8), (16, 7)):
        place, _memory = room()
        arguments = (words(ctypes.c_uint64, sizes), words(ctypes.c_uint64, (64,)), words(ctypes.c_uint32, (8, 4)))
        address = ctypes.c_void_p(x.data.ptr)
        steps = words(ctypes.c_uint32, (1, 1))
        assert driver.cuTensorMapEncodeTiled(place, FLOAT32, 2, address, *arguments, steps, 0, 0, 0, 0) == 0
        maps.append(ctypes.string_at(place.value or 0, 128))
    assert maps[0] == maps[1] != maps[2]


@pytest.mark.usefixtures("emulated")
def test_201_a_thread_without_a_context_makes_no_maps(driver: Any, x: Any) -> None:
    """NVIDIA documents CUDA_ERROR_INVALID_CONTEXT; clients may call from any thread."""
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(encode, driver, x, Tiled()).result() == INVALID_CONTEXT
