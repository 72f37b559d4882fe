"""Replay random CUDA graphs, with unrelated allocations between replays: ``python -m tests.fuzz.graphs``.

Graphs capture functions of two or three layers, with plain weights that change in place, or packed ones. Several graphs
are alive at a time, are replayed on random streams, and are dropped while replays may be in flight. Each result is
compared with the CPU's. Unrelated arrays and copies of earlier results must keep their values.
"""

from __future__ import annotations

import argparse
import importlib
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

import gpuconv
from gpuconv.cuda.build import compile as compiler
from tests.harness import cuda_device

_SHAPES = ((1, 3, 6, 5), (2, 2, 5, 5), (1, 4, 7))
_SIZES = (8, 40, 100, 128, 300, 1000)  # elements of unrelated arrays
_LIVE = 6  # graphs alive at a time
_KEPT = 12  # unrelated arrays and copies of results alive at a time
_Layer = tuple[Callable[[Any, Any], Any], Any, str]  # function of (input, weights); the weights; their operator


class _Made:
    """A graph of a random function, and the same function on the CPU."""

    def __init__(self, random: Random, stream: Any) -> None:
        self._random = random
        self.shape, layers = self._layers()
        self._functions = [function for function, _, _ in layers]
        self._host = [w for _, w, _ in layers]
        self._packed = [w is not None and random.random() < 0.4 for w in self._host]
        there = [None if w is None else gpuconv.to_device(w) for w in self._host]
        each = zip(there, layers, self._packed, strict=True)
        self._there = [gpuconv.pack(w, operator=layer[2]) if packed else w for w, layer, packed in each]
        self._several = random.random() < 0.3
        _synchronize()
        with stream:
            self.graph = gpuconv.graph(lambda x: self._run(x, self._there), gpuconv.to_device(self.values(self.shape)))

    def values(self, shape: tuple[int, ...]) -> Any:
        """Return small integers, whose sums are exact."""
        return np.random.default_rng(self._random.getrandbits(32)).integers(-2, 3, shape).astype(np.float32)

    def expected(self, x: Any) -> list[Any]:
        """Return the results for an input, computed on the host."""
        return list(self._run(x, self._host))

    def change(self) -> bool:
        """Write new values into plain weights; return whether there are any."""
        plain = [at for at, w in enumerate(self._host) if w is not None and not self._packed[at]]
        if plain:
            at = self._random.choice(plain)
            self._host[at] = self.values(self._host[at].shape)
            _synchronize()
            self._there[at].set(self._host[at])
            _synchronize()
        return bool(plain)

    def _run(self, x: Any, weights: list[Any]) -> tuple[Any, ...]:
        between = []
        for function, w in zip(self._functions, weights, strict=True):
            x = function(x, w)
            between.append(x)
        return (x, between[0]) if self._several else (x,)

    def _layers(self) -> tuple[tuple[int, ...], list[_Layer]]:
        """Return an input shape and layers that fit each other."""
        while True:
            shape, layers = self._random.choice(_SHAPES), []
            x = np.zeros(shape, np.float32)
            try:
                for _ in range(self._random.choice((2, 3))):
                    layers.append(self._layer(x.shape))
                    x = layers[-1][0](x, layers[-1][1])
            except gpuconv.ArgumentError:  # a window larger than its input
                continue
            return shape, layers

    def _layer(self, shape: tuple[int, ...]) -> _Layer:
        random, channels, rank = self._random, shape[1], len(shape) - 2
        kind, filters = (
            random.choice(("conv", "conv", "conv_transpose", "max", "average", "relu")),
            random.choice((1, 4)),
        )
        if kind == "conv":
            w, pad = (
                self.values((filters, channels, *(random.choice((1, 2, 3)) for _ in range(rank)))),
                random.choice((0, 1)),
            )
            return lambda x, w: gpuconv.conv(x, w, pads=[pad] * 2 * rank), w, kind
        if kind == "conv_transpose":
            w, stride = self.values((channels, filters, *[2] * rank)), random.choice((1, 2))
            return lambda x, w: gpuconv.conv_transpose(x, w, strides=[stride] * rank), w, kind
        if kind == "relu":
            return lambda x, _: x * (x > 0), None, ""
        pool = gpuconv.max_pool if kind == "max" else gpuconv.average_pool
        return lambda x, _: pool(x, [2] * rank), None, ""


def run(replays: int, seed: int) -> Counter[str]:
    """Replay graphs and return counts of all actions; raises AssertionError if anything is wrong."""
    cupy: Any = importlib.import_module("cupy")
    random, counts = Random(seed), Counter[str]()
    streams = [cupy.cuda.Stream.null, *(cupy.cuda.Stream(non_blocking=True) for _ in range(3))]
    live: list[_Made] = []
    others: list[Any] = []  # pairs of an array and its expected value
    while counts["replays"] < replays:
        if len(live) < _LIVE or random.random() < 0.03:
            if len(live) == _LIVE:
                live.pop(random.randrange(_LIVE))
            live.append(_Made(random, random.choice(streams)))
            counts["graphs"] += 1
        made = random.choice(live)
        counts["changes of weights"] += random.random() < 0.05 and made.change()
        if random.random() < 0.02:
            cupy.get_default_memory_pool().free_all_blocks()
        with random.choice(streams):
            others.append((cupy.full(random.choice(_SIZES), 7, np.float32), 7))
            cupy.cuda.get_current_stream().synchronize()
        with random.choice(streams):
            others += _replayed(made, random)
            counts["replays"] += 1
        while len(others) > _KEPT:
            array, value = others.pop(random.randrange(len(others)))
            _synchronize()
            assert (gpuconv.to_host(array) == value).all(), f"seed {seed}, replay {counts['replays']}: overwritten"
            counts["arrays checked"] += 1
    return counts


def _replayed(made: _Made, random: Random) -> list[Any]:
    """Replay a graph on the current stream and compare; return copied results with their values."""
    x, copy = made.values(made.shape), random.random() < 0.5
    given = gpuconv.to_device(np.asfortranarray(x) if random.random() < 0.2 else x)
    results = made.graph(given, copy=copy)
    given.fill(9)  # ordered after the replay, so it must not affect the results
    found = [gpuconv.to_host(result) for result in results]
    for one, expected in zip(found, made.expected(x), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-5, atol=1e-5)  # averages are not exact
    return list(zip(results, found, strict=True)) if copy else []


def _synchronize() -> None:
    importlib.import_module("cupy").cuda.Device().synchronize()


def main() -> None:
    """Run on the machine's device, or on the emulated one."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.graphs")
    parser.add_argument("--replays", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    reason = cuda_device.unavailable_reason()
    if reason is not None:
        parser.error(reason)
    if cuda_device.emulated():
        compiler.cubin = cuda_device.ptx
    print(*(f"{count} {what}" for what, count in run(given.replays, given.seed).items()), sep=", ")


if __name__ == "__main__":
    main()
