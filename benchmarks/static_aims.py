"""Check the static report against its targets: bank conflicts, uncoalesced sectors, address arithmetic."""

from __future__ import annotations

from typing import Any

from benchmarks import sass

Row = dict[str, Any]
MOST_SECTORS = 1.2  # most sectors relative to the ideal, in memory-bound rows
MOST_ADDRESSES = 0.15  # largest share of integer instructions in the main loop of tensor-core kernels
_ROW = 32  # shortest contiguous rows (in elements) that are judged; shorter ones start anywhere in a sector
_SHOWN = 5


def beyond(rows: dict[str, Row], kernels: dict[str, Row]) -> list[str]:
    """Return a line per target: how many rows or kernels miss it, and the worst of them."""
    bound = [name for name, row in rows.items() if row["bound"] == "memory" and row["emulated"]["x"][-1] >= _ROW]
    tensor = [name for name, kernel in kernels.items() if set(kernel["multiplications"]) & set(sass.TENSOR)]
    conflicts = _conflicts(rows)
    sectors = {name: ratio for name in bound if (ratio := _sectors(rows[name])) > MOST_SECTORS}
    addresses = {name: share for name in tensor if (share := _integer(kernels[name])) > MOST_ADDRESSES}
    return [
        _line("bank conflicts", conflicts, len(kernels), "kernels"),
        _line(f"more than {MOST_SECTORS} of the ideal sectors", sectors, len(bound), "rows bound by memory"),
        _line(f"more than {MOST_ADDRESSES} address work", addresses, len(tensor), "kernels with tensor cores"),
    ]


def _conflicts(rows: dict[str, Row]) -> dict[str, float]:
    """Return the kernels with bank conflicts, and their worst ratio of wavefronts to the ideal."""
    found: dict[str, float] = {}
    for row in rows.values():
        for name, traffic in row["emulated"]["kernels"].items():
            count, ideal = traffic.get("shared", (0, 0))
            if count > ideal:
                found[name] = max(found.get(name, 0.0), count / ideal)
    return found


def _sectors(row: Row) -> float:
    pairs = [
        traffic[key] for traffic in row["emulated"]["kernels"].values() for key in ("loads", "stores") if key in traffic
    ]
    return float(sum(count for count, _ in pairs) / sum(ideal for _, ideal in pairs))


def _integer(kernel: Row) -> float:
    kinds = kernel["instructions"]
    return float(kinds.get("integer", 0) / sum(kinds.values()))


def _line(title: str, found: dict[str, float], count: int, of: str) -> str:
    worst = sorted(found, key=lambda name: -found[name])[:_SHOWN]
    names = ", ".join(f"{name} {found[name]:.2f}" for name in worst)
    return f"{title}: {len(found)} of {count} {of}" + (f"; {names}" if names else "")
