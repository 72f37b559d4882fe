"""Convolution over a copy with channels padded to whole vectors: exact, and chosen where it pays off."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuconv
from gpuconv.cuda.conv import families as conv_families
from gpuconv.cuda.conv.gemm import copies, ffma, mma
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.limits import representative
from gpuconv.cuda.plan.offers import Candidate
from tests.emulator import emulated_cuda
from tests.harness.emulated import architecture
from tests.harness.offered import candidates
from tests.harness.plans import fields, problem
from tests.harness.sources_of_kernels import CONV, CONV_TRANSPOSE
from tests.oracle import gradients, oracle
from tests.oracle.operands import BFLOAT16, values, with_channels_last
from tests.oracle.strategies import Problem, checked

ARITHMETIC = [
    (np.dtype("float16"), "ieee"),
    (BFLOAT16, "ieee"),
    (np.dtype("float32"), "ieee"),
    (np.dtype("float32"), "tf32"),
    (np.dtype("float32"), "3xtf32"),
]
LIMITS = representative("sm_90a").limits
Ints = tuple[int, ...]


def of_copies(found: Sequence[Candidate]) -> list[Candidate]:
    return [one for one in found if one.name.endswith("_of_copy")]


def _pick(seed: int) -> Any:
    def pick(all_of_them: Sequence[Candidate]) -> Candidate:
        found = of_copies(all_of_them)
        return found[seed % len(found)]

    return pick


def _arrays(random: Random, shapes: Sequence[tuple[int, ...]], dtype: Any, seed: int) -> list[Any]:
    """Return small integers in a random layout, sometimes with infinities or NaN."""
    odd, last = random.random() < 0.3, random.random() < 0.5
    kinds = ["nonfinite" if odd and random.random() < 0.5 else "integers" for _ in shapes]
    arrays = [
        values(kind, seed + place, shape, dtype) for place, (kind, shape) in enumerate(zip(kinds, shapes, strict=True))
    ]
    return [with_channels_last(one) if last and random.random() < 0.8 else one for one in arrays]


def _sums(random: Random, odd: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Return shapes of x and w of a Conv whose channels are not whole vectors, and attributes."""
    group, rank = random.choice((1, 1, 2)), random.choice((1, 2, 2, 3))
    channels = random.choice(odd)
    kernel = [random.choice((1, 2, 3)) for _ in range(rank)]
    extents = [random.randint(3, 7) for _ in range(rank)]
    attributes = {
        "strides": [random.choice((1, 1, 2)) for _ in range(rank)],
        "dilations": [random.choice((1, 1, 2)) for _ in range(rank)],
        "pads": [random.choice((0, 1, 2)) for _ in range(2 * rank)],
        "group": group,
    }
    attributes["pads"] = [pad + 2 for pad in attributes["pads"]]  # to avoid empty results
    filters = random.choice((1, 5, 20, 70))
    return (random.choice((1, 2)), group * channels, *extents), (group * filters, channels, *kernel), attributes


@pytest.mark.emulator
@pytest.mark.kernels(*CONV, *CONV_TRANSPOSE, "passes/channels_last.cu")
@pytest.mark.parametrize(("dtype", "precision"), ARITHMETIC, ids=str)
@checked(0.2)
@given(random=st.randoms(use_true_random=False), seed=st.integers(0, 2**31))
def test_sums_over_filled_channels_are_exact(dtype: Any, precision: str, random: Random, seed: int) -> None:
    x_shape, w_shape, attributes = _sums(random, (1, 3, 5, 7, 9, 17, 30, 65))
    transposed = random.random() < 0.4
    if transposed:
        w_shape = (x_shape[1], w_shape[0] // attributes["group"], *w_shape[2:])
        attributes["pads"] = [0] * len(attributes["pads"])
    x, w = _arrays(random, (x_shape, w_shape), dtype, seed)
    b = values("integers", seed + 2, (w_shape[1] * attributes["group"] if transposed else w_shape[0],), dtype)
    definition = oracle.conv_transpose if transposed else oracle.conv
    device = emulated_cuda(limits_of=architecture(dtype, 0), seed=seed, late_async=random.random() < 0.7)
    with offers.picking(_pick(seed)), gpuconv.precision(precision), device:
        y = (gpuconv.conv_transpose if transposed else gpuconv.conv)(x, w, b, **attributes)
    exact = definition(x, w, b, **attributes)
    np.testing.assert_array_equal(y.astype(np.float64), exact.value.astype(dtype).astype(np.float64))


@pytest.mark.emulator
@pytest.mark.kernels("passes/channels_last.cu", "weight_grad/tiles.cu")
@pytest.mark.parametrize(("dtype", "precision"), ARITHMETIC, ids=str)
@checked(0.2)
@given(random=st.randoms(use_true_random=False), seed=st.integers(0, 2**31))
def test_gradients_of_weights_from_copies_are_exact(dtype: Any, precision: str, random: Random, seed: int) -> None:
    x_shape, w_shape, attributes = _sums(random, (3, 5, 7, 9, 17, 30, 65))
    called = Problem("conv", x_shape, w_shape, None, attributes)
    x, dy = _arrays(random, (x_shape, gradients.shape_of_result(called)), dtype, seed)
    device = emulated_cuda(limits_of=architecture(dtype, 0), seed=seed, late_async=random.random() < 0.7)
    with offers.picking(_pick(seed)), gpuconv.precision(precision), device:
        dw = gpuconv.conv_weight_grad(x, dy, w_shape, **attributes)
    exact = gradients.weight_grad(called, x, dy)
    np.testing.assert_array_equal(dw.astype(np.float64), exact.value.astype(dtype).astype(np.float64))


@pytest.mark.emulator
@pytest.mark.kernels("passes/channels_last.cu", "conv/gemm/split.cu")
def test_calls_that_share_weights_copy_x_each_time() -> None:
    x, w = values("integers", 1, (1, 37, 6, 7), "float32"), values("integers", 2, (70, 37, 3, 3), "float32")
    with offers.picking(_named("conv_float32_3d_64x64x16_uniform_split_of_copy")), emulated_cuda() as emulated:
        packed = gpuconv.pack(w)
        found = [gpuconv.conv(one, packed) for one in (x, -x)]
    exact = oracle.conv(x, w, None).value
    np.testing.assert_array_equal(found, [exact, -exact])
    kinds = [launch.variant.name.partition("_float32")[0] for launch in emulated.launches]
    assert kinds == ["pack_weights", "channels_last_32bit_3d", "conv", "conv", "channels_last_32bit_3d", "conv", "conv"]


@pytest.mark.emulator
@pytest.mark.kernels("passes/channels_last.cu", "conv/gemm/conv.cu", "conv/gemm/split.cu")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_pixels_that_no_output_meets_are_not_copied(dtype: str) -> None:
    x = with_channels_last(values("integers", 1, (2, 13, 9, 11), dtype))
    w = values("integers", 2, (20, 13, 1, 1), dtype)
    expected = oracle.conv(x, w, None, strides=[2, 3]).value
    for seed in range(6):
        with offers.picking(_pick(seed)), emulated_cuda(seed=seed) as emulated:
            np.testing.assert_array_equal(gpuconv.conv(x, w, strides=[2, 3]), expected)
        assert any(launch.variant.name.startswith("channels_last") for launch in emulated.launches)
    assert chosen_copy((2, 13, 9, 11), (20, 13, 1, 1), strides=[2, 3]) == (2, 16, 1, 5, 4)
    assert chosen_copy((2, 13, 9, 11), (20, 13, 1, 1), strides=[2, 3], layout="NCHW") == (2, 16, 1, 9, 11)
    assert chosen_copy((2, 13, 9, 11), (20, 13, 1, 1), strides=[2, 3], pads=[0, 1, 0, 0]) == (2, 16, 1, 5, 11)
    assert chosen_copy((2, 13, 9, 11), (20, 13, 2, 1), strides=[2, 3]) == (2, 16, 1, 9, 4)


def chosen_copy(x: Ints, w: Ints, layout: str = "NHWC", **more: Any) -> Ints:
    found = copies.of(problem("conv", x, w, "float16", layout=layout, **more).lifted, 8)
    assert found is not None
    return found.problem.x_shape


# ---------------------------------------------------------------- choices


def _named(end: str) -> Any:
    return lambda found: next(one for one in found if one.name.endswith(end))


def chosen(operator: str, x: Ints, w: Ints, dtype: str, layout: str = "NHWC", **more: Any) -> Any:
    one = problem(operator, x, w, dtype, layout=layout, **more)
    return conv_families.plan(one, LIMITS)


@pytest.mark.parametrize(
    ("operator", "x", "w", "dtype", "layout", "copied"),
    [
        ("conv", (2, 93, 187, 187), (24, 93, 3, 3), "bfloat16", "NHWC", 96),  # 16 bytes of channels at once
        ("conv", (8, 548, 10, 10), (32, 548, 5, 1), "float32", "NHWC", 560),  # one tap per slice of K, which is split
        ("conv", (1, 250, 7, 7), (256, 250, 3, 1), "float32", "NCHW", 256),
        ("conv", (2, 96, 187, 187), (24, 96, 3, 3), "bfloat16", "NHWC", None),
        ("conv", (8, 544, 10, 10), (32, 544, 3, 3), "float32", "NHWC", None),
        ("conv", (32, 3, 224, 224), (64, 3, 7, 7), "bfloat16", "NCHW", None),  # a copy of few channels is mostly zeros
        ("conv", (8, 90, 56, 56), (90, 90, 3, 3), "float64", "NHWC", None),
    ],
)
def test_x_is_copied_where_that_is_predicted_to_pay(
    operator: str, x: Ints, w: Ints, dtype: str, layout: str, copied: int | None
) -> None:
    plan = chosen(operator, x, w, dtype, layout)
    said = [reason for reason in plan.reasons if reason.startswith("x is copied first, channels last")]
    assert plan.kernel.endswith("_of_copy") == (copied is not None)
    if copied is not None:
        assert said == [f"x is copied first, channels last: {x[1]} channels of a group, filled up to {copied}"]
        itemsize = 2 if dtype == "bfloat16" else 4
        assert plan.bytes_of("x_last") == x[0] * prod(x[2:]) * copied * itemsize
    assert plan.bytes_of("x_last") == 0 or copied is not None


def test_the_launches_of_a_copy_by_hand() -> None:
    # x (2, 2·5, 3, 4) in its own layout, padded to 2·8: images are 192 elements apart, rows 64, pixels 16
    one = problem("conv", (2, 10, 3, 4), (6, 5, 2, 2), "float16", layout="NCHW", group=2)
    with offers.picking(_named("64x64x64_vector_of_copy")):
        plan = conv_families.plan(one, LIMITS)
    pack, copy, gemm = plan.launches
    assert (fields(pack)["channels"], pack.packs) == (5, True)
    assert [copy.roles[name] for name in ("x", "x_last")] == ["x", "x_last"]
    assert {name: fields(copy)[name] for name in ("channels", "filled", "y_image", "y_group", "y_pixel")} == {
        "channels": 5, "filled": 8, "y_image": 192, "y_group": 8, "y_pixel": 16,
    }  # fmt: skip
    common = fields(gemm)["common"]
    assert {name: common[name] for name in ("channels", "x_batch", "x_channel", "x_stride")} == {
        "channels": 8, "x_batch": 192, "x_channel": 1, "x_stride": [0, 64, 16],
    }  # fmt: skip
    assert set(gemm.roles.values()) == {"x_last", "packed", "y"}
    assert plan.bytes_of("x_last") == 2 * 192 * 2


@pytest.mark.parametrize(
    ("x", "dtype", "more"),
    [
        ((1, 16, 5, 5), "float16", {}),  # whole vectors already
        ((1, 5, 2, 2, 2, 2), "float16", {}),  # four axes
    ],
)
def test_nothing_else_is_copied(x: Ints, dtype: str, more: dict[str, Any]) -> None:
    one = problem("conv", x, (20, x[1], *(1 for _ in x[2:])), dtype, layout="NHWC", **more)
    assert not of_copies([*candidates(mma, one, LIMITS), *candidates(ffma, one, LIMITS)])


def test_a_copy_has_fewer_than_2_to_the_31_elements() -> None:
    for width, taken in ((2**26, True), (2**27, False)):
        one = problem("conv", (1, 15, width), (4, 15, 1), "float16", layout="NHWC")
        assert (copies.of(one.lifted, 8) is not None) == taken
