"""Probes of mma.sync: which register of which lane holds which element, by the fragment layouts of the PTX manual."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from benchmarks.probes.launch import Device, Program, Result
from benchmarks.probes.numbers import DEPTH, KINDS, numbers, patterns, small_integers
from benchmarks.probes.probe import Comparison, Probe

LANES = np.arange(32)
GROUP, THREAD = LANES // 4, LANES % 4  # "groupID" and "threadID_in_group" of the PTX manual


def registers_of_a(a: Any, kind: str) -> Any:
    """Return the fragment of A, four words per lane, from patterns of 16 rows along K; leading axes enumerate tiles."""
    if kind == "tf32":
        places = [(GROUP, THREAD), (GROUP + 8, THREAD), (GROUP, THREAD + 4), (GROUP + 8, THREAD + 4)]
        return np.stack([a[..., row, column] for row, column in places], -1)
    halves = []
    for i in range(8):
        row = GROUP if i in (0, 1, 4, 5) else GROUP + 8
        halves.append(a[..., row, THREAD * 2 + i % 2 + (0 if i < 4 else 8)])
    return np.ascontiguousarray(np.stack(halves, -1)).view(np.uint32)


def registers_of_b(b: Any, kind: str) -> Any:
    """Return the fragment of B, two words per lane, from patterns of 8 columns along K (shape (..., N, K))."""
    if kind == "tf32":
        return np.stack([b[..., GROUP, THREAD], b[..., GROUP, THREAD + 4]], -1)
    halves = [b[..., GROUP, THREAD * 2 + i % 2 + (0 if i < 2 else 8)] for i in range(4)]
    return np.ascontiguousarray(np.stack(halves, -1)).view(np.uint32)


def registers_of_c(c: Any) -> Any:
    """Return the accumulator fragment, four floats per lane, of 16 rows by 8 columns."""
    places = [(GROUP + 8 * (i // 2), THREAD * 2 + i % 2) for i in range(4)]
    return np.stack([c[..., row, column] for row, column in places], -1)


def sums_of_registers(d: Any) -> Any:
    """Return 16 x 8 sums from the accumulator fragment: the inverse of `registers_of_c`."""
    result = np.empty((*d.shape[:-2], 16, 8), d.dtype)
    for i in range(4):
        result[..., GROUP + 8 * (i // 2), THREAD * 2 + i % 2] = d[..., i]
    return result


def multiplied(device: Device, kind: str, a: Any, b: Any, c: Any) -> Any:
    """Return C + A B of tiles, computed on a device; a and b are patterns with K last."""
    arguments = [registers_of_a(a, kind), registers_of_b(b, kind), registers_of_c(c)]
    arguments.append(Result(arguments[-1].shape, np.float32))
    (got,) = device.run(Program("mma", f"mma_{kind}"), 32, arguments, grid=len(a))
    return sums_of_registers(got)


def _one(kind: str) -> Any:
    def run(device: Device) -> Iterator[Comparison]:
        a, b = small_integers((3, 16, DEPTH[kind]), 11), small_integers((3, 8, DEPTH[kind]), 12)
        c = small_integers((3, 16, 8), 13, 1000).astype(np.float32)
        got = multiplied(device, kind, patterns(a, kind), patterns(b, kind), c)
        yield f"mma {kind}", (c + a @ b.swapaxes(-1, -2)).astype(np.float32), got

    return run


def _ignored_bits(device: Device) -> Iterator[Comparison]:
    a, b = small_integers((1, 16, 8), 14), small_integers((1, 8, 8), 15)
    random = np.random.default_rng(16)
    noisy = [patterns(x, "tf32") | random.integers(0, 2**13, x.shape, np.uint32) for x in (a, b)]
    got = multiplied(device, "tf32", *noisy, np.zeros((1, 16, 8), np.float32))
    yield "without the last 13 bits", (a @ b.swapaxes(-1, -2)).astype(np.float32), got


def _subnormal(device: Device) -> Iterator[Comparison]:
    """One product per output: subnormal factors and sums must not be flushed to zero."""
    for kind, factors in (
        ("f16", (1, 3, 0x3FF, 0x8001)),
        ("bf16", (1, 3, 0x7F, 0x8001)),
        ("tf32", (0x2000, 0x6000, 0x7FE000)),
    ):
        dtype = np.uint32 if kind == "tf32" else np.uint16
        a, b = np.zeros((1, 16, DEPTH[kind]), dtype), np.zeros((1, 8, DEPTH[kind]), dtype)
        for row in range(16):
            a[0, row, row % DEPTH[kind]] = factors[row % len(factors)]
        b[...] = patterns(
            2.0 ** np.arange(-3 if kind == "f16" else 0, 5 if kind == "f16" else 8)[:, None] * np.ones(DEPTH[kind]),
            kind,
        )
        got = multiplied(device, kind, a, b, np.zeros((1, 16, 8), np.float32))
        yield kind, (numbers(a, kind) @ numbers(b, kind).swapaxes(-1, -2)).astype(np.float32), got


def _not_finite(device: Device) -> Iterator[Comparison]:
    """Infinities and NaN must propagate within their row and leave the other rows unchanged."""
    for kind in KINDS:
        a, b = np.ones((1, 16, DEPTH[kind])), np.ones((1, 8, DEPTH[kind]))
        a[0, 3, 5], a[0, 9, 2], a[0, 12, 1], a[0, 14, :2] = np.inf, -np.inf, np.nan, (np.inf, -np.inf)
        found = np.float32 if kind == "tf32" else np.float16
        a_bits = a.astype(found).view(f"u{np.dtype(found).itemsize}")
        if kind == "bf16":
            a_bits = (a.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        got = multiplied(device, kind, a_bits, patterns(b, kind), np.zeros((1, 16, 8), np.float32))[0]
        rows = np.full((16, 8), float(DEPTH[kind]), np.float32)
        rows[3], rows[9], rows[12], rows[14] = np.inf, -np.inf, np.nan, np.nan
        yield f"{kind}: which are NaN", np.isnan(rows), np.isnan(got)
        yield kind, rows[~np.isnan(rows)], got[~np.isnan(rows)]


def _double_tile(device: Device, a: Any, b: Any, c: Any) -> Any:
    """Return C + A B in float64 from a device, for m8n8k4 or m16n8k16; b has its columns along K."""
    if a.shape[1] == 4:
        rows, columns = a[GROUP, THREAD], b[GROUP, THREAD]
        sums = np.stack([c[GROUP, THREAD * 2 + i] for i in range(2)], 1)
        (got,) = device.run(Program("mma", "mma_f64"), 32, [rows, columns, sums, Result((32, 2), np.float64)])
        result = np.empty((8, 8))
        for i in range(2):
            result[GROUP, THREAD * 2 + i] = got[:, i]
        return result
    rows = np.stack([a[GROUP + 8 * (i % 2), THREAD + 4 * (i // 2)] for i in range(8)], 1)
    columns = np.stack([b[GROUP, THREAD + 4 * i] for i in range(4)], 1)
    arguments = [rows, columns, registers_of_c(c), Result((32, 4), np.float64)]
    (got,) = device.run(Program("mma", "mma_f64_large"), 32, arguments)
    return sums_of_registers(got)


def _double(rows: int, depth: int) -> Any:
    def run(device: Device) -> Iterator[Comparison]:
        a, b = small_integers((rows, depth), 17), small_integers((8, depth), 18)
        c = small_integers((rows, 8), 19)
        yield f"{rows} x 8 x {depth}", c + a @ b.T, _double_tile(device, a, b, c)

    return run


def _sum_of_doubles(a: list[float], b: list[float], c: float, fused: bool) -> float:
    """Return c + a_0 b_0 + a_1 b_1 + …, rounded after each addition, and after each product unless fused."""
    for x, y in zip(a, b, strict=True):
        c = float(Fraction(x) * Fraction(y) + Fraction(c)) if fused else c + x * y
    return c


_ORDERS = {
    "fused multiply-adds in the order of k": (slice(None), True),
    "fused multiply-adds from the last k": (slice(None, None, -1), True),
    "rounded products in the order of k": (slice(None), False),
}


def _double_sums(rows: int, depth: int) -> Any:
    def run(device: Device) -> Generator[Comparison, None, str]:
        random = np.random.default_rng(23)
        shapes = ((rows, depth), (8, depth), (rows, 8))
        a, b, c = (
            random.integers(-(2**53), 2**53, shape) * 2.0 ** random.integers(-60, -40, shape) for shape in shapes
        )
        got = _double_tile(device, a, b, c)
        found = {}
        for name, (order, fused) in _ORDERS.items():
            pairs = [(a[i, order].tolist(), b[j, order].tolist(), float(c[i, j])) for i, j in np.ndindex(rows, 8)]
            found[name] = np.array([_sum_of_doubles(*pair, fused) for pair in pairs]).reshape(rows, 8)
        name = min(found, key=lambda one: int((found[one] != got).sum()))
        yield name, found[name], got
        return name

    return run


PROBES = (
    *(Probe(f"mma.sync {kind}", _one(kind), (Program("mma", f"mma_{kind}"),)) for kind in KINDS),
    Probe("mma.sync f64", _double(8, 4), (Program("mma", "mma_f64"),)),
    Probe("mma.sync f64, 16 x 8 x 16", _double(16, 16), (Program("mma", "mma_f64_large"),)),
    Probe("sums of mma.sync f64", _double_sums(8, 4), (Program("mma", "mma_f64"),)),
    Probe("sums of mma.sync f64, 16 x 8 x 16", _double_sums(16, 16), (Program("mma", "mma_f64_large"),)),
    Probe("mma.sync tf32 ignores the last 13 bits", _ignored_bits, (Program("mma", "mma_tf32"),)),
    Probe("mma.sync keeps subnormal numbers", _subnormal, tuple(Program("mma", f"mma_{kind}") for kind in KINDS)),
    Probe("mma.sync of infinities and NaN", _not_finite, tuple(Program("mma", f"mma_{kind}") for kind in KINDS)),
)
