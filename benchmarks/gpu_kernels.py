"""Record the kernels that PyTorch ran, by its profiler.

Winograd is of interest: it multiplies less than the floor assumes and has larger errors. Call this after all timing,
because a profiler that has been active may slow down later launches.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import gpu_peers, gpu_summary, layers

Row = dict[str, Any]
_DTYPE = "float32"  # the dtype in which cuDNN may choose Winograd


def add_names(torch: Any, device: str, rows: list[Row], deadline: float) -> None:
    """Add ``peer_kernels`` to the float32 rows of convolutions that have a PyTorch time, until the deadline."""
    known = {layer.id: layer for layer in (*layers.load(), *layers.load_derived())}
    for row in rows:
        if gpu_summary.label(row) != _DTYPE or "peer_median" not in row or "peer_kernels" in row:
            continue
        layer = known.get(row["layer"]["id"])
        if layer is None or not layer.multiplies or time.monotonic() > deadline:
            continue
        operands = gpu_peers.operands(torch, layer, _DTYPE, row["layout"], device)
        row["peer_kernels"] = names(torch, partial(gpu_peers.peer(torch, layer), *operands))


def names(torch: Any, run: Callable[[], Any]) -> list[str]:
    """Return the names of the kernels that a call launches, without duplicates, in order of first launch."""
    run()  # lets cuDNN search its algorithm, if this process has not done so
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            run()
            torch.cuda.synchronize()
    on_device = [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return list(dict.fromkeys(name for name in on_device if not name.startswith(("Memset", "Memcpy"))))


def winograd(rows: list[Row]) -> str | None:
    """Return a sentence on how many layers PyTorch computed by Winograd, or None if no names were recorded."""
    named = [row["peer_kernels"] for row in rows if row.get("peer_kernels")]
    if not named:
        return None
    count = sum(any("winograd" in name.lower() for name in names) for names in named)
    return f"PyTorch's {_DTYPE} kernels: Winograd in {count} of {len(named)} measurements of sums"
