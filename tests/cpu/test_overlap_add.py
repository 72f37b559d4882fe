"""ConvTranspose by overlap-add on the CPU: values compared with products in float64, pieces, and when it is used.

Small integers are exact in every order and dtype, so all comparisons are for equality.
"""

from __future__ import annotations

from itertools import product
from math import prod
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import pytest

import gpuconv
from gpuconv.cpu import _overlap_add, _scatter, _taps
from gpuconv.cpu._overlap_add import OverlapAdd, Piece, Sizes, Term
from gpuconv.cpu._workspace import INVARIANT, Partition, boxes
from gpuconv.rules import geometry as geometries
from tests.cpu.transposed import DTYPES, NAMES, Ints, drawn, integers, transposed, wide
from tests.oracle import oracle

pytestmark = pytest.mark.slow

# x, w and stride of inverse Fourier transforms of sound: one output channel, a long kernel.
LONG: list[tuple[Ints, Ints, int]] = [
    ((1, 2049, 340), (2049, 1, 4096), 1024),
    ((1, 2049, 340), (2049, 1, 2048), 1024),
    ((1, 2049, 340), (2049, 1, 2048), 512),
    ((1, 2049, 40), (2049, 1, 4096), 1024),
    ((1, 2049, 340), (2049, 1, 1024), 256),
    ((1, 1025, 340), (1025, 1, 2048), 512),
    ((1, 513, 340), (513, 1, 4096), 1024),
]


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("workspace", ["30000", "200000", ""])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_in_any_workspace(dtype: Any, workspace: str, threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_WORKSPACE_BYTES", workspace)
    monkeypatch.setenv("GPUCONV_NUM_THREADS", threads)
    random = Random(f"{dtype} {workspace}")
    for _ in range(4):
        x, w, b, attributes = drawn(random, dtype)
        expected = transposed(x, w, b, *(attributes[name] for name in NAMES))
        given = {"invariant": random.choice((None, "batch")), **attributes}
        assert np.array_equal(wide(gpuconv.conv_transpose(x, w, b, **given)), wide(expected.astype(dtype)))
        residual = integers(random, expected.shape, dtype)
        if np.dtype(dtype).kind != "c":
            y = gpuconv.conv_transpose(x, w, b, **given, residual=residual, activation="relu")
            assert np.array_equal(wide(y), wide(np.maximum(expected + wide(residual), 0).astype(dtype)))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_a_conv_that_needs_more_workspace_than_there_is(
    stride: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCONV_WORKSPACE_BYTES", "16384")
    random = Random(stride)
    x, w = integers(random, (2, 60, 90), dtype), integers(random, (5, 60, 50), dtype)
    expected = oracle.conv(x, w, strides=[stride], pads=[3, 8]).value
    with _none_by_taps():
        y = gpuconv.conv(x, w, strides=[stride], pads=[3, 8])
    assert np.array_equal(wide(y), wide(expected.astype(dtype)))


def test_only_inputs_that_exist_are_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    """An infinite weight at a tap of the edge affects one output; multiplied by a zero input, it gives NaN."""
    x, w = np.ones((1, 2, 3), np.float32), np.ones((2, 1, 40), np.float32)
    w[0, 0, 39] = np.inf
    x[0, 0, 1] = 0
    for workspace in ("16384", ""):
        monkeypatch.setenv("GPUCONV_WORKSPACE_BYTES", workspace)
        y = gpuconv.conv_transpose(x, w, strides=[20])[0, 0]
        assert [at for at in range(80) if not np.isfinite(y[at])] == [39, 59, 79]
        assert np.isnan(y[59])
        assert y[39] == y[79] == np.inf


# ---------------------------------------------------------------- which way


class _ByTaps(Exception):
    """Raised if a convolution is computed tap by tap."""


def _none_by_taps() -> Any:
    return mock.patch.multiple(
        _taps, conv=mock.Mock(side_effect=_ByTaps), conv_transpose=mock.Mock(side_effect=_ByTaps)
    )


def _problem(x: Ints, w: Ints, stride: int, group: int = 1, dtype: Any = np.float32) -> OverlapAdd:
    """Return a ConvTranspose of arrays whose elements all share one address."""
    g = geometries.conv_transpose(x, w, None, strides=[stride] * (len(x) - 2), group=group)
    values, y = (np.broadcast_to(np.zeros((), dtype), shape) for shape in (x, g.y_shape))
    weights = np.zeros((group, w[0] // group, *w[1:]), dtype)
    return OverlapAdd((Term(values, weights, g.offsets),), None, y, mock.Mock(), g.strides, "float32")


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("partition", [Partition(1, 1), Partition(1, 2), Partition(1, 16), INVARIANT])
@pytest.mark.parametrize(("x", "w", "stride"), LONG)
def test_long_kernels_are_a_few_large_products(x: Ints, w: Ints, stride: int, partition: Partition, dtype: Any) -> None:
    problem = _problem(x, w, stride, dtype=dtype)
    assert _overlap_add.pays(problem, partition)
    sizes = _overlap_add.sizes_of(problem)
    assert sizes.in_place is (dtype == np.float32)
    piece = _overlap_add.plan(sizes, 1, partition.threads, min(partition.share_of(2**28), 2**24) // 4)
    assert piece is not None
    products, multiplied = _work(sizes, piece)
    assert products <= (8 if dtype == np.float32 else 128) * partition.threads
    assert multiplied <= 1.5 * x[1] * x[2] * w[2]
    steps = products * (w[2] // stride + 1)
    assert steps * 10_000 <= multiplied, "starting steps takes longer than the products"


def _work(sizes: Sizes, piece: Piece) -> tuple[int, int]:
    """Return the number of products for one image and group, and their multiplications."""
    products = multiplied = 0
    for box, taps in product(boxes(sizes.outputs, piece.box), boxes(sizes.kernel, piece.taps)):
        positions = [
            min(n, b - (first * step) // s) - max(0, a - ((last - 1) * step) // s)
            for n, (a, b), (first, last), step, s in zip(
                sizes.inputs, box, taps, sizes.steps, sizes.strides, strict=True
            )
        ]
        if min(positions) > 0:
            products += -(-sizes.channels // piece.channels) * -(-sizes.rows // piece.rows)
            multiplied += prod(positions) * prod(b - a for a, b in taps) * sizes.channels * sizes.rows
    return products, multiplied


def _moderate(random: Random) -> tuple[Ints, Ints, int, int]:
    """Return x, w, stride and group of a random ConvTranspose with up to 2**31 multiplications."""
    while True:
        rank = random.choice((1, 2, 3))
        kernel, extents = (
            [round(most ** random.random()) for _ in range(rank)]
            for most in ({1: 8192, 2: 64, 3: 16}[rank], {1: 4096, 2: 64, 3: 16}[rank])
        )
        group, channels, rows = (round(most ** random.random()) for most in (64, 4096, 512))
        x, w = (1, group * channels, *extents), (group * channels, rows, *kernel)
        stride = random.choice((1, 2, max(1, min(kernel) // 4), 2 * max(kernel)))
        if prod(x) * prod(w[1:]) <= 2**31 and prod(w) <= 2**26 and prod(extents) * stride**rank * rows <= 2**24:
            return x, w, stride, group


def test_no_convolution_of_moderate_size_goes_by_taps_for_lack_of_workspace() -> None:
    random = Random(0)
    for _ in range(300):
        x, w, stride, group = _moderate(random)
        g = geometries.conv_transpose(x, w, None, strides=[stride] * (len(x) - 2), group=group)
        steps = tuple(abs(offsets.step) for offsets in g.offsets)
        outputs = tuple(-(-n // s) for n, s in zip(g.y_shape[2:], g.strides, strict=True))
        for partition, in_place in product((Partition(1, 2), Partition(1, 16), INVARIANT), (True, False)):
            sizes = Sizes(x[2:], w[2:], steps, outputs, g.strides, group, w[1], w[0] // group, in_place)
            most = min(partition.share_of(2**28), 2**24) // 4
            piece = _overlap_add.plan(sizes, 1, partition.threads, most)
            assert piece is not None, (x, w, stride, group)
            assert sum(piece.elements(sizes).values()) <= most
            assert piece.groups == 1 or piece.rows == w[1]


def test_the_buffers_of_a_block() -> None:
    """Counted by hand: 5 outputs per phase of stride 2 use 5 + ceil(3 / 2) inputs through 4 taps."""
    sizes = Sizes((50,), (4,), (1,), (52,), (2,), 1, 3, 6, False)
    assert Piece(1, 1, 3, 6, (4,), (5,)).elements(sizes) == {
        "total": 3 * 5 * 2, "columns": 7 * 6, "parts": 7 * 3 * 4, "weights": 3 * 4 * 6,
    }  # fmt: skip
    assert Piece(2, 1, 1, 2, (1,), (60,)).elements(sizes) == {
        "total": 2 * 60 * 2, "columns": 2 * 50 * 2, "parts": 2 * 50, "weights": 2,
    }  # fmt: skip
    in_place = sizes._replace(in_place=True)
    assert Piece(1, 1, 3, 6, (4,), (5,)).elements(in_place)["weights"] == 0
    assert Piece(1, 1, 1, 6, (2,), (5,)).elements(in_place)["weights"] == 0
    assert Piece(1, 1, 3, 6, (2,), (5,)).elements(in_place)["weights"] == 3 * 2 * 6


@pytest.mark.parametrize(
    ("offsets", "stride", "expected"),
    [
        (range(4), 2, [(0, slice(0, 2), slice(0, 2, 1)), (1, slice(2, 4), slice(0, 2, 1))]),
        (range(-1, 2), 2, [(-1, slice(0, 1), slice(1, 2, 1)), (0, slice(1, 3), slice(0, 2, 1))]),
        (range(0, 9, 3), 5, [(0, slice(0, 2), slice(0, 4, 3)), (1, slice(2, 3), slice(1, 2, 3))]),
        (range(0, -2, -1), 1, [(0, slice(0, 1), slice(0, 1, 1)), (-1, slice(1, 2), slice(0, 1, 1))]),
    ],
)
def test_taps_of_one_stride_are_added_in_one_step(offsets: range, stride: int, expected: Any) -> None:
    assert _overlap_add._runs(offsets, stride) == expected


@pytest.mark.parametrize(
    ("x", "w", "stride", "expected"),
    [
        ((1, 64, 4, 4), (64, 64, 4, 4), 2, True),  # few sums per phase
        ((1, 64, 32, 32), (64, 64, 4, 4), 2, False),
        ((1, 64, 4, 4), (64, 64, 4, 4), 1, False),  # no phases
        ((1, 64, 1000), (64, 64, 64), 32, True),  # long runs of taps
        ((1, 256, 40_000), (256, 1, 32), 16, False),  # but few products
    ],
)
def test_where_overlap_add_pays(x: Ints, w: Ints, stride: int, expected: bool) -> None:
    problem = _problem(x, w, stride)
    with mock.patch.object(_scatter, "run", return_value=True) as scatter:
        assert _overlap_add.pays(problem, Partition(x[0], 2)) is expected
        gpuconv.conv_transpose(np.zeros(x, np.float32), np.zeros(w, np.float32), strides=[stride] * (len(x) - 2))
    assert scatter.called is not expected


# ---------------------------------------------------------------- invariance


@pytest.fixture
def images() -> Any:
    return np.random.default_rng(3).standard_normal((16, 40, 5)).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.complex64])
@pytest.mark.parametrize("workspace", ["100000", ""])
@pytest.mark.parametrize(("rows", "taps", "stride"), [(1, 256, 64), (6, 40, 3), (3, 90, 1)])
def test_an_image_has_the_same_bits_in_any_batch(
    rows: int, taps: int, stride: int, workspace: str, dtype: Any, images: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCONV_WORKSPACE_BYTES", workspace)
    x = images.astype(dtype)
    w = np.random.default_rng(4).standard_normal((40, rows, taps)).astype(dtype)
    seen = set()
    for count, threads in product((1, 2, 5, 16), ("1", "2", "3")):
        monkeypatch.setenv("GPUCONV_NUM_THREADS", threads)
        y = gpuconv.conv_transpose(x[:count], w, strides=[stride], invariant="batch")
        seen.add(y[0].tobytes())
        lone = gpuconv.conv_transpose(x[count - 1 : count], w, strides=[stride], invariant="batch")
        assert lone[0].tobytes() == y[-1].tobytes()
    assert len(seen) == 1
