"""Models in files: which files are opened for one, and what may lie in others beside it."""

from __future__ import annotations

import os
import re
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_tensor

from gpuconv._errors import ArgumentError, ArgumentTypeError
from gpuconv._files import open_regular
from gpuconv.onnx.checks import native
from gpuconv.onnx.checks.structure import tensors
from gpuconv.onnx.messages import quoted, reason

_LONGEST_PATH = 240  # characters in messages
_DEEPEST_TEXT = 100  # as deep as the binary form may be
_LITERAL_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"?|#[^\n]*|[(){}\[\]]', re.DOTALL)


def read(source: Any) -> tuple[ModelProto, str]:
    """Return a model with all data inside, and what messages call it.

    Raises
    ------
    ArgumentError
        The file cannot be read or is no model, or data is in another file: of a model in memory anywhere, of one that
        is read from a path outside of its folder.
    ArgumentTypeError
        The source is no ModelProto, bytes or path.
    """
    if isinstance(source, ModelProto):
        return _in_memory(source), "the model"
    if isinstance(source, bytes | bytearray | memoryview):
        return _in_memory(_decoded(bytes(source))), "the model"
    if not isinstance(source, str | os.PathLike):
        raise ArgumentTypeError(f"prepare: a model must be a ModelProto, bytes or a path, not {type(source).__name__}")
    name = f"the model {quoted(os.fspath(source), _LONGEST_PATH)}"
    try:
        return _from_path(source), name
    except DecodeError:
        raise ArgumentError(f"{name} is not an ONNX model, or is truncated ({os.path.getsize(source)} bytes)") from None
    except MemoryError:
        raise
    except Exception as error:  # missing files, forbidden ones, external data, the text formats' own errors
        raise ArgumentError(f"{name} cannot be read: {reason(error)}") from error


def check_in_memory(message: Any, name: str) -> None:
    """Refuse tensors whose data is in another file: nothing says which folder that would be in."""
    for tensor in filter(_is_external, tensors(message)):
        raise ArgumentError(
            f"{name} keeps the tensor {quoted(tensor.name)} in another file; pass the path of the model instead of its "
            "contents, or call onnx.load_external_data_for_model first"
        )


def _in_memory(model: ModelProto) -> ModelProto:
    check_in_memory(model, "the model")
    return model


def _decoded(data: bytes) -> ModelProto:
    try:
        return decoded(data)
    except DecodeError:
        raise ArgumentError(f"the model is not an ONNX model, or is truncated ({len(data)} bytes)") from None


def decoded(source: bytes | str | os.PathLike[str]) -> ModelProto:
    """Decode a model: bytes in protobuf's binary form, or a file in the form that its extension tells."""
    if isinstance(source, bytes):
        return native.decode(source)
    with open_regular(source) as stream:
        if _is_onnx_text(source):
            _check_brackets(stream.read().decode())
            stream.seek(0)
        return native.read(stream)


def _from_path(path: str | os.PathLike[str]) -> ModelProto:
    """Read a model, then the data that lies beside it."""
    model = decoded(path)
    folder = os.path.dirname(os.path.abspath(path))
    for tensor in filter(_is_external, tensors(model)):
        _check_place(tensor, folder)
        load_external_data_for_tensor(tensor, folder)
        tensor.data_location = TensorProto.DEFAULT  # older versions of onnx leave this to the caller
        del tensor.external_data[:]
    return model


def _is_external(tensor: TensorProto) -> bool:
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def _check_place(tensor: TensorProto, folder: str) -> None:
    """Refuse a file outside of the folder, whatever links lead there, and one that is not regular."""
    location = ExternalDataInfo(tensor).location
    root, place = os.path.realpath(folder), os.path.realpath(os.path.join(folder, location))
    if os.path.commonpath([root, place]) != root:
        raise ValueError(f"the tensor {quoted(tensor.name)} is in {quoted(location)}, outside of the model's folder")
    open_regular(place).close()


def _is_onnx_text(path: str | os.PathLike[str]) -> bool:
    extension = os.path.splitext(os.fspath(path))[1]
    return onnx.serialization.registry.get_format_from_file_extension(extension) == "onnxtxt"


def _check_brackets(text: str) -> None:
    """Refuse text that is too deep for onnx's parser, which would end the process."""
    depth = 0
    for match in _LITERAL_OR_BRACKET.finditer(text):
        if match[0] in "([{":
            depth += 1
        elif match[0] in ")]}":
            depth = max(0, depth - 1)
        if depth > _DEEPEST_TEXT:
            raise ValueError(f"its brackets are more than {_DEEPEST_TEXT} deep")
