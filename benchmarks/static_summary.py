"""Format the static report: lines per layer, a table of classes, and the short table of the documentation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks import layers
from benchmarks.gpu_summary import mean

Row = dict[str, Any]
# Columns of the short table: dtypes, of which each class has one, and the layout. float16 is left out: its kernels
# differ from bfloat16's only in conversions.
_SHORT = {
    "bfloat16": (("bfloat16",), "NCHW"),
    "bfloat16, NHWC": (("bfloat16",), "NHWC"),
    "float32, complex64": (("float32", "complex64"), "NCHW"),
    "3xtf32": (("3xtf32",), "NCHW"),
    "float64": (("float64",), "NCHW"),
}
HEAD = (
    f"{'layer':30} {'dtype':9} {'layout':6} {'kernel':44} {'+':>1} {'regs':>4} {'smem':>6} {'blk':>3} {'occ':>4} | "
    f"{'mul':>4} {'cmp':>4} {'glob':>4} {'shrd':>4} {'int':>4} | {'load':>5} {'store':>5} {'wave':>5} {'moved':>6} | "
    f"{'model us':>9} {'floor us':>9} {'ratio':>6} {'invar':>5}  emulated as"
)
LARGE = "large dense Conv"  # extra class, with times over the floor by measured rates
LARGE_GFLOP = 50
_TABLE = (
    f"{'class':29} {'dtype':>9} {'layout':>6} {'layers':>6} {'mean':>6} {'worst':>7} {'best':>6}  "
    f"worst layer, best layer"
)


def line(row: Row, kernels: dict[str, Row]) -> str:
    """Return a row as a line of the table headed `HEAD`; instruction shares are of the main loop."""
    name = row["main"]
    launch = next(launch for launch in row["launches"] if launch["kernel"] == name)
    kernel, traffic = kernels[name], row["emulated"]["kernels"][name]
    kinds = kernel["instructions"]
    count = sum(kinds.values())
    shares = [kinds.get(kind, 0) / count for kind in ("multiply", "compare", "global load", "shared load", "integer")]
    pairs = [traffic.get(name) for name in ("loads", "stores", "shared")]
    shapes = "x".join(map(str, row["emulated"]["x"]))
    filters = f" w {'x'.join(map(str, row['emulated']['w']))}" if "w" in row["emulated"] else ""
    spilled = f"  SPILLS {kernel['spilled_bytes']} bytes" if kernel["spilled_bytes"] else ""
    return (
        f"{row['layer']:30} {row['dtype']:9} {row['layout']:6} "
        f"{name:44} {len(row['launches']) - 1:1} {kernel['registers']:4} "
        f"{launch['shared_bytes'] + kernel['static_shared_bytes']:6} {launch['blocks_per_sm']:3} "
        f"{launch['occupancy']:4.0%} | {' '.join(f'{share:4.0%}' for share in shares)} | "
        f"{' '.join(map(_ratio, pairs))} {row['emulated']['moved']:6.2f} | {_number(row['modelled_us'], 9)} "
        f"{row['floor_us']:9.2f} {_number(row['over_floor'], 6)} {_number(row['invariant'], 5)}  "
        f"{shapes}{filters}{spilled}"
    )


def _ratio(pair: list[int] | None) -> str:
    return f"{pair[0] / pair[1]:5.2f}" if pair else f"{'-':>5}"


def _number(value: float | None, width: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:{width}.2f}"


def classes(rows: Iterable[Row]) -> list[Row]:
    """Return the mean, worst and best modelled time over the floor per class, dtype and layout.

    Large dense layers form an extra class, `LARGE`, over the floor by measured rates.
    """
    groups: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in rows:
        if row["over_floor"] is not None:
            groups.setdefault((row["class"], row["dtype"], row["layout"]), {})[row["layer"]] = row["over_floor"]
        if row["over_measured"] is not None and row["class"] == "dense Conv" and row["gflop"] >= LARGE_GFLOP:
            groups.setdefault((LARGE, row["dtype"], row["layout"]), {})[row["layer"]] = row["over_measured"]
    order = sorted(groups, key=lambda group: (*layers.CLASSES, LARGE).index(group[0]))
    return [_summary(*group, groups[group]) for group in order]


def _summary(kind: str, dtype: str, layout: str, ratios: dict[str, float]) -> Row:
    worst, best = (pick(ratios, key=lambda layer: ratios[layer]) for pick in (max, min))
    return {
        "class": kind,
        "dtype": dtype,
        "layout": layout,
        "layers": len(ratios),
        "mean": mean(ratios.values()),
        "worst": ratios[worst],
        "best": ratios[best],
        "worst_layer": worst,
        "best_layer": best,
    }


def table(summaries: list[Row]) -> list[str]:
    """Return the lines of the table of classes."""
    return [
        _TABLE,
        *(
            f"{one['class']:29} {one['dtype']:>9} {one['layout']:>6} {one['layers']:6} "
            f"{one['mean']:6.2f} {one['worst']:7.2f} {one['best']:6.2f}  {one['worst_layer']}, {one['best_layer']}"
            for one in summaries
        ),
    ]


def markdown(summaries: list[Row]) -> str:
    """Return the short table: a row per class, with each dtype's mean and range."""
    cells = {(one["class"], one["dtype"], one["layout"]): one for one in summaries}
    kinds = list(dict.fromkeys(one["class"] for one in summaries))
    lines = [f"| class | {' | '.join(_SHORT)} |", "|---" * (1 + len(_SHORT)) + "|"]
    for kind in kinds:
        found = [
            next((cells[kind, dtype, layout] for dtype in dtypes if (kind, dtype, layout) in cells), None)
            for dtypes, layout in _SHORT.values()
        ]
        lines.append(f"| {kind} | {' | '.join(map(_cell, found))} |")
    return "\n".join(lines) + "\n"


def _cell(summary: Row | None) -> str:
    if summary is None:
        return ""
    return f"{summary['mean']:.2f} ({summary['best']:.2f} to {summary['worst']:.2f})"
