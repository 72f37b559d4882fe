"""Convolutions on the CPU whose products BLAS adds to existing values, and those that are summed by rows of taps."""

from __future__ import annotations

from itertools import product
from math import prod
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import onnx
import pytest

import gpuconv
from gpuconv import cpu
from gpuconv.cpu import _gather, _product, _scatter
from gpuconv.cpu._finish import Finish
from gpuconv.cpu._workspace import BlockSize, Partition, blocks
from gpuconv.cpu.conv import _adds_fewer, _adds_less_than_it_gathers
from gpuconv.onnx import backend
from gpuconv.rules import activation
from gpuconv.rules import geometry as geometries
from tests.oracle import oracle
from tests.oracle.every_row import every_row
from tests.oracle.operands import LAYOUTS

pytestmark = pytest.mark.slow

available = pytest.mark.skipif(not _product.available("float32"), reason="this NumPy's BLAS cannot be called")
PADS = {"pads": [1, 1, 1, 1]}


def _integers(seed: int, *shapes: tuple[int, ...], dtype: Any = np.float32) -> list[Any]:
    draw = np.random.default_rng(seed)
    return [draw.integers(-3, 4, shape).astype(dtype) for shape in shapes]


# ---------------------------------------------------------------- one product


def _transposed(matrices: Any) -> Any:
    return np.ascontiguousarray(matrices.swapaxes(1, 2)).swapaxes(1, 2)


def _apart(matrices: Any) -> Any:
    wide = np.full((*matrices.shape[:2], matrices.shape[2] + 3), np.nan, matrices.dtype)
    wide[..., 1:-2] = matrices
    return wide[..., 1:-2]


@available
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "sizes", [(1, 5, 7, 9), (3, 1, 4, 8), (2, 6, 1, 5), (1, 4, 3, 1), (1, 1, 1, 1), (8, 70, 65, 130)]
)
def test_products_are_added_or_overwrite(sizes: tuple[int, ...], dtype: Any) -> None:
    count, rows, depth, columns = sizes
    arrays = _integers(rows, (count, rows, depth), (count, depth, columns), (count, rows, columns), dtype=dtype)
    c = arrays[2]
    with every_row() as row:
        for orders in product((np.array, _transposed, _apart), (np.array, _transposed, _apart), (np.array, _apart)):
            with row([order.__name__ for order in orders]):
                a, b, result = (order(array) for order, array in zip(orders, arrays, strict=True))
                assert _product.adds(a, b, result)
                _product.add(a, b, result)
                assert np.array_equal(result, c + a @ b)
                result.fill(np.nan)
                _product.add(a, b, result, onto=False)
                assert np.array_equal(result, a @ b)


def test_what_blas_cannot_take_is_refused() -> None:
    a, b, c = (np.zeros((2, 6, 6), np.float32) for _ in range(3))
    assert not _product.adds(a[:, ::2, ::2], b[:, :3], c[:, :3])
    assert not _product.adds(a, b, c.swapaxes(1, 2))
    assert not _product.adds(a, b[..., ::-1], c)
    assert not _product.adds(a, np.broadcast_to(b[:, :1], b.shape), c)
    assert not _product.adds(a, b, c.astype(np.float64))
    assert not _product.adds(*(matrices.astype(">f4") for matrices in (a, b, c)))
    assert not _product.adds(a, np.zeros(289, np.uint8)[1:].view(np.float32).reshape(2, 6, 6), c)
    assert not _product.adds(*(matrices.astype(np.complex64) for matrices in (a, b, c)))
    assert not _product.adds(*(np.zeros((_product.MOST + 1, 2, 2), np.float32) for _ in range(3)))


def test_the_order_of_a_matrix_and_the_step_between_its_rows() -> None:
    """In elements of 4 bytes; CBLAS uses 111 for a matrix, 112 for a transposed one."""
    for shape, strides, expected in [
        ((3, 5), (20, 4), (111, 5)),
        ((3, 5), (28, 4), (111, 7)),
        ((3, 5), (4, 12), (112, 3)),
        ((3, 5), (4, 16), (112, 4)),
        ((3, 1), (28, 4000), (111, 7)),
        ((3, 1), (4, 4000), (111, 1)),
        ((1, 5), (4000, 4), (111, 5)),
        ((1, 5), (4000, 28), (112, 7)),
        ((1, 1), (4000, 8000), (111, 1)),
        ((3, 5), (16, 4), None),
        ((3, 5), (22, 4), None),
        ((3, 5), (4, 8), None),
        ((3, 5), (4, 14), None),
        ((3, 5), (40, 8), None),
        ((3, 5), (-20, 4), None),
    ]:
        assert _product._order(shape, strides, 4) == expected, (shape, strides)


# ---------------------------------------------------------------- convolutions

CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 16, 20, 22), (8, 16, 3, 3), PADS),
    ((1, 17, 20, 22), (8, 17, 3, 3), {"pads": [2, 0, 1, 3]}),
    ((1, 16, 20, 22), (8, 16, 3, 3), {"pads": [2, 4, 2, 4], "dilations": [2, 4]}),
    ((1, 16, 20, 23), (8, 16, 3, 3), {"pads": [1, 1, 1, 1], "strides": [1, 2]}),
    ((1, 16, 30, 9), (6, 16, 5, 4), {"pads": [6, 5, 7, 5]}),  # windows entirely in the padding
    ((1, 10, 20, 22), (8, 10, 2, 5), {"auto_pad": "SAME_LOWER"}),
    ((1, 48, 25, 21), (8, 48, 3, 1), {}),
    ((3, 16, 30, 31), (4, 16, 3, 3), PADS),  # several images
    ((2, 64, 25, 26), (16, 16, 3, 3), {"group": 4, **PADS}),
]


def _assert_rows(x: Any, w: Any, attributes: dict[str, Any]) -> None:
    geometry = geometries.conv(x.shape, w.shape, None, **attributes)
    if _product.available("float32"):
        assert _gather.goes_by_rows(geometry, "float32", False, Partition(geometry.x_shape[0], 2)), (
            "not what this test is about"
        )


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), CASES)
def test_rows_of_taps_are_added_up(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], attributes: dict[str, Any], dtype: Any
) -> None:
    x, w, b = _integers(1, x_shape, w_shape, w_shape[:1], dtype=dtype)
    _assert_rows(x, w, attributes)
    sums = oracle.conv(x, w, None, **attributes).value
    for bias, expected in ((None, sums), (b, sums + b.reshape(-1, 1, 1))):
        assert np.array_equal(gpuconv.conv(x, w, bias, **attributes), expected)
        residual = _integers(2, expected.shape, dtype=dtype)[0]
        y = gpuconv.conv(x, w, bias, **attributes, residual=residual, activation="relu")
        assert np.array_equal(y, np.maximum(expected + residual, 0))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), [*CASES, ((1, 9, 64, 64), (32, 9, 1, 1), {})])
def test_a_residual_is_added_to_the_bits_of_the_plain_sums(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], attributes: dict[str, Any], dtype: Any
) -> None:
    draw = np.random.default_rng(8)
    x, w, b = (draw.standard_normal(shape).astype(dtype) for shape in (x_shape, w_shape, w_shape[:1]))
    for bias in (None, b):
        plain = gpuconv.conv(x, w, bias, **attributes)
        oracle.assert_close(plain, oracle.conv(x, w, bias, **attributes), dtype)
        residual = draw.standard_normal(plain.shape).astype(dtype)
        y = gpuconv.conv(x, w, bias, **attributes, residual=residual, activation="relu")
        assert np.array_equal(y, np.maximum(plain + residual, 0))


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_arrays_may_lie_in_memory_as_they_like(layout: str) -> None:
    shapes = (2, 16, 24, 25), (8, 16, 3, 3), (8,), (2, 8, 24, 25)
    x, w, b, residual = (LAYOUTS[layout](array) for array in _integers(3, *shapes))
    _assert_rows(x, w, PADS)
    expected = oracle.conv(x, w, b, **PADS).value
    assert np.array_equal(gpuconv.conv(x, w, b, **PADS), expected)
    assert np.array_equal(gpuconv.conv(x, w, b, **PADS, residual=residual), expected + residual)
    out = LAYOUTS[layout](np.zeros(shapes[3], np.float32))
    if out.flags.writeable:
        gpuconv.conv(x, w, b, **PADS, out=out)
        assert np.array_equal(out, expected)


@pytest.mark.parametrize("threads", ["1", "2", "5"])
@pytest.mark.parametrize("workspace", ["16384", "200000", "1000000", ""])
def test_any_workspace_and_any_number_of_threads(workspace: str, threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, b = _integers(4, (2, 24, 24, 25), (20, 24, 3, 3), (20,))  # 1,036,800 bytes of taps
    expected = oracle.conv(x, w, b, **PADS).value
    monkeypatch.setenv("GPUCONV_WORKSPACE_BYTES", workspace)
    monkeypatch.setenv("GPUCONV_NUM_THREADS", threads)
    assert np.array_equal(gpuconv.conv(x, w, b, **PADS), expected)
    facts = cpu.known_weights(w)
    y = np.full_like(expected, np.nan, dtype=np.float32)
    cpu.conv(x, w, b, y, geometries.conv(x.shape, w.shape, b.shape, **PADS), facts=facts)
    assert np.array_equal(y, expected)


@pytest.mark.parametrize("workspace", ["16384", ""])
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "attributes"),
    [
        ((1, 3, 3, 5), (2, 3, 4, 3), {"dilations": [3, 3], "pads": [5, 11, 10, 5]}),
        ((1, 3, 1, 3), (2, 3, 4, 4), {"dilations": [2, 3], "pads": [5, 12, 11, 3]}),
        ((2, 3, 2, 3, 3), (4, 3, 3, 3, 2), {"dilations": [2, 1, 2], "pads": [2, 1, 5, 5, 3, 1]}),
        ((1, 64, 4, 64), (8, 64, 3, 3), {"pads": [1, 40, 1, 40]}),
    ],
)
def test_blocks_as_wide_as_the_input_that_begin_elsewhere(
    x_shape: Any, w_shape: Any, attributes: dict[str, Any], workspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = _integers(7, x_shape, w_shape)
    monkeypatch.setenv("GPUCONV_WORKSPACE_BYTES", workspace)
    for kind in (np.float32, np.float64):
        given = x.astype(kind), w.astype(kind)
        assert np.array_equal(gpuconv.conv(*given, **attributes), oracle.conv(*given, **attributes).value)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    ("shape", "kernel", "attributes", "adds"),
    [
        ((48, 50), (3, 3), PADS, True),
        ((48, 50), (3, 3), {**PADS, "group": 2}, True),
        ((48, 50), (3, 2), {"dilations": [1, 2], "pads": [0, 1, 2, 0]}, True),
        ((48, 50), (3, 3), {**PADS, "strides": [2, 1]}, False),
        ((48, 50), (3, 3), {**PADS, "strides": [1, 2]}, False),
        ((48, 50), (1, 1), {}, False),
        ((400,), (5,), {"pads": [2, 2]}, True),
        ((40,), (9,), {"pads": [4, 4], "dilations": [3]}, False),  # additions take longer to start than copies
        ((2000,), (9,), {"pads": [1200, 1200], "dilations": [300]}, True),
        ((20000,), (9,), {"pads": [12000] * 2, "dilations": [3000]}, False),  # blocks would read inputs several times
    ],
)
def test_few_output_channels_are_added_up(
    shape: tuple[int, ...], kernel: tuple[int, ...], attributes: dict[str, Any], adds: bool, dtype: Any
) -> None:
    group = attributes.get("group", 1)
    x, w, b = _integers(9, (2, 48 * group, *shape), (group, 48, *kernel), (group,), dtype=dtype)
    assert _adds_less_than_it_gathers(geometries.conv(x.shape, w.shape, None, **attributes), False) == adds
    expected = oracle.conv(x, w, b, **attributes).value.astype(dtype)
    assert np.array_equal(gpuconv.conv(x, w, b, **attributes), expected)


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize(
    ("x", "w", "attributes", "adds"),
    [
        ((9, 400, 900), (2, 400, 65), {"strides": [23], "pads": [32, 32]}, True),  # 2 filters to add for 40 channels
        ((300, 8, 6), (32, 8, 300), {"strides": [57], "pads": [299, 299]}, True),  # most windows are padding
        ((4, 64, 20, 90), (1, 64, 3, 20), {"strides": [1, 7], "pads": [1, 0, 1, 0]}, True),
        ((1, 3, 64, 64), (16, 3, 7, 7), {"strides": [2, 2], "pads": [3] * 4}, False),
        ((1, 40, 20), (40, 40, 3), {"strides": [2]}, False),
        ((5, 40, 90), (2, 40, 65), {"pads": [32, 32]}, False),
    ],
)
def test_few_products_of_a_strided_convolution_are_added_up(
    x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any], adds: bool, group: int
) -> None:
    images, channels, *extents = x
    given = _integers(10, (images, channels * group, *extents), (w[0] * group, *w[1:]), (w[0] * group,))
    attributes = {**attributes, "group": group}
    geometry = geometries.conv(given[0].shape, given[1].shape, None, **attributes)
    assert _adds_fewer(geometry, images) == adds
    expected = oracle.conv(*given, **attributes).value.astype(np.float32)
    assert np.array_equal(gpuconv.conv(*given, **attributes), expected)


def test_images_of_groups_are_multiplied_in_one_call() -> None:
    x, w = _integers(11, (30, 18, 40), (9, 2, 21))
    attributes = {"group": 9, "dilations": [1], "strides": [9], "pads": [20, 20]}
    with mock.patch.object(np, "matmul", wraps=np.matmul) as matmul:
        y = gpuconv.conv(x, w, **attributes)
    assert matmul.call_count <= 2
    assert np.array_equal(y, oracle.conv(x, w, **attributes).value)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize(("pads", "tap", "row"), [([1, 1, 1, 1], 0, 0), ([1, 0, 0, 0], 0, 0), ([0, 0, 1, 0], 2, -1)])
def test_a_weight_that_is_not_finite_meets_no_padding(
    pads: list[int], tap: int, row: int, is_known: bool, value: float
) -> None:
    x, w = _integers(5, (1, 16, 20, 20), (8, 16, 3, 3))
    w[3, 5, tap, 1] = value
    geometry = geometries.conv(x.shape, w.shape, None, pads=pads)
    y = np.empty(geometry.y_shape, np.float32)
    facts = cpu.known_weights(w) if is_known else None
    cpu.conv(x, w, None, y, geometry, facts=facts)
    oracle.assert_close(y, oracle.conv(x, w, pads=pads), np.float32)
    assert np.isfinite(y[:, 3, row]).all(), "this row of outputs meets no input through this tap"


def test_without_blas_results_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, b, residual = _integers(6, (1, 16, 64, 64), (32, 16, 3, 3), (32,), (1, 32, 64, 64))
    expected = gpuconv.conv(x, w, b, **PADS, residual=residual)
    monkeypatch.setattr(_product, "_functions", dict)
    assert np.array_equal(gpuconv.conv(x, w, b, **PADS, residual=residual), expected)
    assert np.array_equal(expected, oracle.conv(x, w, b, **PADS).value + residual)


def test_only_constants_are_looked_at_once() -> None:
    """Weights among the inputs may change from run to run, in the same array."""
    text = """<ir_version: 10, opset_import: ["" : 22]>
    net (float[1, 16, 9, 9] x, float[64, 16, 3, 3] w) => (float[1, 64, 9, 9] y)
    { y = Conv <pads = [1, 1, 1, 1]> (x, w) }"""
    model = onnx.parser.parse_model(text)
    x, w = _integers(7, (1, 16, 9, 9), (64, 16, 3, 3))
    rep = backend.prepare(model)
    for _ in range(3):
        assert np.array_equal(rep.run([x, w])[0], oracle.conv(x, w, **PADS).value)
        w += 1
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    rep = backend.prepare(model)
    for weights in (w, w + 1, w):  # a given input replaces the constant
        for _ in range(2):
            assert np.array_equal(rep.run({"x": x})[0], oracle.conv(x, w, **PADS).value)
            assert np.array_equal(rep.run({"x": x, "w": weights})[0], oracle.conv(x, weights, **PADS).value)


# ---------------------------------------------------------------- blocks by definition


class _Dirty:
    """Memory that holds NaN until it is written."""

    def take(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        return np.full(shape, np.nan, dtype)


def _any_conv(random: Random) -> Any:
    rank, group = random.randint(1, 3), random.choice((1, 1, 2))
    kernel = [random.choice((1, 2, 3, 6)) for _ in range(rank)]
    dilations = [random.randint(1, 2) for _ in range(rank)]
    pads = [random.randint(0, (k - 1) * d) for k, d in zip(kernel * 2, dilations * 2, strict=True)]
    extents = [random.randint(1, 7) for _ in range(rank)]
    for axis in range(rank):  # so that there is an output
        missing = (kernel[axis] - 1) * dilations[axis] + 1 - extents[axis] - pads[axis] - pads[rank + axis]
        extents[axis] += max(0, missing)
    strides = [random.choice((1, 1, 2, 3)) for _ in range(rank)]
    channels = random.randint(1, 2)
    x, w = (random.randint(1, 3), group * channels, *extents), (group * 2, channels, *kernel)
    return geometries.conv(x, w, None, dilations=dilations, group=group, pads=pads, strides=strides)


def _windows(x: Any, g: Any, images: range, positions: list[tuple[int, ...]], groups: range) -> Any:
    """Return each tap's inputs by definition: (groups, channels * taps, images * positions)."""
    channels, taps = g.w_shape[1], list(np.ndindex(*g.kernel_shape))
    found = np.zeros((len(groups), channels, len(taps), len(images), len(positions)), x.dtype)
    for t, tap in enumerate(taps):
        for p, position in enumerate(positions):
            axes = zip(position, g.strides, tap, g.dilations, g.pads_begin, strict=True)
            place = tuple(q * s + k * d - before for q, s, k, d, before in axes)
            if all(0 <= at < n for at, n in zip(place, x.shape[2:], strict=True)):
                met = x[(slice(images.start, images.stop), slice(None), *place)]
                met = met.reshape(len(images), g.group, channels)[:, groups.start : groups.stop]
                found[:, :, t, :, p] = np.moveaxis(met, 0, 2)
    return found.reshape(len(groups), channels * len(taps), len(images) * len(positions))


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_a_block_gathers_what_its_taps_meet_and_zeros(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gather, "SCRATCH", _Dirty())
    random, draw = Random(13), np.random.default_rng(13)
    for _ in range(120):
        g = _any_conv(random)
        x = draw.integers(1, 99, g.x_shape).astype(kind)
        box = tuple(random.randint(1, n) for n in g.y_shape[2:])
        plan = BlockSize(random.randint(1, g.group), 2, random.randint(1, g.x_shape[0]), box)
        for block in blocks(g.x_shape[0], g.y_shape[2:], plan):
            groups = range(random.randint(0, g.group - plan.groups), g.group)[: plan.groups]
            weights = np.zeros((1, len(groups), 2, prod(g.w_shape[1:])), np.float32)
            place = slice(groups.start, groups.stop)
            flat = kind == np.float32 and _gather._pointwise(g)
            job = _gather._GatheredProduct(x, weights, None, x, Finish(), g, place, 0, flat, False, False, False)
            piece = _gather._piece(g, block)
            images = range(block.images.start, block.images.stop)
            (columns,) = job._columns(piece, len(images))
            positions = list(product(*(range(*span) for span in block.box)))
            assert np.array_equal(columns, _windows(x, g, images, positions, groups)), (g, block)
            assert piece.count == len(positions)
            assert piece.first == np.ravel_multi_index(positions[0], g.y_shape[2:])


@pytest.mark.parametrize("workspace", ["16384", ""])
def test_products_are_added_where_their_taps_reach(workspace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_WORKSPACE_BYTES", workspace)
    monkeypatch.setattr(_scatter, "SCRATCH", _Dirty())
    random, draw = Random(14), np.random.default_rng(14)
    ran = 0
    for number in range(150):
        rank, group = random.randint(1, 3), random.choice((1, 1, 3))
        strides = tuple(random.randint(1, 3) for _ in range(rank))
        firsts = [random.randint(-4, 4) for _ in range(rank)]
        steps = [random.choice((1, 2, -1)) for _ in range(rank)]
        kernel = [random.randint(1, 3) for _ in range(rank)]
        offsets = tuple(range(a, a + k * step, step) for a, k, step in zip(firsts, kernel, steps, strict=True))
        rows, channels, images = random.randint(1, 3), random.randint(1, 2), random.randint(1, 3)
        most = 40 if rank == 1 or number % 10 == 0 else 6
        x = draw.integers(-3, 4, (images, group * channels, *(random.randint(1, most) for _ in range(rank))))
        weights = draw.integers(-3, 4, (group, channels, rows, *kernel))
        b = draw.integers(-3, 4, group * rows) if random.random() < 0.5 else None
        y = np.full((images, group * rows, *(random.randint(1, most) for _ in range(rank))), np.nan, np.float32)
        expected = np.zeros(y.shape) if b is None else np.zeros(y.shape) + b.reshape(-1, *(1,) * rank)
        parts = np.einsum("gcm...,ngcp->ngm...p", weights, x.reshape(images, group, channels, -1))
        for tap in np.ndindex(*kernel):
            met = parts[(slice(None), slice(None), slice(None), *tap)].reshape(images, group * rows, -1)
            for p, place in enumerate(np.ndindex(*x.shape[2:])):
                axes = zip(place, strides, offsets, tap, strict=True)
                at = tuple(q * s + offset[t] for q, s, offset, t in axes)
                if all(0 <= q < n for q, n in zip(at, y.shape[2:], strict=True)):
                    expected[(slice(None), slice(None), *at)] += met[:, :, p]
        arrays = [None if a is None else a.astype(np.float32) for a in (x, weights, b)]
        finish = Finish(activation=activation.parse("activation", "relu")) if random.random() < 0.3 else Finish()
        problem = _scatter.ScatterProblem(*arrays, y, finish, strides, offsets, "float32")
        if _scatter.run(problem, Partition(problem.x.shape[0], 2)):
            ran += 1
            assert np.array_equal(y, np.maximum(expected, 0) if finish else expected), problem
    assert ran > 100
