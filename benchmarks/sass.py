"""Analyse a kernel's SASS: its instructions, its main loop and what kinds of instructions that consists of.

It uses NVIDIA's disassembler (nvdisasm); no GPU is needed.
"""

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
TENSOR = ("HMMA", "DMMA", "IMMA", "QMMA", "HGMMA")
MISSING = "nvdisasm is not installed: pip install nvidia-cuda-nvdisasm"
# Kinds of instructions by prefixes of their opcodes; the longest matching prefix decides. All others are integer work:
# addresses, indices, bounds and moves (IMAD, IADD3, LEA, ISETP, MOV, LDC).
_KINDS = {
    "multiply": (*MULTIPLICATIONS, "FFMA2", *TENSOR),
    "global load": ("LDG", "LDGSTS", "LD", "UTMALDG", "UBLKCP"),
    "shared load": ("LDS", "LDSM"),
    "store": ("ST", "STG", "STS", "STSM", "STL", "UTMASTG", "RED", "ATOM"),
    "local load": ("LDL",),
    "compare": ("FMNMX", "FSETP", "FSEL", "DSETP", "HMNMX2", "HSETP2", "VHMNMX", "VIMNMX", "FSET", "HSET2"),
    "other floating point": ("FADD", "FMUL", "DADD", "DMUL", "HADD2", "HMUL2", "HFMA2", "F2F", "F2FP", "MUFU", "FCHK"),
    "integer": ("LDC",),
    "control": (
        *("BRA", "BAR", "BSSY", "BSYNC", "BREAK", "CALL", "RET", "EXIT", "NOP", "WARPSYNC", "YIELD", "BPT"),
        *("DEPBAR", "LDGDEPBAR", "MEMBAR", "ERRBAR", "SYNCS", "ARRIVES", "FENCE", "WARPGROUP", "ELECT"),
    ),
}
_LABEL = re.compile(r"\s*(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z](?:[A-Z0-9_.]|(?<=\d)x(?=\d))*)([^;]*);")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")
_SHAPE = re.compile(r"\.(16|8)(8|16)(16|32|8|4)\b")  # M, N, K of a warp's mma
_GROUP_SHAPE = re.compile(r"\.64x(\d+)x(\d+)\b")  # N, K of a warpgroup's wgmma, with M = 64
_WARP = 32
_WARPGROUP = 128


@dataclass(frozen=True, slots=True)
class Instruction:
    """One SASS instruction.

    Attributes
    ----------
    name : str
        Opcode with modifiers, such as ``LDS.128``.
    predicate : str
        Guard predicate: ``P0``, ``!P3``; ``!PT`` is never true. Empty if there is none.
    target : int or None
        Index of the instruction that it branches to.
    """

    name: str
    predicate: str = ""
    target: int | None = None

    @property
    def opcode(self) -> str:
        return self.name.partition(".")[0]

    @property
    def kind(self) -> str:
        """Its kind, one of the keys of `_KINDS`."""
        fitting = [
            (len(start), kind) for kind, starts in _KINDS.items() for start in starts if self.opcode.startswith(start)
        ]
        return max(fitting)[1] if fitting else "integer"

    @property
    def products(self) -> float:
        """Multiply-adds per thread; for tensor cores the thread's share of the warp's or warpgroup's."""
        if self.opcode not in TENSOR:
            return {"FFMA": 1, "DFMA": 1, "FFMA2": 2}.get(self.opcode, 0)
        group = _GROUP_SHAPE.search(self.name)
        if group:
            return 64 * int(group[1]) * int(group[2]) / _WARPGROUP
        shape = _SHAPE.search(self.name)
        return int(shape[1]) * int(shape[2]) * int(shape[3]) / _WARP if shape else 2 * _WARP


@lru_cache(maxsize=1)
def disassembler() -> str | None:
    """Return the path of nvdisasm, from its Python package or PATH; None if there is none."""
    try:
        files = metadata.files("nvidia-cuda-nvdisasm") or []
    except metadata.PackageNotFoundError:
        files = []
    return next((str(file.locate()) for file in files if file.stem == "nvdisasm"), shutil.which("nvdisasm"))


def disassemble(cubin: Path) -> list[Instruction]:
    """Return the instructions of a cubin with one kernel."""
    program = disassembler()
    assert program is not None, MISSING
    words = [
        program,
        "--print-code",
        "--no-dataflow",
        str(cubin),
    ]  # without dataflow analysis, which is not needed here and takes a quarter of the time
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return parse(done.stdout)


def parse(text: str) -> list[Instruction]:
    """Return the instructions in the disassembler's output."""
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
    """Yield each loop as a range of instruction indices, from the target of a backward branch to the branch."""
    for number, one in enumerate(code):
        if one.opcode == "BRA" and one.target is not None and one.target <= number:
            yield range(one.target, number + 1)


def main_loop(code: Sequence[Instruction]) -> range:
    """Return the instruction indices of the main loop, of any kernel.

    That is the loop with the most multiply-adds, or the smallest loop inside it with more than half of them. In kernels
    without multiply-adds, global loads count instead. If more of them are outside all loops than in any loop, it is the
    whole kernel.
    """
    weights = [one.products for one in code]
    if not any(weights):
        weights = [float(one.kind == "global load") for one in code]
    found = {loop: sum(weights[number] for number in loop) for loop in loops(code)}
    inside = {number for loop in found for number in loop}
    outside = sum(weight for number, weight in enumerate(weights) if number not in inside)
    most = max(found, key=lambda loop: (found[loop], -len(loop)), default=None)
    if most is None or found[most] <= outside:
        return range(len(code))
    heavy = [loop for loop in found if 2 * found[loop] > found[most] and set(loop) <= set(most)]
    return min(heavy, key=len)


def multiplications(code: Sequence[Instruction], part: Iterable[int]) -> int:
    """Count the FFMA and DFMA instructions in a part of the code."""
    return sum(code[number].opcode in MULTIPLICATIONS for number in part)


def names(code: Sequence[Instruction], part: Iterable[int], *opcodes: str) -> Counter[str]:
    """Count the names of the instructions with these opcodes, except those guarded by !PT."""
    chosen = (code[number] for number in part)
    return Counter(one.name for one in chosen if one.opcode in opcodes and one.predicate != "!PT")


def kinds(code: Sequence[Instruction], part: Iterable[int]) -> Counter[str]:
    """Count the kinds of instructions in a part of the code."""
    return Counter(code[number].kind for number in part)
