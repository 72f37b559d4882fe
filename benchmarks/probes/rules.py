"""Possible summation rules of tensor cores, in NumPy: the exact bits of c + a_0 b_0 + a_1 b_1 + ...

NVIDIA documents no rule. `in_order` is what gpuconv's emulator does by default; `fused` is what others measured:
Xie, Yang, Wang and Yang, "MMA-Sim" (arXiv 2511.10909); Khattak and Mikaitis, "Accurate Models of NVIDIA Tensor Cores"
(arXiv 2512.07004); before them Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores" (2021).
There, products are exact. The products of a group and c are aligned to the largest exponent among them, truncated a
fixed number of bits below it, added exactly, and truncated to float32; the result is the c of the next group. The
exponent of a product is the sum of its factors' exponents.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.probes.numbers import DEPTH, numbers


@dataclass(frozen=True, slots=True)
class Fused:
    """Parameters of such a rule.

    Attributes
    ----------
    width : int
        Products per group.
    fraction : int
        Bits kept below the largest exponent.
    nearest : bool
        Whether the sum of a group is rounded to nearest instead of truncated.
    """

    width: int
    fraction: int
    nearest: bool = False

    def __str__(self) -> str:
        ending = "rounded to nearest" if self.nearest else "cut off"
        return f"{self.width} products at once, {self.fraction} bits below the largest exponent, {ending}"


def published(kind: str, architecture: str) -> Fused:
    """Return the published rule of an architecture: one for A100 and its like, another from Hopper on."""
    older = architecture in ("sm_80", "sm_86", "sm_87", "sm_89")
    return Fused(DEPTH[kind] // (2 if older else 1), 24 if older else 25)


def family(kind: str) -> Iterator[Fused]:
    """Yield the rules to search for that of an unknown device."""
    for width in (2, 4, 8, 16):
        if width <= DEPTH[kind]:
            yield from (Fused(width, bits, nearest) for bits in range(22, 30) for nearest in (False, True))


def in_order(a: Any, b: Any, c: Any, kind: str) -> Any:
    """Return the float32 sums of tiles, one product after the other along K, each rounded to nearest; a and b are
    patterns."""
    rows, columns = (numbers(x, kind).astype(np.float32) for x in (a, b))
    sums = c.astype(np.float32)
    for k in range(rows.shape[-1]):
        sums = sums + rows[..., :, None, k] * columns[..., None, :, k]
    return sums


def fused(a: Any, b: Any, c: Any, kind: str, rule: Fused) -> Any:
    """Return the sums of tiles by a rule; a and b are patterns of numbers that are not subnormal."""
    rows, columns = numbers(a, kind)[..., :, None, :], numbers(b, kind)[..., None, :, :]
    exponents = _exponent(rows) + _exponent(columns)
    products = rows * columns  # exact in float64: at most 22 bits
    sums = c.astype(np.float64)
    for first in range(0, rows.shape[-1], rule.width):
        part = slice(first, first + rule.width)
        terms = np.concatenate((products[..., part], sums[..., None]), -1)
        places = np.concatenate((exponents[..., part], _exponent(sums)[..., None]), -1)
        unit = places.max(-1) - rule.fraction
        whole = np.trunc(np.ldexp(terms, -unit[..., None])).sum(-1)
        sums = _narrowed(np.ldexp(whole, unit), rule.nearest)
    return sums.astype(np.float32)


_OF_ZERO = -1000  # an exponent below all others


def _exponent(values: Any) -> Any:
    return np.where(values == 0, _OF_ZERO, np.frexp(values)[1] - 1)


def _narrowed(values: Any, nearest: bool) -> Any:
    """Round float64 numbers to float32, to nearest or towards zero; the result is float64."""
    found = values.astype(np.float32)
    if not nearest:
        found = np.where(np.abs(found.astype(np.float64)) > np.abs(values), np.nextafter(found, np.float32(0)), found)
    return found.astype(np.float64)
