"""A graph that is rewritten: its nodes in order, what is known of its values, and what a pass over it needs."""

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
    """How many elements may still be computed ahead: a model that is small must not become large by that.

    Attributes
    ----------
    left : int
        Of all that is computed together.
    """

    LARGEST = 2**23  # elements of one value, 64 MiB in float64, unless an input of it is larger

    left: int = 2 * LARGEST

    def spend(self, cost: int, largest_input: int = 0) -> bool:
        """Take the cost off what is left; return False where it is too much."""
        if cost > min(self.left, max(self.LARGEST, largest_input)):
            return False
        self.left -= cost
        return True


@dataclass
class Graph:
    """Nodes in order, and what is known of values.

    Attributes
    ----------
    nodes : list of NodeProto
    constants : dict of str to array
    kept : frozenset of str
        Outputs of the graph.
    opset : int
        Of the default domain.
    facts : dict of str to Fact
        What is known of values that are computed.
    budget : Budget
        Of all passes together.
    around : frozenset of str
        Constants of the graph around this one.
    keeps_narrow : bool
        Whether large filters of 8-bit integers stay these, which :class:`Budget` has nothing to do with.
    """

    nodes: list[NodeProto]
    constants: dict[str, Any]
    kept: frozenset[str]
    opset: int
    facts: Mapping[str, Fact] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    around: frozenset[str] = frozenset()
    keeps_narrow: bool = False

    @cached_property
    def counts(self) -> Counter[str]:
        """How often every value is used, by graphs inside of nodes too."""
        names: list[str] = []
        for node in self.nodes:  # one list of all is counted sooner than name after name
            names += nodes.names_used(node) if node.attribute else node.input
        return Counter(names)

    def names(self) -> set[str]:
        """Return the names that values have: inputs of the graph, constants, and what nodes use and make."""
        made = {name for node in self.nodes for name in node.output}
        return made.union(self.facts, self.constants, self.counts)


class Rewriting:
    """One pass over the nodes of a graph, which makes some of them part of an earlier one.

    Attributes
    ----------
    graph : Graph
        As it was before.
    constants : dict of str to array
        With those that the pass has made.
    made : dict of str to NodeProto
        The nodes so far, in order, by their first outputs.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.constants = dict(graph.constants)
        self._counts = graph.counts
        self.made: dict[str, NodeProto] = {}

    def result(self) -> Graph:
        """Return the graph as the pass leaves it: itself, with what is counted there already, if no node is another."""
        nodes = list(self.made.values())
        if len(nodes) == len(self.graph.nodes) and all(map(is_, nodes, self.graph.nodes)):
            return self.graph
        return replace(self.graph, nodes=nodes, constants=self.constants)

    def only_source(self, name: str) -> NodeProto | None:
        """Return the node that makes a value which has one use, or None."""
        alone = self._counts[name] == 1 and name not in self.graph.kept
        return self.made.get(name) if alone else None

    def keep(self, node: NodeProto) -> None:
        """Add a node at the end."""
        self.made[next(filter(None, node.output), f"#{id(node)}")] = node


def is_convolution(node: NodeProto) -> bool:
    """Tell whether a node is Conv or ConvTranspose, fused or not, with attributes that are all known."""
    kind = node.op_type.removeprefix("Fused") if node.domain == DOMAIN else node.op_type
    return node.domain in ("", DOMAIN) and kind in ("Conv", "ConvTranspose") and _is_plain(node)


def _is_plain(node: NodeProto) -> bool:
    return not any(attribute.ref_attr_name for attribute in node.attribute)


def copied(node: NodeProto, outputs: Iterable[str]) -> NodeProto:
    """Return a node like another, with outputs of its own."""
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.output[:] = outputs
    return copy
