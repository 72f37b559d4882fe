"""Infrastructure of graph optimisation: the graph, the base class of its passes, and a budget for constant folding.

The passes are in :mod:`~gpuconv.onnx.folding`, :mod:`~gpuconv.onnx.scaling` and :mod:`~gpuconv.onnx.finishing`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import is_
from typing import Any

from onnx import NodeProto

from gpuconv.onnx import nodes
from gpuconv.onnx.model import Fact
from gpuconv.onnx.steps import DOMAIN


@dataclass
class Budget:
    """Limit on the elements that constant folding may compute, so that a small model file cannot use much memory.

    Attributes
    ----------
    left : int
        Elements that may still be computed, over all passes.
    """

    LARGEST = 2**23  # elements of one value (64 MiB in float64), unless one of its inputs is larger

    left: int = 2 * LARGEST

    def spend(self, cost: int, largest_input: int = 0) -> bool:
        """Deduct a cost in elements; return False, without deducting, if it exceeds the budget or the limit for one
        value.
        """
        if cost > min(self.left, max(self.LARGEST, largest_input)):
            return False
        self.left -= cost
        return True


@dataclass
class Graph:
    """A graph to optimise: its nodes in execution order, and what is known of their values.

    Attributes
    ----------
    nodes : list of NodeProto
    constants : dict of str to array
    outputs : frozenset of str
        Names of the graph's outputs.
    opset : int
        Version of the default domain.
    facts : dict of str to Fact
        Element types and shapes of computed values, where known.
    budget : Budget
        Shared by all passes, and by the graphs of subgraphs.
    outer_constants : frozenset of str
        Names of constants that come from the enclosing graph.
    keep_quantized : bool
        Whether large 8-bit filters stay quantized in memory, instead of being folded into floats.
    """

    nodes: list[NodeProto]
    constants: dict[str, Any]
    outputs: frozenset[str]
    opset: int
    facts: Mapping[str, Fact] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    outer_constants: frozenset[str] = frozenset()
    keep_quantized: bool = False

    @cached_property
    def use_counts(self) -> Counter[str]:
        """How often each value is used, uses in subgraphs included."""
        names: list[str] = []
        for node in self.nodes:  # one long list is counted faster than one name after another
            names += nodes.names_used(node) if node.attribute else node.input
        return Counter(names)

    def names(self) -> set[str]:
        """Return all names in use: inputs, constants, and the inputs and outputs of nodes."""
        defined = {name for node in self.nodes for name in node.output}
        return defined.union(self.facts, self.constants, self.use_counts)


class Rewriting:
    """Base class of a pass over the nodes of a graph, in order, which may fuse a node into its producer.

    Attributes
    ----------
    graph : Graph
        The graph before the pass.
    constants : dict of str to array
        The graph's constants, and those that the pass adds.
    emitted : dict of str to NodeProto
        The nodes of the result so far, in order, by their first output.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.constants = dict(graph.constants)
        self._use_counts = graph.use_counts
        self.emitted: dict[str, NodeProto] = {}

    def result(self) -> Graph:
        """Return the optimised graph, or the original object, with its cached counts, if no node has changed."""
        nodes = list(self.emitted.values())
        if len(nodes) == len(self.graph.nodes) and all(map(is_, nodes, self.graph.nodes)):
            return self.graph
        return replace(self.graph, nodes=nodes, constants=self.constants)

    def sole_producer(self, name: str) -> NodeProto | None:
        """Return the node that computes a value, if the value has one use and is not an output of the graph."""
        single_use = self._use_counts[name] == 1 and name not in self.graph.outputs
        return self.emitted.get(name) if single_use else None

    def emit(self, node: NodeProto) -> None:
        """Append a node to the result."""
        self.emitted[next(filter(None, node.output), f"#{id(node)}")] = node


def is_convolution(node: NodeProto) -> bool:
    """Return whether a node is Conv or ConvTranspose, fused or not, none of whose attributes refer to a function's."""
    kind = node.op_type.removeprefix("Fused") if node.domain == DOMAIN else node.op_type
    return node.domain in ("", DOMAIN) and kind in ("Conv", "ConvTranspose") and _is_plain(node)


def _is_plain(node: NodeProto) -> bool:
    return not any(attribute.ref_attr_name for attribute in node.attribute)


def copied(node: NodeProto, outputs: Iterable[str]) -> NodeProto:
    """Return a copy of a node with other output names."""
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.output[:] = outputs
    return copy
