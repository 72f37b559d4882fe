"""Registration of gpuconv's functions as operators of PyTorch, in the namespace ``gpuconv``.

Each operator has a kernel, which is a function of gpuconv on arrays, and a fake of the same result (shape, dtype and
strides), for tracing. The kernel allocates its result by that same fake, so that both cannot differ. Derivatives are
further operators; there is no forward-mode derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gpuconv._errors import ArgumentError
from gpuconv.torch import _state, _tensors

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
_library = torch.library.Library("gpuconv", "FRAGMENT")


def empty(like: Any, shape: Sequence[int], dtype: Any = None) -> Any:
    """Return an uninitialised tensor of a shape, channels last if ``like`` is (and could not be contiguous too)."""
    memory_format = torch.contiguous_format
    last = FORMATS.get(len(shape))
    if last is not None and like.dim() == len(shape) and not like.is_contiguous():
        memory_format = last if like.is_contiguous(memory_format=last) else memory_format
    return torch.empty(shape, dtype=dtype or like.dtype, device=like.device, memory_format=memory_format)


def extent(name: str, size: int) -> int:
    """Return an extent of a result; raise ArgumentError for a negative one."""
    if size < 0:
        raise ArgumentError(
            f"{name}: the kernel is longer than the padded input: the result would have {size} elements"
        )
    return size


def operator(name: str, schema: str, fake: Callable[..., Any], compute: Callable[..., object]) -> Any:
    """Define an operator: ``fake(*arguments)`` returns its uninitialised results, ``compute`` writes into them.

    ``compute`` gets the arguments and the results, all tensors as arrays, as ``compute(*arguments, out)``.
    """

    def kernel(*arguments: Any) -> Any:
        results = fake(*arguments)
        first = results[0] if isinstance(results, tuple) else results
        with _tensors.place(first), _state.setting():
            out = tuple(map(_array, results)) if isinstance(results, tuple) else _tensors.array(results)
            compute(*map(_array, arguments), out)
        return results

    defined = torch.library.custom_op(f"gpuconv::{name}", kernel, mutates_args=(), schema=schema)
    defined.register_fake(fake)
    return defined


def _array(value: Any) -> Any:
    return _tensors.array(value) if isinstance(value, torch.Tensor) else value


def autocast(op: Any, number: int) -> None:
    """Cast the first ``number`` arguments, floating-point tensors, to autocast's dtype; float64 stays as it is."""
    for device, key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA")):
        _library.impl(op._name, _cast(op, number, device, key), key)


def _cast(op: Any, number: int, device: str, key: str) -> Callable[..., Any]:
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    may_cast = (torch.float16, torch.bfloat16, torch.float32)

    def kernel(*arguments: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)
        tensors = [
            value.to(dtype) if isinstance(value, torch.Tensor) and value.dtype in may_cast else value
            for value in arguments[:number]
        ]
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return op(*tensors, *arguments[number:])

    return kernel


def over_batch(op: Any, tensors: int, shape_at: int | None = None, unless_last: bool = False) -> None:
    """Let vmap fold its axis into the batch of the first ``tensors`` arguments if all of these have it.

    Otherwise, as for weights that differ along the axis, the operator is called once for each entry.

    Parameters
    ----------
    op : operator
    tensors : int
        How many arguments, from the first on, are tensors with a batch.
    shape_at : int, optional
        Which argument is a shape that begins with the batch.
    unless_last : bool
        Whether the operator is called once for each entry if its last argument is true.
    """

    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        is_folded = all(dim is not None for dim in in_dims[:tensors]) and not any(
            dim is not None and isinstance(value, torch.Tensor)
            for dim, value in zip(in_dims[tensors:], arguments[tensors:], strict=True)
        )
        if not is_folded or (unless_last and arguments[-1]):
            return one_by_one(op)(info, in_dims, *arguments)
        values = list(arguments)
        for place in range(tensors):
            values[place] = values[place].movedim(in_dims[place], 0).flatten(0, 1)
        if shape_at is not None:
            values[shape_at] = [values[shape_at][0] * info.batch_size, *values[shape_at][1:]]
        results = op(*values)
        if isinstance(results, tuple):
            return tuple(y.unflatten(0, (info.batch_size, -1)) for y in results), (0,) * len(results)
        return results.unflatten(0, (info.batch_size, -1)), 0

    op.register_vmap(vmap)


def one_by_one(op: Any) -> Callable[..., Any]:
    """Return a rule of vmap that calls an operator once for each entry."""

    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        calls = [
            op(
                *(
                    value.select(dim, entry) if isinstance(value, torch.Tensor) and dim is not None else value
                    for value, dim in zip(arguments, in_dims, strict=True)
                )
            )
            for entry in range(info.batch_size)
        ]
        if isinstance(calls[0], tuple):
            return tuple(torch.stack(results) for results in zip(*calls, strict=True)), (0,) * len(calls[0])
        return torch.stack(calls), 0

    return vmap
