"""The public pooling functions: MaxPool, AveragePool, GlobalAveragePool, their gradients, and MaxUnpool."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np

from gpuconv import _arrays, cpu, cuda
from gpuconv._call import run
from gpuconv._errors import ArgumentTypeError
from gpuconv.rules import dtypes, memory
from gpuconv.rules import geometry as geometries
from gpuconv.rules import layout as layouts
from gpuconv.rules.geometry import AutoPad, MaxPoolGeometry, PerAxis
from gpuconv.rules.indices import IndicesIn
from gpuconv.rules.integers import flag
from gpuconv.rules.invariance import CURRENT
from gpuconv.rules.layout import Layout
from gpuconv.rules.signatures import Array, public, refuse

if TYPE_CHECKING:
    from numpy.typing import NDArray

_T = TypeVar("_T", bound=np.generic)


@overload
def max_pool(
    x: NDArray[_T],
    kernel_shape: PerAxis,
    *,
    auto_pad: AutoPad | bytes = "NOTSET",
    ceil_mode: int = 0,
    dilations: PerAxis | None = None,
    pads: PerAxis | None = None,
    storage_order: int = 0,
    strides: PerAxis | None = None,
    layout: Layout = "NCHW",
    return_indices: Literal[False] = False,
    indices_in: IndicesIn = "tensor",
    out: NDArray[_T] | None = None,
) -> NDArray[_T]: ...


@overload
def max_pool(
    x: NDArray[_T],
    kernel_shape: PerAxis,
    *,
    auto_pad: AutoPad | bytes = "NOTSET",
    ceil_mode: int = 0,
    dilations: PerAxis | None = None,
    pads: PerAxis | None = None,
    storage_order: int = 0,
    strides: PerAxis | None = None,
    layout: Layout = "NCHW",
    return_indices: Literal[True],
    indices_in: IndicesIn = "tensor",
    out: tuple[NDArray[_T] | None, NDArray[np.int64] | None] | None = None,
) -> tuple[NDArray[_T], NDArray[np.int64]]: ...


@overload
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
    return_indices: Literal[True],
    indices_in: IndicesIn = "tensor",
    out: tuple[Array | None, Array | None] | None = None,
) -> tuple[Any, Any]: ...


@overload
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
    out: Array | tuple[Array | None, Array | None] | None = None,
) -> Any: ...


@public("x", "kernel_shape")
def max_pool(
    x: Any = None,
    kernel_shape: PerAxis | None = None,
    *more: Any,
    auto_pad: AutoPad | bytes = "NOTSET",
    ceil_mode: int = 0,
    dilations: PerAxis | None = None,
    pads: PerAxis | None = None,
    storage_order: int = 0,
    strides: PerAxis | None = None,
    layout: Layout = "NCHW",
    return_indices: Any = False,
    indices_in: IndicesIn = "tensor",
    out: Any = None,
    **others: Any,
) -> Any:
    """Compute ONNX MaxPool, the maximum of every window (opsets 1 to 28; section "MaxPool" of the specification).

    Parameters
    ----------
    x : array (N, C, D1, …, Dn)
        From 1 to 62 spatial axes; float16, bfloat16, float32, float64, int8 or uint8. Never written. Three axes are
        (N, C, L): pass an image (C, H, W) as ``x[None]``. :func:`strict` raises an error for three axes.
    kernel_shape : sequence of int, one per spatial axis, or an int for all of them
    auto_pad : {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"}
        As in :func:`conv`.
    ceil_mode : {0, 1}
        1 rounds the number of windows up, then drops the last one if it would start beyond the input and its beginning
        padding. Also applies with VALID; changes nothing with SAME.
    dilations, strides : sequence of int, one per spatial axis, or an int for all of them, default 1
    pads : sequence of int, or an int for all sides of all axes, default 0
        In elements: all beginnings, then all ends. Windows are clipped to the input, so there is no pad value. With
        pads of at least the dilated kernel, some windows hold only padding; :func:`strict` makes that an error.
    storage_order : {0, 1}
        1 makes Indices column-major over the spatial axes; the offset of image and channel is unchanged.
    layout : {"NCHW", "NHWC"}
        As in :func:`conv`. Indices have the shape of y in this layout, but count elements as if x were NCHW.
    return_indices : bool
        Whether to compute and return Indices too.
    indices_in : {"tensor", "plane"}
        Which elements Indices count: those of all of x, as in ONNX, or those of each plane (one channel of one image),
        as in PyTorch, which are less by ``D1 * … * Dn * (n * C + c)``.
    out : array, or pair of arrays with return_indices, optional
        Written in place and returned. Either entry of the pair may be None.

    Returns
    -------
    y : array (N, C, Q1, …, Qn)
        Of x's dtype and library. NaN propagates. A window without any element gives the dtype's lowest finite value.
        With return_indices, y is the element at its index, bit for bit; without it, a zero may have either sign and a
        NaN any payload.
    indices : int64 array (N, C, Q1, …, Qn), with return_indices only
        Position in x (N, C, D1, …, Dn) flattened, or in the plane (D1, …, Dn) flattened, of the first maximum (first
        NaN, if any) in row-major order; the two zeros are equal. -1 for a window without any element.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError, MemoryError
        As in :func:`conv`.

    Examples
    --------
    >>> import numpy as np, gpuconv
    >>> x = np.array([[[3, 1, 4, 1, 5]]], np.float32)
    >>> gpuconv.max_pool(x, kernel_shape=[2], strides=[2], ceil_mode=1, return_indices=True)
    (array([[[3., 4., 5.]]], dtype=float32), array([[[0, 2, 4]]]))

    The first NaN of a window has its index, a window in the padding alone has none; channels may be last:

    >>> x = np.array([[[np.nan, 1], [7, np.nan], [np.nan, 8]]])
    >>> y, indices = gpuconv.max_pool(x, kernel_shape=[2], pads=[2, 0], layout="NHWC", return_indices=True)
    >>> y[0, 1:].tolist(), indices[0].tolist()
    ([[nan, 1.0], [nan, nan], [nan, nan]], [[-1, -1], [0, 3], [0, 4], [2, 4]])
    """
    if others or more:
        refuse(max_pool, others, more)
    library, x = _arrays.resolve_one("max_pool", "x", x)
    if return_indices is not False and return_indices is not True:
        return_indices = flag("max_pool", "return_indices", return_indices)
    outs: tuple[Any, ...] = _pair(out) if return_indices else (out,)
    given = outs
    if out is not None:
        outs = _checked_outs(outs, library, x)
    if library == "cuda":
        attributes = auto_pad, ceil_mode, dilations, indices_in, kernel_shape, pads, storage_order, strides
        results = cuda.run("max_pool", (x,), outs, attributes, layout, invariant=CURRENT.get())
    else:
        geometry = geometries.max_pool(
            x.shape,
            kernel_shape=kernel_shape,
            auto_pad=auto_pad,
            ceil_mode=ceil_mode,
            dilations=dilations,
            indices_in=indices_in,
            layout=layout,
            pads=pads,
            storage_order=storage_order,
            strides=strides,
        )
        results = _maxima(x, geometry, layout, outs)
    if out is not None:
        results = [made if own is None else own for own, made in zip(given, results, strict=True)]
    return tuple(results) if return_indices else results[0]


def _maxima(x: Any, geometry: MaxPoolGeometry, layout: Layout, outs: tuple[Any, ...]) -> list[Any]:
    """Compute MaxPool of a NumPy array; also Indices if ``outs`` has two entries (arrays to write into, or None)."""
    dtypes.check("max_pool", x=x)
    shape, view = layouts.as_given(layout, geometry.y_shape), partial(layouts.view, layout)
    if len(outs) == 1:
        y = memory.result("max_pool", outs[0], shape, x.dtype, x=x)
        cpu.max_pool(view(x), view(y), None, geometry, invariant_layout=layout if CURRENT.get() else None)
        return [y]
    y = memory.result("max_pool", outs[0], shape, x.dtype, name="out[0]", x=x)
    indices = memory.result("max_pool", outs[1], shape, np.dtype(np.int64), name="out[1]", x=x, y=y)
    cpu.max_pool(view(x), view(y), view(indices), geometry)
    return [y, indices]


def _checked_outs(outs: tuple[Any, ...], library: str, x: Any) -> tuple[Any, ...]:
    """Return the ``out`` arrays of a call, viewed as plain arrays; None stays None."""
    names = ("out[0]", "out[1]") if len(outs) == 2 else ("out",)
    return tuple(
        None if array is None else _arrays.check_out("max_pool", name, array, library, x)
        for name, array in zip(names, outs, strict=True)
    )


def _pair(out: Any) -> tuple[Any, Any]:
    if out is None:
        return None, None
    if not isinstance(out, tuple) or len(out) != 2:
        raise ArgumentTypeError("max_pool: with return_indices=True, out must be a pair (y, indices)")
    return out


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
    indices_in: IndicesIn = "tensor",
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
    indices_in: IndicesIn = "tensor",
    out: Array | None = None,
) -> Any: ...


@public("dy", "indices", "x_shape", "kernel_shape")
def max_pool_grad(
    dy: Any = None,
    indices: Any = None,
    x_shape: Iterable[int] | None = None,
    *more: Any,
    kernel_shape: PerAxis | None = None,
    auto_pad: AutoPad | bytes = "NOTSET",
    ceil_mode: int = 0,
    dilations: PerAxis | None = None,
    pads: PerAxis | None = None,
    storage_order: int = 0,
    strides: PerAxis | None = None,
    layout: Layout = "NCHW",
    check_indices: bool = True,
    indices_in: IndicesIn = "tensor",
    out: Any = None,
    **others: Any,
) -> Any:
    """Compute the gradient of :func:`max_pool` with respect to x: dy of each window is added to the window's maximum.

    Parameters
    ----------
    dy : array (N, C, Q1, …, Qn)
        Gradient with respect to the result of the forward call; float16, bfloat16, float32 or float64. NumPy and CuPy
        arrays as in :func:`conv`.
    indices : int64 array (N, C, Q1, …, Qn)
        The forward call's Indices. A window whose index is -1 passes its gradient to no element.
    x_shape : sequence of int
        Shape of the forward call's x, in its layout.
    kernel_shape, auto_pad, ceil_mode, dilations, pads, storage_order, strides, layout
        As in the forward call.
    check_indices : bool
        Whether to raise an error for an index that the forward call cannot have returned, because its element lies
        outside the window, before anything is written. With CUDA arrays, the check waits for the device. Without the
        check, the gradient of such a window is dropped.
    indices_in : {"tensor", "plane"}
        As in the forward call; "plane" for Indices of PyTorch's ``max_pool2d``.
    out : array of x_shape, optional
        Written in place and returned; must not share memory with an input.

    Returns
    -------
    array of x_shape
        Of dy's dtype and library. Summed in float32 (float64 for float64) in one fixed order and rounded once.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError, MemoryError
        As :func:`max_pool` for the forward call. Also if dy or indices have another shape than its result, indices are
        not int64, or an index is neither -1 nor that of an element in its window.

    Examples
    --------
    >>> import numpy as np, gpuconv
    >>> x = np.array([[[3, 1, 4, 1, 5]]], np.float32)
    >>> y, indices = gpuconv.max_pool(x, kernel_shape=[3], return_indices=True)
    >>> gpuconv.max_pool_grad(np.ones_like(y), indices, x.shape, kernel_shape=[3])
    array([[[0., 0., 2., 0., 1.]]], dtype=float32)
    """
    if others or more:
        refuse(max_pool_grad, others, more)
    attributes = {
        "auto_pad": auto_pad,
        "ceil_mode": ceil_mode,
        "dilations": dilations,
        "indices_in": indices_in,
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
    indices_in: IndicesIn = "tensor",
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
    indices_in: IndicesIn = "tensor",
    out: Array | None = None,
) -> Any: ...


@public("y", "indices", "kernel_shape")
def max_unpool(
    y: Any = None,
    indices: Any = None,
    output_shape: Iterable[int] | None = None,
    *more: Any,
    kernel_shape: PerAxis | None = None,
    pads: PerAxis | None = None,
    strides: PerAxis | None = None,
    layout: Layout = "NCHW",
    check_indices: bool = True,
    indices_in: IndicesIn = "tensor",
    out: Any = None,
    **others: Any,
) -> Any:
    """Compute ONNX MaxUnpool, which puts the maxima of :func:`max_pool` back to their positions (opsets 9 to 28).

    Parameters
    ----------
    y : array (N, C, Q1, …, Qn)
        Any dtype that :func:`max_pool` takes. NumPy and CuPy arrays as in :func:`conv`.
    indices : int64 array (N, C, Q1, …, Qn)
        Where each element goes: the row-major index in an array (N, C, D1, …, Dn) with
        ``D = stride * (Q - 1) + kernel - pads``, even if ``output_shape`` is larger. -1 drops the element.
    output_shape : sequence of int, optional
        Spatial extents of the result, with or without N and C in front; at least D, unless Indices count elements of
        planes. Additional elements are at the end.
    kernel_shape, pads, strides
        As in the forward call: one entry per spatial axis (for pads, all beginnings, then all ends), or an int for
        all.
    layout : {"NCHW", "NHWC"}
        As in :func:`max_pool`.
    check_indices : bool
        As in :func:`max_pool_grad`, for a forward call with any dilation and ceil_mode. Without the check, each element
        goes where its index says, and is dropped if there is no such element.
    indices_in : {"tensor", "plane"}
        "plane" if Indices count the elements of each plane of the result, as in PyTorch. They are those of the forward
        call if ``output_shape`` is the shape of its x.
    out : array, optional
        Written in place and returned; must not share memory with an input.

    Returns
    -------
    array (N, C, D1, …, Dn)
        Of y's dtype and library; zero where no element goes. Of several elements with the same index, the last one in
        row-major order of (N, C, Q1, …) is kept.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError, MemoryError
        An attribute or a shape breaks a rule, indices are not int64, or an index is neither -1 nor that of an element
        that its window can contain.

    Examples
    --------
    >>> import numpy as np, gpuconv
    >>> y, indices = np.array([[[4, 5]]], np.float32), np.array([[[1, 2]]])
    >>> gpuconv.max_unpool(y, indices, kernel_shape=[2], strides=[2])
    array([[[0., 4., 5., 0.]]], dtype=float32)
    """
    if others or more:
        refuse(max_unpool, others, more)
    attributes = {
        "indices_in": indices_in,
        "kernel_shape": kernel_shape,
        "output_shape": output_shape,
        "pads": pads,
        "strides": strides,
    }
    return run("max_unpool", {"y": y, "indices": indices}, attributes, layout, None, out, check_indices)


@overload
def average_pool(
    x: NDArray[_T],
    kernel_shape: PerAxis,
    *,
    auto_pad: AutoPad | bytes = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: PerAxis | None = None,
    pads: PerAxis | None = None,
    strides: PerAxis | None = None,
    layout: Layout = "NCHW",
    out: NDArray[_T] | None = None,
) -> NDArray[_T]: ...


@overload
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
    out: Array | None = None,
) -> Any: ...


@public("x", "kernel_shape")
def average_pool(
    x: Any = None,
    kernel_shape: PerAxis | None = None,
    *more: Any,
    auto_pad: AutoPad | bytes = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: PerAxis | None = None,
    pads: PerAxis | None = None,
    strides: PerAxis | None = None,
    layout: Layout = "NCHW",
    out: Any = None,
    **others: Any,
) -> Any:
    """Compute ONNX AveragePool, the mean of every window (opsets 1 to 28; section "AveragePool" of the specification).

    Parameters
    ----------
    x : array (N, C, D1, …, Dn)
        From 1 to 62 spatial axes; float16, bfloat16, float32, float64, complex64 or complex128. Never written. Three
        axes are (N, C, L), as in :func:`max_pool`.
    kernel_shape : sequence of int, one per spatial axis, or an int for all of them
    auto_pad, ceil_mode, dilations, pads, strides
        As in :func:`max_pool`.
    count_include_pad : {0, 1}
        0 divides by the number of taps inside x; 1 also counts taps in the pads, those of SAME included. Taps beyond
        the pads, which ceil_mode can add to the last window, never count.
    layout : {"NCHW", "NHWC"}
        As in :func:`conv`.
    out : array, optional
        Written in place and returned; must not share memory with x.

    Returns
    -------
    array (N, C, Q1, …, Qn)
        Of x's dtype and library. Summed in float32 (float64 for float64), divided, and rounded once. A window in which
        no tap counts gives NaN, without a warning.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError, MemoryError
        As in :func:`conv`.

    Examples
    --------
    >>> import numpy as np, gpuconv
    >>> x = np.array([[[3, 1, 4, 1, 5]]], np.float32)
    >>> gpuconv.average_pool(x, kernel_shape=[2], strides=[2], ceil_mode=1)
    array([[[2. , 2.5, 5. ]]], dtype=float32)

    The padding counts only where that is asked for:

    >>> gpuconv.average_pool(x, 3, pads=1, strides=2).tolist()
    [[[2.0, 2.0, 3.0]]]
    >>> gpuconv.average_pool(x, 3, pads=1, strides=2, count_include_pad=1)[0, 0, ::2]
    array([1.3333334, 2.       ], dtype=float32)
    """
    if others or more:
        refuse(average_pool, others, more)
    attributes = {
        "auto_pad": auto_pad,
        "ceil_mode": ceil_mode,
        "count_include_pad": count_include_pad,
        "dilations": dilations,
        "kernel_shape": kernel_shape,
        "pads": pads,
        "strides": strides,
    }
    return run("average_pool", {"x": x}, attributes, layout, None, out)


@overload
def average_pool_grad(
    dy: NDArray[_T],
    x_shape: Iterable[int],
    *,
    kernel_shape: PerAxis,
    auto_pad: AutoPad | bytes = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: PerAxis | None = None,
    pads: PerAxis | None = None,
    strides: PerAxis | None = None,
    layout: Layout = "NCHW",
    out: NDArray[_T] | None = None,
) -> NDArray[_T]: ...


@overload
def average_pool_grad(
    dy: Array,
    x_shape: Iterable[int],
    *,
    kernel_shape: PerAxis,
    auto_pad: AutoPad | bytes = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: PerAxis | None = None,
    pads: PerAxis | None = None,
    strides: PerAxis | None = None,
    layout: Layout = "NCHW",
    out: Array | None = None,
) -> Any: ...


@public("dy", "x_shape", "kernel_shape")
def average_pool_grad(
    dy: Any = None,
    x_shape: Iterable[int] | None = None,
    *more: Any,
    kernel_shape: PerAxis | None = None,
    auto_pad: AutoPad | bytes = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: PerAxis | None = None,
    pads: PerAxis | None = None,
    strides: PerAxis | None = None,
    layout: Layout = "NCHW",
    out: Any = None,
    **others: Any,
) -> Any:
    """Compute the gradient of :func:`average_pool` with respect to x.

    Parameters
    ----------
    dy : array (N, C, Q1, …, Qn)
        Gradient with respect to the result of the forward call, of any dtype that :func:`average_pool` takes.
    x_shape : sequence of int
        Shape of the forward call's x, in its layout.
    kernel_shape, auto_pad, ceil_mode, count_include_pad, dilations, pads, strides, layout
        As in the forward call.
    out : array of x_shape, optional
        Written in place and returned; must not share memory with dy.

    Returns
    -------
    array of x_shape
        Of dy's dtype and library. Each element is the sum of dy, divided by the number of counted taps, over the
        windows that contain it. Summed in float32 (float64 for float64) in a fixed order and rounded once.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError, MemoryError
        As :func:`average_pool` for the forward call; also if dy has another shape than its result.

    Examples
    --------
    >>> import numpy as np, gpuconv
    >>> gpuconv.average_pool_grad(np.float32([[[2, 4]]]), (1, 1, 5), kernel_shape=[2], strides=[2])
    array([[[1., 1., 2., 2., 0.]]], dtype=float32)
    """
    if others or more:
        refuse(average_pool_grad, others, more)
    attributes = {
        "auto_pad": auto_pad,
        "ceil_mode": ceil_mode,
        "count_include_pad": count_include_pad,
        "dilations": dilations,
        "kernel_shape": kernel_shape,
        "pads": pads,
        "strides": strides,
        "x_shape": x_shape,
    }
    return run("average_pool_grad", {"dy": dy}, attributes, layout, None, out)


@overload
def global_average_pool(x: NDArray[_T], *, layout: Layout = "NCHW", out: NDArray[_T] | None = None) -> NDArray[_T]: ...


@overload
def global_average_pool(x: Array, *, layout: Layout = "NCHW", out: Array | None = None) -> Any: ...


@public("x")
def global_average_pool(x: Any = None, *more: Any, layout: Layout = "NCHW", out: Any = None, **others: Any) -> Any:
    """Compute ONNX GlobalAveragePool, the mean of every channel of every image (opsets 1 to 28).

    Parameters
    ----------
    x : array (N, C, D1, …, Dn)
        As in :func:`average_pool`.
    layout : {"NCHW", "NHWC"}
        As in :func:`conv`.
    out : array (N, C, 1, …, 1), optional
        Written in place and returned; must not share memory with x.

    Returns
    -------
    array (N, C, 1, …, 1)
        As :func:`average_pool` with one window over the whole image; NaN if that has no element. On CUDA devices, the
        order of a sum does not depend on N.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError, MemoryError
        As in :func:`conv`.

    Examples
    --------
    >>> import numpy as np, gpuconv
    >>> gpuconv.global_average_pool(np.arange(12, dtype=np.float32).reshape(1, 2, 2, 3)).tolist()
    [[[[2.5]], [[8.5]]]]
    """
    if others or more:
        refuse(global_average_pool, others, more)
    return run("global_average_pool", {"x": x}, {}, layout, None, out)


@overload
def global_average_pool_grad(
    dy: NDArray[_T], x_shape: Iterable[int], *, layout: Layout = "NCHW", out: NDArray[_T] | None = None
) -> NDArray[_T]: ...


@overload
def global_average_pool_grad(
    dy: Array, x_shape: Iterable[int], *, layout: Layout = "NCHW", out: Array | None = None
) -> Any: ...


@public("dy", "x_shape")
def global_average_pool_grad(
    dy: Any = None,
    x_shape: Iterable[int] | None = None,
    *more: Any,
    layout: Layout = "NCHW",
    out: Any = None,
    **others: Any,
) -> Any:
    """Compute the gradient of :func:`global_average_pool`: dy divided by the number of elements of the channel.

    Parameters
    ----------
    dy : array (N, C, 1, …, 1)
        Gradient with respect to the result of the forward call, of any dtype that :func:`average_pool` takes.
    x_shape : sequence of int
        Shape of the forward call's x, in its layout.
    layout : {"NCHW", "NHWC"}
        As in the forward call.
    out : array of x_shape, optional
        Written in place and returned; must not share memory with dy.

    Returns
    -------
    array of x_shape
        Of dy's dtype and library.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError, MemoryError
        As in :func:`average_pool_grad`.

    Examples
    --------
    >>> import numpy as np, gpuconv
    >>> gpuconv.global_average_pool_grad(np.float32([[[6]]]), (1, 1, 3))
    array([[[2., 2., 2.]]], dtype=float32)
    """
    if others or more:
        refuse(global_average_pool_grad, others, more)
    return run("global_average_pool_grad", {"dy": dy}, {"x_shape": x_shape}, layout, None, out)
