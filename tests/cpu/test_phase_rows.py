"""ConvTranspose by phases as rows on the CPU: axes by hand, values by the definition, and which problems use it.

Small integers are exact in every order and dtype, so all comparisons are for equality.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from math import prod
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import pytest

import gpuconv
from gpuconv.cpu import _phase_rows
from gpuconv.cpu._phase_rows import Axis, axis_of
from tests.cpu.transposed import DTYPES, NAMES, Ints, drawn, integers, transposed, wide

pytestmark = pytest.mark.slow

cpu_conv = import_module("gpuconv.cpu.conv")


@contextmanager
def taken(pays: bool = True) -> Iterator[list[bool]]:
    """Use phases as rows wherever possible, or never; and record for every call whether they were used."""
    found, run = [], _phase_rows.run

    def noted(*arguments: Any) -> bool:
        found.append(run(*arguments))
        return found[-1]

    with mock.patch.object(_phase_rows, "_pays", return_value=pays), mock.patch.object(_phase_rows, "run", noted):
        yield found


@pytest.mark.parametrize(
    ("offsets", "stride", "expected"),
    [
        (range(4), 1, Axis(0, 1, 4, 1, -3, 0)),  # a Conv with the taps in reverse
        (range(-2, 5, 2), 1, Axis(0, 1, 4, 2, -4, 0)),  # dilated: every other input, from 4 before to 2 after
        (range(3), 3, Axis(0, 3, 1, 1, 0, 0)),  # one tap for each phase
        (range(-1, 1), 5, Axis(0, 5, 2, 1, 0, 4)),  # phase 4 of stride -1, and phase 0 of the next
        (range(1, 3), 5, Axis(1, 2, 1, 1, 0, 0)),  # phases 1 and 2 of 5
        (range(-1, 3), 2, Axis(0, 2, 3, 1, -1, 1)),  # outputs 0 and 1 of the strides -1, 0 and 1
        (range(0, 9, 3), 3, Axis(0, 1, 3, 1, -2, 0)),  # only phase 0 is reached
        (range(-4, 8, 6), 3, Axis(2, 1, 2, 2, 0, 0)),  # offsets -4 and 2: phase 2 of the strides -2 and 0
        (range(7, 10, 3), 2, Axis(1, 1, 1, 1, -3, 0)),  # one tap, with any dilation
        (range(0, 6, 2), 3, None),  # a phase's taps are not adjacent
    ],
)
def test_axes_by_hand(offsets: range, stride: int, expected: Axis | None) -> None:
    assert axis_of(offsets, stride) == expected


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("workspace", ["30000", "200000", ""])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_in_any_workspace(dtype: Any, workspace: str, threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_WORKSPACE_BYTES", workspace)
    monkeypatch.setenv("GPUCONV_NUM_THREADS", threads)
    random, way = Random(f"rows {dtype} {workspace} {threads}"), []
    for _ in range(8):
        x, w, b, attributes = drawn(random, dtype)
        expected = transposed(x, w, b, *(attributes[name] for name in NAMES)).astype(dtype)
        with taken() as found:
            y = gpuconv.conv_transpose(x, w, b, **attributes, invariant=random.choice((None, "batch")))
        way += found
        assert np.array_equal(wide(y), wide(expected))
        if np.dtype(dtype).kind != "c":
            residual = integers(random, expected.shape, dtype)
            with taken():
                y = gpuconv.conv_transpose(x, w, b, **attributes, residual=residual, activation="relu")
            expected = np.maximum(wide(expected) + wide(residual), 0).astype(dtype)
            assert np.array_equal(wide(y), wide(expected))
    assert any(way) or workspace  # a small workspace is often too small


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_values_of_any_layout(layout: str) -> None:
    random = Random(layout)
    x, w = integers(random, (3, 4, 9, 7), np.float32), integers(random, (4, 5, 5, 3), np.float32)
    expected = transposed(x, w, None, 1, (2, 3), (1, 1), (1, 0, 2, 1), (0, 0))
    last = layout == "NHWC"
    with taken() as found:
        y = gpuconv.conv_transpose(
            np.moveaxis(x, 1, -1) if last else x, w, strides=[2, 3], pads=[1, 0, 2, 1], layout=layout
        )
    assert found == [True]
    assert np.array_equal(np.moveaxis(y, -1, 1) if last else y, expected)


def test_what_is_not_finite_meets_no_padding_and_no_missing_tap() -> None:
    """With a kernel of three and a stride of two, one phase has a single tap; outputs at the edge see padding."""
    x, w = np.ones((2, 1, 5), np.float32), np.ones((1, 2, 3), np.float32)
    x[1, 0, 2] = np.inf
    with taken() as found:
        y = gpuconv.conv_transpose(x, w, strides=[2])
        assert np.isfinite(y[0]).all()
        assert [at for at in range(11) if y[1, 0, at] == np.inf] == [4, 5, 6]
        assert not np.isnan(y).any()
        w[0, 1, 0] = np.nan
        y = gpuconv.conv_transpose(x[:1], w, strides=[2])
    assert found == [False, False]
    assert np.isfinite(y[0, 0]).all()
    assert [at for at in range(11) if np.isnan(y[0, 1, at])] == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("tap", [0, 2])
@pytest.mark.parametrize("pads", [(2, 0), (0, 2), (2, 2)])
def test_padding_at_one_end_meets_no_weight_that_is_not_finite(pads: Ints, tap: int) -> None:
    """Five inputs contribute to seven outputs, each tap to five of them; three outputs use all taps."""
    x, w = np.ones((1, 2, 5), np.float32), np.ones((2, 2, 3), np.float32)
    w[0, 0, tap] = np.nan
    with taken() as found:
        y = gpuconv.conv_transpose(x, w, pads=list(pads))
    expected = [at - pads[0] for at in range(pads[0], 7 - pads[1]) if tap <= at < tap + 5]
    assert np.flatnonzero(np.isnan(y[0, 0])).tolist() == expected
    assert found == [pads == (2, 2)]


@pytest.mark.parametrize("invariant", [None, "batch"])
def test_buffers_have_no_more_elements_than_are_planned(invariant: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_NUM_THREADS", "2")
    random, count = Random(f"{invariant}"), 0
    take, _elements = _phase_rows.SCRATCH.take, _phase_rows._elements
    for workspace in ("200000", "2000000", "") * 10:
        monkeypatch.setenv("GPUCONV_WORKSPACE_BYTES", workspace)
        x, w, b, attributes = drawn(random, np.float16)
        sizes: dict[str, int] = {}

        def noted(name: str, shape: Ints, dtype: Any, sizes: dict[str, int] = sizes) -> Any:
            sizes[name] = max(sizes.get(name, 0), prod(shape))
            return take(name, shape, dtype)

        planned: list[int] = []

        def elements(*arguments: Any, planned: list[int] = planned) -> int:
            planned.append(_elements(*arguments))
            return planned[-1]

        with (
            taken() as found,
            mock.patch.object(_phase_rows, "SCRATCH", mock.Mock(take=noted)),
            mock.patch.object(_phase_rows, "plan", _phase_rows.plan.__wrapped__),
            mock.patch.object(_phase_rows, "_elements", elements),
        ):
            gpuconv.conv_transpose(x, w, b, **attributes, invariant=invariant)
        if found == [True]:
            count += 1
            share = int(workspace or 2**28) // 16  # elements of float32 for each thread
            assert planned[-1] <= share
            assert sum(sizes.values()) <= max(planned[-1], min(_phase_rows._TILE_BYTES // 4, share))
    assert count > 2


def test_an_image_that_is_not_finite_changes_no_bits_of_others() -> None:
    generator = np.random.default_rng(3)
    x, w = generator.standard_normal((3, 7, 40), np.float32), generator.standard_normal((7, 9, 5), np.float32)
    with taken() as found:
        alone = [gpuconv.conv_transpose(image[None], w, strides=[2], invariant="batch") for image in x]
        assert found == [True] * 3
        x[1, 2, 3] = np.inf
        y = gpuconv.conv_transpose(x, w, strides=[2], invariant="batch")
    assert found[3:] == [True, False, True]
    assert y[0].tobytes() == alone[0].tobytes()
    assert y[2].tobytes() == alone[2].tobytes()


@pytest.mark.parametrize(
    ("x", "w", "strides", "dilations", "pads", "expected"),
    [
        ((3, 4, 19291), (4, 10, 79), (19,), (1,), (0, 0), True),  # 79 products to add for each of 10 * 19 outputs
        ((2, 22, 11, 11), (22, 1, 12, 12), (2, 1), (1, 1), (0,) * 4, False),  # one group
        ((1, 1, 11, 11), (1, 8, 12, 12), (2, 1), (1, 1), (0,) * 4, True),
        ((11, 1, 14), (1, 645, 38), (9,), (1,), (0, 0), True),
        ((2, 64, 56, 56), (64, 64, 3, 3), (2, 2), (1, 1), (1,) * 4, False),  # of 16 taps 7 would be zeros
        ((4, 85, 5562), (85, 1, 521), (521,), (1,), (0, 0), False),  # no additions
        ((61, 505, 17), (505, 2, 497), (1,), (1,), (0, 0), False),  # far more outputs than inputs, all of 505 channels
    ],
)
def test_where_phases_as_rows_pay(x: Ints, w: Ints, strides: Ints, dilations: Ints, pads: Ints, expected: bool) -> None:
    found: list[bool] = []
    pays = _phase_rows._pays

    def noted(*arguments: Any) -> bool:
        found.append(pays(*arguments))
        return found[-1]

    arrays = (np.lib.stride_tricks.as_strided(np.ones(1, np.float32), shape, (0,) * len(shape)) for shape in (x, w))
    others = mock.patch.multiple(cpu_conv._overlap_add, run=lambda *_: True)
    with (
        mock.patch.object(_phase_rows, "_pays", noted),
        mock.patch.object(_phase_rows, "plan", return_value=None),
        others,
    ):
        gpuconv.conv_transpose(*arrays, strides=strides, dilations=dilations, pads=pads)
    assert found == [expected]
