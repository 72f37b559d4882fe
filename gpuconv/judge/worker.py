"""The worker process in which a target runs. If it dies or hangs, the judge starts another one.

``python -m gpuconv.judge.worker TARGET`` reads one line of JSON per test from standard input: an identifier, the test's
folder and a folder for outputs. It writes lines of JSON to standard output: first {"version": name} or {"missing": why,
"module": name}; for each test {"id": identifier, "begun": true}, then the identifier with one of {"outputs": N},
{"refused": why}, {"crashed": why}, {"wrong": why} or, if the test cannot be read, {"unreadable": why}.

The target shares neither stream. Both are moved to high descriptors that programs started by the target do not inherit;
its standard input is empty, and what it prints goes to standard error. Processes that it forks never answer.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from gpuconv._errors import one_line
from gpuconv.judge.adapters import module_of
from gpuconv.judge.adapters.node import Crashed, Inexpressible, WrongKind

_LONGEST = 300  # characters of a message
_HIGH = 200  # below every usual limit of open files, above the descriptors that programs close or write to by number


def main() -> None:
    """Answer until the input ends."""
    requests, replies = os.fdopen(_moved(0, _HIGH)), _moved(1, _HIGH + 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    process, folder = os.getpid(), os.getcwd()
    mask = os.umask(0)
    os.umask(mask)

    def say(**reply: Any) -> None:
        if os.getpid() != process:  # forked by the target
            os._exit(0)
        line = json.dumps(reply).encode() + b"\n"
        while line:
            line = line[os.write(replies, line) :]

    kind, _, option = sys.argv[1].partition(":")
    warnings.simplefilter("ignore")
    try:
        adapter = importlib.import_module(module_of(kind))
        version = one_line(adapter.version(option), _LONGEST)
    except BaseException as error:
        say(missing=_line(error), module=error.name if isinstance(error, ModuleNotFoundError) else None)
        return
    say(version=version)
    for line in requests:
        identifier, test, outputs = json.loads(line)
        say(id=identifier, begun=True)
        reply = _tried(adapter, option, Path(test), Path(outputs), mask)
        with suppress(OSError):
            os.chdir(folder)
        say(id=identifier, **reply)


def _moved(stream: int, descriptor: int) -> int:
    """Duplicate a stream as a descriptor that child processes do not inherit, a high one if the system allows it."""
    try:
        return os.dup2(stream, descriptor, inheritable=False)
    except OSError:
        return os.dup(stream)


def _line(error: BaseException) -> str:
    return one_line(f"{type(error).__name__}: {error}", _LONGEST)


def _tried(adapter: Any, option: str, test: Path, outputs: Path, mask: int) -> dict[str, Any]:
    """Run one test and store its outputs; return the reply."""
    try:
        model = onnx.load(test / "model.onnx")
        data = test / "test_data_set_0"
        count = len(model.graph.input)
        inputs = [numpy_helper.to_array(onnx.load_tensor(data / f"input_{number}.pb")) for number in range(count)]
    except Exception as error:
        return {"unreadable": _line(error)}
    try:
        if hasattr(adapter, "run_folder"):
            found = adapter.run_folder(test, outputs, option)
        else:
            found = adapter.run(model, inputs, option)
    except Crashed as error:
        return {"crashed": one_line(str(error), _LONGEST)}
    except Inexpressible as error:
        return {"refused": one_line(str(error), _LONGEST)}
    except WrongKind as error:
        return {"wrong": one_line(str(error), _LONGEST)}
    except Exception as error:
        return {"refused": _line(error)}
    except BaseException as error:  # SystemExit and KeyboardInterrupt would end a user's program
        return {"crashed": _line(error)}
    try:
        os.umask(mask)
        outputs.mkdir(parents=True, exist_ok=True)
        return {"outputs": _stored(found, outputs)}
    except WrongKind as error:
        return {"wrong": one_line(str(error), _LONGEST)}
    except Exception as error:
        return {"wrong": one_line(f"its outputs cannot be stored: {_line(error)}", _LONGEST)}


def _stored(found: Any, outputs: Path) -> int:
    """Store each output as a tensor file; return how many there are."""
    if not isinstance(found, Iterable) or isinstance(found, (str, bytes, dict)):
        raise WrongKind(f"it returned {type(found).__name__} instead of a list of arrays")
    arrays = list(found)
    for number, array in enumerate(arrays):
        content = np.asarray(array)
        if content.dtype.kind in "OSUMm":
            kind = type(array).__name__ if content.dtype.kind == "O" else content.dtype
            raise WrongKind(f"output {number} is no array of numbers, but {kind}")
        onnx.save_tensor(numpy_helper.from_array(content), outputs / f"output_{number}.pb")
    return len(arrays)


if __name__ == "__main__":
    main()
