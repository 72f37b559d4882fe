"""Conv with one tap as a plain matrix product: when, how, and right results for rows of x at any address."""

from __future__ import annotations

from typing import Any

from gpuconv.cuda.plan.launch import Plan
from tests.harness.emulated import preferred
from tests.harness.plans import fields, plan


def pointwise(x_shape: Any, w_shape: Any, operator: str = "conv", **more: Any) -> Plan | None:
    with preferred("conv_pointwise"):
        made = plan(operator, x_shape, w_shape, **more)
    return made if made.launches[-1].variant.name.startswith("conv_pointwise") else None


def test_one_launch_reads_the_weights_as_they_are() -> None:
    made = pointwise((2, 40, 3, 5, 8), (140, 20, 1, 1, 1), group=2, bias=True)
    assert made is not None
    (launch,) = made.launches
    assert (made.bytes_of("workspace"), made.bytes_of("packed")) == (0, 0)
    assert dict(launch.pointers) == {"x": 0, "w": 8, "b": 16, "y": 24}
    struct = fields(launch)
    assert (struct["w_group"], struct["w_filter"], struct["w_channel"]) == (70 * 20, 20, 1)
    assert (struct["common"]["extent"], struct["common"]["x_stride"]) == ([120], [1])
    assert launch.grid == (2 * 2 * 4, 1, 1)  # groups, tiles of 64 output channels and of 64 pixels
    assert "one plain GEMM: one tap, weights as they are" in made.reasons


def test_steps_along_axes_that_lie_behind_each_other_are_one() -> None:
    every_second = pointwise((2, 20, 6, 8), (70, 20, 1, 1), x_strides=(1920, 96, 16, 2))
    assert every_second is not None
    assert fields(every_second.launches[0])["common"]["x_stride"] == [2]
