"""Patterns of the types that tensor cores multiply, and where things lie in shared memory, as the PTX manual says."""

from __future__ import annotations

from typing import Any

import numpy as np

DEPTH = {"f16": 16, "bf16": 16, "tf32": 8}  # products that one instruction adds: 32 bytes along K
ITEMSIZE = {"f16": 2, "bf16": 2, "tf32": 4}
KINDS = tuple(DEPTH)


def patterns(values: Any, kind: str) -> Any:
    """Return the bits of numbers that a type has."""
    if kind == "f16":
        found = np.asarray(values).astype(np.float16).view(np.uint16)
    else:
        words = np.asarray(values).astype(np.float32).view(np.uint32)
        found = words if kind == "tf32" else (words >> 16).astype(np.uint16)
    if not np.array_equal(numbers(found, kind), values):
        raise ValueError(f"{kind} does not have all of these numbers")
    return found


def numbers(found: Any, kind: str) -> Any:
    """Return the numbers that tensor cores see in patterns: of TF32 without the last 13 bits."""
    if kind == "f16":
        return found.view(np.float16).astype(np.float64)
    words = found & np.uint32(0xFFFFE000) if kind == "tf32" else found.astype(np.uint32) << 16
    return words.view(np.float32).astype(np.float64)


def small_integers(shape: tuple[int, ...], seed: int, largest: int = 8) -> Any:
    """Return random integers that all types have, none of which is zero."""
    random = np.random.default_rng(seed)
    return random.integers(1, largest + 1, shape) * random.choice([-1.0, 1.0], shape)


def swizzled(content: Any, span: int) -> Any:
    """Return bytes as they lie in memory that begins at a multiple of 1024: 16 bytes change places within a span.

    Bits 4 and on of an address are those of the plain one, XOR its bits 7 and on: of spans of 32, 64 and 128 bytes one,
    two and three bits.
    """
    plain = np.ascontiguousarray(content).view(np.uint8).reshape(-1)
    if span == 0:
        return plain.copy()
    address = np.arange(plain.size)
    place = address ^ ((address >> 7 & (span // 16 - 1)) << 4)
    result = np.empty_like(plain)
    result[place] = plain
    return result
