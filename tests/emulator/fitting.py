"""Which model explains recorded sums of tensor cores: found by half of them, and held to the other half, bit for bit.

The recordings are those of `python -m benchmarks.probes` (benchmarks/probes/bits.py); `folder()` has them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
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


def folder() -> Path:
    """Return where recordings of devices are kept."""
    return Path(__file__).parent / "recorded"


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
