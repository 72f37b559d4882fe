"""The directive ``results``: tables that are made when the site is made.

They come from the measurements in benchmarks/results, from kernels_cu, and from the planner's model of a GPU, which
is asked here, in two processes for about half a minute.

```{results} cpu-classes
```
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from io import BytesIO
from itertools import takewhile
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from benchmarks import ablation, cliffs, cpu_cliffs, floors, invariance, judged, static, static_plan, static_summary
from gpuconv.cuda.plan.limits import Representative, representative
from gpuconv.judge import rulings
from gpuconv.judge.cases import CASES

CHECKOUT = Path(__file__).resolve().parents[1]
RESULTS, KERNELS = CHECKOUT / "benchmarks" / "results", CHECKOUT / "kernels_cu"
MODEL = CHECKOUT / "gpuconv" / "cuda"
ARCHITECTURE = "sm_90a"  # of the tables by the planner's model
LISTED = ("bfloat16", "float32")  # of the table of layers
PROCESSES = 2


def read(name: str) -> Any:
    """Return a file of measurements."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table."""
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def machine(record: Any) -> str:
    """Say by what command and where a file was measured."""
    about = ", ".join(f"{name} {value}" for name, value in record["machine"].items())
    return f"`{record['command']}` on {about}."


def cpu_classes() -> str:
    """Classes of layers on the CPU."""
    record = read("cpu")
    rows = (
        [name, one["layers"], f"{one['mean']:.2f}", f"{one['min']:.2f}", f"`{one['slowest']}`"]
        for name, one in record["classes"].items()
    )
    head = ["class", "layers", "geometric mean", "worst", "worst layer"]
    return f"{machine(record)}\n\n{table(head, rows)}"


def cpu_layers() -> str:
    """Every layer on the CPU."""
    rows = (
        [
            f"`{row['layer']['id']}`",
            "×".join(map(str, row["x"])),
            f"{row['flops'] / 1e9:.2f}",
            *(f"{row[side] * 1e3:.2f}" for side in ("our_median", "ort_median")),
            f"{row['ratio']:.2f}",
        ]
        for row in read("cpu")["rows"]
        if "ratio" in row
    )
    return table(["layer", "x, scaled to a CPU", "G operations", "gpuconv, ms", "ONNX Runtime, ms", "ratio"], rows)


def cpu_models() -> str:
    """Whole networks on the CPU, and the means of their classes."""
    record = read("cpu_models")
    rows = [
        [
            f"`{row['network']}`",
            *(f"{row[side] * 1e3:.1f}" for side in ("our_median", "ort_median")),
            f"{row['ratio']:.2f}",
            *(f"{row[side] / 1e6:.0f}" if row.get(side) else "" for side in ("our_peak_bytes", "ort_peak_bytes")),
            f"{row['busy_cores']:.1f}",
        ]
        for row in record["rows"]
    ]
    classes = [
        [name, str(c["networks"]), f"{c['mean']:.2f}", f"{c['min']:.2f}"] for name, c in record["classes"].items()
    ]
    means = table(["class", "networks", "geometric mean", "least"], classes)
    head = ["network", "gpuconv, ms", "ONNX Runtime, ms", "ratio", "gpuconv, MB", "ONNX Runtime, MB", "busy cores"]
    return f"{machine(record)}\n\n{means}\n\n{table(head, rows)}"


def cpu_invariance() -> str:
    """What invariant bits cost on the CPU: the means, and every layer that costs more than a tenth somewhere."""
    record = read("cpu_invariance")

    def worst(row: Any) -> float:
        return max((ratio for ratio in row["ratios"] if ratio is not None), default=0.0)

    def cells(ratios: Iterable[float | None]) -> list[str]:
        return ["" if ratio is None else f"{ratio:.2f}" for ratio in ratios]

    counts = [sum(row["ratios"][at] is not None for row in record["rows"]) for at in range(len(record["sizes"]))]
    rows = [["layers", *counts], ["geometric mean", *cells(record["means"])]]
    dear = sorted((row for row in record["rows"] if worst(row) > 1.1), key=worst, reverse=True)
    rows += [[f"`{row['layer']}`", *cells(row["ratios"])] for row in dear]
    return f"{machine(record)}\n\n{table(['', *(f'N = {size}' for size in record['sizes'])], rows)}"


def host() -> str:
    """The host time of a call on CuPy arrays."""
    record = read("host")
    rows = ([name.strip(), f"{us:.2f}"] for name, us in record["median_us"].items())
    return f"{machine(record)} {record['measured']}.\n\n{table(['part of the call', 'median, µs'], rows)}"


def reference() -> str:
    """gpuconv.onnx.OPS beside onnx.reference's own operators."""
    record = read("reference")
    rows = (
        [
            row["op"],
            row["row"],
            row["loops"],
            *(f"{row[side] * 1e3:.2f}" for side in ("ours", "reference")),
            f"{row['reference'] / row['ours']:.1f}",
        ]
        for row in record["rows"]
    )
    head = ["operator", "x by weights or window", "a loop over", "gpuconv, ms", "onnx.reference, ms", "ratio"]
    others = f"Other processes kept {record['busy_cores']:.1f} cores busy meanwhile."
    return f"{machine(record)} {others}\n\n{table(head, rows)}"


def imports() -> str:
    """What importing takes."""
    record = read("import")
    rows = ([name, f"{ms:.0f}"] for name, ms in record["median_ms"].items())
    return f"{machine(record)}\n\n{table(['import', 'median, ms'], rows)}"


@cache
def modelled() -> dict[str, Any]:
    """Return all that the model says: of layers, of random problems, of changes, of invariant bits, of families."""
    device = representative(ARCHITECTURE)
    jobs: dict[str, Callable[[], Any]] = {
        "problems": partial(cliffs.problems, device, cliffs.COUNT, 0),  # the longest ones first
        "jumps": partial(cliffs.jumps, device),
        **{floors.label(*way): partial(priced, device, *way) for way in invariance.WAYS},
        "layers": partial(layer_rows, device),
        "families": partial(family_rows, device),
    }
    with ProcessPoolExecutor(PROCESSES) as pool:
        running = {name: pool.submit(job) for name, job in jobs.items()}
        return {name: future.result() for name, future in running.items()}


def layer_rows(device: Representative) -> list[dict[str, Any]]:
    """Return what is planned for every layer in all its dtypes."""
    return [static_plan.planned(case, device) for case in static_plan.cases()]


def family_rows(device: Representative) -> list[dict[str, Any]]:
    """Return what removing each family of kernels would cost known layers, where they are LISTED."""
    cases = [case for case in static_plan.cases() if static_plan.label(case) in LISTED]
    found = ablation.Table(ablation.collected(cases, device))
    return [found.removed(name, [f"family {name}"]) for name in found.names("family")]


def priced(device: Representative, dtype: str, precision: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what invariant bits cost, and what is planned for every layer with its price, where it is LISTED."""
    shown = [case for case in static_plan.cases() if static_plan.label(case) in LISTED and case.layout == "NCHW"]
    cases = [case for case in shown if (case.dtype, case.precision) == (dtype, precision)]
    rows = [static_plan.planned(case, device) | static.priced(case, device) for case in cases]
    return invariance.priced(device, dtype, precision), rows


def model_classes() -> str:
    """Classes of layers by the planner's model."""
    device = representative(ARCHITECTURE)
    about = (
        f"Kernels for {ARCHITECTURE}; floors of the {device.name}'s datasheet, "
        f"those of {static_summary.LARGE} by rates measured there."
    )
    return f"{about}\n\n{static_summary.markdown(static_summary.classes(modelled()['layers']))}"


def model_layers() -> str:
    """Every layer by the planner's model, in two dtypes."""
    order = {case.layer.id: place for place, case in enumerate(static_plan.cases())}
    rows = sorted((row for dtype in LISTED for row in modelled()[dtype][1]), key=lambda row: order[row["layer"]])
    lines = (
        [
            f"`{row['layer']}`",
            row["dtype"],
            f"`{row['main']}`",
            *("" if row[name] is None else f"{row[name]:.1f}" for name in ("modelled_us", "floor_us")),
            *("" if row[name] is None else f"{row[name]:.2f}" for name in ("over_floor", "invariant")),
        ]
        for row in rows
    )
    return table(["layer", "dtype", "kernel", "modelled, µs", "floor, µs", "ratio", "invariant"], lines)


def model_random() -> str:
    """Random problems by the planner's model, as a table and as a picture."""
    rows = (
        [name, one["problems"], f"{one['mean']:.2f}", *(f"{one[f'above_{step:g}']:.0%}" for step in cliffs.STEPS)]
        for name, one in cliffs.shares(modelled()["problems"]).items()
    )
    head = ["class", "problems", "geometric mean over the floor", *(f"above {step:g} times" for step in cliffs.STEPS)]
    about = f"Kernels for {ARCHITECTURE}, floors of the {representative(ARCHITECTURE).name}'s datasheet."
    picture = BytesIO()
    cliffs.draw(modelled()["problems"], picture)
    data = base64.b64encode(picture.getvalue()).decode()
    drawn = f"![Share of random problems within a multiple of the floor, by class](data:image/png;base64,{data})"
    return f"{about}\n\n{table(head, rows)}\n\n{drawn}"


def cpu_random() -> str:
    """Random problems on the CPU over what their work should take."""
    record = read("cpu_cliffs")
    rows = (
        [
            f"`{name}`" if name != "all" else name,
            one["problems"],
            f"{one['mean']:.2f}",
            *(f"{one[f'above_{step:g}']:.0%}" for step in cpu_cliffs.STEPS),
            f"{one['worst']:.1f}",
        ]
        for name, one in sorted(record["shares"].items())
    )
    head = ["operator", "problems", "mean ratio", *(f"above {step:g}" for step in cpu_cliffs.STEPS), "worst"]
    busy = f"Other processes kept {record['busy_cores']:.1f} cores busy meanwhile."
    return f"{machine(record)} {busy}\n\n{table(head, rows)}"


def model_changes() -> str:
    """What a change of one number costs by the planner's model."""
    rows = (
        [name, one["cases"], f"{one['mean']:.2f}", f"{one['above_2']:.0%}", f"{one['worst']:.1f}", one["worst_case"]]
        for name, one in modelled()["jumps"].items()
    )
    return table(["change", "layers", "geometric mean", "above 2", "worst", "which"], rows)


def model_ablation() -> str:
    """What removing each family of kernels would cost known layers, the most valuable family first."""

    def most(row: dict[str, Any]) -> str:
        kind, mean = max(row["classes"].items(), key=lambda pair: pair[1], default=("", 1.0))
        return f"{kind}, {100 * (mean - 1):.1f} %" if kind else ""

    rows = (
        [
            row["remove"],
            f"{100 * (row['all'] - 1):.2f} %",
            most(row),
            f"{row['worst']:.2f}, `{row['worst_case']}`" if row["worst_case"] else "",
            row["needed"] or "",
        ]
        for row in sorted(modelled()["families"], key=lambda row: -row["all"])
    )
    head = ["without", "all", "class that loses most", "layer that loses most", "layers left without a kernel"]
    about = f"Kernels for {ARCHITECTURE}; {len(LISTED)} dtypes: {' and '.join(LISTED)}."
    return f"{about}\n\n{table(head, rows)}"


def model_invariance() -> str:
    """What invariant bits cost by precision, and the layers that cost more than half again."""
    prices = {floors.label(*way): modelled()[floors.label(*way)][0] for way in invariance.WAYS}
    rows = (
        [
            name,
            f"{100 * (one['mean'] - 1):.1f} %",
            f"{one['worst']:.2f}",
            ", ".join(f"`{layer}`" for layer in one["above"]),
        ]
        for name, one in prices.items()
    )
    head = ["precision", "geometric mean", "worst layer and batch", f"layers above {invariance.MOST}"]
    return f"Kernels for {ARCHITECTURE}.\n\n{table(head, rows)}"


def kernels() -> str:
    """What stands at the top of every file of kernels, up to the first empty line of comment."""
    rows = []
    for path in sorted(KERNELS.rglob("*.cu")):
        lines = takewhile(lambda line: line.startswith("// "), path.read_text(encoding="utf-8").splitlines())
        rows.append(
            [
                f"`{path.relative_to(KERNELS).as_posix()}`",
                " ".join(line.removeprefix("// ").strip() for line in lines).replace("|", "&#124;"),
            ]
        )
    return table(["file", "what it computes, and how"], rows)


def judged_rules() -> str:
    """Every rule by every implementation, in float32."""
    records = judged.records()

    def cell(record: Any, rule: str, status: str) -> str:
        word, share = judged.verdict(judged.summed(record, rule=rule, status=status, kind="float32"))
        return f"**{word}** {share}" if share else word

    rows = ([*pair, *(cell(each, *pair) for each in records.values())] for pair in judged.rules())
    return table(["rule", "status", *(judged.NAMES[name] for name in records)], rows)


def judged_totals() -> str:
    """How the tests of all types end, with what is wrong by the status of the rule."""
    return _totals(judged.JUDGED, ("specified", "disputed", "ruled here"))


def judged_compared() -> str:
    """The same for libraries that are called directly: nothing of theirs is wrong by ONNX."""
    return _totals(judged.COMPARED, ())


def _totals(names: Iterable[str], statuses: Sequence[str]) -> str:
    rows = []
    for name, record in judged.records().items():
        if name in names:
            total = judged.summed(record)
            wrong = [judged.summed(record, status=status)["wrong"] or "" for status in statuses]
            others = [total[kind] or "" for kind in ("inconsistent", "crashes", "hangs", "refuses")]
            rows.append([record["version"], record["judged"], total["agrees"], total["differs"], *wrong, *others])
    wrong = [f"wrong, {status}" for status in statuses]
    return table(
        ["version", "judged", "agrees", "differs", *wrong, "inconsistent", "crashes", "hangs", "refuses"], rows
    )


def judged_types() -> str:
    """How many tests of each type an implementation answers, and how many of these are right or can be defended."""

    def cell(record: Any, kind: str) -> str:
        counts = judged.summed(record, kind=kind)
        return f"{counts['agrees'] + counts['differs']} of {counts.total() - counts['refuses']}"

    rows = ([each["version"], *(cell(each, kind) for kind in judged.TYPES)] for each in judged.records().values())
    return table(["version", *judged.TYPES], rows)


def judged_questions() -> str:
    """What ONNX's list of open questions asks, and the rules that answer."""
    rows = []
    for number in rulings.OPEN_QUESTIONS:
        address = f"https://github.com/onnx/onnx/issues/{number}"
        answers = {rule: each.name for rule, each in rulings.RULINGS.items() if address in each.discussions}
        tests = sum(case.rule in answers for case in CASES)
        told = "<br>".join(f"**{name}**: {rule}" for rule, name in answers.items())
        told = re.sub(r"(?<=\w)\*(?=\w)", r"\\*", told)  # products, which Markdown would take for emphasis
        rows.append([f"[onnx/onnx#{number}]({address})", told, tests])
    return table(["thread", "rules", "named cases"], rows)


def judged_findings() -> str:
    """One line for each rule that an operator of an implementation breaks."""
    rows = (
        [
            record["version"],
            found["operator"],
            f"[{found['rule']}](judge-findings.md)",
            found["status"],
            f"{found['verdict']} ({found['tests']})",
            found["explanation"],
        ]
        for record in judged.records().values()
        for found in record["findings"]
    )
    return table(["version", "operator", "rule", "status", "verdict (tests)", "equals"], rows)


def judged_programs() -> str:
    """Every finding with its program, by implementation."""
    parts = []
    for record in judged.records().values():
        if record["findings"]:
            parts.append(f"## {record['version']}\n\nJudged on {record['judged']}.")
        for found in record["findings"]:
            parts.append(f"### {found['operator']}: {found['rule']} ({found['verdict']}, {found['status']})")
            equals = f" This equals {found['explanation']}." if found["explanation"] else ""
            also = f" Beside it these fail: {', '.join(found['also'])}." if found["also"] else ""
            parts.append(f"{found['tests']} tests. The smallest is `{found['smallest']}`.{equals}{also}")
            parts.append(f"`{found['reason']}`")
            if found["program"]:
                parts.append(f"```python\n{found['program'].rstrip()}\n```")
    return "\n\n".join(parts)


TABLES: dict[str, Callable[[], str]] = {
    "cpu-classes": cpu_classes,
    "cpu-layers": cpu_layers,
    "cpu-invariance": cpu_invariance,
    "cpu-models": cpu_models,
    "cpu-random": cpu_random,
    "host": host,
    "judged": judged_rules,
    "judged-compared": judged_compared,
    "judged-findings": judged_findings,
    "judged-programs": judged_programs,
    "judged-questions": judged_questions,
    "judged-totals": judged_totals,
    "judged-types": judged_types,
    "imports": imports,
    "reference": reference,
    "model-ablation": model_ablation,
    "model-classes": model_classes,
    "model-layers": model_layers,
    "model-random": model_random,
    "model-changes": model_changes,
    "model-invariance": model_invariance,
    "kernels": kernels,
}


class Results(SphinxDirective):
    """One of TABLES, by its name."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Make the table."""
        for path in (*RESULTS.rglob("*.json"), *KERNELS.rglob("*.cu"), *MODEL.rglob("*.py")):
            self.env.note_dependency(str(path))
        return self.parse_text_to_nodes(TABLES[self.arguments[0]]())


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("results", Results)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
