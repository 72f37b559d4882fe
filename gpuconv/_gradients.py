"""The public gradients of conv and conv_transpose with respect to input (dgrad), weights (wgrad) and bias."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from gpuconv._call import run
from gpuconv.rules.geometry import AutoPad, PerAxis
from gpuconv.rules.invariance import Invariance
from gpuconv.rules.layout import Layout
from gpuconv.rules.precision import Precision
from gpuconv.rules.signatures import Array, public, refuse

if TYPE_CHECKING:
    from numpy.typing import NDArray

_T = TypeVar("_T", bound=np.generic)


@overload
def conv_input_grad(
    dy: NDArray[_T],
    w: Array,
    x_shape: Iterable[int],
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
    out: NDArray[_T] | None = None,
) -> NDArray[_T]: ...


@overload
def conv_input_grad(
    dy: Array,
    w: Array,
    x_shape: Iterable[int],
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
    out: Array | None = None,
) -> Any: ...


@public("dy", "w", "x_shape")
def conv_input_grad(
    dy: Any = None,
    w: Any = None,
    x_shape: Iterable[int] | None = None,
    *more: Any,
    auto_pad: AutoPad | bytes = "NOTSET",
    dilations: PerAxis | None = None,
    group: int = 1,
    kernel_shape: PerAxis | None = None,
    pads: PerAxis | None = None,
    strides: PerAxis | None = None,
    layout: Layout = "NCHW",
    precision: Precision | None = None,
    invariant: Invariance | None = None,
    out: Any = None,
    **others: Any,
) -> Any:
    """Compute the gradient of :func:`conv` with respect to x (dgrad).

    ``dx[n, c, i]`` is the sum of ``dy[n, m, q] * w[m, c, t]`` over all outputs q and taps t that use input i.

    Parameters
    ----------
    dy : array (N, M, Q1, …, Qn)
        Gradient with respect to the result of the forward call. NumPy and CuPy arrays as in :func:`conv`.
    w : array (M, C/group, k1, …, kn)
        The forward call's weights, of dy's dtype.
    x_shape : sequence of int
        Shape of the forward call's x, in its layout.
    auto_pad, dilations, group, kernel_shape, pads, strides, layout, precision, invariant
        As in the forward call.
    out : array of x_shape, optional
        Written in place and returned; must not share memory with an input.

    Returns
    -------
    array of x_shape
        Of dy's dtype and library. Inputs that no output uses have gradient 0. Rounding as in :func:`conv`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError, MemoryError
        As :func:`conv` for the forward call; also if dy has another shape than its result.

    Examples
    --------
    >>> import numpy as np, gpuconv
    >>> w = np.array([[[1, 10]]], np.float32)
    >>> gpuconv.conv_input_grad(np.ones((1, 1, 2), np.float32), w, (1, 1, 4), strides=[2])
    array([[[ 1., 10.,  1., 10.]]], dtype=float32)

    Complex numbers are never conjugated, neither here nor in :func:`conv`. For the adjoint, pass conjugate weights:

    >>> x, w = np.array([[[1, 2j, 3]]]), np.array([[[1j, 2]]])
    >>> y = gpuconv.conv(x, w)
    >>> np.vdot(y, y) == np.vdot(x, gpuconv.conv_input_grad(y, w.conj(), x.shape))
    np.True_
    """
    if others or more:
        refuse(conv_input_grad, others, more)
    attributes = {
        "auto_pad": auto_pad,
        "dilations": dilations,
        "group": group,
        "kernel_shape": kernel_shape,
        "pads": pads,
        "strides": strides,
        "x_shape": x_shape,
    }
    return run("conv_input_grad", {"dy": dy, "w": w}, attributes, layout, precision, out, invariant=invariant)


@overload
def conv_weight_grad(
    x: NDArray[_T],
    dy: Array,
    w_shape: Iterable[int],
    *,
    auto_pad: AutoPad | bytes = "NOTSET",
    dilations: PerAxis | None = None,
    group: int = 1,
    kernel_shape: PerAxis | None = None,
    pads: PerAxis | None = None,
    strides: PerAxis | None = None,
    layout: Layout = "NCHW",
    precision: Precision | None = None,
    out: NDArray[_T] | None = None,
) -> NDArray[_T]: ...


@overload
def conv_weight_grad(
    x: Array,
    dy: Array,
    w_shape: Iterable[int],
    *,
    auto_pad: AutoPad | bytes = "NOTSET",
    dilations: PerAxis | None = None,
    group: int = 1,
    kernel_shape: PerAxis | None = None,
    pads: PerAxis | None = None,
    strides: PerAxis | None = None,
    layout: Layout = "NCHW",
    precision: Precision | None = None,
    out: Array | None = None,
) -> Any: ...


@public("x", "dy", "w_shape")
def conv_weight_grad(
    x: Any = None,
    dy: Any = None,
    w_shape: Iterable[int] | None = None,
    *more: Any,
    auto_pad: AutoPad | bytes = "NOTSET",
    dilations: PerAxis | None = None,
    group: int = 1,
    kernel_shape: PerAxis | None = None,
    pads: PerAxis | None = None,
    strides: PerAxis | None = None,
    layout: Layout = "NCHW",
    precision: Precision | None = None,
    out: Any = None,
    **others: Any,
) -> Any:
    """Compute the gradient of :func:`conv` with respect to w (wgrad).

    ``dw[m, c, t]`` is the sum of ``dy[n, m, q] * x[n, c, i]`` over all images n and all outputs q, where i is the input
    that q uses through tap t. The order of the sum is fixed: the same call gives the same bits.

    Parameters
    ----------
    x : array (N, C, D1, …, Dn)
        As in the forward call.
    dy : array (N, M, Q1, …, Qn)
        Gradient with respect to its result, of x's dtype.
    w_shape : sequence of int
        (M, C/group, k1, …, kn), the shape of its weights.
    auto_pad, dilations, group, kernel_shape, pads, strides, layout, precision
        As in the forward call.
    out : array of w_shape, optional
        Written in place and returned; must not share memory with an input.

    Returns
    -------
    array of w_shape
        Of x's dtype and library. Taps that only meet padding have gradient 0. Accumulation and error bounds as in
        :func:`conv`, where K is the number of products per sum.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError, MemoryError
        As :func:`conv` for the forward call; also if dy has another shape than its result.

    Examples
    --------
    >>> import numpy as np, gpuconv
    >>> x = np.array([[[1, 2, 3, 4]]], np.float32)
    >>> gpuconv.conv_weight_grad(x, np.ones((1, 1, 3), np.float32), (1, 1, 2))
    array([[[6., 9.]]], dtype=float32)

    With groups, each filter has gradients for the channels of its own group; taps that only meet padding have 0:

    >>> x, dy = np.arange(1.0, 9).reshape(1, 4, 2), np.ones((1, 2, 1))
    >>> gpuconv.conv_weight_grad(x, dy, (2, 2, 3), group=2, pads=[0, 1])[:, :, 1:].tolist()
    [[[2.0, 0.0], [4.0, 0.0]], [[6.0, 0.0], [8.0, 0.0]]]
    """
    if others or more:
        refuse(conv_weight_grad, others, more)
    attributes = {
        "auto_pad": auto_pad,
        "dilations": dilations,
        "group": group,
        "kernel_shape": kernel_shape,
        "pads": pads,
        "strides": strides,
        "w_shape": w_shape,
    }
    return run("conv_weight_grad", {"x": x, "dy": dy}, attributes, layout, precision, out)


@overload
def conv_bias_grad(
    dy: NDArray[_T],
    *,
    layout: Layout = "NCHW",
    out: NDArray[_T] | None = None,
) -> NDArray[_T]: ...


@overload
def conv_bias_grad(dy: Array, *, layout: Layout = "NCHW", out: Array | None = None) -> Any: ...


@public("dy")
def conv_bias_grad(dy: Any = None, *more: Any, layout: Layout = "NCHW", out: Any = None, **others: Any) -> Any:
    """Compute the gradient of :func:`conv` with respect to b: the sum of dy over batch and space.

    Parameters
    ----------
    dy : array (N, M, Q1, …, Qn)
        Gradient with respect to the result of the forward call.
    layout : {"NCHW", "NHWC"}
        As in the forward call.
    out : array (M,), optional
        Written in place and returned; must not share memory with dy.

    Returns
    -------
    array (M,)
        Of dy's dtype and library. Summed in float32 (float64 for float64) in a fixed order and rounded once.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError, MemoryError
        As in :func:`conv`.

    Examples
    --------
    >>> import numpy as np, gpuconv
    >>> gpuconv.conv_bias_grad(np.arange(6, dtype=np.float32).reshape(1, 2, 3))
    array([ 3., 12.], dtype=float32)
    """
    if others or more:
        refuse(conv_bias_grad, others, more)
    return run("conv_bias_grad", {"dy": dy}, {}, layout, None, out)


@overload
def conv_transpose_input_grad(
    dy: NDArray[_T],
    w: Array,
    x_shape: Iterable[int],
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
    out: NDArray[_T] | None = None,
) -> NDArray[_T]: ...


@overload
def conv_transpose_input_grad(
    dy: Array,
    w: Array,
    x_shape: Iterable[int],
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
    out: Array | None = None,
) -> Any: ...


@public("dy", "w", "x_shape")
def conv_transpose_input_grad(
    dy: Any = None,
    w: Any = None,
    x_shape: Iterable[int] | None = None,
    *more: Any,
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
    out: Any = None,
    **others: Any,
) -> Any:
    """Compute the gradient of :func:`conv_transpose` with respect to x (dgrad): the Conv of dy with w.

    Parameters
    ----------
    dy : array (N, M, Q1, …, Qn)
        Gradient with respect to the result of the forward call.
    w : array (C, M/group, k1, …, kn)
        The forward call's weights, of dy's dtype.
    x_shape : sequence of int
        Shape of the forward call's x, in its layout.
    auto_pad, dilations, group, kernel_shape, output_padding, output_shape, pads, strides, layout, precision, invariant
        As in the forward call.
    out : array of x_shape, optional
        Written in place and returned; must not share memory with an input.

    Returns
    -------
    array of x_shape
        Of dy's dtype and library. Rounding as in :func:`conv`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError, MemoryError
        As :func:`conv_transpose` for the forward call; also if dy has another shape than its result.

    Examples
    --------
    >>> import numpy as np, gpuconv
    >>> w = np.array([[[1, 10]]], np.float32)
    >>> dy = np.array([[[1, 2, 3, 4]]], np.float32)
    >>> gpuconv.conv_transpose_input_grad(dy, w, (1, 1, 2), strides=[2])
    array([[[21., 43.]]], dtype=float32)
    """
    if others or more:
        refuse(conv_transpose_input_grad, others, more)
    attributes = {
        "auto_pad": auto_pad,
        "dilations": dilations,
        "group": group,
        "kernel_shape": kernel_shape,
        "output_padding": output_padding,
        "output_shape": output_shape,
        "pads": pads,
        "strides": strides,
        "x_shape": x_shape,
    }
    return run("conv_transpose_input_grad", {"dy": dy, "w": w}, attributes, layout, precision, out, invariant=invariant)


@overload
def conv_transpose_weight_grad(
    x: NDArray[_T],
    dy: Array,
    w_shape: Iterable[int],
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
    out: NDArray[_T] | None = None,
) -> NDArray[_T]: ...


@overload
def conv_transpose_weight_grad(
    x: Array,
    dy: Array,
    w_shape: Iterable[int],
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
    out: Array | None = None,
) -> Any: ...


@public("x", "dy", "w_shape")
def conv_transpose_weight_grad(
    x: Any = None,
    dy: Any = None,
    w_shape: Iterable[int] | None = None,
    *more: Any,
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
    out: Any = None,
    **others: Any,
) -> Any:
    """Compute the gradient of :func:`conv_transpose` with respect to w (wgrad).

    Parameters
    ----------
    x : array (N, C, D1, …, Dn)
        As in the forward call.
    dy : array (N, M, Q1, …, Qn)
        Gradient with respect to its result, of x's dtype.
    w_shape : sequence of int
        (C, M/group, k1, …, kn), the shape of its weights.
    auto_pad, dilations, group, kernel_shape, output_padding, output_shape, pads, strides, layout, precision
        As in the forward call.
    out : array of w_shape, optional
        Written in place and returned; must not share memory with an input.

    Returns
    -------
    array of w_shape
        Of x's dtype and library; accumulation as in :func:`conv_weight_grad`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError, MemoryError
        As :func:`conv_transpose` for the forward call; also if dy has another shape than its result.

    Examples
    --------
    >>> import numpy as np, gpuconv
    >>> x, dy = np.array([[[1, 2]]], np.float32), np.array([[[1, 2, 3, 4]]], np.float32)
    >>> gpuconv.conv_transpose_weight_grad(x, dy, (1, 1, 2), strides=[2])
    array([[[ 7., 10.]]], dtype=float32)
    """
    if others or more:
        refuse(conv_transpose_weight_grad, others, more)
    attributes = {
        "auto_pad": auto_pad,
        "dilations": dilations,
        "group": group,
        "kernel_shape": kernel_shape,
        "output_padding": output_padding,
        "output_shape": output_shape,
        "pads": pads,
        "strides": strides,
        "w_shape": w_shape,
    }
    return run("conv_transpose_weight_grad", {"x": x, "dy": dy}, attributes, layout, precision, out)


@overload
def conv_transpose_bias_grad(
    dy: NDArray[_T],
    *,
    layout: Layout = "NCHW",
    out: NDArray[_T] | None = None,
) -> NDArray[_T]: ...


@overload
def conv_transpose_bias_grad(dy: Array, *, layout: Layout = "NCHW", out: Array | None = None) -> Any: ...


@public("dy")
def conv_transpose_bias_grad(
    dy: Any = None, *more: Any, layout: Layout = "NCHW", out: Any = None, **others: Any
) -> Any:
    """Compute the gradient of :func:`conv_transpose` with respect to b, the same as :func:`conv_bias_grad`.

    Parameters
    ----------
    dy : array (N, M, Q1, …, Qn)
        Gradient with respect to the result of the forward call.
    layout : {"NCHW", "NHWC"}
        As in the forward call.
    out : array (M,), optional
        Written in place and returned; must not share memory with dy.

    Returns
    -------
    array (M,)
        As from :func:`conv_bias_grad`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError, MemoryError
        As in :func:`conv`.

    Examples
    --------
    >>> import numpy as np, gpuconv
    >>> gpuconv.conv_transpose_bias_grad(np.ones((2, 1, 3, 3), np.float32))
    array([18.], dtype=float32)
    """
    if others or more:
        refuse(conv_transpose_bias_grad, others, more)
    return run("conv_transpose_bias_grad", {"dy": dy}, {}, layout, None, out)
