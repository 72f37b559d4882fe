"""The package as a whole: the cost of importing it, its public names, its documents, and every example in them."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import inspect
import io
import os
import pkgutil
import re
import runpy
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import gpuconv
from tests.emulator import emulated_cuda
from tests.gpu.on_device import imported
from tests.harness import cuda_device
from tests.oracle.every_row import every_row

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPETS = [
    (page.name, snippet)
    for page in PAGES
    for snippet in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
]
SCRIPTS = [  # not notebooks, which .ci/run runs after it has installed their plotting libraries
    path
    for path in sorted((ROOT / "examples").glob("*.py"))
    if "# %% [markdown]" not in path.read_text(encoding="utf-8")
]
MODULES = sorted(module.name for module in pkgutil.walk_packages(gpuconv.__path__, "gpuconv."))


def _imported_with(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


@pytest.mark.parametrize("statement", ["import gpuconv", "import gpuconv.cli.main"])
def test_numpy_is_all_that_an_import_needs(statement: str) -> None:
    imported = _imported_with(statement)
    assert "numpy" in imported
    assert not imported & {"cupy", "onnx", "ml_dtypes", "cuda", "dask"}


def test_public_names() -> None:
    assert sorted(gpuconv.__all__) == [
        "ArgumentError",
        "ArgumentTypeError",
        "CompileError",
        "DeviceError",
        "GpuconvError",
        "Graph",
        "OutOfDeviceMemory",
        "PackedWeights",
        "__version__",
        "average_pool",
        "average_pool_grad",
        "conv",
        "conv_bias_grad",
        "conv_input_grad",
        "conv_transpose",
        "conv_transpose_bias_grad",
        "conv_transpose_input_grad",
        "conv_transpose_weight_grad",
        "conv_weight_grad",
        "explain",
        "global_average_pool",
        "global_average_pool_grad",
        "graph",
        "invariant",
        "max_pool",
        "max_pool_grad",
        "max_unpool",
        "pack",
        "precision",
        "strict",
        "to_device",
        "to_host",
        "tune",
    ]
    public = {name for name, value in vars(gpuconv).items() if name[0] != "_" and not inspect.ismodule(value)}
    assert public == set(gpuconv.__all__) - {"__version__"}


def test_errors_are_what_python_calls_them() -> None:
    assert issubclass(gpuconv.ArgumentError, gpuconv.GpuconvError | ValueError)
    for error, builtin in [
        (gpuconv.ArgumentError, ValueError),
        (gpuconv.ArgumentTypeError, TypeError),
        (gpuconv.DeviceError, RuntimeError),
        (gpuconv.CompileError, gpuconv.DeviceError),
        (gpuconv.OutOfDeviceMemory, MemoryError),
    ]:
        assert issubclass(error, builtin)
        assert issubclass(error, gpuconv.GpuconvError)


@pytest.mark.parametrize("name", [name for name in gpuconv.__all__ if callable(getattr(gpuconv, name))])
def test_public_names_are_documented(name: str) -> None:
    _check_document(getattr(gpuconv, name))


@pytest.mark.parametrize("name", ["average_pool", "conv", "conv_transpose", "max_pool"])
def test_functions_on_dask_arrays_are_documented(name: str) -> None:
    assert _dask().__all__ == ["average_pool", "conv", "conv_transpose", "max_pool"]
    _check_document(getattr(_dask(), name))


def _dask() -> Any:
    pytest.importorskip("dask.array", reason="dask is not installed; the extra [dask] brings it")
    return importlib.import_module("gpuconv.dask")


def _check_document(thing: Any) -> None:
    text = inspect.getdoc(thing)
    assert text
    if inspect.isfunction(thing):
        for section in ("Parameters", "Returns", "Raises"):
            assert f"{section}\n---" in text, section
        for parameter in inspect.signature(thing).parameters:
            assert re.search(rf"^(\w+, )*(\*\*?)?{parameter}(, \w+)*( :|, |$)", text, re.MULTILINE), parameter


def test_the_version_is_the_one_that_is_installed() -> None:
    try:
        installed = metadata.version("gpuconv")
    except metadata.PackageNotFoundError:
        pytest.skip("gpuconv is not installed here, but read from the checkout")
    assert installed == gpuconv.__version__


def test_the_changelog_knows_the_version() -> None:
    assert f"## {gpuconv.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("room", sorted({name.split(".")[1] for name in MODULES}))
def test_examples_in_docstrings(room: str) -> None:
    if room == "dask":
        _dask()
    modules = [name for name in MODULES if name.split(".")[1] == room]
    with every_row() as row:
        for name in modules:
            with row(name):
                try:
                    module = importlib.import_module(name)
                except ImportError:
                    if name.startswith(("gpuconv.judge.adapters.", "gpuconv.torch.")):
                        continue  # the judged library, or PyTorch, is not installed
                    raise
                failed, _ = doctest.testmod(module)
                assert not failed


@pytest.mark.parametrize(
    ("page", "snippet"),
    [pytest.param(*pair, marks=pytest.mark.emulator if "emulat" in pair[1] else ()) for pair in SNIPPETS],
)
def test_snippets_print_what_they_say(page: str, snippet: str) -> None:
    needed = re.match(r"# needs (\w+)\n", snippet)
    on_device = snippet.startswith(("# a CUDA device, or the emulator\n", "# needs emulated_cuda\n"))
    if needed:
        imported(needed[1])
    expected = re.findall(r"^# (.*)$", snippet, re.MULTILINE)[on_device or bool(needed) :]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), emulated_cuda() if on_device else contextlib.nullcontext():
        exec(compile(snippet, page, "exec"), {})
    assert expected
    assert printed.getvalue().splitlines() == expected


@pytest.mark.parametrize("command", ["try", "tests"])
def test_the_readme_has_its_two_commands(command: str) -> None:
    block = README.partition(f"<!-- command: {command} -->\n")[2]
    fence, line, end = block.splitlines()[:3]
    assert (fence, end) == ("```sh", "```")
    assert line.startswith("python3 -m venv .venv && .venv/bin/pip install ")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_examples_run(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.skipif(cuda_device.hardware(), reason="a CUDA device is here")
@pytest.mark.gpu
@pytest.mark.parametrize(("required", "outcome"), [("0", "1 passed"), ("1", "1 error")])
def test_the_marker_gpu_takes_an_emulated_device_unless_a_real_one_is_required(
    tmp_path: Path, required: str, outcome: str
) -> None:
    (tmp_path / "test_one.py").write_text("import pytest\n@pytest.mark.gpu\ndef test_it():\n    import cupy\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml"), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "GPUCONV_REQUIRE_GPU": required},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome in done.stdout
    assert required == "0" or "the device is an emulated one" in done.stdout


def _sources() -> list[Path]:
    suffixes = {".py", ".md", ".toml", ".cu", ".cuh", ".cpp", ".hpp"}
    found = [path for path in ROOT.glob("*") if path.suffix in suffixes]
    for folder in ("gpuconv", "kernels_cu", "tests", "tools", "examples", "docs", "benchmarks", ".ci"):
        found += [path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes or folder == ".ci"]
    return sorted(found)


def test_no_file_depends_on_one_machine() -> None:
    personal = re.compile(r"""(?<![\w.}])/(?:home|root|tmp|work|Users)/""")
    for path in _sources():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            assert not personal.search(line), f"{path}:{number}: {line}"
