"""gpuconv.dask: the values of one call for any chunks; chunks of results, laziness, weights, names."""

from __future__ import annotations

import inspect
import pickle
import threading
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuconv
from gpuconv.cpu import _threads
from gpuconv.rules import cases, geometry
from gpuconv.rules.cases import Case
from tests.dask.in_chunks import chunks, da, dask, in_chunks, in_ones
from tests.emulator import emulated_cuda
from tests.harness.emulated import architecture
from tests.oracle import oracle
from tests.oracle.case_rows import one_dtype_a_case
from tests.oracle.operands import CONV_DTYPES, POOL_DTYPES, operands, pool_kinds, values
from tests.oracle.oracle import assert_close, assert_same
from tests.oracle.strategies import GENERATORS, Problem, checked, problems

pytestmark = pytest.mark.slow

dask_api = pytest.importorskip("gpuconv.dask")
_tasks = dask_api._tasks
_spans = dask_api._spans

operators = pytest.mark.parametrize("operator", GENERATORS)
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(autouse=True)
def synchronous() -> Iterator[None]:
    """Compute on the calling thread unless a test requests otherwise."""
    with dask.config.set(scheduler="synchronous"):
        yield


def listed(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


# ---------------------------------------------------------------- values


@one_dtype_a_case()
def test_a_case_gives_the_same_where_every_element_is_a_chunk(case: Case, dtype: str) -> None:
    arrays = cases.inputs(case, dtype)
    more = {"return_indices": True} if case.op == "max_pool" else {}
    found = getattr(dask_api, case.op)(in_ones(arrays.pop("x")), **arrays, **case.attributes, **more)
    for result, expected in zip(dask.compute(*listed(found)), cases.expected(case, dtype), strict=True):
        assert_same(result, expected, bits=case.op == "max_pool")


@operators
@checked(3)
@given(data=st.data(), seed=seeds, layout=st.sampled_from(("NCHW", "NHWC")))
def test_any_chunks_give_what_one_call_gives(operator: str, data: Any, seed: int, layout: str) -> None:
    problem = data.draw(problems(operator))
    pools = operator == "max_pool"
    dtype = data.draw(st.sampled_from(POOL_DTYPES if pools else CONV_DTYPES))
    kinds = [data.draw(st.sampled_from(pool_kinds(dtype)))] if pools else ["integers"] * 3
    x, *others = operands(problem, kinds, seed, dtype)
    x = x if layout == "NCHW" else np.moveaxis(x, 1, -1)
    more = {**problem.attributes, "layout": layout} | ({"return_indices": True} if pools else {})
    expected = listed(getattr(gpuconv, operator)(x, *others, **more))
    cut = in_chunks(x, chunks(Random(seed), x.shape))
    found = listed(getattr(dask_api, operator)(cut, *others, **more))
    assert [(array.shape, array.dtype) for array in found] == [(array.shape, array.dtype) for array in expected]
    for result, wanted in zip(dask.compute(*found), expected, strict=True):
        assert_same(result, wanted, bits=pools)


@pytest.mark.parametrize("operator", ["conv", "conv_transpose"])
@checked(1)
@given(data=st.data(), seed=seeds, dtype=st.sampled_from(CONV_DTYPES))
def test_sums_in_chunks_are_within_the_bound(operator: str, data: Any, seed: int, dtype: Any) -> None:
    problem = data.draw(problems(operator, 2))
    x, *others = operands(problem, ("normal",) * 3, seed, dtype)
    result = getattr(dask_api, operator)(in_chunks(x, chunks(Random(seed), x.shape)), *others, **problem.attributes)
    assert_close(result.compute(), getattr(oracle, operator)(x, *others, **problem.attributes), dtype)


@pytest.mark.parametrize("operator", ["conv", "conv_transpose"])
@checked(2)
@given(data=st.data(), seed=seeds, layout=st.sampled_from(("NCHW", "NHWC")))
def test_a_residual_in_any_other_chunks_and_an_activation(operator: str, data: Any, seed: int, layout: str) -> None:
    problem, random = data.draw(problems(operator)), Random(seed)
    dtype = data.draw(st.sampled_from(CONV_DTYPES))
    x, *others = operands(problem, ["integers"] * 3, seed, dtype)
    x = x if layout == "NCHW" else np.moveaxis(x, 1, -1)
    call = getattr(gpuconv, operator)
    residual = values("integers", seed, call(x, *others, **problem.attributes, layout=layout).shape, dtype)
    more = {**problem.attributes, "layout": layout, "activation": random.choice(("relu", ("leaky_relu", 0.25), None))}
    expected = call(x, *others, residual=residual, **more)
    there, beside = (in_chunks(array, chunks(random, array.shape)) for array in (x, residual))
    found = getattr(dask_api, operator)(there, *others, residual=beside, **more)
    assert_same(found.compute(), expected, bits=False)


_TWO_ROWS = np.array([[[[1, 2, 3], [4, 5, 6]]]], np.float64)


@pytest.mark.parametrize(
    ("x", "attributes", "expected"),
    [
        # Only row 0, since row 2 is beyond the pads; the last column of windows is in the pads.
        (
            _TWO_ROWS,
            {"kernel_shape": [2, 1], "strides": [2, 1], "dilations": [2, 1], "pads": [0, 0, 0, 2], "ceil_mode": 1},
            [[1, 2, 3, 0]],
        ),
        # The same with whole columns of pads in front.
        (
            _TWO_ROWS,
            {"kernel_shape": [2, 1], "strides": [2, 1], "dilations": [2, 1], "pads": [0, 2, 0, 2], "ceil_mode": 1},
            [[0, 0, 1, 2, 3, 0]],
        ),
        # Rows 0 and 1, then the end pad with a tap beyond it; columns 3 and 4 are pads.
        (
            _TWO_ROWS,
            {"kernel_shape": [2, 1], "strides": [2, 1], "pads": [1, 0, 0, 2], "ceil_mode": 1},
            [[0.5, 1, 1.5, 0], [4, 5, 6, 0]],
        ),
        (np.ones((1, 1, 1)), {"kernel_shape": 3, "strides": 3}, []),
        (np.ones((1, 1, 1, 4)), {"kernel_shape": [3, 2], "strides": [3, 3], "ceil_mode": 0}, np.empty((0, 1))),
    ],
    ids=["an_end_beyond_the_pads", "pads_in_front", "an_end_within_the_pads", "no_window", "no_window_along_one_axis"],
)
def test_averages_that_count_padding(x: Any, attributes: dict[str, Any], expected: Any) -> None:
    for cut in (in_ones(x), da.from_array(x, chunks=x.shape)):
        y = dask_api.average_pool(cut, **attributes, count_include_pad=1)
        assert y.shape == (1, 1, *np.shape(expected))
        np.testing.assert_array_equal(y.compute()[0, 0], np.array(expected, np.float64), strict=True)


@checked(4)
@given(data=st.data(), seed=seeds)
def test_averages_that_count_padding_in_any_chunks(data: Any, seed: int) -> None:
    problem, random = data.draw(problems("average_pool")), Random(seed)
    attributes = {**problem.attributes, "ceil_mode": random.randint(0, 1), "count_include_pad": 1}
    (x,) = operands(problem, ["integers"], seed, np.dtype("float64"))
    expected = gpuconv.average_pool(x, **attributes)
    found = dask_api.average_pool(in_chunks(x, chunks(random, x.shape)), **attributes)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.compute(), expected, rtol=1e-14, atol=1e-14, strict=True)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_numbers(dtype: str) -> None:
    x, w = (values("integers", seed, shape, "float32") for seed, shape in enumerate(((2, 3, 11), (4, 3, 3))))
    x, w = (x * (1 + 2j)).astype(dtype), (w * 1j).astype(dtype)
    found = dask_api.conv(in_chunks(x, (1, 3, 4)), w, strides=[2], pads=[1, 1]).compute()
    np.testing.assert_array_equal(found, gpuconv.conv(x, w, strides=[2], pads=[1, 1]), strict=True)


@pytest.mark.emulator
@operators
def test_blocks_run_through_the_kernels(operator: str) -> None:
    problem = Problem("conv", (2, 2, 7, 9), (4, 2, 3, 3), (4,), {"strides": [2, 1], "pads": [1, 0, 2, 1]})
    if operator == "max_pool":
        problem = Problem(operator, problem.x_shape, attributes={"kernel_shape": [3, 3], **problem.attributes})
    if operator == "average_pool":  # with a number of taps for which averages are exact
        problem = Problem(operator, problem.x_shape, attributes={"kernel_shape": [2, 4], **problem.attributes})
    if operator == "conv_transpose":
        problem = Problem(operator, problem.x_shape, (2, 4, 3, 3), (4,), problem.attributes)
    arrays = operands(problem, ("integers",) * 3, 0, np.dtype("float32"))
    more = {**problem.attributes} | ({"return_indices": True} if operator == "max_pool" else {})
    expected = listed(getattr(gpuconv, operator)(*arrays, **more))
    with emulated_cuda(limits_of=architecture("float32", 2)) as emulated:
        x, *others = map(gpuconv.to_device, arrays)
        cut = da.from_array(x, chunks=(1, 2, (3, 4), (5, 4)), asarray=False)
        found = getattr(dask_api, operator)(cut, *others, **more)
        for result, wanted in zip(dask.compute(*listed(found)), expected, strict=True):
            assert_same(gpuconv.to_host(result), wanted, bits=False)
    assert len(emulated.launches) >= 8  # one block of y at least for every block of x


# ---------------------------------------------------------------- chunks


def test_the_chunks_of_windows_follow_those_of_the_input() -> None:
    x = da.zeros((3, 4, 20, 21), chunks=((1, 2), (1, 3), (7, 13), (10, 4, 7)), dtype=np.float32)
    y = dask_api.max_pool(x, kernel_shape=[3, 3], strides=[1, 2], pads=[1, 1, 1, 1])
    assert y.chunks == ((1, 2), (1, 3), (7, 13), (5, 2, 4))
    y = dask_api.conv(x, np.zeros((5, 4, 4, 2), np.float32), strides=[3, 1])
    assert y.chunks == ((1, 2), (5,), (3, 3), (10, 4, 6))


def test_chunks_in_which_no_window_begins_have_no_outputs() -> None:
    x = da.zeros((1, 1, 10), chunks=(1, 1, (4, 1, 1, 4)), dtype=np.float32)
    assert dask_api.max_pool(x, kernel_shape=[2], strides=[4]).chunks[2] == (1, 1, 1)
    assert dask_api.max_pool(x, kernel_shape=[9], strides=[1]).chunks[2] == (2,)


def test_the_chunks_of_a_transpose_follow_those_of_the_input() -> None:
    x = da.zeros((1, 1, 6, 6), chunks=(1, 1, (4, 2), 3), dtype=np.float32)
    y = dask_api.conv_transpose(x, np.zeros((1, 2, 3, 2), np.float32), strides=[2, 2])
    assert y.chunks == ((1,), (2,), (8, 5), (6, 6))


def test_what_is_bias_only_has_a_block_of_its_own() -> None:
    x = da.zeros((1, 1, 6), chunks=3, dtype=np.float32)
    y = dask_api.conv_transpose(x, np.ones((1, 1, 3), np.float32), np.full(1, 7, np.float32), output_shape=[500])
    assert y.chunks[2] == (3, 5, 492)
    assert (y.compute() == 7).all()


@pytest.mark.parametrize(
    ("sizes", "made"),
    [((2, 4, 2), (3, 6, 3)), ((8,), (12,)), ((3, 2, 3), (12,)), ((3, 3, 2), (9, 3)), ((1, 3, 1, 3), (6, 6))],
    ids=str,
)
def test_channels_are_cut_between_groups(sizes: tuple[int, ...], made: tuple[int, ...]) -> None:
    x, w, b = (values("integers", seed, shape, "float32") for seed, shape in enumerate(((2, 8, 5), (12, 2, 3), (12,))))
    y = dask_api.conv(in_chunks(x, (2, sizes, 5)), w, b, group=4)
    assert y.chunks[1] == made
    assert_same(y.compute(), gpuconv.conv(x, w, b, group=4), bits=False)


def test_channels_of_a_transpose_are_cut_between_groups() -> None:
    x, w, b = (values("integers", seed, shape, "float32") for seed, shape in enumerate(((2, 6, 5), (6, 4, 3), (12,))))
    y = dask_api.conv_transpose(in_chunks(x, (1, (2, 4), 2)), w, b, group=3)
    assert y.chunks[1] == (4, 8)
    assert_same(y.compute(), gpuconv.conv_transpose(x, w, b, group=3), bits=False)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Record the shapes of the inputs of calls on blocks."""
    shapes: list[tuple[int, ...]] = []

    def watched(call: Any, x: Any, **attributes: Any) -> Any:
        shapes.append(x.shape)
        return call(x, **attributes)

    for name in GENERATORS:
        module = _tasks._pooling if "pool" in name else _tasks._conv
        monkeypatch.setattr(module, name, partial(watched, getattr(gpuconv, name)))
    return shapes


def test_a_call_gets_no_more_than_its_windows_cover(seen: list[tuple[int, ...]]) -> None:
    x = da.ones((1, 1, 30, 30), chunks=10, dtype=np.float32)
    dask_api.max_pool(x, kernel_shape=[3, 3], dilations=[2, 1], pads=[2, 1, 2, 1]).compute()
    assert sorted(set(seen)) == [(1, 1, rows, columns) for rows in (12, 14) for columns in (11, 12)]


def test_a_call_gets_no_more_than_what_reaches_its_outputs(seen: list[tuple[int, ...]]) -> None:
    x, w = da.ones((1, 1, 30), chunks=10, dtype=np.float32), np.ones((1, 1, 5), np.float32)
    dask_api.conv_transpose(x, w, strides=[2]).compute()  # outputs 20 to 39 are reached by inputs 8 to 19
    assert sorted(seen) == [(1, 1, 10), (1, 1, 12), (1, 1, 12)]
    seen.clear()
    dask_api.conv_transpose(x, w, strides=[2], pads=[1, 1]).compute()  # these are its outputs 21 to 40: inputs 9 to 20
    assert sorted(seen) == [(1, 1, 11), (1, 1, 11), (1, 1, 12)]


def test_small_parts_of_blocks_do_not_keep_them_in_memory() -> None:
    block = np.arange(100).reshape(10, 10)
    small, large = (_tasks.cut((slice(0, rows), slice(0, 10)), block) for rows in (5, 6))
    np.testing.assert_array_equal(small, block[:5])
    np.testing.assert_array_equal(large, block[:6])
    assert small.base is None
    assert large.base is not None


def test_a_block_is_made_of_the_blocks_that_it_needs_and_of_no_other() -> None:
    made: list[Any] = []

    def block(block_info: Any = None) -> Any:
        made.append(block_info[None]["chunk-location"][2])
        return np.ones((1, 1, 10), np.float32)

    x = da.map_blocks(block, chunks=((1,), (1,), (10,) * 100), dtype=np.float32, meta=np.empty((0, 0, 0), np.float32))
    y = dask_api.conv(x, np.ones((1, 1, 12), np.float32), auto_pad="SAME_UPPER")
    assert made == []
    assert y.dtype == np.float32
    assert type(y._meta) is np.ndarray
    assert y.blocks[0, 0, 50].compute().tolist() == [[[12] * 10]]
    assert sorted(made) == [49, 50, 51]


# ---------------------------------------------------------------- weights and settings

W = values("integers", 1, (4, 3, 3, 3), "float32")
X = values("integers", 0, (2, 3, 9, 8), "float32")


class HostTensor:
    """Another library's array."""

    def __init__(self, host: Any) -> None:
        self.host = host

    def __dlpack_device__(self) -> Any:
        return self.host.__dlpack_device__()

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.host.__dlpack__(**keywords)


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
@pytest.mark.parametrize("kind", [np.asarray, gpuconv.pack, da.from_array, HostTensor], ids=lambda kind: kind.__name__)
def test_kinds_of_weights(kind: Any, scheduler: str) -> None:
    b = np.arange(4, dtype=np.float32)
    y = dask_api.conv(in_chunks(X, (1, 3, 4, 5)), kind(W), b if kind is gpuconv.pack else da.from_array(b))
    assert_same(y.compute(scheduler=scheduler), gpuconv.conv(X, W, b), bits=False)


def test_packed_weights_are_shared_by_threads_and_not_cut() -> None:
    w, x = gpuconv.pack(values("integers", 1, (6, 1, 3), "float32")), values("integers", 0, (1, 6, 8), "float32")
    y = dask_api.conv(in_chunks(x, (1, 2, 3)), w, group=6)
    assert y.chunks[1] == (6,)
    assert_same(y.compute(), gpuconv.conv(x, w, group=6), bits=False)


@pytest.mark.parametrize(("order", "layout"), [(0, "NCHW"), (1, "NCHW"), (0, "NHWC")])
def test_indices_within_planes_count_those_of_the_whole_array(order: int, layout: str) -> None:
    x = values("ties", 1, (3, 2, 7, 9), "float32")
    window: dict[str, Any] = {"kernel_shape": [2, 3], "strides": [2, 2], "pads": [0, 4, 1, 0], "storage_order": order}
    places = oracle.max_pool(x, **window)[1]
    expected = np.where(places < 0, -1, places % (7 * 9))
    if layout == "NHWC":
        x, expected = np.moveaxis(x, 1, -1), np.moveaxis(expected, 1, -1)
    cut = da.from_array(x, chunks=(2, 1, 3, 4) if layout == "NCHW" else (2, 3, 4, 1))
    call = {**window, "layout": layout, "return_indices": True, "indices_in": "plane"}
    np.testing.assert_array_equal(dask_api.max_pool(cut, **call)[1].compute(), expected)


def test_the_same_call_has_the_same_name_and_no_other_one_has() -> None:
    x, bias = in_chunks(X, (1, 3, 4, 5)), np.zeros(4, np.float32)
    calls = [
        dask_api.conv(x, W),
        dask_api.conv(x, W + 1),
        dask_api.conv(x, W, bias),
        dask_api.conv(x, W, pads=[1, 1, 1, 1]),
        dask_api.conv(x, W, precision="tf32"),
        dask_api.conv(x, gpuconv.pack(W)),
        dask_api.conv(x, W, activation="relu"),
        dask_api.conv(x, W, residual=da.zeros((2, 4, 7, 6), dtype=np.float32)),
        dask_api.conv(x, W, residual=da.ones((2, 4, 7, 6), dtype=np.float32)),
        dask_api.conv(x + 1, W),
        dask_api.max_pool(x, kernel_shape=[3, 3]),
        dask_api.max_pool(x, kernel_shape=[3, 3], storage_order=1),
        dask_api.max_pool(x, kernel_shape=[3, 3], indices_in="plane"),
        *dask_api.max_pool(x, kernel_shape=[3, 3], return_indices=True),
    ]
    assert len({array.name for array in calls}) == len(calls)
    assert dask_api.conv(x, W.copy()).name == calls[0].name
    assert dask_api.conv(x, W, pads=(0, 0, 0, 0), kernel_shape=[3, 3]).name == calls[0].name


def test_weights_whose_memory_is_the_same_but_not_their_order_are_told_apart() -> None:
    w = values("integers", 1, (3, 3, 3, 3), "float32")
    other = np.ascontiguousarray(w).T  # Fortran order over the same memory
    x = in_chunks(X, (1, 3, 4, 5))
    first, second = dask.compute(dask_api.conv(x, w), dask_api.conv(x, other))
    assert_same(first, gpuconv.conv(X, w), bits=False)
    assert_same(second, gpuconv.conv(X, other), bits=False)
    assert (first != second).any()


def test_the_precision_is_that_of_the_call_and_not_of_the_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    conv = gpuconv.conv

    def watched(*arrays: Any, precision: str, **attributes: Any) -> Any:
        seen.append(precision)
        return conv(*arrays, precision=precision, **attributes)

    monkeypatch.setattr(_tasks._conv, "conv", watched)
    with gpuconv.precision("tf32"):
        within = dask_api.conv(in_chunks(X, X.shape), W)
    within.compute()
    with gpuconv.precision("tf32"):
        dask_api.conv(in_chunks(X, X.shape), W, precision="3xtf32").compute()
    assert seen == ["tf32", "3xtf32"]


def test_a_task_works_on_its_own_thread_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUCONV_NUM_THREADS", raising=False)
    monkeypatch.setattr(_threads, "_processors", lambda: [0, 1, 2, 3])
    counts: list[int] = []
    run = _threads.run

    def watched(function: Any, items: Any, **more: Any) -> None:
        counts.append(_threads.count())
        run(function, items, **more)

    monkeypatch.setattr(_threads, "run", watched)
    x = in_chunks(X, (1, 3, 4, 8))
    dask_api.max_pool(x, kernel_shape=[2, 2], return_indices=True)[1].compute(scheduler="threads")
    dask_api.max_pool(x, kernel_shape=[2, 2]).compute(scheduler="threads")
    dask_api.conv(x, W).compute(scheduler="threads")
    assert counts
    assert set(counts) == {1}
    assert _threads.count() == 4
    monkeypatch.setenv("GPUCONV_NUM_THREADS", "3")
    dask_api.conv(x, W).compute(scheduler="threads")
    assert counts[-1] == 3


def test_many_threads_at_once_give_what_one_gives() -> None:
    x = values("normal", 0, (4, 3, 40, 40), "float32")
    w = values("normal", 1, (4, 3, 3, 3), "float32")
    before = threading.active_count()
    cut = in_chunks(x, (1, 3, 10, 10))
    y, indices = dask_api.max_pool(dask_api.conv(cut, w), kernel_shape=[3, 3], strides=[2, 2], return_indices=True)
    with dask.config.set(scheduler="synchronous"):
        alone = dask.compute(y, indices)
    with dask.config.set(scheduler="threads", num_workers=8):
        together = dask.compute(y, indices)
    assert [array.tobytes() for array in alone] == [array.tobytes() for array in together]
    assert threading.active_count() - before <= 8 + 1


@operators
def test_the_parameters_are_those_of_arrays_in_memory(operator: str) -> None:
    there, here = (inspect.signature(getattr(module, operator)).parameters for module in (gpuconv, dask_api))
    assert [(name, one.kind, one.default) for name, one in there.items() if name != "out"] == [
        (name, one.kind, one.default) for name, one in here.items()
    ]


def test_an_integer_stands_for_every_axis() -> None:
    x, w = (np.ones((1, 1, *shape), np.float32) for shape in ((3, 4), (2, 2)))
    y = dask_api.conv(in_chunks(x, (1, 1, 2, 2)), w, pads=1, strides=2)
    assert y.compute()[0, 0].tolist() == [[1, 2, 1], [2, 4, 2]]
    up = dask_api.conv_transpose(in_chunks(x[..., :2, :2], (1, 1, 1, 2)), w, strides=3, output_padding=1)
    assert up.compute()[0, 0].tolist() == np.multiply.outer([1, 1, 0, 1, 1, 0], [1, 1, 0, 1, 1, 0]).tolist()
    assert dask_api.max_pool(in_chunks(x, (1, 1, 2, 2)), 2, strides=2).compute().tolist() == [[[[1, 1]]]]


def test_pads_of_an_empty_axis_that_make_more_than_64_bits_together() -> None:
    x, attributes = np.ones((2, 1, 0), np.float32), {"pads": [2**63 - 1, 2**59], "strides": [2**59]}
    y = dask_api.max_pool(da.from_array(x, chunks=1), kernel_shape=[2], **attributes).compute()
    assert (y == np.finfo(np.float32).min).all()
    assert y.shape == (2, 1, 17)


def test_packed_weights_are_packed_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[Any] = []

    def pack(w: Any, operator: str) -> Any:
        packed.append((w, operator))
        return "packed"

    monkeypatch.setattr(_tasks, "pack", pack)
    w = np.arange(3.0)
    here = _tasks.SharedWeights("conv_transpose", w, "already")
    assert here.packed() == here.packed() == "already"
    assert not packed
    there = pickle.loads(pickle.dumps(here))
    assert there.packed() == there.packed() == "packed"
    assert [(array.tolist(), operator) for array, operator in packed] == [([0, 1, 2], "conv_transpose")]


# ---------------------------------------------------------------- the blocks of an axis


def _line(random: Random, operator: str) -> tuple[Any, list[int]]:
    """Return the geometry of one axis, and chunks of its inputs."""
    sizes = [random.randint(0, 5) for _ in range(random.randint(1, 4))]
    kernel, stride, dilation = (random.randint(1, most) for most in (4, 4, 3))
    pads = [random.randint(0, 6) for _ in range(2)]
    more = {"output_padding": [random.randint(0, max(stride, dilation) - 1)]} if operator == "conv_transpose" else {}
    reach = (kernel - 1) * dilation + 1
    if operator == "conv":
        sizes[-1] += max(0, reach - sum(sizes) - sum(pads))
    else:
        sizes[-1] += 1
        pads = pads if sum(pads) <= (sum(sizes) - 1) * stride + reach else [0, 0]
    attributes = {"strides": [stride], "dilations": [dilation], "pads": pads, **more}
    return getattr(geometry, operator)((1, 1, sum(sizes)), (1, 1, kernel), None, **attributes), sizes


@pytest.mark.parametrize("operator", ["conv", "conv_transpose"])
def test_a_block_s_own_call_meets_what_its_outputs_meet_in_the_whole(operator: str) -> None:
    random, met = Random(15), 0
    for _ in range(400):
        g, sizes = _line(random, operator)
        (n,), (count,), (s,), (k,), (d,) = g.x_shape[2:], g.y_shape[2:], g.strides, g.kernel_shape, g.dilations
        spans = _spans.spatial(g, 0, sizes)
        assert [q for span in spans for q in range(span.start, span.stop)] == list(range(count))
        pairs: Any = [(q, q * s + o, t) for q in range(count) for t, o in enumerate(g.offsets[0])]
        if operator == "conv_transpose":
            pairs = [(i * s + o, i, t) for i in range(n) for t, o in enumerate(g.offsets[0])]
        whole = {(q, i, t) for q, i, t in pairs if 0 <= q < count and 0 <= i < n}
        found = []
        for span in spans:
            inside, outs = span.high - span.low, span.stop - span.start
            assert min(span.before, span.after, span.more) >= 0
            assert 0 <= span.low <= span.high <= n
            if operator == "conv":
                assert outs in ((inside + span.before + span.after - (k - 1) * d - 1) // s + 1, 0)
                calls = [(q, q * s + t * d - span.before, t) for q in range(outs) for t in range(k)]
            else:
                size = (inside - 1) * s + (k - 1) * d + 1 + span.more - span.before - span.after
                assert outs == size or not inside
                calls = [(i * s + t * d - span.before, i, t) for i in range(inside) for t in range(k)]
            found += [(q + span.start, i + span.low, t) for q, i, t in calls if 0 <= q < outs and 0 <= i < inside]
        assert sorted(found) == sorted(whole), (g, sizes)
        met += len(whole)
    assert met > 1000
