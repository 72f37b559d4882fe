"""Candidates that first copy x to channels-last, with each group's channels zero-padded to whole vectors.

Kernels that load 16 bytes of channels at a time, or use one tap per slice of K, then work for any number of channels.
The extra launch and traffic are modelled, so a copy is chosen only if it pays off. Names end in ``_of_copy``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.passes import channels_last
from gpuconv.cuda.plan import Candidate, Launch, Limits, Plan, Space, model
from gpuconv.cuda.plan.numbers import whole

_MOST_ELEMENTS = 2**31 - 1  # limit on the elements of a copy


@dataclass(frozen=True, slots=True)
class Copied:
    """A problem, and the one that remains once x has been copied to channels-last."""

    before: Problem
    problem: Problem  # the problem on the copy, with the padded channels

    @property
    def bytes(self) -> int:
        """Bytes of the copy."""
        return prod(self.problem.x_shape) * self.problem.itemsize

    def seconds(self, limits: Limits) -> float:
        """Model the seconds of the copy's launch."""
        read = prod(self.before.x_shape) * self.before.itemsize
        return model.memory(read + self.bytes, limits) + limits.rates.launch


def of(problem: Problem, size: int) -> Copied | None:
    """Return the problem on a copy whose channels per group are a multiple of ``size``; None if no kernel can copy it.

    ``problem`` must have three spatial axes. If channels are contiguous already, pixels that no output reads are not
    copied.
    """
    if problem.x_strides[1] == 1:
        problem = problem.without_unread_pixels
    filled = whole(problem.channels, size)
    batch, _, *pixels = problem.x_shape
    row = problem.group * filled
    shape = (batch, row, *pixels)
    if problem.itemsize not in channels_last.ITEMSIZES or not 0 < prod(shape) <= _MOST_ELEMENTS:
        return None
    strides = channels_last.copy_strides(tuple(pixels), row)
    copied = replace(problem, channels=filled, x_shape=shape, x_strides=strides)
    return None if problem.far() or copied.far() else Copied(problem, copied)


def candidates(copied: Copied, uncopied: Iterable[Candidate], limits: Limits) -> Iterator[Candidate]:
    """Yield the candidates found for the copied problem, each preceded by the copy."""
    for candidate in uncopied:
        seconds = candidate.seconds + copied.seconds(limits)
        yield Candidate(f"{candidate.name}_of_copy", seconds, partial(_plan, copied, candidate), candidate.order)


def _plan(copied: Copied, candidate: Candidate) -> Plan:
    """Return the candidate's plan, preceded by the copy of x."""
    before, plan = copied.before, candidate.make()
    copy = channels_last.copy(
        *(before.operator, before.dtype, before.x_shape, before.x_strides),
        *(before.group, copied.problem.channels, {"x": "x", "x_last": "x_last"}),
    )
    filled = f"{before.channels} channels of a group, filled up to {copied.problem.channels}"
    return replace(
        plan,
        launches=_after_packing(plan.launches, copy, before.channels),
        sharing=_after_packing(plan.sharing, copy, before.channels) if plan.sharing else (),
        spaces=(*plan.spaces, Space("x_last", "x with its channels last", copied.bytes)),
        reasons=(f"x is copied first, channels last: {filled}", *plan.reasons),
    )


def _after_packing(launches: tuple[Launch, ...], copy: Launch, channels: int) -> tuple[Launch, ...]:
    """Return the launches with the copy after packing; packing reads ``channels`` unpadded channels per group of w."""
    packing = [replace(launch, fields={**launch.fields, "channels": channels}) for launch in launches if _packs(launch)]
    reading = [replace(launch, roles=_of_copy(launch.roles)) for launch in launches if not _packs(launch)]
    return (*packing, copy, *reading)


def _packs(launch: Launch) -> bool:
    """Return whether a launch reads w."""
    return "w" in launch.roles.values()  # unlike with `Launch.packs`, it may also zero tickets


def _of_copy(roles: Mapping[str, str]) -> Mapping[str, str]:
    """Return the roles with x replaced by its copy."""
    return {member: "x_last" if role == "x" else role for member, role in roles.items()}
