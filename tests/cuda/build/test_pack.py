"""Kernels in one file that is copied to other machines: written, found without a compiler, and every error in it."""

from __future__ import annotations

import lzma
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gpuconv
from gpuconv import CompileError
from gpuconv.cli.main import main
from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.build import nvrtc, pack
from gpuconv.cuda.build.variant import Variant
from tests.cuda.build.strangers import STRANGER, giving
from tests.harness.toolchain import kernels, variant

Run = Callable[..., str]
Write = Callable[[Mapping[str, str]], Path]
posix = pytest.mark.skipif(os.name != "posix", reason="Windows has other permissions")
ROOT = Path(__file__).resolve().parents[3]
MISSING = "CUDA kernels cannot be compiled, since NVRTC is not there (nowhere); install it"
LOG = "ptxas info    : Used 40 registers"
IDENTITY = "NVRTC 77.7, 5 bytes, headers abc"

__all__ = ["kernels"]  # a fixture
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("kernels", "nothing_read")]


@pytest.fixture
def nothing_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_examined", "_warned", "_damaged"):
        monkeypatch.setattr(pack, name, {})
    monkeypatch.delenv("GPUCONV_PACK", raising=False)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Replace the compiler by one that makes a distinct cubin of any source; return what it has compiled."""
    done: list[tuple[str, str]] = []

    def build(name: str, source: str, architecture: str, options: Any) -> tuple[bytes, str]:
        done.append((name, architecture))
        return _cubin(name, architecture), LOG

    monkeypatch.setattr(nvrtc, "build", build)
    monkeypatch.setattr(nvrtc, "identity", lambda: IDENTITY)
    monkeypatch.setattr(nvrtc, "version", lambda: "77.7")
    monkeypatch.setattr(nvrtc, "capabilities", lambda: ((8, 0), (9, 0)))
    return done


def _cubin(name: str, architecture: str) -> bytes:
    return b"\x7fELF" + f"{name} for {architecture} ".encode() * 50


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that makes the compiler unavailable."""

    def fail(*_: Any) -> Any:
        raise CompileError(MISSING)

    def gone() -> None:
        for name in ("_binding", "identity", "version", "capabilities", "headers", "build"):
            monkeypatch.setattr(nvrtc, name, fail)

    return gone


COUNTS = (1, 2, 3, 12)


def _variants() -> list[Variant]:
    listed = [variant(f"scale_{count}", arguments=(str(count),)) for count in COUNTS]
    return [*listed, variant("only_90a", architectures=("sm_90a",))]


@pytest.fixture
def packed(
    kernels: Write,
    nothing_read: None,
    compiled: list[tuple[str, str]],
    ok: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """Write five kernels for two architectures into a file, in groups of two, and select it; the cache stays empty."""
    listed = SimpleNamespace(all_variants=_variants)
    monkeypatch.setitem(sys.modules, "gpuconv.cuda.variants", listed)
    monkeypatch.setattr(pack, "TOGETHER", 2)
    path = tmp_path / "image" / "kernels.pack"
    out = ok("compile", "--arch", "sm_80,sm_90a", "--output-dir", tmp_path / "made", "--pack", path, "-j", 2)
    assert out.splitlines()[-1] == f"packed into {path.stat().st_size} bytes, found by GPUCONV_PACK={path}"
    assert len(compiled) == 9
    compiled.clear()
    monkeypatch.setenv("GPUCONV_PACK", str(path))
    return path


def _loads() -> None:
    """Check that every kernel loads the cubin that the compiler made for it."""
    for one in _variants():
        for architecture in ("sm_80", "sm_90a"):
            if one.compiles_for(architecture):
                assert compiler.cubin(one, architecture) == _cubin(one.name, architecture)


# ---------------------------------------------------------------- what is there


@pytest.mark.usefixtures("packed")
def test_packed_kernels_need_no_compiler_and_no_cache(no_compiler: Callable[[], None], tmp_path: Path) -> None:
    no_compiler()
    assert compiler.architecture((8, 0)) == "sm_80"
    assert compiler.architecture((9, 0)) == "sm_90a"
    _loads()
    assert not (tmp_path / "cache").exists()


@pytest.mark.usefixtures("packed")
def test_a_device_that_the_compiler_does_not_know_gets_its_packed_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "capabilities", lambda: ((8, 0),))
    assert compiler.architecture((9, 0)) == "sm_90a"


@pytest.mark.usefixtures("packed")
def test_without_a_compiler_other_devices_are_an_error(no_compiler: Callable[[], None]) -> None:
    no_compiler()
    with pytest.raises(CompileError, match="NVRTC is not there"):
        compiler.architecture((8, 6))
    with pytest.raises(gpuconv.DeviceError, match=r"needs compute capability 8\.0 or newer"):
        compiler.architecture((7, 5))


def test_a_compiler_of_another_version_does_not_matter(
    packed: Path, compiled: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvrtc, "identity", lambda: "NVRTC 99.9, 6 bytes, headers def")
    _loads()
    assert compiled == []
    monkeypatch.delenv("GPUCONV_PACK")
    compiler.cubin(variant("scale_1", arguments=("1",)), "sm_80")
    assert compiled == [("scale_1", "sm_80")]


def test_the_file_comes_before_the_cache(packed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nvrtc, "build", lambda *_: (b"another", LOG))
    one = _variants()[0]
    compiler.build(one, "sm_80")
    assert compiler.cubin(one, "sm_80") == _cubin(one.name, "sm_80")
    assert compiler.build(one, "sm_80", tmp_path / "made").content == _cubin(one.name, "sm_80")


@pytest.mark.usefixtures("packed")
def test_registers_are_looked_at_as_those_of_compiled_kernels(
    monkeypatch: pytest.MonkeyPatch, no_compiler: Callable[[], None]
) -> None:
    no_compiler()
    starved = variant("scale_1", arguments=("1",), least_registers=48)
    message = f"scale_1 for sm_80, by {IDENTITY}, would not run: its threads begin with 40 registers, and need 48"
    with pytest.raises(CompileError, match=re.escape(message)):
        compiler.cubin(starved, "sm_80")


def test_the_file_is_read_once_and_may_vanish(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = _variants()[0]
    assert compiler.cubin(one, "sm_80") == _cubin(one.name, "sm_80")
    packed.unlink()
    _loads()


@pytest.mark.usefixtures("packed")
def test_many_threads_may_be_first() -> None:
    barrier = threading.Barrier(8)

    def load(_: int) -> None:
        barrier.wait(30)
        _loads()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(load, range(8)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_children_find_what_their_parent_has_read(packed: Path) -> None:
    code = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.harness.toolchain import variant
from gpuconv.cuda.build import compile as compiler, kernel_files, pack
kernel_files.folder = lambda: Path(sys.argv[2])
one = variant("scale_1", arguments=("1",))
content = compiler.cubin(one, "sm_80")
os.unlink(pack.path())
child = os.fork()
if not child:
    os._exit(0 if compiler.cubin(one, "sm_80") == content else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    command = [sys.executable, "-W", "error", "-c", code, str(ROOT), str(packed.parents[1] / "kernels_cu")]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


# ---------------------------------------------------------------- what is not there


def test_what_is_missing_is_compiled_as_ever(packed: Path, compiled: list[tuple[str, str]]) -> None:
    assert compiler.cubin(variant("scale_9", arguments=("9",)), "sm_80") == _cubin("scale_9", "sm_80")
    assert compiler.cubin(variant("scale_1", arguments=("1",)), "sm_86") == _cubin("scale_1", "sm_86")
    assert compiled == [("scale_9", "sm_80"), ("scale_1", "sm_86")]


@pytest.mark.usefixtures("packed")
@pytest.mark.parametrize("file", ["scale.cu", "base/scale.cuh"])
def test_a_source_that_has_changed_is_compiled_as_ever(
    kernels: Write, compiled: list[tuple[str, str]], file: str
) -> None:
    kernels({file: (kernels({}) / file).read_text() + "// changed\n"})
    _loads()
    assert len(compiled) == 9


def test_other_options_are_compiled_as_ever(
    packed: Path, compiled: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "_OPTIONS", (*compiler._OPTIONS, "--extra-device-vectorization"))
    _loads()
    assert len(compiled) == 9


def test_what_is_missing_without_a_compiler_is_told(packed: Path, no_compiler: Callable[[], None]) -> None:
    no_compiler()
    with pytest.raises(CompileError) as caught:
        compiler.cubin(variant("scale_9", arguments=("9",)), "sm_80")
    assert str(caught.value) == (
        f"the packed kernels {packed} lack scale_9 for sm_80 as its source is here, and {MISSING}"
    )


# ---------------------------------------------------------------- a file that is wrong


def _is_refused(path: Path, reason: str) -> None:
    """Expect one warning with the reason, and every kernel to be compiled."""
    with pytest.warns(RuntimeWarning) as caught:
        compiler.architecture((9, 0))
    (warning,) = caught
    assert re.fullmatch(
        rf"the packed kernels {re.escape(str(path))} are not used, since {reason}; GPUCONV_PACK should name a file .+",
        str(warning.message),
    )
    _loads()  # without another message


def _header(path: Path) -> bytes:
    return path.read_bytes().partition(b"\n")[0] + b"\n"


FAULTS: dict[str, tuple[Callable[[bytes, bytes], bytes], str]] = {
    "empty": (lambda content, header: b"", "it does not begin with 'gpuconv kernels 1' .+"),
    "something else": (lambda content, header: b"PK\x03\x04" + content, "it does not begin with .+"),
    "of another version": (lambda content, header: content.replace(b" 1 ", b" 2 ", 1), "it does not begin with .+"),
    "cut in its index": (lambda content, header: content[: len(header) + 9], "it is cut off, or .+"),
    "cut in its groups": (lambda content, header: content[:-1], r"\d+ bytes should follow its index, and \d+ do"),
    "longer": (lambda content, header: content + b"x", r"\d+ bytes should follow its index, and \d+ do"),
    "another index": (
        lambda content, header: content[: len(header)] + b"\x00" + content[len(header) + 1 :],
        "it is cut off, or its index is damaged",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_is_malformed_is_not_used(packed: Path, compiled: list[tuple[str, str]], fault: str) -> None:
    change, reason = FAULTS[fault]
    packed.write_bytes(change(packed.read_bytes(), _header(packed)))
    _is_refused(packed, reason)
    assert len(compiled) == 9


@pytest.mark.parametrize(
    "index",
    [
        b"null",
        b"[]",
        b"{}",
        b'{"kernels": {"a": {}}, "groups": [], "compiler": ""}',
        b'{"kernels": {"a": 1}, "groups": [], "compiler": ""}',
        b'{"kernels": {}, "groups": ["a"], "compiler": ""}',
        b'{"kernels": {}, "groups": [0.5], "compiler": ""}',
        b'{"kernels": {}, "groups": 3, "compiler": ""}',
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_an_index_of_something_else(packed: Path, index: bytes) -> None:
    compressed = lzma.compress(index)
    packed.write_bytes(f"gpuconv kernels 1 {len(compressed)} {pack._digest(compressed)}\n".encode() + compressed)
    _is_refused(packed, "(its index is not one of packed kernels|0.5 bytes should .+)")


def test_an_index_that_would_be_endless(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "_EXPANDED_BYTES", 2**16)
    compressed = lzma.compress(b'{"kernels": {}, "groups": [], "compiler": "' + b" " * 2**20 + b'"}')
    packed.write_bytes(f"gpuconv kernels 1 {len(compressed)} {pack._digest(compressed)}\n".encode() + compressed)
    _is_refused(packed, "its index is not one of packed kernels")


def test_no_flipped_bit_of_a_group_goes_unseen(packed: Path, compiled: list[tuple[str, str]]) -> None:
    whole = packed.read_bytes()
    groups = len(whole) - sum(pack._read(packed)._groups[index].nbytes for index in range(5))
    for place in range(groups, len(whole), 61):
        pack._examined.clear()
        pack._damaged.clear()
        packed.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.warns(RuntimeWarning, match="is damaged, and is compiled anew; write the file again") as caught:
            _loads()
        assert len(caught) == 1
        assert compiled
        compiled.clear()
        for path in (packed.parents[1] / "cache").iterdir():
            path.unlink()


@pytest.mark.parametrize(
    ("instead", "reason"),
    [
        (None, "there is no such file"),
        (Path.mkdir, ".*(is not a file of at most|Permission denied).*"),
        pytest.param(lambda path: os.mkfifo(path, 0o600), ".* is not a file of at most .*", marks=posix),
    ],
    ids=["nothing", "a folder", "a pipe"],
)
def test_what_is_no_file_is_not_waited_for(
    packed: Path, compiled: list[tuple[str, str]], instead: Callable[[Path], None] | None, reason: str
) -> None:
    packed.unlink()
    if instead is not None:
        instead(packed)
    _is_refused(packed, reason)
    assert len(compiled) == 9


def test_an_empty_variable_is_as_good_as_none(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_PACK", "")
    assert pack.in_use() is None


def test_a_home_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_PACK", "~no such user/kernels.pack")
    with pytest.raises(gpuconv.ArgumentError) as caught:
        pack.in_use()
    assert str(caught.value) == (
        "GPUCONV_PACK must name a file, but the home that '~no such user/kernels.pack' begins with is not known"
    )


# ---------------------------------------------------------------- others


@posix
@pytest.mark.parametrize("mode", [0o664, 0o602, 0o666])
def test_a_file_that_others_can_write_is_not_used(packed: Path, mode: int) -> None:
    packed.chmod(mode)
    _is_refused(packed, rf"others than its owner can write to {re.escape(str(packed))} \(mode {mode:o}\)")


@posix
def test_a_file_where_all_may_write_is_used_if_it_is_this_users(packed: Path, compiled: list[tuple[str, str]]) -> None:
    for mode in (0o1777, 0o777):
        packed.parent.chmod(mode)
        pack._examined.clear()
        _loads()
    assert compiled == []


@posix
def test_a_file_of_a_stranger_is_used_where_nobody_else_can_write(
    packed: Path, compiled: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    giving(monkeypatch)(packed)
    _loads()
    assert compiled == []


@posix
@pytest.mark.parametrize("mode", [0o1777, 0o775])
def test_a_file_of_a_stranger_is_not_used_where_all_may_write(
    packed: Path, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed.parent.chmod(mode)
    giving(monkeypatch)(packed)
    _is_refused(packed, f"{re.escape(str(packed))} belongs to user {STRANGER}, who is neither this one nor root")


@posix
def test_a_link_to_it_is_followed(
    packed: Path, compiled: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    link = packed.with_name("link")
    link.symlink_to(packed)
    monkeypatch.setenv("GPUCONV_PACK", str(link))
    _loads()
    assert compiled == []


@posix
def test_what_is_looked_at_is_what_was_opened(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other, real = packed.with_name("theirs"), os.open
    other.write_bytes(packed.read_bytes())
    other.chmod(0o644)
    monkeypatch.setattr(
        os, "open", lambda path, *more, **named: real(other if path == packed else path, *more, **named)
    )
    _is_refused(packed, f"{re.escape(str(packed))} has become another file meanwhile")


# ---------------------------------------------------------------- writing it


def test_the_same_kernels_give_the_same_bytes(packed: Path, ok: Run, compiled: list[tuple[str, str]]) -> None:
    again, made = packed.with_name("again"), packed.parents[1] / "made"
    ok("compile", "--arch", "sm_90a,sm_80", "--output-dir", made, "--pack", again, "-j", 1)
    assert compiled == [], "they came from the folder"
    assert again.read_bytes() == packed.read_bytes()
    assert sorted(path.name for path in packed.parent.iterdir()) == ["again", "kernels.pack"]


@posix
@pytest.mark.parametrize(("umask", "mode"), [(0, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_who_may_read_it(packed: Path, ok: Run, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        ok("compile", "--arch", "sm_80", "--output-dir", packed.parents[1] / "made", "--pack", packed)
    finally:
        os.umask(before)
    assert packed.stat().st_mode & 0o777 == mode


def test_a_file_that_is_there_stays_until_the_new_one_is_whole(
    packed: Path, error: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = packed.read_bytes()

    def full(source: Path, target: Path) -> None:
        raise OSError(28, os.strerror(28))

    made = packed.parents[1] / "made"
    monkeypatch.setattr("os.replace", full)
    message = error("compile", "--arch", "sm_80", "--output-dir", made, "--pack", packed)
    assert message.startswith(f"compile: {packed} cannot be written (")
    assert packed.read_bytes() == before
    assert list(packed.parent.iterdir()) == [packed]


def test_nothing_is_packed_where_a_kernel_does_not_compile(
    packed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, build = packed.read_bytes(), nvrtc.build

    def fails(name: str, *more: Any) -> tuple[bytes, str]:
        if name == "scale_3":
            raise CompileError(f"{name} does not compile")
        return build(name, *more)

    monkeypatch.setattr(nvrtc, "build", fails)
    assert main(["compile", "--arch", "sm_80", "--pack", str(packed)]) == 1
    out, _ = capsys.readouterr()
    assert out.splitlines()[-1] == f"nothing is packed into {packed}, since not all kernels compile"
    assert packed.read_bytes() == before


def test_where_it_cannot_be_written_is_told_before_anything_is_compiled(
    packed: Path, error: Run, compiled: list[tuple[str, str]]
) -> None:
    folder = packed.parent
    assert error("compile", "--pack", folder) == f"compile: --pack names a file to write, and {folder} is a folder"
    below = packed / "kernels.pack"
    message = error("compile", "--arch", "sm_86", "--pack", below)
    assert message.startswith(f"compile: {below} cannot be written (")
    assert compiled == []


# ---------------------------------------------------------------- what is told of it


def _told(ok: Run) -> str:
    (line,) = re.findall(r"^packed kernels: (.*) \(GPUCONV_PACK\)$", ok("info"), re.MULTILINE)
    return str(line)


def test_info_names_it(packed: Path, ok: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _told(ok) == f"{packed}, 9 for sm_80, sm_90a, by NVRTC 77.7"
    monkeypatch.delenv("GPUCONV_PACK")
    assert _told(ok) == "none"
    monkeypatch.setenv("GPUCONV_PACK", str(packed.parent / "absent"))
    assert _told(ok) == f"{packed.parent / 'absent'}, not used, since there is no such file"
