"""Write the final report of a GPU run in under 10,000 characters: what is wrong first, then the measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import gpu_summary, learn
from benchmarks.progress import Line, read
from benchmarks.supervision import Outcome

LARGEST = 10_000  # characters
_WIDTH = 300
_WRONG = ("failed", "hung", "died")
_WRONG_SHOWN = 24
STEPS = "steps"  # step name of the rows that record how each step ended


@dataclass(frozen=True)
class Page:
    """The text of the report, and whether anything was wrong."""

    text: str
    wrong: bool


def of(path: Path, folder: Path) -> Page:
    """Return the report on the rows in ``path``; ``folder`` is named as the place of all results."""
    lines = list({(line["step"], line["row"]): line for line in read(path)}.values())  # the last line of each row
    rows = [line for line in lines if line["step"] != STEPS]
    steps = [line for line in lines if line["step"] == STEPS]
    wrong = [line for line in rows if line["status"] in _WRONG]
    unfinished = [line for line in steps if line["status"] in _WRONG and not _has_wrong(line["row"], wrong)]
    sections = [[*_marked(lines), *_wrong(wrong, unfinished)], _steps(steps, rows)]
    for title, section in _SECTIONS.items():
        if found := section([line for line in rows if line["step"] == title]):
            sections.append([f"-- {title}", *found])
    sections.append([f"everything is in {folder}"])
    return Page(_joined(sections), bool(wrong or unfinished))


def _marked(lines: list[Line]) -> list[str]:
    if any(line.get("emulated") for line in lines):
        return ["EMULATED: no time and no rate here is a measurement."]
    return []


def _has_wrong(step: str, wrong: list[Line]) -> bool:
    return any(line["step"] == step for line in wrong)


def _wrong(wrong: list[Line], steps: list[Line]) -> list[str]:
    if not wrong and not steps:
        return ["NOTHING IS WRONG in what was run."]
    counts = Counter((line["step"], line["status"]) for line in wrong)
    summary = ", ".join(f"{count} {status} in {step}" for (step, status), count in counts.items())
    alike: dict[tuple[str, str, str], list[str]] = {}
    for line in sorted(wrong, key=lambda line: _WRONG[::-1].index(line["status"])):  # died, then hung, then failed
        alike.setdefault((line["status"].upper(), line["step"], _text(line)), []).append(line["row"])
    shown = [f"{status} {step}: {_rows(rows)}: {text}" for (status, step, text), rows in alike.items()]
    more = [f"... and {len(shown) - _WRONG_SHOWN} more"] if len(shown) > _WRONG_SHOWN else []
    ended = [f"STEP {line['row']} {line['status']}: {line.get('detail', '')}" for line in steps]
    return [f"WRONG: {summary or 'no row, but not all steps ended well'}", *ended, *shown[:_WRONG_SHOWN], *more]


def _rows(rows: list[str]) -> str:
    return rows[0] if len(rows) == 1 else f"{rows[0]} and {len(rows) - 1} more"


def _text(line: Line) -> str:
    return str(line.get("detail") or line.get("wrong") or "")


def _steps(steps: list[Line], rows: list[Line]) -> list[str]:
    counts: dict[str, Counter[str]] = {}
    for line in rows:
        counts.setdefault(line["step"], Counter())[line["status"]] += 1
    found = []
    for line in steps:
        tally = ", ".join(f"{count} {status}" for status, count in counts.get(line["row"], Counter()).items())
        outcome = Outcome(line["row"], line["status"], line.get("seconds", 0.0), tally or line.get("detail", ""))
        found.append(step_line(outcome))
    return found


def step_line(outcome: Outcome) -> str:
    """Return one line on how a step ended."""
    return f"{outcome.step:12} {outcome.status:12} {outcome.seconds:6.1f} s  {outcome.detail}".rstrip()


def _pairs(rows: list[Line]) -> list[str]:
    return [f"{line['row']}: {line['value']}" for line in rows if "value" in line]


def _layers(rows: list[Line]) -> list[str]:
    measured = [line["found"] for line in rows if "found" in line]
    return gpu_summary.table(gpu_summary.classes(measured)) if measured else []


def _sums(rows: list[Line]) -> list[str]:
    """Return the lines that name the tensor cores' summation rules, as the probes found them."""
    return [f"{line['row']}: {_text(line)}" for line in rows if line["row"].startswith("sums of") and _text(line)]


def _sweep(rows: list[Line]) -> list[str]:
    found = learn.of(rows)
    return learn.brief(found) if found.times else []


_SECTIONS: dict[str, Callable[[list[Line]], Sequence[str]]] = {
    "environment": _pairs,
    "probes": _sums,
    "sweep": _sweep,
    "constants": _pairs,
    "layers": _layers,
    "chained": _pairs,
}


def _joined(sections: Sequence[Sequence[str]]) -> str:
    """Join the sections within `LARGEST` characters; sections that are too long lose their last lines."""
    cut = [[line[:_WIDTH] for line in section] for section in sections]
    room = LARGEST - 200
    text: list[str] = []
    for number, section in enumerate(cut):
        kept = []
        reserved = 300 * (len(cut) - number - 1)  # characters for a few lines of each later section
        for line in section:
            if room - len(line) - 1 < reserved:
                kept.append(f"... {len(section) - len(kept)} lines left out")
                break
            kept.append(line)
            room -= len(line) + 1
        text += ["", *kept] if text else kept
    return "\n".join(text)
