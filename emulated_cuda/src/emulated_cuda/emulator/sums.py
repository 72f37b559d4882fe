"""Instructions beside a kernel's own that let the engine notice who touches registers of an unfinished wgmma.

These are the registers of its sums, and those of its first matrix where that does not come from shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from .operands import Instruction, Kernel

CHECK, COPY = "sums.check", "sums.copy"


def watch(kernel: Kernel) -> None:
    """Put a check before each instruction that touches such registers; a move passes on their state."""
    held = {register for one in kernel.instructions if _multiplies(one) for register in _registers(one)}
    moves = [one.operands for one in kernel.instructions if _moves(one)]
    while held and (more := {to for to, source in moves if source in held} - held):
        held |= more
    if not held:
        return
    code: list[Instruction] = []
    starts = []  # where each instruction is now, with what stands before it
    for one in kernel.instructions:
        starts.append(len(code))
        touched = [register for register in one.operands if register in held]
        if touched and not _multiplies(one):
            key, operands = (COPY, one.operands) if _moves(one) else (CHECK, touched)
            code.append(Instruction(key, operands, [], one.predicate, one.negated, one.line, one.text))
        code.append(one)
    for one in code:
        if one.key == "bra":
            one.attributes = [starts[one.attributes[0]]]
    kernel.instructions = code


def _multiplies(one: Instruction) -> bool:
    return one.key.startswith("wgmma.") and bool(one.attributes)


def _registers(one: Instruction) -> Sequence[int]:
    """Return the registers of the sums, and those of the first matrix if it is in registers."""
    sums, first_matrix, *_, in_registers = one.attributes
    return one.operands[: sums + first_matrix * in_registers]


def _moves(one: Instruction) -> bool:
    return one.key == "mov.b32"
