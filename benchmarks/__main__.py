"""Measure gpuconv, or print what the planner's model predicts: ``python -m benchmarks COMMAND``.

``python -m benchmarks --help`` lists the commands, ``python -m benchmarks COMMAND --help`` the options of one.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from benchmarks import imports
from benchmarks.supervision import leave


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    cpu = commands.add_parser("cpu", help="compare gpuconv on NumPy with ONNX Runtime on the CPU, in float32")
    cpu.add_argument("--layers", default="", metavar="SUB", help="measure only layers whose name contains SUB")
    cpu.add_argument("--op", choices=["Conv", "ConvTranspose", "MaxPool", "AveragePool"], help="only this operator")
    cpu.add_argument("--seconds", type=float, default=1.0, help="seconds to spend on each layer (default %(default)s)")
    cpu.add_argument("--threads", type=int, default=2, help="threads of each library (default %(default)s)")
    cpu.add_argument(
        "--gflop", type=float, default=2.0, help="scale layers down to at most this many GFLOP (default %(default)s)"
    )
    cpu.add_argument("--spin", type=int, choices=[0, 1], default=1, help="ONNX Runtime's allow_spinning (default 1)")
    cpu.add_argument("--models", action="store_true", help="measure whole networks; --layers SUB selects by name")
    cpu.add_argument("--invariant", action="store_true", help='measure how much slower invariant="batch" is, per layer')
    cpu.add_argument(
        "--load", action="store_true", help="measure whole networks idle, and with a busy process on every core"
    )
    cpu.add_argument("--random", type=_count, metavar="N", help="measure N random layers instead of layers.json")
    cpu.add_argument("--seed", type=int, default=0, help="seed of the random layers (default %(default)s)")
    cpu.add_argument(
        "--against",
        nargs="?",
        const="HEAD^",
        metavar="REVISION",
        help="compare this checkout with another git REVISION of it (default HEAD^), alternating between both",
    )
    cpu.add_argument("--brief", action="store_true", help="with --against: only twelve layers and three networks")
    _add_gpu(commands)
    static = commands.add_parser("static", help="kernels, traffic and modelled times per layer; needs no GPU")
    static.add_argument("--layers", default="", metavar="SUB", help="show only layers whose name contains SUB")
    static.add_argument("--arch", default="sm_90a", help="GPU architecture to plan for (default %(default)s)")
    cliffs = commands.add_parser(
        "cliffs", help="find small changes of a problem that cost much: modelled time over the floor (roofline bound)"
    )
    cliffs.add_argument("--cpu", action="store_true", help="measure on the CPU instead: measured over predicted time")
    cliffs.add_argument("--count", type=_count, help="number of random problems (default 2500; 500 with --cpu)")
    cliffs.add_argument("--seed", type=int, default=0, help="seed of the random problems (default %(default)s)")
    cliffs.add_argument("--arch", help="GPU architecture to model (default sm_90a)")
    cliffs.add_argument("--write", action="store_true", help="with --cpu: also write results/cpu_cliffs.json")
    cliffs.add_argument(
        "--picture", type=Path, metavar="FILE", help="draw the cumulative distribution of time over the floor to FILE"
    )
    _add_ablation(commands)
    planning = commands.add_parser("planning", help="Python calls and milliseconds of each layer's first plan")
    planning.add_argument("--layers", default="", metavar="SUB", help="plan only layers whose name contains SUB")
    planning.add_argument("--arch", default="sm_90a", help="GPU architecture to plan for (default %(default)s)")
    commands.add_parser("invariance", help='modelled cost of invariant="batch" on a GPU')
    host = commands.add_parser("host", help="host time of a warm call on CUDA arrays; needs no GPU")
    host.add_argument("--profile", action="store_true", help="also print a profile of the host time")
    start = commands.add_parser("import", help="time of `import gpuconv` minus that of `import numpy`")
    start.add_argument("--processes", type=int, default=10, help="number of fresh processes (default %(default)s)")
    reference = commands.add_parser("reference", help="compare gpuconv.onnx.OPS with onnx.reference's own operators")
    reference.add_argument("--op", help="only this operator")
    reference.add_argument("--threads", type=int, default=1, help="threads of each side (default %(default)s)")
    for command in (cpu, static, cliffs, planning, host, start, reference):
        command.add_argument("--json", type=Path, metavar="FILE", help="write every number to FILE as JSON")
    return parser


def _add_ablation(commands: Any) -> None:
    ablation = commands.add_parser("ablation", help="modelled loss of removing each family, source and form of kernels")
    ablation.add_argument("--arch", default="sm_90a", help="architecture of the GPU (default %(default)s)")
    ablation.add_argument(
        "--random", type=_count, default=1500, metavar="N", help="random problems (default %(default)s)"
    )
    ablation.add_argument("--seed", type=int, default=0, help="of the random problems (default %(default)s)")
    ablation.add_argument(
        "--without",
        action="append",
        metavar="PATTERN",
        help='remove these together instead, such as "form conv_3d_64x64*"; may be repeated',
    )
    ablation.add_argument("--json", type=Path, metavar="FILE", help="write every number to FILE")


def _add_gpu(commands: Any) -> None:
    gpu = commands.add_parser("gpu", help="compare gpuconv on a CUDA device with PyTorch (cuDNN), in every dtype")
    gpu.add_argument("--layers", default="", metavar="SUB", help="measure only layers whose name contains SUB")
    gpu.add_argument("--op", choices=["Conv", "ConvTranspose", "MaxPool", "AveragePool"], help="only this operator")
    dtypes = ["bfloat16", "float32", "float16", "float64", "int8", "uint8", "complex64", "tf32", "3xtf32"]
    gpu.add_argument("--dtype", choices=dtypes, help="only this dtype, or this precision of float32")
    gpu.add_argument("--layout", choices=["NCHW", "channels_last"], help="only this memory layout")
    gpu.add_argument(
        "--budget", type=_seconds, default=420.0, help="start no measurement after this time (default %(default)s s)"
    )
    gpu.add_argument(
        "--json", type=Path, metavar="FILE", help="write the numbers to FILE (default: gpu.json in $OUT or results)"
    )
    gpu.add_argument(
        "--picture", type=Path, metavar="FILE", help="write the picture to FILE (default: gpu.png in $OUT or results)"
    )
    gpu.add_argument(
        "--rows",
        type=Path,
        metavar="FILE",
        help="append each row to FILE as it is measured (default: next to the JSON)",
    )
    gpu.add_argument("--step", default="layers", help="name of the step in the rows of FILE (default %(default)s)")
    gpu.add_argument("--most", type=int, metavar="N", help="measure only the first N rows, the most informative ones")
    gpu.add_argument(
        "--work", type=float, metavar="N", help='shrink layers to N operations each; their names end in "shrunk"'
    )
    gpu.add_argument("--resume", action="store_true", help="keep the rows of FILE and measure only the missing ones")


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"give a number of problems above 0, not {text}")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"give a number of seconds above 0, not {text}")
    return value


def _limit_threads(count: int) -> None:
    """Set the environment variables that NumPy and gpuconv read at import; call it before either is imported.

    Hence the imports inside the functions below.
    """
    os.environ["GPUCONV_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(count)


def _cliffs(arguments: argparse.Namespace) -> int:
    if arguments.cpu:
        _limit_threads(1)
        from benchmarks import cpu_cliffs

        return cpu_cliffs.run(arguments)
    from benchmarks import cliffs

    return cliffs.run(arguments)


def main() -> int:
    """Run one benchmark; return its exit status, 1 where a result was wrong."""
    arguments = _parser().parse_args()
    if arguments.command == "import":
        return imports.run(arguments)
    if arguments.command == "host":
        from benchmarks import host

        return host.run(arguments)
    if arguments.command == "static":
        from benchmarks import static

        return static.run(arguments)
    if arguments.command == "cliffs":
        return _cliffs(arguments)
    if arguments.command == "ablation":
        from benchmarks import ablation

        return ablation.run(arguments)
    if arguments.command == "planning":
        from benchmarks import planning

        return planning.run(arguments)
    if arguments.command == "invariance":
        from benchmarks import invariance

        return invariance.run()
    if arguments.command == "reference":
        _limit_threads(arguments.threads)
        from benchmarks import reference

        return reference.run(arguments)
    if arguments.command == "gpu":
        from benchmarks import gpu

        return gpu.run(arguments)
    return _cpu(arguments)


def _cpu(arguments: argparse.Namespace) -> int:
    if arguments.against is not None:
        from benchmarks import against

        return against.run(arguments)
    _limit_threads(arguments.threads)
    if arguments.load:
        from benchmarks import load

        return load.run(arguments)
    if arguments.invariant:
        from benchmarks import cpu_invariance

        return cpu_invariance.run(arguments)
    if arguments.models:
        from benchmarks import models

        return models.run(arguments)
    from benchmarks import cpu

    return cpu.run(arguments)


if __name__ == "__main__":
    leave(main())
