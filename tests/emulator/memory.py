"""Arrays at made-up addresses, with nothing between them."""

from __future__ import annotations

import struct
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

NOTHING, UNWRITTEN, WRITTEN, READ_ONLY = range(4)  # of a byte; as in state.hpp
MAP_BYTES = 128
_GAP = 2**20  # bytes between arrays, which no kernel may touch
_ALIGNMENT = 512  # of what cudaMalloc gives
_HOST_ALIGNMENT = 16  # of what malloc gives: an array that has less is misaligned for kernels, too

_lock = threading.Lock()
_next_address = 0x7F00_0000_0000
_places: dict[int, tuple[weakref.ref[Any], int]] = {}  # of arrays that own memory


def _reserve(size: int) -> int:
    """Return a fresh address and take the bytes behind it, and a gap."""
    global _next_address
    with _lock:
        address = _next_address
        _next_address += -(-size // _ALIGNMENT) * _ALIGNMENT + _GAP
    return address


def _bounds(array: npt.NDArray[Any]) -> tuple[int, int]:
    if array.size:
        return np.lib.array_utils.byte_bounds(array)
    return array.ctypes.data, array.ctypes.data


def _owner(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    (low, high), (owner_low, owner_high) = _bounds(array), _bounds(owner)
    return owner if owner_low <= low and high <= owner_high else array


def _place(owner: npt.NDArray[Any]) -> int:
    """Return where kernels see the memory of an array that owns it: always at the same address."""
    number = id(owner)
    known = _places.get(number)
    if known is not None and known[0]() is owner:
        return known[1]
    low, high = _bounds(owner)
    address = _reserve(high - low) + low % _HOST_ALIGNMENT

    def forget(reference: weakref.ref[Any]) -> None:
        if _places.get(number, (None, 0))[0] is reference:
            del _places[number]

    _places[number] = weakref.ref(owner, forget), address
    return address


class Array:
    """An array that kernels see at a made-up address, with nothing around it.

    Views of one array keep their distances. The extent reaches from the lowest byte to the highest; between the
    elements there is nothing.

    Parameters
    ----------
    data : kept alive, and written by kernels in place.
    name : for messages.
    writable, initialised : what kernels may do, and whether what they read there has a value.

    Attributes
    ----------
    address : of the first element; it is not the start of the extent where strides are negative.
    base, size, host : the extent's start for kernels, its bytes, its start on the host.
    states : of every byte of the extent; None where all are written.
    """

    def __init__(self, data: npt.NDArray[Any], name: str, writable: bool = True, initialised: bool = True) -> None:
        self.data = data
        self.name = name
        self.writable = writable
        self.host, high = _bounds(data)
        self.size = high - self.host
        owner = _owner(data)
        self.base = _place(owner) + self.host - _bounds(owner)[0]
        self.address = self.base + data.ctypes.data - self.host
        self.part_of: Array | None = None
        self.states: npt.NDArray[np.uint8] | None = None
        if self.size != data.nbytes or not initialised:
            self.states = np.zeros(self.size, np.uint8)  # pages without elements cost nothing
            self.element_states()[...] = WRITTEN if initialised else UNWRITTEN

    @property
    def whole(self) -> Array:
        """The largest array that this one has become part of, which holds its states."""
        return self if self.part_of is None else self.part_of.whole

    def element_states(self) -> npt.NDArray[np.uint8]:
        """Return the states of the elements' bytes."""
        holder = self.whole
        if holder.states is None or not self.data.size:
            return np.full((*self.data.shape, self.data.itemsize), WRITTEN, np.uint8)
        shape, strides = (*self.data.shape, self.data.itemsize), (*self.data.strides, 1)
        return np.ndarray(shape, np.uint8, holder.states.data, self.address - holder.base, strides)

    def holds(self, address: int) -> bool:
        return address == self.address or self.base <= address < self.base + self.size

    def meets(self, other: Array) -> bool:
        return self.base < other.base + other.size and other.base < self.base + self.size


class Union(Array):
    """Arrays whose extents meet, as the one array that the engine needs."""

    def __init__(self, *parts: Array) -> None:
        lowest = min(parts, key=lambda part: part.base)
        self.part_of = None
        self.name = " and ".join(part.name for part in parts)
        self.writable = any(part.writable for part in parts)
        self.base, self.host = lowest.base, lowest.host
        self.size = max(part.base + part.size for part in parts) - self.base
        self.states = np.zeros(self.size, np.uint8)
        for part in parts:
            mine = self.states[part.base - self.base :][: part.size]
            states = np.full(part.size, WRITTEN, np.uint8) if part.states is None else part.states
            if not part.writable:
                states = np.where(states == WRITTEN, np.uint8(READ_ONLY), states)
            np.maximum(mine, states, out=mine)
            part.part_of = self


def empty(shape: int | Sequence[int], dtype: npt.DTypeLike, name: str) -> Array:
    """Return an array without values."""
    return Array(without_values(shape, dtype), name, initialised=False)


def without_values(shape: int | Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an array whose bytes are NaN in every floating-point type."""
    data = np.empty(shape, dtype)
    data.reshape(-1).view(np.uint8)[...] = 0xFF
    return data


class TensorMap(bytes):
    """128 bytes for a `__grid_constant__ CUtensorMap` parameter; async.hpp has the layout.

    Shapes and strides are outermost first, like NumPy's.

    Parameters
    ----------
    array : what the map describes.
    box : elements along every axis.
    swizzle : 0 (none), 1 (32 bytes), 2 (64 bytes) or 3 (128 bytes).
    steps : element strides.
    im2col : lower corner, upper corner (both W, H, D), channels and pixels, instead of a box.
    """

    array: Array

    def __new__(
        cls,
        array: Array,
        box: Sequence[int] | None = None,
        swizzle: int = 3,
        steps: Sequence[int] | None = None,
        im2col: tuple[Sequence[int], Sequence[int], int, int] | None = None,
    ) -> TensorMap:
        data = array.data
        if data.strides[-1] != data.itemsize:
            raise ValueError("the innermost dimension must be contiguous")
        encoded = encode_map(
            array.address,
            data.itemsize,
            data.shape[::-1],
            data.strides[-2::-1],
            (steps or (1,) * data.ndim)[::-1],
            swizzle,
            (box or (0,) * data.ndim)[::-1],
            im2col,
        )
        self = super().__new__(cls, encoded)
        self.array = array
        return self


def encode_map(
    address: int,
    itemsize: int,
    sizes: Sequence[int],
    strides: Sequence[int],
    steps: Sequence[int],
    swizzle: int,
    box: Sequence[int] = (),
    im2col: tuple[Sequence[int], Sequence[int], int, int] | None = None,
) -> bytes:
    """Return 128 bytes, all given innermost first; the checks are those of cuTensorMapEncodeTiled and …Im2col."""
    rank = len(sizes)
    if not (3 if im2col else 1) <= rank <= 5 or (len(strides), len(steps)) != (rank - 1, rank):
        raise ValueError("1 to 5 sizes, for im2col 3 to 5, with a stride less and as many element strides")
    if address % 16 or not all(1 <= size < 2**32 for size in sizes):
        raise ValueError("the address must be a multiple of 16 bytes, sizes 1..2**32-1")
    if any(stride % 16 or not 0 <= stride < 2**40 for stride in strides):
        raise ValueError("strides must be multiples of 16 bytes below 2**40")
    if not all(1 <= step <= 8 for step in steps):
        raise ValueError("element strides must be 1..8")
    _check_box(rank, itemsize, swizzle, box, im2col)
    lower, upper, channels, pixels = im2col or ((), (), 0, 0)
    encoded = struct.pack(
        "<IBBBBQ5II4Q5H5BB3h3hHH",
        *(0x70616D54, rank, itemsize, swizzle, im2col is not None, address),
        *(*_padded(sizes, 5), 0),
        *_padded(strides, 4),
        *_padded(box, 5),
        *(*_padded(steps, 5), 0),
        *(*_padded(lower, 3), *_padded(upper, 3), channels, pixels),
    )
    return encoded.ljust(MAP_BYTES, b"\0")


def _padded(values: Sequence[int], length: int) -> list[int]:
    return [*values, *[0] * length][:length]


def _check_box(rank: int, itemsize: int, swizzle: int, box: Sequence[int], im2col: Any) -> None:
    if im2col:
        lower, upper, inner, pixels = im2col
        limit = 1 << {3: 15, 4: 7, 5: 4}[rank]
        if inner > 256 or pixels > 1024:
            raise ValueError("at most 256 channels and 1024 pixels")
        if (len(lower), len(upper)) != (rank - 2, rank - 2):
            raise ValueError("corners have a number for each spatial axis")
        if not all(-limit <= corner < limit for corner in (*lower, *upper)):
            raise ValueError("corner out of range")
    else:
        inner = box[0]
        if len(box) != rank or not all(1 <= size <= 256 for size in box):
            raise ValueError("box dimensions must be 1..256")
    inner_bytes = inner * itemsize
    if inner_bytes % 16 or (swizzle and inner_bytes > 16 << swizzle):
        raise ValueError("inner box bytes must be a multiple of 16 and fit the swizzle span")
