"""Conv whose taps along W are contiguous in x, as in patch embeddings: exact, or refused."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuconv
from gpuconv.cuda.conv import families as conv_families
from gpuconv.cuda.conv.gemm import runs
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.offers import Candidate
from tests.emulator import emulated_cuda
from tests.harness.emulated import architecture, preferred
from tests.harness.plans import HOPPER, problem
from tests.oracle import oracle
from tests.oracle.operands import BFLOAT16
from tests.oracle.strategies import checked

ARITHMETIC = [
    (np.dtype("float16"), "ieee"),
    (BFLOAT16, "ieee"),
    (np.dtype("float32"), "tf32"),
    (np.dtype("float32"), "3xtf32"),
]
PIECES = ("_chunks", "_halves")
Ints = tuple[int, ...]


def in_pieces(candidates: Sequence[Candidate]) -> list[Candidate]:
    return [one for one in candidates if one.name.endswith(PIECES)]


def _patches(random: Random, piece: int, layout: str) -> tuple[Ints, Ints, dict[str, Any]]:
    """Return shapes and attributes of a Conv whose runs end at the borders of pieces."""
    channels, axes = random.choice((1, 2, 3, 4, 5)), random.choice((0, 1, 1))
    inner = channels if layout == "NHWC" else 1
    step = piece // int(np.gcd(piece, inner))
    outer = [random.randint(1, 3) for _ in range(axes)]
    kernel, pad = step * random.randint(1, 3), step * random.randint(0, 1)
    width = kernel + step * random.randint(0, 6)
    return (
        (random.choice((1, 2)), channels, *(random.randint(4, 9) for _ in outer), width),
        (random.choice((1, 20, 70)), channels, *outer, kernel),
        {
            "strides": [*(random.randint(1, 3) for _ in outer), step * random.randint(1, 3)],
            "dilations": [*(random.randint(1, 2) for _ in outer), 1],
            "pads": [*(random.randint(0, 2) for _ in outer), pad, *(0 for _ in outer), random.choice((0, 1, step))],
        },
    )


def _values(shape: Ints, layout: str, dtype: Any, rng: Any, skipped: int, infinite: bool) -> Any:
    """Return small integers (with infinities and NaN if asked for) ``skipped`` elements after an aligned address."""
    count = int(np.prod(shape))
    flat = rng.integers(-3, 4, count + skipped).astype(dtype)[skipped:]
    if infinite:
        flat[rng.random(count) < 0.02] = np.asarray(rng.choice([np.inf, -np.inf, np.nan]), dtype)
    if layout == "NCHW":
        return flat.reshape(shape)
    return np.moveaxis(flat.reshape(shape[0], *shape[2:], shape[1]), -1, 1)


@pytest.mark.emulator
@pytest.mark.kernels("conv/gemm/conv.cu", "conv/gemm/split.cu")
@pytest.mark.parametrize(("dtype", "precision"), ARITHMETIC, ids=str)
@checked(0.25)
@given(random=st.randoms(use_true_random=False), seed=st.integers(0, 2**32 - 1))
def test_sums_over_runs_are_exact(dtype: Any, precision: str, random: Random, seed: int) -> None:
    layout, rng = random.choice(("NCHW", "NHWC")), np.random.default_rng(seed)
    piece = random.choice((16, 8) if dtype.itemsize == 2 else (16,)) // dtype.itemsize
    x_shape, w_shape, attributes = _patches(random, piece, layout)
    infinite = random.random() < 0.3
    x = _values(x_shape, layout, dtype, rng, random.choice((0, 0, 1, 2, 4)), infinite)
    w = _values(w_shape, random.choice(("NCHW", "NHWC")), dtype, rng, 0, infinite and random.random() < 0.5)

    def pick(candidates: Sequence[Candidate]) -> Candidate:
        found = in_pieces(candidates)
        return found[seed % len(found)]

    device = emulated_cuda(limits_of=architecture(dtype, 0), seed=seed, late_async=random.random() < 0.7)
    with offers.picking(pick), gpuconv.precision(precision), device:
        y = gpuconv.conv(x, w, **attributes)
    exact = oracle.conv(x, w, None, **attributes).value
    np.testing.assert_array_equal(y.astype(np.float64), exact.astype(dtype).astype(np.float64))


# ---------------------------------------------------------------- choices


def _plan(x: Ints, w: Ints, layout: str = "NCHW", dtype: str = "bfloat16", precision: str = "ieee", **more: Any) -> str:
    """Return the chosen kernel and the reasons, line by line."""
    plan = conv_families.plan(problem("conv", x, w, dtype, layout=layout, precision=precision, **more), HOPPER)
    return "\n".join([plan.kernel or "", *plan.reasons])


VIT: tuple[Ints, Ints] = (32, 3, 224, 224), (768, 3, 16, 16)
STEM: tuple[Ints, Ints] = (32, 3, 224, 224), (96, 3, 4, 4)


@pytest.mark.parametrize(
    ("layout", "run"), [("NCHW", "runs of 16 elements of x"), ("NHWC", "runs of 48 elements of x")]
)
@pytest.mark.parametrize(("dtype", "precision"), [("bfloat16", "ieee"), ("float32", "tf32"), ("float32", "3xtf32")])
def test_patch_embeddings_are_gathered_in_chunks(layout: str, run: str, dtype: str, precision: str) -> None:
    text = _plan(*VIT, layout, dtype, precision, strides=[16, 16])
    assert text.splitlines()[0].endswith("_chunks")
    assert f"a tap for every 16 bytes of K: {run}" in text


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_small_patches_are_gathered_in_halves(layout: str) -> None:
    text = _plan(*STEM, layout, strides=[4, 4])
    assert text.splitlines()[0].endswith("_halves")
    assert "a tap for every 8 bytes of K" in text
    assert "_chunks: " not in text


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_products_of_ieee_arithmetic_have_no_pieces(layout: str) -> None:
    assert not any(form in _plan(*VIT, layout, "float32", strides=[16, 16]) for form in PIECES)


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 3, 64, 64), (8, 3, 8, 8), {"strides": [8, 6]}),  # the second column begins within a piece
        ((2, 3, 64, 64), (8, 3, 8, 7), {"strides": [8, 8]}),  # a run ends there
        ((2, 3, 64, 64), (8, 3, 8, 8), {"strides": [8, 8], "pads": [0, 1, 0, 7]}),  # x begins there
        ((2, 3, 64, 60), (8, 3, 8, 8), {"strides": [8, 8], "pads": [0, 0, 0, 4]}),  # x ends there, within a window
        ((2, 3, 64, 64), (8, 3, 8, 8), {"strides": [8, 8], "dilations": [1, 2]}),
        ((2, 6, 64, 64), (8, 3, 8, 8), {"strides": [8, 8], "group": 2}),
        ((2, 3, 64, 8, 64), (8, 3, 8, 1, 8), {"strides": [8, 1, 8]}),  # channels, D, H and W are four axes
        ((2, 3, 61, 63), (8, 3, 8, 8), {"strides": [8, 8]}),  # rows begin within a piece
    ],
)
def test_runs_that_are_no_whole_pieces_are_refused(x: Ints, w: Ints, attributes: dict[str, Any]) -> None:
    assert "_chunks: " not in _plan(x, w, **attributes)
    assert "_chunks: " in _plan((2, 3, 64, 64), (8, 3, 8, 8), strides=[8, 8])


def test_every_length_along_w_is_counted_in_pieces() -> None:
    """By hand: x (2, 3, 9, 40) in pieces of 4, whose W has 10; taps of 8, steps of 12 and a pad of 4 before."""
    one = problem("conv", (2, 3, 9, 40), (8, 3, 2, 8), strides=[1, 12], pads=[1, 4, 0, 0]).lifted
    found = runs.along_w(one, 4)
    assert found is not None
    gathered, packed = found.gathered, found.packed
    # Channels replace the depth axis, their taps those along depth.
    assert (gathered.channels, gathered.taps, gathered.pads) == (4, (3, 2, 2), (0, 1, 1))
    assert (gathered.x_shape, gathered.x_strides) == ((2, 4, 3, 9, 10), (1080, 1, 360, 40, 4))
    assert (gathered.column_strides, gathered.columns) == ((1, 1, 3), one.columns)
    assert (packed.channels, packed.taps) == (8, (1, 3, 2))
    assert packed.w_strides[1:] == (48, 1, 0, 16, 8)


def test_every_length_of_channels_last_is_of_whole_pixels() -> None:
    """By hand: x (2, 2, 5, 12) with channels last, in pieces of 8: two channels of four columns."""
    one = problem("conv", (2, 2, 5, 12), (8, 2, 2, 4), layout="NHWC", strides=[1, 4], pads=[0, 4, 0, 0]).lifted
    found = runs.along_w(one, 8)
    assert found is not None
    gathered = found.gathered
    assert (gathered.channels, gathered.taps, gathered.pads) == (8, (1, 2, 1), (0, 0, 1))
    assert (gathered.x_shape, gathered.x_strides) == ((2, 8, 1, 5, 3), (120, 1, 0, 24, 8))
    assert gathered.column_strides == (1, 1, 1)
    assert found.packed is one


@pytest.mark.emulator
@pytest.mark.kernels("conv/gemm/conv.cu")
def test_elements_after_the_last_whole_piece_are_left_alone() -> None:
    """Rows of a view whose last elements no window reads."""
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, (1, 3, 16, 24)).astype(np.float16)[..., :21]
    w = rng.integers(-3, 4, (20, 3, 8, 8)).astype(np.float16)
    with emulated_cuda() as emulated, preferred("_chunks"):
        y = gpuconv.conv(x, w, strides=[8, 8])
    assert emulated.launches[-1].variant.name.endswith("_chunks")
    assert np.array_equal(y, oracle.conv(x, w, strides=[8, 8]).value.astype(np.float16))


@pytest.mark.parametrize(
    ("width", "end", "accepted"),
    [
        (10, 0, True),  # two elements that no column needs, less than a piece
        (8, 0, True),
        (8, 4, True),
        (10, 3, False),  # the third column needs both
        (11, 5, False),
    ],
)
def test_runs_end_with_the_last_whole_piece(width: int, end: int, accepted: bool) -> None:
    one = problem("conv", (3, 1, 5, width), (7, 1, 2, 4), strides=[3, 4], pads=[1, 0, 0, end])
    found = runs.along_w(one, 4)
    assert (found is not None) is accepted
    if found is not None:
        assert found.gathered.x_shape == (3, 4, 5, width // 4)
        assert found.gathered.x_strides == (5 * width, 1, width, 4)
