"""Probes of mbarriers, setmaxnreg and TMA copies, compared with NumPy indexing.

Arrays hold random bits, so that a copy that changed any bit, or flushed a subnormal number, would be noticed. The
driver encodes the tensor maps, as for the kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from benchmarks.probes.launch import Device, Mapped, Program, Result
from benchmarks.probes.numbers import swizzled
from benchmarks.probes.probe import Comparison, Probe
from gpuconv.cuda.plan.launch import TensorMap

Ints = tuple[int, ...]
HOPPER = ("sm_90a",)
_DTYPES = {"float16": np.uint16, "bfloat16": np.uint16, "float32": np.uint32}


def _random_bits(dtype: str, shape: Ints, seed: int) -> Any:
    """Return random non-zero bit patterns; shapes are outermost first."""
    size = np.dtype(_DTYPES[dtype]).itemsize
    found = np.random.default_rng(seed).integers(1, 2 ** (8 * size), shape, np.uint64)
    return found.astype(_DTYPES[dtype])


def _described(array: Any, dtype: str, **fields: Any) -> Mapped:
    strides = tuple(int(stride) for stride in array.strides[-2::-1])
    steps = fields.pop("steps", (1,) * array.ndim)
    return Mapped(array, TensorMap("x", "x_map", dtype, tuple(array.shape[::-1]), strides, steps, **fields))


def _dumped(device: Device, kernel: str, mapped: Mapped, places: Sequence[Ints], nbytes: int) -> Any:
    numbers = np.zeros((len(places), 8), np.int32)
    for row, place in zip(numbers, places, strict=True):
        row[: len(place)] = place
    arguments = [mapped, Result((len(places), nbytes), np.uint8), numbers, len(places), nbytes]
    (got,) = device.run(Program("tma", kernel), 128, arguments, shared_bytes=nbytes + 8)
    return got


# ---------------------------------------------------------------- tiled mode: boxes


def box_of(array: Any, corner: Ints, extents: Ints) -> Any:
    """Return a box of an array, zero where it is out of bounds; corner and extents are innermost first."""
    axes = zip(corner[::-1], extents[::-1], array.shape, strict=True)
    index = np.ix_(*(np.arange(begin, begin + extent) for begin, extent, _ in axes))
    inside = np.ones(extents[::-1], bool)
    for places, size in zip(index, array.shape, strict=True):
        inside = inside & (places >= 0) & (places < size)
    clipped = tuple(np.clip(places, 0, size - 1) for places, size in zip(index, array.shape, strict=True))
    return np.where(inside, array[clipped], array.dtype.type(0))


def _boxes(dtype: str, shape: Ints, box: Ints, swizzle: int, corners: Sequence[Ints], padding: int = 0) -> Any:
    """Return the run of a box probe; ``padding`` is the number of elements between two rows."""

    def run(device: Device) -> Iterator[Comparison]:
        whole = _random_bits(dtype, (*shape[:-1], shape[-1] + padding), 31)
        array = whole[..., : shape[-1]]
        mapped = Mapped(whole, _described(array, dtype, box=box, swizzle=swizzle).described)
        nbytes = int(np.prod(box)) * array.itemsize
        got = _dumped(device, f"boxes_{len(box)}", mapped, corners, nbytes)
        for corner, dumped in zip(corners, got, strict=True):
            yield f"box at {corner}", swizzled(box_of(array, corner, box), swizzle), dumped

    return run


# ---------------------------------------------------------------- im2col mode: pixels


def pixels_of(array: Any, described: TensorMap, place: Ints) -> Any:
    """Return the pixels that an im2col copy loads, shape (pixels, channels).

    They start at a position in the bounding box and follow each other, W first, then H and D, then the next image, with
    the map's steps. The box extends from the lower corner to the upper one, which counts from the last pixel of an
    image. Each load is shifted by the offsets of a tap. Out-of-bounds elements are zero.
    """
    axes = len(described.lower)
    channel, start, image, offset = place[0], place[1 : 1 + axes], place[1 + axes], place[2 + axes : 2 + 2 * axes]
    spatial = described.sizes[1 : 1 + axes]
    ranges = [
        range(low, size + high, step)
        for low, high, size, step in zip(
            described.lower, described.upper, spatial, described.steps[1 : 1 + axes], strict=True
        )
    ]
    in_image = list(product(*ranges[::-1]))  # outermost first
    first = in_image.index(tuple(start[::-1]))
    result = np.zeros((described.pixels, described.channels), array.dtype)
    for row in range(described.pixels):
        images, pixel = divmod(first + row, len(in_image))
        at = (image + images, *(base + shift for base, shift in zip(in_image[pixel], offset[::-1], strict=True)))
        if all(0 <= index < size for index, size in zip(at, array.shape[:-1], strict=True)):
            found = array[at][channel : channel + described.channels]
            result[row, : len(found)] = found
    return result


def _pixels(dtype: str, shape: Ints, lower: Ints, upper: Ints, steps: Ints, pixels: int, places: Sequence[Ints]) -> Any:
    """Return the run of an im2col probe; corners, steps and places are innermost first."""

    def run(device: Device) -> Iterator[Comparison]:
        array = _random_bits(dtype, shape, 32)
        fields = {"lower": lower, "upper": upper, "channels": 128 // array.itemsize, "pixels": pixels}
        mapped = _described(array, dtype, steps=(1, *steps, 1), **fields)
        got = _dumped(device, f"pixels_{len(lower)}", mapped, places, pixels * 128)
        for place, dumped in zip(places, got, strict=True):
            yield f"pixels from {place}", swizzled(pixels_of(array, mapped.described, place), 128), dumped

    return run


# ---------------------------------------------------------------- mbarriers and registers

_ROUNDS, _STAGE = 20, 2048


def _read(stages: Any) -> Any:
    """Return the running sums of the 256 readers after each stage."""
    words = stages.reshape(len(stages), 8, 256)
    sums, result = np.zeros(256, np.uint32), []
    for stage in words:
        for row in stage:
            sums = sums * np.uint32(5) + row
        result.append(sums)
    return np.stack(result)


def _stored(device: Device) -> Iterator[Comparison]:
    x = np.random.default_rng(33).integers(0, 2**32, (_ROUNDS, _STAGE), np.uint32)
    arguments = [x, Result((_ROUNDS, 256)), _ROUNDS]
    (got,) = device.run(Program("tma", "ring_of_stores"), 288, arguments, shared_bytes=3 * _STAGE * 4 + 48)
    yield "what readers found", _read(x), got


def _copied(device: Device) -> Iterator[Comparison]:
    array = _random_bits("float32", (1, 1, 64, 32), 34)
    arguments = [_described(array, "float32", box=(32, 32, 1, 1), swizzle=0), Result((_ROUNDS, 256)), _ROUNDS]
    (got,) = device.run(Program("tma", "ring_of_copies"), 288, arguments, shared_bytes=3 * _STAGE * 4 + 48)
    halves = [[box_of(array, (0, i * 3 % 61 + more, 0, 0), (32, 32, 1, 1)) for more in (0, 5)] for i in range(_ROUNDS)]
    yield "what readers found", _read(np.array(halves)), got


def _registers(device: Device) -> Iterator[Comparison]:
    x, rounds, count = np.random.default_rng(35).integers(0, 2**32, 384, np.uint32), 5, 208
    arguments = [x, Result((device.blocks, 384)), rounds]
    (got,) = device.run(Program("tma", "registers"), 384, arguments, grid=device.blocks)
    held = [x[(np.arange(256) + i * 7) % 384] for i in range(count)]
    for _ in range(rounds):
        for i in range(count):
            held[i] = held[i] * np.uint32(3) + held[(i + 1) % count]
    sums = np.zeros(256, np.uint32)
    for one in held:
        sums = sums * np.uint32(31) + one
    block = np.concatenate((sums, x[256:] + np.uint32(1)))
    yield "what threads computed", np.broadcast_to(block, (device.blocks, 384)), got


# ---------------------------------------------------------------- the probes


def _probe(name: str, kernel: str, run: Any) -> Probe:
    return Probe(name, run, (Program("tma", kernel),), HOPPER)


_IN_ROWS = [
    (0, 0, 0, 0, 0),
    (64, 2, 0, 32, 1),
    (-3, -1, 0, 0, 0),
    (100, 5, 0, 48, 1),
    (-64, 0, 0, 0, 0),
    (8, 1, 0, 64, 2),
]
_IN_PATCHES = [
    (0, 0, 0, 0, 0),
    (64, -1, -1, 0, 1),
    (32, 13, 4, -1, 0),
    (72, -20, 0, 0, 0),
    (0, 3, -3, 1, 2),
    (8, -1, 6, 1, 1),
]
# Channel, tap, filter, group; the last box of channels is only partly in bounds.
_OF_WEIGHTS = [(0, 0, 0, 0), (64, 2, 32, 1), (0, 4, 64, 2), (32, 1, -8, 0), (0, 0, 0, 3), (64, 4, 0, 0)]

# Bounding boxes (lower, upper corner), steps and places of: a 3 x 3 Conv with pads and strides of 1; one with strides
# that do not divide the extent; and phases of a ConvTranspose. Places: channel, W, H, image, offsets along W and H.
_CONV = (
    (-1, -1),
    (-1, -1),
    (1, 1),
    [(0, -1, -1, 0, 0, 0), (0, -1, -1, 0, 2, 1), (64, 5, 3, 0, 1, 2), (0, 9, 6, 1, 2, 2), (8, 0, 6, 1, 0, 2)],
)
_STRIDED = (
    (-2, -1),
    (-3, -2),
    (3, 2),
    [(0, -2, -1, 0, 0, 0), (0, 4, 3, 0, 1, 1), (64, 1, 5, 1, 4, 2), (0, 7, 5, 1, 4, 2), (0, -2, 3, 0, 3, 0)],
)
_TRANSPOSED = (
    (-1, 0),
    (1, -1),
    (1, 1),
    [(0, -1, 0, 0, 0, 0), (0, -1, 0, 0, 1, 1), (0, 4, 3, 0, 1, 0), (64, 12, 6, 1, 0, 1), (0, 12, 7, 0, 1, 1)],
)


def _planes(name: str, dtype: str, case: Any) -> Probe:
    lower, upper, steps, places = case
    return _probe(name, "pixels_2", _pixels(dtype, (2, 9, 12, 72), lower, upper, steps, 128, places))


PROBES = (
    _probe("mbarrier: a ring of ordinary stores", "ring_of_stores", _stored),
    _probe("setmaxnreg", "registers", _registers),
    _probe("TMA boxes, no swizzle", "boxes_5", _boxes("float32", (2, 40, 3, 7, 112), (32, 5, 1, 32, 1), 0, _IN_ROWS)),
    _probe(
        "TMA boxes of rows, 128 bytes",
        "boxes_5",
        _boxes("bfloat16", (2, 70, 3, 7, 112), (64, 1, 1, 64, 1), 128, _IN_ROWS),
    ),
    _probe(
        "TMA boxes of patches, 128 bytes",
        "boxes_5",
        _boxes("float16", (2, 3, 7, 20, 80), (64, 16, 5, 1, 1), 128, _IN_PATCHES),
    ),
    _probe(
        "TMA boxes of patches, 64 bytes",
        "boxes_5",
        _boxes("float16", (2, 3, 7, 20, 80), (32, 16, 5, 1, 1), 64, _IN_PATCHES),
    ),
    _probe(
        "TMA boxes of float32, 128 bytes",
        "boxes_5",
        _boxes("float32", (2, 3, 7, 20, 80), (32, 16, 5, 1, 1), 128, _IN_PATCHES),
    ),
    _probe(
        "TMA boxes of weights, 128 bytes",
        "boxes_4",
        _boxes("bfloat16", (3, 100, 5, 72), (64, 1, 128, 1), 128, _OF_WEIGHTS),
    ),
    _probe(
        "TMA boxes of weights, 64 bytes",
        "boxes_4",
        _boxes("float16", (3, 100, 5, 72), (32, 1, 128, 1), 64, _OF_WEIGHTS),
    ),
    _probe(
        "TMA boxes with a pitch",
        "boxes_4",
        _boxes("float16", (3, 20, 5, 72), (64, 1, 64, 1), 128, _OF_WEIGHTS, padding=24),
    ),
    _probe("mbarrier: a ring of TMA copies", "ring_of_copies", _copied),
    _planes("TMA im2col of a Conv", "float16", _CONV),
    _planes("TMA im2col with strides", "bfloat16", _STRIDED),
    _planes("TMA im2col of phases of a ConvTranspose", "float16", _TRANSPOSED),
    _planes("TMA im2col of float32", "float32", (*_CONV[:3], [(0, -1, -1, 0, 0, 0), (64, 9, 6, 1, 2, 2)])),
    _probe(
        "TMA im2col along one axis",
        "pixels_1",
        _pixels(
            "bfloat16",
            (3, 37, 72),
            (-5,),
            (-4,),
            (2,),
            128,
            [(0, -5, 0, 0), (0, 7, 1, 9), (64, 31, 2, 4), (0, 1, 2, 6)],
        ),
    ),
    _probe(
        "TMA im2col along three axes",
        "pixels_3",
        _pixels(
            "float16",
            (2, 5, 6, 7, 72),
            (-1, 0, -2),
            (-1, -2, 0),
            (1, 2, 3),
            256,
            [(0, -1, 0, -2, 0, 0, 0, 0), (0, 3, 2, 1, 0, 2, 1, 2), (64, 5, 2, 4, 1, 1, 2, 0), (0, 0, 0, 4, 0, 0, 2, 1)],
        ),
    ),
    _probe(
        "TMA im2col of a large array",
        "pixels_2",
        _pixels(
            "float16", (3, 40, 50, 64), (-1, -1), (-1, -1), (1, 1), 256, [(0, 40, 37, 0, 1, 1), (0, 47, 37, 2, 2, 2)]
        ),
    ),
)
