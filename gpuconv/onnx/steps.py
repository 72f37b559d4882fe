"""Executable form of the nodes that gpuconv computes: one :class:`Step` per node, validated when the model is loaded.

:func:`find` returns the step of a node, or None to leave the node to onnx's reference evaluator. Kinds of steps: the
public functions (Conv, pooling), fused convolutions, operators of :data:`gpuconv.onnx.operators.TABLE`, element-wise
chains, Concat, and control flow.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import is_
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, helper

from gpuconv._errors import ArgumentError, GpuconvError
from gpuconv.cpu._workspace import SCRATCH
from gpuconv.onnx import joining, nodes, operators
from gpuconv.onnx.batch.axes import LOST
from gpuconv.onnx.batch.images import Images
from gpuconv.onnx.messages import reason
from gpuconv.onnx.operators import Form, Operator, is_float, special
from gpuconv.onnx.operators.affine import activated, affine
from gpuconv.onnx.operators.form import name_of, wide
from gpuconv.onnx.repeated import RepeatedConv

DOMAIN = "gpuconv"  # private domain of the nodes that fusion creates
_FUSED = ("FusedConv", "FusedConvTranspose", "Affine")
_SLICING = ("Scan", "SequenceMap")  # operators whose subgraph sees slices or elements of their inputs
_SIZES = ("Shape", "Size")  # operators that read only the shape of their input
_MOST_CACHED_BYTES = 2**16  # bytes; larger results are not cached between runs
ACTIVATION = ("activation", "alpha", "low", "high")  # attributes of a fused node that describe its activation
Inputs = tuple[Any, ...]


class Step:
    """A node that can be computed from arrays. This base class sets the defaults for all kinds of steps.

    Attributes
    ----------
    onnx_node, input, output
        The node, and the names of its inputs and outputs, under the names that onnx's OpRun uses.
    linked : dict of str to str
        Attributes that refer to attributes of the enclosing function: name to the function's name for it.
    on_host : frozenset of int
        Positions of inputs that must be NumPy arrays even if the model runs on a device.
    by_kernels : bool
        Whether a device computes it even if all inputs come from the host.
    supports_out : bool
        Whether :meth:`compute` can store its first output in a given array.
    cacheable : bool
        Whether its outputs depend only on constants and shapes, so that they can be cached between runs.
    """

    has_subgraph = False
    supports_out = False
    cacheable = False

    def __init__(self, node: NodeProto, opset: int) -> None:
        self.onnx_node = node
        self.input, self.output = tuple(node.input), tuple(node.output)
        self.linked = {a.name: a.ref_attr_name for a in node.attribute if a.ref_attr_name}
        self.has_linked_attribute = bool(self.linked)
        self.on_host: frozenset[int] = frozenset()
        self.by_kernels = nodes.supported(node)
        self._opset = opset

    def need_context(self) -> bool:
        """Return False: the node sees only its inputs, not the values of enclosing graphs."""
        return False

    def packs_weights_for(self, position: int) -> str:
        """Return the public function for which the input at this position holds weights to pack; "" if it holds
        none.
        """
        return ""

    def set_constants(self, constants: Mapping[str, Any]) -> None:
        """Receive the graph's constants by name, to precompute what depends on them."""

    def mark_cacheable(self, cacheable: Container[str]) -> bool:
        """Return whether the outputs depend on constants and shapes only; ``cacheable`` names the values that do."""
        return False

    def cached_outputs(self, inputs: Inputs) -> Inputs | None:
        """Return the cached outputs of a cacheable step if the inputs are those of the last run; None otherwise."""
        return None

    def accepts(self, inputs: Inputs, linked: Mapping[str, Any]) -> bool:
        """Return whether the step can compute these inputs with these values of linked attributes."""
        return True

    def compute(self, inputs: Inputs, linked: Mapping[str, Any], out: Any = None) -> Inputs:
        """Return the node's outputs, in the library of the inputs; the first one is stored in ``out`` if that fits."""
        raise NotImplementedError


class ConvolutionStep(Step):
    """Base class of convolution steps, with a fast path: later calls with the same shapes and dtypes skip
    validation.
    """

    _fast_path: RepeatedConv | None = None
    supports_out = True

    def set_constants(self, constants: Mapping[str, Any]) -> None:
        """Register constant weights with the fast path, so that facts about them are computed once."""
        if self._fast_path is not None:
            self._fast_path.keep(constants.get(self.input[1]))


class KernelStep(ConvolutionStep):
    """Conv, ConvTranspose or pooling, computed by gpuconv's public function."""

    def __init__(self, node: NodeProto, opset: int) -> None:
        super().__init__(node, opset)
        self._keywords = nodes.keywords(node, opset)
        self._fast_path = RepeatedConv(self._keywords) if node.op_type == "Conv" and not self.linked else None

    def packs_weights_for(self, position: int) -> str:
        """Return the function whose weights the second input holds; "" for all other inputs."""
        return nodes.function_of(self.onnx_node) if position == 1 else ""

    def compute(self, inputs: Inputs, linked: Mapping[str, Any], out: Any = None) -> Inputs:
        """Call the public function, or the fast path for a repeated Conv."""
        compute = partial(nodes.call, self.onnx_node, self._opset, inputs, {**self._keywords, **linked})
        return compute() if self._fast_path is None else self._fast_path.call(compute, *inputs, out=out)


class FusedStep(ConvolutionStep):
    """A convolution with a fused residual or activation; or Affine, a per-channel factor and shift with an
    activation.
    """

    def __init__(self, node: NodeProto, opset: int) -> None:
        super().__init__(node, opset)
        self._activation, self._plain = _without_activation(node)
        self._keywords = {} if node.op_type == "Affine" else nodes.keywords(self._plain, opset)
        self.by_kernels = node.op_type != "Affine"
        self._fast_path = RepeatedConv(self._keywords, self._activation) if node.op_type == "FusedConv" else None

    def packs_weights_for(self, position: int) -> str:
        """Return the function whose weights the second input of a fused convolution holds; "" for all other inputs."""
        return nodes.function_of(self._plain) if self.by_kernels and position == 1 else ""

    def compute(self, inputs: Inputs, linked: Mapping[str, Any], out: Any = None) -> Inputs:
        """Call the public function with residual and activation; a residual that must be broadcast is added
        afterwards.
        """
        if not self.by_kernels:
            x, factor, shift = inputs
            return (affine(x, factor, shift, self._activation),)
        y = None if self._fast_path is None else self._fast_path.run(*inputs, out=out)
        if y is not None:
            return (y,)
        operands, residual = inputs[:3], inputs[3] if len(inputs) > 3 else None
        keywords = {**self._keywords, "activation": self._activation, "residual": residual}
        if residual is None or not self._broadcasts(operands, residual):
            outputs = nodes.call(self._plain, self._opset, operands, keywords)
            if self._fast_path is not None:
                self._fast_path.accept(*inputs)
            return outputs
        (y,) = nodes.call(self._plain, self._opset, operands, self._keywords)
        return (activated(wide(y) + wide(residual), self._activation).astype(y.dtype, copy=False),)

    def _broadcasts(self, operands: Inputs, residual: Any) -> bool:
        """Return whether the residual differs in shape from the result; raise ArgumentError if it cannot be
        broadcast.
        """
        shape = nodes.result_shape(self._plain, operands, self._keywords)
        try:
            np.broadcast_shapes(shape, residual.shape)
        except ValueError:
            raise ArgumentError(
                f"{nodes.describe(self._plain)}: what is added has the shape {residual.shape}, which does not "
                f"broadcast with the result's shape {shape}"
            ) from None
        return bool(residual.shape != shape)


def _without_activation(node: NodeProto) -> tuple[Any, NodeProto]:
    """Split a fused node: return its activation in the form that gpuconv.conv takes, and the plain ONNX node."""
    plain = NodeProto(name=node.name, op_type=node.op_type.removeprefix("Fused"), output=node.output)
    plain.input.extend(node.input[:3])
    activation_attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute if a.name in ACTIVATION}
    plain.attribute.extend(a for a in node.attribute if a.name not in ACTIVATION)
    name = activation_attributes.get("activation", b"").decode()
    arguments = {"leaky_relu": ("alpha",), "clip": ("low", "high")}.get(name, ())
    return ((name, *map(activation_attributes.get, arguments)) if name else None), plain


class TableStep(Step):
    """A node of an operator in :data:`gpuconv.onnx.operators.TABLE`, implemented on NumPy or CuPy arrays."""

    def __init__(self, node: NodeProto, opset: int, operator: Operator, form: Form) -> None:
        super().__init__(node, opset)
        self.on_host, self.by_kernels = operator.on_host, operator.by_kernels
        self._operator, self._form = operator, form
        self._constants: Inputs = ()
        self._prepared: Mapping[int, Any] | None = None
        # (inputs, or the shape read by Shape and Size; the outputs for these)
        self._cached: tuple[Any, Inputs] | None = None

    def set_constants(self, constants: Mapping[str, Any]) -> None:
        """Remember constant inputs, which the operator converts into a faster form at the first run on the host."""
        if self._operator.prepare is not None and not self.linked:
            self._constants = tuple(constants.get(name) for name in self.input)

    def mark_cacheable(self, cacheable: Container[str]) -> bool:
        """Decide whether the outputs can be cached: the step reads only shapes, or only cacheable values.

        Operators whose outputs a later Chain may overwrite in place are excluded.
        """
        kind = self.onnx_node.op_type
        only_cacheable_inputs = kind in _SIZES or all(name in cacheable for name in self.input)
        self.cacheable = only_cacheable_inputs and not self.linked and kind not in joining.COMPUTING
        return self.cacheable

    def cached_outputs(self, inputs: Inputs) -> Inputs | None:
        """Return the cached outputs if the inputs are those of the last run (for Shape and Size: of equal shape)."""
        if self._cached is None:
            return None
        before, outputs = self._cached
        if self.onnx_node.op_type in _SIZES:
            return outputs if before == getattr(inputs[0], "shape", None) else None
        return outputs if all(map(is_, inputs, before)) else None

    def _cache(self, inputs: Inputs, outputs: Inputs) -> None:
        """Cache the outputs of a cacheable step if they are small, as read-only arrays."""
        if all(type(value) is np.ndarray and value.nbytes <= _MOST_CACHED_BYTES for value in outputs):
            for value in outputs:
                value.flags.writeable = False
            self._cached = inputs[0].shape if self.onnx_node.op_type in _SIZES else inputs, outputs

    def _form_with(self, linked: Mapping[str, Any]) -> Form:
        return replace(self._form, attributes={**self._form.attributes, **linked}) if linked else self._form

    def accepts(self, inputs: Inputs, linked: Mapping[str, Any]) -> bool:
        """Return whether the operator supports the dtypes of all inputs and the linked attributes."""
        for value in inputs:
            dtype = getattr(value, "dtype", None)
            if value is not None and (dtype is None or name_of(dtype) not in self._operator.dtypes):
                if dtype is None and self._operator.collections:
                    continue
                return False
        return not linked or self._operator.serves(self._form_with(linked))

    def _with_prepared(self, inputs: Inputs) -> Inputs:
        """Replace constant inputs by their prepared form, unless a run overrides one of the constants."""
        prepare, constants = self._operator.prepare, self._constants
        pairs = zip(inputs, constants, strict=False)
        if (
            prepare is None
            or not constants
            or any(constant is not None and value is not constant for value, constant in pairs)
        ):
            return inputs
        if self._prepared is None:
            self._prepared = prepare(self._form, constants)
        return tuple(self._prepared.get(at, value) for at, value in enumerate(inputs))

    def cost(self, inputs: Inputs) -> int:
        """Return an upper bound on the elements that the operator reads or computes, for the folding budget."""
        return self._operator.cost(self._form, *inputs)

    def compute(self, inputs: Inputs, linked: Mapping[str, Any], out: Any = None) -> Inputs:
        """Call the operator's function; any error names the node."""
        try:
            result = self._operator.function(self._form_with(linked), *self._with_prepared(inputs))
        except GpuconvError as error:
            raise nodes.renamed(self.onnx_node, error, _caller(error)) from error
        except MemoryError:
            raise
        except Exception as error:
            shapes = ", ".join(map(_described, inputs))
            raise GpuconvError(
                f"{nodes.describe(self.onnx_node)}: {type(error).__name__}: {reason(error)} (inputs: {shapes})"
            ) from error
        outputs = result if type(result) is tuple else (result,)
        if any(isinstance(value, np.generic) for value in outputs):
            outputs = tuple(np.asarray(value) if isinstance(value, np.generic) else value for value in outputs)
        if self.cacheable:
            self._cache(inputs, outputs)
        return outputs

    def write(self, inputs: Inputs, y: Any) -> None:
        """Write the node's only output into the NumPy array ``y``, which may be one of the inputs."""
        if self._operator.into is not None and name_of(y.dtype) in ("float32", "float64"):
            self._operator.into(self._form, *inputs, y)
        else:
            (y[...],) = self.compute(inputs, {})


class ChainStep(Step):
    """A chain of element-wise operators on the first input and scalar constants, evaluated block by block on the CPU.

    Each block of elements passes through all operators while it is in cache. Intermediate results share a minimal set
    of scratch buffers, assigned by the lifetimes of the values.
    """

    supports_out = True

    def __init__(self, node: NodeProto, opset: int) -> None:
        super().__init__(node, opset)
        steps_found = [find(NodeProto.FromString(text), opset) for text in node.attribute[0].strings]
        self._operators = [step for step in steps_found if isinstance(step, TableStep)]
        input_count = len(node.input)
        places = {
            "": -1,
            **{name: at for at, name in enumerate((*node.input, *(s.output[0] for s in self._operators)))},
        }
        self._operand_indices = [[places[name] for name in step.input] for step in self._operators]
        read_by_host = {step.input[at] for step in self._operators for at in step.on_host if at < len(step.input)}
        self.on_host = frozenset(at for at, name in enumerate(node.input) if name in read_by_host)
        last = {place: number for number, used in enumerate(self._operand_indices) for place in used}
        # scratch buffer of each intermediate result, reused after the last use of its value
        self._slots: list[int] = []
        for number in range(len(self._operators) - 1):
            taken = {slot for at, slot in enumerate(self._slots) if last[input_count + at] > number}
            self._slots.append(next(slot for slot in range(number + 1) if slot not in taken))

    def compute(self, inputs: Inputs, linked: Mapping[str, Any], out: Any = None) -> Inputs:
        """Compute the chain: in blocks for floating-point NumPy arrays, otherwise one operator at a time."""
        x, *numbers = inputs
        if not isinstance(x, np.ndarray) or not is_float(x) or any(np.ndim(number) > x.ndim for number in numbers):
            values = list(inputs)
            for step, places in zip(self._operators, self._operand_indices, strict=True):
                values.extend(step.compute(tuple(None if at < 0 else values[at] for at in places), {}))
            return (values[-1],)
        scalars = [number.reshape(()) for number in numbers]
        fits = out is not None and out.shape == x.shape and out.dtype == x.dtype and out.flags.c_contiguous
        y_is_scratch = not (fits and out is x)
        return (special.over(lambda block, y: self._block(block, scalars, y, y_is_scratch), x, out if fits else None),)

    def _block(self, x: Any, numbers: list[Any], y: Any, y_is_scratch: bool) -> None:
        """Compute one block; if y does not alias x, y itself serves as the first scratch buffer."""
        values = [x, *numbers]
        for number, (step, places) in enumerate(zip(self._operators, self._operand_indices, strict=True)):
            at = self._slots[number] if number < len(self._slots) else None
            in_y = at is None or (at == 0 and y_is_scratch)
            target = y if in_y else SCRATCH.take(f"chain {at}", x.shape, x.dtype)
            step.write(tuple(None if place < 0 else values[place] for place in places), target)
            values.append(target)


class JoinStep(TableStep):
    """A Concat, some of whose inputs may have been computed in place, directly in the output's memory."""

    supports_out = True

    def compute(self, inputs: Inputs, linked: Mapping[str, Any], out: Any = None) -> Inputs:
        """Copy the remaining inputs into ``out`` if it fits, or else concatenate into a new array."""
        return (out,) if out is not None and joining.joined(inputs, out) else super().compute(inputs, linked)


class ControlStep(Step):
    """If, Loop, Scan or SequenceMap, whose subgraphs also see the values of the enclosing graphs.

    Parameters
    ----------
    node : onnx.NodeProto
    opset : int
        Version of the default domain.
    inside : callable
        Creates an evaluator for a subgraph.

    Attributes
    ----------
    evaluators : dict of str to Evaluator
        By the name of the attribute that holds the subgraph.
    """

    def __init__(self, node: NodeProto, opset: int, inside: Callable[[GraphProto], Any]) -> None:
        super().__init__(node, opset)
        self._function, self._form = operators.CONTROL[node.op_type], operators.form_of(node, opset)
        self._name = nodes.describe(node)
        self._graphs = {a.name: a.g for a in node.attribute if a.type == AttributeProto.GRAPH}
        self.evaluators = {name: inside(graph) for name, graph in self._graphs.items()}
        self._outside = {name: nodes.names_outside(graph) for name, graph in self._graphs.items()}
        self.has_linked_attribute = any(inner.has_linked_attribute for inner in self.evaluators.values())

    def run(self, values: Mapping[str, Any], attributes: Mapping[str, Any], images: Images | None = None) -> list[Any]:
        """Return the node's outputs; ``values`` holds, by name, the inputs and the outer values that the subgraphs
        use.
        """
        if images is not None:
            self._set_entry_axes(images)
        bodies = {
            name: operators.Body(self._name, partial(self._run_graph, name, values, attributes, images), graph.output)
            for name, graph in self._graphs.items()
        }
        return self._function(self._form, bodies, *(values[name] for name in self.input))

    def _run_graph(
        self,
        name: str,
        values: Mapping[str, Any],
        attributes: Mapping[str, Any],
        images: Images | None,
        inputs: Sequence[Any],
    ) -> list[Any]:
        """Run a subgraph on these inputs and record the batch axes of its outputs."""
        evaluator = self.evaluators[name]
        if len(inputs) != len(evaluator.input_names):
            raise ArgumentError(
                f"{self._name}: the graph {name} has {len(evaluator.input_names)} inputs, but is given {len(inputs)} "
                "values"
            )
        feeds = {outer: values[outer] for outer in self._outside[name] if outer in values}
        inner = None if images is None else images.inside(self._axes_inside(name, images))
        feeds.update(zip(evaluator.input_names, inputs, strict=True))
        found = evaluator.evaluate(feeds, attributes, images=inner)
        if images is not None and inner is not None:
            self._set_exit_axes(images, [inner.axes.get(output) for output in evaluator.output_names])
        return [found[output] for output in evaluator.output_names]

    # Batch axes of loops. A Loop's carried values keep their axes, recorded under the names of the node's outputs. A
    # Scan slices its inputs along its own axes, and a SequenceMap takes elements, so the batch axis of their values is
    # lost.

    @property
    def _carried_count(self) -> int:
        """Return how many loop-carried values a Loop has; 0 for other operators."""
        return len(self.input) - 2 if self.onnx_node.op_type == "Loop" else 0

    def _set_entry_axes(self, images: Images) -> None:
        """Set the batch axes that hold before the first iteration."""
        if self.onnx_node.op_type in _SLICING:
            used = (*self.input, *(name for names in self._outside.values() for name in names))
            lost = LOST if any(name in images.axes for name in used) else None
            for name in self.output:
                images.set(name, lost)
        for outer, name in zip(self.output, self.input[2 : 2 + self._carried_count], strict=False):
            images.set(outer, images.axes.get(name))

    def _axes_inside(self, name: str, images: Images) -> dict[str, int | None]:
        """Return the batch axis of each value that a subgraph sees, by its name inside."""
        outer_axes = {outer: images.axes.get(outer) for outer in self._outside[name]}
        names = self.evaluators[name].input_names
        if self.onnx_node.op_type in _SLICING:
            pairs = zip(names, self.input[-len(names) :], strict=False)
            return outer_axes | {inner: LOST if outer in images.axes else None for inner, outer in pairs}
        return outer_axes | {
            inner: images.axes.get(outer) for inner, outer in zip(names[2:], self.output, strict=False)
        }

    def _set_exit_axes(self, images: Images, axes: Sequence[int | None]) -> None:
        """Record the batch axes of the outputs; a Loop's scan outputs have one more axis in front."""
        if self.onnx_node.op_type in _SLICING:
            return
        for at, (outer, axis) in enumerate(zip(self.output, axes[self.onnx_node.op_type == "Loop" :], strict=False)):
            stacked = self.onnx_node.op_type == "Loop" and at >= self._carried_count and axis not in (None, LOST)
            images.set(outer, axis + 1 if stacked and axis is not None else axis)


def _described(value: Any) -> str:
    """Return a value's dtype and shape, or type and length of a sequence or map, for use in messages."""
    if value is None:
        return "absent"
    return f"{value.dtype} {value.shape}" if hasattr(value, "dtype") else f"{type(value).__name__} of {len(value)}"


def _caller(error: GpuconvError) -> str:
    """Return the public function's name if an error's message begins with it; "" otherwise."""
    name, colon, _ = str(error).partition(": ")
    return name if colon and name.isidentifier() else ""


def find(node: NodeProto, opset: int, inside: Callable[[GraphProto], Any] | None = None) -> Step | None:
    """Return a node's step, or None if onnx's reference evaluator must compute it.

    Parameters
    ----------
    node : onnx.NodeProto
    opset : int
        Version of the default domain that the graph or function imports.
    inside : callable, optional
        Creates an evaluator for a subgraph. Without it, nodes with subgraphs get no step.
    """
    if inside is not None and node.domain == "" and node.op_type in operators.CONTROL:
        return None if any(a.ref_attr_name for a in node.attribute) else ControlStep(node, opset, inside)
    if node.domain == DOMAIN and node.op_type in _FUSED:
        return FusedStep(node, opset)
    if node.domain == DOMAIN and node.op_type == "Chain":
        return ChainStep(node, opset)
    if node.domain == DOMAIN and node.op_type == "LayerNormalization":
        return TableStep(node, opset, *operators.own(node))
    if nodes.supported(node):
        return KernelStep(node, opset)
    found = operators.find(node, opset)
    if found is None:
        return None
    _check_schema(node, *found)
    return (JoinStep if node.op_type == "Concat" else TableStep)(node, opset, *found)


def _check_schema(node: NodeProto, operator: Operator, form: Form) -> None:
    """Check the inputs and attributes of an operator for which onnx has no schema, such as those of com.microsoft."""
    if operator.schema is None:
        return
    names = {attribute.name for attribute in node.attribute}
    fault = operator.schema.fault(node.input, {name: form.get(name) for name in names if name in form.attributes})
    if fault:
        raise ArgumentError(f"{nodes.describe(node)}: {fault}")
