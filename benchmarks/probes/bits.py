"""Record about a million tensor-core sums bit by bit, and determine the rule by which they are rounded (rules.py).

Further probes check whether a sum depends on its position, on the tile size, or on the other steps of a wgmma group.
`operands` recreates the inputs from a seed; a file holds only the results and a digest of the inputs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.probes import mma, rules, wgmma
from benchmarks.probes.launch import Device, Program
from benchmarks.probes.numbers import DEPTH, KINDS, patterns
from benchmarks.probes.probe import Comparison, Probe, bits, difference
from benchmarks.probes.wgmma import HOPPER, Form

SEED = 20260
_SUMS = 172_032  # sums recorded per instruction
_PLACED_TILES = 24  # tiles of the position probes, each with one sum repeated at many positions
_SEARCHED = 8192  # sums compared with each rule when searching for the closest
_REACH = {"f16": 13, "bf16": 26, "tf32": 26}  # largest exponent magnitude in A; f16 is subnormal below -14
_SIGNIFICANT = {"f16": 11, "bf16": 8, "tf32": 11}

ROWS = ("near", "wide", "cancelling", "one large", "ladder")
COLUMNS = ("random", "paired", "signs")
SUMMANDS = ("none", "wide", "near")


def operands(kind: str, tiles: int, rows: int, columns: int, seed: int = SEED) -> tuple[Any, Any, Any]:
    """Return tiles of A and B as bit patterns, with K last, and of C as float32, chosen to tell summation rules apart.

    Row r of A is of the kind `ROWS[r % 5]`, column n of B of `COLUMNS[n % 3]`, C's element of `SUMMANDS[(r + n) % 3]`:

    - near: exponents -1, 0, 1 and full significands; also for the columns "random" and "paired"
    - wide: exponents from -reach to reach, which is 13 for f16, else 26
    - cancelling: the first half along K is wide, the second half is its negative, except for one small element in each
      half; columns "paired" repeat their first half, so that only those two elements remain
    - one large: one element is 2**reach, all others are 2**(reach - s) with s from 18 to 27, with random signs
    - ladder: exponents fall by 2 or 3 per element along K, from either end
    - signs: 1 and -1; summands are zero, or float32 with full significands and wide or near exponents

    All numbers are normal, and all are drawn by `numpy.random.Generator(PCG64(seed)).integers`.
    """
    random, depth, reach = np.random.Generator(np.random.PCG64(seed)), DEPTH[kind], _REACH[kind]
    a = _significands(random, kind, (tiles, rows, depth))
    exponents = random.integers(-1, 2, a.shape)
    wide = random.integers(-reach, reach + 1, a.shape)
    half = depth // 2
    for row in range(rows):
        name = ROWS[row % len(ROWS)]
        if name in ("wide", "cancelling"):
            exponents[:, row] = wide[:, row]
        if name == "cancelling":
            a[:, row, half:], exponents[:, row, half:] = -a[:, row, :half], exponents[:, row, :half]
            small = random.integers(0, half, (tiles, 1)) + np.array([0, half])
            lowest = np.broadcast_to(-reach + random.integers(0, 3, (tiles, 1)), small.shape)
            np.put_along_axis(exponents[:, row], small, lowest, -1)
            np.put_along_axis(a[:, row], small, _significands(random, kind, small.shape), -1)
        elif name == "one large":
            shift = random.integers(18, 28, (tiles, 1))
            large = np.arange(depth) == random.integers(0, depth, (tiles, 1))
            exponents[:, row] = np.maximum(np.where(large, reach, reach - shift), -14 if kind == "f16" else -99)
            a[:, row] = np.sign(a[:, row])
        elif name == "ladder":
            steps = np.minimum(np.arange(depth) * random.integers(2, 4, (tiles, 1)), 2 * reach)
            exponents[:, row] = reach - np.where(random.integers(0, 2, (tiles, 1)) == 0, steps, steps[:, ::-1])
    b = np.ldexp(_significands(random, kind, (tiles, columns, depth)), random.integers(-1, 2, (tiles, columns, depth)))
    b[:, 1::3, half:] = b[:, 1::3, :half]
    b[:, 2::3] = np.sign(b[:, 2::3])
    return patterns(np.ldexp(a, exponents), kind), patterns(b, kind), _summands(random, reach, (tiles, rows, columns))


def _significands(random: Any, kind: str, shape: tuple[int, ...]) -> Any:
    """Return random numbers in [1, 2) with random signs and all significant bits of the type."""
    unit = 2 ** (_SIGNIFICANT[kind] - 1)
    return (unit + random.integers(0, unit, shape)) / unit * (1 - 2 * random.integers(0, 2, shape))


def _summands(random: Any, reach: int, shape: tuple[int, ...]) -> Any:
    found = (2**23 + random.integers(0, 2**23, shape)) * 2.0**-23 * (1 - 2 * random.integers(0, 2, shape))
    which = (np.arange(shape[1])[:, None] + np.arange(shape[2])) % len(SUMMANDS)
    exponents = np.where(which == 1, random.integers(-reach, reach + 1, shape), random.integers(-2, 3, shape))
    return (np.ldexp(found, exponents) * (which > 0)).astype(np.float32)


# ---------------------------------------------------------------- recorded sums and their rule


class Recorder:
    """Collects the sums of all instructions in one .npz file; without a path it does nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def add(self, name: str, sums: Any, inputs: tuple[Any, ...]) -> None:
        """Write the bit patterns of sums, and a digest of their inputs."""
        if self._path is None:
            return
        found: dict[str, Any] = {}
        if self._path.exists():
            with np.load(self._path) as before:
                found = dict(before)
        digest = hashlib.sha256(b"".join(np.ascontiguousarray(one).tobytes() for one in inputs)).hexdigest()
        found |= {name: bits(sums), f"{name}_inputs": np.array(digest), "seed": np.array(SEED)}
        part = self._path.with_suffix(".part.npz")
        np.savez_compressed(part, **found)
        part.replace(self._path)


def _recorded(name: str, kind: str, form: Form | None, recorder: Recorder) -> Any:
    rows, columns = (64, form.columns) if form else (16, 8)

    def run(device: Device) -> Generator[Comparison, None, str]:
        tiles = max(1, _SUMS // (rows * columns * device.share))
        inputs = operands(kind, tiles, rows, columns)
        got = _multiplied(device, kind, form, *inputs)
        recorder.add(name, got, inputs)
        known = rules.published(kind, device.architecture)
        by_rule = {
            "float32 in the order of k, as the emulator": rules.in_order(*inputs, kind),
            f"as published: {known}": rules.fused(*inputs, kind, known),
        }
        verdicts = "; ".join(f"{rule}: {_verdict(sums, got)}" for rule, sums in by_rule.items())
        rule = next((one for one, sums in by_rule.items() if not difference(sums, got)), "")
        if not rule:
            closest, sums = _closest_rule(inputs, kind, got)
            rule = f"neither the emulator's nor what was published, but {closest}"
            by_rule[rule] = sums
        yield f"the closest rule is {rule}", by_rule[rule], got
        return f"the rule is {rule}; {verdicts}"

    return run


def _multiplied(device: Device, kind: str, form: Form | None, a: Any, b: Any, c: Any) -> Any:
    return wgmma.multiplied(device, form, a, b, c) if form else mma.multiplied(device, kind, a, b, c)


def _verdict(expected: Any, got: Any) -> str:
    found = difference(expected, got)
    return f"no, {found}" if found else f"yes, all {got.size} sums"


def _closest_rule(inputs: tuple[Any, ...], kind: str, got: Any) -> tuple[rules.Fused, Any]:
    """Return the rule of the family that matches most of the first sums, and all sums by that rule."""
    some = max(1, _SEARCHED // got[0].size)
    first = tuple(one[:some] for one in inputs)

    def differing(rule: rules.Fused) -> int:
        return int((bits(rules.fused(*first, kind, rule)) != bits(got[:some])).sum())

    rule = min(rules.family(kind), key=differing)
    return rule, rules.fused(*inputs, kind, rule)


# ---------------------------------------------------------------- one sum at many positions


_PLACED = {
    "f16": (Form("f16", 256), Form("f16", 256, crosswise=True), Form("f16", 256, slice_bytes=64)),
    "bf16": (Form("bf16", 256), Form("bf16", 256, crosswise=True), Form("bf16", 256, slice_bytes=64)),
    "tf32": (Form("tf32", 256), Form("tf32", 64, in_registers=True), Form("tf32", 128, in_registers=True)),
}


def _at_many_positions(kind: str, forms: tuple[Form | None, ...]) -> Any:
    """Return a run that repeats one sum at half of all rows and columns, between other sums, for each form."""

    def run(device: Device) -> Generator[Comparison, None, str]:
        tiles = max(2, _PLACED_TILES // device.share)
        first, second, third = operands(kind, tiles, 5, 3, SEED + 1)
        number = np.arange(tiles)
        row, column = first[number, number % 5], second[number, number // 5 % 3]
        summand = third[number, number % 5, number // 5 % 3]
        sums = []
        for form in forms:
            shape = (64, form.columns) if form else (16, 8)
            a, b, c = operands(kind, tiles, *shape, SEED + 2)
            in_rows, in_columns = (_random_mask(tiles, size) for size in shape)
            a[in_rows], b[in_columns] = row[in_rows.nonzero()[0]], column[in_columns.nonzero()[0]]
            chosen = in_rows[:, :, None] & in_columns[:, None, :]
            c[chosen] = summand[chosen.nonzero()[0]]
            got = _multiplied(device, kind, form, a, b, c)[chosen]
            of_tile = chosen.nonzero()[0]
            one = got[np.searchsorted(of_tile, number)]
            yield f"{form or 'mma.sync'}: one sum at all rows and columns", one[of_tile], got
            sums.append(one)
            yield f"{form or 'mma.sync'}: as {forms[0] or 'mma.sync'}", sums[0], one
        own = mma.multiplied(device, kind, *_single_sum_operands(row, column, summand, kind))[:, 0, 0]
        return f"mma.sync has the same sums: {_verdict(own, sums[0])}"

    return run


def _random_mask(tiles: int, size: int) -> Any:
    """Return a random mask of the rows that take part in each tile, at least one per tile."""
    random = np.random.Generator(np.random.PCG64(SEED + size))
    found = random.integers(0, 2, (tiles, size)) == 1
    found[np.arange(tiles), np.arange(tiles) % size] = True
    return found


def _single_sum_operands(row: Any, column: Any, summand: Any, kind: str) -> tuple[Any, Any, Any]:
    a, b = np.zeros((len(row), 16, DEPTH[kind]), row.dtype), np.zeros((len(row), 8, DEPTH[kind]), row.dtype)
    c = np.zeros((len(row), 16, 8), np.float32)
    a[:, 0], b[:, 0], c[:, 0, 0] = row, column, summand
    return a, b, c


def _group_against_steps(form: Form) -> Any:
    """Return a run that compares a wgmma group over a slice of K with its steps as separate launches."""

    def run(device: Device) -> Iterator[Comparison]:
        steps = [operands(form.kind, 2, 64, form.columns, SEED + 3 + step) for step in range(form.slice_bytes // 32)]
        whole_a, whole_b = (np.concatenate([step[which] for step in steps], -1) for which in (0, 1))
        sums = steps[0][2]
        whole = wgmma.multiplied(device, form, whole_a, whole_b, sums)
        for a, b, _ in steps:
            sums = wgmma.multiplied(device, form, a, b, sums)
        yield "a group of steps, as the steps alone", sums, whole

    return run


def probes(recorder: Recorder) -> tuple[Probe, ...]:
    """Return the probes that record sums, those of mma.sync first."""
    found = []
    for kind in KINDS:
        own = Program("mma", f"mma_{kind}")
        name = f"mma_{kind}"
        found.append(Probe(f"sums of mma.sync {kind}", _recorded(name, kind, None, recorder), (own,)))
        found.append(Probe(f"places of sums of mma.sync {kind}", _at_many_positions(kind, (None,)), (own,)))
    for kind in KINDS:
        form, own = Form(kind, 256), Program("mma", f"mma_{kind}")
        run = _recorded(f"wgmma_{kind}", kind, form, recorder)
        found.append(Probe(f"sums of wgmma {kind}", run, (form.program,), HOPPER))
        found.append(Probe(f"steps of wgmma {kind}", _group_against_steps(form), (form.program,), HOPPER))
        programs = (*(one.program for one in _PLACED[kind]), own)
        found.append(
            Probe(f"places of sums of wgmma {kind}", _at_many_positions(kind, _PLACED[kind]), programs, HOPPER)
        )
    return tuple(found)
