"""MaxPool over channels that lie one after another: channels last.

The kernel is in ``kernels_cu/pool/channels.cu``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from gpuconv.cuda.build import structs
from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.plan.launch import Limits, Plan
from gpuconv.cuda.plan.launching import MOST_BLOCKS
from gpuconv.cuda.plan.offers import Candidate, Offer, Refusal
from gpuconv.cuda.pool import general
from gpuconv.cuda.pool.problem import Problem, one_launch, seconds, three_axes, used_strides, window_refusal
from gpuconv.rules import dtypes

NAME = "channels"
_THREADS = 256
_MOST = structs.constant("kMost", "pool/channels.cu")
_LONG_WALK, _SHORT_WALK = 8, 4  # outputs that share columns, at most
_THREADS_WANTED = 1024  # of each multiprocessor; for fewer of them, short walks
# Instructions, with Indices or without (and of bytes): of an output's vector, its columns, and their loads; counted.
_INSTRUCTIONS = {False: (36, 90, 8), True: (72, 117, 11)}
_OF_BYTES = (36, 135, 20)


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield the kernel, or why it does not take the problem."""
    why = _refusal(problem)
    if why is not None:
        yield Refusal(why)
        return
    indices = problem.indices_strides is not None
    kernel = variant(problem.dtype, indices)
    each, column, load = _INSTRUCTIONS[indices]
    if dtypes.entry(problem.dtype).itemsize == 1 and not indices:
        each, column, load = _OF_BYTES
    _, _, (deep, high, wide), (_, _, across), _ = three_axes(problem)
    columns = min(wide, across) if wide <= _MOST else wide  # of an output
    count = prod(problem.geometry.y_shape) / vector(problem) * (each + columns * (column + load * deep * high))
    time = seconds(problem, count, limits)
    yield Candidate(kernel.name, time, lambda: _plan(problem, kernel, limits))


def _refusal(problem: Problem) -> str | None:
    why = pixels_refusal(problem)
    if why is not None:
        return why
    if general.needs_wide(problem) or _blocks(problem, 1) > MOST_BLOCKS:
        return "64-bit indices"
    return None


def pixels_refusal(problem: Problem, *, dilated: bool = False) -> str | None:
    """Return why a problem's windows are not made of whole vectors of channels."""
    strides = used_strides(problem)[: 2 if problem.indices_strides is None else 3]
    if any(one[1] != 1 for one in strides):
        return "channels are not neighbours"
    why = window_refusal(problem, dilated=dilated)
    if why is not None:
        return why
    count = vector(problem)
    x_strides = strides[0]
    if problem.geometry.x_shape[1] % count or any(one % count for one in (x_strides[0], *x_strides[2:])):
        return f"channels last: pixels are not made of whole vectors of {count} channels"
    return None


def vector(problem: Problem) -> int:
    """Return the channels of a vector: of 16 bytes or, with Indices, two."""
    return 16 // dtypes.entry(problem.dtype).itemsize if problem.indices_strides is None else 2


# ---------------------------------------------------------------- kernels


_KERNEL = Kernel("pool/channels.cu", "max_pool_channels", "ChannelPoolParams", _THREADS, name="max_pool")


def variant(dtype: str, indices: bool) -> Variant:
    """Return the kernel for a dtype, with indices or without."""
    blocks = _blocks_per_sm(dtype, indices)
    element, form = dtypes.entry(dtype).cuda, "indices" * indices
    return _KERNEL.over(dtype, 3, NAME, form, types=(element,), sizes=(indices,), blocks_per_sm=blocks)


def _blocks_per_sm(dtype: str, indices: bool) -> int:
    """As many as leave a thread the registers that it uses: 64, or 80 where it keeps many words of a vector."""
    return 3 if dtypes.entry(dtype).itemsize == (8 if indices else 1) else 4


def variants() -> list[Variant]:
    """Return every kernel that a plan can name."""
    return [variant(*row) for row in product(dtypes.MAX_POOL_DTYPES, (False, True))]


# ---------------------------------------------------------------- launches


def _walk(problem: Problem, limits: Limits) -> int:
    """Return how many outputs of a row a thread makes: one where they share no columns, else a long or a short walk."""
    _, (*_, width), (*_, wide), (*_, across), _ = three_axes(problem)
    if not across < wide <= _MOST:
        return 1
    enough = _items(problem, _LONG_WALK) >= _THREADS_WANTED * limits.multiprocessors
    return min(_LONG_WALK if enough else _SHORT_WALK, width)


def _items(problem: Problem, walk: int) -> int:
    images, channels, *spatial = problem.geometry.y_shape
    return images * prod(spatial[:-1]) * -(-spatial[-1] // walk) * (channels // vector(problem))


def _blocks(problem: Problem, walk: int) -> int:
    return -(-_items(problem, walk) // _THREADS)


def _plan(problem: Problem, kernel: Variant, limits: Limits) -> Plan:
    walk, count, channels = _walk(problem, limits), vector(problem), problem.geometry.x_shape[1]
    names = ("x_extent", "y_extent", "kernel", "stride", "pad")
    axes = dict(zip(names, map(list, three_axes(problem)), strict=True))
    depth, height, width = axes["y_extent"]
    fields = axes | {
        "plane": prod(problem.geometry.x_shape[2:]),
        "items": _items(problem, walk),
        "channels": channels,
        "walk": walk,
        "rows_first": axes["kernel"][1] > axes["stride"][1],
        "vectors": channels // count,
        "walks": -(-width // walk),
        "heights": height,
        "depths": depth,
    }
    for name, (batch, _, *spatial) in zip(("x", "y", "indices"), used_strides(problem), strict=True):
        fields |= {f"{name}_batch": batch, f"{name}_stride": [0] * (3 - len(spatial)) + spatial}
    blocks = _blocks(problem, walk)
    reason = (
        f"channels last: {count} channels x {walk} outputs of a row a thread; {blocks} blocks of {_THREADS} threads"
    )
    return one_launch(problem, kernel, blocks, 0, fields, reason)
