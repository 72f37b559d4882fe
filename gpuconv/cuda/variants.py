"""The list of every kernel variant that a plan can use, for ahead-of-time compilation and the resource table."""

from __future__ import annotations

from typing import Any

from gpuconv.cuda import complex as complex_plan
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.conv import families as conv_families
from gpuconv.cuda.passes import channels_last, sums
from gpuconv.cuda.passes import copy as copy_pass
from gpuconv.cuda.pool import families as pool_families
from gpuconv.cuda.pool import unpool
from gpuconv.cuda.pool.grad import families as pool_grad_families
from gpuconv.cuda.weight_grad import families as weight_grad_families


def owners() -> list[Any]:
    """Return the modules that define kernels: those of all families, and those of auxiliary passes."""
    rooms = (conv_families, pool_families, pool_grad_families, weight_grad_families)
    families = [family for room in rooms for family in room.FAMILIES]
    return [*families, sums, unpool, complex_plan, copy_pass, channels_last]


def all_variants() -> list[Variant]:
    """Return every variant for one to four spatial axes; those for more axes are compiled on first use."""
    return [variant for owner in owners() for variant in owner.variants()]
