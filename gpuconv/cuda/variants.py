"""The list of every kernel that a plan can name, for building ahead and for the table of what they use."""

from __future__ import annotations

from gpuconv.cuda import conv_plan, pool_plan, sums_plan, unpool_plan, weight_grad_plan
from gpuconv.cuda.plan import Variant


def all_variants() -> list[Variant]:
    """Return every variant for one to four spatial axes; those for more axes are compiled when first needed."""
    return [
        *conv_plan.variants(),
        *pool_plan.variants(),
        *weight_grad_plan.variants(),
        *sums_plan.variants(),
        *unpool_plan.variants(),
    ]
