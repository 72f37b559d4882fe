"""Reading of models and their external tensor data from files.

Only the given file is opened, and for external data only regular files inside the same folder. Models in memory must
not refer to external data, because their folder is unknown.
"""

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

_LONGEST_PATH = 240  # characters of a path in messages
_DEEPEST_TEXT = 100  # deepest nesting of brackets; protobuf limits its binary form to the same depth
_LITERAL_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"?|#[^\n]*|[(){}\[\]]', re.DOTALL)


def read(source: Any) -> tuple[ModelProto, str]:
    """Return a model with all tensor data inside it, and the name for it in messages.

    Raises
    ------
    ArgumentError
        The file cannot be read or is not a model; a model in memory refers to external data; or external data lies
        outside the folder of the model's file.
    ArgumentTypeError
        The source is not a ModelProto, bytes or path.
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
    except Exception as error:  # such as missing or forbidden files, external data, and errors of the text formats
        raise ArgumentError(f"{name} cannot be read: {reason(error)}") from error


def check_in_memory(message: Any, name: str) -> None:
    """Refuse tensors with external data in a model in memory: nothing says which folder the file would be in."""
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
    """Decode a model: bytes in protobuf's binary form, or a file in the format that its extension indicates."""
    if isinstance(source, bytes):
        return native.decode(source)
    with open_regular(source) as stream:
        if _is_onnx_text(source):
            _check_brackets(stream.read().decode())
            stream.seek(0)
        return native.read(stream)


def _from_path(path: str | os.PathLike[str]) -> ModelProto:
    """Read a model from a file, then its external tensor data."""
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
    """Refuse external data outside the model's folder, symbolic links resolved, and anything but regular files."""
    location = ExternalDataInfo(tensor).location
    root, place = os.path.realpath(folder), os.path.realpath(os.path.join(folder, location))
    if os.path.commonpath([root, place]) != root:
        raise ValueError(f"the tensor {quoted(tensor.name)} is in {quoted(location)}, outside of the model's folder")
    open_regular(place).close()


def _is_onnx_text(path: str | os.PathLike[str]) -> bool:
    extension = os.path.splitext(os.fspath(path))[1]
    return onnx.serialization.registry.get_format_from_file_extension(extension) == "onnxtxt"


def _check_brackets(text: str) -> None:
    """Refuse textual models nested so deeply that onnx's recursive parser would overflow the stack."""
    depth = 0
    for match in _LITERAL_OR_BRACKET.finditer(text):
        if match[0] in "([{":
            depth += 1
        elif match[0] in ")]}":
            depth = max(0, depth - 1)
        if depth > _DEEPEST_TEXT:
            raise ValueError(f"its brackets are more than {_DEEPEST_TEXT} deep")
