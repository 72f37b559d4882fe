"""MaxPool's Indices within planes, and those that no forward call returns, on both backends."""

from __future__ import annotations

from importlib import import_module
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuconv
from gpuconv.cuda.plan import offers
from gpuconv.rules import geometry
from tests.cpu.conftest import Backend
from tests.harness.emulated import any_cuda
from tests.oracle import gradients, oracle
from tests.oracle.operands import values
from tests.oracle.oracle import assert_close, assert_same
from tests.oracle.strategies import Problem, checked, problems

PLANE: dict[str, Any] = {"indices_in": "plane"}
unpool = import_module("gpuconv.cpu.pool.unpool")
seeds = st.integers(0, 2**32 - 1)


def in_planes(indices: Any, x_shape: tuple[int, ...]) -> Any:
    """Convert indices in the whole tensor to indices in each plane; -1 stays."""
    plane = int(np.prod(x_shape[2:]))
    return np.where(indices < 0, -1, indices % max(plane, 1))


def pooled(problem: Problem, seed: int) -> tuple[Any, Any, Any]:
    """Return x with many ties, its maxima, and their indices in the whole tensor."""
    x = values("ties", seed, problem.x_shape, np.dtype("float32"))
    return x, *oracle.max_pool(x, **problem.attributes)


def forward_window(problem: Problem, y_shape: tuple[int, ...]) -> dict[str, Any]:
    """Return MaxPool's attributes that MaxUnpool accepts, with pads computed from auto_pad."""
    rank, attributes = problem.rank, problem.attributes
    kernel, strides = attributes["kernel_shape"], attributes.get("strides") or [1] * rank
    pads = attributes.get("pads") or [0] * 2 * rank
    auto_pad = attributes.get("auto_pad", "NOTSET")
    auto_pad = auto_pad.decode() if isinstance(auto_pad, bytes) else auto_pad  # as ONNX's reader gives it
    if auto_pad.startswith("SAME"):
        dilations = attributes.get("dilations") or [1] * rank
        axes = zip(problem.x_shape[2:], y_shape[2:], kernel, strides, dilations, strict=True)
        totals = [max(0, (q - 1) * s + (k - 1) * d + 1 - n) for n, q, k, s, d in axes]
        small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
        pads = small + large if auto_pad == "SAME_UPPER" else large + small
    return {"kernel_shape": kernel, "strides": strides, "pads": pads}


@checked(0.3)
@given(data=st.data(), seed=seeds, last=st.booleans())
def test_indices_within_planes_go_in_and_out(backend: Backend, data: Any, seed: int, last: bool) -> None:
    problem = data.draw(problems("max_pool"))
    x, y, indices = pooled(problem, seed)
    order, places = problem.attributes.get("storage_order", 0), in_planes(indices, x.shape)
    turn = (lambda a: np.moveaxis(a, 1, -1)) if last else (lambda a: a)
    more = {"layout": "NHWC" if last else "NCHW", **PLANE}
    dy = values("integers", seed, y.shape, np.dtype("float32"))
    with backend(np.dtype("float32"), problem.rank, seed):
        found, numbers = gpuconv.max_pool(turn(x), return_indices=True, **problem.attributes, **more)
        dx = gpuconv.max_pool_grad(turn(dy), turn(places), turn(x).shape, **problem.attributes, **more)
    assert_same(found, turn(y))
    assert_same(numbers, turn(places))
    expected = gradients.max_pool_grad(dy, indices, x.shape, order)
    assert_close(np.moveaxis(dx, -1, 1) if last else dx, expected, np.dtype("float32"))


@checked(0.3)
@given(data=st.data(), seed=seeds, last=st.booleans())
def test_what_was_pooled_is_put_back_whatever_the_dilation_and_ceil_mode(
    backend: Backend, data: Any, seed: int, last: bool
) -> None:
    problem = data.draw(problems("max_pool"))
    if problem.attributes.get("storage_order"):
        return
    x, y, indices = pooled(problem, seed)
    turn = (lambda a: np.moveaxis(a, 1, -1)) if last else (lambda a: a)
    more = {"layout": "NHWC" if last else "NCHW", **PLANE, **forward_window(problem, y.shape)}
    natural = [
        s * (q - 1) + k - b - e
        for s, q, k, b, e in zip(
            *(more["strides"], y.shape[2:], more["kernel_shape"]),
            *(more["pads"][: problem.rank], more["pads"][problem.rank :]),
            strict=True,
        )
    ]
    if min(natural) < 0:  # for which MaxUnpool has no shape
        return
    with backend(np.dtype("float32"), problem.rank, seed):
        back = gpuconv.max_unpool(turn(y), turn(in_planes(indices, x.shape)), x.shape[2:], **more)
    assert_same(back, turn(gradients.max_unpool(y, indices, x.shape, x.shape)))


@checked(0.3)
@given(data=st.data(), random=st.randoms(use_true_random=False), seed=seeds)
def test_what_no_forward_call_returns_is_refused(backend: Backend, data: Any, random: Any, seed: int) -> None:
    problem = data.draw(problems("max_pool"))
    x, y, indices = pooled(problem, seed)
    if y.size == 0:
        return
    more: dict[str, Any] = random.choice(({}, PLANE))
    places = in_planes(indices, x.shape) if more else indices
    attributes = {**problem.attributes, **more}
    pads = forward_window(problem, y.shape)["pads"]
    possible = gradients.possible_indices(x.shape, y.shape, **{**attributes, "pads": pads})
    with backend(np.dtype("float32"), problem.rank, seed):
        gpuconv.max_pool_grad(
            y, np.where(np.arange(y.size).reshape(y.shape) % 3 == 0, -1, places), x.shape, **attributes
        )
        for _ in range(3):
            at = tuple(random.randrange(extent) for extent in y.shape)
            near = int(places[at]) + random.choice((-1, 1, x.shape[-1], int(np.prod(x.shape[2:])), 2**32))
            wrong = random.choice((near, near, random.randrange(-2, x.size + 2), 2**63 - 1, -(2**63)))
            broken, out = places.copy(), np.full(x.shape, 7, np.float32)
            broken[at] = wrong
            if wrong in possible[at]:
                gpuconv.max_pool_grad(y, broken, x.shape, **attributes)
                continue
            with pytest.raises(gpuconv.ArgumentError) as caught:
                gpuconv.max_pool_grad(y, broken, x.shape, out=out, **attributes)
            assert str(caught.value).startswith(f"max_pool_grad: indices hold {wrong} at {at}, ")
            assert (out == 7).all()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((2, 3, 41), {"kernel_shape": [3]}),
        ((3, 2, 1, 40), {"kernel_shape": [1, 3], "strides": [1, 2]}),
        ((2, 3, 12, 17), {"kernel_shape": [3, 3], "strides": [2, 2]}),
        ((2, 4, 9, 16), {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ((1, 3, 12, 19), {"kernel_shape": [9, 7]}),
        ((2, 2, 6, 5, 7), {"kernel_shape": [3, 2, 3]}),
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_every_kernel_counts_within_planes(shape: tuple[int, ...], attributes: dict[str, Any], layout: str) -> None:
    x = values("ties", 1, shape, np.dtype("float32"))
    y, indices = oracle.max_pool(x, **attributes)
    places, dy = in_planes(indices, shape), values("integers", 2, y.shape, np.dtype("float32"))
    dx = gradients.max_pool_grad(dy, indices, shape, 0).value
    turn = (lambda a: np.ascontiguousarray(np.moveaxis(a, 1, -1))) if layout == "NHWC" else (lambda a: a)
    call = {**attributes, **PLANE, "layout": layout}
    kernels = set()
    for turn_of in offers.every_candidate():
        with turn_of, any_cuda() as device:
            assert_same(gpuconv.max_pool(turn(x), return_indices=True, **call)[1], turn(places))
            kernels.add(device.launches[-1].variant.name)
    for turn_of in offers.every_candidate():
        with turn_of, any_cuda():
            found = gpuconv.max_pool_grad(turn(dy), turn(places), turn(x).shape, **call)
            assert (found == turn(dx)).all()
    assert len(kernels) >= 2 or not kernels


@pytest.mark.parametrize("parts", [2, 4])
def test_images_in_several_parts_get_the_gradients_of_their_own_windows(
    parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that does not fit the workspace: each image's Indices number elements far from the first one's."""
    shape, window = (40, 4, 16, 32), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    x = values("ties", 1, shape, np.dtype("float32"))
    y, indices = oracle.max_pool(x, **window)
    dy = values("integers", 2, y.shape, np.dtype("float32"))
    bytes_of_image = 4 * 16 * 32 * 4 + 4 * 8 * 16 * 24
    monkeypatch.setenv("GPUCONV_WORKSPACE_BYTES", str(2 * bytes_of_image * 40 // parts))
    expected = gradients.max_pool_grad(dy, indices, shape, 0).value
    for more, places in (({}, indices), (PLANE, in_planes(indices, shape))):
        dx = gpuconv.max_pool_grad(dy, places, shape, **window, **more)
        np.testing.assert_array_equal(dx, expected)


def test_indices_within_planes_of_more_than_2_to_the_31_elements() -> None:
    x = np.broadcast_to(np.float32(1), (2, 1, 2**33))
    far: dict[str, Any] = {"kernel_shape": [1], "strides": [2**31], "return_indices": True}
    assert gpuconv.max_pool(x, **far)[1].tolist() == [[[n * 2**33 + q * 2**31 for q in range(4)]] for n in range(2)]
    assert gpuconv.max_pool(x, **far, **PLANE)[1].tolist() == [[[q * 2**31 for q in range(4)]]] * 2


def test_a_result_of_max_unpool_may_be_smaller_than_the_natural_shape_for_indices_within_planes() -> None:
    """As of ceil_mode: windows of 2 at 0, 2 and 4 of five elements."""
    y, places = np.float32([[[2, 4, 5]], [[6, 8, 9]]]), np.int64([[[1, 3, 4]], [[1, 2, 4]]])
    x = gpuconv.max_unpool(y, places, [5], kernel_shape=[2], strides=[2], **PLANE)
    assert x.tolist() == [[[0, 2, 0, 4, 5]], [[0, 6, 8, 0, 9]]]
    with pytest.raises(gpuconv.ArgumentError, match=r"hold 4 at \(0, 0, 2\), but the elements of a plane \(4,\)"):
        gpuconv.max_unpool(y, places, [4], kernel_shape=[2], strides=[2], **PLANE)


MANY: list[tuple[tuple[int, ...], dict[str, Any]]] = [  # more windows than Python handles one by one
    ((2, 3, 200), {"kernel_shape": [5], "strides": [2], "pads": [2, 4]}),
    ((1, 5, 90), {"kernel_shape": [7], "dilations": [3], "pads": [6, 6]}),
    ((3, 4, 14, 18), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ((2, 7, 9, 8), {"kernel_shape": [3, 2], "pads": [1, 0, 2, 1], "storage_order": 1}),
    ((2, 2, 15, 13), {"kernel_shape": [3, 3], "dilations": [2, 3], "pads": [2, 2, 2, 2]}),
    ((1, 30, 4, 6), {"kernel_shape": [9, 3], "pads": [8, 1, 8, 1]}),
    ((1, 2, 1, 300), {"kernel_shape": [1, 280], "pads": [0, 200, 0, 200], "strides": [1, 2]}),
    ((4, 2, 5, 6, 7), {"kernel_shape": [2, 3, 2], "pads": [1, 2, 0, 0, 1, 1], "dilations": [2, 1, 1]}),
    ((1, 2, 300, 300), {"kernel_shape": [2, 3], "strides": [9, 11], "storage_order": 1}),  # more than 2^16 numbers
]


@pytest.fixture(params=[50, 2**16])
def together(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the number of Indices that are checked, or elements that are put back, at once."""
    monkeypatch.setattr(unpool, "_TOGETHER", request.param)


def many(test: Any) -> Any:
    """Parametrize a test by windows with Indices of the whole tensor and of planes."""
    over_more = pytest.mark.parametrize("more", [{}, PLANE], ids=["tensor", "plane"])
    return over_more(pytest.mark.parametrize(("shape", "attributes"), MANY, ids=str)(test))


@pytest.mark.usefixtures("together")
@many
def test_the_first_of_many_indices_outside_their_windows_is_found(
    shape: tuple[int, ...], attributes: dict[str, Any], more: dict[str, Any]
) -> None:
    indices = oracle.max_pool(values("ties", 1, shape, np.dtype("float32")), **attributes)[1]
    assert indices.size > unpool._FEW
    places = in_planes(indices, shape) if more else indices
    possible = gradients.possible_indices(shape, places.shape, **attributes, **more)
    windows = geometry.max_pool(shape, **attributes, **more).index_windows
    assert all(int(places[at]) in possible[at] for at in np.ndindex(places.shape))
    assert unpool.first_impossible(places, windows) is None
    random, plane = Random(7), int(np.prod(shape[2:]))
    for _ in range(60):
        broken, changed = places.copy(), []
        for _ in range(random.choice((1, 1, 2, 3))):
            at = tuple(random.randrange(extent) for extent in places.shape)
            near = random.choice((-1, 1, 2, 3, shape[-1], -shape[-1], shape[2], plane, -plane, 2**16, 2**32))
            broken[at] = random.choice((int(places[at]) + near, -1, -2, -(2**63), 2**63 - 1, random.randrange(plane)))
            changed.append(at)
        wrong = [at for at in changed if int(broken[at]) not in possible[at]]
        assert unpool.first_impossible(broken, windows) == min(wrong, default=None)
        last = np.moveaxis(np.ascontiguousarray(np.moveaxis(broken, 1, -1)), -1, 1)
        assert unpool.first_impossible(last, windows) == min(wrong, default=None)


@pytest.mark.usefixtures("together")
@many
def test_an_element_adds_its_windows_up_from_the_last_to_the_first(
    shape: tuple[int, ...], attributes: dict[str, Any], more: dict[str, Any]
) -> None:
    indices = oracle.max_pool(values("ties", 1, shape, np.dtype("float32")), **attributes)[1]
    indices.reshape(-1)[::7] = -1
    places = in_planes(indices, shape) if more else indices
    dy = np.random.default_rng(2).standard_normal(indices.shape).astype(np.float32)
    numbers = gradients._numbers(shape, attributes.get("storage_order", 0)).reshape(-1)
    expected, of_number = np.zeros(numbers.size, np.float32), np.argsort(numbers)
    for at in reversed(list(np.ndindex(indices.shape))):
        if indices[at] >= 0:
            expected[of_number[indices[at]]] += dy[at]
    expected = expected.reshape(shape)
    call = {**attributes, **more}
    assert_same(gpuconv.max_pool_grad(dy, places, shape, **call), expected)
    turned = [np.ascontiguousarray(np.moveaxis(array, 1, -1)) for array in (dy, places)]
    given = (shape[0], *shape[2:], shape[1])
    assert_same(gpuconv.max_pool_grad(*turned, given, layout="NHWC", **call), np.moveaxis(expected, 1, -1))
    broken = places.copy()
    broken[(0,) * places.ndim], broken[tuple(extent // 2 for extent in places.shape)] = -5, 2**40
    unchecked = gpuconv.max_pool_grad(dy, broken, shape, **call, check_indices=False)
    named = np.where(broken == places, places, -1)
    assert_same(unchecked, gpuconv.max_pool_grad(dy, named, shape, **call))


@pytest.mark.usefixtures("together")
@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_many_elements_are_put_back_plane_by_plane(layout: str, dtype: str) -> None:
    window: dict[str, Any] = {"kernel_shape": [3, 2], "strides": [2, 2]}
    x = values("ties", 4, (3, 5, 13, 16), np.dtype("float32")).astype(dtype)
    y, indices = oracle.max_pool(x, **window)
    indices.reshape(-1)[::5] = -1
    turn = (lambda a: np.ascontiguousarray(np.moveaxis(a, 1, -1))) if layout == "NHWC" else (lambda a: a)
    for result in ((13, 16), (15, 16), (13, 19)):
        expected = gradients.max_unpool(y, indices, x.shape, (3, 5, *result))
        found = gpuconv.max_unpool(turn(y), turn(indices), result, layout=layout, **window)
        assert_same(found, turn(expected))
        if result == (13, 16):
            places = turn(in_planes(indices, x.shape))
            assert_same(gpuconv.max_unpool(turn(y), places, result, layout=layout, **window, **PLANE), turn(expected))
