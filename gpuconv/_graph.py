"""graph: captures a function of CuPy arrays in a CUDA graph, so that one launch replays all of its kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpuconv import _arrays, cuda
from gpuconv._errors import ArgumentError, ArgumentTypeError, shown


class Graph:
    """A function captured in a CUDA graph by :func:`graph`; a call replays it on new values.

    The graph owns the memory of its inputs, outputs and intermediate results, workspaces and packed weights included;
    no other array can be allocated there. The memory is freed with the graph, that of an output when the output is
    freed too. Replays of one graph never overlap; each runs on the current stream of its thread.

    Attributes
    ----------
    inputs : tuple of CuPy arrays
        The arrays that the launches read. A call copies its arguments into them.
    outputs : CuPy array, None, or tuple, list or dict of them
        The function's result, whose arrays the launches write. Uninitialised before the first call.
    device : int
        Number of the CUDA device.
    nbytes : int
        Bytes of device memory that the graph owns.
    """

    __slots__ = ("__weakref__", "_call")

    def __init__(self, call: Any) -> None:
        self._call = call

    inputs = property(lambda self: self._call.inputs)
    outputs = property(lambda self: _mapped(self._call.result, _itself))
    device = property(lambda self: self._call.device)
    nbytes = property(lambda self: self._call.nbytes)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{array.dtype} {array.shape}" for array in self.inputs)
        return f"<Graph of ({arguments}) on device {self.device}: {self.nbytes} bytes>"

    def __call__(self, *arrays: Any, copy: bool = False) -> Any:
        """Copy arrays into the graph's inputs, launch it on the current stream, and return the outputs.

        The outputs are the same arrays each time: the next call, from any thread or stream, overwrites them.

        Parameters
        ----------
        *arrays : CuPy arrays, or arrays of another library that share CUDA memory
            One per argument of the captured function, with the same shapes and dtypes, on the graph's device; any
            strides. An array of ``inputs`` is not copied: fill it in place and pass it to save the copy.
        copy : bool
            Whether to return new arrays, which no later call changes. Needed if several threads call the graph, or if
            a stream other than the next call's still reads the outputs.

        Returns
        -------
        CuPy array, None, or tuple, list or dict of them
            In the form that the function returned; complete once the current stream has run the graph.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            A wrong number of arrays, not CuPy arrays, or a wrong shape or dtype.
        DeviceError
            Arrays or the current device differ from the graph's; or the current stream captures a graph.
        OutOfDeviceMemory
            The new arrays do not fit.
        """
        names, inputs = self._call.names, self._call.inputs
        if len(arrays) != len(inputs):
            listed = f" ({', '.join(names)})" if names else ""
            raise ArgumentError(f"graph: got {len(arrays)} arrays, but the graph takes {len(inputs)}{listed}")
        given = [_on_device("graph", name, array) for name, array in zip(names, arrays, strict=True)]
        for name, static, array in zip(names, inputs, given, strict=True):
            if array.dtype != static.dtype:
                raise ArgumentTypeError(
                    f"graph: {name} has dtype {array.dtype}, but the graph was captured with {static.dtype}; convert "
                    f"it with .astype({static.dtype.name!r}), or capture another graph"
                )
            if array.shape != static.shape:
                raise ArgumentError(
                    f"graph: {name} has shape {array.shape}, but the graph was captured with {static.shape}; capture "
                    "another graph for this shape"
                )
        leaf = _copied if copy else _itself
        return self._call.replay(given, lambda result: _mapped(result, leaf))


def graph(function: Callable[..., Any], *arrays: Any) -> Graph:
    """Capture a function of CuPy arrays in a CUDA graph, which replays all its kernel launches with one launch.

    The function is called twice: first to compile and load kernels and to pack weights, then to capture its launches.
    A replay repeats the launches only, not what the function does on the host. So the function must launch the same
    kernels for all values of its arguments, on the current stream. It must not copy to the host or wait for the device.

    Other arrays that the function uses, such as weights, are read from their memory at each replay. Changes in place
    take effect; rebinding a name to another array does not. The graph keeps them alive if they are operands of
    gpuconv's operators, or if the function object refers to them. Packed weights are a snapshot.

    Parameters
    ----------
    function : callable
        Takes the arrays; returns a CuPy array, or a tuple, list or dict of arrays and None, also nested.
    *arrays : CuPy arrays, or arrays of another library that share CUDA memory
        Examples with the shapes and dtypes that the graph is for, on the current device. The function gets copies, so
        the caller's arrays are not changed.

    Returns
    -------
    Graph
        ``graph(function, x)(x)`` returns the result of ``function(x)``.

    Raises
    ------
    ArgumentTypeError
        ``function`` is not callable, or an argument or a part of the result is not a CuPy array.
    DeviceError
        There is no CUDA device, a capture is in progress, or the function cannot be captured (see the error's cause).
    OutOfDeviceMemory
        The function's arrays do not fit. Memory comes from CuPy's current allocator.

    Examples
    --------
    ::

        step = gpuconv.graph(lambda x: gpuconv.max_pool(gpuconv.conv(x, w), [2, 2]), x)
        for x in batches:
            y = step(x)  # the same array each time
    """
    if not callable(function):
        raise ArgumentTypeError(f"graph: function must be callable, not {shown(function)}")
    return captured(function, {f"argument {at}": array for at, array in enumerate(arrays)}, "graph", "the function")


def captured(function: Callable[..., Any], arrays: Mapping[str, Any], operator: str, what: str) -> Graph:
    """Capture ``function`` with ``arrays``, for the public function named ``operator``.

    The keys of ``arrays`` and ``what``, a name for the function, are used in error messages.
    """
    given = [_on_device(operator, name, array) for name, array in arrays.items()]
    from gpuconv.cuda.call.graph import CapturedCall

    def check(result: Any) -> None:
        _mapped(result, lambda leaf: _check_result(operator, what, leaf))

    return Graph(CapturedCall(function, dict(zip(arrays, given, strict=True)), check, operator, what))


def _on_device(operator: str, name: str, array: Any) -> Any:
    """Return an argument as a CuPy array; raise ArgumentTypeError for anything that is not on a device."""
    kind = cuda.runtime.array_type()
    if type(array) is kind:
        return array
    array = _arrays.adopted(operator, name, array)
    if kind is not None and isinstance(array, kind):
        return _arrays.plain(array)
    advice = "move it with gpuconv.to_device" if isinstance(array, np.ndarray) else "refer to it from the function"
    raise ArgumentTypeError(f"{operator}: CUDA graphs need CuPy arrays, but {name} is {_kind(array)}; {advice}")


def _check_result(operator: str, what: str, leaf: Any) -> None:
    kind = cuda.runtime.array_type()
    if kind is None or not isinstance(leaf, kind):
        raise ArgumentTypeError(
            f"{operator}: {what} returns {_kind(leaf)}, which a replay cannot change; return CuPy arrays, or a tuple, "
            "list or dict of them"
        )


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _mapped(result: Any, leaf: Callable[[Any], Any]) -> Any:
    """Return a copy of a nested result with each array replaced by ``leaf(array)``."""
    if isinstance(result, dict):
        return {key: _mapped(value, leaf) for key, value in result.items()}
    if isinstance(result, list):
        return [_mapped(value, leaf) for value in result]
    if isinstance(result, tuple):
        values = [_mapped(value, leaf) for value in result]
        return type(result)(*values) if hasattr(result, "_fields") else tuple(values)
    return None if result is None else leaf(result)


def _itself(array: Any) -> Any:
    return array


def _copied(array: Any) -> Any:
    return cuda.runtime.copied(array, f"graph: a copy of an output of shape {array.shape}")
