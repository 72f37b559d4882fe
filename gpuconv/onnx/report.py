"""Report of what happened to a model's nodes: folded ahead of time, fused, or left to onnx's reference evaluator.

:func:`compare` derives it by comparing the node lists before and after folding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from onnx import NodeProto

from gpuconv._errors import listed, one_line
from gpuconv.onnx import nodes


@dataclass(frozen=True)
class Report:
    """What happened to the nodes of a model.

    Attributes
    ----------
    folded : tuple of NodeProto
        Nodes computed once, ahead of time. Large Constants count as initializers and are not listed.
    fused : tuple of tuples of NodeProto
        Groups of nodes that were fused into one node each.
    left : tuple of NodeProto
        Nodes that onnx's reference evaluator computes, those of functions and subgraphs included. Some are known only
        after a run: gpuconv's operators reject string inputs, for example.
    meets : tuple of NodeProto
        For runs with ``invariant="batch"``: nodes in which one image may influence another's results, or which are not
        known to keep images apart. Only nodes that have run are listed.
    """

    folded: tuple[NodeProto, ...]
    fused: tuple[tuple[NodeProto, ...], ...]
    left: tuple[NodeProto, ...]
    meets: tuple[NodeProto, ...] = ()

    def __str__(self) -> str:
        fused = [f"\n  {listed(list(map(nodes.describe, group)))}" for group in self.fused]
        left, meets = ([f"\n  {nodes.describe(node)}" for node in some] for some in (self.left, self.meets))
        return (
            f"computed ahead of time: {_counted(self.folded)}\n"
            f"fused:{''.join(fused) or ' none'}\n"
            f"left to onnx's reference evaluator: {_counted(self.left)}{''.join(left)}"
            + (f"\nimages meet in: {_counted(self.meets)}{''.join(meets)}" if meets else "")
        )


def compare(
    before: Sequence[NodeProto],
    after: Iterable[NodeProto],
    constants: Collection[str],
    left: Iterable[NodeProto],
    meets: Iterable[NodeProto] = (),
) -> Report:
    """Compare the nodes of a graph before and after folding.

    Parameters
    ----------
    before, after : sequences of NodeProto
        In order. A fused node has the output name of the last node fused into it.
    constants : collection of str
        Names of the graph's constants before folding.
    left, meets : iterable of NodeProto
        As in :class:`Report`.
    """
    remaining = {name for node in after for name in node.output if name}
    constant, folded = {"", *constants}, []
    for node in before:
        if remaining.isdisjoint(node.output) and constant.issuperset(nodes.names_used(node)):
            folded.append(node)
            constant.update(node.output)
    fused_nodes = {name: node for node in before for name in node.output if name not in remaining | constant}
    fused_groups = [_group(node, fused_nodes) for node in before if not remaining.isdisjoint(node.output)]
    return Report(tuple(folded), tuple(group for group in fused_groups if len(group) > 1), tuple(left), tuple(meets))


def _group(last: NodeProto, inner: dict[str, NodeProto]) -> tuple[NodeProto, ...]:
    """Return a node preceded by the nodes fused into it: its producers, and theirs, whose outputs no longer exist."""
    group, names = [last], list(last.input)
    while names:
        node = inner.get(names.pop())
        if node is not None and all(node is not other for other in group):
            group.append(node)
            names += node.input
    return tuple(reversed(group))


def _counted(found: Iterable[NodeProto]) -> str:
    counts = Counter(one_line(str(node.op_type)) for node in found)
    return listed([f"{count} {op_type}" for op_type, count in counts.most_common()]) or "none"
