"""``gpuconv suite`` writes the conformance suite; ``gpuconv judge`` runs it against an implementation."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

from gpuconv.cli import judge_filters, judge_results, judge_suites
from gpuconv.cli.terminal import CommandError, Progress, as_json, table

Subparsers = Any  # argparse has no public name for it

_LIMIT = 20.0  # seconds for a test
_FAILED = 1  # exit code; CommandError's is 2
_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


def add(commands: Subparsers, seed: Callable[[str], int], positive: Callable[[str], int]) -> None:
    """Add the two commands to the parser."""
    about = (
        "Write the conformance suite of Conv, ConvTranspose, MaxPool, AveragePool and MaxUnpool in ONNX's test layout."
    )
    suite = commands.add_parser("suite", help="write the conformance suite as data", description=about)
    suite.add_argument("--output", metavar="DIR", required=True, help="a new or an empty folder")
    suite.add_argument("--zip", action="store_true", help="also write DIR.zip, the same bytes for the same suite")
    judge_filters.add(suite)
    _add_sweep(suite, seed, positive)
    suite.set_defaults(command=_suite)

    about = (
        "Run the suite against an implementation. The exit code is 1 if any test is wrong, inconsistent, crashes or "
        "hangs, 2 if the target or the suite is broken or every test is refused, and 0 otherwise."
    )
    judge = commands.add_parser("judge", help="judge another implementation", description=about)
    judge.add_argument("target", metavar="TARGET", nargs="?", help="--list shows them")
    judge.add_argument("--list", action="store_true", help="list the targets")
    judge.add_argument("--suite", metavar="DIR", help="a suite that is there already (default: written once, cached)")
    judge_filters.add(judge)
    _add_claims(judge)
    _add_results(judge)
    judge.add_argument("--time-limit", type=_seconds, default=_LIMIT, metavar="S", help="for a test (default: 20)")
    judge.add_argument("-j", "--jobs", type=positive, default=1, metavar="N", help="processes at once (default: 1)")
    _add_sweep(judge, seed, positive)
    judge.set_defaults(command=_judge)


def _add_claims(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--precision", choices=["tf32"], help="the target claims to round factors of float32 products so: that agrees"
    )
    parser.add_argument(
        "--accumulate", choices=["float16", "bfloat16"], help="the target claims to sum this type in itself"
    )


def _add_results(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strict", action="store_true", help="count what differs as a failure, too")
    parser.add_argument(
        "--expected-failures",
        metavar="FILE",
        help="tests and their verdicts; the exit code is 1 only for failures that are not in FILE",
    )
    parser.add_argument("--update-expected", action="store_true", help="write --expected-failures from this run")
    parser.add_argument("--junit", metavar="FILE", help="write the results as JUnit's XML")
    parser.add_argument("--report", metavar="DIR", help="write report.md, and a program for each finding")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_sweep(parser: argparse.ArgumentParser, seed: Callable[[str], int], positive: Callable[[str], int]) -> None:
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="of the combinations (default: 0)")
    parser.add_argument(
        "--count", type=positive, metavar="N", help="how many combinations (default: until all pairs are there)"
    )


def _seconds(text: str) -> float:
    try:
        number = float(text) if text.isascii() else 0.0  # Python also reads digits of other scripts
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
        extra = "judge" if command == "judge" else "onnx"
        raise CommandError(f"{command}: {error.name} is not installed (pip install 'gpuconv[{extra}]')") from None


# ---------------------------------------------------------------- gpuconv suite


def _suite(arguments: argparse.Namespace) -> int:
    folder = Path(arguments.output)
    with Progress(lines=True) as progress:
        progress.show("importing onnx")
        _need_onnx("suite")
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise CommandError(f"suite: --output {folder} is there already and no empty folder")
        filters = judge_filters.of(arguments)
        written = judge_suites.written(folder, arguments, filters, "suite", progress.show)
        progress.show("writing the ZIP file")
        archive = judge_suites.zipped(folder.absolute()) if arguments.zip else None
    print(f"{written.tests} tests, {written.size / 1e6:.1f} MB, in {folder}")
    if archive is not None:
        print(f"{archive.stat().st_size / 1e6:.1f} MB in {archive}")
    print(f"sha256 {written.digest}")
    return 0


# ---------------------------------------------------------------- gpuconv judge


def _judge(arguments: argparse.Namespace) -> int:
    from gpuconv.judge.adapters import ALIASES, TARGETS

    if arguments.list:
        print(table(["target", ""], [[name, text] for name, text in TARGETS.items()], left=2))
        return 0
    arguments.target = _target(arguments.target, TARGETS, ALIASES)
    _check_arguments(arguments)
    with _ended_by_signals():
        return _judged_suite(arguments)


def _target(target: str | None, known: Any, aliases: Any) -> str:
    if target is None:
        raise CommandError("judge: a TARGET is missing (gpuconv judge --list shows them)")
    kind, colon, option = target.partition(":")
    kind = aliases.get(kind, kind)
    if kind not in known:
        raise CommandError(f"judge: there is no target {kind!r}, only {', '.join(known)}")
    if kind in ("backend", "command", "command-stream") and not option.strip():
        raise CommandError(f"judge: {kind} needs more: {known[kind].partition(',')[0]}")
    return f"{kind}{colon}{option}"


def _check_arguments(arguments: argparse.Namespace) -> None:
    if arguments.suite is not None and (arguments.seed or arguments.count is not None):
        raise CommandError("judge: --seed and --count are of a suite that is written; --suite names one that is there")
    if arguments.update_expected and arguments.expected_failures is None:
        raise CommandError("judge: --update-expected needs --expected-failures FILE")
    for option, path in (("--expected-failures", arguments.expected_failures), ("--junit", arguments.junit)):
        if path is not None and not Path(path).absolute().parent.is_dir():
            raise CommandError(f"judge: {option} {path}: there is no folder {Path(path).absolute().parent}")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Turn signals that end this process into SystemExit, so that the target's processes are killed, too."""
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
    """Judge the target, print the results and return the exit code."""
    with Progress(lines=True) as progress:
        progress.show("importing onnx")
        _need_onnx("judge")
        text, outcomes, comparison, incomplete = _results(arguments, progress)
    print(text)
    return _finished(arguments, outcomes, comparison, incomplete)


def _results(arguments: argparse.Namespace, progress: Progress) -> tuple[str, list[Any], judge_results.Comparison, str]:
    """Read the suite if one is given, start the target, write the suite if none is given, then judge.

    Returns
    -------
    tuple
        The text to print, the outcomes, their comparison with the expected failures, and why the run is incomplete
        (empty where it is complete).
    """
    from gpuconv.judge import runner

    expected, filters, incomplete = _expected(arguments), judge_filters.of(arguments), ""
    with _one_line_errors(arguments.target):
        given = None if arguments.suite is None else judge_suites.given(Path(arguments.suite), filters, progress.show)
        progress.show(f"importing {arguments.target}")
        worker = runner.Worker(arguments.target)
        try:
            opened = judge_suites.opened(arguments, filters, progress.show) if given is None else nullcontext(given)
            with opened as (tests, about):
                try:
                    outcomes = _run(arguments, worker, tests, progress)
                except runner.Incomplete as error:
                    outcomes, incomplete = error.outcomes, str(error)
                comparison = judge_results.compared(outcomes, expected, arguments.strict)
                progress.show("looking for explanations")
                text = _reported(arguments, worker.version, about, outcomes, comparison, progress.show)
        finally:
            worker.end()
    return text, outcomes, comparison, incomplete


def _run(arguments: argparse.Namespace, worker: Any, tests: Sequence[Any], progress: Progress) -> list[Any]:
    from gpuconv.judge import runner

    done: Counter[str] = Counter()
    claims = {name: getattr(arguments, name) for name in ("precision", "accumulate")}

    def show(outcome: runner.Outcome) -> None:
        done[outcome.verdict.kind] += 1
        progress.show(f"{done.total()}/{len(tests)} {outcome.test.folder.name}: {outcome.verdict.kind}")

    progress.show(f"0/{len(tests)}")
    given = {name: value for name, value in claims.items() if value is not None}
    return runner.run(arguments.target, tests, arguments.time_limit, arguments.jobs, show, worker, given)


def _expected(arguments: argparse.Namespace) -> judge_results.Failures:
    """Read the expected failures; with --update-expected the file may be missing."""
    path = arguments.expected_failures
    if path is None or (arguments.update_expected and not os.path.exists(path)):
        return {}
    return judge_results.read_expected(Path(path))


@contextmanager
def _one_line_errors(target: str) -> Iterator[None]:
    """Turn a missing target and a damaged test into errors of one line."""
    from gpuconv.judge import runner, verdicts
    from gpuconv.judge.adapters import PACKAGES

    try:
        yield
    except runner.TargetMissing as error:
        package = PACKAGES.get((error.module or "").partition(".")[0])
        advice = f" (pip install {package})" if package is not None else ""
        raise CommandError(f"judge: {target} cannot be judged here: {error}{advice}") from None
    except verdicts.DamagedTest as error:
        raise CommandError(f"judge: the suite is damaged: {error}") from None


def _reported(
    arguments: argparse.Namespace,
    version: str,
    about: dict[str, Any],
    outcomes: Sequence[Any],
    comparison: judge_results.Comparison,
    show: Callable[[str], None],
) -> str:
    """Write the requested files and return the text to print."""
    from gpuconv.judge.findings import report

    found = report.findings(outcomes, _problems(about, outcomes))
    if arguments.report is not None:
        found = report.with_programs(arguments.target, version, found, arguments.time_limit, show)
        text = f"Suite of seed {about['seed']}, {len(outcomes)} tests."
        report.write(Path(arguments.report), version, text, outcomes, found)
    if arguments.junit is not None:
        judge_results.write_junit(Path(arguments.junit), version, outcomes, comparison)
    if not arguments.json:
        return "\n".join(judge_results.lines(version, outcomes, found))
    facts = report.facts(arguments.target, version, {**about, "tests": len(outcomes)}, outcomes, found)
    facts["failures by status"] = judge_results.by_status(outcomes)
    if arguments.expected_failures is not None:
        facts["expected failures"] = {"new": comparison.new, "fixed": comparison.fixed}
    return as_json(facts)


def _problems(about: dict[str, Any], outcomes: Sequence[Any]) -> dict[str, Any]:
    """Return the suite's problems by name, which explanations of wrong answers need."""
    from gpuconv.judge import suite

    if not any(outcome.got for outcome in outcomes):
        return {}
    return {problem.name: problem for problem in suite.problems(about["seed"], about["sweep"])}


def _finished(
    arguments: argparse.Namespace, outcomes: Sequence[Any], comparison: judge_results.Comparison, incomplete: str
) -> int:
    """Compare with the expected failures, and return the exit code."""
    from gpuconv.judge.verdicts import REFUSES

    if incomplete:
        raise CommandError(f"judge: {incomplete}")
    if all(outcome.verdict.kind == REFUSES for outcome in outcomes):
        reason = outcomes[0].verdict.reason
        raise CommandError(f"judge: nothing was judged: every test was refused, the first for: {reason}")
    if arguments.expected_failures is not None:
        path = Path(arguments.expected_failures)
        if arguments.update_expected:
            judge_results.write_expected(path, comparison, _not_run(arguments, path, outcomes))
        text = judge_results.about_expected(comparison, path, arguments.update_expected)
        print("\n".join(text), file=sys.stderr if arguments.json else sys.stdout)
    return _FAILED if comparison.new and not arguments.update_expected else 0


def _not_run(arguments: argparse.Namespace, path: Path, outcomes: Sequence[Any]) -> judge_results.Failures:
    """Return the expected failures of tests that the filters left out."""
    if judge_filters.of(arguments).is_empty or not path.exists():
        return {}
    run = {outcome.test.folder.name for outcome in outcomes}
    return {name: kind for name, kind in judge_results.read_expected(path).items() if name not in run}
