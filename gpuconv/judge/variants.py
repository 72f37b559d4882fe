"""What other rules would make of a problem: defensible answers, and the mistakes that explain wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuconv.judge import definition
from gpuconv.judge.definition import Array
from gpuconv.judge.problems import Answer, Problem, answer, attributes, operands
from gpuconv.rules import cases as named

_POOLS = ("max_pool", "average_pool")


@dataclass(frozen=True)
class Variant:
    """Another rule.

    Attributes
    ----------
    name : str
        As it stands in file names.
    sentence : str
        What it does, to follow "equals".
    defensible : bool
        Whether the specification leaves room for it.
    answers : callable
        Takes a problem, returns what the rule gives, or None where it says nothing about the problem.
    """

    name: str
    sentence: str
    defensible: bool
    answers: Callable[[Problem], Answer | None]


def alternatives(problem: Problem, right: Answer) -> Iterator[tuple[Variant, Answer]]:
    """Yield the defensible answers that are not the right one."""
    return (found for found in _others(problem, right) if found[0].defensible)


def explanations(problem: Problem, right: Answer) -> Iterator[tuple[Variant, Answer]]:
    """Yield all other rules whose answer is not the right one."""
    return _others(problem, right)


def _others(problem: Problem, right: Answer) -> Iterator[tuple[Variant, Answer]]:
    for variant in VARIANTS:
        try:
            other = variant.answers(problem)
        except (ValueError, IndexError):  # a size below 0, an index beyond it
            continue
        if other is not None and not same(other.outputs, right.outputs):
            yield variant, other


def same(ours: tuple[Array, ...], theirs: tuple[Array, ...]) -> bool:
    """Tell whether outputs have the same shapes and values, any NaN equal to any NaN."""
    pairs = zip(ours, theirs, strict=True)
    return all(a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all()) for a, b in pairs)


# ---------------------------------------------------------------- attributes read in another way


def _if_given(name: str, other: Callable[[Any], Any]) -> Callable[[Problem], Answer | None]:
    def answers(problem: Problem) -> Answer | None:
        value = attributes(problem).get(name)
        return None if value is None else answer(problem, {name: other(value)})

    return answers


def _plain(problem: Problem) -> str:
    mode = problem.case.attributes.get("auto_pad", "")
    return (mode.decode() if isinstance(mode, bytes) else mode) or "NOTSET"


def _other_same(problem: Problem) -> Answer | None:
    if problem.case.op == "conv_transpose" or not _plain(problem).startswith("SAME"):
        return None
    return answer(problem, {"auto_pad": "SAME_LOWER" if _plain(problem) == "SAME_UPPER" else "SAME_UPPER"})


def _other_half(problem: Problem) -> Answer | None:
    """Odd padding of ConvTranspose dealt out the other way round, as opset 1 said at first."""
    given = problem.case.attributes
    if problem.case.op != "conv_transpose" or not ("output_shape" in given or _plain(problem).startswith("SAME")):
        return None
    return answer(problem, {"auto_pad": "SAME_LOWER" if _plain(problem) == "SAME_UPPER" else "SAME_UPPER"})


def _begins_twice(pads: list[int]) -> list[int]:
    return list(pads[: len(pads) // 2]) * 2


def _ends_first(pads: list[int]) -> list[int]:
    return [*pads[len(pads) // 2 :], *pads[: len(pads) // 2]]


def _in_pairs(pads: list[int]) -> list[int]:
    """Pads read as (begin, end) of one axis after the other."""
    return [*pads[::2], *pads[1::2]]


def _floored_valid(problem: Problem) -> Answer | None:
    given = problem.case.attributes
    return answer(problem, {"ceil_mode": 0}) if given.get("ceil_mode") and _plain(problem) == "VALID" else None


def _with_rest(problem: Problem, dropping: bool) -> Answer | None:
    """ceil_mode as explicit padding at the end, which then counts like other padding."""
    given = attributes(problem)
    if problem.case.op not in _POOLS or not given.get("ceil_mode") or _plain(problem) not in ("NOTSET", "VALID"):
        return None
    spatial = problem.case.x_shape[2:]
    rank = len(spatial)
    pads = list(given.get("pads") or [0] * 2 * rank)
    for a, n in enumerate(spatial):
        s, d = (given.get(name, [1] * rank)[a] for name in ("strides", "dilations"))
        reach = (given["kernel_shape"][a] - 1) * d + 1
        last = -((reach - n - pads[a] - pads[rank + a]) // s)
        last -= dropping and last * s >= n + pads[a]
        pads[rank + a] = max(0, last * s + reach - n - pads[a])
    return answer(problem, {"ceil_mode": 0, "auto_pad": "NOTSET", "pads": pads})


def _undilated_same(problem: Problem) -> Answer | None:
    """SAME with the padding that the kernel needs without its dilation."""
    given, mode = attributes(problem), _plain(problem)
    if problem.case.op not in ("conv", *_POOLS) or not mode.startswith("SAME") or "dilations" not in given:
        return None
    sizes = zip(problem.case.x_shape[2:], given["kernel_shape"], _strides(problem), strict=True)
    totals = [max(0, (-(-n // s) - 1) * s + k - n) for n, k, s in sizes]
    smaller, larger = [t // 2 for t in totals], [t - t // 2 for t in totals]
    pads = [*smaller, *larger] if mode == "SAME_UPPER" else [*larger, *smaller]
    return answer(problem, {"auto_pad": "NOTSET", "pads": pads})


def _rounded_towards_zero(problem: Problem) -> Answer | None:
    """One window where less than a stride is missing, as C divides."""
    given = attributes(problem)
    if problem.case.op not in ("conv", *_POOLS) or _plain(problem) not in ("NOTSET", "VALID"):
        return None
    rank = len(problem.case.x_shape) - 2
    pads = list(given.get("pads") or [0] * 2 * rank)
    kernel = given.get("kernel_shape") or list((problem.case.w_shape or ())[2:])
    sizes = zip(problem.case.x_shape[2:], kernel, _strides(problem), strict=True)
    for a, (n, k, s) in enumerate(sizes):
        missing = (k - 1) * given.get("dilations", [1] * rank)[a] + 1 - n - pads[a] - pads[rank + a]
        pads[rank + a] += missing if 0 < missing < s else 0
    return answer(problem, {"auto_pad": "NOTSET", "pads": pads})


def _strides(problem: Problem) -> list[int]:
    return list(problem.case.attributes.get("strides") or [1] * (len(problem.case.x_shape) - 2))


def _overhang_counted(problem: Problem) -> Answer | None:
    return _with_rest(problem, True) if problem.case.attributes.get("count_include_pad") else None


def _excess_shared(problem: Problem) -> Answer | None:
    """output_shape beyond what inputs reach: half of the excess at either end, as negative pads give."""
    wanted = problem.case.attributes.get("output_shape")
    if problem.case.op != "conv_transpose" or wanted is None:
        return None
    spread = answer(problem, {"output_shape": None, "pads": None, "auto_pad": "NOTSET"})
    size = list(wanted)[-(len(problem.case.x_shape) - 2) :]
    excess = [max(0, n - m) for n, m in zip(size, spread.outputs[0].shape[2:], strict=True)]
    if not any(excess):
        return None
    shifts = [e // 2 if _plain(problem) == "SAME_UPPER" else e - e // 2 for e in excess]
    right = answer(problem)
    y = np.roll(right.outputs[0], shifts, axis=tuple(range(2, right.outputs[0].ndim)))
    bound = np.full(y.shape, right.bounds[0].max(initial=0))
    return Answer((y,), (bound,))


def _in_wanted_shape(problem: Problem) -> Answer | None:
    """Indices of MaxUnpool that number output_shape."""
    arrays = operands(problem)
    if problem.case.op != "max_unpool" or "output_shape" not in arrays:
        return None
    flat = np.zeros(int(np.prod(arrays["output_shape"])), arrays["x"].dtype)
    for index, element in zip(arrays["indices"].ravel().tolist(), arrays["x"].ravel(), strict=True):
        flat[index] = element
    return _exactly(flat.reshape(arrays["output_shape"].tolist()))


def _exactly(*outputs: Array) -> Answer:
    return Answer(outputs, tuple(np.zeros(each.shape) for each in outputs))


# ---------------------------------------------------------------- operands read in another way


def _turned(problem: Problem) -> Answer | None:
    arrays = operands(problem)
    return (
        answer(problem, arrays={"w": np.flip(arrays["w"], tuple(range(2, arrays["w"].ndim)))})
        if "w" in arrays
        else None
    )


def _without_bias(problem: Problem) -> Answer | None:
    arrays = operands(problem)
    return answer(problem, arrays={"b": np.zeros_like(arrays["b"])}) if "b" in arrays else None


def _zeros_multiplied(problem: Problem) -> Answer | None:
    """Padding, and the gaps of ConvTranspose, as zeros that are multiplied: infinite weights give NaN there."""
    arrays = operands(problem)
    given = attributes(problem)
    if "w" not in arrays or _plain(problem) != "NOTSET" or "output_shape" in given:
        return None
    if np.isfinite(arrays["w"].astype(np.float64)).all():
        return None
    rank = arrays["x"].ndim - 2
    pads = list(given.get("pads") or [0] * 2 * rank)
    if problem.case.op == "conv":
        around = [(pads[a], pads[rank + a]) for a in range(rank)]
        return answer(problem, {"pads": None}, {"x": np.pad(arrays["x"], [(0, 0), (0, 0), *around])})
    strides, dilations = (given.get(name) or [1] * rank for name in ("strides", "dilations"))
    reach = [(k - 1) * d for k, d in zip(arrays["w"].shape[2:], dilations, strict=True)]
    sizes = [(n - 1) * s + 1 + 2 * r for n, s, r in zip(arrays["x"].shape[2:], strides, reach, strict=True)]
    x = np.zeros((*arrays["x"].shape[:2], *sizes), arrays["x"].dtype)
    at = tuple(slice(r, size - r, s) for r, size, s in zip(reach, sizes, strides, strict=True))
    x[(slice(None), slice(None), *at)] = arrays["x"]
    more = {"strides": None, "pads": [p + r for p, r in zip(pads, reach * 2, strict=True)]}
    return answer(problem, more, {"x": x})


def _gaps_multiplied(problem: Problem) -> Answer | None:
    """A dilated kernel with zeros between its taps, which are multiplied: infinities in x give NaN there."""
    arrays, dilations = operands(problem), attributes(problem).get("dilations")
    if "w" not in arrays or not dilations or np.isfinite(arrays["x"].astype(np.float64)).all():
        return None
    w = arrays["w"]
    sizes = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    spread = np.zeros((*w.shape[:2], *sizes), w.dtype)
    spread[(slice(None), slice(None), *(slice(None, None, d) for d in dilations))] = w
    return answer(problem, {"dilations": None, "kernel_shape": sizes}, {"w": spread})


def _flushed(problem: Problem) -> Answer | None:
    """Subnormal operands and results are zeros."""
    if problem.case.values != "subnormals":
        return None
    right = answer(problem)
    zeros = np.zeros_like(right.outputs[0])
    return Answer((zeros, *right.outputs[1:]), right.bounds) if not problem.indices else None


def _zero_padded(problem: Problem) -> Answer | None:
    """MaxPool whose padding takes part as zeros."""
    arrays, given = operands(problem), attributes(problem)
    pads = given.get("pads")
    if problem.case.op != "max_pool" or problem.indices or not pads:
        return None
    rank = len(pads) // 2
    around = [(pads[a], pads[rank + a]) for a in range(rank)]
    return answer(problem, {"pads": None}, {"x": np.pad(arrays["x"], [(0, 0), (0, 0), *around])})


# ---------------------------------------------------------------- maxima chosen in another way


def _chosen(problem: Problem, ranks: Callable[[Array], Array]) -> Answer | None:
    """MaxPool of other numbers in the places of x: their maxima name the elements."""
    if problem.case.op != "max_pool":
        return None
    x = operands(problem)["x"]
    _, places = definition.max_pool(ranks(x.astype(np.float64)), **attributes(problem))
    y = named._elements(problem.case, x, places)
    return _exactly(y, places) if problem.indices else _exactly(y)


def _last_of_equals(x: Array) -> Array:
    _, numbers = np.unique(x, return_inverse=True)
    return numbers.reshape(x.shape) * float(x.size + 1) + np.arange(x.size).reshape(x.shape)


def _last_nan(x: Array) -> Array:
    position = np.arange(x.size).reshape(x.shape)
    return np.where(np.isnan(x), 1e300 * (1 + position / (x.size + 1)), np.clip(x, -1e299, 1e299))


def _nan_as(problem: Problem, value: float) -> Answer | None:
    x = operands(problem)["x"]
    if problem.case.op != "max_pool" or not np.isnan(x.astype(np.float64)).any():
        return None
    return answer(problem, arrays={"x": np.where(np.isnan(x.astype(np.float64)), np.array(value).astype(x.dtype), x)})


def _infinity_as_lowest(problem: Problem) -> Answer | None:
    x = operands(problem)["x"]
    if problem.case.op != "max_pool" or x.dtype.kind in "iu":
        return None
    lowest = np.array(named._LIMITS[problem.dtype][1]).astype(x.dtype)
    return answer(problem, arrays={"x": np.where(np.isneginf(x.astype(np.float64)), lowest, x)})


def _before_plane(problem: Problem, value: float) -> Answer | None:
    """-1 for a window of nothing, with the plane's offset added to it."""
    found = _empty_as(problem, value)
    if found is None or not problem.indices:
        return None
    y, places = found.outputs
    first = np.arange(int(np.prod(places.shape[:2]))) * int(np.prod(problem.case.x_shape[2:]))
    column = first.reshape(*places.shape[:2], *[1] * (places.ndim - 2))
    return _exactly(y, np.where(places < 0, column - 1, places))


def _lowest_before(problem: Problem) -> Answer | None:
    return _before_plane(problem, named._LIMITS[problem.dtype][1])


def _nan_as_lowest(problem: Problem) -> Answer | None:
    return _nan_as(problem, named._LIMITS[problem.dtype][1])


def _empty_as(problem: Problem, value: float | None, index: int = -1) -> Answer | None:
    """Another value, None for ours, and another index for a window of nothing."""
    if index != -1 and not problem.indices:
        return None
    if problem.case.op != "max_pool" or (problem.dtype in ("int8", "uint8") and value not in (None, 0)):
        return None
    places = definition.max_pool(operands(problem)["x"], **attributes(problem))[1]
    right = answer(problem)
    y = right.outputs[0]
    if value is not None:
        y = np.where(places < 0, np.array(value).astype(y.dtype), y)
    return _exactly(y, np.where(places < 0, index, places)) if problem.indices else _exactly(y)


def _in_planes(problem: Problem) -> Answer | None:
    if not problem.indices:
        return None
    y, places = answer(problem).outputs
    plane = int(np.prod(problem.case.x_shape[2:]))
    return _exactly(y, np.where(places < 0, places, places % max(1, plane)))


def _zero_for_nothing(problem: Problem) -> Answer | None:
    if problem.case.op != "average_pool":
        return None
    right = answer(problem)
    ones = answer(problem, arrays={"x": np.ones_like(operands(problem)["x"])}).outputs[0]
    empty = np.isnan(ones.astype(np.float64))
    return Answer((np.where(empty, np.zeros_like(ones), right.outputs[0]),), right.bounds)


def _swap(value: list[int]) -> list[int]:
    return list(value)[::-1]


def _ones(value: list[int]) -> list[int]:
    return [1] * len(value)


def _zeros(value: list[int]) -> list[int]:
    return [0] * len(value)


VARIANTS: tuple[Variant, ...] = (
    Variant("other_half", "the padding's larger half at the other end", True, _other_half),
    Variant("excess_shared", "the excess of output_shape at both ends", True, _excess_shared),
    Variant("zeros_multiplied", "padding that is multiplied, 0 * infinity", True, _zeros_multiplied),
    Variant("gaps_multiplied", "gaps of a dilated kernel that are multiplied, 0 * infinity", True, _gaps_multiplied),
    Variant("nan_ignored", "NaN passed over", True, lambda p: _nan_as(p, -np.inf)),
    Variant("nan_lowest", "NaN as the lowest finite value", True, _nan_as_lowest),
    Variant("last_nan", "the index of the last NaN", True, lambda p: _chosen(p, _last_nan)),
    Variant("last_tie", "the index of the last of equals", True, lambda p: _chosen(p, _last_of_equals)),
    Variant("empty_infinite", "minus infinity for a window of nothing", True, lambda p: _empty_as(p, -np.inf)),
    Variant("empty_zero", "0 for a window of nothing", True, lambda p: _empty_as(p, 0.0)),
    Variant("empty_nan", "NaN for a window of nothing", True, lambda p: _empty_as(p, np.nan)),
    Variant("empty_lowest_0", "the index 0 for a window of nothing", True, lambda p: _empty_as(p, None, 0)),
    Variant(
        "empty_infinite_0",
        "minus infinity and the index 0 for a window of nothing",
        True,
        lambda p: _empty_as(p, -np.inf, 0),
    ),
    Variant("empty_zero_0", "0 and the index 0 for a window of nothing", True, lambda p: _empty_as(p, 0.0, 0)),
    Variant("valid_floored", "VALID without ceil_mode", True, _floored_valid),
    Variant("overhang_counted", "a divisor that counts the overhang of ceil_mode", True, _overhang_counted),
    Variant("nothing_zero", "0 for the average of nothing", True, _zero_for_nothing),
    Variant("flushed", "subnormals flushed to zero", True, _flushed),
    Variant("number_output_shape", "indices that number output_shape", True, _in_wanted_shape),
    Variant("other_same", "SAME_UPPER and SAME_LOWER exchanged", False, _other_same),
    Variant("undilated_same", "SAME that pads for the kernel without its dilation", False, _undilated_same),
    Variant("towards_zero", "a size rounded towards zero, as C divides", False, _rounded_towards_zero),
    Variant("no_auto_pad", "auto_pad ignored", False, _if_given("auto_pad", lambda mode: "NOTSET")),
    Variant("no_dilations", "dilations ignored", False, _if_given("dilations", _ones)),
    Variant("dilations_swapped", "dilations in reverse order", False, _if_given("dilations", _swap)),
    Variant("no_strides", "strides ignored", False, _if_given("strides", _ones)),
    Variant("strides_swapped", "strides in reverse order", False, _if_given("strides", _swap)),
    Variant("no_pads", "pads ignored", False, _if_given("pads", _zeros)),
    Variant("begins_twice", "the pads of the beginning at both ends", False, _if_given("pads", _begins_twice)),
    Variant("ends_first", "pads of beginning and end exchanged", False, _if_given("pads", _ends_first)),
    Variant("pads_in_pairs", "pads read as pairs of begin and end", False, _if_given("pads", _in_pairs)),
    Variant("no_ceil", "ceil_mode ignored", False, _if_given("ceil_mode", lambda mode: 0)),
    Variant("window_kept", "a window that starts beyond the input", False, lambda p: _with_rest(p, False)),
    Variant("no_storage_order", "storage_order ignored", False, _if_given("storage_order", lambda order: 0)),
    Variant("pads_counted", "count_include_pad the other way", False, _if_given("count_include_pad", lambda c: 1 - c)),
    Variant("no_output_padding", "output_padding ignored", False, _if_given("output_padding", _zeros)),
    Variant("no_output_shape", "output_shape ignored", False, _if_given("output_shape", lambda shape: None)),
    Variant("in_planes", "indices within each plane", False, _in_planes),
    Variant("infinity_lowest", "minus infinity as the lowest finite value", False, _infinity_as_lowest),
    Variant("before_plane", "-1 plus the plane's offset as the index of nothing", False, _lowest_before),
    Variant(
        "before_plane_infinite",
        "minus infinity, and -1 plus the plane's offset, for a window of nothing",
        False,
        lambda p: _before_plane(p, -np.inf),
    ),
    Variant("turned", "the kernel turned round", False, _turned),
    Variant("no_bias", "no bias", False, _without_bias),
    Variant("zero_padded", "padding that takes part as 0", False, _zero_padded),
)
