"""CUDA graphs of gpuconv.graph: the memory that replays write to, what they read, and in which order."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pytest

import gpuconv
from gpuconv.cuda.call import device
from tests.fuzz import graphs
from tests.gpu.on_device import cupy, exposed, keep_busy
from tests.oracle.operands import values
from tests.oracle.oracle import assert_same

pytestmark = pytest.mark.gpu

X, W, V = (1, 3, 8, 9), (8, 3, 3, 3), (4, 8, 3, 3)
OTHERS = (X, (1, 8, 6, 7), (1, 4, 4, 5), (40,), (2000,))  # shapes of new arrays: those of the layers, and of parts
WIDE, SPLIT = (1, 128, 5, 4), (80, 128, 3, 1)  # a convolution that packs weights, and whose blocks share sums


class Pair(NamedTuple):
    """A result with names."""

    y: Any
    more: Any


def made(shape: tuple[int, ...], seed: int = 0, dtype: Any = np.float32) -> Any:
    return values("integers", seed, shape, np.dtype(dtype))


def moved(shape: tuple[int, ...], seed: int = 0) -> Any:
    """Return an array on the device that is complete for every stream."""
    x = gpuconv.to_device(made(shape, seed))
    cupy().cuda.get_current_stream().synchronize()
    return x


def layers(w: Any, v: Any) -> Callable[[Any], Any]:
    """Return two convolutions; the array between them is freed when the call ends."""
    return lambda x: gpuconv.conv(gpuconv.conv(x, w), v)


def on_host(x: Any, w: Any = None, v: Any = None) -> Any:
    return layers(made(W, 1) if w is None else w, made(V, 2) if v is None else v)(x)


@pytest.fixture
def network() -> Any:
    return layers(moved(W, 1), moved(V, 2))


def new_arrays() -> list[Any]:
    return [cupy().full(shape, 7, np.float32) for shape in OTHERS for _ in range(2)]


def assert_untouched(arrays: list[Any]) -> None:
    for array in arrays:
        assert_same(gpuconv.to_host(array), np.full(array.shape, 7, np.float32))


def assert_replays(graph: Any, expected: Callable[[Any], Any] = on_host, shape: tuple[int, ...] = X) -> None:
    """Replay with new values; arrays made in the meantime must not change."""
    for seed in range(3):
        x, others = made(shape, 10 + seed), new_arrays()
        assert_same(gpuconv.to_host(graph(gpuconv.to_device(x))), expected(x), bits=False)
        assert_untouched(others)
        del others


def used_bytes() -> int:
    gc.collect()
    return int(cupy().get_default_memory_pool().used_bytes())


# ---------------------------------------------------------------- whose memory it is


def test_replays_leave_the_arrays_of_others_alone(network: Any) -> None:
    assert_replays(gpuconv.graph(network, moved(X)))


ALLOCATORS: dict[str, Callable[[], Any]] = {
    "none": lambda: cupy().cuda.memory._malloc,
    "managed": lambda: cupy().cuda.malloc_managed,
    "pool of managed memory": lambda: cupy().cuda.MemoryPool(cupy().cuda.malloc_managed).malloc,
    "pool that is dropped": lambda: cupy().cuda.MemoryPool().malloc,
}


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_memory_comes_from_the_current_allocator(network: Any, allocator: str) -> None:
    x, before = moved(X), used_bytes()
    with cupy().cuda.using_allocator(ALLOCATORS[allocator]()):
        graph = gpuconv.graph(network, x)
        assert used_bytes() == before
        assert_replays(graph)
    assert_replays(graph)
    y = graph(x)
    del graph
    others = new_arrays()
    assert_same(gpuconv.to_host(y), on_host(made(X)), bits=False)
    assert_untouched(others)


def test_an_allocator_lives_as_long_as_what_it_gave(network: Any) -> None:
    """A pool of CuPy's frees the memory of all its arrays when it is destroyed."""

    def allocator() -> Callable[[int], Any]:
        pool = cupy().cuda.MemoryPool()
        return lambda nbytes: pool.malloc(nbytes)

    allocate, x = allocator(), moved(X)
    lives = weakref.ref(allocate)
    with cupy().cuda.using_allocator(allocate):
        graph = gpuconv.graph(network, x)
    del allocate
    y = graph(x)
    del graph
    gc.collect()
    assert lives() is not None
    del y
    gc.collect()
    assert lives() is None


def test_memory_counts_towards_the_limit_of_a_pool(network: Any) -> None:
    x, pool = moved(X), cupy().cuda.MemoryPool()
    pool.set_limit(size=2048)
    with cupy().cuda.using_allocator(pool.malloc), pytest.raises(gpuconv.OutOfDeviceMemory, match="conv: y of shape"):
        gpuconv.graph(network, x)
    pool.set_limit(size=2**20)
    with cupy().cuda.using_allocator(pool.malloc):
        graph = gpuconv.graph(network, x)
    assert graph.nbytes <= pool.used_bytes() <= 2**20
    assert_replays(graph)


def test_free_all_blocks_takes_nothing_from_a_graph(network: Any) -> None:
    graph = gpuconv.graph(network, moved(X))
    for _ in range(2):
        cupy().get_default_memory_pool().free_all_blocks()
        assert_replays(graph)


def test_memory_is_given_back_with_the_graph_and_that_of_outputs_with_them(network: Any) -> None:
    x, before = moved(X), used_bytes()
    graph = gpuconv.graph(network, x)
    assert used_bytes() >= before + graph.nbytes
    y = graph(x)
    view = y[:, 1:]
    del graph, y
    assert before < used_bytes() <= before + 1024
    others = new_arrays()
    assert_same(gpuconv.to_host(view), on_host(made(X))[:, 1:], bits=False)
    del view, others
    assert used_bytes() == before


def test_layers_of_a_deep_function_share_blocks() -> None:
    w = moved((3, 3, 1, 1), 1)

    def deep(x: Any) -> Any:
        for _ in range(12):
            x = gpuconv.conv(x, w)
        return x

    x = moved((1, 3, 32, 32))
    graph = gpuconv.graph(deep, x)
    assert graph.nbytes <= 5 * x.nbytes


def test_memory_serves_the_stream_in_which_the_graph_was_made() -> None:
    """Also memory that was first allocated during the capture."""
    x, pool = moved(X), cupy().cuda.MemoryPool()
    with cupy().cuda.using_allocator(pool.malloc):
        graph = gpuconv.graph(Calls(lambda y: y + cupy().ones((1000, *X[1:]), np.float32).sum(0)), x)
        total = pool.total_bytes()
        del graph
        large = cupy().empty((1000, *X[1:]), np.float32)
    assert pool.total_bytes() == total
    del large


def test_a_graph_ends_after_its_last_replay() -> None:
    """Its memory is available to other streams at once."""
    w, x, pool = moved(SPLIT, 1), moved(WIDE), cupy().cuda.MemoryPool()
    with cupy().cuda.using_allocator(pool.malloc):
        graph = gpuconv.graph(lambda x: gpuconv.conv(x, w), x)
    graph(x)
    cupy().cuda.Device().synchronize()
    with cupy().cuda.Stream(non_blocking=True) as stream:
        keep_busy(0.2)
        graph(x)
        del graph
        gc.collect()
    with cupy().cuda.using_allocator(pool.malloc):
        others = [cupy().full(128, 7, np.float32) for _ in range(pool.free_bytes() // 512)]
    cupy().cuda.get_current_stream().synchronize()
    stream.synchronize()
    assert_untouched(others)


# ---------------------------------------------------------------- what replays read


@pytest.mark.parametrize("layout", ["contiguous", "fortran", "reversed", "broadcast"])
def test_inputs_may_have_any_strides(network: Any, layout: str) -> None:
    def laid_out(seed: int) -> Any:
        if layout == "broadcast":
            return cupy().broadcast_to(moved((1, 3, 1, 9), seed), X)
        x = moved(X, seed)
        return {"contiguous": x, "fortran": cupy().asfortranarray(x), "reversed": x[:, ::-1, ::-1]}[layout]

    for first in (moved(X), laid_out(0)):
        graph = gpuconv.graph(network, first)
        x = laid_out(5)
        assert_same(gpuconv.to_host(graph(x)), on_host(gpuconv.to_host(x)), bits=False)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "int8", "bool"])
def test_inputs_arrive_bit_for_bit(dtype: str) -> None:
    size = np.dtype(dtype).itemsize
    bits = np.random.default_rng(0).integers(0, 256, (6, 5 * size), np.uint8)
    x = (bits % 2 if dtype == "bool" else bits).view(dtype)  # subnormals and NaN with payloads among them
    graph = gpuconv.graph(lambda x: x, cupy().zeros(x.shape, dtype))
    there = gpuconv.to_device(x)
    for given, expected in ((there, x), (there[::-1], x[::-1])):
        for copy in (False, True):
            assert gpuconv.to_host(graph(given, copy=copy)).tobytes() == expected.tobytes()


def test_weights_that_change_in_place_count_and_packed_ones_are_a_snapshot() -> None:
    x, w, v = moved(WIDE), moved(SPLIT, 1), moved((4, 80, 1, 1), 2)
    plain = gpuconv.graph(layers(w, v), x)
    packed = gpuconv.graph(layers(gpuconv.pack(w), v), x)
    host, old = made(WIDE), made(SPLIT, 1)
    w[...] = moved(SPLIT, 7)
    assert_same(gpuconv.to_host(plain(x)), on_host(host, made(SPLIT, 7), made(v.shape, 2)), bits=False)
    assert_same(gpuconv.to_host(packed(x)), on_host(host, old, made(v.shape, 2)), bits=False)


@pytest.mark.parametrize("packed", [False, True])
def test_operands_live_as_long_as_the_graph(packed: bool) -> None:
    held = [moved(SPLIT, 1), moved((4, 80, 1, 1), 2)]
    if packed:
        held = [gpuconv.pack(w) for w in held]
    graph = gpuconv.graph(lambda x: layers(*held)(x), moved(WIDE))
    held.clear()
    expected = layers(made(SPLIT, 1), made((4, 80, 1, 1), 2))
    assert_replays(graph, expected, WIDE)


def test_what_a_function_refers_to_lives_as_long_as_the_graph() -> None:
    def shifted() -> Any:
        shift = moved(X, 1)
        return gpuconv.graph(lambda x: x + shift, moved(X))

    assert_replays(shifted(), lambda x: x + made(X, 1))


def test_weights_that_a_graph_has_packed_serve_other_calls_after_it() -> None:
    x, w = moved(WIDE), gpuconv.pack(moved(SPLIT, 1))
    expected = gpuconv.conv(made(WIDE), made(SPLIT, 1))
    graph = gpuconv.graph(lambda x: gpuconv.conv(x, w), x)
    assert_same(gpuconv.to_host(gpuconv.conv(x, w)), expected, bits=False)
    del graph
    others = new_arrays()
    assert_same(gpuconv.to_host(gpuconv.conv(x, w)), expected, bits=False)
    assert_untouched(others)


def test_arguments_that_a_function_changes_are_copies() -> None:
    def doubled(x: Any) -> Any:
        x *= 2
        return x + 1

    x = moved(X)
    graph = gpuconv.graph(doubled, x)
    for _ in range(2):
        assert_same(gpuconv.to_host(graph(x)), 2 * made(X) + 1)
    assert_same(gpuconv.to_host(x), made(X))


def test_an_input_that_is_filled_in_place_is_not_copied(network: Any) -> None:
    graph = gpuconv.graph(network, moved(X))
    (x,) = graph.inputs
    x.set(made(X, 3))
    assert_same(gpuconv.to_host(graph(x)), on_host(made(X, 3)), bits=False)


def test_arrays_of_other_libraries(network: Any) -> None:
    graph = gpuconv.graph(network, exposed(moved(X)))
    assert_same(gpuconv.to_host(graph(exposed(moved(X, 4)))), on_host(made(X, 4)), bits=False)


@pytest.mark.parametrize("shape", [(0, 3, 8, 9), ()])
def test_arrays_without_elements_and_without_axes(shape: tuple[int, ...]) -> None:
    graph = gpuconv.graph(lambda x: x + 1, cupy().zeros(shape, np.float32))
    y = graph(cupy().full(shape, 4, np.float32))
    assert_same(gpuconv.to_host(y), np.full(shape, 5, np.float32))


def test_a_function_without_arguments() -> None:
    x = moved(X)
    graph = gpuconv.graph(lambda: x + 1)
    x.fill(4)
    assert_same(gpuconv.to_host(graph()), np.full(X, 5, np.float32))


# ---------------------------------------------------------------- what replays return


def test_outputs_are_the_same_arrays_each_time_unless_copies_are_asked_for(network: Any) -> None:
    graph = gpuconv.graph(network, moved(X))
    first, copied = graph(moved(X, 1)), graph(moved(X, 2), copy=True)
    assert graph(moved(X, 3)) is first is graph.outputs
    assert_same(gpuconv.to_host(first), on_host(made(X, 3)), bits=False)
    assert_same(gpuconv.to_host(copied), on_host(made(X, 2)), bits=False)


def test_results_in_tuples_lists_and_dicts() -> None:
    def nested(x: Any) -> Any:
        y = x + 1
        return Pair(y, [None, {"a": (x, y), "b": ()}])

    graph = gpuconv.graph(nested, moved(X))
    for copy in (False, True):
        result = graph(moved(X, 1), copy=copy)
        assert type(result) is Pair
        empty, named = result.more
        assert (empty, named["b"]) == (None, ())
        x, y = named["a"]
        assert_same(gpuconv.to_host(x), made(X, 1))
        for each in (result.y, y):
            assert_same(gpuconv.to_host(each), made(X, 1) + 1)
        result.more.clear()  # the caller's own list


@pytest.mark.parametrize("view", ["all of it", "reversed", "a part"])
def test_outputs_that_are_inputs_may_be_the_next_input(view: str) -> None:
    at = {"all of it": ..., "reversed": np.s_[:, ::-1], "a part": np.s_[:, :2]}[view]
    graph = gpuconv.graph(lambda x: x[at], moved(X))
    x, expected = moved(X, 3), made(X, 3)
    for _ in range(3):
        y = graph(x)
        assert_same(gpuconv.to_host(y), expected[at])
        x, expected = (x, expected) if view == "a part" else (y, expected[at])


def test_a_result_may_be_the_next_input() -> None:
    w = moved((3, 3, 3, 3), 1)
    same = {"pads": [1, 1, 1, 1]}
    graph = gpuconv.graph(lambda x: gpuconv.conv(gpuconv.conv(x, w, **same), w, **same), moved(X))
    y, expected = moved(X), made(X)
    for _ in range(2):
        y = graph(y)
        for _ in range(2):
            expected = gpuconv.conv(expected, made((3, 3, 3, 3), 1), **same)
    assert_same(gpuconv.to_host(y), expected, bits=False)


# ---------------------------------------------------------------- streams and threads


def test_a_replay_comes_after_what_its_stream_does_before(network: Any) -> None:
    graph, stream = gpuconv.graph(network, moved(X)), cupy().cuda.Stream(non_blocking=True)
    with stream:
        x = moved(X)
        graph(x)
        stream.synchronize()
        before = keep_busy(0.3)
        x.fill(2)
        y = graph(x)
        assert not before.done, "the replay waited for the device"
        x.fill(7)  # too late to have an effect
        assert_same(gpuconv.to_host(y), on_host(np.full(X, 2, np.float32)), bits=False)


def test_replays_in_several_streams_come_one_after_the_other(network: Any) -> None:
    graph, streams = gpuconv.graph(network, moved(X)), [cupy().cuda.Stream(non_blocking=True) for _ in range(3)]
    results = []
    for seed in range(6):
        with streams[seed % 3]:
            x = moved(X, seed)
            if seed % 3 == 0:
                keep_busy(0.05)
            results.append(graph(x, copy=True))
            x.fill(7)
    for seed, y in enumerate(results):
        with streams[seed % 3]:
            assert_same(gpuconv.to_host(y), on_host(made(X, seed)), bits=False)


def test_a_graph_is_made_after_what_its_stream_does_before(network: Any) -> None:
    stream = cupy().cuda.Stream(non_blocking=True)
    with stream:
        x = cupy().zeros(X, np.float32)
        keep_busy(0.2)
        x.fill(3)
        graph = gpuconv.graph(network, x)
    y = graph(graph.inputs[0])  # the null stream
    assert_same(gpuconv.to_host(y), on_host(np.full(X, 3, np.float32)), bits=False)


def test_two_graphs_take_turns(network: Any) -> None:
    first, second = gpuconv.graph(network, moved(X)), gpuconv.graph(lambda x: network(x) + 1, moved(X))
    for seed in range(3):
        y, z = first(moved(X, seed)), second(moved(X, seed + 1))
        assert_same(gpuconv.to_host(y), on_host(made(X, seed)), bits=False)
        assert_same(gpuconv.to_host(z), on_host(made(X, seed + 1)) + 1, bits=False)


def test_threads_replay_one_graph(network: Any) -> None:
    graph = gpuconv.graph(network, moved(X))

    def work(seed: int) -> bool:
        with cupy().cuda.Stream(non_blocking=True):
            y = graph(moved(X, seed), copy=True)
            return bool((gpuconv.to_host(y) == on_host(made(X, seed))).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(16)))


def test_a_replay_is_whole_before_another_thread_s_begins(network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, seen = gpuconv.graph(network, moved(X)), []

    def noted(name: str, function: Callable[..., Any]) -> None:
        def slow(*arguments: Any) -> Any:
            seen.append((name, threading.get_ident()))
            time.sleep(0.02)
            return function(*arguments)

        monkeypatch.setattr(device, name, slow)

    def work(seed: int) -> None:
        graph(moved(X, seed), copy=True)

    noted("write", device.write)
    noted("copied", device.copied)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(6)))
    assert [name for name, _ in seen] == ["write", "copied"] * 6
    assert len({thread for _, thread in seen}) > 1
    assert [thread for _, thread in seen[::2]] == [thread for _, thread in seen[1::2]]


def test_threads_capture_at_the_same_time(network: Any) -> None:
    def work(seed: int) -> bool:
        with cupy().cuda.Stream(non_blocking=True):
            graph = gpuconv.graph(lambda x: network(x) + seed, moved(X))
            others = new_arrays()
            y = gpuconv.to_host(graph(moved(X, seed)))
            assert_untouched(others)
            return bool((y == on_host(made(X, seed)) + seed).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(12)))


def test_a_function_may_work_in_streams_that_it_forks_and_joins(network: Any) -> None:
    other = cupy().cuda.Stream(non_blocking=True)

    def forked(x: Any) -> Any:
        current = cupy().cuda.get_current_stream()
        other.wait_event(current.record())
        with other:
            y = network(x)
        z = network(x + 1)
        current.wait_event(other.record())
        return y + z

    assert_replays(gpuconv.graph(forked, moved(X)), lambda x: on_host(x) + on_host(x + 1))


def test_what_one_stream_of_a_capture_drops_is_not_for_another_one() -> None:
    other = cupy().cuda.Stream(non_blocking=True)

    def forked(x: Any) -> Any:
        current = cupy().cuda.get_current_stream()
        other.wait_event(current.record())
        with other:
            first = x + 1
            current.wait_event(other.record())
            y = first * 3
        del first  # `other` may still have to read it
        z = x * 5
        current.wait_event(other.record())
        return y[0, 0, 0] + z[0, 0, 0]

    assert_replays(gpuconv.graph(forked, moved(X)), lambda x: ((x + 1) * 3 + x * 5)[0, 0, 0])


def test_a_stream_that_is_not_captured_is_an_error(network: Any) -> None:
    other = cupy().cuda.Stream(non_blocking=True)

    def elsewhere(x: Any) -> Any:
        with other:
            return network(x)

    with pytest.raises(gpuconv.DeviceError, match=r"in the stream 0x[0-9a-f]+, which is not captured; let it work in"):
        gpuconv.graph(elsewhere, moved(X))


@pytest.mark.parametrize("fails", ["in_the_capture", "before_it"])
def test_work_in_another_stream_is_done_before_its_memory_is_given_away(fails: str, network: Any) -> None:
    """The function worked there when it was tried; the memory goes back to the pool of the current stream."""
    other = cupy().cuda.Stream(non_blocking=True)

    def elsewhere(x: Any) -> Any:
        with other:
            y = network(x)
        if fails == "before_it":
            raise ValueError("no")
        return y

    with pytest.raises((gpuconv.DeviceError, ValueError)):
        gpuconv.graph(elsewhere, moved(X))
    mine = [cupy().full(size, 7, "f") for size in (64, 128, 256, 512, 1024, 2048) for _ in range(4)]
    cupy().cuda.Device().synchronize()
    for array in mine:
        assert (gpuconv.to_host(array) == 7).all()


def test_random_functions_streams_and_arrays() -> None:
    counts = graphs.run(100, seed=0)
    assert counts["replays"] == 100
    assert counts["graphs"] > 5
    assert counts["arrays checked"] > 50


# ---------------------------------------------------------------- captures that fail


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """Check that a failed capture leaves neither memory nor a stream that captures."""
    before = used_bytes()
    yield
    stream = cupy().cuda.get_current_stream()
    assert stream.ptr <= 1 or not stream.is_capturing()
    assert used_bytes() == before
    assert_replays(gpuconv.graph(layers(moved(W, 1), moved(V, 2)), moved(X)))


class Calls:
    """A function that behaves differently the second time, in the capture."""

    def __init__(self, second: Callable[[Any], Any]) -> None:
        self.count, self.second = 0, second

    def __call__(self, x: Any) -> Any:
        self.count += 1
        y = x + 1
        return self.second(y) if self.count == 2 else y


def _interrupted(_: Any) -> Any:
    raise KeyboardInterrupt


def _broken(x: Any) -> Any:
    return x.no_such_name


def _synchronized(x: Any) -> Any:
    cupy().cuda.runtime.streamSynchronize(cupy().cuda.get_current_stream().ptr)
    return x


def _swallowed(x: Any) -> Any:
    with suppress(RuntimeError):
        _synchronized(x)
    return x


FAILURES: dict[str, tuple[Callable[[Any], Any], type[BaseException], str]] = {
    "to_host": (gpuconv.to_host, gpuconv.DeviceError, "to_host: the current stream captures a graph"),
    "item": (lambda x: x * float(x[0, 0, 0, 0]), gpuconv.DeviceError, "D2H transfers are disallowed"),
    "upload": (lambda x: x + cupy().asarray(np.ones(9, "f")), gpuconv.DeviceError, "H2D transfers are disallowed"),
    "error": (_broken, gpuconv.DeviceError, "AttributeError: .*ndarray' object has no attribute 'no_such_name'"),
    "wait": (_synchronized, gpuconv.DeviceError, "StreamCapture"),
    "wait, unseen": (_swallowed, gpuconv.DeviceError, "StreamCaptureInvalidated"),
    "Ctrl-C": (_interrupted, KeyboardInterrupt, "^$"),
    "result": (lambda _: 3, gpuconv.ArgumentTypeError, "the function returns int, which a replay cannot change"),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.usefixtures("nothing_is_left")
def test_a_capture_that_fails_is_ended(failure: str) -> None:
    second, error, message = FAILURES[failure]
    x = moved(X)
    with cupy().cuda.Stream(non_blocking=True) as stream:
        with pytest.raises(error, match=message) as caught:
            gpuconv.graph(Calls(second), x)
        if error is gpuconv.DeviceError:
            assert str(caught.value).startswith("graph: the function cannot be captured: ")
            assert caught.value.__cause__ is not None
        assert not stream.is_capturing()
        stream.begin_capture()
        stream.end_capture()
        stream.synchronize()
        cupy().cuda.Device().synchronize()  # refused if any stream captures
    del caught


@pytest.mark.usefixtures("nothing_is_left")
def test_a_function_that_fails_at_once_raises_its_own_error() -> None:
    with pytest.raises(ZeroDivisionError):
        gpuconv.graph(lambda x: x / (1 // 0), moved(X))


@pytest.mark.usefixtures("nothing_is_left")
def test_graphs_are_not_nested() -> None:
    x, stream = moved(X), cupy().cuda.Stream(non_blocking=True)
    inner = gpuconv.graph(lambda x: x + 1, x)
    with pytest.raises(gpuconv.DeviceError, match="graph: the function is called while another graph is captured, and"):
        gpuconv.graph(lambda x: gpuconv.graph(lambda x: x + 1, x).outputs, x)
    with pytest.raises(gpuconv.DeviceError, match="graph: the current stream captures a graph, and graphs cannot be n"):
        gpuconv.graph(inner, x)
    with stream:
        stream.begin_capture()
        with pytest.raises(gpuconv.DeviceError, match="called while another graph is captured"):
            gpuconv.graph(lambda x: x + 1, x)
        stream.end_capture()


@pytest.mark.parametrize("error", [KeyboardInterrupt, gpuconv.OutOfDeviceMemory])
def test_a_replay_that_is_interrupted_leaves_the_graph_usable(
    network: Any, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, x = gpuconv.graph(network, moved(X)), moved(X)

    def interrupted(*_: Any) -> Any:
        raise error

    for name in ("write", "copied"):
        with monkeypatch.context() as patch:
            patch.setattr(device, name, interrupted)
            with pytest.raises(error):
                graph(x, copy=True)
    with ThreadPoolExecutor(1) as pool:  # another thread: no lock is left behind
        assert pool.submit(assert_replays, graph).result(60) is None


# ---------------------------------------------------------------- wrong calls


WRONG: dict[str, tuple[Callable[[Any, Any], Any], type[Exception], str]] = {
    "count": (
        lambda graph, x: graph(x, x),
        gpuconv.ArgumentError,
        "graph: got 2 arrays, but the graph takes 1 (argument 0)",
    ),
    "shape": (
        lambda graph, x: graph(x[:, :2]),
        gpuconv.ArgumentError,
        "graph: argument 0 has shape (1, 2, 8, 9), but the graph was captured with (1, 3, 8, 9); capture another graph "
        "for this shape",
    ),
    "dtype": (
        lambda graph, x: graph(x.astype("d")),
        gpuconv.ArgumentTypeError,
        "graph: argument 0 has dtype float64, but the graph was captured with float32; convert it with "
        ".astype('float32'), or capture another graph",
    ),
    "NumPy": (
        lambda graph, x: graph(made(X)),
        gpuconv.ArgumentTypeError,
        "graph: CUDA graphs need CuPy arrays, but argument 0 is numpy.ndarray; move it with gpuconv.to_device",
    ),
    "number": (
        lambda graph, x: gpuconv.graph(graph, 3),
        gpuconv.ArgumentTypeError,
        "graph: CUDA graphs need CuPy arrays, but argument 0 is int; refer to it from the function",
    ),
    "result": (
        lambda graph, x: gpuconv.graph(gpuconv.to_host, x),
        gpuconv.ArgumentTypeError,
        "graph: the function returns numpy.ndarray, which a replay cannot change; return CuPy arrays, or a tuple, list "
        "or dict of them",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls(network: Any, name: str) -> None:
    call, error, message = WRONG[name]
    graph, x = gpuconv.graph(network, moved(X)), moved(X)
    with pytest.raises(error) as caught:
        call(graph, x)
    assert str(caught.value) == message
    assert_replays(graph)


def test_a_graph_says_what_it_takes(network: Any) -> None:
    graph = gpuconv.graph(network, moved(X))
    assert repr(graph) == f"<Graph of (float32 (1, 3, 8, 9)) on device 0: {graph.nbytes} bytes>"


def test_graphs_stay_on_their_device(network: Any) -> None:
    xp = cupy()
    if xp.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("there is one device only")
    graph, x = gpuconv.graph(network, moved(X)), moved(X)
    with xp.cuda.Device(1):
        there = moved(X, 4)
        with pytest.raises(gpuconv.DeviceError, match=r"graph: the current device is 1, but there is the graph on dev"):
            graph(x)
        w, v = moved(W, 1), moved(V, 2)
        other = gpuconv.graph(layers(w, v), there)
        assert other.device == other(there).device.id == 1
        assert_same(gpuconv.to_host(other(there)), on_host(made(X, 4)), bits=False)
    with pytest.raises(gpuconv.DeviceError, match="argument 0 on device 1; copy them to one device"):
        graph(there)

    def on_both(x: Any) -> Any:
        with xp.cuda.Device(1):
            return xp.zeros(3)

    with pytest.raises(gpuconv.DeviceError, match="graph: the function makes an array on device 1, but the graph is"):
        gpuconv.graph(on_both, x)
    assert_replays(graph)
