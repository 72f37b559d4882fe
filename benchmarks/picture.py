"""A picture of a GPU measurement: every layer's time over its floor, ours and PyTorch's, class by class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import layers

Row = dict[str, Any]
_OURS, _PEER, _FLOOR = "#0b6e4f", "#e08e45", "#444444"


def columns(rows: list[Row], layout: str = "NCHW") -> dict[str, list[tuple[str, list[Row]]]]:
    """Return what to draw: by dtype, the classes with their timed layers, the farthest from its floor last."""
    result: dict[str, list[tuple[str, list[Row]]]] = {}
    drawn = [row for row in rows if row["layout"] == layout and "our_median" in row]
    for dtype in dict.fromkeys(row["dtype"] for row in drawn):
        groups = []
        for kind in layers.CLASSES:
            members = [row for row in drawn if (row["class"], row["dtype"]) == (kind, dtype)]
            if members:
                groups.append((kind, sorted(members, key=lambda row: row["our_median"] / row["floor_seconds"])))
        result[dtype] = groups
    return result


def draw(rows: list[Row], path: Path, title: str) -> None:
    """Draw the rows of the layout NCHW and save them as PNG.

    Raises
    ------
    ImportError
        Where matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = columns(rows)
    height = 2 + 0.19 * max((sum(len(m) + 1.5 for _, m in groups) for groups in shown.values()), default=1)
    figure, axes = pyplot.subplots(1, max(1, len(shown)), figsize=(1 + 5.5 * max(1, len(shown)), height), squeeze=False)
    for axis, (dtype, groups) in zip(axes[0], shown.items(), strict=False):
        _column(axis, dtype, groups)
    figure.suptitle(
        f"{title}\ntime over the floor (1 = as fast as memory and arithmetic allow), log scale", fontsize=10
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _column(axis: Any, dtype: str, groups: list[tuple[str, list[Row]]]) -> None:
    place, ticks, names = 0.0, [], []
    for kind, members in groups:
        axis.text(1.02, place, kind, fontsize=8, fontweight="bold", va="center")
        place += 1
        for row in members:
            floor = row["floor_seconds"]
            axis.barh(place - 0.2, row["our_median"] / floor, 0.4, color="#b00020" if row["wrong"] else _OURS)
            if "peer_median" in row:
                axis.barh(place + 0.2, row["peer_median"] / floor, 0.4, color=_PEER)
            ticks.append(place)
            names.append(row["layer"]["id"])
            place += 1
        place += 0.5
    axis.set_yticks(ticks, names, fontsize=6)
    axis.set_ylim(place, -1)
    axis.set_xscale("log")
    axis.set_xlim(0.5, max(10.0, *(row["our_median"] / row["floor_seconds"] for _, m in groups for row in m)) * 1.3)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter("")
    axis.axvline(1, color=_FLOOR, linewidth=1)
    axis.set_title(dtype, fontsize=9)
    axis.barh([0], [0], color=_OURS, label="gpuconv")
    axis.barh([0], [0], color=_PEER, label="PyTorch")
    axis.legend(fontsize=7, loc="upper right")
