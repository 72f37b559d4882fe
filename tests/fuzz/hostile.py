"""Hostile values for numbers, sequences, strings and arrays, and valid ones that look hostile."""

from __future__ import annotations

import array as arrays
import itertools
from collections import UserList, deque
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from random import Random
from typing import Any, ClassVar

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class Made:
    """A value that is created for every call, since a call may consume it or must not change it."""

    text: str
    make: Callable[[], Any]

    def __repr__(self) -> str:
        return self.text


def fresh(value: Any) -> Any:
    """Return the value to pass for a value of a case."""
    return value.make() if isinstance(value, Made) else value


class Planted(Exception):  # raised only by the objects below
    """An error of the caller's own objects, which must propagate unchanged."""


class Index:
    """An integer by ``__index__``."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number

    def __repr__(self) -> str:
        return f"Index({self.number})"


class BadIndex:
    """An integer whose ``__index__`` raises."""

    def __index__(self) -> int:
        raise Planted("__index__")


class Unprintable:
    """An object whose ``__repr__`` raises."""

    def __repr__(self) -> str:
        raise Planted("__repr__")


class Size(IntEnum):
    ONE = 1
    TWO = 2


class Text(str):
    """A subclass of str."""

    __slots__ = ()


def shown(value: Any) -> str:
    """Return any object as one line of text of limited length."""
    try:
        text = " ".join(repr(value).split())
    except Exception as error:
        return f"<{type(value).__name__} whose repr fails: {type(error).__name__}>"
    return text if len(text) < 200 else f"{text[:100]} … {len(text)} characters"


LONG = "x" * 100_000
TEXTS: tuple[Any, ...] = (
    *("", "NOTSET", "SAME_UPPER", "VALID", "same_upper", "NCHW", "NHWC", "nchw", "ieee", "tf32", "relu", "clip"),
    *(
        "\n", "a\nb", "a\x00b", "\x1b[31mred", "\u202eright to left", "\ud800", "é" * 40, "{}", "%s", LONG,
        "line\u2028two",
    ),
    *(Text("NOTSET"), Text("NHWC"), b"VALID", b"SAME_LOWER", b"\xff\xfe", b"", bytearray(b"VALID"), np.str_("NOTSET")),
)  # fmt: skip
NUMBERS: tuple[Any, ...] = (
    *(0, -1, 1, 2, 3, 7, 2**15, 2**31 - 1, 2**31, -(2**31), 2**32, 2**40, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64),
    *(-(2**63), -(2**63) + 1, -(2**63) - 1, 10**30, -(10**30), 10**5000, -(10**5000), 1 << 100_000),
    *(True, False, np.True_, np.int8(1), np.int64(-1), np.uint64(2**63), np.uint8(2), np.float64(1), np.float32(2.5)),
    *(0.0, 1.0, -1.5, float("nan"), float("inf"), -float("inf"), 1e308, 5e-324, 1j, Fraction(1, 3), Decimal(1)),
    *("1", "a\nb", "", b"1", None, [], [1], (1,), {1}, {1: 2}, {}, object(), Ellipsis, NotImplemented, int, len),
    *(np.array(1), np.array([1]), np.array([]), np.array([[1, 2], [3, 4]]), np.array(1.5), np.datetime64("2020-01-01")),
    *(
        Size.ONE, Size.TWO, Index(1), Index(-3), Index(2**70), BadIndex(), Unprintable(), [Unprintable()], range(2),
        LONG,
    ),
    *([[1]], [[[[[]]]]], list(range(100_000)), ["y" * 1000] * 100, np.zeros(5000), np.zeros((50, 50)), {"a\nb": 1}),
)  # fmt: skip


def number(random: Random) -> Any:
    return random.choice(NUMBERS)


def text(random: Random) -> Any:
    return random.choice(TEXTS) if random.random() < 0.6 else number(random)


def _cyclic() -> list[Any]:
    values: list[Any] = [1]
    values.append(values)
    return values


_SEQUENCES: tuple[Callable[[list[Any]], Any], ...] = (
    tuple,
    list,
    lambda v: Made(f"iter({shown(v)})", lambda: iter(v)),
    lambda v: Made(f"(i for i in {shown(v)})", lambda: (i for i in v)),
    lambda v: Made(f"reversed({shown(v)})", lambda: reversed(v)),
    lambda v: Made(f"zip({shown(v)})", lambda: zip(v)),
    lambda v: Made(f"repeat(1, {len(v)})", lambda: itertools.repeat(1, len(v))),
    lambda v: Made(f"failing after {shown(v)}", lambda: _failing(v)),
    *(lambda v, kind=kind: _as(kind, v) for kind in (set, dict.fromkeys, deque, UserList, frozenset, bytes, str)),
    *(lambda v, kind=kind: _as_array(kind, v) for kind in ("i1", "u1", "i8", ">i4", "u8", "f4", "f8", "O", "?", "U9")),
    lambda v: _as(lambda u: arrays.array("q", u), v),
    lambda v: _as(lambda u: memoryview(arrays.array("q", u)), v),
    lambda v: range(1, len(v) + 1),
    lambda v: [v],
    lambda v: np.array([v, v], dtype=object),
    lambda v: v[:-1],
    lambda v: [*v, 1],
    lambda v: v * 2,
    lambda v: [],
    lambda v: [1] * 100_000,
    lambda v: _cyclic(),
)


def _failing(values: list[Any]) -> Any:
    yield from values
    raise Planted("a generator")


def _as(kind: Any, values: list[Any]) -> Any:
    try:
        return kind(values)
    except (TypeError, ValueError, OverflowError, Planted):
        return values


def _as_array(kind: str, values: list[Any]) -> Any:
    return _as(lambda v: np.array(v, kind), values)


def sequence(random: Random, valid: Any, length: int) -> Any:
    """Return a variant of ``valid``, a list of integers: one element replaced, or another kind of container."""
    values = list(valid) if isinstance(valid, list | tuple) else [1] * length
    turn = random.random()
    if turn < 0.2:
        return number(random)
    if turn < 0.7 and values:
        values[random.randrange(len(values))] = number(random)
    if turn < 0.5:
        return values
    return random.choice(_SEQUENCES)(values)


# ---------------------------------------------------------------- arrays


class Plain(np.ndarray):  # type: ignore[type-arg]
    """A subclass of ndarray that changes nothing."""


class Unit(np.ndarray):  # type: ignore[type-arg]
    """A subclass of ndarray with an attribute that results inherit."""

    unit: Any

    def __array_finalize__(self, other: Any) -> None:
        self.unit = getattr(other, "unit", "m")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **keywords: Any) -> Any:
        raise Planted("__array_ufunc__")


class HasArray:
    """An object that NumPy can convert to an array."""

    shape, ndim, dtype = (1, 1, 4), 3, np.dtype(np.float32)

    def __array__(self, *_: Any, **__: Any) -> Any:
        return np.ones(self.shape, np.float32)


class Shares:
    """An array of another library, by DLPack."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.array.__dlpack__(**keywords)


class BadDlpack:
    """An object that violates DLPack in one of several ways."""

    def __init__(self, device: Any, capsule: Any) -> None:
        self.device, self.capsule = device, capsule

    def __dlpack_device__(self) -> Any:
        return self.device

    def __dlpack__(self, **_: Any) -> Any:
        if isinstance(self.capsule, Exception):
            raise self.capsule
        return self.capsule

    def __repr__(self) -> str:
        return f"BadDlpack({self.device!r}, {self.capsule!r})"


class BadInterface:
    """An object that claims to be on a CUDA device."""

    __cuda_array_interface__: ClassVar = {"shape": (1, 1, 4), "typestr": "<f4", "data": (0, False), "version": 3}


NO_ARRAYS: tuple[Any, ...] = (
    *(None, 1, 1.5, "x", b"x", [], [[[1.0]]], (), {}, object(), np.float32(1), np.float64, np.ndarray, int),
    *(HasArray(), BadInterface(), BadInterface, memoryview(b"abc"), arrays.array("f", [1, 2]), Unprintable()),
    *(BadDlpack((1, 0), None), BadDlpack((1, 0), 5), BadDlpack((1, 0), RuntimeError("two\nlines")), BadDlpack(None, 1)),
    *(BadDlpack((7, 0), 1), BadDlpack((2, 0), 1), BadDlpack("ab", 1), BadDlpack((1, 0), BufferError(LONG))),
    *(np.ma.masked, np.ma.zeros((1, 1, 4)), np.random.default_rng(0), slice(1), Planted("x"), np.nditer(np.zeros(3))),
)
DTYPES: tuple[Any, ...] = (
    *("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "g", "c8", "c16", "G", "O", "M8[s]"),
    *("m8[D]", "S3", "U2", "V7", "T", ">f4", ">f8", ">f2", ">i8", ">c8", "<f4", "M8[D]", "S0", "U0", "V0"),
    *([("a", "f4"), ("b", "i4")], ("f4", (2,)), [("a\nb", "f4")], [("x" * 600, "f4")], {"names": [], "formats": []}),
    *(ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16).newbyteorder(">"), ml_dtypes.float8_e4m3fn, ml_dtypes.int4),
    *(ml_dtypes.float8_e5m2, ml_dtypes.uint4, ml_dtypes.float4_e2m1fn),
)


def _shape(random: Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return another shape: one axis more or less, or another extent."""
    turn, at = random.random(), random.randrange(len(shape) + 1)
    if turn < 0.15:
        return ()
    if turn < 0.3:
        return (*shape[:at], 1, *shape[at:])
    if turn < 0.45:
        return (*shape[:at], *shape[at + 1 :])
    if turn < 0.5:
        return (1,) * random.choice((1, 2, 20, 30, 33, 62, 64))
    extent = random.choice((0, 0, 1, 2, 3, 5, 17))
    return (*shape[:at], extent, *shape[at + 1 :])


def _overlapping(array: Any, random: Random) -> Any:
    strides = [random.choice((0, array.itemsize, -array.itemsize, stride)) for stride in array.strides]
    steps = [stride // array.itemsize * max(0, size - 1) for stride, size in zip(strides, array.shape, strict=True)]
    before, after = -sum(step for step in steps if step < 0), sum(step for step in steps if step > 0)
    strides = [stride // array.itemsize * array.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(np.ones(before + after + 1, array.dtype)[before:], array.shape, strides)


def _another_dtype(array: Any, random: Random) -> Any:
    with np.errstate(all="ignore"):
        return np.zeros(array.shape, np.dtype(random.choice(DTYPES)))


def _huge(array: Any, random: Random) -> Any:
    """Return an array of many elements with stride 0."""
    shape = list(array.shape)
    if not shape:
        return array
    shape[random.randrange(len(shape))] = random.choice((2**20, 2**31 - 1, 2**31, 2**33, 2**40, 2**55))
    try:
        return np.broadcast_to(np.ones((), array.dtype), shape)
    except ValueError:  # too large for NumPy
        return array


_ARRAYS: tuple[Callable[[Any, Random], Any], ...] = (
    _another_dtype,
    _another_dtype,
    lambda a, r: np.zeros(_shape(r, a.shape), a.dtype),
    lambda a, r: np.zeros(_shape(r, a.shape), a.dtype),
    _overlapping,
    _huge,
    lambda a, r: a.view(Plain),
    lambda a, r: a.view(Unit),
    lambda a, r: a.view(np.recarray),
    lambda a, r: np.ma.array(a),
    lambda a, r: a.T,
    lambda a, r: a.tolist() if a.dtype.kind in "fiu" else a,
    lambda a, r: Shares(a),
    lambda a, r: memoryview(a) if a.dtype.kind in "fiu" else a,
    lambda a, r: a.astype(object),
    lambda a, r: np.broadcast_to(a.reshape(-1)[:1].reshape((1,) * a.ndim), a.shape) if a.size else a,
    lambda a, r: _read_only(a),
    lambda a, r: random_choice(r, NO_ARRAYS),
    lambda a, r: random_choice(r, NO_ARRAYS),
)


def random_choice(random: Random, values: Any) -> Any:
    return random.choice(values)


def _read_only(array: Any) -> Any:
    array = array.copy()
    array.flags.writeable = False
    return array


def instead_of(array: Any, random: Random) -> Any:
    """Return something else in place of an array."""
    try:
        return random.choice(_ARRAYS)(array, random)
    except (TypeError, ValueError):  # NumPy cannot create it
        return random.choice(NO_ARRAYS)


_ACTIVATIONS: tuple[Any, ...] = (
    *(("relu",), ("relu", 1), ("clip",), ("clip", 1), ("clip", None, None), ("clip", 5, -5), ("leaky_relu", 10**400)),
    *((), (1,), ("clip", 1, 2, 3), ["relu"], ("leaky_relu", float("nan")), ("clip", float("-inf"), 1e400), ("a\nb", 1)),
    *(("leaky_relu", Fraction(1, 3)), ("leaky_relu", np.float16(2)), ("leaky_relu", "1"), ("clip", True, 1), (LONG,)),
    *(
        ("leaky_relu", 1e300), ("clip", Decimal(1), None), ("clip", 1j, None), (("relu",),), Text("relu"),
        ("relu",) * 500,
    ),
)  # fmt: skip


def activation(random: Random) -> Any:
    if random.random() < 0.5:
        return random.choice(_ACTIVATIONS)
    return ("clip", number(random), None) if random.random() < 0.3 else text(random)
