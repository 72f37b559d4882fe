"""Pytest settings that need code: markers, the tiers, how several test processes share the work, the command line."""

from __future__ import annotations

import functools
import gc
import os

if "PYTEST_XDIST_WORKER" in os.environ:  # before NumPy is imported: its BLAS reads this once
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
    """What a test needs: the variable that makes its lack a failure, what tells of it, whether tests then skip."""

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

# What `-m quick` runs: tests without these marks. They reach nine tenths of gpuconv's statements in about a minute, and
# none of them may need a compiler: `no_compiler` sees to that.
NOT_QUICK = ("slow", *NEEDS)
EMULATORS = {"emulated_cuda", "emulator"}  # folders: tests of the emulated device are not quick either
_SLOW_MODULE = re.compile(rf"^pytestmark = (?:\[[^]]*)?pytest\.mark\.({'|'.join(NOT_QUICK)})\b", re.MULTILINE)

CHOICE = pytest.StashKey[Choice | None]()  # which tests run
LEFT_OUT = pytest.StashKey[tuple[int, int]]()  # how many tests do not run, and how many would with ``--all``

CHUNK = 32  # tests that a process of pytest-xdist is sent at a time: all of them take part in what comes first


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpuconv")
    group.addoption("--thorough", action="store_true", help="run the thorough tests as well; random ones take longer")
    group.addoption("--thorough-part", metavar="K/N", type=tiers.checked, help="run one part of the thorough tests")
    group.addoption("--all", action="store_true", help="run all tests, not only those that a change can break")
    group.addoption("--record", action="store_true", help="record in tests/proven.json if all pass")


def pytest_configure(config: pytest.Config) -> None:
    """Give random tests their length; compile the emulator while processes of pytest-xdist begin, if any need it.

    Where there is no CUDA device, the emulated one takes its place, before CuPy is imported.
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
    """Keep the garbage collector away from tens of thousands of tests: it would walk all of them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where quick tests alone are asked for, do not even import the modules whose tests are all slow."""
    if config.option.markexpr != "quick":
        return None
    if collection_path.is_dir():
        return True if collection_path.name in EMULATORS else None
    module = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if module and _SLOW_MODULE.search(collection_path.read_text(encoding="utf-8")) else None


@functools.cache
def name_of(path: Path) -> str:
    """Return a test's module from the folder of the tests on, as ``rules/test_cases``."""
    tests = Path(__file__).parent
    return path.relative_to(tests).with_suffix("").as_posix() if path.is_relative_to(tests) else path.stem


@pytest.hookimpl(tryfirst=True)  # before those without the marker are left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the quick tests and those with the fixture ``sent``, take those of the tier, then order them.

    Begin with what compiles kernels to machine code: the PTX of each, made on the way, is what other tests emulate.

    Tests of the same machine code follow each other, so that one process compiles it for all of them. Those of broken
    kernels come last: what is compiled after them is not kept. The longest are among the first, so that no process has
    to wait for another in the end.
    """
    for item in items:
        if "sent" in getattr(item, "fixturenames", ()):
            item.add_marker("emulator")
        if EMULATORS.isdisjoint(item.nodeid.partition("::")[0].split("/")) and not any(
            map(item.get_closest_marker, NOT_QUICK)
        ):
            item.add_marker("quick")
    named = any("::" in word for word in config.args)  # whoever names a test gets it
    chosen = config.stash[CHOICE] = _choice(config)
    part = tiers.part(config.option.thorough_part)
    items[:], others = tiers.select(items, named or config.option.thorough, part, chosen)
    config.hook.pytest_deselected(items=others)
    if chosen is not None:
        everything, _ = tiers.select([*items, *others], False, part, replace(chosen, everything="it is counted"))
        config.stash[LEFT_OUT] = len(everything) - len(items), len(everything)
    items.sort(key=_place)


def _choice(config: pytest.Config) -> Choice | None:
    """Return which tests run, None where that is not the question: all that the command line names do."""
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
    """Tell a process of pytest-xdist which tests run."""
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
    """Let quick tests fail that compile or emulate anything, also where compilers are there.

    By the ``monkeypatch`` that tests have themselves: what both replace is put back in the reverse order.
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
    """Hide the device, real or emulated, from tests that do not ask for it; the emulated one loads PTX."""
    if request.node.get_closest_marker("gpu") is None:
        if "cupy" in sys.modules:
            monkeypatch.setattr(sys.modules["cupy"].cuda.runtime, "getDeviceCount", _no_devices)
    elif cuda_device.emulated():
        monkeypatch.setattr(compiler, "cubin", cuda_device.ptx)


def _no_devices() -> NoReturn:
    raise RuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")


@pytest.fixture
def turn(request: pytest.FixtureRequest) -> int:
    """The number of the run's turn, by which tests are chosen of those that use nothing that has changed."""
    chosen = request.config.stash.get(CHOICE, None)
    return 0 if chosen is None else chosen.turn


@pytest.fixture
def sent(tmp_path: Path) -> Iterator[Sent]:
    """What calls ask the emulated device for, whose kernels do nothing; tests that look at it have its marker."""
    with idle_kernels(tmp_path) as sent:
        yield sent


@pytest.fixture
def general_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Conv and ConvTranspose have the kernels alone that accept every problem: two launches, of which one packs."""
    from gpuconv.cuda.conv import families as conv_families
    from gpuconv.cuda.conv.gemm import ffma, split

    monkeypatch.setattr(conv_families, "FAMILIES", (ffma,))
    monkeypatch.setattr(split, "candidates", lambda divisible, limits: ())


@pytest.fixture(scope="module")
def cache_of_broken_kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep broken kernels out of the user's cache, in which those that are whole are found."""
    usual, folder = cache.folder(), tmp_path_factory.mktemp("broken")
    with suppress(OSError):  # there is none, or it is on another file system
        for path in usual.glob("[!.]*.*") if usual is not None else ():
            os.link(path, folder / path.name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUCONV_CACHE_DIR", str(folder))
        yield


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose marker names something that is not there, with the reason; fail it where that is required."""
    for marker, needs in NEEDS.items():
        for need in needs if item.get_closest_marker(marker) else ():
            reason = need.unavailable_reason()
            if reason is not None and os.environ.get(need.variable) == "1":
                pytest.fail(f"{need.variable}=1, but {reason}", pytrace=False)
            if reason is not None and need.skips:
                pytest.skip(reason)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let a worker of pytest-xdist tell what it emulated."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["emulator"] = list(tally.launches.items())
        session.config.workeroutput["left out"] = session.config.stash.get(LEFT_OUT, None)
    elif session.config.option.record and session.exitstatus == pytest.ExitCode.OK:
        selection.write()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add what a worker of pytest-xdist emulated."""
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
    """Path of a model of two nodes, with an input of unknown batch and two outputs."""
    return save_model("""net (float[N, 1, 4] x) => (float[N, 1, 2] y, float[N, 1, 2] z) {
        y = MaxPool <kernel_shape = [2], strides = [2]> (x)
        z = Relu (y)
    }""")


@pytest.fixture
def ok(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must succeed, with one line on stderr for each warning; return what it prints."""

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
    """Run a command that must fail with one line on stderr, behind warnings at most; return that line."""

    def run(*argv: object, code: int = 2) -> str:
        assert main([str(word) for word in argv]) == code
        err = capsys.readouterr().err
        (line,) = re.findall("^gpuconv: error: (.+)\n\\Z", err, re.MULTILINE)
        assert len(err.splitlines()) == 1 + len(re.findall("^gpuconv: warning: ", err, re.MULTILINE))
        return str(line).strip()

    return run
