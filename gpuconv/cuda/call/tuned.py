"""Choices that were measured: which kernel was the quickest for a problem, on a kind of device.

They are kept in one small file among the compiled kernels. A file that is not as written here counts as empty.
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
_read: dict[Path | None, _Choices] = {}  # once per process, so that a plan stays what it was


def key(problem: Any) -> str:
    """Return all that tells one problem from others: the fields of a dataclass, in words."""
    return ", ".join(f"{field.name} {getattr(problem, field.name)}" for field in fields(problem))


def find(device: str, problem: Any) -> str | None:
    """Return the name of the kernel that was measured to be the quickest on a device of this name, if it has one."""
    if not device:
        return None
    folder = cache.folder()
    choices = _read.get(folder)
    if choices is None:
        choices = _read.setdefault(folder, _load(folder))
    return choices.get(device, {}).get(key(problem))


def store(device: str, problem: Any, kernel: str) -> Path | None:
    """Remember a choice, in this process and for later ones; return the file, or None where there is no folder or name.

    Of two that store at the same time one's choice may be lost to later processes, which costs another measurement.
    OSError where the file cannot be written; in this process the choice holds all the same.
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
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):  # all that a file can hold
        return {}
