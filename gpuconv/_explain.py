"""What a call would launch, and why, in words; nothing here needs a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from gpuconv import _dtypes, _geometry, _layout, _precision
from gpuconv._errors import ArgumentError, ArgumentTypeError
from gpuconv._geometry import Ints

if TYPE_CHECKING:  # imported where they are used: importing gpuconv does not need them
    from gpuconv.cuda.floor import Geometry, Work
    from gpuconv.cuda.limits import Representative
    from gpuconv.cuda.plan import Launch, Plan


@dataclass(frozen=True, slots=True)
class _Call:
    """What a plan depends on, but for shapes and attributes."""

    operator: str
    dtype: str
    device: Representative
    bias: bool
    indices: bool
    layout: str
    precision: str


def explain(
    operator: str,
    x_shape: Sequence[int],
    w_shape: Sequence[int] | None = None,
    *,
    dtype: Any = "float32",
    arch: str = "sm_90",
    bias: bool = False,
    layout: str = "NCHW",
    precision: str | None = None,
    return_indices: bool = False,
    **attributes: Any,
) -> Plan:
    """Print what a call on CUDA arrays launches, and why; no device is needed.

    Parameters
    ----------
    operator : {"conv", "conv_transpose", "max_pool"}
    x_shape, w_shape : sequence of int
        Shapes of the call's arrays, which are taken to be C-contiguous, x in the layout; no ``w_shape`` for MaxPool.
    dtype : str or dtype
        Of the arrays.
    arch : str
        Architecture of the GPU, as ``"sm_90"``. Multiprocessors, memory and clock are those of one well-known device of
        it, by its datasheet.
    bias : bool
        Whether there is a ``b``.
    layout : {"NCHW", "NHWC"}
    precision : {"ieee", "tf32", "3xtf32"}, optional
        That of the context by default; not for MaxPool.
    return_indices : bool
        Whether MaxPool gives Indices.
    **attributes
        The call's other keywords, as ``pads=[1, 1, 1, 1]``.

    Returns
    -------
    Plan
        What was printed: every launch with its kernel, grid, shared memory and parameters.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As the call itself; also an unknown operator, dtype or architecture.

    Examples
    --------
    >>> import gpuconv
    >>> plan = gpuconv.explain("max_pool", (8, 64, 112, 112), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    max_pool float32 on sm_90a: 132 multiprocessors as on H200
      x (8, 64, 112, 112) -> y (8, 64, 56, 56)
      floor      6.7 us: 32.1 MB at 4.80 TB/s
      launch 1   max_pool_float32_3d_vectors_3x2: grid 1619, 128 threads
      because    max_pool_float32_2d: modelled 12.4 us, 1.48 of the chosen one's
                 max_pool_float32_3d_vectors_3x2: modelled 8.4 us, chosen
                 max_pool_float32_3d_bands: modelled 9.7 us, 1.16 of the chosen one's
                 max_pool_float32_3d_vectors_3x2: 2 x 4 outputs a thread, from rows of 28 vectors; 1605632 outputs \
in 1619 blocks of 128 threads
                 not by planes: windows more than one element apart
                 not by channels: channels are not neighbours
    """
    from gpuconv.cuda.limits import representative

    device, name = representative(arch), _dtype_name(operator, dtype)
    precise = _precision.CURRENT.get() if precision is None else _precision.check(operator, precision)
    call = _Call(operator, name, device, bias, return_indices, layout, precise)
    geometry, plan = _planned(call, x_shape, w_shape, attributes)
    print("\n".join(_lines(call, geometry, plan)))
    return plan


def _dtype_name(operator: str, dtype: Any) -> str:
    allowed = _dtypes.allowed(operator)
    if allowed is None:
        raise ArgumentError(f"explain: operator must be one of {', '.join(_dtypes.OPERATORS)}, not {operator!r}")
    name = str(getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype)
    if name not in allowed:
        raise ArgumentTypeError(f"{operator}: dtype must be one of {', '.join(allowed)}, not {name}")
    return name


def _planned(
    call: _Call, x_shape: Sequence[int], w_shape: Sequence[int] | None, attributes: dict[str, Any]
) -> tuple[Geometry, Plan]:
    from gpuconv.cuda import planning

    operator, limits = call.operator, call.device.limits
    try:
        if operator == "max_pool":
            geometry: Any = _geometry.max_pool(x_shape, **{"kernel_shape": None, "layout": call.layout, **attributes})
            strides = {"x": _new(call.layout, geometry.x_shape), "y": _new(call.layout, geometry.y_shape)}
            strides |= {"indices": strides["y"]} if call.indices else {}
            return geometry, planning.plan(operator, geometry, call.dtype, strides, limits, call.precision)
        if w_shape is None:
            raise ArgumentTypeError(f"{operator}: w_shape is required, as (16, 3, 3, 3)")
        geometry = getattr(_geometry, operator)(x_shape, w_shape, layout=call.layout, **attributes)
    except TypeError as error:
        if isinstance(error, ArgumentTypeError):
            raise
        raise ArgumentTypeError(f"{operator}: {error}") from None
    strides = {"x": _new(call.layout, geometry.x_shape), "y": _new(call.layout, geometry.y_shape)}
    strides |= {"w": _new("NCHW", geometry.w_shape)} | ({"b": (1,)} if call.bias else {})
    return geometry, planning.plan(operator, geometry, call.dtype, strides, limits, call.precision)


def _new(layout: str, shape: Ints) -> Ints:
    """Return the strides of a new array of the layout, in the order N, C, D1, … like its shape."""
    given = _layout.as_given(layout, shape)
    return _layout.channels_second(layout, tuple(prod(given[axis + 1 :]) for axis in range(len(given))))


def _lines(call: _Call, geometry: Geometry, plan: Plan) -> Iterator[str]:
    from gpuconv.cuda import floor

    device, dtype = call.device, call.dtype
    weights = None if isinstance(geometry, _geometry.MaxPoolGeometry) else geometry.w_shape
    how = [plan.operator, dtype]
    if weights is not None and dtype in ("float32", "complex64") and call.precision != "ieee":
        how.append(call.precision)
    if call.layout != "NCHW":
        how.append(call.layout)
    like = f"{device.limits.multiprocessors} multiprocessors as on {device.name}"
    yield f"{' '.join(how)} on {device.limits.architecture}: {like}"
    operands = [f"x {_layout.as_given(call.layout, geometry.x_shape)}"]
    if weights is not None:
        operands.append(f"w {weights}")
    yield f"  {', '.join(operands)} -> y {_layout.as_given(call.layout, geometry.y_shape)}"
    yield f"  floor      {_floor(call, floor.work(geometry, dtype, bias=call.bias, indices=call.indices))}"
    for number, launch in enumerate(plan.launches, 1):
        yield f"  launch {number}   {_launch(launch)}"
    for _, use, nbytes in plan.spaces:
        yield f"  workspace  {nbytes} bytes for {use}"
    for number, reason in enumerate(plan.reasons):
        yield f"  {'because' if number == 0 else '':9}  {reason}"


def _floor(call: _Call, work: Work) -> str:
    device = call.device
    rate = device.peak(call.dtype, call.precision)
    seconds = work.seconds(rate, device.bandwidth)
    text = f"{work.bytes / 1e6:.1f} MB at {device.bandwidth / 1e12:.2f} TB/s"
    if work.flops:
        text = f"{work.flops / 1e9:.2f} GFLOP at {rate / 1e12:.1f} TFLOP/s, or {text}"
    return f"{seconds * 1e6:.1f} us: {text}"


def _launch(launch: Launch) -> str:
    grid = " x ".join(str(size) for size in launch.grid if size > 1) or "1"
    text = f"{launch.variant.name}: grid {grid}, {launch.variant.threads} threads"
    return f"{text}, {launch.shared_bytes} bytes of shared memory" if launch.shared_bytes else text
