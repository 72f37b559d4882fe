"""The public functions on arrays as wholes: move them between host and device, and pack weights."""

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
    """Take a snapshot of weights for many calls, which then pack them only once.

    Every call of :func:`conv` and :func:`conv_transpose` on CUDA arrays packs its weights into the order in which its
    kernels read them. With packed weights, only the first call of each kind packs, and waits until it is done. Later
    ones reuse the result, on any stream and in any thread. A call captured in a graph reuses it too; if no such call
    came before, the graph packs at each launch. On the CPU, packed weights are plain weights.

    Parameters
    ----------
    w : array, or an object that shares its memory by DLPack or ``__cuda_array_interface__``
        As the operator takes it; on the CPU, or on the current CUDA device. Changing it later has no effect.
    operator : {"conv", "conv_transpose"}
        Which of the two the weights are for.

    Returns
    -------
    PackedWeights
        On the device of w; :func:`to_device` and :func:`to_host` move it.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An unknown operator; not an array, or one of a dtype that the operator does not take or without spatial axes.
    DeviceError, OutOfDeviceMemory
        As in :func:`conv`; also while the current stream captures a graph.

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
    """Raise unless an operator is one that takes packed weights."""
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
        Any dtype that CuPy has, bfloat16 included. A CuPy array may be on another device. Or PackedWeights.

    Returns
    -------
    CuPy array, or PackedWeights
        Same dtype, shape and memory order (the axes from the longest step to the shortest, without gaps). A CUDA
        array of another library is not copied.

    Raises
    ------
    ArgumentTypeError
        Not an array, or of a dtype that CuPy lacks.
    DeviceError
        No CUDA device, or CuPy is not installed; the message says which. The current stream captures a graph.
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
        Or PackedWeights.

    Returns
    -------
    NumPy array, or PackedWeights
        Same dtype, shape and memory order, complete when the call returns. An array of another library that is
        already on the host is not copied. An array of a subclass of ``numpy.ndarray`` is returned as it is.

    Raises
    ------
    ArgumentTypeError
        Not an array.
    DeviceError
        It is on a CUDA device, but CuPy finds none. The current stream captures a graph.

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
