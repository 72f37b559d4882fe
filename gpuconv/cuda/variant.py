"""One kernel as it is compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuconv.cuda import structs


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
    threads: int
    blocks_per_sm: int
    architectures: tuple[str, ...] = ()
    least_registers: int = 0

    def compiles_for(self, architecture: str) -> bool:
        """Tell whether the kernel has what this architecture has."""
        return not self.architectures or architecture in self.architectures

    @property
    def layout(self) -> np.dtype[Any]:
        """Of the parameter's struct, as the source declares it."""
        return structs.layout(self.parameter, self.source)
