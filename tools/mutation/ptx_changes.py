"""Small changes of kernels' PTX, one instruction each, which `ptx` runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

from emulated_cuda.emulator.tokens import WIDTH
from gpuconv.cuda.build import kernel_files


class Change(NamedTuple):
    """A replacement of one statement: the kind of mutant, its description and the new statement."""

    kind: str
    words: str
    text: str


FOLLOWS = "launch wait"  # griddepcontrol.wait, where a launch overlaps the kernel before it

_REMOVED = {  # instructions to remove, by kind, as prefixes of opcodes
    "barrier": ("bar.sync", "barrier.sync", "barrier.cta.sync", "bar.arrive", "barrier.cluster"),
    "warp barrier": ("bar.warp.sync",),
    "fence": ("membar", "fence"),
    "group": ("cp.async.commit_group", "cp.async.bulk.commit_group", "wgmma.commit_group", "wgmma.fence"),
    "wait": (
        *("cp.async.wait_all", "cp.async.wait_group", "cp.async.bulk.wait_group", "wgmma.wait_group"),
        *("mbarrier.try_wait", "mbarrier.test_wait"),
    ),
    FOLLOWS: ("griddepcontrol.wait",),
    "arrival": ("mbarrier.arrive",),
}
_STATEMENT = re.compile(r"^\s*(?:@(!?)(%?\w+)\s+)?([a-z]\w*(?:[.:][\w:]+)*)\s*(.*);\s*(?://.*)?$")
_OTHER_COMPARISON = {
    **{old: new for pair in ("lt le", "gt ge", "eq ne", "ltu leu", "gtu geu", "equ neu", "num nan", "lo ls", "hi hs")
       for old, new in (pair.split(), pair.split()[::-1])},
}  # fmt: skip
_ADDRESSED = re.compile(r"(?:ld|st|ldu|atom|red|cp\.async\.c[ag]|ldmatrix|stmatrix)\.")
_ADDRESS = re.compile(r"\[([%$\w]+)(?:\+(-?\d+))?\]")


def changes(statement: str) -> Iterator[Change]:
    """Yield every small change of one PTX statement."""
    found = _STATEMENT.match(statement)
    if found is None:
        return
    negation, predicate, opcode, operands = found.groups()
    if predicate:
        plain = statement.replace(f"@{negation}{predicate}", "", 1)
        other = statement.replace(f"@{negation}{predicate}", f"@{'' if negation else '!'}{predicate}", 1)
        yield Change("predicate", f"{opcode}: predicate negated", other)
        yield Change("predicate", f"{opcode}: predicate removed", plain)
    yield from _removals(opcode, operands)
    yield from _comparisons(opcode, statement)
    yield from _offsets(opcode, operands, statement)
    yield from _counts(opcode, operands, statement)


def _removals(opcode: str, operands: str) -> Iterator[Change]:
    for kind, beginnings in _REMOVED.items():
        if opcode.startswith(beginnings):
            result = operands.split(",")[0].strip()
            waits = opcode.startswith(("mbarrier.try_wait", "mbarrier.test_wait"))  # replace by "has completed"
            yield Change(kind, f"{opcode} removed", f"\tsetp.eq.u32 {result}, 0, 0;" if waits else "")


def _comparisons(opcode: str, statement: str) -> Iterator[Change]:
    words = opcode.split(".")
    if words[0] == "setp" and words[1] in _OTHER_COMPARISON:
        other = ".".join(["setp", _OTHER_COMPARISON[words[1]], *words[2:]])
        yield Change("comparison", f"{opcode} -> {other}", statement.replace(opcode, other, 1))


def _offsets(opcode: str, operands: str, statement: str) -> Iterator[Change]:
    """Yield addresses that are off by the size of the access."""
    if not _ADDRESSED.match(opcode):
        return
    kind = "parameter" if opcode.startswith("ld.param") else "offset"
    size = _size(opcode, operands)
    for number, address in enumerate(_ADDRESS.finditer(statement), 1):
        for step in (size, -size):
            offset = int(address[2] or 0) + step
            if kind == "parameter" and offset < 0:
                continue
            text = f"{statement[: address.start()]}[{address[1]}+{offset}]{statement[address.end() :]}"
            yield Change(kind, f"{opcode}: address {number} {step:+}", text)


def _size(opcode: str, operands: str) -> int:
    words = opcode.split(".")
    if words[0] == "cp":
        return int(operands.split(",")[2])
    if words[0] in ("ldmatrix", "stmatrix"):
        return 16
    lanes = next((int(word[1]) for word in words if re.fullmatch(r"v[248]", word)), 1)
    return WIDTH[words[-1]] * lanes


def _counts(opcode: str, operands: str, statement: str) -> Iterator[Change]:
    """Yield other barrier numbers, wait_group counts, thread counts, arrival counts, byte counts and parities."""
    parts = [part.strip() for part in operands.split(",")]
    if opcode.startswith(("cp.async.wait_group", "cp.async.bulk.wait_group", "wgmma.wait_group")):
        groups = int(parts[0])
        yield Change("wait", f"{opcode} {groups} -> {groups + 1}", f"\t{opcode} {groups + 1};")
    elif opcode.startswith(("bar.sync", "bar.arrive", "bar.red", "barrier.sync")):
        at = 1 if opcode.startswith("bar.red") else 0
        yield _more("barrier", opcode, parts, at, 1, "number")
        if len(parts) > at + 1 + (at == 1):
            yield _more("barrier", opcode, parts, at + 1, 32, "threads")
    elif opcode.startswith(("mbarrier.init", "mbarrier.arrive.expect_tx", "mbarrier.expect_tx")):
        step = 1 if opcode.startswith("mbarrier.init") else 16
        for sign in (step, -step):
            yield _more("arrival", opcode, parts, len(parts) - 1, sign, "count" if step == 1 else "bytes")
    elif opcode.startswith(("mbarrier.try_wait.parity", "mbarrier.test_wait.parity")):
        yield _more("wait", opcode, parts, 2, 1, "parity", "xor.b32")
    elif opcode.startswith("cp.async.c") and len(parts) > 3:
        yield Change("predicate", f"{opcode}: size removed", f"\t{opcode} {', '.join(parts[:3])};")


def _more(kind: str, opcode: str, parts: list[str], at: int, step: int, what: str, by: str = "add.s32") -> Change:
    """Return the statement with one operand changed through a register of its own."""
    other = ", ".join([*parts[:at], "other", *parts[at + 1 :]])
    text = f"\t{{ .reg .b32 other; {by} other, {parts[at]}, {step}; {opcode} {other}; }}"
    return Change(kind, f"{opcode}: {what} {'flipped' if by == 'xor.b32' else f'{step:+}'}", text)


@dataclass(frozen=True)
class Mutant:
    """One change of one statement of a kernel's PTX; lines count from 0."""

    kernel: str
    line: int
    old: str
    change: Change
    source: str

    @property
    def name(self) -> str:
        """A name that is stable when statements move: the source line and the change, as in `ptx_equivalent`."""
        return f"{self.source_words}  [{self.change.words}]"

    @cached_property
    def source_words(self) -> str:
        path, _, line = self.source.rpartition(":")
        return f"{path}: {_source_line(path, int(line or 0))}"

    def text(self, whole: str) -> str:
        """Return the kernel's text with the change."""
        return with_line(whole, self.line, self.change.text)

    def __str__(self) -> str:
        old, new = " ".join(self.old.split()), " ".join(self.change.text.split()) or "nothing"
        return f"{self.kernel} {self.source}: {old} -> {new}\n        {self.name}"


def with_line(whole: str, line: int, text: str) -> str:
    lines = whole.split("\n")
    return "\n".join([*lines[:line], text, *lines[line + 1 :]])


@cache
def _source_line(path: str, line: int) -> str:
    try:
        text = kernel_files.folder().joinpath(*path.split("/")).read_text(encoding="utf-8")
    except OSError:  # a header of CUDA
        return "?"
    lines = text.split("\n")
    return " ".join(lines[line - 1].split("//")[0].split()) if 0 < line <= len(lines) else "?"


_FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"')
_PLACE = re.compile(r"\s*\.loc\s+(\d+) (\d+) \d+(?:.*inlined_at (\d+) (\d+) \d+)?")
_WRAPPERS = ("base/ptx.cuh", "base/hopper.cuh")  # thin wrappers: use the lines of their callers instead


@cache
def mutants(kernel: str, whole: str) -> tuple[Mutant, ...]:
    """Return every mutant of a kernel's text."""
    lines = whole.split("\t.section\t.debug")[0].split("\n")
    sources = _sources(lines, {number: path.rpartition("kernels_cu/")[2] for number, path in _FILE.findall(whole)})
    return tuple(
        one
        for number, line in enumerate(lines)
        for one in (Mutant(kernel, number, line, change, sources[number]) for change in changes(line))
        if not (_is_same_barrier(one, whole) or _waits_for_nothing(one, whole) or _chooses_division(one, lines))
    )


def _sources(lines: list[str], files: dict[str, str]) -> list[str]:
    """Return the source line of each PTX line; line 0 is replaced by the line that follows."""
    places = [_source(line, files) for line in lines]
    following = "?:0"
    for number in reversed(range(len(lines))):
        if places[number] is not None:
            following = places[number] = following if places[number].endswith(":0") else places[number]
    source, found = "?:0", []
    for place in places:
        source = place or source
        found.append(source)
    return found


def _source(line: str, files: dict[str, str]) -> str | None:
    """Return the source line that a `.loc` directive names, or None."""
    place = _PLACE.match(line)
    if place is None:
        return None
    file, at, outer_file, outer_at = place.groups()
    is_wrapper = outer_file is not None and files.get(file) in _WRAPPERS
    return f"{files.get(outer_file)}:{outer_at}" if is_wrapper else f"{files.get(file)}:{at}"


def _waits_for_nothing(one: Mutant, whole: str) -> bool:
    """Return whether a mutant only changes cp.async groups in a kernel without cp.async."""
    changes_group = one.change.words.startswith(("cp.async.commit_group", "cp.async.wait_"))
    return changes_group and re.search(r"cp\.async\.c[ag]\.", whole) is None


_HIGH_WORDS = r"\s*and\.b64\s+{}, %rd\d+, -4294967296;"
_AT_MOST = 8  # most lines between the operands of the choice and the branch


def _chooses_division(one: Mutant, lines: list[str]) -> bool:
    """Return whether a mutant only changes the compiler's choice between 32-bit and 64-bit division.

    Results differ only for elements beyond the first 2**32 of an array.
    """
    before = lines[max(0, one.line - _AT_MOST) : one.line + 1]
    branch = re.match(r"\s*@!?(%p\d+) bra", lines[one.line])
    compares = [re.match(r"\s*setp\.(?:eq|ne)\.s64\s+(%p\d+), (%rd\d+), 0;", line) for line in before]
    found = next((each for each in compares if each and branch and each[1] == branch[1]), compares[-1])
    return found is not None and any(re.match(_HIGH_WORDS.format(found[2]), line) for line in before)


_NUMBERED = re.compile(r"\bbar(?:rier)?\.(?:sync|arrive|cta)[.\w]*\s+(?!\s|0;)")


def _is_same_barrier(one: Mutant, whole: str) -> bool:
    """Return whether a mutant only renumbers a barrier in a kernel whose barriers are all of the whole block.

    All threads reach such a barrier, so any number is right.
    """
    return one.change.words.endswith("number +1") and _NUMBERED.search(whole) is None
