"""Modelled times of ``conv/gemm/stem.cu``: of arithmetic, of inputs, or of the memory."""

from __future__ import annotations

from math import prod

from gpuconv.cuda.conv.gemm import stem_tile
from gpuconv.cuda.conv.gemm.stem_tile import PIXEL_BITS, WORDS, Box, StemKernel
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import model, numbers
from gpuconv.cuda.plan.launch import Limits

# Instructions of a thread, by the machine code for sm_90a.
_PASS = 160  # of what a pass begins with
_ROW, _STEP, _SLICE = 74, 14, 73  # of a row of K; of what rows of one step share; of a slice
_TENSOR_SLICE = 40
# Of an output: in rows of pixels, of vectors of them on tensor cores; in whole vectors of channels; in any others.
_OUTPUT = {"float32": (10, 7, 27), "tensor": (4.5, 7, 27)}
_CHUNK_COPY = {2: (155, 75, 225), 4: (130, 85, 150)}  # of 16 bytes of the band, by the size of elements and StemRuns
_ENTRY = 30  # of the table
_CONFLICTS = 1.5  # wavefronts of 32 words of the band; estimated


def seconds(problem: Problem, kernel: StemKernel, box: Box, passes: int, limits: Limits) -> float:
    """Model the time: inputs that several blocks meet mostly come from the L2 cache."""
    blocks = problem.group * problem.batch * prod(box.tiles) * stem_tile.parts(problem, kernel, passes)
    steps, chunks = stem_tile.steps(problem, kernel), -(-box.rows * box.chunks // kernel.threads)
    once = chunks * _CHUNK_COPY[problem.itemsize][box.runs] + -(-steps // kernel.threads) * _ENTRY
    outputs = kernel.block_m * (1 << PIXEL_BITS)
    each = _PASS + outputs / kernel.threads * _output_instructions(problem, kernel)
    read = model.gathering(blocks, box.rows * box.chunks * 16 / problem.itemsize, _lines(problem, box), limits)
    if kernel.arithmetic is None:
        each += steps * (kernel.chunk * _ROW + _STEP) + stem_tile.slices(problem, kernel) * _SLICE
        issued = (once + passes * each) * kernel.threads
        busy = model.arithmetic(blocks, issued, "float32", 1.0, limits)
    else:
        fragments = -(-steps // WORDS)
        each += fragments * _fragment_instructions(kernel) + stem_tile.slices(problem, kernel) * _TENSOR_SLICE
        rounds = numbers.whole(blocks, limits.multiprocessors)
        issued = model.instructions(rounds * (once + passes * each) * kernel.threads, limits)
        products = outputs * fragments * WORDS * kernel.chunk * passes * kernel.arithmetic.products
        wavefronts = _wavefronts(problem, kernel)
        busy = max(issued, model.tensor(blocks, products, kernel.arithmetic.lanes, wavefronts, limits))
    return model.overlapped(max(busy, read), model.memory(_bytes(problem), limits)) + limits.rates.launch


def _bytes(problem: Problem) -> int:
    """Of all arrays, in whole sectors where channels of other groups, which other blocks have, lie between pixels."""
    sector = 32 // problem.itemsize
    x, y = (
        min(sector, max(1, abs(step) // own))
        for step, own in ((problem.x_strides[-1], problem.channels), (problem.y_strides[-1], problem.filters))
    )
    elements = (x - 1) * prod(problem.x_shape) + (y - 1) * prod(problem.y_shape)
    return problem.bytes + elements * problem.itemsize


def _output_instructions(problem: Problem, kernel: StemKernel) -> float:
    rows, vectors, others = _OUTPUT["float32" if kernel.arithmetic is None else "tensor"]
    if problem.y_strides[1] == 1:
        return vectors if stem_tile.channels_are_vectors(problem) else others
    return rows if kernel.arithmetic is None or stem_tile.pixels_are_vectors(problem) else others


def _lines(problem: Problem, box: Box) -> int:
    """Lines of 128 bytes that 32 lanes meet in x at once: lanes have chunks, which they read whole or one by one."""
    if box.runs:
        return 4 * problem.itemsize // 16 or 1
    return min(32, -(-32 * 16 * abs(problem.x_strides[-1]) // 128))


def _fragment_instructions(kernel: StemKernel) -> int:
    assert kernel.arithmetic is not None
    rows, parts, products = kernel.block_m // 16, kernel.arithmetic.parts, kernel.arithmetic.products
    rounding = {("float32", "tf32"): 16, ("float32", "3xtf32"): 26}.get((kernel.dtype, kernel.precision), 0)
    return rows * (parts + 4 * products) + 24 + rounding


def _wavefronts(problem: Problem, kernel: StemKernel) -> float:
    """128 bytes of shared memory for every instruction that multiplies fragments; inputs meet in some banks."""
    assert kernel.arithmetic is not None
    rows, parts = kernel.block_m // 16, kernel.arithmetic.parts
    return (4 * rows * parts + 2 * (4 * _CONFLICTS + 1)) / (rows * 4 * kernel.arithmetic.products)
