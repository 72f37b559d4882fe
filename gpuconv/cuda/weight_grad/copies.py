"""Weight-gradient candidates that first copy x or dy to channels-last, channels zero-padded to whole vectors.

Tiles that load 16 bytes of channels at a time then accept any number of channels and any strides. The model decides
whether the copies pay off. Names end in ``_of_copy``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from gpuconv.cuda.passes import channels_last
from gpuconv.cuda.plan import Launch, Limits, Plan, Space, model
from gpuconv.cuda.plan.numbers import whole
from gpuconv.cuda.weight_grad.problem import OPERATOR, WeightGradProblem
from gpuconv.rules.geometry import Ints

_MOST_ELEMENTS = 2**31 - 1  # limit on the elements of a copy
_ROLES = {"x": "x_last", "dy": "dy_last"}


@dataclass(frozen=True, slots=True)
class Copy:
    """One array to be copied."""

    role: str
    shape: Ints
    strides: Ints
    group: int
    filled: int  # channels per group, zero-padded

    @property
    def elements(self) -> int:
        """Elements of the copy."""
        return prod(self.shape) // self.shape[1] * self.group * self.filled

    def launch(self, dtype: str) -> Launch:
        """Return the launch that makes the copy."""
        roles = {"x": self.role, "x_last": _ROLES[self.role]}
        return channels_last.copy(OPERATOR, dtype, self.shape, self.strides, self.group, self.filled, roles)

    def seconds(self, itemsize: int, limits: Limits) -> float:
        """Model the seconds of the copy's launch."""
        return model.memory((prod(self.shape) + self.elements) * itemsize, limits) + limits.rates.launch


@dataclass(frozen=True, slots=True)
class Copied:
    """The problem on the copies, and the copies to make before."""

    problem: WeightGradProblem
    copies: tuple[Copy, ...]

    def seconds(self, limits: Limits) -> float:
        """Model the seconds of the copies' launches."""
        return sum(copy.seconds(self.problem.itemsize, limits) for copy in self.copies)

    def plan(self, plan: Callable[[], Plan]) -> Plan:
        """Return the plan of the copied problem, preceded by the copies."""
        uncopied, size = plan(), self.problem.itemsize
        last = {copy.role: _ROLES[copy.role] for copy in self.copies}
        reading = (
            replace(launch, roles={member: last.get(role, role) for member, role in launch.roles.items()})
            for launch in uncopied.launches
        )
        spaces = (
            Space(last[copy.role], f"{copy.role} with its channels last", copy.elements * size) for copy in self.copies
        )
        return replace(
            uncopied,
            launches=(*(copy.launch(self.problem.dtype) for copy in self.copies), *reading),
            spaces=(*uncopied.spaces, *spaces),
            reasons=(*map(_reason, self.copies), *uncopied.reasons),
        )


def _reason(copy: Copy) -> str:
    """Return the reason for ``explain``: what is copied, and to how many channels it is padded."""
    channels = f"{copy.shape[1] // copy.group} channels of a group"
    return f"{copy.role} is copied first, channels last: {channels}, filled up to {copy.filled}"


def of(problem: WeightGradProblem, x_in_chunks: bool, dy_in_chunks: bool) -> Copied | None:
    """Return the problem with both arrays in whole chunks of channels; None if no kernel can make the copies."""
    g, vector = problem.geometry, 16 // problem.itemsize
    if problem.itemsize not in channels_last.ITEMSIZES:
        return None
    x, dy = problem.roles
    arrays = (
        (x, g.x_shape, problem.x_strides, x_in_chunks),
        (dy, g.y_shape, problem.dy_strides, dy_in_chunks),
    )
    copies = tuple(
        Copy(role, shape, strides, g.group, whole(shape[1] // g.group, vector))
        for role, shape, strides, chunks in arrays
        if not chunks
    )
    if any(copy.elements > _MOST_ELEMENTS for copy in copies):
        return None
    strides = {copy.role: channels_last.copy_strides(copy.shape[2:], copy.group * copy.filled) for copy in copies}
    copied = replace(
        problem, x_strides=strides.get(x, problem.x_strides), dy_strides=strides.get(dy, problem.dy_strides)
    )
    return None if copied.wide() else Copied(copied, copies)
