"""Every form of the direct kernel in the emulator: random problems, values of every kind, views, strided results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.cuda.conv.direct.rows import RowForm
from tests.emulator import emulated_cuda
from tests.harness import direct_forms
from tests.harness.direct_forms import FORMS
from tests.harness.emulated import architecture, preferred
from tests.oracle import oracle
from tests.oracle.finish import accumulator, finished
from tests.oracle.operands import CONV_DTYPES, LAYOUTS, values
from tests.oracle.oracle import assert_close, assert_same
from tests.oracle.strategies import Problem

pytestmark = [pytest.mark.emulator, pytest.mark.kernels("conv/direct/rows.cu")]


over_dtypes = pytest.mark.parametrize("dtype", CONV_DTYPES, ids=str)
Ints = tuple[int, ...]


def computed(problem: Problem, arrays: list[Any], kernel: str, seed: int, **more: Any) -> Any:
    """Compute the problem with this kernel only."""
    with preferred(kernel), emulated_cuda(limits_of=architecture(arrays[0].dtype, 3), seed=seed) as emulated:
        y = getattr(gpuconv, problem.operator)(*arrays, **problem.attributes, **more)
    assert [launch.variant.name for launch in emulated.launches] == [kernel]
    return y


@pytest.mark.sampled(2)
@over_dtypes
@pytest.mark.parametrize("dilations", [(1, 1), (2, 3)])
@pytest.mark.parametrize("form", [form for form in FORMS if form.stride == 1], ids=direct_forms.title)
def test_conv_transpose_of_stride_1(form: RowForm, dilations: tuple[int, int], dtype: Any) -> None:
    x_shape, w_shape, attributes = direct_forms.usual(form, width=21, height=9)
    group = attributes["group"]  # 3 of one channel, or 2 of four; two images of 9 x 21, or lines of 336
    w_shape = (x_shape[1], w_shape[0] // group, *w_shape[2:])
    plane = len(w_shape) - 2
    changes = {"pads": [1, 0, 2, 3] if plane == 2 else [1, 2], "dilations": list(dilations[-plane:])}
    problem = Problem("conv_transpose", x_shape, w_shape, None, {"group": group, **changes})
    arrays = [values("integers", seed, shape, dtype) for seed, shape in enumerate((x_shape, w_shape))]
    expected = oracle.conv_transpose(*arrays, **problem.attributes)
    assert_close(computed(problem, arrays, direct_forms.name(form, dtype), 0), expected, dtype)


@pytest.mark.sampled(2)
@over_dtypes
@pytest.mark.parametrize(
    ("strides", "dilations", "pads"),
    [
        ((1, 1), (2, 2), (2, 2, 2, 2)),
        ((1, 1), (3, 4), (7, 0, 2, 11)),  # more padding than taps reach, before the rows and after the columns
        ((1, 1), (4, 1), (0, 1, 1, 0)),
        ((1, 1), (1, 6), (3, 5, 0, 4)),
        ((1, 1), (40, 3), (40, 3, 41, 2)),  # every row is a phase
        ((2, 3), (4, 3), (4, 2, 3, 5)),
        ((2, 2), (6, 6), (5, 7, 6, 0)),
    ],
)
@pytest.mark.parametrize("form", [form for form in FORMS if form.stride == 1 and not form.line], ids=direct_forms.title)
def test_dilations(form: RowForm, strides: Ints, dilations: Ints, pads: Ints, dtype: Any) -> None:
    """Two filters per group, or more than a thread computes; with bias, residual and activation."""
    _, w_shape, attributes = direct_forms.usual(form)
    group, (_, channels, *kernel) = attributes["group"], w_shape
    reach = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
    extents = [max(least, r) - a - b + r for least, r, a, b in zip((23, 45), reach, pads, pads[2:], strict=False)]
    x_shape, w_shape = (2, group * channels, *extents), (group * (6 if channels > 1 else 2), channels, *kernel)
    more = {"strides": list(strides), "dilations": list(dilations), "pads": list(pads)}
    problem = Problem("conv", x_shape, w_shape, w_shape[:1], {"group": group, **more})
    x, w, b = (values("integers", seed, shape, dtype) for seed, shape in enumerate((x_shape, w_shape, w_shape[:1])))
    sums = oracle.conv(x, w, b, **problem.attributes).value
    residual = values("integers", 3, sums.shape, dtype)
    y = computed(problem, [x, w, b], direct_forms.name(form, dtype), 0, residual=residual, activation="relu")
    kind = accumulator(dtype)
    assert_same(y, finished(sums.astype(kind), residual, "relu").astype(dtype))


@pytest.mark.parametrize("layout", ["strided", "channels last"])
def test_rows_whose_elements_lie_apart_go_to_other_kernels(layout: str) -> None:
    x, w = values("integers", 0, (1, 4, 9, 8), "float32"), values("integers", 1, (4, 1, 3, 3), "float32")
    with preferred("depthwise"), emulated_cuda() as emulated:
        y = gpuconv.conv(LAYOUTS[layout](x), w, group=4)
    assert emulated.launches[-1].variant.name.startswith("conv_")
    assert_close(y, oracle.conv(x, w, group=4), "float32")


def test_more_channels_than_there_is_room_for_are_taken_step_by_step() -> None:
    x, w = values("integers", 0, (1, 64, 40, 41), "float32"), values("integers", 1, (8, 32, 3, 3), "float32")
    with preferred("grouped_float32_3d_3x3s1"), emulated_cuda() as emulated:
        y = gpuconv.conv(x, w, group=2, pads=[1, 1, 1, 1])
    launch = emulated.launches[-1]
    assert np.frombuffer(launch.parameters, launch.variant.layout)["step"] < 32
    assert_close(y, oracle.conv(x, w, group=2, pads=[1, 1, 1, 1]), "float32")
