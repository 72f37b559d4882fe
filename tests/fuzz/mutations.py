"""Mutations of ONNX models: of protobuf fields without knowledge of their meaning, of ONNX structures, and of bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from onnx import AttributeProto, ModelProto, TensorProto, helper

CANARY = "canary.bin"  # a file in the current folder that no model may read
_INTEGERS = (0, -1, 1, 2, 3, 7, 16, 100, 2**31 - 1, 2**31, -(2**31), 2**32, 2**40, 2**62, 2**63 - 1, -(2**63))
_FLOATS = (0.0, -1.0, float("nan"), float("inf"), -float("inf"), 1e38, 1e-45)
_NAMES = (
    *("", " ", "x", "v1", "v2", "a\nb", "a\x00b", "\x1b[31m", "‮abc", "../x", "/etc/passwd", CANARY, "n" * 5000),
    *("Conv", "Relu", "If", "Loop", "Scan", "Constant", "ConstantOfShape", "Identity", "ai.onnx", "ai.onnx.ml", "own"),
    *("Moved", "SequenceConstruct", "SequenceEmpty", "Optional", "StringConcat", "RandomNormal", "NonMaxSuppression"),
    *("com.microsoft", "ai.onnx.preview.training", "QLinearConv", "{}", "%s", "é" * 30, "line two"),
)
_PLACES = (
    *(
        CANARY, f"./{CANARY}", f"../{CANARY}", f"sub/../{CANARY}", f"/proc/self/cwd/{CANARY}", "/etc/passwd",
        "weights.bin",
    ),
    *("", ".", "..", "/dev/zero", "/dev/stdin", "missing.bin", "a\nb", f"{CANARY}\x00", "x" * 5000, "~/x", "link.bin"),
    *("file:///etc/passwd", "\\\\host\\share", "C:\\x"),
)  # fmt: skip
_TYPES = {
    FieldDescriptor.CPPTYPE_INT32: "integer", FieldDescriptor.CPPTYPE_INT64: "integer",
    FieldDescriptor.CPPTYPE_UINT32: "natural", FieldDescriptor.CPPTYPE_UINT64: "natural",
    FieldDescriptor.CPPTYPE_FLOAT: "float", FieldDescriptor.CPPTYPE_DOUBLE: "float",
    FieldDescriptor.CPPTYPE_ENUM: "enum", FieldDescriptor.CPPTYPE_STRING: "text",
    FieldDescriptor.CPPTYPE_MESSAGE: "message",
}  # fmt: skip


def messages(message: Any) -> Iterator[Any]:
    """Yield a message and all messages inside it."""
    left = [message]
    while left:
        current = left.pop()
        yield current
        for field, value in current.ListFields():
            if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
                left.extend(value if _repeated(field) else [value])


def _repeated(field: Any) -> bool:
    return bool(field.is_repeated) if hasattr(field, "is_repeated") else field.label == FieldDescriptor.LABEL_REPEATED


def _scalar(random: Random, field: Any, message: Any) -> Any:
    kind = _TYPES.get(field.cpp_type, "integer")
    if kind == "integer":
        wide = field.cpp_type == FieldDescriptor.CPPTYPE_INT64
        return random.choice([n for n in _INTEGERS if wide or -(2**31) <= n < 2**31])
    if kind == "natural":
        return abs(random.choice(_INTEGERS[:8]))
    if kind == "float":
        return random.choice(_FLOATS)
    if kind == "enum":
        return random.choice(list(field.enum_type.values_by_number))
    text = random.choice(_NAMES)
    return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text


def _put(random: Random, message: Any) -> None:
    """Set any field of a message to another value."""
    field = random.choice(message.DESCRIPTOR.fields)
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        target = getattr(message, field.name)
        if _repeated(field):
            target.add()
        else:
            target.SetInParent()
        return
    value = _scalar(random, field, message)
    if not _repeated(field):
        setattr(message, field.name, value)
        return
    values = getattr(message, field.name)
    if values and random.random() < 0.8:
        values[random.randrange(len(values))] = value
    else:
        values.append(value)


def _present(random: Random, message: Any) -> Any:
    """Return a random field that the message has, or None."""
    fields = [field for field, _ in message.ListFields()]
    return random.choice(fields) if fields else None


def _clear(random: Random, message: Any) -> None:
    field = _present(random, message)
    if field is not None and _repeated(field):
        values = getattr(message, field.name)
        del values[random.randrange(len(values))]
    elif field is not None:
        message.ClearField(field.name)


def _change(random: Random, message: Any) -> None:
    """Change a field that the message has."""
    field = _present(random, message)
    if field is None or field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        _put(random, message)
    elif _repeated(field):
        values = getattr(message, field.name)
        values[random.randrange(len(values))] = _scalar(random, field, message)
    else:
        setattr(message, field.name, _scalar(random, field, message))


def _repeat(random: Random, message: Any) -> None:
    """Duplicate, swap or shuffle elements of a repeated field."""
    fields = [field for field, _ in message.ListFields() if _repeated(field)]
    if not fields:
        _change(random, message)
        return
    values = getattr(message, random.choice(fields).name)
    copies = list(values)
    turn = random.random()
    if turn < 0.5:
        copies.append(random.choice(copies))
    elif turn < 0.8:
        random.shuffle(copies)
    else:
        copies = copies * random.choice((2, 3, 30)) if len(copies) < 50 else copies
    copies = [_copied(each) for each in copies]
    del values[:]
    values.extend(copies)


def _copied(value: Any) -> Any:
    if not hasattr(value, "CopyFrom"):
        return value
    copy = type(value)()
    copy.CopyFrom(value)
    return copy


# ---------------------------------------------------------------- mutations of ONNX structures


def _of_kind(model: ModelProto, name: str) -> list[Any]:
    return [each for each in messages(model) if each.DESCRIPTOR.name == name]


def _some(random: Random, model: ModelProto, name: str) -> Any:
    found = _of_kind(model, name)
    return random.choice(found) if found else None


def _exchange_names(random: Random, model: ModelProto) -> None:
    """Make a node read or write another value: cycles, forward references, values written twice."""
    nodes = _of_kind(model, "NodeProto")
    names = [name for node in nodes for name in (*node.input, *node.output)]
    node = random.choice(nodes) if nodes else None
    if node is not None and names:
        side = random.choice((node.input, node.output))
        if side:
            side[random.randrange(len(side))] = random.choice(names)


def _external(random: Random, model: ModelProto) -> None:
    """Move a tensor's data to another file."""
    tensor = _some(random, model, "TensorProto")
    if tensor is None:
        return
    if random.random() < 0.8:
        for name in ("raw_data", "float_data", "int32_data", "int64_data", "double_data"):
            tensor.ClearField(name)
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    entries = {"location": random.choice(_PLACES)}
    for key in ("offset", "length", "checksum", "a\nb"):
        if random.random() < 0.2:
            entries[key] = random.choice(("0", "4", "-1", str(2**63), "x", "", "1e3", "4096"))
    for key, value in entries.items():
        if random.random() < 0.95:
            tensor.external_data.add(key=key, value=value)


def _reference(random: Random, model: ModelProto) -> None:
    """Make an attribute refer to one of the enclosing function."""
    attribute = _some(random, model, "AttributeProto")
    if attribute is not None:
        attribute.ref_attr_name = random.choice((attribute.name, *_NAMES))
        if random.random() < 0.5:
            for field, _ in attribute.ListFields():
                if field.name not in ("name", "type", "ref_attr_name"):
                    attribute.ClearField(field.name)


def _sparse(random: Random, model: ModelProto) -> None:
    """Add a sparse initializer, mostly an invalid one, or a sparse attribute of a node."""
    tensor = _some(random, model, "TensorProto")
    if tensor is None:
        return
    if random.random() < 0.6:
        sparse = model.graph.sparse_initializer.add()
    else:
        node = _some(random, model, "NodeProto")
        if node is None:
            return
        attribute = node.attribute.add(name="sparse_value", type=AttributeProto.SPARSE_TENSOR)
        sparse = attribute.sparse_tensor
    sparse.values.CopyFrom(tensor)
    sparse.dims.extend(random.choice((tensor.dims, [2, 2], [2**40], [-1], [])))
    count = random.choice((0, 1, 3, len(tensor.dims)))
    indices = [random.choice(_INTEGERS) if random.random() < 0.2 else i for i in range(count)]
    sparse.indices.CopyFrom(helper.make_tensor("indices", TensorProto.INT64, [count], indices))


def _nest(random: Random, model: ModelProto) -> None:
    """Nest the graph deeply in branches."""
    node = _some(random, model, "NodeProto")
    if node is None:
        return
    for depth in range(random.choice((1, 1, 3, 3, 10, 10, 20, 45, 90, 200))):
        inner = _copied(node)
        node.Clear()
        node.op_type = random.choice(("If", "Loop", "Scan", "SequenceMap"))
        node.input.extend(inner.input)
        node.output.extend(inner.output)
        attribute = node.attribute.add(name=random.choice(("then_branch", "body")), type=AttributeProto.GRAPH)
        attribute.g.name = f"g{depth}"
        attribute.g.node.add().CopyFrom(inner)
        for name in inner.output:
            attribute.g.output.add(name=name)


def _recursive(random: Random, model: ModelProto) -> None:
    """Make a function call itself or another one."""
    if not model.functions:
        function = model.functions.add(name=random.choice(("Conv", "Moved", "Relu")), domain=random.choice(("", "own")))
        node = _some(random, model, "NodeProto")
        if node is not None:
            function.input.extend(node.input)
            function.output.extend(node.output)
            function.node.add().CopyFrom(node)
    function = random.choice(model.functions)
    node = function.node.add() if not function.node or random.random() < 0.3 else random.choice(function.node)
    other = random.choice(model.functions)
    node.op_type, node.domain = other.name, other.domain
    if random.random() < 0.5:
        model.graph.node.add(
            op_type=function.name, domain=function.domain, input=function.input, output=function.output
        )
    if not any(entry.domain == function.domain for entry in model.opset_import):
        model.opset_import.add(domain=function.domain, version=1)


def _large_dims(random: Random, model: ModelProto) -> None:
    tensor = _some(random, model, "TensorProto")
    if tensor is not None:
        if tensor.dims and random.random() < 0.7:
            tensor.dims[random.randrange(len(tensor.dims))] = random.choice(_INTEGERS)
        else:
            tensor.dims.extend([random.choice(_INTEGERS)] * random.choice((1, 2, 70)))


def _large_values(random: Random, model: ModelProto) -> None:
    """Change an integer of a constant, such as a shape, axis or pad."""
    tensors = [each for each in _of_kind(model, "TensorProto") if each.data_type == TensorProto.INT64 and each.raw_data]
    if tensors:
        tensor = random.choice(tensors)
        data = bytearray(tensor.raw_data)
        at = random.randrange(len(data) // 8) * 8 if len(data) >= 8 else 0
        data[at : at + 8] = random.choice(_INTEGERS).to_bytes(8, "little", signed=True)
        tensor.raw_data = bytes(data)


def _attribute(random: Random, model: ModelProto) -> None:
    """Change the type or value of an attribute, or add one."""
    node = _some(random, model, "NodeProto")
    if node is None:
        return
    if not node.attribute or random.random() < 0.3:
        names = ("kernel_shape", "pads", "strides", "dilations", "group", "auto_pad", "axis", "to", "perm", "mode", "x")
        value = random.choice((1, -1, 2**40, 1.5, "SAME_UPPER", "x\ny", [1], [1, 1], [-1, 2**62], [1.5], ["a", "b"]))
        node.attribute.append(helper.make_attribute(random.choice(names), value))
        return
    attribute = random.choice(node.attribute)
    if random.random() < 0.5:
        _change(random, attribute)
    else:
        attribute.type = random.choice(list(AttributeProto.AttributeType.values()))


def _opset(random: Random, model: ModelProto) -> None:
    if model.opset_import and random.random() < 0.7:
        random.choice(model.opset_import).version = random.choice((*range(1, 28), *_INTEGERS))
    elif random.random() < 0.5:
        model.ir_version = random.choice((*range(14), *_INTEGERS))
    else:
        model.opset_import.add(domain=random.choice(_NAMES), version=random.choice((0, 1, 2, 3, 22, 10**6)))


def _anywhere(change: Callable[[Random, Any], None]) -> Callable[[Random, ModelProto], None]:
    def mutation(random: Random, model: ModelProto) -> None:
        kinds = list(messages(model))
        change(random, random.choice(kinds))

    return mutation


_MUTATIONS: tuple[Callable[[Random, ModelProto], None], ...] = (
    *(_anywhere(_put), _anywhere(_clear), _anywhere(_change), _anywhere(_change), _anywhere(_repeat), _exchange_names),
    *(_exchange_names, _external, _reference, _sparse, _nest, _recursive, _large_dims, _large_values, _attribute),
    *(_attribute, _opset),
)


def mutated(random: Random, model: ModelProto) -> ModelProto:
    """Return a model with one or a few mutations."""
    copy = ModelProto()
    copy.CopyFrom(model)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        try:
            random.choice(_MUTATIONS)(random, copy)
        except DecodeError:  # nested too deeply to be copied
            break
    return copy


def mutated_bytes(random: Random, data: bytes) -> bytes:
    """Return the bytes of a file with some of them changed."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4, 10))):
        at, turn = random.randrange(len(changed) + 1), random.random()
        if turn < 0.4 and at < len(changed):
            changed[at] = random.choice((changed[at] ^ (1 << random.randrange(8)), 0, 255, 127, random.randrange(256)))
        elif turn < 0.6:
            changed[at:at] = random.randbytes(random.choice((1, 1, 2, 8)))
        elif turn < 0.8:
            del changed[at : at + random.choice((1, 1, 2, 8, 64))]
        else:
            start = random.randrange(len(changed) + 1)
            changed[at:at] = changed[start : start + random.choice((1, 4, 16, 64))]
    return bytes(changed)
