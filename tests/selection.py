"""Select the tests of a whole run: those that a change can affect, and one in twelve of the others, in rotation.

``tests/proven.json`` holds fingerprints (SHA-256) of the working tree for which all tests have passed. Quick tests and
those marked ``every_run`` always run. Any other test runs if

* its own module differs from the recorded one;
* it is marked ``@pytest.mark.kernels("conv/gemm/conv.cu")`` (files of ``kernels_cu``, or patterns such as ``pool/*``),
  and one of these kernels has changed: a launch of it (source, struct, grid, block, shared memory, workspace, array
  roles, candidate) in any small problem of `tests.kernels.small`, or the Python that plans it;
* it has no such mark, and one of the `ROOMS` that its module uses has changed, above all the package itself;
* its turn has come: every commit and every change of the working tree selects another twelfth of the tests.

Tests with kernel marks that are also marked ``thorough`` have no turn; they run if their kernels or modules changed.
All tests but these run if the record does not apply: the oracle, emulator, fixtures or versions of `PACKAGES` differ,
or there is no git repository to derive the turn from. Comments and docstrings never count.

Selection applies to whole runs only: a run of a file, a folder, ``-k`` or ``-m`` runs everything it names. ``--all``
runs all tests and the thorough ones of kernels. ``--record`` writes ``tests/proven.json`` if nothing fails: tests of
changed parts ran in full, and the record already proves the others.
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
EMULATOR = "emulated_cuda"  # represents the emulated device among the files of kernels_cu

# Steps of ``.ci/run`` that run if one of these files has changed, and otherwise for one in `RARELY` commits.
STEPS = {
    "visit": ("gpuconv/cuda/call/*.py", "benchmarks/**/*.py", "emulated_cuda/src/**/*"),
    "mutation": ("tools/mutation/**/*",),
}
RARELY = 6
# Files that may affect the verdict of any test.
JUDGES = (
    *("tests/*.py", *(f"tests/{folder}/**/*.py" for folder in ("oracle", "harness", "emulator", "kernels"))),
    *("emulated_cuda/src/**/*", "gpuconv/judge/definition.py", "benchmarks/small_shapes.py", "pyproject.toml"),
)
PACKAGES = ("cupy-cuda13x", "nvidia-cuda-nvrtc", "numpy", "onnx", "ml_dtypes")
# Parts of the repository that tests use. All tests use the package; its parts import each other. Every other part is
# used by the test modules whose text contains its name.
PACKAGE = "gpuconv"
_APART = ("judge", "testing", "dask", "compat", "torch")  # which the rest imports only inside functions
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
)  # a string, which is kept, or a comment
_COMMENT = re.compile(r"""//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*")""", re.DOTALL)


@dataclass(frozen=True)
class Fingerprints:
    """SHA-256 of everything that decides about tests, without comments and docstrings.

    Attributes
    ----------
    revision : the commit, possibly with uncommitted changes.
    judges : of `JUDGES` and of the versions of `PACKAGES`.
    kernels : of each file of kernels_cu that kernels are compiled from, by its path in that folder.
    tests : of each test module with the helpers it uses, by its path from the root.
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
    """Which tests a run selects, and why; it is sent to pytest-xdist workers as JSON.

    Attributes
    ----------
    everything : why all tests run except thorough ones of unchanged kernels; empty: not all do.
    kernels : the files of kernels_cu that differ from the record.
    tests : the test modules that differ.
    rooms : the `ROOMS` that differ.
    turn : from 0 to `TURNS` - 1: tests with this number run although nothing they use has changed.
    revision : the commit of the record.
    """

    everything: str = ""
    kernels: frozenset[str] = frozenset()
    tests: frozenset[str] = frozenset()
    rooms: frozenset[str] = frozenset()
    turn: int = 0
    revision: str = ""

    def takes(self, item: pytest.Item) -> bool:
        """Return whether a run includes a test; thorough tests only if their kernels or modules changed."""
        kernels = proves(item)
        used = any(map(self.changed, kernels)) if kernels else bool(self.rooms & rooms_of(item.path))
        if used or module_of(item) in self.tests:
            return True
        return item.get_closest_marker("thorough") is None and (runs_always(item) or self.takes_turn(item.nodeid))

    def changed(self, pattern: str) -> bool:
        """Return whether a file of kernels_cu that matches a pattern differs from the record."""
        return bool(fnmatch.filter(self.kernels, pattern))

    def takes_turn(self, name: str) -> bool:
        """Return whether it is the turn of the test with this name, or all tests run."""
        return bool(self.everything) or zlib.crc32(name.encode()) % TURNS == self.turn

    def to_json(self) -> str:
        """Return the choice as JSON."""
        return json.dumps(asdict(self), default=sorted)

    @classmethod
    def from_json(cls, text: str) -> Choice:
        """Return the choice of `to_json`'s text."""
        found = json.loads(text)
        return cls(**found | {name: frozenset(found[name]) for name in ("kernels", "tests", "rooms")})


def runs_always(item: pytest.Item) -> bool:
    """Return whether a test is part of every run."""
    return any(item.get_closest_marker(name) is not None for name in ("quick", "every_run"))


@cache
def rooms_of(module: Path) -> frozenset[str]:
    """Return the `ROOMS` that a test module uses: the package, and those whose names occur in its text."""
    words = set(re.findall(r"\w+", _text(module)))
    return frozenset({PACKAGE, *(words & ROOMS.keys())})


@cache
def _text(module: Path) -> str:
    return module.read_text(encoding="utf-8")


def proves(item: pytest.Item) -> tuple[str, ...]:
    """Return the files of kernels_cu, or patterns of them, that a test is marked with; empty without the mark."""
    named = tuple(name for mark in item.iter_markers("kernels") for name in mark.args)
    return named or (EMULATOR,) * item.nodeid.startswith(EMULATOR)


def module_of(item: pytest.Item) -> str:
    """Return the path of a test's module from the root of the repository."""
    return item.nodeid.partition("::")[0]


# ---------------------------------------------------------------- the choice of this run


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
    """Return the choice of all tests, including the thorough ones of kernels."""
    return Choice("that is asked for", frozenset({EMULATOR, *(one.source for one in variants.all_variants())}))


def why_due(step: str) -> str:
    """Return why one of `STEPS` should run; empty: it need not."""
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
    """Return the number of the turn, from the commit count and uncommitted changes; or a message why there is none."""
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
    """Return the line of pytest's header that says what is selected, and why."""
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
    """Return the digest of all files that match, except hidden ones, those in ``apart``, and names starting with
    ``without``."""
    files = sorted({path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()})
    ours = (path for path in files if path.suffix != ".pyc" and path not in apart)
    ours = (path for path in ours if not path.name.startswith(without) and not _is_hidden(path.relative_to(ROOT)))
    return _digest(*(f"{path.relative_to(ROOT)} {_digest_of(path)}" for path in ours))


def _is_hidden(path: Path) -> bool:
    """Return whether a file or one of its folders starts with a dot, as the caches of tools do."""
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
    """Return the digest of a test module, the helpers in its folder, and those in the folders that it imports from."""
    folders = {module.parent, *(ROOT / "tests" / name for name in re.findall(r"\btests\.(\w+)", _text(module)))}
    return _digest(_digest_of(module), *(_helpers(folder) for folder in sorted(folders)))


@cache
def _helpers(folder: Path) -> str:
    """Return the digest of a folder's Python files that are not test modules."""
    return _digest_of_all((f"{folder.relative_to(ROOT)}/**/*.py",), without="test_")


def _kernels() -> dict[str, str]:
    """Fingerprint every .cu file: the launches of it that small problems plan, and the modules that plan them."""
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
    """Return the digest of a .cu file with all headers it includes, and of base/chained.cuh if launches overlap."""
    root, seen = kernel_files.folder(), set[str]()
    files = (source, sources._CHAINED) if chained else (source,)
    return _digest(_without_comments("\n".join(line for path in files for line in sources._inlined(root, path, seen))))


def _planners() -> dict[str, list[str]]:
    """Return for each .cu file the digests of the modules of gpuconv.cuda that take part in its calls.

    Those are the modules that ``gpuconv.cuda`` imports, except kernel families; and the families with kernels in the
    file, with everything that they import in turn.
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
    """Return a module of gpuconv.cuda and all modules of gpuconv.cuda that it imports, not following those in
    ``without``."""
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
    """Return the digest of a file without comments and docstrings."""
    data = path.read_bytes()
    if path.suffix == ".py":
        return _digest(_without_docstrings(data.decode()))
    if path.suffix in (".c", ".cpp", ".h", ".hpp", ".cu", ".cuh"):
        return _digest(_without_comments(data.decode()))
    return hashlib.sha256(data).hexdigest()[:16]


def _without_docstrings(text: str) -> str:
    """Return Python code without docstrings, comments and empty lines, the same in all versions of Python."""
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
