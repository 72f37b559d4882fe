"""Launches that make channels contiguous, for TMA: a channels-last copy of x, and weights as rows of K.

Both are by ``conv/wgmma/channels_last.cu``. A row of K is a small image with channels last, whose pixels are the taps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from gpuconv.cuda.build import params, structs
from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.conv.gemm import fragments
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import RANK, Launch, strided
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import Ints

_VECTOR = 16  # bytes
_BUNDLES = 8  # vectors of channels of a pixel, that a block makes
_PIXELS = 112  # of a block, at most: wherever they begin, a warp copies two rows of 16-bit elements at once
_TILE_VECTORS = structs.constant("kTileVectors", "conv/wgmma/channels_last.cu")  # of a block, in shared memory
_RUNS, _SINGLY, _BUNDLED = range(3)
_AXES = ("image", "group", "channel")


@dataclass(frozen=True, slots=True)
class Planes:
    """What is moved: ``images`` x ``groups`` x ``channels`` planes of pixels. Strides count elements."""

    images: int
    groups: int
    channels: int  # of one group
    filled: int  # channels with the zeros behind them
    pixels: Ints  # extents
    x: Ints  # strides of images, groups and channels
    x_pixels: Ints
    y: Ints  # strides of images, groups, parts and pixels in order; channels have 1

    @property
    def extents(self) -> Ints:
        """How many images, groups and channels there are."""
        return self.images, self.groups, self.channels

    @property
    def all_pixels(self) -> int:
        """Pixels of one image."""
        return prod(self.pixels)


def of_x(problem: Problem, filled: int, parts: int, tickets: int = 0) -> Launch:
    """Return the launch that copies x with channels last: (N, pixels, group, parts, filled).

    ``filled`` are the channels of a part, with the zeros that follow C: in whole vectors of 16 bytes; ``parts`` are 2
    of 3xTF32, else 1. So many ``tickets`` at the workspace's beginning are set to zero besides.
    """
    problem = problem.lifted
    batch, channel, *pixel = problem.x_strides
    pixels = problem.x_shape[2:]
    row = problem.group * parts * filled
    planes = Planes(
        *(problem.batch, problem.group, problem.channels, filled, pixels),
        x=(batch, channel * problem.channels, channel),
        x_pixels=tuple(pixel),
        y=(prod(pixels) * row, parts * filled, filled, row),
    )
    return _launch(problem, "channels_last", planes, {"x": "x", "x_last": "x_last"}, tickets)


def of_weights(problem: Problem, filled: int, parts: int, tickets: int = 0) -> Launch:
    """Return the launch that packs weights: (group, parts, M, taps, filled). Parameters are those of :func:`of_x`."""
    problem = problem.lifted
    group, filters, channel, *taps = problem.w_strides
    row = prod(problem.taps) * filled
    part = problem.filters * row
    planes = Planes(
        *(problem.filters, problem.group, problem.channels, filled, problem.taps),
        x=(filters, group, channel),
        x_pixels=tuple(taps),
        y=(row, parts * part, part, filled),
    )
    return _launch(problem, "pack_rows", planes, {"x": "w", "x_last": "packed"}, tickets)


def x_bytes(problem: Problem, filled: int, parts: int) -> int:
    """Return the bytes of the copy of x."""
    return problem.batch * prod(problem.x_shape[2:]) * problem.group * parts * filled * problem.itemsize


def weight_bytes(problem: Problem, filled: int, parts: int) -> int:
    """Return the bytes of the packed weights."""
    return problem.group * parts * problem.filters * prod(problem.taps) * filled * problem.itemsize


def _launch(problem: Problem, name: str, planes: Planes, roles: Mapping[str, str], tickets: int) -> Launch:
    """Return the launch that moves these planes; ``roles`` maps the struct's two pointers to the arrays' names."""
    chosen = variant(name, problem.dtype, problem.precision)
    planes = _together(planes)
    size = _VECTOR // problem.itemsize
    channel_tiles = -(-planes.filled // (_BUNDLES * size))
    images, pixels = _tile(planes, size)
    pixel_tiles, image_tiles = -(-planes.all_pixels // pixels), -(-planes.images // images)
    own = min(pixels, planes.all_pixels)
    pitches = [-(-own // size), _vectors(own, size)]
    fields = {
        **params.members(planes, "images", "groups", "channels", "filled"),
        "pixels": planes.all_pixels,
        **{f"x_{axis}": stride for axis, stride in zip(_AXES, planes.x, strict=True)},
        "x_pixel": strided.filled(planes.x_pixels, RANK, 0),
        "extent": strided.filled(planes.pixels, RANK, 1),
        "way": _way(planes),
        **_run(planes),
        **{f"y_{axis}": stride for axis, stride in zip(("image", "group", "part", "pixel"), planes.y, strict=True)},
        "tile_images": images,
        "tile_pixels": pixels,
        "pitch": pitches,
        "lanes": [(pitch - 1).bit_length() for pitch in pitches],
        "channel_tiles": channel_tiles,
        "pixel_tiles": pixel_tiles,
        "by_image": own,
        "tickets": {"count": tickets},
    }
    if tickets:
        roles = {**roles, "tickets.first": "workspace"}
    blocks = image_tiles * pixel_tiles * planes.groups * channel_tiles
    return Launch.of_blocks(problem.operator, chosen, blocks, fields, roles)


def _together(planes: Planes) -> Planes:
    """Return the same planes with as few axes of pixels as there can be, without strides of axes of one element.

    Images whose pixels continue those of the one before are one image, as in the weights of ConvTranspose.
    """
    x = tuple(stride if extent > 1 else 0 for extent, stride in zip(planes.extents, planes.x, strict=True))
    together = (planes.images, *planes.pixels), (x[0], *planes.x_pixels)
    extents, (strides,) = strided.collapsed_together(*together)
    if len(extents) <= 1 and planes.y[0] == planes.all_pixels * planes.y[-1]:
        return replace(planes, images=1, pixels=tuple(extents), x=(0, *x[1:]), x_pixels=tuple(strides))
    extents, (strides,) = strided.collapsed_together(planes.pixels, planes.x_pixels)
    return replace(planes, pixels=tuple(extents), x=x, x_pixels=tuple(strides))


def _way(planes: Planes) -> int:
    if planes.x[2] == 1:
        return _BUNDLED
    return _RUNS if planes.x_pixels in ((), (1,)) else _SINGLY


def _vectors(pixels: int, size: int) -> int:
    """Return how many vectors pixels lie in at most, wherever the first one is."""
    return (pixels + 2 * size - 2) // size


def _tile(planes: Planes, size: int) -> tuple[int, int]:
    """Return the images and pixels of a block: several whole images, or a part of one, in whole sectors of a row."""
    count, way = planes.all_pixels, _way(planes)
    if count > _PIXELS:
        tiles = -(-count // _PIXELS)
        return 1, -(-count // (tiles * 2 * size)) * 2 * size
    if way == _RUNS and planes.x[0] % size:  # images begin at different places between vectors
        return 1, count
    room = _TILE_VECTORS // _BUNDLES
    images = _PIXELS // count if way == _BUNDLED else room // (size * _vectors(count, size) + 1)
    return max(1, min(images, planes.images)), count


def _run(planes: Planes) -> dict[str, int]:
    """Return how long a run of neighbours is, and where in its run a plane begins.

    A run is a plane, several that follow each other, or x. What lies between runs is none of x's, and is not read.
    """
    run, left = planes.all_pixels, {axis: steps for axis, *steps in zip(_AXES, planes.extents, planes.x, strict=True)}
    begins = dict.fromkeys(_AXES, 0)
    while found := [axis for axis, (extent, stride) in left.items() if extent > 1 and stride == run]:
        extent, begins[found[0]] = left.pop(found[0])
        run *= extent
    return {"run": run, **{f"run_{axis}": stride for axis, stride in begins.items()}}


# ---------------------------------------------------------------- variants


_KERNEL = Kernel("conv/wgmma/channels_last.cu", "channels_last", "ChannelsLastParams", threads=128, blocks_per_sm=8)


def variant(name: str, dtype: str, precision: str) -> Variant:
    """Return the kernel for elements of a type in a precision; ``name`` says in profilers what it moves."""
    kernel, arithmetic = replace(_KERNEL, name=name), fragments.ARITHMETICS[dtype, precision]
    if dtypes.entry(dtype).itemsize == 2:
        return kernel.over("16bit", RANK, types=("Copied16",))
    return kernel.over(dtype, RANK, arithmetic.label, types=(arithmetic.cuda,))


def variants() -> Iterator[Variant]:
    for dtype, precision in (("float16", "ieee"), ("float32", "tf32"), ("float32", "3xtf32")):
        yield variant("channels_last", dtype, precision)
        yield variant("pack_rows", dtype, precision)
