"""Summarise the rows of a GPU measurement: geometric means per class, and the printed tables."""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, log
from typing import Any

from benchmarks import floors, layers

Row = dict[str, Any]
# Required geometric means of PyTorch's time over gpuconv's, by class.
AIMS = {"strided input gradient": 1.5, "weight gradient": 1.0, "MaxPool gradient": 2.0}
OTHERS = ("deterministic", "fused")  # see gpu_peers.others
HEAD = (
    f"{'layer':30} {'dtype':>9} {'layout':>13} {'ours us':>10} {'torch us':>10} {'ratio':>6} {'floor us':>9} "
    f"{'ours/fl':>8} {'torch/fl':>8} {'packed us':>9} {'host us':>8} {'torch':>7} {'error':>7} {'torch':>7}"
)
_TABLE = (
    f"{'class':29} {'dtype':>9} {'layout':>13} {'layers':>6} {'ratio':>6} {'worst':>6} {'best':>6} {'packed':>6} "
    f"{'% of floor':>10} "
    f"{'torch':>5}  worst layer, best layer"
)


def mean(ratios: Iterable[float]) -> float:
    """Return the geometric mean; 0 if there are no ratios or one of them is 0."""
    values = list(ratios)
    return exp(sum(map(log, values)) / len(values)) if values and min(values) > 0 else 0.0


def classes(rows: list[Row]) -> list[Row]:
    """Return a summary per class, label and layout: mean, worst and best ratio, and both sides' times over the floor.

    A wrong result of gpuconv counts as ratio 0. Rows that PyTorch cannot compute, or gets wrong, have no ratio.
    """
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["class"], label(row), row["layout"]), []).append(row)
    order = sorted(groups, key=lambda group: layers.CLASSES.index(group[0]))  # stable: dtypes in measured order
    return [_summary(*group, groups[group]) for group in order]


def _summary(kind: str, dtype: str, layout: str, rows: list[Row]) -> Row:
    ratios = {row["layer"]["id"]: ratio for row in rows if (ratio := ratio_of(row)) is not None}
    worst, best = (pick(ratios, key=lambda layer: ratios[layer], default=None) for pick in (min, max))
    return {
        "class": kind,
        "dtype": dtype,
        "layout": layout,
        "layers": len(rows),
        "wrong": sum(1 for row in rows if row["wrong"]),
        "compared": len(ratios),
        "mean": mean(ratios.values()) if ratios else None,
        "min": ratios[worst] if worst is not None else None,
        "slowest": worst,
        "max": ratios[best] if best is not None else None,
        "fastest": best,
        "others": {name: _mean_over(rows, f"{name}_median") for name in OTHERS},
        "packed_mean": mean(row["peer_median"] / row["packed_median"] for row in rows if _comparable(row)) or None,
        "our_floors": mean(row["our_median"] / row["floor_seconds"] for row in rows if "our_median" in row) or None,
        "peer_floors": mean(row["peer_median"] / row["floor_seconds"] for row in rows if "peer_median" in row) or None,
    }


def _mean_over(rows: list[Row], median: str) -> float | None:
    """Return the geometric mean of another PyTorch time over gpuconv's."""
    return mean(row[median] / row["our_median"] for row in rows if median in row and not row["wrong"]) or None


def label(row: Row) -> str:
    """Return a row's dtype, or its precision if that is not "ieee"."""
    return floors.label(row["dtype"], row["precision"])


def _comparable(row: Row) -> bool:
    return bool(ratio_of(row)) and "packed_median" in row


def ratio_of(row: Row) -> float | None:
    """Return PyTorch's time over gpuconv's; 0 if gpuconv is wrong, None if there is nothing to compare."""
    if row["wrong"]:
        return 0.0
    return None if row.get("peer_wrong") else row.get("ratio")


def line(row: Row) -> str:
    """Return a row as a line of the table headed `HEAD`."""
    start = f"{row['layer']['id']:30} {label(row):>9} {row['layout']:>13}"
    floor = row["floor_seconds"]
    ours, peer = row.get("our_median"), row.get("peer_median")
    text = (
        f"{start} {_micro(ours, 10)} {_micro(peer, 10)} {_number(row.get('ratio'), 6)} {_micro(floor, 9)} "
        f"{_number(ours and ours / floor, 8)} {_number(peer and peer / floor, 8)} "
        f"{_micro(row.get('packed_median'), 9)} {_micro(row.get('our_host_seconds'), 8)} "
        f"{_micro(row.get('peer_host_seconds'), 7)} "
        f"{_error(row.get('our_deviation'))} {_error(row.get('peer_deviation'))}"
    )
    notes = [f"not by a graph: {row[way]}" for way in ("our_way", "peer_way") if row.get(way, "graph") != "graph"]
    notes += [f"torch, {name}: {_micro(row[f'{name}_median'], 1)} us" for name in OTHERS if f"{name}_median" in row]
    notes += [f"torch, {name}: {row[f'{name}_error']}" for name in OTHERS if f"{name}_error" in row]
    notes += [f"torch: {row[name]}" for name in ("peer_error", "peer_wrong") if name in row]
    notes += [f"WRONG: {row['wrong']}"] if row["wrong"] else []
    return "  ".join([text, *notes])


def table(summaries: list[Row]) -> list[str]:
    """Return the lines of the table of classes."""
    return [_TABLE, *map(_class_line, summaries)]


def _class_line(summary: Row) -> str:
    start = f"{summary['class']:29} {summary['dtype']:>9} {summary['layout']:>13} {summary['layers']:6}"
    ratios = " ".join(_number(summary[name], 6) for name in ("mean", "min", "max", "packed_mean"))
    floors = f"{_percent(summary['our_floors'], 10)} {_percent(summary['peer_floors'], 5)}"
    names = f"{summary['slowest'] or '-'}, {summary['fastest'] or '-'}"
    notes = [f"{name} {ratio:.2f}" for name, ratio in summary["others"].items() if ratio is not None]
    aim = AIMS.get(summary["class"])
    if aim is not None and summary["mean"] is not None:
        notes.append(f"aim {aim}: {'met' if summary['mean'] >= aim else 'NOT MET'}")
    notes += [f"{summary['wrong']} WRONG"] if summary["wrong"] else []
    return "  ".join([f"{start} {ratios} {floors}  {names}", *notes])


def _percent(floors: float | None, width: int) -> str:
    """Format the floor as a percentage of a time, given that time as a multiple of the floor."""
    return f"{'-':>{width}}" if floors is None else f"{100 / floors:{width}.0f}"


def _error(deviation: float | None) -> str:
    return f"{'-':>7}" if deviation is None else f"{deviation:7.1e}"


def _micro(seconds: float | None, width: int) -> str:
    return _number(None if seconds is None else seconds * 1e6, width)


def _number(value: float | None, width: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:{width}.2f}"
