"""Implementations of ONNX operators, each written once for NumPy and CuPy arrays.

:func:`find` returns the implementation of a node, or None to leave it to onnx's reference evaluator. float16 and
bfloat16 are computed in float32 and rounded once. Only CuPy functions that need none of NVIDIA's libraries are used,
except for TopK's sort. They do not synchronise with the host, except for inputs that the host has to read.
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
_NEWEST_CLASSICAL = 5  # newest opset of ai.onnx.ml; no default has changed since older ones


def find(node: NodeProto, opset: int) -> tuple[Operator, Form] | None:
    """Return a node's operator and form, or None if there is no implementation for it.

    Parameters
    ----------
    node : onnx.NodeProto
        A node, none of whose attributes refer to those of a function.
    opset : int
        Version of the default domain.
    """
    operator = _TABLES.get(node.domain, {}).get(node.op_type)
    if operator is None:
        return None
    form = form_of(node, opset)
    return (operator, form) if operator.serves(form) else None


def has(node: NodeProto) -> bool:
    """Return whether there is an operator for a node of ONNX's default domain or of com.microsoft."""
    return node.domain in ("", "com.microsoft") and node.op_type in _TABLES[node.domain]


def own(node: NodeProto) -> tuple[Operator, Form]:
    """Return the operator and the newest form of a fused node that bears the name and attributes of an ONNX
    operator.
    """
    return TABLE[node.op_type], form_of(node, onnx.defs.onnx_opset_version())


def form_of(node: NodeProto, opset: int) -> Form:
    """Return a node's form: attributes with the defaults of this opset, and which inputs and outputs are present."""
    given = {a.name: _text(onnx.helper.get_attribute_value(a)) for a in node.attribute if not a.ref_attr_name}
    defaults: Mapping[str, object]
    if node.domain == "ai.onnx.ml":
        defaults = _defaults(node.op_type, _NEWEST_CLASSICAL, node.domain)
    elif node.domain in OTHERS:
        entry = OTHERS[node.domain].get(node.op_type)
        defaults = {} if entry is None or entry.schema is None else entry.schema.defaults
    else:  # nodes of the domain "gpuconv" use the names and attributes of ONNX's operators
        defaults = _defaults(node.op_type, opset)
    attributes = {**defaults, **given}
    return Form(opset, attributes, tuple(map(bool, node.output)), tuple(map(bool, node.input)))


@lru_cache(maxsize=1024)
def _defaults(op_type: str, opset: int, domain: str = "") -> Mapping[str, object]:
    """Return an operator's attribute defaults by name; empty for operators without a schema in onnx."""
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
