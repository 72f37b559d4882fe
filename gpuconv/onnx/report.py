"""What becomes of a model's nodes before it runs, and which of them onnx's reference evaluator computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from onnx import NodeProto

from gpuconv._errors import listed, one_line
from gpuconv.onnx import nodes


@dataclass(frozen=True)
class Report:
    """What becomes of the nodes of a model.

    Attributes
    ----------
    folded : tuple of NodeProto
        Those that are computed once, ahead of time; large Constants are initializers, and not among them.
    fused : tuple of tuples of NodeProto
        Those that become one node together.
    left : tuple of NodeProto
        Those that onnx's reference evaluator computes, in functions and graphs inside of nodes too. Some are known
        only when they have run: operators of gpuconv leave text to the evaluator, for one.
    meets : tuple of NodeProto
        Of runs with ``invariant="batch"``, those in which an image's results may depend on others: they bring images
        together, or are not known to keep them apart. As far as nodes have run.
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
    """Tell what folding has done to the nodes of a graph that had these constants.

    Parameters
    ----------
    before, after : sequences of NodeProto
        In order. A node that was made of several has the output of the last one.
    constants : collection of str
    left, meets : iterable of NodeProto
    """
    made = {name for node in after for name in node.output if name}
    known, folded = {"", *constants}, []
    for node in before:
        if made.isdisjoint(node.output) and known.issuperset(nodes.names_used(node)):
            folded.append(node)
            known.update(node.output)
    inner = {name: node for node in before for name in node.output if name not in made | known}
    groups = [_group(node, inner) for node in before if not made.isdisjoint(node.output)]
    return Report(tuple(folded), tuple(group for group in groups if len(group) > 1), tuple(left), tuple(meets))


def _group(last: NodeProto, inner: dict[str, NodeProto]) -> tuple[NodeProto, ...]:
    """Return a node behind those whose outputs only it needs, which are gone."""
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
