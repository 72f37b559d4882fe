"""Compare gpuconv on a GPU with PyTorch (cuDNN): every layer and gradient, in every dtype and layout, alternating.

The ratio is PyTorch's median time divided by gpuconv's: 1 or more means that gpuconv is faster.

* PyTorch searches all cuDNN algorithms before anything is timed. It may use TF32 only where gpuconv does
  (precision="tf32"); "3xtf32" is compared with PyTorch's IEEE float32, and the errors of both are shown.
* PyTorch's channels_last is layout="NHWC" of gpuconv: the same memory.
* gpuconv packs weights in every timed call; the time with weights packed by `gpuconv.pack` is shown separately.
* Each time is shown with its floor: the fewest bytes at the copy bandwidth measured here, or the work at the rates of
  benchmarks/floors.py.
* Gradients are named after their layer, as ``resnet50.conv1/weight_grad``. cuDNN computes them twice: freely, and with
  bits that do not change from run to run ("deterministic"), as gpuconv's never do.
* "fused" is Conv + residual + ReLU, against PyTorch's separate operations and against cuDNN's own fusion.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import gpuconv
from benchmarks import (
    floors,
    gpu_alone,
    gpu_kernels,
    gpu_layer,
    gpu_peers,
    gpu_summary,
    gpu_timing,
    layers,
    machine,
    picture,
    shrink,
)
from benchmarks.gpu_layer import Case, Machine, Row
from benchmarks.layers import Layer
from benchmarks.progress import Rows
from benchmarks.supervision import ABSENT, LOST
from gpuconv.cuda.call import device

_RESERVE = 5.0  # no row is started with less than this many seconds left
_QUERY = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,temperature.gpu,power.draw,pstate"


class DeviceLost(Exception):
    """A kernel broke this process's CUDA context, by an illegal access for instance; a new process can continue."""


class Unavailable(Exception):
    """There is no GPU to measure on; the message says what is missing."""


class NoPeer(Unavailable):
    """PyTorch cannot be used."""


def run(arguments: argparse.Namespace) -> int:
    """Measure until the budget is spent; return the exit status.

    It is 1 if a result of gpuconv was wrong, 2 without a GPU, 3 if the device was lost. Without PyTorch, gpuconv is
    measured by itself if ``--rows`` is given; otherwise the status is 4.
    """
    started = time.monotonic()
    chosen = plan(arguments.layers, arguments.op, arguments.dtype, arguments.layout)
    todo = {title(case): case for case in (_shrunk(case, arguments.work) for case in chosen)}
    try:
        torch, cupy = _libraries()
    except NoPeer as reason:
        print(f"python -m benchmarks gpu: {reason}", file=sys.stderr)
        if not arguments.rows:
            return ABSENT
        print(f"measuring gpuconv only\n{gpu_summary.HEAD}", flush=True)
        kept = Rows(arguments.rows, arguments.step)
        return gpu_alone.run(todo, kept, arguments.most, started + arguments.budget)
    except Unavailable as reason:
        print(f"python -m benchmarks gpu: {reason}", file=sys.stderr)
        return 2
    json_path, picture_path = output(arguments.json, "gpu.json"), output(arguments.picture, "gpu.png")
    path = arguments.rows or json_path.with_suffix(".jsonl")
    if not (arguments.rows or arguments.resume):
        path.unlink(missing_ok=True)
    kept = Rows(path, arguments.step)
    with _settled(torch, cupy):
        here = _machine(torch, cupy)
        record = _record(here, arguments)
        print(gpu_summary.HEAD, flush=True)
        try:
            record["complete"] = _measure_all(here, todo, kept, arguments.most, started + arguments.budget)
            lost = False
        except DeviceLost:
            record["complete"], lost = False, True
        rows = [_result(case, kept.ended[name], here) for name, case in todo.items() if name in kept.ended]
        if not lost:
            _name_kernels(here, rows, started + arguments.budget)
    record["clocks_after"] = clocks()
    _save(json_path, record, rows)
    code = _report(rows, record, json_path, picture_path)
    return LOST if lost else code


def _shrunk(case: Case, work: float | None) -> Case:
    if work is None:
        return case
    layer = shrink.shrunk(case.layer, work, lambda layer: True, gpu_layer.layout_of(case))
    return case._replace(layer=replace(layer, id=f"{case.layer.id} shrunk"))


def title(case: Case) -> str:
    """Return the name of a case's row: layer, dtype or precision, and layout."""
    return f"{case.layer.id} {floors.label(case.dtype, case.precision)} {case.layout}"


def _result(case: Case, line: Row, here: Machine) -> Row:
    """Return a row's result; for a row that hung or died, the description of its case and its status as ``wrong``."""
    begun = gpu_layer.describe(case, here.bandwidth) | {"wrong": f"{line['status']}: {line.get('detail', '')}"}
    return dict(line.get("found", begun))


def output(given: Path | None, name: str) -> Path:
    """Return the path to write: ``given``, else ``name`` in the folder $OUT, else in benchmarks/results."""
    if given is not None:
        return given
    folder = Path(os.environ["OUT"]) if os.environ.get("OUT") else Path(__file__).parent / "results"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def plan(name: str = "", op: str | None = None, dtype: str | None = None, layout: str | None = None) -> list[Case]:
    """Return the cases to measure, filtered by layer name, operator, dtype or precision, and layout, in `ordered`'s
    order."""
    return ordered(_cases(name, op, dtype, layout))


def ordered(cases: Sequence[Case]) -> list[Case]:
    """Sort cases so that the first ones are the most informative.

    First come cases that together cover each class, each dtype or precision and each layout; then one case per other
    combination of the three; then all others in their given order.
    """
    features = {case: (case.layer.kind, floors.label(case.dtype, case.precision), case.layout) for case in cases}
    chosen: dict[Case, None] = {}
    unseen = {(place, value) for values in features.values() for place, value in enumerate(values)}
    while unseen:
        best = max(cases, key=lambda case: len(unseen.intersection(enumerate(features[case]))))
        chosen[best] = None
        unseen.difference_update(enumerate(features[best]))
    triples = {features[case] for case in chosen}
    for case in cases:
        if features[case] not in triples:
            triples.add(features[case])
            chosen[case] = None
    return list(dict.fromkeys([*chosen, *cases]))


def _cases(name: str, op: str | None, dtype: str | None, layout: str | None) -> list[Case]:
    """Return the matching cases: NCHW first, then dtypes in the order of `floors.DTYPES`."""
    chosen = layers.select([*layers.load(), *layers.load_derived()], name, op)
    modes = [(short, "ieee") for short in floors.DTYPES] + [("fp32", "tf32"), ("fp32", "3xtf32")]
    return [
        Case(layer, floors.DTYPES[short], form, precision)
        for form in gpu_peers.LAYOUTS
        for short, precision in modes
        for layer in chosen
        if short in layer.dtypes
        and (precision == "ieee" or layer.multiplies)
        and form in gpu_peers.layouts(layer)
        and dtype in (None, floors.label(floors.DTYPES[short], precision))
        and layout in (None, form)
    ]


def clocks() -> dict[str, str] | None:
    """Return nvidia-smi's readings of the first device by name, or None without nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader", "--id=0"]
    try:
        text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return dict(zip(_QUERY.split(","), map(str.strip, text.strip().split(",")), strict=False))


def _libraries() -> tuple[Any, Any]:
    reason = device.unavailable_reason()
    if reason is not None:
        raise Unavailable(f"no GPU to measure on: {reason}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch = import_module("torch")
    except ImportError as error:
        raise NoPeer(f"PyTorch, which gpuconv is measured against, cannot be imported: {error}") from error
    if not torch.cuda.is_available():
        raise NoPeer(f"PyTorch {torch.__version__} finds no CUDA device")
    return torch, import_module("cupy")


class _Stream:
    """Wraps a PyTorch stream pointer in the ``__cuda_stream__`` protocol for CuPy."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._pointer


@contextmanager
def _settled(torch: Any, cupy: Any) -> Iterator[None]:
    """Set up PyTorch's cuDNN search and TF32 as the module docstring says; put both libraries on one stream."""
    cudnn = torch.backends.cudnn
    cudnn.benchmark, cudnn.benchmark_limit, cudnn.allow_tf32 = True, 0, False
    torch.backends.cuda.matmul.allow_tf32 = False
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream), cupy.cuda.Stream.from_external(_Stream(stream.cuda_stream)):
        yield


def _machine(torch: Any, cupy: Any) -> Machine:
    return Machine(torch, cupy, "cuda:0", cupy.cuda.Device(0).attributes["L2CacheSize"], _bandwidth(torch))


def _bandwidth(torch: Any, nbytes: int = 2**31) -> float:
    """Return the copy bandwidth in bytes per second (read and written) on random bytes."""
    source = torch.randint(-128, 128, (nbytes,), dtype=torch.int8, device="cuda:0")
    target = torch.empty_like(source)
    target.copy_(source)
    seconds = min(gpu_timing.seconds_of(torch, lambda: target.copy_(source), repeats=5) for _ in range(3))
    return 2 * nbytes / seconds


def _product_rate(torch: Any, size: int = 8192) -> float:
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device="cuda:0") for _ in range(2))
    torch.mm(a, b)
    return 2 * size**3 / min(gpu_timing.seconds_of(torch, lambda: torch.mm(a, b), repeats=5) for _ in range(3))


def _record(here: Machine, arguments: argparse.Namespace) -> Row:
    torch, properties = here.torch, here.torch.cuda.get_device_properties(0)
    return {
        "command": machine.command(),
        "machine": machine.describe(["numpy"])
        | {"gpu": properties.name, "multiprocessors": properties.multi_processor_count, "l2_bytes": here.cache_bytes}
        | {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
        | {"cupy": here.cupy.__version__, "nvrtc": _version("nvidia-cuda-nvrtc")},
        "clocks_before": clocks(),
        "copy_bytes_per_second": here.bandwidth,
        "bfloat16_product_flops_per_second": _product_rate(torch),
        "stated_rates": {"of": floors.RATES_OF, **floors.RATES},
        "torch_settings": {"cudnn.benchmark": True, "cudnn.benchmark_limit": 0, "allow_tf32": "for tf32 only"},
        "timing": f"graph replay over sets of operands and results of {gpu_timing.CACHES} times the L2 cache",
        "gpuconv": gpuconv.__version__,
        "budget_seconds": arguments.budget,
        "tiny_host_seconds": _tiny(here),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _tiny(here: Machine) -> dict[str, dict[str, float]]:
    """Return the host seconds of calls with negligible kernel time, for gpuconv and PyTorch, by operator."""
    result: dict[str, dict[str, float]] = {}
    for op in ("Conv", "ConvTranspose", "MaxPool"):
        layer = Layer("tiny", "", op, (1, 8, 8, 8), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), ("fp32",), k_out=8)
        tensors = gpu_peers.operands(here.torch, layer, "float32", "NCHW", here.device)
        arrays = [here.adopt(tensor) for tensor in tensors]
        calls = {
            "ours": (gpu_layer.ours(Case(layer, "float32")), arrays),
            "torch": (gpu_peers.peer(here.torch, layer), tensors),
        }
        result[op] = {}
        for side, (call, given) in calls.items():
            call(*given)
            result[op][side] = gpu_timing.host_seconds(here.torch, partial(call, *given), 1e-5)
    return result


def _measure_all(here: Machine, todo: dict[str, Case], kept: Rows, most: int | None, deadline: float) -> bool:
    """Measure the rows that are missing, in order; return False if the budget ran out first."""
    names = [name for name in list(todo)[:most] if name not in kept.ended]
    for number, name in enumerate(names):
        if deadline - time.monotonic() < _RESERVE:
            print(f"the budget is spent: {len(names) - number} of {len(names)} rows are missing; rerun with --resume")
            return False
        for _ in kept.left([name]):
            row = _measured(here, todo[name])
            kept.end(name, "failed" if row["wrong"] else "passed", found=row, detail=row["wrong"])
            print(gpu_summary.line(row), flush=True)
        if not _context_works(here):
            print("the device is lost; run this command again with --resume to continue in a new process")
            raise DeviceLost
        here.torch.cuda.empty_cache()
        here.cupy.get_default_memory_pool().free_all_blocks()
    return True


def _measured(here: Machine, case: Case) -> Row:
    try:
        return gpu_layer.measure(here, case)
    except Exception as error:  # a failure of gpuconv is a result; go on with the next row
        text = (str(error).strip().splitlines() or [""])[0]
        return gpu_layer.describe(case, here.bandwidth) | {"wrong": f"{type(error).__name__}: {text[:300]}"}


def _name_kernels(here: Machine, rows: list[Row], deadline: float) -> None:
    try:
        gpu_kernels.add_names(here.torch, here.device, rows, deadline)
    except Exception as error:  # the times are measured; names are an extra
        print(f"cannot profile PyTorch's kernel names: {type(error).__name__}: {str(error)[:200]}")


def _context_works(here: Machine) -> bool:
    """Return whether the CUDA context still works; after an illegal access it fails until the process ends."""
    try:
        here.torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def _save(path: Path, record: Row, rows: list[Row]) -> None:
    partial = path.with_name(path.name + ".part")  # replace atomically: a killed process leaves a complete file
    machine.write(partial, record | {"classes": gpu_summary.classes(rows), "rows": rows})
    os.replace(partial, path)


def _report(rows: list[Row], record: Row, json_path: Path, picture_path: Path) -> int:
    try:
        title = f"gpuconv {gpuconv.__version__} on {record['machine']['gpu']}"
        picture.draw(rows, picture_path, title, record["copy_bytes_per_second"])
        drawn = f", {picture_path}"
    except ImportError as error:
        drawn = f"; no picture: {error}"
    print(f"\nwritten: {json_path}{drawn}")
    bandwidth, product = record["copy_bytes_per_second"], record["bfloat16_product_flops_per_second"]
    print(f"copy {bandwidth / 1e12:.2f} TB/s, bfloat16 product {product / 1e12:.0f} TFLOP/s")
    for op, sides in record["tiny_host_seconds"].items():
        print(f"host, tiny {op}: ours {sides['ours'] * 1e6:.1f} us, torch {sides['torch'] * 1e6:.1f} us")
    print("\n".join(gpu_summary.table(gpu_summary.classes(rows))))
    if (sentence := gpu_kernels.winograd(rows)) is not None:
        print(sentence)
    wrong = [f"{row['layer']['id']} {gpu_summary.label(row)} {row['layout']}" for row in rows if row["wrong"]]
    if wrong:
        print(f"{len(wrong)} of {len(rows)} results are WRONG: {', '.join(wrong[:10])}")
    return int(bool(wrong))
