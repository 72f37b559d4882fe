"""Instructions beside a kernel's own that let the engine notice who touches the sums of an unfinished wgmma."""

from __future__ import annotations

from emulator.operands import Instruction, Kernel

CHECK, COPY = "sums.check", "sums.copy"


def watch(kernel: Kernel) -> None:
    """Put a check before each instruction that touches registers of sums; a move passes on their state."""
    sums = {
        register for one in kernel.instructions if _multiplies(one) for register in one.operands[: one.attributes[0]]
    }
    moves = [one.operands for one in kernel.instructions if _moves(one)]
    while sums and (more := {to for to, source in moves if source in sums} - sums):
        sums |= more
    if not sums:
        return
    code: list[Instruction] = []
    starts = []  # where each instruction is now, with what stands before it
    for one in kernel.instructions:
        starts.append(len(code))
        touched = [register for register in one.operands if register in sums]
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


def _moves(one: Instruction) -> bool:
    return one.key == "mov.b32"
