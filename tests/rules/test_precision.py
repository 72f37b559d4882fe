"""`precision=` and `gpuconv.precision`: the setting that a call requests, from any thread or task, and its effect."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import numpy as np
import pytest

import gpuconv
from gpuconv.cuda.call import device
from gpuconv.cuda.conv import families as conv_families
from gpuconv.rules.precision import PRECISIONS
from tests.emulator import emulated_cuda
from tests.harness.idle_kernels import Sent
from tests.oracle import oracle
from tests.oracle.operands import values

operators = pytest.mark.parametrize("operator", ["conv", "conv_transpose"])


class Asked:
    """Calls on a device that computes nothing, and the precision of each one's problem."""

    def __init__(self, cupy: Any) -> None:
        self.cupy = cupy

    def __call__(self, operator: str = "conv", dtype: Any = np.float32, **keywords: Any) -> str:
        x, w = self.cupy.empty((1, 3, 6), dtype), self.cupy.empty((3, 3, 2), dtype)
        with (
            mock.patch.object(conv_families, "plan", wraps=conv_families.plan) as plan,
            mock.patch.dict(device.prepared),
        ):
            device.prepared.clear()
            getattr(gpuconv, operator)(x, w, **keywords)
        (problem, _), _ = plan.call_args
        return str(problem.precision)


@pytest.fixture
def asked(sent: Sent) -> Asked:
    return Asked(sent.cupy)


@operators
def test_a_call_says_its_own_precision_or_takes_that_of_its_context(asked: Asked, operator: str) -> None:
    assert asked(operator) == "ieee"
    for own in PRECISIONS:
        assert asked(operator, precision=own) == own
        with gpuconv.precision(own):
            assert asked(operator) == asked(operator, precision=None) == own
            assert asked(operator, precision="3xtf32") == "3xtf32"


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_dtypes_do_not_depend_on_it(asked: Asked, dtype: str) -> None:
    assert asked(dtype=dtype, precision="tf32") == "ieee"


def test_tasks_do_not_see_each_others(asked: Asked) -> None:
    async def task(own: str, inside: asyncio.Event, other: asyncio.Event) -> str:
        with gpuconv.precision(own):
            inside.set()
            await other.wait()
            return asked()

    async def both() -> list[str]:
        first, second = asyncio.Event(), asyncio.Event()
        found = await asyncio.gather(task("tf32", first, second), task("3xtf32", second, first))
        return [*found, asked()]

    assert asyncio.run(both()) == ["tf32", "3xtf32", "ieee"]


def test_precisions_are_prepared_apart(asked: Asked) -> None:
    x, w = asked.cupy.empty((1, 3, 6), np.float32), asked.cupy.empty((3, 3, 2), np.float32)
    for own in (*PRECISIONS, None, *PRECISIONS):
        gpuconv.conv(x, w, precision=own)
    with gpuconv.precision("tf32"):
        gpuconv.conv(x, w)
    assert len(device.prepared) == len(PRECISIONS)


# ---------------------------------------------------------------- what comes of it


@pytest.mark.parametrize("own", PRECISIONS)
@operators
def test_numpy_computes_with_whole_products(operator: str, own: str) -> None:
    x, w = np.full((1, 16, 5), 1 + 2.0**-12, np.float32), np.ones((16, 16, 1), np.float32)
    assert (getattr(gpuconv, operator)(x, w, precision=own) == 16 + 2.0**-8).all()


@pytest.mark.emulator
@pytest.mark.parametrize("own", PRECISIONS)
@operators
def test_kernels_stay_within_the_bound(operator: str, own: str) -> None:
    x, w, b = (values("normal", n, shape, np.float32) for n, shape in enumerate([(2, 24, 9, 8), (24, 24, 3, 2), (24,)]))
    with emulated_cuda(), gpuconv.precision(own):
        y = getattr(gpuconv, operator)(x, w, b, pads=[1, 1, 1, 1])
    oracle.assert_close(y, getattr(oracle, operator)(x, w, b, pads=[1, 1, 1, 1]), np.float32, own)


def test_explain_shows_what_is_not_ieee(capsys: pytest.CaptureFixture[str]) -> None:
    def first(dtype: str = "float32", **keywords: Any) -> str:
        gpuconv.explain("conv", (1, 3, 9), (4, 3, 3), dtype=dtype, **keywords)
        return capsys.readouterr().out.partition(" on ")[0]

    assert (first(), first(precision="tf32"), first("float64", precision="tf32")) == (
        "conv float32",
        "conv float32 tf32",
        "conv float64",
    )
    with gpuconv.precision("3xtf32"):
        assert (first(), first(precision="ieee")) == ("conv float32 3xtf32", "conv float32")
    with pytest.raises(gpuconv.ArgumentError, match=r"^conv: precision must be one of ieee, tf32, 3xtf32, not 'fp32'$"):
        first(precision="fp32")
