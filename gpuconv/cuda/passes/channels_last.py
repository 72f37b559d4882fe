"""Transposition to channels-last with zero-padded channels (``passes/channels_last.cu``): plans and tiles.

Used before kernels that need contiguous channels in whole 16-byte vectors. The source may have any strides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from gpuconv.cuda.build import params, structs
from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.plan import RANK, Launch, strided
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import Ints

_VECTOR = 16  # bytes per vector
_BUNDLES = 8  # vectors of channels per pixel that a block writes
# Limits per block on pixels, and on vectors per row of pixels. At any alignment, a warp then copies two rows of 16-bit
# elements at once, or one of wider elements.
_PIXELS, _ROW_VECTORS = 112, 30
_TILE_VECTORS = structs.constant("kTileVectors", "passes/channels_last.cu")  # vectors of shared memory per block
_RUNS, _SINGLY, _BUNDLED = range(3)
_AXES = ("image", "group", "channel")


@dataclass(frozen=True, slots=True)
class Planes:
    """The planes to move: ``images`` × ``groups`` × ``channels`` planes of ``pixels``; strides are in elements."""

    images: int
    groups: int
    channels: int  # per group
    filled: int  # channels per group with zero padding
    pixels: Ints  # spatial extents
    x: Ints  # strides of x: image, group, channel
    x_pixels: Ints
    y: Ints  # strides of y: image, group, part, and from pixel to pixel; channels have stride 1

    @property
    def extents(self) -> Ints:
        """Numbers of images, groups and channels."""
        return self.images, self.groups, self.channels

    @property
    def all_pixels(self) -> int:
        """Pixels per image."""
        return prod(self.pixels)


def copy(
    operator: str, dtype: str, shape: Ints, strides: Ints, group: int, filled: int, roles: Mapping[str, str]
) -> Launch:
    """Return the launch that copies (N, group × C, D1, D2, D3) to (N, pixels, group, filled), bit by bit.

    Parameters
    ----------
    shape, strides : tuple of int
        Of the source, strides in elements; up to three spatial axes.
    filled : int
        Channels per group including zero padding; a multiple of 16 bytes.
    roles : mapping of str to str
        The arrays that the pointers "x" and "x_last" refer to.
    """
    (batch, channels, *pixels), (image, channel, *steps) = shape, strides
    row = group * filled
    planes = Planes(
        *(batch, group, channels // group, filled, tuple(pixels)),
        x=(image, channel * (channels // group), channel),
        x_pixels=tuple(steps),
        y=(prod(pixels) * row, filled, filled, row),
    )
    itemsize = dtypes.entry(dtype).itemsize
    return launch(operator, variant(itemsize), itemsize, planes, roles)


def copy_strides(pixels: Ints, row: int) -> Ints:
    """Return the strides of such a copy in the order N, C, D1, …; ``row`` is the number of elements per pixel."""
    steps = [row * prod(pixels[axis + 1 :]) for axis in range(len(pixels))]
    return (prod(pixels) * row, 1, *steps)


def launch(
    operator: str, chosen: Variant, itemsize: int, planes: Planes, roles: Mapping[str, str], tickets: int = 0
) -> Launch:
    """Return the launch that moves these planes with kernel ``chosen``.

    ``roles`` maps the struct's two pointers to array names. ``tickets`` split-K counters at the workspace's start are
    also zeroed.
    """
    planes = _together(planes)
    size = _VECTOR // itemsize
    channel_tiles = -(-planes.filled // (_BUNDLES * size))
    images, pixels = _tile(planes, size)
    pixel_tiles, image_tiles = -(-planes.all_pixels // pixels), -(-planes.images // images)
    block_pixels = min(pixels, planes.all_pixels)
    pitches = [-(-block_pixels // size), _vectors(block_pixels, size)]
    fields = {
        **params.members(planes, "images", "groups", "channels", "filled"),
        "pixels": planes.all_pixels,
        **{f"x_{axis}": stride for axis, stride in zip(_AXES, planes.x, strict=True)},
        "x_pixel": strided.filled(planes.x_pixels, RANK, 0),
        "extent": strided.filled(planes.pixels, RANK, 1),
        "way": _access(planes),
        **_run(planes),
        **{f"y_{axis}": stride for axis, stride in zip(("image", "group", "part", "pixel"), planes.y, strict=True)},
        "tile_images": images,
        "tile_pixels": pixels,
        "pitch": pitches,
        "lanes": [(pitch - 1).bit_length() for pitch in pitches],
        "channel_tiles": channel_tiles,
        "pixel_tiles": pixel_tiles,
        "by_image": block_pixels,
        "tickets": {"count": tickets},
    }
    if tickets:
        roles = {**roles, "tickets.first": "workspace"}
    blocks = image_tiles * pixel_tiles * planes.groups * channel_tiles
    return Launch.of_blocks(operator, chosen, blocks, fields, roles)


def _together(planes: Planes) -> Planes:
    """Return the planes with as few pixel axes as possible, and stride 0 for axes of one element.

    Images whose pixels continue those of the previous image are merged into one, as in ConvTranspose's weights.
    """
    x = tuple(stride if extent > 1 else 0 for extent, stride in zip(planes.extents, planes.x, strict=True))
    together = (planes.images, *planes.pixels), (x[0], *planes.x_pixels)
    extents, (strides,) = strided.collapsed_together(*together)
    if len(extents) <= 1 and planes.y[0] == planes.all_pixels * planes.y[-1]:
        return replace(planes, images=1, pixels=tuple(extents), x=(0, *x[1:]), x_pixels=tuple(strides))
    extents, (strides,) = strided.collapsed_together(planes.pixels, planes.x_pixels)
    return replace(planes, pixels=tuple(extents), x=x, x_pixels=tuple(strides))


def _access(planes: Planes) -> int:
    """Return the kernel's way to read x: contiguous channels, contiguous pixels, or single elements."""
    if planes.x[2] == 1:
        return _BUNDLED
    return _RUNS if planes.x_pixels in ((), (1,)) else _SINGLY


def _vectors(pixels: int, size: int) -> int:
    """Return the most vectors that ``pixels`` adjacent elements touch, at any alignment."""
    return (pixels + 2 * size - 2) // size


def _tile(planes: Planes, size: int) -> tuple[int, int]:
    """Return the images and pixels per block: several whole images, or part of one in whole sectors."""
    count, access, most = planes.all_pixels, _access(planes), min(_PIXELS, _ROW_VECTORS * size)
    if count > most:
        tiles = -(-count // most)
        return 1, -(-count // (tiles * 2 * size)) * 2 * size
    if access == _RUNS and planes.x[0] % size:  # images start at different alignments
        return 1, count
    room = _TILE_VECTORS // _BUNDLES
    images = most // count if access == _BUNDLED else room // (size * _vectors(count, size) + 1)
    return max(1, min(images, planes.images)), count


def _run(planes: Planes) -> dict[str, int]:
    """Return the length of contiguous runs of pixels, and the offset of each image, group and channel in its run.

    A run is a plane, several planes without gaps, or all of x. Memory between runs is not part of x and is not read.
    """
    run, left = planes.all_pixels, {axis: steps for axis, *steps in zip(_AXES, planes.extents, planes.x, strict=True)}
    begins = dict.fromkeys(_AXES, 0)
    while found := [axis for axis, (extent, stride) in left.items() if extent > 1 and stride == run]:
        extent, begins[found[0]] = left.pop(found[0])
        run *= extent
    return {"run": run, **{f"run_{axis}": stride for axis, stride in begins.items()}}


# ---------------------------------------------------------------- variants


KERNEL = Kernel("passes/channels_last.cu", "channels_last", "ChannelsLastParams", threads=128, blocks_per_sm=8)
ITEMSIZES = (2, 4, 8)  # bytes of elements that are copied bit by bit


def variant(itemsize: int, name: str = "channels_last") -> Variant:
    """Return the variant that copies elements of ``itemsize`` bytes; ``name`` is what profilers show."""
    label = f"{8 * itemsize}bit"
    return replace(KERNEL, name=name).over(label, RANK, types=(f"Copied{8 * itemsize}",))


def variants() -> Iterator[Variant]:
    """Yield the variants that copy activations."""
    yield from map(variant, ITEMSIZES)
