"""Answers that can be defended, where the specification leaves room for other readings or is silent.

A *whole* reading changes the geometry of a problem, or the choice of the element in a window of MaxPool; it applies to
all outputs together. An *element* alternative is another value of single elements: of empty windows, of sums over
padding with infinite weights, of subnormals. It belongs to the main answer or to a whole reading.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from gpuconv.judge import definition
from gpuconv.judge.definition import Array
from gpuconv.judge.problems import Answer, Problem, answer, attributes, operands
from gpuconv.rules import cases as named

POOLS = ("max_pool", "average_pool")
DROPPED_BY_TEXT = (
    22  # the first opset that says: "Sliding windows that would start in the right padded region are ignored."
)


@dataclass(frozen=True)
class Alternative:
    """Another answer that can be defended.

    Attributes
    ----------
    name : str
        As in the names of files.
    sentence : str
        The behaviour of such an implementation, to follow "differs:" or "equals".
    outputs : tuple of array
    of : str or None
        Of an element alternative, the name of the whole reading that it belongs to; None for the main answer.
    whole : bool
        Whether it applies to all elements of all outputs together.
    nan : bool
        Whether it is about NaN, so that a mixture of its elements with those of the main answer is inconsistent.
    geometry : bool
        Whether it reads sizes or padding differently, so that the rule about them is not "specified".
    """

    name: str
    sentence: str
    outputs: tuple[Array, ...]
    of: str | None = None
    whole: bool = True
    nan: bool = False
    geometry: bool = False


@dataclass(frozen=True)
class _Reading:
    """A whole reading: a problem with other attributes and operands, and its answer."""

    name: str
    sentence: str
    problem: Problem
    answer: Answer
    nan: bool = False
    geometry: bool = True
    kept: Problem | None = None  # where operands are flushed: the problem with operands as they are


def alternatives(problem: Problem, right: Answer) -> Iterator[Alternative]:
    """Yield all defensible answers except the right one, each whole reading before its element alternatives."""
    seen = [right.outputs]
    readings = [_Reading("", "", problem, right)]
    for reading in _readings(problem):
        if not any(same(reading.answer.outputs, outputs) for outputs in seen):
            seen.append(reading.answer.outputs)
            readings.append(reading)
            outputs, geometry = reading.answer.outputs, reading.geometry
            yield Alternative(reading.name, reading.sentence, outputs, nan=reading.nan, geometry=geometry)
    for reading in readings:
        for name, sentence, outputs in _elements(reading):
            if not same(outputs, reading.answer.outputs):
                name = f"{reading.name}_{name}" if reading.name else name
                yield Alternative(name, sentence, outputs, reading.name or None, whole=False)


def same(ours: tuple[Array, ...], theirs: tuple[Array, ...]) -> bool:
    """Return whether outputs have the same shapes and values; any NaN equals any NaN."""
    pairs = zip(ours, theirs, strict=True)
    return all(a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all()) for a, b in pairs)


def replaced(problem: Problem, changed: dict[str, Any], arrays: dict[str, Array] | None = None) -> Problem:
    """Return a copy of a problem with other attributes (None removes one) and operands."""
    given = {**attributes(problem), **changed}
    case = dataclasses.replace(
        problem.case, attributes={name: value for name, value in given.items() if value is not None}
    )
    return dataclasses.replace(problem, case=case, arrays={**operands(problem), **(arrays or {})})


def mode_of(problem: Problem) -> str:
    """Return auto_pad as text."""
    mode = problem.case.attributes.get("auto_pad", "")
    return (mode.decode() if isinstance(mode, bytes) else mode) or "NOTSET"


def per_axis(problem: Problem, name: str, default: int = 1) -> list[int]:
    """Return an attribute that has a number for each spatial axis, or its default."""
    rank = len(problem.case.x_shape) - 2
    return list(attributes(problem).get(name) or [default] * (2 * rank if name == "pads" else rank))


def extents(problem: Problem) -> list[int]:
    """Return the extent of the dilated kernel along each axis."""
    kernel = attributes(problem)["kernel_shape"] if problem.case.w_shape is None else problem.case.w_shape[2:]
    return [(k - 1) * d + 1 for k, d in zip(kernel, per_axis(problem, "dilations"), strict=True)]


# ---------------------------------------------------------------- whole readings

_Change = tuple[str, str, Problem]
_MAIN = ("", "")


def _readings(problem: Problem) -> Iterator[_Reading]:
    """Yield all whole readings, the simplest first; some give equal answers."""
    geometries = [(*_MAIN, problem), *_geometries(problem)]
    if problem.case.op == "max_pool":
        yield from (reading for geometry in geometries for reading in _maxima(*geometry))
    elif problem.case.op == "max_unpool":
        yield from _unpooled(problem)
    else:
        for name, sentence, other in geometries[1:]:
            found = _answered(other)
            if found is not None:
                yield _Reading(name, sentence, other, found)


def _answered(problem: Problem) -> Answer | None:
    """Answer a problem, cropped to the pseudo-attribute `windows` if it has that; None for negative sizes."""
    given = dict(problem.case.attributes)
    windows = given.pop("windows", None)
    try:
        found = answer(dataclasses.replace(problem, case=dataclasses.replace(problem.case, attributes=given)))
    except (ValueError, IndexError):
        return None
    if windows is None:
        return found
    at = (slice(None), slice(None), *(slice(n) for n in windows))
    return Answer(tuple(y[at] for y in found.outputs), tuple(bound[at] for bound in found.bounds))


def _geometries(problem: Problem) -> Iterator[_Change]:
    if problem.case.op == "conv_transpose":
        yield from _transposed_readings(problem)
        return
    if problem.case.op == "max_unpool":
        return
    for name, sentence, make in _WINDOWS:
        other = make(problem)
        if other is not None:
            yield name, sentence, other


def _towards_zero(problem: Problem) -> Problem | None:
    """One window where the input is too short by less than a stride, as C's division and ONNX's inference give."""
    if mode_of(problem) not in ("NOTSET", "VALID"):
        return None
    pads, strides = _explicit(problem), per_axis(problem, "strides")
    rank = len(strides)
    for a, (n, extent) in enumerate(zip(problem.case.x_shape[2:], extents(problem), strict=True)):
        missing = extent - n - pads[a] - pads[rank + a]
        pads[rank + a] += missing if 0 < missing < strides[a] else 0
    return replaced(problem, {"auto_pad": "NOTSET", "pads": pads, "counted_pads": _counted(problem)})


def _explicit(problem: Problem) -> list[int]:
    """Return pads as given, none with VALID."""
    return [0] * (2 * len(problem.case.x_shape) - 4) if mode_of(problem) == "VALID" else per_axis(problem, "pads", 0)


def _counted(problem: Problem) -> list[int] | None:
    return _explicit(problem) if problem.case.op == "average_pool" else None


def _pads_win(problem: Problem) -> Problem | None:
    """Explicit pads instead of SAME: the specification forbids both together."""
    both = "pads" in problem.case.attributes and mode_of(problem).startswith("SAME")
    return replaced(problem, {"auto_pad": "NOTSET"}) if both else None


def _floored_valid(problem: Problem) -> Problem | None:
    given = problem.case.attributes
    return replaced(problem, {"ceil_mode": 0}) if given.get("ceil_mode") and mode_of(problem) == "VALID" else None


def _with_overhang(problem: Problem, dropping: bool, counted: bool) -> Problem | None:
    """ceil_mode as explicit padding at the end, counted or not; windows beyond the input are dropped or not."""
    given = attributes(problem)
    if problem.case.op not in POOLS or not given.get("ceil_mode") or mode_of(problem) not in ("NOTSET", "VALID"):
        return None
    pads, strides = _explicit(problem), per_axis(problem, "strides")
    rank = len(strides)
    for a, (n, extent) in enumerate(zip(problem.case.x_shape[2:], extents(problem), strict=True)):
        last = -((extent - n - pads[a] - pads[rank + a]) // strides[a])
        last -= dropping and last * strides[a] >= n + pads[a]
        pads[rank + a] = max(0, last * strides[a] + extent - n - pads[a])
    changed = {"ceil_mode": 0, "auto_pad": "NOTSET", "pads": pads}
    return replaced(problem, changed if counted else {**changed, "counted_pads": _counted(problem)})


def _kept(problem: Problem, counted: bool) -> Problem | None:
    return _with_overhang(problem, False, counted) if problem.opset < DROPPED_BY_TEXT else None


def _overhang_counted(problem: Problem) -> Problem | None:
    return _with_overhang(problem, True, True) if problem.case.attributes.get("count_include_pad") else None


def _matched(problem: Problem) -> Problem | None:
    """SAME at opset 1: "the output spatial size match the input", whatever the stride is."""
    if problem.case.op != "conv" or problem.opset >= 11 or not mode_of(problem).startswith("SAME"):
        return None
    n = problem.case.x_shape[2:]
    return _same_padded(problem, list(n), per_axis(problem, "strides"))


def _same_padded(problem: Problem, out: list[int], strides: list[int]) -> Problem:
    sizes = zip(problem.case.x_shape[2:], extents(problem), strides, out, strict=True)
    totals = [max(0, (o - 1) * s + extent - n) for n, extent, s, o in sizes]
    smaller, larger = [t // 2 for t in totals], [t - t // 2 for t in totals]
    pads = [*smaller, *larger] if mode_of(problem) == "SAME_UPPER" else [*larger, *smaller]
    return replaced(problem, {"auto_pad": "NOTSET", "pads": pads, "ceil_mode": None})


def _cropped(problem: Problem, halve: Callable[[int], int]) -> Problem | None:
    """SAME where pad_shape is negative: elements of the input are cropped at both ends, split like pads."""
    if not mode_of(problem).startswith("SAME"):
        return None
    strides, begins, ends = per_axis(problem, "strides"), [], []
    for n, extent, s in zip(problem.case.x_shape[2:], extents(problem), strides, strict=True):
        total = (-(-n // s) - 1) * s + extent - n
        half = total // 2 if total > 0 else halve(total)
        begins.append(half if mode_of(problem) == "SAME_UPPER" else total - half)
        ends.append(total - begins[-1])
    return replaced(problem, {"auto_pad": "NOTSET", "pads": [*begins, *ends], "ceil_mode": None})


def _floored_eleven(problem: Problem) -> Problem | None:
    """AveragePool-11 without ceil_mode: SAME has floor(n/s) windows, VALID floor((n - extent + 1)/s)."""
    mode = mode_of(problem)
    if problem.case.op != "average_pool" or problem.opset != 11 or problem.case.attributes.get("ceil_mode"):
        return None
    n, strides, extent = problem.case.x_shape[2:], per_axis(problem, "strides"), extents(problem)
    if mode == "VALID":
        windows = [max(0, (m - e + 1) // s) for m, e, s in zip(n, extent, strides, strict=True)]
        return replaced(problem, {"windows": windows})
    if not mode.startswith("SAME"):
        return None
    windows = [m // s for m, s in zip(n, strides, strict=True)]
    other = _same_padded(problem, windows, strides)
    return replaced(other, {"windows": windows})


_HALVES: tuple[tuple[str, str, Callable[[int], int] | None], ...] = (
    ("", "", None),
    ("excess_floored", "negative padding, halved with floor division", lambda total: total // 2),
    ("excess_truncated", "negative padding, halved as C divides", lambda total: -(-total // 2)),
)

_WINDOWS: tuple[tuple[str, str, Callable[[Problem], Problem | None]], ...] = (
    ("pads_win", "pads in place of auto_pad", _pads_win),
    ("towards_zero", "a size rounded towards zero, as C divides", _towards_zero),
    ("valid_floored", "VALID without ceil_mode", _floored_valid),
    ("window_kept", "a window that starts beyond the input", lambda p: _kept(p, False)),
    ("window_kept_counted", "a window that starts beyond the input, counted in full", lambda p: _kept(p, True)),
    ("overhang_counted", "a divisor that counts the overhang of ceil_mode", _overhang_counted),
    ("size_matched", "SAME with the size of the input, whatever the stride", _matched),
    ("cropped_floored", f"SAME with {_HALVES[1][1]}", lambda p: _cropped(p, lambda total: total // 2)),
    ("cropped_truncated", f"SAME with {_HALVES[2][1]}", lambda p: _cropped(p, lambda total: -(-total // 2))),
    ("floored_11", "SAME or VALID with the sizes of the text of AveragePool-11", _floored_eleven),
)


# ---------------------------------------------------------------- ConvTranspose with pads that follow from a size


def _transposed_readings(problem: Problem) -> Iterator[_Change]:
    given, mode = problem.case.attributes, mode_of(problem)
    natural, spatial = _natural(problem), problem.case.x_shape[2:]
    explicit = _pads_win(problem)
    if explicit is not None:
        yield "pads_win", "pads in place of auto_pad", explicit
    if "output_shape" in given:
        sizes = [("", "", list(given["output_shape"])[-len(spatial) :])]
    elif mode.startswith("SAME"):
        out = [n * s for n, s in zip(spatial, per_axis(problem, "strides"), strict=True)]
        more = [o + p for o, p in zip(out, per_axis(problem, "output_padding", 0), strict=True)]
        smaller, both = ([min(pair) for pair in zip(each, natural, strict=True)] for each in (out, more))
        not_enlarged = "SAME that never pads with less than 0"
        sizes = [
            ("", "", out),
            ("not_enlarged", not_enlarged, smaller),
            ("padding_added", "SAME that adds output_padding to the size", more),
            ("not_enlarged_padding_added", f"{not_enlarged} and adds output_padding to the size", both),
        ]
        if problem.opset < 11:
            sizes.append(("size_matched", "SAME with the size of the input, whatever the stride", list(spatial)))
    else:
        return
    for other, (size_name, size_text, wanted), (half, half_text, halve) in product((False, True), sizes, _HALVES):
        words = [size_name, half, "other_half" * other]
        texts = [size_text, half_text, "the padding's larger half at the other end" * other]
        if any(words):
            pads = _shared_out(natural, wanted, (mode == "SAME_UPPER") != other, halve)
            changed = {"auto_pad": "NOTSET", "output_shape": None, "pads": pads}
            yield "_".join(filter(None, words)), ", ".join(filter(None, texts)), replaced(problem, changed)


def _natural(problem: Problem) -> list[int]:
    """Return the size of each axis without padding."""
    axes = zip(
        problem.case.x_shape[2:],
        per_axis(problem, "strides"),
        per_axis(problem, "output_padding", 0),
        extents(problem),
        strict=True,
    )
    return [s * (n - 1) + more + extent for n, s, more, extent in axes]


def _shared_out(
    natural: list[int], wanted: list[int], smaller_first: bool, halve: Callable[[int], int] | None
) -> list[int]:
    """Return the pads that give the wanted size; negative padding is at the end only if `halve` is None."""
    begins = []
    for full, out in zip(natural, wanted, strict=True):
        total = full - out
        half = total // 2 if total >= 0 else halve(total) if halve else None
        begins.append(0 if half is None else half if smaller_first else total - half)
    return [*begins, *(n - w - b for n, w, b in zip(natural, wanted, begins, strict=True))]


def _unpooled(problem: Problem) -> Iterator[_Reading]:
    """Indices of MaxUnpool that number output_shape."""
    arrays = operands(problem)
    if "output_shape" not in arrays:
        return
    flat = np.zeros(int(np.prod(arrays["output_shape"])), arrays["x"].dtype)
    for index, element in zip(arrays["indices"].ravel().tolist(), arrays["x"].ravel(), strict=True):
        flat[index] = element
    found = _exactly(flat.reshape(arrays["output_shape"].tolist()))
    yield _Reading("number_output_shape", "indices that number output_shape", problem, found)


# ---------------------------------------------------------------- the choice of the element in a window of MaxPool


def _maxima(name: str, sentence: str, problem: Problem) -> Iterator[_Reading]:
    """Yield a geometry with each treatment of NaN and subnormals, and each choice among equal elements."""
    x = operands(problem)["x"]
    values = x.astype(np.float64)
    ways: list[tuple[str, str, Array | None]] = [("", "", None)]
    if np.isnan(values).any():
        lowest = named._LIMITS[problem.dtype][1]
        ways.append(("nan_ignored", "NaN passed over", np.where(np.isnan(values), -np.inf, values)))
        ways.append(("nan_lowest", "NaN as the lowest finite value", np.where(np.isnan(values), lowest, values)))
    if problem.case.values == "subnormals":
        ways.append(("flushed", "subnormals flushed to zero", np.where(np.isfinite(values), 0.0, values)))
    choices: list[tuple[str, str, Callable[[Array], Array] | None]] = [
        ("", "", None),
        ("last_nan", "the index of the last NaN", _last_nan),
        ("last_tie", "the index of the last of equals", _last_of_equals),
    ]
    for (way, about, changed), (choice, text, ranks) in product(ways, choices):
        if choice == "last_nan" and (way == "flushed" or not np.isnan(values).any()):
            continue
        other = problem if changed is None else replaced(problem, {}, {"x": changed.astype(x.dtype)})
        try:
            found = _chosen(other, ranks) if ranks else answer(other)
        except ValueError:
            return
        words = "_".join(filter(None, (name, way, choice)))
        if words:
            told = ", ".join(filter(None, (sentence, about, text)))
            nan = way.startswith("nan") or choice == "last_nan"
            kept = problem if changed is not None else None
            yield _Reading(words, told, other, found, nan, bool(name), kept)


def _chosen(problem: Problem, ranks: Callable[[Array], Array]) -> Answer:
    """MaxPool that compares other numbers in place of the elements of x, and returns the elements."""
    x = operands(problem)["x"]
    _, places = definition.max_pool(ranks(x.astype(np.float64)), **attributes(problem))
    y = named._elements(problem.case, x, places)
    return _exactly(y, places) if problem.indices else _exactly(y)


def _last_of_equals(x: Array) -> Array:
    _, numbers = np.unique(x, return_inverse=True)
    return np.asarray(numbers.reshape(x.shape) * float(x.size + 1) + np.arange(x.size).reshape(x.shape))


def _last_nan(x: Array) -> Array:
    position = np.arange(x.size).reshape(x.shape)
    return np.where(np.isnan(x), 1e300 * (1 + position / (x.size + 1)), np.clip(x, -1e299, 1e299))


def _exactly(*outputs: Array) -> Answer:
    return Answer(outputs, tuple(np.zeros(each.shape) for each in outputs))


# ---------------------------------------------------------------- other values of single elements

_Element = tuple[str, str, tuple[Array, ...]]


def _elements(reading: _Reading) -> Iterator[_Element]:
    op = reading.problem.case.op
    if op == "max_pool":
        yield from _of_empty_windows(reading)
        if reading.kept is not None and "flushed" in reading.name:
            yield "unflushed", "subnormals compared as zeros", _unflushed(reading)
    elif op == "average_pool":
        yield from _of_no_taps(reading)
    elif op in ("conv", "conv_transpose"):
        yield from _multiplied(reading)
    if op not in ("max_pool", "max_unpool") and reading.problem.case.values == "subnormals":
        yield from _flushed(reading)


def _of_empty_windows(reading: _Reading) -> Iterator[_Element]:
    """Yield four values and two indices for empty windows, and for windows of NaN only where NaN is ignored."""
    problem, outputs = reading.problem, reading.answer.outputs
    given = attributes(problem)
    x = operands(problem)["x"]
    places = definition.max_pool(x, **given)[1]
    empty = places < 0
    if reading.nan and reading.kept is not None:
        original = operands(reading.kept)["x"].astype(np.float64)
        found = definition.max_pool(np.where(np.isnan(original), -1.0, 1.0), **given)[0]
        empty = empty | (found == -1)
    if not empty.any():
        return
    y, *rest = outputs
    words = {"lowest": "the lowest finite value", "infinite": "minus infinity", "zero": "0", "nan": "NaN"}
    limits = {"lowest": named._LIMITS[problem.dtype][1], "infinite": -np.inf, "zero": 0.0, "nan": np.nan}
    for name, value in limits.items():
        if np.isfinite(value) or problem.dtype not in ("int8", "uint8"):
            other = np.where(empty, np.array(value).astype(y.dtype), y)
            yield f"empty_{name}", f"{words[name]} for a window of nothing", (other, *rest)
    if rest:
        first = np.arange(int(np.prod(x.shape[:2]))) * int(np.prod(x.shape[2:]))
        column = first.reshape(*x.shape[:2], *[1] * (x.ndim - 2))
        for name, text, index in (("minus_one", "-1", -1), ("first", "its plane's first element", column)):
            found = np.where(empty, index, rest[0])
            yield f"empty_index_{name}", f"the index of {text} for a window of nothing", (y, found)


def _unflushed(reading: _Reading) -> tuple[Array, ...]:
    """Return the elements as they are in x, chosen by comparing flushed ones."""
    assert reading.kept is not None
    indexed = dataclasses.replace(reading.problem, indices=True)
    ranks = _last_of_equals if reading.name.endswith("last_tie") else None
    places = (_chosen(indexed, ranks) if ranks else answer(indexed)).outputs[1]
    y = named._elements(reading.problem.case, operands(reading.kept)["x"], places)
    return (y, *reading.answer.outputs[1:])


def _of_no_taps(reading: _Reading) -> Iterator[_Element]:
    """Yield 0 for windows of AveragePool without a tap that counts."""
    ones = _answered(dataclasses.replace(reading.problem, arrays={"x": np.ones_like(operands(reading.problem)["x"])}))
    assert ones is not None
    empty = np.isnan(ones.outputs[0].astype(np.float64))
    y = reading.answer.outputs[0]
    yield "nothing_zero", "0 for the average of nothing", (np.where(empty, np.zeros_like(y), y),)


def _flushed(reading: _Reading) -> Iterator[_Element]:
    """Yield sums with subnormal results, inputs or biases flushed to zero; NaN remains NaN."""
    problem, (y,) = reading.problem, reading.answer.outputs
    finite = np.isfinite(y.astype(np.float64))
    yield "flushed", "subnormals flushed to zero", (np.where(finite, np.zeros_like(y), y),)
    arrays = operands(problem)
    if "b" in arrays:
        for name, what in (("x", "inputs"), ("b", "biases")):
            found = _answered(replaced(problem, {}, {name: np.zeros_like(arrays[name])}))
            if found is not None:
                yield f"flushed_{name}", f"subnormal {what} flushed to zero", found.outputs


def _multiplied(reading: _Reading) -> Iterator[_Element]:
    """Yield sums that also multiply padding, and the gaps of ConvTranspose's inputs or of a dilated kernel."""
    arrays = operands(reading.problem)
    if not np.isfinite(arrays["w"].astype(np.float64)).all():
        found = _answered((_padded if reading.problem.case.op == "conv" else _stuffed)(reading.problem))
        if found is not None:
            yield "zeros_multiplied", "padding that is multiplied, 0 * infinity", found.outputs
    dilations = attributes(reading.problem).get("dilations")
    if dilations and not np.isfinite(arrays["x"].astype(np.float64)).all():
        found = _answered(_filled(reading.problem, dilations))
        if found is not None:
            yield "gaps_multiplied", "gaps of a dilated kernel that are multiplied, 0 * infinity", found.outputs


def _padded(problem: Problem) -> Problem:
    """Return the same Conv with explicit zeros around the input instead of pads."""
    arrays, given = operands(problem), attributes(problem)
    x, rank = arrays["x"], arrays["x"].ndim - 2
    strides, dilations = per_axis(problem, "strides"), per_axis(problem, "dilations")
    size, begin = definition._windows(
        x.shape[2:],
        arrays["w"].shape[2:],
        given.get("auto_pad", "NOTSET"),
        dilations,
        per_axis(problem, "pads", 0),
        strides,
    )
    extent = extents(problem)
    ends = [max(0, (size[a] - 1) * strides[a] + extent[a] - x.shape[2 + a] - begin[a]) for a in range(rank)]
    around = [(0, 0), (0, 0), *zip(begin, ends, strict=True)]
    return replaced(problem, {"pads": None, "auto_pad": None, "windows": list(size)}, {"x": np.pad(x, around)})


def _stuffed(problem: Problem) -> Problem:
    """Return the same ConvTranspose with stride 1 and explicit zeros between and around the inputs."""
    arrays, given = operands(problem), attributes(problem)
    x, strides = arrays["x"], per_axis(problem, "strides")
    begins, sizes = _crop(problem)
    reach = [extent - 1 for extent in extents(problem)]
    lengths = [out + r for out, r in zip(sizes, reach, strict=True)]
    stuffed = np.zeros((*x.shape[:2], *map(max, lengths, [0] * len(lengths))), x.dtype)
    axes = [
        [(i, i * s - b + r) for i in range(n) if 0 <= i * s - b + r < length]
        for n, s, b, r, length in zip(x.shape[2:], strides, begins, reach, lengths, strict=True)
    ]
    source: tuple[Any, ...] = (slice(None), slice(None), *np.ix_(*[[i for i, _ in axis] for axis in axes]))
    target: tuple[Any, ...] = (slice(None), slice(None), *np.ix_(*[[to for _, to in axis] for axis in axes]))
    stuffed[target] = x[source]
    kept = ("dilations", "group", "kernel_shape")
    changed: dict[str, Any] = dict.fromkeys(given, None) | {name: given[name] for name in kept if name in given}
    return replaced(problem, {**changed, "pads": reach * 2}, {"x": stuffed})


def _crop(problem: Problem) -> tuple[list[int], list[int]]:
    """Return the crop before the output of a ConvTranspose along each axis, and the sizes of the output."""
    given, mode, natural = problem.case.attributes, mode_of(problem), _natural(problem)
    rank = len(natural)
    if "output_shape" in given or mode.startswith("SAME"):
        spatial, strides = problem.case.x_shape[2:], per_axis(problem, "strides")
        out = list(given.get("output_shape") or [n * s for n, s in zip(spatial, strides, strict=True)])[-rank:]
        return _shared_out(natural, out, mode == "SAME_UPPER", None)[:rank], out
    pads = _explicit(problem)
    return pads[:rank], [natural[a] - pads[a] - pads[rank + a] for a in range(rank)]


def _filled(problem: Problem, dilations: list[int]) -> Problem:
    """Return the same problem with an undilated kernel that has explicit zeros between its taps."""
    w = operands(problem)["w"]
    sizes = [(k - 1) * d + 1 if k else 0 for k, d in zip(w.shape[2:], dilations, strict=True)]
    spread = np.zeros((*w.shape[:2], *sizes), w.dtype)
    spread[(slice(None), slice(None), *(slice(None, None, d) for d in dilations))] = w
    return replaced(problem, {"dilations": None, "kernel_shape": sizes}, {"w": spread})
