"""Measured choices of ``tune``: the fastest kernel per problem and device name, in one JSON file in the kernel cache.

A missing or malformed file counts as empty.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from gpuconv.cuda.build import cache

_FORMAT = 1
_NAME = "choices.json"
_Choices = dict[str, dict[str, str]]
_read: dict[Path | None, _Choices] = {}  # read once per process, so that a plan does not change


def key(problem: Any) -> str:
    """Return a text that identifies a problem: the fields of its dataclass."""
    return ", ".join(f"{field.name} {getattr(problem, field.name)}" for field in fields(problem))


def find(device: str, problem: Any) -> str | None:
    """Return the kernel measured to be fastest for a problem on devices with this name; None if unknown."""
    if not device:
        return None
    folder = cache.folder()
    choices = _read.get(folder)
    if choices is None:
        choices = _read.setdefault(folder, _load(folder))
    return choices.get(device, {}).get(key(problem))


def store(device: str, problem: Any, kernel: str) -> Path | None:
    """Store a choice for this process and later ones; return the file, or None without a cache folder or device name.

    If two processes store at once, one choice may be lost to later processes, at the cost of another measurement.
    OSError if the file cannot be written; in this process the choice still applies.
    """
    if not device:
        return None
    folder = cache.folder()
    choices = _load(folder)
    for known in (choices, _read.setdefault(folder, {})):
        known.setdefault(device, {})[key(problem)] = kernel
    if folder is None:
        return None
    return cache.write(folder, _NAME, json.dumps({"format": _FORMAT, "choices": choices}, indent=1).encode())


def _load(folder: Path | None) -> _Choices:
    """Read the file of choices; empty if it is missing or malformed."""
    written = cache.read(folder, _NAME) if folder is not None else None
    if written is None:
        return {}
    try:
        content = json.loads(written)
        if content["format"] != _FORMAT:
            return {}
        return {
            str(device): {str(problem): str(kernel) for problem, kernel in kernels.items()}
            for device, kernels in content["choices"].items()
        }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):  # whatever a malformed file can raise
        return {}
