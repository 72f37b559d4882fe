"""The public functions to_device, to_host and pack: move arrays between host and device, and pack weights."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from gpuconv import _arrays, cuda
from gpuconv._errors import ArgumentError, shown
from gpuconv._packed import PackedWeights
from gpuconv.rules import dtypes
from gpuconv.rules.signatures import Array, public, refuse, refusing

if TYPE_CHECKING:
    from numpy.typing import NDArray

_T = TypeVar("_T", bound=np.generic)


@refusing
def pack(w: Array, operator: str = "conv") -> PackedWeights:
    """Return a snapshot of weights that many calls share, and that is packed for their kernels only once.

    Every call of :func:`conv` and :func:`conv_transpose` on CUDA arrays packs its weights into the order in which its
    kernels read them. With packed weights, only the first call that needs an order packs, and waits until that is done.
    Later calls reuse the copy, on any stream and in any thread. So does a call captured in a CUDA graph, if a call
    before the capture has packed; otherwise the graph packs at each launch. On the CPU, they act as plain weights.

    Parameters
    ----------
    w : array, or an object that shares its memory by DLPack or ``__cuda_array_interface__``
        Weights in the operator's shape, on the CPU or the current CUDA device. Later changes have no effect.
    operator : {"conv", "conv_transpose"}
        The function that the weights are for.

    Returns
    -------
    PackedWeights
        On the device of w; :func:`to_device` and :func:`to_host` move it.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An unknown operator, not an array, a dtype that the operator does not take, or no spatial axes.
    DeviceError, OutOfDeviceMemory
        As in :func:`conv`; also if the current stream captures a CUDA graph.

    Examples
    --------
    >>> import numpy as np, gpuconv
    >>> weights = gpuconv.pack(np.ones((4, 3, 3, 3), np.float32))
    >>> weights
    <PackedWeights for conv: numpy float32 (4, 3, 3, 3)>
    >>> gpuconv.conv(np.ones((1, 3, 8, 8), np.float32), weights).shape
    (1, 4, 6, 6)
    """
    _check_operator(operator)
    library, array = _arrays.resolve_one("pack", "w", w)
    dtypes.check(operator, w=array)
    if array.ndim < 3:
        raise ArgumentError(
            f"pack: w must have two axes of channels and at least one spatial axis, but w.shape={array.shape}"
        )
    if library == "cuda":
        cuda.check_place("pack", "w", array)
        copy = partial(cuda.runtime.copied, array, f"pack: a copy of w of shape {array.shape}")
        return PackedWeights(operator, cuda.complete("pack", copy))
    snapshot = np.array(array, order="C", subok=False)
    snapshot.flags.writeable = False
    return PackedWeights(operator, snapshot)


def _check_operator(operator: Any) -> None:
    """Raise ArgumentError unless the operator takes packed weights."""
    if not isinstance(operator, str) or operator not in ("conv", "conv_transpose"):
        raise ArgumentError(f"pack: operator must be conv or conv_transpose, not {shown(operator)}")


@overload
def to_device(a: PackedWeights) -> PackedWeights: ...


@overload
def to_device(a: Array) -> Any: ...


@public("a")
def to_device(a: Any = None, *more: Any, **others: Any) -> Any:
    """Move an array or packed weights to the current CUDA device, or return them unchanged if they are already there.

    Parameters
    ----------
    a : NumPy or CuPy array, or one of another library that shares its memory by DLPack or __cuda_array_interface__
        Any dtype that CuPy supports, or bfloat16. A CuPy array may be on another device. PackedWeights are moved too.

    Returns
    -------
    CuPy array, or PackedWeights
        Same dtype, shape and order of axes in memory, without gaps. A CUDA array of another library is not copied.

    Raises
    ------
    ArgumentTypeError
        Not an array, or a dtype that CuPy does not support.
    DeviceError
        There is no CUDA device, or CuPy is not installed (the message says which); or the current stream captures a
        CUDA graph.
    OutOfDeviceMemory
        The array does not fit.
    """
    if others or more:
        refuse(to_device, others, more)
    weights = a if type(a) is PackedWeights else None
    library, array = _arrays.resolve_one(
        "to_device", "a", a if weights is None else weights.array_for(weights.operator)
    )
    if library == "cuda" and cuda.runtime.device_of(array) == cuda.runtime.current_device():
        return array if weights is None else weights
    if weights is None:
        rule = "which would copy the array only later; call it before the capture"
        cuda.check_no_capture("to_device", rule, "copies values to the device")
        return cuda.runtime.to_device(array)
    return PackedWeights(weights.operator, cuda.complete("to_device", partial(cuda.runtime.to_device, array)))


@overload
def to_host(a: PackedWeights) -> PackedWeights: ...


@overload
def to_host(a: NDArray[_T]) -> NDArray[_T]: ...


@overload
def to_host(a: Array) -> NDArray[Any]: ...


@public("a")
def to_host(a: Any = None, *more: Any, **others: Any) -> Any:
    """Move an array or packed weights to the host, or return them unchanged if they are already there.

    Parameters
    ----------
    a : NumPy or CuPy array, or one of another library that shares its memory by DLPack or __cuda_array_interface__
        PackedWeights are moved too.

    Returns
    -------
    NumPy array, or PackedWeights
        Same dtype, shape and order of axes in memory; the copy is complete when the call returns. An array of another
        library that is already on the host is not copied. An instance of a subclass of ``numpy.ndarray`` is returned
        unchanged.

    Raises
    ------
    ArgumentTypeError
        Not an array.
    DeviceError
        The array is on a CUDA device, but CuPy finds none; or the current stream captures a CUDA graph.

    Examples
    --------
    >>> import numpy as np, gpuconv
    >>> a = np.zeros(3)
    >>> gpuconv.to_host(a) is a
    True
    """
    if others or more:
        refuse(to_host, others, more)
    weights = a if type(a) is PackedWeights else None
    library, array = _arrays.resolve_one("to_host", "a", a if weights is None else weights.array_for(weights.operator))
    if library == "numpy":
        return weights or (a if isinstance(a, np.ndarray) else array)
    rule = "so that there are no values yet; call it after the graph has run"
    cuda.check_no_capture("to_host", rule, "copies values to the host")
    copy = cuda.runtime.to_host(array)
    return copy if weights is None else PackedWeights(weights.operator, copy)
