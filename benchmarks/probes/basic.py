"""Probes of instructions that all architectures have: copies, ldmatrix, named barriers, rounding, shuffles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.probes.launch import Device, Program, Result
from benchmarks.probes.probe import Comparison, Probe

_SPECIAL = (0x0, 0x1, 0x7FFFFF, 0x800000, 0x3F800000, 0x3F800FFF, 0x3F801000, 0x3F801001, 0x3F803000, 0x7F7FE000)
_INFINITY, _NAN = 0x7F800000, 0x7FC00001


def words(count: int, seed: int) -> Any:
    """Return random 32-bit words."""
    return np.random.default_rng(seed).integers(0, 2**32, count, np.uint32)


def _matrices(device: Device) -> Iterator[Comparison]:
    rows = words(256, 1).view(np.uint16).reshape(64, 8)
    order = np.random.default_rng(2).permutation(64)[:32]  # the row whose address each lane passes
    for name, transposed in (("matrices", False), ("transposed_matrices", True)):
        arguments = [rows, (order * 16).astype(np.int32), Result((32, 4))]
        (got,) = device.run(Program("basic", name), 32, arguments, shared_bytes=1024)
        halves = np.empty((32, 4, 2), np.uint16)
        for lane in range(32):
            for matrix in range(4):
                for half in range(2):
                    row, column = lane // 4, 2 * (lane % 4) + half
                    row, column = (column, row) if transposed else (row, column)
                    halves[lane, matrix, half] = rows[order[8 * matrix + row], column]
        yield name, halves.view(np.uint32)[..., 0], got


def _copies(device: Device) -> Iterator[Comparison]:
    yield from _copies_from(device, nowhere=False)


def _copies_without_source(device: Device) -> Iterator[Comparison]:
    yield from _copies_from(device, nowhere=True)


def _copies_from(device: Device, nowhere: bool) -> Iterator[Comparison]:
    for size in (4, 8, 16):
        x = (words(64 * size // 4, size) | 0x01010101).view(np.uint8).reshape(64, size)
        counts = (np.arange(64) % (size + 1)).astype(np.int32)
        arguments = [x, counts, Result((64, size), np.uint8), int(nowhere)]
        (got,) = device.run(Program("basic", f"copies_{size}"), 64, arguments, shared_bytes=64 * size)
        yield f"cp.async of {size}", np.where(np.arange(size) < counts[:, None], x, np.uint8(0)), got


def _groups(device: Device) -> Iterator[Comparison]:
    rounds, threads = 7, 64
    x = words(rounds * threads * 4, 3).reshape(rounds, threads, 4)
    arguments = [x, Result(x.shape), rounds]
    (got,) = device.run(Program("basic", "copies_in_groups"), threads, arguments, shared_bytes=3 * threads * 16)
    yield "groups", np.roll(x, -37, axis=1), got


def _turns(device: Device) -> Iterator[Comparison]:
    count = 25
    (got,) = device.run(Program("basic", "turns"), 256, [Result((count,), np.int32), count])
    numbers = np.arange(count)
    yield "turns", (numbers * (numbers - 1) // 2 * 2 + numbers % 2).astype(np.int32), got


def _rounded(device: Device) -> Iterator[Comparison]:
    x = np.concatenate((np.array(_SPECIAL, np.uint32), words(1014, 4) & 0x7EFFFFFF))
    x = np.concatenate((x[:512], x[512:] | np.uint32(0x80000000)))[:1024]
    kept = np.uint32(0xFFFFE000)  # the bits of TF32
    (got,) = device.run(Program("basic", "rounded"), 1024, [x.view(np.float32), Result((1024,))])
    yield "cvt.rna.tf32", (x + np.uint32(0x1000)) & kept, got & kept
    odd = np.array([_INFINITY, _INFINITY | 1 << 31, _NAN, _NAN | 1 << 31], np.uint32)
    (got,) = device.run(Program("basic", "rounded"), 4, [odd.view(np.float32), Result((4,))])
    yield "cvt.rna.tf32 of infinities", odd[:2], got[:2] & kept
    yield "cvt.rna.tf32 of NaN", np.ones(2, bool), np.isnan(got[2:].view(np.float32))


def _expected_maxima(x: Any, order: Any, nan: Any, canonical: int) -> Any:
    """Return the larger of all pairs as bit patterns; ``order`` ranks the numbers, with +0 above -0."""
    result = np.where(order[:, None] >= order[None, :], x[:, None], x[None, :])
    return np.where(nan[:, None] | nan[None, :], x.dtype.type(canonical), result)


def _rank(x: Any) -> Any:
    """Return integers in the order of the floating-point numbers with these patterns; -0 ranks below +0."""
    sign = x >> (8 * x.itemsize - 1)
    magnitude = (x & x.dtype.type((1 << 8 * x.itemsize - 1) - 1)).astype(np.int64)
    return np.where(sign, -1 - magnitude, magnitude)


def _larger(device: Device) -> Iterator[Comparison]:
    x = np.array([*_SPECIAL, _INFINITY, _NAN], np.uint32)
    x = np.concatenate((x, x | np.uint32(1 << 31)))
    nan = (x & 0x7FFFFFFF) > _INFINITY
    (got,) = device.run(Program("basic", "larger"), len(x), [x.view(np.float32), Result((len(x), len(x)))])
    yield "max.NaN.f32", _expected_maxima(x, _rank(x), nan, 0x7FFFFFFF), got
    for name, infinity, one in (("f16", 0x7C00, 0x3C00), ("bf16", 0x7F80, 0x3F80)):
        x = np.array(
            [0, 1, 2, 0x3FF, 0x400, one, one + 1, one * 2 - 0x4000, infinity - 1, infinity, infinity + 1], np.uint16
        )
        x = np.concatenate((x, x | np.uint16(0x8000)))
        pairs = np.stack((x, np.roll(x, 5)), 1)
        arguments = [pairs.view(np.uint32)[:, 0], Result((len(x), len(x)))]
        (got,) = device.run(Program("basic", f"larger_{name}"), len(x), arguments)
        halves = [_expected_maxima(y, _rank(y), (y & 0x7FFF) > infinity, 0x7FFF) for y in np.ascontiguousarray(pairs.T)]
        yield f"max.NaN.{name}x2", np.stack(halves, -1).view(np.uint32)[..., 0], got


def _moves(device: Device) -> Iterator[Comparison]:
    count = 64
    x = words(count * 8, 5).reshape(count, 8)
    arguments = [x, Result((count, 20)), Result((count, 2), np.float64)]
    got, doubles = device.run(Program("basic", "moves"), count, arguments, shared_bytes=count * 80)
    wide = x[:, :2].astype(np.float64).view(np.uint32).reshape(count, 4)
    halves = np.stack((x[:, 1] & 0xFFFF, x[:, 1] >> 16), 1).astype(np.uint16).view(np.uint32)
    expected = np.concatenate((x, wide, x[:, 2:4], x[:, :1], halves, x[:, 1:5]), 1)
    yield "through shared memory", np.roll(expected, -1, axis=0), got
    yield "st.global.cg.v2.f64", x[:, :2] + np.array([0.5, 0.25]), doubles


def _lanes(device: Device) -> Iterator[Comparison]:
    x, lane = words(32, 6), np.arange(32)
    arguments = [x, Result((8, 32)), Result((2, 32), np.float64)]
    got, doubles = device.run(Program("basic", "lanes"), 32, arguments)
    before, after, other = np.maximum(lane - 1, 0), np.minimum(lane + 1, 31), x[lane ^ 1]
    eight = np.where(lane + 8 < 32, lane + 8, lane) % 32
    yield "shfl", np.stack((x[before], x[after], x[lane ^ 4], x[(lane * 7 + 3) % 32], x[eight])), got[:5]
    low, high = (x & 0xFFFF) | (other << 16), (other >> 16 << 16) | (x >> 16)
    odd = (other & 0xFFFF0000) >> 16 | (x & 0xFFFF0000)  # bytes 6 and 7 of the pair, then 2 and 3
    yield "prmt", np.stack((np.where(lane % 2, odd, low), high, (other << 16) | (x >> 16))), got[5:]
    yield "shfl of 8 bytes", np.stack((x[before], x[after])) * 1.5, doubles


def _tickets(device: Device) -> Iterator[Comparison]:
    blocks, threads = device.blocks, 64
    arguments = [Result((blocks, threads, 4), np.float32), np.zeros(1, np.int32), Result((threads, 4), np.float32)]
    parts, got = device.run(Program("basic", "tickets"), threads, arguments, grid=blocks)
    numbers = np.arange(blocks)[:, None] * 31 + np.arange(threads * 4)
    expected = (numbers % 1021).astype(np.float32).reshape(blocks, threads, 4)
    yield "parts", expected, parts
    yield "their sum, by the last block", expected.sum(0, dtype=np.float64).astype(np.float32), got


def _largest(device: Device) -> Iterator[Comparison]:
    blocks, threads = device.blocks, 64
    x = (words(blocks * threads, 7) & 0x7FFFFFFF).astype(np.int32).reshape(blocks, threads)
    arguments = [x, Result((8,), np.int32), Result((8,), np.int64)]  # initially -1
    small, large = device.run(Program("basic", "largest"), threads, arguments, grid=blocks)
    expected = x.reshape(-1, 8).max(0)
    yield "atomicMax of 32 bits", expected, small
    wrapped = x.astype(np.uint64) * np.uint64(4294967311)
    yield "atomicMax of 64 bits", np.maximum(wrapped.view(np.int64).reshape(-1, 8).max(0), -1), large


def _beginning(device: Device) -> Iterator[Comparison]:
    (got,) = device.run(Program("basic", "beginning"), 32, [Result((3,))], shared_bytes=40 * 1024, grid=3)
    yield "its address modulo 1024", np.zeros(3, np.uint32), got


def _probe(name: str, run: Any, *kernels: str) -> Probe:
    return Probe(name, run, tuple(Program("basic", kernel) for kernel in kernels))


PROBES = (
    _probe("loads and stores of every width", _moves, "moves"),
    _probe("lanes and bytes", _lanes, "lanes"),
    _probe("max.NaN", _larger, "larger", "larger_f16", "larger_bf16"),
    _probe("cvt.rna.tf32", _rounded, "rounded"),
    _probe("shared memory at multiples of 1024", _beginning, "beginning"),
    _probe("atomicMax", _largest, "largest"),
    _probe("tickets and loads past L1", _tickets, "tickets"),
    _probe("ldmatrix", _matrices, "matrices", "transposed_matrices"),
    _probe("cp.async", _copies, "copies_4", "copies_8", "copies_16"),
    _probe("cp.async in groups", _groups, "copies_in_groups"),
    _probe("named barriers", _turns, "turns"),
)
RISKY = (_probe("cp.async of nothing, from no address", _copies_without_source, "copies_4", "copies_8", "copies_16"),)
