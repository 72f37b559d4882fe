"""Replacement for the convolution and pooling functions of ``cupy.cudnn``, which CuPy 14 removed.

Code written for ``from cupy import cudnn`` runs with ``from gpuconv.compat import cudnn``. Like cuDNN, the functions
write into arrays of the caller. They also accept NumPy arrays and any number of spatial axes. ``auto_tune``,
``tensor_core`` and ``deterministic`` are accepted but change nothing. Kernels are chosen by a cost model or by
:func:`gpuconv.tune`, tensor cores are used where they are exact, and every sum has a fixed order.

Other attributes of ``cupy.cudnn`` raise AttributeError: activations, softmax, normalisation, dropout, recurrent
networks, and cuDNN's descriptors.
"""

from __future__ import annotations

from typing import Any, NoReturn

from gpuconv import _conv, _gradients, _pooling
from gpuconv._errors import ArgumentError
from gpuconv.rules.geometry import Ints, PerAxis
from gpuconv.rules.integers import per_axis
from gpuconv.rules.layout import Layout

CUDNN_TENSOR_NCHW = 0
CUDNN_TENSOR_NHWC = 1
CUDNN_POOLING_MAX = 0
CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING = 1
CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING = 2
CUDNN_POOLING_MAX_DETERMINISTIC = 3

__all__ = [
    "CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING",
    "CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING",
    "CUDNN_POOLING_MAX",
    "CUDNN_POOLING_MAX_DETERMINISTIC",
    "CUDNN_TENSOR_NCHW",
    "CUDNN_TENSOR_NHWC",
    "convolution_backward_data",
    "convolution_backward_filter",
    "convolution_forward",
    "pooling_backward",
    "pooling_forward",
]

_LAYOUTS: dict[int, Layout] = {CUDNN_TENSOR_NCHW: "NCHW", CUDNN_TENSOR_NHWC: "NHWC"}
_TENSOR_CORES = ("always", "auto", "never")


def convolution_forward(
    x: Any,
    W: Any,  # noqa: N803  # the name that callers may use
    b: Any,
    y: Any,
    pad: PerAxis,
    stride: PerAxis,
    dilation: PerAxis,
    groups: int,
    *,
    auto_tune: bool,
    tensor_core: str,
    d_layout: int = CUDNN_TENSOR_NCHW,
    w_layout: int = CUDNN_TENSOR_NCHW,
) -> None:
    """Compute the convolution of x and W, plus b, into y; see :func:`gpuconv.conv`.

    Parameters
    ----------
    x : array (N, C, D1, …, Dn)
    W : array (M, C/groups, k1, …, kn)
    b : array (M,), or of as many elements, or None
    y : array (N, M, Q1, …, Qn)
    pad, stride, dilation : sequence of int, one per spatial axis, or an int for all of them
        Each axis is padded by the same amount at both ends.
    groups : int
    auto_tune, tensor_core
        Accepted; ``tensor_core`` must be "always", "auto" or "never".
    d_layout, w_layout : int
        ``CUDNN_TENSOR_NHWC`` for x and y, or for W, with their channels last.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError
        As :func:`gpuconv.conv`.

    Examples
    --------
    >>> import numpy as np
    >>> from gpuconv.compat import cudnn
    >>> x, W, y = np.ones((1, 1, 3, 3)), np.ones((1, 1, 2, 2)), np.empty((1, 1, 2, 2))
    >>> cudnn.convolution_forward(x, W, None, y, (0, 0), (1, 1), (1, 1), 1, auto_tune=False, tensor_core="auto")
    >>> y[0, 0]
    array([[4., 4.],
           [4., 4.]])
    """
    name = "convolution_forward"
    _check_tensor_core(name, tensor_core)
    attributes = _attributes(name, pad, stride, dilation, groups)
    _conv.conv(
        x, _filters(name, W, w_layout), _flat(b), **attributes, layout=_layout(name, "d_layout", d_layout), out=y
    )


def convolution_backward_filter(
    x: Any,
    gy: Any,
    gW: Any,  # noqa: N803
    pad: PerAxis,
    stride: PerAxis,
    dilation: PerAxis,
    groups: int,
    *,
    deterministic: bool,
    auto_tune: bool,
    tensor_core: str,
    d_layout: int = CUDNN_TENSOR_NCHW,
    w_layout: int = CUDNN_TENSOR_NCHW,
) -> None:
    """Compute the gradient with respect to the weights into gW; see :func:`gpuconv.conv_weight_grad`.

    Parameters
    ----------
    x : array (N, C, D1, …, Dn)
    gy : array (N, M, Q1, …, Qn)
    gW : array (M, C/groups, k1, …, kn)
    pad, stride, dilation, groups, auto_tune, tensor_core, d_layout, w_layout
        As in :func:`convolution_forward`.
    deterministic : bool
        Accepted; results are always deterministic.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError
        As :func:`gpuconv.conv_weight_grad`.

    Examples
    --------
    >>> import numpy as np
    >>> from gpuconv.compat import cudnn
    >>> x, gy, gW = np.arange(4.0).reshape(1, 1, 4), np.ones((1, 1, 3)), np.empty((1, 1, 2))
    >>> options = {"deterministic": True, "auto_tune": False, "tensor_core": "auto"}
    >>> cudnn.convolution_backward_filter(x, gy, gW, (0,), (1,), (1,), 1, **options)
    >>> gW[0]
    array([[3., 6.]])
    """
    name = "convolution_backward_filter"
    _check_tensor_core(name, tensor_core)
    out, layout = _filters(name, gW, w_layout), _layout(name, "d_layout", d_layout)
    attributes = _attributes(name, pad, stride, dilation, groups)
    _gradients.conv_weight_grad(x, gy, out.shape, **attributes, layout=layout, out=out)


def convolution_backward_data(
    W: Any,  # noqa: N803
    x: Any,
    b: Any,
    y: Any,
    pad: PerAxis,
    stride: PerAxis,
    dilation: PerAxis,
    groups: int,
    *,
    deterministic: bool,
    auto_tune: bool,
    tensor_core: str,
    d_layout: int = CUDNN_TENSOR_NCHW,
    w_layout: int = CUDNN_TENSOR_NCHW,
) -> None:
    """Compute the gradient with respect to the input, plus b, into y: a transposed convolution of x.

    See :func:`gpuconv.conv_input_grad` and :func:`gpuconv.conv_transpose`.

    Parameters
    ----------
    W : array (M, C/groups, k1, …, kn)
    x : array (N, M, Q1, …, Qn)
        Gradient with respect to the convolution's output.
    b : array (C,), or of as many elements, or None
    y : array (N, C, D1, …, Dn)
        In the shape of the convolution's input.
    pad, stride, dilation, groups, auto_tune, tensor_core, d_layout, w_layout
        Those of the convolution, as in :func:`convolution_forward`.
    deterministic : bool
        Accepted; results are always deterministic.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError
        As :func:`gpuconv.conv_input_grad`.

    Examples
    --------
    >>> import numpy as np
    >>> from gpuconv.compat import cudnn
    >>> W, x, y = np.array([[[1.0, 10.0]]]), np.ones((1, 1, 2)), np.empty((1, 1, 4))
    >>> options = {"deterministic": True, "auto_tune": False, "tensor_core": "auto"}
    >>> cudnn.convolution_backward_data(W, x, None, y, (0,), (2,), (1,), 1, **options)
    >>> y[0]
    array([[ 1., 10.,  1., 10.]])
    """
    name = "convolution_backward_data"
    _check_tensor_core(name, tensor_core)
    layout, weights = _layout(name, "d_layout", d_layout), _filters(name, W, w_layout)
    attributes = _attributes(name, pad, stride, dilation, groups)
    if b is None:
        _gradients.conv_input_grad(x, weights, y.shape, **attributes, layout=layout, out=y)
        return
    extents = y.shape[2:] if layout == "NCHW" else y.shape[1:-1]
    given = x.shape[2:] if layout == "NCHW" else x.shape[1:-1]
    # A list of the wrong length is refused together with the other attributes.
    lists = _lists(name, len(extents), pad=pad, stride=stride, dilation=dilation)
    axes = zip(extents, given, weights.shape[2:], *lists, strict=False)
    more = [n - ((q - 1) * s + (k - 1) * d + 1 - 2 * p) for n, q, k, p, s, d in axes]
    _conv.conv_transpose(x, weights, _flat(b), **attributes, layout=layout, output_padding=more, out=y)


def pooling_forward(x: Any, y: Any, ksize: PerAxis, stride: PerAxis, pad: PerAxis, mode: int) -> Any:
    """Compute MaxPool or AveragePool of x into y and return y.

    See :func:`gpuconv.max_pool` and :func:`gpuconv.average_pool`.

    Parameters
    ----------
    x : array (N, C, D1, …, Dn)
    y : array (N, C, Q1, …, Qn)
        Its shape selects ``ceil_mode``: as many windows as fit, or as begin inside the padded input.
    ksize, stride, pad : sequence of int, one per spatial axis, or an int for all of them
    mode : int
        ``CUDNN_POOLING_MAX`` or ``CUDNN_POOLING_MAX_DETERMINISTIC``, which are the same here;
        ``CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING`` or ``CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING``.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError
        As :func:`gpuconv.max_pool` or :func:`gpuconv.average_pool`; also for an unknown mode.

    Examples
    --------
    >>> import numpy as np
    >>> from gpuconv.compat import cudnn
    >>> x, y = np.array([[[1.0, 3.0, 2.0, 4.0]]]), np.empty((1, 1, 2))
    >>> cudnn.pooling_forward(x, y, (2,), (2,), (0,), cudnn.CUDNN_POOLING_MAX)
    array([[[3., 4.]]])
    """
    averages = _averages("pooling_forward", mode)
    windows = _windows("pooling_forward", x, y, ksize, stride, pad)
    if averages is None:
        return _pooling.max_pool(x, **windows, out=y)
    return _pooling.average_pool(x, **windows, **averages, out=y)


def pooling_backward(x: Any, y: Any, gy: Any, ksize: PerAxis, stride: PerAxis, pad: PerAxis, mode: int) -> Any:
    """Return the gradient of :func:`pooling_forward` with respect to x.

    See :func:`gpuconv.max_pool_grad` and :func:`gpuconv.average_pool_grad`. If several elements of a window are equal
    maxima, the first one in row-major order gets the gradient.

    Parameters
    ----------
    x : array (N, C, D1, …, Dn)
    y, gy : array (N, C, Q1, …, Qn)
        The forward call's result, of which only the shape is used, and the gradient with respect to it.
    ksize, stride, pad, mode
        As in the forward call.

    Returns
    -------
    array of x's shape

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError
        As :func:`gpuconv.max_pool_grad` or :func:`gpuconv.average_pool_grad`; also for an unknown mode.

    Examples
    --------
    >>> import numpy as np
    >>> from gpuconv.compat import cudnn
    >>> x, y, gy = np.array([[[1.0, 3.0, 2.0, 4.0]]]), np.array([[[3.0, 4.0]]]), np.array([[[5.0, 6.0]]])
    >>> cudnn.pooling_backward(x, y, gy, (2,), (2,), (0,), cudnn.CUDNN_POOLING_MAX)
    array([[[0., 5., 0., 6.]]])
    """
    averages = _averages("pooling_backward", mode)
    windows = _windows("pooling_backward", x, y, ksize, stride, pad)
    if averages is not None:
        return _pooling.average_pool_grad(gy, x.shape, **windows, **averages)
    _, indices = _pooling.max_pool(x, **windows, return_indices=True)
    return _pooling.max_pool_grad(gy, indices, x.shape, **windows, check_indices=False)


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"gpuconv.compat.cudnn has no {name}: it has {', '.join(n for n in __all__ if n.islower())}, of cupy.cudnn"
    )


def _attributes(name: str, pad: PerAxis, stride: PerAxis, dilation: PerAxis, groups: int) -> dict[str, Any]:
    return {"pads": _pads(name, pad), "strides": stride, "dilations": dilation, "group": groups}


def _windows(name: str, x: Any, y: Any, ksize: PerAxis, stride: PerAxis, pad: PerAxis) -> dict[str, Any]:
    """Return the pooling attributes, with the ceil_mode that gives y its shape, if there is one."""
    lists = _lists(name, x.ndim - 2, ksize=ksize, stride=stride, pad=pad)
    axes = zip(x.shape[2:], y.shape[2:], *lists, strict=False)  # lists of the wrong length are refused later
    rounded_down = all(q == (n + 2 * p - k) // s + 1 for n, q, k, s, p in axes)
    ceil_mode = 0 if rounded_down else 1
    return {"kernel_shape": ksize, "strides": stride, "pads": _pads(name, pad), "ceil_mode": ceil_mode}


def _pads(name: str, pad: PerAxis) -> PerAxis:
    both: Ints | int = per_axis(name, "pad", pad)
    return both if isinstance(both, int) else (*both, *both)


def _lists(name: str, axes: int, **attributes: PerAxis) -> list[Ints]:
    """Return each attribute as a list with one entry per spatial axis; a single integer applies to all axes."""
    read = [per_axis(name, attribute, value) for attribute, value in attributes.items()]
    return [(value,) * axes if isinstance(value, int) else value for value in read]


def _filters(name: str, weights: Any, layout: int) -> Any:
    """Return weights as a view with channels as the second axis."""
    if _layout(name, "w_layout", layout) == "NCHW":
        return weights
    return weights.transpose(0, weights.ndim - 1, *range(1, weights.ndim - 1))


def _flat(b: Any) -> Any:
    return None if b is None else b.reshape(-1)


def _layout(name: str, argument: str, layout: int) -> Layout:
    if layout not in _LAYOUTS:
        raise ArgumentError(
            f"{name}: {argument} must be CUDNN_TENSOR_NCHW (0) or CUDNN_TENSOR_NHWC (1), not {layout!r}"
        )
    return _LAYOUTS[layout]


def _check_tensor_core(name: str, tensor_core: str) -> None:
    if tensor_core not in _TENSOR_CORES:
        raise ArgumentError(f"{name}: tensor_core must be one of {', '.join(_TENSOR_CORES)}, not {tensor_core!r}")


def _averages(name: str, mode: int) -> dict[str, Any] | None:
    """Return the attributes specific to AveragePool; None for MaxPool."""
    if mode in (CUDNN_POOLING_MAX, CUDNN_POOLING_MAX_DETERMINISTIC):
        return None
    if mode not in (CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING, CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING):
        raise ArgumentError(f"{name}: mode must be one of cuDNN's pooling modes, from 0 to 3, not {mode!r}")
    return {"count_include_pad": int(mode == CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING)}
