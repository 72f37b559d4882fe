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
    fixed |= {} if op.endswith("Pool") else {"k_out": 4}
    fixed |= {"output_padding": (1, 0)} if op == "ConvTranspose" else {}
    return Layer(f"tiny.{op}", "", op, **{"x": (2, 4, 9, 8), "dtypes": ("fp32",), **fixed, **more})


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
    """A module with another attribute ``cuda``."""

    def __init__(self, module: Any, cuda: Any) -> None:
        self.cuda, self._module = cuda, module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[gpu_layer.Machine]:
    """Simulate a machine: PyTorch and gpuconv on the CPU, under the names of PyTorch and CuPy that the measurement
    uses."""
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
        tiny("AveragePool", ceil_mode=1),
        tiny("AveragePool", count_include_pad=1),
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
    if not layer.pools:
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

        def recorded(x: Any, *weights: Any) -> list[Any]:
            results = call(x, *weights)
            seen.append((x, weights, results))
            return results

        return recorded

    monkeypatch.setattr(gpu_layer, "ours", watched)
    row = gpu_layer.measure(machine, Case(layer, "float32", "channels_last"))
    assert (row["wrong"], "peer_wrong" in row) == ("", False)
    x, weights, results = seen[0]
    assert x.shape == (2, 9, 8, 4)
    assert x.flags.c_contiguous
    assert all(array.flags.c_contiguous for array in weights)
    assert {result.shape for result in results} == {(2, *layer.y_shape[2:], layer.y_shape[1])}


def derived(op: str, call: str, **more: Any) -> Layer:
    return tiny(op, call=call, **more)


DERIVED = [
    derived("Conv", "input_grad"),
    derived("Conv", "input_grad", group=4, dilations=(2, 1)),
    derived("Conv", "weight_grad"),
    derived("Conv", "weight_grad", group=2),
    derived("Conv", "bias_grad"),
    derived("ConvTranspose", "input_grad"),
    derived("ConvTranspose", "weight_grad", group=2),
    derived("MaxPool", "grad"),
    derived("MaxPool", "grad", ceil_mode=1, dilations=(1, 2)),
    derived("MaxPool", "grad", x=(2, 3, 5, 6, 7), kernel=(2,) * 3, strides=(2,) * 3, pads=(1,) * 6, dilations=(1,) * 3),
    derived("AveragePool", "grad"),
    derived("AveragePool", "grad", count_include_pad=1, ceil_mode=1),
    derived("Conv", "fused"),
    derived("MaxPool", "unpool", x=(2, 4, 10, 8), kernel=(2, 2), strides=(2, 2), pads=(0,) * 4),
]


@pytest.mark.parametrize("layout", gpu_peers.LAYOUTS)
@pytest.mark.parametrize("layer", DERIVED, ids=lambda layer: f"{layer.operator}-{layer.group}-{layer.dilations}")
def test_a_gradient_is_checked_and_timed_against_pytorch_s(
    machine: gpu_layer.Machine, layer: Layer, layout: str
) -> None:
    row = gpu_layer.measure(machine, Case(layer, "float32", layout))
    assert (row["wrong"], "peer_wrong" in row, "peer_error" in row) == ("", False, False)
    assert row["ratio"] == row["peer_median"] / row["our_median"] > 0
    assert "packed_median" not in row
    held = layer.call in ("input_grad", "weight_grad")
    assert ("deterministic_median" in row, "deterministic_error" in row) == (held, False)
    assert ("fused_error" in row) == (layer.call == "fused")  # a CPU has no cuDNN
    if layer.call != "unpool":
        assert 0 <= row["our_worst"] <= 1
        assert row["apart"] < 1e-6
    json.dumps(row)


def test_complex_numbers_are_checked_and_timed(machine: gpu_layer.Machine) -> None:
    row = gpu_layer.measure(machine, Case(tiny("Conv", dtypes=("c64",), group=2), "complex64"))
    assert (row["wrong"], "peer_wrong" in row, "peer_error" in row) == ("", False, False)
    assert 0 < row["our_worst"] <= 1
    assert row["apart"] < 1e-6
    assert (row["class"], len(row["packed_seconds"])) == ("complex Conv", len(row["our_seconds"]))


def test_cudnn_is_held_to_the_same_bits_only_where_that_is_asked_for(
    machine: gpu_layer.Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cudnn = machine.torch.backends.cudnn
    monkeypatch.setattr(cudnn, "deterministic", False)
    seen: list[bool] = []
    monkeypatch.setattr(gpu_peers, "peer", lambda *_: lambda *operands: seen.append(cudnn.deterministic) or [])
    layer = derived("Conv", "weight_grad")
    gpu_peers.peer(machine.torch, layer)()
    gpu_peers.others(machine.torch, layer)["deterministic"]()
    assert (seen, cudnn.deterministic) == ([False, True], False)
    assert gpu_peers.others(machine.torch, tiny("Conv")) == {}


def test_cudnn_s_fusion_is_timed_where_it_is_right(machine: gpu_layer.Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, torch, seen = derived("Conv", "fused"), machine.torch, []

    def fusion(x: Any, w: Any, z: Any, alpha: float, b: Any, *shape: Any) -> Any:
        seen.append((alpha, *shape))
        return torch.relu(torch.nn.functional.conv2d(x, w, b, *shape) + alpha * z)

    monkeypatch.setattr(torch, "cudnn_convolution_add_relu", fusion, raising=False)
    row = gpu_layer.measure(machine, Case(layer, "float32"))
    assert (row["wrong"], len(row["fused_seconds"])) == ("", len(row["our_seconds"]))
    assert set(seen) == {(1.0, (2, 1), (1, 1), (1, 1), 1)}


def test_another_result_or_none_of_pytorch_s_has_a_reason(
    machine: gpu_layer.Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = derived("Conv", "weight_grad")
    call = gpu_peers.peer(machine.torch, layer)

    def refuse(*_: Any) -> Any:
        raise RuntimeError("no algorithm")

    for other, reason in (
        (refuse, "RuntimeError: no algorithm"),
        (lambda *operands: [call(*operands)[0] * 1.1], "another result, which differs by 0.1 of its norm"),
    ):
        monkeypatch.setattr(gpu_peers, "others", lambda *_, other=other: {"deterministic": other})
        row = gpu_layer.measure(machine, Case(layer, "float32"))
        assert (row["deterministic_error"], "deterministic_median" in row) == (reason, False)
        assert row["ratio"] > 0


@pytest.mark.parametrize("op", ["Conv", "MaxPool"])
def test_pads_that_pytorch_has_not_are_a_reason(machine: gpu_layer.Machine, op: str) -> None:
    layer = derived(op, "input_grad" if op == "Conv" else "grad", pads=(1, 0, 0, 1))
    torch = machine.torch
    with pytest.raises(NotImplementedError, match=r"\(1, 0, 0, 1\)"):
        gpu_peers.peer(torch, layer)(*gpu_peers.operands(torch, layer, "float32", "NCHW", "cpu"))


@pytest.mark.parametrize("layer", DERIVED, ids=lambda layer: f"{layer.operator}-{layer.group}-{layer.dilations}")
def test_a_wrong_element_of_a_gradient_is_found(layer: Layer) -> None:
    with compared(layer, "float32") as (torch, operands, ours, peer):
        assert gpu_check.compare(torch, layer, "float32", operands, ours, peer).wrong == ""
        assert gpu_check.compare(torch, layer, "float32", operands, ours, None).wrong == ""
        ours[0].view(-1)[-1] += 1  # the last one is a sample
        assert gpu_check.compare(torch, layer, "float32", operands, ours, None).wrong != ""
        ours[0].view(-1)[-1] -= 1
        ours[0].view(-1)[ours[0].numel() // 2] += 1  # this one may not be
        assert gpu_check.compare(torch, layer, "float32", operands, ours, peer).wrong != ""
        right = gpu_check.compare(torch, layer, "float32", operands, peer, ours)
        assert right.wrong or right.peer_wrong


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
        ours[0][1, 2, 17, 30] = float("nan")  # most likely not a sample
        assert "differ" in gpu_check.compare(torch, layer, "float32", operands, ours, peer).wrong
        ours[0] = peer[0] * 1.001
        assert "its bound" in gpu_check.compare(torch, layer, "float32", operands, ours, None).wrong
        assert "not float32" in gpu_check.compare(torch, layer, "float32", operands, [peer[0].double()], peer).wrong
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
