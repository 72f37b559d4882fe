"""Execution of ONNX graphs, node by node.

:class:`Evaluator` extends onnx's ReferenceEvaluator: a node runs as a :class:`~gpuconv.onnx.steps.Step` of gpuconv if
there is one for its operator. Otherwise onnx's reference implementation computes it on the host. :class:`CudaEvaluator`
does the same with values on the current CUDA device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpFunction, RuntimeContextError

import gpuconv
from gpuconv import cuda
from gpuconv._errors import ArgumentError, CaptureError, GpuconvError
from gpuconv.onnx import folding, joining, nodes, report, steps
from gpuconv.onnx.batch.images import Images
from gpuconv.onnx.contrib import translating
from gpuconv.onnx.messages import quoted, reason, warn
from gpuconv.onnx.model import Fact
from gpuconv.onnx.operators import DTYPES, is_float, on_device
from gpuconv.onnx.reference import own_error
from gpuconv.onnx.report import Report
from gpuconv.onnx.rewriting import Budget, Graph
from gpuconv.onnx.steps import ControlStep, Step

Observer = Callable[[NodeProto, int, int, float], None]


class Evaluator(ReferenceEvaluator):
    """A ReferenceEvaluator that runs gpuconv's steps, frees values after their last use, and reports every node.

    The same class evaluates model functions and subgraphs (the bodies of If, Loop and Scan).

    Parameters
    ----------
    proto : ModelProto, FunctionProto, GraphProto or NodeProto
        What to evaluate.
    *args, **kwargs
        As ReferenceEvaluator takes them.
    constants : mapping of str to array, optional
        Initializers that were removed from ``proto``.
    facts : mapping of str to Fact, optional
        Known element types and shapes. If given, the graph is folded and fused first.
    around : Evaluator, optional
        The evaluator of the enclosing graph, for a subgraph.
    """

    _keep_quantized = True  # whether large filters stay 8-bit integers: as floats they would take four times the memory

    def __init__(
        self,
        proto: Any,
        *args: Any,
        constants: Mapping[str, Any] | None = None,
        facts: Mapping[str, Fact] | None = None,
        around: Evaluator | None = None,
        **kwargs: Any,
    ) -> None:
        # For model functions, onnx creates evaluators of this class, without constants and facts; _inside creates those
        # of subgraphs.
        self._initializers, self._facts = constants or {}, facts
        self._budget: Budget = Budget() if around is None else around._budget
        self._outer_constants: dict[str, Any] = (
            {} if around is None else around._constants_of(nodes.names_outside(proto))
        )
        self._folded: dict[str, Any] = {}
        self._warned: set[str] = set() if around is None else around._warned
        # implementations of operators that ONNX defines as functions of others, by (domain, op_type)
        self._reference_classes: dict[tuple[str, str], Any] = {}
        kwargs["new_ops"] = None  # onnx would prefer these to our steps
        super().__init__(proto, *args, **kwargs)
        last_uses = _last_uses(self.nodes_, set(self.output_names), self.input_names)
        # as tuples: protobuf's lists create new strings at each access
        node_outputs = (tuple(node.output) for node in self.nodes_)
        self._program = list(zip(self.rt_nodes_, node_outputs, last_uses, strict=True))
        for node in self.rt_nodes_:
            if isinstance(node, Step):
                node.set_constants(self.rt_inits_)
        self._fallbacks: dict[int, Any] = {}
        self._call_attributes: dict[int, dict[str, Any]] = {}
        self._joins = joining.Joins(self.nodes_, self.output_names, steps.DOMAIN)
        # drop the reference: memory of initializers that were folded away is then freed
        self._initializer_names, self._initializers = frozenset(self._initializers), {}
        if around is None:
            self._mark_cacheable(frozenset())

    def _mark_cacheable(self, outside: frozenset[str]) -> None:
        """Let steps cache their results if their inputs are constants, shapes, or derived from these only.

        ``outside`` names the cacheable values of the enclosing graphs.
        """
        defined = {name for names in (self.input_names, *(names for _, names, _ in self._program)) for name in names}
        cacheable = {"", *outside.difference(defined), *self._fixed}
        for node, names, _ in self._program:
            if isinstance(node, ControlStep):
                for inner in node.evaluators.values():
                    inner._mark_cacheable(frozenset(cacheable))
            elif isinstance(node, Step) and node.mark_cacheable(cacheable):
                cacheable.update(names)

    def share(self, warned: set[str]) -> None:
        """Share one set of operator names already warned of with all evaluators of subgraphs and functions."""
        if self._warned is warned:
            return
        self._warned = warned
        for node in self.rt_nodes_:
            for inner in _evaluators(node):
                inner.share(warned)

    def report(self, meets: Iterable[NodeProto] = ()) -> Report:
        """Return what folding and fusion did to the graph's nodes.

        ``meets`` lists the nodes in which the images of a batch influence each other.
        """
        return report.compare(
            self._original_nodes, self.nodes_, self._initializer_names, self._reference_nodes(set()), meets
        )

    def _reference_nodes(self, seen: set[int]) -> Iterator[NodeProto]:
        """Yield nodes that onnx's reference evaluator computes, as far as known; each function's nodes once.

        ``seen`` holds the ids of the evaluators visited so far.
        """
        seen.add(id(self))
        for index, node in enumerate(self.rt_nodes_):
            inside = _evaluators(node)
            if index in self._fallbacks or not (isinstance(node, Step) or _is_free(node)):
                yield node.onnx_node
            for inner in inside:
                if id(inner) not in seen:
                    yield from inner._reference_nodes(seen)

    def _constants_of(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the subset of the named values that is constant in this graph, with their values."""
        sources = (
            self._outer_constants,
            self._initializers,
            self.rt_inits_,
            self._folded,
        )  # the last source takes precedence
        return {name: source[name] for name in names for source in sources if name in source}

    def _subgraph_evaluator(self, graph: GraphProto) -> Evaluator:
        """Return an evaluator for a subgraph; it is folded if this graph is, unless the subgraph has inputs with
        defaults.
        """
        defaults = {tensor.name for tensor in graph.initializer}
        plain = self._facts is None or any(value.name in defaults for value in graph.input)
        functions = list(self.functions_.values())
        return type(self)(graph, opsets=self.opsets, functions=functions, facts=None if plain else {}, around=self)

    def _init(self) -> None:
        """Read the initializers, fold the graph if facts were given, and create a step for each node."""
        self._read()
        inputs = set(self.input_names)
        # Subgraphs are fed all values around them; names that they define themselves take precedence.
        self._fixed = {name: value for name, value in self.rt_inits_.items() if name not in inputs}
        self.rt_inits_ = {**self._outer_constants, **self.rt_inits_}
        self._defaults = {name: value for name, value in self.rt_inits_.items() if name not in self._fixed}

    def _read(self) -> None:
        """Read the initializers; if facts were given, replace the graph by its folded form."""
        self._original_nodes = list(self.nodes_)
        if self._facts is None:
            super()._init()
            self.rt_inits_.update(self._initializers)
            return
        outputs = frozenset(self.output_names)
        self.nodes_ = []
        super()._init()
        constants = {**self._outer_constants, **self.rt_inits_, **self._initializers}
        outer = frozenset(self._outer_constants).difference(self.rt_inits_, self._initializers)
        graph = Graph(self._original_nodes, constants, outputs, self.opsets.get("", 1), self._facts, self._budget)
        graph = replace(graph, outer_constants=outer, keep_quantized=self._keep_quantized)
        folded = folding.fold(graph)
        self.nodes_, self.inits_, self._folded = folded.nodes, [], folded.constants
        super()._init()
        self.rt_inits_ = folded.constants

    def _load_impl(self, node: NodeProto, input_types: Any = None) -> Any:
        """Return the factory of a node for onnx's evaluator: our step if there is one, else onnx's implementation."""
        try:
            may_have_step = node.domain in (*self.opsets, steps.DOMAIN) and not self._defines(node)
            step = steps.find(node, self.opsets.get("", 1), self._subgraph_evaluator) if may_have_step else None
        except (GpuconvError, MemoryError):
            raise
        except Exception as error:  # attributes of the wrong type, or strings that are not UTF-8
            raise ArgumentError(f"{nodes.describe(node)} is not valid: {reason(error)}") from error
        if step is not None:
            return lambda *_: step
        return partial(_instance, self._load_reference(node, input_types))

    def _defines(self, node: NodeProto) -> bool:
        """Return whether the model itself defines a function for this operator of ONNX Runtime's domain."""
        return node.domain == translating.DOMAIN and (node.domain, node.op_type) in self.functions_

    def _load_reference(self, node: NodeProto, input_types: Any = None) -> Any:
        """Return onnx's implementation of a node's operator; raise ArgumentError, with advice, if there is none."""
        key = node.domain, node.op_type
        if key in self._reference_classes:
            return self._reference_classes[key]
        try:
            loaded = super()._load_impl(node, input_types)
            if input_types is None and not isinstance(loaded, type):
                self._reference_classes[key] = loaded
            return loaded
        except RuntimeContextError:  # how the evaluator asks for a second call that passes the input types
            raise
        except (NotImplementedError, RuntimeError, ValueError) as error:
            unknown = (
                f"neither gpuconv nor onnx's reference evaluator knows {quoted(node.op_type)} of domain "
                f"{quoted(node.domain)} (opset imported: {self.opsets.get(node.domain)})"
            )
            raise ArgumentError(f"{nodes.describe(node)}: {translating.cure(node) or unknown}") from error

    def run(  # type: ignore[override]
        self, output_names: list[str] | None, feed_inputs: dict[str, Any], attributes: dict[str, Any] | None = None
    ) -> list[Any]:
        """Return the outputs on the host, for onnx's own control-flow operators, which call this on subgraphs."""
        values = self.evaluate(feed_inputs, attributes)
        return [self.to_host(values[name]) for name in output_names or self.output_names]

    def evaluate(
        self,
        feeds: Mapping[str, Any],
        attributes: Mapping[str, Any] | None = None,
        *,
        observer: Observer | None = None,
        images: Images | None = None,
    ) -> dict[str, Any]:
        """Compute the graph's outputs and leave them in the memory where they were computed.

        Parameters
        ----------
        feeds : dict of str to value
            One per input of the graph, by name; for a subgraph, also the values of the enclosing graphs.
        attributes : dict, optional
            Attributes of the call, if this evaluator runs a model function.
        observer : callable, optional
            Called after each node with (NodeProto, index, number of nodes, seconds). If it has a method ``outputs``,
            that is called first with (NodeProto, outputs).
        images : Images, optional
            The batch axes of the feeds, for batch-invariant runs: nodes are computed so that no image influences
            another. The batch axes of all outputs are added to it.

        Returns
        -------
        dict of str to value
            The outputs by name; other values may be present too.

        Raises
        ------
        GpuconvError
            Raised by gpuconv's operators, or, naming the node, for an error in any other operator.
        """
        values = {"": None, **self._defaults, **feeds, **self._fixed}
        memory, function_attributes = self._joins.begin_run(), attributes or {}
        for index, (node, names, last) in enumerate(self._program):
            start = 0.0 if observer is None else perf_counter()
            try:
                outputs = self._outputs(index, node, values, function_attributes, memory, images)
            except CaptureError as error:
                raise nodes.not_captured(node.onnx_node, error) from error
            except (GpuconvError, MemoryError, UserWarning):
                # our own errors, and warnings that the caller turned into errors
                raise
            except Exception as error:  # for example, input values of a kind that the node does not accept
                raise nodes.failed(node.onnx_node, error) from error
            # An omitted optional output is named "", and "" as an input must continue to mean "absent".
            values.update({name: value for name, value in zip(names, outputs, strict=False) if name})
            if observer is not None:
                seconds = perf_counter() - start
                if hasattr(observer, "outputs"):
                    observer.outputs(node.onnx_node, outputs)
                observer(node.onnx_node, index, len(self._program), seconds)
            for name in last:
                values.pop(name, None)
        return values

    def _outputs(
        self,
        index: int,
        node: Any,
        values: dict[str, Any],
        attributes: Mapping[str, Any],
        memory: joining.Memory,
        images: Images | None,
    ) -> Any:
        """Compute one node: control flow, a function call, or a plain node (per image for batch invariance)."""
        if isinstance(node, ControlStep):
            return node.run(values, attributes, images)
        if isinstance(node, OpFunction) and isinstance(node.impl_, Evaluator):
            return self._call(node, values, attributes, images)
        if images is None:
            return self._computed(index, node, values, attributes, memory)
        proto, inputs = node.onnx_node, [values[name] for name in node.input]
        linked = {a.name: attributes[a.ref_attr_name] for a in proto.attribute if a.ref_attr_name in attributes}
        plan = images.plan(proto, self.opsets.get("", 1), inputs, linked)
        if plan.mixes_images:
            images.tell(proto)

        def compute(parts: dict[str, Any]) -> Any:
            return self._computed(index, node, {**values, **parts}, attributes, memory)

        outputs = (
            compute({}) if plan.slice_axes is None else images.compute_per_image(node.input, values, plan, compute)
        )
        images.record(node.output, outputs, plan)
        return outputs

    def _computed(
        self, index: int, node: Any, values: dict[str, Any], attributes: Mapping[str, Any], memory: joining.Memory
    ) -> Any:
        """Compute a plain node: from its cache, by its step, or by onnx's implementation if the step refuses these
        inputs.
        """
        if isinstance(node, Step):
            linked = node.linked and _linked(node, attributes)
            inputs = self.operands(node, values)
            cached = node.cached_outputs(inputs) if node.cacheable else None
            if cached is not None:
                return cached
            if not node.accepts(inputs, linked):
                return self.by_reference(self._fallback(index, node), values, attributes)
            if not node.supports_out:
                return node.compute(inputs, linked)
            name = node.output[0]
            outputs = node.compute(inputs, linked, memory.target(name, inputs))
            memory.finish(name, inputs, outputs[0])
            return outputs
        return self.by_reference(node, values, attributes)

    def _fallback(self, index: int, step: Step) -> Any:
        """Return onnx's implementation of a node whose step does not accept its inputs; it is created once."""
        if index not in self._fallbacks:
            node = step.onnx_node
            parameters = {"log": lambda *_: None, "opsets": self.opsets, "verbose": 0, "new_ops": {}}
            self._fallbacks[index] = self._load_reference(node)(node, parameters)
        return self._fallbacks[index]

    def _call(
        self, node: Any, values: dict[str, Any], attributes: Mapping[str, Any], images: Images | None
    ) -> list[Any]:
        """Evaluate a call of a model function, or of an operator that ONNX defines as a function, without leaving the
        device.
        """
        function: Evaluator = node.impl_
        feeds = dict(zip(function.input_names, (values[name] for name in node.input), strict=False))
        feeds = {name: feeds.get(name) for name in function.input_names}
        linked = {
            a.name: attributes[a.ref_attr_name] for a in node.onnx_node.attribute if a.ref_attr_name in attributes
        }
        outer_names = dict(zip(function.input_names, node.input, strict=False))
        inner = (
            None
            if images is None
            else images.inside({name: images.axes.get(outer_names[name]) for name in outer_names})
        )
        results = function.evaluate(feeds, {**self._arguments(node), **linked}, images=inner)
        if images is not None and inner is not None:
            for outer, name in zip(node.output, function.output_names, strict=False):
                images.set(outer, inner.axes.get(name))
        return [results[name] for name in function.output_names]

    def _arguments(self, node: Any) -> dict[str, Any]:
        """Return a call's attributes with the function's default values, which onnx's evaluator omits."""
        if id(node) not in self._call_attributes:
            defaults = getattr(node.impl_.proto_, "attribute_proto", ())
            by_name = {a.name: a for a in (*defaults, *node.onnx_node.attribute) if not a.ref_attr_name}
            values = {a.name: node._extract_attribute_value(by_name[a.name]) for a in defaults}
            self._call_attributes[id(node)] = {**node.attributes_, **values}
        return self._call_attributes[id(node)]

    # ---------------------------------------------------------------- where values are

    def operands(self, step: Step, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return a step's inputs, each moved to the memory (host or device) that the step needs."""
        return tuple([values[name] for name in step.input])

    def by_reference(self, node: Any, values: dict[str, Any], attributes: Mapping[str, Any]) -> Any:
        """Run onnx's implementation of a node on the host; warn once per operator that this is slow."""
        if not _is_free(node):
            self._warn(node, "which is made to be right, not to be fast")
        return _run_reference(node, [values[name] for name in node.input], values, attributes)

    def _warn(self, node: Any, how: str) -> None:
        op_type = node.onnx_node.op_type
        if op_type not in self._warned:
            self._warned.add(op_type)
            warn(f"{nodes.describe(node.onnx_node)}: {op_type} is left to onnx's reference evaluator, {how}")

    def takes(self, value: Any) -> bool:
        """Return whether a model input other than a NumPy array is acceptable: never, for this evaluator."""
        return False

    def enter(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the model's inputs, moved to the memory in which its nodes read them."""
        return values

    def leaving(self, values: Mapping[str, Any]) -> Callable[[Any], Any]:
        """Return a function that moves the model's outputs to the memory that its inputs came from: the host."""
        return self.to_host

    def to_host(self, value: Any) -> Any:
        """Return a value in host memory."""
        return value


class CudaEvaluator(Evaluator):
    """An :class:`Evaluator` that keeps floating-point values on the current CUDA device, from inputs to outputs.

    Values that parameterise operators, such as shapes and axes, stay on the host. So do integers from the host, until
    an operator combines them with a device array.
    """

    _keep_quantized = False  # on a device, filters are packed into the kernels' layout once

    def __init__(self, proto: Any, *args: Any, around: CudaEvaluator | None = None, **kwargs: Any) -> None:
        super().__init__(proto, *args, around=around, **kwargs)
        # constants on the device, by (name, operator they are packed for or "")
        self._constants: dict[tuple[str, str], Any] = {}
        own_steps = [node for node in self.rt_nodes_ if isinstance(node, Step)]
        self._host_values = {step.input[at] for step in own_steps for at in step.on_host if at < len(step.input)}
        inner = [
            evaluator for step in own_steps if isinstance(step, ControlStep) for evaluator in step.evaluators.values()
        ]
        self._host_values.update(name for evaluator in inner for name in evaluator._host_values)
        for step in own_steps if self._facts else ():
            if len(step.input) > 1 and step.packs_weights_for(1) and step.input[1] in self._fixed:
                # running the model raises the same error, with the user's inputs
                with suppress(GpuconvError, MemoryError):
                    self._pack(step)

    def _pack(self, step: Step) -> None:
        """Move a step's constant weights to the device; if all shapes are known, plan the convolution and pack its
        weights.
        """
        values = {"": None} | {name: self.rt_inits_[name] for name in step.input if name in self._fixed}
        weights = self._on_device(step.input[1], values[step.input[1]], step.packs_weights_for(1))
        if not isinstance(weights, gpuconv.PackedWeights) or step.linked:
            return
        for name in step.input:
            if name not in values:
                shape = self._shape(name, str(weights.dtype))
                if shape is None or (
                    name != step.input[0] and shape != self._shape(step.output[0], str(weights.dtype))
                ):
                    return
                values[name] = cuda.runtime.empty(
                    shape, weights.dtype, f"{nodes.describe(step.onnx_node)}: its weights"
                )
        inputs = self.operands(step, values)
        with weights.only():
            if step.accepts(inputs, {}):
                step.compute(inputs, {})

    def _shape(self, name: str, dtype: str) -> tuple[int, ...] | None:
        """Return a value's shape if it is known, has elements, and the value's dtype is this one; None otherwise."""
        fact = (self._facts or {}).get(name)
        if fact is None or fact.dtype != dtype or fact.shape is None or 0 in fact.shape:
            return None
        return fact.shape

    def operands(self, step: Step, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return a step's inputs: all on the device if any is, except those that the host reads."""
        inputs = [values[name] for name in step.input]
        device_inputs = [value for at, value in enumerate(inputs) if at not in step.on_host]
        if not step.by_kernels and not any(map(on_device, device_inputs)):
            return tuple(map(self.to_host, inputs))
        return tuple(
            self.to_host(value) if at in step.on_host else self._on_device(name, value, step.packs_weights_for(at))
            for at, (name, value) in enumerate(zip(step.input, inputs, strict=True))
        )

    def _on_device(self, name: str, value: Any, packed_for: str) -> Any:
        """Return a value on the device.

        Constants are moved once and cached; weights are packed for the operator ``packed_for`` ("" for none).
        """
        if not on_device(value) and not _is_numeric(value):
            return value
        constant = name in self.rt_inits_ and value is self.rt_inits_[name]
        if not constant:
            return gpuconv.to_device(value)
        key = name, packed_for
        if key not in self._constants:
            on_gpu = gpuconv.to_device(value)
            self._constants[key] = gpuconv.pack(on_gpu, packed_for) if packed_for else on_gpu
        return self._constants[key]

    def by_reference(self, node: Any, values: dict[str, Any], attributes: Mapping[str, Any]) -> Any:
        """Run a node of onnx's on the host, with copies of device arrays to the host and of floating-point results
        back.
        """
        inputs = [values[name] for name in node.input]
        is_any_on_device = any(map(on_device, inputs))
        if not is_any_on_device:
            return super().by_reference(node, values, attributes)
        self._warn(node, "on the host, with copies from the device and back")
        outputs = _run_reference(node, list(map(self.to_host, inputs)), values, attributes)
        return [_float_to_device(value) for value in outputs]

    def takes(self, value: Any) -> bool:
        """Accept arrays on the device as model inputs."""
        return on_device(value)

    def stays_on_host(self, name: str, value: Any) -> bool:
        """Return whether an input is a host array that remains on the host: the host reads it, or it is not
        floating-point.
        """
        return not on_device(value) and (name in self._host_values or not (_is_numeric(value) and is_float(value)))

    def enter(self, values: dict[str, Any]) -> dict[str, Any]:
        """Move floating-point inputs to the device, except those that the host reads."""
        return {name: value if name in self._host_values else _float_to_device(value) for name, value in values.items()}

    def leaving(self, values: Mapping[str, Any]) -> Callable[[Any], Any]:
        """Return what moves outputs to the host, or leaves them on the device if an input was there."""
        is_any_on_device = any(on_device(value) and not isinstance(value, np.ndarray) for value in values.values())
        return _numeric_to_device if is_any_on_device else self.to_host

    def to_host(self, value: Any) -> Any:
        """Return a value on the host; for device arrays, this waits until they are computed."""
        return gpuconv.to_host(value) if on_device(value) else value


def _evaluators(node: Any) -> list[Evaluator]:
    """Return the evaluators of a node's subgraphs, or of the function that it calls, from any attribute of the node."""
    attributes = [value for name, value in vars(node).items() if name != "parent"]  # the node's enclosing evaluator
    attributes += [value for values in attributes if isinstance(values, dict) for value in values.values()]
    return [value for value in attributes if isinstance(value, Evaluator)]


def _is_free(node: Any) -> bool:
    """Return whether a node of onnx's takes no time itself: a Constant, or one whose subgraphs or function do the
    work.
    """
    return bool(node.onnx_node.op_type == "Constant" or _evaluators(node))


def _instance(kind: Any, node: NodeProto, parameters: dict[str, Any]) -> Any:
    """Instantiate onnx's implementation of a node; failures become an ArgumentError that names the node."""
    try:
        return kind(node, parameters)
    except (GpuconvError, MemoryError):
        raise
    except Exception as error:
        cause = error.__cause__ or error
        said = f"{type(cause).__name__}: {reason(cause)}"
        raise ArgumentError(f"{nodes.describe(node)}: onnx's reference evaluator cannot create it: {said}") from error


def _is_numeric(value: Any) -> bool:
    """Return whether a value is a host array whose dtype exists on a device: no strings, no types below 8 bits."""
    return isinstance(value, np.ndarray) and (value.dtype.name in DTYPES or value.dtype.kind == "c")


def _numeric_to_device(value: Any) -> Any:
    """Move a numeric host array to the device; return anything else unchanged."""
    return gpuconv.to_device(value) if _is_numeric(value) else value


def _float_to_device(value: Any) -> Any:
    """Move a floating-point host array to the device; return anything else unchanged."""
    return gpuconv.to_device(value) if _is_numeric(value) and is_float(value) else value


def _run_reference(node: Any, inputs: list[Any], values: dict[str, Any], attributes: Mapping[str, Any]) -> Any:
    """Call onnx's implementation of a node on host values; errors name the node."""
    options: dict[str, Any] = {}
    if node.has_linked_attribute and attributes:
        options["linked_attributes"] = attributes
    if node.need_context():
        options["context"] = values
    try:
        return [_as_text(value) for value in node.run(*inputs, **options)]
    except (GpuconvError, MemoryError):
        raise
    except Exception as error:
        gpuconv_error = own_error(error)
        if gpuconv_error is not None:
            raise gpuconv_error from None
        cause = error.__cause__ or error  # OpRun replaces the original error by a list of input types
        raise nodes.failed(node.onnx_node, cause, "onnx's reference evaluator failed: ") from error


def _as_text(value: Any) -> Any:
    """Return string arrays with dtype object, as ONNX requires; some of onnx's operators return fixed-width strings."""
    return value.astype(object) if isinstance(value, np.ndarray) and value.dtype.kind in "UT" else value


def _linked(step: Step, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a step's attributes that refer to attributes of the enclosing function."""
    linked = {name: attributes[outer] for name, outer in step.linked.items() if outer in attributes}
    if linked:
        nodes.check_linked(step.onnx_node, linked)
    return linked


def _last_uses(graph_nodes: Any, outputs: set[str], inputs: Iterable[str]) -> list[list[str]]:
    """Return, per node, the values to free after it: results and graph inputs that no later node uses.

    Outputs of the graph (``outputs``) are never freed.
    """
    uses: list[list[str]] = []
    local, seen = {*inputs, *(name for node in graph_nodes for name in node.output)}, {"", *outputs}
    for node in reversed(graph_nodes):
        used = nodes.names_used(node) if node.attribute else node.input
        names = local.intersection((*used, *node.output)) - seen
        seen |= names
        uses.append(sorted(names))
    return uses[::-1]
