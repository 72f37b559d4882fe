"""Probes of wgmma: B K-major or N-major in shared memory, A in shared memory or in registers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.probes.launch import Device, Program, Result
from benchmarks.probes.mma import registers_of_a
from benchmarks.probes.numbers import DEPTH, ITEMSIZE, numbers, patterns, small_integers, swizzled
from benchmarks.probes.probe import Comparison, Probe

HOPPER = ("sm_90a",)
_STRUCTS = {"f16": "WgmmaHalf", "bf16": "WgmmaBfloat16", "tf32": "WgmmaTf32"}


@dataclass(frozen=True, slots=True)
class Form:
    """One form of the instruction that the kernels use.

    Attributes
    ----------
    kind : {"f16", "bf16", "tf32"}
    columns : int
        N.
    slice_bytes : int
        Bytes of a row along K in shared memory: 128 or 64, also the swizzle span.
    crosswise : bool
        Whether B is N-major instead of K-major.
    in_registers : bool
        Whether A is in registers.
    """

    kind: str
    columns: int
    slice_bytes: int = 128
    crosswise: bool = False
    in_registers: bool = False

    @property
    def program(self) -> Program:
        """The kernel that runs this form."""
        fields = {
            "KIND": _STRUCTS[self.kind],
            "COLUMNS": self.columns,
            "SLICE": self.slice_bytes,
            "CROSSWISE": str(self.crosswise).lower(),
        }
        defines = tuple(f"PROBE_{name}={value}" for name, value in fields.items())
        if self.in_registers:
            return Program("wgmma", "products_of_rows", (*defines, "PROBE_REGISTERS"))
        return Program("wgmma", "products", defines)

    @property
    def depth(self) -> int:
        """Elements of a whole slice along K."""
        return self.slice_bytes // ITEMSIZE[self.kind]

    def __str__(self) -> str:
        a = "A in registers, " if self.in_registers else ""
        b = "along columns" if self.crosswise else "along K"
        return f"{self.kind} 64x{self.columns}, {a}B {b}, {self.slice_bytes} bytes"


def multiplied(device: Device, form: Form, a: Any, b: Any, c: Any) -> Any:
    """Return C + A B of tiles, computed on a device: a of 64 rows, b of N columns, both with K last, as patterns.

    K is a whole slice, or its first 32 bytes; the rest of the slice is then filled with NaN, which must not be read.
    """
    tiles, depth = len(a), a.shape[-1]
    steps = depth // DEPTH[form.kind]
    if form.in_registers:
        rows = a.reshape(tiles, 4, 16, steps, 8).transpose(0, 3, 1, 2, 4)
        first = registers_of_a(rows, form.kind).reshape(tiles, steps, 128, 4)
    else:
        first = _laid_out(_filled(a, form), form.slice_bytes)
    second = _filled(b, form)
    if form.crosswise:  # blocks of 64 columns, each with rows of 128 bytes that follow each other along K
        second = second.reshape(tiles, form.columns // 64, 64, form.depth).swapaxes(-1, -2)
    second = _laid_out(second, 128 if form.crosswise else form.slice_bytes)
    arguments = [first, second, c, Result((tiles, 64, form.columns), np.float32), steps]
    nbytes = (64 + form.columns) * form.slice_bytes
    (got,) = device.run(form.program, 128, arguments, shared_bytes=nbytes, grid=tiles)
    return got


def _filled(matrix: Any, form: Form) -> Any:
    """Return a matrix padded along K to a whole slice with NaN (all bits set)."""
    missing = form.depth - matrix.shape[-1]
    rest = np.full((*matrix.shape[:-1], missing), np.iinfo(matrix.dtype).max, matrix.dtype)
    return np.concatenate((matrix, rest), -1)


def _laid_out(tiles: Any, span: int) -> Any:
    return np.stack([swizzled(tile, span) for tile in tiles])


def _one_product(form: Form) -> Any:
    def run(device: Device) -> Iterator[Comparison]:
        depth = form.depth
        a, b = small_integers((2, 64, depth), 41), small_integers((2, form.columns, depth), 42)
        c = small_integers((2, 64, form.columns), 43, 1000).astype(np.float32)
        got = multiplied(device, form, patterns(a, form.kind), patterns(b, form.kind), c)
        yield str(form), (c + a @ b.swapaxes(-1, -2)).astype(np.float32), got

    return run


def _with_ignored_bits(form: Form) -> Any:
    def run(device: Device) -> Iterator[Comparison]:
        random = np.random.default_rng(44)
        a, b = (
            patterns(small_integers((1, rows, 32), 45), "tf32") | random.integers(0, 2**13, (1, rows, 32), np.uint32)
            for rows in (64, form.columns)
        )
        got = multiplied(device, form, a, b, np.zeros((1, 64, form.columns), np.float32))
        sums = numbers(a, "tf32") @ numbers(b, "tf32").swapaxes(-1, -2)
        yield "without the last 13 bits", sums.astype(np.float32), got

    return run


FORMS = (
    *(
        Form(kind, 256, slice_bytes, crosswise)
        for crosswise in (False, True)
        for kind in ("f16", "bf16")
        for slice_bytes in (128, 64)
    ),
    Form("tf32", 256),
    Form("tf32", 64, in_registers=True),
    Form("tf32", 128, in_registers=True),
)
_NOISY = (Form("tf32", 256), Form("tf32", 64, in_registers=True))
PROBES = (
    *(Probe(f"wgmma {form}", _one_product(form), (form.program,), HOPPER) for form in FORMS),
    *(
        Probe(f"wgmma {form}: ignores the last 13 bits", _with_ignored_bits(form), (form.program,), HOPPER)
        for form in _NOISY
    ),
)
