"""The only calls of onnx's native checker and shape inference, and of its parsers of files.

They are C++ that a model's bytes reach before anything is known about them. :class:`Local` makes these calls in this
process, :class:`gpuconv.onnx.checks.isolated.Isolated` in a child process, so that a fault ends the child only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import IO, Any

import onnx
from onnx import GraphProto, ModelProto, NodeProto, SparseTensorProto


def decode(data: bytes) -> ModelProto:
    """Decode a model in protobuf's binary form."""
    return onnx.load_model_from_string(data)


def read(stream: IO[bytes]) -> ModelProto:
    """Decode a model in the form that the extension of the file's name tells, without external data."""
    model: ModelProto = onnx.load(stream, load_external_data=False)
    return model


def check_node(node: NodeProto, opsets: Mapping[str, int]) -> None:
    """Check one node outside of a model, with the versions of its domains."""
    context = onnx.checker.C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    context.opset_imports = dict(opsets)
    onnx.checker.check_node(node, context)


class Local:
    """onnx's native code in this process, which a fault in it would end."""

    def parse(self, source: Any) -> None:
        """Do nothing: this process decodes the model anyway, and there is no other that could do so first."""

    def check(self, model: ModelProto, path: str | os.PathLike[str] | None) -> None:
        """Check a model; one too large to be handed over in memory by its path, where it has one."""
        if path is not None and model.ByteSize() > onnx.checker.MAXIMUM_PROTOBUF:
            onnx.checker.check_model(os.fspath(path))
        else:
            onnx.checker.check_model(model)

    def check_sparse_tensor(self, tensor: SparseTensorProto) -> None:
        """Check that the indices of a sparse tensor are sorted, and inside of its shape."""
        onnx.checker.check_sparse_tensor(tensor)

    def infer(self, model: ModelProto) -> GraphProto:
        """Return a graph whose ``value_info`` and outputs have the types that onnx infers."""
        graph: GraphProto = onnx.shape_inference.infer_shapes(model).graph
        return graph
