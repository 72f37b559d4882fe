"""Plans of invariant="batch": one summation order per layer, independent of all other properties of a call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import gpuconv
from gpuconv import ArgumentError
from gpuconv.cuda import planning
from gpuconv.cuda.build import params
from gpuconv.cuda.conv import families, invariant
from gpuconv.cuda.plan import joined, offers
from gpuconv.cuda.plan.launch import Launch, Plan
from gpuconv.cuda.plan.limits import Limits, Rates, representative
from gpuconv.rules import geometry as geometries
from gpuconv.rules.operators import OPERATORS
from tests.harness.plans import channels_last, contiguous

Ints = tuple[int, ...]
LAYERS: dict[str, tuple[str, Ints, Ints, dict[str, Any]]] = {
    "few pixels, many channels": ("conv", (512, 7, 7), (512, 512, 3, 3), {"pads": [1, 1, 1, 1]}),
    "many pixels": ("conv", (64, 56, 56), (64, 64, 3, 3), {"pads": [1, 1, 1, 1]}),
    "a stem": ("conv", (3, 224, 224), (64, 3, 7, 7), {"pads": [3, 3, 3, 3], "strides": [2, 2]}),
    "patches": ("conv", (3, 224, 224), (768, 3, 16, 16), {"strides": [16, 16]}),
    "one tap": ("conv", (2048, 7, 7), (512, 2048, 1, 1), {}),
    "depthwise": ("conv", (144, 56, 56), (144, 1, 3, 3), {"group": 144, "pads": [1, 1, 1, 1]}),
    "groups": ("conv", (128, 56, 56), (128, 4, 3, 3), {"group": 32, "pads": [1, 1, 1, 1]}),
    "one filter": ("conv", (32, 90, 100), (1, 32, 5, 5), {"pads": [2, 2, 2, 2]}),
    "a line": ("conv", (1280, 300), (1280, 1280, 3), {"pads": [1, 1], "strides": [2]}),
    "phases": ("conv_transpose", (1024, 4, 4), (1024, 512, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "blocks of pixels": ("conv_transpose", (256, 14, 14), (256, 256, 2, 2), {"strides": [2, 2]}),
    "three filters, transposed": ("conv_transpose", (128, 32, 32), (128, 3, 4, 4), {"strides": [2, 2]}),
}
ARITHMETIC = (("bfloat16", "ieee"), ("float32", "ieee"), ("float32", "3xtf32"), ("complex64", "ieee"))


def planned(
    name: str,
    batch: int,
    *,
    dtype: str = "bfloat16",
    precision: str = "ieee",
    limits: Limits | str = "sm_90a",
    order: Any = contiguous,
    strides: dict[str, Ints] | None = None,
) -> Plan:
    operator, image, w, attributes = LAYERS[name]
    geometry: Any = getattr(geometries, operator)((batch, *image), w, **attributes)
    limits = representative(limits).limits if isinstance(limits, str) else limits
    lying = {"x": order(geometry.x_shape), "w": contiguous(w), "y": order(geometry.y_shape)} | (strides or {})
    return planning.plan(operator, geometry, dtype, lying, limits, precision, invariant=True)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_has_one_order_for_every_batch_and_every_device_of_a_class(name: str) -> None:
    dtype, precision = ARITHMETIC[[*LAYERS].index(name) % len(ARITHMETIC)]
    few, many = (replace(representative("sm_90a").limits, multiprocessors=count) for count in (16, 144))
    learned = replace(few, rates=Rates(launch=9e-6, adding=9e-6, tensor=0.1), bandwidth=1e11, name="another device")
    found = [planned(name, batch, dtype=dtype, precision=precision) for batch in (1, 2, 3, 8, 17, 64)]
    found += [planned(name, 5, dtype=dtype, precision=precision, limits=limits) for limits in (few, many, learned)]
    assert len({plan.kernel for plan in found}) == 1


@pytest.mark.parametrize("name", LAYERS)
def test_the_order_depends_on_no_stride_but_on_which_axis_is_innermost(name: str) -> None:
    operator, image, w, attributes = LAYERS[name]
    for order in (contiguous, channels_last):
        geometry: Any = getattr(geometries, operator)((3, *image), w, **attributes)
        alone = planned(name, 1, order=order).kernel
        for gap in (2,):
            x, y = (tuple(gap * step for step in order(shape)) for shape in (geometry.x_shape, geometry.y_shape))
            assert planned(name, 3, strides={"x": x}, order=order).kernel == alone
            assert planned(name, 3, strides={"y": y}, order=order).kernel == alone
            far = order(geometry.x_shape)[0] * 8 + gap
            assert planned(name, 3, strides={"x": (far, *order(geometry.x_shape)[1:])}, order=order).kernel == alone


def test_devices_that_have_the_same_room_and_add_alike_take_the_same_order() -> None:
    names = "few pixels, many channels", "a line", "one filter"
    ada, ampere = ([planned(name, 4, limits=limits).kernel for name in names] for limits in ("sm_89", "sm_86"))
    assert ada == ampere


def test_all_tiles_are_divided_or_none() -> None:
    """For any number of tiles: 7 x 7 pixels in tiles of 64, and 512 filters in tiles of 64."""
    for batch in (1, 3, 64):
        plan = planned("few pixels, many channels", batch, limits="sm_80")
        splits = plan.launches[-1].fields["splits"]
        assert splits["whole"] == 0
        assert splits["count"] > 1


def test_kernels_of_one_order_change_with_the_batch() -> None:
    names = {planned("patches", batch).launches[-1].variant.name for batch in (1, 2, 16, 64)}
    assert len(names) > 1


# ---------------------------------------------------------------- arrays that no kernel of the order takes


def roles(launch: Launch) -> set[str]:
    return set(launch.roles.values())


def test_arrays_are_copied_where_no_kernel_takes_them_as_they_lie() -> None:
    """Strided rows, which sums of rows do not support, in x and y."""
    gaps: dict[str, Ints] = {"x": (144 * 56 * 112, 56 * 112, 112, 2), "y": (144 * 56 * 168, 56 * 168, 168, 3)}
    plan = planned("depthwise", 2, strides=gaps)
    assert plan.kernel == planned("depthwise", 2).kernel
    before, kernel, after = plan.launches
    assert (roles(before), roles(after)) == ({"x", "copy of x"}, {"copy of y", "y"})
    assert roles(kernel) == {"copy of x", "w", "copy of y"}
    nbytes = 2 * 144 * 56 * 56 * 2
    assert [space[::2] for space in plan.spaces] == [("copy of x", nbytes), ("copy of y", nbytes)]
    assert "x, y: copied" in plan.reasons[-1]


@pytest.mark.parametrize(
    ("order", "kernel", "also"),
    [(contiguous, "64x256_rows", "channels_last"), (channels_last, "64x256_patches_direct", "copy")],
)
def test_other_addresses_change_the_kernel_and_not_the_order(order: Any, kernel: str, also: str) -> None:
    """A kernel of that order uses a channels-last copy of x; if none does, x is copied unchanged."""
    with offers.picking(lambda candidates: next(one for one in candidates if one.name.endswith(kernel))):
        plan = planned("many pixels", 8, order=order)
    assert "x" in dict(plan.alignment)
    assert plan.otherwise is not None
    anywhere = plan.otherwise()
    assert anywhere.kernel == plan.kernel
    assert not anywhere.alignment
    assert any(launch.variant.name.startswith(also) for launch in anywhere.launches)


def test_a_batch_comes_in_halves_where_its_arrays_need_longer_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    """600 images are split to 150: 195 images of 25088 elements would be within the limit, as are the weights."""
    name, image = "few pixels, many channels", 512 * 7 * 7
    alone = planned(name, 1)
    monkeypatch.setattr(params, "INDEX_LIMIT", 195 * image + 1000)
    quarters = planned(name, 600)
    assert quarters.kernel == alone.kernel
    shifts = [150 * part * image * 2 for part in (1, 2, 3)]
    assert set(quarters.views) == {(f"{role} from {nbytes}", role, nbytes) for nbytes in shifts for role in "xy"}
    made = [launch for launch in quarters.launches if any(role[0] == "y" for role in roles(launch))]
    assert [sorted(role for role in roles(launch) if role[0] in "xy") for launch in made] == [
        ["x", "y"],
        *([f"x from {nbytes}", f"y from {nbytes}"] for nbytes in shifts),
    ]
    assert sum(launch.packs for launch in quarters.sharing) == 1
    assert [space.role for space in quarters.spaces] == ["packed", "workspace"]


def test_parts_of_one_size_are_planned_once_and_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    name, image = "few pixels, many channels", 512 * 7 * 7
    planned(name, 1)  # which chooses the order
    monkeypatch.setattr(params, "INDEX_LIMIT", 195 * image + 1000)
    sizes: list[int] = []
    candidates = invariant.candidates_of

    def counted(problem: Any, limits: Limits) -> Any:
        sizes.append(problem.batch)
        return candidates(problem, limits)

    monkeypatch.setattr(invariant, "candidates_of", counted)
    parts = planned(name, 150 * 2**9 - 1)
    assert len([launch for launch in parts.launches if "w" not in roles(launch) or not launch.packs]) >= 2**9
    assert set(sizes) == {150 * 2**level - less for level in range(10) for less in (0, 1) if (level, less) != (9, 0)}
    assert len(sizes) == len(set(sizes))
    monkeypatch.setattr(invariant, "_MOST_LAUNCHES", 2**10)
    with pytest.raises(
        ArgumentError, match=r'conv: with invariant="batch" a batch of \d+ images takes more than 1024 '
    ):
        planned(name, 150 * 2**30)


def test_a_device_without_room_for_the_order_is_an_error() -> None:
    limits = replace(representative("sm_90a").limits, shared_bytes_per_block=1000)
    with pytest.raises(ArgumentError, match=r'conv: with invariant="batch" the order .* 1000 bytes of shared memory'):
        planned("many pixels", 1, limits=limits)


def test_halves_share_packed_weights_only_where_they_are_the_same() -> None:
    first, second = (planned(name, 2, limits="sm_80") for name in ("a stem", "patches"))
    other, same = (joined.joined(first, plan, {"x": 100, "y": 200}) for plan in (second, first))
    assert [sorted(roles(launch)) for launch in other.launches if "w" in roles(launch)] == [
        ["packed", "w"], ["packed again", "w"],
    ]  # fmt: skip
    assert [space.role for space in other.spaces] == ["packed", "packed again"]
    assert [sorted(roles(launch)) for launch in same.launches if "w" in roles(launch)] == [["packed", "w"]]
    assert same.views == other.views == (("x from 100", "x", 100), ("y from 200", "y", 200))


# ---------------------------------------------------------------- choices


def test_a_measured_order_holds_for_every_batch() -> None:
    layer = planned("many pixels", 1).problem
    best, *others = (order for order, _ in invariant.orders(layer, "sm_90a"))
    known = {layer: others[2], "unknown": "an order that no kernel has"}
    limits = replace(representative("sm_90a").limits, measured=known.get)
    assert {planned("many pixels", batch, limits=limits).kernel for batch in (1, 2, 64)} == {others[2]}
    known[layer] = known["unknown"]
    assert planned("many pixels", 2, limits=limits).kernel == best


def test_every_candidate_can_be_picked() -> None:
    """As for measuring: the candidates of all orders."""
    problem = planned("many pixels", 2).problem.image
    candidates = families.in_order(problem, representative("sm_90a").limits)
    picked = []
    for turn in offers.every_candidate():
        with turn:
            picked.append(planned("many pixels", 1).kernel)
    assert picked == [candidate.order for candidate in candidates]


def test_explain_names_the_order_and_what_it_costs(capsys: pytest.CaptureFixture[str]) -> None:
    plan = gpuconv.explain("conv", (8, 512, 7, 7), (512, 512, 3, 3), pads=[1] * 4, dtype="bfloat16", invariant="batch")
    free = gpuconv.explain("conv", (8, 512, 7, 7), (512, 512, 3, 3), pads=[1] * 4, dtype="bfloat16")
    assert plan.kernel != free.kernel
    text = capsys.readouterr().out
    assert f"because    one order of sums for every batch: {plan.kernel}\n" in text
    assert "left out, as the quickest of" in text
    assert "every batch has the same" in text


def test_gradients_of_weights_are_planned_as_without_it() -> None:
    x, dy, w = (8, 64, 28, 28), (8, 64, 26, 26), (64, 64, 3, 3)
    geometry: Any = OPERATORS["conv_weight_grad"].geometry(x, dy, w_shape=w)
    strides = {"x": contiguous(x), "dy": contiguous(dy), "y": contiguous(w)}
    kind = "weight_grad", geometry, "float32", strides, representative("80").limits, "ieee"
    assert planning.plan(*kind, invariant=True) == planning.plan(*kind)
