"""Resolves arguments to NumPy or CuPy arrays: chooses the backend by their types, without importing CuPy.

Arrays of other libraries are viewed through DLPack or ``__cuda_array_interface__``, without a copy. Subclasses of
``numpy.ndarray`` are viewed as plain arrays, so that their ``__array_ufunc__`` and ``__array_function__`` do not take
part in the computation. Masked arrays are refused.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from gpuconv import cuda
from gpuconv._errors import ArgumentTypeError, one_line

_LABEL = {"numpy": "NumPy", "cuda": "CuPy"}


def resolve(operator: str, x: Any, w: Any, b: Any) -> tuple[str, Any, Any, Any]:
    """Return the library of x, w and b ("numpy" or "cuda"), and the three as its plain arrays; b may be None.

    Arrays of other libraries are viewed without a copy if they support DLPack or ``__cuda_array_interface__``.

    Raises
    ------
    ArgumentTypeError
        Not an array, a masked array, or arrays of both libraries.
    """
    kind = type(x)
    if type(w) is kind and (b is None or type(b) is kind):
        if kind is cuda.runtime.array_type():
            return "cuda", x, w, b
        if kind is np.ndarray:
            return "numpy", x, w, b
    library, arrays = resolve_all(operator, {"x": x, "w": w} if b is None else {"x": x, "w": w, "b": b})
    return library, arrays["x"], arrays["w"], arrays.get("b")


def resolve_one(operator: str, name: str, array: Any) -> tuple[str, Any]:
    """Return the library of one array ("numpy" or "cuda"), and the array as its plain array; see :func:`resolve`."""
    kind = type(array)
    if kind is cuda.runtime.array_type():
        return "cuda", array
    return ("numpy", array) if kind is np.ndarray else _one(operator, name, array)


def check_out(operator: str, name: str, out: Any, library: str, x: Any) -> Any:
    """Return ``out`` as a plain view; raise ArgumentTypeError if it is not an array of x's ``library``."""
    if _library(out) is None and not _is_masked(out) and _is_foreign(operator, name, out):
        raise ArgumentTypeError(
            f"{operator}: {name} must be a {_LABEL[library]} array, not {_kind(out)}; "
            f"pass {'cupy' if library == 'cuda' else 'numpy'}.from_dlpack({name}), which shares its memory"
        )
    return resolve_all(operator, {name: out, "x": x})[1][name]


def resolve_all(operator: str, arrays: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the library of all arrays ("numpy" or "cuda"), and the arrays by name; see :func:`resolve`."""
    resolved = {name: _one(operator, name, array) for name, array in arrays.items()}
    libraries = {library for library, _ in resolved.values()}
    if len(libraries) > 1:
        kinds = ", ".join(f"{name} is a {_LABEL[library]} array" for name, (library, _) in resolved.items())
        raise ArgumentTypeError(f"{operator}: {kinds}; move them to one side with gpuconv.to_device or gpuconv.to_host")
    return libraries.pop(), {name: array for name, (_, array) in resolved.items()}


def adopted(operator: str, name: str, value: Any) -> Any:
    """Return an array of any library as a plain NumPy or CuPy array of the same memory; return anything else unchanged.

    Masked arrays raise ArgumentTypeError.
    """
    if type(value) is np.ndarray:
        return value
    is_array = isinstance(value, np.ndarray) or _is_masked(value) or _is_foreign(operator, name, value)
    return _one(operator, name, value)[1] if is_array else value


def plain(array: Any) -> Any:
    """Return a plain view of an instance of a subclass of NumPy's or CuPy's array; anything else unchanged."""
    if isinstance(array, np.ndarray):
        return np.asarray(array)
    on_device = cuda.runtime.array_type()
    if on_device is None or type(array) is on_device or not isinstance(array, on_device):
        return array
    return array.view(array.dtype, on_device)


def refuse_masked(operator: str, name: str, array: Any) -> None:
    """Raise ArgumentTypeError for a masked array: the mask would be ignored."""
    if _is_masked(array):
        raise ArgumentTypeError(
            f"{operator}: {name} must be a NumPy or CuPy array, not {_kind(array)}, whose mask would play no part; "
            f"pass {name}.filled(…), or {name}.data if the mask does not matter"
        )


def _one(operator: str, name: str, array: Any) -> tuple[str, Any]:
    library = _library(array)
    if library is not None:
        return library, plain(array)
    refuse_masked(operator, name, array)
    if array is None:
        raise ArgumentTypeError(f"{operator}: {name} is required, a NumPy or CuPy array")
    if not _is_foreign(operator, name, array):
        raise ArgumentTypeError(f"{operator}: {name} must be a NumPy or CuPy array, not {_kind(array)}")
    from gpuconv.cuda.call import interchange  # imported only if another library's array is passed

    adopted = interchange.adopt(operator, name, array)
    return str(_library(adopted)), adopted


def _library(array: Any) -> str | None:
    on_device = cuda.runtime.array_type()
    if on_device is not None and isinstance(array, on_device) and not _is_masked(array):
        return "cuda"
    return "numpy" if isinstance(array, np.ndarray) and not _is_masked(array) else None


def _is_foreign(operator: str, name: str, array: Any) -> bool:
    """Return whether an object is another library's array; NumPy's arrays, scalars and classes are not."""
    if isinstance(array, np.ndarray | np.generic | type):
        return False
    try:
        return hasattr(array, "__dlpack_device__") or hasattr(array, "__cuda_array_interface__")
    except Exception as error:  # raised by the caller's class
        raise ArgumentTypeError(
            f"{operator}: {name} ({_kind(array)}) cannot be read in place: {one_line(str(error))}"
        ) from error


def _kind(array: Any) -> str:
    kind = type(array)
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_masked(array: Any) -> bool:
    """Return whether an array is masked. It cannot be if numpy.ma, which is slow to import, has not been imported."""
    masked = sys.modules.get("numpy.ma")
    return masked is not None and isinstance(array, masked.MaskedArray)
