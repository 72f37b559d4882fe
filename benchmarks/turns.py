"""Time one call in a process of its own, on request of the process that started it.

`benchmarks.against` runs the text of this file by ``python -c`` in the folder of a checkout, so that ``gpuconv`` is
that checkout's: nothing of `benchmarks` may be imported here. The only argument is the path of ``timing.py``, whose
``turn`` times the calls. The first line on stdin is a JSON object that describes the call; each further line is the
number of calls to time. Each reply is one line of JSON on stdout.
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import sys
from typing import Any

import numpy as np

Call = Any  # a function without arguments that returns a list of arrays


def layer(job: dict[str, Any]) -> Call:
    """Return a call of ``job["function"]`` on seeded small integers in float32, with shapes ``job["shapes"]``."""
    import gpuconv

    rng = np.random.default_rng(0)
    arrays = [rng.integers(-4, 5, shape).astype(np.float32) for shape in job["shapes"]]
    function = getattr(gpuconv, job["function"])

    def call() -> list[Any]:
        result = function(*arrays, **job["keywords"])
        return list(result) if isinstance(result, tuple) else [result]

    return call


def network(job: dict[str, Any]) -> Call:
    """Return a call of the model in the file ``job["model"]`` on the arrays of the .npz file ``job["feeds"]``."""
    import onnx

    from gpuconv.onnx import backend

    prepared, feeds = backend.prepare(onnx.load(job["model"])), dict(np.load(job["feeds"]))
    return lambda: list(prepared.run(feeds))


def digest(arrays: list[Any]) -> str:
    """Return a hash of the results' bits."""
    state = hashlib.sha256()
    for array in arrays:
        state.update(f"{array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


def main() -> None:
    """Answer the requests on stdin until it ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # keep prints of the package out of the replies
    try:
        job = json.loads(sys.stdin.readline())
        call = {"layer": layer, "network": network}[job["kind"]](job)
        reply: dict[str, Any] = {"bits": digest(call())}
        import gpuconv

        reply["from"] = os.path.dirname(os.path.dirname(os.path.abspath(gpuconv.__file__)))
    except Exception as error:
        reply = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(reply), file=replies, flush=True)
    timing = runpy.run_path(sys.argv[1])
    for line in sys.stdin:
        seconds = timing["turn"](call, int(line))
        timing["settle"]()  # before the other process has its turn
        print(json.dumps({"seconds": seconds}), file=replies, flush=True)


if __name__ == "__main__":
    main()
