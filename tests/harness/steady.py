"""Find the instructions that a warp executes per iteration of a kernel's main loop, from its SASS.

A loop has rare paths: for a new tap, past the last slice, for unaligned addresses. The steady path is the shortest one
that includes everything belonging to one slice of K.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.sass import Instruction, main_loop

_MOST = 20_000  # paths; more mean that something is wrong


def ways_round(code: Sequence[Instruction], loop: range | None = None) -> Iterator[tuple[int, ...]]:
    """Yield every path from the start of a loop (by default the main loop) back to it, as instruction indices.

    Inner loops are passed through once.
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
    """Follow a path from one instruction; branches add further paths to ``todo``."""
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
    """Return the instructions of the shortest path with at least these numbers of these opcodes."""
    found = [
        [one for number in way if (one := code[number]).predicate != "!PT"]  # !PT is never true
        for way in ways_round(code, loop)
    ]
    whole = [way for way in found if parts.items() <= Counter(one.opcode for one in way).items()]
    assert whole, f"no way round has {dict(parts)}"
    return min(whole, key=len)
