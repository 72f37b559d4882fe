"""Find the summation model of recorded tensor-core sums: ``python -m benchmarks.probes.fit FILE.npz``; needs no GPU.

FILE was written by ``python -m benchmarks.probes --bits FILE.npz`` on a GPU (benchmarks/probes/bits.py). A model is
selected by half of the sums and must reproduce the other half bit for bit. It is printed with the number by which
EMULATED_CUDA_SUMS selects it in the emulator.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.probes import bits, rules
from benchmarks.probes.numbers import ITEMSIZE, KINDS
from benchmarks.probes.probe import difference
from emulated_cuda.emulator import accumulation

Model = rules.Fused | None  # None: float32 additions in order of K
_SHAPES = {"mma": (16, 8), "wgmma": (64, 256)}
_FIRST = 512  # sums that already exclude most models


class NoModel(Exception):
    """No model explains a recording; the message names the first sum that the closest model gets wrong."""


@dataclass(frozen=True)
class Recording:
    """Sums of one instruction: its name, such as "mma_f16"; the operand tiles A, B and C; and the float32 results."""

    name: str
    inputs: tuple[Any, Any, Any]
    sums: Any

    @property
    def kind(self) -> str:
        return self.name.partition("_")[2]

    def part(self, tiles: slice) -> Recording:
        """Return a recording of some of the tiles."""
        a, b, c = self.inputs
        return Recording(self.name, (a[tiles], b[tiles], c[tiles]), self.sums[tiles])

    def wrong(self, model: Model) -> str:
        """Describe the sums that a model gets wrong; "" if there are none."""
        return difference(sums_by(model, self.kind, self.inputs), self.sums)


def sums_by(model: Model, kind: str, inputs: tuple[Any, Any, Any]) -> Any:
    """Return the sums of tiles by a model."""
    return rules.in_order(*inputs, kind) if model is None else rules.fused(*inputs, kind, model)


def read(path: Path) -> Iterator[Recording]:
    """Yield the recordings in a file; raises ValueError if it was recorded with other inputs than are made now."""
    with np.load(path) as found:
        for name in (f"{instruction}_{kind}" for instruction in _SHAPES for kind in KINDS):
            if name not in found:
                continue
            sums = found[name].view(np.float32)
            inputs = bits.operands(
                name.partition("_")[2], len(sums), *_SHAPES[name.partition("_")[0]], int(found["seed"])
            )
            digest = hashlib.sha256(b"".join(np.ascontiguousarray(one).tobytes() for one in inputs)).hexdigest()
            if digest != str(found[f"{name}_inputs"]):
                raise ValueError(f"{path}: {name} was recorded with other factors than bits.operands makes now")
            yield Recording(name, inputs, sums)


def fit(recording: Recording) -> Model:
    """Return the first model that reproduces every recorded sum.

    Raises
    ------
    NoModel
        No model reproduces the first half, or those that do fail on the second half.
    """
    half = len(recording.sums) // 2
    if not half:
        raise NoModel(f"{recording.name}: one tile cannot be halved")
    known, rest = recording.part(slice(half)), recording.part(slice(half, None))
    some = known.part(slice(max(1, _FIRST // known.sums[0].size)))
    models: list[Model] = [None, *rules.family(recording.kind)]
    found = [model for model in models if not some.wrong(model) and not known.wrong(model)]
    if not found:
        closest = min(models, key=lambda model: _count(some, model))
        raise NoModel(f"{recording.name}: no model explains it; {shown(closest)}: {known.wrong(closest)}")
    wrong = {model: rest.wrong(model) for model in found}
    right = [model for model in found if not wrong[model]]
    if not right:
        raise NoModel(f"{recording.name}: {shown(found[0])} explains only one half; the other: {wrong[found[0]]}")
    return right[0]


def _count(recording: Recording, model: Model) -> int:
    made = sums_by(model, recording.kind, recording.inputs)
    return int((made.view(np.uint32) != recording.sums.view(np.uint32)).sum())


def shown(model: Model) -> str:
    """Return a model in words."""
    return "products one after the other" if model is None else str(model)


def number(model: Model, kind: str) -> int:
    """Return the number of a model in the emulator's setting ``sums``."""
    if model is None:
        return accumulation.IN_ORDER
    return accumulation.fused(model.width * ITEMSIZE[kind], model.fraction, model.nearest)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the model of each recording; return 1 if one has none, 2 if the file is not a recording."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.probes.fit", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE.npz", help="written by python -m benchmarks.probes --bits")
    code = 0
    try:
        for recording in read(parser.parse_args(argv).file):
            try:
                model = fit(recording)
                print(f"{recording.name}: {shown(model)}; EMULATED_CUDA_SUMS={number(model, recording.kind)}")
            except NoModel as reason:
                print(reason)
                code = 1
    except (OSError, ValueError) as reason:
        print(f"python -m benchmarks.probes.fit: {reason}", file=sys.stderr)
        return 2
    return code


if __name__ == "__main__":
    sys.exit(main())
