"""The commands ``gpuconv explain`` and ``gpuconv tune``, for a call that is described by the shapes of its arrays."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np

import gpuconv
from gpuconv import _explain
from gpuconv.cli.terminal import CommandError, as_json, table, whole
from gpuconv.cuda.call import device
from gpuconv.rules.operators import OPERATORS

_WORDS = ("auto_pad", "indices_in")  # attributes whose values are words, not numbers
_SWITCHES = {
    "bias": "the call has a b",
    "residual": "the call has a residual",
    "return_indices": "MaxPool returns Indices",
}


def add(commands: Any) -> None:
    """Add the commands ``explain`` and ``tune`` to the subparsers."""
    about = "Print the kernels that a call on CUDA arrays launches, and why they are chosen; needs no device."
    parser = commands.add_parser("explain", help="print what a call launches on a GPU, and why", description=about)
    parser.add_argument("--arch", default="sm_90", metavar="NAME", help="architecture of the GPU (default: sm_90)")
    parser.set_defaults(command=_explain_call)
    _add_call(parser)
    about = "Measure every kernel that can compute a call, and store the fastest one for later calls like it."
    parser = commands.add_parser("tune", help="measure the kernels of a call on this GPU", description=about)
    parser.set_defaults(command=_tune_call)
    _add_call(parser)


def _add_call(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("operator", metavar="OPERATOR", help=f"one of {', '.join(OPERATORS)}")
    parser.add_argument("x", metavar="X", type=extents, help="shape of x, such as 8,64,56,56 (the forward call's)")
    parser.add_argument("w", metavar="W", type=extents, nargs="?", help="shape of w, for operators with weights")
    parser.add_argument("--dtype", default="float32", metavar="NAME", help="dtype of the arrays (default: float32)")
    parser.add_argument("--layout", default="NCHW", metavar="NAME", help="layout of x: NCHW or NHWC (default: NCHW)")
    parser.add_argument("--precision", metavar="NAME", help="precision of float32 products: ieee, tf32 or 3xtf32")
    parser.add_argument("--invariant", metavar="NAME", help="batch: an image's bits do not depend on the batch")
    parser.add_argument("--activation", metavar="NAME", help="activation, such as relu")
    for name, text in _SWITCHES.items():
        parser.add_argument(_option(name), action="store_true", help=text)
    attributes = parser.add_argument_group("attributes", "ONNX's attributes, such as --pads 1,1,1,1 --strides 2,2")
    for name in sorted({name for operator in OPERATORS.values() for name in operator.attributes}):
        if name not in ("x_shape", "w_shape"):  # given by the arguments X and W
            attributes.add_argument(_option(name), type=str if name in _WORDS else numbers, metavar="…")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def extents(text: str) -> tuple[int, ...]:
    """Parse a shape: integers separated by commas."""
    try:
        return tuple(whole(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 8,64,56,56") from None


def numbers(text: str) -> int | list[int]:
    """Parse an attribute: one integer, or several separated by commas."""
    try:
        values = [whole(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer, or integers such as 1,1") from None
    return values if "," in text else values[0]


def _keywords(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the call's keyword arguments that the command line gives."""
    given = vars(arguments)
    names = {name for operator in OPERATORS.values() for name in operator.attributes} - {"x_shape", "w_shape"}
    names |= {"dtype", "layout", "precision", "invariant", "activation", *_SWITCHES}
    return {name: given[name] for name in sorted(names) if not (given[name] is None or given[name] is False)}


def _explain_call(arguments: argparse.Namespace) -> int:
    call = (arguments.operator, arguments.x, arguments.w)
    plan, lines = _explain.described(*call, arch=arguments.arch, **_keywords(arguments))
    print(as_json(_facts(plan, lines)) if arguments.json else "\n".join(lines))
    return 0


def _facts(plan: Any, lines: list[str]) -> dict[str, Any]:
    """Return a plan for JSON output; "text" has the lines of the plain output."""
    launches = [
        {
            "kernel": launch.variant.name,
            "grid": list(launch.grid),
            "threads": launch.variant.threads,
            "shared_bytes": launch.shared_bytes,
        }
        for launch in plan.launches
    ]
    spaces = [{"bytes": space.bytes, "use": space.use} for space in plan.spaces]
    return {"launches": launches, "workspaces": spaces, "reasons": list(plan.reasons), "text": lines}


def _tune_call(arguments: argparse.Namespace) -> int:
    reason = device.unavailable_reason()
    if reason is not None:
        raise CommandError(f"tune: kernels are measured on a CUDA device, and none was found ({reason})")
    keywords = _keywords(arguments)
    dtype, bias, residual = (keywords.pop(name, default) for name, default in (("dtype", "float32"), *_OPTIONAL))
    shapes = _explain.array_shapes(
        arguments.operator, arguments.x, arguments.w, bias=bias, residual=residual, dtype=dtype, **keywords
    )
    arrays = {name: gpuconv.to_device(array) for name, array in _drawn(shapes, dtype).items()}
    asked = {"x_shape": arguments.x, "w_shape": arguments.w}
    keywords |= {name: asked[name] for name in OPERATORS[arguments.operator].attributes if name in asked}
    measured = gpuconv.tune(arguments.operator, **arrays, **keywords)
    rows = [[name, f"{seconds * 1e6:.1f}"] for name, seconds in measured.items()]
    print(as_json(measured) if arguments.json else table(["kernel", "us"], rows))
    return 0


_OPTIONAL = (("bias", False), ("residual", False))


def _drawn(shapes: Mapping[str, tuple[int, ...]], dtype: str) -> dict[str, Any]:
    """Return arrays of random small integers by name; Indices are zeros."""
    generator = np.random.default_rng(0)
    if dtype == "bfloat16":
        import ml_dtypes  # registers the dtype with NumPy
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    return {
        name: np.zeros(shape, np.int64) if name == "indices" else generator.integers(0, 3, shape).astype(kind)
        for name, shape in shapes.items()
    }
