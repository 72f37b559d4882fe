"""The package is independent of gpuconv, and the folder emulated_cuda of a checkout is not imported in its place."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import emulated_cuda

PACKAGE = Path(emulated_cuda.__file__).parent
ROOT = Path(__file__).resolve().parents[2]
OURS = ("benchmarks", "gpuconv", "tests")
SAYS = (
    "import emulated_cuda.control as c, emulated_cuda as e; print(e.__file__, e.install.__module__, c.Launch.__name__)"
)


def imported(path: Path) -> set[str]:
    """Return the names of the packages that a module imports anywhere, with `importlib` too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module or "")
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found.add(str(getattr(node.args[0], "value", "")))
    return {name.partition(".")[0] for name in found}


def test_nothing_of_gpuconv_is_imported_by_the_package_or_its_tests() -> None:
    files = [*PACKAGE.rglob("*.py"), *Path(__file__).parent.rglob("*.py")]
    assert len(files) > 30
    assert not [(path.name, name) for path in files for name in imported(path) if name in OURS]


def python(*arguments: str, path: str | None = None, folder: Path = ROOT) -> tuple[int, str, str]:
    """Run Python code with no installed packages but those of PYTHONPATH; return exit code, output and errors.

    Python starts without site-packages, so that no path file there adds an installed `emulated_cuda`; then the folder
    that contains NumPy is appended to `sys.path`.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {} if path is None else {"PYTHONPATH": path}
    numpy = Path(sys.modules["numpy"].__file__ or "").parents[1]
    code = f"import sys; sys.path.append({str(numpy)!r}); {arguments[-1]}"
    done = subprocess.run(
        [sys.executable, "-S", *arguments[:-1], "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "source", ["import emulated_cuda", "from emulated_cuda import install", "import emulated_cuda.control"]
)
def test_the_folder_of_a_checkout_says_how_to_install_it(source: str) -> None:
    code, said, error = python(source)
    assert (code, said) == (1, "")
    assert error.splitlines()[-1] == (
        f"ModuleNotFoundError: the package emulated_cuda is not installed: type pip install -e {ROOT / 'emulated_cuda'}"
    )


@pytest.mark.parametrize("folder", [ROOT, ROOT / "emulated_cuda", Path("/")], ids=["root", "inside", "elsewhere"])
@pytest.mark.parametrize("order", ["source", "source, root", "root, source", "root, other, source"])
def test_the_folder_of_a_checkout_gives_way_to_the_installed_package(tmp_path: Path, order: str, folder: Path) -> None:
    other = tmp_path / "emulated_cuda"  # another checkout
    other.mkdir()
    for name in ("__init__.py", "pyproject.toml"):
        (other / name).write_bytes((ROOT / "emulated_cuda" / name).read_bytes())
    places = {"source": PACKAGE.parent, "root": ROOT, "other": tmp_path}
    path = os.pathsep.join(str(places[word]) for word in order.split(", "))
    said = f"{PACKAGE / '__init__.py'} emulated_cuda.install Launch\n"
    assert python(SAYS, path=path, folder=folder) == (0, said, "")


@pytest.mark.gpu
@pytest.mark.usefixtures("emulated")
def test_pytest_finds_the_plugin_from_the_root_of_a_checkout() -> None:
    """The command ``pytest`` does not add the working folder to `sys.path`; ``python -m pytest`` puts it first."""
    options = ["-p", "emulated_cuda.plugin", "--help", "-p", "no:cacheprovider"]
    for command in ([sys.executable, "-m", "pytest"], [sys.executable, "-P", "-m", "pytest"]):
        if "-P" in command and sys.version_info < (3, 11):
            continue
        done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
