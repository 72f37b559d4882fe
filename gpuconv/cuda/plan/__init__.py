"""Plans: launches, devices' limits, the cost model, and the choice among candidates. Independent of any kernel."""

from gpuconv.cuda.plan.launch import MOST_BLOCKS, Launch, Plan, Space, TensorMap, nonempty
from gpuconv.cuda.plan.limits import RESERVED_BYTES, Limits
from gpuconv.cuda.plan.numbers import RANK
from gpuconv.cuda.plan.offers import Candidate, Family, Offer, Refusal

__all__ = ["MOST_BLOCKS", "RANK", "RESERVED_BYTES", "Candidate", "Family", "Launch", "Limits", "Offer", "Plan"]
__all__ += ["Refusal", "Space", "TensorMap", "nonempty"]
