"""One measurement of the GPU benchmark with both sides on the CPU: what it checks, times and reports."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import gpu_check, gpu_layer, gpu_peers, gpu_timing
from benchmarks.gpu_layer import Case
from benchmarks.layers import Layer


def tiny(op: str, **more: Any) -> Layer:
    fixed: dict[str, Any] = {"kernel": (3, 3), "strides": (2, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    fixed |= {} if op == "MaxPool" else {"k_out": 4}
    fixed |= {"output_padding": (1, 0)} if op == "ConvTranspose" else {}
    return Layer(f"tiny.{op}", "", op, dtypes=("fp32",), **{"x": (2, 4, 9, 8), **fixed, **more})


@pytest.mark.parametrize(
    ("layer", "padding", "more"),
    [
        (tiny("Conv"), (1, 1), (0, 0, 0, 0)),
        (tiny("Conv", pads=(2, 0, 1, 3)), (0, 0), (0, 3, 2, 1)),
        (tiny("ConvTranspose", pads=(2, 0, 1, 3)), (1, 0), (0, 3, 1, 0)),
        (tiny("MaxPool", pads=(1, 1, 1, 1)), (1, 1), (0, 0, 0, 0)),
        (tiny("MaxPool", pads=(2, 2, 2, 2)), (0, 0), (2, 2, 2, 2)),  # more than half of the kernel
        (tiny("MaxPool", pads=(1, 0, 1, 1)), (0, 0), (0, 1, 1, 1)),
    ],
    ids=lambda value: f"{value.op}-{value.pads}" if isinstance(value, Layer) else str(value),
)
def test_pads_are_split_into_pytorch_s_and_the_rest(layer: Layer, padding: Any, more: Any) -> None:
    assert gpu_peers.split_pads(layer) == (padding, more)


class WithCuda:
    """A module with something else for its attribute ``cuda``."""

    def __init__(self, module: Any, cuda: Any) -> None:
        self.cuda, self._module = cuda, module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[gpu_layer.Machine]:
    """PyTorch and gpuconv on the CPU, behind the names of PyTorch's and CuPy's that the measurement uses."""
    torch = pytest.importorskip("torch")

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.at = 0.0

        def record(self) -> None:
            self.at = time.perf_counter()

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, end: Event) -> float:
            return (end.at - self.at) * 1e3

    class NoGraph:
        def capture_begin(self, capture_error_mode: str) -> None:
            raise NotImplementedError("a CPU has no graphs")

    cuda = SimpleNamespace(Event=Event, CUDAGraph=NoGraph, synchronize=lambda: None)
    for name, seconds in (("_LEAST_REPLAY", 1e-4), ("_MOST_REPLAY", 1e-2), ("_HOST_SECONDS", 1e-3)):
        monkeypatch.setattr(gpu_timing, name, seconds)

    class Memory:
        def memset_async(self, value: int, nbytes: int) -> None:
            assert value == 0xFF

    pool = SimpleNamespace(malloc=None, free_all_blocks=lambda: None)
    cupy = SimpleNamespace(
        from_dlpack=lambda tensor: tensor.numpy(),
        cuda=SimpleNamespace(
            alloc=lambda nbytes: Memory(), MemoryPool=lambda: pool, using_allocator=lambda _: nullcontext()
        ),
    )
    with torch.no_grad():
        yield gpu_layer.Machine(WithCuda(torch, cuda), cupy, "cpu", 100_000, 1e10)


@pytest.mark.parametrize(
    "layer",
    [
        tiny("Conv"),
        tiny("Conv", pads=(2, 0, 1, 3), group=4),
        tiny("ConvTranspose"),
        tiny("ConvTranspose", pads=(2, 0, 1, 3), group=2),
        tiny("MaxPool"),
        tiny("MaxPool", indices=True, ceil_mode=1),
        tiny("MaxPool", pads=(2, 0, 1, 2)),
    ],
    ids=lambda layer: f"{layer.op}-{layer.pads}-{layer.group}",
)
def test_a_measurement_checks_and_times_both_sides(machine: gpu_layer.Machine, layer: Layer) -> None:
    row = gpu_layer.measure(machine, Case(layer, "float32"))
    assert (row["wrong"], "peer_wrong" in row, "peer_error" in row) == ("", False, False)
    assert row["our_way"].startswith("eager (NotImplementedError: a CPU has no graphs")
    assert len(row["our_seconds"]) == len(row["peer_seconds"]) >= 5
    assert row["ratio"] == row["peer_median"] / row["our_median"] > 0
    assert row["sets"] == gpu_timing.sets(layer.nbytes() + 4 * int(np.prod(layer.w_shape or 0)), 100_000) > 1
    if layer.op != "MaxPool":
        assert 0 <= row["our_worst"] <= 1
        assert 0 < row["our_deviation"] < 1e-6
        assert row["apart"] < 1e-6
        assert len(row["packed_seconds"]) == len(row["our_seconds"])
    json.dumps(row)


@pytest.mark.parametrize(
    "layer", [tiny("Conv", group=2), tiny("ConvTranspose"), tiny("MaxPool", indices=True)], ids=lambda layer: layer.op
)
def test_for_channels_last_ours_has_the_same_memory_as_nhwc(
    machine: gpu_layer.Machine, layer: Layer, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    ours = gpu_layer.ours

    def watched(case: Case) -> Any:
        call = ours(case)

        def recorded(x: Any, w: Any, b: Any) -> list[Any]:
            results = call(x, w, b)
            seen.append((x, w, results))
            return results

        return recorded

    monkeypatch.setattr(gpu_layer, "ours", watched)
    row = gpu_layer.measure(machine, Case(layer, "float32", "channels_last"))
    assert (row["wrong"], "peer_wrong" in row) == ("", False)
    x, w, results = seen[0]
    assert x.shape == (2, 9, 8, 4)
    assert x.flags.c_contiguous
    assert w is None or w.flags.c_contiguous
    assert {result.shape for result in results} == {(2, *layer.y_shape[2:], layer.y_shape[1])}


def test_pytorch_may_use_tf32_where_ours_does(machine: gpu_layer.Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    cudnn = machine.torch.backends.cudnn
    monkeypatch.setattr(cudnn, "allow_tf32", False)
    allowed: list[bool] = []
    peer = gpu_peers.peer

    def watched(torch: Any, layer: Layer) -> Any:
        call = peer(torch, layer)
        return lambda *operands: allowed.append(cudnn.allow_tf32) or call(*operands)

    monkeypatch.setattr(gpu_peers, "peer", watched)
    for precision, expected in (("ieee", False), ("tf32", True), ("3xtf32", False)):
        allowed.clear()
        row = gpu_layer.measure(machine, Case(tiny("Conv"), "float32", "NCHW", precision))
        assert (row["wrong"], row["precision"]) == ("", precision)
        assert set(allowed) == {expected}
    assert cudnn.allow_tf32 is False


def test_what_pytorch_does_not_take_has_a_reason(machine: gpu_layer.Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("\"max_pool2d\" not implemented for 'Char'\nmore")

    monkeypatch.setattr(gpu_peers, "peer", lambda *_: refuse)
    row = gpu_layer.measure(machine, Case(tiny("MaxPool"), "int8"))
    assert row["peer_error"] == "RuntimeError: \"max_pool2d\" not implemented for 'Char'"
    assert row["wrong"] == ""
    assert len(row["our_seconds"]) >= 5
    assert "ratio" not in row


@contextmanager
def compared(layer: Layer, dtype: str) -> Iterator[tuple[Any, Any, list[Any], list[Any]]]:
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        operands = gpu_peers.operands(torch, layer, dtype, "NCHW", "cpu")
        peer = gpu_peers.peer(torch, layer)(*operands)
        yield torch, operands, [array.clone() for array in peer], peer


def test_a_wrong_element_anywhere_is_found() -> None:
    layer = tiny("Conv", x=(2, 4, 90, 80))
    with compared(layer, "float32") as (torch, operands, ours, peer):
        assert gpu_check.compare(torch, layer, "float32", operands, ours, peer).wrong == ""
        ours[0][1, 2, 17, 30] = float("nan")  # most likely no sample
        assert "differ" in gpu_check.compare(torch, layer, "float32", operands, ours, peer).wrong
        ours[0] = peer[0] * 1.001
        assert "its bound" in gpu_check.compare(torch, layer, "float32", operands, ours, None).wrong
        assert (
            "not torch.float32" in gpu_check.compare(torch, layer, "float32", operands, [peer[0].double()], peer).wrong
        )
        other = gpu_check.compare(torch, layer, "float32", operands, [peer[0]], [peer[0] + 1])
        assert (other.wrong, other.apart) == ("", None)
        assert "is another" in other.peer_wrong


def test_a_wrong_maximum_or_index_is_found() -> None:
    layer = tiny("MaxPool", indices=True)
    with compared(layer, "float32") as (torch, (x, *_), ours, peer):
        ours[1] = gpu_peers.onnx_indices(torch, layer, ours[1])
        assert gpu_check.compare(torch, layer, "float32", [x], ours, peer) == gpu_check.Verdict()
        ours[1][-1, -1, -1, -1] += 1
        assert "indices are wrong" in gpu_check.compare(torch, layer, "float32", [x], ours, peer).wrong
        ours[0][0, 0, 0, 0] -= 1
        assert "maxima are wrong" in gpu_check.compare(torch, layer, "float32", [x], ours, None).wrong
