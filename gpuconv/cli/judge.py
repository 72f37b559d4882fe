"""``gpuconv suite`` and ``gpuconv judge``: named cases as data, and whether an implementation agrees with them."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from gpuconv.cli.terminal import CommandError, Progress, as_json, table

Subparsers = Any  # argparse has no public name for it

_LIMIT = 20.0  # seconds for a test
_COLUMNS = ("agrees", "differs", "inconsistent", "wrong", "refuses", "crashes", "hangs")
_SHOWN = 20
_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


def add(commands: Subparsers, seed: Callable[[str], int], positive: Callable[[str], int]) -> None:
    """Add the two commands to the parser."""
    about = (
        "Write the conformance suite of Conv, ConvTranspose, MaxPool, AveragePool and MaxUnpool in ONNX's test layout."
    )
    suite = commands.add_parser("suite", help="write the conformance suite as data", description=about)
    suite.add_argument("--output", metavar="DIR", required=True, help="a new or an empty folder")
    _add_sweep(suite, seed, positive)
    suite.set_defaults(command=_suite)

    about = (
        "Run the suite against an implementation; returns 1 if anything is wrong, crashes or hangs, or all is refused."
    )
    judge = commands.add_parser("judge", help="judge another implementation", description=about)
    judge.add_argument("target", metavar="TARGET", nargs="?", help="--list shows them")
    judge.add_argument("--list", action="store_true", help="list the targets")
    judge.add_argument("--suite", metavar="DIR", help="a suite that is there already (default: one is written)")
    judge.add_argument("--filter", default="", metavar="TEXT", help="only tests whose name contains TEXT")
    judge.add_argument("--report", metavar="DIR", help="write report.md, and a program for each finding")
    judge.add_argument("--time-limit", type=_seconds, default=_LIMIT, metavar="S", help="for a test (default: 20)")
    judge.add_argument("-j", "--jobs", type=positive, default=1, metavar="N", help="processes at once (default: 1)")
    judge.add_argument("--json", action="store_true", help="print JSON")
    _add_sweep(judge, seed, positive)
    judge.set_defaults(command=_judge)


def _add_sweep(parser: argparse.ArgumentParser, seed: Callable[[str], int], positive: Callable[[str], int]) -> None:
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="of the combinations (default: 0)")
    parser.add_argument(
        "--count", type=positive, metavar="N", help="how many combinations (default: until all pairs are there)"
    )


def _seconds(text: str) -> float:
    try:
        number = float(text) if text.isascii() else 0.0  # digits of other scripts are numbers for Python
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return number


def _need_onnx(command: str) -> None:
    try:
        import ml_dtypes  # noqa: F401
        import onnx  # noqa: F401
    except ImportError as error:
        raise CommandError(f"{command}: {error.name} is not installed (pip install 'gpuconv[onnx]')") from None


def _suite(arguments: argparse.Namespace) -> int:
    _need_onnx("suite")
    folder = Path(arguments.output)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CommandError(f"suite: --output {folder} is there already and no empty folder")
    written = _write(folder, arguments)
    print(f"{written.tests} tests, {written.size / 1e6:.1f} MB, in {folder}")
    print(f"sha256 {written.digest}")
    return 0


def _write(folder: Path, arguments: argparse.Namespace) -> Any:
    from gpuconv.judge import suite

    with Progress() as progress:
        return suite.write(folder, arguments.seed, arguments.count, lambda name: progress.show(f"writing {name}"))


def _judge(arguments: argparse.Namespace) -> int:
    from gpuconv.judge.adapters import TARGETS

    if arguments.list:
        print(table(["target", ""], [[name, text] for name, text in TARGETS.items()], left=2))
        return 0
    _check_target(arguments.target, TARGETS)
    _need_onnx("judge")
    with _ended_by_signals():
        return _judged_suite(arguments)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let what would end this process at once end it in order, so that no process of the target stays behind."""
    if threading.current_thread() is not threading.main_thread():  # the only one that may set handlers
        yield
        return
    before = {number: signal.signal(number, _leave) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _judged_suite(arguments: argparse.Namespace) -> int:
    from gpuconv.judge import runner

    if arguments.suite is not None:
        if arguments.seed or arguments.count is not None:
            raise CommandError(
                "judge: --seed and --count are of a suite that is written; --suite names one that is there"
            )
        with _named(arguments.target):
            tests = _tests(Path(arguments.suite), arguments.filter)
            return _judged(tests, runner.version(arguments.target), arguments)
    with _named(arguments.target), tempfile.TemporaryDirectory() as temporary:
        version = runner.version(arguments.target)  # before a suite is written for it
        _write(Path(temporary), arguments)
        return _judged(_tests(Path(temporary), arguments.filter), version, arguments)


def _check_target(target: str | None, known: Any) -> None:
    if target is None:
        raise CommandError("judge: a TARGET is missing (gpuconv judge --list shows them)")
    kind, _, option = target.partition(":")
    if kind not in known:
        raise CommandError(f"judge: there is no target {kind!r}, only {', '.join(known)}")
    if kind in ("backend", "command") and not option:
        raise CommandError(f"judge: {kind} needs more: {known[kind].partition(',')[0]}")


@contextmanager
def _named(target: str) -> Iterator[None]:
    """Let a target that is missing, and a test that is damaged, end the command with one line."""
    from gpuconv.judge import runner, verdicts

    try:
        yield
    except runner.TargetMissing as error:
        raise CommandError(f"judge: {target} cannot be judged here: {error}") from None
    except verdicts.DamagedTest as error:
        raise CommandError(f"judge: the suite is damaged: {error}") from None


def _judged(suite: tuple[list[Any], dict[str, Any]], version: str, arguments: argparse.Namespace) -> int:
    from gpuconv.judge import report, runner, verdicts

    tests, about = suite
    with Progress() as progress:
        done: Counter[str] = Counter()

        def show(outcome: runner.Outcome) -> None:
            done[outcome.verdict.kind] += 1
            progress.show(f"{done.total()}/{len(tests)} {outcome.test.folder.name}: {outcome.verdict.kind}")

        outcomes = runner.run(arguments.target, tests, arguments.time_limit, arguments.jobs, show)
    found = report.findings(outcomes, _problems(about, outcomes))
    if arguments.report is not None:
        text = f"Suite of seed {about['seed']}, {len(tests)} tests."
        report.write(Path(arguments.report), arguments.target, version, text, outcomes, found)
    if arguments.json:
        print(as_json(report.facts(arguments.target, version, {**about, "tests": len(tests)}, outcomes, found)))
    else:
        _print(version, outcomes, found)
    kinds = {outcome.verdict.kind for outcome in outcomes}
    if kinds == {verdicts.REFUSES}:
        print(f"nothing was judged: every test was refused, the first by {outcomes[0].verdict.reason}", file=sys.stderr)
    return 1 if kinds == {verdicts.REFUSES} or kinds & set(verdicts.FAILURES) else 0


def _tests(folder: Path, wanted: str) -> tuple[list[Any], dict[str, Any]]:
    from gpuconv.judge.verdicts import Test

    try:
        about = json.loads((folder / "suite.json").read_text())
    except (OSError, ValueError) as error:
        raise CommandError(f"judge: {folder} is no suite ({error})") from None
    names = about.pop("tests", None) if isinstance(about, dict) else None
    if (
        not isinstance(names, list)
        or not all(isinstance(name, str) for name in names)
        or not {"seed", "sweep"} <= {*about}
    ):
        raise CommandError(f"judge: {folder} is no suite (suite.json lacks a list of tests, seed or sweep)")
    tests = [Test(folder / name) for name in names if wanted in name]
    if not tests:
        raise CommandError(f"judge: no test's name contains {wanted!r}")
    for test in tests:
        test.check()
    return tests, about


def _problems(about: dict[str, Any], outcomes: list[Any]) -> dict[str, Any]:
    """Make the problems of the suite anew where a wrong answer is to be explained."""
    from gpuconv.judge import suite

    if not any(outcome.got for outcome in outcomes):
        return {}
    return {problem.name: problem for problem in suite.problems(about["seed"], about["sweep"])}


def _print(version: str, outcomes: list[Any], found: list[Any]) -> None:
    from gpuconv.judge import report

    counts, refused = report.by_rule(outcomes), report.refusals(outcomes)
    total: Counter[str] = sum(counts.values(), Counter())
    shown = [kind for kind in _COLUMNS if total[kind]]
    rows = [["rule", "status", *shown, "mostly refused for" if refused else ""]]
    for (rule, status), each in counts.items():
        rows.append([rule, status, *(str(each[kind] or "") for kind in shown), refused.get(rule, "")])
    widest = max(len(row[-1]) for row in rows)
    head, *rest = [[*row[:-1], row[-1].ljust(widest)] for row in rows]
    print(table(head, rest, left=2))
    for finding in found[:_SHOWN]:
        why = f"; equals {finding.explanation}" if finding.explanation else ""
        print(f"{report.title(finding)}: {finding.outcome.verdict.reason}{why} [{finding.outcome.test.folder.name}]")
    if len(found) > _SHOWN:
        print(f"… and {len(found) - _SHOWN} more findings; --report DIR writes all of them")
    print(f"{version}: {total.total()} tests, " + ", ".join(f"{total[kind]} {kind}" for kind in _COLUMNS))
