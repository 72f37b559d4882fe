"""Measure the machine constants that the cost model uses: bandwidths, instruction rates and launch gaps.

    python -m benchmarks.constants --rows FILE

Each kernel of constants.cu does one kind of work, on non-zero numbers, for some milliseconds; the median of several
runs is recorded. A multiply-add counts as two operations.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import gpu_arrays
from benchmarks.progress import Rows
from gpuconv.cuda.build import nvrtc
from gpuconv.cuda.call import device

SOURCE = Path(__file__).with_name("constants.cu")
_SAMPLES = 7
_COPIED = 2**30  # bytes
_CACHED = 2**24  # bytes; small enough for the L2 cache of every supported device
_BLOCKS, _THREADS = 8, 256  # blocks per multiprocessor, threads per block
_LAUNCHES = 400
# Operations per round: of a thread by FFMA, of a warp by mma.sync, of a warpgroup by wgmma.
FFMA, MMA, WGMMA = 2 * 16 * 8, {"bfloat16": 2 * 8 * 16 * 8 * 16, "tf32": 2 * 8 * 16 * 8 * 8}, 2 * 4 * 64 * 256 * 16


@dataclass
class Bench:
    """The current device and the kernels of `SOURCE`, loaded on it."""

    cupy: Any
    kernels: Any
    multiprocessors: int
    architecture: str
    share: int = 1  # do only 1/share of the work, for tests

    def rounds(self, count: int) -> int:
        """Return ``count`` divided by `share`, at least 1."""
        return max(1, count // self.share)

    def data(self, nbytes: int) -> Any:
        """Return an array of ``nbytes`` random bytes, repeated from a host pattern: cuRAND need not be installed."""
        return gpu_arrays.repeated(self.cupy, np.random.default_rng(0).integers(0, 256, 2**20 + 7, np.uint8), (nbytes,))

    def launch(self, name: str, blocks: int, threads: int, *arguments: Any, shared_bytes: int = 0) -> None:
        """Launch a kernel on the current stream."""
        self.kernels.get_function(name)((blocks,), (threads,), arguments, shared_bytes)

    def seconds(self, run: Callable[[], None]) -> float:
        """Return the median time of `_SAMPLES` runs, after one warm-up run."""
        stream = self.cupy.cuda.get_current_stream()
        begin, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        found = []
        for _ in range(_SAMPLES + 1):
            begin.record(stream)
            run()
            end.record(stream)
            end.synchronize()
            found.append(self.cupy.cuda.get_elapsed_time(begin, end) / 1e3)
        return median(found[1:])

    def room(self, nbytes: int) -> Any:
        """Return uninitialised device memory of ``nbytes`` bytes."""
        return self.cupy.empty(nbytes, np.uint8)


def copy(bench: Bench) -> float:
    """Return the bandwidth of a device-to-device copy in bytes per second, read and written bytes both counted."""
    source = bench.data(_COPIED // bench.share)
    target, nbytes = bench.room(source.nbytes), source.nbytes
    stream = bench.cupy.cuda.get_current_stream()
    return 2 * nbytes / bench.seconds(lambda: target.data.copy_from_device_async(source.data, nbytes, stream))


def cached(bench: Bench) -> float:
    """Return the L2 read bandwidth in bytes per second."""
    data, sink = bench.data(_CACHED // bench.share), bench.room(4)
    rounds, blocks = bench.rounds(20), 8 * bench.multiprocessors
    arguments = (data, np.uint32(data.nbytes // 16), np.int32(rounds), sink)
    return rounds * data.nbytes / bench.seconds(lambda: bench.launch("read_cached", blocks, _THREADS, *arguments))


def ffma(bench: Bench) -> float:
    """Return the FLOP/s of float32 FFMA."""
    rounds, blocks, sink = bench.rounds(4000), _BLOCKS * bench.multiprocessors, bench.room(4)
    arguments = (np.float32(1.0001), np.float32(0.5), np.int32(rounds), sink)
    seconds = bench.seconds(lambda: bench.launch("ffma", blocks, _THREADS, *arguments))
    return FFMA * rounds * blocks * _THREADS / seconds


def mma(bench: Bench, dtype: str) -> float:
    """Return the FLOP/s of mma.sync."""
    rounds, blocks, sink = bench.rounds(4000), _BLOCKS * bench.multiprocessors, bench.room(4)
    arguments = (np.int32(rounds), sink)
    seconds = bench.seconds(lambda: bench.launch(f"mma_{dtype}", blocks, _THREADS, *arguments))
    return MMA[dtype] * rounds * blocks * (_THREADS // 32) / seconds


def wgmma(bench: Bench) -> float:
    """Return the FLOP/s of wgmma with operands in shared memory, by two warpgroups per multiprocessor."""
    rounds, blocks, sink = bench.rounds(4000), bench.multiprocessors, bench.room(4)
    arguments = (np.int32(rounds), sink)
    seconds = bench.seconds(lambda: bench.launch("wgmma_bfloat16", blocks, 256, *arguments, shared_bytes=32768))
    return WGMMA * rounds * blocks * 2 / seconds


def clock(bench: Bench) -> float:
    """Return the clock rate of a multiprocessor in Hz, right after the tensor cores were busy."""
    found, sink = bench.cupy.zeros(2, np.uint64), bench.room(4)
    blocks = _BLOCKS * bench.multiprocessors
    for _ in range(3):
        bench.launch("mma_bfloat16", blocks, _THREADS, np.int32(bench.rounds(20000)), sink)
    bench.launch("clock_rate", bench.multiprocessors, _THREADS, np.int32(bench.rounds(200_000)), found, sink)
    clocks, nanoseconds = map(int, found.get())
    return clocks / nanoseconds * 1e9


def launch_gap(bench: Bench) -> float:
    """Return the seconds from one empty kernel to the next in a stream."""

    def run() -> None:
        for _ in range(launches):
            bench.launch("empty", 1, 32)

    launches = bench.rounds(_LAUNCHES)
    return bench.seconds(run) / launches


def graph_gap(bench: Bench) -> float:
    """Return the seconds from one empty kernel to the next in a CUDA graph."""
    stream, launches = bench.cupy.cuda.Stream(non_blocking=True), bench.rounds(_LAUNCHES)
    with stream:
        stream.begin_capture()
        for _ in range(launches):
            bench.launch("empty", 1, 32)
        graph = stream.end_capture()
        return bench.seconds(lambda: graph.launch(stream)) / launches


ITEMS: dict[str, tuple[Callable[[Bench], float], float, str]] = {  # (measurement, unit, name of the unit) by row name
    "clock": (clock, 1e9, "GHz"),
    "copy": (copy, 1e12, "TB/s"),
    "L2 reads": (cached, 1e12, "TB/s"),
    "ffma float32": (ffma, 1e12, "TFLOP/s"),
    "mma.sync bfloat16": (lambda bench: mma(bench, "bfloat16"), 1e12, "TFLOP/s"),
    "mma.sync tf32": (lambda bench: mma(bench, "tf32"), 1e12, "TFLOP/s"),
    "launch gap": (launch_gap, 1e-6, "us"),
    "graph gap": (graph_gap, 1e-6, "us"),
    "wgmma bfloat16": (wgmma, 1e12, "TFLOP/s"),
}


def opened(share: int = 1) -> Bench:
    """Compile and load the kernels of `SOURCE` for the current device."""
    import cupy  # type: ignore[import-not-found]

    limits = device.limits(device.current_device())
    content, _ = nvrtc.build("constants", SOURCE.read_text(encoding="utf-8"), limits.architecture, ("-std=c++17",))
    module = cupy.cuda.Module()
    module.load(content)
    return Bench(cupy, module, limits.multiprocessors, limits.architecture, share)


def measure(bench: Bench, rows: Rows) -> bool:
    """Measure and write all missing rows; return whether one failed."""
    for name in rows.left(ITEMS):
        of, unit, unit_name = ITEMS[name]
        if name.startswith("wgmma") and bench.architecture != "sm_90a":
            rows.end(name, "skipped", detail=f"{bench.architecture} has no wgmma")
            continue
        try:
            found = of(bench)
        except Exception as error:  # record the failure and go on with the next item
            rows.end(name, "failed", detail=f"{type(error).__name__}: {error}"[:300])
            continue
        rows.end(name, number=found, value=f"{found / unit:.4g} {unit_name}{_per_clock(bench, rows, name, found)}")
        print(f"{name}: {rows.ended[name]['value']}", flush=True)
    return any(line["status"] == "failed" for line in rows.ended.values())


def _per_clock(bench: Bench, rows: Rows, name: str, found: float) -> str:
    """Return the suffix of the L2 row: bytes per multiprocessor and clock; "" elsewhere or if the clock is unknown."""
    clocks = rows.ended.get("clock", {}).get("number")
    if name != "L2 reads" or not clocks:
        return ""
    return f", {found / clocks / bench.multiprocessors:.1f} bytes per multiprocessor and clock"


def main() -> int:
    """Measure the missing rows; return 1 if one failed, 2 without a device."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.constants", description=__doc__)
    parser.add_argument("--rows", type=Path, required=True, metavar="FILE", help="append rows to FILE (JSON lines)")
    parser.add_argument("--step", default="constants", help="name of the step in these rows (%(default)s)")
    parser.add_argument("--share", type=int, default=1, metavar="N", help="do only 1/N of the work (default 1)")
    arguments = parser.parse_args()
    reason = device.unavailable_reason()
    if reason is not None:
        print(f"constants: no GPU to run on: {reason}", file=sys.stderr)
        return 2
    return int(measure(opened(arguments.share), Rows(arguments.rows, arguments.step)))


if __name__ == "__main__":
    sys.exit(main())
