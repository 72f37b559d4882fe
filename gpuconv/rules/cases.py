"""Named test problems with exact expected results, used by the tests, ``python -m gpuconv check`` and the benchmarks.

Each case pins down one sentence of the operators' rules. Inputs are computed by an integer hash of the element's
position, so they are the same on every platform. They are small integers (or a few special values) that all of the
case's dtypes represent exactly. The partial sums are exact as well, so one list of expected numbers serves all dtypes,
up to the final rounding (for AveragePool, that of the division).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

_Array = npt.NDArray[Any]

FLOATS = ("float16", "bfloat16", "float32", "float64")
ALL = (*FLOATS, "int8", "uint8")

# Per dtype: largest value, lowest value, smallest positive step.
_LIMITS: Mapping[str, tuple[float, float, float]] = {
    "float16": (65504.0, -65504.0, 2.0**-24),
    "bfloat16": ((2 - 2.0**-7) * 2.0**127, (2.0**-7 - 2) * 2.0**127, 2.0**-133),
    "float32": ((2 - 2.0**-23) * 2.0**127, (2.0**-23 - 2) * 2.0**127, 2.0**-149),
    "float64": ((2 - 2.0**-52) * 2.0**1023, (2.0**-52 - 2) * 2.0**1023, 2.0**-1074),
    "int8": (127, -128, 1),
    "uint8": (255, 0, 1),
}


@dataclass(frozen=True)
class Case:
    """A test problem: the call, how its inputs are generated, and the rule that it tests.

    Attributes
    ----------
    name : str
        Operator, rank and what is special, for example "conv/2d/a bias".
    op : {"conv", "conv_transpose", "max_pool", "average_pool"}
    x_shape, w_shape : tuple of int
        ``w_shape`` is None for pooling.
    bias : bool
        Whether there is a bias ``b`` of shape (M,).
    attributes : mapping
        Keywords of the public function; for MaxPool without ``return_indices``.
    values : str
        How inputs are filled: a key of ``_LITERALS``, or a name that ``_fill_x`` and its neighbours know.
    dtypes : tuple of str
        The dtypes to test.
    rule : str
        The sentence of the rules that the case tests.
    """

    name: str
    op: str
    x_shape: tuple[int, ...]
    w_shape: tuple[int, ...] | None
    bias: bool
    attributes: Mapping[str, Any]
    values: str
    dtypes: tuple[str, ...]
    rule: str


# ---------------------------------------------------------------- inputs


def _hash(shape: Sequence[int], salt: int) -> _Array:
    """Return pseudo-random integers below 2**32 from element positions, the same on every platform."""
    h = (np.arange(math.prod(shape), dtype=np.uint64) * 2654435761 + salt * 2246822519) & 0xFFFFFFFF
    h = ((h ^ (h >> 15)) * 2246822519) & 0xFFFFFFFF
    h = ((h ^ (h >> 13)) * 3266489917) & 0xFFFFFFFF
    return (h ^ (h >> 16)).astype(np.int64).reshape(tuple(shape))


def _integers(h: _Array) -> _Array:
    return (h % 17 - 8).astype(np.float64)


def _sprinkled(h: _Array, *special: float) -> _Array:
    """Return small integers, of which about a sixth is replaced by each special value."""
    values = _integers(h)
    for number, value in enumerate(special):
        values[(h >> 8) % 6 == number] = value
    return values


def _signs(shape: Sequence[int]) -> _Array:
    """Return 1 for even batch entries and -1 for odd ones, broadcastable to the shape."""
    return np.asarray((1.0 - np.arange(shape[0]) % 2 * 2).reshape(-1, *[1] * (len(shape) - 1)))


_ELSEWHERE = ("infinite weights", "nan weights", "infinite bias")  # the special values are in w or b, not in x


def _fill_x(kind: str, h: _Array, dtype: str) -> _Array:
    """Return x for a kind of values, as float64; ``h`` holds the hash of each element's position."""
    largest, lowest, step = _LIMITS[dtype]
    # shifts values of unsigned types to non-negative ones, keeping their order
    shift = 8.0 if dtype == "uint8" else 0.0
    position = np.arange(h.size).reshape(h.shape)
    fills: dict[str, Callable[[], Any]] = {
        "integers": lambda: _integers(h) + shift,
        "ones": lambda: np.ones(h.shape),
        "ties": lambda: h % 3 - 1.0 + shift,
        "all equal": lambda: np.full(h.shape, 3.0 + shift),
        "negative": lambda: -1.0 - h % 8 + shift,
        "ascending": lambda: position - 8.0 + shift,
        "descending": lambda: 100.0 - position + shift,
        "lowest": lambda: np.full(h.shape, lowest),
        "extremes": lambda: np.choose(h % 3, [lowest, largest, 1.0]),
        "subnormals": lambda: _integers(h) * step,
        "overflow": lambda: np.where(h % 3 == 0, _signs(h.shape) * largest / 2, _integers(h)),
        "zeros of both signs": lambda: np.choose(h % 4, [0.0, -0.0, -0.0, -1.0]),
        "negative zeros": lambda: np.choose(h % 2, [-0.0, -1.0]),
        "nan": lambda: _sprinkled(h, np.nan),
        "all nan": lambda: np.full(h.shape, np.nan),
        "infinities": lambda: _sprinkled(h, np.inf, -np.inf),
        "plus infinity": lambda: np.where(_integers(h) == 0, np.inf, np.abs(_integers(h)) + 1),
        "minus infinity": lambda: np.full(h.shape, -np.inf),
        "minus infinity or nan": lambda: np.where(h % 4 == 0, np.nan, -np.inf),
        "minus infinity or lowest": lambda: np.where(h % 2 == 0, lowest, -np.inf),
    }
    return np.asarray(fills["integers" if kind in _ELSEWHERE else kind]())


def _fill_w(kind: str, h: _Array) -> _Array:
    """Return w for a kind of values, as float64."""
    if kind == "ones":
        return np.ones(h.shape)
    if kind == "subnormals":
        return h % 3 - 1.0  # products are then subnormal as well, and exact
    if kind == "overflow":
        return h % 3 * 1.0  # three halves of the largest value overflow in any order, because all have the same sign
    if kind == "infinite weights":
        return _sprinkled(h, np.inf)
    if kind == "nan weights":
        return _sprinkled(h, np.nan)
    if kind == "plus infinity":
        return np.abs(_integers(h)) + 1
    return _integers(h)


def _fill_b(kind: str, h: _Array, dtype: str) -> _Array:
    """Return the bias for a kind of values, as float64."""
    if kind == "infinite bias":
        return _sprinkled(h, np.inf, -np.inf, np.nan)
    return _integers(h) * (_LIMITS[dtype][2] if kind == "subnormals" else 1.0)


_BF16_MAX = _LIMITS["bfloat16"][0]
# x, w and b in full, each repeated to fill its shape: patterns that reveal how a sum was computed.
_LITERALS: Mapping[str, tuple[list[float], list[float], list[float]]] = {
    "2048 then ones": ([2048.0, *[1.0] * 64], [1.0], [0.0]),
    "256 then ones": ([256.0, *[1.0] * 32], [1.0], [0.0]),
    "2^24 - 64 then ones": ([2.0**24 - 64, *[1.0] * 64], [1.0], [0.0]),
    "x is 1 + 2^-12": ([1 + 2.0**-12], [1.0], [0.0]),
    "w is 1 + 2^-12": ([1.0], [1 + 2.0**-12], [0.0]),
    "2049 2051 2053 2055": ([2048.0, 1.0, 2048.0, 3.0, 2048.0, 5.0, 2048.0, 7.0], [1.0], [0.0]),
    "257 259 261 263": ([256.0, 1.0, 256.0, 3.0, 256.0, 5.0, 256.0, 7.0], [1.0], [0.0]),
    "2048 + 1 and a bias of 1": ([2048.0, 1.0], [1.0], [1.0]),
    "256 + 1 and a bias of 1": ([256.0, 1.0], [1.0], [1.0]),
    "beside 65520": ([65504.0, 15.0, 65504.0, 16.0, -65504.0, -15.0, -65504.0, -16.0], [1.0], [0.0]),
    "65504 twice, back once": ([65504.0, 65504.0, -65504.0], [1.0], [0.0]),
    "beside bfloat16's largest": (
        [_BF16_MAX, 2.0**118, _BF16_MAX, 2.0**119, -_BF16_MAX, -(2.0**118), -_BF16_MAX, -(2.0**119)],
        [1.0],
        [0.0],
    ),
    "float16 steps of 2^-24": ([2.0**-12, 3 * 2.0**-13, 5 * 2.0**-13], [2.0**-13], [0.0]),
}


def _type(dtype: str) -> np.dtype[Any]:
    if dtype == "bfloat16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(dtype)


def _name(dtype: npt.DTypeLike) -> str:
    return dtype if isinstance(dtype, str) else np.dtype(dtype).name


def _shapes(case: Case) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a case's arrays by name."""
    shapes = {"x": case.x_shape}
    if case.w_shape is not None:
        shapes["w"] = case.w_shape
    if case.bias and case.w_shape is not None:
        transposed = case.op == "conv_transpose"
        shapes["b"] = (case.w_shape[1] * case.attributes.get("group", 1) if transposed else case.w_shape[0],)
    return shapes


def _payloads(h: _Array, dtype: str) -> _Array:
    """Return small integers, of which a quarter is NaN, with both signs and different payloads."""
    kind = _type(dtype)
    values = _integers(h).astype(kind)
    bits = values.view(f"u{kind.itemsize}")
    plain = np.array(np.abs(np.float32(np.nan))).astype(kind).view(bits.dtype)
    nan = h % 4 == 0
    sign, payload = (h[nan] >> 16) % 2, (h[nan] >> 8) % 31 + 1
    bits[nan] = plain | payload.astype(bits.dtype) | (sign.astype(bits.dtype) << (8 * kind.itemsize - 1))
    return values


def inputs(case: Case, dtype: npt.DTypeLike) -> dict[str, _Array]:
    """Generate the arrays of a case: "x", and "w" and "b" if it has them.

    Parameters
    ----------
    case : Case
    dtype : str or dtype
        One of ``case.dtypes``.

    Returns
    -------
    dict of str to array
        The same on every platform.
    """
    name = _name(dtype)
    shapes = _shapes(case)
    if case.values in _LITERALS:
        parts = dict(zip("xwb", _LITERALS[case.values], strict=True))
        return {key: np.resize(np.array(parts[key]), shape).astype(_type(name)) for key, shape in shapes.items()}
    hashes = {key: _hash(shape, "xwb".index(key) + 1) for key, shape in shapes.items()}
    if case.values == "nan payloads":
        return {"x": _payloads(hashes["x"], name)}
    filled = {"x": _fill_x(case.values, hashes["x"], name)}
    if "w" in hashes:
        filled["w"] = _fill_w(case.values, hashes["w"])
    if "b" in hashes:
        filled["b"] = _fill_b(case.values, hashes["b"], name)
    return {key: values.astype(_type(name)) for key, values in filled.items()}


# ---------------------------------------------------------------- expected results


@functools.cache
def _stored() -> dict[str, _Array]:
    """Return the expected results by case name: sums for convolutions and averages, Indices for MaxPool."""
    with (resources.files("gpuconv") / "rules" / "expected.npz").open("rb") as file, np.load(file) as archive:
        return dict(archive)


def unit(case: Case, dtype: npt.DTypeLike) -> float:
    """Return the unit of a case's stored sums: the smallest subnormal if its values are subnormal, else 1."""
    return _LIMITS[_name(dtype)][2] if case.values == "subnormals" else 1.0


def _elements(case: Case, x: _Array, indices: _Array) -> _Array:
    """Return the elements of x at Indices; the dtype's lowest finite value where the index is -1."""
    # storage_order 1 numbers a plane with its first axis fastest, which is C order of the reversed axes.
    spatial = range(2, x.ndim)
    order = spatial if case.attributes.get("storage_order", 0) == 0 else reversed(spatial)
    flat = x.transpose(0, 1, *order).reshape(-1)
    lowest = np.array(_LIMITS[x.dtype.name][1]).astype(x.dtype)
    y = np.full(indices.shape, lowest, dtype=x.dtype)
    y[indices >= 0] = flat[indices[indices >= 0]]
    return y


def expected(case: Case, dtype: npt.DTypeLike) -> tuple[_Array, ...]:
    """Return the expected results of a case in `dtype`.

    Parameters
    ----------
    case : Case
    dtype : str or dtype
        One of ``case.dtypes``.

    Returns
    -------
    tuple of array
        ``(y,)``, or for MaxPool ``(y, indices)``, where y is bit-identical to the elements at the indices.
    """
    stored = _stored()[case.name]
    if case.op == "max_pool":
        indices = stored.astype(np.int64)
        return _elements(case, inputs(case, dtype)["x"], indices), indices
    exact = stored.astype(np.float64) * unit(case, dtype)
    name = _name(dtype)
    with np.errstate(over="ignore"):
        # Cast to bfloat16 from float32, which represents every stored sum exactly, to avoid double rounding.
        wide = exact.astype(np.float32) if name == "bfloat16" else exact
        return (wide.astype(_type(name)),)


# ---------------------------------------------------------------- the rules


_FORMULA = "Geometry is computed in Python integers with floor division, never in floats, never with C truncation."
_SAME = "SAME_UPPER/SAME_LOWER: out = ceil(n/s), total = max(0, (out-1)*s + ek - n)."
_ODD_SAME = "SAME: UPPER puts the odd element at the end, LOWER at the beginning."
_SAME_DILATED = "SAME: the dilated kernel counts."
_ZERO_PADS = "pads given together with an auto_pad are ignored where all of them are 0."
_AUTO_PAD_TEXT = 'auto_pad: "" and bytes are accepted as their plain meaning.'
_EMPTY = "A size-0 output: an empty array of the right shape."
_BIG_PADS = "pads >= kernel are legal."
_KERNEL = "kernel_shape missing: from W; given, it equals W.shape[2:]."
_BIAS = "Bias has shape (M,) exactly; None means none."
_NOTHING = "Batch 0, channel 0, M 0, an empty spatial axis: the formulas as they are; a sum over nothing is the bias."
_ONCE = "float16 and bfloat16 accumulate in float32, add the bias in float32, round once to nearest even."
_NO_TF32 = "float32 accumulates in float32 with IEEE products (no TF32)."
_SUBNORMAL = "Subnormals are kept, not flushed."
_OVERFLOW = "Overflow on the final rounding to float16/bfloat16 gives infinity, without a warning."
_RANKS = "The same rule holds for every rank (1-D to N-D spatial)."
_EXACT = "Where every partial sum is an integer with S <= 2^24, the result is exact before its one final rounding."
_IEEE = "Where a NaN or inf enters a window: NaN or inf as IEEE arithmetic over the taps inside the input gives."
_PADDING = "Padding is never multiplied: an infinite or NaN weight on padding gives nothing."

_LAYOUT = "Conv: X (N, C, D1..Dn), W (M, C/group, k1..kn), C = W.shape[1]*group, M divisible by group."

_T_LAYOUT = "ConvTranspose: W (C, M/group, k1..kn), M = W.shape[1]*group, C divisible by group."
_GATHER = "The gradient of Conv with respect to its input: each output sums the inputs that reach it."
_NATURAL = "ConvTranspose sizes: natural = s*(n-1) + output_padding + ek - pads."
_OUTPUT_PADDING = "output_padding must be 0 or < max(s, d)."
_ODD = "Odd total padding: only SAME_UPPER puts the smaller half first; NOTSET, VALID and SAME_LOWER the larger half."
_OUTPUT_SHAPE = "output_shape given: pads ignored, total = max(0, s*(n-1) + output_padding + ek - output_shape)."
_EXCESS = "Where output_shape is larger than natural, the excess (bias only) stands at the end."
_WITH_NC = "output_shape is accepted with or without the N and C entries (the first two are then ignored)."
_BELOW_INPUT = "output_shape smaller than the input is legal."
_T_SAME = "SAME without output_shape: out = n*s always; a shortage or excess follows the rules of output_shape."

_CLIPPED = "Padding never takes part: windows are clipped to the input, no pad value exists."
_NAN = "NaN propagates; its index is that of the first NaN."
_TIES = "Ties: the first in row-major window order (first axis outermost)."
_ZEROS = "+0 and -0 are equal, so the first one has the index."
_TINY = "Subnormals compare exactly."
_BITS = "With Indices, Y is the element at its index, bit for bit (sign of zero included)."
_MINUS_INF = "A window of -inf only gives -inf."
_NO_ELEMENT = "A window with no element: the dtype's lowest finite value (0 for uint8, -128 for int8), index -1."
_INDICES = "Indices: int64, over the whole tensor, (n*C + c)*prod(spatial) + offset in the plane; padding not counted."
_COLUMNS = "storage_order=1: column-major over the spatial axes only (h + w*H, + d*H*W), the N*C offset unchanged."
_CEIL = "ceil_mode: out = ceil((n + pads - ek)/s) + 1."
_DROPPED = "ceil_mode: the last window is dropped if (out-1)*s >= n + pad_begin."
_CEIL_VALID = "ceil_mode applies with VALID too."
_CEIL_SAME = "With SAME, ceil_mode changes nothing."


_INSIDE = "AveragePool: the sum of the taps inside the input, divided by their number."
_WITH_PADS = "count_include_pad=1: taps in [-pad_begin, n + pad_end) count."
_OVERHANG = "What ceil_mode lets the last window have beyond the pads never counts."
_NO_TAP = "A window in which no tap counts gives NaN."


# ---------------------------------------------------------------- the cases


def _title(op: str, x: Sequence[int], title: str) -> str:
    return f"{op}/{len(x) - 2}d/{title}"


def _conv(
    title: str,
    x: tuple[int, ...],
    w: tuple[int, ...],
    rule: str,
    *,
    bias: bool = True,
    values: str = "integers",
    dtypes: tuple[str, ...] = FLOATS,
    **attributes: Any,
) -> Case:
    """Return a case of Conv."""
    return Case(_title("conv", x, title), "conv", x, w, bias, attributes, values, dtypes, rule)


def _transposed(
    title: str,
    x: tuple[int, ...],
    w: tuple[int, ...],
    rule: str,
    *,
    bias: bool = True,
    values: str = "integers",
    dtypes: tuple[str, ...] = FLOATS,
    **attributes: Any,
) -> Case:
    """Return a case of ConvTranspose."""
    name = _title("conv_transpose", x, title)
    return Case(name, "conv_transpose", x, w, bias, attributes, values, dtypes, rule)


def _pool(
    title: str,
    x: tuple[int, ...],
    kernel: list[int],
    rule: str,
    *,
    values: str = "integers",
    dtypes: tuple[str, ...] = ALL,
    **attributes: Any,
) -> Case:
    """Return a case of MaxPool."""
    keywords = {"kernel_shape": kernel, **attributes}
    return Case(_title("max_pool", x, title), "max_pool", x, None, False, keywords, values, dtypes, rule)


def _average(
    title: str,
    x: tuple[int, ...],
    kernel: list[int],
    rule: str,
    *,
    values: str = "integers",
    dtypes: tuple[str, ...] = FLOATS,
    **attributes: Any,
) -> Case:
    """Return a case of AveragePool."""
    keywords = {"kernel_shape": kernel, **attributes}
    return Case(_title("average_pool", x, title), "average_pool", x, None, False, keywords, values, dtypes, rule)


_CONV = (
    # shapes and layout
    _conv("one element", (1, 1, 1), (1, 1, 1), _LAYOUT, bias=False),
    _conv("plain", (2, 3, 10), (4, 3, 3), _LAYOUT, bias=False),
    _conv("a bias", (2, 3, 10), (4, 3, 3), _BIAS),
    _conv("a long axis", (1, 2, 300), (3, 2, 5), _LAYOUT, pads=[2, 2]),
    _conv("two groups", (2, 4, 9), (6, 2, 3), _LAYOUT, group=2),
    _conv("asymmetric pads", (1, 2, 7), (3, 2, 4), _FORMULA, pads=[2, 1]),
    _conv("an even kernel", (1, 2, 8), (3, 2, 2), _FORMULA),
    _conv("stride above the kernel", (1, 2, 11), (3, 2, 2), _FORMULA, strides=[3]),
    _conv("stride that leaves a rest", (1, 2, 10), (3, 2, 3), _FORMULA, strides=[4]),
    _conv("stride above the input", (1, 2, 5), (3, 2, 3), _FORMULA, strides=[9]),
    _conv("dilation", (1, 2, 12), (3, 2, 3), _FORMULA, dilations=[3]),
    _conv("a dilated window around the whole input", (1, 2, 3), (3, 2, 2), _FORMULA, dilations=[4], pads=[1, 1]),
    _conv("a window too long by less than the stride", (1, 2, 2), (3, 2, 3), _FORMULA, strides=[2]),
    _conv("a window too long by the whole stride", (1, 2, 2), (3, 2, 4), _EMPTY, strides=[2]),
    _conv("plain", (2, 3, 6, 9), (4, 3, 3, 3), _LAYOUT, bias=False),
    _conv("a bias", (2, 3, 6, 9), (4, 3, 3, 3), _BIAS),
    _conv("height and width differ, so do the kernel's", (1, 2, 5, 11), (3, 2, 2, 5), _LAYOUT),
    _conv("kernel_shape given", (1, 2, 5, 6), (3, 2, 3, 2), _KERNEL, kernel_shape=[3, 2]),
    _conv("all defaults spelled out", (1, 2, 5, 6), (3, 2, 3, 2), _KERNEL, auto_pad="NOTSET", dilations=[1, 1],
          group=1, kernel_shape=[3, 2], pads=[0, 0, 0, 0], strides=[1, 1]),
    _conv("counting the taps inside", (1, 1, 5, 5), (1, 1, 3, 3), _PADDING, values="ones", pads=[1, 1, 1, 1],
          bias=False),
    _conv("1x1", (2, 5, 4, 6), (7, 5, 1, 1), _LAYOUT),
    _conv("1x1 with stride", (1, 5, 7, 6), (4, 5, 1, 1), _FORMULA, strides=[2, 3]),
    _conv("1x1 with pads", (1, 3, 4, 4), (4, 3, 1, 1), _BIG_PADS, pads=[1, 0, 2, 1]),
    _conv("kernel equal to the stride", (1, 3, 8, 12), (4, 3, 4, 4), _FORMULA, strides=[4, 4]),
    _conv("kernel equal to the input", (2, 3, 5, 4), (6, 3, 5, 4), _FORMULA),
    _conv("asymmetric pads, unequal strides and dilations", (2, 3, 9, 11), (4, 3, 3, 2), _FORMULA, pads=[2, 0, 1, 3],
          strides=[2, 3], dilations=[1, 2]),
    _conv("pads of four different sizes", (1, 2, 6, 5), (3, 2, 3, 3), _FORMULA, pads=[0, 1, 2, 3]),
    _conv("dilation beyond the input, with pads", (1, 2, 5, 6), (3, 2, 3, 3), _FORMULA, dilations=[4, 5],
          pads=[2, 3, 3, 2]),
    _conv("a dilation that shares a factor with the stride", (1, 2, 12, 13), (3, 2, 3, 3), _FORMULA, strides=[2, 4],
          dilations=[2, 6], pads=[1, 2, 1, 3]),
    _conv("a stem: three channels, 7x7, stride 2", (1, 3, 16, 16), (8, 3, 7, 7), _EXACT, strides=[2, 2],
          pads=[3, 3, 3, 3], bias=False),
    _conv("a patch embedding: three channels, kernel 8, stride 8", (1, 3, 16, 24), (10, 3, 8, 8), _EXACT,
          strides=[8, 8]),
    _conv("a large kernel", (1, 2, 13, 12), (2, 2, 11, 9), _EXACT, pads=[5, 4, 5, 4]),
    _conv("a kernel of 31 in one axis", (1, 2, 3, 33), (2, 2, 1, 31), _EXACT, pads=[0, 15, 0, 15]),
    _conv("one output channel", (2, 6, 7, 7), (1, 6, 3, 3), _LAYOUT, pads=[1, 1, 1, 1]),
    _conv("two output channels of many inputs", (1, 40, 5, 5), (2, 40, 3, 3), _EXACT, pads=[1, 1, 1, 1]),
    _conv("300 output channels", (1, 4, 4, 4), (300, 4, 3, 3), _EXACT, pads=[1, 1, 1, 1]),
    _conv("130 output channels in each of two groups", (1, 6, 3, 3), (260, 3, 2, 2), _EXACT, group=2),
    _conv("338 pixels in a batch of two", (2, 3, 13, 13), (5, 3, 3, 3), _EXACT, pads=[1, 1, 1, 1]),
    _conv("a sum of 630 terms", (1, 70, 4, 5), (3, 70, 3, 3), _EXACT, pads=[1, 1, 1, 1]),
    _conv("32 channels each way", (1, 32, 5, 5), (32, 32, 3, 3), _EXACT, pads=[1, 1, 1, 1]),
    _conv("17 channels each way", (3, 17, 4, 4), (17, 17, 3, 3), _EXACT, pads=[1, 1, 1, 1]),
    _conv("a batch of nine", (9, 2, 4, 3), (3, 2, 2, 2), _LAYOUT),
    _conv("plain", (1, 2, 4, 5, 6), (3, 2, 3, 2, 3), _RANKS),
    _conv("asymmetric pads, unequal strides and dilations", (2, 2, 5, 6, 7), (3, 2, 2, 3, 2), _RANKS,
          pads=[1, 0, 2, 0, 1, 1], strides=[1, 2, 3], dilations=[2, 1, 2]),
    _conv("groups, strides and pads", (1, 4, 4, 5, 6), (6, 2, 3, 3, 3), _RANKS, group=2, strides=[2, 1, 2],
          pads=[1, 1, 1, 1, 1, 1]),
    _conv("SAME_LOWER with dilation", (1, 2, 4, 5, 3), (3, 2, 2, 2, 2), _RANKS, auto_pad="SAME_LOWER",
          dilations=[1, 2, 3], strides=[1, 2, 1]),
    _conv("unequal everything", (1, 2, 3, 4, 3, 5), (3, 2, 2, 3, 1, 2), _RANKS, pads=[1, 0, 0, 1, 0, 1, 1, 0],
          strides=[1, 2, 1, 2], dilations=[1, 1, 1, 2]),
    _conv("unequal everything", (1, 2, 3, 2, 3, 2, 4), (2, 2, 2, 1, 2, 2, 3), _RANKS,
          pads=[1, 0, 0, 1, 1, 0, 0, 1, 0, 0], strides=[1, 1, 2, 1, 2], dilations=[2, 1, 1, 1, 1]),
    # groups
    _conv("three groups", (2, 6, 5, 6), (9, 2, 3, 3), _LAYOUT, group=3, pads=[1, 1, 1, 1]),
    _conv("groups of unequal width in and out", (1, 8, 5, 5), (4, 4, 3, 3), _LAYOUT, group=2),
    _conv("depthwise", (2, 5, 6, 7), (5, 1, 3, 3), _LAYOUT, group=5, pads=[1, 1, 1, 1]),
    _conv("depthwise with three outputs a channel", (1, 4, 6, 5), (12, 1, 3, 3), _LAYOUT, group=4, strides=[2, 1]),
    _conv("depthwise, dilated, stride 2", (1, 6, 9, 9), (6, 1, 3, 3), _LAYOUT, group=6, dilations=[2, 2],
          strides=[2, 2], pads=[2, 2, 2, 2]),
    _conv("depthwise with kernel 5, stride 1, 40 channels", (1, 40, 5, 4), (40, 1, 5, 5), _LAYOUT, group=40,
          pads=[2, 2, 2, 2]),
    _conv("depthwise", (2, 5, 20), (5, 1, 4), _LAYOUT, group=5, pads=[3, 0]),
    _conv("depthwise", (1, 3, 4, 4, 4), (6, 1, 2, 3, 2), _LAYOUT, group=3),
    _conv("1x1 in four groups", (1, 8, 3, 5), (12, 2, 1, 1), _LAYOUT, group=4),
    # auto_pad
    _conv("SAME_UPPER with an odd total", (1, 2, 7), (3, 2, 4), _ODD_SAME, auto_pad="SAME_UPPER"),
    _conv("SAME_LOWER with an odd total", (1, 2, 7), (3, 2, 4), _ODD_SAME, auto_pad="SAME_LOWER"),
    _conv("SAME_UPPER with stride below the kernel", (1, 2, 8), (3, 2, 5), _SAME, auto_pad="SAME_UPPER", strides=[3]),
    _conv("SAME_LOWER with stride above the kernel", (1, 2, 8), (3, 2, 2), _SAME, auto_pad="SAME_LOWER", strides=[3]),
    _conv("SAME_UPPER with stride above the input", (1, 2, 3), (3, 2, 4), _SAME, auto_pad="SAME_UPPER", strides=[5]),
    _conv("SAME_UPPER with an odd total and dilation", (1, 2, 9), (3, 2, 2), _SAME_DILATED, auto_pad="SAME_UPPER",
          dilations=[3]),
    _conv("SAME_LOWER with an odd total and dilation", (1, 2, 9), (3, 2, 2), _SAME_DILATED, auto_pad="SAME_LOWER",
          dilations=[3]),
    _conv("SAME_UPPER", (1, 2, 5, 6), (3, 2, 3, 3), _SAME, auto_pad="SAME_UPPER"),
    _conv("SAME_UPPER, even kernels and strides", (1, 2, 7, 8), (3, 2, 4, 2), _ODD_SAME, auto_pad="SAME_UPPER",
          strides=[2, 1]),
    _conv("SAME_LOWER, even kernels and strides", (1, 2, 7, 8), (3, 2, 4, 2), _ODD_SAME, auto_pad="SAME_LOWER",
          strides=[2, 1]),
    _conv("SAME_UPPER, dilated with stride", (1, 2, 8, 9), (3, 2, 3, 2), _SAME_DILATED, auto_pad="SAME_UPPER",
          strides=[2, 3], dilations=[2, 4]),
    _conv("SAME_LOWER, dilated with stride", (1, 2, 8, 9), (3, 2, 3, 2), _SAME_DILATED, auto_pad="SAME_LOWER",
          strides=[2, 3], dilations=[2, 4]),
    _conv("VALID", (1, 2, 6, 7), (3, 2, 3, 2), _FORMULA, auto_pad="VALID", strides=[2, 2]),
    _conv("SAME_UPPER with pads of zeros", (1, 2, 5, 6), (3, 2, 2, 2), _ZERO_PADS, auto_pad="SAME_UPPER",
          pads=[0, 0, 0, 0]),
    _conv("auto_pad of no letters", (1, 2, 5, 6), (3, 2, 2, 2), _AUTO_PAD_TEXT, auto_pad="", pads=[1, 0, 0, 1]),
    _conv("auto_pad in bytes", (1, 2, 5, 6), (3, 2, 2, 2), _AUTO_PAD_TEXT, auto_pad=b"SAME_LOWER"),
    # pads beyond the kernel, nothing to sum
    _conv("pads beyond the kernel", (1, 2, 4), (3, 2, 3), _BIG_PADS, pads=[4, 5]),
    _conv("pads beyond the kernel", (1, 2, 3, 2), (3, 2, 2, 3), _BIG_PADS, pads=[3, 4, 2, 5], strides=[2, 1]),
    _conv("an output of size 0", (2, 3, 4, 2), (5, 3, 3, 3), _EMPTY),
    _conv("batch 0", (0, 3, 5, 5), (4, 3, 3, 3), _NOTHING),
    _conv("channel 0", (2, 0, 5, 4), (3, 0, 3, 3), _NOTHING),
    _conv("channel 0 without a bias", (2, 0, 5, 4), (3, 0, 3, 3), _NOTHING, bias=False),
    _conv("M 0", (2, 3, 5, 5), (0, 3, 3, 3), _NOTHING),
    _conv("M 0 in three groups", (2, 3, 5, 5), (0, 1, 3, 3), _NOTHING, group=3),
    _conv("an empty axis", (1, 2, 0), (3, 2, 1), _NOTHING),
    _conv("an empty axis with pads is bias only", (1, 2, 0), (3, 2, 3), _NOTHING, pads=[2, 2]),
    _conv("an empty axis with pads is bias only", (2, 2, 3, 0), (3, 2, 2, 3), _NOTHING, pads=[0, 2, 1, 1]),
    _conv("an empty axis with SAME_UPPER", (1, 2, 0, 4), (3, 2, 3, 3), _NOTHING, auto_pad="SAME_UPPER"),
    # arithmetic
    _conv("2048 and 64 ones", (1, 65, 1, 1), (1, 65, 1, 1), _ONCE, values="2048 then ones", bias=False),
    _conv("2048 and 64 ones along the taps", (1, 1, 65), (1, 1, 65), _ONCE, values="2048 then ones", bias=False),
    _conv("256 and 32 ones", (1, 33, 1, 1), (1, 33, 1, 1), _ONCE, values="256 then ones", bias=False),
    _conv("256 and 32 ones along the taps", (1, 1, 33), (1, 1, 33), _ONCE, values="256 then ones", bias=False),
    _conv("up to 2^24 in ones", (1, 65, 1), (1, 65, 1), _EXACT, values="2^24 - 64 then ones", bias=False,
          dtypes=("float32", "float64")),
    _conv("1 + 2^-12 in x", (1, 1, 2, 2), (1, 1, 1, 1), _NO_TF32, values="x is 1 + 2^-12", bias=False,
          dtypes=("float32", "float64")),
    _conv("1 + 2^-12 in x, 16 channels", (1, 16, 4, 4), (8, 16, 1, 1), _NO_TF32, values="x is 1 + 2^-12", bias=False,
          dtypes=("float32", "float64")),
    _conv("1 + 2^-12 in w, 16 channels", (1, 16, 4, 4), (8, 16, 1, 1), _NO_TF32, values="w is 1 + 2^-12", bias=False,
          dtypes=("float32", "float64")),
    _conv("ties of float16's rounding", (1, 1, 8), (1, 1, 2), _ONCE, values="2049 2051 2053 2055", strides=[2],
          bias=False, dtypes=("float16", "float32", "float64")),
    _conv("ties of bfloat16's rounding", (1, 1, 8), (1, 1, 2), _ONCE, values="257 259 261 263", strides=[2],
          bias=False),
    _conv("the bias before float16's rounding", (1, 2, 1, 1), (3, 2, 1, 1), _ONCE, values="2048 + 1 and a bias of 1"),
    _conv("the bias before bfloat16's rounding", (1, 2, 1, 1), (3, 2, 1, 1), _ONCE, values="256 + 1 and a bias of 1"),
    _conv("beside float16's overflow", (1, 1, 8), (1, 1, 2), _OVERFLOW, values="beside 65520", strides=[2],
          bias=False, dtypes=("float16", "float32", "float64")),
    _conv("beside bfloat16's overflow", (1, 1, 8), (1, 1, 2), _OVERFLOW, values="beside bfloat16's largest",
          strides=[2], bias=False, dtypes=("bfloat16", "float64")),
    _conv("beyond float16 and back", (1, 3, 1, 2), (1, 3, 1, 1), _ONCE, values="65504 twice, back once", bias=False,
          dtypes=("float16", "float32", "float64")),
    _conv("subnormals", (1, 3, 5, 6), (4, 3, 3, 3), _SUBNORMAL, values="subnormals", pads=[1, 1, 1, 1]),
    _conv("products in float16's subnormals", (1, 1, 3), (1, 1, 1), _SUBNORMAL, values="float16 steps of 2^-24",
          bias=False, dtypes=("float16", "float32", "float64")),
    _conv("NaN in x", (1, 2, 8, 9), (3, 2, 2, 2), _IEEE, values="nan", pads=[1, 1, 1, 1], strides=[2, 2]),
    _conv("infinities in x", (1, 2, 8, 9), (3, 2, 2, 2), _IEEE, values="infinities", pads=[1, 1, 1, 1], strides=[2, 2]),
    _conv("plus infinity among positive numbers", (1, 2, 7, 7), (3, 2, 2, 2), _IEEE, values="plus infinity"),
    _conv("infinite weights on padding", (1, 1, 4, 5), (8, 1, 3, 3), _PADDING, values="infinite weights",
          pads=[1, 1, 1, 1]),
    _conv("infinite weights on padding", (1, 1, 4), (5, 1, 2), _PADDING, values="infinite weights", pads=[2, 2]),
    _conv("infinite weights on padding, 20 output channels of two images", (2, 1, 9, 8), (20, 1, 3, 2), _PADDING,
          values="infinite weights", pads=[1, 2, 2, 1], strides=[2, 1], dilations=[1, 2]),
    _conv("infinite weights on padding, unequal everything", (2, 2, 4, 3, 5), (6, 1, 2, 3, 2), _PADDING,
          values="infinite weights", group=2, pads=[2, 0, 1, 1, 3, 0], strides=[1, 2, 1], dilations=[2, 1, 3]),
    _conv("NaN weights on padding", (1, 1, 4, 4), (6, 1, 2, 2), _PADDING, values="nan weights", pads=[2, 1, 1, 2]),
    _conv("depthwise with infinite weights on padding", (1, 6, 4, 4), (6, 1, 3, 3), _PADDING, group=6,
          values="infinite weights", pads=[2, 2, 2, 2]),
    _conv("1x1 with NaN weights and pads", (1, 2, 2, 3), (6, 2, 1, 1), _PADDING, values="nan weights",
          pads=[1, 1, 1, 1]),
    _conv("infinities and NaN in the bias", (1, 2, 3, 3), (12, 2, 2, 2), _IEEE, values="infinite bias"),
)  # fmt: skip

_CONV_TRANSPOSE = (
    # shapes and layout
    _transposed("one element", (1, 1, 1), (1, 1, 1), _T_LAYOUT, bias=False),
    _transposed("plain", (2, 3, 6), (3, 4, 3), _GATHER, bias=False),
    _transposed("a bias", (2, 3, 6), (3, 4, 3), _BIAS),
    _transposed("a long axis, stride 2", (1, 2, 150), (2, 3, 4), _GATHER, strides=[2], pads=[1, 1]),
    _transposed("counting the inputs that reach an output", (1, 1, 5), (1, 1, 3), _GATHER, values="ones", bias=False),
    _transposed("stride 2", (1, 2, 5), (2, 3, 3), _GATHER, strides=[2]),
    _transposed("kernel equal to the stride", (1, 2, 5), (2, 3, 3), _GATHER, strides=[3]),
    _transposed("stride above the kernel leaves bias only between", (1, 2, 4), (2, 3, 2), _GATHER, strides=[5]),
    _transposed("dilation", (1, 2, 5), (2, 3, 3), _GATHER, dilations=[3]),
    _transposed("dilation equal to the stride leaves bias only between", (1, 2, 5), (2, 3, 3), _GATHER, strides=[2],
                dilations=[2]),
    _transposed("dilation 6 and stride 4 share a factor", (1, 2, 5), (2, 3, 3), _GATHER, strides=[4], dilations=[6]),
    _transposed("dilation 3 and stride 2", (1, 2, 6), (2, 3, 4), _GATHER, strides=[2], dilations=[3], pads=[2, 3]),
    _transposed("asymmetric pads", (1, 2, 6), (2, 3, 4), _NATURAL, pads=[2, 1], strides=[2]),
    _transposed("pads beyond the kernel", (1, 2, 9), (2, 3, 3), _BIG_PADS, pads=[4, 3]),
    _transposed("two groups", (2, 4, 5), (4, 3, 3), _T_LAYOUT, group=2, strides=[2]),
    _transposed("plain", (2, 3, 4, 5), (3, 4, 3, 3), _GATHER, bias=False),
    _transposed("a bias", (2, 3, 4, 5), (3, 4, 3, 3), _BIAS),
    _transposed("height and width differ, so do the kernel's", (1, 2, 3, 7), (2, 3, 4, 2), _T_LAYOUT),
    _transposed("kernel_shape given", (1, 2, 3, 4), (2, 3, 3, 2), _KERNEL, kernel_shape=[3, 2]),
    _transposed("all defaults spelled out", (1, 2, 3, 4), (2, 3, 3, 2), _KERNEL, auto_pad="NOTSET", dilations=[1, 1],
                group=1, kernel_shape=[3, 2], output_padding=[0, 0], pads=[0, 0, 0, 0], strides=[1, 1]),
    _transposed("1x1", (2, 5, 3, 4), (5, 6, 1, 1), _T_LAYOUT),
    _transposed("1x1 with stride leaves bias only between", (1, 3, 3, 4), (3, 2, 1, 1), _GATHER, strides=[2, 3]),
    _transposed("kernel 2, stride 2", (1, 4, 5, 4), (4, 3, 2, 2), _GATHER, strides=[2, 2]),
    _transposed("kernel 4, stride 2, pads 1", (1, 3, 5, 6), (3, 4, 4, 4), _GATHER, strides=[2, 2], pads=[1, 1, 1, 1]),
    _transposed("asymmetric pads, unequal strides and dilations", (2, 2, 5, 4), (2, 3, 3, 2), _NATURAL,
                pads=[1, 0, 2, 3], strides=[2, 3], dilations=[1, 2]),
    _transposed("a dilation that shares a factor with the stride", (1, 2, 4, 4), (2, 3, 3, 3), _GATHER,
                strides=[2, 3], dilations=[4, 6], pads=[1, 2, 3, 0]),
    _transposed("stride in one axis only", (1, 3, 4, 5), (3, 2, 3, 3), _GATHER, strides=[1, 3], pads=[1, 0, 1, 2]),
    _transposed("a large kernel", (1, 2, 5, 4), (2, 2, 9, 11), _EXACT, pads=[4, 5, 4, 5]),
    _transposed("one output channel", (2, 6, 4, 4), (6, 1, 3, 3), _T_LAYOUT, strides=[2, 2]),
    _transposed("300 output channels", (1, 4, 3, 3), (4, 300, 2, 2), _EXACT, strides=[2, 2], pads=[1, 0, 0, 1]),
    _transposed("a sum of 630 terms", (1, 70, 3, 4), (70, 3, 3, 3), _EXACT, pads=[1, 1, 1, 1]),
    _transposed("17 channels each way", (3, 17, 3, 3), (17, 17, 3, 3), _EXACT, strides=[2, 1]),
    _transposed("32 channels each way, stride 2", (1, 32, 3, 4), (32, 32, 4, 4), _EXACT, strides=[2, 2],
                pads=[1, 1, 1, 1]),
    _transposed("plain", (1, 2, 3, 2, 4), (2, 3, 2, 3, 2), _RANKS),
    _transposed("unequal strides, dilations, pads and output_padding", (1, 2, 3, 3, 2), (2, 3, 2, 3, 2), _RANKS,
                strides=[2, 1, 3], dilations=[1, 2, 2], pads=[1, 0, 0, 0, 2, 1], output_padding=[1, 1, 2]),
    _transposed("groups and stride 2", (1, 4, 2, 3, 2), (4, 2, 3, 2, 2), _RANKS, group=2, strides=[2, 2, 2]),
    _transposed("output_shape", (1, 2, 2, 3, 3), (2, 2, 3, 3, 2), _RANKS, strides=[2, 2, 3], output_shape=[4, 8, 6]),
    _transposed("unequal everything", (1, 2, 2, 3, 2, 2), (2, 2, 2, 1, 3, 2), _RANKS, strides=[1, 2, 2, 3],
                dilations=[2, 1, 1, 1], pads=[1, 0, 0, 0, 0, 0, 1, 1]),
    _transposed("unequal everything", (1, 2, 2, 1, 3, 2, 2), (2, 2, 1, 2, 2, 2, 2), _RANKS, strides=[2, 1, 1, 2, 1],
                pads=[0, 0, 1, 0, 0, 0, 1, 0, 0, 1], dilations=[1, 1, 2, 1, 1]),
    # groups
    _transposed("three groups", (2, 6, 4, 3), (6, 2, 3, 3), _T_LAYOUT, group=3),
    _transposed("groups with one output channel each", (1, 6, 4, 3), (6, 1, 3, 3), _T_LAYOUT, group=2, strides=[2, 2]),
    _transposed("depthwise", (2, 5, 4, 5), (5, 1, 3, 3), _T_LAYOUT, group=5, strides=[2, 2], pads=[1, 1, 1, 1]),
    _transposed("depthwise with three outputs a channel", (1, 4, 3, 4), (4, 3, 2, 3), _T_LAYOUT, group=4),
    _transposed("130 output channels in each of two groups", (1, 4, 2, 2), (4, 130, 2, 2), _EXACT, group=2),
    # output_padding
    _transposed("output_padding", (1, 2, 5), (2, 3, 3), _NATURAL, strides=[2], output_padding=[1]),
    _transposed("output_padding and pads", (1, 2, 5), (2, 3, 3), _NATURAL, strides=[3], pads=[1, 2],
                output_padding=[2]),
    _transposed("output_padding beyond the last tap is bias only", (1, 2, 3), (2, 3, 1), _NATURAL, strides=[4],
                output_padding=[3]),
    _transposed("output_padding below the dilation, not the stride", (1, 2, 5), (2, 3, 2), _OUTPUT_PADDING,
                dilations=[3], output_padding=[2]),
    _transposed("unequal output_padding", (1, 2, 3, 4), (2, 3, 3, 3), _NATURAL, strides=[2, 3], output_padding=[1, 2],
                pads=[1, 1, 1, 1]),
    _transposed("output_padding in one axis", (1, 2, 3, 4), (2, 3, 3, 3), _NATURAL, strides=[2, 2],
                output_padding=[0, 1]),
    # output_shape; natural is 2*4 + 4 = 12
    _transposed("output_shape below natural by an even total", (1, 2, 5), (2, 3, 4), _OUTPUT_SHAPE, strides=[2],
                output_shape=[10]),
    _transposed("output_shape with an odd total, NOTSET", (1, 2, 5), (2, 3, 4), _ODD, strides=[2], output_shape=[9]),
    _transposed("output_shape with an odd total, SAME_UPPER", (1, 2, 5), (2, 3, 4), _ODD, strides=[2],
                output_shape=[9], auto_pad="SAME_UPPER"),
    _transposed("output_shape with an odd total, SAME_LOWER", (1, 2, 5), (2, 3, 4), _ODD, strides=[2],
                output_shape=[9], auto_pad="SAME_LOWER"),
    _transposed("output_shape with an odd total, VALID", (1, 2, 5), (2, 3, 4), _ODD, strides=[2], output_shape=[9],
                auto_pad="VALID"),
    _transposed("output_shape equal to natural", (1, 2, 5), (2, 3, 4), _OUTPUT_SHAPE, strides=[2], output_shape=[12]),
    _transposed("output_shape above natural", (1, 2, 5), (2, 3, 4), _EXCESS, strides=[2], output_shape=[15]),
    _transposed("output_shape above natural, SAME_LOWER", (1, 2, 5), (2, 3, 4), _EXCESS, strides=[2],
                output_shape=[15], auto_pad="SAME_LOWER"),
    _transposed("output_shape with pads that are ignored", (1, 2, 5), (2, 3, 4), _OUTPUT_SHAPE, strides=[2],
                output_shape=[9], pads=[0, 3]),
    _transposed("output_shape and output_padding", (1, 2, 5), (2, 3, 4), _OUTPUT_SHAPE, strides=[2],
                output_shape=[10], output_padding=[1]),
    _transposed("output_shape above natural by output_padding", (1, 2, 5), (2, 3, 4), _EXCESS, strides=[2],
                output_shape=[13], output_padding=[1]),
    _transposed("output_shape smaller than the input", (1, 2, 7), (2, 3, 3), _BELOW_INPUT, output_shape=[4]),
    _transposed("output_shape of one, stride 3", (1, 2, 4), (2, 3, 2), _BELOW_INPUT, strides=[3], output_shape=[1]),
    _transposed("output_shape with N and C", (1, 2, 5), (2, 3, 4), _WITH_NC, strides=[2], output_shape=[1, 3, 9]),
    _transposed("output_shape with an N and C that are ignored", (1, 2, 5), (2, 3, 4), _WITH_NC, strides=[2],
                output_shape=[7, 9, 11]),
    _transposed("output_shape", (1, 2, 3, 3), (2, 2, 3, 3), _OUTPUT_SHAPE, strides=[3, 2], output_shape=[10, 8]),
    _transposed("output_shape with N and C", (1, 2, 3, 3), (2, 2, 3, 3), _WITH_NC, strides=[3, 2],
                output_shape=[1, 2, 7, 4]),
    _transposed("output_shape, larger in one axis and smaller in the other", (1, 2, 3, 4), (2, 3, 3, 3), _EXCESS,
                strides=[2, 2], output_shape=[9, 6]),
    _transposed("output_shape, odd totals in both axes, SAME_UPPER", (1, 2, 3, 4), (2, 3, 4, 3), _ODD,
                strides=[2, 3], output_shape=[5, 9], auto_pad="SAME_UPPER"),
    _transposed("output_shape, odd totals in both axes, NOTSET", (1, 2, 3, 4), (2, 3, 4, 3), _ODD, strides=[2, 3],
                output_shape=[5, 9]),
    # SAME without output_shape
    _transposed("SAME_UPPER with an odd total", (1, 2, 5), (2, 3, 4), _T_SAME, auto_pad="SAME_UPPER"),
    _transposed("SAME_LOWER with an odd total", (1, 2, 5), (2, 3, 4), _T_SAME, auto_pad="SAME_LOWER"),
    _transposed("SAME_UPPER with stride above the kernel", (1, 2, 4), (2, 3, 2), _T_SAME, auto_pad="SAME_UPPER",
                strides=[5]),
    _transposed("SAME_LOWER with stride above the kernel", (1, 2, 4), (2, 3, 2), _T_SAME, auto_pad="SAME_LOWER",
                strides=[5]),
    _transposed("SAME_UPPER with output_padding", (1, 2, 4), (2, 3, 3), _T_SAME, auto_pad="SAME_UPPER", strides=[2],
                output_padding=[1]),
    _transposed("SAME_LOWER with dilation", (1, 2, 5), (2, 3, 2), _T_SAME, auto_pad="SAME_LOWER", dilations=[3],
                strides=[2]),
    _transposed("SAME_UPPER", (1, 2, 3, 4), (2, 3, 3, 3), _T_SAME, auto_pad="SAME_UPPER", strides=[2, 2]),
    _transposed("SAME_LOWER", (1, 2, 3, 4), (2, 3, 3, 3), _T_SAME, auto_pad="SAME_LOWER", strides=[2, 2]),
    _transposed("SAME_UPPER, a shortage and an excess", (1, 2, 3, 4), (2, 3, 4, 2), _T_SAME, auto_pad="SAME_UPPER",
                strides=[1, 3]),
    _transposed("VALID", (1, 2, 3, 4), (2, 3, 3, 2), _NATURAL, auto_pad="VALID", strides=[2, 1]),
    _transposed("SAME_LOWER with pads of zeros", (1, 2, 3, 4), (2, 3, 3, 2), _ZERO_PADS, auto_pad="SAME_LOWER",
                pads=[0, 0, 0, 0], strides=[2, 1]),
    _transposed("auto_pad of no letters", (1, 2, 3, 4), (2, 3, 3, 2), _AUTO_PAD_TEXT, auto_pad="", pads=[1, 0, 0, 1]),
    _transposed("auto_pad in bytes", (1, 2, 3, 4), (2, 3, 4, 2), _AUTO_PAD_TEXT, auto_pad=b"SAME_UPPER"),
    # nothing to sum
    _transposed("pads that leave size 0", (1, 2, 3), (2, 3, 3), _EMPTY, pads=[3, 2]),
    _transposed("output_shape of size 0", (1, 2, 3, 3), (2, 3, 3, 3), _EMPTY, output_shape=[0, 4]),
    _transposed("batch 0", (0, 3, 4, 4), (3, 4, 3, 3), _NOTHING, strides=[2, 2]),
    _transposed("channel 0", (2, 0, 3, 4), (0, 3, 3, 3), _NOTHING, strides=[2, 1]),
    _transposed("channel 0 without a bias", (2, 0, 3, 4), (0, 3, 3, 3), _NOTHING, bias=False),
    _transposed("M 0", (2, 3, 4, 4), (3, 0, 3, 3), _NOTHING),
    _transposed("an empty axis gives the kernel's rest, bias only", (1, 2, 0), (2, 3, 3), _NOTHING),
    _transposed("an empty axis with stride 2", (1, 2, 0), (2, 3, 3), _NOTHING, strides=[2]),
    _transposed("an empty axis of size 0", (1, 2, 0), (2, 3, 2), _NOTHING, strides=[2]),
    _transposed("an empty axis and a full one", (2, 2, 3, 0), (2, 3, 2, 4), _NOTHING, strides=[2, 1]),
    _transposed("an empty axis with output_shape", (1, 2, 0), (2, 3, 3), _NOTHING, output_shape=[4]),
    _transposed("an empty axis with SAME_UPPER", (1, 2, 0, 3), (2, 3, 3, 3), _NOTHING, auto_pad="SAME_UPPER"),
    # arithmetic
    _transposed("2048 and 64 ones", (1, 65, 1, 1), (65, 1, 1, 1), _ONCE, values="2048 then ones", bias=False),
    _transposed("256 and 32 ones", (1, 33, 1, 1), (33, 1, 1, 1), _ONCE, values="256 then ones", bias=False),
    _transposed("1 + 2^-12 in x, 16 channels", (1, 16, 3, 3), (16, 8, 1, 1), _NO_TF32, values="x is 1 + 2^-12",
                bias=False, dtypes=("float32", "float64")),
    _transposed("the bias before float16's rounding", (1, 2, 1, 1), (2, 3, 1, 1), _ONCE,
                values="2048 + 1 and a bias of 1"),
    _transposed("beyond float16 and back", (1, 3, 1), (3, 1, 1), _ONCE, values="65504 twice, back once", bias=False,
                dtypes=("float16", "float32", "float64")),
    _transposed("beside float16's overflow", (1, 8, 1), (8, 1, 1), _OVERFLOW, values="beside 65520", group=4,
                bias=False, dtypes=("float16", "float32", "float64")),
    _transposed("subnormals", (1, 3, 3, 4), (3, 2, 3, 3), _SUBNORMAL, values="subnormals", strides=[2, 1]),
    _transposed("NaN in x", (1, 2, 4, 5), (2, 3, 2, 2), _IEEE, values="nan", strides=[2, 3]),
    _transposed("infinities in x", (1, 2, 4, 5), (2, 3, 2, 2), _IEEE, values="infinities", strides=[2, 3]),
    _transposed("infinite weights beside the input", (1, 1, 3, 3), (1, 4, 3, 3), _PADDING, values="infinite weights",
                strides=[2, 1]),
    _transposed("infinite weights beside the input, 18 output channels of two images", (2, 1, 4, 5), (1, 18, 3, 4),
                _PADDING, values="infinite weights", strides=[2, 3], dilations=[1, 2], pads=[1, 0, 0, 2]),
    _transposed("NaN weights between the inputs", (1, 1, 4), (1, 5, 3), _PADDING, values="nan weights", strides=[4],
                output_padding=[2]),
    _transposed("infinities and NaN in the bias", (1, 2, 2, 2), (2, 12, 2, 2), _IEEE, values="infinite bias",
                strides=[3, 3]),
)  # fmt: skip

_MAX_POOL = (
    # shapes and indices
    _pool("one element", (1, 1, 1), [1], _INDICES),
    _pool("plain", (2, 3, 10), [3], _INDICES),
    _pool("kernel of one", (2, 2, 5), [1], _INDICES),
    _pool("stride above the kernel", (1, 2, 11), [2], _FORMULA, strides=[4]),
    _pool("dilation", (1, 2, 12), [3], _FORMULA, dilations=[3]),
    _pool("asymmetric pads", (1, 2, 7), [4], _CLIPPED, pads=[2, 1]),
    _pool("a long axis", (1, 1, 300), [5], _INDICES, pads=[2, 2], strides=[2]),
    _pool("ascending", (2, 3, 10), [3], _INDICES, values="ascending"),
    _pool("descending", (2, 3, 10), [3], _INDICES, values="descending"),
    _pool("ascending", (2, 2, 5, 5), [3, 2], _INDICES, values="ascending", strides=[2, 2]),
    _pool("descending", (2, 2, 5, 5), [3, 2], _INDICES, values="descending", pads=[1, 1, 1, 1]),
    _pool("kernel 2, stride 2", (2, 3, 8, 6), [2, 2], _INDICES, strides=[2, 2]),
    _pool("kernel 3, stride 2, pads 1", (2, 3, 9, 8), [3, 3], _CLIPPED, strides=[2, 2], pads=[1, 1, 1, 1]),
    _pool("height and width differ, so do the kernel's", (1, 2, 5, 11), [2, 5], _INDICES),
    _pool("kernel 1x1 with stride", (1, 3, 5, 7), [1, 1], _INDICES, strides=[2, 3]),
    _pool("kernel equal to the input", (2, 3, 5, 4), [5, 4], _INDICES),
    _pool("kernel 5 and pads 2", (1, 3, 6, 6), [5, 5], _CLIPPED, pads=[2, 2, 2, 2]),
    _pool("a large kernel", (1, 2, 9, 10), [9, 7], _CLIPPED, pads=[4, 3, 4, 3]),
    _pool("asymmetric pads, unequal strides and dilations", (2, 3, 9, 11), [3, 2], _FORMULA, pads=[2, 0, 1, 3],
          strides=[2, 3], dilations=[1, 2]),
    _pool("all defaults spelled out", (1, 2, 5, 6), [3, 2], _INDICES, auto_pad="NOTSET", ceil_mode=0, dilations=[1, 1],
          pads=[0, 0, 0, 0], storage_order=0, strides=[1, 1]),
    _pool("plain", (1, 2, 4, 5, 6), [2, 3, 2], _INDICES),
    _pool("asymmetric pads, unequal strides and dilations", (2, 2, 5, 6, 7), [2, 3, 2], _RANKS,
          pads=[1, 0, 1, 0, 1, 1], strides=[1, 2, 3], dilations=[2, 1, 2]),
    _pool("SAME_UPPER with ceil_mode", (1, 2, 4, 5, 3), [2, 2, 3], _RANKS, auto_pad="SAME_UPPER", ceil_mode=1,
          strides=[2, 2, 2]),
    _pool("unequal everything", (1, 2, 3, 4, 3, 5), [2, 3, 1, 2], _RANKS, pads=[1, 0, 0, 1, 0, 1, 0, 0],
          strides=[1, 2, 1, 2], dilations=[1, 1, 1, 2]),
    _pool("unequal everything", (1, 2, 3, 2, 3, 2, 4), [2, 1, 2, 2, 3], _RANKS, pads=[1, 0, 0, 1, 1, 0, 0, 1, 0, 0],
          strides=[1, 1, 2, 1, 2], dilations=[2, 1, 1, 1, 1]),
    # storage_order
    _pool("column-major", (2, 3, 9), [3], _COLUMNS, storage_order=1, strides=[2]),
    _pool("column-major", (2, 3, 5, 7), [2, 3], _COLUMNS, storage_order=1),
    _pool("column-major with ties", (2, 2, 5, 7), [3, 3], _COLUMNS, storage_order=1, values="ties", pads=[1, 1, 1, 1]),
    _pool("column-major", (2, 2, 3, 4, 5), [2, 2, 2], _COLUMNS, storage_order=1),
    _pool("column-major with pads and stride", (1, 3, 3, 5, 4), [2, 3, 2], _COLUMNS, storage_order=1, values="ties",
          pads=[1, 1, 0, 0, 1, 1], strides=[1, 2, 2]),
    _pool("column-major", (1, 2, 2, 3, 2, 4), [2, 2, 1, 2], _COLUMNS, storage_order=1),
    _pool("column-major with windows of no element", (1, 2, 2, 3), [2, 2], _COLUMNS, storage_order=1,
          pads=[2, 0, 0, 2]),
    # pads and windows with no element
    _pool("negative values with pads", (1, 2, 6), [3], _CLIPPED, values="negative", pads=[1, 1]),
    _pool("negative values with pads", (1, 2, 5, 6), [3, 3], _CLIPPED, values="negative", pads=[1, 1, 1, 1]),
    _pool("negative values with SAME_LOWER", (1, 2, 5, 6), [2, 4], _CLIPPED, values="negative", auto_pad="SAME_LOWER"),
    _pool("pads beyond the kernel", (1, 2, 4), [2], _NO_ELEMENT, pads=[3, 4]),
    _pool("pads beyond the kernel, negative values", (1, 2, 3, 2), [2, 3], _NO_ELEMENT, values="negative",
          pads=[3, 4, 2, 5]),
    _pool("pads beyond the kernel with stride", (1, 2, 3, 4), [2, 2], _NO_ELEMENT, pads=[4, 2, 3, 2], strides=[2, 2]),
    _pool("a dilated window around the whole input", (1, 2, 3), [2], _NO_ELEMENT, dilations=[4], pads=[1, 1]),
    _pool("a dilated window around some rows", (1, 2, 3, 5), [2, 2], _NO_ELEMENT, dilations=[4, 1], pads=[1, 0, 2, 0]),
    _pool("an empty axis with pads", (2, 2, 0), [2], _NO_ELEMENT, pads=[1, 1]),
    _pool("an empty axis with pads", (1, 2, 3, 0), [2, 2], _NO_ELEMENT, pads=[0, 1, 0, 2]),
    _pool("an empty axis", (1, 2, 0), [1], _NOTHING),
    _pool("an empty axis with SAME_UPPER", (1, 2, 0, 4), [2, 2], _NOTHING, auto_pad="SAME_UPPER"),
    _pool("an output of size 0", (2, 3, 4, 2), [3, 3], _EMPTY),
    _pool("a window too long by less than the stride", (1, 2, 2), [3], _FORMULA, strides=[2]),
    _pool("batch 0", (0, 3, 5, 5), [2, 2], _NOTHING),
    _pool("channel 0", (2, 0, 5, 5), [2, 2], _NOTHING),
    # auto_pad
    _pool("SAME_UPPER with an odd total", (1, 2, 7), [4], _ODD_SAME, auto_pad="SAME_UPPER"),
    _pool("SAME_LOWER with an odd total", (1, 2, 7), [4], _ODD_SAME, auto_pad="SAME_LOWER"),
    _pool("SAME_UPPER with an odd total and dilation", (1, 2, 9), [2], _SAME_DILATED, auto_pad="SAME_UPPER",
          dilations=[3]),
    _pool("SAME_LOWER with an odd total and dilation", (1, 2, 9), [2], _SAME_DILATED, auto_pad="SAME_LOWER",
          dilations=[3]),
    _pool("SAME_UPPER with stride above the kernel", (1, 2, 8), [2], _SAME, auto_pad="SAME_UPPER", strides=[3]),
    _pool("SAME_UPPER, even kernels and strides", (1, 2, 7, 8), [4, 2], _ODD_SAME, auto_pad="SAME_UPPER",
          strides=[2, 1]),
    _pool("SAME_LOWER, dilated with stride", (1, 2, 8, 9), [3, 2], _SAME_DILATED, auto_pad="SAME_LOWER",
          strides=[2, 3], dilations=[2, 4]),
    _pool("VALID", (1, 2, 6, 7), [3, 2], _FORMULA, auto_pad="VALID", strides=[2, 2]),
    _pool("SAME_UPPER with pads of zeros", (1, 2, 5, 6), [2, 2], _ZERO_PADS, auto_pad="SAME_UPPER", pads=[0, 0, 0, 0]),
    _pool("auto_pad of no letters", (1, 2, 5, 6), [2, 2], _AUTO_PAD_TEXT, auto_pad="", pads=[1, 0, 0, 1]),
    _pool("auto_pad in bytes", (1, 2, 5, 6), [2, 2], _AUTO_PAD_TEXT, auto_pad=b"SAME_LOWER"),
    # ceil_mode
    _pool("ceil_mode with a rest", (1, 2, 6), [3], _CEIL, ceil_mode=1, strides=[2]),
    _pool("ceil_mode without a rest", (1, 2, 7), [3], _CEIL, ceil_mode=1, strides=[2]),
    _pool("ceil_mode with the window above the input", (1, 2, 2), [3], _CEIL, ceil_mode=1, strides=[2]),
    _pool("ceil_mode and dilation", (1, 2, 8), [2], _CEIL, ceil_mode=1, strides=[3], dilations=[3]),
    _pool("ceil_mode drops a window behind the input", (1, 2, 3), [1], _DROPPED, ceil_mode=1, strides=[3]),
    _pool("ceil_mode drops a window in the end padding", (1, 2, 4), [2], _DROPPED, ceil_mode=1, strides=[2],
          pads=[0, 1]),
    _pool("ceil_mode keeps a window by the padding before", (1, 2, 4), [2], _DROPPED, ceil_mode=1, strides=[2],
          pads=[1, 0]),
    _pool("ceil_mode drops one window only", (1, 2, 2), [2], _DROPPED, ceil_mode=1, strides=[2], pads=[0, 6]),
    _pool("ceil_mode with VALID", (1, 2, 6), [3], _CEIL_VALID, ceil_mode=1, strides=[2], auto_pad="VALID"),
    _pool("ceil_mode with VALID, a window dropped", (1, 2, 7), [2], _CEIL_VALID, ceil_mode=1, strides=[7],
          auto_pad="VALID"),
    _pool("ceil_mode with SAME_LOWER", (1, 2, 7), [3], _CEIL_SAME, ceil_mode=1, strides=[2], auto_pad="SAME_LOWER"),
    _pool("ceil_mode with a rest", (1, 2, 6, 8), [3, 3], _CEIL, ceil_mode=1, strides=[2, 2]),
    _pool("ceil_mode with a rest, negative values", (1, 2, 6, 8), [3, 2], _CEIL, ceil_mode=1, strides=[2, 3],
          values="negative", pads=[1, 0, 0, 1]),
    _pool("ceil_mode drops in one axis and not in the other", (1, 2, 6, 7), [2, 3], _DROPPED, ceil_mode=1,
          strides=[3, 3], pads=[1, 0, 1, 1]),
    _pool("ceil_mode, dilated, with pads", (1, 2, 9, 10), [3, 2], _CEIL, ceil_mode=1, strides=[2, 3], dilations=[2, 3],
          pads=[1, 2, 1, 1]),
    _pool("ceil_mode with an empty axis", (1, 2, 0), [1], _DROPPED, ceil_mode=1, strides=[2]),
    # values
    _pool("ties", (2, 2, 12), [4], _TIES, values="ties"),
    _pool("ties", (2, 2, 7, 8), [3, 3], _TIES, values="ties", pads=[1, 1, 1, 1]),
    _pool("ties", (1, 2, 4, 4, 4), [3, 2, 3], _TIES, values="ties", pads=[1, 0, 1, 1, 0, 1]),
    _pool("all equal", (1, 2, 5, 6), [3, 3], _TIES, values="all equal", pads=[1, 1, 1, 1]),
    _pool("all equal, a large window", (1, 2, 8, 9), [8, 9], _TIES, values="all equal"),
    _pool("all of the lowest value", (1, 2, 4, 5), [3, 2], _TIES, values="lowest", pads=[1, 1, 1, 1]),
    _pool("lowest and largest", (1, 2, 6, 7), [2, 2], _TIES, values="extremes", pads=[1, 1, 1, 1]),
    _pool("NaN", (1, 2, 12), [3], _NAN, values="nan", dtypes=FLOATS, strides=[2]),
    _pool("NaN", (2, 2, 7, 8), [3, 3], _NAN, values="nan", dtypes=FLOATS, pads=[1, 1, 1, 1], strides=[2, 2]),
    _pool("NaN in every window, more than one", (1, 2, 6, 6), [4, 5], _NAN, values="nan", dtypes=FLOATS),
    _pool("NaN only", (1, 2, 4, 5), [2, 3], _NAN, values="all nan", dtypes=FLOATS, pads=[1, 1, 1, 1]),
    _pool("NaN of many payloads and both signs", (1, 2, 7, 8), [2, 3], _BITS, values="nan payloads", dtypes=FLOATS,
          strides=[2, 2], pads=[0, 1, 0, 1]),
    _pool("infinities", (1, 2, 7, 8), [2, 2], _TIES, values="infinities", dtypes=FLOATS, pads=[1, 1, 1, 1]),
    _pool("minus infinity only", (1, 2, 5), [3], _MINUS_INF, values="minus infinity", dtypes=FLOATS, pads=[1, 1]),
    _pool("minus infinity only", (1, 2, 4, 5), [3, 2], _MINUS_INF, values="minus infinity", dtypes=FLOATS,
          pads=[1, 1, 1, 1]),
    _pool("minus infinity beside windows of no element", (1, 2, 3), [2], _MINUS_INF, values="minus infinity",
          dtypes=FLOATS, pads=[3, 3]),
    _pool("minus infinity or NaN", (1, 2, 6, 6), [2, 2], _NAN, values="minus infinity or nan", dtypes=FLOATS),
    _pool("minus infinity or the lowest finite value", (1, 2, 6, 6), [2, 2], _MINUS_INF,
          values="minus infinity or lowest", dtypes=FLOATS),
    _pool("zeros of both signs", (2, 2, 12), [3], _ZEROS, values="zeros of both signs", dtypes=FLOATS),
    _pool("zeros of both signs", (1, 2, 7, 8), [2, 3], _ZEROS, values="zeros of both signs", dtypes=FLOATS,
          pads=[1, 1, 1, 1]),
    _pool("negative zeros with pads", (1, 2, 6, 6), [2, 2], _BITS, values="negative zeros", dtypes=FLOATS,
          pads=[1, 1, 1, 1]),
    _pool("subnormals", (1, 2, 7, 8), [2, 2], _TINY, values="subnormals", dtypes=FLOATS, strides=[2, 2]),
    _pool("subnormals", (1, 3, 20), [3], _TINY, values="subnormals", dtypes=FLOATS, pads=[1, 1]),
)  # fmt: skip

_AVERAGE_POOL = (
    # shapes
    _average("one element", (1, 1, 1), [1], _INSIDE),
    _average("plain", (2, 3, 11), [3], _INSIDE, strides=[2]),
    _average("windows of two", (2, 3, 8, 8), [2, 2], _INSIDE, strides=[2, 2]),
    _average("windows of three", (2, 2, 9, 16), [3, 3], _INSIDE, strides=[2, 2], pads=[1, 1, 1, 1]),
    _average("windows of three, side by side", (1, 2, 7, 8), [3, 3], _INSIDE, pads=[1, 1, 1, 1]),
    _average("a large window", (1, 2, 11, 12), [7, 5], _INSIDE, pads=[3, 2, 3, 2]),
    _average("a window of all", (2, 3, 7, 7), [7, 7], _INSIDE),
    _average("dilation", (1, 2, 9, 10), [3, 2], _INSIDE, dilations=[2, 3], pads=[2, 1, 2, 2]),
    _average("three axes", (1, 2, 5, 6, 7), [3, 2, 3], _RANKS, strides=[2, 1, 2], pads=[1, 0, 1, 1, 1, 0]),
    _average("four axes", (1, 2, 3, 4, 3, 4), [2, 2, 2, 3], _RANKS, strides=[1, 2, 1, 2],
             pads=[0, 1, 0, 1, 1, 0, 0, 1]),
    _average("channels of whole vectors", (2, 16, 6, 5), [3, 3], _INSIDE, strides=[2, 2], pads=[1, 1, 0, 1]),
    # what counts
    _average("pads that count", (1, 2, 6), [3], _WITH_PADS, count_include_pad=1, pads=[1, 2], strides=[2]),
    _average("pads that count", (1, 2, 6, 7), [3, 3], _WITH_PADS, count_include_pad=1, pads=[1, 1, 1, 1]),
    _average("pads that count, strided", (1, 2, 8, 8), [3, 3], _WITH_PADS, count_include_pad=1, pads=[1, 0, 2, 1],
             strides=[2, 2]),
    _average("pads that count, dilated", (1, 2, 8, 9), [2, 3], _WITH_PADS, count_include_pad=1, pads=[3, 2, 1, 4],
             dilations=[3, 2]),
    _average("pads of SAME_UPPER that count", (1, 2, 7, 8), [4, 3], _WITH_PADS, count_include_pad=1,
             auto_pad="SAME_UPPER", strides=[2, 2]),
    _average("pads of SAME_LOWER that do not", (1, 2, 7, 8), [4, 3], _INSIDE, auto_pad="SAME_LOWER", strides=[2, 2]),
    _average("ceil_mode", (1, 2, 6), [3], _INSIDE, ceil_mode=1, strides=[2]),
    _average("ceil_mode beyond the input", (1, 2, 6), [3], _OVERHANG, ceil_mode=1, strides=[2], count_include_pad=1),
    _average("ceil_mode beyond the pads", (1, 2, 6, 7), [3, 4], _OVERHANG, ceil_mode=1, strides=[3, 3],
             count_include_pad=1, pads=[1, 0, 1, 1]),
    _average("ceil_mode, dilated, beyond the pads", (1, 2, 8, 9), [3, 2], _OVERHANG, ceil_mode=1, strides=[2, 3],
             count_include_pad=1, dilations=[2, 3], pads=[1, 2, 0, 1]),
    _average("ceil_mode drops a window in the end padding", (1, 2, 4), [2], _DROPPED, ceil_mode=1, strides=[2],
             count_include_pad=1, pads=[0, 1]),
    _average("ceil_mode with VALID", (1, 2, 6), [3], _CEIL_VALID, ceil_mode=1, strides=[2], auto_pad="VALID"),
    # windows with no element
    _average("pads beyond the kernel", (1, 2, 4), [2], _NO_TAP, pads=[3, 4]),
    _average("pads beyond the kernel that count", (1, 2, 4), [2], _WITH_PADS, pads=[3, 4], count_include_pad=1),
    _average("pads beyond the kernel", (1, 2, 3, 4), [2, 2], _NO_TAP, pads=[4, 2, 3, 2], strides=[2, 2]),
    _average("a dilated window around the whole input", (1, 2, 3), [2], _NO_TAP, dilations=[4], pads=[1, 1]),
    _average("an empty axis with pads", (2, 2, 0), [2], _NO_TAP, pads=[1, 1]),
    _average("an empty axis with pads that count", (1, 2, 3, 0), [2, 2], _WITH_PADS, pads=[0, 1, 0, 2],
             count_include_pad=1),
    _average("an output of size 0", (2, 3, 4, 2), [3, 3], _EMPTY),
    _average("batch 0", (0, 3, 5, 5), [2, 2], _NOTHING),
    _average("channel 0", (2, 0, 5, 5), [2, 2], _NOTHING),
    # values
    _average("NaN", (1, 2, 7, 8), [3, 3], _IEEE, values="nan", pads=[1, 1, 1, 1], strides=[2, 2]),
    _average("infinities", (1, 2, 7, 8), [2, 2], _IEEE, values="infinities", pads=[1, 1, 1, 1]),
    _average("sums beyond float16", (1, 2, 8), [4], _ONCE, values="lowest", dtypes=("float16",)),
    _average("subnormals", (1, 2, 7, 8), [2, 3], _SUBNORMAL, values="subnormals", dtypes=FLOATS[:3]),
)  # fmt: skip

CASES: tuple[Case, ...] = (*_CONV, *_CONV_TRANSPOSE, *_MAX_POOL, *_AVERAGE_POOL)
