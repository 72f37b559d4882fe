"""CUDA graphs of functions of arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpuconv import _arrays, cuda
from gpuconv._errors import ArgumentError, ArgumentTypeError, shown


class Graph:
    """A function captured in a CUDA graph by :func:`graph`; a call replays it on new values.

    The graph owns the memory of its inputs, its outputs and everything between them, workspaces and packed weights
    included, so that no other array can get any of it. The memory is freed when the graph is dropped, and that of an
    output when the output is. Replays of one graph run one after the other, each in the current stream of its thread.

    Attributes
    ----------
    inputs : tuple of CuPy arrays
        What the launches read. A call copies its arguments to them.
    outputs : CuPy array, None, or tuple, list or dict of these
        What the launches write: the function's result. Before the first call they have no values.
    device : int
    nbytes : int
        Device memory that the graph owns.
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
        """Copy arrays into the graph's inputs, and launch it on the current stream.

        The outputs are always the same arrays: the next call overwrites them, from whatever thread or stream it comes.

        Parameters
        ----------
        *arrays : CuPy arrays, or arrays of another library that share CUDA memory
            As many as the function was captured with, with the same shapes and dtypes, on the graph's device; any
            strides. An array of ``inputs`` itself is not copied: fill it and pass it to save the copy.
        copy : bool
            Whether to return new arrays, which no later call changes. Needed where several threads call the graph, or
            where another stream than the next call's still reads the outputs.

        Returns
        -------
        CuPy array, None, or tuple, list or dict of these
            As the function returned them; complete when the current stream gets there.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            Another number of arrays, not CuPy arrays, another shape or dtype.
        DeviceError
            Arrays, or the current device, are not the graph's; the current stream captures a graph.
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
    """Capture a function of CuPy arrays in a CUDA graph, which replays all its launches by one.

    The function is called twice: once to compile and load kernels and to pack weights, then to capture what it
    launches. A replay repeats the launches, and nothing that the function does on the host. So it must launch the same
    for all values of its arguments, in the current stream, and must not copy to the host or wait for the device.

    Arrays that the function refers to, such as weights, are read where they lie at each replay: changes in place count,
    but a name that is given another array later does not. They live as long as the graph if they are operands of
    gpuconv's operators, or if the function object refers to them. Packed weights are a snapshot, as always.

    Parameters
    ----------
    function : callable
        Takes the arrays; returns a CuPy array, or a tuple, list or dict of arrays and None, also nested.
    *arrays : CuPy arrays, or arrays of another library that share CUDA memory
        Of the shapes and dtypes that the graph is for, on the current device. The function gets copies, so that
        changing an argument in place changes no array of the caller's.

    Returns
    -------
    Graph
        ``graph(function, x)(x)`` gives what ``function(x)`` does.

    Raises
    ------
    ArgumentTypeError
        Not a function, an argument that is not a CuPy array, a result that is made of anything else.
    DeviceError
        No CUDA device; a capture is under way; the function cannot be captured, and the cause says why.
    OutOfDeviceMemory
        The function's arrays do not fit: memory is taken from CuPy's current allocator.

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
    """Capture a function of arrays, by their names in messages, for the public function ``operator``.

    ``what`` is what that captures, in messages.
    """
    given = [_on_device(operator, name, array) for name, array in arrays.items()]
    from gpuconv.cuda.call.graph import CapturedCall

    def check(result: Any) -> None:
        _mapped(result, lambda leaf: _check_result(operator, what, leaf))

    return Graph(CapturedCall(function, dict(zip(arrays, given, strict=True)), check, operator, what))


def _on_device(operator: str, name: str, array: Any) -> Any:
    """Return an argument as a CuPy array; ArgumentTypeError for anything that is not on a device."""
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
    """Return a result with each array replaced by what ``leaf`` returns for it, in new tuples, lists and dicts."""
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
