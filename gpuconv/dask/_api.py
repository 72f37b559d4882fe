"""The operators on dask arrays: signatures of those on arrays in memory, and what differs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dask.array.core import Array

from gpuconv.dask import _convolve, _pool
from gpuconv.rules.geometry import AutoPad, PerAxis
from gpuconv.rules.indices import IndicesIn
from gpuconv.rules.invariance import Invariance
from gpuconv.rules.layout import Layout
from gpuconv.rules.precision import Precision
from gpuconv.rules.signatures import refusing


@refusing
def conv(
    x: Array,
    w: Any,
    b: Any = None,
    *,
    auto_pad: AutoPad | bytes = "NOTSET",
    dilations: PerAxis | None = None,
    group: int = 1,
    kernel_shape: PerAxis | None = None,
    pads: PerAxis | None = None,
    strides: PerAxis | None = None,
    layout: Layout = "NCHW",
    precision: Precision | None = None,
    invariant: Invariance | None = None,
    activation: str | tuple[Any, ...] | None = None,
    residual: Array | None = None,
) -> Array:
    """Convolve a dask array as :func:`gpuconv.conv` does an array in memory; nothing is computed yet.

    Parameters
    ----------
    x : dask array (N, C, D1, …, Dn)
        Of NumPy or CuPy blocks, cut along any axes at any places, with known sizes. A task holds one block of the
        result and the inputs that it needs: all channels of its groups, and along each spatial axis what its windows
        cover, which may reach over several blocks of x.
    w : array (M, C/group, k1, …, kn), dask array of one chunk, or PackedWeights
        From the library of x's blocks. Packed weights serve threads as they are, and are packed once more in every
        process that they are sent to.
    b : array (M,), or dask array of one chunk, optional
    auto_pad, dilations, group, kernel_shape, pads, strides, layout, activation
        As in :func:`gpuconv.conv`.
    precision : {"ieee", "tf32", "3xtf32"}, optional
        By default that of the context in which this function is called, not of the one that computes the result.
    invariant : {"batch"}, optional
        As in :func:`gpuconv.conv`, for chunks of whole images; by default that of the context, as with precision.
    residual : dask array (N, M, Q1, …, Qn), optional
        As in :func:`gpuconv.conv`; cut in any way, and brought to the result's chunks.

    Returns
    -------
    dask array (N, M, Q1, …, Qn)
        Of x's dtype, cut where x is: output q along a spatial axis goes with input ``q * stride``. Channels are cut
        only between groups. Values are within the bounds of :func:`gpuconv.conv`, and exact where those are; where they
        are rounded, calls on blocks of other sizes may add the same terms in another order.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As in :func:`gpuconv.conv`; also for unknown sizes, weights or a bias of several chunks, and a residual that is
        no dask array.

    Examples
    --------
    >>> import dask.array as da, numpy as np, gpuconv.dask
    >>> x = da.ones((1, 3, 1000, 1000), chunks=(1, 3, 300, 500), dtype=np.float32)
    >>> y = gpuconv.dask.conv(x, np.ones((8, 3, 3, 3), np.float32), auto_pad="SAME_UPPER", strides=[2, 2])
    >>> y.shape, y.chunks[2:]
    ((1, 8, 500, 500), ((150, 150, 150, 50), (250, 250)))
    >>> y[0, 0, :2, :2].compute()
    array([[27., 27.],
           [27., 27.]], dtype=float32)
    """
    attributes = {
        "auto_pad": auto_pad,
        "dilations": dilations,
        "group": group,
        "kernel_shape": kernel_shape,
        "pads": pads,
        "strides": strides,
    }
    arrays = {"w": w, "b": b, "residual": residual}
    settings = {"activation": activation, "precision": precision, "invariant": invariant}
    return _convolve.lazy("conv", x, arrays, layout, settings, attributes)


@refusing
def conv_transpose(
    x: Array,
    w: Any,
    b: Any = None,
    *,
    auto_pad: AutoPad | bytes = "NOTSET",
    dilations: PerAxis | None = None,
    group: int = 1,
    kernel_shape: PerAxis | None = None,
    output_padding: PerAxis | None = None,
    output_shape: Iterable[int] | None = None,
    pads: PerAxis | None = None,
    strides: PerAxis | None = None,
    layout: Layout = "NCHW",
    precision: Precision | None = None,
    invariant: Invariance | None = None,
    activation: str | tuple[Any, ...] | None = None,
    residual: Array | None = None,
) -> Array:
    """Compute ConvTranspose of a dask array as :func:`gpuconv.conv_transpose` does; nothing is computed yet.

    Parameters
    ----------
    x : dask array (N, C, D1, …, Dn)
        As in :func:`gpuconv.dask.conv`.
    w : array (C, M/group, k1, …, kn), dask array of one chunk, or PackedWeights
    b : array (M,), or dask array of one chunk, optional
    auto_pad, dilations, group, kernel_shape, output_padding, output_shape, pads, strides, layout, activation
        As in :func:`gpuconv.conv_transpose`.
    precision : {"ieee", "tf32", "3xtf32"}, optional
        As in :func:`gpuconv.dask.conv`.
    invariant : {"batch"}, optional
        As in :func:`gpuconv.dask.conv`.
    residual : dask array (N, M, Q1, …, Qn), optional
        As in :func:`gpuconv.dask.conv`.

    Returns
    -------
    dask array (N, M, Q1, …, Qn)
        Cut where x is: input i along a spatial axis goes with output ``i * stride``. What no input reaches has a
        block of its own, where that is a stride or more. Values as in :func:`gpuconv.dask.conv`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As in :func:`gpuconv.dask.conv`.

    Examples
    --------
    >>> import dask.array as da, numpy as np, gpuconv.dask
    >>> x = da.from_array(np.array([[[1, 2, 3]]], np.float32), chunks=(1, 1, 2))
    >>> y = gpuconv.dask.conv_transpose(x, np.array([[[1, 10]]], np.float32), strides=[2])
    >>> y.chunks, y.compute()
    (((1,), (1,), (4, 2)), array([[[ 1., 10.,  2., 20.,  3., 30.]]], dtype=float32))
    """
    attributes = {
        "auto_pad": auto_pad,
        "dilations": dilations,
        "group": group,
        "kernel_shape": kernel_shape,
        "output_padding": output_padding,
        "output_shape": output_shape,
        "pads": pads,
        "strides": strides,
    }
    arrays = {"w": w, "b": b, "residual": residual}
    settings = {"activation": activation, "precision": precision, "invariant": invariant}
    return _convolve.lazy("conv_transpose", x, arrays, layout, settings, attributes)


@refusing
def max_pool(
    x: Array,
    kernel_shape: PerAxis,
    *,
    auto_pad: AutoPad | bytes = "NOTSET",
    ceil_mode: int = 0,
    dilations: PerAxis | None = None,
    pads: PerAxis | None = None,
    storage_order: int = 0,
    strides: PerAxis | None = None,
    layout: Layout = "NCHW",
    return_indices: bool = False,
    indices_in: IndicesIn = "tensor",
) -> Any:
    """Take the maximum of every window of a dask array as :func:`gpuconv.max_pool` does; nothing is computed yet.

    Parameters
    ----------
    x : dask array (N, C, D1, …, Dn)
        Of NumPy or CuPy blocks, cut along any axes at any places, with known sizes.
    kernel_shape, auto_pad, ceil_mode, dilations, pads, storage_order, strides, layout
        As in :func:`gpuconv.max_pool`.
    return_indices : bool
        Also return the Indices. One task makes a block of both.
    indices_in : {"tensor", "plane"}
        As in :func:`gpuconv.max_pool`.

    Returns
    -------
    y : dask array (N, C, Q1, …, Qn)
        Of x's dtype, the values of :func:`gpuconv.max_pool`. Cut where x is: output q along a spatial axis goes with
        input ``q * stride``.
    indices : dask array of int64 (N, C, Q1, …, Qn), with return_indices only
        They count elements of the whole x, or of its planes, wherever it is cut.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As in :func:`gpuconv.max_pool`; also for unknown sizes.

    Examples
    --------
    >>> import dask.array as da, numpy as np, gpuconv.dask
    >>> x = da.from_array(np.array([[[3, 1, 4, 1, 5]]], np.float32), chunks=(1, 1, 3))
    >>> y, indices = gpuconv.dask.max_pool(x, kernel_shape=[2], strides=[2], ceil_mode=1, return_indices=True)
    >>> y.compute().tolist(), indices.compute().tolist()
    ([[[3.0, 4.0, 5.0]]], [[[0, 2, 4]]])
    """
    attributes = {
        "auto_pad": auto_pad,
        "ceil_mode": ceil_mode,
        "dilations": dilations,
        "indices_in": indices_in,
        "kernel_shape": kernel_shape,
        "pads": pads,
        "storage_order": storage_order,
        "strides": strides,
    }
    return _pool.lazy(x, layout, return_indices, attributes)


@refusing
def average_pool(
    x: Array,
    kernel_shape: PerAxis,
    *,
    auto_pad: AutoPad | bytes = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: PerAxis | None = None,
    pads: PerAxis | None = None,
    strides: PerAxis | None = None,
    layout: Layout = "NCHW",
) -> Any:
    """Take the mean of every window of a dask array as :func:`gpuconv.average_pool` does; nothing is computed yet.

    Parameters
    ----------
    x : dask array (N, C, D1, …, Dn)
        As in :func:`gpuconv.dask.max_pool`.
    kernel_shape, auto_pad, ceil_mode, count_include_pad, dilations, pads, strides, layout
        As in :func:`gpuconv.average_pool`.

    Returns
    -------
    dask array (N, C, Q1, …, Qn)
        Of x's dtype, the values of :func:`gpuconv.average_pool` within its bound: sums may have another order. Cut as
        in :func:`gpuconv.dask.max_pool`; with ``count_include_pad``, windows that begin behind x have chunks of their
        own.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As in :func:`gpuconv.average_pool`; also for unknown sizes.

    Examples
    --------
    >>> import dask.array as da, numpy as np, gpuconv.dask
    >>> x = da.from_array(np.array([[[3, 1, 4, 1, 5]]], np.float32), chunks=(1, 1, 3))
    >>> gpuconv.dask.average_pool(x, kernel_shape=[2], strides=[2], ceil_mode=1).compute()
    array([[[2. , 2.5, 5. ]]], dtype=float32)
    """
    attributes = {
        "auto_pad": auto_pad,
        "ceil_mode": ceil_mode,
        "count_include_pad": count_include_pad,
        "dilations": dilations,
        "kernel_shape": kernel_shape,
        "pads": pads,
        "strides": strides,
    }
    return _pool.lazy_averages(x, layout, attributes)
