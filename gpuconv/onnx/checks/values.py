"""Data-flow check: every value must be defined once, before its first use. Nodes that are out of order are sorted.

ONNX requires nodes in topological order. Some exporters violate that, which is harmless, so :func:`check` sorts such
graphs with a warning and refuses only undefined values, duplicate definitions and cycles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto

from gpuconv._errors import ArgumentError, listed
from gpuconv.onnx import nodes
from gpuconv.onnx.messages import quoted, warn


def check(model: ModelProto, name: str) -> bool:
    """Refuse undefined values and duplicate definitions; sort nodes that are not in topological order.

    Parameters
    ----------
    model : ModelProto
        Its nodes are sorted in place if necessary, with a warning.
    name : str
        How messages refer to the model.

    Returns
    -------
    bool
        Whether nodes were sorted. If so, node objects obtained earlier no longer belong to the model.

    Raises
    ------
    ArgumentError
        A value is used or returned but never defined, defined twice, or depends on itself.
    """
    try:
        _check(model)
    except ArgumentError as error:
        moved = [_sort_graph(model.graph, {""})]
        moved += [_sort(function.node, {"", *function.input}) for function in model.functions]
        if not any(moved):
            raise
        _check(model)
        warn(f"{name} has nodes out of order, which are sorted now ({error})")
        return True
    return False


def _check(model: ModelProto) -> None:
    """Check the data flow of the model's graph and of its functions."""
    _check_graph(model.graph, {""})
    for function in model.functions:
        seen = {"", *function.input}
        _check_inputs(function.node, seen, "no input of the function")
        for name in function.output:
            if name not in seen:
                raise ArgumentError(f"the function {quoted(function.name)}: no node makes its output {quoted(name)}")


def _check_graph(graph: GraphProto, seen: set[str]) -> None:
    """Check a graph, given the outer values that it sees; ``seen`` is unchanged afterwards."""
    defined = _initial_names(graph) - seen
    seen |= defined
    defined |= _check_inputs(graph.node, seen, "no input of the graph, no initializer,")
    for value in graph.output:
        if value.name not in seen:
            raise ArgumentError(f"the graph {quoted(graph.name)}: no node makes its output {quoted(value.name)}")
    seen -= defined


def _initial_names(graph: GraphProto) -> set[str]:
    """Return the names defined before the first node of a graph: inputs and initializers."""
    names = {value.name for value in (*graph.input, *graph.initializer)}
    return names | {tensor.values.name for tensor in graph.sparse_initializer}


def _check_inputs(graph_nodes: Iterable[NodeProto], seen: set[str], others: str) -> set[str]:
    """Check inputs and outputs of nodes in order; add the outputs to ``seen`` and return them.

    ``others`` describes, for messages, the other places where an input may be defined.
    """
    defined: set[str] = set()
    for node in graph_nodes:
        for name in node.input:
            if name not in seen:
                raise ArgumentError(
                    f"{nodes.describe(node)}: its input {quoted(name)} is {others} and no output of an earlier node"
                )
        if node.attribute:
            for inner in nodes.subgraphs(node):
                _check_graph(inner, seen)
        for name in filter(None, node.output):
            if name in seen:
                raise ArgumentError(
                    f"{nodes.describe(node)}: its output {quoted(name)} is there already; rename one of the two"
                )
            defined.add(name)
            seen.add(name)
    return defined


def _sort_graph(graph: GraphProto, seen: set[str]) -> bool:
    """Sort the nodes of a graph and of its subgraphs topologically; return whether any node has moved."""
    return _sort(graph.node, seen | _initial_names(graph))


def _sort(graph_nodes: Any, seen: set[str]) -> bool:
    """Sort nodes topologically in place, keeping their order where possible; return whether any has moved."""
    available = seen.union(*(node.output for node in graph_nodes))
    moved = [_sort_graph(inner, available) for node in graph_nodes for inner in nodes.subgraphs(node)]
    order = _order(graph_nodes, seen)
    if order == sorted(order):
        return any(moved)
    copies = [NodeProto.FromString(node.SerializeToString()) for node in graph_nodes]
    del graph_nodes[:]
    graph_nodes.extend([copies[position] for position in order])
    return True


def _order(graph_nodes: Sequence[NodeProto], seen: set[str]) -> list[int]:
    """Return positions in a stable topological order: among the nodes that are ready, the earliest comes first."""
    makers = {name: at for at, node in enumerate(graph_nodes) for name in node.output if name not in seen}
    needs = {at: {makers[name] for name in _read(node) if name in makers} for at, node in enumerate(graph_nodes)}
    sorter = TopologicalSorter(needs)
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = [nodes.describe(graph_nodes[at]) for at in error.args[1][:-1]]
        raise ArgumentError(f"nodes need each other's outputs, in a cycle: {listed(cycle)}") from None
    order: list[int] = []
    ready: list[int] = []
    while sorter.is_active():
        for at in sorter.get_ready():
            heappush(ready, at)
        order.append(heappop(ready))
        sorter.done(order[-1])
    return order


def _read(node: NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, including outer values used by its subgraphs."""
    yield from node.input
    for graph in nodes.subgraphs(node):
        defined = _initial_names(graph).union(*(inner.output for inner in graph.node))
        for inner in graph.node:
            yield from (name for name in _read(inner) if name not in defined)
        yield from (value.name for value in graph.output if value.name not in defined)
