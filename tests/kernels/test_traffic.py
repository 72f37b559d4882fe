"""No bank conflicts, and little more memory traffic than necessary, as counted by the emulator for every main kernel.

Shared memory is accessed in wavefronts of one word from each of 32 banks, global memory in sectors of 32 bytes. Limits
are ratios to the necessary number of them. A limit above 1 is explained where its cases are: it is derived there, or it
is the largest ratio that the emulator counts with NVRTC 13.0, rounded up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain, product
from math import inf
from typing import Any

import ml_dtypes  # noqa: F401  # teaches NumPy the name bfloat16
import numpy as np
import pytest

import gpuconv
from emulated_cuda.emulator.counters import FIELDS, Counters
from gpuconv.cuda.conv.direct import bands, channels, few, transpose
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import (
    ffma,
    fragments,
    grouped,
    interleaved,
    matrix,
    mma,
    mma_tile,
    pointwise,
    stem,
    stem_tile,
)
from gpuconv.cuda.plan.numbers import RANK
from gpuconv.cuda.variants import all_variants
from gpuconv.rules import dtypes
from tests.emulator import emulated_cuda
from tests.harness import direct_forms
from tests.harness.emulated import boxes, long_walks, preferred
from tests.harness.machine_code import of_kernels
from tests.oracle.strategies import Problem

pytestmark = pytest.mark.emulator

Ints = tuple[int, ...]
WIDTHS = (33, 64)  # elements in a row; with 33, few rows are aligned to sectors
_FLAT: dict[str, Any] = {"pads": (1, 1, 1, 1)}


@cache
def _sources() -> dict[str, str]:
    return {variant.name: variant.source for variant in all_variants()}


def of_kernel(name: str) -> tuple[Any, ...]:
    """Return the marks of a test of a kernel's traffic, which only changes with it."""
    return pytest.mark.thorough, pytest.mark.kernels(_sources()[name.removesuffix("_split")])


@dataclass(frozen=True)
class Case:
    """A problem of one kernel, and limits for sectors and wavefronts, as multiples of the necessary number.

    Attributes
    ----------
    both : float
        For the sum of loads and stores.
    packed : float
        For the loads of a kernel that packs weights before.
    layout : str
        The layout of x and y; with "channels last", only that of x.
    """

    kernel: str
    problem: Problem
    loads: float = 1.3
    stores: float = 1.3
    shared: float = 1.0
    both: float = inf
    packed: float = inf
    layout: str = "NCHW"

    def __str__(self) -> str:
        return f"{self.kernel}-{self.layout}-{'x'.join(map(str, self.problem.x_shape))}-{self.problem.attributes}"

    @property
    def dtype(self) -> str:
        return next(name for name in (*dtypes.CONV_DTYPES, "uint8", "int8")[::-1] if f"_{name}_" in self.kernel)

    def counters(self) -> dict[str, Counters]:
        """Run the kernel, and the one that packs for it, on zeros; without checks, which other tests make."""
        shapes = (shape for shape in self.problem.shapes if shape is not None)
        x, *w = (np.zeros(shape, self.dtype) for shape in shapes)
        precision = next((name for name in ("3xtf32", "tf32") if f"_{name}_" in self.kernel), "ieee")
        last = np.moveaxis(x, 1, -1).copy()
        x, layout = {"NHWC": (last, "NHWC"), "channels last": (np.moveaxis(last, -1, 1), "NCHW")}.get(
            self.layout, (x, "NCHW")
        )
        device = emulated_cuda("sm_90a", counters=True, check_shared=False, check_global=False)
        with preferred(self.kernel), gpuconv.precision(precision), device as emulated:
            getattr(gpuconv, self.problem.operator)(x, *w, **self.problem.attributes, layout=layout)
        assert emulated.launches[-1].variant.name == self.kernel.removesuffix("_split")
        return emulated.counters()


def _conv(x: Ints, w: Ints, operator: str = "conv", **attributes: Any) -> Problem:
    return Problem(operator, x, w, None, attributes)


def _rows(dtype: str, width: int) -> float:
    """Return the limit for the sectors of contiguous rows.

    A warp's 32 neighbours fill as many sectors as an element has bytes, half a warp's of 64 bits fill four; one more if
    they begin in the middle of a sector, as rows of 33 do. Warps that are not full add up to a twentieth.
    """
    itemsize = dtypes.entry(dtype).itemsize
    return 1.04 * (1 + 1 / min(itemsize, 4)) if width % 2 else 1.05


def gemms() -> Iterator[Case]:
    """Yield all tiles, with slices of K of one tap and of several, whole and split.

    Loads: most sectors are of weights, which are aligned; taps shift those of x (1.18). Stores of split tiles add sums.
    """
    for operator, (dtype, tiles) in product(("conv", "conv_transpose"), gemm_base.TILES.items()):
        for tile, uniform, width in product(tiles, (True, False), WIDTHS):
            if not (tile.uniform if uniform else tile.rowwise):
                continue
            name = ffma.variant(operator, dtype, False, RANK, tile, uniform).name
            c, m = tile.block_k if uniform else 5, tile.block_m
            w = (m, c, 3, 3) if operator == "conv" else (c, m, 3, 3)
            divisible = dtype == "float32" and uniform and tile in ffma._DIVISIBLE[operator]
            for split in ("", "_split")[: 1 + divisible]:
                yield Case(name + split, _conv((2, c, 5, width), w, operator, **_FLAT), 1.2, _rows(dtype, width))


def tensor_cores() -> Iterator[Case]:
    for (dtype, precision), arithmetic in fragments.ARITHMETICS.items():
        for tile, form in mma_tile.kernels(arithmetic):
            own = {"rowwise": 5, "chunks": form.block_k * 3 // 2, "halves": 12}
            c = own.get(form.gather, form.block_k)
            name = mma.variant("conv", dtype, precision, tile, form).name
            problem = _conv((2, c, 5, 32), (tile.block_m, c, 3, 3), **_FLAT)
            layout = "channels last" if form.copied else "NCHW"
            yield Case(name, problem, 1, 1, packed=inf if form.rowwise else 1.3, layout=layout)


def unpacked() -> Iterator[Case]:
    """Yield all kernels that read unpacked weights; for few filters, two of three taps are shifted along rows.

    Loads of 64 elements a row then touch 1 + 2/3/2 sectors for each that 16-bit elements need, less at a warp's end.
    """
    for (dtype, filters), width in product(product(dtypes.CONV_DTYPES, few._FILTERS), WIDTHS):
        problem = _conv((2, 5, 5, width), (filters, 5, 3, 3), **_FLAT)
        loads = max(1.3, _rows(dtype, width))
        yield Case(few.variant(dtype, filters).name, problem, loads, _rows(dtype, width))
    for tile, width in product(pointwise.TILES["conv"]["float32"], WIDTHS):
        problem = _conv((2, tile.block_k, 5, width), (tile.block_m, tile.block_k, 1, 1))
        yield Case(pointwise.variant("conv", "float32", tile).name, problem, 1.15, _rows("float32", width))
    for (dtype, precision, inputs, tile), width in product(matrix.forms(), WIDTHS):
        if inputs != "depth_to_space":
            problem, layout = (
                _conv((2, 64, 6, width), (tile.block_m, 64, 1, 1)),
                ("NCHW", "channels last")[inputs == "channels"],
            )
            name = matrix.variant(dtype, precision, inputs, tile).name
            yield Case(name, problem, 1.2, _rows(dtype, width), layout=layout)


def whole_rows() -> Iterator[Case]:
    """Yield cases of ConvTranspose that write whole rows.

    Shared memory: no number of banks divides evenly among three phases (counted: 1.14); tensor cores leave sums in
    pairs, in separate rows (1.36). Stores: counted 1.11.
    """
    kernels = [(interleaved.variant(*form).name, form[1], False) for form in interleaved.forms()]
    kernels += [(pointwise.variant(*form).name, form[2], True) for form in pointwise.forms() if len(form[0]) > 4]
    kernels += [(matrix.variant(*form).name, form[3], True) for form in matrix.forms() if form[2] == "depth_to_space"]
    for (name, tile, disjoint), stride in product(kernels, (2, 3)):
        c = 5 if name.endswith(("x16", "x8")) and not disjoint else 16
        taps = (2, stride) if disjoint else (3, stride + 1)
        attributes = {"strides": (2, stride), "pads": (0, 0, 0, taps[1] - stride)}
        problem = _conv((2, c, 5, 32), (c, tile.block_m, *taps), "conv_transpose", **attributes)
        yield Case(name, problem, 1, 1.12, 1.4 if "_matrix_" in name else 1.16)


def direct() -> Iterator[Case]:
    """Yield forms whose rows are whole vectors, which are copied as vectors, and others; phases; taps that share
    nothing.

    Rows of 33 and phases are not aligned: 1 + 1/4 sectors of float32, 1 + 1/2 of 16 bits, and more where they end
    within a warp (counted: loads 1.24 and 1.47, stores 1.29 and 1.71, of forms of any window 1.95). Shared memory:
    1.36, of forms of any window 1.03.
    """
    ways = product(("bfloat16", "float32"), direct_forms.FORMS, WIDTHS, (1, 2, 4))
    for dtype, form, width, dilation in (way for way in ways if way[1].stride == 1 or way[3] == 1):
        x, w, attributes = direct_forms.usual(form, width, dilation=dilation)
        most = 1.21 if width == 64 and form.stride and dilation == 1 else 1.3 if dtype == "float32" else 1.75
        stores = most if form.stride else 2.0
        yield Case(direct_forms.name(form, dtype), _conv(x, w, **attributes), most, stores, 1.4 if form.kernel else 1.2)


def bands_of_rows() -> Iterator[Case]:
    """Yield cases of bands; a warp reads the weights of several filters, a few neighbours of each.

    Eight channels of a pixel that are read together, but not as a vector, are not aligned: they touch one sector or
    two.
    """
    ways = (
        ("float32", 64, 64, "NCHW"),
        ("float32", 64, 33, "NCHW"),
        ("float32", 64, 64, "channels last"),
        ("float32", 61, 64, "channels last"),
        ("bfloat16", 64, 64, "NCHW"),
    )
    for dtype, filled, width, layout in ways:
        for form in bands.forms(dtype):
            kernel = form.kernel_rows, form.kernel_columns
            pads = [size // 2 for size in kernel] * 2
            problem = _conv((1, filled, 12, width), (form.filters, filled, *kernel), pads=pads)
            most = 1.36 if dtype == "float32" else 1.75
            loads = most if filled == 64 else 2.1
            yield Case(bands.variant(dtype, form).name, problem, loads, most, 1.36, layout=layout)


def depthwise() -> Iterator[Case]:
    """Yield vectors of channels; most loads of ConvTranspose are of single weights (counted: 8.74 for 16 bits).

    Shared memory: counted 1.27.
    """
    for dtype, form in product(dtypes.CONV_DTYPES, channels.FORMS):
        problem = _conv((2, 64, 8, 24), (64, 1, 3, 3), strides=(form[0] or 3,) * 2, group=64, **_FLAT)
        yield Case(channels.variant(dtype, form).name, problem, 1, 1, 1.3, layout="NHWC")
    for dtype, layout in product(dtypes.CONV_DTYPES, ("NCHW", "NHWC")):
        problem = _conv((2, 8, 24, 64), (8, 1, 4, 4), "conv_transpose", strides=(2, 2), group=8, **_FLAT)
        if layout == "NHWC":
            problem = _conv((2, 64, 8, 24), (64, 1, 4, 4), "conv_transpose", strides=(2, 2), group=64, **_FLAT)
        yield Case(transpose.variant(dtype).name, problem, 9, 1, layout=layout)


def groups() -> Iterator[Case]:
    """Yield cases of groups; unpacked weights are read in small pieces (counted: 8.57), stores are of a few columns
    (2).

    Shared memory: counted 1.41.
    """
    for (dtype, precision, form), layout in product(grouped.forms(), ("NCHW", "NHWC")):
        filters, c = 2 * form.block_m, min(form.block_m, 32)
        problem = _conv((2, filters, 8, 32), (filters, c, 3, 3), group=filters // c, **_FLAT)
        name = grouped.variant("conv", dtype, precision, form).name
        yield Case(name, problem, 9, 2 if layout == "NCHW" else 1.3, 1.45, layout=layout)


def stems() -> Iterator[Case]:
    """Yield cases with rows of whole vectors (counted: 1.08); lanes read four channels last each, one by one (3.17).

    Shared memory: counted 1.47 on tensor cores, 1.13 without.
    """
    for kernel, layout in product(stem_tile.KERNELS, ("NCHW", "NHWC")):
        taps = 7 if kernel.arithmetic else kernel.chunk
        pads = (1, taps // 2, 1, taps - taps // 2 - 1)
        problem = _conv((2, 3, 18, 64), (kernel.block_m, 3, 3, taps), strides=(2, 2), pads=pads)
        loads, shared = 1.1 if layout == "NCHW" else 3.2, 1.47 if kernel.arithmetic else 1.15
        yield Case(stem.variant(kernel).name, problem, loads, 1, shared, layout=layout)


_ROWS = (1, 3, 36, 112)
# Kernel, window, stride, pad, x: rows as in ResNet, planes as in SPP, rows of an odd length; channels last.
_POOLS: tuple[tuple[str, int, int, int, Ints], ...] = (
    *(("3d_vectors_2x2", 2, 2, 0, _ROWS), ("3d_vectors_3x2", 3, 2, 1, _ROWS), ("3d_vectors_3x1", 3, 1, 1, _ROWS)),
    *(("3d_tiles", 5, 1, 2, (2, 3, 20, 48)), ("3d_tiles", 5, 2, 0, (2, 3, 31, 47))),
    *(("3d_channels", 2, 2, 0, (2, 32, 10, 16)), ("3d_channels", 3, 2, 1, (2, 64, 7, 10))),
    ("3d_patches", 5, 1, 2, (2, 64, 15, 20)),
)


def _windows(size: int, stride: int, pad: int) -> dict[str, Any]:
    return {"kernel_shape": (size,) * 2, "strides": (stride,) * 2, "pads": (pad,) * 4}


def pools() -> Iterator[Case]:
    """Yield pools of rows that may begin and end within a sector: 8-bit rows of 112 are 3.5 sectors (counted: 1.62).

    Shared memory: counted 1.93 of tiles, 1.24 of patches.
    """
    for dtype, (kernel, *window, x), indices in product(dtypes.MAX_POOL_DTYPES, _POOLS, (False, True)):
        attributes = {**_windows(*window), "return_indices": indices}
        most, both = (1.65, 1.25) if dtype in ("int8", "uint8") else (1.35, 1.2)
        shared = {"3d_tiles": 2.0, "3d_patches": 1.3}.get(kernel, 0)
        layout = "NHWC" if kernel in ("3d_channels", "3d_patches") else "NCHW"
        problem = Problem("max_pool", x, attributes=attributes)
        yield Case(f"max_pool_{dtype}_{kernel}{'_indices' * indices}", problem, most, most, shared, both, layout=layout)


FAMILIES: tuple[Callable[[], Iterator[Case]], ...] = (
    *(gemms, tensor_cores, unpacked, whole_rows, direct, bands_of_rows, depthwise, groups, stems, pools),
)


def params(*families: Callable[[], Iterator[Case]]) -> list[Any]:
    cases = chain.from_iterable(family() for family in families)
    return [pytest.param(case, marks=of_kernel(case.kernel), id=str(case)) for case in cases]


def assert_within(counters: Counters, **most: float) -> None:
    """Compare each counter's ratio to the necessary number with its limit."""
    traffic = counters.traffic()
    traffic["both"] = [*np.add(traffic["loads"], traffic["stores"])]
    for name, limit in most.items():
        found, ideal = traffic.get(name, (0, 0))
        assert limit == inf or found <= limit * ideal, f"{name}: {found} for {ideal}"


@pytest.mark.parametrize("case", params(*FAMILIES))
def test_memory_is_asked_for_little_more_than_necessary(case: Case) -> None:
    *before, (_, counters) = case.counters().items()
    assert_within(counters, loads=case.loads, stores=case.stores, both=case.both, shared=case.shared)
    for name, packing in before:
        shared = 1 if name.startswith("pack_weights") else inf
        assert_within(packing, loads=case.packed, stores=1, shared=shared)


@pytest.mark.parametrize("case", params(tensor_cores))
def test_tensor_cores_multiply_whole_slices_and_nothing_else(case: Case) -> None:
    n, c, *plane = case.problem.x_shape
    block_m, block_n, block_k = map(int, case.kernel.split("_")[-2].split("x"))
    columns, rows = -(-n * plane[0] * plane[1] // block_n) * block_n, -(-9 * c // block_k) * block_k
    made = case.counters()[case.kernel].total["mma_macs"]
    assert made == block_m * columns * rows * (3 if "3xtf32" in case.kernel else 1)


@pytest.mark.parametrize("case", params(direct))
def test_direct_sums_read_no_more_of_shared_memory_than_in_whole_vectors(case: Case) -> None:
    (counters,) = case.counters().values()
    wavefronts, requests = (
        sum(counters.counts[[key == "ld.shared" for key in counters.keys], FIELDS.index(f"shared_{name}")])
        for name in ("wavefronts", "requests")
    )
    assert 0 < wavefronts <= 4 * requests


@of_kernels("pool/axis.cu")
@pytest.mark.parametrize("dtype", dtypes.MAX_POOL_DTYPES)
@pytest.mark.parametrize(("layout", "shape"), [("NCHW", (2, 3, 30, 40)), ("NHWC", (2, 30, 14, 64))])
@pytest.mark.parametrize(("size", "stride"), [(5, 1), (3, 2)])
def test_pools_along_an_axis_read_neighbours_and_write_whole_sectors(
    size: int, stride: int, layout: str, shape: Ints, dtype: str
) -> None:
    """Along the height, with Indices of elements and with those of an earlier launch; rows are no whole sectors."""
    for width, name in ((1, "axis_numbered"), (2, "axis")):
        kernel = f"max_pool_{dtype}_3d_{name}_indices"
        device = emulated_cuda("sm_90a", counters=True, check_shared=False, check_global=False)
        with preferred(kernel), device as emulated:
            windows: dict[str, Any] = {"kernel_shape": (size, width), "strides": (stride, 1)}
            gpuconv.max_pool(np.zeros(shape, dtype), return_indices=True, layout=layout, **windows)
        loads = 1.0 if layout == "NHWC" else 2.3 if dtype in ("int8", "uint8") else 1.5
        assert_within(emulated.counters()[kernel], loads=loads, stores=1.3, shared=0)


# Kernel, window, stride, pad, layout, x; rows of 14 or 40 elements are not all aligned to sectors.
_POOL_GRADS = (
    ("3d", 3, 2, 1, "NCHW", (2, 3, 9, 40)),
    ("3d_walks_1x1", 1, 1, 0, "NCHW", _ROWS),
    *((f"3d_walks_{k}x{s}", k, s, pad, "NCHW", _ROWS) for k, s, pad in ((2, 2, 0), (3, 2, 1), (3, 1, 1))),
    *((f"3d_walks_{k}x{s}", k, s, pad, "NHWC", (2, 12, 14, 64)) for k, s, pad in ((2, 2, 0), (3, 2, 1), (3, 1, 1))),
    ("3d_walks_5xany", 3, 3, 0, "NHWC", (2, 12, 14, 64)),
    ("3d_walks_5xany", 5, 1, 2, "NCHW", _ROWS),
    ("3d_walks_13xany", 9, 1, 4, "NCHW", _ROWS),
)


@of_kernels("pool/grad/general.cu", "pool/grad/walks.cu")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("kernel", "size", "stride", "pad", "layout", "shape"), _POOL_GRADS)
def test_gradients_of_max_pool_read_neighbours_and_write_whole_sectors(
    kernel: str, size: int, stride: int, pad: int, layout: str, shape: Ints, dtype: str
) -> None:
    """Lanes of two columns each read every other window."""
    name, windows = f"max_pool_grad_{dtype}_{kernel}", _windows(size, stride, pad)
    y, indices = gpuconv.max_pool(np.zeros(shape, dtype), return_indices=True, layout=layout, **windows)
    device = emulated_cuda("sm_90a", counters=True, check_shared=False, check_global=False)
    with preferred(name), long_walks(True), device as emulated:
        gpuconv.max_pool_grad(y, indices, shape, layout=layout, check_indices=False, **windows)
    assert_within(emulated.counters()[name], loads=2.2, stores=1.2, shared=0)


@of_kernels("pool/grad/scatter.cu")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("layout", "shape", "loads"), [("NCHW", (2, 3, 30, 48), 4.2), ("NHWC", (2, 12, 14, 64), 1.2)])
def test_gradients_of_large_windows_read_neighbours_and_no_bank_twice(
    layout: str, shape: Ints, loads: float, dtype: str
) -> None:
    """Lanes of boxes of four columns read every fourth window of a row."""
    name, windows = f"max_pool_grad_{dtype}_3d_scatter", _windows(9, 1, 4)
    y, indices = gpuconv.max_pool(np.zeros(shape, dtype), return_indices=True, layout=layout, **windows)
    device = emulated_cuda("sm_90a", counters=True, check_shared=False, check_global=False)
    with preferred(name), boxes(4, 1, 16), device as emulated:
        gpuconv.max_pool_grad(y, indices, shape, layout=layout, check_indices=False, **windows)
    assert_within(emulated.counters()[name], loads=loads, stores=1.2, shared=1)


@of_kernels("pool/grad/averages.cu")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("layout", "shape"), [("NCHW", _ROWS), ("NHWC", (2, 12, 14, 64))])
@pytest.mark.parametrize(
    ("kernel", "size", "stride", "pad", "loads"),
    [
        *(("walks_1x1", 2, 2, 0, 2.2), ("walks_5xany", 5, 1, 2, 2.2)),
        *(("strips_3s1", 3, 1, 1, 4.2), ("strips_3s2", 3, 2, 1, 2.4)),
    ],
)
def test_gradients_of_averages_read_neighbours_and_write_whole_sectors(
    kernel: str, size: int, stride: int, pad: int, loads: float, layout: str, shape: Ints, dtype: str
) -> None:
    """Lanes that read the same or adjacent windows share a sector; those of four columns read windows 4 or 2 apart."""
    name, windows = f"average_pool_grad_{dtype}_3d_{kernel}", _windows(size, stride, pad)
    y = gpuconv.average_pool(np.zeros(shape, dtype), layout=layout, **windows)
    device = emulated_cuda("sm_90a", counters=True, check_shared=False, check_global=False)
    with preferred(name), long_walks(True), device as emulated:
        gpuconv.average_pool_grad(y, shape, layout=layout, **windows)
    assert_within(emulated.counters()[name], loads=loads if layout == "NCHW" else min(loads, 2.2), stores=1.2, shared=0)


def test_traffic_is_by_kind_of_access() -> None:
    accesses = {
        "cp.async": {"shared_requests": 1, "shared_wavefronts": 5, "shared_ideal": 4},
        "ld.shared": {"shared_requests": 2, "shared_wavefronts": 8, "shared_ideal": 8},
        "ld.global": {"global_requests": 1, "global_sectors": 17, "global_ideal": 16},
        "st.global": {"global_requests": 1, "global_sectors": 7, "global_ideal": 6},
        "add.s32": {"instructions": 9},
    }
    counts = np.array([[numbers.get(field, 0) for field in FIELDS] for numbers in accesses.values()], np.uint64)
    counters = Counters(list(accesses), ["a.cu:1"] * len(accesses), counts)
    assert counters.traffic() == {"shared": [13, 12], "loads": [17, 16], "stores": [7, 6]}
    assert_within(counters, loads=1.1, stores=1.2, shared=1.1)
    with pytest.raises(AssertionError, match="shared: 13 for 12"):
        assert_within(counters, loads=1.1, stores=1.2, shared=1.08)
