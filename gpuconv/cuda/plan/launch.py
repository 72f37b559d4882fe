"""Plans as data: frozen descriptions of launches that need no device, computed once per problem and cached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from gpuconv._errors import ArgumentError
from gpuconv.cuda.build import params, structs
from gpuconv.cuda.build.variant import Variant
from gpuconv.rules.geometry import Ints

MOST_BLOCKS = 2**31 - 1  # limit of a grid's x extent


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A TMA tensor map in a launch's struct: everything that the driver encodes except the array's address.

    Axes are ordered innermost first. A tiled map has a ``box``; an im2col map has the corners ``lower`` and ``upper``
    and enumerates a convolution's windows.
    """

    role: str  # the array's role
    member: str  # the struct's member that holds the map
    dtype: str  # "float16", "bfloat16" or "float32"
    sizes: Ints
    strides: Ints  # bytes, for all axes but the innermost
    steps: Ints  # elementStrides: elements between copied elements, per axis
    box: Ints = ()
    lower: Ints = ()  # lower corner of the im2col bounding box, spatial axes only
    upper: Ints = ()  # upper corner, likewise
    channels: int = 0  # channels per copy (im2col)
    pixels: int = 0  # pixels per copy (im2col)
    swizzle: int = 128  # swizzle span in bytes: 0, 32, 64 or 128


@dataclass(frozen=True)
class Launch:
    """One kernel launch, complete except for the arrays' addresses.

    Members of nested structs are named by their path: ``finish.residual``.
    """

    variant: Variant
    # blocks along x, y, z; each has ``variant.threads`` threads along x
    grid: tuple[int, int, int]
    shared_bytes: int  # bytes of dynamic shared memory per block
    # values of the struct's members, as :func:`params.pack` takes them
    fields: Mapping[str, Any] = field(repr=False, hash=False)
    # struct member → role of the array whose address it holds: "x", "w", "b", "dy", "y", "indices", "residual",
    # "packed", "x_last", "expanded", "copied", "workspace" or another space of the plan
    roles: Mapping[str, str] = field(repr=False, hash=False)
    maps: tuple[TensorMap, ...] = field(default=(), repr=False)  # tensor maps in the struct

    @classmethod
    def of_blocks(
        cls,
        operator: str,
        variant: Variant,
        blocks: int,
        fields: Mapping[str, Any],
        roles: Mapping[str, str],
        shared_bytes: int = 0,
    ) -> Launch:
        """Return a launch with ``blocks`` blocks along x; ArgumentError if they exceed a grid."""
        if blocks > MOST_BLOCKS:
            raise ArgumentError(f"{operator}: {blocks} blocks are more than the {MOST_BLOCKS} of one CUDA launch")
        return cls(variant, (blocks, 1, 1), shared_bytes, fields, roles)

    @classmethod
    def of_threads(
        cls,
        operator: str,
        variant: Variant,
        threads: int,
        fields: Mapping[str, Any],
        roles: Mapping[str, str],
        shared_bytes: int = 0,
    ) -> Launch:
        """Return a launch with at least ``threads`` threads along x, in whole blocks; errors as :meth:`of_blocks`."""
        return cls.of_blocks(operator, variant, -(-threads // variant.threads), fields, roles, shared_bytes)

    def renamed(self, names: Mapping[str, str]) -> Launch:
        """Return the launch with other roles for its arrays."""
        roles = {member: names.get(role, role) for member, role in self.roles.items()}
        maps = tuple(replace(one, role=names.get(one.role, one.role)) for one in self.maps)
        return replace(self, roles=roles, maps=maps)

    @property
    def packs(self) -> bool:
        """Whether the launch only packs weights, from w into "packed", so that other calls can share its result."""
        return set(self.roles.values()) == {"w", "packed"}

    @cached_property
    def parameters(self) -> bytes:
        """The packed struct, with zeros for pointers and maps."""
        return params.pack(self.variant.layout, self.fields)

    @cached_property
    def pointers(self) -> tuple[tuple[str, int], ...]:
        """(role, byte offset) of each pointer in the struct."""
        return tuple((role, self.offset(member)) for member, role in self.roles.items())

    def offset(self, member: str) -> int:
        """Return the byte offset of a member in the struct."""
        return structs.offset(self.variant.layout, member)


class Space(NamedTuple):
    """A buffer of a call, live from its first launch to its last."""

    role: str  # name used by the launches
    use: str  # content, for error messages
    bytes: int
    before: int = 0  # bytes before the address that kernels get; only a plan's last space may have any

    @classmethod
    def packed(cls, nbytes: int) -> Space:
        """Return the buffer of packed weights, which packing launches compute from w only.

        Calls that share a :class:`gpuconv.PackedWeights` keep it there; otherwise it is part of the workspace.
        """
        return cls("packed", "the packed weights", nbytes)


def nonempty(*spaces: Space) -> tuple[Space, ...]:
    """Return the spaces that are not empty."""
    return tuple(space for space in spaces if space.bytes)


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """The launches of one call, in order, with the reasons for choosing them."""

    operator: str
    # empty if the result has no elements; packing launches come first
    launches: tuple[Launch, ...]
    reasons: tuple[str, ...]  # lines for explain
    spaces: tuple[Space, ...] = ()  # buffers in the workspace
    # launches with shared packed weights instead of ``launches``; empty: the same ones
    sharing: tuple[Launch, ...] = ()
    problem: Any = None  # the key under which tuned choices are stored; None if there was no choice
    kernel: str = ""  # name of the chosen candidate, or of the operator's only kernel
    # (role, array's role, byte offset): roles that stand for parts of arrays
    views: tuple[tuple[str, str, int], ...] = ()
    # (role, bytes): inputs that must be aligned to more than their elements
    alignment: tuple[tuple[str, int], ...] = ()
    # returns the fallback plan for unaligned addresses; it has no alignment requirements
    otherwise: Callable[[], Plan] | None = field(default=None, compare=False)

    def bytes_of(self, role: str) -> int:
        """Return the bytes of the space with this role; 0 without one."""
        return sum(space.bytes for space in self.spaces if space.role == role)

    @classmethod
    def of_nothing(cls, operator: str) -> Plan:
        """Return the empty plan of a call whose result has no elements."""
        return cls(operator, (), ("the result has no elements: nothing is launched",))

    def renamed(self, names: Mapping[str, str]) -> Plan:
        """Return the plan with other roles for the arrays that its launches read and write."""
        launches, sharing = (
            tuple(launch.renamed(names) for launch in those) for those in (self.launches, self.sharing)
        )
        return replace(self, launches=launches, sharing=sharing)

    def __repr__(self) -> str:
        return f"<Plan of {self.operator}: {', '.join(launch.variant.name for launch in self.launches) or 'no launch'}>"
