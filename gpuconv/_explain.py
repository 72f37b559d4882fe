"""explain: plans a call from shapes, without a device, and describes its launches and the reasons in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import TYPE_CHECKING, Any

from gpuconv._errors import ArgumentError, ArgumentTypeError, one_line, shown, text_of
from gpuconv.rules import activation as activations
from gpuconv.rules import dtypes, invariance
from gpuconv.rules import geometry as geometries
from gpuconv.rules import layout as layouts
from gpuconv.rules import precision as precisions
from gpuconv.rules.activation import Activation
from gpuconv.rules.geometry import Ints
from gpuconv.rules.integers import flag, integers
from gpuconv.rules.invariance import Invariance
from gpuconv.rules.layout import Layout
from gpuconv.rules.operators import OPERATORS, check_names, named, settled
from gpuconv.rules.precision import Precision
from gpuconv.rules.signatures import refusing

if TYPE_CHECKING:  # imported where they are used: importing gpuconv does not need them
    from gpuconv.cuda.plan.floor import Geometry
    from gpuconv.cuda.plan.launch import Launch, Plan
    from gpuconv.cuda.plan.limits import Representative
    from gpuconv.rules.indices import IndexWindows

_Arrays = dict[str, Ints]  # shapes by the arrays' names in the public function


@dataclass(frozen=True, slots=True)
class _Call:
    """All settings of a call that a plan depends on, except shapes and attributes; validated."""

    operator: str
    dtype: str
    device: Representative
    bias: bool
    indices: bool
    layout: str
    precision: str
    checks: bool
    activation: Activation | None
    residual: bool
    invariant: bool


@refusing
def explain(
    operator: str,
    x_shape: Sequence[int],
    w_shape: Sequence[int] | None = None,
    *,
    activation: str | tuple[Any, ...] | None = None,
    dtype: Any = "float32",
    arch: str = "sm_90",
    bias: bool = False,
    layout: Layout = "NCHW",
    precision: Precision | None = None,
    invariant: Invariance | None = None,
    residual: bool = False,
    return_indices: bool = False,
    **attributes: Any,
) -> Plan:
    """Print the launches of a call on CUDA arrays, with the reasons for them, and return the plan; needs no device.

    Parameters
    ----------
    operator : str
        The name of the public function: "conv", "conv_transpose", "max_pool", a gradient such as "conv_input_grad", or
        "max_unpool".
    x_shape, w_shape : sequence of int
        Shapes of x (in ``layout``) and w. For a gradient, those of the forward call, from which dy's shape follows. For
        the gradient of a bias, ``x_shape`` is dy's shape; for MaxUnpool, the shape of its argument y. All arrays are
        taken to be C-contiguous. Only operators with weights take a ``w_shape``.
    activation : str or tuple, optional
        As in the call.
    dtype : str or dtype
        Dtype of the arrays.
    arch : str
        Architecture of the GPU, such as ``"sm_90"``. The number of multiprocessors, the memory and the clock are those
        of one well-known device of that architecture, from its datasheet.
    bias : bool
        Whether the call has a ``b``.
    layout : {"NCHW", "NHWC"}
    precision : {"ieee", "tf32", "3xtf32"}, optional
        By default that of the context; only for operators with weights and their gradients.
    invariant : {"batch"}, optional
        By default that of the context; only for operators with weights and the gradients of their inputs.
    residual : bool
        Whether the call has a residual; its strides are taken to be the result's.
    return_indices : bool
        Whether MaxPool returns Indices.
    **attributes
        The call's other keywords, such as ``pads=[1, 1, 1, 1]``; ``check_indices`` for operators that take Indices.

    Returns
    -------
    Plan
        Every launch with its kernel, grid, shared memory and parameters. The launches of ``check_indices``, which come
        first, are printed but not part of it.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As the call itself; also an unknown operator, dtype or architecture, or an argument that the operator does not
        take.

    Examples
    --------
    >>> import gpuconv
    >>> plan = gpuconv.explain("max_pool", (8, 64, 112, 112), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    max_pool float32 on sm_90a: 132 multiprocessors as on H200
      x (8, 64, 112, 112) -> y (8, 64, 56, 56)
      floor      6.7 us by the datasheet: 32.1 MB at 4.80 TB/s
      launch 1   max_pool_float32_3d_vectors_3x2: grid 1619, 128 threads
      because    max_pool_float32_3d: predicted 12.4 us (1.40x)
                 max_pool_float32_3d_vectors_3x2: predicted 8.9 us, chosen
                 max_pool_float32_3d_tiles: predicted 9.2 us (1.04x)
                 max_pool_float32_3d_vectors_3x2: 2 x 4 outputs a thread, from rows of 28 vectors; 1605632 outputs \
in 1619 blocks of 128 threads
                 not by channels, patches: channels are not neighbours
    >>> plan = gpuconv.explain("conv_bias_grad", (8, 64, 28, 28))
    conv_bias_grad float32 on sm_90a: 132 multiprocessors as on H200
      dy (8, 64, 28, 28) -> db (64,)
      floor      0.3 us by the datasheet: 1.6 MB at 4.80 TB/s
      launch 1   channel_sums_float32_3d: grid 256, 256 threads
      launch 2   add_up_float32_1d: grid 1, 256 threads
      workspace  1024 bytes for sums of parts
      because    6272 elements of each of 64 channels, in 4 parts
    """
    plan, lines = described(
        operator,
        x_shape,
        w_shape,
        activation=activation,
        dtype=dtype,
        arch=arch,
        bias=bias,
        layout=layout,
        precision=precision,
        invariant=invariant,
        residual=residual,
        return_indices=return_indices,
        **attributes,
    )
    print("\n".join(lines))
    return plan


def described(
    operator: str,
    x_shape: Sequence[int],
    w_shape: Sequence[int] | None = None,
    *,
    arch: str = "sm_90",
    dtype: Any = "float32",
    **keywords: Any,
) -> tuple[Plan, list[str]]:
    """Return the plan and the lines that :func:`explain` returns and prints."""
    call, geometry, inputs, results = _settled(operator, x_shape, w_shape, arch, dtype, **keywords)
    plan = _plan(call, geometry, inputs, results)
    return plan, list(_lines(call, geometry, inputs, results, plan))


def array_shapes(operator: str, x_shape: Sequence[int], w_shape: Sequence[int] | None, **keywords: Any) -> _Arrays:
    """Return the shapes of a call's input arrays by name; arguments as in :func:`explain`."""
    return _settled(operator, x_shape, w_shape, "sm_90", **keywords)[2]


def _settled(
    operator: str,
    x_shape: Sequence[int],
    w_shape: Sequence[int] | None,
    arch: str,
    dtype: Any = "float32",
    *,
    activation: str | tuple[Any, ...] | None = None,
    bias: bool = False,
    layout: str = "NCHW",
    precision: str | None = None,
    invariant: str | None = None,
    residual: bool = False,
    return_indices: bool = False,
    **attributes: Any,
) -> tuple[_Call, Geometry, _Arrays, _Arrays]:
    """Validate all arguments; return the settings, the geometry, and the shapes of inputs and results by name."""
    from gpuconv.cuda.plan.limits import representative

    bias, residual = flag("explain", "bias", bias), flag("explain", "residual", residual)
    return_indices = flag("explain", "return_indices", return_indices)
    _check_operator(
        operator,
        w_shape=w_shape is not None,
        bias=bias,
        activation=activation is not None,
        residual=residual,
        precision=precision is not None,
        invariant=invariant is not None,
        return_indices=return_indices,
    )
    device, name = representative(arch), _dtype_name(operator, dtype)
    precise = precisions.CURRENT.get() if precision is None else precisions.check(operator, precision)
    checks = "indices" in OPERATORS[operator].inputs and flag(
        operator, "check_indices", attributes.pop("check_indices", True)
    )
    act = activations.parse(operator, activation)
    is_invariant = invariance.asked(operator, invariant)
    options = bias, return_indices, layout, precise, checks, act, residual, is_invariant
    call = _Call(operator, name, device, *options)
    return call, *_shapes(call, x_shape, w_shape, attributes)


def _check_operator(operator: str, **given: bool) -> None:
    """Raise for an unknown operator, or for an argument in ``given`` that it does not take."""
    called = named("explain", operator)
    takes = {
        "w_shape": called.has_weights,
        **dict.fromkeys(("bias", "activation", "residual"), "b" in called.inputs),
        "precision": called.has_weights,
        "invariant": "w" in called.inputs,
        "return_indices": operator == "max_pool",
    }
    for name, is_there in given.items():
        if is_there and not takes[name]:
            raise ArgumentTypeError(f"explain: {operator} takes no {name}")


def _dtype_name(operator: str, dtype: Any) -> str:
    allowed = dtypes.allowed(operator)
    try:
        name = text_of(getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype)
    except Exception:  # raised by the caller's class
        name = shown(dtype)
    if name not in allowed:
        raise ArgumentTypeError(f"{operator}: dtype must be one of {', '.join(allowed)}, not {one_line(name)}")
    return name


def _shapes(
    call: _Call, x_shape: Sequence[int], w_shape: Sequence[int] | None, attributes: dict[str, Any]
) -> tuple[Geometry, _Arrays, _Arrays]:
    """Return the geometry, and the shapes of inputs and results by name."""
    called, layout = OPERATORS[call.operator], call.layout
    if called.has_weights and w_shape is None:
        raise ArgumentTypeError(f"{call.operator}: w_shape is required, as (16, 3, 3, 3)")
    check_names("explain", call.operator, attributes, signature(explain).parameters)
    attributes = settled(call.operator, attributes)
    if "kernel_shape" in called.attributes:
        attributes.setdefault("kernel_shape", None)  # the geometry function raises if it is required
    try:
        of_call = {"x": _extents(call.operator, "x_shape", x_shape)}
        if w_shape is not None:
            of_call["w"] = _extents(call.operator, "w_shape", w_shape)
        for name, shape in of_call.items():
            geometries.check_size(call.operator, f"{name}_shape", shape)
        shapes = dict.fromkeys(called.inputs, of_call["x"]) | of_call
        if called.forward is not None:
            result = called.forward(*of_call.values(), layout=layout, name=call.operator, **attributes).y_shape
            shapes |= dict.fromkeys(("dy", "indices"), layouts.as_given(layout, result))
        inputs = {name: shapes[name] for name in called.inputs if name != "b"}
        asked = {f"{name}_shape": shape for name, shape in of_call.items() if f"{name}_shape" in called.attributes}
        geometry = called.geometry(*inputs.values(), layout=layout, **asked, **attributes)
    except TypeError as error:
        if isinstance(error, ArgumentTypeError):
            raise
        raise ArgumentTypeError(f"{call.operator}: {error}") from None
    made = layouts.as_given(called.order("out", layout), called.result(geometry))
    activations.check(call.operator, call.activation, None, made, call.dtype)
    biases = {"b": (geometry.y_shape[1],)} if call.bias else {}
    residuals = {"residual": made} if call.residual else {}
    results = {called.made: made} | ({"indices": made} if call.indices else {})
    return geometry, inputs | biases | residuals, results


def _extents(operator: str, name: str, shape: Any) -> Ints:
    """Return a shape argument as a tuple; raise ArgumentError if an extent is negative or missing."""
    given: Ints | None = integers(operator, name, shape)
    if given is None or min(given, default=0) < 0:
        raise ArgumentError(f"{operator}: {name} must be the shape of an array, not {shown(given)}")
    return given


def _plan(call: _Call, geometry: Geometry, inputs: _Arrays, results: _Arrays) -> Plan:
    from gpuconv.cuda import planning
    from gpuconv.cuda.call.prepared import contiguous_strides

    called = OPERATORS[call.operator]
    arrays = [(called.inputs.get(name, name), shape, called.order(name, call.layout)) for name, shape in inputs.items()]
    order = called.order("out", call.layout)
    arrays += [(role, shape, order) for role, shape in zip(("y", "indices"), results.values(), strict=False)]
    strides = {role: layouts.channels_second(order, contiguous_strides(shape)) for role, shape, order in arrays}
    settings = call.device.limits, call.precision, call.activation
    plan = planning.plan(called.kernel, geometry, call.dtype, strides, *settings, invariant=call.invariant)
    return replace(plan, operator=call.operator)


def _lines(call: _Call, geometry: Geometry, inputs: _Arrays, results: _Arrays, plan: Plan) -> Iterator[str]:
    device, called = call.device, OPERATORS[call.operator]
    how = [call.operator, call.dtype]
    if called.has_weights and call.dtype in ("float32", "complex64") and call.precision != "ieee":
        how.append(call.precision)
    if call.layout != "NCHW":
        how.append(call.layout)
    if call.invariant and "w" in called.inputs:
        how.append("batch-invariant")
    if call.activation is not None:
        how.append(call.activation.text)
    like = f"{device.limits.multiprocessors} multiprocessors as on {device.name}"
    yield f"{' '.join(how)} on {device.limits.architecture}: {like}"
    taken, made = (", ".join(f"{name} {shape}" for name, shape in arrays.items()) for arrays in (inputs, results))
    yield f"  {taken} -> {made}"
    yield f"  floor      {_floor(call, geometry)}"
    if call.checks:
        yield from _check(call, geometry)
    for number, launch in enumerate(plan.launches, 1):
        yield f"  launch {number}   {_launch(launch)}"
    for space in plan.spaces:
        yield f"  workspace  {space.bytes} bytes for {space.use}"
    for number, reason in enumerate(plan.reasons):
        yield f"  {'because' if number == 0 else '':9}  {reason}"


def _check(call: _Call, geometry: Any) -> Iterator[str]:
    from gpuconv.cuda.call.prepared import contiguous_strides
    from gpuconv.cuda.pool import unpool

    windows: IndexWindows = geometry.index_windows
    strides = contiguous_strides(layouts.as_given(call.layout, windows.shape))
    plan = unpool.for_check(windows, layouts.channels_second(call.layout, strides), call.device.limits)
    for number, launch in enumerate(plan.launches):
        yield f"  {'before' if number == 0 else '':9}  {_launch(launch)}"
    yield f"  {'':9}  for check_indices, {', '.join(plan.reasons)}; the call waits for what it finds"


def _floor(call: _Call, geometry: Geometry) -> str:
    from gpuconv.cuda.plan import floor

    backwards = OPERATORS[call.operator].kernel in ("max_pool_grad", "average_pool_grad")
    also = {"bias": call.bias, "residual": call.residual, "indices": call.indices}
    work = floor.work(geometry, call.dtype, **also, backwards=backwards)
    device = call.device
    rate = floor.rate(geometry, call.dtype, call.precision, device)
    seconds = work.seconds(rate, device.bandwidth)
    text = f"{work.bytes / 1e6:.1f} MB at {device.bandwidth / 1e12:.2f} TB/s"
    if work.flops:
        text = f"{work.flops / 1e9:.2f} GFLOP at {rate / 1e12:.1f} TFLOP/s, or {text}"
    return f"{seconds * 1e6:.1f} us by the datasheet: {text}"


def _launch(launch: Launch) -> str:
    grid = " x ".join(str(size) for size in launch.grid if size > 1) or "1"
    text = f"{launch.variant.name}: grid {grid}, {launch.variant.threads} threads"
    return f"{text}, {launch.shared_bytes} bytes of shared memory" if launch.shared_bytes else text
