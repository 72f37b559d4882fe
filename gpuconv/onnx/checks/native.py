"""The only calls of onnx's native (C++) parsers, checker and shape inference.

This code processes untrusted bytes and may crash on them. :class:`Local` calls it in this process;
:class:`gpuconv.onnx.checks.isolated.Isolated` calls it in a child process, so that a crash ends only the child.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import IO, Any

import onnx
from onnx import GraphProto, ModelProto, NodeProto, SparseTensorProto


def decode(data: bytes) -> ModelProto:
    """Decode a model in protobuf's binary format."""
    return onnx.load_model_from_string(data)


def read(stream: IO[bytes]) -> ModelProto:
    """Decode a model in the format that the file's extension indicates, without external data."""
    model: ModelProto = onnx.load(stream, load_external_data=False)
    return model


def check_node(node: NodeProto, opsets: Mapping[str, int]) -> None:
    """Run onnx's checker on one node outside of a model; ``opsets`` maps domains to versions."""
    context = onnx.checker.C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    context.opset_imports = dict(opsets)
    onnx.checker.check_node(node, context)


class Local:
    """onnx's native code in this process; a crash ends the process."""

    def parse(self, source: Any) -> None:
        """Do nothing: without isolation, decoding the model here is the first parse."""

    def check(self, model: ModelProto, path: str | os.PathLike[str] | None) -> None:
        """Run onnx's checker; models too large for its in-memory interface are checked by their path, if known."""
        if path is not None and model.ByteSize() > onnx.checker.MAXIMUM_PROTOBUF:
            onnx.checker.check_model(os.fspath(path))
        else:
            onnx.checker.check_model(model)

    def check_sparse_tensor(self, tensor: SparseTensorProto) -> None:
        """Check that the indices of a sparse tensor are sorted and in bounds."""
        onnx.checker.check_sparse_tensor(tensor)

    def infer(self, model: ModelProto) -> GraphProto:
        """Return a graph whose ``value_info`` and outputs hold the types and shapes that onnx infers."""
        graph: GraphProto = onnx.shape_inference.infer_shapes(model).graph
        return graph
