"""Bit patterns of the tensor cores' dtypes, and the shared-memory swizzle of the PTX manual."""

from __future__ import annotations

from typing import Any

import numpy as np

DEPTH = {"f16": 16, "bf16": 16, "tf32": 8}  # K of one instruction: 32 bytes
ITEMSIZE = {"f16": 2, "bf16": 2, "tf32": 4}
KINDS = tuple(DEPTH)


def patterns(values: Any, kind: str) -> Any:
    """Return the bit patterns of numbers; raises ValueError if the type cannot represent them all."""
    if kind == "f16":
        found = np.asarray(values).astype(np.float16).view(np.uint16)
    else:
        words = np.asarray(values).astype(np.float32).view(np.uint32)
        found = words if kind == "tf32" else (words >> 16).astype(np.uint16)
    if not np.array_equal(numbers(found, kind), values):
        raise ValueError(f"{kind} does not have all of these numbers")
    return found


def numbers(found: Any, kind: str) -> Any:
    """Return the numbers that tensor cores read from patterns; TF32 ignores the lowest 13 bits."""
    if kind == "f16":
        return found.view(np.float16).astype(np.float64)
    words = found & np.uint32(0xFFFFE000) if kind == "tf32" else found.astype(np.uint32) << 16
    return words.view(np.float32).astype(np.float64)


def small_integers(shape: tuple[int, ...], seed: int, largest: int = 8) -> Any:
    """Return random non-zero integers that all types represent."""
    random = np.random.default_rng(seed)
    return random.integers(1, largest + 1, shape) * random.choice([-1.0, 1.0], shape)


def swizzled(content: Any, span: int) -> Any:
    """Return bytes as a swizzled tile stores them, in memory aligned to 1024 bytes.

    Address bits from 4 upwards are XORed with those from 7 upwards: one, two or three bits for spans of 32, 64 or 128
    bytes; a span of 0 means no swizzle.
    """
    plain = np.ascontiguousarray(content).view(np.uint8).reshape(-1)
    if span == 0:
        return plain.copy()
    address = np.arange(plain.size)
    place = address ^ ((address >> 7 & (span // 16 - 1)) << 4)
    result = np.empty_like(plain)
    result[place] = plain
    return result
