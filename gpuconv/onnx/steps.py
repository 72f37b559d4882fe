"""Nodes that gpuconv computes, ready to run, checked when a model is loaded."""

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

DOMAIN = "gpuconv"  # of nodes that ONNX has not
_FUSED = ("FusedConv", "FusedConvTranspose", "Affine")
_CUTTING = ("Scan", "SequenceMap")  # operators whose graph sees elements of their inputs
_SIZES = ("Shape", "Size")  # operators that look at nothing but a shape
_MOST_KEPT = 2**16  # bytes of a result that is kept from run to run
ACTIVATION = ("activation", "alpha", "low", "high")  # attributes of these
Inputs = tuple[Any, ...]


class Step:
    """A node, and what computes it from arrays.

    Attributes
    ----------
    onnx_node, input, output
        The node, and the names of its inputs and outputs, as onnx's own classes have them.
    on_host : frozenset of int
        Positions of inputs that are NumPy arrays on every device.
    by_kernels : bool
        Whether a device computes it even where all inputs come from the host.
    fills : bool
        Whether it can compute into memory that is given.
    settled : bool
        Whether what it computes depends on constants and on shapes alone.
    """

    has_subgraph = False
    fills = False
    settled = False

    def __init__(self, node: NodeProto, opset: int) -> None:
        self.onnx_node = node
        self.input, self.output = tuple(node.input), tuple(node.output)
        self.linked = {a.name: a.ref_attr_name for a in node.attribute if a.ref_attr_name}
        self.has_linked_attribute = bool(self.linked)
        self.on_host: frozenset[int] = frozenset()
        self.by_kernels = nodes.supported(node)
        self._opset = opset

    def need_context(self) -> bool:
        """Say that the node sees nothing but its inputs."""
        return False

    def packs(self, position: int) -> str:
        """Return the function that the input at a position has the weights of, or ""."""
        return ""

    def keep(self, constants: Mapping[str, Any]) -> None:
        """Learn which values nobody changes, by name."""

    def settle(self, settled: Container[str]) -> bool:
        """Tell whether the outputs are settled where some values are, by name."""
        return False

    def known(self, inputs: Inputs) -> Inputs | None:
        """Return the outputs of a settled step where they are known from an earlier run."""
        return None

    def takes(self, inputs: Inputs, linked: Mapping[str, Any]) -> bool:
        """Tell whether these inputs, and these values of linked attributes, are among those that are computed here."""
        return True

    def compute(self, inputs: Inputs, linked: Mapping[str, Any], out: Any = None) -> Inputs:
        """Return the node's outputs, of the library that the inputs are from; ``out`` itself where the first fits."""
        raise NotImplementedError


class ConvolutionStep(Step):
    """A node that may be a convolution, which is computed with less ado when it comes again."""

    _again: RepeatedConv | None = None
    fills = True

    def keep(self, constants: Mapping[str, Any]) -> None:
        """Take weights that are constant for what they are."""
        if self._again is not None:
            self._again.keep(constants.get(self.input[1]))


class KernelStep(ConvolutionStep):
    """A node that a public function computes."""

    def __init__(self, node: NodeProto, opset: int) -> None:
        super().__init__(node, opset)
        self._keywords = nodes.keywords(node, opset)
        self._again = RepeatedConv(self._keywords) if node.op_type == "Conv" and not self.linked else None

    def packs(self, position: int) -> str:
        """Name the function for the weights of Conv and ConvTranspose, the second input."""
        return nodes.function_of(self.onnx_node) if position == 1 else ""

    def compute(self, inputs: Inputs, linked: Mapping[str, Any], out: Any = None) -> Inputs:
        """Call the public function."""
        compute = partial(nodes.call, self.onnx_node, self._opset, inputs, {**self._keywords, **linked})
        return compute() if self._again is None else self._again.call(compute, *inputs, out=out)


class FusedStep(ConvolutionStep):
    """A convolution with a residual or an activation, or a factor and a shift per channel with one."""

    def __init__(self, node: NodeProto, opset: int) -> None:
        super().__init__(node, opset)
        self._activation, self._plain = _without_activation(node)
        self._keywords = {} if node.op_type == "Affine" else nodes.keywords(self._plain, opset)
        self.by_kernels = node.op_type != "Affine"
        self._again = RepeatedConv(self._keywords, self._activation) if node.op_type == "FusedConv" else None

    def packs(self, position: int) -> str:
        """Name the function for the weights of the convolution."""
        return nodes.function_of(self._plain) if self.by_kernels and position == 1 else ""

    def compute(self, inputs: Inputs, linked: Mapping[str, Any], out: Any = None) -> Inputs:
        """Call the public function; a residual that broadcasts is added afterwards."""
        if not self.by_kernels:
            x, factor, shift = inputs
            return (affine(x, factor, shift, self._activation),)
        y = None if self._again is None else self._again.run(*inputs, out=out)
        if y is not None:
            return (y,)
        operands, residual = inputs[:3], inputs[3] if len(inputs) > 3 else None
        keywords = {**self._keywords, "activation": self._activation, "residual": residual}
        if residual is None or not self._broadcasts(operands, residual):
            outputs = nodes.call(self._plain, self._opset, operands, keywords)
            if self._again is not None:
                self._again.accept(*inputs)
            return outputs
        (y,) = nodes.call(self._plain, self._opset, operands, self._keywords)
        return (activated(wide(y) + wide(residual), self._activation).astype(y.dtype, copy=False),)

    def _broadcasts(self, operands: Inputs, residual: Any) -> bool:
        """Tell whether a residual has another shape than the result; raise ArgumentError where they do not fit."""
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
    """Return a fused node's activation as gpuconv.conv takes it, and the node of ONNX without it."""
    plain = NodeProto(name=node.name, op_type=node.op_type.removeprefix("Fused"), output=node.output)
    plain.input.extend(node.input[:3])
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute if a.name in ACTIVATION}
    plain.attribute.extend(a for a in node.attribute if a.name not in ACTIVATION)
    name = given.get("activation", b"").decode()
    arguments = {"leaky_relu": ("alpha",), "clip": ("low", "high")}.get(name, ())
    return ((name, *map(given.get, arguments)) if name else None), plain


class TableStep(Step):
    """A node of an operator in :data:`gpuconv.onnx.operators.TABLE`."""

    def __init__(self, node: NodeProto, opset: int, operator: Operator, form: Form) -> None:
        super().__init__(node, opset)
        self.on_host, self.by_kernels = operator.on_host, operator.by_kernels
        self._operator, self._form = operator, form
        self._constants: Inputs = ()
        self._prepared: Mapping[int, Any] | None = None
        self._known: tuple[Any, Inputs] | None = None  # inputs, or the shape of the only one, and the outputs for these

    def keep(self, constants: Mapping[str, Any]) -> None:
        """Let the operator prepare inputs that are constant, once the node runs on the host."""
        if self._operator.prepare is not None and not self.linked:
            self._constants = tuple(constants.get(name) for name in self.input)

    def settle(self, settled: Container[str]) -> bool:
        """Settle what looks at shapes only, or at settled values; a chain may overwrite what computing nodes make."""
        kind = self.onnx_node.op_type
        alone = kind in _SIZES or all(name in settled for name in self.input)
        self.settled = alone and not self.linked and kind not in joining.COMPUTING
        return self.settled

    def known(self, inputs: Inputs) -> Inputs | None:
        """Return the outputs where the inputs, or the shape that is looked at, are those of the last run."""
        if self._known is None:
            return None
        before, outputs = self._known
        if self.onnx_node.op_type in _SIZES:
            return outputs if before == getattr(inputs[0], "shape", None) else None
        return outputs if all(map(is_, inputs, before)) else None

    def _remember(self, inputs: Inputs, outputs: Inputs) -> None:
        """Keep small outputs of a settled step for the next run; whoever gets them must not write to them."""
        if all(type(value) is np.ndarray and value.nbytes <= _MOST_KEPT for value in outputs):
            for value in outputs:
                value.flags.writeable = False
            self._known = inputs[0].shape if self.onnx_node.op_type in _SIZES else inputs, outputs

    def _with(self, linked: Mapping[str, Any]) -> Form:
        return replace(self._form, attributes={**self._form.attributes, **linked}) if linked else self._form

    def takes(self, inputs: Inputs, linked: Mapping[str, Any]) -> bool:
        """Tell whether all inputs are tensors of types that the operator takes, and the form is served."""
        for value in inputs:
            dtype = getattr(value, "dtype", None)
            if value is not None and (dtype is None or name_of(dtype) not in self._operator.dtypes):
                if dtype is None and self._operator.collections:
                    continue
                return False
        return not linked or self._operator.serves(self._with(linked))

    def _with_prepared(self, inputs: Inputs) -> Inputs:
        """Replace constants by what the operator has made of them, unless others were given for them."""
        prepare, constants = self._operator.prepare, self._constants
        given = zip(inputs, constants, strict=False)
        if prepare is None or not constants or any(kept is not None and value is not kept for value, kept in given):
            return inputs
        if self._prepared is None:
            self._prepared = prepare(self._form, constants)
        return tuple(self._prepared.get(at, value) for at, value in enumerate(inputs))

    def cost(self, inputs: Inputs) -> int:
        """Return how many elements the operator's function makes or reads at most."""
        return self._operator.cost(self._form, *inputs)

    def compute(self, inputs: Inputs, linked: Mapping[str, Any], out: Any = None) -> Inputs:
        """Call the operator's function; whatever it raises names the node."""
        try:
            result = self._operator.function(self._with(linked), *self._with_prepared(inputs))
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
        if self.settled:
            self._remember(inputs, outputs)
        return outputs

    def write(self, inputs: Inputs, y: Any) -> None:
        """Write the node's only output to ``y``, an array of NumPy, which may be one of the inputs."""
        if self._operator.into is not None and name_of(y.dtype) in ("float32", "float64"):
            self._operator.into(self._form, *inputs, y)
        else:
            (y[...],) = self.compute(inputs, {})


class ChainStep(Step):
    """Nodes that compute element by element from the first input, and from single numbers; block by block on NumPy."""

    fills = True

    def __init__(self, node: NodeProto, opset: int) -> None:
        super().__init__(node, opset)
        found = [find(NodeProto.FromString(text), opset) for text in node.attribute[0].strings]
        self._parts = [step for step in found if isinstance(step, TableStep)]
        given = len(node.input)
        places = {"": -1, **{name: at for at, name in enumerate((*node.input, *(s.output[0] for s in self._parts)))}}
        self._places = [[places[name] for name in step.input] for step in self._parts]
        read_by_host = {step.input[at] for step in self._parts for at in step.on_host if at < len(step.input)}
        self.on_host = frozenset(at for at, name in enumerate(node.input) if name in read_by_host)
        last = {place: number for number, used in enumerate(self._places) for place in used}
        self._slots: list[int] = []  # of every result but the last: memory in which no other one is still needed
        for number in range(len(self._parts) - 1):
            taken = {slot for at, slot in enumerate(self._slots) if last[given + at] > number}
            self._slots.append(next(slot for slot in range(number + 1) if slot not in taken))

    def compute(self, inputs: Inputs, linked: Mapping[str, Any], out: Any = None) -> Inputs:
        """Compute the nodes one after the other, NumPy's floating-point numbers block by block."""
        x, *numbers = inputs
        if not isinstance(x, np.ndarray) or not is_float(x) or any(np.ndim(number) > x.ndim for number in numbers):
            values = list(inputs)
            for step, places in zip(self._parts, self._places, strict=True):
                values.extend(step.compute(tuple(None if at < 0 else values[at] for at in places), {}))
            return (values[-1],)
        scalars = [number.reshape(()) for number in numbers]
        fits = out is not None and out.shape == x.shape and out.dtype == x.dtype and out.flags.c_contiguous
        apart = not (fits and out is x)
        return (special.over(lambda block, y: self._block(block, scalars, y, apart), x, out if fits else None),)

    def _block(self, x: Any, numbers: list[Any], y: Any, apart: bool) -> None:
        """Compute a block; where y is apart from x, the first slot is there."""
        values = [x, *numbers]
        for number, (step, places) in enumerate(zip(self._parts, self._places, strict=True)):
            at = self._slots[number] if number < len(self._slots) else None
            in_y = at is None or (at == 0 and apart)
            target = y if in_y else SCRATCH.take(f"chain {at}", x.shape, x.dtype)
            step.write(tuple(None if place < 0 else values[place] for place in places), target)
            values.append(target)


class JoinStep(TableStep):
    """A Concat, whose inputs may be where they belong in the output already."""

    fills = True

    def compute(self, inputs: Inputs, linked: Mapping[str, Any], out: Any = None) -> Inputs:
        """Complete ``out``, or call the operator's function."""
        return (out,) if out is not None and joining.joined(inputs, out) else super().compute(inputs, linked)


class ControlStep(Step):
    """A node of If, Loop, Scan or SequenceMap, whose graphs see the values around it.

    Parameters
    ----------
    node : onnx.NodeProto
    opset : int
        Of the default domain.
    inside : callable
        Makes an evaluator of a graph.

    Attributes
    ----------
    evaluators : dict of str to evaluator
        By the names of the attributes that hold the graphs.
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
        """Return the node's outputs; the inputs, and what the graphs use, are among the values by name."""
        if images is not None:
            self._begin(images)
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
            self._end(images, [inner.axes.get(output) for output in evaluator.output_names])
        return [found[output] for output in evaluator.output_names]

    # Which axis is the batch's: a Loop hands its values on under the names of the node's outputs. A Scan cuts its
    # inputs along axes of its own, a SequenceMap takes them one by one, so that no image is to be found in them.

    @property
    def _carried(self) -> int:
        return len(self.input) - 2 if self.onnx_node.op_type == "Loop" else 0

    def _begin(self, images: Images) -> None:
        if self.onnx_node.op_type in _CUTTING:
            used = (*self.input, *(name for names in self._outside.values() for name in names))
            lost = LOST if any(name in images.axes for name in used) else None
            for name in self.output:
                images.set(name, lost)
        for outer, name in zip(self.output, self.input[2 : 2 + self._carried], strict=False):
            images.set(outer, images.axes.get(name))

    def _axes_inside(self, name: str, images: Images) -> dict[str, int | None]:
        known = {outer: images.axes.get(outer) for outer in self._outside[name]}
        names = self.evaluators[name].input_names
        if self.onnx_node.op_type in _CUTTING:
            pairs = zip(names, self.input[-len(names) :], strict=False)
            return known | {inner: LOST if outer in images.axes else None for inner, outer in pairs}
        return known | {inner: images.axes.get(outer) for inner, outer in zip(names[2:], self.output, strict=False)}

    def _end(self, images: Images, axes: Sequence[int | None]) -> None:
        if self.onnx_node.op_type in _CUTTING:
            return
        for at, (outer, axis) in enumerate(zip(self.output, axes[self.onnx_node.op_type == "Loop" :], strict=False)):
            stacked = self.onnx_node.op_type == "Loop" and at >= self._carried and axis not in (None, LOST)
            images.set(outer, axis + 1 if stacked and axis is not None else axis)


def _described(value: Any) -> str:
    """Return a value's type and shape as messages have them; a sequence or a map has a length."""
    if value is None:
        return "absent"
    return f"{value.dtype} {value.shape}" if hasattr(value, "dtype") else f"{type(value).__name__} of {len(value)}"


def _caller(error: GpuconvError) -> str:
    """Return the public function's name where an error's message begins with it."""
    name, colon, _ = str(error).partition(": ")
    return name if colon and name.isidentifier() else ""


def find(node: NodeProto, opset: int, inside: Callable[[GraphProto], Any] | None = None) -> Step | None:
    """Return a node's step, or None where it is left to onnx's reference evaluator.

    Parameters
    ----------
    node : onnx.NodeProto
    opset : int
        Version of the default domain that the graph or function imports.
    inside : callable, optional
        Makes an evaluator of a graph inside of the node; without it, nodes that have graphs are left.
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
    """Refuse inputs and attributes that an operator without a schema of onnx's does not have."""
    if operator.schema is None:
        return
    names = {attribute.name for attribute in node.attribute}
    fault = operator.schema.fault(node.input, {name: form.get(name) for name in names if name in form.attributes})
    if fault:
        raise ArgumentError(f"{nodes.describe(node)}: {fault}")
