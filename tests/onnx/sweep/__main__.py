"""Compare random nodes of the operators with their specification, and print one line for each operator.

    python -m tests.onnx.sweep --nodes 300 [--seed 1] [--only Unique Mod] [--verbose]
"""

from __future__ import annotations

import argparse

from tests.onnx.sweep import comparing
from tests.onnx.sweep.drawing import MAKERS


def main() -> None:
    """Run the sweep that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    for domain, op_type in sorted(MAKERS):
        if not options.only or op_type in options.only:
            print(comparing.sweep(domain, op_type, options.nodes, options.seed, options.verbose), flush=True)


if __name__ == "__main__":
    main()
