"""Faults planted in gpuconv's use of CuPy: the emulated device detects each, and reports nothing without them.

A real device often tolerates them: a missing wait or workspace seldom causes wrong results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import gpuconv
from gpuconv.cuda.call import device
from tests.gpu.on_device import cupy, exposed, moved
from tests.harness import cuda_device
from tests.oracle.operands import values
from tests.oracle.oracle import assert_same

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not cuda_device.emulated(), reason="a real device need not notice them"),
]

PACKED_AND_SPLIT = ((1, 128, 9, 7), (80, 128, 3, 1), "float32")  # weights in another order, and sums of several blocks
OF_MUCH_SHARED_MEMORY = ((1, 48, 8, 9), (80, 48, 1, 1), "float16")


def operands(x_shape: tuple[int, ...], w_shape: tuple[int, ...], dtype: str) -> list[Any]:
    return [values("integers", seed, shape, np.dtype(dtype)) for seed, shape in enumerate((x_shape, w_shape))]


def assert_right(y: Any, x: Any, w: Any) -> None:
    assert_same(gpuconv.to_host(y), gpuconv.conv(x, w), bits=False)


def plain(*problem: Any) -> None:
    arrays = operands(*problem)
    assert_right(gpuconv.conv(*moved(arrays)), *arrays)


def of_a_producer() -> None:
    """The consumer's stream comes after the one that the array's interface names."""
    x, w = operands(*PACKED_AND_SPLIT)
    there = moved([x, w])
    producer, consumer = (cupy().cuda.Stream(non_blocking=True) for _ in range(2))
    cupy().cuda.Device().synchronize()
    with producer:
        there[0].fill(3)
    with consumer:
        y = gpuconv.conv(exposed(there[0], producer.ptr), there[1])
        assert_right(y, np.full_like(x, 3), w)


def of_packed_weights() -> None:
    """Weights that one stream packs are usable by every other stream."""
    x, w = operands(*PACKED_AND_SPLIT)
    packer, user = (cupy().cuda.Stream(non_blocking=True) for _ in range(2))
    there = moved([x, w])
    cupy().cuda.Device().synchronize()
    with packer:
        packed = gpuconv.pack(there[1])
    with user:
        assert_right(gpuconv.conv(there[0], packed), x, w)


def of_a_graph() -> None:
    """Allocations from the pool after a capture must not get the graph's workspace."""
    arrays = operands(*PACKED_AND_SPLIT)
    stream = cupy().cuda.Stream(non_blocking=True)
    with stream:
        there = moved(arrays)
        gpuconv.conv(*there)
        stream.begin_capture()
        y = gpuconv.conv(*there)
        graph = stream.end_capture()
        taken = [cupy().full((nbytes // 4,), 3e38, np.float32) for nbytes in range(2**17, 2**19, 2**14)]
        graph.launch(stream)
        assert_right(y, *arrays)
        for piece in taken:
            assert_same(gpuconv.to_host(piece), np.full(piece.shape, 3e38, np.float32))


class Fault(NamedTuple):
    """A replacement in the device's module, and the function that must detect it."""

    name: str
    replaced: str
    by: Callable[..., Any]
    noticed: Callable[[], None]
    report: str


def _starts(workspace: Any, sizes: Any) -> list[int]:
    return [workspace.data.ptr] * len(sizes)


def _half(nbytes: int, purpose: str) -> Any:
    return device.Workspace(cupy().cuda.alloc(max(nbytes // 2, 1)))


def _nothing(*_: Any) -> None:
    pass


def _load_without_asking(variant: Any, number: int, shared_bytes: int, load: Any = device.load) -> Any:
    return load(variant, number, 0)


FAULTS = (
    Fault("a producer's stream that is not waited for", "_wait_for", _nothing, of_a_producer, "elements differ"),
    Fault("packing that is not waited for", "wait", _nothing, of_packed_weights, "uninitialised|elements differ"),
    Fault(
        "large shared memory that is not asked for",
        "load",
        _load_without_asking,
        lambda: plain(*OF_MUCH_SHARED_MEMORY),
        "bytes of dynamic shared memory",
    ),
    Fault(
        "parts of a workspace in one place", "parts", _starts, lambda: plain(*PACKED_AND_SPLIT), "race between blocks"
    ),
    Fault("a workspace of half its size", "workspace", _half, lambda: plain(*PACKED_AND_SPLIT), "out of bounds"),
    Fault("a graph's workspace that is given away", "keep", _nothing, of_a_graph, "out of bounds"),
)
faults = pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])


@pytest.fixture(autouse=True)
def nothing_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load kernels and plan calls anew, so that no other test gets memory that these tests have overwritten."""
    monkeypatch.setattr(device, "prepared", {})
    monkeypatch.setattr(device, "_kernels", {})


@faults
def test_a_planted_fault_is_noticed(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, fault.replaced, fault.by)
    with pytest.raises((AssertionError, gpuconv.DeviceError, RuntimeError), match=fault.report):
        fault.noticed()
    cupy().cuda.Device().synchronize()


@faults
def test_without_the_fault_all_is_well(fault: Fault) -> None:
    fault.noticed()
