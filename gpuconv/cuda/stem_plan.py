"""Conv of few input channels and many filters, as the first layers of networks are (``conv_stem.cu``).

Two launches, one that packs the weights and one whose blocks have all inputs that their outputs meet in shared memory.
Channels are the first of four axes of a correlation with one channel, so that rows of K are (channel, taps).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod
from typing import Any

from gpuconv import _dtypes
from gpuconv._geometry import Ints
from gpuconv.cuda import correlation, fragments, gemm_fields, gemm_plan, gemm_structs, model, params
from gpuconv.cuda.choice import Candidate
from gpuconv.cuda.correlation import Problem
from gpuconv.cuda.fragments import Arithmetic
from gpuconv.cuda.gemm_fields import PackedWeights
from gpuconv.cuda.plan import Launch, Limits, Plan, Variant

NAME = "bands of few channels"
_RANK = 3
CHANNELS = range(1, 16)  # of a group; of 16 every slice of K has one tap elsewhere
_ROWS = 4096  # of K, at most: the table of its steps stays small
_PIXEL_BITS = 8  # log2 of a block's outputs
_FARTHEST = 2**30  # coordinates and extents are below
_ALONG_COLUMNS, _ALONG_CHANNELS = 1, 2  # StemRuns, of stem.cuh
_FRAGMENT, _WORDS = 512, 8  # bytes of a fragment of weights; words of its K


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of the family.

    Attributes
    ----------
    dtype, precision : str
    label : str
        In its name.
    arguments : tuple of str
        Of the template.
    chunk : int
        Elements that a step of K takes, neighbours along the columns of x.
    block_m, threads, blocks_per_sm : int
    buffer_bytes : int
        Of shared memory before the band.
    slice_steps, whole_steps : int
        Steps of a slice of weights; in whose multiples the table of steps is filled up.
    arithmetic : fragments.Arithmetic or None
        On tensor cores.
    """

    dtype: str
    precision: str
    label: str
    arguments: tuple[str, ...]
    chunk: int
    block_m: int
    threads: int
    blocks_per_sm: int
    buffer_bytes: int
    slice_steps: int
    whole_steps: int = 1
    arithmetic: Arithmetic | None = None


def _ffma(chunk: int) -> Kernel:
    steps = 32 // chunk
    return Kernel(
        dtype="float32",
        precision="ieee",
        label=f"32x256x{chunk}",
        arguments=(str(chunk),),
        chunk=chunk,
        block_m=32,
        threads=128,
        blocks_per_sm=4,
        buffer_bytes=4 * max(3 * steps * chunk * 32, 4 * 16 * 34),
        slice_steps=steps,
    )


def _mma(dtype: str, precision: str, arithmetic: Arithmetic, block_m: int) -> Kernel:
    fragments = 4 // arithmetic.parts  # along K of a slice
    return Kernel(
        dtype=dtype,
        precision=precision,
        label=f"{arithmetic.label}_{block_m}x256",
        arguments=(arithmetic.cuda, str(block_m)),
        chunk=4 // _dtypes.entry(dtype).itemsize,
        block_m=block_m,
        threads=256,
        blocks_per_sm=2,
        buffer_bytes=max(3 * block_m // 16 * fragments * arithmetic.parts * _FRAGMENT, 8 * 16 * 40 * 4),
        slice_steps=fragments * _WORDS,
        whole_steps=_WORDS,
        arithmetic=arithmetic,
    )


_KERNELS = (
    *(_ffma(chunk) for chunk in (11, 7, 5, 4, 3, 1)),
    *(
        _mma(dtype, precision, arithmetic, block_m)
        for dtype, precision, arithmetic in fragments.arithmetics()
        if dtype != "float64"
        for block_m in (64, 32)
    ),
)


@dataclass(frozen=True, slots=True)
class Box:
    """The outputs of a block, and the inputs that they meet.

    Attributes
    ----------
    bits : tuple of int
        log2 of the outputs along depths, rows and columns.
    tiles : tuple of int
        Boxes along depths, rows and columns.
    band : tuple of int
        Extents of the band, without channels.
    runs, lead : int
        ``StemRuns``, and elements of x before the first one that is needed, from where a whole vector begins.
    chunks, rows : int
        Vectors of a row, and rows, as they are copied.
    pitch : tuple of int
        Elements of the band from one channel, depth and row to the next.
    shift, copies, copy_bytes : int
        How many elements the first copy of the band is shifted by; how many copies there are, and bytes of each.
    """

    bits: Ints
    tiles: Ints
    band: Ints
    runs: int
    lead: int
    chunks: int
    rows: int
    pitch: Ints
    shift: int
    copies: int
    copy_bytes: int

    @property
    def band_bytes(self) -> int:
        """Of all copies."""
        return self.copies * self.copy_bytes


# ---------------------------------------------------------------- what they accept


def candidates(problem: Problem, limits: Limits) -> Iterator[Candidate]:
    """Yield a candidate for every kernel that takes the problem, in the best of the boxes that there is room for."""
    if refusal(problem) is not None:
        return
    lifted = correlation.in_three_axes(problem)
    every_box = list(_boxes(lifted))
    for kernel in _kernels(lifted):
        boxes = [box for box in every_box if _shared_bytes(lifted, kernel, box) <= _room(limits)]
        ways = [
            (_seconds(lifted, kernel, box, passes, limits), box, passes)
            for box, passes in product(boxes, _passes(lifted, kernel))
        ]
        if ways and not problem.wide(_packed_bytes(lifted, kernel)):
            seconds, box, passes = min(ways, key=lambda way: way[0])
            yield Candidate(variant(kernel).name, seconds, partial(_plan, lifted, kernel, box, passes))


def refusal(problem: Problem) -> str | None:
    """Return why no kernel of this family takes a problem; None where one does, if there is room for its band."""
    if problem.operator != "conv":
        return "it is no Conv"
    if problem.rank > _RANK:
        return f"{problem.rank} spatial axes; it has three"
    if problem.dtype == "float64":
        return "elements of 64 bits"
    if problem.itemsize == 2 and problem.dilations[-1] > 1:
        return "taps of a row that are no neighbours, which 16-bit elements must be"
    if problem.channels not in CHANNELS:
        return f"{problem.channels} channels of a group; it takes 1 to {CHANNELS[-1]}"
    if problem.rows > _ROWS or problem.rows == 0:
        return f"{problem.rows} rows of K; it takes 1 to {_ROWS}"
    if max((*problem.coordinates(), *problem.x_shape[2:])) >= _FARTHEST or problem.wide():
        return "offsets or coordinates need 64-bit indices"
    return None


def _kernels(problem: Problem) -> Iterator[Kernel]:
    """Yield the kernel of the most taps at once that are neighbours in x, or those on tensor cores."""
    found = [one for one in _KERNELS if (one.dtype, one.precision) == (problem.dtype, problem.precision)]
    if found[0].arithmetic is not None:
        yield from found
        return
    chunks = (one for one in found if one.chunk == 1 or problem.dilations[-1] == 1)
    yield next(one for one in chunks if problem.taps[-1] % one.chunk == 0)


def _room(limits: Limits) -> int:
    """Return the shared memory of a block if at least two share a multiprocessor."""
    return min(limits.shared_bytes_per_block, limits.shared_bytes_per_multiprocessor // 2 - 1024)


# ---------------------------------------------------------------- boxes


def _boxes(problem: Problem) -> Iterator[Box]:
    """Yield the boxes of all extents that are powers of two, of at least eight columns."""
    for columns in range(3, _PIXEL_BITS + 1):
        for rows in range(_PIXEL_BITS - columns + 1):
            depths = _PIXEL_BITS - columns - rows
            if (depths == 0 or problem.columns[0] > 1) and (rows == 0 or problem.columns[1] > 1):
                yield _box(problem, (depths, rows, columns))


def _box(problem: Problem, bits: Ints) -> Box:
    taps = (*problem.taps[:2], _row_taps(problem))
    axes = zip(bits, problem.column_strides, taps, problem.dilations, strict=True)
    band = tuple(((1 << b) - 1) * s + (k - 1) * d + 1 for b, s, k, d in axes)
    vector, runs = 16 // problem.itemsize, _runs(problem)
    wide = problem.channels if runs == _ALONG_CHANNELS else 1
    lead = -problem.pads[-1] * wide % vector if runs else 0
    chunks = -(-(band[2] * wide + lead) // vector)
    row = -(-(band[2] + (lead if wide == 1 else 0)) // vector) * vector
    plane = row * band[1]
    pairs = problem.itemsize == 2
    copies = 2 if pairs and problem.column_strides[-1] % 2 else 1
    return Box(
        bits=bits,
        tiles=tuple(-(-q // (1 << b)) for q, b in zip(problem.columns, bits, strict=True)),
        band=band,
        runs=runs,
        lead=lead,
        chunks=chunks,
        rows=band[0] * band[1] * (1 if runs == _ALONG_CHANNELS else problem.channels),
        pitch=(plane * band[0], plane, row),
        shift=lead % 2 if pairs and copies == 1 and wide == 1 else 0,
        copies=copies,
        copy_bytes=problem.channels * plane * band[0] * problem.itemsize,
    )


def _runs(problem: Problem) -> int:
    """Tell which neighbours make whole vectors in x, row by row, if addresses do as well."""
    vector = 16 // problem.itemsize
    batch, channel, *spatial = problem.x_strides
    outer = [batch, *(s for s, n in zip(spatial[:2], problem.x_shape[2:4], strict=True) if n > 1)]
    width = problem.x_shape[-1]
    if spatial[2] == 1 and all(step % vector == 0 for step in (*outer, channel, width)):
        return _ALONG_COLUMNS
    fused = channel == 1 and spatial[2] == problem.channels and problem.group == 1
    return _ALONG_CHANNELS if fused and all(step % vector == 0 for step in (*outer, width * problem.channels)) else 0


def _row_taps(problem: Problem) -> int:
    """Return the taps along columns, filled up to pairs of short elements."""
    pair = 4 // problem.itemsize
    return -(-problem.taps[-1] // pair) * pair if pair > 1 else problem.taps[-1]


def _shared_bytes(problem: Problem, kernel: Kernel, box: Box) -> int:
    """Return the bytes of the buffers, the band, and the table of steps."""
    return kernel.buffer_bytes + box.band_bytes + 4 * _whole(_steps(problem, kernel), kernel.whole_steps)


def _steps(problem: Problem, kernel: Kernel) -> int:
    """Return how many steps K takes, the taps of each row in whole ones."""
    return problem.channels * prod(problem.taps[:2]) * -(-problem.taps[-1] // kernel.chunk)


def _slices(problem: Problem, kernel: Kernel) -> int:
    return -(-_steps(problem, kernel) // kernel.slice_steps)


def _whole(number: int, part: int) -> int:
    return -(-number // part) * part


def _passes(problem: Problem, kernel: Kernel) -> Iterator[int]:
    """Yield how many times its own output channels a block may make: all, half of that and so on."""
    passes = -(-problem.filters // kernel.block_m)
    while passes > 1:
        yield passes
        passes = -(-passes // 2)
    yield 1


# ---------------------------------------------------------------- time

# Instructions of a thread, by the machine code for sm_90a.
_PASS = 160  # of what a pass begins with
_ROW, _STEP, _SLICE = 74, 14, 73  # of a row of K; of what rows of one step share; of a slice
_TENSOR_SLICE = 40
# Of an output: in rows of pixels, of vectors of them on tensor cores; in whole vectors of channels; in any others.
_OUTPUT = {"float32": (10, 7, 27), "tensor": (4.5, 7, 27)}
_CHUNK_COPY = {2: (155, 75, 225), 4: (130, 85, 150)}  # of 16 bytes of the band, by the size of elements and StemRuns
_ENTRY = 30  # of the table
_CONFLICTS = 1.5  # wavefronts of 32 words of the band; estimated


def _seconds(problem: Problem, kernel: Kernel, box: Box, passes: int, limits: Limits) -> float:
    """Model the time: inputs that several blocks meet mostly come from the L2 cache."""
    blocks = problem.group * problem.batch * prod(box.tiles) * _parts(problem, kernel, passes)
    steps, chunks = _steps(problem, kernel), -(-box.rows * box.chunks // kernel.threads)
    once = chunks * _CHUNK_COPY[problem.itemsize][box.runs] + -(-steps // kernel.threads) * _ENTRY
    outputs = kernel.block_m * (1 << _PIXEL_BITS)
    each = _PASS + outputs / kernel.threads * _output_instructions(problem, kernel)
    read = model.gathering(blocks, box.rows * box.chunks * 16 / problem.itemsize, _lines(problem, box), limits)
    if kernel.arithmetic is None:
        each += steps * (kernel.chunk * _ROW + _STEP) + _slices(problem, kernel) * _SLICE
        issued = (once + passes * each) * kernel.threads
        busy = model.arithmetic(blocks, issued, "float32", 1.0, limits)
    else:
        fragments = -(-steps // _WORDS)
        each += fragments * _fragment_instructions(kernel) + _slices(problem, kernel) * _TENSOR_SLICE
        rounds = -(-blocks // limits.multiprocessors) * limits.multiprocessors
        issued = model.instructions(rounds * (once + passes * each) * kernel.threads, limits)
        products = outputs * fragments * _WORDS * kernel.chunk * passes * kernel.arithmetic.products
        wavefronts = _wavefronts(problem, kernel)
        busy = max(issued, model.tensor(blocks, products, kernel.arithmetic.lanes, wavefronts, limits))
    return model.overlapped(max(busy, read), model.memory(_bytes(problem), limits)) + model.LAUNCH


def _bytes(problem: Problem) -> int:
    """Of all arrays, in whole sectors where channels of other groups, which other blocks have, lie between pixels."""
    sector = 32 // problem.itemsize
    x, y = (
        min(sector, max(1, abs(step) // own))
        for step, own in ((problem.x_strides[-1], problem.channels), (problem.y_strides[-1], problem.filters))
    )
    elements = (x - 1) * prod(problem.x_shape) + (y - 1) * prod(problem.y_shape)
    return problem.bytes + elements * problem.itemsize


def _output_instructions(problem: Problem, kernel: Kernel) -> float:
    rows, vectors, others = _OUTPUT["float32" if kernel.arithmetic is None else "tensor"]
    if problem.y_strides[1] == 1:
        return vectors if _channels_are_vectors(problem) else others
    return rows if kernel.arithmetic is None or _pixels_are_vectors(problem) else others


def _lines(problem: Problem, box: Box) -> int:
    """Lines of 128 bytes that 32 lanes meet in x at once: lanes have chunks, which they read whole or one by one."""
    if box.runs:
        return 4 * problem.itemsize // 16 or 1
    return min(32, -(-32 * 16 * abs(problem.x_strides[-1]) // 128))


def _fragment_instructions(kernel: Kernel) -> int:
    assert kernel.arithmetic is not None
    rows, parts, products = kernel.block_m // 16, kernel.arithmetic.parts, kernel.arithmetic.products
    rounding = {("float32", "tf32"): 16, ("float32", "3xtf32"): 26}.get((kernel.dtype, kernel.precision), 0)
    return rows * (parts + 4 * products) + 24 + rounding


def _wavefronts(problem: Problem, kernel: Kernel) -> float:
    """128 bytes of shared memory for every instruction that multiplies fragments; inputs meet in some banks."""
    assert kernel.arithmetic is not None
    rows, parts = kernel.block_m // 16, kernel.arithmetic.parts
    return (4 * rows * parts + 2 * (4 * _CONFLICTS + 1)) / (rows * 4 * kernel.arithmetic.products)


def _parts(problem: Problem, kernel: Kernel, passes: int) -> int:
    """Return the blocks that share the filters of the same outputs."""
    return -(-problem.filters // (kernel.block_m * passes))


# ---------------------------------------------------------------- plans


def _plan(problem: Problem, kernel: Kernel, box: Box, passes: int) -> Plan:
    flat = _with_channels_as_axis(problem)
    parts = _parts(problem, kernel, passes)
    tiles = problem.batch * prod(box.tiles)
    grid = (problem.group * parts * tiles, 1, 1)
    gemm_fields.check_grid(problem.operator, grid[0])
    chosen = variant(kernel)
    operands = gemm_fields.operands(flat, (parts, tiles), _weights(problem, kernel), False)
    fields = {
        "common": operands["common"],
        "taps": {**operands["taps"], "row": _tap_rows(problem, kernel)},
        **_fields(problem, kernel, box),
        "passes": passes,
    }
    pointers = params.pointers(gemm_structs.correlation(False, _RANK + 1), gemm_fields.roles(flat))
    shared = _shared_bytes(problem, kernel, box)
    launch = Launch(chosen, grid, shared, params.pack(chosen.layout, fields), pointers)
    packing = gemm_plan.packing(flat, False) if kernel.arithmetic is None else _packing(problem, kernel)
    extents = "x".join(str(1 << bits) for bits in box.bits)
    reason = f"{box.band_bytes} bytes of inputs for {extents} outputs in shared memory; {kernel.chunk} taps at a time"
    return Plan(problem.operator, (packing, launch), 0, "", (reason,), packed_bytes=_packed_bytes(problem, kernel))


def _weights(problem: Problem, kernel: Kernel) -> PackedWeights:
    """Rows of K, or slices, and their bytes, on tensor cores."""
    if kernel.arithmetic is None:
        return PackedWeights(gemm_plan.pitch(problem), problem.rows, 1)
    bytes_of_row = _columns(problem, kernel) * _FRAGMENT * kernel.arithmetic.parts * (kernel.slice_steps // _WORDS)
    return PackedWeights(bytes_of_row, _slices(problem, kernel), 1)


def _packed_bytes(problem: Problem, kernel: Kernel) -> int:
    weights = _weights(problem, kernel)
    return problem.group * weights.all_rows * weights.pitch * (problem.itemsize if kernel.arithmetic is None else 1)


def _columns(problem: Problem, kernel: Kernel) -> int:
    """Fragments along M, in whole passes."""
    return _whole(problem.filters, kernel.block_m) // 16


def _tap_rows(problem: Problem, kernel: Kernel) -> Ints:
    """Rows of K from one channel, and from one tap of each axis, to the next."""
    row = problem.taps[-1] if kernel.arithmetic is None else _whole(problem.taps[-1], kernel.chunk)
    return problem.taps[0] * problem.taps[1] * row, problem.taps[1] * row, row, 1


def _packing(problem: Problem, kernel: Kernel) -> Launch:
    """Return the launch that packs weights as fragments, where the taps of a row are what channels are elsewhere."""
    columns, taps = _columns(problem, kernel), problem.channels * prod(problem.taps[:2])
    depths = kernel.slice_steps // _WORDS
    rows = _slices(problem, kernel) * depths
    w_group, w_filter, w_channel, *w_stride = problem.w_strides
    fields = {
        "filters": problem.filters,
        "channels": problem.taps[-1],
        "taps": taps,
        "w_group": w_group,
        "w_filter": w_filter,
        "w_channel": w_stride[-1],
        "w_stride": (w_channel, *w_stride[:2]),
        "tap_parts": params.division(1, False),
        "rows": params.division(rows, False),
        "columns": params.division(columns, False),
        "depths": params.division(depths, False),
        "by_channel": params.division(_whole(problem.taps[-1], kernel.chunk), False),
        "extent": params.divisions((problem.channels, *problem.taps[:2]), False),
        "outer_taps": 1,
    }
    chosen = fragments.packing_variant(problem.dtype, problem.precision)
    return gemm_fields.packing_launch(chosen, problem.group * columns * rows, fields, 0)


def _fields(problem: Problem, kernel: Kernel, box: Box) -> dict[str, Any]:
    return {
        "tiles": params.divisions(box.tiles, False),
        "row_bits": box.bits[1],
        "column_bits": box.bits[2],
        "runs": box.runs,
        "lead": box.lead,
        "chunks": params.division(box.chunks, False),
        "band_rows": params.division(box.band[1], False),
        "band_depths": params.division(box.band[0], False),
        "band_columns": box.band[2],
        "units": box.chunks * box.rows,
        "pitch": box.pitch,
        "shift": box.shift,
        "copies": box.copies,
        "copy_bytes": box.copy_bytes,
        "band_bytes": box.band_bytes,
        "steps_of_row": params.division(-(-problem.taps[-1] // kernel.chunk), False),
        "steps": _steps(problem, kernel),
        "step_bytes": kernel.chunk * problem.dilations[-1] * problem.itemsize,
        "channel_vectors": _channels_are_vectors(problem),
        "pixel_vectors": _pixels_are_vectors(problem),
    }


def _channels_are_vectors(problem: Problem) -> bool:
    """Tell whether the channels of a group are whole vectors in y, at every pixel, if y begins with one."""
    vector, (batch, channel, *spatial) = 16 // problem.itemsize, problem.y_strides
    return channel == 1 and all(step % vector == 0 for step in (problem.filters, batch, *spatial))


def _pixels_are_vectors(problem: Problem) -> bool:
    """Tell whether every eight columns of y that a box has begin with a whole vector, if y does."""
    vector, (*outer, step) = 16 // problem.itemsize, problem.y_strides
    return step == 1 and all(stride % vector == 0 for stride in outer)


def _with_channels_as_axis(problem: Problem) -> Problem:
    """Return a problem of three axes with its channels as a fourth one, outermost, whose taps are all of them."""
    w_group, w_filter, w_channel, *w_stride = problem.w_strides
    batch, channel, *spatial = problem.x_strides
    return replace(
        problem,
        channels=1,
        taps=(problem.channels, *problem.taps),
        x_shape=(problem.batch, problem.group, problem.channels, *problem.x_shape[2:]),
        y_shape=(*problem.y_shape[:2], 1, *problem.y_shape[2:]),
        x_strides=(batch, problem.channels * channel, channel, *spatial),
        y_strides=(*problem.y_strides[:2], 0, *problem.y_strides[2:]),
        w_strides=(w_group, w_filter, 0, w_channel, *w_stride),
        columns=(1, *problem.columns),
        column_strides=(1, *problem.column_strides),
        dilations=(1, *problem.dilations),
        pads=(0, *problem.pads),
    )


# ---------------------------------------------------------------- variants


def variant(kernel: Kernel) -> Variant:
    """Return one kernel of the family."""
    return Variant(
        name=f"conv_stem_{kernel.dtype}_{_RANK}d_{kernel.label}",
        source="conv_stem.cu",
        function="conv_stem" if kernel.arithmetic is None else "conv_stem_mma",
        arguments=kernel.arguments,
        parameter="StemParams",
        layout=gemm_structs.stem(),
        threads=kernel.threads,
        blocks_per_sm=kernel.blocks_per_sm,
    )


def variants() -> Iterator[Variant]:
    """Yield every variant that a plan can name."""
    yield from map(variant, _KERNELS)
