"""An emulated device for the probes of benchmarks/probes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.probes.launch import FOLDER, Mapped, Program, Result, compiled, unwritten
from gpuconv.cuda.build import kernel_files
from tests.emulator import Array, TensorMap, module
from tests.emulator.maps import encoded

HEADERS = Path(str(kernel_files.folder()))


class Emulated:
    """The emulator, with the methods of a device that probes use."""

    blocks, share = 3, 40

    def __init__(self, architecture: str = "sm_90a", folder: Path = FOLDER, headers: Path = HEADERS) -> None:
        self.architecture = architecture
        self.options: dict[str, Any] = {}
        self._places = folder, headers

    def compile_ahead(self, programs: Iterable[Program]) -> None:
        """Do nothing: each kernel is compiled when it is needed."""

    def alive(self) -> bool:
        return True

    def run(
        self, program: Program, threads: int, arguments: Sequence[Any], *, shared_bytes: int = 0, grid: int = 1
    ) -> list[Any]:
        text = compiled(*program.unit, self.architecture.replace("sm", "compute"), *self._places).decode()
        arrays, results = [], []
        for number, argument in enumerate(arguments):
            arrays.append(_given(argument, f"argument {number}"))
            results += [arrays[-1].data] if isinstance(argument, Result) else []
        module(text)[program.name](grid, threads, arrays, shared_bytes, **self.options)
        return results


def _given(argument: Any, name: str) -> Any:
    if isinstance(argument, Result):
        return Array(unwritten(argument), name)
    if isinstance(argument, Mapped):
        array = Array(argument.array, name, writable=False)
        words = bytes.__new__(TensorMap, encoded(argument.described, array.address))
        words.array = array
        return words
    return argument if isinstance(argument, int) else Array(argument.copy(), name)
