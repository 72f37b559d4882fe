"""What a call launches: frozen descriptions that need no device, made once per problem and kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Variant:
    """One instantiation of a kernel template.

    Attributes
    ----------
    name : str
        Of the ``extern "C"`` entry, as profilers show it: ``conv_float32_2d_128x128x16``.
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
    """

    name: str
    source: str
    function: str
    arguments: tuple[str, ...]
    parameter: str
    layout: np.dtype[Any]
    threads: int
    blocks_per_sm: int


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
        The struct, with pointers of zero.
    pointers : tuple of (str, int)
        Which array's address belongs at which byte offset: "x", "w", "b", "dy", "y", "indices", "residual", "packed",
        "expanded", "copied" or "workspace".
    """

    variant: Variant
    grid: tuple[int, int, int]
    shared_bytes: int
    parameters: bytes
    pointers: tuple[tuple[str, int], ...]

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

    @property
    def spaces(self) -> tuple[tuple[str, str, int], ...]:
        """What a call keeps in its workspace: the role, the use, the bytes; a residual's copy is the last."""
        found = (
            ("expanded", "the weights' parts", self.expanded_bytes),
            ("packed", "the packed weights", self.packed_bytes),
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
    """

    architecture: str
    multiprocessors: int
    shared_bytes_per_block: int
    shared_bytes_per_multiprocessor: int
    name: str = ""
