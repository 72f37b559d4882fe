"""Mistakes that explain wrong answers: the outputs that another rule gives for the same problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuconv.judge import readings
from gpuconv.judge.definition import Array
from gpuconv.judge.problems import Answer, Problem, answer, attributes, operands
from gpuconv.judge.readings import POOLS, Alternative, same
from gpuconv.judge.readings import mode_of as _plain
from gpuconv.rules import cases as named


@dataclass(frozen=True)
class Variant:
    """A mistake.

    Attributes
    ----------
    name : str
    sentence : str
        What it does, to follow "equals".
    answers : callable
        Takes a problem and returns its answer with the mistake, or None if the mistake does not apply.
    """

    name: str
    sentence: str
    answers: Callable[[Problem], Answer | None]


def explanations(problem: Problem, right: Answer) -> Iterator[tuple[Alternative | Variant, Answer]]:
    """Yield all other readings and mistakes whose answer is not the right one."""
    for alternative in readings.alternatives(problem, right):
        yield alternative, Answer(alternative.outputs, right.bounds)
    for variant in VARIANTS:
        try:
            other = variant.answers(problem)
        except (ValueError, IndexError):  # a size below 0, an index beyond it
            continue
        if other is not None and not same(other.outputs, right.outputs):
            yield variant, other


# ---------------------------------------------------------------- attributes read differently


def _if_given(name: str, other: Callable[[Any], Any]) -> Callable[[Problem], Answer | None]:
    def answers(problem: Problem) -> Answer | None:
        value = attributes(problem).get(name)
        return None if value is None else answer(problem, {name: other(value)})

    return answers


def _other_same(problem: Problem) -> Answer | None:
    if problem.case.op == "conv_transpose" or not _plain(problem).startswith("SAME"):
        return None
    return answer(problem, {"auto_pad": "SAME_LOWER" if _plain(problem) == "SAME_UPPER" else "SAME_UPPER"})


def _begins_twice(pads: list[int]) -> list[int]:
    return list(pads[: len(pads) // 2]) * 2


def _ends_first(pads: list[int]) -> list[int]:
    return [*pads[len(pads) // 2 :], *pads[: len(pads) // 2]]


def _in_pairs(pads: list[int]) -> list[int]:
    """Pads read as (begin, end) of one axis after the other."""
    return [*pads[::2], *pads[1::2]]


def _undilated_same(problem: Problem) -> Answer | None:
    """Return the answer of an implementation that pads for SAME as if the kernel were not dilated, if there is one."""
    given, mode = attributes(problem), _plain(problem)
    if problem.case.op not in ("conv", *POOLS) or not mode.startswith("SAME") or "dilations" not in given:
        return None
    sizes = zip(problem.case.x_shape[2:], given["kernel_shape"], _strides(problem), strict=True)
    totals = [max(0, (-(-n // s) - 1) * s + k - n) for n, k, s in sizes]
    smaller, larger = [t // 2 for t in totals], [t - t // 2 for t in totals]
    pads = [*smaller, *larger] if mode == "SAME_UPPER" else [*larger, *smaller]
    return answer(problem, {"auto_pad": "NOTSET", "pads": pads})


def _strides(problem: Problem) -> list[int]:
    return list(problem.case.attributes.get("strides") or [1] * (len(problem.case.x_shape) - 2))


def _exactly(*outputs: Array) -> Answer:
    return Answer(outputs, tuple(np.zeros(each.shape) for each in outputs))


# ---------------------------------------------------------------- operands read differently


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


def _zero_padded(problem: Problem) -> Answer | None:
    """MaxPool that pads with zeros."""
    arrays, given = operands(problem), attributes(problem)
    pads = given.get("pads")
    if problem.case.op != "max_pool" or problem.indices or not pads:
        return None
    rank = len(pads) // 2
    around = [(pads[a], pads[rank + a]) for a in range(rank)]
    return answer(problem, {"pads": None}, {"x": np.pad(arrays["x"], [(0, 0), (0, 0), *around])})


# ---------------------------------------------------------------- maxima chosen differently


def _infinity_as_lowest(problem: Problem) -> Answer | None:
    x = operands(problem)["x"]
    if problem.case.op != "max_pool" or x.dtype.kind in "iu":
        return None
    lowest = np.array(named._LIMITS[problem.dtype][1]).astype(x.dtype)
    return answer(problem, arrays={"x": np.where(np.isneginf(x.astype(np.float64)), lowest, x)})


def _in_planes(problem: Problem) -> Answer | None:
    if not problem.indices:
        return None
    y, places = answer(problem).outputs
    plane = int(np.prod(problem.case.x_shape[2:]))
    return _exactly(y, np.where(places < 0, places, places % max(1, plane)))


def _swap(value: list[int]) -> list[int]:
    return list(value)[::-1]


def _ones(value: list[int]) -> list[int]:
    return [1] * len(value)


def _zeros(value: list[int]) -> list[int]:
    return [0] * len(value)


def _kept_by_text(problem: Problem) -> Answer | None:
    """A window that starts beyond the input, where the text says that it is ignored."""
    other = readings._with_overhang(problem, False, True)
    return None if other is None or problem.opset < readings.DROPPED_BY_TEXT else answer(other)


def _before_plane(problem: Problem, value: float) -> Answer | None:
    """-1 for a window of nothing, with the plane's offset added to it."""
    if problem.case.op != "max_pool" or not problem.indices:
        return None
    y, places = answer(problem).outputs
    first = np.arange(int(np.prod(places.shape[:2]))) * int(np.prod(problem.case.x_shape[2:]))
    column = first.reshape(*places.shape[:2], *[1] * (places.ndim - 2))
    return _exactly(np.where(places < 0, np.array(value).astype(y.dtype), y), np.where(places < 0, column - 1, places))


def _first_of_all(problem: Problem) -> Answer | None:
    """The index 0 for every window of nothing."""
    if problem.case.op != "max_pool" or not problem.indices:
        return None
    y, places = answer(problem).outputs
    return _exactly(y, np.maximum(places, 0))


VARIANTS: tuple[Variant, ...] = (
    Variant("other_same", "SAME_UPPER and SAME_LOWER exchanged", _other_same),
    Variant("undilated_same", "SAME that pads for the kernel without its dilation", _undilated_same),
    Variant("no_auto_pad", "auto_pad ignored", _if_given("auto_pad", lambda mode: "NOTSET")),
    Variant("no_dilations", "dilations ignored", _if_given("dilations", _ones)),
    Variant("dilations_swapped", "dilations in reverse order", _if_given("dilations", _swap)),
    Variant("no_strides", "strides ignored", _if_given("strides", _ones)),
    Variant("strides_swapped", "strides in reverse order", _if_given("strides", _swap)),
    Variant("no_pads", "pads ignored", _if_given("pads", _zeros)),
    Variant("begins_twice", "the pads of the beginning at both ends", _if_given("pads", _begins_twice)),
    Variant("ends_first", "pads of beginning and end exchanged", _if_given("pads", _ends_first)),
    Variant("pads_in_pairs", "pads read as pairs of begin and end", _if_given("pads", _in_pairs)),
    Variant("no_ceil", "ceil_mode ignored", _if_given("ceil_mode", lambda mode: 0)),
    Variant("window_kept_by_text", "a window that starts beyond the input", _kept_by_text),
    Variant("no_storage_order", "storage_order ignored", _if_given("storage_order", lambda order: 0)),
    Variant("pads_counted", "count_include_pad the other way", _if_given("count_include_pad", lambda c: 1 - c)),
    Variant("no_output_padding", "output_padding ignored", _if_given("output_padding", _zeros)),
    Variant("no_output_shape", "output_shape ignored", _if_given("output_shape", lambda shape: None)),
    Variant("in_planes", "indices within each plane", _in_planes),
    Variant("infinity_lowest", "minus infinity as the lowest finite value", _infinity_as_lowest),
    Variant("empty_0", "the index 0 for every window of nothing", _first_of_all),
    Variant(
        "before_plane",
        "-1 plus the plane's offset as the index of nothing",
        lambda p: _before_plane(p, named._LIMITS[p.dtype][1]),
    ),
    Variant(
        "before_plane_infinite",
        "minus infinity, and -1 plus the plane's offset, for a window of nothing",
        lambda p: _before_plane(p, -np.inf) if p.dtype not in ("int8", "uint8") else None,
    ),
    Variant("turned", "the kernel turned round", _turned),
    Variant("no_bias", "no bias", _without_bias),
    Variant("zero_padded", "padding that takes part as 0", _zero_padded),
)
