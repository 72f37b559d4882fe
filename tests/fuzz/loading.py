"""Fuzz gpuconv.onnx with valid and broken ONNX models."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import ModelProto, inliner
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import gpuconv
from gpuconv.onnx import backend
from tests.fuzz import models, mutations
from tests.fuzz.frame import LONGEST, ROOT, Fuzzer, Wrong
from tests.oracle import oracle

_CANARY = bytes.fromhex("9c5ae1b7d3f06e42") * 512  # contents of files that no model may read
_SECONDS = 5.0  # time limit for preparing a model
_RUNNING = 1.5  # seconds after which a run is stopped; a model may legitimately take longer
_OURS = tuple(map(os.path.realpath, (ROOT, sys.prefix, sys.base_prefix, *sys.path[1:])))


@dataclass(frozen=True)
class Case:
    """A model, as a message or as the bytes of a file, and how it is passed.

    ``known`` means that it is valid, and that its results can be predicted.
    """

    kind: str
    model: ModelProto | None
    data: bytes
    feeds: dict[str, Any]
    source: str
    fold: bool


class _TimeLimit(BaseException):
    """A model exceeds its time limit."""


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def late(*_: Any) -> None:
        raise _TimeLimit

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ---------------------------------------------------------------- which files are opened


class _Watch:
    """Records every file that Python opens, except modules and files that report the number of processors.

    An audit hook cannot be removed.
    """

    def __init__(self) -> None:
        self.active = False
        self.opened: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and self.active and isinstance(arguments[0], str | bytes):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if not path.startswith((*_OURS, "/sys/fs/cgroup")) and not re.fullmatch(r"/proc/\d+/cgroup", path):
                self.opened.append(path)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.opened, self.active = [], True
        try:
            yield
        finally:
            self.active = False


# ---------------------------------------------------------------- expected results of valid models


class _Oracle(OpRun):
    """gpuconv's operators by definition, for onnx's reference evaluator."""

    op_domain = ""
    attributes: tuple[str, ...] = ()

    def _run(self, *inputs: Any, **given: Any) -> Any:
        values = {name: given.get(name, getattr(self, name, None)) for name in self.attributes}
        attributes = {name: value for name, value in values.items() if value is not None}
        return self.compute(inputs, attributes)


class _Sums(_Oracle):
    attributes = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")

    def compute(self, inputs: Any, attributes: Any) -> Any:
        function = oracle.conv if type(self).__name__ == "Conv" else oracle.conv_transpose
        return (oracle.round_to(function(*inputs, **attributes).value, inputs[0].dtype),)


class Conv(_Sums):
    """Conv."""


class ConvTranspose(_Sums):
    """ConvTranspose."""

    attributes = (*_Sums.attributes, "output_padding", "output_shape")


class MaxPool(_Oracle):
    """MaxPool."""

    attributes = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "storage_order", "strides")

    def compute(self, inputs: Any, attributes: Any) -> Any:
        return oracle.max_pool(*inputs, **attributes)[: len(self.onnx_node.output)]


class GlobalMaxPool(_Oracle):
    """GlobalMaxPool; onnx's evaluator returns too many axes."""

    def compute(self, inputs: Any, attributes: Any) -> Any:
        return (inputs[0].max(axis=tuple(range(2, inputs[0].ndim)), keepdims=True),)


class LRN(_Oracle):
    """LRN; onnx's evaluator sums over as many channels as there are images."""

    attributes = ("alpha", "beta", "bias", "size")

    def compute(self, inputs: Any, attributes: Any) -> Any:
        x, size = inputs[0].astype(np.float64), attributes["size"]
        before, after = (size - 1) // 2, size // 2 + 1
        sums = [(x[:, max(0, c - before) : c + after] ** 2).sum(axis=1) for c in range(x.shape[1])]
        base = attributes["bias"] + attributes["alpha"] / size * np.stack(sums, axis=1)
        return ((x / base ** attributes["beta"]).astype(inputs[0].dtype),)


class BatchNormalization(_Oracle):
    """BatchNormalization for inference; onnx's evaluator uses training mode at some opsets."""

    attributes = ("epsilon",)

    def compute(self, inputs: Any, attributes: Any) -> Any:
        x, scale, bias, mean, variance = (each.astype(np.float64) for each in inputs)
        column = (-1, *(1,) * (x.ndim - 2))
        factor = scale / np.sqrt(variance + attributes["epsilon"])
        y = (x - mean.reshape(column)) * factor.reshape(column) + bias.reshape(column)
        return (y.astype(inputs[0].dtype),)


class AveragePool(_Oracle):
    """AveragePool without padding; onnx's evaluator ignores NaN."""

    attributes = ("kernel_shape", "strides")

    def compute(self, inputs: Any, attributes: Any) -> Any:
        return (oracle.round_to(oracle.average_pool(*inputs, **attributes).value, inputs[0].dtype),)


_DEFINITIONS = [Conv, ConvTranspose, MaxPool, GlobalMaxPool, LRN, BatchNormalization, AveragePool]


def _expected(case: Case) -> list[Any]:
    """Return the results of onnx's evaluator, with these operators by definition; functions are inlined before."""
    try:
        model = inliner.inline_local_functions(case.model)
        evaluator = ReferenceEvaluator(model, new_ops=_DEFINITIONS)
        with np.errstate(all="ignore"):
            return list(evaluator.run(None, case.feeds))
    except Exception as error:
        raise Wrong("onnx's evaluator refuses a valid model", f"{type(error).__name__}: {error}") from error


def _graphs(model: Any) -> list[Any]:
    """Return the graph and the functions of a model."""
    return [model.graph, *model.functions]


_TOLERANCES = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-4, "float64": 1e-6}


def _compare(name: str, got: Any, want: Any, operators: frozenset[str] = frozenset()) -> None:
    """Raise Wrong if a result differs; ``operators`` are those of the model."""
    want = np.asarray(want)
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        raise Wrong("a model gives another shape or dtype", f"{got.dtype} {got.shape}, not {want.dtype} {want.shape}")
    tolerance = _TOLERANCES.get(got.dtype.name)
    if tolerance is None:
        same = bool((got == want).all())
    else:
        wide = [each.astype(np.float64) for each in (got, want)]
        loose = np.isinf(wide[0]) & np.isinf(wide[1])  # the sign of a zero sum, and so of its reciprocal, is open
        if "Resize" in operators:  # onnx's evaluator also multiplies NaN by interpolation weights of 0
            loose |= np.isnan(wide[1])
        wide[0][loose] = wide[1][loose]
        scale = max(1.0, float(np.max(np.abs(np.nan_to_num(wide[1], posinf=0, neginf=0)), initial=0)))
        same = np.allclose(*wide, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    if not same:
        raise Wrong("a model gives other values", f"{name}: {got!r:.300}, not {want!r:.300}")


# ---------------------------------------------------------------- the check


class FUZZER(Fuzzer):  # __main__ imports this name
    """Loads and runs models."""

    def __init__(self) -> None:
        self._watch: _Watch | None = None
        self._bfloat16 = np.dtype(ml_dtypes.bfloat16)  # register the dtype before a model uses it

    def _start(self) -> _Watch:
        """Change to a folder whose files no model may read, and start watching."""
        self._folder = tempfile.TemporaryDirectory()
        current, self._models = Path(self._folder.name, "current"), Path(self._folder.name, "models")
        for folder in (current, self._models):
            folder.mkdir()
        for path in (current / mutations.CANARY, Path(self._folder.name, mutations.CANARY)):
            path.write_bytes(_CANARY)
        (self._models / "weights.bin").write_bytes(bytes(4096))
        os.symlink(current / mutations.CANARY, self._models / "link.bin")
        os.chdir(current)
        warnings.simplefilter("ignore")
        return _Watch()

    def case(self, random: Random) -> Case:
        sample = models.sample(random)
        turn, fold, source = (
            random.random(),
            random.random() < 0.8,
            random.choice(("message", "message", "bytes", "path")),
        )
        if turn < 0.2:
            return Case("valid", sample.model, b"", sample.feeds, source, fold)
        if turn < 0.8:
            return Case("changed", mutations.mutated(random, sample.model), b"", sample.feeds, source, fold)
        data = mutations.mutated_bytes(random, sample.model.SerializeToString())
        return Case("bytes", None, data, sample.feeds, "path" if source == "path" else "bytes", fold)

    def check(self, case: Case) -> str:
        if self._watch is None:
            self._watch = self._start()
        try:
            with self._watch.watching(), _alarm(_SECONDS):
                rep = backend.prepare(self._source(case), fold=case.fold)
        except gpuconv.GpuconvError as error:
            self._check_files(case)
            _check_error(case, error, (gpuconv.ArgumentError, gpuconv.ArgumentTypeError))
            return f"{case.kind}: refused"
        except MemoryError as error:
            raise Wrong("prepare: MemoryError", str(error)) from error
        except _TimeLimit as error:
            self.spoiled = True
            raise Wrong(f"prepare takes more than {_SECONDS} s") from error
        self._check_files(case)
        return f"{case.kind}: {self._run(case, rep)}"

    def _source(self, case: Case) -> Any:
        """Return what is passed to the loader: the message itself if it cannot be serialized."""
        data = case.data
        if case.model is not None:
            if case.source == "message":
                return case.model
            try:
                data = case.model.SerializeToString()
            except Exception:
                return case.model
        if case.source == "bytes":
            return data
        path = self._models / "model.onnx"
        path.write_bytes(data)
        return str(path)

    def _check_files(self, case: Case) -> None:
        assert self._watch is not None
        inside = os.path.realpath(self._models)
        for path in self._watch.opened:
            if case.source != "path" or not path.startswith(inside + os.sep):
                raise Wrong("a model opens a file outside its folder", path)

    def _run(self, case: Case, rep: Any) -> str:
        feeds = _feeds(case, rep)
        if feeds is None:
            return "accepted, not run"
        assert self._watch is not None
        if case.kind != "valid":
            self.lasts()
        try:
            with self._watch.watching(), _alarm(_RUNNING):
                outputs = rep.run(feeds)
        except gpuconv.GpuconvError as error:
            self._check_files(case)
            _check_error(case, error, (gpuconv.ArgumentError, gpuconv.ArgumentTypeError, gpuconv.GpuconvError))
            return "run refused"
        except MemoryError:
            return "run out of memory"
        except _TimeLimit:
            self.spoiled = True
            return "run past its time"
        self._check_files(case)
        for output in outputs:
            small = isinstance(output, np.ndarray) and not output.dtype.hasobject and output.nbytes < 2**20
            if small and _CANARY[:16] in output.tobytes():
                raise Wrong("a model returns the contents of a file outside its folder")
        if case.kind == "valid":
            operators = frozenset(node.op_type for graph in _graphs(case.model) for node in graph.node)
            for name, got, want in zip(rep.output_names, outputs, _expected(case), strict=True):
                _compare(name, got, want, operators)
        return "run"

    def show(self, case: Case) -> str:
        how = f"# {case.kind}, handed over as {case.source}, fold={case.fold}"
        if case.model is None:
            return f"{how}\nbackend.prepare(bytes.fromhex('{case.data.hex()}'))"
        feeds = ", ".join(f"{name}: {value.dtype} {value.shape}" for name, value in case.feeds.items())
        text = re.sub(r"\s+", " ", str(case.model)) if case.model.ByteSize() < 20_000 else "<a large model>"
        return f"{how}, inputs {feeds}\n{text[:4000]}"

    def smaller(self, case: Case) -> Iterator[Case]:
        if case.model is None:
            for size in (64, 16, 4, 1):
                for at in range(0, len(case.data), size):
                    yield replace(case, data=case.data[:at] + case.data[at + size :])
            return
        if not case.fold:
            yield replace(case, fold=True)
        if case.source != "message":
            yield replace(case, source="message")
        for number in range(sum(1 for _ in mutations.messages(case.model))):
            for smaller in self._without(case, number):
                if case.kind != "valid" or _is_valid(smaller.model):
                    yield smaller

    def _without(self, case: Case, number: int) -> Iterator[Case]:
        """Yield models with one field or element of a message removed."""
        fields = [field for field, _ in _numbered(case.model, number).ListFields()]
        for field in fields:
            repeated = mutations._repeated(field)
            count = len(getattr(_numbered(case.model, number), field.name)) if repeated else 1
            for at in range(count):
                copy = ModelProto()
                copy.CopyFrom(case.model)
                message = _numbered(copy, number)
                if repeated:
                    del getattr(message, field.name)[at]
                else:
                    message.ClearField(field.name)
                yield replace(case, model=copy)


def _is_valid(model: Any) -> bool:
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:
        return False
    return True


def _numbered(model: Any, number: int) -> Any:
    for at, message in enumerate(mutations.messages(model)):
        if at == number:
            return message
    raise IndexError(number)


def _feeds(case: Case, rep: Any) -> dict[str, Any] | None:
    """Return inputs for a model, which may differ from those of the model it was derived from; None for huge ones."""
    feeds = {}
    for spec in rep.inputs:
        if not spec.required:
            continue
        extents = [n if isinstance(n, int) else 2 for n in spec.shape or ()]
        given = case.feeds.get(spec.name)
        if given is not None and case.kind == "valid":
            feeds[spec.name] = given
        elif given is not None and spec.dtype == given.dtype.name and len(extents) == given.ndim:
            same = all(not isinstance(n, int) or n == m for n, m in zip(spec.shape or (), given.shape, strict=False))
            feeds[spec.name] = given if same else _ones(extents, spec.dtype)
        else:
            feeds[spec.name] = _ones(extents, spec.dtype)
        if feeds[spec.name] is None:
            return None
    return feeds


def _ones(extents: list[int], dtype: str) -> Any:
    if len(extents) > 32 or any(n > 64 for n in extents) or np.prod(extents, dtype=float) > 2**16:
        return None
    if dtype == "object":
        return np.full(extents, "text", object)
    return np.ones(extents, np.dtype(dtype or "float32"))


def _check_error(case: Case, error: gpuconv.GpuconvError, allowed: tuple[type, ...]) -> None:
    message = str(error)
    if type(error) not in allowed:
        raise Wrong(f"a model raises {type(error).__name__}", message) from error
    if case.kind == "valid":
        raise Wrong("a valid model is refused", message) from error
    if len(message) > LONGEST:
        raise Wrong("a message of too many characters", f"{len(message)}: {message[:200]}") from error
    if not message.isprintable():
        raise Wrong("a message that is no line of printable characters", repr(message)) from error
    if _CANARY[:8].hex() in message or "root:" in message:
        raise Wrong("a message holds what a file holds") from error
