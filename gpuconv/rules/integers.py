"""Conversion of integer and boolean arguments: a number, one number per axis, or a shape.

Any object is converted to Python integers, which do not overflow, or causes an error that names the argument.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import islice
from typing import Any, NoReturn

from gpuconv._errors import ArgumentError, ArgumentTypeError, one_line, shown

MOST_ENTRIES = 124  # entries: pads of 62 spatial axes, the most that an array has besides batch and channels
_INT64_MAX = 2**63 - 1


def integer(name: str, argument: str, value: Any) -> int:
    """Return an argument as a Python integer that fits 64 bits; messages begin with ``name``, the public function."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentTypeError(f"{name}: {argument} must be an integer, not {shown(value)}") from None
    except Exception as error:
        _unreadable(name, argument, error)
    return _int64(name, argument, number)


def integers(name: str, argument: str, value: Any) -> Any:
    """Return an argument as a tuple of Python integers, or None for None."""
    if value is None:
        return None
    numbers = _sequence(name, argument, value)
    if numbers is None:
        raise ArgumentTypeError(
            f"{name}: {argument} must be a sequence of integers such as [1, 1], not {_described(value)}"
        )
    return numbers


def per_axis(name: str, argument: str, value: Any) -> Any:
    """Return an argument as a tuple of Python integers, or as one integer that applies to every axis; None for None."""
    if value is None:
        return None
    if type(value) is int:
        return _int64(name, argument, value)
    numbers = _sequence(name, argument, value)
    if numbers is not None:
        return numbers
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    except Exception as error:
        _unreadable(name, argument, error)
    if number is not None:
        return _int64(name, argument, number)
    pairs = _pairs(value) if argument == "pads" else None
    if pairs:
        flat = [pair[0] for pair in pairs] + [pair[1] for pair in pairs]
        raise ArgumentTypeError(
            f"{name}: pads must be [begin axis 1, begin axis 2, …, end axis 1, …], not a pair for each axis; "
            f"for {shown(value)} pass {shown(flat)}"
        )
    raise ArgumentTypeError(
        f"{name}: {argument} must be an integer or a sequence of integers such as [1, 1], not {_described(value)}"
    )


def flag(name: str, argument: str, value: Any) -> bool:
    """Return the truth value of an argument; arrays other than scalars are refused.

    Callers on hot paths test ``value is True or value is False`` first.
    """
    try:
        if getattr(value, "shape", ()) == ():
            return bool(value)
    except Exception as error:
        _unreadable(name, argument, error)
    raise ArgumentTypeError(f"{name}: {argument} must be True or False, not an array of shape {shown(value.shape)}")


def held(name: str, argument: str, value: Any) -> Any:
    """Return an iterator's entries as a tuple, since it can be read only once; return anything else unchanged."""
    if not isinstance(value, Iterator):
        return value
    try:
        entries = tuple(islice(value, MOST_ENTRIES + 1))
    except Exception as error:
        _unreadable(name, argument, error)
    _check_count(name, argument, value, len(entries))
    return entries


def has_order(value: Any) -> bool:
    """Return whether an object can be a sequence of integers: not a set, a mapping or bytes."""
    return not isinstance(value, Set | Mapping | bytes | bytearray)


def _sequence(name: str, argument: str, value: Any) -> tuple[int, ...] | None:
    """Return the integers of a sequence, or None for anything else.

    At most :data:`MOST_ENTRIES` + 1 entries are read, so ``range(10**9)`` costs nothing.
    """
    is_plain = (kind := type(value)) is tuple or kind is list
    if not is_plain and not has_order(value):
        return None
    try:
        entries = value if is_plain and len(value) <= MOST_ENTRIES else islice(value, MOST_ENTRIES + 1)
        numbers = tuple(map(operator.index, entries))
    except (TypeError, NotImplementedError):  # not iterable, not integers, or a multi-dimensional memoryview
        return None
    except Exception as error:
        _unreadable(name, argument, error)
    _check_count(name, argument, value, len(numbers))
    for number in numbers:
        _int64(name, argument, number)
    return numbers


def _check_count(name: str, argument: str, value: Any, read: int) -> None:
    if read > MOST_ENTRIES:
        raise ArgumentError(
            f"{name}: {argument} has {_length(value)} entries, but never takes more than {MOST_ENTRIES}: {shown(value)}"
        )


def _length(value: Any) -> str:
    try:
        return str(len(value))
    except Exception:  # an iterator, or a range longer than any list
        return f"over {MOST_ENTRIES}"


def _pairs(value: Any) -> list[tuple[int, ...]] | None:
    """Return pads that are given as one pair per axis, as in other libraries; None for anything else."""
    if isinstance(value, Iterator) or not has_order(value):  # an iterator is exhausted by now
        return None
    try:
        pairs = [_pair(entry) for entry in islice(value, MOST_ENTRIES)]
    except Exception:  # any error: it is something else
        return None
    return [pair for pair in pairs if pair] if all(pairs) else None


def _pair(entry: Iterable[Any]) -> tuple[int, ...]:
    """Return a pair of integers; () if there are fewer or more."""
    numbers = tuple(map(operator.index, islice(entry, 3)))
    return numbers if len(numbers) == 2 else ()


def _described(value: Any) -> str:
    """Return how messages show a value that is not a sequence of integers, with the reason if it is not obvious."""
    if isinstance(value, Set):
        return f"{shown(value)}, a set, whose entries have no order"
    if isinstance(value, Mapping):
        return f"{shown(value)}, a mapping, whose keys are no entries"
    if isinstance(value, bytes | bytearray):
        return f"{shown(value)}, which are bytes"
    return shown(value)


def _int64(name: str, argument: str, number: int) -> int:
    if not -_INT64_MAX <= number <= _INT64_MAX:
        raise ArgumentError(f"{name}: {argument} must fit in 64 bits, but holds {shown(number)}")
    return number


def _unreadable(name: str, argument: str, error: Exception) -> NoReturn:
    """Raise ArgumentTypeError for an exception that a caller's object raised when it was read."""
    kind, text = type(error).__name__, one_line(str(error))
    raise ArgumentTypeError(f"{name}: {argument} cannot be read ({kind}{': ' if text else ''}{text})") from error
