"""Weights as rows of K: (group, part, M, taps, C filled up with zeros), as copies through tensor maps want them.

A row is a small image with channels last, whose pixels are the taps: ``conv/wgmma/channels_last.cu`` makes it.
"""

from __future__ import annotations

from math import prod

from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.conv.wgmma import channels_last
from gpuconv.cuda.conv.wgmma.channels_last import Planes
from gpuconv.cuda.plan.launch import Launch


def launch(problem: Problem, filled: int, parts: int, tickets: int = 0) -> Launch:
    """Return the launch that packs weights.

    Parameters
    ----------
    problem : Problem
        Of up to three spatial axes.
    filled : int
        Channels of a tap, with the zeros that follow C: in whole vectors of 16 bytes.
    parts : int
        2 of 3xTF32, else 1.
    tickets : int
        At the workspace's beginning, that are set to zero besides.
    """
    problem = problem.lifted
    group, filters, channel, *taps = problem.w_strides
    row = prod(problem.taps) * filled
    part = problem.filters * row
    planes = Planes(
        images=problem.filters,
        groups=problem.group,
        channels=problem.channels,
        filled=filled,
        pixels=problem.taps,
        x=(filters, group, channel),
        x_pixels=tuple(taps),
        y=(row, parts * part, part, filled),
    )
    return channels_last.launch_of(problem, "pack_rows", planes, {"x": "w", "x_last": "packed"}, tickets)


def bytes_of(problem: Problem, filled: int, parts: int) -> int:
    """Return the bytes of packed weights."""
    return problem.group * parts * problem.filters * prod(problem.taps) * filled * problem.itemsize
