"""Random problems over their floors, and what a change of one number costs: by hand, and within limits."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from benchmarks import cliffs, layers, static_plan
from benchmarks.layers import Layer
from benchmarks.static_plan import Case
from gpuconv.cuda.plan.limits import representative

DEVICE = representative(cliffs.ARCHITECTURE)
LAYERS = {layer.id: layer for layer in layers.load()}


def row(ratio: float, kind: str = "dense Conv") -> dict[str, Any]:
    return {"class": kind, "over_floor": ratio, "problem": f"{kind} {ratio}", "kernels": ["k"], "floor_us": 2.5}


def test_shares_are_of_all_and_of_each_class() -> None:
    found = cliffs.shares([row(2.0), row(8.0), row(4.0, "MaxPool values"), row(3.0, "MaxPool values")])
    assert found["all"] == {"problems": 4, "mean": 3.722, "above_3": 0.5, "above_6": 0.25}
    assert found["dense Conv"] == {"problems": 2, "mean": 4.0, "above_3": 0.5, "above_6": 0.5}
    assert found["MaxPool values"] == {"problems": 2, "mean": 3.464, "above_3": 0.5, "above_6": 0.0}


def test_the_worst_come_first() -> None:
    ratios = [float(number) for number in range(1, 31)]
    assert [one["over_floor"] for one in cliffs.worst([row(ratio) for ratio in ratios])] == ratios[:9:-1]


@pytest.mark.parametrize(
    ("change", "name", "expected"),
    [
        ("channels + 1", "resnet50.l1.3x3", {"x": (32, 65, 56, 56)}),
        ("channels + 1", "mobilenetv2.dw3", {"x": (64, 145, 56, 56), "group": 145, "k_out": 145}),
        ("channels + 1", "resnext50.l1.g32", None),
        ("channels + 1", "resnet.pool", {"x": (32, 65, 112, 112)}),
        ("filters + 1", "resnet50.l1.3x3", {"k_out": 65}),
        ("filters + 1", "mobilenetv2.dw3", None),
        ("filters + 1", "resnet.pool", None),
        ("batch + 1", "resnet50.l1.3x3", {"x": (33, 64, 56, 56)}),
        ("width + 1", "resnet50.l1.3x3", {"x": (32, 64, 56, 57)}),
        ("height + 1", "resnet50.l1.3x3", {"x": (32, 64, 57, 56)}),
        ("height + 1", "hifigan.res.k3d1", None),
        ("pads + 1", "resnet50.l1.3x3", {"pads": (2, 2, 2, 2)}),
    ],
)
def test_a_change_is_of_one_number(change: str, name: str, expected: dict[str, Any] | None) -> None:
    before = LAYERS[name]
    after = cliffs.CHANGES[change](before)
    if expected is None:
        assert after is None
    else:
        assert after is not None
        assert {field: value for field, value in vars(after).items() if value != vars(before)[field]} == expected


def drawn(count: int) -> list[Layer]:
    random = Random(7)
    cases = (cliffs.drawn(random) for _ in range(count))
    return [case.layer for case in cases if case is not None]


def test_problems_are_drawn_of_every_class_of_sums_and_maxima() -> None:
    kinds = {layer.kind for layer in drawn(1200)}
    alone = {"ConvTranspose input gradient", "ConvTranspose weight gradient", "bias gradient"}
    assert kinds == set(layers.CLASSES) - alone - {"MaxUnpool", "complex Conv", "fused Conv"}


def test_a_convolution_keeps_its_extents_but_for_strides() -> None:
    for layer in drawn(400):
        if layer.op == "Conv":
            expected = tuple(-(-size // stride) for size, stride in zip(layer.x[2:], layer.strides, strict=True))
            assert layer.y_shape[2:] == expected
            assert layer.group in (1, layer.x[1]) or layer.x[1] % layer.group == 0


def test_few_random_problems_are_far_above_their_floors() -> None:
    found = cliffs.problems(DEVICE, 100, 0)
    assert all(one["floor_us"] >= cliffs.LEAST_US for one in found)
    assert all(one["over_floor"] >= 1 for one in found)
    shares = cliffs.shares(found)["all"]
    assert shares["mean"] <= 2.6
    assert shares["above_6"] <= 0.1


@pytest.mark.thorough
def test_no_class_of_random_problems_is_far_above_its_floor() -> None:
    """Odd channels and groups are slower; a fault is half of a class above 3 times the floor, or a tenth above 6."""
    shares = cliffs.shares(cliffs.problems(DEVICE, cliffs.COUNT, 0))
    whole = shares.pop("all")
    assert whole["mean"] <= 2.5
    assert whole["above_6"] <= 0.06
    assert len(shares) == 14
    for kind, one in shares.items():
        assert one["mean"] <= 3.3, kind
        assert one["above_3"] <= 0.5, kind
        assert one["above_6"] <= (0.11 if one["problems"] > 40 else 0.2), kind


@pytest.mark.thorough
def test_no_change_of_one_number_costs_much() -> None:
    found = cliffs.jumps(DEVICE)
    assert list(found) == list(cliffs.CHANGES)
    for change, one in found.items():
        assert one["cases"] > 250, change
        assert one["mean"] <= 1.3, change  # one filter more is another tile
        assert one["above_2"] <= 0.04, change
        assert one["worst"] <= 4.5, change


# ---------------------------------------------------------------- what explanations say


@pytest.mark.parametrize(
    ("name", "dtype", "layout", "cause"),
    [
        ("yolo.spp13", "float32", "NHWC", "pixels are not made of whole vectors of 4 channels"),
        ("mobilenetv2.dw3", "bfloat16", "NHWC", "channels one by one: 145 channels, or gaps between pixels"),
        ("srcnn.conv3", "float32", "NHWC", "element by element: 33 channels of a group, or gaps between pixels"),
        ("unet.enc1", "bfloat16", "NHWC", "the 65 channels of a pixel are not whole 16 bytes"),
        ("unet3d.enc2", "bfloat16", "NCHW", "33 channels of a group in 1 slices of 64, the last one in 3 of 4 steps"),
        ("resnet50.l1.3x3/input_grad", "bfloat16", "NCHW", "65 output channels of a group leave"),
        ("resnet50.l3.down", "bfloat16", "NHWC", "513 channels of a group, filled up to 520"),
    ],
)
def test_a_plan_says_what_one_channel_more_costs_it(name: str, dtype: str, layout: str, cause: str) -> None:
    layer = next(layer for layer in (*layers.load(), *layers.load_derived()) if layer.id == name)
    changed = cliffs.CHANGES["channels + 1"](layer)
    assert changed is not None
    plans = [
        static_plan.plan(Case(one, dtype, layout), representative("sm_90a"), static_plan.Chooser())
        for one in (layer, changed)
    ]
    without, with_one_more = (" ".join(plan.reasons) for plan in plans)
    assert cause not in without
    assert cause in with_one_more
