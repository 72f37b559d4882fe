"""A program that is called with the folder of a test and a folder for its outputs."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper

from gpuconv.judge.adapters.node import Crashed, Inexpressible

_KILLED, _SIGNALS = 128, 64  # and the signal's number, as shells report it


def version(option: str) -> str:
    """Name the command; raise FileNotFoundError where there is no such program."""
    program, *_ = shlex.split(option)
    if shutil.which(program) is None:
        raise FileNotFoundError(f"there is no program {program!r}")
    return option


def run(model: Any, inputs: Sequence[Any], option: str) -> list[Any]:
    """Write the model and its inputs as a test, call the program, read output_0.pb and so on."""
    with tempfile.TemporaryDirectory() as temporary:
        test, outputs = Path(temporary, "test"), Path(temporary, "outputs")
        data = test / "test_data_set_0"
        data.mkdir(parents=True)
        outputs.mkdir()
        onnx.save(model, test / "model.onnx")
        for number, array in enumerate(inputs):
            onnx.save_tensor(numpy_helper.from_array(array, f"input_{number}"), data / f"input_{number}.pb")
        words = [*shlex.split(option), str(test), str(outputs)]
        # A file, not a pipe: programs that the command leaves in the background may keep a pipe open.
        with tempfile.TemporaryFile() as errors:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, check=False
            )
            errors.seek(0)
            said = errors.read().decode(errors="replace")
        last = (said.strip().splitlines() or ["no message"])[-1]
        if done.returncode < 0 or _KILLED < done.returncode <= _KILLED + _SIGNALS:
            raise Crashed(f"the command died with code {done.returncode}: {last}")
        if done.returncode:
            raise Inexpressible(last)
        paths = [outputs / f"output_{number}.pb" for number in range(len(model.graph.output))]
        missing = next((path.name for path in paths if not path.exists()), None)
        if missing is not None:
            raise Crashed(f"the command ended well, but wrote no {missing}")
        try:
            return [numpy_helper.to_array(onnx.load_tensor(path)) for path in paths]
        except Exception as error:
            raise Crashed(f"the command ended well, but what it wrote cannot be read: {error}") from None
