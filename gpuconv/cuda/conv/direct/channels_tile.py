"""The tiles of ``kernels_cu/conv/direct/channels.cu``: what a block makes, holds in shared memory and takes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import gcd, prod

from gpuconv.cuda.conv.direct.base import Work
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import model, numbers
from gpuconv.cuda.plan.launch import Limits
from gpuconv.cuda.plan.launching import MOST_BLOCKS
from gpuconv.rules import dtypes

THREADS, _WARP = 128, 32
_OUTPUTS = 16  # of a thread, in each channel
_WEIGHT_BYTES = 32 * 1024  # of those in shared memory, as far as one row of the kernel needs no more
_LINE, _BURST = 128, 64  # bytes, of the L1 cache and of the memory bus
_VECTORS = (1, 2, 4, 6, 8, 12, 16, 20, 24, 32, 48, 64, 128)  # threads along the channels, at most
# Instructions, as the main loops of sm_90a have them: of an input in registers; of a row of the kernel; of a tap, with
# a load of its weights. Estimated: of a thread's tile but for that; of a weight that is widened.
_INPUT = {"float16": 11, "bfloat16": 11, "float32": 8, "float64": 8}
_ROW, _TAP, _REST, _WEIGHT = 10, 3, 400, 30
# Taps from one window of a thread to the next, 0 for any; taps at once; columns.
FORMS = ((1, 7, 8), (2, 4, 4), (0, 1, 4))


@dataclass(frozen=True)
class Thread:
    """What a thread makes of a problem, beside so many others along the channels: all that rows and columns share.

    Attributes
    ----------
    work : Work
    form : tuple of int
    whole : bool
        Whether pixels are made of whole vectors of channels, one filter each.
    vectors : int
        Threads of a block along the channels.
    """

    work: Work
    form: tuple[int, int, int]
    whole: bool
    vectors: int

    @cached_property
    def word(self) -> int:
        """Bytes of a sum."""
        return dtypes.sums(self.work.dtype).itemsize

    @cached_property
    def vector(self) -> int:
        """Channels of a thread."""
        return 16 // self.word

    @property
    def accumulator(self) -> str:
        """Type of the sums."""
        return dtypes.entry(self.work.dtype).accumulator

    @cached_property
    def burst_bytes(self) -> int:
        """Of the channels of a pixel that a block has, in whole bursts."""
        return numbers.whole(self.vectors * self.vector * dtypes.entry(self.work.dtype).itemsize, _BURST)

    @cached_property
    def each(self) -> tuple[int, int]:
        """Rows and columns of a thread."""
        return _OUTPUTS // self.form[2], self.form[2]

    @cached_property
    def apart(self) -> tuple[int, int]:
        """Rows and columns from one output of a thread to the next, so that they share inputs."""
        height, width = (d // gcd(s, d) for s, d in zip(self.work.strides[1:], self.work.dilations[1:], strict=True))
        return height, width if self.form[0] else 1

    @cached_property
    def advance(self) -> int:
        """Taps from one row of a thread to the next."""
        return self.work.strides[1] // gcd(self.work.strides[1], self.work.dilations[1])

    @cached_property
    def tiles(self) -> tuple[int, int]:
        """Of threads along the rows and the columns of a slice."""
        axes = zip(self.work.y_extent[1:], self.each, self.apart, strict=True)
        height, width = (-(-extent // (each * apart)) * apart for extent, each, apart in axes)
        return height, width

    @cached_property
    def filters(self) -> int:
        """Channels of y."""
        return self.work.groups * self.work.filters

    @cached_property
    def slices(self) -> int:
        """Of all images."""
        return self.work.y_extent[0] * self.work.images

    def grid(self, rows: int, columns: int, walk: int) -> tuple[int, int, int]:
        """Return the blocks of a slice along the channels, the columns and the rows, of so many threads and steps."""
        height, width = self.tiles
        return -(-self.filters // (self.vectors * self.vector)), -(-width // columns), -(-height // (rows * walk))

    # ---- shared memory

    @cached_property
    def pitch(self) -> int:
        """Words of a tap: those that are written together, of neighbouring taps, begin in different banks."""
        return (self.vectors + 1) * self.vector

    @cached_property
    def step(self) -> int:
        """Rows of the kernel whose weights are in shared memory at a time."""
        _, height, width = self.work.taps
        return min(height, max(1, _WEIGHT_BYTES // (self.word * self.pitch * width)))

    @cached_property
    def parts(self) -> int:
        """Of a slice of the kernel, each of so many rows."""
        return -(-self.work.taps[1] // self.step)

    @property
    def shared_bytes(self) -> int:
        return self.word * self.pitch * self.step * self.work.taps[2]

    # ---- time

    @cached_property
    def turns(self) -> int:
        """How often a thread makes its outputs: once for a vector of channels, or for each of them."""
        return 1 if self.whole else self.vector

    @cached_property
    def outputs(self) -> tuple[int, int]:
        """Rows and columns of a thread, of which columns are made even if they do not exist."""
        rows, columns = self.each
        return min(rows, -(-self.work.y_extent[1] // self.apart[0])), columns

    @cached_property
    def products(self) -> int:
        """Of a thread."""
        return prod(self.outputs) * self.vector * prod(self.work.taps)

    def inputs(self, chunk: int) -> int:
        """Return how many vectors of x a thread meets, of a last chunk of so many taps of a row."""
        depth, height, width = self.work.taps
        rows, columns = self.outputs
        stride, taps, _ = self.form
        more, chunks = (columns - 1) * max(stride, 1), -(-width // taps)
        in_a_row = chunks * more + (chunks - 1) * taps + chunk
        return depth * (height + self.parts * (rows - 1) * self.advance) * in_a_row

    @cached_property
    def loads(self) -> int:
        """Of vectors of x, and of weights, by a thread."""
        return self.turns * self.inputs((self.work.taps[2] - 1) % self.form[1] + 1)

    @cached_property
    def lines(self) -> int:
        """Lines of the L1 cache that a warp's vectors lie in."""
        lanes = min(self.vectors, _WARP)
        size = self.vector // self.turns * dtypes.entry(self.work.dtype).itemsize
        return -(-_WARP // lanes) * -(-lanes * size // _LINE)

    @cached_property
    def factors(self) -> int:
        """Loads of weights by a thread."""
        return self.turns * self.outputs[0] * prod(self.work.taps)

    @cached_property
    def instructions(self) -> tuple[float, float]:
        """Of a thread: on each step of its way, and for weights, which several steps share where they stay."""
        depth, height, width = self.work.taps
        rows = self.turns * self.outputs[0] * depth * height * -(-width // self.form[1])
        inputs = _INPUT[self.work.dtype] * self.turns * self.inputs(self.form[1])
        weights = _WEIGHT * self.turns * self.vectors * self.vector * prod(self.work.taps) / THREADS
        each = self.products + inputs + _ROW * rows + _TAP * self.factors + _REST * self.turns
        return each, weights

    def met(self, rows: int, columns: int) -> int:
        """Return the bytes of x that a block of so many threads meets."""
        _, down, across = self.work.strides
        depth, taps_h, taps_w = self.work.taps
        each_h, each_w = self.each
        height, width = (rows * each_h - 1) * down + taps_h, (columns * each_w - 1) * across + taps_w
        return self.burst_bytes * height * width * depth

    def time(self, rows: int, columns: int, walk: int, limits: Limits) -> float:
        """Model what a multiprocessor takes: for products, instructions, reading from its L1 cache or from the L2."""
        blocks, threads = prod(self.grid(rows, columns, walk)) * self.slices, self.vectors * rows * columns
        walked, (each, weights) = threads * walk, self.instructions
        again = 1 if self.parts * self.work.taps[0] == 1 else walk
        rounds = numbers.whole(blocks, limits.multiprocessors)
        issued = rounds * -(-threads // _WARP) * _WARP * (walk * each + weights * again)
        inputs = model.gathering(blocks, walked * self.loads, self.lines, limits)
        factors = model.gathering(blocks, walked * self.factors, 16 // self.turns * _WARP // _LINE, limits)
        return max(
            model.arithmetic(blocks, walked * self.products, self.accumulator, 1.0, limits),
            model.instructions(issued, limits),
            inputs + factors,
            model.cached(blocks, self.met(rows * walk, columns), limits),
        )


@dataclass(frozen=True)
class Tile(Thread):
    """What a block makes of a problem: so many threads along the channels, the rows and the columns.

    Attributes
    ----------
    rows, columns : int
        Threads of a block.
    walk : int
        How often they step on to the next rows.
    """

    rows: int
    columns: int
    walk: int

    @cached_property
    def blocks_by_axis(self) -> tuple[int, int, int]:
        """Along the channels, the columns and the rows."""
        return self.grid(self.rows, self.columns, self.walk)

    @cached_property
    def blocks(self) -> int:
        return prod(self.blocks_by_axis) * self.slices

    def seconds(self, limits: Limits) -> float:
        """Model the time of a launch but for that of the memory."""
        return self.time(self.rows, self.columns, self.walk, limits)

    def __str__(self) -> str:
        rows, columns = self.outputs
        return (
            f"direct, channels last: blocks of {self.vectors * self.vector} channels x {self.walk * self.rows * rows} "
            f"x {self.columns * columns} outputs, {self.step} rows of the kernel at a time; 32-bit indices"
        )


# ---------------------------------------------------------------- choosing


def in_vectors(problem: Problem) -> bool:
    """Tell whether pixels are made of whole vectors of channels with a filter each, if x and y begin with one."""
    vector = 16 // dtypes.sums(problem.dtype).itemsize
    arrays = ((problem.x_shape, problem.x_strides), (problem.y_shape, problem.y_strides))
    steps = (
        step
        for shape, strides in arrays
        for axis, (extent, step) in enumerate(zip(shape, strides, strict=True))
        if axis != 1 and extent > 1
    )
    return problem.filters == 1 and problem.group % vector == 0 and not any(step % vector for step in steps)


@lru_cache(maxsize=1024)
def best(work: Work, form: tuple[int, int, int], whole: bool, limits: Limits) -> Tile | None:
    """Return the tile with the shortest time; None where there is no room for any, or no grid for its blocks."""
    least, found = math.inf, None
    for vectors in _shares(work):
        thread = Thread(work, form, whole, vectors)
        if thread.shared_bytes > limits.shared_bytes_per_block:
            continue
        for block in _blocks(thread):
            time = thread.time(*block, limits)
            if time < least:
                least, found = time, Tile(work, form, whole, vectors, *block)
    return found


def _shares(work: Work) -> Iterator[int]:
    """Yield how many threads of a block may stand along the channels, so that they have whole bursts."""
    vector = 16 // dtypes.sums(work.dtype).itemsize
    unit = max(1, _BURST // (vector * dtypes.entry(work.dtype).itemsize))
    vectors = -(-work.groups * work.filters // vector)
    evens = (-(-vectors // -(-vectors // most)) for most in _VECTORS)
    yield from dict.fromkeys(min(vectors, -(-even // unit) * unit) for even in evens)


def _blocks(thread: Thread) -> Iterator[tuple[int, int, int]]:
    """Yield rows, columns and steps of blocks that a grid has room for."""
    height, width = thread.tiles
    for columns, walk in product((1, 2, 4, 8, 16, 32), (1, 2, 3, 4)):
        rows = min(THREADS // (thread.vectors * columns), -(-height // walk))
        made = rows and columns < 2 * width and walk <= height
        if made and prod(thread.grid(rows, columns, walk)) * thread.slices <= MOST_BLOCKS:
            yield rows, columns, walk
