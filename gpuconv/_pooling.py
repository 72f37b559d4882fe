"""What is done by MaxPool's Indices: its gradient, and MaxUnpool."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from gpuconv._gradients import run
from gpuconv.rules.geometry import AutoPad, PerAxis
from gpuconv.rules.layout import Layout
from gpuconv.rules.signatures import Array, public, refuse

if TYPE_CHECKING:
    from numpy.typing import NDArray

_T = TypeVar("_T", bound=np.generic)


@overload
def max_pool_grad(
    dy: NDArray[_T],
    indices: Array,
    x_shape: Iterable[int],
    *,
    kernel_shape: PerAxis,
    auto_pad: AutoPad | bytes = "NOTSET",
    ceil_mode: int = 0,
    dilations: PerAxis | None = None,
    pads: PerAxis | None = None,
    storage_order: int = 0,
    strides: PerAxis | None = None,
    layout: Layout = "NCHW",
    check_indices: bool = True,
    out: NDArray[_T] | None = None,
) -> NDArray[_T]: ...


@overload
def max_pool_grad(
    dy: Array,
    indices: Array,
    x_shape: Iterable[int],
    *,
    kernel_shape: PerAxis,
    auto_pad: AutoPad | bytes = "NOTSET",
    ceil_mode: int = 0,
    dilations: PerAxis | None = None,
    pads: PerAxis | None = None,
    storage_order: int = 0,
    strides: PerAxis | None = None,
    layout: Layout = "NCHW",
    check_indices: bool = True,
    out: Array | None = None,
) -> Any: ...


@public("kernel_shape")
def max_pool_grad(
    dy: Any,
    indices: Any,
    x_shape: Iterable[int],
    *,
    kernel_shape: PerAxis | None = None,
    auto_pad: AutoPad | bytes = "NOTSET",
    ceil_mode: int = 0,
    dilations: PerAxis | None = None,
    pads: PerAxis | None = None,
    storage_order: int = 0,
    strides: PerAxis | None = None,
    layout: Layout = "NCHW",
    check_indices: bool = True,
    out: Any = None,
    **others: Any,
) -> Any:
    """Compute the gradient of :func:`max_pool`: dy's value for a window goes to the window's maximum.

    Parameters
    ----------
    dy : array (N, C, Q1, …, Qn)
        Gradient with respect to the result of the forward call; float16, bfloat16, float32 or float64. NumPy and CuPy
        arrays as in :func:`conv`.
    indices : int64 array (N, C, Q1, …, Qn)
        The forward call's Indices. A window whose index is -1, or that of an element outside the window,
        passes its gradient to no element.
    x_shape : sequence of int
        Shape of the forward call's x, in its layout.
    kernel_shape, auto_pad, ceil_mode, dilations, pads, storage_order, strides, layout
        The forward call's.
    check_indices : bool
        Whether to check Indices on a CUDA device first, for which the call waits for the device. Without the check,
        invalid ones are ignored. On the CPU they are always checked.
    out : array of x_shape, optional
        Written in place and returned; must not share memory with an input.

    Returns
    -------
    array of x_shape
        Of dy's dtype and library. Summed in float32 (float64 for float64) in one fixed order and rounded once.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError, MemoryError
        As :func:`max_pool` for the forward call; also dy or indices of another shape than its result's, indices that
        are not int64, or one that is less than -1 or numbers no element of x.

    Examples
    --------
    >>> import numpy as np, gpuconv
    >>> x = np.array([[[3, 1, 4, 1, 5]]], np.float32)
    >>> y, indices = gpuconv.max_pool(x, kernel_shape=[3], return_indices=True)
    >>> gpuconv.max_pool_grad(np.ones_like(y), indices, x.shape, kernel_shape=[3])
    array([[[0., 0., 2., 0., 1.]]], dtype=float32)
    """
    if others:
        refuse(max_pool_grad, others)
    attributes = {
        "auto_pad": auto_pad,
        "ceil_mode": ceil_mode,
        "dilations": dilations,
        "kernel_shape": kernel_shape,
        "pads": pads,
        "storage_order": storage_order,
        "strides": strides,
        "x_shape": x_shape,
    }
    return run("max_pool_grad", {"dy": dy, "indices": indices}, attributes, layout, None, out, check_indices)


@overload
def max_unpool(
    y: NDArray[_T],
    indices: Array,
    output_shape: Iterable[int] | None = None,
    *,
    kernel_shape: PerAxis,
    pads: PerAxis | None = None,
    strides: PerAxis | None = None,
    layout: Layout = "NCHW",
    check_indices: bool = True,
    out: NDArray[_T] | None = None,
) -> NDArray[_T]: ...


@overload
def max_unpool(
    y: Array,
    indices: Array,
    output_shape: Iterable[int] | None = None,
    *,
    kernel_shape: PerAxis,
    pads: PerAxis | None = None,
    strides: PerAxis | None = None,
    layout: Layout = "NCHW",
    check_indices: bool = True,
    out: Array | None = None,
) -> Any: ...


@public("kernel_shape")
def max_unpool(
    y: Any,
    indices: Any,
    output_shape: Iterable[int] | None = None,
    *,
    kernel_shape: PerAxis | None = None,
    pads: PerAxis | None = None,
    strides: PerAxis | None = None,
    layout: Layout = "NCHW",
    check_indices: bool = True,
    out: Any = None,
    **others: Any,
) -> Any:
    """Put the maxima of :func:`max_pool` back where they were, as ONNX MaxUnpool does (opsets 9 to 28).

    Parameters
    ----------
    y : array (N, C, Q1, …, Qn)
        Any dtype that :func:`max_pool` takes. NumPy and CuPy arrays as in :func:`conv`.
    indices : int64 array (N, C, Q1, …, Qn)
        Where each element goes: its number, row-major, among all elements of an array (N, C, D1, …, Dn) with
        ``D = stride * (Q - 1) + kernel - pads``, even if ``output_shape`` says otherwise. -1 means nowhere.
    output_shape : sequence of int, optional
        Spatial extents of the result, with or without N and C in front, none smaller than D. The surplus is at
        the end.
    kernel_shape, pads, strides
        As in the forward call: one entry per spatial axis, for pads all beginnings before all ends, or an int for all
        of them.
    layout : {"NCHW", "NHWC"}
        As in :func:`max_pool`.
    check_indices : bool
        As in :func:`max_pool_grad`.
    out : array, optional
        Written in place and returned; must not share memory with an input.

    Returns
    -------
    array (N, C, D1, …, Dn)
        Of y's dtype and library, zero where no element goes. If several elements have the same index, the last in
        row-major order (of N, C, Q1, …) stays.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError, MemoryError
        An attribute or a shape breaks a rule; indices that are not int64, or one that is less than -1 or numbers no
        element.

    Examples
    --------
    >>> import numpy as np, gpuconv
    >>> y, indices = np.array([[[4, 5]]], np.float32), np.array([[[1, 2]]])
    >>> gpuconv.max_unpool(y, indices, kernel_shape=[2], strides=[2])
    array([[[0., 4., 5., 0.]]], dtype=float32)
    """
    if others:
        refuse(max_unpool, others)
    attributes = {"kernel_shape": kernel_shape, "output_shape": output_shape, "pads": pads, "strides": strides}
    return run("max_unpool", {"y": y, "indices": indices}, attributes, layout, None, out, check_indices)
