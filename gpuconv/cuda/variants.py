"""The list of every kernel that a plan can name, for building ahead and for the table of what they use."""

from __future__ import annotations

from gpuconv.cuda import (
    complex_plan,
    conv_plan,
    copy_plan,
    pool_grad_plan,
    pool_plan,
    sums_plan,
    unpool_plan,
    weight_grad_plan,
)
from gpuconv.cuda.variant import Variant


def all_variants() -> list[Variant]:
    """Return every variant for one to four spatial axes; those for more axes are compiled when first needed."""
    plans = (conv_plan, pool_plan, pool_grad_plan, weight_grad_plan, sums_plan, unpool_plan, complex_plan, copy_plan)
    return [variant for plan in plans for variant in plan.variants()]
