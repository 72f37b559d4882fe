"""Verdicts: compare the outputs of a target with those of a test, and with the alternatives that can be defended."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from gpuconv._errors import one_line
from gpuconv.judge.definition import FORMATS, Array
from gpuconv.judge.suite import DATA

AGREES = "agrees"
DIFFERS = "differs"  # and can be defended
WRONG = "wrong"
INCONSISTENT = "inconsistent"  # NaN or not, depending on where it is
REFUSES = "refuses"
CRASHES = "crashes"
HANGS = "hangs"
ALL = (AGREES, DIFFERS, INCONSISTENT, WRONG, REFUSES, CRASHES, HANGS)
FAILURES = (INCONSISTENT, WRONG, CRASHES, HANGS)
FACTS = (
    *("name", "operator", "opset", "type", "rank", "rule", "rules", "sentence", "status", "quotation", "discussions"),
    *("upstream", "valid", "onnx_shape", "attributes", "inputs", "constants", "outputs", "bits", "alternatives"),
)

# Less precise ways to compute, by the name of their bounds: what a target may claim, and a sentence.
_LOOSER = {
    "tf32": ("tf32", "factors rounded to TF32"),
    "narrow": ("", "float64 computed in float32"),
    "wide": ("accumulate", "sums in the 16-bit type itself"),
    "transform": ("", "as precise as a transform such as Winograd's"),
}


class DamagedTest(Exception):
    """A test of a suite that cannot be used; the message names it and says why."""


@dataclass(frozen=True)
class Verdict:
    """A verdict on one test.

    Attributes
    ----------
    kind : str
        One of ALL.
    reason : str
        What differs, or the target's message.
    element : tuple of int or None
        The number of the output and the index of the element that `reason` cites, if it cites one.
    """

    kind: str
    reason: str = ""
    element: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Test:
    """A test of a suite, read from its folder."""

    folder: Path

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The content of case.json."""
        try:
            facts = json.loads((self.folder / "case.json").read_text())
        except (OSError, ValueError) as error:
            raise self._damaged("case.json", error) from None
        missing = [name for name in FACTS if not isinstance(facts, dict) or name not in facts]
        if missing:
            raise DamagedTest(f"{self.folder.name}: case.json has no {missing[0]!r}")
        return dict(facts)

    @property
    def model(self) -> Any:
        """The model."""
        try:
            return onnx.load(self.folder / "model.onnx")
        except Exception as error:
            raise self._damaged("model.onnx", error) from None

    def check(self) -> None:
        """Raise DamagedTest where the description or the model cannot be read, or an array's file is missing."""
        assert self.facts
        graph = self.model.graph
        for kind, count in (("input", len(graph.input)), ("output", len(graph.output)), ("bound", len(graph.output))):
            for number in range(count):
                if not (self.folder / DATA / f"{kind}_{number}.pb").is_file():
                    raise DamagedTest(f"{self.folder.name}: there is no {DATA}/{kind}_{number}.pb")

    def tensors(self, kind: str) -> list[Array]:
        """Read all files `kind`_0.pb, `kind`_1.pb and so on."""
        found: list[Array] = []
        while (path := self.folder / DATA / f"{kind}_{len(found)}.pb").exists():
            try:
                found.append(read(path))
            except Exception as error:
                raise self._damaged(f"{DATA}/{path.name}", error) from None
        return found

    def _damaged(self, name: str, error: Exception) -> DamagedTest:
        why = one_line(f"{type(error).__name__}: {error}")
        return DamagedTest(f"{self.folder.name}: {name} cannot be read ({why})")


def read(path: Path) -> Array:
    """Read a tensor."""
    return np.asarray(numpy_helper.to_array(onnx.load_tensor(path)))


def judge(test: Test, got: Sequence[Array], precision: str | None = None, accumulate: str | None = None) -> Verdict:
    """Compare outputs with the right ones, and with those that can be defended.

    Parameters
    ----------
    test : Test
    got : sequence of array
    precision : {None, "tf32"}
        What the target claims to round the factors of float32 products to.
    accumulate : {None, "float16", "bfloat16"}
        A type that the target claims to sum in itself.

    Returns
    -------
    Verdict
        "agrees" if each element is right within its bound, or within the bound of what the target claims. "differs" if
        one answer explains all elements: the right one or one whole alternative, each element within its bound (or that
        of a less precise way to compute), or one of the answer's element alternatives. "inconsistent" if each element
        is right or that of an alternative about NaN. Otherwise "wrong".
    """
    expected = test.tensors("output")
    narrow = [_narrowed(*pair) for pair in zip(expected, got, strict=False)]
    if len(got) == len(expected) and any(a is not b for a, b in zip(narrow, got, strict=True)):
        verdict = judge(test, narrow, precision, accumulate)
        told = f"right values, in {got[0].dtype}" + (f"; {verdict.reason}" if verdict.reason else "")
        return Verdict(DIFFERS, told) if verdict.kind in (AGREES, DIFFERS) else verdict
    bounds = test.tensors("bound")
    reason = difference(expected, bounds, got, False)
    if reason is None:
        other_bits = test.facts["bits"] and difference(expected, bounds, got, True) is not None
        return Verdict(DIFFERS, "equal values, other bits") if other_bits else Verdict(AGREES)
    answers = _answers(test, expected)
    claims = {precision, "accumulate" if accumulate == test.facts["type"] else None} - {None}
    scale = list(_scale(test, bounds, claims, expected, got))
    for limits, claimed, told in scale:
        for whole in answers:
            sentences = whole.accepts(got, limits)
            if sentences is not None:
                sentences = [*sentences, *([told] if told else [])]
                return Verdict(DIFFERS, "; ".join(sentences)) if sentences else Verdict(AGREES, claimed)
    wide = _widened(expected, got)
    if wide and any(whole.accepts(wide, bounds) is not None for whole in answers):
        return Verdict(DIFFERS, "float64 computed in float32")
    if _misshapen(expected, got):
        return Verdict(WRONG, reason)
    reason, element = _cited(answers, [limits for limits, _, _ in scale], got)
    if _mixes_nan(answers, got, bounds):
        return Verdict(INCONSISTENT, f"NaN or not, depending on where it is: {reason}", element)
    return Verdict(WRONG, reason, element)


def _cited(
    answers: Sequence[_Answer], scale: Sequence[Sequence[Array]], got: Sequence[Array]
) -> tuple[str, tuple[int, ...]]:
    """Describe the first element that no answer explains within any bound; return its output and index, too.

    Where each element is explained by some answer, but no answer explains all, it is the first one that the right
    answer does not explain.
    """
    right, bounds = answers[0], scale[0]
    unexplained = strictest = right.unexplained(got, bounds)
    for answer in answers:
        for limits in scale if not _misshapen(answer.outputs, got) else ():
            left = answer.unexplained(got, limits)
            unexplained = [a & b for a, b in zip(unexplained, left, strict=True)]
    shown = unexplained if any(each.any() for each in unexplained) else strictest
    number = next(n for n, each in enumerate(shown) if each.any())
    each = right.outputs[number], bounds[number], got[number]
    at = tuple(int(i) for i in np.argwhere(shown[number])[0])
    count = int(unexplained[number].sum())
    return _described(number, *each, _wrong(*each, False), at, unexplained=count), (number, *at)


def _widened(expected: Sequence[Array], got: Sequence[Array]) -> list[Array]:
    """Return float64 outputs with float32's largest values replaced by float64's; empty where there are none."""
    if _misshapen(expected, got) or got[0].dtype != np.float64:
        return []
    at = np.abs(got[0]) == FORMATS["float32"][2]
    wide = np.where(at, np.copysign(FORMATS["float64"][2], got[0]), got[0])
    return [wide, *got[1:]] if at.any() else []


def refused(test: Test, reason: str) -> Verdict:
    """Return the verdict on a refusal: right where a correct checker rejects the model, too."""
    return Verdict(REFUSES if test.facts["valid"] else AGREES, reason)


@dataclass(frozen=True)
class _Answer:
    """The right answer (name "") or a whole alternative, and its element alternatives as (sentence, outputs)."""

    name: str
    sentence: str
    outputs: Sequence[Array]
    nan: bool
    elements: Sequence[tuple[str, Sequence[Array]]]

    def unexplained(self, got: Sequence[Array], bounds: Sequence[Array]) -> list[Array]:
        """Return masks of the elements that are neither the answer's nor those of one of its element alternatives."""
        wrong = self._off(got, bounds)
        for _, outputs in self.elements:
            wrong = [w & ~self._equals(n, outputs[n], bounds[n], got[n]) for n, w in enumerate(wrong)]
        return wrong

    def _off(self, got: Sequence[Array], bounds: Sequence[Array]) -> list[Array]:
        limits = [_limits(*pair) for pair in zip(self.outputs, bounds, strict=True)] if self.name else bounds
        return [_wrong(*each, False) for each in zip(self.outputs, limits, got, strict=True)]

    def accepts(self, got: Sequence[Array], bounds: Sequence[Array]) -> list[str] | None:
        """Return the sentences of what explains the elements of all outputs, or None where something does not."""
        if _misshapen(self.outputs, got):
            return None
        wrong = self._off(got, bounds)
        sentences = [self.sentence] if self.name else []
        explained = [
            (sentence, [self._equals(n, outputs[n], bounds[n], got[n]) for n in range(len(got))])
            for sentence, outputs in self.elements
        ]
        while any(each.any() for each in wrong):  # name the alternative that explains the most first
            most = max(explained, key=lambda one: _count(wrong, one[1]), default=None)
            if most is None or not _count(wrong, most[1]):
                return None
            sentences.append(most[0])
            wrong = [w & ~e for w, e in zip(wrong, most[1], strict=True)]
        return sentences

    def _equals(self, number: int, other: Array, bound: Array, theirs: Array) -> Array:
        """Return a mask of the elements that equal an element alternative, where that differs from the answer."""
        ours = self.outputs[number]
        elsewhere = _wrong(ours, np.zeros(ours.shape), other, False)
        return np.asarray(elsewhere & ~_wrong(other, _limits(other, bound), theirs, False))


def _count(wrong: Sequence[Array], explained: Sequence[Array]) -> int:
    return sum(int((w & e).sum()) for w, e in zip(wrong, explained, strict=True))


def _answers(test: Test, expected: Sequence[Array]) -> list[_Answer]:
    """Return the right answer and the whole alternatives, each with its element alternatives."""
    others = test.facts["alternatives"]
    arrays = {name: test.tensors(f"alternative_{name}") for name in others}
    elements: dict[str, list[tuple[str, Sequence[Array]]]] = {}
    for name, about in others.items():
        if about["kind"] == "element":
            elements.setdefault(about["of"] or "", []).append((about["sentence"], arrays[name]))
    wholes = [
        _Answer(name, about["sentence"], arrays[name], about["verdict"] != DIFFERS, elements.get(name, []))
        for name, about in others.items()
        if about["kind"] == "whole"
    ]
    return [_Answer("", "", expected, False, elements.get("", [])), *wholes]


def _scale(
    test: Test, bounds: Sequence[Array], claims: set[str | None], expected: Sequence[Array], got: Sequence[Array]
) -> Iterator[tuple[Sequence[Array], str, str]]:
    """Yield bounds, the strictest first, with the sentence of what is claimed, and the one to print if it is not."""
    yield bounds, "", ""
    for name, (claim, sentence) in _LOOSER.items():
        if looser := test.tensors(f"{name}_bound"):
            # A looser bound is never below the bound itself.
            limits = [np.maximum(*pair) for pair in zip(bounds, looser, strict=True)]
            factor = f", {_factor(expected, bounds, got):.3g} times the bound"
            yield limits, sentence, "" if claim in claims else sentence + factor


def _factor(expected: Sequence[Array], bounds: Sequence[Array], got: Sequence[Array]) -> float:
    """Return how many times its bound the worst finite element is off."""
    worst = 0.0
    with np.errstate(all="ignore"):
        for ours, bound, theirs in zip(expected, bounds, got, strict=False):
            if ours.shape == theirs.shape and ours.dtype.kind not in "iu":
                off = np.abs(ours.astype(np.float64) - theirs.astype(np.float64)) / bound
                worst = max(worst, float(off[np.isfinite(off)].max(initial=0.0)))
    return worst


def _mixes_nan(answers: Sequence[_Answer], got: Sequence[Array], bounds: Sequence[Array]) -> bool:
    """Return whether each element is that of the right answer or of an alternative about NaN."""
    wrong: list[Array] | None = None
    for answer in answers:
        if (answer.nan or not answer.name) and not _misshapen(answer.outputs, got):
            mine = [_wrong(*each, False) for each in zip(answer.outputs, bounds, got, strict=True)]
            for _, outputs in answer.elements:
                mine = [m & ~answer._equals(n, outputs[n], bounds[n], got[n]) for n, m in enumerate(mine)]
            wrong = mine if wrong is None else [a & b for a, b in zip(wrong, mine, strict=True)]
    nan = any(answer.nan for answer in answers)
    return nan and wrong is not None and not any(each.any() for each in wrong)


def _misshapen(expected: Sequence[Array], got: Sequence[Array]) -> str | None:
    """Describe how the number, shapes or types of outputs differ from those expected; None if they do not."""
    if len(got) != len(expected):
        return f"{len(got)} outputs, expected {len(expected)}"
    for number, (ours, theirs) in enumerate(zip(expected, got, strict=True)):
        if theirs.shape != ours.shape:
            return f"output {number} has the shape {theirs.shape}, expected {ours.shape}"
        if theirs.dtype != ours.dtype:
            return f"output {number} is {theirs.dtype}, expected {ours.dtype}"
    return None


def _narrowed(ours: Array, theirs: Array) -> Array:
    """Round an output of a wider floating type to the type that was asked for."""
    floating = ours.dtype.name in FORMATS and theirs.dtype.name in FORMATS
    with np.errstate(all="ignore"):
        return theirs.astype(ours.dtype) if floating and theirs.dtype.itemsize > ours.dtype.itemsize else theirs


def matches(expected: Sequence[Array], bounds: Sequence[Array], got: Sequence[Array]) -> bool:
    """Return whether outputs are those of an alternative, each element within the largest finite bound.

    Where sums may overflow in some order, elements within a tenth of the type's largest value may be anything.
    """
    limits = [_limits(*pair) for pair in zip(expected, bounds, strict=True)]
    return difference(expected, limits, got, False) is None


def _limits(expected: Array, bound: Array) -> Array:
    limits = np.full(expected.shape, bound[np.isfinite(bound)].max(initial=0))
    if np.isinf(bound).any():
        size = np.abs(expected.astype(np.float64))
        limits[np.isfinite(size) & (size > 0.9 * FORMATS[expected.dtype.name][2])] = np.inf
    return limits


def difference(
    expected: Sequence[Array], bounds: Sequence[Array], got: Sequence[Array], bits: bool, with_bound: bool = False
) -> str | None:
    """Describe the first wrong element, or a wrong shape, with its bound if asked; None if there is none."""
    misshapen = _misshapen(expected, got)
    if misshapen:
        return misshapen
    for number, (ours, bound, theirs) in enumerate(zip(expected, bounds, got, strict=True)):
        wrong = _wrong(ours, bound, theirs, bits)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            return _described(number, ours, bound, theirs, wrong, at, with_bound)
    return None


def _wrong(ours: Array, bound: Array, theirs: Array, bits: bool) -> Array:
    if bits:
        unsigned = f"u{ours.dtype.itemsize}"
        return np.asarray(ours.view(unsigned) != np.ascontiguousarray(theirs).view(unsigned))
    if ours.dtype.kind in "iu":
        return np.asarray(ours != theirs)
    with np.errstate(all="ignore"):
        a, b = ours.astype(np.float64), theirs.astype(np.float64)
        return np.asarray(~((a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= bound) | np.isinf(bound)))


def _described(
    number: int,
    ours: Array,
    bound: Array,
    theirs: Array,
    wrong: Array,
    at: tuple[int, ...],
    with_bound: bool = False,
    unexplained: int = 0,
) -> str:
    """Describe one element of an output, and count the wrong ones, with those that no alternative explains."""
    text = f"output {number}{list(at)} is {theirs[at].item()!r}, expected {ours[at].item()!r}"
    text += f" within {float(bound[at]):.3g}" if with_bound else ""
    with np.errstate(all="ignore"):
        ratio = (np.abs(ours.astype(np.float64) - theirs.astype(np.float64)) / bound)[wrong].max()
    text += f" ({int(wrong.sum())} of {wrong.size} elements differ"
    text += f", {unexplained} of them from every alternative, too" if 0 < unexplained < wrong.sum() else ""
    return f"{text}, by up to {ratio:.3g} times the bound)" if np.isfinite(ratio) else f"{text})"
