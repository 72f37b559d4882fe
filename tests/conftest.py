"""Pytest configuration: command-line options, markers and tiers, test selection, pytest-xdist, and shared fixtures."""

from __future__ import annotations

import functools
import gc
import os

if "PYTEST_XDIST_WORKER" in os.environ:  # before NumPy is imported: its BLAS reads the variable once
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import re
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

from emulated_cuda import nvrtc as emulated_nvrtc
from emulated_cuda.emulator import build
from gpuconv import CompileError
from gpuconv.cli.main import main
from gpuconv.cuda.build import cache, nvrtc
from gpuconv.cuda.build import compile as compiler
from tests import selection
from tests.emulator import tally
from tests.harness import cuda_device, tiers
from tests.harness.idle_kernels import Sent, idle_kernels
from tests.selection import Choice


class Need(NamedTuple):
    """A requirement of a marker.

    Attributes
    ----------
    variable : str
        Environment variable; if it is "1", tests fail where the requirement is missing.
    unavailable_reason : callable
        Returns why the requirement is missing, or None.
    skips : bool
        Whether tests are skipped where it is missing.
    """

    variable: str
    unavailable_reason: Callable[[], str | None]
    skips: bool = True


NEEDS: dict[str, tuple[Need, ...]] = {  # by marker
    "gpu": (
        Need("GPUCONV_REQUIRE_GPU", cuda_device.real_unavailable_reason, skips=False),
        Need("GPUCONV_REQUIRE_EMULATOR", cuda_device.unavailable_reason),
    ),
    "emulator": (Need("GPUCONV_REQUIRE_EMULATOR", cuda_device.emulated_unavailable_reason),),
}

# `-m quick` runs the tests without these marks. They cover nine tenths of gpuconv's statements in about a minute. None
# of them may need a compiler, which the fixture `no_compiler` enforces.
NOT_QUICK = ("slow", *NEEDS)
EMULATORS = {"emulated_cuda", "emulator"}  # folders whose tests of the emulated device are not quick either
_SLOW_MODULE = re.compile(rf"^pytestmark = (?:\[[^]]*)?pytest\.mark\.({'|'.join(NOT_QUICK)})\b", re.MULTILINE)

CHOICE = pytest.StashKey[Choice | None]()  # which tests this run selects
LEFT_OUT = pytest.StashKey[tuple[int, int]]()  # number of tests left out, and number of tests with ``--all``

CHUNK = 32  # most tests that a pytest-xdist worker gets at a time, so that all workers share the first, long ones


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpuconv")
    group.addoption("--thorough", action="store_true", help="run the thorough tests as well; random ones take longer")
    group.addoption("--thorough-part", metavar="K/N", type=tiers.checked, help="run one part of the thorough tests")
    group.addoption("--all", action="store_true", help="run all tests, not only those that a change can break")
    group.addoption("--record", action="store_true", help="record in tests/proven.json if all pass")


def pytest_configure(config: pytest.Config) -> None:
    """Set the length of random tests and install the emulated CUDA device where there is no real one.

    The device is installed before CuPy is imported. With pytest-xdist, the controller compiles the emulator in the
    background while workers start; quick runs need neither.
    """
    if config.option.record:
        os.environ["GPUCONV_REQUIRE_EMULATOR"] = "1"
    if (config.option.thorough or config.option.thorough_part) and "GPUCONV_EXAMPLES" not in os.environ:
        os.environ.setdefault("GPUCONV_PROFILE", "thorough")
    if getattr(config.option, "tx", None) and not hasattr(config, "workerinput"):
        if config.option.maxschedchunk is None:
            config.option.maxschedchunk = CHUNK
        if build.compiler() is not None and config.option.markexpr != "quick":
            threading.Thread(target=build.build).start()
    elif config.option.markexpr != "quick":
        cuda_device.install(tiers.part(config.option.thorough_part))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable garbage collection during collection: it would traverse tens of thousands of tests repeatedly."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m quick``, do not even import modules whose tests are all slow."""
    if config.option.markexpr != "quick":
        return None
    if collection_path.is_dir():
        return True if collection_path.name in EMULATORS else None
    module = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if module and _SLOW_MODULE.search(collection_path.read_text(encoding="utf-8")) else None


@functools.cache
def name_of(path: Path) -> str:
    """Return a test module's path relative to the folder of tests, as ``rules/test_cases``."""
    tests = Path(__file__).parent
    return path.relative_to(tests).with_suffix("").as_posix() if path.is_relative_to(tests) else path.stem


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark quick tests and those with the fixture ``sent``, select the tests of this run, and order them.

    Tests that compile kernels to machine code come first: they also cache the PTX that other tests emulate. Tests of
    the same machine code are adjacent, so that one worker compiles it for all of them. Tests of broken kernels come
    last within their group, since what is compiled after them is not cached. Long tests come early, so that no worker
    finishes late.
    """
    for item in items:
        if "sent" in getattr(item, "fixturenames", ()):
            item.add_marker("emulator")
        if EMULATORS.isdisjoint(item.nodeid.partition("::")[0].split("/")) and not any(
            map(item.get_closest_marker, NOT_QUICK)
        ):
            item.add_marker("quick")
    named = any("::" in word for word in config.args)  # tests named on the command line always run
    chosen = config.stash[CHOICE] = _choice(config)
    part = tiers.part(config.option.thorough_part)
    items[:], others = tiers.select(items, named or config.option.thorough, part, chosen)
    config.hook.pytest_deselected(items=others)
    if chosen is not None:
        everything, _ = tiers.select([*items, *others], False, part, replace(chosen, everything="it is counted"))
        config.stash[LEFT_OUT] = len(everything) - len(items), len(everything)
    items.sort(key=_place)


def _choice(config: pytest.Config) -> Choice | None:
    """Return which tests to select, or None if the command line names files or tests: then all of those run."""
    if CHOICE in config.stash:
        return config.stash[CHOICE]
    if hasattr(config, "workerinput"):
        text = config.workerinput["choice"]
        return None if text is None else Choice.from_json(text)
    if config.option.all:
        return selection.all_of_them()
    option = config.option
    named = option.keyword or option.markexpr or option.thorough or option.thorough_part
    if named or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        if option.record:
            raise pytest.UsageError("--record needs a whole run: leave out -k, -m, --thorough, files and folders")
        return None
    return selection.choice()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Send a pytest-xdist worker the selection."""
    chosen = node.config.stash[CHOICE] = _choice(node.config)
    node.workerinput["choice"] = None if chosen is None else chosen.to_json()


def _place(item: pytest.Item) -> tuple[int, str, bool, str]:
    name, broken = name_of(item.path), "cache_of_broken_kernels" in getattr(item, "fixturenames", ())
    if name == "kernels/test_limits":
        return 0, "", False, ""
    if name.endswith("sass"):
        return 1, name, broken, item.callspec.id if hasattr(item, "callspec") else ""
    return (2 if name == "kernels/test_every_variant" else 3), "", False, ""


@pytest.fixture(autouse=True)
def no_compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make quick tests fail if they compile or emulate anything, even where compilers are installed.

    It uses the test's own ``monkeypatch``, so that both sets of patches are undone in reverse order.
    """
    if request.node.get_closest_marker("quick") is None:
        yield
        return
    emulated = dict(tally.launches)
    monkeypatch.setattr(build, "compiler", lambda: None)
    for name in ("_binding", "build", "capabilities", "headers", "identity", "version"):
        monkeypatch.setattr(nvrtc, name, _refuse)
    monkeypatch.setattr(emulated_nvrtc, "_binding", _refuse)
    yield
    assert dict(tally.launches) == emulated, "a quick test must not use the emulator"


def _refuse(*_: object) -> NoReturn:
    raise CompileError("a quick test must not compile CUDA kernels")


@pytest.fixture(autouse=True)
def device_if_asked_for(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the device, real or emulated, from tests without the marker ``gpu``; let the emulated one load PTX."""
    if request.node.get_closest_marker("gpu") is None:
        if "cupy" in sys.modules:
            monkeypatch.setattr(sys.modules["cupy"].cuda.runtime, "getDeviceCount", _no_devices)
    elif cuda_device.emulated():
        monkeypatch.setattr(compiler, "cubin", cuda_device.ptx)


def _no_devices() -> NoReturn:
    raise RuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")


@pytest.fixture
def turn(request: pytest.FixtureRequest) -> int:
    """The number that selects a part of the unaffected tests for this run."""
    chosen = request.config.stash.get(CHOICE, None)
    return 0 if chosen is None else chosen.turn


@pytest.fixture
def sent(tmp_path: Path) -> Iterator[Sent]:
    """A record of what calls request of the emulated device, with kernels that do nothing; sets the marker
    ``emulator``."""
    with idle_kernels(tmp_path) as sent:
        yield sent


@pytest.fixture
def general_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restrict Conv and ConvTranspose to the general kernels: one launch packs the weights, another convolves."""
    from gpuconv.cuda.conv import families as conv_families
    from gpuconv.cuda.conv.gemm import ffma, split

    monkeypatch.setattr(conv_families, "FAMILIES", (ffma,))
    monkeypatch.setattr(split, "candidates", lambda divisible, limits: ())


@pytest.fixture(scope="module")
def cache_of_broken_kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a separate kernel cache, linked to the user's, so that broken kernels do not enter the latter."""
    usual, folder = cache.folder(), tmp_path_factory.mktemp("broken")
    with suppress(OSError):  # no cache exists, or it is on another file system
        for path in usual.glob("[!.]*.*") if usual is not None else ():
            os.link(path, folder / path.name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUCONV_CACHE_DIR", str(folder))
        yield


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose requirement is missing, giving the reason; fail instead if the environment demands it."""
    for marker, needs in NEEDS.items():
        for need in needs if item.get_closest_marker(marker) else ():
            reason = need.unavailable_reason()
            if reason is not None and os.environ.get(need.variable) == "1":
                pytest.fail(f"{need.variable}=1, but {reason}", pytrace=False)
            if reason is not None and need.skips:
                pytest.skip(reason)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let a pytest-xdist worker report its emulated launches; record a successful ``--record`` run."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["emulator"] = list(tally.launches.items())
        session.config.workeroutput["left out"] = session.config.stash.get(LEFT_OUT, None)
    elif session.config.option.record and session.exitstatus == pytest.ExitCode.OK:
        selection.write()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add the emulated launches of a pytest-xdist worker."""
    output = getattr(node, "workeroutput", {})
    tally.add_all(output.get("emulator", ()))
    if output.get("left out"):
        node.config.stash[LEFT_OUT] = tuple(output["left out"])


def pytest_report_header(config: pytest.Config) -> list[str]:
    chosen = config.stash[CHOICE] = _choice(config)
    return [cuda_device.header(), *([] if chosen is None else [selection.header(chosen)])]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    left_out = terminalreporter.config.stash.get(LEFT_OUT, None)
    for line in (tally.summary(), left_out and selection.summary(*left_out)):
        if line:
            terminalreporter.write_line(line)


@pytest.fixture
def save_model(tmp_path: Path) -> Callable[[str], str]:
    """Save an opset 22 model, given in onnx's text form without its header; return the path."""
    import onnx

    def save(text: str) -> str:
        path = tmp_path / "model.onnx"
        onnx.save(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 22]>\n{text}'), path)
        return str(path)

    return save


@pytest.fixture
def pool(save_model: Callable[[str], str]) -> str:
    """Path of a model with two nodes, an unknown batch size and two outputs."""
    return save_model("""net (float[N, 1, 4] x) => (float[N, 1, 2] y, float[N, 1, 2] z) {
        y = MaxPool <kernel_shape = [2], strides = [2]> (x)
        z = Relu (y)
    }""")


@pytest.fixture
def ok(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must succeed with one line on stderr per warning; return its output."""

    def run(*argv: object, warned: Sequence[str] = ()) -> str:
        code = main([str(word) for word in argv])
        out, err = capsys.readouterr()
        assert (code, len(err.splitlines())) == (0, len(warned)), out + err
        for line, message in zip(err.splitlines(), warned, strict=True):
            assert re.match(f"gpuconv: warning: {message}", line)
        return out

    return run


@pytest.fixture
def error(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must fail with one error line on stderr, after any warnings; return that line."""

    def run(*argv: object, code: int = 2) -> str:
        assert main([str(word) for word in argv]) == code
        err = capsys.readouterr().err
        (line,) = re.findall("^gpuconv: error: (.+)\n\\Z", err, re.MULTILINE)
        assert len(err.splitlines()) == 1 + len(re.findall("^gpuconv: warning: ", err, re.MULTILINE))
        return str(line).strip()

    return run
