"""MaxPool and AveragePool with channels last, for small windows (``pool/channels.cu``).

Each thread owns a 16-byte vector of channels (two channels with Indices) and walks along a row of outputs. Loads and
stores are coalesced, and column maxima are reused. It takes contiguous channels and undilated, non-empty windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod

from gpuconv.cuda.build import structs
from gpuconv.cuda.build.variant import Kernel, Variant, types
from gpuconv.cuda.plan import MOST_BLOCKS, Candidate, Limits, Offer, Plan, Refusal, model
from gpuconv.cuda.pool import general
from gpuconv.cuda.pool.problem import (
    PoolProblem,
    PoolView,
    blocks_of,
    channels_of_vector,
    fresh,
    in_vectors,
    one_launch,
    pixels_of,
    vectors_of,
    why_singly,
)
from gpuconv.rules import dtypes

NAME = "channels"
_THREADS = 256
_MOST = structs.constant("kMost", "pool/channels.cu")
_WALKS = (8, 4, 2, 1)  # outputs per thread along a row to try
_ROWS = 3  # rows of a column in flight together, for whole vectors or pairs
# Instructions by Indices (or for 1-byte elements): per vector of outputs, per column, per load (counted).
_INSTRUCTIONS = {False: (36, 90, 8), True: (72, 117, 11)}
_OF_BYTES = (36, 135, 20)
# bytes per element → the same for averages (estimated)
_OF_AVERAGES = {2: (190, 120, 22), 4: (130, 100, 12), 8: (170, 100, 12)}
# Extra instructions per channel loaded, and per channel stored, element by element (counted).
_SINGLY = {False: (4, 5), True: (1.5, 3)}
_BYTES_SINGLY = (8, 5)


# ---------------------------------------------------------------- accepted problems


def _accepted(problem: PoolProblem) -> PoolView | str:
    """Return the view of the problem that the kernel takes, or why it does not accept the problem."""
    pixels = pixels_of(problem)
    if isinstance(pixels, str):
        return pixels
    if general.needs_wide(problem) or _blocks(problem, pixels, 1) > MOST_BLOCKS:
        return "64-bit indices"
    return pixels


# ---------------------------------------------------------------- tiles


def _walk(problem: PoolProblem, pixels: PoolView, limits: Limits) -> int:
    """Return the outputs per thread along a row: 1 if windows share no columns, else the fastest number."""
    width = pixels.width
    if not width.stride < width.reach <= _MOST:
        return 1
    walks = dict.fromkeys(min(walk, width.windows) for walk in _WALKS)
    return min(walks, key=lambda walk: _seconds(problem, pixels, walk, limits))


def _items(problem: PoolProblem, pixels: PoolView, walk: int) -> int:
    """Return the threads of the launch when each computes ``walk`` outputs of a row."""
    rows = pixels.image.extent * pixels.depth.windows * pixels.height.windows
    return rows * -(-pixels.width.windows // walk) * vectors_of(problem)


def _blocks(problem: PoolProblem, pixels: PoolView, walk: int) -> int:
    """Return the blocks of the launch."""
    return -(-_items(problem, pixels, walk) // _THREADS)


# ---------------------------------------------------------------- cost


def _seconds(problem: PoolProblem, pixels: PoolView, walk: int, limits: Limits) -> float:
    """Model the seconds of all launches of this candidate."""
    kernel, threads = _variant_of(problem), _items(problem, pixels, walk)
    instructions = _instructions(problem, pixels, walk)
    blocks = blocks_of(kernel, threads, instructions, _trips(problem, pixels, walk), limits)
    return model.streaming(blocks, problem.bytes, limits)


def _instructions(problem: PoolProblem, pixels: PoolView, walk: int) -> float:
    """Return the instructions of all threads."""
    output, column, load = map(float, _INSTRUCTIONS[problem.named])
    if problem.itemsize == 1 and not problem.named:
        output, column, load = _OF_BYTES
    if problem.averages:
        output, column, load = _OF_AVERAGES[problem.itemsize]
    deep, high, wide = (axis.reach for axis in pixels.axes)
    columns = float(wide)  # columns per output
    if wide <= _MOST:
        reused = max(wide - pixels.width.stride, 0)  # columns reused from the previous output
        columns -= reused * (walk - 1) / walk
    if not in_vectors(problem):
        loaded, written = _BYTES_SINGLY if problem.itemsize == 1 and not problem.named else _SINGLY[problem.named]
        output += written * channels_of_vector(problem)
        load += loaded * channels_of_vector(problem)
    outputs = prod(problem.geometry.y_shape) // pixels.channel.extent * vectors_of(problem)
    return outputs * (output + columns * (column + load * deep * high))


def _trips(problem: PoolProblem, pixels: PoolView, walk: int) -> float:
    """Return the load latencies that a thread waits for: a few rows of a column at a time, columns one by one."""
    deep, high, wide = pixels.axes
    rows = _ROWS if in_vectors(problem) or channels_of_vector(problem) == 2 else 1
    columns = (walk - 1) * wide.stride + wide.reach
    return columns * deep.reach * fresh(deep) * -(-high.reach // rows) * fresh(high)


# ---------------------------------------------------------------- offers


def offers(problem: PoolProblem, limits: Limits) -> Iterator[Offer]:
    """Yield the kernel, or why it does not accept the problem."""
    pixels = _accepted(problem)
    if isinstance(pixels, str):
        yield Refusal(pixels)
        return
    kernel, walk = _variant_of(problem), _walk(problem, pixels, limits)
    time = _seconds(problem, pixels, walk, limits)
    yield Candidate(kernel.name, time, lambda: _plan(problem, pixels, kernel, walk))


# ---------------------------------------------------------------- launch


def _plan(problem: PoolProblem, pixels: PoolView, kernel: Variant, walk: int) -> Plan:
    """Return the plan of this candidate."""
    count = channels_of_vector(problem)
    fields = pixels.fields(kernel) | {
        "items": _items(problem, pixels, walk),
        "walk": walk,
        "rows_first": pixels.height.reach > pixels.height.stride,
        "whole": in_vectors(problem),
        "vectors": vectors_of(problem),
        "walks": -(-pixels.width.windows // walk),
        "heights": pixels.height.windows,
        "depths": pixels.depth.windows,
    }
    blocks = _blocks(problem, pixels, walk)
    reason = (
        f"channels last: {count} channels x {walk} outputs of a row a thread; {blocks} blocks of {_THREADS} threads"
        f"{why_singly(problem)}"
    )
    return one_launch(problem, kernel, blocks, 0, fields, reason)


_KERNEL = Kernel("pool/channels.cu", "max_pool_channels", "ChannelPoolParams", _THREADS, name="max_pool")
_AVERAGE = replace(_KERNEL, function="average_pool_channels", parameter="AverageChannelPoolParams", name="average_pool")


def variant(dtype: str, indices: bool) -> Variant:
    """Return the MaxPool variant for a dtype, with or without Indices."""
    blocks = _blocks_per_sm(dtype, indices)
    element, form = dtypes.entry(dtype).cuda, "indices" * indices
    return _KERNEL.over(dtype, 3, NAME, form, types=(element,), sizes=(indices,), blocks_per_sm=blocks)


def average_variant(dtype: str) -> Variant:
    """Return the AveragePool variant for a dtype."""
    return _AVERAGE.over(dtype, 3, NAME, types=types(dtype), blocks_per_sm=4 if dtype == "float32" else 3)


def _variant_of(problem: PoolProblem) -> Variant:
    """Return the kernel variant for the problem."""
    return average_variant(problem.dtype) if problem.averages else variant(problem.dtype, problem.named)


def _blocks_per_sm(dtype: str, indices: bool) -> int:
    """Return the occupancy that leaves a thread its registers: 64, or 80 where vectors have many words."""
    return 3 if dtypes.entry(dtype).itemsize == (8 if indices else 1) else 4


def variants() -> list[Variant]:
    """Yield every kernel variant of this family."""
    maxima = [variant(*row) for row in product(dtypes.MAX_POOL_DTYPES, (False, True))]
    return maxima + [average_variant(dtype) for dtype in dtypes.CONV_DTYPES]
