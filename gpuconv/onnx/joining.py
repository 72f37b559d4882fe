"""Values computed where memory is already: inputs of Concat in its output, chains over what they begin with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
from onnx import NodeProto

from gpuconv.onnx.nodes import names_used

# Nodes whose outputs never are their inputs' memory; what others return may leave the graph.
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
class _Known:
    """What a Concat joined when it last ran: one image's channels.

    Attributes
    ----------
    shape : tuple of int
        Of the output.
    dtype : numpy.dtype
    bounds : tuple of int
        The first channel of every input, then their number.
    """

    shape: tuple[int, ...]
    dtype: Any
    bounds: tuple[int, ...]


class Joins:
    """The Concat nodes of a graph, and what of their shapes was seen in earlier runs.

    Parameters
    ----------
    nodes : iterable of onnx.NodeProto
    kept : collection of str
        Outputs of the graph: their memory is the caller's, and nothing else that leaves the graph may lie in it.
    domain : str
        Of the nodes that folding makes, beside the default one: the same names elsewhere may mean anything.
    """

    def __init__(self, nodes: Iterable[NodeProto], kept: Collection[str], domain: str) -> None:
        joins, uses, shown, nodes = [], Counter[str](), set(kept), list(nodes)
        for node in nodes:
            if node.op_type == "Concat" and node.domain == "":
                joins.append(node)
                uses.update(node.input)
            elif node.domain not in ("", domain) or node.op_type not in COMPUTING:
                shown.update(names_used(node))
        self.names = {node.output[0] for node in joins}
        self.place = {
            name: (node.output[0], position)
            for node in joins
            for position, name in enumerate(node.input)
            if uses[name] == 1 and name not in shown
        }
        self.known: dict[str, _Known] = {}
        self.overwriting = _overwriting(nodes, kept, domain)

    def start(self) -> Memory:
        """Return the memory of one run."""
        return Memory(self, dict(self.known))

    def learn(self, name: str, inputs: tuple[Any, ...], output: Any) -> None:
        """Remember what made up the output of a Concat."""
        known = self.known.get(name)
        if known is not None and known.shape == output.shape and known.dtype == output.dtype:
            return
        self.known.pop(name, None)
        if type(output) is np.ndarray and _joins_channels(inputs, output):
            bounds = (0, *accumulate(array.shape[1] for array in inputs))
            self.known[name] = _Known(output.shape, output.dtype, bounds)


def _overwriting(nodes: Iterable[NodeProto], kept: Collection[str], domain: str) -> frozenset[str]:
    """Return the results of chains that nobody needs the inputs of, which nothing else refers to."""
    uses, own, found = Counter[str](), set[str](), []
    for node in nodes:
        uses.update(names_used(node))
        if node.domain in ("", domain) and node.op_type in COMPUTING:
            own.update(node.output)
        if node.domain == domain and node.op_type == "Chain":
            found.append(node)
    free = {name for name in own.difference(kept) if uses[name] == 1}
    return frozenset(node.output[0] for node in found if node.input[0] in free)


def _joins_channels(inputs: tuple[Any, ...], output: Any) -> bool:
    """Tell whether arrays follow each other along the channels of one image, where each is a run of memory."""
    return (
        output.ndim > 1
        and output.shape[0] == 1
        and all(array.ndim == output.ndim and array.shape[0] == 1 for array in inputs)
        and all(array.shape[2:] == output.shape[2:] for array in inputs)
        and sum(array.shape[1] for array in inputs) == output.shape[1]
    )


@dataclass(frozen=True, slots=True)
class Memory:
    """The outputs of Concat nodes in one run, made when the first of their inputs is computed."""

    joins: Joins
    known: dict[str, _Known]  # when the run began: other threads may learn more
    made: dict[str, Any] = field(default_factory=dict)

    def place(self, name: str, inputs: tuple[Any, ...]) -> Any:
        """Return where a value should be computed if it can; None where nothing is known."""
        if name in self.joins.names:
            return self._whole(name)
        part = self._part(name)
        if part is None and name in self.joins.overwriting:
            return inputs[0] if type(inputs[0]) is np.ndarray and inputs[0].base is None else None
        return part

    def done(self, name: str, inputs: tuple[Any, ...], output: Any) -> None:
        """Take notice of what a node has computed; memory that is held for nobody else is let go."""
        if name in self.joins.names:
            self.joins.learn(name, inputs, output)
            self.made.pop(name, None)

    def _whole(self, name: str) -> Any:
        """Return the output of a Concat, which may be part of another one's."""
        if name not in self.made:
            known, part = self.known.get(name), self._part(name)
            if known is not None and (part is None or part.shape != known.shape or part.dtype != known.dtype):
                part = np.empty(known.shape, known.dtype)
            self.made[name] = None if known is None else part
        return self.made[name]

    def _part(self, name: str) -> Any:
        """Return the place of an input in the output of its Concat."""
        join, position = self.joins.place.get(name, ("", 0))
        known = self.known.get(join)
        if known is None:
            return None
        return self._whole(join)[:, known.bounds[position] : known.bounds[position + 1]]


def joined(inputs: tuple[Any, ...], out: Any) -> bool:
    """Copy those inputs that are not in their place in ``out`` yet; return False where it is not made for them."""
    if any(type(array) is not np.ndarray or array.dtype != out.dtype for array in inputs):
        return False
    if not _joins_channels(inputs, out):
        return False
    start, copies = 0, []
    for array in inputs:
        place = out[:, start : start + array.shape[1]]
        start += array.shape[1]
        if array.ctypes.data != place.ctypes.data or array.strides[1:] != place.strides[1:]:
            if np.may_share_memory(array, out):  # where another one of an earlier run was
                return False
            copies.append((place, array))
    for place, array in copies:
        place[...] = array
    return True
