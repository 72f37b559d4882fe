#!/usr/bin/env python3
"""Judge a folder of outputs by the suite, with Python's standard library and NumPy only.

``python3 judge.py SUITE OUTPUTS`` (Python 3.10 or newer) reads SUITE/suite.json, and for each TEST either
OUTPUTS/TEST/refused.txt (why the target does not support the test) or OUTPUTS/TEST/output_0.npy, output_1.npy …;
bfloat16 as uint16 bits. Instead of ``.npy``, outputs may be flat files (``.flat``), see README.txt. Each test that does
not agree is one line.

Exit codes: 1 for wrong, inconsistent and crashes (no outputs, or unreadable ones), with --strict also for differs;
2 for a broken suite; else 0.
"""

from __future__ import annotations

import argparse
import json
import math
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

VERDICTS = ("agrees", "differs", "inconsistent", "wrong", "refuses", "crashes")
FAILURES = {"inconsistent", "wrong", "crashes"}
TYPES = {1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool",
         10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16"}  # fmt: skip
# Floating types: bits of the significand, exponent of the smallest subnormal, largest value.
FORMATS = {
    "bfloat16": (8, -133, (2 - 2.0**-7) * 2.0**127),
    "float16": (11, -24, 65504.0),
    "float32": (24, -149, (2 - 2.0**-23) * 2.0**127),
    "float64": (53, -1074, sys.float_info.max),
}
# Less precise ways to compute: their bounds, what --precision and --accumulate call them, and a sentence.
LOOSER = (
    ("tf32_bound", "tf32", "factors rounded to TF32"),
    ("narrow_bound", None, "float64 computed in float32"),
    ("wide_bound", "accumulate", "sums in the 16-bit type itself"),
    ("transform_bound", None, "as precise as a transform such as Winograd's"),
)


Array = Any
Claims = Callable[[str], "set[str]"]  # what the target claims, by the type of the outputs


class Unreadable(Exception):
    """A file that cannot be used; the message says why."""


class Tensor:
    """An array and its ONNX type; bfloat16 is kept as uint16 bits."""

    def __init__(self, kind: str, data: Array) -> None:
        """Keep the name of the type, and the data as stored."""
        self.kind = kind
        self.data = data

    def floats(self) -> Array:
        """Return the elements in float64."""
        if self.kind == "bfloat16":
            return (self.data.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return self.data.astype(np.float64)

    def bits(self) -> Array:
        """Return the elements as unsigned integers."""
        return self.data.view(f"u{self.data.dtype.itemsize}")


class Answer:
    """One set of outputs that may be given: of the main rule, or of an alternative.

    Attributes: name ("" for the main one), sentence, whole, of (name of the whole alternative that an element
    alternative belongs to), nan (whether elements mixed with the main ones are "inconsistent"), outputs.
    """

    def __init__(self, name: str, facts: dict[str, Any], outputs: list[Tensor]) -> None:
        """Keep what case.json says about the alternative, and its outputs."""
        self.name, self.sentence = name, facts.get("sentence", "")
        self.of, self.whole = facts.get("of") or "", facts.get("kind", "whole") == "whole"
        self.nan = facts.get("verdict") == "inconsistent when mixed"
        self.outputs = outputs


# ---------------------------------------------------------------- files


def read_npy(path: Path) -> Tensor:
    """Read a .npy file; its header must be of version 1 or 2, and not longer than the file."""
    with path.open("rb") as stream:
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise Unreadable(f"version {version} of .npy")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(stream)
        content = stream.read()
    kind = "bfloat16" if dtype.kind == "V" and dtype.itemsize == 2 else dtype.name
    if kind not in TYPES.values():
        raise Unreadable(f"it has the type {dtype.str}")
    if len(shape) > 8 or min(shape, default=0) < 0:
        raise Unreadable(f"it has the shape {shape}")
    return Tensor(kind, _array(content, "<u2" if kind == "bfloat16" else dtype, shape, "F" if fortran else "C"))


def _array(content: bytes, dtype: Any, shape: Sequence[int], order: Any = "C") -> Array:
    count, size = math.prod(shape), np.dtype(dtype).itemsize
    if count * size > len(content):
        raise Unreadable("it is too short")
    array = np.frombuffer(content, dtype, count).reshape(shape, order=order)
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="))).reshape(shape)


def read_flat(path: Path) -> Tensor:
    """Read the first record of a flat file."""
    content = path.read_bytes()
    if content[:8] != b"FLAT0001" or len(content) < 16 + 176:
        raise Unreadable("it is no flat file with a record")
    count, kind, rank, *dims = struct.unpack_from("<q96x10q", content, 8)
    shape = dims[: max(rank, 0)]
    if count < 1 or kind not in TYPES or not 0 <= rank <= 8 or min(shape, default=0) < 0:
        raise Unreadable(f"its first record has the type {kind}, the rank {rank} and the sizes {dims}")
    dtype = np.dtype("u2" if TYPES[kind] == "bfloat16" else TYPES[kind]).newbyteorder("<")
    return Tensor(TYPES[kind], _array(content[192:], dtype, shape))


def read(path: Path) -> Tensor:
    """Read a .npy or a flat file; raise Unreadable where that fails."""
    try:
        return read_npy(path) if path.suffix == ".npy" else read_flat(path)
    except Unreadable as error:
        raise Unreadable(f"{path.name}: {error}") from None
    except Exception as error:
        raise Unreadable(f"{path.name}: {line(f'{type(error).__name__}: {error}')}") from None


def line(text: str) -> str:
    """Shorten text to one printable line."""
    return "".join(c if " " <= c <= "~" else " " for c in text[:200]).strip()


class Test:
    """A test of the suite."""

    def __init__(self, folder: Path) -> None:
        """Read case.json and the arrays that judging needs; raise Unreadable where something is missing."""
        self.data = folder / "test_data_set_0"
        try:
            self.facts = json.loads((folder / "case.json").read_text(encoding="utf-8"))
            self.type, others = str(self.facts["type"]), dict(self.facts["alternatives"])
            self.bits, self.valid = bool(self.facts.get("bits")), bool(self.facts.get("valid", True))
        except Exception as error:
            raise Unreadable(f"case.json: {line(f'{type(error).__name__}: {error}')}") from None
        outputs = self.numbered("output")
        self.main, self.bounds = Answer("", {}, outputs), self.limits("bound", outputs)
        if not outputs or not self.bounds:
            raise Unreadable("there is no output_0.npy or bound_0.npy")
        self.others = [self.alternative(name, entry) for name, entry in others.items()]
        wholes = {answer.name: answer for answer in [self.main, *self.others] if answer.whole}
        for other in self.others:
            if not other.whole and (other.of not in wholes or shapes(other) != shapes(wholes[other.of])):
                raise Unreadable(f"alternative {other.name} belongs to no answer of its shapes")

    def numbered(self, kind: str) -> list[Tensor]:
        """Read KIND_0.npy, KIND_1.npy and so on, as many as there are."""
        found: list[Tensor] = []
        while (path := self.data / f"{kind}_{len(found)}.npy").is_file():
            found.append(read(path))
        if kind.startswith(("output", "alternative")):
            for number, tensor in enumerate(found):
                if number == 0 and self.type == "bfloat16" and tensor.kind == "uint16":
                    tensor.kind = "bfloat16"
        return found

    def limits(self, kind: str, outputs: list[Tensor]) -> list[Array]:
        """Read the bounds of outputs; an empty list if there are none."""
        bounds = self.numbered(kind)
        if not bounds:
            return []
        if [b.data.shape for b in bounds] != [o.data.shape for o in outputs] or any(
            b.kind != "float64" for b in bounds
        ):
            raise Unreadable(f"{kind}_N are not float64 of the shapes of the outputs")
        return [bound.data for bound in bounds]

    def scales(self, claims: Claims) -> Iterator[tuple[list[Array], str, bool]]:
        """Yield bounds from the strictest on, what the way to compute is called, and whether the target claims it."""
        yield self.bounds, "", True
        for name, claim, sentence in LOOSER:
            looser = self.limits(name, self.main.outputs)
            if looser:
                yield (
                    [np.maximum(*pair) for pair in zip(self.bounds, looser, strict=True)],
                    sentence,
                    claim in claims(self.type),
                )

    def alternative(self, name: str, facts: Any) -> Answer:
        """Read an alternative."""
        outputs = self.numbered(f"alternative_{name}")
        if not isinstance(facts, dict) or [o.kind for o in outputs] != [o.kind for o in self.main.outputs]:
            raise Unreadable(
                f"alternative_{name}_N are not {len(self.main.outputs)} arrays of the types of the outputs"
            )
        return Answer(name, facts, outputs)


def shapes(answer: Answer) -> list[Any]:
    """Return the shapes of the outputs."""
    return [output.data.shape for output in answer.outputs]


def largest(output: Tensor, bound: Array) -> Array:
    """Return how far elements of an alternative may be off: by the largest finite bound of the output.

    Where sums may overflow in some order, so that bounds are infinite, large elements may be anything.
    """
    finite = bound[np.isfinite(bound)]
    limits = np.full(output.data.shape, finite.max() if finite.size else 0.0)
    if np.isinf(bound).any() and output.kind in FORMATS:
        size = np.abs(output.floats())
        limits[np.isfinite(size) & (size > 0.9 * FORMATS[output.kind][2])] = np.inf
    return limits


# ---------------------------------------------------------------- verdicts


def narrowed(expected: list[Tensor], got: list[Tensor]) -> tuple[list[Tensor], bool]:
    """Round outputs of a wider floating type to the expected one; return them, and whether any was wider."""
    pairs = list(zip(expected, got, strict=False))
    if len(got) != len(expected):
        return got, False
    wider = [
        e.kind in FORMATS and g.kind in FORMATS and e.data.dtype.itemsize < g.data.dtype.itemsize for e, g in pairs
    ]
    return [Rounded(e.kind, g.floats()) if w else g for (e, g), w in zip(pairs, wider, strict=True)], any(wider)


class Rounded(Tensor):
    """Elements of a wider type, rounded to nearest even in the expected one; the data are float64."""

    def __init__(self, kind: str, values: Array) -> None:
        """Round the values."""
        super().__init__(kind, rounded(values, *FORMATS[kind]))

    def floats(self) -> Array:
        """Return the values."""
        return self.data


def rounded(values: Array, significand: int, smallest: int, most: float) -> Array:
    """Round float64 to nearest even in a format with `significand` bits."""
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(values)
        step = np.ldexp(1.0, np.maximum(exponent - significand, smallest))
        result = np.where(np.isfinite(values), np.rint(values / step) * step, values)
        return np.where(np.isfinite(values) & (np.abs(result) > most), np.copysign(np.inf, values), result)


def close(ours: Tensor, limit: Any, theirs: Tensor) -> Array:
    """Return for each element whether it is equal (any NaN to any NaN), or within the limit."""
    if ours.kind not in FORMATS:
        return ours.data == theirs.data
    with np.errstate(all="ignore"):
        a, b = ours.floats(), theirs.floats()
        return (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= limit) | np.isinf(limit)


def mismatch(expected: list[Tensor], got: list[Tensor]) -> str:
    """Say how the number, shapes or types of outputs are not those expected; "" if they are."""
    if len(got) != len(expected):
        return f"{len(got)} outputs, expected {len(expected)}"
    for number, (ours, theirs) in enumerate(zip(expected, got, strict=False)):
        if theirs.data.shape != ours.data.shape:
            return f"output {number} has the shape {list(theirs.data.shape)}, expected {list(ours.data.shape)}"
        if theirs.kind != ours.kind:
            return f"output {number} is {theirs.kind}, expected {ours.kind}"
    return ""


def fits(answer: Answer, got: list[Tensor], bounds: list[Array]) -> list[Array] | None:
    """Return for each element of each output whether it matches the answer; None where shapes or types differ."""
    if mismatch(answer.outputs, got):
        return None
    return [close(*each) for each in zip(answer.outputs, limits(answer, bounds), got, strict=True)]


def limits(answer: Answer, bounds: list[Array]) -> list[Array]:
    """Return how far each element may be off."""
    return [largest(*pair) for pair in zip(answer.outputs, bounds, strict=True)] if answer.name else bounds


def everywhere(found: list[Array]) -> bool:
    """Return whether all elements of all outputs fit."""
    return all(each.all() for each in found)


def judge(test: Test, got: list[Tensor], claims: Claims) -> tuple[str, str]:
    """Return the verdict on outputs and its reason."""
    got, wider = narrowed(test.main.outputs, got)
    kind, reason = compared(test, got, claims, test.bits and not wider)
    return ("differs", f"right values, in a wider type{'; ' * bool(reason)}{reason}") if wider and kind in (
        "agrees", "differs") else (kind, reason)  # fmt: skip


def compared(test: Test, got: list[Tensor], claims: Claims, bits: bool) -> tuple[str, str]:
    """Return the verdict on outputs of the expected type."""
    kind, reason = defended(test, got, claims) or ("wrong", "")
    if (
        kind == "agrees"
        and bits
        and any((a.bits() != b.bits()).any() for a, b in zip(test.main.outputs, got, strict=True))
    ):
        return "differs", "equal values, other bits"
    if kind == "wrong" and (wide := widened(test, got)) and defended(test, wide, claims):
        return "differs", "float64 computed in float32"
    if kind == "wrong" and inconsistent(test, got):
        return "inconsistent", f"NaN or not, depending on where it is: {described(test, got)}"
    return kind, reason if kind != "wrong" else mismatch(test.main.outputs, got) or described(test, got)


def widened(test: Test, got: list[Tensor]) -> list[Tensor]:
    """Return float64 outputs with float32's largest values replaced by float64's; empty where there are none."""
    if mismatch(test.main.outputs, got) or got[0].kind != "float64":
        return []
    values = got[0].data
    at = abs(values) == float(np.finfo(np.float32).max)
    wide = np.where(at, np.copysign(np.finfo(np.float64).max, values), values)
    return [Tensor("float64", wide), *got[1:]] if at.any() else []


def defended(test: Test, got: list[Tensor], claims: Claims) -> tuple[str, str] | None:
    """Find the first answer that explains all elements, within the strictest bounds possible."""
    for bounds, sentence, claimed in test.scales(claims):
        for whole in [test.main, *(other for other in test.others if other.whole)]:
            found = fits(whole, got, bounds)
            if found is not None:
                found, sentences = mixed(found, whole, test.others, got, bounds)
                if everywhere(found):
                    sentences = [whole.sentence] * bool(whole.name) + sentences
                    if not claimed:
                        sentences.append(f"{sentence}, {factor(test, got):.3g} times the bound")
                    return ("differs" if sentences or whole.name else "agrees"), "; ".join(sentences)
    return None


def mixed(
    found: list[Array], whole: Answer, others: list[Answer], got: list[Tensor], bounds: list[Array]
) -> tuple[list[Array], list[str]]:
    """Add the elements that are those of element alternatives of an answer; name the alternatives that are needed."""
    sentences = []
    for other in others:
        if other.whole or other.of != whole.name:
            continue
        more = [
            ~close(ours, 0.0, its) & close(its, limit, theirs)
            for ours, its, limit, theirs in zip(whole.outputs, other.outputs, limits(other, bounds), got, strict=True)
        ]
        if any((m & ~f).any() for m, f in zip(more, found, strict=True)):
            sentences.append(other.sentence)
            found = [f | m for f, m in zip(found, more, strict=True)]
    return found, sentences


def inconsistent(test: Test, got: list[Tensor]) -> bool:
    """Return whether each element is that of the main answer or of an alternative about NaN, if there is one."""
    about = [other for other in test.others if other.whole and other.nan]
    if not about or mismatch(test.main.outputs, got):
        return False
    total = [np.zeros(each.data.shape, bool) for each in got]
    for answer in [test.main, *about]:
        if not mismatch(answer.outputs, got):
            found = [close(*each) for each in zip(answer.outputs, test.bounds, got, strict=True)]
            found, _ = mixed(found, answer, test.others, got, test.bounds)
            total = [t | f for t, f in zip(total, found, strict=True)]
    return everywhere(total)


def factor(test: Test, got: list[Tensor]) -> float:
    """Return how many times its bound the worst finite element is off."""
    worst = 0.0
    for ours, bound, theirs in zip(test.main.outputs, test.bounds, got, strict=False):
        if ours.data.shape == theirs.data.shape and ours.kind in FORMATS and theirs.kind in FORMATS:
            with np.errstate(all="ignore"):
                ratio = np.abs(ours.floats() - theirs.floats()) / bound
            worst = max(worst, float(ratio[np.isfinite(ratio)].max(initial=0.0)))
    return worst


def described(test: Test, got: list[Tensor]) -> str:
    """Describe the first element that no answer explains within any bound.

    Where each is explained by some answer, but no answer explains all, it is the first that the main one does not.
    """
    right = fits(test.main, got, test.bounds) or []
    strictest, _ = mixed(right, test.main, test.others, got, test.bounds)
    found = strictest
    for bounds, _, _ in test.scales(lambda _: set()):
        for whole in [test.main, *(other for other in test.others if other.whole)]:
            its = fits(whole, got, bounds)
            if its is not None:
                its, _ = mixed(its, whole, test.others, got, bounds)
                found = [a | b for a, b in zip(found, its, strict=True)]
    shown = strictest if everywhere(found) else found
    for number, explained in enumerate(shown):
        if not explained.all():
            at = np.argwhere(~explained)[0].tolist()
            ours, theirs = (value(each, tuple(at)) for each in (test.main.outputs[number], got[number]))
            wrong, alone = int((~right[number]).sum()), int((~found[number]).sum())
            counts = f"{wrong} of {explained.size} elements differ"
            counts += f", {alone} of them from every alternative, too" if 0 < alone < wrong else ""
            return f"output {number}{at} is {theirs}, expected {ours} ({counts})"
    return ""


def value(tensor: Tensor, at: tuple[int, ...]) -> str:
    """Return an element as text."""
    return f"{tensor.floats()[at]:.9g}" if tensor.kind in FORMATS else str(int(tensor.data[at]))


# ---------------------------------------------------------------- the command


def outputs(folder: Path) -> list[Tensor]:
    """Read the outputs of a target for one test; raise Unreadable where there are none."""
    found: list[Tensor] = []
    while True:
        paths = [folder / f"output_{len(found)}{suffix}" for suffix in (".npy", ".flat")]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            break
        found.append(read(path))
    if not found:
        raise Unreadable("neither refused.txt nor output_0.npy nor output_0.flat")
    return found


def outcome(test: Test, folder: Path, claims: Claims) -> tuple[str, str]:
    """Return the verdict on what a target left in a folder, and its reason."""
    refused = folder / "refused.txt"
    if refused.is_file():
        with refused.open("rb") as stream:
            text = stream.read(1000).decode("ascii", "replace").replace("\ufffd", " ")
        return ("refuses" if test.valid else "agrees"), line(text.replace("\r", "\n").split("\n")[0])
    try:
        got = outputs(folder)
    except Unreadable as error:
        return "crashes", str(error)
    for ours, theirs in zip(test.main.outputs, got, strict=False):
        if ours.kind == "bfloat16" and theirs.kind == "uint16":
            theirs.kind = "bfloat16"
    return judge(test, got, claims)


def names(suite: Path, text: str) -> list[str]:
    """List the suite's tests whose name contains a text."""
    try:
        found = json.loads((suite / "suite.json").read_text(encoding="utf-8"))["tests"]
        if not all(isinstance(name, str) and name.replace("_", "").isalnum() for name in found):
            raise Unreadable("tests is no list of names")
    except Exception as error:
        sys.exit(fail(f"{suite}/suite.json: {line(f'{type(error).__name__}: {error}')}"))
    return [name for name in found if text in name]


def fail(message: str) -> int:
    """Print a message of a broken suite or a wrong call; return its exit code."""
    print(f"judge: {message}", file=sys.stderr)
    return 2


def main() -> int:
    """Judge the folder and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("suite", type=Path)
    parser.add_argument("outputs", type=Path)
    parser.add_argument("--filter", default="", help="only tests whose name contains this")
    parser.add_argument("--strict", action="store_true", help="differs fails, too")
    parser.add_argument("--precision", choices=["tf32"], help="the target rounds float32 factors to TF32")
    parser.add_argument("--accumulate", choices=["float16", "bfloat16"], help="the target sums this type in itself")
    given = parser.parse_args()

    def claims(kind: str) -> set[str]:
        return ({given.precision} if given.precision else set()) | (
            {"accumulate"} if given.accumulate == kind else set()
        )

    tests, broken, counts = names(given.suite, given.filter), 0, dict.fromkeys(VERDICTS, 0)
    if not tests or not given.outputs.is_dir():
        return fail(f"no test's name contains {given.filter!r}" if not tests else f"{given.outputs} is no folder")
    for name in tests:
        try:
            kind, reason = outcome(Test(given.suite / name), given.outputs / name, claims)
        except Unreadable as error:
            broken += 1
            fail(f"the suite is broken: {name}: {error}")
            continue
        counts[kind] += 1
        if kind != "agrees":
            print(f"{kind} {name}: {reason}")
    print(f"{len(tests) - broken} tests: " + ", ".join(f"{counts[kind]} {kind}" for kind in VERDICTS))
    failures = FAILURES | ({"differs"} if given.strict else set())
    return 2 if broken else int(any(counts[kind] for kind in failures))


if __name__ == "__main__":
    sys.exit(main())
