"""Whether what came out of a test is right."""

from __future__ import annotations

import json
from collections.abc import Sequence
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
REFUSES = "refuses"
CRASHES = "crashes"
HANGS = "hangs"
ALL = (AGREES, DIFFERS, WRONG, REFUSES, CRASHES, HANGS)
FAILURES = (WRONG, CRASHES, HANGS)
FACTS = ("name", "operator", "opset", "type", "rule", "sentence", "status", "discussions", "alternatives", "bits")

_LESS_PRECISE = 2.0**29  # how much larger u of float32 is than that of float64


class DamagedTest(Exception):
    """A test of a suite that cannot be used; the message names it and says why."""


@dataclass(frozen=True)
class Verdict:
    """One of ALL, and why: what differs, or the target's message."""

    kind: str
    reason: str = ""


@dataclass(frozen=True)
class Test:
    """The folder of a test."""

    folder: Path

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What case.json says."""
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
        """Read input_N.pb, output_N.pb and so on, as many as there are."""
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


def judge(test: Test, got: Sequence[Array]) -> Verdict:
    """Compare outputs with the right ones, and with the defensible ones where they are not."""
    expected, bounds = test.tensors("output"), test.tensors("bound")
    narrow = [_narrowed(*pair) for pair in zip(expected, got, strict=False)]
    if len(got) == len(expected) and any(a is not b for a, b in zip(narrow, got, strict=True)):
        verdict = judge(test, narrow)
        return verdict if verdict.kind == WRONG else Verdict(DIFFERS, f"right values, in {got[0].dtype}")
    reason = difference(expected, bounds, got, test.facts["bits"])
    if reason is None:
        return Verdict(AGREES)
    if test.facts["bits"] and difference(expected, bounds, got, False) is None:
        return Verdict(DIFFERS, "equal values, other bits")
    wide = test.tensors("wide_bound")
    if wide and difference(expected, wide, got, False) is None:
        return Verdict(DIFFERS, f"sums in {test.facts['type']}")
    for name, sentence in test.facts["alternatives"].items():
        if matches(test.tensors(f"alternative_{name}"), bounds, got):
            return Verdict(DIFFERS, sentence)
    return Verdict(WRONG, reason)


def _narrowed(ours: Array, theirs: Array) -> Array:
    """Round an output of a wider floating type to the type that was asked for."""
    floating = ours.dtype.name in FORMATS and theirs.dtype.name in FORMATS
    with np.errstate(all="ignore"):
        return theirs.astype(ours.dtype) if floating and theirs.dtype.itemsize > ours.dtype.itemsize else theirs


def matches(expected: Sequence[Array], bounds: Sequence[Array], got: Sequence[Array]) -> bool:
    """Tell whether outputs are other expected ones, each element within the largest of the bounds.

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
    """Describe the first output that is not as expected, and how far its first wrong element may be off if asked."""
    if len(got) != len(expected):
        return f"{len(got)} outputs, expected {len(expected)}"
    for number, (ours, bound, theirs) in enumerate(zip(expected, bounds, got, strict=True)):
        if theirs.shape != ours.shape:
            return f"output {number} has the shape {theirs.shape}, expected {ours.shape}"
        if theirs.dtype != ours.dtype:
            return f"output {number} is {theirs.dtype}, expected {ours.dtype}"
        wrong = _wrong(ours, bound, theirs, bits)
        if wrong.any():
            return _described(number, ours, bound, theirs, wrong, with_bound)
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


def _described(number: int, ours: Array, bound: Array, theirs: Array, wrong: Array, with_bound: bool) -> str:
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    text = f"output {number}{list(at)} is {theirs[at].item()!r}, expected {ours[at].item()!r}"
    text += f" within {float(bound[at]):.3g}" if with_bound else ""
    with np.errstate(all="ignore"):
        ratio = (np.abs(ours.astype(np.float64) - theirs.astype(np.float64)) / bound)[wrong].max()
    text += f" ({int(wrong.sum())} of {wrong.size} elements differ"
    if not np.isfinite(ratio):
        return f"{text})"
    hint = "; as sums in float32 are" if ours.dtype == np.float64 and ratio <= _LESS_PRECISE else ""
    return f"{text}, by up to {ratio:.3g} times the bound{hint})"
