"""prepare(..., untrusted=True): onnx's native code in a child process, its limits, how it ends, what it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import SparseTensorProto, TensorProto, helper, numpy_helper

import gpuconv
from gpuconv.onnx import backend
from gpuconv.onnx.checks import isolated
from tests.onnx.models import model, value

pytestmark = pytest.mark.slow

Run = Callable[..., str]
TEXT = """<ir_version: 10, opset_import: ["" : 22]>
net (float[N, 2, 4] x) => (float[A, B, C] z) <float[3, 2, 1] w = {1, 2, 3, 4, 5, 6}> { y = Conv (x, w) z = Relu (y) }"""
LINUX = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks at this process as Linux shows it")


def small() -> onnx.ModelProto:
    return onnx.parser.parse_model(TEXT)


def planted(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Make the child run other code after it has received a request."""
    whole = "import os, signal, sys, time; sys.stdin.buffer.readline(); " + code
    monkeypatch.setattr(isolated, "_program", lambda: whole)


def with_task(monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    """Make the child compute something else for every request."""
    program = isolated._program
    monkeypatch.setattr(
        isolated, "_program", lambda: program().replace("isolated.serve", f"isolated._done = {task}; isolated.serve")
    )


def refused(source: Any = None) -> str:
    with pytest.raises(gpuconv.ArgumentError) as caught:
        backend.prepare(small() if source is None else source, untrusted=True)
    text = str(caught.value)
    assert text.isprintable()
    return text


# ---------------------------------------------------------------- the same models, the same errors


@pytest.mark.filterwarnings("ignore:The onnxtxt format is experimental")
@pytest.mark.parametrize("source", ["message", "bytes", "path", "text"])
def test_a_model_is_prepared_as_without(tmp_path: Path, source: str) -> None:
    proto = small()
    path = tmp_path / ("model.onnxtxt" if source == "text" else "model.onnx")
    path.write_bytes(TEXT.encode() if source == "text" else proto.SerializeToString())
    given = {"message": proto, "bytes": proto.SerializeToString()}.get(source, path)
    rep, plain = backend.prepare(given, untrusted=True), backend.prepare(proto)
    assert rep._evaluator._facts == plain._evaluator._facts != {}
    x = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
    assert rep.run([x])["z"].tolist() == [[[8, 11, 14, 17], [16, 23, 30, 37], [24, 35, 46, 57]]]


def test_sparse_initializers_are_checked_by_the_child() -> None:
    proto = model([helper.make_node("Add", ["x", "s"], ["y"])], [value("x", shape=(4,))], [value("y", shape=(4,))])
    for indices, message in (([0, 3], ""), ([3, 0], "not in sorted order")):
        places = helper.make_tensor("places", TensorProto.INT64, [2], indices)
        values = numpy_helper.from_array(np.float32([5, 7]), "s")
        del proto.graph.sparse_initializer[:]
        proto.graph.sparse_initializer.append(SparseTensorProto(values=values, indices=places, dims=[4]))
        if message:
            assert message in refused(proto)
        else:
            assert backend.prepare(proto, untrusted=True).run([np.zeros(4, np.float32)])["y"].tolist() == [5, 0, 0, 7]


@pytest.mark.parametrize(
    "source",
    [
        b"who knows what",
        b"",
        "/nowhere/model.onnx",
        model([helper.make_node("Relu", ["x", "x"], ["y"])], ["x"], ["y"]),
        model([helper.make_node("Relu", ["z"], ["y"])], ["x"], ["y"]),
        7,
    ],
)
def test_what_is_wrong_with_a_model_is_said_as_without(source: Any) -> None:
    with pytest.raises(gpuconv.GpuconvError) as plain:
        backend.prepare(source)
    with pytest.raises(type(plain.value)) as caught:
        backend.prepare(source, untrusted=True)
    assert str(caught.value) == str(plain.value)


def test_is_compatible_takes_the_word_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend.is_compatible(small(), untrusted=True)
    planted(monkeypatch, "os.abort()")
    assert not backend.is_compatible(small(), untrusted=True)


# ---------------------------------------------------------------- ends


ENDS = {
    "os.kill(os.getpid(), signal.SIGSEGV)": "ended by signal 11 (SIGSEGV)",
    "os.abort()": "ended by signal 6 (SIGABRT)",
    "sys.exit('one' + chr(10) + chr(27) + 'two')": r"ended with exit status 1: one",
    "print('who knows what', flush=True); time.sleep(100)": "sent what is no reply",
    "print('{}', flush=True); time.sleep(100)": "sent what is no reply",
    """print('{"bytes": 99999999999999}', flush=True); time.sleep(100)""": "sent what is no reply",
    """print('{"bytes": -1}', flush=True); time.sleep(100)""": "sent what is no reply",
    """print('{"bytes": 9}', flush=True)""": "ended with exit status 0",
}


@pytest.mark.parametrize("code", ENDS)
def test_a_child_that_ends_is_one_error(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    planted(monkeypatch, code)
    monkeypatch.setattr(isolated, "_PATIENCE", 0.2)
    text = refused()
    assert text.startswith(f"the model is refused: onnx's checker, in a process of its own, {ENDS[code]}")


def test_each_part_of_onnx_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, "os.abort()")
    assert "onnx's parser, in a process of its own, ended by signal 6" in refused(small().SerializeToString())
    replies = """[print('{"bytes": 0}', flush=True), sys.stdin.buffer.read(1), os.abort()]"""
    planted(monkeypatch, replies)
    assert "onnx's shape inference, in a process of its own, ended by signal 6" in refused()


def test_a_child_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, "time.sleep(100)")
    monkeypatch.setattr(isolated, "SECONDS", 1)
    start = time.monotonic()
    assert refused().endswith("took more than 1 s")
    assert time.monotonic() - start < 30


def test_a_child_that_does_not_read_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "_program", lambda: "import time; time.sleep(100)")
    monkeypatch.setattr(isolated, "SECONDS", 1)
    assert refused(bytes(2**21)).endswith("onnx's parser, in a process of its own, took more than 1 s")


@LINUX
def test_a_child_that_computes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with_task(monkeypatch, "lambda *_: any(iter(int, 1))")
    program = isolated._program()
    monkeypatch.setattr(isolated, "_program", lambda: program.replace(f"serve({isolated.SECONDS})", "serve(1)"))
    assert "ended by signal 24 (SIGXCPU)" in refused()


@LINUX
def test_a_child_that_takes_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with_task(monkeypatch, "lambda *_: bytes(2**27)")
    monkeypatch.setattr(isolated, "MEMORY", 2**26)
    monkeypatch.setattr(isolated, "MEMORY_PER_BYTE", 0)
    assert refused().endswith("onnx's checker, in a process of its own, needed more than the 64 MiB that it may take")


def test_no_python_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    assert refused() == "prepare: untrusted=True starts another Python, but sys.executable does not name one"
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert refused().startswith("prepare: untrusted=True cannot start '/nowhere/python': ")


# ---------------------------------------------------------------- what it leaves behind

LEFT = """
import os, sys, threading, onnx
from gpuconv import ArgumentError
from gpuconv.onnx import backend
from gpuconv.onnx.checks import isolated
text = sys.argv[1]
proto = onnx.parser.parse_model(text)
backend.prepare(proto)
def left():
    return sorted(os.listdir("/proc/self/fd")), threading.active_count(), os.listdir(os.environ["TMPDIR"])
before = left()
backend.prepare(proto, untrusted=True)
isolated._program = lambda: "import os; os.abort()"
for source in (proto, proto.SerializeToString(), bytes(2**21)):
    try:
        backend.prepare(source, untrusted=True)
    except ArgumentError as error:
        assert "SIGABRT" in str(error), error
    else:
        raise AssertionError
for _ in range(50):
    if left() == before: break
    threading.Event().wait(0.1)
assert left() == before, (left(), before)
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child")
"""


@LINUX
def test_no_process_descriptor_thread_or_file_is_left(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", LEFT, TEXT], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "no child\n"), done.stderr


INTERRUPTED = """
import sys, onnx
from gpuconv.onnx import backend
from gpuconv.onnx.checks import isolated
isolated._program = lambda: "import time; time.sleep(100)"
make = isolated.subprocess.Popen
def started(*arguments, **keywords):
    process = make(*arguments, **keywords)
    print(process.pid, flush=True)
    return process
isolated.subprocess.Popen = started
backend.prepare(onnx.parser.parse_model(sys.argv[1]), untrusted=True)
"""


@LINUX
def test_ctrl_c_ends_the_child(tmp_path: Path) -> None:
    heard = [sys.executable, "-c", INTERRUPTED, TEXT]
    process = subprocess.Popen(heard, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, restore_signals=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert not Path(f"/proc/{child}").exists()


# ---------------------------------------------------------------- the command


def test_run_untrusted(ok: Run, error: Run, pool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "(1, 1, 2)" in ok("run", pool, "--untrusted")
    planted(monkeypatch, "os.abort()")
    assert "onnx's parser, in a process of its own, ended by signal 6 (SIGABRT)" in error("run", pool, "--untrusted")
    assert "(1, 1, 2)" in ok("run", pool)
