"""Results of ``gpuconv judge``: the printed table, expected failures, and JUnit's XML."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from gpuconv._errors import listed, one_line, printable
from gpuconv.cli.terminal import CommandError, table

_SHOWN = 20  # findings, or names of tests
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_STATUSES = ("specified", "by the reference", "disputed", "ruled here")

Failures = dict[str, str]  # verdicts by the names of tests


# ---------------------------------------------------------------- expected failures


@dataclass(frozen=True)
class Comparison:
    """The failures of a run, compared with the expected ones.

    Attributes
    ----------
    failed : dict
        All tests that fail, with their verdicts.
    new : dict
        Those that are not expected, or to have another verdict.
    fixed : dict
        Tests that are expected to fail but gave an answer that is right or can be defended.
    """

    failed: Failures
    new: Failures
    fixed: Failures


def compared(outcomes: Sequence[Any], expected: Failures, strict: bool) -> Comparison:
    """Compare what failed with what was expected to; with `strict`, what differs fails, too."""
    from gpuconv.judge.verdicts import AGREES, DIFFERS, FAILURES

    kinds = {outcome.test.folder.name: outcome.verdict.kind for outcome in outcomes}
    failed = {name: kind for name, kind in kinds.items() if kind in FAILURES or (strict and kind == DIFFERS)}
    new = {name: kind for name, kind in failed.items() if expected.get(name) != kind}
    fixed = {
        name: kind
        for name, kind in expected.items()
        if kinds.get(name) in (AGREES, DIFFERS) and name not in failed and (strict or kind != DIFFERS)
    }
    return Comparison(failed, new, fixed)


def read_expected(path: Path) -> Failures:
    """Read a file of expected failures: a JSON object, or a line with a test's name and its verdict for each."""
    from gpuconv.judge.verdicts import ALL

    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if text.lstrip().startswith("{") else dict(_pairs(text))
    except (OSError, ValueError) as error:
        raise CommandError(f"judge: --expected-failures {path} cannot be read ({one_line(str(error))})") from None
    for name, kind in found.items():
        if kind not in ALL:
            text = f"{name} is to be {kind!r}, which is none of {', '.join(ALL)}"
            raise CommandError(f"judge: --expected-failures {path}: {printable(text)}")
    return dict(found)


def _pairs(text: str) -> list[tuple[str, str]]:
    pairs = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if len(words) not in (0, 2):
            raise ValueError(f"line {number} is not a test's name and a verdict")
        pairs += [(words[0], words[1])] if words else []
    return pairs


def write_expected(path: Path, comparison: Comparison, not_run: Failures) -> None:
    """Write the failures of this run as expected ones, and keep the entries of tests that were not run.

    The file is JSON if its name ends so, else plain text; it is sorted by the names.
    """
    entries = dict(sorted({**not_run, **comparison.failed}.items()))
    if path.suffix == ".json":
        text = json.dumps(entries, indent=1) + "\n"
    else:
        text = "".join(f"{name} {kind}\n" for name, kind in entries.items())
    _write(path, text)


def _write(path: Path, text: str) -> None:
    """Write a file that others see whole or as it was before."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


# ---------------------------------------------------------------- JUnit


def write_junit(path: Path, version: str, outcomes: Sequence[Any], comparison: Comparison) -> None:
    """Write one test case for each test: new failures as such, refusals and expected failures as skipped."""
    cases = [_case(outcome, comparison) for outcome in outcomes]
    counts = Counter(kind for kind, _ in cases)
    numbers = f'tests="{len(cases)}" failures="{counts["failure"]}" errors="{counts["error"]}"'
    numbers += f' skipped="{counts["skipped"]}" time="{sum(outcome.seconds for outcome in outcomes):.3f}"'
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f"<testsuites {numbers}>"]
    lines += [f"<testsuite name={_quoted(f'gpuconv judge {version}')} {numbers}>", *(text for _, text in cases)]
    _write(path, "\n".join([*lines, "</testsuite>", "</testsuites>", ""]))


def _case(outcome: Any, comparison: Comparison) -> tuple[str, str]:
    """Return the kind of a test case's result, "" where it passes, and its lines of XML."""
    from gpuconv.judge.verdicts import CRASHES, HANGS, REFUSES

    facts, verdict, name = outcome.test.facts, outcome.verdict, outcome.test.folder.name
    reason = f"{verdict.kind}: {verdict.reason}" if verdict.reason else verdict.kind
    kind, body = "", ""
    if name in comparison.new:
        kind = "error" if verdict.kind in (CRASHES, HANGS) else "failure"
        text = f"{reason}\nRule ({facts['status']}): {facts['sentence']}"
        body = f"<{kind} type={_quoted(verdict.kind)} message={_quoted(reason)}>{escape(_xml(text))}</{kind}>"
    elif name in comparison.failed:
        kind, body = "skipped", f"<skipped message={_quoted(f'expected: {reason}')}/>"
    elif verdict.kind == REFUSES:
        kind, body = "skipped", f"<skipped message={_quoted(reason)}/>"
    elif verdict.reason:
        body = f"<system-out>{escape(_xml(reason))}</system-out>"
    place = f"{facts['operator']}.{facts['rule'].replace('.', ' ')}"
    start = f"<testcase classname={_quoted(place)} name={_quoted(name)} time={_quoted(f'{outcome.seconds:.3f}')}"
    return kind, f"{start}>{body}</testcase>" if body else f"{start}/>"


def _quoted(text: str) -> str:
    return quoteattr(_xml(text))


def _xml(text: str) -> str:
    """Escape characters that XML cannot have at all."""
    return _NOT_XML.sub(lambda match: ascii(match[0])[1:-1], text)


# ---------------------------------------------------------------- the table


def lines(version: str, outcomes: Sequence[Any], found: Sequence[Any]) -> list[str]:
    """Return the table by rule, the findings, what was refused, and the counts."""
    from gpuconv.judge.findings import report

    total = Counter(outcome.verdict.kind for outcome in outcomes)
    text = _table(outcomes)
    for finding in found[:_SHOWN]:
        why = f"; equals {finding.explanation}" if finding.explanation else ""
        name, reason = finding.outcome.test.folder.name, finding.outcome.verdict.reason
        text.append(printable(f"{report.title(finding)}: {reason}{why} [{name}]"))
    if len(found) > _SHOWN:
        text.append(f"… and {len(found) - _SHOWN} more findings; --report DIR writes all of them")
    text += _refused(outcomes)
    text.append(printable(f"{version}: {total.total()} tests, {_counts(total)}"))
    return text + _by_status(outcomes)


def _counts(total: Counter[str]) -> str:
    from gpuconv.judge.verdicts import ALL

    return ", ".join(f"{total[kind]} {kind}" for kind in ALL)


def _table(outcomes: Sequence[Any]) -> list[str]:
    """Return the table with a row for each rule that has an answer."""
    from gpuconv.judge.findings import report
    from gpuconv.judge.verdicts import ALL, REFUSES

    counts = {key: each for key, each in report.by_rule(outcomes).items() if set(each) != {REFUSES}}
    if not counts:
        return []
    total: Counter[str] = sum(counts.values(), Counter())
    shown = [kind for kind in ALL if total[kind] and kind != REFUSES]  # they have a line of their own
    rows = [
        [printable(rule), printable(status), *(str(each[kind] or "") for kind in shown)]
        for (rule, status), each in counts.items()
    ]
    return [table(["rule", "status", *shown], rows, left=2)]


def _refused(outcomes: Sequence[Any]) -> list[str]:
    """Return one line about all refusals: how many of each operator, and the most frequent reasons."""
    from gpuconv.judge.findings import report
    from gpuconv.judge.verdicts import REFUSES

    refused = [outcome for outcome in outcomes if outcome.verdict.kind == REFUSES]
    if not refused:
        return []
    operators = Counter(str(outcome.test.facts["operator"]) for outcome in refused)
    of_all = Counter(str(outcome.test.facts["operator"]) for outcome in outcomes)
    parts = [f"{count} of {of_all[name]} {name}" for name, count in operators.items()]
    reasons = Counter(report.short(outcome.verdict.reason) for outcome in refused).most_common(3)
    whys = [f"{why} ({count})" for why, count in reasons]
    return [printable(f"refused: {', '.join(parts)}; most often for: {listed(whys)}")]


def by_status(outcomes: Sequence[Any]) -> dict[str, dict[str, int]]:
    """Count the tests of each failing verdict by the status of their rules, those of the specification first."""
    from gpuconv.judge.verdicts import FAILURES

    found: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        if outcome.verdict.kind in FAILURES:
            found.setdefault(outcome.verdict.kind, Counter())[outcome.test.facts["status"]] += 1
    return {
        kind: {status: found[kind][status] for status in _ordered(found[kind])} for kind in FAILURES if kind in found
    }


def _ordered(statuses: Mapping[str, int]) -> list[str]:
    return sorted(statuses, key=lambda status: _STATUSES.index(status) if status in _STATUSES else len(_STATUSES))


def _by_status(outcomes: Sequence[Any]) -> list[str]:
    """Return the counts that an implementation is held to: those against the specification come first."""
    return [
        printable(f"{kind}: " + ", ".join(f"{count} {status}" for status, count in {"specified": 0, **counts}.items()))
        for kind, counts in by_status(outcomes).items()
    ]


def about_expected(comparison: Comparison, path: Path, updated: bool) -> list[str]:
    """Return what is new and what is fixed, compared with the file of expected failures."""
    if updated:
        return [f"{path}: {len(comparison.failed)} expected failures of this run"]
    text = [f"new: {printable(name)} {kind}" for name, kind in [*comparison.new.items()][:_SHOWN]]
    if len(comparison.new) > _SHOWN:
        text.append(f"… and {len(comparison.new) - _SHOWN} more that are new")
    if comparison.fixed:
        names = listed([printable(name) for name in comparison.fixed])
        text.append(f"fixed: {names} (--update-expected takes them out of {path})")
    known = len(comparison.failed) - len(comparison.new)
    return [*text, f"{len(comparison.new)} new, {known} expected, {len(comparison.fixed)} fixed"]
