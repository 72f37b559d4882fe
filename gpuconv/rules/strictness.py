"""Strict mode: refuse calls that are valid by the specification but usually a mistake, within a block of code.

Such calls are an image without a batch axis, which pooling would read as a batch of 1-D signals; a kernel longer than
the padded input, whose result is empty; and pooling windows that contain padding only.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any

from gpuconv._errors import ArgumentError, ArgumentTypeError
from gpuconv.rules.settings import Setting
from gpuconv.rules.signatures import refusing

CURRENT: ContextVar[bool] = ContextVar("gpuconv.strict", default=False)
_AXES = {"NCHW": ("(N, C, L)", "(C, H, W)"), "NHWC": ("(N, L, C)", "(H, W, C)")}


@refusing
def strict(value: bool = True) -> AbstractContextManager[None]:
    """Refuse calls that are valid but usually a mistake, for a block of code or for a function.

    The setting is local to the current thread or asynchronous task. Blocks can be nested; leaving one restores the
    previous setting, after an exception too. A new thread starts without strict mode.

    Inside the block, the following calls raise ArgumentError, on every backend and for dask arrays. Gradients and
    :func:`explain` raise it for their forward call. Models run by ``gpuconv.onnx`` are not affected, because their
    attributes are explicit lists for the model's rank.

    * Pooling and :func:`max_unpool` of an array with three axes and only single numbers as attributes, and
      :func:`global_average_pool` of three axes. An image (C, H, W) would be read as (N, C, L) and pooled along W only.
      Write ``x[None]`` for an image, or ``kernel_shape=[3]`` for signals. Convolutions need no such rule, since the
      weights have as many axes as x.
    * A dilated kernel longer than the padded input along a non-empty axis, or pads of ConvTranspose or MaxUnpool that
      crop all outputs: the result would be empty.
    * Pooling with a pad at least as long as the dilated kernel: a window could contain padding only.

    Parameters
    ----------
    value : bool
        False switches strict mode off inside a strict block.

    Returns
    -------
    context manager
        Can be entered more than once. Also a decorator of functions, except for asynchronous functions and generators.

    Raises
    ------
    ArgumentTypeError
        The value is not a bool.

    Examples
    --------
    >>> import numpy as np, gpuconv
    >>> image = np.zeros((3, 32, 32), np.float32)
    >>> gpuconv.max_pool(image, 2, strides=2).shape
    (3, 32, 16)
    >>> with gpuconv.strict():
    ...     gpuconv.max_pool(image[None], 2, strides=2).shape
    (1, 3, 16, 16)
    >>> with gpuconv.strict():
    ...     gpuconv.max_pool(image, 2, strides=2)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    gpuconv._errors.ArgumentError: max_pool: in strict mode x.shape=(3, 32, 32) must not leave open whether it is ...
    """
    if not isinstance(value, bool):
        raise ArgumentTypeError(
            f"strict: value must be True or False, not {type(value).__name__}; write gpuconv.strict()"
        )
    return Setting(CURRENT, value)


def relaxed() -> AbstractContextManager[None]:
    """Return a context without strict mode, for calls that the library makes itself."""
    return Setting(CURRENT, False) if CURRENT.get() else nullcontext()


def check_pooling(name: str, windows: Any, layout: str, given: tuple[Any, ...]) -> None:
    """Raise ArgumentError for pooling that is usually a mistake.

    Parameters
    ----------
    name : str
        The public function, for messages.
    windows : Windows
        Geometry of the call.
    layout : str
    given : tuple
        kernel_shape and the other per-axis attributes as the call gave them; an integer applies to all axes.
    """
    if not any(isinstance(value, tuple) for value in given):
        check_axes(name, "x", windows.x_shape, layout, f"kernel_shape=[{windows.kernel_shape[0]}]")
    check_kernel(name, windows)
    for axis, (k, d, begin, end) in enumerate(_axes(windows)):
        extent = (k - 1) * d + 1
        if max(begin, end) >= extent:
            raise ArgumentError(
                f"{name}: in strict mode pads must be shorter than the kernel, but on spatial axis {axis} they have "
                f"{begin} before and {end} after, and the kernel covers {extent}, so that a window could hold padding "
                "only; pass smaller pads"
            )


def check_kernel(name: str, windows: Any) -> None:
    """Raise ArgumentError if the kernel of a Conv or pooling is longer than its padded, non-empty input."""
    for axis, (k, d, begin, end) in enumerate(_axes(windows)):
        n = windows.x_shape[2 + axis]
        if n and not windows.y_shape[2 + axis]:
            raise ArgumentError(
                f"{name}: in strict mode the result must not be empty, but on spatial axis {axis} the kernel covers "
                f"{(k - 1) * d + 1} elements, and x has {n} with pads of {begin} before and {end} after; pad more or "
                "shrink the kernel"
            )


def check_cropping(name: str, windows: Any) -> None:
    """Raise ArgumentError if the pads of a ConvTranspose crop all outputs along an axis."""
    for axis, (_, _, begin, end) in enumerate(_axes(windows)):
        if windows.x_shape[2 + axis] and not windows.y_shape[2 + axis]:
            raise ArgumentError(
                f"{name}: in strict mode the result must not be empty, but on spatial axis {axis} pads of {begin} "
                f"before and {end} after crop all of {begin + end} outputs; pass smaller pads"
            )


def check_axes(name: str, array: str, shape: tuple[int, ...], layout: str, advice: str) -> None:
    """Raise ArgumentError for an array of three axes that could be signals (N, C, L) or one image.

    ``advice`` is the argument with which a call states that they are signals.
    """
    if len(shape) == 3:
        signals, image = _AXES[layout]
        given = shape if layout == "NCHW" else (shape[0], shape[2], shape[1])
        raise ArgumentError(
            f"{name}: in strict mode {array}.shape={given} must not leave open whether it is {signals} or one image "
            f"{image}; pass {advice} for the first, {array}[None] for the second"
        )


def _axes(windows: Any) -> Any:
    """Return kernel extent, dilation and the two pads of each spatial axis."""
    return zip(windows.kernel_shape, windows.dilations, windows.pads_begin, windows.pads_end, strict=True)
