"""What a call launches: frozen descriptions that need no device, made once per problem and kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuconv._geometry import Ints
from gpuconv.cuda.rates import ASSUMED, Rates


@dataclass(frozen=True, slots=True)
class Variant:
    """One instantiation of a kernel template.

    Attributes
    ----------
    name : str
        Of the ``extern "C"`` entry, as profilers show it: ``conv_float32_3d_128x128x16_uniform``.
    source : str
        File in ``kernels_cu``.
    function : str
        The ``__device__`` template that the entry calls with its one parameter.
    arguments : tuple of str
        The template's arguments, in C++.
    parameter : str
        C++ type of the one parameter, a struct passed by value.
    layout : numpy.dtype
        The struct's mirror.
    threads, blocks_per_sm : int
        ``__launch_bounds__``.
    architectures : tuple of str
        Those that it compiles for; empty: all.
    least_registers : int
        That a thread must have from the start, for warps to hand to each other.
    """

    name: str
    source: str
    function: str
    arguments: tuple[str, ...]
    parameter: str
    layout: np.dtype[Any]
    threads: int
    blocks_per_sm: int
    architectures: tuple[str, ...] = ()
    least_registers: int = 0

    def compiles_for(self, architecture: str) -> bool:
        """Tell whether the kernel has what this architecture has."""
        return not self.architectures or architecture in self.architectures


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A map of an array in a launch's struct: all that the driver encodes but for the array's address.

    Sizes and the like are of the innermost axis first. A map is of boxes of the array, or it has corners: then it is of
    pixels in order, of a convolution's windows ("im2col").

    Attributes
    ----------
    role : str
        Of the array.
    offset : int
        Of the map in the struct.
    dtype : {"float16", "bfloat16", "float32"}
    sizes : tuple of int
    strides : tuple of int
        Bytes, of all axes but the innermost.
    steps : tuple of int
        Elements from one that is copied to the next.
    box : tuple of int
    lower, upper : tuple of int
        The corners, of the spatial axes.
    channels, pixels : int
        That are copied at once.
    swizzle : int
        Bytes over which 16 bytes each change places in shared memory: 0, 32, 64 or 128.
    """

    role: str
    offset: int
    dtype: str
    sizes: Ints
    strides: Ints
    steps: Ints
    box: Ints = ()
    lower: Ints = ()
    upper: Ints = ()
    channels: int = 0
    pixels: int = 0
    swizzle: int = 128


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch but for the arrays' addresses.

    Attributes
    ----------
    variant : Variant
    grid : tuple of int
        Blocks along x, y, z. All blocks have ``variant.threads`` threads along x.
    shared_bytes : int
        Dynamic shared memory.
    parameters : bytes
        The struct, with pointers and maps of zero.
    pointers : tuple of (str, int)
        Which array's address belongs at which byte offset: "x", "w", "b", "dy", "y", "indices", "residual", "packed",
        "x_last", "expanded", "copied" or "workspace".
    maps : tuple of TensorMap
        Those that belong into the struct.
    """

    variant: Variant
    grid: tuple[int, int, int]
    shared_bytes: int
    parameters: bytes
    pointers: tuple[tuple[str, int], ...]
    maps: tuple[TensorMap, ...] = ()

    @property
    def packs(self) -> bool:
        """Whether it makes packed weights: of w and "packed" alone, so that what it makes serves other calls too."""
        return {role for role, _ in self.pointers} == {"w", "packed"}


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """All launches of one call, in order, and the reasons for them.

    Attributes
    ----------
    operator : str
    launches : tuple of Launch
        Empty where the result has no elements. Those that pack weights stand first.
    workspace_bytes : int
        Of memory that lives from the first launch to the last.
    workspace_use : str
        What it holds, for error messages.
    reasons : tuple of str
        One line each, for people.
    packed_bytes : int
        Of packed weights, which the launches that pack write whole, from w alone. The calls that share
        :class:`gpuconv.PackedWeights` keep them; for any other call they are workspace.
    sharing : tuple of Launch
        What calls that share packed weights launch instead of ``launches``; empty: the same.
    problem : dataclass or None
        What it solves, as measured choices know it; None where there was nothing to choose.
    kernel : str
        The name of what was chosen, or of the one kernel that there is for the operator.
    expanded_bytes : int
        Of complex weights as the real ones that kernels take.
    copied_bytes : (int, int)
        Of a residual's copy: before its first element, and from there on.
    x_last_bytes : int
        Of a copy of x whose channels are the innermost axis.
    alignment : tuple of (str, int)
        Roles of inputs whose addresses must be multiples of more bytes than those of an element.
    otherwise : callable or None
        Returns the plan of a call whose addresses are not; it has no such roles.
    """

    operator: str
    launches: tuple[Launch, ...]
    workspace_bytes: int
    workspace_use: str
    reasons: tuple[str, ...]
    packed_bytes: int = 0
    sharing: tuple[Launch, ...] = ()
    problem: Any = None
    kernel: str = ""
    expanded_bytes: int = 0
    copied_bytes: tuple[int, int] = (0, 0)
    x_last_bytes: int = 0
    alignment: tuple[tuple[str, int], ...] = ()
    otherwise: Callable[[], Plan] | None = field(default=None, compare=False)

    @property
    def spaces(self) -> tuple[tuple[str, str, int], ...]:
        """What a call keeps in its workspace: the role, the use, the bytes; a residual's copy is the last."""
        found = (
            ("expanded", "the weights' parts", self.expanded_bytes),
            ("packed", "the packed weights", self.packed_bytes),
            ("x_last", "x with its channels last", self.x_last_bytes),
            ("workspace", self.workspace_use, self.workspace_bytes),
            ("copied", "the residual as the result lies", sum(self.copied_bytes)),
        )
        return tuple(space for space in found if space[2])

    @classmethod
    def of_nothing(cls, operator: str) -> Plan:
        """Return the plan of a call whose result has no elements."""
        return cls(operator, (), 0, "", ("the result has no elements: nothing is launched",))

    def __repr__(self) -> str:  # without the parameters' bytes
        return f"<Plan of {self.operator}: {', '.join(launch.variant.name for launch in self.launches) or 'no launch'}>"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a plan must know of a device.

    Attributes
    ----------
    architecture : str
        As NVRTC names it: ``sm_80``, ``sm_90a``.
    multiprocessors : int
    shared_bytes_per_block : int
        Dynamic shared memory that a block can ask for.
    shared_bytes_per_multiprocessor : int
    name : str
        Of the device, as the driver says; empty where none is asked.
    rates : Rates
        By which times are modelled.
    bandwidth : float
        Of the memory, in bytes per second; 0 where it is not known: then that of the architecture's well-known device,
        by the multiprocessors.
    """

    architecture: str
    multiprocessors: int
    shared_bytes_per_block: int
    shared_bytes_per_multiprocessor: int
    name: str = ""
    rates: Rates = ASSUMED
    bandwidth: float = 0.0
