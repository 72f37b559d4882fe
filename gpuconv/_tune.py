"""tune: autotuning. Measures every candidate kernel of a call and stores the fastest, which later calls use."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gpuconv import _arrays, _conv, _gradients, _pooling, _trial, cuda
from gpuconv._errors import ArgumentTypeError, OutOfDeviceMemory
from gpuconv._trial import Call
from gpuconv.rules import activation as activations
from gpuconv.rules.integers import flag
from gpuconv.rules.invariance import CURRENT as INVARIANT
from gpuconv.rules.invariance import Invariance
from gpuconv.rules.layout import Layout
from gpuconv.rules.operators import OPERATORS, check_names, named, settled
from gpuconv.rules.precision import CURRENT, Precision

_Parameters = Mapping[str, inspect.Parameter]


def tune(
    operator: str,
    *arguments: Any,
    layout: Layout = "NCHW",
    precision: Precision | None = None,
    invariant: Invariance | None = None,
    return_indices: bool = False,
    **keywords: Any,
) -> dict[str, float]:
    """Measure every kernel that can run a call on CUDA arrays, and store the fastest for later calls like it.

    Without measurements, a cost model chooses; :func:`explain` prints its predictions. The choice is stored in
    ``choices.json`` in the cache folder, for devices of the same name, and later processes use it too. It applies to
    calls with the same shapes, strides, dtypes, attributes, layout, precision and invariant. The input gradient of Conv
    and the equivalent ConvTranspose share their choices. Results keep the same error bounds, but sums may be added in
    another order. If you need the same bits on all machines, copy the file, or do not tune.

    With ``invariant="batch"``, the choice is an order of summation. It applies to the layer at every batch size and for
    any strides; each batch then takes the kernel of that order with the least modelled time.

    A kernel is only chosen if it agrees with the general kernel on random integers in arrays like those of the call.
    Sums of integers are exact in every order, so all bits must be equal.

    Parameters
    ----------
    operator : str
        The name of the public function: "conv", "conv_transpose", "max_pool", a gradient such as "conv_input_grad", or
        "max_unpool".
    *arguments
        The call's arguments, by position or by name: ``tune("conv", x, w, b)``,
        ``tune("conv_weight_grad", x, dy, w.shape)``. Arrays are CuPy arrays, whose values do not matter. Indices are
        not checked, whatever ``check_indices`` says.
    layout, precision, invariant, return_indices, **keywords
        As in the call, without ``out``. Calls with and without a residual or an activation share their choices.

    Returns
    -------
    dict of str to float
        Seconds on the device by kernel name (by order of summation with ``invariant``), fastest first: the median of
        several calls, with other data in the L2 cache before each. A time includes all launches of the call, such as
        packing weights. It is infinite if a kernel's workspace does not fit. The dict has one entry if there is only
        one kernel, and none if the result has no elements.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError, CompileError
        As the call itself; also an unknown operator, arrays that are not on a CUDA device, or a stream that captures a
        CUDA graph.

    Warns
    -----
    RuntimeWarning
        A kernel is excluded, because its results for integers differ from the general kernel's. Or memory does not
        suffice for that comparison. Or the file cannot be written, so that the choice holds in this process only.
    """
    from gpuconv.cuda.plan import offers

    named("tune", operator)
    return_indices = flag("tune", "return_indices", return_indices)
    parameters = inspect.signature(_function(operator)).parameters
    options = {"precision": precision is not None, "invariant": invariant is not None, "return_indices": return_indices}
    given = _by_name(operator, parameters, arguments, keywords)
    if "indices" in OPERATORS[operator].inputs:
        given.pop("check_indices", None)  # a separate launch: not part of the choice
    activation = activations.parse(operator, given.pop("activation", None)) if "activation" in parameters else None
    others = {name for name, is_there in options.items() if is_there and name not in parameters}
    arrays = {*OPERATORS[operator].inputs, *({"residual"} & set(parameters))}
    check_names("tune", operator, others.union(given) - arrays, parameters)
    residual = "residual" in parameters and given.get("residual") is not None
    inputs, values = _inputs(operator, parameters, given), _values(operator, parameters, given)
    cuda.check_no_capture("tune", "in which no time can be measured; call it before the capture")
    outs = (None, None) if return_indices else (None,)
    precise = (precision or CURRENT.get()) if "precision" in parameters else "ieee"
    word = INVARIANT.get() if invariant is None else invariant
    calls: dict[str, Call] = {}
    measured: dict[str, float] = {}
    plan: Any = None
    for turn in offers.every_candidate():
        with turn:
            prepared = cuda.prepare(operator, inputs, outs, values, layout, precise, activation, residual, word)
        plan = prepared.plan
        if plan.launches:
            call = partial(prepared.run, outs=outs)
            seconds = _seconds(partial(call, inputs))
            if seconds <= measured.get(plan.kernel, seconds):  # several kernels of one order: keep the fastest
                calls[plan.kernel], measured[plan.kernel] = call, seconds
    fitting = {name: call for name, call in calls.items() if measured[name] < float("inf")}
    wrong = _trial.wrong(
        operator, fitting, inputs, dict(zip(OPERATORS[operator].attributes, values, strict=True)), layout, precise
    )
    measured = dict(sorted(((n, s) for n, s in measured.items() if n not in wrong), key=lambda item: item[1]))
    if measured and plan.problem is not None:
        _remember(plan.problem, next(iter(measured)))
    return measured


def _function(operator: str) -> Callable[..., Any]:
    """Return the public function that computes an operator."""
    modules = (_conv, _gradients, _pooling)
    function: Callable[..., Any] = next(getattr(module, operator) for module in modules if hasattr(module, operator))
    return function


def _by_name(
    operator: str, parameters: _Parameters, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> dict[str, Any]:
    """Return a call's arguments by name; trailing positional arguments that are None are dropped."""
    names = [name for name, parameter in parameters.items() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    count = max((place for place, value in enumerate(arguments, 1) if value is not None), default=0)
    if count > len(names):
        raise ArgumentTypeError(f"tune: {operator} takes {', '.join(names)}, not {count} arguments")
    given = dict(zip(names, arguments[:count], strict=False))
    twice = next((name for name in given if name in keywords), None)
    if twice is not None:
        raise ArgumentTypeError(f"tune: {operator} is given {twice} twice")
    return given | settled(operator, keywords)


def _inputs(operator: str, parameters: _Parameters, given: dict[str, Any]) -> tuple[Any, ...]:
    """Return the arrays in the operator's order, without optional ones that were not passed."""
    names = [*OPERATORS[operator].inputs, *({"residual"} & set(parameters))]
    arrays = {name: given.get(name) for name in names}
    library, arrays = _arrays.resolve_all(
        operator, {name: array for name, array in arrays.items() if array is not None or _is_required(parameters[name])}
    )
    if library != "cuda":
        raise ArgumentTypeError("tune: kernels are measured on a CUDA device; pass CuPy arrays")
    return tuple(arrays.values())


def _values(operator: str, parameters: _Parameters, given: dict[str, Any]) -> tuple[Any, ...]:
    """Return the attributes in the backend's order, with the function's defaults; None if a required one is missing."""
    defaults = {name: None if _is_required(parameter) else parameter.default for name, parameter in parameters.items()}
    return tuple({**defaults, **given}[name] for name in OPERATORS[operator].attributes)


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty


def _seconds(call: Callable[[], Any]) -> float:
    try:
        return float(cuda.runtime.seconds(call))
    except OutOfDeviceMemory:
        return float("inf")


def _remember(problem: Any, kernel: str) -> None:
    from gpuconv.cuda.call import tuned

    runtime = cuda.runtime
    try:
        tuned.store(runtime.limits(runtime.current_device()).name, problem, kernel)
    except OSError as error:
        warnings.warn(f"tune: the choice is not kept for later processes: {error}", RuntimeWarning, stacklevel=3)
    runtime.prepared.clear()
