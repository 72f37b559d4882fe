"""Random arrays: values of every kind and dtype, in every memory layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from tests.oracle.strategies import Problem

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
CONV_DTYPES = (np.dtype("float16"), BFLOAT16, np.dtype("float32"), np.dtype("float64"))
POOL_DTYPES = (*CONV_DTYPES, np.dtype("int8"), np.dtype("uint8"))


def _limits(dtype: np.dtype[Any]) -> Any:
    return ml_dtypes.finfo(dtype) if dtype.kind not in "iu" else np.iinfo(dtype)


def _choice(generator: np.random.Generator, shape: tuple[int, ...], values: Sequence[float]) -> Any:
    return np.asarray(values, np.float64)[generator.integers(0, len(values), shape)]


def _nonfinite(generator: np.random.Generator, shape: tuple[int, ...]) -> Any:
    odd = _choice(generator, shape, (np.nan, np.inf, -np.inf))
    return np.where(generator.random(shape) < 0.15, odd, generator.integers(-2, 3, shape))


# Values in float64 from a generator g, a shape and the limits of the dtype; representable except "normal" and "small".
_KINDS: dict[str, Callable[[np.random.Generator, tuple[int, ...], Any], Any]] = {
    "normal": lambda g, shape, limits: g.standard_normal(shape),
    "small": lambda g, shape, limits: g.standard_normal(shape) * 2.0**-11,
    "integers": lambda g, shape, limits: g.integers(-4, 5, shape),
    "ties": lambda g, shape, limits: _choice(g, shape, (-1.0, 0.0, 1.0)),
    "zeros": lambda g, shape, limits: _choice(g, shape, (0.0, -0.0)),
    "subnormal": lambda g, shape, limits: g.integers(-9, 10, shape) * float(limits.smallest_subnormal),
    "large": lambda g, shape, limits: _choice(g, shape, (-1.0, 1.0, 0.5, -0.25)) * float(limits.max),
    "overflowing": lambda g, shape, limits: _choice(g, shape, (1.0, 0.5)) * float(limits.max),
    "nonfinite": lambda g, shape, limits: _nonfinite(g, shape),
    "lowest": lambda g, shape, limits: _choice(g, shape, (-np.inf, -np.inf, -np.inf, float(limits.min))),
    "any integer": lambda g, shape, limits: g.integers(limits.min, limits.max + 1, shape),
    "the ends": lambda g, shape, limits: _choice(g, shape, (limits.min, limits.max)),
}


def values(kind: str, seed: int, shape: tuple[int, ...], dtype: Any) -> Any:
    dtype = np.dtype(dtype)
    with np.errstate(all="ignore"):
        return _KINDS[kind](np.random.default_rng(seed), shape, _limits(dtype)).astype(dtype)


# Kinds of x, w and b whose sums are exact.
EXACT_KINDS = (("integers", "integers", "integers"), ("ties", "ties", "zeros"), ("zeros", "integers", "zeros"))
CONV_KINDS = (
    ("normal", "normal", "normal"),
    *EXACT_KINDS,
    ("nonfinite", "integers", "integers"),
    ("integers", "nonfinite", "integers"),
    ("integers", "integers", "nonfinite"),
    ("nonfinite", "nonfinite", "nonfinite"),
    ("subnormal", "integers", "subnormal"),
    ("integers", "subnormal", "zeros"),
    ("large", "small", "normal"),
    ("overflowing", "overflowing", "zeros"),
)
POOL_KINDS = ("normal", "ties", "zeros", "nonfinite", "lowest", "subnormal", "large", "integers")
INTEGER_KINDS = ("any integer", "the ends")


def pool_kinds(dtype: Any) -> tuple[str, ...]:
    return INTEGER_KINDS if np.dtype(dtype).kind in "iu" else POOL_KINDS


# ---------------------------------------------------------------- memory


def _strided(array: Any) -> Any:
    spread = np.zeros(tuple(2 * n + 1 for n in array.shape), array.dtype)
    view = spread[tuple(slice(1, 2 * n + 1, 2) for n in array.shape)]
    view[...] = array
    return view


def _reversed(array: Any) -> Any:
    backwards = (slice(None, None, -1),) * array.ndim
    return np.ascontiguousarray(array[backwards])[backwards]


def _channels_last(array: Any) -> Any:
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, min(1, array.ndim - 1), -1)), -1, min(1, array.ndim - 1))


def _unaligned(array: Any) -> Any:
    view = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def _strided_rows(array: Any) -> Any:
    """Rows are contiguous, but rows are not adjacent."""
    spread = np.zeros((*(2 * n for n in array.shape[:-1]), array.shape[-1] + 16), array.dtype)
    view = spread[(*(slice(0, 2 * n, 2) for n in array.shape[:-1]), slice(0, array.shape[-1]))]
    view[...] = array
    return view


def _off_the_vectors(array: Any) -> Any:
    """Contiguous, but starting one element after a 16-byte boundary, where NumPy's own arrays start."""
    view = np.zeros(array.size + 1, array.dtype)[1:].reshape(array.shape)
    view[...] = array
    return view


def _strided_pixels(array: Any) -> Any:
    """Channels are contiguous, and pixels are far enough apart that all channels fit whole vectors."""
    axis = min(1, array.ndim - 1)  # a bias has only channels
    return np.moveaxis(_strided_rows(np.moveaxis(array, axis, -1)), -1, axis)


def _pixels_off_the_vectors(array: Any) -> Any:
    """Channels last, starting one element after a 16-byte boundary."""
    axis = min(1, array.ndim - 1)
    return np.moveaxis(_off_the_vectors(np.moveaxis(array, axis, -1)), -1, axis)


def _read_only(array: Any) -> Any:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def _broadcast(array: Any) -> Any:
    """The first entry of the first axis, repeated with stride 0; its values differ from the array's."""
    return np.broadcast_to(array[:1], array.shape) if array.shape[0] else array


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "contiguous": lambda array: array,
    "fortran": np.asfortranarray,
    "strided": _strided,
    "reversed": _reversed,
    "channels last": _channels_last,
    "unaligned": _unaligned,
    "strided rows": _strided_rows,
    "off the vectors": _off_the_vectors,
    "strided pixels": _strided_pixels,
    "pixels off the vectors": _pixels_off_the_vectors,
    "read-only": _read_only,
    "broadcast": _broadcast,
}


def operands(problem: Problem, kinds: Sequence[str], seed: int, dtype: Any, layout: str = "contiguous") -> list[Any]:
    """Return x, w and b of a problem (None where it has none), or only x for pools."""
    return [
        None if shape is None else LAYOUTS[layout](values(kind, seed + i, shape, dtype))
        for i, (shape, kind) in enumerate(zip(problem.shapes, kinds, strict=False))
    ]


def filled(
    operator: str, x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any], dtype: Any
) -> tuple[list[Any], dict[str, Any]]:
    """Return x, w and b of small integers for a convolution of these shapes, and its attributes."""
    channels = w[0] if operator == "conv" else w[1] * attributes.get("group", 1)
    return [values("integers", seed, shape, dtype) for seed, shape in enumerate((x, w, (channels,)))], attributes


def with_channels_last(array: Any, shift: int = 0, more: int = 0) -> Any:
    """Return the array with channels last, ``shift`` elements into its memory and with ``more`` unused channels per
    pixel."""
    shape = (array.shape[0], *array.shape[2:], array.shape[1] + more)
    memory = np.zeros(prod(shape) + shift, array.dtype)[shift:].reshape(shape)
    view = np.moveaxis(memory[..., : array.shape[1]], -1, 1)
    view[...] = array
    return view


def complex_integers(seed: int, shape: tuple[int, ...], dtype: str) -> Any:
    generator = np.random.default_rng(seed)
    return (generator.integers(-5, 6, shape) + 1j * generator.integers(-5, 6, shape)).astype(dtype)
