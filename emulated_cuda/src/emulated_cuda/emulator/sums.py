"""Insert checks that catch registers of an unfinished `wgmma.mma_async` being used before `wgmma.wait_group`.

These are the accumulator registers, and those of A where A comes from registers (PTX ISA, `wgmma.mma_async`: they must
not be accessed until the group is waited for). The engine tracks the last wgmma group of each such register; the
instructions inserted here tell it when other instructions touch one.
"""

from __future__ import annotations

from collections.abc import Sequence

from .operands import Instruction, Kernel

CHECK, COPY = "sums.check", "sums.copy"


def watch(kernel: Kernel) -> None:
    """Insert a CHECK before each instruction that touches a register of a wgmma, and a COPY before each move of one.

    Registers are followed through `mov.b32`: the destination of a move has the state of its source. Targets of branches
    are adjusted. A kernel without wgmma is left unchanged.
    """
    held = {register for one in kernel.instructions if _multiplies(one) for register in _registers(one)}
    moves = [one.operands for one in kernel.instructions if _moves(one)]
    while held and (more := {to for to, source in moves if source in held} - held):
        held |= more
    if not held:
        return
    code: list[Instruction] = []
    starts = []  # new index of each old instruction, including what is inserted before it
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
    """Return whether an instruction is `wgmma.mma_async`; fence, commit and wait have no attributes."""
    return one.key.startswith("wgmma.") and bool(one.attributes)


def _registers(one: Instruction) -> Sequence[int]:
    """Return the accumulator registers of a wgmma, and the registers of A unless A is in shared memory."""
    sums, first_matrix, *_, in_registers = one.attributes
    return one.operands[: sums + first_matrix * in_registers]


def _moves(one: Instruction) -> bool:
    """Return whether an instruction copies one 32-bit register to another."""
    return one.key == "mov.b32"
