"""Run a fuzzer and print its findings: ``python -m tests.fuzz api|onnx|operators|interrupts``."""

from __future__ import annotations

import argparse
import importlib
import sys
import time

from tests.fuzz import frame

FUZZERS = {"api": "calls", "onnx": "loading", "operators": "operators", "interrupts": "interrupts", "itself": "itself"}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Random cases, valid and hostile ones.")
    parser.add_argument("fuzzer", choices=FUZZERS)
    parser.add_argument("--seconds", type=float, default=60, help="how long to go on (60)")
    parser.add_argument("--count", type=int, help="how many cases to run at most")
    parser.add_argument("--seed", type=int, default=0, help="which cases (0)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case (0)")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="run this case alone, in this process")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    given = _arguments()
    fuzzer = importlib.import_module(f".{FUZZERS[given.fuzzer]}", __package__).FUZZER()
    if given.worker is not None:
        frame.work(fuzzer, given.seed, given.worker, given.count, given.seconds)
        return 0
    if given.only is not None:
        return frame.repeat(fuzzer, given.seed, given.only)
    start = time.monotonic()
    report, interrupted = frame.run(given.fuzzer, fuzzer, given.seed, given.first, given.count, given.seconds)
    frame.print_report(given.fuzzer, given.seed, report, time.monotonic() - start)
    return 1 if report.findings else 130 if interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
