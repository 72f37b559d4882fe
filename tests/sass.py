"""A kernel's machine code: its instructions and its main loop, by NVIDIA's disassembler (`nvidia-cuda-nvdisasm`)."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path

MULTIPLICATIONS = ("FFMA", "DFMA")
_LABEL = re.compile(r"\s*(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][A-Z0-9_.]*)([^;]*);")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes
    ----------
    name : str
        The opcode and how it is meant: ``LDS.128``.
    predicate : str
        Without which it does nothing: ``P0``, ``!P3``; ``!PT`` never holds. Empty where there is none.
    target : int or None
        Number of the instruction that it branches to.
    """

    name: str
    predicate: str = ""
    target: int | None = None

    @property
    def opcode(self) -> str:
        return self.name.partition(".")[0]


@lru_cache(maxsize=1)
def disassembler() -> str | None:
    """Return the program's path: that of the Python package, or the one on PATH; None where there is none."""
    try:
        files = metadata.files("nvidia-cuda-nvdisasm") or []
    except metadata.PackageNotFoundError:
        files = []
    return next((str(file.locate()) for file in files if file.stem == "nvdisasm"), shutil.which("nvdisasm"))


def disassemble(cubin: Path) -> list[Instruction]:
    """Return the instructions of a cubin of one kernel."""
    program = disassembler()
    assert program is not None, "there is no nvdisasm; pip install nvidia-cuda-nvdisasm brings it"
    done = subprocess.run([program, "-c", str(cubin)], check=True, capture_output=True, text=True)
    return parse(done.stdout)


def parse(text: str) -> list[Instruction]:
    """Return the instructions of the disassembler's text."""
    found: list[tuple[str, str, str]] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        label, instruction = _LABEL.match(line), _INSTRUCTION.match(line)
        if label is not None:
            labels[label[1]] = len(found)
        elif instruction is not None:
            predicate, name, operands = instruction.groups(default="")
            found.append((name, predicate, operands))
    return [Instruction(name, predicate, _target(operands, labels)) for name, predicate, operands in found]


def _target(operands: str, labels: dict[str, int]) -> int | None:
    named = _TARGET.search(operands)
    return labels[named[1]] if named is not None else None


def loops(code: Sequence[Instruction]) -> Iterator[range]:
    """Yield the numbers of each loop's instructions: from where a branch leads back to, to that branch."""
    for number, one in enumerate(code):
        if one.opcode == "BRA" and one.target is not None and one.target <= number:
            yield range(one.target, number + 1)


def main_loop(code: Sequence[Instruction]) -> range:
    """Return the loop with the most multiplications; of loops around each other the innermost."""
    return max(loops(code), key=lambda loop: (multiplications(code, loop), -len(loop)))


def multiplications(code: Sequence[Instruction], part: Iterable[int]) -> int:
    """Count the multiplications in a part of the code."""
    return sum(code[number].opcode in MULTIPLICATIONS for number in part)


def names(code: Sequence[Instruction], part: Iterable[int], *opcodes: str) -> Counter[str]:
    """Count the names of the instructions with these opcodes that are ever executed."""
    chosen = (code[number] for number in part)
    return Counter(one.name for one in chosen if one.opcode in opcodes and one.predicate != "!PT")
