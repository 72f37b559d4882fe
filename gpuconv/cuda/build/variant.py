"""Kernel templates as the sources define them, and their instantiations, the variants."""

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

    name: str  # name of the ``extern "C"`` entry, as in profilers: ``conv_float32_3d_128x128x16_uniform``
    source: str  # file in ``kernels_cu``
    function: str  # the ``__device__`` template that the entry calls with its parameter
    arguments: tuple[str, ...]  # template arguments, in C++
    parameter: str  # C++ type of the parameter, a struct passed by value
    threads: int  # for ``__launch_bounds__``
    blocks_per_sm: int  # minimum blocks per SM, for ``__launch_bounds__``
    architectures: tuple[str, ...] = ()  # architectures it compiles for; empty: all
    least_registers: int = 0  # registers per thread required at launch, for setmaxnreg
    chained: bool = False  # supports programmatic dependent launch: it first waits for the previous kernel

    def compiles_for(self, architecture: str) -> bool:
        """Return whether the kernel compiles for this architecture."""
        return not self.architectures or architecture in self.architectures

    def chained_on(self, architecture: str) -> Variant:
        """Return the variant for programmatic dependent launch if the architecture supports it, else the same one."""
        return replace(self, chained=True) if can_chain(architecture) else self

    @property
    def layout(self) -> np.dtype[Any]:
        """Layout of the parameter struct, as the source declares it."""
        return structs.layout(self.parameter, self.source)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A ``__device__`` template, with what all its variants share."""

    source: str
    function: str
    # type of its parameter; with ``{index}`` and ``{rank}``, as in ``CopyParams<{index}, {rank}>``, these are also
    # template arguments of the kernel, right after its types
    parameter: str
    threads: int = 256  # default threads per block
    blocks_per_sm: int = 4  # default minimum blocks per SM
    name: str = ""  # prefix of variants' names; empty: the function's name
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
        """Return one variant; ``threads`` and ``blocks_per_sm`` override the kernel's defaults.

        Parameters
        ----------
        what : str
            What it computes with, for its name: a dtype, or ``16bit``; empty: nothing.
        rank : int
            Spatial axes.
        *forms : str
            Further parts of its name; empty ones are skipped.
        types, sizes : tuple
            Template arguments before and after the index type and the rank. A bool is a flag.
        wide : bool
            Whether indices have 64 bits.
        """
        index = index_name(wide)
        index_arguments = [value for key, value in (("{index}", index), ("{rank}", str(rank))) if key in self.parameter]
        parts = (self.name or self.function, what, f"{rank}d", *forms, "wide" * wide)
        return Variant(
            name="_".join(filter(None, parts)),
            source=self.source,
            function=self.function,
            arguments=(*types, *index_arguments, *map(_argument, sizes)),
            parameter=self.parameter.format(index=index, rank=rank),
            threads=threads or self.threads,
            blocks_per_sm=blocks_per_sm or self.blocks_per_sm,
            architectures=self.architectures,
            least_registers=self.least_registers,
        )


def can_chain(architecture: str) -> bool:
    """Return whether kernels for an architecture such as ``sm_90a`` support programmatic dependent launch."""
    return int(re.sub(r"\D", "", architecture)) >= _LEAST_CHAINED


def types(dtype: str) -> tuple[str, str]:
    """Return the C++ types of a dtype's elements and of its accumulators."""
    return dtypes.entry(dtype).cuda, dtypes.sums(dtype).cuda


def index_name(wide: bool) -> str:
    """Return the CUDA name of ``Index``."""
    return "long long" if wide else "int"


def _argument(value: int | str) -> str:
    """Return a template argument in C++."""
    return str(value).lower() if isinstance(value, bool) else str(value)
