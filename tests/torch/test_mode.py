"""Equal bits of every image in every batch, and where the mode holds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # its usual name
from torch import nn

import gpuconv.torch as ours
from gpuconv.torch import _overrides, _state

SIZES = (1, 2, 3, 8, 17)


@pytest.fixture(autouse=True)
def nothing_stays_on() -> Iterator[None]:
    yield
    assert _state.of_thread() is None
    assert not _state.of_process()


def tensor(seed: int, *shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same_bits(a: Any, b: Any) -> bool:
    return torch.equal(*(value.flatten().contiguous().view(torch.uint8) for value in (a, b)))


LAYERS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "conv1d": (lambda x: F.conv1d(x, tensor(1, 16, 3, 1, dtype=x.dtype)), (3, 1)),
    "conv2d": (lambda x: F.conv2d(x, tensor(1, 8, 8, 3, 3, dtype=x.dtype), padding=1, stride=2), (8, 7, 7)),
    "conv3d": (lambda x: F.conv3d(x, tensor(1, 4, 2, 3, 3, 3, dtype=x.dtype), padding="same"), (2, 4, 3, 5)),
    "grouped": (lambda x: F.conv2d(x, tensor(1, 8, 1, 3, 3, dtype=x.dtype), groups=8), (8, 7, 7)),
    "conv_transpose2d": (
        lambda x: F.conv_transpose2d(x, tensor(1, 4, 6, 3, 3, dtype=x.dtype), stride=2, output_padding=1), (4, 5, 5)
    ),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 3, 2, 1), (4, 9)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1, True), (4, 9, 8)),
    "avg_pool2d_divisor": (lambda x: F.avg_pool2d(x, 3, 2, 1, True, divisor_override=7), (4, 9, 8)),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), (4, 4, 5, 6)),
    "adaptive_avg_pool2d_to_one": (lambda x: F.adaptive_avg_pool2d(x, 1), (4, 9, 8)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), (4, 9, 8)),
    "mean": (lambda x: x.mean((2, 3)), (4, 9, 8)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), (4, 9, 8)),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), (4, 4, 5, 6)),
    "linear": (lambda x: F.linear(x, tensor(1, 10, 65, dtype=x.dtype), tensor(2, 10, dtype=x.dtype)), (65,)),
    "linear_of_tokens": (lambda x: F.linear(x, tensor(1, 10, 65, dtype=x.dtype)), (5, 65)),
    "matmul": (lambda x: x @ x.transpose(1, 2), (5, 33)),
    "mv": (lambda x: x @ tensor(1, 33, dtype=x.dtype), (33,)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_images_have_the_same_bits_in_every_batch(name: str, dtype: Any) -> None:
    layer, shape = LAYERS[name]
    x = tensor(0, 17, *shape, dtype=dtype)
    with ours.batch_invariant():
        whole = layer(x)
        for size in SIZES:
            parts = [layer(x[first : first + size]) for first in range(0, 17, size)]
            assert same_bits(torch.cat(parts), whole), size
    expected = layer(x.float()).to(dtype)  # PyTorch has no avg_pool3d in bfloat16 on the CPU
    bound = (1e-4 if dtype == torch.float32 else 4e-2) * expected.abs().max()
    assert (whole - expected).abs().max() <= bound  # of PyTorch's own result
    assert (whole.dtype, whole.stride()) == (expected.dtype, expected.stride())


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_images_too(name: str) -> None:
    layer, shape = LAYERS[name]
    x = tensor(0, 9, *shape).requires_grad_()
    with ours.batch_invariant():
        y = layer(x)
        dy = tensor(5, *y.shape)
        (whole,) = torch.autograd.grad(y, x, dy)
        for size in (1, 2, 4):
            parts = []
            for first in range(0, 9, size):
                part = x[first : first + size].detach().requires_grad_()
                parts += torch.autograd.grad(layer(part), part, dy[first : first + size])
            assert same_bits(torch.cat(parts), whole), size
    (expected,) = torch.autograd.grad(layer(x), x, dy)
    assert (whole - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_products_are_invariant_in_rows_columns_and_strides() -> None:
    a, b, c = tensor(0, 17, 65), tensor(1, 65, 30), tensor(2, 17, 30)
    with ours.batch_invariant():
        whole, added = a @ b, torch.addmm(c, a, b, beta=0.5, alpha=2)
        assert same_bits(a.t().contiguous().t() @ b.t().contiguous().t(), whole)
        for rows, columns in [(1, 1), (2, 7), (3, 30), (8, 1), (17, 29)]:
            assert same_bits(a[:rows] @ b[:, :columns], whole[:rows, :columns])
            part = torch.addmm(c[:rows, :columns], a[:rows], b[:, :columns], beta=0.5, alpha=2)
            assert same_bits(part, added[:rows, :columns])
        assert same_bits(torch.mv(a, b[:, 3]), whole[:, 3])
        assert same_bits(torch.dot(a[2], b[:, 3]), whole[2, 3])
        assert same_bits(torch.bmm(a[None].expand(2, -1, -1), b.expand(2, -1, -1))[1], whole)
        assert same_bits(torch.baddbmm(c[None], a[None], b[None], beta=0.5, alpha=2)[0], added)
        assert same_bits(torch.addmv(c[:, 3], a, b[:, 3], beta=0.5, alpha=2), added[:, 3])
        assert same_bits(torch.mm(a, b, out=torch.empty(17, 30)), whole)
        assert same_bits(torch.mm(a, b, out=torch.empty(30, 17).t()), whole)
        not_read = torch.full_like(c, torch.nan)
        assert same_bits(torch.addmm(not_read, a, b, beta=0), whole)
        integers = torch.arange(6).view(2, 3)
        assert (integers @ integers.t()).tolist() == [[5, 14], [14, 50]]
    assert torch.allclose(added, torch.addmm(c, a, b, beta=0.5, alpha=2), atol=1e-4)


def test_inference_mode_and_autocast() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(72, 5)), tensor(0, 8, 3, 5, 5)
    with ours.batch_invariant(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        whole = model(x)
        assert whole.dtype == torch.bfloat16
        assert same_bits(torch.cat([model(x[i : i + 1]) for i in range(8)]), whole)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(16, 16, 3, padding=1, groups=16),
        nn.Conv2d(16, 24, 1),
        nn.Hardswish(inplace=True),
        nn.ConvTranspose2d(24, 12, 2, 2),
        nn.AvgPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 10),
    ).eval()


def test_a_network_has_the_same_logits_in_every_batch() -> None:
    model, x = network(), tensor(0, 17, 3, 20, 20)
    with ours.batch_invariant(), torch.inference_mode():
        whole = model(x)
        for size in SIZES:
            assert same_bits(torch.cat([model(x[i : i + size]) for i in range(0, 17, size)]), whole), size
    found = ours.report(model, x[:4])
    assert [row.own_in_mode for row in found.rows] == [0] * 12
    assert [row.inherited_in_mode for row in found.rows] == [0] * 12


def used_by(action: Callable[[], object]) -> int:
    """Return how many products gpuconv computes in an action."""
    calls = []
    product = _overrides._products.matmul
    patch = pytest.MonkeyPatch()
    patch.setattr(_overrides._products, "matmul", lambda *pair: calls.append(1) or product(*pair))
    try:
        action()
    finally:
        patch.undo()
    return len(calls)


def test_blocks_nest_and_end_with_exceptions() -> None:
    a = tensor(0, 4, 4)
    multiply = lambda: used_by(lambda: a @ a)  # noqa: E731
    with ours.batch_invariant():
        assert multiply() == 1
        with ours.batch_invariant(False):
            assert multiply() == 0
            with ours.batch_invariant():
                assert multiply() == 1
        assert multiply() == 1
        with pytest.raises(KeyError), ours.batch_invariant(False):
            raise KeyError
        assert multiply() == 1
    assert multiply() == 0


def test_the_process() -> None:
    a, counts = tensor(0, 4, 4), []
    ours.enable()
    ours.enable()
    try:
        thread = threading.Thread(target=lambda: counts.append(used_by(lambda: a @ a)))
        thread.start()
        thread.join()
        with ours.batch_invariant(False):
            counts.append(used_by(lambda: a @ a))
    finally:
        ours.disable()
    counts.append(used_by(lambda: a @ a))
    assert counts == [1, 0, 0]


def test_threads_have_their_own_mode() -> None:
    inside, done, seen = threading.Event(), threading.Event(), []

    def other() -> None:
        inside.wait(60)
        seen.append(_state.is_on())
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with ours.batch_invariant():
        inside.set()
        done.wait(60)
        seen.append(_state.is_on())
    thread.join()
    assert seen == [False, True]


class _Deep(torch.autograd.Function):
    """Calls backward from within a backward pass: beyond 60 levels the engine takes another thread."""

    seen: list[tuple[int, bool]] = []  # noqa: RUF012

    @staticmethod
    def forward(ctx: Any, x: Any, depth: int) -> Any:
        ctx.depth = depth
        return x * 1

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        _Deep.seen.append((threading.get_ident(), _state.is_on()))
        if ctx.depth:
            with torch.enable_grad():
                _Deep.apply(torch.ones(1, requires_grad=True), ctx.depth - 1).sum().backward()
        return dy, None


@pytest.mark.parametrize("is_on", [False, True])
def test_threads_of_the_autograd_engine_have_the_mode_of_the_caller(is_on: bool) -> None:
    _Deep.seen.clear()
    y = _Deep.apply(torch.ones(1, requires_grad=True), 70).sum()
    with ours.batch_invariant(is_on):
        y.backward()
    assert len({thread for thread, _ in _Deep.seen}) == 2
    assert {seen for _, seen in _Deep.seen} == {is_on}


def test_backward_from_another_thread_has_that_threads_mode() -> None:
    w, counts = tensor(0, 4, 4).requires_grad_(), []
    with ours.batch_invariant():
        y = (tensor(1, 4, 4) @ w).sum()

    def backward(is_on: bool) -> None:
        with ours.batch_invariant(is_on):
            counts.append(used_by(lambda: y.backward(retain_graph=True)))

    for is_on in (True, False):
        thread = threading.Thread(target=backward, args=(is_on,))
        thread.start()
        thread.join()
    assert counts == [1, 0]


@pytest.mark.parametrize("backend", ["aot_eager"])
def test_compiled_graphs_run_eagerly_inside(backend: str) -> None:
    torch._dynamo.reset()
    traces = []

    def function(x: Any) -> Any:
        traces.append(torch.compiler.is_compiling())
        return F.avg_pool2d(x, 2)

    compiled, x = torch.compile(function, backend=backend), tensor(0, 3, 2, 6, 6)
    outside = compiled(x)
    with ours.batch_invariant():
        before = len(traces)
        inside = compiled(x)
        assert traces[before:] == [False]  # the function itself ran
        assert same_bits(torch.cat([compiled(x[i : i + 1]) for i in range(3)]), inside)
    before = len(traces)
    assert same_bits(compiled(x), outside)
    assert traces[before:] in ([], [True])


def test_entering_inside_of_a_compiled_function_is_an_error() -> None:
    torch._dynamo.reset()

    @torch.compile(backend="eager")
    def function(x: Any) -> Any:
        with ours.batch_invariant():
            return x @ x

    with pytest.raises(Exception, match="stance"):
        function(tensor(0, 3, 3))


def test_a_report_names_own_and_inherited_differences() -> None:
    class Mean(nn.Module):
        def forward(self, x: Any) -> Any:
            return x - x.mean(0, keepdim=True)

    model = nn.Sequential(nn.Conv1d(3, 16, 1), Mean(), nn.ReLU()).eval()
    found = ours.report(model, tensor(0, 4, 3, 5))
    assert [row.kind for row in found.rows] == ["Conv1d", "Mean", "ReLU"]
    conv, mean, relu = found.rows
    assert (conv.own_in_mode, conv.inherited_in_mode) == (0, 0)
    assert mean.own_in_mode
    assert (relu.own_in_mode, relu.own) == (0, 0)
    assert relu.inherited_in_mode
    assert found.uncovered == (mean,)
    assert "Conv1d" in str(found)
