"""Conv and ConvTranspose of a copy of x, whose channels lie last and are filled up with zeros to whole vectors.

What reads 16 bytes of channels at once, or has one tap per slice of K, then takes channels of any number.
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

_MOST_ELEMENTS = 2**31 - 1  # of a copy


@dataclass(frozen=True, slots=True)
class Copied:
    """A problem, and what is left of it once x has been copied."""

    before: Problem
    problem: Problem  # of the copy; its channels are those with the zeros

    @property
    def bytes(self) -> int:
        """Bytes of the copy."""
        return prod(self.problem.x_shape) * self.problem.itemsize

    def seconds(self, limits: Limits) -> float:
        """Model the time of the launch that copies."""
        read = prod(self.before.x_shape) * self.before.itemsize
        return model.memory(read + self.bytes, limits) + limits.rates.launch


def of(problem: Problem, size: int) -> Copied | None:
    """Return a problem of three spatial axes with ``size`` channels of a group more or less; None without a kernel.

    Where channels are contiguous, pixels that no output meets are left out.
    """
    if problem.x_strides[1] == 1:
        problem = problem.met
    filled = whole(problem.channels, size)
    batch, _, *pixels = problem.x_shape
    row = problem.group * filled
    shape = (batch, row, *pixels)
    if problem.itemsize not in channels_last.ITEMSIZES or not 0 < prod(shape) <= _MOST_ELEMENTS:
        return None
    strides = channels_last.copy_strides(tuple(pixels), row)
    copied = replace(problem, channels=filled, x_shape=shape, x_strides=strides)
    return None if problem.far() or copied.far() else Copied(problem, copied)


def candidates(copied: Copied, found: Iterable[Candidate], limits: Limits) -> Iterator[Candidate]:
    """Yield what the copy's problem has, each after the launch that copies."""
    for one in found:
        seconds = one.seconds + copied.seconds(limits)
        yield Candidate(f"{one.name}_of_copy", seconds, partial(_plan, copied, one), one.order)


def _plan(copied: Copied, candidate: Candidate) -> Plan:
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
    """Return launches that read the copy, after those that pack: these find so many channels of a group in w."""
    packing = [replace(one, fields={**one.fields, "channels": channels}) for one in launches if _packs(one)]
    reading = [replace(one, roles=_of_copy(one.roles)) for one in launches if not _packs(one)]
    return (*packing, copy, *reading)


def _packs(launch: Launch) -> bool:
    return "w" in launch.roles.values()  # it may set tickets to zero besides, unlike those of `Launch.packs`


def _of_copy(roles: Mapping[str, str]) -> Mapping[str, str]:
    return {member: "x_last" if role == "x" else role for member, role in roles.items()}
