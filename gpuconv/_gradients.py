"""Gradients of Conv and ConvTranspose: check the call, choose the backend, run it."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from gpuconv import _arrays, cpu, cuda
from gpuconv._errors import ArgumentError
from gpuconv.rules import dtypes, memory
from gpuconv.rules import layout as layouts
from gpuconv.rules import precision as precisions
from gpuconv.rules.geometry import AutoPad, Ints, PerAxis
from gpuconv.rules.layout import Layout
from gpuconv.rules.operators import OPERATORS, settled
from gpuconv.rules.precision import CURRENT, Precision
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
    out: Array | None = None,
) -> Any: ...


@public()
def conv_input_grad(
    dy: Any,
    w: Any,
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
    out: Any = None,
    **others: Any,
) -> Any:
    """Compute the gradient of :func:`conv` with respect to x: its adjoint, applied to dy.

    ``dx[n, c, i]`` is the sum of ``dy[n, m, q] * w[m, c, t]`` over every output q that meets input i through a tap t.

    Parameters
    ----------
    dy : array (N, M, Q1, …, Qn)
        Gradient with respect to the result of the forward call. NumPy and CuPy arrays as in :func:`conv`.
    w : array (M, C/group, k1, …, kn)
        The forward call's weights, of dy's dtype.
    x_shape : sequence of int
        Shape of the forward call's x, in its layout.
    auto_pad, dilations, group, kernel_shape, pads, strides, layout, precision
        The forward call's.
    out : array of x_shape, optional
        Written in place and returned; must not share memory with an input.

    Returns
    -------
    array of x_shape
        Of dy's dtype and library. Inputs that no output meets have a gradient of 0. Rounding as in :func:`conv`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError, MemoryError
        As :func:`conv` for the forward call; also a dy whose shape is not that of its result.

    Examples
    --------
    >>> import numpy as np, gpuconv
    >>> w = np.array([[[1, 10]]], np.float32)
    >>> gpuconv.conv_input_grad(np.ones((1, 1, 2), np.float32), w, (1, 1, 4), strides=[2])
    array([[[ 1., 10.,  1., 10.]]], dtype=float32)

    No complex number is conjugated, here or in :func:`conv`; the adjoint takes the conjugate weights:

    >>> x, w = np.array([[[1, 2j, 3]]]), np.array([[[1j, 2]]])
    >>> y = gpuconv.conv(x, w)
    >>> np.vdot(y, y) == np.vdot(x, gpuconv.conv_input_grad(y, w.conj(), x.shape))
    np.True_
    """
    if others:
        refuse(conv_input_grad, others)
    attributes = {
        "auto_pad": auto_pad,
        "dilations": dilations,
        "group": group,
        "kernel_shape": kernel_shape,
        "pads": pads,
        "strides": strides,
        "x_shape": x_shape,
    }
    return run("conv_input_grad", {"dy": dy, "w": w}, attributes, layout, precision, out)


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


@public()
def conv_weight_grad(
    x: Any,
    dy: Any,
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
    out: Any = None,
    **others: Any,
) -> Any:
    """Compute the gradient of :func:`conv` with respect to w.

    ``dw[m, c, t]`` is the sum of ``dy[n, m, q] * x[n, c, i]`` over all images n and all outputs q that meet an input i
    through tap t. The sum has one fixed order: the same call gives the same bits.

    Parameters
    ----------
    x : array (N, C, D1, …, Dn)
        The forward call's.
    dy : array (N, M, Q1, …, Qn)
        Gradient with respect to its result, of x's dtype.
    w_shape : sequence of int
        (M, C/group, k1, …, kn), the shape of its weights.
    auto_pad, dilations, group, kernel_shape, pads, strides, layout, precision
        The forward call's.
    out : array of w_shape, optional
        Written in place and returned; must not share memory with an input.

    Returns
    -------
    array of w_shape
        Of x's dtype and library. Taps that meet only padding have a gradient of 0. Sums and error bounds as in
        :func:`conv`, for as many terms as there are products.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError, MemoryError
        As :func:`conv` for the forward call; also a dy whose shape is not that of its result.

    Examples
    --------
    >>> import numpy as np, gpuconv
    >>> x = np.array([[[1, 2, 3, 4]]], np.float32)
    >>> gpuconv.conv_weight_grad(x, np.ones((1, 1, 3), np.float32), (1, 1, 2))
    array([[[6., 9.]]], dtype=float32)

    With groups, each filter has gradients for its own group's channels; taps that meet only padding have none:

    >>> x, dy = np.arange(1.0, 9).reshape(1, 4, 2), np.ones((1, 2, 1))
    >>> gpuconv.conv_weight_grad(x, dy, (2, 2, 3), group=2, pads=[0, 1])[:, :, 1:].tolist()
    [[[2.0, 0.0], [4.0, 0.0]], [[6.0, 0.0], [8.0, 0.0]]]
    """
    if others:
        refuse(conv_weight_grad, others)
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


@public()
def conv_bias_grad(dy: Any, *, layout: Layout = "NCHW", out: Any = None, **others: Any) -> Any:
    """Compute the gradient of :func:`conv` with respect to b: the sum of dy over batch and space.

    Parameters
    ----------
    dy : array (N, M, Q1, …, Qn)
        Gradient with respect to the result of the forward call.
    layout : {"NCHW", "NHWC"}
        The forward call's.
    out : array (M,), optional
        Written in place and returned; must not share memory with dy.

    Returns
    -------
    array (M,)
        Of dy's dtype and library, summed in float32 (float64 for float64) in one fixed order and rounded once.

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
    if others:
        refuse(conv_bias_grad, others)
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
    out: Array | None = None,
) -> Any: ...


@public()
def conv_transpose_input_grad(
    dy: Any,
    w: Any,
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
    out: Any = None,
    **others: Any,
) -> Any:
    """Compute the gradient of :func:`conv_transpose` with respect to x: its adjoint, applied to dy.

    Parameters
    ----------
    dy : array (N, M, Q1, …, Qn)
        Gradient with respect to the result of the forward call.
    w : array (C, M/group, k1, …, kn)
        The forward call's weights, of dy's dtype.
    x_shape : sequence of int
        Shape of the forward call's x, in its layout.
    auto_pad, dilations, group, kernel_shape, output_padding, output_shape, pads, strides, layout, precision
        The forward call's.
    out : array of x_shape, optional
        Written in place and returned; must not share memory with an input.

    Returns
    -------
    array of x_shape
        Of dy's dtype and library: the Conv of dy with w. Rounding as in :func:`conv`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError, MemoryError
        As :func:`conv_transpose` for the forward call; also a dy whose shape is not that of its result.

    Examples
    --------
    >>> import numpy as np, gpuconv
    >>> w = np.array([[[1, 10]]], np.float32)
    >>> dy = np.array([[[1, 2, 3, 4]]], np.float32)
    >>> gpuconv.conv_transpose_input_grad(dy, w, (1, 1, 2), strides=[2])
    array([[[21., 43.]]], dtype=float32)
    """
    if others:
        refuse(conv_transpose_input_grad, others)
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
    return run("conv_transpose_input_grad", {"dy": dy, "w": w}, attributes, layout, precision, out)


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


@public()
def conv_transpose_weight_grad(
    x: Any,
    dy: Any,
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
    out: Any = None,
    **others: Any,
) -> Any:
    """Compute the gradient of :func:`conv_transpose` with respect to w.

    Parameters
    ----------
    x : array (N, C, D1, …, Dn)
        The forward call's.
    dy : array (N, M, Q1, …, Qn)
        Gradient with respect to its result, of x's dtype.
    w_shape : sequence of int
        (C, M/group, k1, …, kn), the shape of its weights.
    auto_pad, dilations, group, kernel_shape, output_padding, output_shape, pads, strides, layout, precision
        The forward call's.
    out : array of w_shape, optional
        Written in place and returned; must not share memory with an input.

    Returns
    -------
    array of w_shape
        Of x's dtype and library; sums and their order as in :func:`conv_weight_grad`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError, MemoryError
        As :func:`conv_transpose` for the forward call; also a dy whose shape is not that of its result.

    Examples
    --------
    >>> import numpy as np, gpuconv
    >>> x, dy = np.array([[[1, 2]]], np.float32), np.array([[[1, 2, 3, 4]]], np.float32)
    >>> gpuconv.conv_transpose_weight_grad(x, dy, (1, 1, 2), strides=[2])
    array([[[ 7., 10.]]], dtype=float32)
    """
    if others:
        refuse(conv_transpose_weight_grad, others)
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


@public()
def conv_transpose_bias_grad(dy: Any, *, layout: Layout = "NCHW", out: Any = None, **others: Any) -> Any:
    """Compute the gradient of :func:`conv_transpose` with respect to b, which is that of :func:`conv_bias_grad`.

    Parameters
    ----------
    dy : array (N, M, Q1, …, Qn)
        Gradient with respect to the result of the forward call.
    layout : {"NCHW", "NHWC"}
        The forward call's.
    out : array (M,), optional
        Written in place and returned; must not share memory with dy.

    Returns
    -------
    array (M,)
        As :func:`conv_bias_grad`.

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
    if others:
        refuse(conv_transpose_bias_grad, others)
    return run("conv_transpose_bias_grad", {"dy": dy}, {}, layout, None, out)


def run(
    name: str,
    arrays: dict[str, Any],
    attributes: dict[str, Any],
    layout: str,
    precision: str | None,
    out: Any,
    check_indices: bool = False,
) -> Any:
    """Check a call of any operator with one result, choose the backend and run it."""
    operator = OPERATORS[name]
    library, arrays = _arrays.resolve_all(name, arrays)
    first = next(iter(arrays.values()))
    if out is not None:
        _arrays.check_out(name, "out", out, library, first)
    if library == "cuda":
        if check_indices:
            attributes = settled(attributes)  # the geometry is asked for twice
            geometry = operator.geometry(*(array.shape for array in arrays.values()), layout=layout, **attributes)
            dtypes.check(name, **arrays)
            wrong = cuda.first_out_of_range(name, arrays["indices"], prod(_numbered(geometry)))
            _refuse_index(name, arrays["indices"], wrong, geometry)
        values = tuple(attributes[attribute] for attribute in operator.attributes)
        precise = CURRENT.get() if precision is None else precision
        return cuda.run(name, tuple(arrays.values()), (out,), values, layout, precise)[0]
    geometry = operator.geometry(*(array.shape for array in arrays.values()), layout=layout, **attributes)
    dtypes.check(name, **arrays)
    if precision is not None:
        precisions.check(name, precision)
    if "indices" in arrays:  # always: what numbers nothing cannot be left out here
        wrong = cpu.first_out_of_range(arrays["indices"], prod(_numbered(geometry)))
        _refuse_index(name, arrays["indices"], wrong, geometry)
    order = operator.order("out", layout)
    result = memory.result(name, out, layouts.as_given(order, operator.result(geometry)), first.dtype, **arrays)
    views = {
        role: layouts.view(operator.order(array, layout), arrays[array]) for array, role in operator.inputs.items()
    }
    _compute(operator.kernel, views, layouts.view(order, result), geometry)
    return result


def _numbered(geometry: Any) -> Ints:
    """Return the shape whose elements Indices number."""
    return tuple(getattr(geometry, "numbered_shape", geometry.x_shape))


def _refuse_index(name: str, indices: Any, wrong: Ints | None, geometry: Any) -> None:
    """Raise ArgumentError for an index that numbers nothing, if there is one."""
    numbered = _numbered(geometry)
    if wrong is not None:
        raise ArgumentError(
            f"{name}: indices hold {int(indices[wrong])} at {wrong}, but the elements of {numbered} (N, C, D1, …) "
            f"have the numbers 0 to {prod(numbered) - 1}, and -1 stands for none"
        )


def _compute(kernel: str, arrays: dict[str, Any], result: Any, geometry: Any) -> None:
    """Run a function of the NumPy backend on arrays that are named by their roles."""
    if kernel in ("conv", "conv_transpose"):
        getattr(cpu, kernel)(arrays["x"], arrays["w"], None, result, geometry)
    elif kernel == "bias_grad":
        cpu.bias_grad(arrays["x"], result)
    elif kernel == "weight_grad":
        cpu.weight_grad(arrays["x"], arrays["dy"], result, geometry)
    elif kernel == "max_pool_grad":
        cpu.max_pool_grad(arrays["dy"], arrays["indices"], result, geometry)
    else:
        cpu.max_unpool(arrays["x"], arrays["indices"], result, geometry)
