"""Translation of com.microsoft's FusedConv and FusedGemm into the standard ONNX nodes that they were fused from.

For example, FusedConv becomes Conv, Add of the residual, and an activation. gpuconv's own folding then fuses these
again in its own way. The translation runs once, when the model is loaded.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Any

import onnx
from onnx import ModelProto, NodeProto, helper

from gpuconv._errors import ArgumentError
from gpuconv.onnx import nodes
from gpuconv.onnx.messages import quoted

DOMAIN = "com.microsoft"
FUSED = ("FusedConv", "FusedGemm")  # operators that are translated
_BOUNDS_ARE_INPUTS = 11  # opset since which Clip's bounds are inputs
# Operators that ONNX Runtime places in the default domain, where ONNX lacks them or has them only in later opsets.
_OWN = ("LayerNormalization", "SimplifiedLayerNormalization")
# Operators whose first output has the shape of the first input, and the type of the input at this position.
_LIKE_FIRST = {
    **dict.fromkeys(("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "QLinearLeakyRelu", "QLinearSigmoid"), 0),
    **dict.fromkeys(("QLinearSoftmax", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), 0),
    **dict.fromkeys(("LayerNormalization", "SimplifiedLayerNormalization"), 1),
}
_CAST_LIKE_SINCE = 15  # opset that introduced CastLike
_OF_CONV: dict[str, tuple[str, ...]] = {  # activations, and the meaning of each number in activation_params
    "Clip": ("min", "max"),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
}
# activations, and which of the attributes activation_alpha, _beta and _gamma each uses
_OF_GEMM: dict[str, tuple[str, ...]] = {
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Selu": ("alpha", "gamma"),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": ("alpha",),
}


def translate(model: ModelProto) -> None:
    """Translate the fused nodes of a model, its functions and all subgraphs, in place.

    Operators that the model defines by its own functions are left unchanged.

    Raises
    ------
    ArgumentError
        An activation is unknown, or has the wrong number of parameters.
    """
    defined = _defined(model)
    _Translation(model.graph.node, model.opset_import, defined).run()
    for function in model.functions:
        _Translation(function.node, function.opset_import, defined).run()


def translated(node: NodeProto, opset: int) -> list[NodeProto]:
    """Return the standard nodes that replace one node, ending with its output; just the node itself if it is not
    fused.
    """
    return _translated(node, opset, _Names([node]))


def _translated(node: NodeProto, opset: int, names: _Names) -> list[NodeProto]:
    if node.domain != DOMAIN or node.op_type not in FUSED or not node.output:
        return [node]
    return list((_fused_conv if node.op_type == "FusedConv" else _fused_gemm)(node, opset, names))


def inferable(model: ModelProto) -> ModelProto:
    """Return a model for shape inference only: Identity or CastLike of equal type replace com.microsoft's operators.

    This lets onnx propagate types and shapes through operators for which it has no schema.
    """
    if all(node.domain != DOMAIN for node in model.graph.node):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    can_cast, defined = _opset(model.opset_import) >= _CAST_LIKE_SINCE, _defined(model)
    for node in copy.graph.node:
        type_of = _LIKE_FIRST.get(node.op_type) if node.domain == DOMAIN and node.op_type not in defined else None
        if type_of is None or len(node.input) <= type_of or not node.output or (type_of and not can_cast):
            continue
        inputs = [node.input[0], *[node.input[type_of]][:type_of]]
        node.CopyFrom(NodeProto(op_type="CastLike" if type_of else "Identity", input=inputs, output=node.output[:1]))
    return copy


def cure(node: NodeProto) -> str:
    """Return advice on saving a model without a node that only ONNX Runtime supports; "" for nodes of other domains."""
    if not f"{node.domain}.".startswith(f"{DOMAIN}.") and node.domain != "com.ms.internal.nhwc":
        return ""
    if node.domain != DOMAIN:
        return (
            f"ONNX Runtime has written it for the vectors of one CPU, in its domain {quoted(node.domain)}; save the "
            "model at its level ORT_ENABLE_EXTENDED (SessionOptions.graph_optimization_level)"
        )
    return (
        f"{quoted(node.op_type)} is ONNX Runtime's own, of its domain {DOMAIN}, and gpuconv does not have it; save the "
        "model at ONNX Runtime's level ORT_ENABLE_BASIC, and quantize with QuantFormat.QDQ"
    )


def _defined(model: ModelProto) -> set[str]:
    """Return the names of com.microsoft operators that the model defines as functions."""
    return {function.name for function in model.functions if function.domain == DOMAIN}


def _opset(imports: Iterable[Any]) -> int:
    return next((entry.version for entry in imports if entry.domain in ("", "ai.onnx")), 1)


class _Translation:
    """Translates the nodes of a model's graph or of a function in place, subgraphs included."""

    def __init__(self, own_nodes: Any, imports: Any, defined: Container[str]) -> None:
        self._nodes, self._imports, self._defined = own_nodes, imports, defined
        self._opset = _opset(imports)
        self._names: _Names | None = None

    def run(self) -> None:
        self._run(self._nodes)

    def _run(self, graph_nodes: Any) -> None:
        """Replace the fused nodes of a list of nodes, and of their subgraphs, in place."""
        replacements_by_node: list[list[NodeProto]] = []
        for node in graph_nodes:
            for inner in nodes.subgraphs(node) if node.attribute else ():
                self._run(inner.node)
            if node.op_type in _OWN and node.domain in ("", "ai.onnx"):
                self._move(node)
            replacements_by_node.append(self._made(node))
        if any(
            len(replacements) > 1 or replacements[0].domain != node.domain
            for replacements, node in zip(replacements_by_node, graph_nodes, strict=True)
        ):
            copies = [
                NodeProto.FromString(node.SerializeToString())
                for replacements in replacements_by_node
                for node in replacements
            ]
            del graph_nodes[:]
            graph_nodes.extend(copies)

    def _made(self, node: NodeProto) -> list[NodeProto]:
        """Return the nodes that replace a node; the node itself if it is not a fused one."""
        if node.domain != DOMAIN or node.op_type not in FUSED or node.op_type in self._defined:
            return [node]
        self._names = self._names or _Names(self._nodes)
        return _translated(node, self._opset, self._names)

    def _move(self, node: NodeProto) -> None:
        """Move an operator that the default domain lacks at this opset to com.microsoft, and import that domain."""
        if onnx.defs.has(node.op_type, self._opset, ""):
            return
        node.domain = DOMAIN
        if all(entry.domain != DOMAIN for entry in self._imports):
            self._imports.add(domain=DOMAIN, version=1)


class _Names:
    """Generates names for intermediate values that do not collide with any value of the nodes or their subgraphs."""

    def __init__(self, graph_nodes: Iterable[NodeProto]) -> None:
        self._taken: set[str] = set()
        left = [graph_nodes]
        while left:
            for node in left.pop():
                self._taken.update((*node.input, *node.output))
                left += [graph.node for graph in nodes.subgraphs(node)] if node.attribute else ()

    def new(self, base: str) -> str:
        name, number = base, 0
        while name in self._taken:
            name, number = f"{base} {number}", number + 1
        self._taken.add(name)
        return name


def _fused_conv(node: NodeProto, opset: int, names: _Names) -> Iterator[NodeProto]:
    """Yield Conv, Add of the fourth input Z (if present), and the activation (if any)."""
    if len(node.input) > 4:
        raise ArgumentError(f"{nodes.describe(node)}: must have 2 to 4 inputs (X, W, B, Z), not {len(node.input)}")
    activation = _of_activation(node)
    is_added = len(node.input) > 3 and node.input[3] != ""
    between = [f"{node.output[0]} of Conv", f"{node.output[0]} of Add"][: is_added + bool(activation)]
    value, *later = [*map(names.new, between), node.output[0]]
    yield _without_activation(node, "Conv", node.input[:3], value)
    if is_added:
        source, value = value, later[0]
        yield helper.make_node("Add", [source, node.input[3]], [value], name=node.name)
    if activation:
        name, keys = _activation_parameters(node, activation, _OF_CONV)
        numbers = activation.get("activation_params", [])
        if len(numbers) != len(keys):
            raise ArgumentError(
                f"{nodes.describe(node)}: activation_params must have {len(keys)} numbers for {name}, "
                f"not {len(numbers)}"
            )
        yield from _activation(node, name, dict(zip(keys, numbers, strict=True)), value, opset, names)


def _fused_gemm(node: NodeProto, opset: int, names: _Names) -> Iterator[NodeProto]:
    """Yield Gemm and the activation (if any)."""
    activation = _of_activation(node)
    value = names.new(f"{node.output[0]} of Gemm") if activation else node.output[0]
    yield _without_activation(node, "Gemm", node.input, value)
    if activation:
        name, keys = _activation_parameters(node, activation, _OF_GEMM)
        numbers = {key: activation[f"activation_{key}"] for key in keys if f"activation_{key}" in activation}
        yield from _activation(node, name, numbers, value, opset, names)


def _of_activation(node: NodeProto) -> dict[str, Any]:
    """Return a node's activation attributes by name; empty if it has no activation."""
    found = {a.name: helper.get_attribute_value(a) for a in node.attribute if a.name.startswith("activation")}
    return found if found.get("activation") else {}


def _without_activation(node: NodeProto, op_type: str, inputs: Iterable[str], output: str) -> NodeProto:
    """Return the plain operator without the activation's attributes."""
    plain = NodeProto(name=node.name, op_type=op_type, input=inputs, output=[output])
    plain.attribute.extend(a for a in node.attribute if not a.name.startswith("activation"))
    return plain


def _activation_parameters(
    node: NodeProto, activation: dict[str, Any], known: dict[str, tuple[str, ...]]
) -> tuple[str, tuple[str, ...]]:
    """Return the name of a node's activation and the names of its parameters; raise ArgumentError if it is unknown."""
    text = activation["activation"].decode(errors="replace")
    if text not in known:
        raise ArgumentError(
            f"{nodes.describe(node)}: its activation {quoted(text)} is none of {', '.join(known)}; save the model at "
            "ONNX Runtime's level ORT_ENABLE_BASIC, where activations are nodes"
        )
    return text, known[text]


def _activation(
    node: NodeProto, op_type: str, numbers: dict[str, float], source: str, opset: int, names: _Names
) -> Iterator[NodeProto]:
    """Yield the nodes of an activation; since opset 11, Clip's bounds are Constant nodes."""
    inputs = [source]
    if op_type == "Clip" and opset >= _BOUNDS_ARE_INPUTS:
        for key, number in numbers.items():
            inputs.append(names.new(f"{node.output[0]} {key}"))
            bound = helper.make_tensor("", onnx.TensorProto.FLOAT, [], [number])
            yield helper.make_node("Constant", [], [inputs[-1]], value=bound)
        numbers = {}
    activation = helper.make_node(op_type, inputs, [node.output[0]], name=node.name)
    activation.attribute.extend(helper.make_attribute(name, float(number)) for name, number in numbers.items())
    yield activation
