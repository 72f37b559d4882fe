"""`layout="NHWC"`: channels last at every rank, on the CPU and through the CUDA kernels in the emulator."""

from __future__ import annotations

from contextlib import nullcontext
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuconv
from gpuconv.cuda.plan import offers
from gpuconv.rules import cases
from gpuconv.rules import layout as layouts
from gpuconv.rules.cases import Case
from tests.emulator import emulated_cuda
from tests.harness.emulated import architecture, some_candidate, varied_cuda
from tests.oracle.case_rows import one_dtype_a_case
from tests.oracle.operands import CONV_DTYPES, LAYOUTS, POOL_DTYPES, operands, pool_kinds, values
from tests.oracle.oracle import assert_same
from tests.oracle.strategies import GENERATORS, checked, problems

every_case = one_dtype_a_case()
operators = pytest.mark.parametrize("operator", GENERATORS)


def last(array: Any) -> Any:
    """Return an array with its channels last, C-contiguous."""
    return np.ascontiguousarray(np.moveaxis(array, 1, -1))


def compare(case: Case, dtype: str) -> None:
    """Compare a case with channels last, and its Indices, with its expected values with channels second."""
    arrays = cases.inputs(case, dtype)
    arrays["x"] = last(arrays["x"])
    more = {"return_indices": True} if case.op == "max_pool" else {}
    found = getattr(gpuconv, case.op)(**arrays, **case.attributes, **more, layout="NHWC")
    results, expected = found if more else (found,), cases.expected(case, dtype)
    for result, wanted in zip(results, expected, strict=True):
        assert result.flags.c_contiguous
        assert_same(result, last(wanted), bits=case.op == "max_pool")
    if more:
        alone = gpuconv.max_pool(**arrays, **case.attributes, layout="NHWC")
        assert_same(alone, last(expected[0]), bits=False)


@every_case
def test_a_case_gives_the_same_with_channels_last(case: Case, dtype: str) -> None:
    compare(case, dtype)


@pytest.mark.emulator
@every_case
def test_kernels_give_the_same_with_channels_last(case: Case, dtype: str) -> None:
    for turn in offers.every_candidate() if case.op == "max_pool" else (nullcontext(),):
        with turn, emulated_cuda(limits_of=architecture(dtype, len(case.x_shape) - 2)):
            compare(case, dtype)


# ---------------------------------------------------------------- any strides, any out


def check_any_strides(operator: str, problem: Any, dtype: Any, seed: int, memory: str, out: str) -> None:
    """Compare the two layouts of one problem of small integers, for arrays with arbitrary strides."""
    kinds = pool_kinds(dtype)[-1:] if operator == "max_pool" else ("integers",) * 3
    x, *others = operands(problem, kinds, seed, dtype)
    function, more = getattr(gpuconv, operator), {}
    if operator == "max_pool":
        more["return_indices"] = True
    expected = function(x, *others, **problem.attributes, **more)
    expected = expected if more else (expected,)
    outs = tuple(LAYOUTS[out](np.full_like(last(array), 99)) for array in expected)
    x = LAYOUTS[memory](last(x))
    found = function(x, *others, **problem.attributes, **more, layout="NHWC", out=outs if more else outs[0])
    for result, wanted, given_out in zip(found if more else (found,), expected, outs, strict=True):
        assert result is given_out
        assert_same(result, last(wanted), bits=False)


memories = st.sampled_from(sorted(set(LAYOUTS) - {"unaligned", "broadcast"}))
rooms = st.sampled_from(("contiguous", "fortran", "strided", "reversed", "channels last"))


@operators
@checked(2.0)
@given(data=st.data(), seed=st.integers(0, 2**16), memory=memories, out=rooms)
def test_arrays_of_any_strides_on_the_cpu(operator: str, data: Any, seed: int, memory: str, out: str) -> None:
    dtype = data.draw(st.sampled_from(POOL_DTYPES if operator == "max_pool" else CONV_DTYPES))
    check_any_strides(operator, data.draw(problems(operator)), dtype, seed, memory, out)


@pytest.mark.emulator
@operators
@pytest.mark.parametrize("seed", range(8))
def test_arrays_of_any_strides_through_the_kernels(operator: str, seed: int) -> None:
    random = Random(f"{operator} {seed}")
    dtypes = POOL_DTYPES if operator == "max_pool" else CONV_DTYPES
    problem, dtype = GENERATORS[operator](random), dtypes[seed % len(dtypes)]
    memory, out = random.choice(("fortran", "strided", "reversed")), random.choice(("fortran", "strided", "reversed"))
    with varied_cuda(dtype, problem.rank, seed):
        check_any_strides(operator, problem, dtype, seed, memory, out)


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 96, 24, 25), (40, 96, 1, 1), {}),  # BLAS reads and writes channels last
        ((2, 24, 24, 25), (24, 1, 1, 1), {"group": 24}),  # but not for one channel
        ((3, 24, 40, 41), (48, 12, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
        ((1, 33, 60, 61), (4, 33, 3, 3), {"pads": [1, 1, 1, 1]}),  # few outputs are added up
        ((2, 5, 3000), (7, 5, 9), {"strides": [2], "dilations": [3]}),
    ],
)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_larger_problems_on_the_cpu(x: Any, w: Any, attributes: dict[str, Any], dtype: str) -> None:
    arrays = values("integers", 1, x, dtype), values("integers", 2, w, dtype), values("integers", 3, w[:1], dtype)
    expected = gpuconv.conv(*arrays, **attributes)
    assert_same(gpuconv.conv(last(arrays[0]), *arrays[1:], **attributes, layout="NHWC"), last(expected))


@pytest.mark.parametrize("kernel", [[2, 2], [9, 9]])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
def test_larger_pools_on_the_cpu(dtype: str, kernel: list[int]) -> None:
    x = values("ties", 4, (3, 40, 61, 60), np.float32).astype(dtype)
    attributes = {"kernel_shape": kernel, "pads": [1, 0, 0, 1], "strides": [2, 1], "return_indices": True}
    for found, wanted in zip(
        gpuconv.max_pool(last(x), **attributes, layout="NHWC"), gpuconv.max_pool(x, **attributes), strict=True
    ):
        assert_same(found, last(wanted))


# ---------------------------------------------------------------- what is said about it


def test_the_two_layouts_are_what_they_are_called() -> None:
    x = np.zeros((1, 2, 3, 4, 5))
    assert layouts.view("NCHW", x) is x
    assert layouts.view("NHWC", x).shape == layouts.channels_second("NHWC", x.shape) == (1, 5, 2, 3, 4)
    assert layouts.as_given("NHWC", (1, 5, 2, 3, 4)) == x.shape


@pytest.mark.emulator
@operators
def test_layouts_have_plans_of_their_own(operator: str) -> None:
    x, w = np.ones((3, 3, 3, 3), np.float32), np.ones((3, 3, 2, 2), np.float32)
    arguments = {"kernel_shape": [2, 2]} if "pool" in operator else {"w": w}
    with emulated_cuda() as emulated:
        for layout in ("NCHW", "NHWC", "NCHW"):
            getattr(gpuconv, operator)(x, **arguments, layout=layout)
    assert len(emulated.prepared) == 2


def test_explain_takes_shapes_as_they_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    gpuconv.explain("conv", (8, 56, 58, 64), (256, 64, 3, 3), pads=[1, 1, 1, 1], layout="NHWC")
    printed = capsys.readouterr().out
    assert printed.startswith("conv float32 NHWC on sm_90a: ")
    assert "  x (8, 56, 58, 64), w (256, 64, 3, 3) -> y (8, 56, 58, 256)\n" in printed
    gpuconv.explain("max_pool", (8, 56, 3), kernel_shape=[2], dtype="int8", layout="NHWC")
    assert "  x (8, 56, 3) -> y (8, 55, 3)\n" in capsys.readouterr().out


@pytest.mark.emulator
@pytest.mark.parametrize("operator", ["conv", "conv_transpose", "max_pool"])
def test_the_plan_explained_is_the_plan_of_the_call(operator: str) -> None:
    x, w = np.zeros((2, 6, 7, 16), np.float32), np.zeros((16, 16, 3, 2), np.float32)
    keywords = {"kernel_shape": [3, 2]} if operator == "max_pool" else {}
    with emulated_cuda() as emulated, some_candidate(0):
        getattr(gpuconv, operator)(*((x,) if keywords else (x, w)), layout="NHWC", **keywords)
    with some_candidate(0):
        shapes = (x.shape,) if keywords else (x.shape, w.shape)
        explained = gpuconv.explain(operator, *shapes, layout="NHWC", **keywords)
    (prepared,) = emulated.prepared.values()
    assert prepared.plan == explained
