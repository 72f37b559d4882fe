"""Streams, graphs, threads, several devices, and the same bits every time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import gpuconv
from tests.gpu.on_device import cupy, keep_busy, moved, returned
from tests.harness import cuda_device
from tests.oracle.operands import values
from tests.oracle.oracle import assert_same

pytestmark = pytest.mark.gpu

# Images, their extent and the number of calls: on a real device more blocks than run at once, otherwise a few.
IMAGES, SIDE, RUNS = (1, 8, 3) if cuda_device.emulated() else (4, 60, 20)
# operator: shapes of x, w and b, attributes
CALLS: dict[str, tuple[list[tuple[int, ...]], dict[str, Any]]] = {
    "conv": ([(IMAGES, 48, SIDE, SIDE + 1), (80, 48, 3, 3), (80,)], {"pads": [1, 1, 1, 1]}),
    "conv_transpose": (
        [(IMAGES, 40, SIDE // 2, SIDE // 2 + 1), (40, 24, 4, 4), (24,)],
        {"strides": [2, 2], "pads": [1, 1, 1, 1]},
    ),
    "max_pool": (
        [(IMAGES, 48, 3 * SIDE // 2, 3 * SIDE // 2 + 1)],
        {"kernel_shape": [3, 3], "strides": [2, 2], "return_indices": True},
    ),
}
TAKEN = (2**10, 40 * 16 * 24, 48 * 9 * 80, *(() if cuda_device.emulated() else (2**18, 2**20)))  # elements
operators = pytest.mark.parametrize("operator", CALLS)


def call(operator: str, arrays: list[Any]) -> Any:
    return getattr(gpuconv, operator)(*arrays, **CALLS[operator][1])


def made(operator: str, seed: int = 0, kind: str = "normal", dtype: Any = np.float32) -> list[Any]:
    return [values(kind, seed + i, shape, dtype) for i, shape in enumerate(CALLS[operator][0])]


def raw(result: Any) -> list[bytes]:
    return [array.tobytes() for array in returned(result)]


def assert_equal(result: Any, arrays: list[Any], operator: str) -> None:
    """Compare with NumPy; the arrays hold small integers."""
    wanted = call(operator, arrays)
    for found, expected in zip(returned(result), wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert_same(found, expected, bits=False)


# ---------------------------------------------------------------- the same bits


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@operators
def test_every_run_gives_the_same_bits(operator: str, dtype: str) -> None:
    arrays = moved(made(operator, dtype=dtype))
    first = raw(call(operator, arrays))
    assert all(raw(call(operator, arrays)) == first for _ in range(RUNS))


@operators
def test_the_same_bits_beside_another_busy_stream(operator: str) -> None:
    arrays, noise = moved(made(operator)), moved(made("conv", seed=9))
    alone = raw(call(operator, arrays))
    other = cupy().cuda.Stream(non_blocking=True)
    cupy().cuda.Device().synchronize()
    for _ in range(RUNS // 3):
        with other:
            kept = [call("conv", noise) for _ in range(RUNS)]
        assert raw(call(operator, arrays)) == alone
        del kept
    other.synchronize()


# ---------------------------------------------------------------- the current stream, and no waiting


@pytest.mark.parametrize("operator", [*CALLS, "conv of packed weights", "conv_transpose of packed weights"])
def test_a_call_returns_while_the_device_is_still_busy(operator: str) -> None:
    operator, _, of_packed_weights = operator.partition(" ")
    arrays = made(operator, kind="integers")
    there = packed(operator)[1] if of_packed_weights else moved(arrays)
    for stream in (cupy().cuda.Stream.null, cupy().cuda.Stream(non_blocking=True)):
        with stream:
            kept = call(operator, there)  # kernels are loaded, and the pool has memory for this stream
            del kept
            stream.synchronize()
            before = keep_busy(1.0)
            result = call(operator, there)
            assert not before.done, "the call waited for work that came before it"
            stream.synchronize()
            assert_equal(result, arrays, operator)


def test_a_call_comes_after_what_its_stream_does_before() -> None:
    xp, stream = cupy(), cupy().cuda.Stream(non_blocking=True)
    _, w, b = made("conv", kind="integers")
    with stream:
        x = xp.zeros(CALLS["conv"][0][0], np.float32)
        there = moved([w, b])
        stream.synchronize()
        keep_busy(0.3)
        x.fill(2)
        result = call("conv", [x, *there])
        x.fill(7)  # too late to have an effect
        assert_equal(result, [np.full(x.shape, 2, np.float32), w, b], "conv")


def test_streams_work_side_by_side() -> None:
    streams = [cupy().cuda.Stream(non_blocking=True) for _ in range(4)]
    inputs = [{name: made(name, seed, "integers") for name in CALLS} for seed in range(len(streams))]
    there = [{name: moved(arrays) for name, arrays in calls.items()} for calls in inputs]
    cupy().cuda.Device().synchronize()
    results: list[tuple[int, str, Any]] = []
    for _ in range(RUNS // 3):
        for number, stream in enumerate(streams):
            with stream:
                results += [(number, name, call(name, arrays)) for name, arrays in there[number].items()]
    cupy().cuda.Device().synchronize()
    for number, name, result in results[-12:] + results[:12]:
        assert_equal(result, inputs[number][name], name)


def test_threads_with_streams_of_their_own() -> None:
    expected = {name: raw(call(name, moved(made(name)))) for name in CALLS}

    def work(number: int) -> bool:
        stream = cupy().cuda.Stream(non_blocking=True)
        with stream:
            arrays = {name: moved(made(name)) for name in CALLS}
            return all(raw(call(name, arrays[name])) == expected[name] for _ in range(RUNS // 2) for name in CALLS)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(RUNS)))


# ---------------------------------------------------------------- graphs


def take_the_pool() -> list[Any]:
    """Take all free memory of the pool and overwrite it, which would include a graph's workspace if that were free."""
    return [cupy().full((size,), 3e38, np.float32) for size in TAKEN * 8]


def assert_kept(taken: list[Any]) -> None:
    """Check that nothing has written to this memory."""
    assert all((gpuconv.to_host(piece) == np.float32(3e38)).all() for piece in taken)


@operators
def test_a_captured_call_can_be_replayed_with_other_inputs(operator: str) -> None:
    stream = cupy().cuda.Stream(non_blocking=True)
    with stream:
        arrays = moved(made(operator, kind="integers"))
        call(operator, arrays)
        stream.begin_capture()
        result = call(operator, arrays)
        graph = stream.end_capture()
        for seed in range(3):
            changed = made(operator, 10 * seed, "integers")
            for array, host in zip(arrays, changed, strict=True):
                array.set(host)
            taken = take_the_pool()
            graph.launch(stream)
            assert_equal(result, changed, operator)
            assert_kept(taken)
            del taken


def test_a_graph_of_several_calls() -> None:
    stream = cupy().cuda.Stream(non_blocking=True)
    x, w, b = made("conv", kind="integers")
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}

    def chain(x: Any, w: Any, b: Any) -> tuple[Any, Any]:
        between = gpuconv.conv(x, w, b, pads=[1, 1, 1, 1])
        return gpuconv.max_pool(between, **pool), between

    with stream:
        there = moved([x, w, b])
        chain(*there)
        stream.begin_capture()
        y, _between = chain(*there)  # the graph uses both
        graph = stream.end_capture()
        y.fill(0)
        for _ in range(2):
            graph.launch(stream)
        assert_same(gpuconv.to_host(y), chain(x, w, b)[0], bits=False)


# ---------------------------------------------------------------- packed weights


def packed(operator: str) -> tuple[list[Any], list[Any]]:
    """Return small integers on the host, and the same on the device with packed weights."""
    arrays = made(operator, kind="integers")
    x, w, b = moved(arrays)
    return arrays, [x, gpuconv.pack(w, operator=operator), b]


convolutions = pytest.mark.parametrize("operator", ["conv", "conv_transpose"])


@convolutions
def test_weights_packed_on_a_busy_stream_serve_another(operator: str) -> None:
    arrays, there = packed(operator)
    busy, other = (cupy().cuda.Stream(non_blocking=True) for _ in range(2))
    with busy:
        keep_busy(0.3)
        first = call(operator, there)
    with other:
        second = call(operator, there)
    for stream, result in ((busy, first), (other, second)):
        with stream:
            assert_equal(result, arrays, operator)


@pytest.mark.parametrize("before", [True, False], ids=["packed before", "packed by the graph"])
@convolutions
def test_a_captured_call_with_packed_weights_can_be_replayed(operator: str, before: bool) -> None:
    stream = cupy().cuda.Stream(non_blocking=True)
    (_, w, b), there = packed(operator)
    with stream:
        call(operator, moved([made(operator)[0], w, b]) if not before else there)  # its kernels are loaded
        stream.begin_capture()
        result = call(operator, there)
        graph = stream.end_capture()
        x, _bias = there[0], there[2]
        there.clear()  # the graph keeps the weights, but not the arrays of the call
        for seed in range(3):
            changed = made(operator, 10 * seed, "integers")[0]
            x.set(changed)
            taken = take_the_pool()
            graph.launch(stream)
            assert_equal(result, [changed, w, b], operator)
            assert_kept(taken)
            del taken


# ---------------------------------------------------------------- several devices


def require_two() -> None:
    count = cupy().cuda.runtime.getDeviceCount()
    if count < 2:
        pytest.skip(f"two devices are needed, there is {count}")


def test_arrays_of_another_device_are_refused_or_used_there() -> None:
    require_two()
    arrays = made("conv", kind="integers")
    with cupy().cuda.Device(1):
        there = moved(arrays)
    with pytest.raises(gpuconv.DeviceError) as caught:
        call("conv", there)
    assert str(caught.value) == (
        "conv: the current device is 0, but there is x on device 1, w on device 1, b on device 1; "
        "call it inside `with cupy.cuda.Device(1):`"
    )
    with cupy().cuda.Device(1):
        result = call("conv", there)
        assert result.device.id == 1
        assert_equal(result, arrays, "conv")
    copied = [gpuconv.to_device(array) for array in there]
    assert all(array.device.id == 0 for array in copied)
    assert_equal(call("conv", copied), arrays, "conv")


# ---------------------------------------------------------------- what cannot be captured


NOT_CAPTURED = {
    "tune: the current stream captures a graph, in which no time can be measured": lambda x: gpuconv.tune(
        "max_pool", x, [2, 2]
    ),
    "to_host: the current stream captures a graph, so that there are no values yet": gpuconv.to_host,
    "to_device: the current stream captures a graph, which would copy the array": lambda _: gpuconv.to_device(
        np.zeros(3)
    ),
    "pack: the current stream captures a graph, which would copy the weights": gpuconv.pack,
}


@pytest.mark.parametrize("message", NOT_CAPTURED, ids=lambda message: message.partition(":")[0])
def test_what_waits_for_the_device_is_refused_in_a_capture(message: str) -> None:
    stream = cupy().cuda.Stream(non_blocking=True)
    with stream:
        x = cupy().zeros((1, 1, 4, 4), np.float32)
        stream.begin_capture()
        with pytest.raises(gpuconv.DeviceError, match=message):
            NOT_CAPTURED[message](x)
        stream.end_capture()
        assert_same(gpuconv.to_host(x), np.zeros(x.shape, np.float32))
