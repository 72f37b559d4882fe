"""Inputs for ``gpuconv run``: read from .npy files, or random."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpuconv._errors import listed
from gpuconv._files import open_regular
from gpuconv.cli.terminal import CommandError

_UNKNOWN_EXTENT = 1
_GUESS = f"; of unknown extent, so {_UNKNOWN_EXTENT}: "
_MAGIC = b"\x93NUMPY"


def pairs(texts: Sequence[str]) -> dict[str, str]:
    """Parse the values of ``--input``, NAME=FILE; raise CommandError if one is malformed or repeated."""
    files: dict[str, str] = {}
    for text in texts:
        name, _, file = text.partition("=")
        if not (name and file):
            raise CommandError(f"--input {text}: must be NAME=FILE.npy")
        if name in files:
            raise CommandError(f"--input {name}: given twice")
        files[name] = file
    return files


def shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Parse the values of ``--shape``, NAME=EXTENTS; raise CommandError if one is malformed or repeated."""
    extents: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, shape = text.rpartition("=")
        parts = shape.split(",") if shape else []
        if not name or not all(part.isascii() and part.isdigit() for part in parts):
            raise CommandError(f"--shape {text}: must be NAME=EXTENTS, such as x=1,3,320,320")
        if name in extents:
            raise CommandError(f"--shape {name}: given twice")
        extents[name] = tuple(map(int, parts))
    return extents


def make(
    declared: Sequence[Any],
    files: Mapping[str, str],
    seed: int,
    given: Mapping[str, tuple[int, ...]] | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Return an array for every input that the model requires, by name, and a line of text about each.

    Parameters
    ----------
    declared : sequence of gpuconv.onnx.inputs.Input
    files : mapping of input name to path of a .npy file
        Inputs without a file get random values: normal for floats, 0 or 1 for integers and booleans. A symbolic extent
        is taken from a file's array if that has the same symbol, else it is 1.
    seed : int
        The same seed gives each input the same values, independent of the other inputs.
    given : mapping of input name to shape, optional
        Shapes of random inputs.

    Raises
    ------
    CommandError
        An unknown name, a missing file or one that is not .npy, a shape that contradicts the model's declaration, or an
        input for which there are no random values.
    """
    specs, given = {spec.name: spec for spec in declared}, given or {}
    _check_names(specs, files, "--input")
    _check_names(specs, given, "--shape")
    arrays: dict[str, Any] = {}
    lines: list[str] = []
    extents: dict[str, int] = {}
    for name, file in files.items():
        arrays[name] = _read(specs[name], file)
        named = zip(specs[name].shape or (), arrays[name].shape, strict=False)
        extents.update((dim, extent) for dim, extent in named if isinstance(dim, str))
        lines.append(f"input {name}: {_kind(arrays[name])}, from {file}")
    for name, shape in given.items():
        _check_shape(specs[name], shape, name in files)
        named = zip(specs[name].shape or (), shape, strict=False)
        extents.update((dim, extent) for dim, extent in named if isinstance(dim, str))
    for position, spec in enumerate(declared):
        if (spec.required or spec.name in given) and spec.name not in arrays:
            known = replace(spec, shape=given[spec.name]) if spec.name in given else spec
            arrays[spec.name] = _random(known, extents, np.random.default_rng([seed, position]))
            lines.append(
                f"input {spec.name}: {_kind(arrays[spec.name])}, random (seed {seed}){_guessed(known, extents)}"
            )
    return arrays, lines


def hint(lines: Sequence[str]) -> str:
    """Return advice for a model that failed: which extents were guessed, and how to pass them. Empty if none were."""
    guessed = [line.partition(":")[0].removeprefix("input ") for line in lines if _GUESS in line]
    if not guessed:
        return ""
    return f"; extents that the model does not declare were taken as {_UNKNOWN_EXTENT}: pass --shape {guessed[0]}=…"


def _check_names(specs: Mapping[str, Any], given: Iterable[str], option: str) -> None:
    for name in given:
        if name not in specs:
            inputs = listed([str(spec) for spec in specs.values() if spec.required])
            raise CommandError(f"{option} {name}: the model has no such input; it has {inputs or 'none'}")


def _check_shape(spec: Any, shape: tuple[int, ...], has_file: bool) -> None:
    """Raise CommandError if the model does not allow this shape for an input, or a file gives its shape."""
    text = f"--shape {spec.name}={','.join(map(str, shape))}"
    if has_file:
        raise CommandError(f"{text}: --input gives its values, and so its shape")
    if spec.shape is None:
        return
    if len(spec.shape) != len(shape) or any(
        isinstance(dim, int) and dim != extent for dim, extent in zip(spec.shape, shape, strict=False)
    ):
        raise CommandError(f"{text}: the model declares {spec}")


def _kind(array: Any) -> str:
    return f"{array.dtype.name} {array.shape}"


def _read(spec: Any, file: str) -> Any:
    what = f"--input {spec.name}={file}"
    try:
        with open_regular(file) as stream:
            if stream.read(len(_MAGIC)) != _MAGIC:
                raise CommandError(f"{what}: not a .npy file")
            stream.seek(0)
            array = np.lib.format.read_array(stream, allow_pickle=False)
    except OSError as error:
        raise CommandError(f"{what}: {error.strerror or error}") from None
    except (CommandError, MemoryError):
        raise
    except Exception as error:  # truncated, pickled or damaged: NumPy raises various exceptions
        raise CommandError(f"{what}: {str(error) or type(error).__name__}") from None
    if array.dtype.kind == "V" and spec.dtype and array.dtype.itemsize == np.dtype(spec.dtype).itemsize:
        return array.view(spec.dtype)  # .npy stores bfloat16 and similar dtypes as raw bytes
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _random(spec: Any, extents: Mapping[str, int], generator: np.random.Generator) -> Any:
    if spec.shape is None or not spec.dtype:
        raise CommandError(f"the input {spec} is not a tensor; run the model from Python (gpuconv.onnx.prepare)")
    if spec.dtype == "object":
        raise CommandError(f"no random values can be made for the input {spec}; pass --input {spec.name}=FILE.npy")
    try:
        return _drawn(spec, extents, generator)
    except (ValueError, OverflowError) as error:
        raise CommandError(f"no random values can be made for the input {spec}: {error}") from None


def _drawn(spec: Any, extents: Mapping[str, int], generator: np.random.Generator) -> Any:
    shape = [extents.get(dim, _UNKNOWN_EXTENT) if not isinstance(dim, int) else dim for dim in spec.shape]
    dtype = np.dtype(spec.dtype)  # bfloat16 too, as onnx has imported ml_dtypes
    if dtype.kind in "biu":
        return generator.integers(0, 2, shape).astype(dtype)
    return generator.standard_normal(shape, np.float64 if dtype == np.float64 else np.float32).astype(dtype)


def _guessed(spec: Any, extents: Mapping[str, int]) -> str:
    free = [dim or "?" for dim in spec.shape if not isinstance(dim, int) and dim not in extents]
    return f"{_GUESS}{', '.join(free)}" if free else ""
