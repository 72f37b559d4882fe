"""Measure the peak memory of loading and running a network, relative to the process after its imports.

gpuconv and ONNX Runtime run in processes of their own: ``python -m benchmarks.memory gpuconv FOLDER THREADS``, or
``onnxruntime``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

_RUNS = 3  # the first runs may need more or less memory than later ones: plans are made and buffers cached
_MODEL, _FEEDS = "model.onnx", "feeds.npz"


def peaks(model: onnx.ModelProto, feeds: Mapping[str, Any], threads: int) -> dict[str, int | None]:
    """Return the peak bytes of each side by name; None where the system does not report them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        onnx.save(model, folder / _MODEL)
        np.savez(folder / _FEEDS, **feeds)
        return {side: _in_a_process(side, folder, threads) for side in _SIDES}


def _in_a_process(side: str, folder: Path, threads: int) -> int | None:
    if not Path("/proc/self/clear_refs").exists():
        return None
    count = str(threads)
    environment = {**os.environ, "GPUCONV_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count}
    command = [sys.executable, "-m", "benchmarks.memory", side, str(folder), count]
    return int(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def _gpuconv(threads: int) -> Callable[[Path, Any], None]:
    from gpuconv.onnx import backend

    def run(path: Path, feeds: Any) -> None:
        rep = backend.prepare(path)
        for _ in range(_RUNS):
            rep.run(feeds)

    return run


def _onnxruntime(threads: int) -> Callable[[Path, Any], None]:
    from benchmarks import peers

    def run(path: Path, feeds: Any) -> None:
        session = peers.session(str(path), threads, spin=True)
        for _ in range(_RUNS):
            session.run(None, feeds)

    return run


_SIDES = {"gpuconv": _gpuconv, "onnxruntime": _onnxruntime}


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (kilobytes,) = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(kilobytes) * 1024


def main() -> None:
    """Print the peak bytes."""
    side, folder, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    run = _SIDES[side](threads)
    with np.load(folder / _FEEDS) as stored:
        feeds = dict(stored)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak (VmHWM)
    before = _status("VmRSS")
    run(folder / _MODEL, feeds)
    print(_status("VmHWM") - before)


if __name__ == "__main__":
    main()
