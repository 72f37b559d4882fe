"""Subclasses of ndarray count as plain arrays in every public function, even if they redefine NumPy's operations."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv import testing
from gpuconv.compat import cudnn
from gpuconv.cuda.call import device
from tests.harness.emulated import any_cuda
from tests.rules.public_calls import CALLS, DY, PLACES, B, W, X, Y, numbers


class Refusing(np.ndarray):  # type: ignore[type-arg]
    """An array that refuses computations, like one with a unit that is added to one without."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("this array was computed with")

    __array_ufunc__ = __array_function__ = __array_finalize__ = _refuse
    __getitem__ = __setitem__ = reshape = transpose = view = copy = astype = ravel = _refuse
    dtype = property(lambda self: np.asarray(self).dtype, _refuse)


def refusing(array: Any) -> Any:
    """Return an array as one of the subclass, with the same memory."""
    finalize, Refusing.__array_finalize__ = Refusing.__array_finalize__, lambda *_: None  # type: ignore[method-assign]
    try:
        return np.ndarray.view(array, Refusing)
    finally:
        Refusing.__array_finalize__ = finalize  # type: ignore[method-assign]


MOVING = {"pack", "to_device", "to_host"}  # have tests of their own below, as has `tune`
DEVICE_ONLY = {"graph"}  # has its tests in tests/gpu/test_graphs.py
WITHOUT_ARRAYS = {"explain", "invariant", "precision", "strict", "tune"}


def test_every_public_function_is_tested_here() -> None:
    functions = {name for name in gpuconv.__all__ if inspect.isfunction(getattr(gpuconv, name))}
    assert functions == {*CALLS, *MOVING, *DEVICE_ONLY, *WITHOUT_ARRAYS}
    for name, (arrays, _) in CALLS.items():
        parameters = inspect.signature(getattr(gpuconv, name)).parameters
        taken = {"x", "w", "b", "y", "dy", "indices", "residual"} & set(parameters)
        assert taken == set(arrays), name


every_call = pytest.mark.parametrize("name", CALLS)


@every_call
def test_results_are_plain_and_those_of_plain_arrays(name: str) -> None:
    arrays, others = CALLS[name]
    function = getattr(gpuconv, name)
    expected = function(**arrays, **others)
    got = function(**{key: refusing(array) for key, array in arrays.items()}, **others)
    assert type(got) is np.ndarray
    np.testing.assert_array_equal(got, expected)
    for key in arrays:
        one = function(**{**arrays, key: refusing(arrays[key])}, **others)
        np.testing.assert_array_equal(one, expected)


@every_call
def test_an_out_of_a_subclass_is_written_and_returned(name: str) -> None:
    arrays, others = CALLS[name]
    function = getattr(gpuconv, name)
    expected = function(**arrays, **others)
    memory = np.zeros_like(expected)
    out = refusing(memory)
    assert function(**{key: refusing(array) for key, array in arrays.items()}, **others, out=out) is out
    np.testing.assert_array_equal(memory, expected)


def test_both_outs_of_max_pool_may_be_of_a_subclass() -> None:
    memory, places = np.zeros_like(Y), np.zeros_like(PLACES)
    y, indices = refusing(memory), refusing(places)
    got = gpuconv.max_pool(X, 3, return_indices=True, out=(y, indices))
    assert got[0] is y
    assert got[1] is indices
    np.testing.assert_array_equal(memory, Y)
    np.testing.assert_array_equal(places, PLACES)
    for out in ((y, None), (None, indices)):
        got = gpuconv.max_pool(X, 3, return_indices=True, out=out)
        assert all(own is None or own is made for own, made in zip(out, got, strict=True))
        assert {type(each) for each in got} == {np.ndarray, Refusing}


def test_complex_results_of_a_real_operand_too() -> None:
    x, residual = X.astype(np.complex64) * (1 + 2j), DY.astype(np.complex64) * 1j
    expected = gpuconv.conv(x, W, residual=residual)
    memory = np.zeros_like(expected)
    out = refusing(memory)
    assert gpuconv.conv(refusing(x), refusing(W), residual=refusing(residual), out=out) is out
    np.testing.assert_array_equal(memory, expected)


def test_an_out_of_a_subclass_must_not_share_memory_either() -> None:
    memory = numbers(1, 1, 8)
    with pytest.raises(gpuconv.ArgumentError, match="out shares memory with x"):
        gpuconv.max_pool(memory, [1], out=refusing(memory))


def test_weights_of_a_subclass_are_packed() -> None:
    np.testing.assert_array_equal(gpuconv.conv(X, gpuconv.pack(refusing(W))), gpuconv.conv(X, W))


def test_on_the_host_an_array_of_a_subclass_stays_what_it_is() -> None:
    array = refusing(X)
    assert gpuconv.to_host(array) is array


@pytest.mark.gpu
def test_moving_to_a_device_and_back_makes_a_plain_array() -> None:
    with any_cuda():
        moved = gpuconv.to_device(refusing(X))
        assert type(moved) is device.array_type()
        back = gpuconv.to_host(moved)
    assert type(back) is np.ndarray
    np.testing.assert_array_equal(back, X)


@pytest.mark.emulator
def test_subclasses_of_device_arrays_are_plain_too() -> None:
    with any_cuda():
        kind: Any = device.array_type()

        class Own(kind):  # type: ignore[misc]
            def __array_ufunc__(self, *_: Any, **__: Any) -> Any:
                raise AssertionError("this array was computed with")

            __array_function__ = __array_ufunc__

        def own(array: Any) -> Any:
            moved = gpuconv.to_device(array)
            return moved.view(moved.dtype, Own)

        out = own(np.zeros_like(DY))
        assert gpuconv.conv(own(X), own(W), own(B), out=out) is out
        np.testing.assert_array_equal(gpuconv.to_host(out), gpuconv.conv(X, W, B))
        assert type(gpuconv.max_pool(own(X), 3)) is kind


# ---------------------------------------------------------------- other doors


def test_every_function_of_cudnn() -> None:
    options = {"auto_tune": False, "tensor_core": "auto"}
    geometry = (0, 0), (1, 1), (1, 1), 1
    y = np.zeros_like(DY)
    cudnn.convolution_forward(refusing(X), refusing(W), None, refusing(y), *geometry, **options)
    np.testing.assert_array_equal(y, gpuconv.conv(X, W))
    pooled = np.zeros_like(Y)
    out = refusing(pooled)
    assert cudnn.pooling_forward(refusing(X), out, (3, 3), (1, 1), (0, 0), cudnn.CUDNN_POOLING_MAX) is out
    np.testing.assert_array_equal(pooled, Y)


DASK = {
    "average_pool": {"kernel_shape": 3},
    "conv": {"w": W, "b": B},
    "conv_transpose": {"w": W, "b": B},
    "max_pool": {"kernel_shape": 3},
}


class Unit(np.ndarray):  # type: ignore[type-arg]
    """An array that dask may cut and rename, but not compute with."""

    def __array_ufunc__(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("this array was computed with")


def test_every_function_of_dask_is_tested_here() -> None:
    api = importlib.import_module("gpuconv.dask")
    assert set(api.__all__) == set(DASK)


@pytest.mark.parametrize("name", DASK)
@pytest.mark.parametrize("chunks", [(2, 4, 7, 6), (1, 4, 3, 6)])
def test_every_function_of_dask(name: str, chunks: tuple[int, ...]) -> None:
    da = pytest.importorskip("dask.array")
    api = importlib.import_module("gpuconv.dask")
    others = {key: value.view(Unit) if isinstance(value, np.ndarray) else value for key, value in DASK[name].items()}
    x = da.from_array(X.view(Unit), chunks=chunks, asarray=False)
    got = getattr(api, name)(x, **others)
    assert type(got._meta) is np.ndarray
    computed = got.compute(scheduler="synchronous")
    assert type(computed) is np.ndarray
    np.testing.assert_array_equal(computed, getattr(gpuconv, name)(X, **DASK[name]))


@pytest.mark.parametrize("name", testing.__all__)
def test_every_assertion(name: str) -> None:
    x, w = X[:1, :, :4, :4].copy(), W
    y = getattr(gpuconv, name.removeprefix("assert_").removesuffix("_close"))(x, w)
    check = getattr(testing, name)
    check(refusing(y), refusing(x), refusing(w))
    for arrays in ((np.ma.array(y), x, w), (y, np.ma.array(x), w)):
        with pytest.raises(gpuconv.ArgumentTypeError, match="whose mask would play no part"):
            check(*arrays)


def test_inputs_of_models() -> None:
    onnx = pytest.importorskip("onnx")
    backend = importlib.import_module("gpuconv.onnx.backend")
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 22]> g (float[2, 4, 7, 6] x, float[4, 4, 3, 3] w) => (float[N] y)'
        "{ c = Conv (x, w) y = Add (c, c) }"
    )
    rep = backend.prepare(model)
    expected = 2 * gpuconv.conv(X, W)
    for got in (rep.run([refusing(X), refusing(W)])[0], rep.run(None, {"x": refusing(X), "w": refusing(W)})[0]):
        assert type(got) is np.ndarray
        np.testing.assert_array_equal(got, expected)
    node = onnx.helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3])
    np.testing.assert_array_equal(backend.run_node(node, [refusing(X)])[0], Y)
    sequence = onnx.helper.make_node("ConcatFromSequence", ["x"], ["y"], axis=0)
    with pytest.warns(UserWarning, match="reference evaluator"):
        got = backend.run_node(sequence, [[refusing(X), X]])[0]
    np.testing.assert_array_equal(got, np.concatenate([X, X]))


# ---------------------------------------------------------------- subclasses of NumPy's own, and others'


def test_memory_maps_and_records(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=X.shape)
    mapped[...] = X
    np.testing.assert_array_equal(gpuconv.conv(mapped, W), gpuconv.conv(X, W))
    out = np.memmap(tmp_path / "y", np.float32, "w+", shape=DY.shape)
    assert gpuconv.conv(X, W, out=out) is out
    out.flush()
    np.testing.assert_array_equal(np.fromfile(tmp_path / "y", np.float32).reshape(DY.shape), gpuconv.conv(X, W))
    records = np.rec.fromarrays([X, X * 2], names="a, b")
    np.testing.assert_array_equal(gpuconv.conv(records.b, W), gpuconv.conv(2 * X, W))


def test_matrices_have_too_few_axes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        matrix = np.asmatrix(np.zeros((3, 4), np.float32))
    with pytest.raises(gpuconv.ArgumentError, match=r"but x\.shape=\(3, 4\)"):
        gpuconv.max_pool(matrix, 2)
    with pytest.raises(gpuconv.ArgumentError, match=r"b must have shape \(4,\)"):
        gpuconv.conv(X, W, matrix[:1])


def masked(array: Any) -> Any:
    return np.ma.array(array, mask=array > 0)


@every_call
def test_masked_arrays_are_refused_wherever_an_array_goes(name: str) -> None:
    arrays, others = CALLS[name]
    function: Callable[..., Any] = getattr(gpuconv, name)
    out = function(**arrays, **others)
    for key, value in {**arrays, "out": out}.items():
        with pytest.raises(gpuconv.ArgumentTypeError) as caught:
            function(**{**arrays, key: masked(value)}, **others)
        assert str(caught.value) == (
            f"{name}: {key} must be a NumPy or CuPy array, not numpy.ma.MaskedArray, whose mask would play no part; "
            f"pass {key}.filled(…), or {key}.data if the mask does not matter"
        )


def test_quantities_lose_their_unit_in_every_call() -> None:
    units = pytest.importorskip("astropy.units")
    for name, (arrays, others) in CALLS.items():
        function = getattr(gpuconv, name)
        given = {key: array * units.m if key != "indices" else array for key, array in arrays.items()}
        got = function(**given, **others)
        assert type(got) is np.ndarray
        np.testing.assert_array_equal(got, function(**arrays, **others))
