"""The process in which a target runs: it may die or hang, and another one takes its place.

``python -m gpuconv.judge.worker TARGET`` reads the folder of a test and one for outputs from each line of its input,
and writes a line of JSON for each: {"outputs": N}, {"refused": why} or {"crashed": why}; first {"version": name}.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from gpuconv.judge.adapters.node import Crashed

_LONGEST = 300  # characters of a message


def main() -> None:
    """Answer until the input ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the target prints is no reply
    kind, _, option = sys.argv[1].partition(":")
    warnings.simplefilter("ignore")
    try:
        adapter = importlib.import_module(f"gpuconv.judge.adapters.{kind}")
        _say(replies, {"version": adapter.version(option)})
    except Exception as error:
        _say(replies, {"missing": f"{type(error).__name__}: {error}"[:_LONGEST]})
        return
    for line in sys.stdin:
        test, outputs = json.loads(line)
        _say(replies, _tried(adapter, option, Path(test), Path(outputs)))


def _say(replies: Any, reply: dict[str, Any]) -> None:
    replies.write(json.dumps(reply) + "\n")
    replies.flush()


def _tried(adapter: Any, option: str, test: Path, outputs: Path) -> dict[str, Any]:
    try:
        model = onnx.load(test / "model.onnx")
        data = test / "test_data_set_0"
        count = len(model.graph.input)
        inputs = [numpy_helper.to_array(onnx.load_tensor(data / f"input_{number}.pb")) for number in range(count)]
        found = adapter.run(model, inputs, option)
        for number, array in enumerate(found):
            content = np.asarray(array)
            onnx.save_tensor(numpy_helper.from_array(content), outputs / f"output_{number}.pb")
        return {"outputs": len(found)}
    except Crashed as error:
        return {"crashed": str(error)[:_LONGEST]}
    except Exception as error:
        return {"refused": " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST]}


if __name__ == "__main__":
    main()
