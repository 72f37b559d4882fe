"""Fuzz `prepare` with ONNX models of one operator, over every operator and opset, with a few things wrong.

A case picks a schema of onnx, builds a valid node, then changes attributes, inputs, outputs, ranks, types and
constants. Further nodes may follow, each reading the one before, to propagate odd types and extents. The nodes are in a
graph, in a branch of an If, or in a function, whose attributes they may refer to. onnx's checker and shape inference
are native code that such a model may crash; the worker then dies, and the case is a finding.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random
from typing import Any

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper

import gpuconv
from gpuconv.onnx import backend
from tests.fuzz.frame import LONGEST, Fuzzer, Wrong
from tests.fuzz.mutations import messages

_SCHEMAS = sorted(
    (schema for schema in onnx.defs.get_all_schemas_with_history()),
    key=lambda schema: (schema.domain, schema.name, schema.since_version),
)
_EXTREME = (
    *(0, 1, -1, 2, -2, 3, 7, 64, -64, 1000, 9999, -10_000, 10_001, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32),
    *(2**32 + 1, 2**40, 2**62, 2**63 - 1, -(2**63)),
)
_SMALL = (0, 1, 1, 1, 2, 2, 3, -1)
_EXTENTS = (0, 1, 1, 2, 2, 3, 4, 5, 16, -1, -(2**63), 2**31, 2**40, 2**62, 2**63 - 1, None, None, "N", "M")
_FLOATS = (0.0, 1.0, -1.0, 0.5, 2.0, float("nan"), float("inf"), -float("inf"), 1e38, 1e-45, 1e18)
_STRINGS = (
    *("", "SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET", "forward", "reverse", "bidirectional", "constant", "linear"),
    *("ij,jk->ik", "...i,i...->...", "i", "->", "ii->i", "i,", "...", "...->..", "iJ,..->.J.", "i->ii", "a" * 3000),
    *("nearest", "cubic", "mean", "sum", "none", "raw", "NHWC", "DCR", "CRD", "gaussian", "LINEAR", "COUNT_INCLUDE"),
    *("\xff", "Relu", "Tanh", "HALF_PIXEL", "MEAN", "ROWS", "Sigmoid", ",,->,", "i.j->i", "z" * 52 + "->", "SUM"),
)
_DTYPES = (1, 2, 6, 7, 9, 10, 11, 16, 8, 0, 14, 22, 99, -1)
_ELEMENTS = dict(TensorProto.DataType.items())
_NAMES = {"float": "FLOAT", "double": "DOUBLE"}  # ONNX names of element types in schemas
_SHARE_OF_MORE = 0.3  # probability that one more node follows
_PLACES = ("graph", "graph", "graph", "graph", "branch", "loop", "function", "linked", "default")


@dataclass(frozen=True)
class Case:
    """A model with one operator, or with several in a chain."""

    model: ModelProto
    name: str


@dataclass
class _Maker:
    """The graph around the nodes, under construction."""

    random: Random
    inputs: list[ValueInfoProto] = field(default_factory=list)
    initializers: list[TensorProto] = field(default_factory=list)
    sparse: list[Any] = field(default_factory=list)
    constants: list[NodeProto] = field(default_factory=list)
    count: int = 0

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def often(self, share: float) -> bool:
        return self.random.random() < share

    # ------------------------------------------------------------ values

    def shape(self, rank: int | None) -> list[Any] | None:
        if rank is None:
            return None
        if self.often(0.75):
            return [self.random.choice((1, 2, 3, 4)) for _ in range(rank)]
        return [self.random.choice(_EXTENTS) for _ in range(rank)]

    def type(self, text: str, rank: int | None) -> TypeProto:
        """Return a type from a schema's notation, such as "seq(tensor(float))"."""
        found = TypeProto()
        kind, _, inner = text.partition("(")
        inner = inner[:-1]
        if kind == "seq":
            found.sequence_type.elem_type.CopyFrom(self.type(inner, rank))
        elif kind == "optional":
            found.optional_type.elem_type.CopyFrom(self.type(inner, rank))
        elif kind == "map":
            key, _, value = inner.partition(",")
            found.map_type.key_type = _element(key)
            value = value.strip()
            found.map_type.value_type.CopyFrom(self.type(value if "(" in value else f"tensor({value})", rank))
        elif kind == "sparse_tensor":
            found.sparse_tensor_type.elem_type = _element(inner)
            self._set_shape(found.sparse_tensor_type, rank)
        elif kind == "tensor":
            found.tensor_type.elem_type = _element(inner)
            self._set_shape(found.tensor_type, rank)
        return found

    def _set_shape(self, tensor: Any, rank: int | None) -> None:
        shape = self.shape(rank)
        if shape is None:
            return
        tensor.shape.SetInParent()
        for extent in shape:
            dim = tensor.shape.dim.add()
            if isinstance(extent, str):
                dim.dim_param = extent
            elif extent is not None:
                dim.dim_value = extent

    def tensor(self, number: int) -> TensorProto:
        """Return a tensor whose data usually fits its shape."""
        count = self.random.choice((0, 1, 1, 2, 2, 3, 4, 4, 6, 8, 10))
        extents = self.random.choice(_EXTREME if self.often(0.5) else _SMALL)
        values = [self.random.choice(_SMALL) if self.often(0.7) else extents for _ in range(count)]
        tensor = TensorProto(data_type=number)
        tensor.dims.extend([] if count == 1 and self.often(0.4) else [count])
        if self.often(0.05):
            tensor.dims.append(self.random.choice((0, 1, -1, 2**40)))
        if self.often(0.05):
            tensor.dims[:] = [self.random.choice((2, -1, 2**33, 2**62, 0))]
        if number == TensorProto.INT64:
            if self.often(0.5):
                tensor.int64_data.extend(values)
            else:
                tensor.raw_data = b"".join(value.to_bytes(8, "little", signed=True) for value in values)
        elif number == TensorProto.FLOAT:
            tensor.float_data.extend([self.random.choice(_FLOATS) for _ in range(count)])
        elif number == TensorProto.DOUBLE:
            tensor.double_data.extend([self.random.choice(_FLOATS) for _ in range(count)])
        elif number == TensorProto.STRING:
            tensor.string_data.extend([self.random.choice(_STRINGS).encode() for _ in range(count)])
        else:
            tensor.int32_data.extend([max(-(2**31), min(2**31 - 1, value)) for value in values])
        if self.often(0.04):
            tensor.raw_data = bytes(self.random.choice((0, 1, 3, 7, 8, 17)))
        return tensor

    def value(self, text: str, rank: int | None) -> str:
        """Add a graph input or a constant, and return its name."""
        name = self.name()
        if text.startswith("tensor(") and self.often(0.35 if text == "tensor(int64)" else 0.12):
            tensor = self.tensor(_element(text[7:-1]))
            tensor.name = name
            if self.often(0.6):
                self.initializers.append(tensor)
            else:
                self.constants.append(self.constant(name, tensor))
            return name
        self.inputs.append(ValueInfoProto(name=name, type=self.type(text, rank)))
        if self.often(0.03):
            self.inputs[-1].ClearField("type")
        return name

    def constant(self, name: str, tensor: TensorProto) -> NodeProto:
        if tensor.int64_data and self.often(0.3):
            return helper.make_node("Constant", [], [name], value_ints=list(tensor.int64_data))
        if tensor.int64_data and self.often(0.2):
            return helper.make_node("Constant", [], [name], value_int=tensor.int64_data[0])
        return helper.make_node("Constant", [], [name], value=tensor)

    # ------------------------------------------------------------ nodes

    def node(self, schema: Any, given: str = "") -> NodeProto:
        """Return a node of an operator, valid or not; ``given`` is the name of its first input."""
        rank: int | None = self.random.choice((0, 1, 2, 3, 3, 4, 4, 5))
        kinds: dict[str, str] = {}
        made = NodeProto(op_type=schema.name, domain=schema.domain)
        for name in self.formal(schema.inputs, schema.min_input, schema.max_input):
            text = kinds.setdefault(name.type_str, self.text(schema, name.type_str))
            rank_here = rank if self.often(0.7) else self.random.choice((None, 0, 1, 1, 2, 3, 6))
            made.input.append("" if self.often(0.03) else self.value(text, rank_here))
        if given and made.input:
            made.input[0] = given
        for _ in self.formal(schema.outputs, schema.min_output, schema.max_output):
            made.output.append("" if self.often(0.02) else self.name())
        for attribute in schema.attributes.values():
            if attribute.required or self.often(0.5):
                self.attribute(made, attribute, rank or 0)
        for _ in range(self.random.choice((0, 0, 0, 1, 2))):
            self.random.choice(_CHANGES)(self, made)
        return made

    def text(self, schema: Any, name: str) -> str:
        for constraint in schema.type_constraints:
            if constraint.type_param_str == name:
                return str(self.random.choice(sorted(constraint.allowed_type_strs)))
        return name

    def formal(self, formals: Any, least: int, most: int) -> list[Any]:
        """Return formal parameters for a random number of arguments; the last one may repeat."""
        if not formals:
            return []
        count = len(formals) if self.often(0.5) else self.random.randint(least, max(least, min(most, len(formals) + 3)))
        return [formals[min(at, len(formals) - 1)] for at in range(count)]

    def integer(self, name: str, rank: int) -> int:
        if name in ("to", "dtype", "output_dtype", "output_datatype", "stash_type", "precision") and self.often(0.7):
            return self.random.choice(_DTYPES)
        if self.often(0.4):
            return self.random.choice(_SMALL)
        return self.random.choice((rank, -rank, rank - 1, rank + 1, -rank - 1)) if self.often(0.4) else self.extreme()

    def extreme(self) -> int:
        return self.random.choice(_EXTREME)

    def integers(self, rank: int) -> list[int]:
        count = self.random.choice((rank, max(0, rank - 2), 2 * max(0, rank - 2), 2 * rank, 0, 1, 2, 3, 9))
        some = self.extreme() if self.often(0.4) else 1
        return [self.random.choice((0, 1, 1, 2, 3)) if self.often(0.7) else some for _ in range(count)]

    def attribute(self, node: NodeProto, formal: Any, rank: int) -> None:
        kind, name = formal.type.name, formal.name
        made = node.attribute.add(name=name, type=AttributeProto.AttributeType.Value(kind))
        if kind == "INT":
            made.i = self.integer(name, rank)
        elif kind == "INTS":
            made.ints.extend(self.integers(rank))
        elif kind == "FLOAT":
            made.f = self.random.choice(_FLOATS)
        elif kind == "FLOATS":
            made.floats.extend([self.random.choice(_FLOATS) for _ in range(self.random.choice((0, 1, 2, 4, rank)))])
        elif kind == "STRING":
            default = formal.default_value.s
            made.s = default if default and self.often(0.5) else self.random.choice(_STRINGS).encode()
        elif kind == "STRINGS":
            count = self.random.choice((0, 1, 2, 6))
            made.strings.extend([self.random.choice(_STRINGS).encode() for _ in range(count)])
        elif kind == "TENSOR":
            made.t.CopyFrom(self.tensor(self.random.choice((1, 7, 7, 6, 8, 11, 9, 0, 99))))
        elif kind == "SPARSE_TENSOR":
            made.sparse_tensor.values.CopyFrom(self.tensor(1))
            made.sparse_tensor.indices.CopyFrom(self.tensor(7))
            made.sparse_tensor.dims.extend(self.integers(rank))
        elif kind == "TYPE_PROTO":
            texts = ("seq(tensor(float))", "optional(tensor(float))", "tensor(float)", "map(int64,float)", "")
            made.tp.CopyFrom(self.type(self.random.choice(texts), 2))
        elif kind == "GRAPH":
            made.g.CopyFrom(self.body(node))

    def body(self, node: NodeProto) -> GraphProto:
        """Return a graph for an attribute, with about as many inputs and outputs as the node has."""
        inner = _Maker(self.random, count=10_000 + self.count)
        wanted = {"If": 0, "Loop": len(node.input)}.get(node.op_type, len(node.input) - self.random.choice((0, 0, 1)))
        texts = ["tensor(int64)", "tensor(bool)"] if node.op_type == "Loop" else []
        texts += ["tensor(float)"] * 9
        ranks = [self.random.choice((None, 0, 1, 2, 3)) for _ in range(max(0, wanted))]
        graph = GraphProto(name="body")
        for text, rank in zip(texts, ranks, strict=False):
            value = graph.input.add(name=inner.name())
            if self.often(0.8):
                value.type.CopyFrom(self.type(text, rank))
        count = max(0, len(node.output) + (node.op_type == "Loop") + self.random.choice((0, 0, 0, 1, -1)))
        for at in range(count):
            name = inner.name()
            source = graph.input[(at + (node.op_type == "Loop")) % len(graph.input)].name if graph.input else ""
            if source and self.often(0.7):
                graph.node.append(helper.make_node("Identity", [source], [name]))
            else:
                graph.node.append(helper.make_node("Constant", [], [name], value=self.tensor(9 if at == 0 else 1)))
            output = graph.output.add(name=name)
            if self.often(0.4):
                output.type.CopyFrom(self.type("tensor(float)", self.random.choice((None, 0, 1, 2))))
        return graph


def _element(text: str) -> int:
    return _ELEMENTS.get(_NAMES.get(text, text.upper()), 1)


def _some_attribute(maker: _Maker, node: NodeProto) -> Any:
    return maker.random.choice(node.attribute) if node.attribute else None


def _retype(maker: _Maker, node: NodeProto) -> None:
    attribute = _some_attribute(maker, node)
    if attribute is not None:
        attribute.type = maker.random.randrange(15)


def _drop(maker: _Maker, node: NodeProto) -> None:
    if node.attribute:
        del node.attribute[maker.random.randrange(len(node.attribute))]


def _empty(maker: _Maker, node: NodeProto) -> None:
    attribute = _some_attribute(maker, node)
    if attribute is not None:
        name, kind = attribute.name, attribute.type
        attribute.Clear()
        attribute.name, attribute.type = name, kind


def _spoil(maker: _Maker, node: NodeProto) -> None:
    attribute = _some_attribute(maker, node)
    if attribute is not None:
        attribute.i = maker.extreme()
        if attribute.ints:
            attribute.ints[maker.random.randrange(len(attribute.ints))] = maker.extreme()


def _repeat_attribute(maker: _Maker, node: NodeProto) -> None:
    attribute = _some_attribute(maker, node)
    if attribute is not None:
        node.attribute.append(attribute)


def _more_inputs(maker: _Maker, node: NodeProto) -> None:
    for _ in range(maker.random.choice((1, 2, 5))):
        node.input.append(maker.value(maker.random.choice(("tensor(float)", "tensor(int64)", "tensor(bool)")), 2))


def _fewer_inputs(maker: _Maker, node: NodeProto) -> None:
    if node.input:
        del node.input[maker.random.randrange(len(node.input)) :]


def _other_input(maker: _Maker, node: NodeProto) -> None:
    if node.input:
        texts = ("tensor(float)", "tensor(int64)", "tensor(string)", "seq(tensor(float))", "optional(tensor(float))")
        texts += ("map(int64,float)", "sparse_tensor(float)", "", "seq()", "optional()")
        rank = maker.random.choice((None, 0, 1, 2, 3, 7))
        node.input[maker.random.randrange(len(node.input))] = maker.value(maker.random.choice(texts), rank)


def _more_outputs(maker: _Maker, node: NodeProto) -> None:
    node.output.extend([maker.name() for _ in range(maker.random.choice((1, 2, 3, 9)))])


def _fewer_outputs(maker: _Maker, node: NodeProto) -> None:
    if node.output:
        del node.output[maker.random.randrange(len(node.output)) :]


_CHANGES: tuple[Callable[[_Maker, NodeProto], None], ...] = (
    *(_retype, _drop, _empty, _spoil, _spoil, _spoil, _repeat_attribute, _more_inputs, _fewer_inputs, _other_input),
    *(_other_input, _more_outputs, _more_outputs, _fewer_outputs),
)


# ---------------------------------------------------------------- placement of nodes


def _named(random: Random, names: Any) -> list[ValueInfoProto]:
    """Return outputs of a graph, some without a type."""
    kinds = [None if random.random() < 0.1 else random.choice((1, 1, 1, 7, 9)) for _ in names]
    shapes = [random.choice(([], [1], [2, None], [1, 2, 3, 4])) for _ in names]
    return [
        ValueInfoProto(name=name) if kind is None else helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in zip(names, kinds, shapes, strict=True)
    ]


def _placed(maker: _Maker, made: list[NodeProto], place: str, model: ModelProto) -> None:
    """Place nodes into a model's graph, into a nested graph, or into a function."""
    graph, random = model.graph, maker.random
    names = [name for node in made for name in node.output if name]
    graph.input.extend(maker.inputs)
    graph.initializer.extend(maker.initializers)
    if place in ("branch", "loop"):
        inner = GraphProto(name="inner", node=[*maker.constants, *made], output=_named(random, names))
        outer = [f"{name}_outside" for name in names]
        if place == "branch":
            graph.input.append(helper.make_tensor_value_info("condition", TensorProto.BOOL, []))
            graph.node.append(helper.make_node("If", ["condition"], outer, then_branch=inner, else_branch=inner))
        else:
            inner.input.append(helper.make_tensor_value_info("trip", TensorProto.INT64, []))
            inner.input.append(helper.make_tensor_value_info("on", TensorProto.BOOL, []))
            inner.output.insert(0, ValueInfoProto(name="on"))
            graph.input.append(helper.make_tensor_value_info("count", TensorProto.INT64, []))
            graph.node.append(helper.make_node("Loop", ["count", ""], outer, body=inner))
        graph.output.extend(_named(random, outer))
        return
    graph.output.extend(_named(random, names))
    if place == "graph":
        graph.node.extend([*maker.constants, *made])
        return
    taken = sorted({name for node in made for name in node.input if name} - set(names))
    function = model.functions.add(name="F", domain="own", input=taken, output=names)
    function.opset_import.extend(model.opset_import)
    call = helper.make_node("F", taken, names, domain="own")
    if place != "function":
        for number, node in enumerate(made):
            for attribute in node.attribute:
                if attribute.type == AttributeProto.GRAPH or random.random() < 0.1:
                    continue
                outer_name = f"{attribute.name}{number}"
                given = function.attribute_proto if place == "default" else call.attribute
                given.add().CopyFrom(attribute)
                given[-1].name = outer_name
                if place == "linked":
                    function.attribute.append(outer_name)
                kind, name = attribute.type, attribute.name
                attribute.Clear()
                attribute.name, attribute.type, attribute.ref_attr_name = name, kind, outer_name
    function.node.extend(made)
    graph.node.extend([*maker.constants, call])


@lru_cache
def _of_opset(opset: int) -> list[Any]:
    return [schema for schema in _SCHEMAS if schema.domain == "" and schema.since_version <= opset]


def _model(random: Random, schema: Any, place: str) -> ModelProto:
    maker = _Maker(random)
    made = [maker.node(schema)]
    opset = schema.since_version if schema.domain == "" else onnx.defs.onnx_opset_version()
    while random.random() < _SHARE_OF_MORE and made[-1].output and made[-1].output[0]:
        made.append(maker.node(random.choice(_of_opset(opset)), made[-1].output[0]))
    model = ModelProto(ir_version=10)
    model.graph.name = "g"
    model.opset_import.add(domain="", version=opset)
    model.opset_import.add(domain="own", version=1)
    if schema.domain:
        model.opset_import.add(domain=schema.domain, version=schema.since_version)
    _placed(maker, made, place, model)
    return model


class FUZZER(Fuzzer):  # __main__ imports this name
    """Prepares models of one operator."""

    def __init__(self) -> None:
        warnings.simplefilter("ignore")

    def case(self, random: Random) -> Case:
        schema, place = random.choice(_SCHEMAS), random.choice(_PLACES)
        return Case(_model(random, schema, place), f"{schema.name}-{schema.since_version} in {place}")

    def check(self, case: Case) -> str:
        try:
            backend.prepare(case.model)
        except (gpuconv.ArgumentError, gpuconv.ArgumentTypeError) as error:
            message = str(error)
            if len(message) > LONGEST or not message.isprintable():
                raise Wrong("a message that is no short line of printable characters", repr(message[:600])) from error
            return "refused"
        except MemoryError as error:
            raise Wrong("prepare: MemoryError", str(error)) from error
        return "accepted"

    def show(self, case: Case) -> str:
        text = re.sub(r"\s+", " ", str(case.model))
        return f"# {case.name}\n{text[:3000]}"

    def smaller(self, case: Case) -> Iterator[Case]:
        for number in range(sum(1 for _ in messages(case.model))):
            copy = ModelProto.FromString(case.model.SerializeToString())
            message = list(messages(copy))[number]
            for entry, _ in message.ListFields():
                smaller = ModelProto.FromString(copy.SerializeToString())
                list(messages(smaller))[number].ClearField(entry.name)
                yield replace(case, model=smaller)
