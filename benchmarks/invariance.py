"""Model the cost of ``invariant="batch"`` on a GPU: results whose bits do not depend on the batch; nothing is measured.

For each Conv and ConvTranspose layer and several batch sizes, this prints a ratio: the modelled time of the fastest
kernel that sums in the layer's fixed order, divided by that of the fastest kernel of any order. Batches whose arrays
need 64-bit indices are skipped: there the free choice has only slow kernels, while the invariant one splits the batch.
One image of every layer is a multiple of 16 bytes, so all images of a batch are aligned equally.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import exp, log
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks import floors, layers, static_plan
from benchmarks.static_plan import Case
from gpuconv.cuda.conv import families, invariant
from gpuconv.cuda.conv import problem as correlation
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.limits import Representative, representative

MOST, MOST_MEAN = 1.5, 1.03  # limits: ratio of a layer at any batch size, and geometric mean
_SHOWN = 1.05  # layers with a higher mean are listed
WAYS = (("bfloat16", "ieee"), ("float32", "ieee"), ("float32", "tf32"), ("float32", "3xtf32"))
ARCHITECTURES = ("sm_80", "sm_86", "sm_90a", "sm_100a", "sm_120a")


class Price(NamedTuple):
    """The modelled cost ratios of one layer, by batch size; None where arrays need 64-bit indices."""

    layer: str
    order: str
    ratios: tuple[float | None, ...]  # in the order of invariant.BATCHES

    @property
    def known(self) -> list[float]:
        """The ratios that are not None."""
        return [ratio for ratio in self.ratios if ratio is not None]

    @property
    def mean(self) -> float:
        """Geometric mean over the batch sizes."""
        return exp(fmean(map(log, self.known)))


def run() -> int:
    """Model all layers and print a table."""
    print(f"time ratios at N = {', '.join(map(str, invariant.BATCHES))}; None: arrays need 64-bit indices")
    for architecture in ARCHITECTURES:
        for dtype, precision in WAYS:
            row = priced(representative(architecture), dtype, precision)
            print(
                f"{architecture:8} {floors.label(dtype, precision):9} mean {row['mean']:.4f}, worst {row['worst']:.2f}"
            )
            for name, (mean, order, *ratios) in row["layers"].items():
                print(f"    {name:22} {mean:.3f}  {ratios}  {order}")
    return 0


def summary(prices: list[Price]) -> dict[str, Any]:
    """Return the geometric mean over all layers, the worst ratio, and the layers with the largest ratios."""
    dear = sorted((price for price in prices if price.mean > _SHOWN or max(price.known) > MOST), key=lambda p: -p.mean)
    return {
        "count": len(prices),
        "mean": round(exp(fmean(log(price.mean) for price in prices)), 4),
        "worst": round(max(max(price.known) for price in prices), 3),
        "above": sorted(price.layer for price in prices if max(price.known) > MOST),
        "layers": {
            price.layer: [round(price.mean, 3), price.order, *(r and round(r, 2) for r in price.ratios)]
            for price in dear
        },
    }


def priced(device: Representative, dtype: str, precision: str) -> dict[str, Any]:
    """Return the summary of all Conv and ConvTranspose layers for a device and dtype."""
    known = (layer for layer in layers.load() if layer.multiplies)
    return summary([price(Case(layer, dtype, precision=precision), device) for layer in known])


@cache
def price(case: Case, device: Representative) -> Price:
    """Return the ratios of one Conv or ConvTranspose layer; the batch size of ``case`` is ignored."""
    problem = _problem(case, device)
    order = invariant.orders(invariant.layer_of(problem), device.limits.architecture)[0][0]
    ratios = []
    for count in invariant.BATCHES:
        seen = invariant.of_images(problem, count)
        free = offers.quickest(offers.of(families.FAMILIES, seen, device.limits)[0]).seconds
        ratios.append(None if seen.wide() else _seconds(problem, order, count, device) / free)
    return Price(case.layer.id, order, tuple(ratios))


def _seconds(problem: Problem, order: str, count: int, device: Representative) -> float:
    """Return the modelled time of the fastest kernel with this summation order; without one, of two half batches."""
    candidates = invariant.candidates_of(invariant.of_images(problem, count), device.limits)
    own = [candidate.seconds for candidate in candidates if candidate.order == order]
    return min(own) if own else 2 * _seconds(problem, order, count // 2, device)


def _problem(case: Case, device: Representative) -> Problem:
    """Return the planner's problem for a batch of one image."""
    layer = case.layer
    alone = replace(case, layer=replace(layer, x=(1, *layer.x[1:])))
    _, geometry, dtype, strides, *_ = static_plan.planner_of(alone, device).args  # type: ignore[attr-defined]
    x, w, y = (strides[role] for role in ("x", "w", "y"))
    return correlation.of(geometry, dtype, x, w, 1, y, case.precision)
