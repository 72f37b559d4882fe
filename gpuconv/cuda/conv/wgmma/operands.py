"""Launches that prepare operands for TMA: a channels-last copy of x, and weights packed as rows of K.

Both are the same transposition, ``passes/channels_last.cu``: a row of K is a small channels-last image whose pixels are
the taps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.conv.gemm import fragments
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.passes import channels_last
from gpuconv.cuda.passes.channels_last import Planes
from gpuconv.cuda.plan import RANK, Launch
from gpuconv.rules import dtypes


def of_x(problem: Problem, filled: int, parts: int, tickets: int = 0) -> Launch:
    """Return the launch that copies x to channels-last: (N, pixels, group, parts, filled).

    ``filled`` is the channels per part, zero-padded to whole 16-byte vectors. ``parts`` is 2 for 3xTF32 (high and low
    part), else 1. It also zeroes ``tickets`` split-K counters at the workspace's start.
    """
    problem = problem.lifted
    batch, channel, *pixel = problem.x_strides
    pixels = problem.x_shape[2:]
    row = problem.group * parts * filled
    planes = Planes(
        *(problem.batch, problem.group, problem.channels, filled, pixels),
        x=(batch, channel * problem.channels, channel),
        x_pixels=tuple(pixel),
        y=(prod(pixels) * row, parts * filled, filled, row),
    )
    return _launch(problem, "channels_last", planes, {"x": "x", "x_last": "x_last"}, tickets)


def of_weights(problem: Problem, filled: int, parts: int, tickets: int = 0) -> Launch:
    """Return the launch that packs weights: (group, parts, M, taps, filled); parameters as for :func:`of_x`."""
    problem = problem.lifted
    group, filters, channel, *taps = problem.w_strides
    row = prod(problem.taps) * filled
    part = problem.filters * row
    planes = Planes(
        *(problem.filters, problem.group, problem.channels, filled, problem.taps),
        x=(filters, group, channel),
        x_pixels=tuple(taps),
        y=(row, parts * part, part, filled),
    )
    return _launch(problem, "pack_rows", planes, {"x": "w", "x_last": "packed"}, tickets)


def x_bytes(problem: Problem, filled: int, parts: int) -> int:
    """Return the bytes of the copy of x."""
    return problem.batch * prod(problem.x_shape[2:]) * problem.group * parts * filled * problem.itemsize


def weight_bytes(problem: Problem, filled: int, parts: int) -> int:
    """Return the bytes of the packed weights."""
    return problem.group * parts * problem.filters * prod(problem.taps) * filled * problem.itemsize


def _launch(problem: Problem, name: str, planes: Planes, roles: dict[str, str], tickets: int) -> Launch:
    """Return the launch that transposes these planes."""
    chosen = variant(name, problem.dtype, problem.precision)
    return channels_last.launch(problem.operator, chosen, problem.itemsize, planes, roles, tickets)


# ---------------------------------------------------------------- variants


def variant(name: str, dtype: str, precision: str) -> Variant:
    """Return the kernel variant for a dtype and precision; ``name`` is what profilers show."""
    itemsize = dtypes.entry(dtype).itemsize
    if itemsize == 2:
        return channels_last.variant(itemsize, name)
    arithmetic = fragments.ARITHMETICS[dtype, precision]
    kernel = replace(channels_last.KERNEL, name=name)
    return kernel.over(dtype, RANK, arithmetic.label, types=(arithmetic.cuda,))


def variants() -> Iterator[Variant]:
    """Yield the variants that round or pack; plain copies are those of ``passes/channels_last.py``."""
    for precision in ("tf32", "3xtf32"):
        yield variant("channels_last", "float32", precision)
    for dtype, precision in (("float16", "ieee"), ("float32", "tf32"), ("float32", "3xtf32")):
        yield variant("pack_rows", dtype, precision)
