"""The functions of gpuconv.torch against PyTorch's, with their derivatives, and as operators of PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # its usual name
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.library import opcheck

import gpuconv
import gpuconv.torch as ours
from gpuconv.torch import _convolutions, _pools

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]
SHAPES = {1: (11,), 2: (9, 8), 3: (5, 6, 4)}
CONVS: list[dict[str, Any]] = [
    {},
    {"stride": 2, "padding": 1},
    {"padding": "same", "dilation": 2},
    {"groups": 2, "padding": "valid"},
]
TRANSPOSED: list[dict[str, Any]] = [{}, {"stride": 2, "padding": 1, "output_padding": 1}, {"groups": 2, "dilation": 2}]
WINDOWS: list[dict[str, Any]] = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    {"kernel_size": 2, "stride": 3, "padding": 1, "ceil_mode": True},
]


def tensor(seed: int, *shape: int, dtype: Any = torch.float64) -> Any:
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=wide).to(dtype)


def check_sums(result: Any, exact: Any, sums: Any, terms: int) -> None:
    """Compare with sums in a wider type: (terms + 1) roundings of the sums, and one of the result."""
    of_sums = 2.0**-53 if result.dtype in (torch.float64, torch.complex128) else 2.0**-24
    of_result = 0.0 if result.dtype.is_complex else torch.finfo(result.dtype).eps / 2
    tiny = 0.0 if result.dtype.is_complex else torch.finfo(result.dtype).tiny
    bound = 2 * (terms + 1) * of_sums * sums + of_result * exact.abs() * 1.01 + tiny
    assert ((result.to(torch.complex128) - exact).abs() <= bound).all()


@pytest.mark.filterwarnings("ignore:.*even kernel lengths.*")
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_convolutions_are_within_their_bound_of_pytorch(axes: int, dtype: Any) -> None:
    for options in CONVS:
        x, b = tensor(0, 2, 4, *SHAPES[axes], dtype=dtype), tensor(2, 6, dtype=dtype)
        w = tensor(1, 6, 4 // options.get("groups", 1), *(2, 3, 3)[:axes], dtype=dtype)
        wide = [value.to(torch.complex128) for value in (x, w, b)]
        theirs = getattr(F, f"conv{axes}d")
        exact = theirs(*wide, **options)
        sums = theirs(*(value.abs() for value in wide), **options)
        check_sums(getattr(ours, f"conv{axes}d")(x, w, b, **options), exact, sums, w[0].numel())
    for options in TRANSPOSED:
        w = tensor(1, 4, 6 // options.get("groups", 1), *(2, 3, 3)[:axes], dtype=dtype)
        wide = [value.to(torch.complex128) for value in (x, w, b)]
        theirs = getattr(F, f"conv_transpose{axes}d")
        exact, sums = theirs(*wide, **options), theirs(*(value.abs() for value in wide), **options)
        result = getattr(ours, f"conv_transpose{axes}d")(x, w, b, **options)
        check_sums(result, exact, sums, w[:, 0].numel())


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
@pytest.mark.parametrize("windows", WINDOWS, ids=str)
def test_max_pools_and_indices_are_those_of_pytorch_bit_for_bit(axes: int, dtype: Any, windows: Any) -> None:
    x = tensor(0, 2, 3, *SHAPES[axes]).mul(3).round().to(dtype)  # with ties
    y, indices = getattr(ours, f"max_pool{axes}d")(x, **windows, return_indices=True)
    their_y, their_indices = getattr(F, f"max_pool{axes}d")(x, **windows, return_indices=True)
    assert torch.equal(y, their_y)
    assert torch.equal(indices, their_indices)
    assert torch.equal(getattr(ours, f"max_pool{axes}d")(x[0], **windows), their_y[0])


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("windows", WINDOWS, ids=str)
@pytest.mark.parametrize("more", [{}, {"count_include_pad": False}, {"divisor_override": 5}], ids=str)
def test_averages_are_those_of_pytorch(axes: int, windows: Any, more: Any) -> None:
    if axes == 1 and "divisor_override" in more:
        pytest.skip("avg_pool1d has no divisor_override")
    x = tensor(0, 2, 3, *SHAPES[axes])
    expected = getattr(F, f"avg_pool{axes}d")(x, **windows, **more)
    result = getattr(ours, f"avg_pool{axes}d")(x, **windows, **more)
    assert (result - expected).abs().max() <= 30 * 2.0**-53 * x.abs().max() * 27
    whole = x.mul(8).round()  # sums are exact
    expected = getattr(F, f"avg_pool{axes}d")(whole, **windows, **more)
    assert torch.equal(getattr(ours, f"avg_pool{axes}d")(whole, **windows, **more), expected)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_unpooling_is_that_of_pytorch(axes: int) -> None:
    x = tensor(0, 2, 3, *SHAPES[axes])
    y, indices = getattr(F, f"max_pool{axes}d")(x, 2, return_indices=True)
    for size in (None, SHAPES[axes]):
        expected = getattr(F, f"max_unpool{axes}d")(y, indices, 2, output_size=size)
        assert torch.equal(getattr(ours, f"max_unpool{axes}d")(y, indices, 2, output_size=size), expected)
    with pytest.raises(gpuconv.ArgumentError, match="indices must be from 0"):
        getattr(ours, f"max_unpool{axes}d")(y, indices + 1000, 2)


def test_four_axes_are_a_sum_over_three_dimensional_ones() -> None:
    x, w = tensor(0, 1, 2, 4, 3, 4, 3), tensor(1, 3, 2, 2, 2, 2, 2)
    expected = sum(F.conv3d(x[:, :, t], w[:, :, t]) for t in range(2))
    assert (ours.conv(x, w)[:, :, 0] - expected).abs().max() < 1e-12
    y, indices = ours.max_pool(x, [2, 2, 2, 2], return_indices=True, indices_in="tensor")
    assert torch.equal(x.flatten()[indices], y)


def test_channels_last_stays_channels_last() -> None:
    x, w = tensor(0, 2, 4, 9, 8), tensor(1, 6, 4, 3, 3)
    last = x.to(memory_format=torch.channels_last)
    for y, expected in [
        (ours.conv2d(last, w), ours.conv2d(x, w)),
        (ours.max_pool2d(last, 2), ours.max_pool2d(x, 2)),
        (ours.avg_pool2d(last, 2), ours.avg_pool2d(x, 2)),
    ]:
        assert y.is_contiguous(memory_format=torch.channels_last)
        assert expected.is_contiguous()
        assert torch.allclose(y, expected, atol=1e-12)


CALLS = {  # every operator with its arguments
    "conv": (_convolutions.conv, (2, 4, 5), (6, 2, 3), (6,), [2], [1, 0], [1], 2),
    "conv_input_grad": (_convolutions.conv_input_grad, (2, 6, 2), (6, 2, 3), [2, 4, 5], [2], [1, 0], [1], 2),
    "conv_weight_grad": (_convolutions.conv_weight_grad, (2, 4, 5), (2, 6, 2), [6, 2, 3], [2], [1, 0], [1], 2),
    "conv_bias_grad": (_convolutions.conv_bias_grad, (2, 6, 2)),
    "conv_transpose": (_convolutions.conv_transpose, (2, 4, 3), (4, 3, 3), (6,), [2], [1, 0], [1], [1], 2),
    "conv_transpose_input_grad": (
        _convolutions.conv_transpose_input_grad, (2, 6, 7), (4, 3, 3), [2, 4, 3], [2], [1, 0], [1], [1], 2
    ),
    "conv_transpose_weight_grad": (
        _convolutions.conv_transpose_weight_grad, (2, 4, 3), (2, 6, 7), [4, 3, 3], [2], [1, 0], [1], [1], 2
    ),
    "max_pool": (_pools.max_pool, (2, 3, 4, 5), [2, 2], [2, 1], [0] * 4, [1, 1], False, False),
    "max_pool_onnx": (_pools.max_pool, (2, 3, 4, 5), [2, 2], [2, 1], [0] * 4, [1, 1], False, True),
    "average_pool": (_pools.average_pool, (2, 3, 4, 5), [2, 2], [2, 1], [1, 0, 0, 1], False, True),
    "average_pool_grad": (
        _pools.average_pool_grad, (2, 3, 2, 4), [2, 3, 4, 5], [2, 2], [2, 1], [0] * 4, False, True
    ),
}  # fmt: skip


def arguments(name: str, dtype: Any = torch.float64, last: bool = False) -> tuple[Any, list[Any]]:
    op, *given = CALLS[name]
    values = [
        tensor(seed, *value, dtype=dtype).requires_grad_() if isinstance(value, tuple) else value
        for seed, value in enumerate(given)
    ]
    if last and values[0].dim() == 4:
        values[0] = values[0].detach().to(memory_format=torch.channels_last).requires_grad_()
    return op, values


def with_indices() -> list[tuple[Any, list[Any]]]:
    """The operators whose second argument is Indices."""
    x = tensor(0, 2, 3, 4, 5)
    window = ([2, 2], [2, 1], [0] * 4)
    y, indices = _pools.max_pool(x, *window, [1, 1], False, False)
    dy = tensor(1, *y.shape).requires_grad_()
    _, scattered = F.max_pool2d(x, 2, return_indices=True)
    return [
        (_pools.max_pool_grad, [dy, indices, list(x.shape), *window, [1, 1], False, False]),
        (
            _pools.max_unpool,
            [tensor(2, *scattered.shape).requires_grad_(), scattered, [4, 5], [2, 2], [2, 2], [0] * 4],
        ),
    ]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # opcheck looks at it
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_operators_pass_opcheck(name: str, last: bool) -> None:
    op, values = arguments(name, last=last)
    assert set(opcheck(op, tuple(values)).values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_operators_of_indices_pass_opcheck_and_gradcheck() -> None:
    for op, values in with_indices():
        assert set(opcheck(op, tuple(values)).values()) == {"SUCCESS"}
        assert gradcheck(lambda dy, op=op, values=values: op(dy, *values[1:]), values[:1])
        assert gradgradcheck(lambda dy, op=op, values=values: op(dy, *values[1:]), values[:1])


@pytest.mark.parametrize("name", CALLS)
def test_first_and_second_derivatives(name: str) -> None:
    op, values = arguments(name)
    tensors = [value for value in values if isinstance(value, torch.Tensor)]

    def function(*tensors: Any) -> Any:
        result = op(*tensors, *values[len(tensors) :])
        return result[0] if isinstance(result, tuple) else result

    assert gradcheck(function, tensors, fast_mode=True)
    assert gradgradcheck(function, tensors, fast_mode=True)


@pytest.mark.parametrize("name", ["conv", "conv_transpose", "conv_input_grad", "conv_weight_grad"])
def test_derivatives_of_complex_tensors(name: str) -> None:
    op, values = arguments(name, torch.complex128)
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    assert gradcheck(lambda *tensors: op(*tensors, *values[len(tensors) :]), tensors, fast_mode=True)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")  # PyTorch's own use of it
def test_forward_mode_is_refused() -> None:
    x, w = tensor(0, 1, 2, 5), tensor(1, 3, 2, 3)
    with forward_ad.dual_level(), pytest.raises(gpuconv.ArgumentTypeError, match="no forward-mode derivative"):
        ours.conv1d(forward_ad.make_dual(x, x), w)


def test_vmap_folds_into_the_batch_or_calls_one_by_one() -> None:
    x, w = tensor(0, 4, 2, 3, 7), tensor(1, 5, 3, 3)
    expected = torch.stack([ours.conv1d(image, w) for image in x])
    assert torch.allclose(torch.vmap(lambda x: ours.conv1d(x, w))(x), expected, atol=1e-12)
    assert torch.allclose(torch.vmap(lambda x: ours.conv1d(x, w), 1)(x.movedim(0, 1)), expected, atol=1e-12)
    several = torch.vmap(ours.conv1d)(x, torch.stack([w, 2 * w, w, w]))
    assert torch.allclose(several[1], 2 * expected[1], atol=1e-12)
    for indices_in in ("plane", "tensor"):
        y, indices = torch.vmap(lambda x, i=indices_in: ours.max_pool(x, [2], return_indices=True, indices_in=i))(x)
        for entry in range(4):
            y0, indices0 = ours.max_pool(x[entry], [2], return_indices=True, indices_in=indices_in)
            assert torch.equal(y[entry], y0)
            assert torch.equal(indices[entry], indices0)


def test_autocast_casts_to_its_dtype() -> None:
    x, w, b = (tensor(seed, *shape, dtype=torch.float32) for seed, shape in enumerate([(1, 2, 5), (3, 2, 3), (3,)]))
    with torch.autocast("cpu", torch.bfloat16):
        y = ours.conv1d(x, w, b)
        assert y.dtype == torch.bfloat16
        assert ours.conv1d(x.double(), w.double()).dtype == torch.float64
    assert torch.equal(y, ours.conv1d(x.bfloat16(), w.bfloat16(), b.bfloat16()))
    x.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        ours.conv1d(x, w, b).sum().backward()
    assert x.grad.dtype == torch.float32


def test_registered_for_cuda_as_fakes() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        x, w = torch.empty(2, 4, 9, 8, device="cuda"), torch.empty(6, 4, 3, 3, device="cuda")
        y = ours.conv2d(x.to(memory_format=torch.channels_last), w, stride=2)
        assert (y.device.type, tuple(y.shape), y.stride()) == ("cuda", (2, 6, 4, 3), (72, 1, 18, 6))
        pooled, indices = ours.max_pool2d(x, 2, return_indices=True)
        assert (pooled.device.type, indices.dtype) == ("cuda", torch.int64)
