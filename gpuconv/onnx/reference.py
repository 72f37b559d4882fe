"""Conv, ConvTranspose and MaxPool for onnx's reference evaluator, and an evaluator that holds few values at a time.

``OPS`` is for ``onnx.reference.ReferenceEvaluator(model, new_ops=OPS)``, which finds operators by name at every opset;
each node reads its opset from the model. The evaluator does not hand ``new_ops`` on to the model's local functions;
:mod:`gpuconv.onnx.backend` does.

Examples
--------
>>> import numpy as np, onnx
>>> from onnx.reference import ReferenceEvaluator
>>> from gpuconv.onnx import OPS
>>> model = onnx.parser.parse_model('''
... <ir_version: 10, opset_import: ["" : 22]>
... pool (float[1, 1, 4] x) => (float[1, 1, 2] y) { y = MaxPool <kernel_shape = [3]> (x) }
... ''')
>>> ReferenceEvaluator(model, new_ops=OPS).run(None, {"x": np.array([[[3, 1, 2, 5]]], np.float32)})
[array([[[3., 5.]]], dtype=float32)]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, ClassVar

from onnx import NodeProto
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun, RuntimeContextError

import gpuconv
from gpuconv._errors import ArgumentError, GpuconvError
from gpuconv.onnx import corrections, nodes

Observer = Callable[[NodeProto, int, int, float], None]


class _Operator(OpRun):
    """A node of one of the three operators, checked when the model is loaded and computed by the public function."""

    op_domain = ""
    on_cuda: ClassVar[bool] = False

    def __init__(self, onnx_node: NodeProto, run_params: dict[str, Any], schema: Any = None) -> None:
        self._opset = run_params["opsets"][onnx_node.domain]
        # Before OpRun's constructor, which knows the newest schema only and complains in its own words.
        self._keywords = nodes.keywords(onnx_node, self._opset)
        self._linked = [attribute.name for attribute in onnx_node.attribute if attribute.ref_attr_name]
        super().__init__(onnx_node, run_params, schema)

    def _run(self, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        linked = {name: attributes[name] for name in self._linked}
        if self.on_cuda:
            inputs = tuple(value if value is None else gpuconv.to_device(value) for value in inputs)
        outputs = nodes.call(self.onnx_node, self._opset, inputs, {**self._keywords, **linked})
        return tuple(map(gpuconv.to_host, outputs)) if self.on_cuda else outputs

    def run(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        try:
            base: Any = super()  # untyped in onnx
            outputs: tuple[Any, ...] = base.run(*args, **kwargs)
            return outputs
        except TypeError as error:  # OpRun hides every TypeError behind a list of types
            own = _own_error(error)
            if own is None:
                raise
            raise own from None


class Conv(_Operator):
    """Conv of every opset, as :func:`gpuconv.conv` computes it."""


class ConvTranspose(_Operator):
    """ConvTranspose of every opset, as :func:`gpuconv.conv_transpose` computes it."""


class MaxPool(_Operator):
    """MaxPool of every opset, as :func:`gpuconv.max_pool` computes it."""


OPS: list[type[OpRun]] = [Conv, ConvTranspose, MaxPool]


class Evaluator(ReferenceEvaluator):
    """A ReferenceEvaluator that knows OPS in functions too, frees values early and reports every node."""

    ops: ClassVar[list[type[OpRun]]] = OPS

    def __init__(self, proto: Any, *args: Any, **kwargs: Any) -> None:
        # The evaluators of functions are made from this class without new_ops.
        kwargs["new_ops"] = self.ops
        super().__init__(proto, *args, **kwargs)
        self._last_uses = _last_uses(self.nodes_, set(self.output_names))

    def _load_impl(self, node: NodeProto, input_types: Any = None) -> Any:
        opset = self.opsets.get(node.domain)
        correction = corrections.find(node, opset) if node.domain == "" and opset else None
        if correction is not None:
            return correction
        try:
            return super()._load_impl(node, input_types)
        except RuntimeContextError:  # the evaluator's way to ask for another call, with the types
            raise
        except (NotImplementedError, RuntimeError, ValueError) as error:
            raise ArgumentError(
                f"{nodes.describe(node)}: onnx's reference evaluator, which runs every operator but Conv, "
                f"ConvTranspose and MaxPool, does not know {node.op_type!r} of domain {node.domain!r} "
                f"(opset imported: {opset})"
            ) from error

    def run(  # type: ignore[override]
        self,
        output_names: list[str] | None,
        feed_inputs: dict[str, Any],
        attributes: dict[str, Any] | None = None,
        *,
        observer: Observer | None = None,
    ) -> list[Any]:
        """Compute the outputs.

        Parameters
        ----------
        output_names : list of str, or None
            Outputs of the graph; None for all of them.
        feed_inputs : dict of str to value
            One per input of the graph, by name.
        attributes : dict, optional
            Of the function that this evaluator runs.
        observer : callable, optional
            Called after each node with (NodeProto, index, number of nodes, seconds).

        Returns
        -------
        list of values, one per output

        Raises
        ------
        GpuconvError
            Of our operators as they raise it; what fails in another operator is a plain GpuconvError that names
            the node.
        """
        values = {"": None, **self.rt_inits_, **feed_inputs}
        for index, node in enumerate(self.rt_nodes_):
            start = perf_counter()
            outputs = _run_node(node, values, attributes)
            # Optional outputs may be "", which must go on meaning "nothing" as an input.
            values.update((name, value) for name, value in zip(node.output, outputs, strict=False) if name)
            if observer is not None:
                observer(node.onnx_node, index, len(self.rt_nodes_), perf_counter() - start)
            for name in self._last_uses[index]:
                values.pop(name, None)
        return [values[name] for name in output_names or self.output_names]


class CudaEvaluator(Evaluator):
    """The same with our operators computed on the current CUDA device, array by array there and back."""

    ops: ClassVar[list[type[OpRun]]] = [type(op.__name__, (op,), {"on_cuda": True}) for op in OPS]


def _run_node(node: Any, values: dict[str, Any], attributes: dict[str, Any] | None) -> tuple[Any, ...]:
    options: dict[str, Any] = {}
    if node.has_linked_attribute and attributes:
        options["linked_attributes"] = attributes
    if node.need_context():
        options["context"] = values
    try:
        outputs: tuple[Any, ...] = node.run(*[values[name] for name in node.input], **options)
        return outputs
    except (GpuconvError, MemoryError):
        raise
    except Exception as error:
        own = _own_error(error)
        if own is not None:
            raise own from None
        cause = error.__cause__ or error  # OpRun puts a list of types in the place of what happened
        raise GpuconvError(
            f"{nodes.describe(node.onnx_node)}: onnx's reference evaluator failed: {type(cause).__name__}: {cause}"
        ) from error


def _own_error(error: BaseException | None) -> GpuconvError | None:
    while error is not None and not isinstance(error, GpuconvError):
        error = error.__cause__
    return error


def _last_uses(graph_nodes: Any, kept: set[str]) -> list[list[str]]:
    """For each node, the values that no later node needs."""
    uses: list[list[str]] = []
    seen = {"", *kept}
    for node in reversed(graph_nodes):
        names = {*_names_used(node), *node.output} - seen
        seen |= names
        uses.append(sorted(names))
    return uses[::-1]


def _names_used(node: NodeProto) -> Iterator[str]:
    """Inputs, and whatever the nodes of the graphs inside may take from outside by name."""
    yield from node.input
    for graph in nodes.subgraphs(node):
        for inner in graph.node:
            yield from _names_used(inner)
