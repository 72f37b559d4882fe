"""The command line: ``python -m benchmarks cpu | import``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks import imports


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    cpu = commands.add_parser("cpu", help="gpuconv on NumPy against ONNX Runtime on the CPU, float32")
    cpu.add_argument("--filter", default="", metavar="SUB", help="only layers whose name contains SUB")
    cpu.add_argument("--op", choices=["Conv", "ConvTranspose", "MaxPool"], help="only this operator")
    cpu.add_argument(
        "--seconds", type=float, default=1.0, help="time for the rounds of one layer (default %(default)s)"
    )
    cpu.add_argument("--threads", type=int, default=2, help="threads of each side (default %(default)s)")
    cpu.add_argument("--gflop", type=float, default=2.0, help="scale layers down to this work (default %(default)s)")
    cpu.add_argument("--spin", type=int, choices=[0, 1], default=1, help="ONNX Runtime's allow_spinning (default 1)")
    start = commands.add_parser("import", help="time of `import gpuconv` beyond that of `import numpy`")
    start.add_argument("--processes", type=int, default=10, help="fresh processes (default %(default)s)")
    for command in (cpu, start):
        command.add_argument("--json", type=Path, metavar="FILE", help="write every number to FILE")
    return parser


def main() -> int:
    """Run one benchmark; return 1 where a result was wrong."""
    arguments = _parser().parse_args()
    if arguments.command == "import":
        return imports.run(arguments)
    # Both are read once, when NumPy and gpuconv are imported: hence before that, and the late import.
    os.environ["GPUCONV_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(arguments.threads)
    from benchmarks import cpu

    return cpu.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
