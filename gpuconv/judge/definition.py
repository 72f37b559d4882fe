"""Conv, ConvTranspose, the pools and MaxUnpool by definition, in exact arithmetic.

This module computes the expected outputs of gpuconv's own tests and of ``gpuconv suite``. It enumerates instead of
using formulas: window positions are stepped through; Conv gathers the taps of each output; ConvTranspose scatters each
input into a full output and crops it; MaxPool compares the taps of a window one by one. It imports nothing from the
library and shares no formula with it, so that an error is only missed if it is made twice. Arguments are assumed to be
valid, except that a negative size raises ValueError.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Ints = Sequence[int]
Index = tuple[Any, ...]
Term = tuple[tuple[int, ...], tuple[list[int], ...], tuple[list[int], ...]]  # tap, input and output positions an axis

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# bits of the significand, exponent of the smallest subnormal, largest finite value
FORMATS = {
    "float16": (11, -24, 65504.0),
    "bfloat16": (8, -133, (2 - 2.0**-7) * 2.0**127),
    "float32": (24, -149, (2 - 2.0**-23) * 2.0**127),
    "float64": (53, -1074, (2 - 2.0**-52) * 2.0**1023),
}
# factor of u, and the multiple of S that is added for rounded factors
ARITHMETIC = {
    "ieee": (1, 0.0),
    "tensor cores": (2, 0.0),
    "tf32": (2, 2 * 2.0**-11),
    "3xtf32": (2, 2 * 2.0**-21),
}


@dataclass(frozen=True)
class Exact:
    """Sums of products, rounded once to float64.

    Attributes
    ----------
    value : float64 array, the exact sum rounded once; NaN and inf as IEEE arithmetic over the taps inside gives.
    magnitude : float64 array, S = sum |x||w| + |b|; inf where the value is NaN or made of an infinity.
    terms : K = C/group * prod(kernel) + 1.
    partial : float64 array, the largest magnitude of a partial sum: for averages S before the division; None means S.
    """

    value: Array
    magnitude: Array
    terms: int
    partial: Array | None = None


# ---------------------------------------------------------------- sizes, by walking


def _plain(auto_pad: str | bytes) -> str:
    text = auto_pad.decode() if isinstance(auto_pad, bytes) else auto_pad
    return text or "NOTSET"


def _checked(size: int, axis: int) -> int:
    if size < 0:
        raise ValueError(f"oracle: axis {axis} has the negative size {size}")
    return size


def _edge(fits: Callable[[int], bool]) -> int:
    """Return the largest number for which `fits` holds; it holds for all smaller ones."""
    number = 0
    while fits(number + 1):
        number += 1
    while not fits(number):
        number -= 1
    return number


def _deal(total: int, end_first: bool) -> int:
    """Split padding between both ends, element by element in turn; return the number at the beginning."""
    return sum(1 for turn in range(total) if (turn % 2 == 1) == end_first)


def _least(enough: Callable[[int], bool]) -> int:
    total = 0
    while not enough(total):
        total += 1
    return total


def _window_axis(n: int, reach: int, stride: int, pads: tuple[int, int], auto_pad: str, ceil: bool) -> tuple[int, int]:
    """Return the number of windows along one axis and the padding before the input."""
    if auto_pad.startswith("SAME"):
        out = len(range(0, n, stride))  # one window for each stride begun inside the input
        total = _least(lambda t: (out - 1) * stride + reach <= n + t)
        return out, _deal(total, end_first=auto_pad == "SAME_UPPER")
    begin, end = (0, 0) if auto_pad == "VALID" else pads
    extent = begin + n + end
    if not ceil:
        return _edge(lambda j: j * stride + reach <= extent) + 1, begin
    # The first window that reaches the end is the last one, unless it starts in the padding at the end.
    last = _edge(lambda j: (j - 1) * stride + reach < extent)
    return (last if last * stride >= begin + n else last + 1), begin


def _windows(
    spatial: Ints,
    kernel: Ints,
    auto_pad: str | bytes,
    dilations: Ints,
    pads: Ints,
    strides: Ints,
    ceil: bool = False,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the output size and the padding before the input of every axis."""
    rank = len(spatial)
    axes = [
        _window_axis(
            spatial[a],
            1 + sum(dilations[a] for _ in range(kernel[a] - 1)),
            strides[a],
            (pads[a], pads[a + rank]),
            _plain(auto_pad),
            ceil,
        )
        for a in range(rank)
    ]
    return tuple(_checked(out, a) for a, (out, _) in enumerate(axes)), tuple(begin for _, begin in axes)


def _gathered(spatial: Ints, out: Ints, begin: Ints, kernel: Ints, dilations: Ints, strides: Ints) -> Iterator[Term]:
    """Yield every tap in row-major order, with the input positions that it reads and their output positions."""
    for tap in np.ndindex(*kernel):
        axes = [
            [(o, o * s + t * d - p) for o in range(size) if 0 <= o * s + t * d - p < n]
            for n, size, p, t, d, s in zip(spatial, out, begin, tap, dilations, strides, strict=True)
        ]
        if all(axes):
            yield (
                tap,
                tuple([i for _, i in pairs] for pairs in axes),
                tuple([o for o, _ in pairs] for pairs in axes),
            )


def _scattered(spatial: Ints, kernel: Ints, dilations: Ints, strides: Ints) -> Iterator[Term]:
    """Yield every tap, with all input positions and the positions in the full output that they are added to."""
    if 0 in spatial:
        return
    for tap in np.ndindex(*kernel):
        inputs = tuple(list(range(n)) for n in spatial)
        landing = tuple(
            [i * s + t * d for i in places] for places, t, d, s in zip(inputs, tap, dilations, strides, strict=True)
        )
        yield tap, inputs, landing


# ---------------------------------------------------------------- exact sums


@dataclass(frozen=True)
class _Scaled:
    """Floats as integer multiples of 2**exponent (0 where not finite), together with their values in float64.

    The integers are int64 where that suffices, otherwise Python's.
    """

    units: Array
    exponent: int
    values: Array


def _scaled(array: Array) -> _Scaled:
    values = array.astype(np.float64)
    fraction, exponents = np.frexp(np.where(np.isfinite(values), values, 0.0))
    whole = (fraction * 2.0**53).astype(np.int64)
    lowest_bit = np.frexp((whole & -whole).astype(np.float64))[1] - 1
    exponents = exponents - 53
    exponent = int(np.min(np.where(whole == 0, 2000, exponents + lowest_bit), initial=2000))
    shift = np.where(whole == 0, 0, exponents - exponent)
    if shift.max(initial=0) <= 62 - 53:
        return _Scaled((whole << np.maximum(shift, 0)) >> np.maximum(-shift, 0), exponent, values)
    moved = [m << s if s >= 0 else m >> -s for m, s in zip(whole.ravel().tolist(), shift.ravel().tolist(), strict=True)]
    units = np.empty(len(moved), dtype=object)
    units[:] = moved
    return _Scaled(units.reshape(values.shape), exponent, values)


def _float(units: int, exponent: int) -> float:
    """Return units * 2**exponent, rounded once: Python rounds a quotient of integers correctly, subnormals too."""
    try:
        return float(units << exponent) if exponent >= 0 else units / (1 << -exponent)
    except OverflowError:
        return math.inf if units > 0 else -math.inf


def _floats(units: Array, exponent: int) -> Array:
    """Return units * 2**exponent of an array, rounded once; vectorised where nothing is rounded."""
    if _most(units) <= 2**53 and -1022 <= exponent <= 1023 - 53:
        return np.ldexp(units.astype(np.float64), exponent)
    values = [_float(int(each), exponent) for each in units.reshape(-1)]
    return np.array(values, dtype=np.float64).reshape(units.shape)


def _most(units: Array) -> int:
    if units.dtype == object:
        return max(map(abs, units.reshape(-1)), default=0)
    return int(np.abs(units).max(initial=0))


def _finer(units: Array, bits: int) -> Array:
    """Return units * 2**bits, in int64 where that holds the sum of two such numbers."""
    if units.dtype != object and _most(units) << bits < 2**62:
        return units << min(bits, 62)  # more only of zeros
    return units.astype(object) * (1 << bits)


@dataclass(frozen=True)
class _Sums:
    """Partial sums (N, M, *size): integer multiples of 2**exponent, NaN and infinities separately, and magnitudes."""

    units: Array
    exponent: int
    special: Array
    magnitude: Array

    def cropped(self, begin: Ints, size: Ints) -> _Sums:
        """Return `size` elements of each axis from `begin`; positions beyond the end are zero."""
        canvas = self.units.shape[2:]
        axes = [
            [(o, o + b) for o in range(n) if 0 <= o + b < full] for b, n, full in zip(begin, size, canvas, strict=True)
        ]

        def crop(full: Array) -> Array:
            part = np.zeros(full.shape[:2] + tuple(size), dtype=full.dtype)
            if all(axes):
                target: Index = (..., *np.ix_(*([o for o, _ in pairs] for pairs in axes)))
                source: Index = (..., *np.ix_(*([c for _, c in pairs] for pairs in axes)))
                part[target] = full[source]
            return part

        return _Sums(crop(self.units), self.exponent, crop(self.special), crop(self.magnitude))


def _product(x: Array, w: Array) -> Array:
    """Multiply x (N, C, *P) by w (M, C): the result has the shape (N, M, *P)."""
    return np.moveaxis(np.tensordot(w, x, axes=(1, 1)), 0, 1)


def _digits(units: Array, bits: int) -> Iterator[Array]:
    """Split integers into float64 digits of `bits` bits, the lowest first; all have the sign of the integer."""
    rest, sign = np.abs(units), np.sign(units)
    while True:
        yield (rest % 2**bits * sign).astype(np.float64)
        rest = rest >> bits
        if not rest.any():
            return


def _whole_product(x: Array, w: Array) -> Array:
    """Multiply integers exactly, by float64 products of digits whose sums float64 holds."""
    if x.dtype == np.float64:
        return _product(x, w)
    bits = (53 - x.shape[1].bit_length()) // 2
    sums: dict[int, Array] = {}  # by the weight of the digits
    for (i, first), (j, second) in itertools.product(*(enumerate([*_digits(each, bits)]) for each in (x, w))):
        sums[i + j] = sums.get(i + j, 0) + _product(first, second).astype(np.int64)
    return np.asarray(sum(part.astype(x.dtype) * 2 ** (bits * weight) for weight, part in sums.items()))


def _special_product(x: Array, w: Array) -> Array:
    """Sum in IEEE arithmetic only the products that contain a NaN or an infinity.

    The result follows from the number of products that are NaN, and from those that are infinite of either sign.
    """
    x_sign, w_sign = np.sign(np.nan_to_num(x)), np.sign(np.nan_to_num(w))
    x_infinite, w_infinite = np.isinf(x) * x_sign, np.isinf(w) * w_sign
    x_others, w_others = np.isfinite(x) * x_sign, np.isfinite(w) * w_sign
    x_nan, w_nan = np.isnan(x).astype(float), np.isnan(w).astype(float)
    nan = (
        *(_product(x_nan, np.ones_like(w)), _product(np.ones_like(x), w_nan)),
        *(_product(abs(x_infinite), (w == 0).astype(float)), _product((x == 0).astype(float), abs(w_infinite))),
    )
    pairs = ((x_infinite, w_infinite), (x_infinite, w_others), (x_others, w_infinite))
    balance = sum(_product(*pair) for pair in pairs)
    infinite: Any = sum(_product(abs(first), abs(second)) for first, second in pairs)
    with np.errstate(all="ignore"):
        return np.where(
            (sum(nan) > 0) | (abs(balance) < infinite), np.nan, np.where(infinite > 0, balance * np.inf, 0.0)
        )


def _working_type(x: _Scaled, w: _Scaled, terms: int) -> npt.DTypeLike:
    """Return the type of sums: float64 or int64 if all partial sums are exact in it, otherwise Python's integers."""
    most_x, most_w = _most(x.units), _most(w.units)
    largest = max(most_x * most_w * terms, most_x, most_w)
    if largest < 2**53:
        return np.float64
    return np.int64 if largest < 2**62 else object


def _summed(x: Array, w: Array, group: int, size: Ints, terms: Iterator[Term], count: int) -> _Sums:
    """Sum x (N, C, *D) times w (M, C/group, *k) over the terms into an array (N, M, *size)."""
    exact_x, exact_w = _scaled(x), _scaled(w)
    kind = _working_type(exact_x, exact_w, count)
    x_units, w_units = exact_x.units.astype(kind), exact_w.units.astype(kind)
    ordinary = bool(np.isfinite(exact_x.values).all() and np.isfinite(exact_w.values).all())
    size_x, size_w = (np.abs(np.nan_to_num(v, posinf=0, neginf=0)) for v in (exact_x.values, exact_w.values))
    m, c = w.shape[0] // group, w.shape[1]
    shape = (x.shape[0], group * m, *size)
    units, special, magnitude = np.zeros(shape, dtype=kind), np.zeros(shape), np.zeros(shape)
    for tap, inputs, outputs in terms:
        for g in range(group):
            source: Index = (slice(None), slice(g * c, g * c + c), *np.ix_(*inputs))
            target: Index = (slice(None), slice(g * m, g * m + m), *np.ix_(*outputs))
            weights: Index = (slice(g * m, g * m + m), slice(None), *tap)
            units[target] += _whole_product(x_units[source], w_units[weights])
            with np.errstate(all="ignore"):
                magnitude[target] += _product(size_x[source], size_w[weights])
                if not ordinary:
                    special[target] += _special_product(exact_x.values[source], exact_w.values[weights])
    whole = units if kind is object else units.astype(np.int64)
    return _Sums(whole, exact_x.exponent + exact_w.exponent, special, magnitude)


def _with_bias(sums: _Sums, b: Array | None, terms: int) -> Exact:
    shape = sums.units.shape
    bias = _scaled(np.zeros(shape[1]) if b is None else b)
    column = (1, -1) + (1,) * (len(shape) - 2)
    low = min(sums.exponent, bias.exponent)
    parts = (_finer(sums.units, sums.exponent - low), _finer(bias.units.reshape(column), bias.exponent - low))
    values = _floats(parts[0] + parts[1], low)
    odd_bias = np.where(np.isfinite(bias.values), 0.0, bias.values).reshape(column)
    with np.errstate(all="ignore"):
        special = sums.special + odd_bias
        magnitude = sums.magnitude + np.abs(bias.values).reshape(column)
    value = np.where(special == 0, values, special)
    return Exact(value, np.where(special == 0, magnitude, np.inf), terms)


# ---------------------------------------------------------------- the operators


def _defaults(rank: int, dilations: Ints | None, pads: Ints | None, strides: Ints | None) -> tuple[Ints, Ints, Ints]:
    ones = [1] * rank
    return (
        ones if dilations is None else dilations,
        [0] * (2 * rank) if pads is None else pads,
        ones if strides is None else strides,
    )


def conv(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    auto_pad: str | bytes = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Exact:
    """Compute Conv of x (N, C, *D) with w (M, C/group, *k), an optional bias b (M,) and ONNX's attributes."""
    spatial, kernel = x.shape[2:], w.shape[2:]
    dilations, pads, strides = _defaults(len(spatial), dilations, pads, strides)
    size, begin = _windows(spatial, kernel, auto_pad, dilations, pads, strides)
    terms = w.shape[1] * math.prod(kernel) + 1
    walk = _gathered(spatial, size, begin, kernel, dilations, strides)
    return _with_bias(_summed(x, w, group, size, walk, terms), b, terms)


def _transposed_axis(
    canvas: int, n: int, stride: int, pads: tuple[int, int], auto_pad: str, wanted: int | None
) -> tuple[int, int]:
    """Return the output size of one axis and the number of elements that are cropped before it."""
    if wanted is None and auto_pad.startswith("SAME"):
        wanted = n * stride
    if wanted is None:
        begin, end = (0, 0) if auto_pad == "VALID" else pads
        return canvas - begin - end, begin
    out = wanted
    total = _least(lambda t: canvas - t <= out)
    return out, _deal(total, end_first=auto_pad == "SAME_UPPER")


def conv_transpose(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    auto_pad: str | bytes = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    output_padding: Ints | None = None,
    output_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Exact:
    """Compute ConvTranspose of x (N, C, *D) with w (C, M/group, *k), an optional bias b (M,) and ONNX's attributes."""
    spatial, kernel = x.shape[2:], w.shape[2:]
    rank = len(spatial)
    dilations, pads, strides = _defaults(rank, dilations, pads, strides)
    extra = [0] * rank if output_padding is None else output_padding
    wanted = [None] * rank if output_shape is None else list(output_shape)[-rank:]
    full, sizes, begins = [], [], []
    for a, n in enumerate(spatial):
        first_end = 1 + sum(dilations[a] for _ in range(kernel[a] - 1))
        full.append(first_end + (n - 1) * strides[a])  # end of the full output; n = 0 steps back
        axis_pads = (pads[a], pads[a + rank])
        out, begin = _transposed_axis(full[a] + extra[a], n, strides[a], axis_pads, _plain(auto_pad), wanted[a])
        sizes.append(_checked(out, a))
        begins.append(begin)
    c = x.shape[1] // group
    turned = np.concatenate([np.swapaxes(w[g * c : g * c + c], 0, 1) for g in range(group)])  # (M, C/group, *k)
    terms = c * math.prod(kernel) + 1
    canvas = [max(0, size) for size in full]
    sums = _summed(x, turned, group, canvas, _scattered(spatial, kernel, dilations, strides), terms)
    return _with_bias(sums.cropped(begins, sizes), b, terms)


def _lowest_bits(dtype: np.dtype[Any], bits: np.dtype[Any]) -> int:
    if dtype.kind in "iu":
        lowest = np.array(np.iinfo(dtype).min, dtype=dtype)
    else:
        lowest = np.array(-FORMATS[dtype.name][2], dtype=np.float64).astype(dtype)
    return int(lowest.view(bits))


def max_pool(
    x: Array,
    *,
    kernel_shape: Ints,
    auto_pad: str | bytes = "NOTSET",
    ceil_mode: int = 0,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    storage_order: int = 0,
    strides: Ints | None = None,
) -> tuple[Array, Array]:
    """Compute MaxPool of x (N, C, *D) with ONNX's attributes: y, with the bits of the elements, and their indices."""
    spatial = x.shape[2:]
    dilations, pads, strides = _defaults(len(spatial), dilations, pads, strides)
    size, begin = _windows(spatial, kernel_shape, auto_pad, dilations, pads, strides, bool(ceil_mode))
    # Bits are moved as integers: no arithmetic can quieten a NaN on the way.
    x_bits = np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")
    x_values = x.astype(np.float64)
    numbers = np.arange(math.prod(spatial)).reshape(spatial, order="F" if storage_order else "C")
    y_bits = np.full(x.shape[:2] + size, _lowest_bits(x.dtype, x_bits.dtype), dtype=x_bits.dtype)
    best = np.full(y_bits.shape, -np.inf)
    places = np.full(y_bits.shape, -1, dtype=np.int64)
    for _, inputs, outputs in _gathered(spatial, size, begin, kernel_shape, dilations, strides):
        source: Index = (..., *np.ix_(*inputs))
        target: Index = (..., *np.ix_(*outputs))
        seen, now = x_values[source], best[target]
        first = places[target] < 0
        better = first | (~np.isnan(now) & (np.isnan(seen) | (seen > now)))
        best[target] = np.where(better, seen, now)
        y_bits[target] = np.where(better, x_bits[source], y_bits[target])
        places[target] = np.where(better, numbers[np.ix_(*inputs)], places[target])
    planes = np.arange(math.prod(x.shape[:2])).reshape(x.shape[:2] + (1,) * len(spatial))
    return y_bits.view(x.dtype), np.where(places < 0, -1, planes * math.prod(spatial) + places)


def counted_taps(
    spatial: Ints,
    kernel_shape: Ints,
    *,
    auto_pad: str | bytes = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    counted_pads: Ints | None = None,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """Return the divisor of every AveragePool window, an array (Q1, …, Qn), by testing each tap.

    With `counted_pads`, only that padding counts, although windows extend into all of `pads`.
    """
    rank = len(spatial)
    dilations, pads, strides = _defaults(rank, dilations, pads, strides)
    size, begin = _windows(spatial, kernel_shape, auto_pad, dilations, pads, strides, bool(ceil_mode))
    end = list((pads if counted_pads is None else counted_pads)[rank:])
    for a in range(rank):
        if _plain(auto_pad).startswith("SAME"):  # the padding of both sides that the last window needs
            reach = 1 + sum(dilations[a] for _ in range(kernel_shape[a] - 1))
            last = (size[a] - 1) * strides[a] + reach
            end[a] = len(range(spatial[a], last)) - begin[a]
    counts = np.zeros(size, np.int64)
    for q in np.ndindex(*size):
        for tap in np.ndindex(*kernel_shape):
            places = [q[a] * strides[a] + tap[a] * dilations[a] - begin[a] for a in range(rank)]
            around = [(begin[a], end[a]) if count_include_pad else (0, 0) for a in range(rank)]
            counts[q] += all(-b <= p < n + e for p, n, (b, e) in zip(places, spatial, around, strict=True))
    return counts


def average_pool(x: Array, *, kernel_shape: Ints, count_include_pad: int = 0, **attributes: Any) -> Exact:
    """Compute AveragePool of x (N, C, *D) with ONNX's attributes; NaN where no tap counts."""
    spatial, rank = x.shape[2:], x.ndim - 2
    counts = counted_taps(spatial, kernel_shape, count_include_pad=count_include_pad, **attributes)
    dilations, pads, strides = _defaults(rank, *(attributes.get(name) for name in ("dilations", "pads", "strides")))
    size, begin = _windows(
        spatial,
        kernel_shape,
        attributes.get("auto_pad", "NOTSET"),
        dilations,
        pads,
        strides,
        bool(attributes.get("ceil_mode", 0)),
    )
    planes = x.reshape(math.prod(x.shape[:2]), 1, *spatial)
    terms = math.prod(kernel_shape) + 1
    gathered = _gathered(spatial, size, begin, kernel_shape, dilations, strides)
    ones = np.ones((1, 1, *kernel_shape), x.dtype)
    sums = _with_bias(_summed(planes, ones, 1, size, gathered, terms), None, terms)
    with np.errstate(all="ignore"):
        value, partial = (part.reshape(*x.shape[:2], *size) for part in (sums.value, sums.magnitude))
        return Exact(value / counts, np.where(counts > 0, partial / counts, np.inf), terms, partial)


def max_unpool(
    x: Array,
    indices: Array,
    output_shape: Ints | None = None,
    *,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """Compute MaxUnpool of x (N, C, *Q): store each element at its index, in the shape that the attributes give.

    If `output_shape` is larger, zeros are added at the end. Of several elements with one index the last is stored; an
    element with the index -1 is skipped.
    """
    rank = x.ndim - 2
    _, pads, strides = _defaults(rank, None, pads, strides)
    axes = zip(x.shape[2:], kernel_shape, strides, pads[:rank], pads[rank:], strict=True)
    natural = (*x.shape[:2], *(s * (q - 1) + k - b - e for q, k, s, b, e in axes))
    flat = np.zeros(math.prod(natural), dtype=x.dtype)
    for index, element in zip(indices.ravel().tolist(), x.ravel(), strict=True):
        if index != -1:
            flat[index] = element
    if output_shape is None:
        return flat.reshape(natural)
    y = np.zeros(tuple(output_shape), dtype=x.dtype)
    y[tuple(slice(n) for n in natural)] = flat.reshape(natural)
    return y


# ---------------------------------------------------------------- comparing


def round_to(value: Array, dtype: npt.DTypeLike) -> Array:
    """Round float64 to `dtype` once, to nearest even; values beyond the largest finite one become infinities."""
    kind = np.dtype(dtype)
    if kind == np.float64:
        return np.asarray(value, dtype=np.float64)
    bits, smallest, largest = FORMATS[kind.name]
    with np.errstate(all="ignore"):
        exponents = np.frexp(value)[1]
        quantum = np.ldexp(1.0, np.maximum(exponents - bits, smallest))
        # Dividing by a power of two is exact here and rint rounds half to even.
        rounded = np.where(np.isfinite(value), np.rint(value / quantum) * quantum, value)
        kept = np.where(np.abs(rounded) > largest, np.copysign(np.inf, rounded), rounded)
        return np.asarray(kept, dtype=np.float64).astype(kind)


def accumulation_bound(exact: Exact, dtype: npt.DTypeLike, arithmetic: str) -> Array:
    often, more = ARITHMETIC[arithmetic]
    unit = 2.0**-53 if np.dtype(dtype) == np.float64 else 2.0**-24
    with np.errstate(invalid="ignore"):
        return np.asarray((exact.terms + 1) * often * unit * exact.magnitude + more * exact.magnitude)


def bound(exact: Exact, dtype: npt.DTypeLike, arithmetic: str = "ieee") -> Array:
    """Return the error bound of each element of a result of `dtype`: (K + 1)*u*S + u_out*|y*| + tiny.

    K is the number of products, S the sum of their magnitudes, u the accumulator's unit roundoff, u_out that of
    `dtype`, y* the exact value, and tiny half the smallest subnormal number. `arithmetic` is "ieee", "tensor cores"
    (2u for u), "tf32" or "3xtf32"; the rounded factors of the last two add a multiple of S.
    """
    bits, smallest, _ = FORMATS[np.dtype(dtype).name]
    u_out = 2.0**-bits if bits < 24 else 0.0
    tiny = 2.0 ** (smallest - 1)
    with np.errstate(all="ignore"):
        return np.asarray(accumulation_bound(exact, dtype, arithmetic) + u_out * np.abs(exact.value) + tiny)


def acceptable(actual: Array, exact: Exact, dtype: npt.DTypeLike, arithmetic: str) -> Array:
    value = exact.value
    accumulator = FORMATS["float64" if np.dtype(dtype) == np.float64 else "float32"][2]
    slack = np.where(np.isfinite(exact.magnitude), accumulation_bound(exact, dtype, arithmetic), 0.0)
    # Near the largest finite value the accumulator's error decides between that and infinity: both are right.
    low, high = (round_to(value + sign * slack, dtype).astype(np.float64) for sign in (-1, 1))
    within = np.isfinite(actual) & (np.abs(actual - value) <= bound(exact, dtype, arithmetic))
    finite = np.isfinite(low) | np.isfinite(high)
    infinite = np.isinf(actual) & ((actual == low) | (actual == high))
    nan = np.isnan(actual) & np.isnan(value)
    # A partial sum may overflow where the total does not; then any result of IEEE arithmetic is right.
    partial = exact.magnitude if exact.partial is None else exact.partial
    unbounded = np.isfinite(value) & (partial > accumulator)
    return np.asarray((within & finite) | infinite | nan | unbounded)
