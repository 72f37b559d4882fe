"""Which tests a whole run takes: those that a change can break, and of the remaining ones one in twelve, in turns.

``tests/proven.json`` holds fingerprints (SHA-256) of the working tree for which all tests have passed. Quick tests and
those marked ``every_run`` always run. Any other test runs if

* its own module differs from the recorded one;
* it is marked ``@pytest.mark.kernels("conv/gemm/conv.cu")`` (files of ``kernels_cu``, or patterns such as ``pool/*``),
  and one of these kernels differs: a launch of it (source, struct, grid, block, shared memory, workspace, roles of
  arrays, candidate) in any small problem of `tests.kernels.small`, or the Python that plans it;
* it has no such mark, and one of the `ROOMS` that its module uses differs, the package itself first of all;
* it is its turn: another twelfth of the tests for every commit and every change of the working tree.

Tests of kernels that are also marked ``thorough`` have no turn, and run where their kernels or modules have changed.
Everything but these runs where the record does not apply: what tests are judged by differs (oracle, emulator, fixtures,
or the versions of `PACKAGES`), or there is no git repository to take turns by. Comments and docstrings never count.

Selection is for whole runs: a run of a file, a folder, ``-k`` or ``-m`` takes all of what it names. ``--all`` takes all
tests, and the thorough ones of kernels. ``--record`` writes ``tests/proven.json`` if nothing fails: what has changed
since the last record ran in full, and what has not is proven already.
"""

from __future__ import annotations

import ast
import fnmatch
import hashlib
import json
import re
import subprocess
import sys
import zlib
from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from gpuconv.cuda import variants
from gpuconv.cuda.build import kernel_files, sources
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.plan.launch import Launch
from tests.harness.imports import imported, modules
from tests.kernels import small

ROOT = Path(__file__).resolve().parents[1]
RECORD = Path(__file__).with_name("proven.json")
TURNS = 12
EMULATOR = "emulated_cuda"  # what tests of the emulated device prove, named beside files of kernels_cu

# Steps of ``.ci/run`` that are due where one of these files has changed, and else for one in `RARELY` commits.
STEPS = {
    "visit": ("gpuconv/cuda/call/*.py", "benchmarks/**/*.py", "emulated_cuda/src/**/*"),
    "mutation": ("tools/mutation/**/*",),
}
RARELY = 6
# What tests are judged by, and what all of them share: a change of one of these files may change any verdict.
JUDGES = (
    *("tests/*.py", *(f"tests/{folder}/**/*.py" for folder in ("oracle", "harness", "emulator", "kernels"))),
    *("emulated_cuda/src/**/*", "gpuconv/judge/definition.py", "benchmarks/small_shapes.py", "pyproject.toml"),
)
PACKAGES = ("cupy-cuda13x", "nvidia-cuda-nvrtc", "numpy", "onnx", "ml_dtypes")
# Parts of the repository that tests use: the package, whose parts import each other, for all of them, and each other
# part for the test modules whose text has its name.
PACKAGE = "gpuconv"
_APART = ("judge", "testing", "dask", "compat")  # parts that the remaining package imports when called only
ROOMS = {
    PACKAGE: ("gpuconv/**/*.py", "gpuconv_*.py"),
    **{name: (f"gpuconv/{name}/**/*",) for name in _APART},
    "testing": ("gpuconv/testing/**/*", "gpuconv/judge/**/*"),
    **{name: (f"{name}/**/*",) for name in ("benchmarks", "examples", "tools")},
    "docs": ("docs/*", "docs/_static/*", "docs/pictures/**/*"),
}
PYTHON = re.compile(
    r'''("""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\'|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|#[^\n]*''',
    re.DOTALL,
)  # a string, which stays, or a comment
_COMMENT = re.compile(r"""//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*")""", re.DOTALL)


@dataclass(frozen=True)
class Fingerprints:
    """SHA-256 of what decides about tests, comments and docstrings left out.

    Attributes
    ----------
    revision : the commit that they are of, or of which they are a change.
    judges : of `JUDGES` and of the versions of `PACKAGES`.
    kernels : of each file of kernels_cu that kernels are made of, by its path from there on.
    tests : of each module of tests with the helpers beside it, by its path from the root on.
    rooms : of each of `ROOMS`.
    steps : of each of `STEPS`.
    """

    revision: str
    judges: str
    steps: Mapping[str, str]
    rooms: Mapping[str, str]
    kernels: Mapping[str, str]
    tests: Mapping[str, str]


@dataclass(frozen=True)
class Choice:
    """What a run takes, and why; it is sent to the processes of pytest-xdist as JSON.

    Attributes
    ----------
    everything : why all tests run but thorough ones whose kernels have not changed; empty: not all do.
    kernels : the files of kernels_cu that differ from the record.
    tests : the modules of tests that do.
    rooms : those of `ROOMS` that do.
    turn : from 0 to `TURNS` - 1; the tests of which number have their turn.
    revision : that the record is of.
    """

    everything: str = ""
    kernels: frozenset[str] = frozenset()
    tests: frozenset[str] = frozenset()
    rooms: frozenset[str] = frozenset()
    turn: int = 0
    revision: str = ""

    def takes(self, item: pytest.Item) -> bool:
        """Return whether a run takes a test; of thorough ones those of changed kernels only."""
        kernels = proves(item)
        used = any(map(self.changed, kernels)) if kernels else bool(self.rooms & rooms_of(item.path))
        if used or module_of(item) in self.tests:
            return True
        return item.get_closest_marker("thorough") is None and (runs_always(item) or self.takes_turn(item.nodeid))

    def changed(self, pattern: str) -> bool:
        """Tell whether a file of kernels_cu that a pattern names differs from the record."""
        return bool(fnmatch.filter(self.kernels, pattern))

    def takes_turn(self, name: str) -> bool:
        """Tell whether it is the turn of what has this name, or every turn is."""
        return bool(self.everything) or zlib.crc32(name.encode()) % TURNS == self.turn

    def to_json(self) -> str:
        """Return the choice as text."""
        return json.dumps(asdict(self), default=sorted)

    @classmethod
    def from_json(cls, text: str) -> Choice:
        """Return the choice of a text of `to_json`."""
        found = json.loads(text)
        return cls(**found | {name: frozenset(found[name]) for name in ("kernels", "tests", "rooms")})


def runs_always(item: pytest.Item) -> bool:
    """Return whether a test is part of every run, whatever has changed."""
    return any(item.get_closest_marker(name) is not None for name in ("quick", "every_run"))


@cache
def rooms_of(module: Path) -> frozenset[str]:
    """Return the `ROOMS` that a module of tests uses: the package, and those whose names its text has."""
    words = set(re.findall(r"\w+", _text(module)))
    return frozenset({PACKAGE, *(words & ROOMS.keys())})


@cache
def _text(module: Path) -> str:
    return module.read_text(encoding="utf-8")


def proves(item: pytest.Item) -> tuple[str, ...]:
    """Return the files of kernels_cu, or patterns of them, whose kernels a test proves; empty: it has no mark."""
    named = tuple(name for mark in item.iter_markers("kernels") for name in mark.args)
    return named or (EMULATOR,) * item.nodeid.startswith(EMULATOR)


def module_of(item: pytest.Item) -> str:
    """Return the path of a test's module from the root of the repository on."""
    return item.nodeid.partition("::")[0]


# ---------------------------------------------------------------- the choice of a run


def choice() -> Choice:
    """Compare the working tree with the record."""
    try:
        record = Fingerprints(**json.loads(RECORD.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        return Choice(f"there is no record to compare with: {error}")
    turn = _turn()
    if isinstance(turn, str):
        return Choice(turn)
    found = now()
    names = ("kernels", "tests", "rooms")
    changed = {name: _changed(getattr(record, name), getattr(found, name)) for name in names}
    judged_alike = found.judges == record.judges
    why = "" if judged_alike else f"the oracle, the emulator, fixtures or the versions of {', '.join(PACKAGES)} differ"
    return Choice(why, **changed, turn=turn, revision=record.revision)


def all_of_them() -> Choice:
    """Return the choice of all tests, with the thorough ones of kernels."""
    return Choice("that is asked for", frozenset({EMULATOR, *(one.source for one in variants.all_variants())}))


def why_due(step: str) -> str:
    """Return why one of `STEPS` should be run; empty: it need not."""
    try:
        record = json.loads(RECORD.read_text(encoding="utf-8"))["steps"][step]
    except (OSError, ValueError, LookupError, TypeError):
        return "there is no record to compare with"
    if record != _steps()[step]:
        return "files that it runs have changed"
    turn = _turn()
    return turn if isinstance(turn, str) else "" if turn % RARELY else f"one of {RARELY} commits has it"


def _steps() -> dict[str, str]:
    return {name: _digest_of_all(patterns) for name, patterns in STEPS.items()}


def _changed(recorded: Mapping[str, str], found: Mapping[str, str]) -> frozenset[str]:
    return frozenset(name for name in found if found[name] != recorded.get(name))


def _turn() -> int | str:
    """Return whose turn it is, or why nobody has one: by the number of commits, and by what is not committed yet."""
    try:
        if _git("rev-parse", "--is-shallow-repository") != "false":
            return "a shallow clone does not know how many commits there are, by which tests take turns"
        commits, changes = int(_git("rev-list", "--count", "HEAD")), _git("diff", "HEAD") + _git("status", "--short")
    except (OSError, subprocess.CalledProcessError):
        return "there is no git repository whose commits tests could take turns by"
    return (commits + zlib.crc32(changes.encode()) if changes else commits) % TURNS


def _git(*words: str) -> str:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def write(path: Path = RECORD) -> None:
    """Record that all tests have passed on the working tree."""
    path.write_text(json.dumps(asdict(now()), indent=1) + "\n", encoding="utf-8")


def header(chosen: Choice) -> str:
    """Return the line of pytest's first lines that says what is chosen, and why."""
    if chosen.everything:
        return f"selection: all tests run, since {chosen.everything}"
    changed = ", ".join(sorted(chosen.kernels | chosen.tests | chosen.rooms)) or "nothing"
    return f"selection: {changed} changed since {chosen.revision}; of tests that use none of it one in {TURNS} runs"


def summary(left_out: int, of: int) -> str:
    """Return the line of pytest's summary."""
    return f"selection: {left_out} of {of} tests left out, as nothing that they use has changed; `--all` runs all"


# ---------------------------------------------------------------- fingerprints of the working tree


def now() -> Fingerprints:
    """Return the fingerprints of the working tree; planning all small problems takes seconds."""
    return Fingerprints(_git("rev-parse", "--short", "HEAD"), _judges(), _steps(), _rooms(), _kernels(), _tests())


def _judges() -> str:
    return _digest(*(f"{name} {_version(name)}" for name in PACKAGES), _digest_of_all(JUDGES, without="test_"))


def _rooms() -> dict[str, str]:
    apart = {path for name in _APART for path in ROOT.glob(f"gpuconv/{name}/**/*")}
    return {name: _digest_of_all(patterns, apart=apart if name == PACKAGE else ()) for name, patterns in ROOMS.items()}


def _digest_of_all(patterns: Iterable[str], without: str = ".", apart: Container[Path] = ()) -> str:
    """Return the digest of all files of these patterns but for those that begin so, are hidden or are apart."""
    files = sorted({path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()})
    ours = (path for path in files if path.suffix != ".pyc" and path not in apart)
    ours = (path for path in ours if not path.name.startswith(without) and not _is_hidden(path.relative_to(ROOT)))
    return _digest(*(f"{path.relative_to(ROOT)} {_digest_of(path)}" for path in ours))


def _is_hidden(path: Path) -> bool:
    """Return whether a file or a folder that it is in begins with a dot, as caches of tools do."""
    return any(part.startswith(".") for part in path.parts)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _tests() -> dict[str, str]:
    files = (path for folder in ("tests", "emulated_cuda/tests") for path in (ROOT / folder).rglob("test_*.py"))
    return {path.relative_to(ROOT).as_posix(): _digest_of_tests(path) for path in sorted(files)}


def _digest_of_tests(module: Path) -> str:
    """Return the digest of a module of tests and of the helpers in its folder and in those that it imports from."""
    folders = {module.parent, *(ROOT / "tests" / name for name in re.findall(r"\btests\.(\w+)", _text(module)))}
    return _digest(_digest_of(module), *(_helpers(folder) for folder in sorted(folders)))


@cache
def _helpers(folder: Path) -> str:
    """Return the digest of the Python files of a folder that are no tests themselves."""
    return _digest_of_all((f"{folder.relative_to(ROOT)}/**/*.py",), without="test_")


def _kernels() -> dict[str, str]:
    """Fingerprint every .cu file: the plans of small problems that launch it, and the modules that plan them."""
    parts: dict[str, set[str]] = {source: {*modules} for source, modules in _planners().items()}
    for call in small.plans():
        for plan in (*call.recorded.calls, *(plan for choice in call.recorded.choices for plan in choice.plans)):
            launches = (*plan.launches, *plan.sharing)
            line = _digest(
                f"{plan.kernel} {plan.spaces} {plan.alignment} {plan.views}", *map(_text_of_launch, launches)
            )
            for source in {launch.variant.source for launch in launches}:
                parts[source].add(line)
    return {source: _digest(*sorted(parts[source])) for source in sorted(parts)}


def _text_of_launch(launch: Launch) -> str:
    kernel = _text_of_kernel(launch.variant)
    return f"{kernel} {launch.grid} {launch.shared_bytes} {launch.fields} {launch.roles} {launch.maps}"


@cache
def _text_of_kernel(variant: Variant) -> str:
    return f"{variant} {_digest_of_code(variant.source, variant.chained)}"


@cache
def _digest_of_code(source: str, chained: bool) -> str:
    """Return the digest of a .cu file with all headers that it includes, and of the one by which launches overlap."""
    root, seen = kernel_files.folder(), set[str]()
    files = (source, sources._CHAINED) if chained else (source,)
    return _digest(_without_comments("\n".join(line for path in files for line in sources._inlined(root, path, seen))))


def _planners() -> dict[str, list[str]]:
    """Return for each .cu file the digests of the modules of gpuconv.cuda that its calls run through.

    Those are what ``gpuconv.cuda`` imports, without the families of kernels, and of these the ones that have kernels of
    the file, with all that they import in turn.
    """
    families = {owner.__name__.removeprefix("gpuconv.") for owner in variants.owners()}
    shared = _closure("cuda", families)
    found: dict[str, set[str]] = {}
    for owner in variants.owners():
        through = shared | _closure(owner.__name__.removeprefix("gpuconv."), set())
        for source in {one.source for one in owner.variants()}:
            found.setdefault(source, set()).update(through)
    return {source: [f"{name} {_digest_of_module(name)}" for name in sorted(found[source])] for source in found}


def _closure(start: str, without: set[str]) -> set[str]:
    """Return a module of gpuconv.cuda and those of gpuconv.cuda that it imports, at any depth but through some."""
    found, rest = set[str](), [start]
    while rest:
        name = rest.pop()
        if name not in found and name.partition(".")[0] == "cuda":
            found.add(name)
            rest += imported(name) - without
    return found


@cache
def _digest_of_module(name: str) -> str:
    return _digest_of(modules()[name])


def _digest_of(path: Path) -> str:
    """Return the digest of a file, but for comments and docstrings."""
    data = path.read_bytes()
    if path.suffix == ".py":
        return _digest(_without_docstrings(data.decode()))
    if path.suffix in (".c", ".cpp", ".h", ".hpp", ".cu", ".cuh"):
        return _digest(_without_comments(data.decode()))
    return hashlib.sha256(data).hexdigest()[:16]


def _without_docstrings(text: str) -> str:
    """Return Python without docstrings, comments and empty lines, the same in all versions of Python."""
    lines = text.split("\n")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(getattr(first.value, "value", None), str):
                lines[first.lineno - 1 : first.end_lineno] = [""] * ((first.end_lineno or 0) - first.lineno + 1)
    code = PYTHON.sub(lambda found: found[1] or "", "\n".join(lines))
    return "\n".join(filter(None, map(str.rstrip, code.split("\n"))))


def _without_comments(text: str) -> str:
    lines = _COMMENT.sub(lambda found: found[1] or " ", text).split("\n")
    return "\n".join(" ".join(line.split()) for line in lines if line.strip() and not line.startswith("#line"))


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in STEPS:
        sys.exit(f"usage: python -m tests.selection {'|'.join(STEPS)}")
    reason = why_due(sys.argv[1])
    print(f"{sys.argv[1]}: {reason or 'not due, nothing that it runs has changed'}")
    sys.exit(not reason)
