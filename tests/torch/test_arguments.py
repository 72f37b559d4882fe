"""PyTorch's arguments as gpuconv's."""

from __future__ import annotations

import pytest

import gpuconv
from gpuconv.torch import _arguments


def test_same_padding_has_its_odd_element_at_the_end() -> None:
    assert _arguments.conv_pads("conv2d", "same", (4, 3), [1, 1], [1, 2]) == [1, 2, 2, 2]
    assert _arguments.conv_pads("conv2d", "valid", (4, 3), [2, 1], [1, 1]) == [0, 0, 0, 0]
    assert _arguments.conv_pads("conv2d", (1, 2), (4, 3), [2, 1], [1, 1]) == [1, 2, 1, 2]


@pytest.mark.parametrize("padding", ["full", (1, 2, 3)])
def test_other_paddings_are_refused(padding: object) -> None:
    with pytest.raises(gpuconv.ArgumentError, match="conv2d: padding"):
        _arguments.conv_pads("conv2d", padding, (3, 3), [1, 1], [1, 1])  # type: ignore[arg-type]


def test_same_padding_with_strides_is_refused() -> None:
    with pytest.raises(gpuconv.ArgumentError, match="stride of 1"):
        _arguments.conv_pads("conv1d", "same", (3,), [2], [1])


def test_pools_are_padded_by_half_a_kernel_at_most() -> None:
    assert _arguments.pool_pads("max_pool1d", 2, [3], [2]) == [2, 2]  # of a dilated kernel of 5
    with pytest.raises(gpuconv.ArgumentError, match=r"at most half of the dilated kernel \[3\], not \[2\]"):
        _arguments.pool_pads("max_pool1d", 2, [3])


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pads", "ceil_mode", "number"),
    [
        (5, 2, 2, (0, 0), False, 2),
        (5, 2, 2, (0, 0), True, 3),
        (4, 1, 3, (0, 0), True, 2),
        (1, 1, 3, (0, 0), True, 1),
        (3, 2, 3, (1, 1), True, 2),
        (2, 2, 3, (1, 1), True, 1),  # a second window would start in the padding at the end
        (1, 2, 3, (1, 1), True, 1),
    ],
)
def test_windows(size: int, kernel: int, stride: int, pads: tuple[int, int], ceil_mode: bool, number: int) -> None:
    assert _arguments.windows(size, kernel, stride, pads, 1, ceil_mode) == number


def test_extents_of_unpooling() -> None:
    assert _arguments.unpool_extents("max_unpool1d", (3,), [2], [2], [0, 0], None) == [6]
    assert _arguments.unpool_extents("max_unpool1d", (3,), [2], [2], [0, 0], (1, 1, 7)) == [7]
    with pytest.raises(gpuconv.ArgumentError, match="less than a stride"):
        _arguments.unpool_extents("max_unpool1d", (3,), [2], [2], [0, 0], (8,))
