"""Encodes TMA tensor maps with the CUDA driver (cuTensorMapEncode…) and caches them by address.

A map contains its array's address, so each call needs maps of its own arrays. A map is a pure function of description
and address, so cached maps never become stale.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from gpuconv._errors import DeviceError
from gpuconv.cuda.plan import TensorMap
from gpuconv.rules import dtypes

WORDS = 16  # 8-byte words per map
_ALIGNMENT = 64  # bytes: alignment of the driver's output
_MOST_KEPT = 64  # cached maps per description
# CUtensorMapDataType; float32 unrounded: whoever writes it rounds to TF32
_DTYPES = {"float16": 6, "float32": 7, "bfloat16": 9}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
_NO_INTERLEAVE, _PROMOTE_TO_128_BYTES, _FILL_WITH_ZEROS = 0, 2, 0

# Drivers up to this version set a bit for arrays of less than 128 KiB with which TMA copies fault; it is cleared.
_LAST_WITH_SMALL = 13010
_SMALL, _WORD_OF_SMALL, _BIT_OF_SMALL = 2**17, 1, 1 << 21

_ENUM, _U32, _ADDRESS = ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p
_U32S, _U64S, _INTS = ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_int)
_ARRAY = [_ADDRESS, _ENUM, _U32, _ADDRESS, _U64S, _U64S]  # map, dtype, rank, address, sizes, strides
_LOADING = [_ENUM, _ENUM, _ENUM, _ENUM]  # interleave, swizzle, L2 promotion, out-of-bounds fill
_SIGNATURES: dict[str, list[Any]] = {
    "cuTensorMapEncodeTiled": [*_ARRAY, _U32S, _U32S, *_LOADING],
    "cuTensorMapEncodeIm2col": [*_ARRAY, _INTS, _INTS, _U32, _U32, _U32S, *_LOADING],
    "cuDriverGetVersion": [_INTS],
    "cuGetErrorName": [_ENUM, ctypes.POINTER(ctypes.c_char_p)],
}


@dataclass(frozen=True, slots=True)
class Driver:
    """The loaded driver library and its version."""

    library: Any
    version: int

    def error_name(self, code: int) -> str:
        """Return the driver's name for an error code."""
        name = ctypes.c_char_p()
        known = self.library.cuGetErrorName(code, ctypes.byref(name)) == 0 and name.value is not None
        return name.value.decode() if known and name.value else f"error {code}"


def load() -> Any:
    """Load the driver library, which any process with a device has loaded already."""
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


@cache
def driver() -> Driver:
    """Return the driver; DeviceError if it is too old for tensor maps, or does not report its version."""
    try:
        library = load()
        for name, arguments in _SIGNATURES.items():
            getattr(library, name).argtypes = arguments
    except (OSError, AttributeError) as error:
        raise DeviceError(f"the CUDA driver does not encode tensor maps: {error}") from error
    version = ctypes.c_int()
    code = library.cuDriverGetVersion(ctypes.byref(version))
    loaded = Driver(library, version.value)
    if code:
        raise DeviceError(f"the CUDA driver does not report its version: {loaded.error_name(code)}")
    return loaded


class Encoder:
    """Encodes one description for arrays at any addresses, and caches recent maps.

    ``attach`` makes the device's context current in a thread that has none yet.
    """

    __slots__ = ("_attach", "_described", "_encode", "_kept", "_small")

    def __init__(self, described: TensorMap, attach: Callable[[], Any]) -> None:
        self._described = described
        self._attach = attach
        self._kept: dict[int, memoryview] = {}
        self._encode = _bound(described, driver())
        self._small = driver().version <= _LAST_WITH_SMALL and _nbytes(described) < _SMALL

    def __call__(self, address: int) -> memoryview:
        """Return the map's words; DeviceError if the driver refuses."""
        encoded = self._kept.get(address)
        if encoded is None:
            encoded = self._encoded(address)
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[address] = encoded
        return encoded

    def _encoded(self, address: int) -> memoryview:
        """Encode the map for an address."""
        room = ctypes.create_string_buffer(8 * WORDS + _ALIGNMENT)
        before = -ctypes.addressof(room) % _ALIGNMENT
        code = self._encode(ctypes.addressof(room) + before, address)
        if code == _NO_CONTEXT:
            self._attach()
            code = self._encode(ctypes.addressof(room) + before, address)
        if code:
            name = driver().error_name(code)
            raise DeviceError(f"the CUDA driver refused to encode {self._described} for address {address:#x}: {name}")
        words = memoryview(bytearray(room.raw[before:][: 8 * WORDS])).cast("Q")
        if self._small:
            words[_WORD_OF_SMALL] &= ~_BIT_OF_SMALL
        return words.toreadonly()


def _bound(described: TensorMap, driver: Driver) -> Callable[[int, int], int]:
    """Return a function (output address, array address) → driver status that encodes the description."""
    dtype, rank = _DTYPES[described.dtype], len(described.sizes)
    sizes = _array(ctypes.c_uint64, described.sizes)
    strides = _array(ctypes.c_uint64, described.strides)
    steps = _array(ctypes.c_uint32, described.steps)
    loading = _NO_INTERLEAVE, _SWIZZLES[described.swizzle], _PROMOTE_TO_128_BYTES, _FILL_WITH_ZEROS
    rest: tuple[Any, ...]
    if described.box:
        function = driver.library.cuTensorMapEncodeTiled
        rest = _array(ctypes.c_uint32, described.box), steps, *loading
    else:
        function = driver.library.cuTensorMapEncodeIm2col
        corners = _array(ctypes.c_int, described.lower), _array(ctypes.c_int, described.upper)
        rest = *corners, described.channels, described.pixels, steps, *loading

    def encode(room: int, address: int) -> int:
        """Write the CUtensorMap of the array at ``address`` to the host address ``room``; return the CUresult."""
        code: int = function(room, dtype, rank, address, sizes, strides, *rest)
        return code

    return encode


def _array(kind: Any, values: Sequence[int]) -> Any:
    """Return a ctypes array of these values."""
    return (kind * len(values))(*values)


def _nbytes(described: TensorMap) -> int:
    """Return the bytes from the array's first element to the end of its last."""
    strides = (dtypes.entry(described.dtype).itemsize, *described.strides)
    between = zip(described.sizes, strides, strict=True)
    return sum((size - 1) * stride for size, stride in between) + strides[0]
