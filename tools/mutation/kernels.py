"""Mutation testing of the CUDA sources: change one operator, number, name, condition or statement at a time.

`python -m tools.mutation.kernels FILE…` runs the mutants of these files of kernels_cu (default: all files), or a random
`--count` of them, and prints how many were noticed, how, and which were not. A mutant is noticed if it does not
compile, or if on one of the problems of `tests.kernels` or in `division` a result is wrong or the emulator reports a
violation. Mutants with right results that only the emulator's checks notice are counted separately. Mutants known to be
as right as the original are listed, with reasons, in `kernels_equivalent`.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from emulated_cuda.emulator.engine import module
from gpuconv._errors import CompileError
from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.build import kernel_files
from gpuconv.cuda.variants import all_variants
from tests.emulator import EmulatorError, UnsupportedPtx
from tests.harness import division, phases
from tests.harness.changed_kernels import changed_kernels
from tests.kernels.registry import files, problems_of
from tools.mutation.kernels_equivalent import EQUIVALENT

ARCHITECTURE = "sm_80"
MAX_STEPS = 2_000_000  # instructions per warp; the original kernels take a tenth of it
SURVIVED, SAME, KNOWN, CHECKS = "not noticed", "the same program", "known to be equivalent", "only by the checks"
_KNOWN = {name for names in EQUIVALENT.values() for name in names}

FILES = {path: problems_of(path) for path in files()}


# ---------------------------------------------------------------- mutants


@dataclass(frozen=True)
class Mutant:
    """One replacement: file, line, description, and the file's text with it."""

    path: str
    line: int
    words: str
    text: str

    @property
    def name(self) -> str:
        """A name that does not change if lines are added elsewhere."""
        return f"{self.path}: {self.words}"

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.words}"


_OPERATORS = (
    (" < ", " <= "), (" < ", " > "), (" <= ", " < "), (" > ", " >= "), (" > ", " < "), (" >= ", " > "),
    (" == ", " != "), (" != ", " == "), (" + ", " - "), (" - ", " + "), (" * ", " + "), (" / ", " % "),
    (" % ", " / "), (" += ", " -= "), (" -= ", " += "), (" += ", " = "), (" && ", " || "), (" || ", " && "),
    (" ? ", " || true ? "), (" ? ", " && false ? "), (" >> ", " << "), (" << ", " >> "),
)  # fmt: skip
_PAIRS = (  # names that replace each other
    "p.stride taps.advance", "taps.start taps.advance", "taps.row taps.advance", "taps.rows p.all_rows",
    "x_batch x_channel", "x_batch y_batch", "x_channel y_channel", "x_stride y_stride", "y_batch y_channel",
    "x_extent x_stride", "filters channels", "filters pitch", "p.pixels p.pitch", "first_row y_first",
    "BLOCK_M BLOCK_N", "BLOCK_N BLOCK_K", "THREAD_M THREAD_N", "kChunksM kChunksN", "kLanesM kLanesN",
    "kRows kColumns", "kRowStep kColumns", "lane_m lane_n", "warp_m warp_n", "m_tile n_tile", "m_tiles n_tiles",
    "weight_stage input_stage", "stage filled", "m0 column0", "a.stride a.dilation", "a.stride a.common",
    "a.pad a.extent", "rest sum", "first last", "first count", "along across", "first_m first_pair",
    "m_square row_square", "m_squares row_squares", "w_filter w_channel", "w_group w_filter", "p.rows p.pitch",
    "x_step place_step", "x_stride place_stride", "indices_batch y_batch", "indices_channel y_channel",
    "indices_stride y_stride", "window.first window.taps", "p.stride p.pad", "p.reach p.pad", "p.y_extent p.dilation",
    "later best", "element value", "image plane", "channel plane", "least lowest", "true false", "quotient split",
    "tap row",
)  # fmt: skip
_EXPRESSIONS = (
    (r"!(?=[\w(])", lambda found: ""),
    (r"0\.f\b", lambda found: "1.f"),
    (r"2(?:half|bfloat16)_rn\b", lambda found: found.replace("_rn", "_rz")),
    (r"\bunsigned(?: long long)?(?=[(>])", lambda found: found.replace("unsigned", "int").removeprefix("int ")),
    (r"\b0x[0-9a-f]+\b", lambda found: hex(int(found, 16) ^ 1)),
    (r"(?<![\w.])\d+(?![\w.])", lambda found: str(int(found) + 1)),
    (r"(?<![\w.])[1-9]\d*(?![\w.])", lambda found: str(int(found) - 1)),
    (r"\b(?:continue|break|return);", lambda found: ";"),
)
_STATEMENT = re.compile(
    r"^(\s*(?:(?:if|else|for) .*\) |else )?)(?!return|const|constexpr|static|using|struct|template|extern|[A-Z]\w* \w|"
    r"(?:int|bool|unsigned|float|double|T\*?|Index|long long) \**\w+)([\w\[(*].*;)(\s*//.*)?$"
)
_NO_PROGRAM = re.compile(r"\s*(#|//|static_assert|asm|extern|(template|struct|DEVICE)[^{]*(\{?\s*(//.*)?|:.*)$)")
_HEAD = re.compile(r"\s*(template.*)?DEVICE[^{]*\{")


def _replaced(line: str, start: int, stop: int, other: str) -> tuple[str, str]:
    return line[:start] + other + line[stop:], f"{line[start:stop].strip()} -> {other.strip() or 'nothing'}"


def _swaps(code: str) -> Iterator[tuple[int, int, str]]:
    for old, new in _OPERATORS:
        yield from ((found.start(), found.end(), new) for found in re.finditer(re.escape(old), code))
    for pair in _PAIRS:
        for old, new in (pair.split(), pair.split()[::-1]):
            for found in re.finditer(rf"(?<![\w.]){re.escape(old)}\b" if "." in old else rf"\b{old}\b", code):
                yield found.start(), found.end(), new
    for pattern, change in _EXPRESSIONS:
        yield from ((found.start(), found.end(), change(found[0])) for found in re.finditer(pattern, code))


def _conditions(code: str) -> Iterator[tuple[int, int, str]]:
    """Yield replacements of `if` conditions by ones that are always or never true."""
    for found in re.finditer(r"\bif \(", code):
        depth, at = 1, found.end()
        while depth and at < len(code):
            depth += {"(": 1, ")": -1}.get(code[at], 0)
            at += 1
        condition = code[found.end() : at - 1]
        yield from ((found.end(), at - 1, f"{always} && ({condition})") for always in ("false",))
        yield found.end(), at - 1, f"true || ({condition})"


def _changes(line: str) -> Iterator[tuple[str, str]]:
    """Yield each changed line with a description; function heads, assertions and inline PTX do not change."""
    code, head = line.split("//")[0], _HEAD.match(line)
    if not _NO_PROGRAM.match(line):
        for start, stop, other in (*_swaps(code), *_conditions(code)):
            if head is None or start >= head.end():
                yield _replaced(line, start, stop, other)
    found = _STATEMENT.match(line)
    if found is not None:
        yield found[1] + ";", "statement deleted"


def mutants(path: str) -> list[Mutant]:
    """Return every mutant of a file of kernels_cu."""
    lines = kernel_files.folder().joinpath(*path.split("/")).read_text(encoding="utf-8").split("\n")
    found: dict[str, Mutant] = {}
    seen: Counter[str] = Counter()
    for at, line in enumerate(lines):
        for other, change in _changes(line):
            text = "\n".join([*lines[:at], other, *lines[at + 1 :]])
            if text in found:
                continue
            words = f"{line.split('//')[0].strip()}  [{change}]"
            seen[words] += 1
            found[text] = Mutant(path, at + 1, words + f" no. {seen[words]}" * (seen[words] > 1), text)
    return list(found.values())


# ---------------------------------------------------------------- running mutants


def _runs(path: str, **options: Any) -> Iterator[Callable[[], Any]]:
    for one in FILES[path]:
        yield partial(one, ARCHITECTURE, max_steps=MAX_STEPS, **options)


def _trials(path: str, **options: Any) -> Iterator[Callable[[], Any]]:
    yield from _runs(path, **options)
    if path in ("conv/phases.cuh", "base/geometry.cuh"):
        yield from (partial(division.check, wide, side) for wide in (False, True) for side in division.PREPARED)
    if path == "conv/phases.cuh":
        yield from (partial(phases.check, wide) for wide in (False, True))


def _found(path: str, **options: bool) -> str | None:
    """Return what notices a mutant first, or None."""
    for trial in _trials(path, **options):
        try:
            trial()
        except CompileError:
            return "does not compile"
        except UnsupportedPtx:
            return "PTX that the emulator does not know"
        except EmulatorError as error:
            return "report: " + _kind(str(error))
        except (AssertionError, pytest.fail.Exception):
            return "wrong result"
        except ValueError:  # NumPy: an array in the struct has another length than the plan's
            return "a struct that the plan cannot fill"
    return None


def _kind(message: str) -> str:
    """Return the first words of a report, without names and numbers."""
    if "were never written" in message:
        return "never written"
    return re.sub(r"^\S+: | at address.*", "", message.split("\n")[0]).split(":")[0][:40]


def _kernels(path: str) -> list[str]:
    """Return the PTX, without line numbers, of all kernels that a file's problems launch."""
    names = _launched(path)
    launched = [variant for variant in all_variants() if variant.name in names]
    return [compiler.ptx(one, (*one.architectures, ARCHITECTURE)[0], line_info=False) for one in launched]


@cache
def _launched(path: str) -> frozenset[str]:
    return frozenset(launch.variant.name for trial in _runs(path) for launch in trial().launches)


@cache
def _unbroken(path: str) -> list[str]:
    return _kernels(path)


def verdict(mutant: Mutant) -> str:
    """Return how a mutant is noticed: one of the constants above, or the words of `_found`."""
    _unbroken(mutant.path)
    folder = os.environ["GPUCONV_CACHE_DIR"]
    before = set(os.listdir(folder))
    with changed_kernels({mutant.path: mutant.text}):
        found = _found(mutant.path)
        if found is None:
            same = _kernels(mutant.path) == _unbroken(mutant.path)
            found = SAME if same else KNOWN if mutant.name in _KNOWN else SURVIVED
        elif found.startswith("report") and _found(mutant.path, check_shared=False, check_global=False) is None:
            found = CHECKS + found.removeprefix("report")
    for name in set(os.listdir(folder)) - before:
        Path(folder, name).unlink()
    if module.cache_info().currsize > 256:
        module.cache_clear()
    return found


def _use_private_cache(folder: str) -> None:
    """Give this process a kernel cache of its own, since mutants are never needed again."""
    os.environ["GPUCONV_CACHE_DIR"] = tempfile.mkdtemp(dir=folder)


def chosen(paths: Sequence[str], count: int | None, seed: int) -> dict[str, list[Mutant]]:
    """Return mutants by file: ``count`` of them at random with equal chances, or all."""
    every = [mutant for path in paths for mutant in mutants(path)]
    picked = every if count is None else Random(seed).sample(every, min(count, len(every)))
    return {path: [mutant for mutant in picked if mutant.path == path] for path in paths}


def report(path: str, todo: Sequence[Mutant], jobs: int) -> int:
    """Run a file's mutants and print the survivors and the counts; return the number of survivors."""
    verdicts: Counter[str] = Counter()
    with (
        tempfile.TemporaryDirectory() as caches,
        ProcessPoolExecutor(jobs, initializer=_use_private_cache, initargs=(caches,)) as pool,
    ):
        for mutant, found in zip(todo, pool.map(verdict, todo, chunksize=4), strict=True):
            verdicts[found] += 1
            if found == SURVIVED:
                print(mutant, flush=True)
    print(f"{path}: {len(todo)} mutants")
    for words, count in verdicts.most_common():
        print(f"  {count:5} {words}")
    sys.stdout.flush()
    return verdicts[SURVIVED]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", default=[*FILES], metavar="FILE", help="files of kernels_cu (all)")
    parser.add_argument("--count", type=int, help="number of mutants to draw at random (all)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the choice (0)")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes (1)")
    options = parser.parse_args()
    picked = chosen(options.files, options.count, options.seed)
    return min(1, sum([report(path, todo, options.jobs) for path, todo in picked.items() if todo]))


if __name__ == "__main__":
    sys.exit(main())
