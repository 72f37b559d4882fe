"""Break the Python modules of gpuconv in every small way, many times at random, and see that the tests notice it.

`python -m tools.mutation.python --count 300 --seed 0` runs as many mutants, of `--modules 'cpu/*'` only if that
is given, and prints which survived, and the score. A mutant (`mutants`) is noticed where one of the tests that
`mutation_table` gives its module fails, or takes longer than the limit. Mutants known to compute the same, and
functions that only choose among ways that are all right, are listed, with reasons, in `python_equivalent`. The checkout
stays as it is: each mutant is written into a copy.

Left out are the shared cases, which are data; and, of `gpuconv/cuda`, floats and the model of time (`time_model`).
"""

from __future__ import annotations

import argparse
import ast
import importlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from tools.mutation import python_changes, time_model
from tools.mutation.mutation_table import TESTS
from tools.mutation.python_changes import Mutant
from tools.mutation.python_equivalent import CHOICES, EQUIVALENT, EXACT, FIELDS, SIZES

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60.0  # that the tests of one mutant may take
KILLED, TIMEOUT, SURVIVED, KNOWN = "noticed", "too slow, and so noticed", "not noticed", "known to be equivalent"
CHOICE = "not noticed, but only a choice"
WRONG = "noticed, though listed as equivalent"
_DATA = ("rules/cases.py",)
_WARM = ("numpy", "ml_dtypes", "pytest", "onnx", "onnx.reference")
_OPTIONS = (
    "-x",
    "-q",
    "--no-header",
    "--durations=25",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "--hypothesis-seed=0",
)


@dataclass(frozen=True)
class Target:
    """A mutant and its module, named from the package's folder on."""

    module: str
    mutant: Mutant

    @property
    def name(self) -> str:
        return f"{self.module} {self.mutant.name}"


# ---------------------------------------------------------------- which


def modules() -> list[str]:
    """Every module whose mutants are run."""
    package = ROOT / "gpuconv"
    found = sorted(path.relative_to(package).as_posix() for path in package.rglob("*.py"))
    return [module for module in found if module not in _DATA]


@cache
def targets(module: str) -> list[Target]:
    """Every mutant of a module."""
    made = python_changes.mutants(_trees()[module], _model().__contains__, floats=not module.startswith("cuda/"))
    return [Target(module, mutant) for mutant in made]


@cache
def _trees() -> dict[str, ast.Module]:
    return {module: ast.parse((ROOT / "gpuconv" / module).read_text()) for module in modules()}


@cache
def _model() -> set[ast.AST]:
    return time_model.nodes(_trees())


def tests_of(module: str) -> tuple[str, ...]:
    """Return the tests of a module: those of the first pattern that it matches."""
    return next(tests for pattern, tests in TESTS.items() if fnmatch(module, pattern))


def chosen(count: int, seed: int, patterns: Sequence[str]) -> list[Target]:
    """Return so many mutants at random, any as likely as any other."""
    matching = [m for m in modules() if any(fnmatch(m, pattern.removeprefix("gpuconv/")) for pattern in patterns)]
    every = [target for module in matching for target in targets(module)]
    return Random(seed).sample(every, min(count, len(every)))


# ---------------------------------------------------------------- the copy


@contextmanager
def working_copy() -> Iterator[Path]:
    """Make a copy of the checkout the working directory, from which Python imports gpuconv, here and in processes."""
    before, variables = Path.cwd(), dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="gpuconv-mutants-") as folder:
        root = Path(folder).resolve() / "checkout"
        root.mkdir()
        for path in ROOT.iterdir():
            if path.name in ("gpuconv", "tests", "tools"):
                shutil.copytree(path, root / path.name)  # with what is compiled of it: all else need not be again
            elif not path.name.startswith("."):
                (root / path.name).symlink_to(path)
        os.chdir(root)
        os.environ.update(PYTHONPATH=str(root), OPENBLAS_NUM_THREADS="1", GPUCONV_REQUIRE_EMULATOR="1")
        try:
            yield root
        finally:
            os.chdir(before)
            os.environ.clear()
            os.environ.update(variables)


@contextmanager
def written(target: Target, root: Path) -> Iterator[None]:
    """Put a mutant in its module's place meanwhile; nothing compiled before or then is found afterwards."""
    path = root / "gpuconv" / target.module
    whole = path.read_text()
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()
    path.write_text(target.mutant.text())
    try:
        yield
    finally:
        path.write_text(whole)


@contextmanager
def own_cache(root: Path, usual: Path) -> Iterator[None]:
    """Give the kernels that a mutant compiles a folder of their own, in which those of the whole package are too."""
    with tempfile.TemporaryDirectory(dir=root.parent) as folder:
        shutil.copytree(usual, folder, copy_function=_linked, dirs_exist_ok=True)
        os.environ["GPUCONV_CACHE_DIR"] = folder
        yield


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # on another file system
        shutil.copy2(source, target)


def usual_cache() -> Path:
    """Return the folder of compiled kernels that gpuconv has here; it is asked in a process, where it may be loaded."""
    words = "from gpuconv.cuda.build import cache; print(cache.folder() or '')"
    found = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True).stdout.strip()
    return Path(found) if found else Path(tempfile.mkdtemp(dir=Path.cwd().parent))


# ---------------------------------------------------------------- running tests


def warm() -> None:
    """Import what tests need and no mutant changes: every process that is forked from this one has it."""
    for name in _WARM:
        importlib.import_module(name)


def run_tests(tests: Sequence[str], log: Path, limit: float | None, keep_compiled: bool = False) -> int | None:
    """Run tests in a process of their own; return its exit status, or None where it took too long and was ended."""
    process = multiprocessing.get_context("fork").Process(target=_pytest, args=(tests, log, keep_compiled))
    process.start()
    process.join(limit)
    if process.exitcode is None:
        os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
        return None
    return process.exitcode


def _pytest(tests: Sequence[str], log: Path, keep_compiled: bool) -> None:
    os.setsid()  # those that tests start are ended with it
    sys.dont_write_bytecode = not keep_compiled
    os.environ["PYTHONDONTWRITEBYTECODE"] = "" if keep_compiled else "1"
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    root = os.environ["PYTHONPATH"]
    sys.path[:] = [root, *(entry for entry in sys.path if Path(entry).resolve() != ROOT)]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:  # the copy has its own
        del sys.modules[name]
    import pytest

    files = dict.fromkeys(f"tests/{test.split()[0]}" for test in tests)
    os._exit(pytest.main([*_OPTIONS, *files], [Selection(tests)]))


class Selection:
    """A pytest plugin that keeps, of each file, the tests that the words after its name in the table mean."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.words: defaultdict[str, list[list[str]]] = defaultdict(list)
        for test in tests:
            file, *words = (word.replace("%", " ") for word in test.split())
            self.words[file].append(words)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if any(self._mean(words, item) for words in self.words[file_of(item)])]

    def _mean(self, words: Sequence[str], item: pytest.Item) -> bool:
        wanted = [word for word in words if not word.startswith("-")]
        if any(word[1:] in item.name for word in words if word.startswith("-")):
            return False
        return any(word in item.name for word in wanted) if wanted else _is_cheap(item)


def _is_cheap(item: pytest.Item) -> bool:
    """Tell whether a test runs no kernels, or none that do anything."""
    return "sent" in getattr(item, "fixturenames", ()) or not any(map(item.get_closest_marker, ("emulator", "gpu")))


def file_of(item: pytest.Item) -> str:
    """Return a test's file, from the folder of the tests on."""
    return item.nodeid.partition("::")[0].removeprefix("tests/")


def check_baseline(wanted: Iterable[str], root: Path) -> None:
    """Run the tests on the package as it is; leave where they fail, since nothing can be told by them."""
    log = root.parent / "baseline.txt"
    if run_tests(list(dict.fromkeys(wanted)), log, None, keep_compiled=True) != 0:
        sys.exit(f"{log.read_text()}\nThe tests fail without any mutant.")


def verdict(target: Target, root: Path, usual: Path) -> tuple[str, float]:
    """Return what becomes of a mutant, and the seconds that it took."""
    start = time.monotonic()
    with written(target, root), own_cache(root, usual):
        status = run_tests(tests_of(target.module), root.parent / "log.txt", SECONDS)
    return _judged(target, status), time.monotonic() - start


def _judged(target: Target, status: int | None) -> str:
    known = target.name in KNOWN_NAMES or rounds_nothing(target) or divides_as_before(target)
    if status is None:  # which says nothing of a mutant that computes the same
        return KNOWN if known else TIMEOUT
    if status:
        return WRONG if known else KILLED
    choice = target.name.startswith(CHOOSING) or only_takes_time(target) or only_copies(target)
    return KNOWN if known else CHOICE if choice else SURVIVED


def rounds_nothing(target: Target) -> bool:
    """Tell whether a mutant rounds up what is a whole number anyway."""
    old, new = target.mutant.place.node, target.mutant.new
    exact = any(ast.unparse(old) in divisions.get(target.module, ()) for divisions in EXACT.values())
    return exact and ast.dump(new) == ast.dump(python_changes.rounded_up(old))


def divides_as_before(target: Target) -> bool:
    """Tell whether a mutant divides the next number by an element's bytes, of which there are two or more."""
    place, new = target.mutant.place, target.mutant.new
    if target.module.startswith("cuda/pool") or place.field != "left" or not isinstance(new, ast.Constant):
        return False
    return ast.unparse(place.parent) in EXACT[SIZES].get(target.module, ()) and new.value == place.node.value + 1


def only_takes_time(target: Target) -> bool:
    """Tell whether a mutant changes a field of a row of a table, or an argument, that settles the time alone."""
    place = target.mutant.place
    given = (node for node in ast.walk(place.statement) if isinstance(node, ast.Call))
    return any(place.node is node for call in given for value in _of_time(call) for node in ast.walk(value))


def _of_time(call: ast.Call) -> Iterator[ast.expr]:
    yield from (keyword.value for keyword in call.keywords if keyword.arg in FIELDS)
    one = ast.unparse(call.func)
    named = zip(_fields().get(one, ()), call.args, strict=False)
    yield from (value for name, value in named if name in FIELDS or f"{one}.{name}" in FIELDS)


@cache
def _fields() -> dict[str, list[str]]:
    """Return the names of the fields of every class."""
    classes = (node for tree in _trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return {
        one.name: [
            line.target.id for line in one.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        ]
        for one in classes
    }


def only_copies(target: Target) -> bool:
    """Tell whether a mutant copies what could stay where it is."""
    parent, new = target.mutant.place.parent, target.mutant.new
    return (
        isinstance(parent, ast.keyword) and parent.arg == "copy" and isinstance(new, ast.Constant) and new.value is True
    )


KNOWN_NAMES = {name for names in EQUIVALENT.values() for name in names}
# How the names begin of mutants of functions, or of constants of a module.
CHOOSING = tuple(one + (" = " if ": " in one else ": ") for names in CHOICES.values() for one in names)


# ---------------------------------------------------------------- the command


def report(picked: Sequence[Target], baseline: bool = True, jobs: int = 1) -> int:
    """Run mutants, print what becomes of them, and return how many survive."""
    warm()
    if baseline:
        with working_copy() as root:
            check_baseline((test for target in picked for test in tests_of(target.module)), root)
    verdicts: Counter[str] = Counter()
    for number, (name, found, seconds) in enumerate(_judged_by(picked, jobs), 1):
        verdicts[found] += 1
        print(f"{number:4} {seconds:5.1f} s  {found}: {name}", flush=True)
    judged = len(picked) - verdicts[KNOWN] - verdicts[CHOICE]
    noticed = verdicts[KILLED] + verdicts[TIMEOUT]
    print(*(f"{count} {found}" for found, count in verdicts.most_common()), sep=", ")
    print(f"score: {noticed} of {judged} that are not equivalent, {noticed / max(1, judged):.1%}")
    return len(picked) - verdicts.total() + verdicts[SURVIVED] + verdicts[WRONG]


def _judged_by(picked: Sequence[Target], jobs: int) -> Iterator[tuple[str, str, float]]:
    """Yield name, verdict and seconds of every mutant as they come from so many processes."""
    context = multiprocessing.get_context("fork")
    results: Any = context.SimpleQueue()
    workers = [context.Process(target=_judge, args=(picked[first::jobs], results)) for first in range(jobs)]
    for worker in workers:
        worker.start()
    working = jobs
    while working:
        result = results.get()
        if result is None:
            working -= 1
        else:
            yield result
    for worker in workers:
        worker.join()


def _judge(picked: Sequence[Target], results: Any) -> None:
    try:
        with working_copy() as root:
            usual = usual_cache()
            for target in picked:
                results.put((target.name, *verdict(target, root, usual)))
    finally:
        results.put(None)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="mutants to run (300)")
    parser.add_argument("--seed", type=int, default=0, help="of the choice (0)")
    parser.add_argument("--modules", nargs="+", default=["*"], metavar="PATTERN", help="of modules, such as 'cpu/*'")
    parser.add_argument("--named", metavar="TEXT", help="only mutants in whose names this occurs")
    parser.add_argument("--list", action="store_true", help="print the names, and run nothing")
    parser.add_argument("--jobs", type=int, default=1, help="processes that run them (1)")
    parser.add_argument("--no-baseline", action="store_true", help="do not see first that the tests pass")
    return parser.parse_args()


def main() -> int:
    options = _parsed()
    picked = chosen(sys.maxsize if options.named else options.count, options.seed, options.modules)
    if options.named:
        picked = [target for target in picked if options.named in target.name]
    if options.list:
        print(*(target.name for target in picked), sep="\n")
        return 0
    return min(1, report(picked, not options.no_baseline, options.jobs))


if __name__ == "__main__":
    sys.exit(main())
