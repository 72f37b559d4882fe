"""Compile kernels and report registers, spills, and the instruction mix of the main loop in their SASS."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from benchmarks import sass
from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.build.variant import Variant

Row = dict[str, Any]
_THREADS = 2  # parallel compilations


def described(
    variants: Iterable[Variant], architecture: str, build: Callable[[Variant, str], Any] = compiler.build
) -> dict[str, Row]:
    """Return a row per kernel by name; ``build`` compiles those that are not cached."""
    by_name = {variant.name: variant for variant in variants}
    with ThreadPoolExecutor(_THREADS) as pool:
        rows = pool.map(partial(_described, architecture=architecture, build=build), by_name.values())
        return dict(zip(by_name, rows, strict=True))


def _described(variant: Variant, architecture: str, build: Callable[[Variant, str], Any]) -> Row:
    built = build(variant, architecture)
    report = compiler.read(built.log)
    assert report is not None, built.log
    code = sass.disassemble(built.path)
    loop = sass.main_loop(code)
    return {
        "threads": variant.threads,
        "registers": report.registers,
        "spilled_bytes": report.spill_stores + report.spill_loads,
        "stack_bytes": report.stack_bytes,
        "static_shared_bytes": report.shared_bytes,
        "main_loop": len(loop) if loop != range(len(code)) else None,
        "multiplications": dict(sorted(_multiplications(code, loop).items())),
        "instructions": dict(sorted(sass.kinds(code, loop).items())),
    }


def _multiplications(code: list[sass.Instruction], loop: range) -> Counter[str]:
    return Counter(code[number].opcode for number in loop if code[number].kind == "multiply")
