"""The process in which a target runs: it may die or hang, and another one takes its place.

``python -m gpuconv.judge.worker TARGET`` reads a line of JSON for each test from its standard input: a number, the
test's folder and one for outputs. It writes one to its standard output: the number, and {"outputs": N}, {"refused":
why}, {"crashed": why} or, where the test cannot be read, {"unreadable": why}; first {"version": name}. The target has
neither of the two: it reads an empty input, and what it prints goes to standard error. Processes that it forks do not
answer.
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

from gpuconv._errors import one_line
from gpuconv.judge.adapters.node import Crashed

_LONGEST = 300  # characters of a message


def main() -> None:
    """Answer until the input ends."""
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")  # closed in programs that the target starts
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    process = os.getpid()

    def say(**reply: Any) -> None:
        if os.getpid() != process:  # forked by the target
            os._exit(0)
        replies.write(json.dumps(reply) + "\n")
        replies.flush()

    kind, _, option = sys.argv[1].partition(":")
    warnings.simplefilter("ignore")
    try:
        adapter = importlib.import_module(f"gpuconv.judge.adapters.{kind}")
        version = adapter.version(option)
    except Exception as error:
        say(missing=_line(error))
        return
    say(version=version)
    for line in requests:
        number, test, outputs = json.loads(line)
        say(number=number, **_tried(adapter, option, Path(test), Path(outputs)))


def _line(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}", _LONGEST)


def _tried(adapter: Any, option: str, test: Path, outputs: Path) -> dict[str, Any]:
    try:
        model = onnx.load(test / "model.onnx")
        data = test / "test_data_set_0"
        count = len(model.graph.input)
        inputs = [numpy_helper.to_array(onnx.load_tensor(data / f"input_{number}.pb")) for number in range(count)]
    except Exception as error:
        return {"unreadable": _line(error)}
    try:
        found = adapter.run(model, inputs, option)
        for number, array in enumerate(found):
            content = np.asarray(array)
            onnx.save_tensor(numpy_helper.from_array(content), outputs / f"output_{number}.pb")
        return {"outputs": len(found)}
    except Crashed as error:
        return {"crashed": one_line(str(error), _LONGEST)}
    except Exception as error:
        return {"refused": _line(error)}


if __name__ == "__main__":
    main()
