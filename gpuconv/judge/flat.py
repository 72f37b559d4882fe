"""The suite's flat files: a sequence of named arrays, for readers without JSON, .npy or protobuf parsers.

A test in a flat file (``test.flat``) holds what running and judging it needs. All numbers are little-endian::

    char    magic[8]     "FLAT0001"
    int64   records      the number of records, which follow without gaps
    record:
        char   name[96]  UTF-8, the rest are zero bytes (at least one)
        int64  type      ONNX's TensorProto.DataType: 1 float32, 2 uint8, 3 int8, 7 int64, 8 text, 10 float16,
                         11 float64, 16 bfloat16
        int64  rank      0 to 8
        int64  dims[8]   sizes of the axes, 0 beyond the rank; of text: [number of bytes]
        bytes  data      C order, padded with zero bytes to a multiple of 8

so that a record's 176 bytes before its data are a C struct. The arrays of a test have the names of its ``.npy`` files
(``input_0``, ``constant_0``, ``output_0``, ``bound_0``, ``alternative_NAME_0`` …). Entries of case.json are records,
too, in which dots join the names of nested ones: ``operator`` and ``rule`` are text; ``opset``, ``bits`` and ``valid``
int64 of rank 0; ``attributes.pads`` int64 of rank 1; ``attributes.auto_pad`` and ``alternatives.NAME.kind`` text. What
is null in case.json is left out.

An output of a target is a flat file with one record, whose name does not matter.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gpuconv.judge.definition import Array

MAGIC = b"FLAT0001"
TEXT = 8
TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9,
    "float16": 10, "float64": 11, "uint32": 12, "uint64": 13, "bfloat16": 16,
}  # fmt: skip
_FACTS = (
    "name", "operator", "opset", "type", "rank", "rule", "sentence", "status", "valid", "bits", "attributes",
    "alternatives",
)  # fmt: skip
_RECORD = struct.Struct("<96sqq8q")
_COUNT = struct.Struct("<q")


def pack(facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """Return the flat file of a test.

    Parameters
    ----------
    facts : mapping
        The content of case.json; links and quotations in it are left out.
    arrays : mapping of str to array
        Inputs, constants, outputs, bounds and alternatives by the names of their files, without suffix.

    Raises
    ------
    ValueError
        A name of more than 95 bytes, an array of more than 8 axes, a type without a number.
    """
    records = [*_flattened({name: facts[name] for name in _FACTS if name in facts}), *arrays.items()]
    return MAGIC + _COUNT.pack(len(records)) + b"".join(_record(name, value) for name, value in records)


def _flattened(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{name}.")
        elif value is not None:
            yield prefix + name, value


def _record(name: str, value: Any) -> bytes:
    if isinstance(value, str | bytes):
        content = value.encode() if isinstance(value, str) else value
        return _header(name, TEXT, (len(content),)) + _padded(content)
    array = np.asarray(value, np.int64) if isinstance(value, int | list | tuple) else value
    little = array.astype(array.dtype.newbyteorder("<")) if array.dtype.byteorder == ">" else array
    if array.dtype.name not in TYPES:
        raise ValueError(f"{name}: flat files have no type {array.dtype}")
    return _header(name, TYPES[array.dtype.name], array.shape) + _padded(little.tobytes())


def _header(name: str, kind: int, shape: tuple[int, ...]) -> bytes:
    encoded = name.encode()
    if len(encoded) > 95 or len(shape) > 8:
        raise ValueError(f"{name}: names in flat files have at most 95 bytes, arrays at most 8 axes, not {len(shape)}")
    return _RECORD.pack(encoded, kind, len(shape), *shape, *[0] * (8 - len(shape)))


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 8)


def unpack(content: bytes) -> dict[str, Any]:
    """Return the records of a flat file by name: arrays (bfloat16 of ml_dtypes), and text as str.

    Raises
    ------
    ValueError
        A file that is no flat file, or ends too early; the message says where.
    """
    if content[:8] != MAGIC or len(content) < 16:
        raise ValueError("it does not begin with 'FLAT0001' and a number of records")
    (count,) = _COUNT.unpack_from(content, 8)
    found: dict[str, Any] = {}
    at = 16
    for number in range(count):
        if len(content) < at + _RECORD.size:
            raise ValueError(f"it ends in record {number} of {count}")
        encoded, kind, rank, *dims = _RECORD.unpack_from(content, at)
        at += _RECORD.size
        name = encoded.split(b"\0")[0].decode(errors="replace")
        size = _size(name, kind, rank, dims)
        if len(content) < at + size:
            raise ValueError(f"it ends in the data of {name}")
        found[name] = _value(content[at : at + size], kind, dims[:rank])
        at += size + -size % 8
    return found


def _size(name: str, kind: int, rank: int, dims: list[int]) -> int:
    """Return the number of bytes of a record's data."""
    if not 0 <= rank <= 8 or (kind != TEXT and kind not in TYPES.values()) or min(dims[:rank], default=0) < 0:
        raise ValueError(f"{name} has the type {kind}, the rank {rank} and the sizes {dims}")
    items = 1
    for size in dims[:rank]:
        items *= size
    return items * (1 if kind == TEXT else _dtype(kind).itemsize)


def _dtype(kind: int) -> Any:
    (name,) = (name for name, number in TYPES.items() if number == kind)
    if name != "bfloat16":
        return np.dtype(name).newbyteorder("<")
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def _value(content: bytes, kind: int, shape: list[int]) -> Any:
    if kind == TEXT:
        return content.decode(errors="replace")
    return np.frombuffer(content, _dtype(kind)).reshape(shape).copy()
