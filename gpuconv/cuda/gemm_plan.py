"""Plans of Conv and ConvTranspose: two launches, one that packs the weights and one that makes the tiles.

The structs mirror those of ``kernels_cu/include/correlation.cuh`` and of the kernels; strides count elements. Letters:
M output channels and C input channels of one group, K = (tap, channel) the rows of the GEMM.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any

from gpuconv import _dtypes
from gpuconv._errors import ArgumentError
from gpuconv._geometry import ConvGeometry, ConvTransposeGeometry, Ints
from gpuconv.cuda import gemm_structs, params
from gpuconv.cuda.plan import Launch, Limits, Plan, Variant

_STAGES = 3
_ROWWISE = 0.75  # of the multiplications' share, where the tap of every row must be found
_SQUARE = 32  # of pack_weights.cu
_MOST_BLOCKS = 2**31 - 1
_Geometry = ConvGeometry | ConvTransposeGeometry


@dataclass(frozen=True, slots=True)
class Tile:
    """One candidate: the outputs of a block and of a thread, and the forms of the kernel that it comes in.

    Attributes
    ----------
    block_m, block_n, block_k, thread_m, thread_n : int
    blocks_per_sm : int
        That the kernel's registers leave room for.
    efficiency : float
        Share of multiplications among the main loop's instructions, of the form with one tap per slice if there is one.
    uniform : bool
        Comes in the form where every slice of K has one tap.
    rowwise : bool
        Comes in the form that finds the tap of every row of K.
    wide : bool
        Comes with 64-bit indices too.
    """

    block_m: int
    block_n: int
    block_k: int
    thread_m: int
    thread_n: int
    blocks_per_sm: int
    efficiency: float
    uniform: bool = True
    rowwise: bool = True
    wide: bool = False

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return (self.block_m // self.thread_m) * (self.block_n // self.thread_n)

    def shared_bytes(self, accumulator: str) -> int:
        """Return the bytes of the buffers in shared memory."""
        return _STAGES * self.block_k * (self.block_m + self.block_n) * _dtypes.entry(accumulator).itemsize

    def __str__(self) -> str:
        return f"{self.block_m}x{self.block_n}x{self.block_k}"


# The candidates; of equal ones the first is taken.
_LARGE = Tile(128, 128, 16, 8, 8, 2, 0.86, rowwise=False)
_MIDDLE = Tile(64, 64, 16, 8, 4, 4, 0.78, wide=True)
_FLAT = Tile(16, 128, 16, 4, 4, 4, 0.3, uniform=False)
_MIDDLE_HALF = replace(_MIDDLE, efficiency=0.7)
_FLAT_HALF = Tile(16, 128, 8, 4, 4, 4, 0.26, uniform=False)  # what it gathers waits in registers: half as much of it
_MIDDLE_DOUBLE = Tile(64, 64, 16, 8, 4, 2, 0.7, wide=True)
_FLAT_DOUBLE = Tile(16, 128, 16, 4, 4, 3, 0.3, uniform=False)
_TILES = {
    "float16": (_MIDDLE_HALF, _FLAT_HALF),
    "bfloat16": (_MIDDLE_HALF, _FLAT_HALF),
    "float32": (_LARGE, _MIDDLE, _FLAT),
    "float64": (_MIDDLE_DOUBLE, _FLAT_DOUBLE),
}


def for_conv(
    geometry: ConvGeometry,
    dtype: str,
    x_strides: Ints,
    w_strides: Ints,
    b_stride: int | None,
    y_strides: Ints,
    limits: Limits,
) -> Plan:
    """Plan Conv for arrays with these strides in elements (``b_stride`` None without a bias).

    Raises
    ------
    ArgumentError
        The problem needs more than 64-bit indices or more blocks than a grid has.
    """
    n, out_channels, *out = geometry.y_shape
    problem = _Problem(
        operator="conv",
        dtype=dtype,
        group=geometry.group,
        channels=geometry.w_shape[1],
        filters=out_channels // geometry.group,
        taps=geometry.kernel_shape,
        batch=n,
        x_shape=geometry.x_shape,
        y_shape=geometry.y_shape,
        x_strides=x_strides,
        y_strides=y_strides,
        w_strides=(w_strides[0] * (out_channels // geometry.group), *w_strides),
        b_stride=b_stride,
        columns=tuple(out),
        column_strides=tuple(1 if q == 1 else s for q, s in zip(out, geometry.strides, strict=True)),
        dilations=_dilations(geometry),
        pads=geometry.pads_begin,
        phases=(),
        strides=(),
    )
    return _plan(problem, limits)


def for_conv_transpose(
    geometry: ConvTransposeGeometry,
    dtype: str,
    x_strides: Ints,
    w_strides: Ints,
    b_stride: int | None,
    y_strides: Ints,
    limits: Limits,
) -> Plan:
    """Plan ConvTranspose; parameters and errors as in :func:`for_conv`."""
    n, out_channels, *out = geometry.y_shape
    channels = geometry.w_shape[0] // geometry.group
    strides = tuple(1 if size <= 1 else s for size, s in zip(geometry.x_shape[2:], geometry.strides, strict=True))
    problem = _Problem(
        operator="conv_transpose",
        dtype=dtype,
        group=geometry.group,
        channels=channels,
        filters=out_channels // geometry.group,
        taps=geometry.kernel_shape,
        batch=n,
        x_shape=geometry.x_shape,
        y_shape=geometry.y_shape,
        x_strides=x_strides,
        y_strides=y_strides,
        w_strides=(w_strides[0] * channels, w_strides[1], w_strides[0], *w_strides[2:]),
        b_stride=b_stride,
        columns=tuple(-(-size // s) for size, s in zip(out, strides, strict=True)),
        column_strides=(1,) * len(out),
        dilations=_dilations(geometry),
        pads=geometry.pads_begin,
        phases=tuple(min(size, s) for size, s in zip(out, strides, strict=True)),
        strides=strides,
    )
    return _plan(problem, limits)


def _dilations(geometry: _Geometry) -> Ints:
    """A single tap has no distance to another."""
    return tuple(1 if k == 1 else d for k, d in zip(geometry.kernel_shape, geometry.dilations, strict=True))


@dataclass(frozen=True, slots=True)
class _Problem:
    """What both operators come down to; ``w_strides`` are those of group, filter, channel and taps."""

    operator: str
    dtype: str
    group: int
    channels: int
    filters: int
    taps: Ints
    batch: int
    x_shape: Ints
    y_shape: Ints
    x_strides: Ints
    y_strides: Ints
    w_strides: Ints
    b_stride: int | None
    columns: Ints
    column_strides: Ints
    dilations: Ints
    pads: Ints
    phases: Ints
    strides: Ints

    @property
    def accumulator_bytes(self) -> int:
        return _dtypes.entry(_dtypes.entry(self.dtype).accumulator).itemsize

    @property
    def rank(self) -> int:
        return len(self.taps)

    @property
    def rows(self) -> int:
        return prod(self.taps) * self.channels

    @property
    def pitch(self) -> int:
        """M rounded up to 16 bytes of the accumulator's type."""
        vector = 16 // self.accumulator_bytes
        return -(-self.filters // vector) * vector

    @property
    def pixels(self) -> int:
        return self.batch * prod(self.columns)

    @property
    def workspace_bytes(self) -> int:
        return self.group * self.rows * self.pitch * self.accumulator_bytes

    @property
    def y_column_strides(self) -> Ints:
        """Strides of y from one column to the next: ConvTranspose's columns lie a stride apart."""
        steps = self.strides or (1,) * self.rank
        return tuple(step * stride for step, stride in zip(steps, self.y_strides[2:], strict=True))

    def tap_rows(self) -> Ints:
        """Rows of the packed weights from one tap to the next, axis by axis."""
        return tuple(self.channels * prod(self.taps[axis + 1 :]) for axis in range(self.rank))

    def coordinates(self) -> Ints:
        """Return a bound of the input coordinates on each axis, also of those outside of x, and of their parts."""
        if self.phases:
            axes = zip(self.columns, self.strides, self.pads, self.taps, self.dilations, strict=True)
            return tuple(q + s + pad + 2 * (k - 1) * d for q, s, pad, k, d in axes)
        axes = zip(self.columns, self.column_strides, self.pads, self.taps, self.dilations, strict=True)
        parts = (((q - 1) * s, pad, (k - 1) * d) for q, s, pad, k, d in axes)
        return tuple(max(last, pad, reach, last - pad + reach) for last, pad, reach in parts)

    def wide(self) -> bool:
        """Tell whether anything needs 64-bit indices. Offsets count elements: pointers move by them in 64 bits."""
        reach = [max(at + 1, extent) for at, extent in zip(self.coordinates(), self.x_shape[2:], strict=True)]
        magnitudes = [
            _extent((*self.x_shape[:2], *reach), self.x_strides),
            _extent(self.y_shape, self.y_strides),
            _extent((self.group, self.filters, self.channels, *self.taps), self.w_strides),
            self.group * self.rows * self.pitch,
            self.filters * self.group * abs(self.b_stride or 0),
            self.pixels,
            *reach,
            *(s * max(s, d) for s, d in zip(self.strides, self.dilations, strict=False)),  # none for Conv
        ]
        return params.needs_wide(self.operator, magnitudes)


def _extent(shape: Ints, strides: Ints) -> int:
    return sum(max(0, size - 1) * abs(stride) for size, stride in zip(shape, strides, strict=True))


# ---------------------------------------------------------------- plans


def _plan(problem: _Problem, limits: Limits) -> Plan:
    use = "the packed weights"
    if 0 in problem.y_shape:
        return Plan(problem.operator, (), 0, use, ("the result has no elements: nothing is launched",))
    wide = problem.wide()
    tile, uniform, reasons = _choose(problem, wide, limits)
    launches = [_gemm(problem, tile, uniform, wide)]
    if problem.rows:
        launches.insert(0, _packing(problem, wide))
    reasons = (*reasons, _tap_reason(problem, tile, uniform), _width_reason(wide))
    return Plan(problem.operator, tuple(launches), problem.workspace_bytes, use, reasons)


def _choose(problem: _Problem, wide: bool, limits: Limits) -> tuple[Tile, bool, tuple[str, ...]]:
    """Take the tile whose busiest multiprocessor has the least to do; return also whether slices of K have one tap."""
    accumulator = _dtypes.entry(problem.dtype).accumulator
    forms = {
        tile: tile.uniform and problem.channels > 0 and problem.channels % tile.block_k == 0
        for tile in _TILES[problem.dtype]
        if tile.shared_bytes(accumulator) <= limits.shared_bytes_per_block and (tile.wide or not wide)
    }
    costs = {tile: _cost(problem, tile, uniform, limits) for tile, uniform in forms.items() if uniform or tile.rowwise}
    best = min(costs, key=lambda tile: costs[tile])
    lines = (
        f"tile {tile}: {_blocks(problem, tile)} blocks, "
        + ("chosen" if tile == best else f"modelled to take {cost / costs[best]:.2f} of the chosen one's time")
        for tile, cost in costs.items()
    )
    return best, forms[best], tuple(lines)


def _cost(problem: _Problem, tile: Tile, uniform: bool, limits: Limits) -> float:
    """Instructions of the busiest multiprocessor, up to a factor: finding taps row by row takes its share too."""
    rounds = -(-_blocks(problem, tile) // limits.multiprocessors)
    efficiency = tile.efficiency if uniform or not tile.uniform else tile.efficiency * _ROWWISE
    return rounds * tile.block_m * tile.block_n / efficiency


def _counts(problem: _Problem, tile: Tile) -> tuple[int, int]:
    return -(-problem.filters // tile.block_m), -(-problem.pixels // tile.block_n)


def _blocks(problem: _Problem, tile: Tile) -> int:
    return prod(_counts(problem, tile)) * prod(problem.phases) * problem.group


def _width_reason(wide: bool) -> str:
    return f"{64 if wide else 32}-bit indices: offsets and coordinates {'reach' if wide else 'are below'} 2**31"


def _tap_reason(problem: _Problem, tile: Tile, uniform: bool) -> str:
    if uniform:
        return f"one tap per slice of K: {tile.block_k} divides the {problem.channels} channels of a group"
    return f"taps found row by row: {problem.channels} channels per group, slices of {tile.block_k}"


def _check_grid(operator: str, blocks: int) -> None:
    if blocks > _MOST_BLOCKS:
        raise ArgumentError(f"{operator}: {blocks} blocks are more than the {_MOST_BLOCKS} of one CUDA launch")


def _gemm(problem: _Problem, tile: Tile, uniform: bool, wide: bool) -> Launch:
    blocks = _blocks(problem, tile)
    _check_grid(problem.operator, blocks)
    chosen = variant(problem.operator, problem.dtype, wide, problem.rank, tile, uniform)
    fields: dict[str, Any] = {"common": _common_fields(problem, tile, wide)}
    if problem.operator == "conv":
        fields["taps"] = _taps_fields(problem, wide)
    else:
        fields["axes"] = [_axis_fields(problem, axis, wide) for axis in range(problem.rank)]
        fields["phases"] = params.division(prod(problem.phases), False)
    roles = {"x": "x", "y": "y"}
    if problem.rows:
        roles["weights"] = "workspace"
    if problem.b_stride is not None:
        roles["b"] = "b"
    shared = tile.shared_bytes(_dtypes.entry(problem.dtype).accumulator)
    if problem.phases:
        shared += gemm_structs.taps(wide, problem.rank).itemsize
    pointers = params.pointers(gemm_structs.correlation(wide, problem.rank), roles)
    return Launch(chosen, (blocks, 1, 1), shared, params.pack(chosen.layout, fields), pointers)


def _common_fields(problem: _Problem, tile: Tile, wide: bool) -> Mapping[str, Any]:
    m_tiles, n_tiles = _counts(problem, tile)
    return {
        "channels": problem.channels,
        "filters": problem.filters,
        "pixels": problem.pixels,
        "pitch": problem.pitch,
        "all_rows": problem.rows,
        "x_batch": problem.x_strides[0],
        "x_channel": problem.x_strides[1],
        "x_extent": problem.x_shape[2:],
        "x_stride": problem.x_strides[2:],
        "y_batch": problem.y_strides[0],
        "y_channel": problem.y_strides[1],
        "y_stride": problem.y_column_strides,
        "b_stride": problem.b_stride or 0,
        "stride": problem.column_strides,
        "extent": params.divisions(problem.columns, wide),
        "by_channel": params.division(problem.channels, wide),
        "m_tiles": params.division(m_tiles, False),
        "n_tiles": params.division(n_tiles, False),
    }


def _taps_fields(problem: _Problem, wide: bool) -> Mapping[str, Any]:
    return {
        "start": [-pad for pad in problem.pads],
        "advance": problem.dilations,
        "row": problem.tap_rows(),
        "count": params.divisions(problem.taps, wide),
        "first_row": 0,
        "rows": problem.rows,
        "limit": problem.columns,
        "y_first": 0,
    }


def _axis_fields(problem: _Problem, axis: int, wide: bool) -> Mapping[str, Any]:
    stride, dilation = problem.strides[axis], problem.dilations[axis]
    common = gcd(stride, dilation)
    return {
        "stride": stride,
        "pad": problem.pads[axis],
        "dilation": dilation,
        "kernel": problem.taps[axis],
        "common": common,
        "inverse": pow(dilation // common, -1, stride // common),
        "extent": problem.y_shape[2 + axis],
        "row": problem.tap_rows()[axis],
        "y_stride": problem.y_strides[2 + axis],
        "phases": params.division(problem.phases[axis], wide),
    }


def _packing(problem: _Problem, wide: bool) -> Launch:
    squares = (-(-problem.pitch // _SQUARE), -(-problem.rows // _SQUARE))
    blocks = prod(squares) * problem.group
    _check_grid(problem.operator, blocks)
    chosen = packing_variant(problem.dtype, wide, problem.rank)
    w_group, w_filter, w_channel, *w_stride = problem.w_strides
    fields = {
        "filters": problem.filters,
        "channels": problem.channels,
        "pitch": problem.pitch,
        "rows": problem.rows,
        "w_group": w_group,
        "w_filter": w_filter,
        "w_channel": w_channel,
        "w_stride": w_stride,
        "by_tap": params.division(prod(problem.taps), wide),
        "taps": params.divisions(problem.taps, wide),
        "m_squares": params.division(squares[0], False),
        "row_squares": params.division(squares[1], False),
    }
    pointers = params.pointers(chosen.layout, {"w": "w", "packed": "workspace"})
    return Launch(chosen, (blocks, 1, 1), 0, params.pack(chosen.layout, fields), pointers)


# ---------------------------------------------------------------- variants


def variant(operator: str, dtype: str, wide: bool, rank: int, tile: Tile, uniform: bool) -> Variant:
    """Return the tile kernel of one operator."""
    entry, index = _dtypes.entry(dtype), params.index_name(wide)
    sizes = (tile.block_m, tile.block_n, tile.block_k, tile.thread_m, tile.thread_n)
    struct, source = ("ConvParams", "conv_implicit_gemm") if operator == "conv" else ("ConvTransposeParams", operator)
    return Variant(
        name=f"{operator}_{dtype}_{rank}d_{tile}{'_uniform' if uniform else ''}{'_wide' if wide else ''}",
        source=f"{source}.cu",
        function=source,
        arguments=(entry.cuda, _ACCUMULATOR[entry.accumulator], index, *map(str, (rank, *sizes)), str(uniform).lower()),
        parameter=f"{struct}<{index}, {rank}>",
        layout=gemm_structs.operands(operator, wide, rank),
        threads=tile.threads,
        blocks_per_sm=tile.blocks_per_sm - wide,  # 64-bit numbers take more registers
    )


def packing_variant(dtype: str, wide: bool, rank: int) -> Variant:
    """Return the kernel that packs weights."""
    entry, index = _dtypes.entry(dtype), params.index_name(wide)
    return Variant(
        name=f"pack_weights_{dtype}_{rank}d{'_wide' if wide else ''}",
        source="pack_weights.cu",
        function="pack_weights",
        arguments=(entry.cuda, _ACCUMULATOR[entry.accumulator], index, str(rank)),
        parameter=f"PackParams<{index}, {rank}>",
        layout=gemm_structs.packing(wide, rank),
        threads=256,
        blocks_per_sm=4,
    )


_ACCUMULATOR = {"float32": "float", "float64": "double"}


def variants(ranks: Ints = (1, 2, 3, 4)) -> Iterator[Variant]:
    """Yield every variant that a plan of these spatial ranks can name."""
    for dtype in _dtypes.CONV_DTYPES:
        for rank in ranks:
            for wide in (False, True):
                yield packing_variant(dtype, wide, rank)
                for tile in _TILES[dtype]:
                    for uniform in (False, True):
                        if (tile.uniform if uniform else tile.rowwise) and (tile.wide or not wide):
                            yield variant("conv", dtype, wide, rank, tile, uniform)
                            yield variant("conv_transpose", dtype, wide, rank, tile, uniform)
