"""ConvTranspose of stride 1 by kernels of Conv whose taps run backwards: the same outputs, from more kernels."""

from __future__ import annotations

from math import prod
from random import Random
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.cuda.conv import problem as correlation
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.rules import dtypes
from tests.emulator import emulated_cuda
from tests.harness.emulated import every_candidate
from tests.harness.plans import plan, problem
from tests.harness.sources_of_kernels import CONV, CONV_TRANSPOSE
from tests.oracle import oracle
from tests.oracle.operands import LAYOUTS, values


def test_the_first_tap_meets_the_last_input_of_a_window() -> None:
    # y[q] = sum over t of w[t] x[q + 2 - 3 t] along the last axis, and x[q + 1 - t] along the first
    given = problem("conv_transpose", (2, 8, 7, 9), (8, 5, 2, 4), "float32", dilations=[1, 3], pads=[1, 2, 0, 1])
    conv = correlation.backwards(given)
    assert conv is not None
    assert (conv.operator, conv.pads, conv.phases, conv.strides) == ("conv", (0, 3 * 3 - 2), (), ())
    taps = gemm_base.taps(conv, gemm_base.PackedWeights(0, conv.rows, conv.channels))
    assert (taps["start"], taps["advance"], taps["count"]) == ([1, 2], [-1, -3], (2, 4))


def test_strides_and_more_padding_than_taps_reach_are_left_to_kernels_of_conv_transpose() -> None:
    shapes: Any = ((2, 8, 7, 9), (8, 5, 2, 4))
    assert correlation.backwards(problem("conv_transpose", *shapes, strides=[1, 2])) is None
    assert correlation.backwards(problem("conv_transpose", *shapes, pads=[2, 0, 0, 0])) is None
    assert correlation.backwards(problem("conv", (2, 8, 7, 9), (8, 8, 2, 4))) is None


def test_few_channels_of_many_filters_get_their_gradient_from_it() -> None:
    made = plan("conv_transpose", (2, 96, 92420), (96, 1, 31), dilations=[2])
    assert (made.operator, made.launches[-1].variant.name) == (
        "conv_transpose",
        "conv_tap_rows_float32_3d_128x128x16_uniform",
    )


def _shapes(random: Random) -> tuple[Any, Any, dict[str, Any]]:
    rank, group = random.choice((1, 2, 2, 3)), random.choice((1, 1, 3))
    taps = [random.choice((1, 2, 3, 5)) for _ in range(rank)]
    dilations = [random.choice((1, 1, 2)) for _ in range(rank)]
    pads = [random.randint(0, min((k - 1) * d, 3)) for k, d in zip(taps, dilations, strict=True)]
    extents = [random.randint(6, {1: 30, 2: 12, 3: 7}[rank]) for _ in range(rank)]
    channels, filters = random.choice((1, 5, 16, 40)), random.choice((1, 3, 8, 20))
    x_shape, w_shape = (random.randint(1, 3), channels * group, *extents), (channels * group, filters, *taps)
    return x_shape, w_shape, {"group": group, "dilations": dilations, "pads": [*pads, *(pad % 2 for pad in pads)]}


def _arrays(random: Random, dtype: str) -> tuple[Any, Any, Any, dict[str, Any]]:
    few = 300_000  # multiplications, computed by some 20 kernels
    drawn = iter(lambda: _shapes(random), None)
    x_shape, w_shape, attributes = next(one for one in drawn if prod(one[0]) * prod(one[1][1:]) <= few)
    filters = w_shape[1] * attributes["group"]
    x, w, b = (values("integers", at, shape, dtype) for at, shape in enumerate((x_shape, w_shape, (filters,))))
    x.reshape(-1)[random.randrange(x.size)] = w.reshape(-1)[random.randrange(w.size)] = np.inf
    return x, w, b, attributes


@pytest.mark.emulator
@pytest.mark.kernels(*CONV, *CONV_TRANSPOSE, "conv/gemm/grouped.cu", "conv/direct/few.cu")
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 2, 3))])
@pytest.mark.parametrize("dtype", [*dtypes.CONV_DTYPES, "tf32", "3xtf32"])
def test_every_kernel_makes_the_same_outputs(dtype: Any, seed: int) -> None:
    """Normal runs check every third of about 60 candidates of the first seed; thorough tests check all."""
    random, precision = Random(f"{dtype} {seed}"), dtype if "tf32" in dtype else "ieee"
    dtype = "float32" if precision != "ieee" else dtype
    x, w, b, attributes = _arrays(random, dtype)
    exact, names = oracle.conv_transpose(x, w, b, **attributes), list[str]()
    x, w = (LAYOUTS[random.choice(("contiguous", "channels last", "reversed"))](array) for array in (x, w))
    bound = "tensor cores" if dtype in ("float16", "bfloat16") else precision
    for number, turn in enumerate(every_candidate(names)):
        if seed == 0 and number % 3:
            continue
        out = LAYOUTS[random.choice(("contiguous", "reversed", "channels last"))](np.zeros(exact.value.shape, dtype))
        with turn, emulated_cuda(seed=seed):
            y = gpuconv.conv_transpose(x, w, b, **attributes, out=out, precision=precision)
        oracle.assert_close(y, exact, dtype, bound)
    assert sum(name.startswith("conv_transpose_") for name in names) < len(names)
