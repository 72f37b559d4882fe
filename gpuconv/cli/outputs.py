"""Writes the outputs of ``gpuconv run`` atomically: either all files appear, complete, or none does."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from gpuconv.cli.terminal import CommandError

_LONGEST_NAME = 100


@contextmanager
def output_folder(path: str | None) -> Iterator[OutputFolder | None]:
    """Create a folder for results, before the work begins; remove what was created if the work fails.

    Parameters
    ----------
    path : str, optional
        Created with its parents if it does not exist. None yields None.

    Raises
    ------
    CommandError
        The path is not a folder, or cannot be written.
    """
    if path is None:
        yield None
        return
    if "\0" in path:
        raise CommandError(f"--output-dir {path}: not a valid folder name")
    folder = Path(path)
    new = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    temporary = folder / f".gpuconv-{secrets.token_hex(8)}"  # named here, so that Ctrl-C at any time removes it
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            temporary.mkdir(mode=0o700)
        except (FileExistsError, NotADirectoryError):
            raise CommandError(f"--output-dir {path}: not a directory") from None
        except OSError as error:
            raise CommandError(f"--output-dir {path}: {error.strerror}") from None
        yield OutputFolder(folder, temporary)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        for parent in new:
            with suppress(OSError):  # not empty: it has results
                parent.rmdir()


class OutputFolder:
    """A folder for results, and a temporary folder inside it where files are written first."""

    def __init__(self, folder: Path, temporary: Path) -> None:
        self._folder = folder
        self._temporary = temporary

    def write(self, arrays: Mapping[str, Any]) -> list[Path]:
        """Write every array to a .npy file named after it; return the paths.

        Raises
        ------
        CommandError
            An array is not a tensor of numbers, or writing fails. No file is then created or replaced.
        """
        names = file_names(list(arrays))
        for name, array in arrays.items():
            if (self._folder / names[name]).is_dir():
                raise CommandError(f"{self._folder / names[name]}: is a directory")
            self._write(names[name], name, array)
        for file in names.values():
            os.replace(self._temporary / file, self._folder / file)
        return [self._folder / file for file in names.values()]

    def _write(self, file: str, name: str, array: Any) -> None:
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            raise CommandError(f"output {name!r} is not a tensor of numbers and cannot be written as .npy")
        try:
            with open(self._temporary / file, "wb") as stream:
                np.save(stream, array, allow_pickle=False)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:  # NumPy's error for a full disk has no strerror
            raise CommandError(
                f"{self._folder / file}: cannot write {array.nbytes} bytes ({error.strerror or error})"
            ) from None


def file_names(names: list[str]) -> dict[str, str]:
    """Return a file name for each output name: ASCII letters, digits, ``._-`` only, and unique if case is ignored."""
    taken: dict[str, int] = {}  # lower-case names, and the last suffix tried for each
    files = {}
    for name in names:
        stem = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip(".-")[:_LONGEST_NAME] or "output"
        file, number = stem, taken.get(stem.lower(), 1)
        while file.lower() in taken:
            number += 1
            file = f"{stem}_{number}"
        taken[stem.lower()] = number
        taken.setdefault(file.lower(), 1)
        files[name] = f"{file}.npy"
    return files
