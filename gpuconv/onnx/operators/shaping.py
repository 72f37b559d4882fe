"""Operators that move elements without computing: reshape, slice, pad, concatenate, split, tile, and constants.

Results may be views of their inputs. Parameters such as axes and shapes are on the host; their errors are raised here,
with the values in the message.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, isfinite, prod
from typing import Any

import numpy as np
import onnx

from gpuconv._errors import ArgumentError
from gpuconv.onnx.operators.form import Form, Operator, ints, namespace, wide

_MOST_BYTES = 2**63 - 1
_MOST_INDICES = 2**12  # longest axis whose padding indices are cached
_UNEVEN_SINCE = 18  # opset since which the last of Split's equal parts may be smaller
_PADDING_MODES = ("constant", "edge", "reflect", "wrap")


def axis_of(axis: int, ndim: int, last: bool = False) -> int:
    """Return an axis counted from the front; raise ArgumentError if out of range.

    With ``last``, the axis ``ndim`` is allowed, one past the end.
    """
    if not -ndim <= axis < ndim + last:
        raise ArgumentError(f"axis {axis} is out of range for an array of {ndim} axes")
    return axis if axis >= 0 else axis + ndim


def _concat(form: Form, *arrays: Any) -> Any:
    """Concat: join arrays along an axis, by default axis 1 (opset 1)."""
    axis = form.get("axis")
    return namespace(arrays[0]).concatenate(arrays, axis=axis_of(1 if axis is None else axis, arrays[0].ndim))


def _concat_cost(_: Form, *arrays: Any) -> int:
    return sum(array.size for array in arrays)


def _split(form: Form, x: Any, split: Any = None) -> Any:
    """Split: return slices along an axis, of the given sizes or equal ones."""
    axis, count = axis_of(form.get("axis") or 0, x.ndim), len(form.outputs)
    extent = x.shape[axis]
    sizes = form.get("split") if form.opset < 13 and split is None else split
    if sizes is None and form.opset < _UNEVEN_SINCE and extent % count:
        raise ArgumentError(f"axis {axis} has {extent} elements, which are no {count} equal parts; give the sizes")
    parts = _sizes(extent, count) if sizes is None else ints(sizes)
    if len(parts) != count or min(parts, default=0) < 0 or sum(parts) != extent:
        raise ArgumentError(
            f"the sizes {parts} must be {count}, one per output, none negative, and add up to the {extent} elements "
            f"of axis {axis}"
        )
    ends = np.cumsum(parts).tolist()
    before = (slice(None),) * axis
    return tuple(x[(*before, slice(end - size, end))] for size, end in zip(parts, ends, strict=True))


def _sizes(extent: int, count: int) -> list[int]:
    """Return the sizes of ``count`` equal parts, the last of which may be smaller."""
    size = -(-extent // count)
    return [max(0, min(size, extent - n * size)) for n in range(count)]


def _slice(form: Form, x: Any, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None) -> Any:
    """Slice: starts, ends, axes and steps are attributes before opset 10, inputs later."""
    if form.opset < 10:
        starts, ends, axes = (form.get(name) for name in ("starts", "ends", "axes"))
    first = ints(starts)
    along = range(len(first)) if axes is None else ints(axes)
    strides = [1] * len(first) if steps is None else ints(steps)
    axes_named = [axis_of(axis, x.ndim) for axis in along]
    if len(set(axes_named)) < len(axes_named):
        raise ArgumentError(f"axes is {list(along)}, which names one axis twice")
    index = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes_named, first, ints(ends), strides, strict=True):
        if step < 0:  # clamp the start: ONNX reads from the first element, where Python's slice would be empty
            start = max(start, -x.shape[axis])
        index[axis] = slice(start, end, step)
    return x[tuple(index)]


def _reshape(form: Form, x: Any, shape: Any = None) -> Any:
    """Reshape: an extent of -1 is inferred, and 0 keeps the input's extent unless allowzero is set."""
    wanted = ints(form.get("shape") if form.opset < 5 else shape)
    if min(wanted, default=0) < -1:
        raise ArgumentError(f"the shape {wanted} has an extent below -1")
    if form.get("allowzero") and 0 in wanted and -1 in wanted:
        raise ArgumentError(f"the shape {wanted} has both 0 and -1, of which allowzero=1 takes one only")
    if not form.get("allowzero"):
        kept = [axis for axis, extent in enumerate(wanted) if extent == 0]
        if kept and kept[-1] >= x.ndim:
            raise ArgumentError(f"the shape {wanted} keeps axis {kept[-1]}, but x.shape={x.shape} has none")
        wanted = [x.shape[axis] if extent == 0 else extent for axis, extent in enumerate(wanted)]
    known = prod(extent for extent in wanted if extent != -1)
    if wanted.count(-1) > 1 or (not known or x.size % known if -1 in wanted else x.size != known):
        raise ArgumentError(f"an array of shape {x.shape} cannot have the shape {wanted}")
    return x.reshape(wanted)


def _flatten(form: Form, x: Any) -> Any:
    """Flatten: reshape to 2-D, split at an axis."""
    axis = axis_of(form.get("axis"), x.ndim, last=True)
    return x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))


def _transpose(form: Form, x: Any) -> Any:
    """Transpose: permute axes, by default to the reverse order."""
    order = form.get("perm") or tuple(range(x.ndim))[::-1]
    if sorted(order) != list(range(x.ndim)):
        raise ArgumentError(f"perm is {list(order)}, which is no order of the axes 0 to {x.ndim - 1}")
    return x.transpose(order)


def _squeeze(form: Form, x: Any, axes: Any = None) -> Any:
    """Squeeze: drop the given axes, which must have extent 1, or all such axes."""
    axes = form.get("axes") if form.opset < 13 else axes
    if axes is None:
        return x.reshape([extent for extent in x.shape if extent != 1])
    dropped = {axis_of(axis, x.ndim) for axis in ints(axes)}
    for axis in dropped:
        if x.shape[axis] != 1:
            raise ArgumentError(f"axis {axis} of x.shape={x.shape} must have extent 1")
    return x.reshape([extent for axis, extent in enumerate(x.shape) if axis not in dropped])


def _unsqueeze(form: Form, x: Any, axes: Any = None) -> Any:
    """Unsqueeze: insert axes of extent 1; positions refer to the result."""
    wanted = ints(form.get("axes") if form.opset < 13 else axes)
    ndim = x.ndim + len(wanted)
    new = {axis_of(axis, ndim) for axis in wanted}
    if len(new) < len(wanted):
        raise ArgumentError(f"the axes {wanted} name one axis twice")
    extents = iter(x.shape)
    return x.reshape([1 if axis in new else next(extents) for axis in range(ndim)])


def _pad(form: Form, x: Any, pads: Any = None, value: Any = None, axes: Any = None) -> Any:
    """Pad: add elements at the ends of axes, or crop them where pads are negative."""
    amounts = _amounts(form, pads)
    widths = _widths(x, amounts, axes)
    value = value if form.opset >= 11 else form.get("value")
    if any(n + min(0, b) + min(0, e) < 0 for n, (b, e) in zip(x.shape, widths, strict=True)):
        raise ArgumentError(f"the pads {amounts} take away more than there is (x.shape={x.shape})")
    cropped = x[tuple(slice(max(0, -b), n - max(0, -e)) for n, (b, e) in zip(x.shape, widths, strict=True))]
    added = [(max(0, begin), max(0, end)) for begin, end in widths]
    mode = form.get("mode")
    if mode not in _PADDING_MODES:
        raise ArgumentError(f"mode must be one of {', '.join(_PADDING_MODES)}, not {mode!r}")
    if mode != "constant":
        return _extended(cropped, added, mode)
    return _framed(cropped, added, 0 if value is None else np.asarray(value).reshape(())[()])


def _extended(x: Any, added: list[tuple[int, int]], mode: str) -> Any:
    """Pad with elements of x (edge, reflect, wrap), axis by axis; np.pad is many times slower for small arrays."""
    longest = max((n + b + e for n, (b, e) in zip(x.shape, added, strict=True)), default=0)
    if not isinstance(x, np.ndarray) or longest > _MOST_INDICES:
        return namespace(x).pad(x, added, mode=mode)
    for axis, ends in enumerate(added):
        if any(ends):
            x = x.take(_sources(x.shape[axis], ends, mode), axis)
    return x


@lru_cache(maxsize=64)
def _sources(extent: int, ends: tuple[int, int], mode: Any) -> Any:
    """Return, for each element of a padded axis, the index of its source."""
    return np.pad(np.arange(extent), ends, mode=mode)


def _amounts(form: Form, pads: Any) -> list[int]:
    return ints(pads if form.opset >= 11 else form.get("paddings" if form.opset < 2 else "pads"))


def _widths(x: Any, amounts: list[int], axes: Any) -> list[tuple[int, int]]:
    """Return the amounts to add before and after each axis; negative ones remove elements."""
    along = range(x.ndim) if axes is None else [axis_of(axis, x.ndim) for axis in ints(axes)]
    half = len(along)
    if len(amounts) != 2 * half:
        raise ArgumentError(f"pads has {len(amounts)} numbers, but must have two for each of {half} axes")
    widths = [(0, 0)] * x.ndim
    for axis, begin, end in zip(along, amounts[:half], amounts[half:], strict=True):
        widths[axis] = begin, end
    return widths


def _pad_cost(form: Form, x: Any, pads: Any = None, _: Any = None, axes: Any = None) -> int:
    widths = _widths(x, _amounts(form, pads), axes)
    return prod(n + max(0, begin) + max(0, end) for n, (begin, end) in zip(x.shape, widths, strict=True))


def _framed(x: Any, widths: list[tuple[int, int]], value: Any) -> Any:
    """Surround an array with constant elements."""
    y = namespace(x).full([n + b + e for n, (b, e) in zip(x.shape, widths, strict=True)], value, x.dtype)
    y[tuple(slice(b, b + n) for n, (b, _) in zip(x.shape, widths, strict=True))] = x
    return y


def _shape(form: Form, x: Any) -> Any:
    return np.array(x.shape[form.get("start") or 0 : form.get("end")], np.int64)


def _size(_: Form, x: Any) -> Any:
    return np.array(x.size, np.int64)


def _gather(form: Form, x: Any, indices: Any) -> Any:
    """Gather: take slices along an axis."""
    return namespace(x).take(x, indices, axis=axis_of(form.get("axis"), x.ndim))


def _gather_cost(form: Form, x: Any, indices: Any) -> int:
    axis = axis_of(form.get("axis"), x.ndim)
    return prod((*x.shape[:axis], *np.shape(indices), *x.shape[axis + 1 :]))


def _center_crop_pad(form: Form, x: Any, shape: Any) -> Any:
    """CenterCropPad: crop or zero-pad both ends of axes; the end gets the extra element of an odd difference."""
    wanted, given = ints(shape), form.get("axes")
    along = [axis_of(axis, x.ndim) for axis in (range(x.ndim) if given is None else given)]
    if len(set(along)) < len(along) or len(wanted) != len(along) or min(wanted, default=0) < 0:
        raise ArgumentError(f"shape is {wanted}, but must have an extent, none negative, for each of the axes {along}")
    taken, widths = [slice(None)] * x.ndim, [(0, 0)] * x.ndim
    for axis, extent in zip(along, wanted, strict=True):
        more = extent - x.shape[axis]
        if more < 0:
            taken[axis] = slice(-more // 2, -more // 2 + extent)
        else:
            widths[axis] = more // 2, more - more // 2
    return _framed(x[tuple(taken)], widths, 0)


def _center_crop_pad_cost(form: Form, x: Any, shape: Any) -> int:
    return int(x.size) + int(prod(max(0, extent) for extent in (*ints(shape), *x.shape)))


def _expand(_: Form, x: Any, shape: Any) -> Any:
    """Expand: broadcast an array to a shape, as a view."""
    wanted = ints(shape)
    if min(wanted, default=0) < 0:
        raise ArgumentError(f"the shape {wanted} has a negative extent")
    return namespace(x).broadcast_to(x, np.broadcast_shapes(x.shape, tuple(wanted)))


def _expand_cost(_: Form, x: Any, shape: Any) -> int:
    return prod(np.broadcast_shapes(x.shape, tuple(ints(shape))))


def _tile_cost(_: Form, x: Any, repeats: Any) -> int:
    return int(x.size) * prod(ints(repeats))


def _tile(_: Form, x: Any, repeats: Any) -> Any:
    """Tile: repeat an array along each axis."""
    times = ints(repeats)
    if len(times) != x.ndim or min(times, default=0) < 0:
        raise ArgumentError(f"repeats is {times}, but must have {x.ndim} numbers, one per axis, none negative")
    nbytes = max(1, x.nbytes) * prod(max(1, count) for count in times)
    # np.tile computes the size in 64 bits without an overflow check, then writes out of bounds.
    if nbytes > _MOST_BYTES:
        raise ArgumentError(f"x.shape={x.shape}, repeated {times} times, has more bytes than 64 bits can address")
    return namespace(x).tile(x, tuple(times))


def _depth_to_space(form: Form, x: Any) -> Any:
    """DepthToSpace: move blocks of channels to spatial positions, for any number of spatial axes."""
    images, channels, *extents = x.shape
    block, rank = form.get("blocksize"), len(extents)
    blocks = [block] * rank
    first = _depth_first(form)  # DCR: block axes come before the channels; CRD: after them
    if block < 1 or channels % block**rank:
        raise ArgumentError(f"the {channels} channels are no multiple of blocksize={block} to the power of {rank}")
    depth = channels // block**rank
    parts = x.reshape(images, *((*blocks, depth) if first else (depth, *blocks)), *extents)
    start = 1 if first else 2
    order = [0, 1 + rank if first else 1]
    for axis in range(rank):
        order += [2 + rank + axis, start + axis]
    return parts.transpose(order).reshape(images, depth, *(n * block for n in extents))


def _depth_first(form: Form) -> bool:
    """Return whether the mode is DCR (block elements before channels in the depth axis) rather than CRD."""
    mode = form.get("mode") or "DCR"
    if mode not in ("DCR", "CRD"):
        raise ArgumentError(f"mode must be DCR or CRD, not {mode!r}")
    return bool(mode == "DCR")


def _space_to_depth(form: Form, x: Any) -> Any:
    """SpaceToDepth: move spatial blocks to channels."""
    images, channels, height, width = x.shape
    block = form.get("blocksize")
    if block < 1 or height % block or width % block:
        raise ArgumentError(f"the extents {height} and {width} are no multiples of blocksize={block}")
    parts = x.reshape(images, channels, height // block, block, width // block, block)
    order = (0, 3, 5, 1, 2, 4) if _depth_first(form) else (0, 1, 3, 5, 2, 4)
    return parts.transpose(order).reshape(images, channels * block**2, height // block, width // block)


def _array(value: Any) -> Any:
    """Return a tensor attribute as an array; the caller of a function may give it as an array already."""
    return value if isinstance(value, np.ndarray) else onnx.numpy_helper.to_array(value)


def _constant(form: Form) -> Any:
    """Constant, from any of its value attributes."""
    (name, value), *_ = [(name, value) for name, value in form.attributes.items() if value is not None]
    if name == "value":
        return _array(value)
    return np.array(value, np.int64 if name.startswith("value_int") else np.float32)


def _is_plain_constant(form: Form) -> bool:
    given = {name for name, value in form.attributes.items() if value is not None}
    return len(given) == 1 and given <= {"value", "value_float", "value_floats", "value_int", "value_ints"}


def _constant_of_shape(form: Form, shape: Any) -> Any:
    """ConstantOfShape: an array of one value, by default float32 zeros."""
    value = form.get("value")
    filling = np.zeros(1, np.float32) if value is None else _array(value)
    wanted = ints(shape)
    if min(wanted, default=0) < 0:
        raise ArgumentError(f"the shape {wanted} has a negative extent")
    return np.full(wanted, filling.reshape(())[()], filling.dtype)


def _span(_: Form, start: Any, limit: Any, delta: Any) -> Any:
    """Range: return ``start + i * delta`` up to the limit; 16-bit floats are computed in float32."""
    first, end, step = (wide(np.asarray(value).reshape(1)) for value in (start, limit, delta))
    y = first + np.arange(_steps(first, end, step)).astype(first.dtype) * step
    return y.astype(start.dtype, copy=False)


def _steps(first: Any, end: Any, step: Any) -> int:
    """Return the number of elements of a Range; raise ArgumentError if it is not finite."""
    if not step[0]:
        raise ArgumentError("delta is 0, so that there is no end")
    if first.dtype.kind in "iu":
        return max(0, -((int(first[0]) - int(end[0])) // int(step[0])))
    count = float((end - first)[0]) / float(step[0])
    if not isfinite(count):
        raise ArgumentError(f"from {first[0]} to {end[0]} by {step[0]} there are {count} steps")
    return max(0, ceil(count))


def _span_cost(_: Form, *bounds: Any) -> int:
    first, end, step = (wide(np.asarray(value).reshape(1)) for value in bounds)
    return _steps(first, end, step)


def _shape_cost(_: Form, shape: Any) -> int:
    return prod(ints(shape))


def _one(_: Form, *__: Any) -> int:
    return 1  # it reads no elements, or only those of the model itself


def _identity(_: Form, x: Any) -> Any:
    return x


def _dropout(form: Form, x: Any, *_: Any) -> Any:
    """Dropout in inference mode: x unchanged, and a mask of ones if required."""
    if not any(form.outputs[1:]):
        return x
    return x, namespace(x).ones(x.shape, np.bool_ if form.opset >= 10 else x.dtype)


def _does_not_train(form: Form) -> bool:
    """Return whether a node is in inference mode; before opset 7 the attribute is_test says so, with default 0."""
    return form.get("is_test") != 0 and (form.opset < 12 or not any(form.inputs[2:]))


OPERATORS = {
    "CenterCropPad": Operator(_center_crop_pad, frozenset({1}), cost=_center_crop_pad_cost),
    "Concat": Operator(_concat, cost=_concat_cost),
    "Constant": Operator(_constant, serves=_is_plain_constant, cost=_one),
    "ConstantOfShape": Operator(_constant_of_shape, frozenset({0}), cost=_shape_cost),
    "DepthToSpace": Operator(_depth_to_space),
    "Dropout": Operator(_dropout, frozenset({1, 2}), _does_not_train),
    "Expand": Operator(_expand, frozenset({1}), cost=_expand_cost),
    "Flatten": Operator(_flatten),
    "Gather": Operator(_gather, cost=_gather_cost),
    "Identity": Operator(_identity, cost=_one),
    "Pad": Operator(_pad, frozenset({1, 2, 3}), cost=_pad_cost),
    "Range": Operator(_span, frozenset({0, 1, 2}), cost=_span_cost),
    "Reshape": Operator(_reshape, frozenset({1})),
    "Shape": Operator(_shape, cost=_one),
    "Size": Operator(_size, cost=_one),
    "Slice": Operator(_slice, frozenset({1, 2, 3, 4})),
    "SpaceToDepth": Operator(_space_to_depth),
    "Split": Operator(_split, frozenset({1})),
    "Squeeze": Operator(_squeeze, frozenset({1})),
    "Tile": Operator(_tile, frozenset({1}), lambda form: form.opset >= 6, _tile_cost),
    "Transpose": Operator(_transpose),
    "Unsqueeze": Operator(_unsqueeze, frozenset({1})),
}
