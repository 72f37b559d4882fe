"""The public functions conv and conv_transpose, and their common validation and dispatch to a backend."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from gpuconv import _arrays, _parts, cpu, cuda
from gpuconv._packed import PackedWeights
from gpuconv.rules import activation as activations
from gpuconv.rules import dtypes, invariance, memory
from gpuconv.rules import layout as layouts
from gpuconv.rules import precision as precisions
from gpuconv.rules.activation import Activation
from gpuconv.rules.geometry import AutoPad, PerAxis
from gpuconv.rules.integers import held
from gpuconv.rules.invariance import CURRENT as INVARIANT
from gpuconv.rules.invariance import Invariance
from gpuconv.rules.layout import Layout
from gpuconv.rules.operators import OPERATORS
from gpuconv.rules.precision import CURRENT, Precision
from gpuconv.rules.signatures import Array, public, refuse

if TYPE_CHECKING:
    from numpy.typing import NDArray

_T = TypeVar("_T", bound=np.generic)


@overload
def conv(
    x: NDArray[_T],
    w: Array | PackedWeights,
    b: Array | None = None,
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
    out: NDArray[_T] | None = None,
) -> NDArray[_T]: ...


@overload
def conv(
    x: Array,
    w: Array | PackedWeights,
    b: Array | None = None,
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
    out: Array | None = None,
) -> Any: ...


@public("x", "w")
def conv(
    x: Any = None,
    w: Any = None,
    b: Any = None,
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
    activation: str | tuple[Any, ...] | None = None,
    residual: Any = None,
    out: Any = None,
    **others: Any,
) -> Any:
    """Compute ONNX Conv (opsets 1 to 28; section "Conv" of the operators' specification).

    Parameters
    ----------
    x : array (N, C, D1, …, Dn)
        From 1 to 62 spatial axes; float16, bfloat16, float32, float64, complex64 or complex128. Never written. NumPy
        arrays run on the CPU. CuPy arrays run on their CUDA device, which must be the current one, asynchronously on
        CuPy's current stream. Arrays of other libraries are viewed as NumPy or CuPy arrays without a copy, by DLPack or
        ``__cuda_array_interface__``; if their library uses another stream, they must live until the result is complete.
        Subclasses of ``numpy.ndarray`` count as plain arrays, and results are plain; masked arrays are refused.
    w : array (M, C/group, k1, …, kn), or PackedWeights
        Same dtype as x; group must divide C and M. :func:`pack` returns weights that many calls share. One of x and w
        may be real and the other complex, in the same precision (float32 with complex64, float64 with complex128):
        this takes two real convolutions instead of four.
    b : array (M,), optional
        Of the result's dtype. ``b[m]`` is added to every output of channel m.
    auto_pad : {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"}
        SAME gives ``ceil(D / stride)`` outputs per axis, padded for the dilated kernel; UPPER puts an odd padding
        element at the end, LOWER at the beginning. With SAME or VALID, pads must be zero.
    dilations, strides : sequence of int, one per spatial axis, or an int for all of them, default 1
    group : int
    kernel_shape : sequence of int, or an int for all spatial axes, optional
        Must equal ``w.shape[2:]``.
    pads : sequence of int, or an int for all sides of all axes, default 0
        In elements: all beginnings, then all ends. May exceed the kernel; must not be negative. A kernel that exceeds
        the padded input by less than a stride gives an empty result; :func:`strict` makes that an error.
    layout : {"NCHW", "NHWC"}
        Order of the axes of x, out, residual and the result. "NHWC" is (N, D1, …, Dn, C), for any number of spatial
        axes. Weights, bias and attributes have the same order in both.
    precision : {"ieee", "tf32", "3xtf32"}, optional
        Precision of float32 products on CUDA devices; by default that of the context, see :func:`precision`.
    invariant : {"batch"}, optional
        An image's result has the same bits in every batch; by default as the context says, see :func:`invariant`.
    activation : {"relu", "leaky_relu", "clip"} or tuple, optional
        Applied to the sums before they are rounded. A tuple has the name and all arguments: ``("leaky_relu", alpha)``,
        with alpha 0.01 for the bare name, or ``("clip", low, high)``, where either bound may be None. The formula is
        ``v = v < 0 ? v * slope : v``, ``v = v < low ? low : v``, ``v = v > high ? high : v``. NaN stays NaN, and -0.0
        stays -0.0 under relu. Arguments are rounded to the accumulator's type. Not for complex numbers.
    residual : array (N, M, Q1, …, Qn), optional
        An array of exactly the result's shape and dtype, in ``layout``, of x's library. Added after the bias and before
        the activation, in the accumulator's type: ``activation((sum + b) + residual)``. Never written. On CUDA devices,
        one whose strides differ from the result's is first copied to the workspace.
    out : array (N, M, Q1, …, Qn), optional
        Written in place and returned (the same object, also if it is of a subclass); must not share memory with an
        input.

    Returns
    -------
    array (N, M, Q1, …, Qn)
        Of x's library and dtype (w's dtype if only w is complex); C-contiguous unless ``out`` is given. Products are
        summed in float32 for float16, bfloat16 and float32, in float64 for float64, and rounded once, to nearest even;
        overflow gives infinity. Padding is never multiplied: an infinite weight over padding adds nothing. An empty sum
        (no channels, a window wholly in the padding) is the bias. With a residual or an activation, float32 and float64
        results equal those of the separate steps bit for bit; float16 and bfloat16 are rounded once, at the end.

    Raises
    ------
    ArgumentError
        A ValueError: shapes or attributes break a rule of the operator. The message has the rule and the numbers.
    ArgumentTypeError
        A TypeError: not an array, an unknown dtype, mixed dtypes or libraries, attributes that are not integers, or an
        unknown keyword.
    DeviceError
        CuPy arrays are not on the current device, or the device is too old or reports an error.
    MemoryError
        The result or the workspace does not fit in memory; on a device that is an OutOfDeviceMemory.
    CompileError
        A kernel did not compile; the message holds the compiler's log.

    Examples
    --------
    >>> import numpy as np, gpuconv
    >>> x = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    >>> gpuconv.conv(x, np.ones((1, 1, 2, 2), np.float32), pads=[0, 0, 1, 1])[0, 0]
    array([[ 8., 12.,  7.],
           [20., 24., 13.],
           [13., 15.,  8.]], dtype=float32)
    >>> gpuconv.conv(x, np.ones((1, 1, 1, 1), np.float32), residual=-x.transpose(0, 1, 3, 2), activation="relu")[0, 0]
    array([[0., 0., 0.],
           [2., 0., 0.],
           [4., 2., 0.]], dtype=float32)
    """
    if others or more:
        refuse(conv, others, more)
    attributes = auto_pad, dilations, group, kernel_shape, pads, strides
    return _convolve("conv", x, w, b, attributes, layout, precision, invariant, activation, residual, out)


@overload
def conv_transpose(
    x: NDArray[_T],
    w: Array | PackedWeights,
    b: Array | None = None,
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
    out: NDArray[_T] | None = None,
) -> NDArray[_T]: ...


@overload
def conv_transpose(
    x: Array,
    w: Array | PackedWeights,
    b: Array | None = None,
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
    out: Array | None = None,
) -> Any: ...


@public("x", "w")
def conv_transpose(
    x: Any = None,
    w: Any = None,
    b: Any = None,
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
    activation: str | tuple[Any, ...] | None = None,
    residual: Any = None,
    out: Any = None,
    **others: Any,
) -> Any:
    """Compute ONNX ConvTranspose, the adjoint of Conv (opsets 1 to 28; section "ConvTranspose" of the specification).

    Parameters
    ----------
    x : array (N, C, D1, …, Dn)
        From 1 to 62 spatial axes; float16, bfloat16, float32, float64, complex64 or complex128. Never written.
    w : array (C, M/group, k1, …, kn), or PackedWeights
        Same dtype as x, or one of them real, as in :func:`conv`; group must divide C, and M is ``w.shape[1] * group``.
    b : array (M,), optional
        ``b[m]`` is added to every output of channel m.
    auto_pad : {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"}
        SAME gives ``D * stride`` outputs per axis. An odd total padding (here and with output_shape) has its smaller
        half first for SAME_UPPER, and its larger half first for all other values, at every opset.
    dilations, strides : sequence of int, one per spatial axis, or an int for all of them, default 1
    group : int
    kernel_shape : sequence of int, or an int for all spatial axes, optional
        Must equal ``w.shape[2:]``.
    output_padding : sequence of int, or an int for all spatial axes, default 0
        Additional elements at the end of each axis: 0, or less than the larger of stride and dilation.
    output_shape : sequence of int, optional
        Spatial extents of the result, with or without N and C in front; pads are then ignored. Elements beyond the
        natural extent are at the end, and hold only the bias.
    pads : sequence of int, or an int for all sides of all axes, default 0
        Elements to crop from the full result: all beginnings, then all ends.
    layout : {"NCHW", "NHWC"}
        As in :func:`conv`.
    precision : {"ieee", "tf32", "3xtf32"}, optional
        As in :func:`conv`.
    invariant : {"batch"}, optional
        As in :func:`conv`.
    activation : {"relu", "leaky_relu", "clip"} or tuple, optional
        As in :func:`conv`.
    residual : array (N, M, Q1, …, Qn), optional
        As in :func:`conv`.
    out : array (N, M, Q1, …, Qn), optional
        Written in place and returned; must not share memory with an input.

    Returns
    -------
    array (N, M, Q1, …, Qn)
        Of x's dtype and library, ``Q = stride * (D - 1) + output_padding + (k - 1) * dilation + 1 - pads`` unless
        SAME or output_shape say otherwise. Rounding as in :func:`conv`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError, MemoryError
        As in :func:`conv`.

    Examples
    --------
    >>> import numpy as np, gpuconv
    >>> x = np.array([[[1, 2, 3]]], np.float32)
    >>> gpuconv.conv_transpose(x, np.array([[[1, 10]]], np.float32), strides=[2])
    array([[[ 1., 10.,  2., 20.,  3., 30.]]], dtype=float32)
    """
    if others or more:
        refuse(conv_transpose, others, more)
    attributes = auto_pad, dilations, group, kernel_shape, output_padding, output_shape, pads, strides
    return _convolve("conv_transpose", x, w, b, attributes, layout, precision, invariant, activation, residual, out)


def _convolve(
    operator: str,
    x: Any,
    w: Any,
    b: Any,
    attributes: tuple[Any, ...],
    layout: Layout,
    precision: Precision | None,
    invariant: Invariance | None,
    activation: Any,
    residual: Any,
    out: Any,
) -> Any:
    """Validate a call of conv or conv_transpose and run it on its backend; attributes are in alphabetical order."""
    packed = None
    if type(w) is PackedWeights:
        packed, w = w, w.array_for(operator)
    library, x, w, b = _arrays.resolve(operator, x, w, b)
    does = None
    if activation is not None or residual is not None:
        does, residual = _finish(operator, x, activation, residual)
    if out is not None:
        plain = _arrays.check_out(operator, "out", out, library, x)
        if plain is not out:
            given = packed or w
            _convolve(operator, x, given, b, attributes, layout, precision, invariant, activation, residual, plain)
            return out
    if x.dtype is not w.dtype and _parts.are_mixed(x, w):
        arrays = {"x": x, "w": w, "b": b, "residual": residual}
        settled = tuple(held(operator, *one) for one in zip(OPERATORS[operator].attributes, attributes, strict=True))

        def compute(part: dict[str, Any], y: Any) -> Any:
            weights = part["w"] if packed is None or part["w"] is not w else packed
            return _convolve(
                operator,
                part["x"],
                weights,
                part["b"],
                settled,
                layout,
                precision,
                invariant,
                None,
                part["residual"],
                y,
            )

        return _parts.by_parts(compute, operator, library, arrays, settled, layout, precision, does, out)
    if library == "cuda":
        precise = CURRENT.get() if precision is None else precision
        inputs = (x, w) if b is None else (x, w, b)
        if residual is not None:
            inputs = (*inputs, residual)
        word = INVARIANT.get() if invariant is None else invariant
        finished = does, residual is not None
        return cuda.run(operator, inputs, (out,), attributes, layout, precise, packed, *finished, word)[0]
    return _on_cpu(operator, x, w, b, attributes, layout, precision, invariant, does, residual, out)


def _finish(operator: str, x: Any, activation: Any, residual: Any) -> tuple[Activation | None, Any]:
    """Return the parsed activation, and the residual as an array of x's library."""
    if residual is not None:
        residual = _arrays.resolve_all(operator, {"x": x, "residual": residual})[1]["residual"]
    return activations.parse(operator, activation), residual


def _on_cpu(
    operator: str,
    x: Any,
    w: Any,
    b: Any,
    attributes: tuple[Any, ...],
    layout: Layout,
    precision: Precision | None,
    invariant: Invariance | None,
    does: Activation | None,
    residual: Any,
    out: Any,
) -> Any:
    called = OPERATORS[operator]
    named = dict(zip(called.attributes, attributes, strict=True))
    geometry = called.geometry(x.shape, w.shape, None if b is None else b.shape, layout=layout, **named)
    dtypes.check(operator, x=x, w=w, b=b, residual=residual)
    if precision is not None:
        precisions.check(operator, precision)
    invariant_layout = layout if invariance.asked(operator, invariant) else None
    shape = layouts.as_given(layout, geometry.y_shape)
    activations.check(operator, does, residual, shape, x.dtype.name)
    y = memory.result(operator, out, shape, x.dtype, x=x, w=w, b=b, residual=residual)
    finish = cpu.Finish(None if residual is None else layouts.view(layout, residual), does)
    getattr(cpu, operator)(
        layouts.view(layout, x), w, b, layouts.view(layout, y), geometry, finish, invariant_layout=invariant_layout
    )
    return y
