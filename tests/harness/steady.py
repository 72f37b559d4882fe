"""What a warp executes each time round a kernel's main loop, found in its machine code.

A loop has ways that are seldom taken: to a new tap, past the last slice, for addresses that are not aligned. The steady
way is the shortest one on which everything that belongs to a slice of K happens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.sass import Instruction, main_loop

_MOST = 20_000  # ways, after which something must be wrong


def ways_round(code: Sequence[Instruction], loop: range | None = None) -> Iterator[tuple[int, ...]]:
    """Yield the numbers of the instructions on every way from a loop's beginning, or the main one's, back to it.

    Loops inside are gone through once.
    """
    loop, count = loop or main_loop(code), 0
    todo: list[tuple[int, tuple[int, ...]]] = [(loop.start, ())]
    while todo:
        count += 1
        assert count < _MOST, "too many ways"
        yield from _walk(code, loop, *todo.pop(), todo)


def _walk(
    code: Sequence[Instruction], loop: range, at: int, way: tuple[int, ...], todo: list[tuple[int, tuple[int, ...]]]
) -> Iterator[tuple[int, ...]]:
    """Go on from one instruction; leave where branches part as more to do."""
    while at in loop:
        one, way = code[at], (*way, at)
        always = one.predicate in ("", "PT", "UPT")
        if one.opcode == "BRA" and one.target == loop.start:
            yield way
            if always:
                return
        elif one.opcode == "BRA" and one.target is not None and at < one.target < loop.stop:
            if always:
                at = one.target
                continue
            todo.append((one.target, way))
        elif one.opcode in ("BRA", "EXIT", "RET") and always:
            return
        at += 1


def steady(code: Sequence[Instruction], parts: Mapping[str, int], loop: range | None = None) -> list[Instruction]:
    """Return the instructions on the shortest way round that has so many of each of these opcodes."""
    found = [
        [one for number in way if (one := code[number]).predicate != "!PT"]  # which never holds
        for way in ways_round(code, loop)
    ]
    whole = [way for way in found if parts.items() <= Counter(one.opcode for one in way).items()]
    assert whole, f"no way round has {dict(parts)}"
    return min(whole, key=len)
