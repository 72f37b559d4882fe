"""What gpuconv.graph refuses without a device, and how a graph's memory pool hands out blocks."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv import ArgumentTypeError, DeviceError, PackedWeights
from gpuconv.cuda.call import device
from gpuconv.cuda.call.graph import GraphMemory

WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: gpuconv.graph(abs, np.zeros(3)),
        ArgumentTypeError,
        "graph: CUDA graphs need CuPy arrays, but argument 0 is numpy.ndarray; move it with gpuconv.to_device",
    ),
    (
        lambda: gpuconv.graph(abs, "x"),
        ArgumentTypeError,
        "graph: CUDA graphs need CuPy arrays, but argument 0 is str; refer to it from the function",
    ),
    (
        lambda: gpuconv.graph(abs, PackedWeights("conv", np.zeros((1, 1, 1)))),
        ArgumentTypeError,
        "graph: CUDA graphs need CuPy arrays, but argument 0 is gpuconv._packed.PackedWeights; refer to it from the "
        "function",
    ),
    (lambda: gpuconv.graph(3), ArgumentTypeError, "graph: function must be callable, not 3"),
    (lambda: gpuconv.graph(dict), DeviceError, "no CUDA device was found (it is hidden); pass NumPy arrays to run"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG, ids=[error.__name__ for _, error, _ in WRONG])
def test_refused_without_a_device(
    call: Callable[[], Any], error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "unavailable_reason", lambda: "it is hidden")
    with pytest.raises(error, match=re.escape(message)) as caught:
        call()
    assert type(caught.value) is error


# ---------------------------------------------------------------- blocks


@dataclass
class Stream:
    """A stream of the fake CuPy below."""

    ptr: int

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class Unowned:
    """An array's memory; it keeps its owner."""

    def __init__(self, ptr: int, size: int, owner: Any, number: int) -> None:
        self.ptr, self.size, self.owner, self.number = ptr, size, owner, number


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A fake CuPy whose allocator counts up; ``current`` is the current stream."""
    given = SimpleNamespace(current=Stream(0), sizes=[])

    def allocate(nbytes: int) -> Any:
        given.sizes.append(nbytes)
        return SimpleNamespace(ptr=1000 * len(given.sizes))

    cuda = SimpleNamespace(
        get_allocator=lambda: allocate,
        get_current_stream=lambda: given.current,
        UnownedMemory=Unowned,
        MemoryPointer=lambda memory, _: memory,
    )
    given.cupy = SimpleNamespace(cuda=cuda)
    monkeypatch.setattr(device, "current_device", lambda: 0)
    monkeypatch.setattr(device, "is_capturing", lambda: True)
    monkeypatch.setattr(device, "library", lambda: given.cupy)
    return given


def test_the_smallest_free_block_that_suffices_is_given_again(streams: SimpleNamespace) -> None:
    memory = GraphMemory(streams.cupy)
    held = [memory.malloc(nbytes) for nbytes in (300, 100, 200)]
    assert (streams.sizes, memory.nbytes) == ([300, 100, 200], 600)
    held.clear()
    again = [memory.malloc(nbytes) for nbytes in (150, 100, 120, 400)]
    assert [each.ptr for each in again] == [3000, 2000, 1000, 4000]
    assert streams.sizes == [300, 100, 200, 400]
    again.clear()
    assert memory.malloc(24).ptr == 5000  # the smallest block, of 100, remains for larger requests
    assert memory.malloc(25).ptr == 2000


def test_a_capture_begins_with_what_its_stream_found_free(streams: SimpleNamespace) -> None:
    memory, other = GraphMemory(streams.cupy), Stream(5)
    kept, dropped = memory.malloc(100), memory.malloc(100)
    del dropped
    memory.begin(other)
    assert memory.malloc(100).ptr == 3000  # in the old stream
    streams.current = other
    assert memory.malloc(100).ptr == 2000
    del kept
    assert memory.nbytes == 300


def test_blocks_in_use_outlive_the_memory(streams: SimpleNamespace) -> None:
    memory = GraphMemory(streams.cupy)
    array = memory.malloc(100)
    del memory
    assert array.ptr == 1000
    del array


def test_only_the_memory_of_others_is_kept(streams: SimpleNamespace) -> None:
    memory = GraphMemory(streams.cupy)
    others = Unowned(7, 10, None, 0)
    memory.keep([SimpleNamespace(data=SimpleNamespace(mem=mem)) for mem in (memory.malloc(10), others)])
    assert memory._kept == {7: others}


def test_allocations_elsewhere_are_refused(streams: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = GraphMemory(streams.cupy)
    memory.begin(Stream(5))
    monkeypatch.setattr(device, "is_capturing", lambda: False)
    with pytest.raises(
        DeviceError, match="graph: the function makes an array in the stream 0x0, which is not captured"
    ):
        memory.malloc(10)
    memory.end()
    memory.malloc(10)
    monkeypatch.setattr(device, "current_device", lambda: 1)
    with pytest.raises(
        DeviceError, match="graph: the function makes an array on device 1, but the graph is on device 0"
    ):
        memory.malloc(10)
