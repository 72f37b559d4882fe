"""Sandbox for untrusted models: onnx's native code in a child process with limits on memory, CPU time and wall time.

Parent and child exchange messages over the child's standard input and output. A message is one line of JSON followed by
as many bytes as the line's "bytes" field says. The child is a new Python interpreter, not a fork, so it shares no
threads, locks or CUDA context with this process. It limits its own address space and CPU time before it reads a model.
A timer thread of the parent kills it when the wall time is over, and leaving the context kills it in any case.

The parent does not trust the child's replies: each is either an error message to quote, or a GraphProto to decode.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

from onnx import GraphProto, ModelProto, SparseTensorProto

from gpuconv._errors import ArgumentError, one_line
from gpuconv.onnx.checks.native import Local
from gpuconv.onnx.messages import quoted, reason

SECONDS = 60  # of wall time, and of CPU time
MEMORY = 2 * 2**30  # bytes of address space that the child may allocate beyond what it has at startup
MEMORY_PER_BYTE = 8  # further bytes of address space per byte of the model
_LONGEST_LINE = 2**16
_LARGEST_REPLY = 2**28
_PATIENCE = 5  # seconds to wait for the child to exit after it has stopped answering
_LONGEST_ERROR = 2_000  # characters of an error message from the child
_TASKS = {
    "parse": "onnx's parser",
    "check": "onnx's checker",
    "check_sparse_tensor": "onnx's checker",
    "infer": "onnx's shape inference",
}


class Isolated(Local):
    """Context manager that runs the methods of :class:`Local` in a child process, for one model.

    Raises
    ------
    ArgumentError
        The child crashed in native code or exceeded a limit; the message says which. The model is then refused before
        this process has parsed it.
    """

    def __enter__(self) -> Isolated:
        if not sys.executable:
            raise ArgumentError("prepare: untrusted=True starts another Python, but sys.executable does not name one")
        self._late = threading.Event()
        self._errors = tempfile.TemporaryFile()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _program()],
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # idle threads would consume address space
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,  # Ctrl-C goes to the parent only, which kills the child
            )
        except OSError as error:
            self._errors.close()
            raise ArgumentError(
                f"prepare: untrusted=True cannot start {quoted(sys.executable)}: {reason(error)}"
            ) from error
        self._timer = threading.Timer(SECONDS, self._end_late)
        self._timer.daemon = True
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._process.kill()  # it has no state that must be saved
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with suppress(OSError):  # closing flushes data that was not sent, to a closed pipe
                stream.close()  # type: ignore[union-attr]  # both are pipes

    def parse(self, source: Any) -> None:
        """Let the child decode the model first, without external data: from bytes, or from the file at a path."""
        if isinstance(source, str | os.PathLike):
            path = os.path.abspath(os.fsdecode(source))
            self._ask("parse", b"", path=path, size=os.path.getsize(path) if os.path.isfile(path) else 0)
        elif isinstance(source, bytes | bytearray | memoryview):
            self._ask("parse", bytes(source))

    def check(self, model: ModelProto, path: str | os.PathLike[str] | None) -> None:
        """Run onnx's checker in the child."""
        self._ask("check", model.SerializeToString(), path=None if path is None else os.path.abspath(os.fsdecode(path)))

    def check_sparse_tensor(self, tensor: SparseTensorProto) -> None:
        """Check a sparse tensor in the child."""
        self._ask("check_sparse_tensor", tensor.SerializeToString())

    def infer(self, model: ModelProto) -> GraphProto:
        """Run onnx's shape inference in the child."""
        graph: GraphProto = GraphProto.FromString(self._ask("infer", model.SerializeToString()))
        return graph

    def _ask(self, task: str, data: bytes, *, size: int = 0, path: str | None = None) -> bytes:
        """Send a request and return the data of the reply.

        ``size`` is the size of a file that the child reads itself; it raises the memory limit.
        """
        memory = MEMORY + MEMORY_PER_BYTE * (len(data) + size)
        try:
            _send(self._process.stdin, {"task": task, "path": path, "memory": memory}, data)
            reply, found = _receive(self._process.stdout, _LARGEST_REPLY)
        except (OSError, ValueError, EOFError, LookupError, TypeError):
            raise self._ended(task) from None
        if "memory" in reply:
            raise ArgumentError(f"{_refused(task)} needed more than the {memory >> 20} MiB that it may take")
        if "error" in reply:
            raise _OnnxError(str(reply["error"]))
        return found

    def _end_late(self) -> None:
        self._late.set()
        self._process.kill()

    def _ended(self, task: str) -> ArgumentError:
        """Return the error that explains how the child ended, or that its reply was malformed."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE)
        code = self._process.poll()
        if self._late.is_set():
            how = f"took more than {SECONDS} s"
        elif code is None:
            how = "sent what is no reply"
        elif code < 0:
            how = f"ended by signal {-code} ({signal.Signals(-code).name})"
        else:
            self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 200))
            how = f"ended with exit status {code}: {one_line(self._errors.read().decode(errors='replace'), 200)}"
        return ArgumentError(f"{_refused(task)} {how}")


def _refused(task: str) -> str:
    return f"the model is refused: {_TASKS[task]}, in a process of its own,"


class _OnnxError(Exception):
    """An exception that onnx raised in the child, as text."""


# ---------------------------------------------------------------- the child


def _program() -> str:
    """Return the child's program, which imports from this process's sys.path and not from the current directory."""
    path = list(map(str, sys.path))
    return f"import sys; sys.path[:] = {path!r}; from gpuconv.onnx.checks import isolated; isolated.serve({SECONDS})"


def serve(seconds: int) -> None:
    """Answer requests until the input ends; the main program of the child."""
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # redirect stdout to stderr: what native code prints must not mix with replies
    _limit(seconds)
    local = Local()
    while True:
        try:
            request, data = _receive(requests, None, _limit_memory)
        except EOFError:
            return
        reply: dict[str, Any] = {}
        found = b""
        try:
            found = _done(local, request, data)
        except MemoryError:
            reply["memory"] = True
        except Exception as error:
            reply["error"] = str(error)[:_LONGEST_ERROR] or type(error).__name__
        _send(replies, reply, found)


def _done(local: Local, request: dict[str, Any], data: bytes) -> bytes:
    """Execute a request and return the data of its reply."""
    task, path = request["task"], request["path"]
    if task == "parse":
        _parse(path, data)
    elif task == "check":
        local.check(ModelProto.FromString(data), path)
    elif task == "check_sparse_tensor":
        local.check_sparse_tensor(SparseTensorProto.FromString(data))
    else:
        graph = local.infer(ModelProto.FromString(data))
        found: bytes = GraphProto(value_info=graph.value_info, output=graph.output).SerializeToString()
        return found
    return b""


def _parse(path: str | None, data: bytes) -> None:
    """Decode a model to see whether that crashes; ordinary errors are ignored, because the parent finds them again."""
    from gpuconv.onnx import files

    with suppress(Exception):
        files.decoded(data if path is None else path)


def _limit(seconds: int) -> None:
    """Limit CPU time, core dumps and file size; on systems without such limits, only the parent's timer applies."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))  # its standard error is a file


def _limit_memory(request: dict[str, Any]) -> None:
    """Limit the address space for a request before its data is read."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        with open("/proc/self/statm", "rb") as statistics:
            used = int(statistics.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + request["memory"], resource.getrlimit(resource.RLIMIT_AS)[1]))


# ---------------------------------------------------------------- messages between the two


def _send(stream: IO[bytes] | None, header: dict[str, Any], data: bytes) -> None:
    assert stream is not None
    stream.write(json.dumps({**header, "bytes": len(data)}).encode() + b"\n")
    stream.write(data)
    stream.flush()


def _receive(
    stream: IO[bytes] | None, largest: int | None, before: Callable[[dict[str, Any]], None] | None = None
) -> tuple[dict[str, Any], bytes]:
    """Return a message's header and data; ``before``, if given, is called with the header before the data is read."""
    assert stream is not None
    line = stream.readline(_LONGEST_LINE)
    if not line.endswith(b"\n"):
        raise EOFError
    header = json.loads(line)
    size = int(header["bytes"])
    if largest is not None and not 0 <= size <= largest:
        raise ValueError(size)
    if before is not None:
        before(header)
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return header, data
