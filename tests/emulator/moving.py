"""Patch gpuconv's public functions so that they take NumPy arrays, compute on the device, and return NumPy arrays."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Protocol
from unittest import mock

import numpy as np

import gpuconv
from emulated_cuda.emulator.engine import EmulatorError
from gpuconv import _arrays
from gpuconv.rules.operators import OPERATORS
from tests.emulator.mirror import Mirror, on_host, unwritten

_ATTRIBUTES = {name for operator in OPERATORS.values() for name in operator.attributes}
_MOVED = (*OPERATORS, "explain", "pack", "tune")
_WITHIN = ContextVar("within", default=False)  # True inside a patched function, which may use the CPU itself


class Seen(Protocol):
    """What records launches and findings: `EmulatedCuda`, or an object that records nothing on a real device."""

    launches: list[Any]

    def findings_raised(self) -> AbstractContextManager[None]: ...


@contextmanager
def moved_to_device(seen: Seen) -> Iterator[None]:
    """Patch the functions within a context. It applies to ``gpuconv.conv``, not to names imported before."""
    with ExitStack() as stack:
        for name in _MOVED:
            stack.enter_context(mock.patch.object(gpuconv, name, _moving(getattr(gpuconv, name), seen)))
        for name in ("resolve", "resolve_one", "resolve_all"):
            stack.enter_context(mock.patch.object(_arrays, name, _refusing_host(getattr(_arrays, name))))
        yield


def _moving(function: Callable[..., Any], seen: Seen) -> Callable[..., Any]:
    """Return a function that copies NumPy arguments to the device, calls `function`, and copies results back.

    It raises EmulatorError if a check of a kernel fails, or an element of a result was not written.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            bound = signature.bind_partial(*arguments, **keywords).arguments
        except TypeError:  # `function` reports the error better
            bound = {**keywords, "": arguments}
        operands = [value for name, value in bound.items() if name not in _ATTRIBUTES | {"out", "attributes"}]
        given, outs = _found_in(operands), _found_in(keywords.get("out"))
        mirror = Mirror(given, outs)
        before = len(seen.launches)
        within = _WITHIN.set(True)
        try:
            with seen.findings_raised():
                result = function(*_moved(arguments, mirror), **_moved(keywords, mirror))
        finally:
            _WITHIN.reset(within)
        if not given and not outs:
            return result
        found = result if isinstance(result, tuple) else (result,)
        found = tuple(_returned(array, mirror, outs, seen.launches[before:]) for array in found)
        mirror.bring_back()
        return found if isinstance(result, tuple) else found[0]

    return call


def _returned(result: Any, mirror: Mirror, outs: list[Any], launches: list[Any]) -> Any:
    """Return a result as a NumPy array, after a check that it is fully written; for an ``out``, the caller's array."""
    if not isinstance(result, sys.modules["cupy"].ndarray):
        return result
    check_written(result, launches)
    given = [out for out in outs if mirror.of(out) is result]
    return given[0] if given else on_host(result)


def check_written(array: Any, launches: Sequence[Any]) -> None:
    """Raise EmulatorError if the launches have left elements of an array on the device unwritten."""
    missing = unwritten(array) if launches else 0
    if missing:
        kernels = ", ".join(record.variant.name for record in launches)
        names = {address: name for record in launches for address, name in record.names().items()}
        name = names.get(array.data.ptr, "a result")
        raise EmulatorError(
            f"{kernels}: {missing} of {array.size} elements of {name}, of shape {array.shape}, were never written"
        )


def _found_in(value: Any) -> list[Any]:
    """Return the NumPy arrays in nested lists and tuples, in order."""
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, list | tuple):
        return [array for one in value for array in _found_in(one)]
    return []


def _moved(value: Any, mirror: Mirror) -> Any:
    """Return a value in which NumPy arrays, nested ones too, are replaced by their copies on the device."""
    if isinstance(value, np.ndarray):
        return mirror.of(value)
    if isinstance(value, dict):
        return {key: _moved(one, mirror) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_moved(one, mirror) for one in value)
    return value


def _refusing_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that chooses the array library, to refuse NumPy: an unpatched call would test the CPU instead."""

    @wraps(function)
    def resolve(operator: str, *arrays: Any) -> Any:
        found = function(operator, *arrays)
        if found[0] == "numpy" and operator in OPERATORS and not _WITHIN.get():
            raise AssertionError(f"look {operator} up in gpuconv inside of the context, where it runs on the device")
        return found

    return resolve
