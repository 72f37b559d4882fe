"""Find performance cliffs of the GPU planner: small changes of a problem that raise its modelled time a lot.

Two experiments report the modelled time over the floor, the roofline bound by the datasheet. One draws random problems
from a seed: an operator, dtype, layout and sizes as in networks, some of them odd. The other changes one number of each
known layer, such as channels + 1, and reports by what factor its time over the floor grows. Nothing is measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from random import Random
from typing import Any, BinaryIO

from benchmarks import gpu_summary, layers, machine, static_plan
from benchmarks.layers import Layer
from benchmarks.static_plan import Case
from gpuconv._errors import ArgumentError
from gpuconv.cuda.plan.limits import Representative, representative

Row = dict[str, Any]
ARCHITECTURE, COUNT = "sm_90a", 2500  # defaults
LEAST_US = 2.0  # problems with a lower floor are skipped: launch overhead would dominate
STEPS = (3.0, 6.0)  # multiples of the floor whose exceeding shares are reported
_MOST_BYTES, _MOST_FLOPS = 2**31, 2e12
_WORST = 20
_CALLS = {  # relative frequency
    ("Conv", ""): 8,
    ("Conv", "input_grad"): 3,
    ("Conv", "weight_grad"): 4,
    ("ConvTranspose", ""): 3,
    ("MaxPool", ""): 2,
    ("MaxPool", "grad"): 2,
    ("AveragePool", ""): 1,
    ("AveragePool", "grad"): 1,
}
_DTYPES = {"bfloat16": 4, "float16": 1, "float32": 3, "tf32": 2, "3xtf32": 1, "float64": 1}
_EXTENTS = {1: (64, 65536), 2: (7, 512), 3: (6, 96)}  # smallest and largest spatial extent by rank
_WINDOWS = {1: (1, 3, 4, 7, 9, 11, 15, 31), 2: (1, 1, 3, 3, 3, 5, 7), 3: (1, 3, 3, 5)}
_POOLED = {"MaxPool": (2, 3, 3, 5, 13), "AveragePool": (2, 3, 3, 5, 7)}  # window sizes of pools
CHANGES: dict[str, Callable[[Layer], Layer | None]] = {
    "channels + 1": lambda layer: _with_channels(layer, layer.x[1] + 1),
    "filters + 1": lambda layer: _with_filters(layer, layer.k_out + 1),
    "batch + 1": lambda layer: replace(layer, x=(layer.x[0] + 1, *layer.x[1:])),
    "width + 1": lambda layer: replace(layer, x=(*layer.x[:-1], layer.x[-1] + 1)),
    "height + 1": lambda layer: (
        replace(layer, x=(*layer.x[:2], layer.x[2] + 1, *layer.x[3:])) if len(layer.x) > 3 else None
    ),
    "pads + 1": lambda layer: replace(layer, pads=tuple(pad + 1 for pad in layer.pads)),
}


def run(arguments: argparse.Namespace) -> int:
    """Print the shares above `STEPS`, the effects of small changes and the worst problems."""
    try:
        device = representative(arguments.arch or ARCHITECTURE)
        if arguments.write:
            raise ArgumentError("--write needs --cpu: modelled times are not stored; write them by --json FILE")
    except ArgumentError as reason:
        print(f"python -m benchmarks cliffs: {reason}", file=sys.stderr)
        return 2
    rows = problems(device, arguments.count or COUNT, arguments.seed)
    found = {"shares": shares(rows), "jumps": jumps(device), "worst": worst(rows)}
    print("\n".join(lines(found)))
    head = {"architecture": device.limits.architecture, "device": device.name, "command": machine.command()}
    machine.write(arguments.json, head | found | {"problems": rows})
    if arguments.picture is not None:
        draw(rows, arguments.picture)
    return 0


# ---------------------------------------------------------------- random problems


def problems(device: Representative, count: int, seed: int) -> list[Row]:
    """Return ``count`` random problems with floors of at least `LEAST_US`, with their modelled times over the floor."""
    rows: list[Row] = []
    random = Random(seed)
    while len(rows) < count:
        case = drawn(random)
        if case is not None and (row := _row(case, device)) is not None and row["floor_us"] >= LEAST_US:
            rows.append(row)
    return rows


def drawn(random: Random) -> Case | None:
    """Return one random problem, or None if the drawn sizes are invalid or exceed the limits on bytes and FLOPs."""
    (op, call), label = _weighted(random, _CALLS), _weighted(random, _DTYPES)
    dtype, precision = ("float32", label) if label.endswith("tf32") else (label, "ieee")
    layer = _layer(random, op, call)
    precision = precision if layer.multiplies else "ieee"
    if layer.flops > _MOST_FLOPS or layer.nbytes() > _MOST_BYTES or min(layer.y_shape) < 1:
        return None
    return Case(layer, dtype, random.choice(("NCHW", "NHWC")), precision)


def _layer(random: Random, op: str, call: str) -> Layer:
    rank = random.choices((1, 2, 3), (2, 7, 1))[0]
    low, high = _EXTENTS[rank]
    extent = round(low * (high / low) ** random.random())
    extents = tuple(max(low, round(extent * random.choice((1, 1, 1, 0.75, 1.5)))) for _ in range(rank))
    channels = _width(random)
    pools = op in ("MaxPool", "AveragePool")
    depthwise = not pools and random.random() < 0.2
    grouped = not pools and not depthwise and random.random() < 0.08
    group = channels if depthwise else next(g for g in (32, 8, 4, 2, 1) if channels % g == 0) if grouped else 1
    filters = channels * random.choice((1, 1, 1, 2)) if group > 1 else _width(random)
    window = random.choice(_WINDOWS[rank]) if not pools else random.choice(_POOLED[op])
    stride = random.choice((1, 1, 1, 2)) if op == "Conv" else 2 if op == "ConvTranspose" else random.choice((1, 2, 2))
    stride = min(stride, window)
    dilation = random.choice((1, 1, 1, 1, 1, 2, 4)) if op == "Conv" and window > 1 else 1
    reach = (window - 1) * dilation
    pads = (reach // 2,) * rank + (reach - reach // 2,) * rank
    if op == "ConvTranspose":
        pads = ((window - stride) // 2,) * (2 * rank)
    batch = random.choice((1, 1, 2, 4, 8, 16, 32, 64))
    return Layer(
        id="",
        net="",
        op=op,
        x=(batch, channels, *extents),
        kernel=(window,) * rank,
        strides=(stride,) * rank,
        pads=pads,
        dilations=(dilation,) * rank,
        dtypes=(),
        k_out=filters if not pools else 0,
        group=group,
        output_padding=(0,) * rank if op == "ConvTranspose" else (),
        indices=op == "MaxPool" and (call != "" or random.random() < 0.3),
        call=call,
    )


def _width(random: Random) -> int:
    """Draw a number of channels or filters: usually a multiple of 8 or 32, sometimes odd, sometimes tiny."""
    kind = random.random()
    if kind < 0.12:
        return random.choice((1, 2, 3, 4, 6, 8, 10, 12, 16))
    size = 16 * 64 ** random.random()
    step = 32 if kind < 0.6 else 8 if kind < 0.8 else 1
    return max(step, round(size / step) * step)


def _weighted(random: Random, weights: dict[Any, int]) -> Any:
    return random.choices(list(weights), list(weights.values()))[0]


# ---------------------------------------------------------------- changed layers


def jumps(device: Representative) -> dict[str, Row]:
    """Return for each change the growth of time over the floor: geometric mean, share above 2, and the worst case."""
    cases = [case for case in static_plan.cases() if case.precision == "ieee" and case.dtype in ("bfloat16", "float32")]
    before = {str(case): row for case in cases if (row := _row(case, device)) is not None}
    found = {}
    for name, change in CHANGES.items():
        growth = dict(_grown(cases, before, change, device))
        most = max(growth, key=lambda case: growth[case])
        found[name] = {
            "cases": len(growth),
            "mean": _short(gpu_summary.mean(growth.values())),
            "above_2": _short(sum(value > 2 for value in growth.values()) / len(growth)),
            "worst": _short(growth[most]),
            "worst_case": most,
        }
    return found


def _grown(
    cases: Iterable[Case], before: dict[str, Row], change: Callable[[Layer], Layer | None], device: Representative
) -> Iterator[tuple[str, float]]:
    for case in cases:
        old = before.get(str(case))
        changed = change(case.layer)
        if old is None or old["floor_us"] < LEAST_US or changed is None:
            continue
        new = _row(replace(case, layer=changed), device)
        if new is not None:
            yield str(case), new["over_floor"] / old["over_floor"]


def _with_channels(layer: Layer, channels: int) -> Layer | None:
    """Return the layer with this many channels; depthwise layers keep one group per channel, grouped ones give None."""
    x = (layer.x[0], channels, *layer.x[2:])
    if layer.group == 1:
        return replace(layer, x=x)
    if layer.group == layer.x[1]:
        return replace(layer, x=x, group=channels, k_out=layer.k_out // layer.group * channels)
    return None


def _with_filters(layer: Layer, filters: int) -> Layer | None:
    return replace(layer, k_out=filters) if layer.group == 1 and not layer.pools else None


# ---------------------------------------------------------------- results


def _row(case: Case, device: Representative) -> Row | None:
    """Return the floor of a case and its modelled time over the floor; None if the planner has no model for it."""
    chooser = static_plan.Chooser()
    try:
        plan = static_plan.plan(case, device, chooser)
    except ArgumentError:
        return None
    if chooser.picked is None:
        return None
    least = max(static_plan.floors_of(case, device))
    return {
        "problem": described(case),
        "class": case.layer.kind,
        "dtype": static_plan.label(case),
        "layout": case.layout,
        "kernels": [launch.variant.name for launch in plan.launches],
        "floor_us": _short(least * 1e6),
        "over_floor": _short(chooser.picked.seconds / least),
    }


def described(case: Case) -> str:
    """Return a problem as one line of text."""
    layer = case.layer
    sizes = "x".join(map(str, layer.x))
    words = [layer.operator, sizes, f"k{'x'.join(map(str, layer.kernel))}"]
    words += [f"filters {layer.k_out}"] if layer.k_out else []
    words += [f"group {layer.group}"] if layer.group > 1 else []
    words += [f"strides {layer.strides[0]}"] if prod(layer.strides) > 1 else []
    words += [f"dilations {layer.dilations[0]}"] if prod(layer.dilations) > 1 else []
    return " ".join([*words, static_plan.label(case), case.layout])


def shares(rows: list[Row]) -> dict[str, Row]:
    """Return the geometric mean and the shares above `STEPS`, for all problems and per class."""
    groups = {"all": rows}
    for row in rows:
        groups.setdefault(row["class"], []).append(row)
    return {name: _shares(group) for name, group in groups.items()}


def _shares(rows: list[Row]) -> Row:
    ratios = [row["over_floor"] for row in rows]
    above = {f"above_{step:g}": _short(sum(ratio > step for ratio in ratios) / len(ratios)) for step in STEPS}
    return {"problems": len(rows), "mean": _short(gpu_summary.mean(ratios)), **above}


def worst(rows: list[Row]) -> list[Row]:
    """Return the problems with the largest time over the floor."""
    return sorted(rows, key=lambda row: -row["over_floor"])[:_WORST]


def lines(found: Row) -> list[str]:
    """Return the lines of the report."""
    table = [f"{'class':30} {'problems':>8} {'mean':>6} {'> 3':>6} {'> 6':>6}"]
    for name, one in found["shares"].items():
        table.append(f"{name:30} {one['problems']:8} {one['mean']:6.2f} {one['above_3']:6.1%} {one['above_6']:6.1%}")
    table += ["", f"{'change':16} {'cases':>6} {'mean':>6} {'> 2':>6} {'worst':>7}"]
    for name, one in found["jumps"].items():
        numbers = f"{one['cases']:6} {one['mean']:6.2f} {one['above_2']:6.1%} {one['worst']:7.2f}"
        table.append(f"{name:16} {numbers}  {one['worst_case']}")
    table += ["", "farthest from the floor:"]
    return table + [
        f"{row['over_floor']:7.1f} of {row['floor_us']:9.1f} us  {row['problem']}  {' '.join(row['kernels'])}"
        for row in found["worst"]
    ]


def draw(rows: list[Row], file: Path | BinaryIO) -> None:
    """Draw, per class, the cumulative distribution of time over the floor."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    axis.set_prop_cycle(color=pyplot.get_cmap("tab20").colors)
    for kind in (*layers.CLASSES, "all"):
        ratios = sorted(row["over_floor"] for row in rows if kind in (row["class"], "all"))
        if ratios:
            parts = [100 * (place + 1) / len(ratios) for place in range(len(ratios))]
            style: Row = {"color": "black", "linewidth": 2} if kind == "all" else {"linewidth": 1}
            axis.plot(ratios, parts, label=kind, **style)
    axis.set_xscale("log", base=2)
    axis.set_xlim(1, 64)
    axis.xaxis.set_major_formatter("{x:g}")
    for step in STEPS:
        axis.axvline(step, color="#888888", linewidth=0.8, linestyle=":")
    axis.set_xlabel("modelled time over the floor")
    axis.set_ylabel("% of random problems")
    axis.legend(fontsize=7)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _short(value: float) -> float:
    return float(f"{value:.4g}")
