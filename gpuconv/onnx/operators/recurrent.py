"""Recurrent operators: RNN, GRU, LSTM, DynamicQuantizeLSTM, and CausalConvWithState.

The input projection of all time steps is one large matrix product. Each step then needs only the product with the
state. The directions of a bidirectional layer run in parallel on the CPU if steps are large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

import gpuconv
from gpuconv._errors import ArgumentError
from gpuconv.cpu import _blas, _threads
from gpuconv.onnx.operators import integers
from gpuconv.onnx.operators.form import Form, Operator, Schema, ints, namespace, wide
from gpuconv.onnx.operators.pooling import on_device
from gpuconv.onnx.operators.products import product
from gpuconv.onnx.operators.quantizing import centred, floats

_LARGE = 2**18  # multiplications, per step or per layer, from which another thread pays off

_Activation = Callable[[Any], Any]
_Multiply = Callable[[Any], Any]  # rows -> rows times a matrix
# for a direction: multiply by W (input), and by R (state)
_Factors = tuple[Callable[[int], _Multiply], Callable[[int], _Multiply]]
_States = tuple[Any, ...]  # hidden state, and an LSTM's cell state; (N, H) each


# ---------------------------------------------------------------- activations


@dataclass(frozen=True, slots=True)
class _Kind:
    """An activation function of (xp, x, alpha, beta), with default values for the parameters that it uses."""

    compute: Callable[[Any, Any, Any, Any], Any]
    alpha: float | None = None
    beta: float | None = None


_ACTIVATIONS = {
    "affine": _Kind(lambda xp, x, alpha, beta: alpha * x + beta, 1.0, 0.0),
    "elu": _Kind(lambda xp, x, alpha, _: xp.where(x < 0, alpha * xp.expm1(x), x), 1.0),
    "hardsigmoid": _Kind(lambda xp, x, alpha, beta: xp.maximum(xp.minimum(alpha * x + beta, 1), 0), 0.2, 0.5),
    "leakyrelu": _Kind(lambda xp, x, alpha, _: xp.where(x < 0, alpha * x, x), 0.01),
    "relu": _Kind(lambda xp, x, *_: xp.maximum(x, 0)),
    "scaledtanh": _Kind(lambda xp, x, alpha, beta: alpha * xp.tanh(beta * x), 1.0, 1.0),
    "sigmoid": _Kind(lambda xp, x, *_: 1 / (1 + xp.exp(-x))),
    "softplus": _Kind(lambda xp, x, *_: xp.maximum(x, 0) + xp.log1p(xp.exp(-xp.abs(x)))),
    "softsign": _Kind(lambda xp, x, *_: x / (1 + xp.abs(x))),
    "tanh": _Kind(lambda xp, x, *_: xp.tanh(x)),
    "thresholdedrelu": _Kind(lambda xp, x, alpha, _: xp.where(x >= alpha, x, 0), 1.0),
}


def _activations(form: Form, default: list[str], directions: int) -> list[list[_Activation]]:
    """Return the activations of each direction; alpha and beta lists are consumed in order by those that use them."""
    given = [name.decode() if isinstance(name, bytes) else name for name in form.get("activations") or ()]
    names = given or default * directions
    if len(default) == directions == 1:  # RNN's default names one function per direction, for two directions
        names = names[:1]
    if len(names) != directions * len(default):
        raise ArgumentError(
            f"activations must name {len(default)} functions for each of {directions} directions, not {len(names)}"
        )
    alphas, betas = (iter(form.get(name) or ()) for name in ("activation_alpha", "activation_beta"))
    functions = [_activation(name, alphas, betas, form.get("clip")) for name in names]
    return [functions[first : first + len(default)] for first in range(0, len(functions), len(default))]


def _activation(name: str, alphas: Iterator[float], betas: Iterator[float], clip: float | None) -> _Activation:
    """Return one activation, with its parameters and the clipping of its input."""
    kind = _ACTIVATIONS.get(name.lower())
    if kind is None:
        raise ArgumentError(f"{name!r} is none of the activations {', '.join(_ACTIVATIONS)}")
    alpha = None if kind.alpha is None else next(alphas, kind.alpha)
    beta = None if kind.beta is None else next(betas, kind.beta)

    def activate(x: Any) -> Any:
        xp = namespace(x)
        return kind.compute(xp, x if clip is None else xp.minimum(xp.maximum(x, -clip), clip), alpha, beta)

    return activate


# ---------------------------------------------------------------- cells: one step of one direction


@dataclass(frozen=True, slots=True)
class _Weights:
    """Per-direction weights for one step of a cell.

    Attributes
    ----------
    products : list of callable
        Multiply the state by R, or by parts of R.
    activations : list of callable
    hidden_bias : array, optional
        GRU with linear_before_reset: bias of the hidden gate, added before the reset.
    peepholes : array, optional
        LSTM: peephole weights (3 * H).
    """

    products: list[_Multiply]
    activations: list[_Activation]
    hidden_bias: Any = None
    peepholes: Any = None


def _rnn_step(_: Form, weights: _Weights, x: Any, states: _States) -> _States:
    """Return the RNN state after one step; x (N, G * H) is the step's input projection for all gates."""
    (h,), (f,) = states, weights.activations
    return (f(x + weights.products[0](h)),)


def _gru_step(form: Form, weights: _Weights, x: Any, states: _States) -> _States:
    """Return the GRU state after one step; gates are in the order z, r, h."""
    (h,), (f, g) = states, weights.activations
    size = h.shape[1]
    if form.get("linear_before_reset"):
        y = weights.products[0](h)
        gates = f(x[:, : 2 * size] + y[:, : 2 * size])
        z, reset = gates[:, :size], gates[:, size:]
        inner = y[:, 2 * size :] if weights.hidden_bias is None else y[:, 2 * size :] + weights.hidden_bias
        new = g(x[:, 2 * size :] + reset * inner)
    else:
        gates = f(x[:, : 2 * size] + weights.products[0](h))
        z, reset = gates[:, :size], gates[:, size:]
        new = g(x[:, 2 * size :] + weights.products[1](reset * h))
    return ((1 - z) * new + z * h,)


def _lstm_step(form: Form, weights: _Weights, x: Any, states: _States) -> _States:
    """Return the LSTM states after one step; gates are in the order i, o, f, c."""
    (h, cell), (f, g, last) = states, weights.activations
    size = h.shape[1]
    gates = x + weights.products[0](h)
    if weights.peepholes is None:
        together = f(gates[:, : 3 * size])
        i, o, forget = (together[:, at * size : (at + 1) * size] for at in range(3))
    else:
        i, o, forget = (gates[:, at * size : (at + 1) * size] for at in range(3))
        to_i, to_o, to_forget = (weights.peepholes[at * size : (at + 1) * size] for at in range(3))
        i, forget = f(i + to_i * cell), f(forget + to_forget * cell)
    forget = 1 - i if form.get("input_forget") else forget
    cell = forget * cell + i * g(gates[:, 3 * size :])
    o = o if weights.peepholes is None else f(o + to_o * cell)
    return o * last(cell), cell


# ---------------------------------------------------------------- sequences


@dataclass(frozen=True, slots=True)
class _Cell:
    """A recurrent operator: number of gates and states, default activations, and the function for one step."""

    gates: int
    states: int
    activations: list[str]
    step: Callable[[Form, _Weights, Any, _States], _States]


_CELLS = {
    "GRU": _Cell(3, 1, ["Sigmoid", "Tanh"], _gru_step),
    "LSTM": _Cell(4, 2, ["Sigmoid", "Tanh", "Tanh"], _lstm_step),
    "RNN": _Cell(1, 1, ["Tanh"], _rnn_step),
}
# per direction: whether it runs backwards in time
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def _sequence(
    cell: _Cell,
    form: Form,
    x: Any,
    w: Any,
    r: Any,
    b: Any = None,
    lengths: Any = None,
    h: Any = None,
    c: Any = None,
    p: Any = None,
    *,
    factors: _Factors | None = None,
) -> tuple[Any, ...]:
    """Run one recurrent layer over x (T, N, I): one product for the inputs of all steps, then one product per step.

    ``factors``, if given, multiplies in place of w and r, of which only the shapes are then used.
    """
    backwards = _DIRECTIONS.get(form.get("direction") or "forward")
    if backwards is None:
        raise ArgumentError(f"direction must be one of {', '.join(_DIRECTIONS)}, not {form.get('direction')!r}")
    initial = [h, c][: cell.states]
    if form.get("layout"):
        x, *initial = (a if a is None else a.transpose(1, 0, 2) for a in (x, *initial))
    _check(cell, form, len(backwards), (x, w, r, b, lengths, p, *initial))
    xp, values, size = namespace(x), wide(x), r.shape[2]
    activations = _activations(form, cell.activations, len(backwards))
    y = xp.zeros((x.shape[0], len(backwards), x.shape[1], size), values.dtype)
    last = xp.zeros((cell.states, len(backwards), x.shape[1], size), values.dtype)
    active = _active(lengths, x.shape[0], xp)
    # GRU that resets the state before the product with R
    resets_state_first = cell.gates == 3 and not form.get("linear_before_reset")

    def run(at: int) -> None:
        """Run all steps of one direction."""
        inner, outer, hidden = _biases(cell, form, b, at, size)
        gates = _gates(values, factors[0](at) if factors else partial(_times, wide(w[at])), inner, outer)
        products = [factors[1](at)] if factors else _products(wide(r[at]), 2 * size if resets_state_first else 0)
        weights = _Weights(products, activations[at], hidden, None if p is None else wide(p[at]))
        states = tuple(last[n, at] if a is None else wide(a[at]) for n, a in enumerate(initial))
        for t in range(x.shape[0])[:: -1 if backwards[at] else 1]:
            new_states = cell.step(form, weights, gates[t], states)
            y[t, at], states = (
                (new_states[0], new_states) if active[t] is None else _masked(active[t], new_states, states)
            )
        for n, state in enumerate(states):
            last[n, at] = state

    _run_directions(run, len(backwards), 0 if on_device(x) else x.shape[0], x.shape[1] * cell.gates * size**2)
    outputs = (y, *(last[n] for n in range(cell.states)))
    if form.get("layout"):
        outputs = (y.transpose(2, 0, 1, 3), *(state.transpose(1, 0, 2) for state in outputs[1:]))
    return tuple(output.astype(x.dtype, copy=False) for output in outputs)[: len(form.outputs)]


def _run_directions(run: Callable[[int], None], directions: int, steps: int, multiplications: int) -> None:
    """Run all directions: in parallel if steps are large, and without BLAS's own threads, which synchronise per
    call.
    """
    shares = [[at] for at in range(directions)] if multiplications >= _LARGE else [list(range(directions))]

    def run_share(share: list[int]) -> None:
        for at in share:
            run(at)

    if steps == 0:  # on a device
        run_share(list(range(directions)))
    elif steps * multiplications < _LARGE:  # too little work for another thread
        _blas.run(run_share, [list(range(directions))], _blas.workers_for(2 * multiplications, 1, thin=True))
    else:
        _blas.run(_threads.quietly(run_share), shares, _blas.Workers.POOL)


def _times(w: Any, rows: Any) -> Any:
    return product(rows, w.T)


def _gates(x: Any, multiply: _Multiply, inner: Any, outer: Any) -> Any:
    """Return the input projection of all steps: (T, N, G * H)."""
    projected = multiply(x.reshape(prod(x.shape[:2]), x.shape[2]))
    projected = projected if inner is None else projected + (inner + outer)
    return projected.reshape(*x.shape[:2], projected.shape[1])


def _products(r: Any, split: int) -> list[_Multiply]:
    """Return the functions that multiply a state by r (G * H, H), or by r[:split] and r[split:] separately."""
    parts = [part.T for part in ((r[:split], r[split:]) if split else (r,))]
    multiply = product if on_device(r) else np.matmul
    return [lambda h, part=part: multiply(h, part) for part in parts]  # type: ignore[misc]


def _masked(active: Any, new_states: _States, states: _States) -> tuple[Any, _States]:
    """Return a step's output and new states; sequences that have ended output 0 and keep their states."""
    where = namespace(new_states[0]).where
    return where(active, new_states[0], 0), tuple(map(partial(where, active), new_states, states))


def _active(lengths: Any, steps: int, xp: Any) -> list[Any]:
    """Return, per step, which sequences are still running, as (N, 1); None if all are."""
    if lengths is None:
        return [None] * steps
    ends = np.array(ints(lengths), np.int64)[:, None]
    return [None if (step < ends).all() else xp.asarray(step < ends) for step in range(steps)]


def _biases(cell: _Cell, form: Form, b: Any, at: int, size: int) -> tuple[Any, Any, Any]:
    """Return one direction's input bias, state bias, and the hidden-gate bias of a GRU with linear_before_reset."""
    if b is None:
        return None, None, None
    width = cell.gates * size
    inner, outer = wide(b[at, :width]), wide(b[at, width:])
    if not form.get("linear_before_reset"):
        return inner, outer, None
    hidden = outer[2 * size :]
    outer = outer.copy()
    outer[2 * size :] = 0
    return inner, outer, hidden


def _check(cell: _Cell, form: Form, directions: int, arrays: Iterable[Any]) -> None:
    """Raise ArgumentError for inputs whose shapes or lengths do not fit together."""
    x, w, r, b, lengths, p, *initial = arrays
    if x.ndim != 3 or w.ndim != 3 or r.ndim != 3:
        raise ArgumentError(f"X {x.shape}, W {w.shape} and R {r.shape} must have three axes")
    (steps, batch, inputs), size = x.shape, r.shape[2]
    wanted: list[tuple[str, Any, tuple[int, ...]]] = [
        ("W", w, (directions, cell.gates * size, inputs)),
        ("R", r, (directions, cell.gates * size, size)),
        ("B", b, (directions, 2 * cell.gates * size)),
        ("P", p, (directions, 3 * size)),
        ("sequence_lens", lengths, (batch,)),
        *((f"initial_{name}", a, (directions, batch, size)) for name, a in zip("hc", initial, strict=False)),
    ]
    for name, array, shape in wanted:
        if array is not None and array.shape != shape:
            raise ArgumentError(f"{name} must have the shape {shape}, not {array.shape}")
    if form.get("hidden_size") not in (None, size):
        raise ArgumentError(f"hidden_size is {form.get('hidden_size')}, but R has the shape {r.shape}")
    wrong = [length for length in ([] if lengths is None else ints(lengths)) if not 0 <= length <= steps]
    if wrong:
        raise ArgumentError(f"sequence_lens has {wrong[0]}, but must be from 0 to the {steps} steps of X")


def _sequence_cost(cell: _Cell, form: Form, x: Any, w: Any, r: Any, *_: Any) -> int:
    return int(x.shape[0] * x.shape[1] * w.shape[0] * cell.gates * r.shape[2] * (x.shape[2] + r.shape[2]))


def _layer(name: str) -> Operator:
    cell = _CELLS[name]
    return Operator(partial(_sequence, cell), frozenset({4}), cost=partial(_sequence_cost, cell))


# ---------------------------------------------------------------- DynamicQuantizeLSTM, of ONNX Runtime's quantization

_W, _R, _W_SCALE, _R_SCALE = 1, 2, 8, 10  # input positions; each zero point follows its scale


class _Matrices:
    """Quantized weights (directions, K, 4 * H) of an LSTM, with their scales and zero points."""

    def __init__(self, form: Form, values: Any, scale: Any, zero: Any) -> None:
        directions, _, width = values.shape
        self.shape = directions, width, values.shape[1]  # in the order of LSTM's W and R
        self.ndim = values.ndim
        for name, parameter in (("scale", scale), ("zero point", zero)):
            if parameter is not None and parameter.shape not in ((directions,), (directions, width)):
                raise ArgumentError(
                    f"the {name} of weights {values.shape} must have the shape {(directions,)} or "
                    f"{(directions, width)}, not {parameter.shape}"
                )
        self._scales = floats(namespace(values), scale)
        self._weights = [
            integers.columns(form, values[at], None if zero is None else zero[at]) for at in range(directions)
        ]

    def multiply(self, at: int, rows: Any) -> Any:
        """Quantize rows together by their range, and multiply them by the matrix of a direction."""
        quantized, scale = centred(rows)
        return integers.product_of(quantized, self._weights[at]) * (scale * self._scales[at])


def _quantized(form: Form, inputs: tuple[Any, ...], at: int, scale_at: int) -> _Matrices:
    """Return the quantized weights at an input position, unless they are prepared already."""
    values = inputs[at]
    if isinstance(values, _Matrices):
        return values
    if values.ndim != 3 or values.shape[2] % 4:
        raise ArgumentError(f"W and R must be (directions, K, 4 * hidden_size), not {values.shape}")
    return _Matrices(form, values, *inputs[scale_at : scale_at + 2])


def _quantized_lstm(form: Form, *inputs: Any) -> Any:
    """DynamicQuantizeLSTM: an LSTM with integer products; the inputs of all steps are quantized together, states per
    step.
    """
    inputs = (*inputs, *(None,) * (_R_SCALE + 2 - len(inputs)))
    w, r = _quantized(form, inputs, _W, _W_SCALE), _quantized(form, inputs, _R, _R_SCALE)
    factors = (lambda at: partial(w.multiply, at)), (lambda at: partial(r.multiply, at))
    return _sequence(_CELLS["LSTM"], form, inputs[0], w, r, *inputs[_R + 1 : _W_SCALE], factors=factors)


def _prepare_lstm(form: Form, constants: tuple[Any, ...]) -> dict[int, Any]:
    """Prepare the quantized weights if they, their scales and their zero points are constant."""
    constants = (*constants, *(None,) * (_R_SCALE + 2 - len(constants)))
    places = ((_W, _W_SCALE), (_R, _R_SCALE))
    given = [at for at, is_given in enumerate(form.inputs) if is_given]
    needed = {position for at, scale_at in places for position in (at, scale_at, scale_at + 1)}
    if any(constants[at] is None for at in needed.intersection(given)):
        return {}
    return {at: _quantized(form, constants, at, scale_at) for at, scale_at in places}


def _quantized_cost(_: Form, x: Any, w: Any, r: Any, *__: Any) -> int:
    return int(x.shape[0] * x.shape[1] * (w.size + r.size))


# ---------------------------------------------------------------- CausalConvWithState

_SILU = ("silu", "swish")


def _causal_conv(form: Form, x: Any, w: Any, b: Any = None, past: Any = None) -> tuple[Any, ...]:
    """CausalConvWithState: depthwise 1-D convolution of x (N, C, L), continued from the last K - 1 elements of the
    past.
    """
    if form.get("activation") not in ("none", *_SILU):
        raise ArgumentError(f"activation must be one of none, silu, swish, not {form.get('activation')!r}")
    if x.ndim != 3 or w.ndim != 3 or w.shape[:2] != (x.shape[1], 1):
        raise ArgumentError(f"input must be (N, C, L) and weight (C, 1, K), but they are {x.shape} and {w.shape}")
    xp, before = namespace(x), (*x.shape[:2], w.shape[2] - 1)
    if past is not None and past.shape != before:
        raise ArgumentError(f"past_state must have the shape {before}, not {past.shape}")
    padded = xp.concatenate([xp.zeros(before, x.dtype) if past is None else past, x], axis=2)
    y = wide(x)
    if x.size:
        y = gpuconv.conv(wide(padded), wide(w), None if b is None else wide(b), group=x.shape[1])
    if form.get("activation") in _SILU:
        y = y / (1 + xp.exp(-y))
    return (y.astype(x.dtype, copy=False), padded[:, :, x.shape[2] :])[: len(form.outputs)]


def _causal_conv_cost(_: Form, x: Any, w: Any, *__: Any) -> int:
    return int(x.size) * int(w.shape[2])


OPERATORS = {
    "CausalConvWithState": Operator(_causal_conv, cost=_causal_conv_cost),
    **{name: _layer(name) for name in _CELLS},
}

_QUANTIZED_LSTM = Schema(
    (
        *("X", "W", "R", "B?", "sequence_lens?", "initial_h?", "initial_c?", "P?"),
        *("W_scale", "W_zero_point", "R_scale", "R_zero_point"),
    ),
    {
        **dict.fromkeys(("activation_alpha", "activation_beta", "activations"), list),
        "clip": float,
        "direction": "forward",
        "hidden_size": int,
        "input_forget": 0,
    },
)
CONTRIBUTED = {
    "DynamicQuantizeLSTM": Operator(
        _quantized_lstm, frozenset({4}), cost=_quantized_cost, prepare=_prepare_lstm, schema=_QUANTIZED_LSTM
    )
}  # domain com.microsoft
