"""The operators that CNNs need around Conv, ConvTranspose and MaxPool, each written once for NumPy and CuPy arrays.

A node is computed here where :func:`find` has its operator and serves its form; everything else is left to onnx's
reference evaluator. float16 and bfloat16 are computed in float32 and rounded once. CuPy functions are used that need
none of NVIDIA's libraries, but for TopK's sort, and do not make the host wait, but for inputs that it has to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import onnx
from onnx import NodeProto

from gpuconv.onnx.contrib import attention as contributed_attention
from gpuconv.onnx.contrib import fusions, qlinear
from gpuconv.onnx.operators import (
    detecting,
    elementwise,
    indexing,
    integers,
    normalizing,
    pooling,
    products,
    quantizing,
    recurrent,
    resizing,
    sampling,
    shaping,
    special,
)
from gpuconv.onnx.operators.control import CONTROL, Body
from gpuconv.onnx.operators.form import DTYPES, Form, Operator, is_float, namespace
from gpuconv.onnx.operators.host import classical, sequences, text
from gpuconv.onnx.operators.layers import attention, losses, matrices
from gpuconv.onnx.operators.pooling import on_device

__all__ = [
    "CONTROL",
    "DTYPES",
    "OTHERS",
    "TABLE",
    "Body",
    "Form",
    "Operator",
    "find",
    "form_of",
    "has",
    "is_float",
    "namespace",
    "on_device",
]

_KINDS = (
    *(attention, detecting, elementwise, indexing, integers, losses, matrices, normalizing, pooling, products),
    *(quantizing, recurrent, resizing, sampling, sequences, shaping, special, text),
)
TABLE: dict[str, Operator] = {name: entry for kind in _KINDS for name, entry in kind.OPERATORS.items()}

_CONTRIBUTED = (contributed_attention, fusions, integers, qlinear, quantizing, recurrent)
OTHERS: dict[str, dict[str, Operator]] = {  # by domain
    "ai.onnx.ml": {**indexing.CLASSICAL, **classical.CLASSICAL},
    "com.microsoft": {name: entry for kind in _CONTRIBUTED for name, entry in kind.CONTRIBUTED.items()},
}
_TABLES = {"": TABLE, **OTHERS}
_NEWEST_CLASSICAL = 5  # the opset of ai.onnx.ml, in which no default is another than before


def find(node: NodeProto, opset: int) -> tuple[Operator, Form] | None:
    """Return a node's operator and form, or None where it is not one that is computed here.

    Parameters
    ----------
    node : onnx.NodeProto
        One whose attributes do not refer to those of a function.
    opset : int
        Of the default domain.
    """
    operator = _TABLES.get(node.domain, {}).get(node.op_type)
    if operator is None:
        return None
    form = form_of(node, opset)
    return (operator, form) if operator.serves(form) else None


def has(node: NodeProto) -> bool:
    """Tell whether a node's operator is in the table of ONNX's or ONNX Runtime's domain."""
    return node.domain in ("", "com.microsoft") and node.op_type in _TABLES[node.domain]


def own(node: NodeProto) -> tuple[Operator, Form]:
    """Return the operator and the newest form of a node that has ONNX's name and all attributes, at any opset."""
    return TABLE[node.op_type], form_of(node, onnx.defs.onnx_opset_version())


def form_of(node: NodeProto, opset: int) -> Form:
    """Return what a node says beside the names of its inputs, with the defaults of its opset's attributes."""
    given = {a.name: _text(onnx.helper.get_attribute_value(a)) for a in node.attribute if not a.ref_attr_name}
    defaults: Mapping[str, object]
    if node.domain == "ai.onnx.ml":
        defaults = _defaults(node.op_type, _NEWEST_CLASSICAL, node.domain)
    elif node.domain in OTHERS:
        entry = OTHERS[node.domain].get(node.op_type)
        defaults = {} if entry is None or entry.schema is None else entry.schema.defaults
    else:  # nodes of gpuconv's own domain have the names and attributes of ONNX's
        defaults = _defaults(node.op_type, opset)
    attributes = {**defaults, **given}
    return Form(opset, attributes, tuple(map(bool, node.output)), tuple(map(bool, node.input)))


@lru_cache(maxsize=1024)
def _defaults(op_type: str, opset: int, domain: str = "") -> Mapping[str, object]:
    """Return the defaults of an operator's attributes, by name; none in domains that onnx does not know."""
    if not onnx.defs.has(op_type, domain):
        return {}
    schema = onnx.defs.get_schema(op_type, opset, domain)
    return {
        name: _text(onnx.helper.get_attribute_value(attribute.default_value))
        for name, attribute in schema.attributes.items()
        if attribute.default_value.name
    }


def _text(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value
