"""Concatenates two plans: the same call for the first images of a batch, then for the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from gpuconv.cuda.plan.launch import Launch, Plan, Space

_Launches = tuple[Launch, ...]


def joined(first: Plan, second: Plan, shifts: Mapping[str, int]) -> Plan:
    """Return both plans in sequence; ``shifts`` are the bytes by which the second's arrays start later, by role."""
    second = _shifted(_aligned(second, shifts), shifts)
    second = _sharing_weights(first, second)
    shares = bool(first.sharing or second.sharing)
    alignment = dict(first.alignment) | dict(second.alignment)
    return replace(
        first,
        launches=_after(first.launches, second.launches),
        sharing=_after(first.sharing or first.launches, second.sharing or second.launches) if shares else (),
        reasons=(*first.reasons, "the images come in two parts: all at once are too many for such a kernel"),
        spaces=_spaces(first, second),
        views=tuple(dict.fromkeys((*first.views, *second.views))),
        alignment=tuple(alignment.items()),
        otherwise=_otherwise(first, second) if alignment else None,
    )


def _aligned(plan: Plan, shifts: Mapping[str, int]) -> Plan:
    """Return the plan, or its fallback if a shift breaks the alignment that it requires."""
    apart = any(shifts.get(role, 0) % nbytes for role, nbytes in plan.alignment)
    return plan.otherwise() if apart and plan.otherwise is not None else plan


def _shifted(plan: Plan, shifts: Mapping[str, int]) -> Plan:
    """Return the plan with its arrays' start shifted by these bytes."""
    parts = [(role, role, nbytes) for role, nbytes in shifts.items()]
    parts += [(name, role, nbytes + shifts.get(role, 0)) for name, role, nbytes in plan.views]
    names = {name: f"{role} from {nbytes}" for name, role, nbytes in parts}
    otherwise = plan.otherwise
    return replace(
        plan.renamed(names),
        views=tuple((names[name], role, nbytes) for name, role, nbytes in parts),
        otherwise=None if otherwise is None else lambda: _shifted(otherwise(), shifts),
    )


def _sharing_weights(first: Plan, second: Plan) -> Plan:
    """Return the second plan without packing launches that the first one has too; else with a buffer of its own."""
    packed = {launch for launch in (*first.launches, *first.sharing) if launch.packs}
    own = [launch for launch in (*second.launches, *second.sharing) if launch.packs]
    if all(launch in packed for launch in own):
        launches, sharing = (
            tuple(launch for launch in those if not launch.packs) for those in (second.launches, second.sharing)
        )
        return replace(second, launches=launches, sharing=sharing)
    names = {"packed": "packed again"}
    spaces = tuple(space._replace(role=names.get(space.role, space.role)) for space in second.spaces)
    return replace(second.renamed(names), spaces=spaces)


def _after(first: _Launches, second: _Launches) -> _Launches:
    """Return the launches of both plans, in order."""
    return (*first, *second)


def _spaces(first: Plan, second: Plan) -> tuple[Space, ...]:
    """Return buffers large enough for both; one with bytes before its first element stays last."""
    merged: dict[str, Space] = {}
    for space in (*first.spaces, *second.spaces):
        known = merged.get(space.role, space)
        merged[space.role] = space._replace(bytes=max(space.bytes, known.bytes), before=max(space.before, known.before))
    return tuple(sorted(merged.values(), key=lambda space: space.role == "copied"))


def _otherwise(first: Plan, second: Plan) -> Callable[[], Plan]:
    """Return a function that joins the fallback plans of both."""

    def anywhere() -> Plan:
        """Return both plans without alignment requirements, joined."""
        plans = [plan.otherwise() if plan.otherwise is not None else plan for plan in (first, second)]
        return joined(plans[0], plans[1], {})

    return anywhere
