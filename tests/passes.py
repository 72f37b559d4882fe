"""Launches of the passes that bring channels together, without the convolution that they are for."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from emulator import emulated_cuda
from emulator.counters import Counters

from gpuconv import _geometry
from gpuconv.cuda import correlation
from gpuconv.cuda.correlation import Problem
from gpuconv.cuda.plan import Launch
from gpuconv.cuda.prepared import contiguous_strides


def elements(array: Any) -> tuple[int, ...]:
    """Strides that count elements."""
    return tuple(stride // array.itemsize for stride in array.strides)


def problem_of(operator: str, x: Any, w: Any, precision: str = "ieee", **attributes: Any) -> Problem:
    """The problem of a call on these arrays."""
    geometry = getattr(_geometry, operator)(x.shape, w.shape, None, **attributes)
    make = getattr(correlation, f"of_{operator}")
    strides = elements(x), elements(w), None, contiguous_strides(geometry.y_shape)
    problem: Problem = make(geometry, x.dtype.name, *strides, precision)
    return problem


def run(
    launch: Launch, arrays: dict[str, Any], results: dict[str, Any], architecture: str = "sm_90a", **options: Any
) -> Counters | None:
    """Launch on these arrays, by their roles, and see that all of the results is written."""
    with emulated_cuda(architecture, **options) as emulated:
        emulated.current_device()
        addresses = {role: emulated.address(array) for role, array in arrays.items()}
        addresses |= {role: emulated.result_address(array) for role, array in results.items()}
        slot = emulated.parameters(launch.parameters)
        assert {role for role, _ in launch.pointers} == set(addresses)
        for role, offset in launch.pointers:
            slot.buffer[offset:][:8] = np.frombuffer(addresses[role].to_bytes(8, "little"), np.uint8)
        kernel = emulated.load(launch.variant, 0, launch.shared_bytes)
        emulated.bind(kernel, launch.grid, launch.variant.threads, launch.shared_bytes, slot)()
    return emulated.launches[-1].counters


def rounded(x: Any) -> Any:
    """What TF32 has of float32 numbers: the nearest one, of two that are as near the one farther from 0."""
    exact = x.astype(np.float64)
    with np.errstate(all="ignore"):
        step = np.exp2(np.floor(np.log2(np.abs(exact))) - 10)
        step = np.maximum(np.where(exact == 0, 1, step), 2.0**-136)
        nearest = np.sign(exact) * np.floor(np.abs(exact) / step + 0.5) * step
    return nearest.astype(np.float32)


def parts_of(array: Any, precision: str) -> list[Any]:
    """The parts of an array that are multiplied."""
    if precision == "ieee":
        return [array]
    large = rounded(array)
    return [large] if precision == "tf32" else [large, rounded(array - large)]


def x_last(x: Any, group: int, filled: int, precision: str) -> Any:
    """x with channels last, by NumPy: (N, pixels, group, part, filled)."""
    batch, channels = x.shape[0], x.shape[1] // group
    expected = np.zeros((batch, prod(x.shape[2:]), group, len(parts_of(x, precision)), filled), x.dtype)
    for number, part in enumerate(parts_of(x, precision)):
        whole = np.ascontiguousarray(part).reshape(batch, group, channels, -1)
        expected[:, :, :, number, :channels] = whole.transpose(0, 3, 1, 2)
    return expected


def rows(w: Any, operator: str, group: int, filled: int, precision: str) -> Any:
    """Weights as rows of K, by NumPy: (group, part, M, taps, filled)."""
    parts = parts_of(w, precision)
    taps = prod(w.shape[2:])
    if operator == "conv":
        filters, channels = w.shape[0] // group, w.shape[1]
    else:
        filters, channels = w.shape[1], w.shape[0] // group
    expected = np.zeros((group, len(parts), filters, taps, filled), w.dtype)
    for number, part in enumerate(parts):
        part = np.ascontiguousarray(part)
        if operator == "conv":
            expected[:, number, :, :, :channels] = part.reshape(group, filters, channels, taps).swapaxes(2, 3)
        else:
            expected[:, number, :, :, :channels] = part.reshape(group, channels, filters, taps).transpose(0, 2, 3, 1)
    return expected
