"""A program that is called with the folder of a test and a folder for its outputs.

It finds model.onnx, case.json and test_data_set_0/input_N.pb (and, where the suite has them, the same arrays as .npy),
and writes output_N.pb or output_N.npy, a bfloat16 array as its bits in uint16.
"""

from __future__ import annotations

import os
import select
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from gpuconv.judge.adapters.node import Crashed, Inexpressible

_KILLED, _SIGNALS = 128, 64  # and the signal's number, as shells report it
_TAIL = 2**16  # bytes of a program's messages that are kept
_LOOK = 0.02  # seconds between checks whether a silent program still runs


def version(option: str) -> str:
    """Name the command; raise FileNotFoundError where there is no such program."""
    program, *_ = shlex.split(option)
    if shutil.which(program) is None:
        raise FileNotFoundError(f"there is no program {program!r}")
    return option


def run(model: Any, inputs: Sequence[Any], option: str) -> list[Any]:
    """Write the model and its inputs as a test, call the program, read its outputs."""
    return run_with(run_folder, model, inputs, option)


def run_with(call: Callable[[Path, Path, str], list[Any]], model: Any, inputs: Sequence[Any], option: str) -> list[Any]:
    """Write the model and its inputs as a test, and call something with its folder, one for outputs, and `option`."""
    with tempfile.TemporaryDirectory() as temporary:
        test, outputs = Path(temporary, "test"), Path(temporary, "outputs")
        data = test / "test_data_set_0"
        data.mkdir(parents=True)
        outputs.mkdir()
        onnx.save(model, test / "model.onnx")
        for number, array in enumerate(inputs):
            onnx.save_tensor(numpy_helper.from_array(array, f"input_{number}"), data / f"input_{number}.pb")
        return call(test, outputs, option)


def run_folder(test: Path, outputs: Path, option: str) -> list[Any]:
    """Call the program with both folders and read what it wrote."""
    kinds = types(test)
    program = Program([*shlex.split(option), str(test), str(outputs)], answers=False)
    code, last = program.wait(), program.last_line()
    if code < 0 or _KILLED < code <= _KILLED + _SIGNALS:
        raise Crashed(f"the command died with code {code}: {last}")
    if code:
        raise Inexpressible(last)
    return read_outputs(outputs, kinds, "the command ended well")


class Program:
    """A running program: the end of its standard error is kept; with `answers` it is asked line by line."""

    def __init__(self, words: Sequence[str], answers: bool) -> None:
        way, pipe = (subprocess.PIPE if answers else subprocess.DEVNULL), subprocess.PIPE
        self.process = subprocess.Popen(words, stdin=way, stdout=way, stderr=pipe)
        self._pipes: dict[int, Any] = {}
        self._texts: dict[int, bytes] = {}
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                self._pipes[stream.fileno()] = stream
                self._texts[stream.fileno()] = b""
        assert self.process.stderr is not None
        self._errors = self.process.stderr.fileno()
        self._answers = self.process.stdout.fileno() if self.process.stdout is not None else -1

    def wait(self) -> int:
        """Wait for the program, but not for its background processes; return the exit code."""
        while self._pipes and self.process.poll() is None:
            self._listen(_LOOK)
        code = self.process.wait()
        for _ in range(64):  # of what it printed last
            if not self._listen(0.0):
                break
        self._close()
        return code

    def send(self, line: str) -> None:
        """Write a line to the program's input, after discarding its earlier output."""
        assert self.process.stdin is not None
        for _ in range(64):
            if not self._listen(0.0):
                break
        self._texts[self._answers] = b""
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def next_line(self) -> str | None:
        """Return the next line of the program's output, or None where it has ended."""
        while True:
            line, newline, rest = self._texts[self._answers].partition(b"\n")
            if newline:
                self._texts[self._answers] = rest
                return line.decode(errors="replace").strip()
            ended = self.process.poll() is not None
            if self._answers not in self._pipes or (not self._listen(0.0 if ended else _LOOK) and ended):
                return None

    def last_line(self) -> str:
        """Return the last line that the program wrote to its standard error."""
        return (self._texts[self._errors].decode(errors="replace").strip().splitlines() or ["no message"])[-1]

    def stop(self) -> int:
        """Kill the program unless it has ended; return its exit code."""
        if self.process.poll() is None and self._answers not in self._pipes:
            try:
                self.process.wait(1.0)  # it closed its output, so it is about to end
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.wait()

    def _listen(self, seconds: float) -> bool:
        """Read available output, waiting up to `seconds`; return whether there was any."""
        ready, _, _ = select.select([*self._pipes], [], [], seconds)
        for pipe in ready:
            part = os.read(pipe, 65536)
            self._texts[pipe] = (self._texts[pipe] + part)[-_TAIL:]
            if not part:
                self._pipes.pop(pipe).close()
        return bool(ready)

    def _close(self) -> None:
        for stream in (*self._pipes.values(), self.process.stdin):
            if stream is not None:
                with suppress(OSError):  # what was sent last has no reader any more
                    stream.close()
        self._pipes.clear()


def read_outputs(folder: Path, kinds: Sequence[Any], how: str) -> list[Any]:
    """Read output_0.pb or output_0.npy and so on, one for each element type; raise Crashed where one is missing."""
    return [_read(folder, f"output_{number}", kind, how) for number, kind in enumerate(kinds)]


def _read(folder: Path, name: str, kind: Any, how: str) -> Any:
    found = [path for path in (folder / f"{name}.pb", folder / f"{name}.npy") if path.is_file()]
    if not found:
        raise Crashed(f"{how}, but wrote no {name}.pb")
    try:
        if found[0].suffix == ".pb":
            return numpy_helper.to_array(onnx.load_tensor(found[0]))
        array = np.load(found[0], allow_pickle=False)
        return array.view(kind) if kind.name == "bfloat16" and array.dtype == np.uint16 else array
    except Exception as error:
        raise Crashed(f"{how}, but what it wrote cannot be read: {error}") from None


def types(test: Path) -> list[Any]:
    """Return the element types of a test's outputs."""
    values = onnx.load(test / "model.onnx").graph.output
    return [onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type) for value in values]
