"""Strided copies: from one array's strides to another's (``passes/copy.cu``), and plans that wrap a plan in copies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.plan import Launch, Plan, Space, nonempty, strided
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import Ints

_AXES = (4, 6)  # axes of the kernels that are built ahead, with 32-bit and with 64-bit indices
_WORDS = {2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}


def copy(operator: str, dtype: str, shape: Ints, strides: dict[str, Ints]) -> Launch:
    """Return the launch that copies an array; ``strides`` maps the roles of source and target, in this order."""
    (source, steps), (target, target_steps) = strides.items()
    axes = sorted(zip(shape, steps, target_steps, strict=True), key=lambda axis: -abs(axis[2]))
    extents, (source_stride, target_stride) = strided.collapsed_together(*zip(*axes, strict=True))
    spans = [params.span(extents, stride) for stride in (source_stride, target_stride)]
    wide = params.needs_wide(operator, [*spans, *extents, prod(shape)])
    rank = strided.axes(len(extents), wide, _AXES)
    fields = {
        "elements": prod(shape),
        "source_stride": strided.filled(source_stride, rank, 0),
        "target_stride": strided.filled(target_stride, rank, 0),
        "extent": strided.filled(extents, rank, 1),
    }
    kernel = variant(dtypes.entry(dtype).itemsize, wide, rank)
    return Launch.of_threads(operator, kernel, prod(shape), fields, {"source": source, "target": target})


def around(plan: Plan, dtype: str, moved: Mapping[str, tuple[Ints, Ints, Ints]], itemsize: int) -> Plan:
    """Return the plan with copies of some arrays; ``moved`` maps a role to (shape, array's strides, copy's strides).

    Inputs are copied after weights are packed and before the other launches; y is copied back last.
    """
    names = {role: f"copy of {role}" for role in moved}
    before: list[Launch] = []
    after: list[Launch] = []
    for role, (shape, strides_given, strides) in moved.items():
        if role == "y":
            after.append(copy(plan.operator, dtype, shape, {names[role]: strides, role: strides_given}))
        else:
            before.append(copy(plan.operator, dtype, shape, {role: strides_given, names[role]: strides}))
    within = plan.renamed(names)

    def around_these(launches: tuple[Launch, ...]) -> tuple[Launch, ...]:
        """Return launches with the copies inserted."""
        packing = sum(launch.packs for launch in launches)
        return (*launches[:packing], *before, *launches[packing:], *after)

    spaces = (Space(names[role], names[role], prod(shape) * itemsize) for role, (shape, *_) in moved.items())
    return replace(
        within,
        launches=around_these(within.launches),
        sharing=around_these(within.sharing) if within.sharing else (),
        spaces=(*nonempty(*spaces), *plan.spaces),
        reasons=(*plan.reasons, f"{', '.join(moved)}: copied, since no kernel of this order takes them as they lie"),
    )


# ---------------------------------------------------------------- variants


_KERNEL = Kernel("passes/copy.cu", "copy", "CopyParams<{index}, {rank}>")


def variant(itemsize: int, wide: bool, rank: int) -> Variant:
    """Return the variant for elements of ``itemsize`` bytes and ``rank`` axes."""
    return _KERNEL.over(f"{8 * itemsize}bit", rank, types=(_WORDS[itemsize],), wide=wide)


def variants() -> Iterator[Variant]:
    """Yield the variants that are built ahead; those for more axes are compiled on first use."""
    for itemsize in _WORDS:
        for wide in (False, True):
            yield variant(itemsize, wide, _AXES[wide])
