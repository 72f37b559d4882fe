"""onnx's native code in a child process, with limits of memory and time, for models that are not trusted.

The parent sends requests to the child's standard input, and reads replies from its standard output. Both are a line of
JSON and as many bytes as it says. The child is a fresh Python, started by a command line rather than by a fork, so that
threads, locks and CUDA of this process stay out of it. It bounds its own address space and processor time before it
reads anything. A thread of the parent ends it once the wall time is over; so does the end of the context, whatever ends
that: an error, Ctrl-C, or success.

The parent takes a reply of the child for no more than it is: a message to quote, or a GraphProto to decode.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from types import TracebackType
from typing import IO, Any

from onnx import GraphProto, ModelProto, SparseTensorProto

from gpuconv._errors import ArgumentError, GpuconvError
from gpuconv.onnx.checks.native import Local
from gpuconv.onnx.messages import quoted

SECONDS = 60  # of wall time, and of processor time
MEMORY = 2 * 2**30  # bytes of address space that the child may take beside what it has when it starts
MEMORY_PER_BYTE = 8  # and for each byte of a model
_LONGEST_LINE = 2**16
_START = "import sys; sys.path[:] = {path!r}; from gpuconv.onnx.checks.isolated import serve; serve()"
_TASKS = {
    "parse": "onnx's parser",
    "check": "onnx's checker",
    "check_sparse_tensor": "onnx's checker",
    "infer": "onnx's shape inference",
}


class Isolated(Local):
    """A context in which a child process does what :class:`Local` does, or fails to, for one model.

    Raises
    ------
    ArgumentError
        The child was ended, by a fault in native code or by a limit; the message says by which. So a model is refused
        that this process has not looked at.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._timer: threading.Timer | None = None
        self._late = threading.Event()

    def __enter__(self) -> Isolated:
        if not sys.executable:
            raise ArgumentError("prepare: untrusted=True starts another Python, but sys.executable does not name one")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START.format(path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C is for the parent, which ends the child
        )
        self._timer = threading.Timer(SECONDS, self._end_late)
        self._timer.daemon = True
        self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        process, timer = self._process, self._timer
        if timer is not None:
            timer.cancel()
        if process is not None:
            process.kill()  # it holds nothing that must be written
            process.wait()
            for stream in (process.stdin, process.stdout):
                with suppress(OSError):
                    stream.close()  # type: ignore[union-attr]
        self._errors.close()

    def parse(self, source: Any) -> None:
        """Have the child decode a model first: bytes, or the file of a path, without external data."""
        if isinstance(source, str | os.PathLike):
            path = os.path.abspath(os.fsdecode(source))
            self._ask("parse", b"", path=path, size=os.path.getsize(path) if os.path.isfile(path) else 0)
        elif isinstance(source, bytes | bytearray | memoryview):
            self._ask("parse", bytes(source))

    def check(self, model: ModelProto, path: str | os.PathLike[str] | None) -> None:
        """Check a model in the child."""
        self._ask("check", model.SerializeToString(), path=None if path is None else os.path.abspath(os.fsdecode(path)))

    def check_sparse_tensor(self, tensor: SparseTensorProto) -> None:
        """Check a sparse tensor in the child."""
        self._ask("check_sparse_tensor", tensor.SerializeToString())

    def infer(self, model: ModelProto) -> GraphProto:
        """Infer types in the child."""
        return GraphProto.FromString(self._ask("infer", model.SerializeToString()))

    def _ask(self, task: str, data: bytes, **more: Any) -> bytes:
        assert self._process is not None
        try:
            _send(self._process.stdin, {"task": task, **more}, data)
            reply, found = _receive(self._process.stdout)
        except (OSError, ValueError, EOFError):
            raise self._ended(task) from None
        if "error" in reply:
            raise _Refused(str(reply["error"]))
        return found

    def _end_late(self) -> None:
        self._late.set()
        if self._process is not None:
            self._process.kill()

    def _ended(self, task: str) -> GpuconvError:
        """Return the error that says how the child has ended."""
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        code = self._process.poll()
        if self._late.is_set():
            how = f"took more than {SECONDS} s"
        elif code is not None and code < 0:
            how = f"ended by signal {-code} ({signal.Signals(-code).name})"
        else:
            self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 200))
            how = f"ended with exit status {code}, after {quoted(self._errors.read().decode(errors='replace'))}"
        return ArgumentError(f"the model is refused, since {_TASKS[task]}, in a process of its own, {how}")


class _Refused(Exception):
    """What the child's onnx said."""


# ---------------------------------------------------------------- the child


def serve() -> None:
    """Answer requests until there are no more. This is the child's whole program."""
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what native code prints is no reply
    _limit_time()
    local = Local()
    while True:
        try:
            request, data = _receive(requests, before=_limit_memory)
        except EOFError:
            return
        try:
            found, reply = _done(local, request, data), {}
        except MemoryError:
            found, reply = b"", {"error": f"it needs more than the {_memory(len(data)) >> 20} MiB that it may take"}
        except Exception as error:
            found, reply = b"", {"error": f"{error}"[:4096] or type(error).__name__}
        _send(replies, reply, found)


def _done(local: Local, request: dict[str, Any], data: bytes) -> bytes:
    task, path = request["task"], request.get("path")
    if task == "parse":
        _parse(path, data)
    elif task == "check":
        local.check(ModelProto.FromString(data), path)
    elif task == "check_sparse_tensor":
        local.check_sparse_tensor(SparseTensorProto.FromString(data))
    else:
        return local.infer(ModelProto.FromString(data)).SerializeToString()
    return b""


def _parse(path: str | None, data: bytes) -> None:
    """Decode a model. What is wrong with it, the parent finds again, and says in its own words."""
    from gpuconv.onnx import files

    with suppress(Exception):
        files.decoded(data if path is None else path)


def _limit_time() -> None:
    with suppress(ImportError, ValueError, OSError):  # systems without such limits have the parent's
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _limit_memory(request: dict[str, Any], size: int) -> None:
    """Bound the address space for a request, before its data is read."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        with open("/proc/self/statm", "rb") as statistics:
            used = int(statistics.read().split()[0]) * resource.getpagesize()
        limit = used + _memory(size + int(request.get("size", 0)))
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _memory(size: int) -> int:
    return MEMORY + MEMORY_PER_BYTE * size


# ---------------------------------------------------------------- messages between the two


def _send(stream: IO[bytes] | None, header: dict[str, Any], data: bytes) -> None:
    assert stream is not None
    stream.write(json.dumps({**header, "bytes": len(data)}).encode() + b"\n")
    stream.write(data)
    stream.flush()


def _receive(stream: IO[bytes] | None, before: Any = None) -> tuple[dict[str, Any], bytes]:
    assert stream is not None
    line = stream.readline(_LONGEST_LINE)
    if not line.endswith(b"\n"):
        raise EOFError
    header = json.loads(line)
    size = header["bytes"]
    if before is not None:
        before(header, size)
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return header, data


