"""The public functions of gpuconv.dask, with the signatures of the functions for arrays in memory.

Each validates its arguments at once and returns a lazy dask array; the docstrings say what differs from gpuconv.
"""

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
    """Convolve a dask array lazily, as :func:`gpuconv.conv` does an array in memory.

    Parameters
    ----------
    x : dask array (N, C, D1, …, Dn)
        With NumPy or CuPy blocks of known sizes, chunked in any way. A task holds one block of the result and the
        inputs it needs: all channels of its groups, and along each spatial axis the windows' halo, which may reach into
        several blocks.
    w : array (M, C/group, k1, …, kn), dask array of one chunk, or PackedWeights
        In the library of x's blocks. Packed weights are shared by the threads of a process, and packed again in every
        other process that uses them.
    b : array (M,), or dask array of one chunk, optional
    auto_pad, dilations, group, kernel_shape, pads, strides, layout, activation
        As in :func:`gpuconv.conv`.
    precision : {"ieee", "tf32", "3xtf32"}, optional
        Default: the setting in effect when this function is called, not when the result is computed.
    invariant : {"batch"}, optional
        As in :func:`gpuconv.conv`, for chunks of whole images. Default: as for ``precision``.
    residual : dask array (N, M, Q1, …, Qn), optional
        As in :func:`gpuconv.conv`; it is rechunked to the chunks of the result.

    Returns
    -------
    dask array (N, M, Q1, …, Qn)
        In x's dtype. Chunk boundaries follow those of x: along a spatial axis, output q belongs to input ``q *
        stride``. Channels are divided only between groups. Results satisfy the error bounds of :func:`gpuconv.conv`;
        where they are rounded, blocks of other sizes may sum in another order.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As in :func:`gpuconv.conv`; also for unknown chunk sizes, weights or bias of several chunks, and a residual that
        is not a dask array.

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
    """Compute ConvTranspose of a dask array lazily, as :func:`gpuconv.conv_transpose` does.

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
        Chunk boundaries follow those of x: along a spatial axis, input i belongs to output ``i * stride``. Outputs that
        no input reaches form a chunk of their own if there are ``stride`` or more. Values as in
        :func:`gpuconv.dask.conv`.

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
    """Compute MaxPool of a dask array lazily, as :func:`gpuconv.max_pool` does.

    Parameters
    ----------
    x : dask array (N, C, D1, …, Dn)
        With NumPy or CuPy blocks of known sizes, chunked in any way.
    kernel_shape, auto_pad, ceil_mode, dilations, pads, storage_order, strides, layout
        As in :func:`gpuconv.max_pool`.
    return_indices : bool
        Also return the Indices. One task computes a block of both.
    indices_in : {"tensor", "plane"}
        As in :func:`gpuconv.max_pool`.

    Returns
    -------
    y : dask array (N, C, Q1, …, Qn)
        In x's dtype, with the values of :func:`gpuconv.max_pool`. Chunk boundaries follow those of x: along a spatial
        axis, output q belongs to input ``q * stride``.
    indices : dask array of int64 (N, C, Q1, …, Qn), with return_indices only
        Positions in the whole x, or in its planes, independent of the chunks.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As in :func:`gpuconv.max_pool`; also for unknown chunk sizes.

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
    """Compute AveragePool of a dask array lazily, as :func:`gpuconv.average_pool` does.

    Parameters
    ----------
    x : dask array (N, C, D1, …, Dn)
        As in :func:`gpuconv.dask.max_pool`.
    kernel_shape, auto_pad, ceil_mode, count_include_pad, dilations, pads, strides, layout
        As in :func:`gpuconv.average_pool`.

    Returns
    -------
    dask array (N, C, Q1, …, Qn)
        In x's dtype, within the error bound of :func:`gpuconv.average_pool`: sums may have another order. Chunks are as
        in :func:`gpuconv.dask.max_pool`; with ``count_include_pad``, windows that begin after the end of x form chunks
        of their own.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As in :func:`gpuconv.average_pool`; also for unknown chunk sizes.

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
