"""Measure the host time of a warm ``gpuconv.conv`` call on CUDA arrays; no GPU is needed.

The measured call has two launches, a bias and a workspace. CuPy itself is called, on a CUDA runtime and driver that do
nothing (benchmarks/no_driver.py); its allocator always returns the same address. Parts of the call are timed, too.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import tempfile
import time
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any

import numpy as np

from benchmarks import machine, no_driver

_BATCH, _SAMPLES = 500, 200
_TARGET = 8.0  # microseconds
_POOL_BYTES = 1 << 30


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and write the medians; return 1 if the call takes longer than the target, 2 without CuPy."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            cupy, library = no_driver.install(folder)
        except no_driver.Unsuitable as reason:
            print(f"not measured: {reason}")
            return 2
        _without_compiler()
        cupy.cuda.set_allocator(_fixed(cupy))
        call, parts = _calls(cupy)
        launches = _launches(library, call)
        others = machine.Others()
        samples = {name: _time(part) for name, part in {"the whole call": call, **parts}.items()}
        busy = others.cores()
    _print(samples, launches, busy)
    if arguments.profile:
        _profile(call)
    result = {
        "command": machine.command(),
        "machine": machine.describe(("numpy", *_cupy_names())),
        "measured": "CuPy itself on a CUDA runtime and driver that do nothing; allocator stubbed",
        "other_processes_cores": round(busy, 2),
        "launches": launches,
        "median_us": {name: round(median(values), 3) for name, values in samples.items()},
        "percentiles_us": {name: _percentiles(values) for name, values in samples.items()},
    }
    machine.write(arguments.json, result)
    return int(median(samples["the whole call"]) > _TARGET)


def _without_compiler() -> None:
    """Replace the kernel compiler: the stub driver accepts any bytes as a kernel."""
    from gpuconv.cuda.build import compile as compiler
    from gpuconv.cuda.build import nvrtc

    vars(compiler)["cubin"] = lambda variant, architecture: variant.name.encode()
    vars(nvrtc)["capabilities"] = lambda: ((8, 0), (9, 0))


def _fixed(cupy: Any) -> Callable[[int], Any]:
    memory = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(_POOL_BYTES, _POOL_BYTES, None, 0), 0)
    return lambda _: memory


def _calls(cupy: Any) -> tuple[Callable[[], Any], dict[str, Callable[[], Any]]]:
    """Return the call, and its parts by name."""
    import gpuconv
    from gpuconv import _arrays
    from gpuconv.cuda.call import device

    x, w, b, y = (
        cupy.ndarray(shape, np.float32) for shape in ((8, 64, 56, 56), (64, 64, 3, 3), (64,), (8, 64, 56, 56))
    )

    def call() -> Any:
        return gpuconv.conv(x, w, b, pads=[1, 1, 1, 1], strides=[1, 1])

    weights = gpuconv.PackedWeights("conv", w)  # not by gpuconv.pack, which would copy w: it has no real memory

    def packed() -> Any:
        return gpuconv.conv(x, weights, b, pads=[1, 1, 1, 1], strides=[1, 1])

    call()
    packed()
    ((key, prepared),) = device.prepared.items()
    inputs, outs, kind = (x, w, b), (None,), np.dtype(np.float32).type
    ((words, _, launches),) = prepared._slots
    workspace = device.workspace(512, "")
    following = device.bind(prepared._steps[1]._handle, (1, 1, 1), 32, 0, device.parameters(bytes(64)), follows=True)
    return call, {
        "the same with packed weights": packed,
        "  libraries of the arrays": lambda: _arrays.resolve("conv", x, w, b),
        "  look-up, with a key that is there": lambda: device.prepared[key],
        "  running it: all below": lambda: prepared.run(inputs, outs),
        "    the output array": lambda: device.empty(y.shape, kind, ""),
        "    the workspace": lambda: device.workspace(512, ""),
        "    addresses into the structs": lambda: _patch(words),
        "    one launch, all of it CuPy's": launches[0],
        "    one that may overlap, by NVIDIA's": following,
        "    does the stream capture a graph": lambda: device.keep(workspace, y),
        "nothing at all": lambda: None,
    }


def _patch(words: Any) -> None:
    for struct, word, position in words:
        struct[word] = position


def _launches(library: Any, call: Callable[[], Any]) -> int:
    before = library.no_driver_launches()
    call()
    count: int = library.no_driver_launches() - before
    return count


def _time(call: Callable[[], Any]) -> list[float]:
    """Return microseconds of thread time per call, one sample per batch of calls; nothing in a call waits."""
    samples = []
    gc.disable()
    try:
        for _ in range(_SAMPLES):
            start = time.thread_time()
            for _ in range(_BATCH):
                call()
            samples.append((time.thread_time() - start) / _BATCH * 1e6)
    finally:
        gc.enable()
    return samples


def _print(samples: dict[str, list[float]], launches: int, busy: float) -> None:
    print(f"CuPy itself, on a CUDA runtime and driver that do nothing; allocator stubbed; {launches} launches a call")
    print(f"microseconds of the thread, {_SAMPLES} batches of {_BATCH} calls; others kept {busy:.1f} cores busy")
    print(f"{'':38}{'median':>8}{'10 %':>8}{'90 %':>8}")
    for name, values in samples.items():
        low, high = _percentiles(values)
        print(f"{name:38}{median(values):8.2f}{low:8.2f}{high:8.2f}")


def _percentiles(values: list[float]) -> tuple[float, float]:
    tenths = quantiles(values, n=10)
    return round(tenths[0], 3), round(tenths[-1], 3)


def _cupy_names() -> list[str]:
    from importlib import metadata

    return [name for name in ("cupy-cuda13x", "cupy-cuda12x") if name in {d.name for d in metadata.distributions()}]


def _profile(call: Callable[[], Any]) -> None:
    profile = cProfile.Profile()
    with profile:
        for _ in range(20_000):
            call()
    pstats.Stats(profile).sort_stats("tottime").print_stats(15)
