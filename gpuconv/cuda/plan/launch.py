"""What a call launches: frozen descriptions that need no device, made once per problem and kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from gpuconv._errors import ArgumentError
from gpuconv.cuda.build import params, structs
from gpuconv.cuda.build.variant import Variant
from gpuconv.rules.geometry import Ints

MOST_BLOCKS = 2**31 - 1  # of one launch, along x


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A map of an array in a launch's struct: all that the driver encodes but for the array's address.

    Sizes and the like are of the innermost axis first. A map is of boxes of the array, or it has corners: then it is of
    pixels in order, of a convolution's windows ("im2col").
    """

    role: str  # of the array
    member: str  # of the struct, that the map is
    dtype: str  # "float16", "bfloat16" or "float32"
    sizes: Ints
    strides: Ints  # bytes, of all axes but the innermost
    steps: Ints  # elements from one that is copied to the next
    box: Ints = ()
    lower: Ints = ()  # corner, of the spatial axes
    upper: Ints = ()  # likewise
    channels: int = 0  # that are copied at once
    pixels: int = 0  # likewise
    swizzle: int = 128  # bytes over which 16 bytes each change places in shared memory: 0, 32, 64 or 128


@dataclass(frozen=True)
class Launch:
    """One kernel launch but for the arrays' addresses.

    Members of structs inside the struct are named by their path: ``finish.residual``.
    """

    variant: Variant
    # Blocks along x, y, z. All blocks have ``variant.threads`` threads along x.
    grid: tuple[int, int, int]
    shared_bytes: int  # dynamic shared memory
    # What the struct's members hold, as :func:`params.pack` takes it
    fields: Mapping[str, Any] = field(repr=False, hash=False)
    # Which array's address belongs into which member: "x", "w", "b", "dy", "y", "indices", "residual", "packed",
    # "x_last", "expanded", "copied", "workspace" or another space of the plan
    roles: Mapping[str, str] = field(repr=False, hash=False)
    maps: tuple[TensorMap, ...] = field(default=(), repr=False)  # those that belong into the struct

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
        """Return the launch of so many blocks along x; ArgumentError where one launch cannot have as many."""
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
        """Return the launch of so many threads along x, in whole blocks; as :meth:`of_blocks`."""
        return cls.of_blocks(operator, variant, -(-threads // variant.threads), fields, roles, shared_bytes)

    def renamed(self, names: Mapping[str, str]) -> Launch:
        """Return the launch with other roles for its arrays."""
        roles = {member: names.get(role, role) for member, role in self.roles.items()}
        maps = tuple(replace(one, role=names.get(one.role, one.role)) for one in self.maps)
        return replace(self, roles=roles, maps=maps)

    @property
    def packs(self) -> bool:
        """Whether it makes packed weights: of w and "packed" alone, so that what it makes serves other calls too."""
        return set(self.roles.values()) == {"w", "packed"}

    @cached_property
    def parameters(self) -> bytes:
        """The struct, with pointers and maps of zero."""
        return params.pack(self.variant.layout, self.fields)

    @cached_property
    def pointers(self) -> tuple[tuple[str, int], ...]:
        """Which array's address belongs at which byte offset of the struct."""
        return tuple((role, self.offset(member)) for member, role in self.roles.items())

    def offset(self, member: str) -> int:
        """Return where a member begins in the struct, in bytes."""
        return structs.offset(self.variant.layout, member)


class Space(NamedTuple):
    """Memory of a call that lives from its first launch to its last."""

    role: str  # as launches name it
    use: str  # what it holds, for error messages
    bytes: int
    before: int = 0  # bytes of it that lie before the address that kernels get; only the last one of a plan has any

    @classmethod
    def packed(cls, nbytes: int) -> Space:
        """Return that of packed weights, which the launches that pack write whole, from w alone.

        The calls that share :class:`gpuconv.PackedWeights` keep them; only for any other call they are a space.
        """
        return cls("packed", "the packed weights", nbytes)


def kept(*spaces: Space) -> tuple[Space, ...]:
    """Return the spaces that have any bytes."""
    return tuple(space for space in spaces if space.bytes)


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """All launches of one call, in order, and the reasons for them."""

    operator: str
    # Empty where the result has no elements. Those that pack weights stand first.
    launches: tuple[Launch, ...]
    reasons: tuple[str, ...]  # one line each, for people
    spaces: tuple[Space, ...] = ()  # what a call keeps in its workspace
    # What calls that share packed weights launch instead of ``launches``; empty: the same
    sharing: tuple[Launch, ...] = ()
    problem: Any = None  # what it solves, as measured choices know it; None where there was nothing to choose
    kernel: str = ""  # the name of what was chosen, or of the one kernel that there is for the operator
    # Roles that stand for parts of arrays: the role, that of the array, and the bytes from the array's address on
    views: tuple[tuple[str, str, int], ...] = ()
    # Roles of inputs whose addresses must be multiples of more bytes than those of an element
    alignment: tuple[tuple[str, int], ...] = ()
    # Returns the plan of a call whose addresses are not; it has no such roles
    otherwise: Callable[[], Plan] | None = field(default=None, compare=False)

    def bytes_of(self, role: str) -> int:
        """Return the bytes of the space of a role; 0 where there is none."""
        return sum(space.bytes for space in self.spaces if space.role == role)

    @classmethod
    def of_nothing(cls, operator: str) -> Plan:
        """Return the plan of a call whose result has no elements."""
        return cls(operator, (), ("the result has no elements: nothing is launched",))

    def renamed(self, names: Mapping[str, str]) -> Plan:
        """Return the plan with other roles for arrays that its launches read and write."""
        launches, sharing = (
            tuple(launch.renamed(names) for launch in those) for those in (self.launches, self.sharing)
        )
        return replace(self, launches=launches, sharing=sharing)

    def __repr__(self) -> str:
        return f"<Plan of {self.operator}: {', '.join(launch.variant.name for launch in self.launches) or 'no launch'}>"
