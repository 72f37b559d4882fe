"""Properties of all kernel families, in the emulator: any addresses, padding, any order of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.conv.direct import channels, rows, transpose
from tests.emulator import emulated_cuda
from tests.harness import direct_forms
from tests.harness.direct_forms import ROWWISE
from tests.harness.emulated import architecture, preferred
from tests.harness.plans import fields
from tests.oracle import oracle
from tests.oracle.operands import CONV_DTYPES, CONV_KINDS, LAYOUTS, operands, values, with_channels_last

pytestmark = pytest.mark.emulator

Ints = tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """A call of one operator, by a kernel with this part of its name; channels of x and y are second or last."""

    kernel: str
    source: str
    x: Ints
    w: Ints
    dtype: str = "float32"
    attributes: dict[str, Any] = field(default_factory=dict)
    operator: str = "conv"
    precision: str = "ieee"
    last: bool = False

    def param(self, *more: Any) -> Any:
        label = "-".join(map(str, (self.kernel, self.dtype, self.x, "last" if self.last else "second", *more)))
        return pytest.param(self, *more, id=label, marks=pytest.mark.kernels(self.source))

    def arrays(self, kind: str = "integers") -> list[Any]:
        return [values(kind, seed, shape, self.dtype) for seed, shape in enumerate((self.x, self.w))]

    def exact(self, *arrays: Any) -> oracle.Exact:
        found: oracle.Exact = getattr(oracle, self.operator)(*arrays, **self.attributes)
        return found

    @contextmanager
    def emulated(self, **options: Any) -> Iterator[Any]:
        with preferred(self.kernel), gpuconv.precision(self.precision), emulated_cuda(**options) as emulated:
            yield emulated
        last = emulated.launches[-1].variant
        assert self.kernel.removesuffix("_split").removesuffix("_direct") in last.name
        assert last.source == self.source

    def __call__(self, x: Any, w: Any, packed: bool = False, out: Any = None) -> Any:
        w = gpuconv.pack(w, self.operator) if packed else w
        return getattr(gpuconv, self.operator)(x, w, **self.attributes, out=out)


TF32: dict[str, Any] = {"dtype": "float32", "precision": "tf32"}
SAME: dict[str, Any] = {"pads": [1, 1, 1, 1]}
TWICE: dict[str, Any] = {"operator": "conv_transpose", "attributes": {"strides": [2, 2]}}

# ---------------------------------------------------------------- addresses

BANDS = ("conv_bands", "conv/direct/bands.cu", (2, 16, 12, 16), (3, 16, 3, 3))
GROUPED = ("conv_grouped", "conv/gemm/grouped.cu", (2, 32, 9, 8), (32, 8, 3, 3))
MATRIX = ("conv_matrix", "conv/gemm/matrix.cu", (2, 40, 6, 8), (70, 40, 1, 1))
SCATTERED = ("conv_transpose_matrix", "conv/gemm/depth_to_space_matrix.cu", (2, 40, 6, 8), (40, 9, 2, 2))
POINTWISE = ("conv_pointwise", "conv/gemm/pointwise.cu")
STEM = ((2, 3, 21, 40), (40, 3, 5, 7))
STEM_STEPS = {"strides": [2, 2], "pads": [3, 2, 1, 3]}
MMA = ("_vector", "conv/gemm/conv.cu", (2, 40, 7, 9), (20, 40, 3, 2))
FEW_ROWS = {"pads": [1, 0, 1, 1]}

ANYWHERE = [
    *(Call(*BANDS, dtype, last=last) for dtype in ("bfloat16", "float32", "float64") for last in (False, True)),
    *(Call(*GROUPED, "float16", {**SAME, "group": 4}, last=last) for last in (False, True)),
    *(Call(*GROUPED, attributes={**SAME, "group": 4}, last=last, **TF32) for last in (False, True)),
    *(Call(*MATRIX, "float16"), Call(*MATRIX, **TF32), Call(*MATRIX, "bfloat16", last=True)),
    *(Call(*SCATTERED, "float16", **TWICE), Call(*SCATTERED, **TF32, **TWICE)),
    *(Call(*POINTWISE, x, (70, x[1], *[1] * len(x[2:]))) for x in ((2, 20, 6, 8), (2, 20, 5, 7), (1, 33, 40))),
    Call("depth_to_space", "conv/gemm/depth_to_space.cu", (2, 8, 3, 5), (8, 10, 2, 2), **TWICE),
    *(Call("conv_stem", "conv/gemm/stem.cu", *STEM, "float16", STEM_STEPS, last=last) for last in (False, True)),
    *(Call("conv_stem", "conv/gemm/stem.cu", *STEM, "float32", STEM_STEPS, last=last) for last in (False, True)),
    *(Call(*MMA, "float16", FEW_ROWS, last=True), Call(*MMA, attributes=FEW_ROWS, last=True, **TF32)),
]


@pytest.mark.parametrize("call", [one.param() for one in ANYWHERE])
def test_arrays_may_begin_anywhere(call: Call) -> None:
    """One of x, w and y begins an element after a multiple of 16 bytes, so its vectors are not aligned."""
    x, w = call.arrays()
    x.flat[3] = w.flat[0] = np.inf
    y = call.exact(x, w).value.astype(call.dtype)
    names = ("channels last", "pixels off the vectors") if call.last else ("contiguous", "off the vectors")
    for moved in ("x", "w", "y", "nothing"):
        out = LAYOUTS[names[moved == "y"]](np.zeros_like(y))
        given = LAYOUTS[names[moved == "x"]](x), LAYOUTS["off the vectors" if moved == "w" else "contiguous"](w)
        with call.emulated(seed=1):
            call(*given, out=out)
        np.testing.assert_array_equal(out.astype(np.float64), y.astype(np.float64), err_msg=moved)


# ---------------------------------------------------------------- padding


def depthwise() -> Iterator[Call]:
    """Yield every form of direct sums of rows, with adjacent and dilated taps."""
    for form in direct_forms.FORMS:
        for dilation in (1, 2) if form.stride == 1 else (1,):
            x, w, attributes = direct_forms.usual(form, 10 * dilation, 8 * dilation, dilation)
            yield Call(direct_forms.name(form, "float32"), "conv/direct/rows.cu", x, w, "float32", attributes)


CHANNELS = "conv/direct/channels.cu"
UNIFORM = ("conv/gemm/split.cu", (2, 64, 7, 9), (70, 64, 3, 3))
TAP_ROWS = ("conv_tap_rows", "conv/gemm/tap_rows.cu", (1, 16, 4, 30), (3, 16, 2, 5), "bfloat16")
BESIDE = {"pads": [1, 2, 0, 2]}
PADDED = [
    *depthwise(),
    *(
        Call("channels_7s1", CHANNELS, (1, n, 6, 11), (n, 1, 3, 3), attributes={**SAME, "group": n}, last=True)
        for n in (8, 6)
    ),
    Call(
        "conv_transpose_depthwise", "conv/direct/transpose.cu", (1, 3, 5, 7), (3, 1, 4, 4), "float32",
        {"group": 3, "strides": [2, 2]}, "conv_transpose", last=True,
    ),
    Call("conv_float32_3d_64x64x16_uniform_split", *UNIFORM, "float32", SAME),
    *(Call("conv_stem", "conv/gemm/stem.cu", *STEM, "float16", STEM_STEPS, last=last) for last in (False, True)),
    *(Call("conv_stem", "conv/gemm/stem.cu", *STEM, "float32", STEM_STEPS, last=last) for last in (False, True)),
    *(Call(*BANDS, "float32", SAME, last=last) for last in (False, True)),
    Call(*TAP_ROWS, BESIDE),
    Call(*TAP_ROWS, {**BESIDE, "strides": [2, 3]}),
    Call("conv_tap_rows", TAP_ROWS[1], (1, 16, 4, 30), (16, 3, 2, 5), "bfloat16", BESIDE, "conv_transpose"),
    # Strides of two and three taps: the second phase has one tap and a zero.
    Call(
        "phase_rows", "conv/gemm/phase_rows.cu", (1, 16, 5, 40), (16, 3, 1, 3), "bfloat16",
        {"strides": [1, 2], "pads": [0, 1, 0, 1]}, "conv_transpose",
    ),
]  # fmt: skip


@pytest.mark.parametrize("spoilt", ["x", "w"])
@pytest.mark.parametrize("call", [one.param() for one in PADDED])
def test_padding_takes_no_part(call: Call, spoilt: str) -> None:
    """In the padding, an infinite or NaN weight has no effect; on a valid input, IEEE arithmetic applies.

    An infinite input does not affect outputs whose windows do not contain it.
    """
    x, w = call.arrays()
    if spoilt == "w":
        w.reshape(len(w), -1)[::2, 0], w.reshape(len(w), -1)[1, 0] = np.inf, np.nan
    else:
        x.flat[1] = np.inf
    exact = call.exact(x, w)
    layout = LAYOUTS["channels last" if call.last else "contiguous"]
    for packed in (False, True) if "split" in call.kernel else (False,):
        out = layout(np.zeros(exact.value.shape, call.dtype))
        with call.emulated(seed=1, multiprocessors=3 if "split" in call.kernel else None):
            y = call(layout(x), w, packed, out)
        oracle.assert_close(y, exact, call.dtype)
    assert np.isfinite(exact.value).any()
    assert not np.isfinite(exact.value).all()


# ---------------------------------------------------------------- the order of blocks

SPLIT = "float32_3d_64x64x16_uniform_split"
_ARRAYS = UNIFORM[1:]
_TRANSPOSED: Any = ((2, 64, 7, 9), (64, 70, 3, 3), "float32", {"strides": [2, 3]}, "conv_transpose")
_UNEQUAL = {"strides": [2, 3], "dilations": [1, 2], "pads": [1, 0, 2, 1]}


def wgmma(form: str, x: Ints, w: Ints, attributes: Any = None, *, dtype: str = "float16", **more: Any) -> Call:
    operator, folder = more.get("operator", "conv"), "conv/wgmma"
    source = "pixels" if "pixel" in form else "strips" if "rows" in form or "patches" in form else "slices"
    arithmetic = "tf32_wgmma" if dtype == "float32" else "wgmma"
    name = f"{operator}_{dtype}_3d_{arithmetic}_{form}_split"
    return Call(name, f"{folder}/{source}.cu", x, w, dtype, attributes or {}, **more)


DIVIDED = [
    (Call(f"conv_{SPLIT}", *UNIFORM, "float32", SAME), None),
    (Call(f"conv_{SPLIT}", *UNIFORM, "float32", SAME), 3),
    (Call(f"conv_tap_rows_{SPLIT}", "conv/gemm/tap_rows.cu", *_ARRAYS, "float32", SAME), None),
    (Call(f"conv_transpose_{SPLIT}", "conv/gemm/split_transpose.cu", *_TRANSPOSED), None),
    (
        Call("conv_transpose_phase_rows_float32_3d_128x128x16_uniform_split", "conv/gemm/phase_rows.cu", *_TRANSPOSED),
        None,
    ),
    *((wgmma("64x256", (2, 192, 9, 8), (70, 192, taps, taps)), 5) for taps in (1, 3)),
    *((wgmma("64x256_direct", (2, 192, 9, 8), (70, 192, taps, taps), last=True), 5) for taps in (1, 3)),
    *((wgmma(form, (3, 72, 5, 7), (150, 72, 3, 3), SAME), 5) for form in ("128x256", "64x256")),
    *(
        (wgmma(form, (2, 72, 3, 5), (72, 80, 3, 4), _UNEQUAL, operator="conv_transpose"), 5)
        for form in ("128x256", "64x256")
    ),
    *((wgmma(form, (1, 72, 4, 72), (72, 72, 3, 3), SAME), 7) for form in ("128x256_rows", "64x256_patches")),
    *(
        (wgmma(form, (1, 72, 6, 40), (66, 72, 2, 2), dtype="float32", precision="3xtf32", last="patches" in form), 5)
        for form in ("128x128_pixel_rows", "64x256_pixel_patches_direct")
    ),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("call", "multiprocessors"), [one.param(count) for one, count in DIVIDED])
def test_results_do_not_depend_on_the_order_of_blocks(call: Call, multiprocessors: int | None) -> None:
    """Tiles that several blocks sum, in one launch with tickets, or in two launches if weights are packed."""
    x, w = call.arrays("normal")
    found = set()
    for seed, (order, packed) in enumerate(product(("late", "random"), (False, True))):
        options = {"seed": seed, "threads": 1 + seed // 2, "async_order": order}
        with call.emulated(multiprocessors=multiprocessors, **options) as emulated:
            y = call(LAYOUTS["channels last" if call.last else "contiguous"](x), w, packed)
        made = [launch for launch in emulated.launches if "splits" in launch.variant.layout.names]
        assert all(fields(launch)["splits"]["count"] > 1 for launch in made)
        assert len(made) == 2 if packed and "wgmma" not in call.kernel else made
        found.add(y.tobytes())
    assert len(found) == 1
    arithmetic = "tensor cores" if call.dtype == "float16" else call.precision
    oracle.assert_close(y, call.exact(x, w), call.dtype, arithmetic)


# ---------------------------------------------------------------- random problems


def every_form() -> Iterator[Any]:
    """Yield direct kernels, a generator of problems for each, possible layouts of x and y, and a number of problems."""
    pixelwise = [partial(with_channels_last, shift=shift, more=more) for shift in (0, 0, 1) for more in (0, 0, 4, 3)]
    anyhow = [LAYOUTS[name] for name in ("contiguous", "channels last", "reversed", "strided")]
    for dtype in CONV_DTYPES:
        for form in direct_forms.FORMS:
            yield dtype, rows.variant(str(dtype), form), partial(direct_forms.some, form), [*ROWWISE.values()], 4
        for channel_form in channels.FORMS:
            some = partial(direct_forms.some_channels, channel_form)
            yield dtype, channels.variant(str(dtype), channel_form), some, pixelwise, 3
        yield dtype, transpose.variant(str(dtype)), direct_forms.some_transposed, anyhow, len(CONV_KINDS)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("dtype", "variant", "some", "layouts", "rounds"),
    [pytest.param(*one, id=one[1].name, marks=pytest.mark.kernels(one[1].source)) for one in every_form()],
)
def test_random_problems_of_every_form(
    dtype: Any, variant: Variant, some: Any, layouts: list[Any], rounds: int
) -> None:
    random = Random(variant.name)
    for number in range(rounds):
        problem, kinds = some(random), CONV_KINDS[(number + random.randrange(2) * 6) % len(CONV_KINDS)]
        x, *others = operands(problem, kinds, number, dtype)
        exact = getattr(oracle, problem.operator)(x, *others, **problem.attributes)
        out = random.choice(layouts)(np.zeros(exact.value.shape, dtype))
        limits_of = architecture(dtype, problem.rank)
        with preferred(variant.name), emulated_cuda(limits_of=limits_of, seed=number) as emulated:
            y = getattr(gpuconv, problem.operator)(random.choice(layouts)(x), *others, **problem.attributes, out=out)
        assert [launch.variant.name for launch in emulated.launches] == [variant.name] * (y.size > 0)
        oracle.assert_close(y, exact, dtype)
