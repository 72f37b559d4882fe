"""Draw a GPU measurement: each layer's speed-up over PyTorch by class, and a roofline plot per dtype."""

from __future__ import annotations

from math import log10
from pathlib import Path
from typing import Any

from benchmarks import floors, gpu_summary, layers

Row = dict[str, Any]
Members = list[dict[str, Row]]  # for each layer, its rows by layout
_COLOURS = {"NCHW": "#0b6e4f", "channels_last": "#8cc5a2"}
_PEER, _WRONG, _ROOF = "#e08e45", "#b00020", "#444444"


def columns(rows: list[Row]) -> dict[str, list[tuple[str, Members]]]:
    """Return what to draw: by dtype, the classes with their timed layers, the smallest speed-up first."""
    result: dict[str, list[tuple[str, Members]]] = {}
    drawn = [row for row in rows if "our_median" in row]
    for dtype in dict.fromkeys(gpu_summary.label(row) for row in drawn):
        groups = []
        for kind in layers.CLASSES:
            members: dict[str, dict[str, Row]] = {}
            for row in drawn:
                if (row["class"], gpu_summary.label(row)) == (kind, dtype):
                    members.setdefault(row["layer"]["id"], {})[row["layout"]] = row
            if members:
                groups.append((kind, sorted(members.values(), key=_least)))
        result[dtype] = groups
    return result


def _least(member: dict[str, Row]) -> float:
    return min(row.get("ratio", float("inf")) for row in member.values())


def draw(rows: list[Row], path: Path, title: str, bandwidth: float) -> None:
    """Draw the rows and save them as PNG; ``bandwidth`` is the copy bandwidth in bytes per second.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = columns(rows)
    count = max(1, len(shown))
    height = 2 + 0.19 * max((sum(len(m) + 1.5 for _, m in groups) for groups in shown.values()), default=1)
    size, heights = (1 + 5.5 * count, height + 4.5), (height, 4.5)
    figure, axes = pyplot.subplots(2, count, figsize=size, height_ratios=heights, squeeze=False, layout="constrained")
    for number, (dtype, groups) in enumerate(shown.items()):
        _speed_ups(axes[0][number], dtype, groups)
        _roofline(
            axes[1][number],
            dtype,
            [row for _, members in groups for member in members for row in member.values()],
            bandwidth,
        )
    figure.suptitle(
        f"{title}\nabove: PyTorch's time over gpuconv's, and percent of the floor; below: rooflines", fontsize=10
    )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _speed_ups(axis: Any, dtype: str, groups: list[tuple[str, Members]]) -> None:
    place, ticks, names = 0.0, [], []
    for kind, members in groups:
        axis.text(1.02, place, kind, fontsize=8, fontweight="bold", va="center")
        place += 1
        for member in members:
            for number, row in enumerate(member.values()):
                _bar(axis, place + 0.4 * number - 0.2 * (len(member) - 1), row)
            ticks.append(place)
            names.append(next(iter(member.values()))["layer"]["id"])
            place += 1
        place += 0.5
    axis.set_yticks(ticks, names, fontsize=6)
    axis.set_ylim(place, -1)
    axis.set_xscale("log", base=2)
    ratios = [row["ratio"] for _, members in groups for member in members for row in member.values() if "ratio" in row]
    axis.set_xlim(min(0.25, *ratios, 1.0) / 1.2, 1.7 * max(4.0, *ratios, 1.0))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.axvline(1, color=_ROOF, linewidth=1)
    axis.set_title(dtype, fontsize=9)
    for layout, colour in _COLOURS.items():
        axis.barh([0], [0], color=colour, label=layout)
    axis.legend(fontsize=7, loc="upper right")


def _bar(axis: Any, place: float, row: Row) -> None:
    """Draw a bar from 1 to the speed-up, labelled with the percentage of the floor; without a peer only the label."""
    ratio, share = row.get("ratio", 1.0), row["floor_seconds"] / row["our_median"]
    colour = _WRONG if row["wrong"] else _COLOURS[row["layout"]]
    axis.barh(place, ratio - 1, 0.38, left=1, color=colour)
    axis.text(max(ratio, 1.0) * 1.03, place, f"{share:.0%}", fontsize=5, va="center")


def _roofline(axis: Any, dtype: str, rows: list[Row], bandwidth: float) -> None:
    """Plot FLOP/s over FLOP per byte for both sides, under the memory and arithmetic roofs."""
    intensities = [row["flops"] / row["floor_bytes"] for row in rows]
    ends = [10 ** (log10(min(intensities)) - 0.2), 10 ** (log10(max(intensities)) + 0.2)]
    axis.loglog(ends, [bandwidth * end / 1e12 for end in ends], color=_ROOF, linewidth=1)
    for kind, roof in {"": floors.RATES.get(dtype), " depthwise": floors.RATES["float32"]}.items():
        if roof is not None and (not kind or floors.RATES[dtype] != roof):
            axis.axhline(roof / 1e12, color=_ROOF, linewidth=1, linestyle=":" if kind else "-")
    for median, colour, label in (("peer_median", _PEER, "PyTorch"), ("our_median", _COLOURS["NCHW"], "gpuconv")):
        points = [
            (x, row["flops"] / row[median] / 1e12) for x, row in zip(intensities, rows, strict=True) if median in row
        ]
        if points:
            axis.scatter(*zip(*points, strict=True), s=9, color=colour, label=label)
    axis.set_xlabel("operations per byte of the fewest", fontsize=7)
    axis.set_ylabel("10¹² operations per second", fontsize=7)
    axis.tick_params(labelsize=6)
    axis.legend(fontsize=7, loc="lower right")
