"""Compare random nodes of the operators with their specification, and print one line for each operator.

    python -m tests.onnx.sweep --nodes 300 [--seed 1] [--only Unique Mod] [--verbose] [--write]

With ``--write`` the counts go to ``results.json``, in place of those of the same operators; from that file
``docs/onnx_operators.py`` makes a table. Of each node onnx's reference evaluator and ONNX Runtime are asked as well.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tests.onnx.sweep import comparing
from tests.onnx.sweep.drawing import MAKERS

RESULTS = Path(__file__).parent / "results.json"


def main() -> None:
    """Run the sweep that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows = {}
    for domain, op_type in sorted(MAKERS):
        if options.only and op_type not in options.only:
            continue
        tally = comparing.sweep(domain, op_type, options.nodes, options.seed, options.verbose)
        print(tally, flush=True)
        rows[f"{domain}.{op_type}" if domain else op_type] = {
            "opsets": tally.opsets,
            "nodes": tally.nodes,
            "differ": sum(tally.kinds.values()),
            "evaluator_differs": tally.evaluator,
            "onnxruntime_nodes": tally.asked,
            "onnxruntime_differs": tally.others,
        }
    if options.write:
        rows = {**(json.loads(RESULTS.read_text()) if RESULTS.exists() else {}), **rows}
        rows = dict(sorted(rows.items(), key=lambda row: ("." in row[0], row[0])))
        lines = (f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
        RESULTS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
