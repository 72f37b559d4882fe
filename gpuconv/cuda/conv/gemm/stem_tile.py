"""Kernels and tiles of ``conv/gemm/stem.cu``, with their modelled cost.

A *box* is a block's outputs, 2^``PIXEL_BITS`` of them. Its *band* is the inputs they read, with halo, in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from gpuconv.cuda.conv.gemm import fragments
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import Limits, model, numbers
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import Ints

# ---------------------------------------------------------------- tiles


PIXEL_BITS = 8  # log2 of the outputs per block
WORDS = 8  # words of K per fragment of weights
_ALONG_COLUMNS, _ALONG_CHANNELS = 1, 2  # the enum StemRuns of conv/gemm/stem.cuh


@dataclass(frozen=True, slots=True)
class StemKernel:
    """A kernel variant of the family."""

    dtype: str
    precision: str
    label: str  # part of its name
    arguments: tuple[str, ...]  # template arguments
    chunk: int  # elements of x per step of K, adjacent along W
    block_m: int
    threads: int
    blocks_per_sm: int
    buffer_bytes: int  # bytes of shared memory before the band
    slice_steps: int  # steps per slice of weights
    whole_steps: int = 1  # the table of steps is padded to a multiple of this
    arithmetic: fragments.Arithmetic | None = None  # tensor-core arithmetic; None for FFMA


def _ffma(chunk: int) -> StemKernel:
    """Return the FFMA kernel whose steps of K are ``chunk`` adjacent taps."""
    steps = 32 // chunk
    return StemKernel(
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


def _mma(dtype: str, precision: str, arithmetic: fragments.Arithmetic, block_m: int) -> StemKernel:
    """Return the tensor-core kernel for a dtype and block height."""
    depths = 4 // arithmetic.parts  # fragments along K per slice
    return StemKernel(
        dtype=dtype,
        precision=precision,
        label=f"{arithmetic.label}_{block_m}x256",
        arguments=(arithmetic.cuda, str(block_m)),
        chunk=4 // dtypes.entry(dtype).itemsize,
        block_m=block_m,
        threads=256,
        blocks_per_sm=2,
        buffer_bytes=max(3 * block_m // 16 * depths * arithmetic.parts * fragments.FRAGMENT_BYTES, 8 * 16 * 40 * 4),
        slice_steps=depths * WORDS,
        whole_steps=WORDS,
        arithmetic=arithmetic,
    )


KERNELS = (
    *(_ffma(chunk) for chunk in (11, 7, 5, 3, 1)),
    *(
        _mma(dtype, precision, arithmetic, block_m)
        for (dtype, precision), arithmetic in fragments.ARITHMETICS.items()
        if dtype != "float64"
        for block_m in ((64, 32) if arithmetic.parts == 1 else (32,))
    ),
)


@dataclass(frozen=True, slots=True)
class StemBox:
    """The outputs of a block, and the band of inputs that they read."""

    bits: Ints  # log2 of the outputs along D, H and W
    tiles: Ints  # boxes along D, H and W
    band: Ints  # band extents along D, H and W
    runs: int  # value of ``StemRuns``: what is contiguous in x
    lead: int  # unneeded elements before a row's first one, down to the previous vector boundary
    chunks: int  # 16-byte vectors copied per row
    rows: int  # rows copied
    pitch: Ints  # band strides in elements: channel, depth, row
    shift: int  # elements by which the band's first copy is shifted
    # copies of the band in shared memory: two for odd strides of 16-bit elements, so that all pairs are aligned
    copies: int
    copy_bytes: int  # bytes per copy

    @property
    def band_bytes(self) -> int:
        """Bytes of all copies of the band."""
        return self.copies * self.copy_bytes


def kernels(problem: Problem) -> Iterator[StemKernel]:
    """Yield the tensor-core kernels, or else one FFMA kernel.

    The FFMA kernel is the one whose step has the most adjacent taps and divides a row of the kernel.
    """
    of_type = [kernel for kernel in KERNELS if (kernel.dtype, kernel.precision) == (problem.dtype, problem.precision)]
    if of_type[0].arithmetic is not None:
        yield from of_type
        return
    dense = (kernel for kernel in of_type if kernel.chunk == 1 or problem.dilations[-1] == 1)
    yield next(kernel for kernel in dense if problem.taps[-1] % kernel.chunk == 0)


def steps(problem: Problem, kernel: StemKernel) -> int:
    """Return the number of steps of K; the taps of each row are padded to whole steps."""
    return problem.channels * prod(problem.taps[:2]) * -(-problem.taps[-1] // kernel.chunk)


def slices(problem: Problem, kernel: StemKernel) -> int:
    """Return the number of slices of weights."""
    return -(-steps(problem, kernel) // kernel.slice_steps)


def passes(problem: Problem, kernel: StemKernel) -> Iterator[int]:
    """Yield how many passes of ``block_m`` filters a block may make over its band: for all filters, for half, …."""
    passes = -(-problem.filters // kernel.block_m)
    while passes > 1:
        yield passes
        passes = -(-passes // 2)
    yield 1


def parts(problem: Problem, kernel: StemKernel, passes: int) -> int:
    """Return the number of blocks that share the filters of one box."""
    return -(-problem.filters // (kernel.block_m * passes))


def boxes(problem: Problem) -> Iterator[StemBox]:
    """Yield the boxes with power-of-two extents and at least eight columns along W."""
    for columns in range(3, PIXEL_BITS + 1):
        for rows in range(PIXEL_BITS - columns + 1):
            depths = PIXEL_BITS - columns - rows
            if (depths == 0 or problem.columns[0] > 1) and (rows == 0 or problem.columns[1] > 1):
                yield _box(problem, (depths, rows, columns))


def _box(problem: Problem, bits: Ints) -> StemBox:
    """Return the box of these extents (log2) with its band."""
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
    return StemBox(
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
    """Return the ``StemRuns`` of x: along which axis its rows are whole 16-byte vectors, given aligned addresses."""
    vector = 16 // problem.itemsize
    batch, channel, *spatial = problem.x_strides
    outer = [batch, *(s for s, n in zip(spatial[:2], problem.x_shape[2:4], strict=True) if n > 1)]
    width = problem.x_shape[-1]
    if spatial[2] == 1 and all(step % vector == 0 for step in (*outer, channel, width)):
        return _ALONG_COLUMNS
    fused = channel == 1 and spatial[2] == problem.channels and problem.group == 1
    return _ALONG_CHANNELS if fused and all(step % vector == 0 for step in (*outer, width * problem.channels)) else 0


def _row_taps(problem: Problem) -> int:
    """Return the taps along W, padded to whole 4-byte words."""
    pair = 4 // problem.itemsize
    return -(-problem.taps[-1] // pair) * pair if pair > 1 else problem.taps[-1]


def channels_are_vectors(problem: Problem) -> bool:
    """Return whether y holds each group's channels as whole 16-byte vectors at every pixel, given an aligned y."""
    vector, (batch, channel, *spatial) = 16 // problem.itemsize, problem.y_strides
    return channel == 1 and all(step % vector == 0 for step in (problem.filters, batch, *spatial))


def pixels_are_vectors(problem: Problem) -> bool:
    """Return whether rows of y consist of whole 16-byte vectors, given an aligned y."""
    vector, (*outer, step) = 16 // problem.itemsize, problem.y_strides
    return step == 1 and all(number % vector == 0 for number in (problem.y_shape[-1], *outer))


# ---------------------------------------------------------------- shared memory


def shared_bytes(problem: Problem, kernel: StemKernel, box: StemBox) -> int:
    """Return the bytes of shared memory: pipeline buffers, band, and table of steps."""
    return kernel.buffer_bytes + box.band_bytes + 4 * numbers.whole(steps(problem, kernel), kernel.whole_steps)


# ---------------------------------------------------------------- cost


# Instructions per thread, counted in SASS for sm_90a.
_PASS = 160  # start of a pass
_ROW, _STEP, _SLICE = 74, 14, 73  # per row of K; per step, shared by its rows; per slice
_TENSOR_SLICE = 40
# Per output, written as rows of pixels (vectors of them on tensor cores), as vectors of channels, or singly.
_OUTPUT = {"float32": (10, 7, 27), "tensor": (4.5, 7, 27)}
_CHUNK_COPY = {2: (155, 75, 225), 4: (130, 85, 150)}  # per 16 bytes of the band; bytes per element → cost by StemRuns
_ENTRY = 30  # per entry of the table of steps
_CONFLICTS = 1.5  # shared-memory wavefronts per 32 words of the band (estimated)


def seconds(problem: Problem, kernel: StemKernel, box: StemBox, passes: int, limits: Limits) -> float:
    """Model the seconds; inputs that several blocks read mostly hit the L2 cache."""
    blocks = problem.group * problem.batch * prod(box.tiles) * parts(problem, kernel, passes)
    rows, chunks = steps(problem, kernel), -(-box.rows * box.chunks // kernel.threads)
    copying = chunks * _CHUNK_COPY[problem.itemsize][box.runs] + -(-rows // kernel.threads) * _ENTRY
    outputs = kernel.block_m * (1 << PIXEL_BITS)
    in_pass = _PASS + outputs / kernel.threads * _output_instructions(problem, kernel)
    read = model.gathering(blocks, box.rows * box.chunks * 16 / problem.itemsize, _lines(problem, box), limits)
    if kernel.arithmetic is None:
        in_pass += rows * (kernel.chunk * _ROW + _STEP) + slices(problem, kernel) * _SLICE
        issued = (copying + passes * in_pass) * kernel.threads
        busy = model.arithmetic(blocks, issued, "float32", 1.0, limits)
    else:
        fragments = -(-rows // WORDS)
        in_pass += fragments * _fragment_instructions(kernel) + slices(problem, kernel) * _TENSOR_SLICE
        rounds = numbers.whole(blocks, limits.multiprocessors)
        issued = model.instructions(rounds * (copying + passes * in_pass) * kernel.threads, limits)
        products = outputs * fragments * WORDS * kernel.chunk * passes * kernel.arithmetic.products
        wavefronts = _wavefronts(problem, kernel)
        busy = max(issued, model.tensor(blocks, products, kernel.arithmetic.lanes, wavefronts, limits))
    return model.overlapped(max(busy, read), model.memory(_bytes(problem), limits)) + limits.rates.launch


def _bytes(problem: Problem) -> int:
    """Return the memory traffic in bytes; sectors shared with other groups' channels count in full."""
    sector = 32 // problem.itemsize
    x, y = (
        min(sector, max(1, abs(step) // own))
        for step, own in ((problem.x_strides[-1], problem.channels), (problem.y_strides[-1], problem.filters))
    )
    elements = (x - 1) * prod(problem.x_shape) + (y - 1) * prod(problem.y_shape)
    return problem.bytes + elements * problem.itemsize


def _output_instructions(problem: Problem, kernel: StemKernel) -> float:
    """Return the instructions per output and thread, by how y can be written."""
    rows, vectors, others = _OUTPUT["float32" if kernel.arithmetic is None else "tensor"]
    if problem.y_strides[1] == 1:
        return vectors if channels_are_vectors(problem) else others
    return rows if kernel.arithmetic is None or pixels_are_vectors(problem) else others


def _lines(problem: Problem, box: StemBox) -> int:
    """Return the 128-byte lines of x that a warp touches per load of one chunk, or element of it, per lane."""
    if box.runs:
        return 4 * problem.itemsize // 16 or 1
    return min(32, -(-32 * 16 * abs(problem.x_strides[-1]) // 128))


def _fragment_instructions(kernel: StemKernel) -> int:
    """Return the instructions of a warp per fragment of weights."""
    assert kernel.arithmetic is not None
    rows, parts, products = kernel.block_m // 16, kernel.arithmetic.parts, kernel.arithmetic.products
    rounding = {("float32", "tf32"): 16, ("float32", "3xtf32"): 26}.get((kernel.dtype, kernel.precision), 0)
    return rows * (parts + 4 * products) + 24 + rounding


def _wavefronts(problem: Problem, kernel: StemKernel) -> float:
    """Return the shared-memory wavefronts (128 bytes each) per mma, with estimated bank conflicts of the band."""
    assert kernel.arithmetic is not None
    rows, parts = kernel.block_m // 16, kernel.arithmetic.parts
    return (4 * rows * parts + 2 * (4 * _CONFLICTS + 1)) / (rows * 4 * kernel.arithmetic.products)
