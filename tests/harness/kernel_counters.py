"""What the emulator counts for the main kernels, and the tool that records it:

    python -m tests.harness.kernel_counters --write

Shared memory is served in wavefronts of one word from each of 32 banks, global memory in sectors of 32 bytes. Whoever
records anew says in the commit why the numbers are others.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  # teaches NumPy the name bfloat16
import numpy as np

import gpuconv
from gpuconv.cuda.build import kernel_files
from gpuconv.cuda.conv.direct import bands as bands_plan
from gpuconv.cuda.conv.direct import channels as channels_plan
from gpuconv.cuda.conv.direct import few as few_plan
from gpuconv.cuda.conv.direct import transpose
from gpuconv.cuda.conv.direct.bands_tile import BandForm
from gpuconv.cuda.conv.direct.rows import RowForm
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import (
    ffma,
    fragments,
    grouped_tile,
    matrix,
    mma,
    pointwise,
    stem,
    stem_tile,
)
from gpuconv.cuda.conv.gemm import grouped as grouped_plan
from gpuconv.cuda.conv.gemm import interleaved as interleaved_plan
from gpuconv.cuda.conv.gemm.base import GemmTile
from gpuconv.cuda.conv.wgmma import channels_last as channels_last_plan
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.numbers import RANK
from gpuconv.rules import dtypes
from tests.emulated_cuda.emulator.counters import FIELDS, Counters
from tests.emulator import emulated_cuda
from tests.harness import direct_forms, passes, records
from tests.harness.emulated import long_walks, preferred

ARCHITECTURE = "sm_90a"
PATH = Path(__file__).with_suffix(".json")
TOOL = "-m tests.harness.kernel_counters"
COLUMNS = "wavefronts of shared memory, sectors of global memory: how many, and how many would do for the same elements"
WIDTHS = (32, 33, 40, 64)  # elements in a row; with 33, hardly a row begins where a sector does
_PIXELS_OF_CHANNELS = (2, 8, 24, 64)
_BATCH, _HEIGHT, _CHANNELS_BETWEEN = 2, 5, 5  # channels that no slice of K is a multiple of
_CHANNELS_OF_HALVES = 12  # not whole 16 bytes, but whole 8 bytes of 16-bit elements
_POOLED = (2, 3, 9, 40)
_ROWS = (1, 3, 36, 112)
Row = dict[str, list[int]]


TO_SPACE = "depth_to_space"  # the form of products whose outputs are scattered


@dataclass(frozen=True)
class Form:
    """One form of one tile, with 32-bit indices; ``split`` where several blocks make a tile."""

    operator: str
    dtype: str
    tile: GemmTile
    uniform: bool
    split: bool = False

    def __str__(self) -> str:
        return f"{self.name}_split" if self.split else self.name

    @property
    def name(self) -> str:
        """Of the kernel."""
        return ffma.variant(self.operator, self.dtype, False, RANK, self.tile, self.uniform).name

    def _shapes(self, width: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        channels, filters = self.tile.block_k if self.uniform else _CHANNELS_BETWEEN, self.tile.block_m
        pair = (filters, channels) if self.operator == "conv" else (channels, filters)
        return (_BATCH, channels, _HEIGHT, width), (*pair, 3, 3)

    def titles(self, width: int) -> tuple[str, str]:
        """Return the titles of the rows: of the kernel that packs the weights, and of the GEMM."""
        x_shape, w_shape = self._shapes(width)
        packing = gemm_base.packing_variant(self.dtype, False, RANK).name
        use = f"{self.operator} in splits" if self.split else self.operator
        return f"{packing} for {use}, {_sizes(w_shape)}", f"{self}, 3x3 over {_sizes(x_shape)}"

    def run(self, width: int) -> dict[str, Row]:
        """Convolve with stride 1 and a border of zeros; return the rows of both kernels."""
        x, w = (np.zeros(shape, self.dtype) for shape in self._shapes(width))
        with preferred(str(self)), _counting() as emulated:
            getattr(gpuconv, self.operator)(x, w, pads=(1, 1, 1, 1))
        packing, made = emulated.counters()
        assert made == self.name
        assert self.titles(width)[0].startswith(packing)
        return dict(zip(self.titles(width), map(row, emulated.counters().values()), strict=True))


@dataclass(frozen=True)
class WholeRows:
    """One kernel of ConvTranspose that writes whole rows of y, with a stride along W."""

    kernel: str
    dtype: str
    precision: str
    filters: int
    stride: int

    def _shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        disjoint = self.kernel.startswith(("conv_transpose_depth_to_space", "conv_transpose_matrix"))
        taps = (2, self.stride) if disjoint else (3, self.stride + 1)
        channels = _CHANNELS_BETWEEN if self.kernel.endswith(("x16", "x8")) and not disjoint else 16
        return (_BATCH, channels, _HEIGHT, WIDTHS[0]), (channels, self.filters, *taps)

    def title(self) -> str:
        """Return the row's title."""
        x_shape, w_shape = self._shapes()
        return f"{self.kernel}, {_sizes(w_shape[2:])}, stride 2x{self.stride} over {_sizes(x_shape)}"

    def run(self) -> dict[str, Row]:
        """Make rows of y that begin where a sector does; return the kernel's row."""
        x, w = (np.zeros(shape, self.dtype) for shape in self._shapes())
        more = w.shape[3] - self.stride  # that the last input reaches to
        with preferred(self.kernel), gpuconv.precision(self.precision), _counting() as emulated:
            gpuconv.conv_transpose(x, w, strides=(2, self.stride), pads=(0, 0, 0, more))
        name, counters = list(emulated.counters().items())[-1]
        assert name == self.kernel
        return {self.title(): row(counters)}


@dataclass(frozen=True)
class Direct:
    """One form of the direct sum over rows of one width, twice that for stride 2."""

    dtype: str
    form: RowForm
    width: int

    def __str__(self) -> str:
        return f"{direct_forms.name(self.form, self.dtype)}, {self.width} columns"

    def title(self) -> str:
        """Return the row's title."""
        x_shape, w_shape, _ = direct_forms.usual(self.form, self.width)
        return f"{direct_forms.name(self.form, self.dtype)}, {_sizes(w_shape)} over {_sizes(x_shape)}"

    def run(self) -> dict[str, Row]:
        """Convolve; "sums" are the loads from shared memory, beside what they took if each read whole vectors."""
        x_shape, w_shape, attributes = direct_forms.usual(self.form, self.width)
        name = direct_forms.name(self.form, self.dtype)
        with preferred(name), _counting() as emulated:
            gpuconv.conv(np.zeros(x_shape, self.dtype), np.zeros(w_shape, self.dtype), **attributes)
        counters = emulated.counters()[name]
        sums = [0, 0]
        columns = [FIELDS.index("shared_wavefronts"), FIELDS.index("shared_requests")]
        for key, counts in zip(counters.keys, counters.counts[:, columns].tolist(), strict=True):
            if key == "ld.shared":
                sums = [sums[0] + counts[0], sums[1] + 4 * counts[1]]
        return {self.title(): row(counters) | {"sums": sums}}


@dataclass(frozen=True)
class TensorForm:
    """One form of one tile on tensor cores, of Conv."""

    dtype: str
    precision: str
    tile: mma.MmaTile
    form: mma.MmaForm

    def __str__(self) -> str:
        return mma.variant("conv", self.dtype, self.precision, self.tile, self.form).name

    def _shapes(self, width: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        own = {"rowwise": _CHANNELS_BETWEEN, "chunks": self.form.block_k * 3 // 2, "halves": _CHANNELS_OF_HALVES}
        channels = own.get(self.form.gather, self.form.block_k)
        return (_BATCH, channels, _HEIGHT, width), (self.tile.block_m, channels, 3, 3)

    def titles(self, width: int) -> tuple[str, str]:
        """Return the titles of the rows: of the kernel that packs the weights, and of the GEMM."""
        x_shape, w_shape = self._shapes(width)
        packing = fragments.packing_variant(self.dtype, self.precision).name
        return f"{packing} for {self}, {_sizes(w_shape)}", f"{self}, 3x3 over {_sizes(x_shape)}"

    def counters(self, width: int) -> dict[str, Counters]:
        """Convolve with stride 1 and a border of zeros; return what both kernels did."""
        x, w = (np.zeros(shape, self.dtype) for shape in self._shapes(width))
        if self.form.copied:
            x = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
        with preferred(str(self)), gpuconv.precision(self.precision), _counting() as emulated:
            gpuconv.conv(x, w, pads=(1, 1, 1, 1))
        return emulated.counters()

    def run(self, width: int) -> dict[str, Row]:
        """Return the rows of both kernels."""
        return dict(zip(self.titles(width), map(row, self.counters(width).values()), strict=True))


@dataclass(frozen=True)
class Moved:
    """x with its channels brought together, or weights as rows of K, for kernels that fetch through tensor maps."""

    kernel: str
    dtype: str
    precision: str
    shape: tuple[int, ...]

    def title(self) -> str:
        """Return the row's title."""
        return f"{channels_last_plan.variant(self.kernel, self.dtype, self.precision).name}, {_sizes(self.shape)}"

    def run(self) -> dict[str, Row]:
        """Move, and return the kernel's row."""
        array, filled = np.zeros(self.shape, self.dtype), passes.filled_up(self.shape[1], self.dtype, True)
        if self.kernel == "pack_rows":
            _, emulated = passes.pack(array, "conv", 1, filled, self.precision, counters=True)
        else:
            _, emulated = passes.copy(array, 1, filled, self.precision, counters=True)
        return {self.title(): row(emulated.launches[-1].counters)}


@dataclass(frozen=True)
class Few:
    """Conv of few output channels without a GEMM."""

    dtype: str
    filters: int

    def __str__(self) -> str:
        return few_plan.variant(self.dtype, self.filters).name

    def title(self, width: int) -> str:
        """Return the row's title."""
        return f"{self}, 3x3 over {_sizes((_BATCH, _CHANNELS_BETWEEN, _HEIGHT, width))}"

    def run(self, width: int) -> dict[str, Row]:
        """Convolve with stride 1 and a border of zeros; return the kernel's row."""
        x = np.zeros((_BATCH, _CHANNELS_BETWEEN, _HEIGHT, width), self.dtype)
        w = np.zeros((self.filters, _CHANNELS_BETWEEN, 3, 3), self.dtype)
        with preferred(str(self)), _counting() as emulated:
            gpuconv.conv(x, w, pads=(1, 1, 1, 1))
        (counters,) = emulated.counters().values()
        return {self.title(width): row(counters)}


@dataclass(frozen=True)
class Bands:
    """Few output channels by bands; with channels last x comes by vectors of them."""

    dtype: str
    form: BandForm
    width: int
    channels_last: bool

    def __str__(self) -> str:
        return bands_plan.variant(self.dtype, self.form).name

    @property
    def x_shape(self) -> tuple[int, ...]:
        """Of two rounds of channels."""
        return 1, 64, 12, self.width

    def title(self) -> str:
        """Return the row's title."""
        return f"{self} over {_sizes(self.x_shape)}{', channels last' if self.channels_last else ''}"

    def run(self) -> dict[str, Row]:
        """Convolve with the form's own kernel, and a border of zeros; return the kernel's row."""
        x = np.zeros(self.x_shape, self.dtype)
        if self.channels_last:
            x = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
        kernel = self.form.kernel_rows, self.form.kernel_columns
        w = np.zeros((self.form.filters, x.shape[1], *kernel), self.dtype)
        with preferred(str(self)), _counting() as emulated:
            gpuconv.conv(x, w, pads=[size // 2 for size in kernel] * 2)
        (counters,) = emulated.counters().values()
        return {self.title(): row(counters)}


@dataclass(frozen=True)
class Channels:
    """Depthwise Conv over vectors of channels."""

    dtype: str
    form: tuple[int, int, int]

    def __str__(self) -> str:
        return channels_plan.variant(self.dtype, self.form).name

    def title(self) -> str:
        """Return the row's title."""
        return f"{self}, 3x3 over {_sizes(_PIXELS_OF_CHANNELS)}"

    def run(self) -> dict[str, Row]:
        """Convolve with the form's stride and a border of zeros; return the kernel's row."""
        x, group = np.zeros(_PIXELS_OF_CHANNELS, self.dtype), _PIXELS_OF_CHANNELS[-1]
        w, strides = np.zeros((group, 1, 3, 3), self.dtype), (self.form[0] or 3,) * 2
        with preferred(str(self)), _counting() as emulated:
            gpuconv.conv(x, w, pads=(1, 1, 1, 1), strides=strides, group=group, layout="NHWC")
        (counters,) = emulated.counters().values()
        return {self.title(): row(counters)}


@dataclass(frozen=True)
class DepthwiseTransposed:
    """Depthwise ConvTranspose with strides as a direct sum."""

    dtype: str
    layout: str

    def __str__(self) -> str:
        return f"{transpose.variant(self.dtype).name}, {self.layout}"

    def title(self) -> str:
        """Return the row's title."""
        return f"{self}, 4x4 over {_sizes(_PIXELS_OF_CHANNELS)}"

    def run(self) -> dict[str, Row]:
        """Double height and width; return the kernel's row."""
        x, group = np.zeros(_PIXELS_OF_CHANNELS, self.dtype), _PIXELS_OF_CHANNELS[self.layout.index("C")]
        w = np.zeros((group, 1, 4, 4), self.dtype)
        with preferred("conv_transpose_depthwise"), _counting() as emulated:
            gpuconv.conv_transpose(x, w, strides=(2, 2), pads=(1, 1, 1, 1), group=group, layout=self.layout)
        (counters,) = emulated.counters().values()
        return {self.title(): row(counters)}


@dataclass(frozen=True)
class Pointwise:
    """Conv of one tap as a plain matrix product."""

    tile: GemmTile

    def __str__(self) -> str:
        return pointwise.variant("conv", "float32", self.tile).name

    def title(self, width: int) -> str:
        """Return the row's title."""
        return f"{self}, 1x1 over {_sizes((_BATCH, self.tile.block_k, _HEIGHT, width))}"

    def run(self, width: int) -> dict[str, Row]:
        """Convolve; return the kernel's row."""
        x = np.zeros((_BATCH, self.tile.block_k, _HEIGHT, width), "float32")
        w = np.zeros((self.tile.block_m, self.tile.block_k, 1, 1), "float32")
        with preferred(str(self)), _counting() as emulated:
            gpuconv.conv(x, w)
        (counters,) = emulated.counters().values()
        return {self.title(width): row(counters)}


@dataclass(frozen=True)
class Matrix:
    """Conv of one tap on tensor cores, with weights as they are."""

    dtype: str
    precision: str
    inputs: str
    tile: matrix.MatrixTile

    def __str__(self) -> str:
        return matrix.variant(self.dtype, self.precision, self.inputs, self.tile).name

    def title(self, width: int) -> str:
        """Return the row's title."""
        return f"{self}, 1x1 over {_sizes((_BATCH, 64, 6, width))}"

    def run(self, width: int) -> dict[str, Row]:
        """Convolve; return the kernel's row."""
        x = np.zeros((_BATCH, 64, 6, width), self.dtype)  # images of an even number of pixels
        if self.inputs == "channels":
            x = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
        w = np.zeros((self.tile.block_m, 64, 1, 1), self.dtype)
        with preferred(str(self)), gpuconv.precision(self.precision), _counting() as emulated:
            gpuconv.conv(x, w)
        (counters,) = emulated.counters().values()
        return {self.title(width): row(counters)}


@dataclass(frozen=True)
class Grouped:
    """Conv of few channels a group on tensor cores, channels last or not."""

    dtype: str
    precision: str
    form: grouped_tile.GroupedForm
    channels_last: bool

    def __str__(self) -> str:
        return grouped_plan.variant("conv", self.dtype, self.precision, self.form).name

    def title(self) -> str:
        """Return the row's title."""
        return f"{self}, 3x3 over {_sizes(self._x_shape)}{', channels last' * self.channels_last}"

    @property
    def _x_shape(self) -> tuple[int, ...]:
        return (_BATCH, 2 * self.form.block_m, 8, WIDTHS[0])

    def run(self) -> dict[str, Row]:
        """Convolve with stride 1 and a border of zeros; return the kernel's row."""
        channels = min(self.form.block_m, 32)
        x, w = (np.zeros(shape, self.dtype) for shape in (self._x_shape, (self._x_shape[1], channels, 3, 3)))
        keywords: dict[str, Any] = {"group": self._x_shape[1] // channels, "pads": (1, 1, 1, 1)}
        if self.channels_last:
            x, keywords["layout"] = np.moveaxis(x, 1, -1).copy(), "NHWC"
        with preferred(str(self)), gpuconv.precision(self.precision), _counting() as emulated:
            gpuconv.conv(x, w, **keywords)
        ((name, counters),) = emulated.counters().items()
        assert name == str(self)
        return {self.title(): row(counters)}


@dataclass(frozen=True)
class Stem:
    """Conv of few input channels from a band in shared memory; rows of x and y of whole vectors."""

    kernel: stem_tile.StemKernel
    layout: str

    def __str__(self) -> str:
        return f"{stem.variant(self.kernel).name}, {self.layout}"

    def _shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (_BATCH, 3, 18, 64), (self.kernel.block_m, 3, 3, 7 if self.kernel.arithmetic else self.kernel.chunk)

    def title(self) -> str:
        """Return the row's title."""
        x_shape, w_shape = self._shapes()
        return f"{self}, {_sizes(w_shape[2:])} stride 2 over {_sizes(x_shape)}"

    def run(self) -> dict[str, Row]:
        """Convolve with stride 2 and a border of zeros; return the kernel's row."""
        x, w = (np.zeros(shape, self.kernel.dtype) for shape in self._shapes())
        x = x if self.layout == "NCHW" else np.moveaxis(x, 1, -1).copy()
        pads = (1, w.shape[3] // 2, 1, w.shape[3] - w.shape[3] // 2 - 1)
        name = stem.variant(self.kernel).name
        with preferred(name), gpuconv.precision(self.kernel.precision), _counting() as emulated:
            gpuconv.conv(x, w, strides=(2, 2), pads=pads, layout=self.layout)
        return {self.title(): row(emulated.counters()[name])}


@dataclass(frozen=True)
class Pool:
    """MaxPool by one kernel with one window, of the values alone or with their indices."""

    dtype: str
    kernel: str
    window: int
    stride: int
    pad: int
    indices: bool
    x_shape: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"max_pool_{self.dtype}_{self.kernel}{'_indices' * self.indices}"

    def __str__(self) -> str:
        return f"{self.name}, {self.window}x{self.window}, stride {self.stride}"

    def title(self) -> str:
        """Return the row's title."""
        return f"{self} over {_sizes(self.x_shape)}"

    def run(self) -> dict[str, Row]:
        """Take the maxima, padded alike on each side; return the kernel's row."""
        window, strides, pads = (self.window,) * 2, (self.stride,) * 2, (self.pad,) * 4
        x, layout = np.zeros(self.x_shape, self.dtype), "NCHW"
        if self.kernel in ("3d_channels", "3d_patches"):
            x, layout = np.moveaxis(x, 1, -1).copy(), "NHWC"
        with _taking(self.name), _counting() as emulated:
            gpuconv.max_pool(
                x, kernel_shape=window, strides=strides, pads=pads, return_indices=self.indices, layout=layout
            )
        ((name, counters),) = emulated.counters().items()
        assert name == self.name
        return {self.title(): row(counters)}


@dataclass(frozen=True)
class PoolGrad:
    """The gradient of MaxPool by one kernel, down whole columns, over one array."""

    dtype: str
    kernel: str
    window: int
    stride: int
    pad: int
    layout: str
    x_shape: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"max_pool_grad_{self.dtype}_{self.kernel}"

    def title(self) -> str:
        """Return the row's title."""
        return f"{self.name}, {self.window}x{self.window}, {self.layout} {_sizes(self.x_shape)}"

    def run(self) -> dict[str, Row]:
        """Take no window to have a maximum; return the kernel's row."""
        windows = {"kernel_shape": (self.window,) * 2, "strides": (self.stride,) * 2, "pads": (self.pad,) * 4}
        x = np.zeros(self.x_shape, self.dtype)
        y, indices = gpuconv.max_pool(x, return_indices=True, layout=self.layout, **windows)
        with _taking(self.name), long_walks(True), _counting() as emulated:
            gpuconv.max_pool_grad(y, indices, x.shape, layout=self.layout, check_indices=False, **windows)
        ((name, counters),) = emulated.counters().items()
        assert name == self.name
        return {self.title(): row(counters)}


def _taking(name: str) -> AbstractContextManager[None]:
    return offers.picking(lambda candidates: next(one for one in candidates if one.name == name))


def _counting() -> Any:
    """Leave out the checks, which other tests make, and which take time."""
    return emulated_cuda(ARCHITECTURE, counters=True, check_shared=False, check_global=False)


def _sizes(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def forms() -> list[Form]:
    """Return every form that there is for three axes or fewer."""
    whole = [
        Form(operator, dtype, tile, uniform)
        for operator, (dtype, tiles) in product(("conv", "conv_transpose"), gemm_base.TILES.items())
        for tile, uniform in product(tiles, (True, False))
        if (tile.uniform if uniform else tile.rowwise)
    ]
    divided = [
        Form(operator, "float32", tile, True, split=True)
        for operator, tiles in ffma._DIVISIBLE.items()
        for tile in tiles
    ]
    return [*whole, *divided]


def unpacked() -> list[Few | Pointwise | Matrix]:
    """Return every kernel that reads w as it is."""
    few = [Few(dtype, filters) for dtype, filters in product(dtypes.CONV_DTYPES, few_plan._FILTERS)]
    return [
        *few,
        *map(Pointwise, pointwise.TILES["conv"]["float32"]),
        *(Matrix(*form) for form in matrix.forms() if form[2] != TO_SPACE),
    ]


def bands() -> list[Bands]:
    """Return every form, with rows of whole vectors, of others, and with channels last."""
    kinds = (("float32", 64, False), ("float32", 33, False), ("float32", 64, True), ("bfloat16", 64, False))
    return [Bands(dtype, form, *rest) for dtype, *rest in kinds for form in bands_plan.forms(dtype)]


def channels() -> list[Channels | DepthwiseTransposed]:
    """Return every kernel for depthwise Conv over vectors of channels, and for ConvTranspose."""
    over_vectors = [Channels(*one) for one in product(dtypes.CONV_DTYPES, channels_plan.FORMS)]
    return [*over_vectors, *(DepthwiseTransposed(*one) for one in product(dtypes.CONV_DTYPES, ("NCHW", "NHWC")))]


def grouped() -> list[Grouped]:
    """Return every kernel for few channels a group, with both layouts of x."""
    return [Grouped(*form, last) for form, last in product(grouped_plan.forms(), (False, True))]


def stems() -> list[Stem]:
    """Return every kernel of few input channels in both layouts."""
    return [Stem(*one) for one in product(stem_tile.KERNELS, ("NCHW", "NHWC"))]


def whole_rows() -> list[WholeRows]:
    """Return every such kernel, with the strides that are a power of two and not."""
    interleaved = (
        (interleaved_plan.variant(*form).name, form[0], "ieee", form[1]) for form in interleaved_plan.forms()
    )
    disjoint = (
        (pointwise.variant(*form).name, form[1], "ieee", form[2])
        for form in pointwise.forms()
        if form[0] == "conv_transpose"
    )
    matrices = ((matrix.variant(*form).name, *form[:2], form[3]) for form in matrix.forms() if form[2] == TO_SPACE)
    return [
        WholeRows(name, dtype, precision, tile.block_m, stride)
        for name, dtype, precision, tile in (*interleaved, *disjoint, *matrices)
        for stride in (2, 3)
    ]


def tensor_forms() -> list[TensorForm]:
    """Return every form that there is on tensor cores."""
    return [
        TensorForm(dtype, precision, tile, form)
        for dtype, precision, arithmetic in fragments.arithmetics()
        for tile, form in mma.kernels(arithmetic)
    ]


# Planes of whole vectors and others, of which several make a block; weights as those of most layers.
_MOVED = (
    *(("channels_last", (2, 128, *plane)) for plane in ((28, 28), (55, 55), (14, 14), (7, 7))),
    ("pack_rows", (64, 128, 1, 1)),
    ("pack_rows", (64, 128, 3, 3)),
)


def moved() -> list[Moved]:
    """Return what is brought together, in every way."""
    ways = (("bfloat16", "ieee"), ("float32", "tf32"), ("float32", "3xtf32"))
    return [Moved(kernel, *way, shape) for way, (kernel, shape) in product(ways, _MOVED)]


def directs() -> list[Direct]:
    """Return every form with the two sizes of elements that matter most, in rows of whole vectors and others."""
    return [Direct(*one) for one in product(("bfloat16", "float32"), direct_forms.FORMS, (33, 64))]


# Kernel, window, stride, pad, x: one output a thread; rows as in ResNet, planes as in SPP, rows of an odd length;
# channels last.
_POOLS = (
    *(("3d", window, stride, 1, _POOLED) for window, stride in ((2, 2), (3, 2), (3, 1))),
    ("3d_vectors_2x2", 2, 2, 0, _ROWS),
    ("3d_vectors_3x2", 3, 2, 1, _ROWS),
    ("3d_vectors_3x1", 3, 1, 1, _ROWS),
    ("3d_tiles", 5, 1, 2, (2, 3, 20, 48)),
    ("3d_tiles", 5, 2, 0, (2, 3, 31, 47)),
    ("3d_channels", 2, 2, 0, (2, 32, 10, 16)),
    ("3d_channels", 3, 2, 1, (2, 64, 7, 10)),
    ("3d_patches", 5, 1, 2, (2, 64, 15, 20)),
)


def pools() -> list[Pool]:
    """Return the usual windows."""
    return [
        Pool(dtype, *form, indices, x_shape)
        for dtype, (*form, x_shape), indices in product(dtypes.MAX_POOL_DTYPES, _POOLS, (False, True))
    ]


# Kernel, window, stride, pad, layout, x.
_POOL_GRADS = (
    ("3d", 3, 2, 1, "NCHW", _POOLED),
    ("3d_walks_1x1", 1, 1, 0, "NCHW", _ROWS),
    *((f"3d_walks_{k}x{s}", k, s, pad, "NCHW", _ROWS) for k, s, pad in ((2, 2, 0), (3, 2, 1), (3, 1, 1))),
    *((f"3d_walks_{k}x{s}", k, s, pad, "NHWC", (2, 12, 14, 64)) for k, s, pad in ((2, 2, 0), (3, 2, 1), (3, 1, 1))),
    ("3d_walks_5xany", 3, 3, 0, "NHWC", (2, 12, 14, 64)),
    ("3d_walks_5xany", 5, 1, 2, "NCHW", _ROWS),
    ("3d_walks_13xany", 9, 1, 4, "NCHW", _ROWS),
)


def pool_grads() -> list[PoolGrad]:
    """Return every kernel for the usual windows, in the dtypes that matter most."""
    return [PoolGrad(dtype, *form) for dtype, form in product(("bfloat16", "float32"), _POOL_GRADS)]


def row(counters: Counters) -> Row:
    """Return pairs: of all shared memory, all loads and stores of global memory, and the GEMM's loads of its inputs."""
    weights = f"conv/gemm/ffma.cuh:{_line_of_weights()})"
    of_inputs = [
        "conv/gemm/ffma.cuh" in line and key != "st.global" and weights not in line
        for key, line in zip(counters.keys, counters.lines, strict=True)
    ]
    columns = [FIELDS.index(field) for field in ("global_sectors", "global_ideal")]
    inputs = [int(count) for count in counters.counts[of_inputs][:, columns].sum(0)]
    return counters.traffic() | ({"inputs": inputs} if any(inputs) else {})


@lru_cache(maxsize=1)
def _line_of_weights() -> int:
    """Return the number of the one line that copies weights."""
    text = kernel_files.folder().joinpath("conv/gemm/ffma.cuh").read_text(encoding="utf-8")
    (number,) = (number for number, line in enumerate(text.splitlines(), 1) if "copy_async<16>(" in line)
    return number


def everything() -> Iterator[tuple[str, Row]]:
    """Yield all rows."""
    for form, width in product(forms(), WIDTHS):
        yield from form.run(width).items()
    for tensor_form in tensor_forms():
        yield from tensor_form.run(WIDTHS[0]).items()
    for few, width in product(unpacked(), WIDTHS):
        yield from few.run(width).items()
    of_one_kernel = (*bands(), *directs(), *channels(), *grouped(), *stems(), *whole_rows(), *moved())
    for one in (*of_one_kernel, *pools(), *pool_grads()):
        yield from one.run().items()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", required=True, help=f"count everything, write {PATH.name}")
    parser.parse_args()
    rows = dict(everything())
    records.write(PATH, {"columns": COLUMNS}, rows)
    print(f"{len(rows)} rows: {PATH}")


if __name__ == "__main__":
    main()
