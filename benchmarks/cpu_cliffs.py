"""Find performance cliffs on the CPU: measured time of random problems divided by a prediction from their work.

Problems are drawn from a seed, far from those of networks: long kernels, many channels or groups, strides larger than
the kernel, small workspaces. The prediction adds up, at rates measured in the same run with one thread:

* multiply-adds at the rate of ``numpy.matmul``;
* elements gathered, added or converted, and a start-up time for each short contiguous run of gathered elements;
* bytes of the arrays, with the weights counted once per image where ``invariant`` computes images separately;
* the time of the smallest possible call.

All times are processor time of the process.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import ml_dtypes
import numpy as np

import gpuconv
from benchmarks import gpu_summary, machine
from benchmarks.layers import Layer

Row = dict[str, Any]
PATH = Path(__file__).parent / "results" / "cpu_cliffs.json"
COUNT = 500  # problems in the stored file
STEPS = (3.0, 10.0)  # ratios whose exceeding shares are reported; above the last one the command fails
_MOST_SECONDS, _LEAST_SECONDS = 0.1, 5e-5  # bounds on the predicted time of a problem
_MOST_BYTES = 1e8  # bytes of x and y together, and of float32 weights
_RUN = 16  # contiguous elements per run when the gather rate is measured; shorter runs add start-up time
_INFINITE = float("inf")
_USUAL = {  # fixed rates by which every machine selects the same problems; infinite ones add no time
    "float32": 5e10,
    "float64": 2.5e10,
    "bytes": 5e9,
    "gathered": 1e9,
    "added": 1e9,
    "converted": 1.5e8,
    "scattered": 5e8,
    "runs": _INFINITE,
    "weights again": _INFINITE,
    "call": 1e-4,
}
_ROUNDS, _SECONDS = 5, 0.3  # most calls per problem, and seconds after which no further one starts
_WORST = 20
_CALLS = {  # relative frequency
    ("Conv", ""): 5,
    ("Conv", "input_grad"): 3,
    ("Conv", "weight_grad"): 3,
    ("ConvTranspose", ""): 5,
    ("ConvTranspose", "input_grad"): 1,
    ("ConvTranspose", "weight_grad"): 1,
    ("MaxPool", ""): 3,
    ("MaxPool", "grad"): 2,
    ("MaxPool", "unpool"): 1,
    ("AveragePool", ""): 3,
    ("AveragePool", "grad"): 2,
}
_DTYPES = {"float32": 6, "float16": 2, "bfloat16": 1, "float64": 1}
_WORKSPACES = {"": 6, "8388608": 1, "1048576": 1}
_INVARIANT = 0.2  # share of Conv, ConvTranspose and input gradients that get invariant="batch"
_TAPS = {1: 4096, 2: 48, 3: 10}  # largest kernel extent by rank
_EXTENTS = {1: 50_000, 2: 400, 3: 60}  # largest spatial extent by rank


@dataclass(frozen=True, slots=True)
class Problem:
    """A random call: layer, dtype, workspace limit (bytes, as text; "" is the default) and ``invariant``."""

    layer: Layer
    dtype: str
    workspace: str
    invariant: str | None

    def __str__(self) -> str:
        layer = self.layer
        words = [layer.operator, "x".join(map(str, layer.x)), f"k{'x'.join(map(str, layer.kernel))}"]
        words += [f"filters {layer.k_out}"] if layer.k_out else []
        words += [f"group {layer.group}"] if layer.group > 1 else []
        for name, values, usual in (("s", layer.strides, 1), ("d", layer.dilations, 1), ("p", layer.pads, 0)):
            words += [f"{name}{'x'.join(map(str, values))}"] if set(values) != {usual} else []
        words += ["indices"] if layer.indices and not layer.call else []
        words += [self.dtype]
        words += [f"workspace {self.workspace}"] if self.workspace else []
        return " ".join([*words, self.invariant or ""]).rstrip()


def run(arguments: argparse.Namespace) -> int:
    """Print each operator's ratios and the worst problems; return 1 if a ratio exceeds the last of `STEPS`."""
    count = arguments.count or COUNT
    wrong = _invalid_options(arguments, count)
    if wrong:
        print(f"python -m benchmarks cliffs: {wrong}", file=sys.stderr)
        return 2
    others = machine.Others()
    rates = measured_rates()
    rows = []
    for problem in islice(problems(arguments.seed), count):
        if sys.stderr.isatty():
            print(f"\r\x1b[K[{len(rows) + 1}/{count}] {problem}"[:120], end="", file=sys.stderr, flush=True)
        rows.append(measured(problem, rates))
    print("\n".join(lines(rows)))
    record = {
        "command": machine.command(),
        "machine": machine.describe(["numpy"]),
        "busy_cores": others.cores(),
        "rates": rates,
        "shares": shares(rows),
        "worst": worst(rows),
    }
    machine.write(arguments.json, record | {"problems": rows})
    if arguments.write:
        machine.write(PATH, record)
        print(f"\nwritten: {PATH}")
    return int(any(row["ratio"] > STEPS[-1] for row in rows))


def _invalid_options(arguments: argparse.Namespace, count: int) -> str:
    """Return what is wrong with the combination of options, or ""."""
    if arguments.arch is not None or arguments.picture is not None:
        return "--arch and --picture belong to the GPU model: leave them out, or leave out --cpu"
    if arguments.write and (count != COUNT or arguments.seed):
        return f"--cpu --write stores {COUNT} problems of seed 0: omit --count and --seed, or write by --json FILE"
    return ""


# ---------------------------------------------------------------- random problems


def problems(seed: int) -> Iterator[Problem]:
    """Yield random problems whose work should take `_LEAST_SECONDS` to `_MOST_SECONDS` at the rates of `_USUAL`."""
    random = Random(seed)
    while True:
        problem = drawn(random)
        if problem is not None and _LEAST_SECONDS <= predicted(problem, _USUAL) - _USUAL["call"] <= _MOST_SECONDS:
            yield problem


def drawn(random: Random) -> Problem | None:
    """Return one random problem, or None if the drawn numbers are invalid or the arrays too large."""
    (op, call), dtype, workspace = (_weighted(random, of) for of in (_CALLS, _DTYPES, _WORKSPACES))
    layer = _layer(random, op, call)
    invariant = "batch" if random.random() < _INVARIANT else None
    try:
        shape = layer.y_shape
    except gpuconv.ArgumentError:
        return None
    if min(shape) < 1 or layer.nbytes() > _MOST_BYTES or 4 * prod(layer.w_shape or (1,)) > _MOST_BYTES:
        return None
    takes_word = layer.multiplies and call != "weight_grad"
    return Problem(layer, dtype, workspace, invariant if takes_word else None)


def _layer(random: Random, op: str, call: str) -> Layer:
    rank, pools = random.choices((1, 2, 3), (9, 8, 3))[0], op in ("MaxPool", "AveragePool")
    kernel, extents = _per_axis(random, 1, _TAPS[rank], rank), _per_axis(random, 1, _EXTENTS[rank], rank)
    strides = tuple(random.choice((1, 1, 2, max(1, k // 4), k, _log(random, 1, 2 * k))) for k in kernel)
    dilations = tuple(random.choice((1, 1, 1, _log(random, 1, 16))) for _ in kernel)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = tuple(random.choice((0, r // 2, r // 2, r - 1)) for r in reach)
    if op == "ConvTranspose":
        pads = tuple(random.choice((0, min(r, s) // 2)) for r, s in zip(reach, strides, strict=True))
    elif pools:
        pads = tuple(min(pad, k - 1) for pad, k in zip(pads, kernel, strict=True))
    if call == "unpool":  # windows tile x exactly: MaxUnpool then infers the shape that Indices refer to
        pads, dilations = (0,) * rank, (1,) * rank
        extents = tuple(max(0, n - k) // s * s + k for n, k, s in zip(extents, kernel, strides, strict=True))
    channels, filters = _log(random, 1, 4096), _log(random, 1, 4096)
    kind = random.random()
    group = 1 if pools or kind < 0.7 else channels if kind < 0.85 else 2 ** random.randrange(6)
    if group > 1:
        channels, filters = (-(-n // group) * group for n in (channels, filters))
    return Layer(
        id="",
        net="",
        op=op,
        x=(_log(random, 1, 64), channels, *extents),
        kernel=kernel,
        strides=strides,
        pads=pads * 2,
        dilations=dilations,
        dtypes=(),
        k_out=0 if pools else filters,
        group=group,
        output_padding=(0,) * rank if op == "ConvTranspose" else (),
        indices=op == "MaxPool" and (call != "" or random.random() < 0.4),
        call=call,
    )


def _log(random: Random, low: int, high: int) -> int:
    return round(low * (high / low) ** random.random())


def _per_axis(random: Random, low: int, high: int, rank: int) -> tuple[int, ...]:
    """Draw one number for all axes, or (one time in three) a separate number for each axis."""
    if random.random() < 1 / 3:
        return tuple(_log(random, low, high) for _ in range(rank))
    return (_log(random, low, high),) * rank


def _weighted(random: Random, weights: dict[Any, int]) -> Any:
    return random.choices(list(weights), list(weights.values()))[0]


# ---------------------------------------------------------------- the predicted time


def measured_rates() -> dict[str, float]:
    """Measure this machine's rates per second with one thread; "call" is the seconds of the smallest call."""
    size, depth = 1024, 512
    a, b = np.ones((size, depth), np.float32), np.ones((depth, size), np.float32)
    wide = np.ones(2**23, np.float32)
    runs, near = np.ones((2**12, 2, 16), np.float32), np.ones((2**12, 16), np.float32)
    half, where = near.astype(np.float16), np.arange(2**18)[::-1] % 2**16
    tiny = np.ones((1, 1, 8), np.float32), np.ones((1, 1, 1), np.float32)
    operations, of_run, of_short = 2 * size * size * depth, _copying(_RUN), _copying(4)
    start = max(0.0, (of_short - of_run) / (1 / 4 - 1 / _RUN))
    c, d = a.astype(np.float64), b.astype(np.float64)
    bytes_ = 2 * wide.nbytes / _fastest(wide.copy)
    return {
        "float32": operations / _fastest(lambda: a @ b),
        "float64": operations / _fastest(lambda: c @ d),
        "bytes": bytes_,
        "weights again": bytes_,
        "gathered": 1 / of_run,
        "runs": 1 / start if start else _INFINITE,
        "added": near.size / _fastest(lambda: np.add(near, runs[:, 0], out=near)),
        "converted": near.size / _fastest(lambda: (half.astype(np.float32), near.astype(np.float16))),
        "scattered": where.size / _fastest(lambda: np.bincount(where, minlength=2**16)),
        "call": _fastest(lambda: gpuconv.conv(*tiny), 200),
    }


def _copying(run: int) -> float:
    """Return the seconds per element of a strided copy of every second run of ``run`` contiguous elements."""
    elements = 2**16
    source, target = np.ones((elements // run, 2, run), np.float32), np.ones((elements // run, run), np.float32)
    return _fastest(lambda: np.copyto(target, source[:, 0])) / elements


def _fastest(call: Callable[[], Any], rounds: int = 7) -> float:
    """Return the smallest processor time of several calls, in seconds."""
    return min(_processor_seconds(call) for _ in range(rounds))


def _processor_seconds(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def predicted(problem: Problem, rates: dict[str, float]) -> float:
    """Return the predicted seconds of a problem at the given rates."""
    layer, item = problem.layer, 8 if problem.dtype == "float64" else 4
    x, y, weights = prod(layer.x), prod(layer.y_shape), prod(layer.w_shape or (0,))
    counts = pool_counts(layer) if layer.pools else conv_counts(layer)
    if problem.dtype in ("float16", "bfloat16"):
        counts["converted"] = x + y + weights
    counts["bytes"] = (x + y + weights) * item
    if problem.invariant:
        counts["weights again"] = (layer.x[0] - 1) * weights * item
    rate = dict(rates, products=rates["float64" if problem.dtype == "float64" else "float32"])
    wide = {"gathered", "added"} if item == 8 else set()
    return rates["call"] + sum(count * (2 if name in wide else 1) / rate[name] for name, count in counts.items())


def conv_counts(layer: Layer) -> dict[str, float]:
    """Count the work of a convolution: operations of the matrix products, and elements gathered or added besides.

    A Conv either gathers channels x taps for every output, or computes products of all inputs of a stride's phase and
    adds filters x taps of them; the smaller count is used. ConvTranspose is the reverse. Input gradients count as their
    operator; weight gradients count the smaller of channels and filters per tap and output. A 1x1 kernel moves nothing.
    """
    batch, channels, *x = layer.x
    taps, phases, y, made = prod(layer.kernel), prod(layer.strides), layer.y_shape[2:], max(1, layer.k_out)
    coarse, fine = (x, y) if layer.op == "ConvTranspose" else (y, x)
    of_coarse, of_fine = (made, channels) if layer.op == "ConvTranspose" else (channels, made)
    beside = min(prod(coarse) * of_coarse, -(-prod(fine) // phases) * of_fine)
    if layer.call == "weight_grad":
        beside = prod(coarse) * min(channels, made)
    gathered = 0 if taps == 1 else batch * taps * beside
    return {"products": layer.flops, "gathered": gathered, "runs": gathered * max(0.0, 1 / coarse[-1] - 1 / _RUN)}


def pool_counts(layer: Layer) -> dict[str, float]:
    """Count the work of a pool: one addition or comparison per tap, axis by axis.

    With Indices a comparison counts four times; MaxUnpool and the gradient of MaxPool scatter one element per window.
    """
    shape, steps = list(layer.x), 0.0
    if layer.op == "MaxPool" and layer.call:
        return {"scattered": prod(layer.y_shape), "added": prod(layer.x)}
    for axis, (k, n, q) in enumerate(zip(layer.kernel, layer.x[2:], layer.y_shape[2:], strict=True), 2):
        shape[axis] = q
        steps += prod(shape) * min(k, n)
    return {"added": steps * (4 if layer.indices else 1)}


# ---------------------------------------------------------------- the measured time


def measured(problem: Problem, rates: dict[str, float]) -> Row:
    """Return the row of a problem: measured processor time, prediction and ratio."""
    with _workspace(problem.workspace):
        call = _call(problem)
        samples = [_processor_seconds(call)]
        while len(samples) < _ROUNDS and sum(samples) < _SECONDS:
            samples.append(_processor_seconds(call))
    seconds = predicted(problem, rates)
    return {
        "problem": str(problem),
        "operator": problem.layer.operator,
        "ms": _short(min(samples) * 1e3),
        "predicted_ms": _short(seconds * 1e3),
        "ratio": _short(min(samples) / seconds),
    }


@contextmanager
def _workspace(text: str) -> Any:
    before = os.environ.get("GPUCONV_WORKSPACE_BYTES", "")
    os.environ["GPUCONV_WORKSPACE_BYTES"] = text
    try:
        yield
    finally:
        os.environ["GPUCONV_WORKSPACE_BYTES"] = before


def _call(problem: Problem) -> Callable[[], Any]:
    """Return the call of a problem on random operands, ready to be timed."""
    layer, generator = problem.layer, np.random.default_rng(0)
    dtype: Any = ml_dtypes.bfloat16 if problem.dtype == "bfloat16" else problem.dtype
    x, y, w = (
        generator.random(shape, np.float32).astype(dtype) for shape in (layer.x, layer.y_shape, layer.w_shape or (1,))
    )
    keywords = layer.attributes()
    if problem.invariant:
        keywords["invariant"] = problem.invariant
    function = getattr(gpuconv, layer.operator)
    if layer.op == "MaxPool" and layer.call:
        y, indices = gpuconv.max_pool(x, return_indices=True, **keywords)
        return partial(function, y, indices, layer.x, **{name: keywords[name] for name in _indices_attributes(layer)})
    if layer.op == "MaxPool":
        return partial(function, x, return_indices=layer.indices, **keywords)
    if layer.op == "AveragePool":
        return partial(function, y, layer.x, **keywords) if layer.call else partial(function, x, **keywords)
    operands = {"input_grad": (y, w, layer.x), "weight_grad": (x, y, layer.w_shape), "": (x, w)}[layer.call]
    return partial(function, *operands, **keywords)


def _indices_attributes(layer: Layer) -> list[str]:
    """Return the names of the attributes that go with Indices: MaxUnpool has no dilations or ceil_mode."""
    return ["kernel_shape", "pads", "strides"] + ["dilations", "ceil_mode"] * (layer.call == "grad")


# ---------------------------------------------------------------- results


def shares(rows: list[Row]) -> dict[str, Row]:
    """Return the geometric mean, the shares above `STEPS` and the worst ratio, for all problems and per operator."""
    groups = {"all": rows}
    for row in rows:
        groups.setdefault(row["operator"], []).append(row)
    return {name: _shares([row["ratio"] for row in group]) for name, group in groups.items()}


def _shares(ratios: list[float]) -> Row:
    above = {f"above_{step:g}": _short(sum(ratio > step for ratio in ratios) / len(ratios)) for step in STEPS}
    return {"problems": len(ratios), "mean": _short(gpu_summary.mean(ratios)), **above, "worst": max(ratios)}


def worst(rows: list[Row]) -> list[Row]:
    """Return the problems with the largest ratios."""
    return sorted(rows, key=lambda row: -row["ratio"])[:_WORST]


def lines(rows: list[Row]) -> list[str]:
    """Return the lines of the report."""
    table = [f"{'operator':28} {'problems':>8} {'mean':>6} {'> 3':>6} {'> 10':>6} {'worst':>7}"]
    for name, one in sorted(shares(rows).items()):
        above = " ".join(f"{one[f'above_{step:g}']:6.1%}" for step in STEPS)
        table.append(f"{name:28} {one['problems']:8} {one['mean']:6.2f} {above} {one['worst']:7.2f}")
    table += ["", "farthest above the prediction:"]
    return table + [f"{row['ratio']:7.1f} times {row['predicted_ms']:9.3f} ms  {row['problem']}" for row in worst(rows)]


def _short(value: float) -> float:
    return float(f"{value:.4g}")
