"""The report of a run: counts by rule, the findings, and for each a program that reproduces it without gpuconv."""

from __future__ import annotations

import datetime
import platform
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from gpuconv.judge import runner, suite
from gpuconv.judge.combinations import COMBINATION
from gpuconv.judge.definition import Array
from gpuconv.judge.findings import arithmetic, programs, shrink
from gpuconv.judge.problems import Problem, answer
from gpuconv.judge.rulings import SPECIFIED
from gpuconv.judge.runner import Outcome
from gpuconv.judge.variants import explanations
from gpuconv.judge.verdicts import AGREES, ALL, FAILURES, INCONSISTENT, REFUSES, Test, matches

_SHOWN = 400  # characters of a message in a report
_REFUSAL, _REFUSALS = 120, 12  # characters of a refusal, and how many different ones are listed
COMBINATIONS = "combinations"  # the row of all combinations in counts
_SHRINKING = 240.0  # seconds for minimising all findings of a target
_SHAPE_OF = "the shape of "  # prefix of an explanation for the shape only
_WHY = 60  # characters of a refusal in tables


@dataclass(frozen=True)
class Finding:
    """A rule of an operator that a target breaks.

    Attributes
    ----------
    outcome : Outcome
        Of the smallest test that has a verdict of FAILURES.
    count : int
        How many tests of the rule have this verdict.
    explanation : str
        Another rule that gives exactly these outputs, to follow "equals"; empty if no known rule does.
    problem : Problem or None
        The problem that the program shows: the smallest test, or a smaller one that fails in the same way.
    program : str
        Empty until :func:`with_programs` has written it, and for targets without programs.
    also : tuple of str
        Other rules of the operator whose tests fail for the same reason, each with the number of tests.
    """

    outcome: Outcome
    count: int
    explanation: str
    problem: Problem | None = None
    program: str = ""
    also: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the finding's file, without suffix."""
        facts = self.outcome.test.facts
        words = re.sub(r"[^a-z0-9]+", "_", f"{facts['operator']} {facts['rule']}".lower())
        return f"{words}_{self.outcome.verdict.kind}"


def by_rule(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], Counter[str]]:
    """Count the verdicts of each rule, by its name and status, in the order of the tests."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for outcome in outcomes:
        key = (outcome.test.facts["rule"], outcome.test.facts["status"])
        counts.setdefault(key, Counter())[outcome.verdict.kind] += 1
    return counts


def refusals(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Return the most frequent reason of refusals of each rule, shortened, by the rule's name."""
    reasons: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        if outcome.verdict.kind == REFUSES:
            reasons.setdefault(outcome.test.facts["rule"], Counter())[short(outcome.verdict.reason)] += 1
    return {rule: counts.most_common(1)[0][0] for rule, counts in reasons.items()}


def short(reason: str) -> str:
    """Shorten a message: remove text in brackets, paths, quoted names, and words that every error has."""
    text = re.sub(r"\[[^][]*\]|\S*/\S*|'[^']*'|\"[^\"]*\"", " ", reason)
    text = re.sub(r"(?i)\b(exception during \w+|non-zero status code returned)\b", " ", text)
    text = " ".join(re.sub(r"\s*:[\s\d:]*:", ":", text).split()).replace(" :", ":").replace("|", "/")
    return text if len(text) <= _WHY else text[: _WHY - 1].rstrip() + "…"


def findings(outcomes: Sequence[Outcome], problems: Mapping[str, Problem]) -> list[Finding]:
    """Group failures into findings, one for each operator, rule and verdict.

    Rules of one operator with the same explanation are one fault. They are listed under the first of them, a specified
    one if there is one. A combination without explanation is listed under a broken rule that takes part in it.

    Parameters
    ----------
    outcomes : sequence of Outcome
    problems : mapping
        The suite's problems by name, which explanations need; may lack some.
    """
    groups: dict[tuple[str, str, str], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.verdict.kind in FAILURES:
            facts = outcome.test.facts
            groups.setdefault((facts["operator"], facts["rule"], outcome.verdict.kind), []).append(outcome)
    made = []
    for group in groups.values():
        least = min(group, key=lambda outcome: _weight(outcome.test))
        problem = problems.get(least.test.folder.name)
        made.append(Finding(least, len(group), _explained_best(least, group, problems), problem))
    return _by_fault(made)


def _explained_best(least: Outcome, group: Sequence[Outcome], problems: Mapping[str, Problem]) -> str:
    """Of the explanations of the smallest test, return the one that explains the most tests of the group."""
    names = _all_explanations(least, problems)
    if len(names) < 2:
        return "".join(names)
    counts = Counter(name for outcome in group for name in {*_all_explanations(outcome, problems)})
    return max(names, key=lambda name: counts[name])


def _all_explanations(outcome: Outcome, problems: Mapping[str, Problem]) -> list[str]:
    problem = problems.get(outcome.test.folder.name)
    return explanations_of(problem, outcome.test, outcome.got) if problem is not None and outcome.got else []


def _by_fault(found: Sequence[Finding]) -> list[Finding]:
    faults: dict[tuple[str, str, str], list[Finding]] = {}
    for number, finding in enumerate(found):
        facts = finding.outcome.test.facts
        why = finding.explanation.removeprefix(_SHAPE_OF) or f"{number}"  # without explanation a fault by itself
        if finding.outcome.verdict.kind == INCONSISTENT:  # only MaxPool can lose NaN
            why = INCONSISTENT
        faults.setdefault((facts["operator"], finding.outcome.verdict.kind, why), []).append(finding)
    made = []
    for same in faults.values():
        first, *others = sorted(same, key=_prominence)
        also = tuple(f"{each.outcome.test.facts['rule']} ({each.count})" for each in others)
        made.append(replace(first, also=also))
    return _under_their_rules(made)


def _under_their_rules(found: Sequence[Finding]) -> list[Finding]:
    """List a combination without explanation under the finding of a rule that takes part in it, if there is one."""
    single = [each for each in found if not each.outcome.test.facts["rule"].startswith(COMBINATION)]
    under: dict[str, list[str]] = {}
    left = []
    for finding in found:
        facts, kind = finding.outcome.test.facts, finding.outcome.verdict.kind
        owner = next(
            (
                each
                for each in single
                if facts["rule"].startswith(COMBINATION)
                and each.outcome.test.facts["rule"] in facts["rules"]
                and (each.outcome.test.facts["operator"], each.outcome.verdict.kind) == (facts["operator"], kind)
            ),
            None,
        )
        if owner is None or finding.explanation:
            left.append(finding)
        else:
            under.setdefault(owner.name, []).extend((f"{facts['rule']} ({finding.count})", *finding.also))
    return [replace(each, also=(*each.also, *under.get(each.name, ()))) for each in left]


def _prominence(finding: Finding) -> tuple[bool, bool]:
    facts = finding.outcome.test.facts
    return facts["status"] != SPECIFIED, facts["rule"].startswith(COMBINATION)


def _weight(test: Test) -> tuple[int, int]:
    """Return a sort key that prefers small tests in float32."""
    sizes = [
        len(content.read_bytes()) for content in (test.folder / "model.onnx", *(test.folder / suite.DATA).glob("[io]*"))
    ]
    return (test.facts["type"] != "float32", sum(sizes))


def explanations_of(problem: Problem, test: Test, got: Sequence[Array]) -> list[str]:
    """Name the other rules that give just these outputs; if there is none, those that give the wrong shape of y."""
    right, bounds = answer(problem), test.tensors("bound")
    others = [(variant.sentence, other.outputs) for variant, other in explanations(problem, right)]
    exact = [name for name, outputs in others if len(outputs) == len(got) and matches(outputs, bounds, got)]
    if exact or right.outputs[0].shape == got[0].shape:
        return exact
    return [f"{_SHAPE_OF}{name}" for name, outputs in others if outputs[0].shape == got[0].shape]


# ---------------------------------------------------------------- JSON and Markdown


def facts(
    target: str, version: str, about: Mapping[str, Any], outcomes: Sequence[Outcome], found: Sequence[Finding]
) -> dict[str, Any]:
    """Return the results of a run for JSON; tests that agree or are refused are only counted."""
    rules: dict[tuple[str, str], dict[str, Counter[str]]] = {}
    for outcome in outcomes:
        about_it = outcome.test.facts
        combined = about_it["rule"].startswith(COMBINATION)
        key = (COMBINATIONS if combined else about_it["rule"], about_it["status"])
        rules.setdefault(key, {}).setdefault(about_it["type"], Counter())[outcome.verdict.kind] += 1
    refusals = Counter(o.verdict.reason[:_REFUSAL] for o in outcomes if o.verdict.kind == REFUSES)
    return {
        "target": target,
        "version": version,
        "judged": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "suite": dict(about),
        "rules": [{"rule": rule, "status": status, **types} for (rule, status), types in rules.items()],
        "findings": [
            {
                "file": f"{finding.name}.py",
                "operator": finding.outcome.test.facts["operator"],
                "rule": finding.outcome.test.facts["rule"],
                "status": finding.outcome.test.facts["status"],
                "verdict": finding.outcome.verdict.kind,
                "tests": finding.count,
                "smallest": finding.outcome.test.folder.name,
                "reason": finding.outcome.verdict.reason,
                "explanation": finding.explanation,
                "also": list(finding.also),
                "program": finding.program,
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
    """Return the report as Markdown: counts, then each finding in the form of an issue."""
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
        lines += ["", f"## {title(finding)}", "", *_described(finding)]
        if finding.program:
            lines += ["", f"`{finding.name}.py`:", "", "```python", finding.program.rstrip("\n"), "```"]
    return "\n".join(lines) + "\n"


def title(finding: Finding) -> str:
    """Return one line for a finding."""
    facts, verdict = finding.outcome.test.facts, finding.outcome.verdict
    node = onnx.load(finding.outcome.test.folder / "model.onnx").graph.node[0]
    return f"{node.op_type}: {verdict.kind} ({facts['rule']})"


def _described(finding: Finding) -> Iterator[str]:
    facts, verdict = finding.outcome.test.facts, finding.outcome.verdict
    yield f"Rule ({facts['status']}): {facts['sentence']}"
    if facts.get("quotation"):
        yield ""
        yield quoted(facts["quotation"])
    yield ""
    yield f"Result: {verdict.reason[:_SHOWN]}"
    if finding.explanation:
        yield ""
        yield f"The result equals {finding.explanation}."
    if finding.also:
        yield ""
        yield f"By the same explanation, or since this rule takes part in them, these fail: {', '.join(finding.also)}."
    if facts["discussions"]:
        yield ""
        yield f"Discussed at {', '.join(facts['discussions'])}."
    if finding.count > 1:
        yield ""
        smallest = finding.outcome.test.folder.name
        yield f"{finding.count} tests of this rule have this verdict, the smallest is {smallest}."


def quoted(quotation: Mapping[str, Any]) -> str:
    """Return a rule's sentence in the specification's words, with its operator, opset and address."""
    return f'{quotation["operator"]}-{quotation["opset"]}: "{quotation["text"]}" ({quotation["link"]})'


# ---------------------------------------------------------------- programs


def with_programs(
    target: str, version: str, found: Sequence[Finding], limit: float, show: Callable[[str], None]
) -> list[Finding]:
    """Minimise the test of each finding against the target, and write the program that reproduces it.

    Parameters
    ----------
    target, version : str
    found : sequence of Finding
    limit : float
        Seconds for a test.
    show : callable
        Called with the current step, for a progress line.
    """
    if not programs.writes(target):
        return list(found)
    problems = {each.name: each.problem for each in found if each.problem is not None and each.outcome.got}
    kept = {
        each.name: (each.outcome.verdict.kind, shrink.signature(answer(problems[each.name]).outputs, each.outcome.got))
        for each in found
        if each.name in problems
    }
    tried, end = 0, time.monotonic() + _SHRINKING

    def fails(asked: Sequence[tuple[str, Problem]]) -> list[bool]:
        nonlocal tried
        if time.monotonic() > end:
            return [False] * len(asked)
        tried += len(asked)
        show(f"making {len({name for name, _ in asked})} findings smaller: {tried} tests")
        return [
            outcome is not None
            and bool(outcome.got)
            and (outcome.verdict.kind, shrink.signature(answer(one).outputs, outcome.got)) == kept[name]
            for (name, one), outcome in zip(asked, judged([one for _, one in asked]), strict=True)
        ]

    def judged(asked: Sequence[Problem]) -> list[Outcome | None]:
        """Judge problems that are not in the suite; None where there is no right answer."""
        with tempfile.TemporaryDirectory() as temporary:
            tests = [_stored(Path(temporary), one, number) for number, one in enumerate(asked)]
            outcomes = iter(runner.run(target, [test for test in tests if test], limit, 1, lambda _: None))
            return [next(outcomes) if test else None for test in tests]

    small = shrink.smallest(problems, fails)
    names, last = list(small), iter(judged(list(small.values())) if small else ())
    outcomes = {name: outcome for name, outcome in zip(names, last, strict=True) if outcome is not None}
    return [
        _with_program(target, version, each, small.get(each.name, each.problem), outcomes.get(each.name))
        for each in found
    ]


def _stored(folder: Path, problem: Problem, number: int) -> Test | None:
    """Write a problem as a test whose name ends in a number; return None where it has no right answer."""
    named = replace(problem, case=replace(problem.case, name=f"{problem.case.name} {number}"))
    try:
        contents = suite.files(named)
    except (ValueError, IndexError):  # a size below 0
        return None
    suite.store(folder, contents)
    return Test(folder / named.name)


def _with_program(
    target: str, version: str, finding: Finding, problem: Problem | None, outcome: Outcome | None
) -> Finding:
    if problem is None:
        return finding
    facts = finding.outcome.test.facts
    expected = answer(problem).outputs
    comments = [f"{version}: {title(finding)}", facts["sentence"]]
    comments += [quoted(facts["quotation"])] if facts.get("quotation") else []
    why = arithmetic.line(problem, expected, outcome.got, outcome.verdict.element) if outcome else ""
    text = programs.program(target, comments, problem, expected, why)
    return replace(finding, problem=problem, program=text)


def write(folder: Path, version: str, about: str, outcomes: Sequence[Outcome], found: Sequence[Finding]) -> None:
    """Write report.md and the program of each finding."""
    folder.mkdir(parents=True, exist_ok=True)
    for finding in found:
        if finding.program:
            (folder / f"{finding.name}.py").write_text(finding.program, encoding="utf-8")
    (folder / "report.md").write_text(markdown(version, about, outcomes, found), encoding="utf-8")
