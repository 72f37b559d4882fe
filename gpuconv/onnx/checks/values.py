"""Values of graphs: what a node reads must be made before it. Nodes that are out of order can be sorted."""

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
    """Refuse inputs of nodes that nothing makes, and outputs that nothing makes; sort nodes that are out of order.

    Parameters
    ----------
    model : ModelProto
        Its nodes are sorted in place, with a warning.
    name : str
        What messages call the model.

    Returns
    -------
    bool
        Whether nodes were sorted; references to them are to copies then, outside of the model.

    Raises
    ------
    ArgumentError
        Nothing makes a value, or nodes need each other's outputs.
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
    _check_graph(model.graph, {""})
    for function in model.functions:
        seen = {"", *function.input}
        _check_inputs(function.node, seen, "no input of the function")
        for name in function.output:
            if name not in seen:
                raise ArgumentError(f"the function {quoted(function.name)}: no node makes its output {quoted(name)}")


def _check_graph(graph: GraphProto, seen: set[str]) -> None:
    """Check a graph that sees some values; they are the same ones afterwards."""
    own = _brought(graph) - seen
    seen |= own
    own |= _check_inputs(graph.node, seen, "no input of the graph, no initializer,")
    for value in graph.output:
        if value.name not in seen:
            raise ArgumentError(f"the graph {quoted(graph.name)}: no node makes its output {quoted(value.name)}")
    seen -= own


def _brought(graph: GraphProto) -> set[str]:
    """Return the names of values that a graph has before its first node."""
    names = {value.name for value in (*graph.input, *graph.initializer)}
    return names | {tensor.values.name for tensor in graph.sparse_initializer}


def _check_inputs(graph_nodes: Iterable[NodeProto], seen: set[str], others: str) -> set[str]:
    """Check what nodes read and make, and return the names that these make; they are added to those that are seen."""
    own: set[str] = set()
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
            own.add(name)
            seen.add(name)
    return own


def _sort_graph(graph: GraphProto, seen: set[str]) -> bool:
    """Sort the nodes of a graph and of those inside of it; tell whether any has moved."""
    return _sort(graph.node, seen | _brought(graph))


def _sort(graph_nodes: Any, seen: set[str]) -> bool:
    """Sort nodes in place, each behind what it reads, but otherwise as they are; tell whether any has moved."""
    made = seen.union(*(node.output for node in graph_nodes))
    moved = [_sort_graph(inner, made) for node in graph_nodes for inner in nodes.subgraphs(node)]
    order = _order(graph_nodes, seen)
    if order == sorted(order):
        return any(moved)
    copies = [NodeProto.FromString(node.SerializeToString()) for node in graph_nodes]
    del graph_nodes[:]
    graph_nodes.extend([copies[position] for position in order])
    return True


def _order(graph_nodes: Sequence[NodeProto], seen: set[str]) -> list[int]:
    """Return positions of nodes: each as early as it was, but behind those that make what it reads."""
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
    """Yield what a node reads, with what the graphs inside of it take from outside."""
    yield from node.input
    for graph in nodes.subgraphs(node):
        made = _brought(graph).union(*(inner.output for inner in graph.node))
        for inner in graph.node:
            yield from (name for name in _read(inner) if name not in made)
        yield from (value.name for value in graph.output if value.name not in made)
