"""The parts of gpuconv and their dependencies: which module may import which. No test imports another."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.harness.imports import PACKAGE, imports, name_of

MOST_MODULES = 16  # of a folder
PLANNING = frozenset({"cuda.plan", "cuda.build.variant", "cuda.build.params", "cuda.build.structs"})

# The modules that a part's modules may import: those of the same part, and those with these prefixes.
WAYS = {
    "rules": frozenset({"_errors", "_environment"}),
    "cuda.build": frozenset({"_errors", "_environment", "cuda.turns", "rules.dtypes"}),
    "cuda.plan": PLANNING | {"rules", "_errors"},
    "cuda.call": frozenset({"cuda.plan", "cuda.build", "rules", "_environment", "_errors", "_packed", "cuda.turns"}),
    "cuda.passes": PLANNING | {"rules"},
    "cuda.conv": PLANNING | {"cuda.passes", "rules", "_errors"},
    "cuda.pool": PLANNING | {"rules"},
    "cuda.weight_grad": PLANNING | {"cuda.passes", "cuda.conv.gemm.fragments", "rules"},
    "judge": frozenset({"rules.cases", "onnx.backend", "_errors"}),
    "judge.definition": frozenset(),  # the reference that everything is compared with
}
APART = ("onnx", "dask", "compat", "cli", "judge", "testing", "torch")  # the core does not import them
CUPY = {  # modules that use CuPy, which `import gpuconv` and the CPU do not need
    "cuda.call.device": "it is what calls the device",
    "torch._device": "CUDA tensors become CuPy arrays, on PyTorch's stream and with its allocator",
    "onnx.operators.form": "elementwise operators are those of the library that an array is from",
}

# The parts of a folder that all its families share, and the file that lists them.
SHARED = {"base", "copies", "families", "filter_rows", "fragments", "general", "problem", "runs", "split", "structs"}
MORE = ("_tile",)  # a second file of one family
_PARTS = "axis by axis, other families may pool the rows or slices that come first"
NEIGHBOURS = {f"pool.axis -> pool.{family}": _PARTS for family in ("channels", "patches", "tiles")}


def _begins(name: str, start: str) -> bool:
    return name == start or name.startswith(f"{start}.")


def test_rooms_know_only_those_that_they_may() -> None:
    for room, ways in WAYS.items():
        inside = [name for name in imports() if _begins(name, room)]
        assert inside, room
        wrong = [
            f"{name} -> {other}"
            for name in inside
            for other in sorted(imports()[name])
            if not any(_begins(other, way) for way in (room, *ways))
        ]
        assert not wrong


def test_the_core_knows_nothing_that_stands_on_it() -> None:
    core = [name for name in imports() if name != "__main__" and not name.startswith(APART)]
    assert not [(name, other) for name in core for other in imports()[name] if other.startswith(APART)]


def test_only_calls_know_cupy() -> None:
    files = {name_of(path): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    assert {name for name, text in files.items() if any(map(_takes_cupy, ast.walk(ast.parse(text))))} == set(CUPY)


@pytest.mark.parametrize(
    "way", ["import cupy", "from cupyx import jit", 'import_module("cupy")', 'modules["cupy.cuda"]']
)
def test_every_way_to_cupy_is_seen(way: str) -> None:
    assert any(map(_takes_cupy, ast.walk(ast.parse(way))))
    assert not any(map(_takes_cupy, ast.walk(ast.parse(way.replace("cupy", "numpy")))))


def _takes_cupy(node: ast.AST) -> bool:
    """Return whether a node imports CuPy, or looks it up among the imported modules."""
    names: list[Any] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [node.module]
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "modules.get")):
        names = [getattr(argument, "value", None) for argument in node.args]
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        names = [node.slice.value]
    return any(str(name).partition(".")[0] in ("cupy", "cupyx") for name in names)


def _family(name: str) -> str:
    room, _, last = name.removeprefix("cuda.").rpartition(".")
    for end in MORE:
        last = last.removesuffix(end)
    return room if room == "conv.wgmma" else f"{room}.{last}"


def ways_between_families() -> list[str]:
    """Every family with those that it imports, but for what all of them share."""
    rooms = ("cuda.conv.gemm", "cuda.conv.direct", "cuda.conv.wgmma", "cuda.pool", "cuda.weight_grad")
    members = {name for name in imports() if any(name.startswith(f"{room}.") for room in rooms)}
    ways = {
        f"{_family(name)} -> {_family(other)}"
        for name in members
        for other in imports()[name] & members
        if _family(name) != _family(other) and not name.endswith("families") and other.rpartition(".")[2] not in SHARED
    }
    return sorted(ways)


def test_families_know_no_other_family() -> None:
    assert ways_between_families() == sorted(NEIGHBOURS)


def test_no_module_imports_itself_by_way_of_others() -> None:
    left = dict(imports())
    while left:
        ready = [name for name, others in left.items() if not others & left.keys()]
        assert ready, sorted(left)
        left = {name: others for name, others in left.items() if name not in ready}


def test_no_folder_has_too_many_modules() -> None:
    count = Counter(path.parent for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
    assert not {str(folder): number for folder, number in count.items() if number > MOST_MODULES}


@pytest.mark.parametrize("folder", ["benchmarks", "docs", "emulated_cuda/src", "examples"])
def test_what_users_run_imports_nothing_from_tests(folder: str) -> None:
    scripts = sorted((Path(__file__).parents[1] / folder).rglob("*.py"))
    assert len(scripts) >= 5
    nodes = [(path.name, node) for path in scripts for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    named = [(name, alias.name) for name, node in nodes if isinstance(node, ast.Import) for alias in node.names]
    named += [(name, node.module or "") for name, node in nodes if isinstance(node, ast.ImportFrom)]
    assert not [(name, module) for name, module in named if module.partition(".")[0] == "tests"]


def test_what_users_read_imports_nothing_from_tests() -> None:
    root = Path(__file__).parents[1]
    pages = [root / "README.md", *(root / "docs").glob("*.md"), *(root / "examples").glob("*.ipynb")]
    assert len(pages) >= 20
    wrong = re.compile(r"(^|\")\s*(from|import) tests\b", re.MULTILINE)  # lines of a notebook's cell are strings
    assert not [path.name for path in pages if wrong.search(path.read_text(encoding="utf-8"))]


def test_no_test_imports_from_a_test_module() -> None:
    wrong = []
    for path in Path(__file__).parent.rglob("*.py"):
        for line in re.findall(r"^ *(?:from|import) +tests\b.*", path.read_text(encoding="utf-8"), re.MULTILINE):
            wrong += [(path.name, line)] * (re.search(r"\btest_", line) is not None)
    assert not wrong
