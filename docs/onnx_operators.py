"""Writes onnx-operators.md, the table of all operators of ONNX and of who computes them.

    python docs/onnx_operators.py

`tests/onnx/test_docs.py` compares the page with what this makes of the installed onnx and gpuconv.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent)]

import onnx  # noqa: E402
from onnx.defs import OpSchema  # noqa: E402
from onnx.reference.op_run import RuntimeContextError  # noqa: E402

from gpuconv import ArgumentError  # noqa: E402
from gpuconv.onnx import nodes, operators  # noqa: E402
from gpuconv.onnx.contrib import translating  # noqa: E402
from gpuconv.onnx.evaluator import Evaluator  # noqa: E402

PAGE = DOCS / "onnx-operators.md"
OPSET = onnx.defs.onnx_opset_version()
OURS, EVALUATOR, NONE = "gpuconv", "evaluator", "—"
ON_DEVICE = {EVALUATOR: "evaluator, by copies"}
TEXT = """# ONNX operators

This table lists every operator of ONNX at opset {opset}, and those that are deprecated there.
`python docs/onnx_operators.py` generates it.

- **gpuconv**: gpuconv computes the operator. [Whole ONNX models](onnx-models.md) names the cases that run in the
  evaluator.
- **evaluator**: ONNX's reference evaluator computes it, on the host. On a device, values are copied to the host and
  back, and a warning says so.
- **—**: not supported. Loading such a model is an error that names the node.

Of {total} operators, gpuconv computes {ours}, the evaluator {evaluator}, and nobody {none}. The second column is the
opset that brought the newest form.

{table}

## Operators of ONNX Runtime

[Models that ONNX Runtime writes](onnx-models.md#models-that-onnx-runtime-writes) may have operators of its domain
`com.microsoft`. gpuconv computes these {own} of them, on NumPy and on CuPy arrays:

{names}

## How the evaluator is checked

`python -m tests.onnx.sweep --nodes {nodes} --write` draws random nodes of the operators that are, or were, left to the
evaluator: attributes, element types and shapes at random, at every opset. NumPy computes what the specification says
of each, in float64 or in plain loops. ONNX Runtime {runtime} is asked too, where it has the operator. A node differs
where a value, a shape or a type is another, or where it fails.

- **right**: the evaluator computes it, and no node differs.
- **taken over**: gpuconv computes it, as the evaluator does not follow the specification, or takes illegal nodes.

Where ONNX Runtime differs, the specification decides: of float64 computed with float32 constants, for one, or of NaN
that takes the true branch of a tree.

{sweep}

These are not drawn:

{not_swept}
"""
# Why no random nodes are drawn of an operator that the evaluator computes.
NOT_SWEPT = {
    **dict.fromkeys(
        ("Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        "its values are random",
    ),
    "ImageDecoder": "it decodes by Pillow",
    "SequenceEmpty": "it has one value",
    **dict.fromkeys([f"ai.onnx.preview.training.{name}" for name in ("Adagrad", "Adam", "Momentum")], "it trains"),
    "ai.onnx.preview.FlexAttention": "its specification is a preview",
}
REASONS = list(dict.fromkeys(NOT_SWEPT.values()))
RUNTIME = "1.32.0"
RESULTS = DOCS.parent / "tests" / "onnx" / "sweep" / "results.json"


def computed_by(schema: OpSchema) -> str:
    """Return who computes an operator of the newest opset."""
    node = onnx.NodeProto(op_type=schema.name, domain=schema.domain, output=["y"])
    if not schema.domain and (schema.name in {*operators.TABLE, *operators.CONTROL} or nodes.supported(node)):
        return OURS
    if schema.name in operators.OTHERS.get(schema.domain, ()):
        return OURS
    nothing = onnx.GraphProto(name="nothing")
    try:
        Evaluator(nothing, opsets={"": OPSET, schema.domain: schema.since_version})._load_reference(node)
    except RuntimeContextError:  # it is made of others, once the types are known
        return EVALUATOR
    except ArgumentError:
        return NONE
    return EVALUATOR


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield, for every operator, its name, its opset, and who computes it on NumPy and on CuPy arrays."""
    for schema in sorted(onnx.defs.get_all_schemas(), key=lambda schema: (schema.domain, schema.name)):
        name = f"{schema.domain}.{schema.name}" if schema.domain else schema.name
        since = f"{schema.since_version}, deprecated" if schema.deprecated else str(schema.since_version)
        who = computed_by(schema)
        yield f"`{name}`", since, who, ON_DEVICE.get(who, who)


def _listed(why: str) -> str:
    return ", ".join(f"`{name}`" for name, reason in NOT_SWEPT.items() if reason == why)


def _table(lines: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def swept(who: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Yield the lines of the table of the sweep, given who computes each operator."""
    yield "operator", "opsets", "nodes", "differ here", "in the evaluator", "ONNX Runtime: nodes", "differ", "verdict"
    yield ("---",) * 8
    for name, row in json.loads(RESULTS.read_text(encoding="utf-8")).items():
        first, last = row["opsets"]
        verdict = "right" if who[f"`{name}`"] == EVALUATOR else "taken over"
        numbers = ("nodes", "differ", "evaluator_differs", "onnxruntime_nodes", "onnxruntime_differs")
        yield f"`{name}`", f"{first} to {last}", *(str(row[key]) for key in numbers), verdict


def page() -> str:
    """Return the page."""
    found = list(rows())
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    counts = Counter(who for _, _, who, _ in found)
    own = sorted((*operators.OTHERS[translating.DOMAIN], *translating.FUSED))
    lines = [("operator", "opset", "NumPy", "CuPy"), ("---",) * 4, *found]
    return TEXT.format(
        opset=OPSET,
        total=len(found),
        ours=counts[OURS],
        evaluator=counts[EVALUATOR],
        none=counts[NONE],
        table=_table(lines),
        own=len(own),
        names="\n".join(f"- `{name}`" for name in own),
        sweep=_table(swept({name: who for name, _, who, _ in found})),
        nodes=max(row["nodes"] for row in results.values()),
        runtime=RUNTIME,
        not_swept="\n".join(f"- {_listed(why)}: {why}" for why in REASONS),
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
