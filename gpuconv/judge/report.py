"""What a run found: counts by rule, and a file for each finding that shows it without gpuconv."""

from __future__ import annotations

import ast
import platform
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import helper, numpy_helper

from gpuconv.judge import adapters, suite
from gpuconv.judge.definition import Array
from gpuconv.judge.problems import Problem, answer
from gpuconv.judge.runner import Outcome
from gpuconv.judge.variants import explanations
from gpuconv.judge.verdicts import AGREES, ALL, CRASHES, FAILURES, HANGS, REFUSES, Test, matches

_SHOWN = 400  # characters of a message in a report
_REFUSAL, _REFUSALS = 120, 12  # characters of a refusal, and how many different ones are listed
_WHY = 60  # characters of a refusal in tables
_HELPERS = ("node", "command")  # adapters that others use


@dataclass(frozen=True)
class Finding:
    """The smallest test of an operator's rule that has a verdict of FAILURES, and how many there are."""

    outcome: Outcome
    count: int
    explanation: str

    @property
    def name(self) -> str:
        """The finding's file, without its end."""
        facts = self.outcome.test.facts
        words = re.sub(r"[^a-z0-9]+", "_", f"{facts['operator']} {facts['rule']}".lower())
        return f"{words}_{self.outcome.verdict.kind}"


def by_rule(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], Counter[str]]:
    """Count the verdicts of each rule, by its name and status, in the order in which they come."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for outcome in outcomes:
        key = (outcome.test.facts["rule"], outcome.test.facts["status"])
        counts.setdefault(key, Counter())[outcome.verdict.kind] += 1
    return counts


def refusals(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Return the most frequent reason for which tests of a rule are refused, by the rule's name, in a few words."""
    reasons: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        if outcome.verdict.kind == REFUSES:
            reasons.setdefault(outcome.test.facts["rule"], Counter())[short(outcome.verdict.reason)] += 1
    return {rule: counts.most_common(1)[0][0] for rule, counts in reasons.items()}


def short(reason: str) -> str:
    """Shorten a message: without what stands in brackets, paths, quoted names, and words that every error has."""
    text = re.sub(r"\[[^][]*\]|\S*/\S*|'[^']*'|\"[^\"]*\"", " ", reason)
    text = re.sub(r"(?i)\b(exception during \w+|non-zero status code returned)\b", " ", text)
    text = " ".join(re.sub(r"\s*:[\s\d:]*:", ":", text).split()).replace(" :", ":").replace("|", "/")
    return text if len(text) <= _WHY else text[: _WHY - 1].rstrip() + "…"


def findings(outcomes: Sequence[Outcome], problems: Mapping[str, Problem]) -> list[Finding]:
    """Find what failed, one finding for each operator, rule and verdict.

    Parameters
    ----------
    outcomes : sequence of Outcome
    problems : mapping
        The suite's problems by name, which wrong answers are explained by; may lack some.
    """
    groups: dict[tuple[str, str, str], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.verdict.kind in FAILURES:
            facts = outcome.test.facts
            groups.setdefault((facts["operator"], facts["rule"], outcome.verdict.kind), []).append(outcome)
    made = []
    for group in groups.values():
        least = min(group, key=lambda outcome: _weight(outcome.test))
        text = explained(problems.get(least.test.folder.name), least.test, least.got) if least.got else ""
        made.append(Finding(least, len(group), text))
    return made


def _weight(test: Test) -> tuple[int, int]:
    """Order tests by what a reader would like to see: float32 first, then few elements."""
    sizes = [
        len(content.read_bytes()) for content in (test.folder / "model.onnx", *(test.folder / suite.DATA).glob("[io]*"))
    ]
    return (test.facts["type"] != "float32", sum(sizes))


def explained(problem: Problem | None, test: Test, got: Sequence[Array]) -> str:
    """Name the other rule that gives just these outputs, or return nothing."""
    if problem is None:
        return ""
    right = answer(problem)
    for variant, other in explanations(problem, right):
        if len(other.outputs) == len(got) and matches(other.outputs, test.tensors("bound"), got):
            return variant.sentence
    return ""


# ---------------------------------------------------------------- JSON and Markdown


def facts(
    target: str, version: str, about: Mapping[str, Any], outcomes: Sequence[Outcome], found: Sequence[Finding]
) -> dict[str, Any]:
    """Return what a run found, as JSON has it; tests that agree and refusals are counted only."""
    rules: dict[tuple[str, str, str], Counter[str]] = {}
    for outcome in outcomes:
        about_it = outcome.test.facts
        key = (about_it["rule"], about_it["status"], about_it["type"])
        rules.setdefault(key, Counter())[outcome.verdict.kind] += 1
    refusals = Counter(o.verdict.reason[:_REFUSAL] for o in outcomes if o.verdict.kind == REFUSES)
    return {
        "target": target,
        "version": version,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "suite": dict(about),
        "rules": [
            {"rule": rule, "status": status, "type": kind, **counts} for (rule, status, kind), counts in rules.items()
        ],
        "findings": [
            {
                "file": f"{finding.name}.py",
                "operator": finding.outcome.test.facts["operator"],
                "rule": finding.outcome.test.facts["rule"],
                "verdict": finding.outcome.verdict.kind,
                "tests": finding.count,
                "smallest": finding.outcome.test.folder.name,
                "reason": finding.outcome.verdict.reason,
                "explanation": finding.explanation,
            }
            for finding in found
        ],
        "refusals": dict(refusals.most_common(_REFUSALS)),
        "tests": {
            outcome.test.folder.name: [outcome.verdict.kind, outcome.verdict.reason]
            for outcome in outcomes
            if outcome.verdict.kind not in (AGREES, REFUSES)
        },
    }


def markdown(version: str, about: str, outcomes: Sequence[Outcome], found: Sequence[Finding]) -> str:
    """Write the report: counts, then each finding as an issue would have it."""
    lines = [
        f"# {version}",
        "",
        about,
        "",
        "| rule | status | " + " | ".join(ALL) + " | mostly refused for |",
        "|---" * (3 + len(ALL)) + "|",
    ]
    why = refusals(outcomes)
    for (rule, status), counts in by_rule(outcomes).items():
        cells = [rule, status, *(str(counts[kind] or "") for kind in ALL), why.get(rule, "")]
        lines.append(f"| {' | '.join(cells)} |")
    for finding in found:
        lines += ["", f"## {title(finding)}", "", *_described(finding), "", f"`{finding.name}.py`:", "", "```python"]
        lines += ["{" + finding.name + "}", "```"]
    return "\n".join(lines) + "\n"


def title(finding: Finding) -> str:
    """Return one line for a finding."""
    facts, verdict = finding.outcome.test.facts, finding.outcome.verdict
    node = onnx.load(finding.outcome.test.folder / "model.onnx").graph.node[0]
    return f"{node.op_type}: {verdict.kind} ({facts['rule']})"


def _described(finding: Finding) -> Iterator[str]:
    test, verdict = finding.outcome.test, finding.outcome.verdict
    yield f"Rule ({test.facts['status']}): {test.facts['sentence']}"
    yield ""
    yield f"Result: {verdict.reason[:_SHOWN]}"
    if finding.explanation:
        yield ""
        yield f"The result equals {finding.explanation}."
    if test.facts["discussions"]:
        yield ""
        yield f"Discussed at {', '.join(test.facts['discussions'])}."
    if finding.count > 1:
        yield ""
        yield f"{finding.count} tests of this rule have this verdict; this is the smallest."


# ---------------------------------------------------------------- reproducers


def reproducer(target: str, version: str, finding: Finding) -> str:
    """Write a program that shows the finding with NumPy, onnx and the target alone."""
    test, verdict = finding.outcome.test, finding.outcome.verdict
    kind, _, option = target.partition(":")
    about = [f"{version}: {title(finding)}", "", *_described(finding), "", f"Test {test.folder.name}."]
    parts = ['"""' + "\n".join(about).replace("\\", "/").replace('"""', "'''") + '\n"""', _imports(test), _model(test)]
    parts += [_stripped(_source(name)) for name in _HELPERS if re.search(rf"adapters.*\b{name}\b", _source(kind))]
    parts += [_stripped(_source(kind)), _ending(option, verdict.kind)]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _source(kind: str) -> str:
    return Path(adapters.__file__).with_name(f"{kind.replace('-', '_')}.py").read_text(encoding="utf-8")


def _stripped(source: str) -> str:
    """Leave out the docstring of a module, and what comes from gpuconv or stands at the top already."""
    body = ast.parse(source).body[1:]
    kept = [each for each in body if not (isinstance(each, ast.ImportFrom) and _at_top(each.module))]
    lines = source.splitlines()
    imports = [each for each in kept if isinstance(each, (ast.Import, ast.ImportFrom))]
    texts = ["\n".join(lines[_first(each) - 1 : each.end_lineno]) for each in kept if each not in imports]
    return "\n\n\n".join(["\n".join(ast.unparse(each) for each in imports), *texts])


def _at_top(module: str | None) -> bool:
    return module is not None and (module == "__future__" or module.startswith("gpuconv.judge"))


def _first(statement: ast.stmt) -> int:
    """Return the line where a statement begins, its decorators included."""
    return min([int(statement.lineno), *(int(each.lineno) for each in getattr(statement, "decorator_list", []))])


def _imports(test: Test) -> str:
    lines = ["from __future__ import annotations", "", "import numpy as np", "import onnx", "from onnx import helper"]
    if test.facts["type"] == "bfloat16":
        lines.append("from ml_dtypes import bfloat16")
    return "\n".join([*lines, "", "nan, inf = np.nan, np.inf"])


def _literal(array: Array, bits: bool) -> str:
    if bits and array.dtype.kind not in "iu":
        unsigned = array.view(f"u{array.dtype.itemsize}")
        view = "bfloat16" if array.dtype.name == "bfloat16" else repr(array.dtype.name)
        return f'np.array({unsigned.ravel().tolist()}, "{unsigned.dtype.name}").view({view}).reshape({array.shape})'
    kind = "bfloat16" if array.dtype.name == "bfloat16" else repr(array.dtype.name)
    return f"np.array({array.ravel().tolist()}).astype({kind}).reshape({array.shape})"


def _model(test: Test) -> str:
    model, bits = test.model, test.facts["bits"]
    node = model.graph.node[0]
    given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    settings = "".join(f", {name}={value!r}" for name, value in given.items())
    lines = [f'node = helper.make_node("{node.op_type}", {list(node.input)}, {list(node.output)}{settings})']
    lines += ["CONSTANTS = ["]
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        lines.append(f'    onnx.numpy_helper.from_array({_literal(array, bits)}, "{tensor.name}"),')
    lines += ["]", "INPUTS = [", *(f"    {_literal(each, bits)}," for each in test.tensors("input")), "]"]
    lines += ["EXPECTED = [", *(f"    {_literal(each, bits)}," for each in test.tensors("output")), "]"]
    lines += ["BOUNDS = [", *(f"    {_literal(each, False)}," for each in test.tensors("bound")), "]"]
    for kind, values in (("inputs", model.graph.input), ("outputs", model.graph.output)):
        lines.append(f"{kind} = [")
        for value in values:
            shape = [
                axis.dim_value if axis.HasField("dim_value") else None for axis in value.type.tensor_type.shape.dim
            ]
            lines.append(
                f'    helper.make_tensor_value_info("{value.name}", {value.type.tensor_type.elem_type}, {shape}),'
            )
        lines.append("]")
    opset = model.opset_import[0].version
    lines += ['graph = helper.make_graph([node], "test", inputs, outputs, CONSTANTS)']
    imports = f'[helper.make_opsetid("", {opset})]'
    lines += [f"MODEL = helper.make_model(graph, opset_imports={imports}, ir_version={model.ir_version})"]
    return "\n".join(lines)


def _ending(option: str, kind: str) -> str:
    lines = [f"print(version({option!r}))"]
    if kind in (CRASHES, HANGS):
        lines.append(f"print('next, this process {kind}', flush=True)")
    lines += [
        f"got = [np.asarray(output) for output in run(MODEL, INPUTS, {option!r})]",
        "for ours, bound, theirs in zip(EXPECTED, BOUNDS, got, strict=True):",
        "    print('got', theirs.dtype, theirs.shape, theirs.tolist())",
        "    print('expected', ours.dtype, ours.shape, ours.tolist())",
        "    assert theirs.shape == ours.shape, 'the shape is wrong'",
        "    a, b = ours.astype(np.float64), theirs.astype(np.float64)",
        "    right = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= bound) | np.isinf(bound)",
        "    assert right.all(), f'{(~right).sum()} elements are wrong'",
    ]
    return "\n".join(lines)


def write(
    folder: Path, target: str, version: str, about: str, outcomes: Sequence[Outcome], found: Sequence[Finding]
) -> None:
    """Write report.md and a program for each finding."""
    folder.mkdir(parents=True, exist_ok=True)
    text = markdown(version, about, outcomes, found)
    for finding in found:
        program = reproducer(target, version, finding)
        (folder / f"{finding.name}.py").write_text(program)
        text = text.replace("{" + finding.name + "}", program.rstrip("\n"))
    (folder / "report.md").write_text(text)
