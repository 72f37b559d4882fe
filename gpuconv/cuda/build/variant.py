"""Kernels as the sources have them, and as they are compiled: templates, and their variants."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuconv.cuda.build import structs
from gpuconv.rules import dtypes

_LEAST_CHAINED = 90


@dataclass(frozen=True, slots=True)
class Variant:
    """One instantiation of a kernel template."""

    name: str  # of the ``extern "C"`` entry, as profilers show it: ``conv_float32_3d_128x128x16_uniform``
    source: str  # file in ``kernels_cu``
    function: str  # the ``__device__`` template that the entry calls with its one parameter
    arguments: tuple[str, ...]  # the template's arguments, in C++
    parameter: str  # C++ type of the one parameter, a struct passed by value
    threads: int  # of ``__launch_bounds__``
    blocks_per_sm: int  # likewise
    architectures: tuple[str, ...] = ()  # those that it compiles for; empty: all
    least_registers: int = 0  # that a thread must have from the start, for warps to hand to each other
    chained: bool = False  # it may be launched to overlap the kernel before it, for which it waits first

    def compiles_for(self, architecture: str) -> bool:
        """Tell whether the kernel has what this architecture has."""
        return not self.architectures or architecture in self.architectures

    def chained_on(self, architecture: str) -> Variant:
        """Return what may overlap the kernel before it, on an architecture whose kernels can; else the same."""
        return replace(self, chained=True) if can_chain(architecture) else self

    @property
    def layout(self) -> np.dtype[Any]:
        """Layout of the parameter's struct, as the source declares it."""
        return structs.layout(self.parameter, self.source)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One ``__device__`` template, with what all its variants share."""

    source: str
    function: str
    # The struct that it takes. With ``{index}`` and ``{rank}``, as in ``CopyParams<{index}, {rank}>``, the kernel is a
    # template on these too, right after its types.
    parameter: str
    threads: int = 256  # of those variants that say nothing else
    blocks_per_sm: int = 4  # likewise
    name: str = ""  # that the names of variants begin with; empty: the function's
    architectures: tuple[str, ...] = ()
    least_registers: int = 0

    def over(
        self,
        what: str,
        rank: int,
        *forms: str,
        types: tuple[str, ...] = (),
        sizes: tuple[int | str, ...] = (),
        wide: bool = False,
        threads: int | None = None,
        blocks_per_sm: int | None = None,
    ) -> Variant:
        """Return one variant, with threads and blocks of its own where they are not those of the kernel.

        Parameters
        ----------
        what : str
            That it computes with: a dtype, or ``16bit``; empty: not in its name.
        rank : int
            Spatial axes.
        *forms : str
            What else sets it apart; an empty one is not in its name.
        types, sizes : tuple
            Arguments of the template, before and after the index type and the rank. A bool is a flag.
        wide : bool
            Whether indices have 64 bits.
        """
        index = index_name(wide)
        own = [value for key, value in (("{index}", index), ("{rank}", str(rank))) if key in self.parameter]
        parts = (self.name or self.function, what, f"{rank}d", *forms, "wide" * wide)
        return Variant(
            name="_".join(filter(None, parts)),
            source=self.source,
            function=self.function,
            arguments=(*types, *own, *map(_argument, sizes)),
            parameter=self.parameter.format(index=index, rank=rank),
            threads=threads or self.threads,
            blocks_per_sm=blocks_per_sm or self.blocks_per_sm,
            architectures=self.architectures,
            least_registers=self.least_registers,
        )


def can_chain(architecture: str) -> bool:
    """Tell whether kernels of an architecture, as ``sm_90a``, can wait for those before them themselves."""
    return int(re.sub(r"\D", "", architecture)) >= _LEAST_CHAINED


def types(dtype: str) -> tuple[str, str]:
    """Return the C++ types of a dtype's elements and of their sums."""
    return dtypes.entry(dtype).cuda, dtypes.sums(dtype).cuda


def index_name(wide: bool) -> str:
    """Return the CUDA name of ``Index``."""
    return "long long" if wide else "int"


def _argument(value: int | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
