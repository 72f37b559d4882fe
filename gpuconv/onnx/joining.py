"""Buffer planning for CPU runs: Concat without copies, and element-wise chains in place.

Once a run has shown a Concat's shapes, later runs allocate its output first, and its producers compute directly into
slices of it. This applies to channel concatenation at batch 1, where each slice is contiguous. A chain of element-wise
operators overwrites its input if nothing else reads that input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
from onnx import NodeProto

from gpuconv.onnx.nodes import names_used

# Operators whose outputs are always newly allocated. Other operators may return views of their inputs.
COMPUTING = frozenset(
    (
        "Affine",
        "AveragePool",
        "BatchNormalization",
        "Chain",
        "Conv",
        "ConvTranspose",
        "FusedConv",
        "FusedConvTranspose",
        "MaxPool",
    )
)


@dataclass(frozen=True, slots=True)
class _Layout:
    """The layout of a Concat's output in the last run: channels of one image.

    Attributes
    ----------
    shape : tuple of int
        Shape of the output.
    dtype : numpy.dtype
    bounds : tuple of int
        First channel of each input, followed by the total number of channels.
    """

    shape: tuple[int, ...]
    dtype: Any
    bounds: tuple[int, ...]


class Joins:
    """Where the values of a graph can be computed in place, with the Concat layouts that earlier runs have shown.

    Parameters
    ----------
    nodes : iterable of onnx.NodeProto
    outputs : collection of str
        Names of the graph's outputs. The caller owns their memory, so that they never share that of a Concat's output.
    domain : str
        Domain of the nodes that folding creates; other non-default domains may use the same operator names differently.
    """

    def __init__(self, nodes: Iterable[NodeProto], outputs: Collection[str], domain: str) -> None:
        joins, uses, escaping, nodes = [], Counter[str](), set(outputs), list(nodes)
        for node in nodes:
            if node.op_type == "Concat" and node.domain == "":
                joins.append(node)
                uses.update(node.input)
            elif node.domain not in ("", domain) or node.op_type not in COMPUTING:
                escaping.update(names_used(node))
        self.names = {node.output[0] for node in joins}
        self.slots = {
            name: (node.output[0], position)
            for node in joins
            for position, name in enumerate(node.input)
            if uses[name] == 1 and name not in escaping
        }
        self.layouts: dict[str, _Layout] = {}
        self.overwriting = _overwriting(nodes, outputs, domain)

    def begin_run(self) -> Memory:
        """Return the buffers for one run, with the layouts known at its start."""
        return Memory(self, dict(self.layouts))

    def record(self, name: str, inputs: tuple[Any, ...], output: Any) -> None:
        """Record the layout of a Concat's output for later runs, or forget it if the inputs cannot be slices of the
        output.
        """
        layout = self.layouts.get(name)
        if layout is not None and layout.shape == output.shape and layout.dtype == output.dtype:
            return
        self.layouts.pop(name, None)
        if type(output) is np.ndarray and _joins_channels(inputs, output):
            bounds = (0, *accumulate(array.shape[1] for array in inputs))
            self.layouts[name] = _Layout(output.shape, output.dtype, bounds)


def _overwriting(nodes: Iterable[NodeProto], outputs: Collection[str], domain: str) -> frozenset[str]:
    """Return the outputs of the Chain nodes that may overwrite their input.

    The input must be newly allocated by its producer, used by this node only, and not an output of the graph.
    """
    uses, overwritable, found = Counter[str](), set[str](), []
    for node in nodes:
        uses.update(names_used(node))
        if node.domain in ("", domain) and node.op_type in COMPUTING:
            overwritable.update(node.output)
        if node.domain == domain and node.op_type == "Chain":
            found.append(node)
    free = {name for name in overwritable.difference(outputs) if uses[name] == 1}
    return frozenset(node.output[0] for node in found if node.input[0] in free)


def _joins_channels(inputs: tuple[Any, ...], output: Any) -> bool:
    """Return whether arrays concatenate along axis 1 at batch 1, so that each is a contiguous slice of the output."""
    return (
        output.ndim > 1
        and output.shape[0] == 1
        and all(array.ndim == output.ndim and array.shape[0] == 1 for array in inputs)
        and all(array.shape[2:] == output.shape[2:] for array in inputs)
        and sum(array.shape[1] for array in inputs) == output.shape[1]
    )


@dataclass(frozen=True, slots=True)
class Memory:
    """The output buffers of Concat nodes in one run, each allocated when the first of its inputs is computed.

    Attributes
    ----------
    joins : Joins
    layouts : dict of str to _Layout
        By the name of the Concat's output.
    buffers : dict of str to array or None
        Buffers allocated so far; None if the layout is unknown.
    """

    joins: Joins
    layouts: dict[str, _Layout]  # a copy from the start of the run: other threads may add to the original
    buffers: dict[str, Any] = field(default_factory=dict)

    def target(self, name: str, inputs: tuple[Any, ...]) -> Any:
        """Return the array into which a node may compute its output, or None to let it allocate one."""
        if name in self.joins.names:
            return self._buffer(name)
        part = self._slice(name)
        if part is None and name in self.joins.overwriting:
            return inputs[0] if type(inputs[0]) is np.ndarray and inputs[0].base is None else None
        return part

    def finish(self, name: str, inputs: tuple[Any, ...], output: Any) -> None:
        """Record a Concat's layout after it has run, and drop this run's reference to its buffer."""
        if name in self.joins.names:
            self.joins.record(name, inputs, output)
            self.buffers.pop(name, None)

    def _buffer(self, name: str) -> Any:
        """Return the buffer of a Concat's output, which may itself be a slice of another Concat's output."""
        if name not in self.buffers:
            layout, part = self.layouts.get(name), self._slice(name)
            if layout is not None and (part is None or part.shape != layout.shape or part.dtype != layout.dtype):
                part = np.empty(layout.shape, layout.dtype)
            self.buffers[name] = None if layout is None else part
        return self.buffers[name]

    def _slice(self, name: str) -> Any:
        """Return the slice of a Concat's output buffer that holds this input; None if its layout is unknown."""
        join, position = self.joins.slots.get(name, ("", 0))
        layout = self.layouts.get(join)
        if layout is None:
            return None
        return self._buffer(join)[:, layout.bounds[position] : layout.bounds[position + 1]]


def joined(inputs: tuple[Any, ...], out: Any) -> bool:
    """Copy the inputs that are not in their slice of ``out`` already; return False if ``out`` does not fit the
    inputs.
    """
    if any(type(array) is not np.ndarray or array.dtype != out.dtype for array in inputs):
        return False
    if not _joins_channels(inputs, out):
        return False
    start, copies = 0, []
    for array in inputs:
        target = out[:, start : start + array.shape[1]]
        start += array.shape[1]
        if array.ctypes.data != target.ctypes.data or array.strides[1:] != target.strides[1:]:
            if np.may_share_memory(array, out):  # it overlaps another slice, left over from an earlier run
                return False
            copies.append((target, array))
    for target, array in copies:
        target[...] = array
    return True
