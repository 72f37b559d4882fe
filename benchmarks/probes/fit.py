"""Which model explains recorded sums of tensor cores: ``python -m benchmarks.probes.fit FILE.npz``; needs no GPU.

FILE is what ``python -m benchmarks.probes --bits FILE.npz`` has written on a device (benchmarks/probes/bits.py). A
model is found by half of the sums, and held to the other half, bit for bit. It is printed with the number that
EMULATED_CUDA_SUMS takes for it.
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

Model = rules.Fused | None  # None: in order
_SHAPES = {"mma": (16, 8), "wgmma": (64, 256)}
_FIRST = 512  # sums that tell most models apart


class NoModel(Exception):
    """No model explains a recording; the message has the first sum that the closest one gets wrong."""


@dataclass(frozen=True)
class Recording:
    """Sums of one instruction: its name as "mma_f16", the factors and summands of tiles, and float32 results."""

    name: str
    inputs: tuple[Any, Any, Any]
    sums: Any

    @property
    def kind(self) -> str:
        return self.name.partition("_")[2]

    def part(self, tiles: slice) -> Recording:
        """Return some of the tiles."""
        a, b, c = self.inputs
        return Recording(self.name, (a[tiles], b[tiles], c[tiles]), self.sums[tiles])

    def wrong(self, model: Model) -> str:
        """Say which sums a model gets wrong; nothing where it gets none."""
        return difference(sums_by(model, self.kind, self.inputs), self.sums)


def sums_by(model: Model, kind: str, inputs: tuple[Any, Any, Any]) -> Any:
    """Return the sums of tiles by a model."""
    return rules.in_order(*inputs, kind) if model is None else rules.fused(*inputs, kind, model)


def read(path: Path) -> Iterator[Recording]:
    """Yield what a file has of each instruction; ValueError where it was made of other numbers than are made now."""
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
    """Return the model that makes every recorded sum; of several, which differ in nothing recorded, the first.

    Raises
    ------
    NoModel
        None makes all sums of the first half, or the one that does gets a sum of the second half wrong.
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
        raise NoModel(f"{recording.name}: {shown(found[0])} explains one half alone; the other: {wrong[found[0]]}")
    return right[0]


def _count(recording: Recording, model: Model) -> int:
    made = sums_by(model, recording.kind, recording.inputs)
    return int((made.view(np.uint32) != recording.sums.view(np.uint32)).sum())


def shown(model: Model) -> str:
    """Return a model in words."""
    return "products one after the other" if model is None else str(model)


def number(model: Model, kind: str) -> int:
    """Return the model as the emulator takes it, in the setting `sums`."""
    if model is None:
        return accumulation.IN_ORDER
    return accumulation.fused(model.width * ITEMSIZE[kind], model.fraction, model.nearest)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the model of every recording in a file; return 1 where one has none, 2 where the file is no recording."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.probes.fit", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE.npz")
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
