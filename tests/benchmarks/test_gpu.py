"""The GPU benchmark without a GPU: its plan, its files, its messages."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import floors, gpu, gpu_kernels, gpu_layer, gpu_peers, layers, picture
from benchmarks.gpu_layer import Case
from benchmarks.progress import Rows
from tests.harness import cuda_device

pytestmark = pytest.mark.slow

LAYERS = {layer.id: layer for layer in layers.load()}
DERIVED = {layer.id: layer for layer in layers.load_derived()}
without_gpu = pytest.mark.skipif(cuda_device.hardware(), reason="there is a GPU")


# ---------------------------------------------------------------- the plan and the command line


def test_everything_is_measured_once() -> None:
    everything = gpu.plan()
    assert len(set(everything)) == len(everything) == len(set(map(gpu.title, everything)))
    plan = [case for case in everything if case.layer.id in LAYERS]
    flat = [layer for layer in LAYERS.values() if len(layer.kernel) == 1]
    nchw = sum(len(layer.dtypes) for layer in LAYERS.values())
    with_layout = {form: [case for case in plan if case.layout == form] for form in ("NCHW", "channels_last")}
    ieee = {form: [case for case in cases if case.precision == "ieee"] for form, cases in with_layout.items()}
    assert len(ieee["NCHW"]) == nchw
    assert len(ieee["channels_last"]) == nchw - sum(len(layer.dtypes) for layer in flat)  # none for one axis
    derived = {case.layer.id for case in everything if case.layer.call and case.dtype == "bfloat16"}
    assert derived == {layer.id for layer in DERIVED.values() if layer.call and "bf16" in layer.dtypes}
    sums = {layer.id for layer in LAYERS.values() if not layer.pools}
    for precision in ("tf32", "3xtf32"):
        assert {case.layer.id for case in plan if case[1:] == ("float32", "NCHW", precision)} == sums


def test_the_first_rows_say_most() -> None:
    everything = gpu.plan()
    triples = [(case.layer.kind, floors.label(case.dtype, case.precision), case.layout) for case in everything]
    features = [set(enumerate(triple)) for triple in triples]
    first = next(count for count in range(1, 26) if set.union(*features[:count]) == set.union(*features))
    left = set(triples) - set(triples[:first])  # after each class, dtype or precision, and layout
    assert set(triples[first : first + len(left)]) == left
    usual = [case for case in everything[first + len(left) :] if case.layer.id in LAYERS]
    passes = list(dict.fromkeys(case[1:] for case in usual))
    assert passes[:3] == [(dtype, "NCHW", "ieee") for dtype in ("bfloat16", "float32", "float16")]


def test_options_choose() -> None:
    chosen = gpu.plan("resnet50", "Conv", "float16", "channels_last")
    assert {case[1:] for case in chosen} == {("float16", "channels_last", "ieee")}
    assert {case[1:] for case in gpu.plan(dtype="tf32", layout="NCHW")} == {("float32", "NCHW", "tf32")}
    gradients = {(case.layer.operator, case.precision) for case in gpu.plan("resnet.pool.idx/")}
    assert gradients == {("max_pool_grad", "ieee")}
    assert {case.dtype for case in gpu.plan("sparse.")} == {"complex64"}
    precisions = {case.precision for case in gpu.plan("conv1/weight_grad", dtype="tf32")}
    assert precisions == {"tf32"}
    assert {case.layer.id for case in chosen} == {
        layer.id
        for layer in LAYERS.values()
        if "resnet50" in layer.id and layer.op == "Conv" and "fp16" in layer.dtypes
    }


@without_gpu
def test_without_a_gpu_it_says_so_in_one_sentence() -> None:
    command = [sys.executable, "-m", "benchmarks", "gpu"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("python -m benchmarks gpu: no GPU to measure on: ")
    assert result.stderr.count("\n") == 1


def test_files_go_where_asked_else_to_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUT", str(tmp_path / "new"))
    assert gpu.output(Path("a.json"), "gpu.json") == Path("a.json")
    assert gpu.output(None, "gpu.json") == tmp_path / "new" / "gpu.json"
    assert (tmp_path / "new").is_dir()
    monkeypatch.delenv("OUT")
    assert gpu.output(None, "gpu.png") == Path(gpu.__file__).parent / "results" / "gpu.png"


# ---------------------------------------------------------------- the run around the measurements


class Broken(RuntimeError):
    """A fake error of CUDA."""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Run the benchmark with the test's own measurement; return its status and output."""
    state = SimpleNamespace(alive=True)

    def synchronize() -> None:
        if not state.alive:
            raise Broken("an illegal memory access was encountered")

    torch = SimpleNamespace(cuda=SimpleNamespace(synchronize=synchronize, empty_cache=lambda: None))
    cupy = SimpleNamespace(get_default_memory_pool=lambda: SimpleNamespace(free_all_blocks=lambda: None))
    record = {
        "machine": {"gpu": "none"},
        "copy_bytes_per_second": 4e12,
        "bfloat16_product_flops_per_second": 7e14,
        "tiny_host_seconds": {"Conv": {"ours": 4e-6, "torch": 6e-6}},
    }
    monkeypatch.setattr(gpu, "_libraries", lambda: (torch, cupy))
    monkeypatch.setattr(gpu, "_settled", lambda *_: nullcontext())
    monkeypatch.setattr(gpu, "_machine", lambda *_: gpu_layer.Machine(torch, cupy, "none", 2**26, 4e12))
    monkeypatch.setattr(gpu, "_record", lambda *_: dict(record))
    path = tmp_path / "gpu.json"

    def call(
        measure: Any, resume: bool = False, budget: float = 100.0, most: int | None = None
    ) -> tuple[int, dict[str, Any]]:
        state.alive = True
        monkeypatch.setattr(gpu_layer, "measure", lambda *arguments: measure(state, *arguments))
        chosen = {"layers": "googlenet", "op": None, "dtype": None, "layout": "NCHW", "budget": budget}
        files = {"json": path, "picture": tmp_path / "gpu.png", "rows": None, "step": "layers"}
        arguments = argparse.Namespace(**chosen, **files, resume=resume, most=most, work=None)
        return gpu.run(arguments), json.loads(path.read_text())

    return call


def fake_row(case: Case, **more: Any) -> dict[str, Any]:
    timed = {"our_median": 2e-4, "peer_median": 3e-4, "ratio": 1.5}
    return gpu_layer.describe(case, 4e12) | timed | more


def test_rows_summary_and_machine_are_written(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    code, written = run(lambda state, machine, case: fake_row(case))
    assert (code, written["complete"]) == (0, True)
    assert [(row["layer"]["id"], row["dtype"]) for row in written["rows"]] == [
        ("googlenet.pool.ceil", "bfloat16"),
        ("googlenet.pool.ceil", "float32"),
    ]
    assert [(entry["dtype"], entry["mean"]) for entry in written["classes"]] == [("bfloat16", 1.5), ("float32", 1.5)]
    shown = capsys.readouterr().out
    assert "host, tiny Conv: ours 4.0 us, torch 6.0 us" in shown
    assert "MaxPool values" in shown.splitlines()[-1]


def test_an_error_of_ours_is_a_wrong_row_and_the_next_is_measured(run: Any) -> None:
    def measure(state: Any, machine: Any, case: Case) -> dict[str, Any]:
        if case.dtype == "bfloat16":
            raise ValueError("it does not fit\nat all")
        return fake_row(case)

    code, written = run(measure)
    assert code == 1
    assert [row["wrong"] for row in written["rows"]] == ["ValueError: it does not fit", ""]


def test_a_lost_device_ends_the_process_and_resuming_goes_on(run: Any) -> None:
    seen = []

    def measure(state: Any, machine: Any, case: Case) -> dict[str, Any]:
        seen.append(case.dtype)
        if case.dtype == "bfloat16":
            state.alive = False
            raise Broken("an illegal memory access was encountered")
        return fake_row(case)

    code, written = run(measure)
    assert (code, written["complete"], len(written["rows"])) == (3, False, 1)
    code, written = run(measure, resume=True)
    assert (code, written["complete"], seen) == (1, True, ["bfloat16", "float32"])
    assert [row["wrong"] for row in written["rows"]] == ["Broken: an illegal memory access was encountered", ""]


def test_a_measurement_that_ends_the_process_is_on_file_before(run: Any, tmp_path: Path) -> None:
    rows = Rows(tmp_path / "gpu.jsonl", "layers")

    def measure(state: Any, machine: Any, case: Case) -> dict[str, Any]:
        assert rows.open() == [gpu.title(case)]
        return fake_row(case)

    assert run(measure)[0] == 0


def test_a_row_that_hung_is_a_wrong_one(run: Any, tmp_path: Path) -> None:
    (first, second) = gpu.plan("googlenet", layout="NCHW")
    Rows(tmp_path / "gpu.jsonl", "layers").end(gpu.title(first), "hung", detail="no line for 25 s")
    code, written = run(lambda state, machine, case: fake_row(case), resume=True)
    assert code == 1
    assert [(row["dtype"], row["wrong"]) for row in written["rows"]] == [
        (first.dtype, "hung: no line for 25 s"),
        (second.dtype, ""),
    ]


def test_the_first_rows_alone_can_be_asked_for(run: Any) -> None:
    code, written = run(lambda state, machine, case: fake_row(case), most=1)
    assert (code, written["complete"], len(written["rows"])) == (0, True, 1)


def test_nothing_is_begun_after_the_budget(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    code, written = run(lambda *_: pytest.fail("measured"), budget=1.0)
    assert (code, written["complete"], written["rows"]) == (0, False, [])
    assert "the budget is spent: 2 of 2 rows are missing" in capsys.readouterr().out


# ---------------------------------------------------------------- the names of PyTorch's kernels


class Profile:
    """A fake of PyTorch's profiler, which has recorded these (name, device) pairs."""

    def __init__(self, seen: list[tuple[str, str]]) -> None:
        self._events = [SimpleNamespace(name=name, device_type=device) for name, device in seen]

    def __enter__(self) -> Profile:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def events(self) -> list[SimpleNamespace]:
        return self._events


def profiled_torch(seen: list[tuple[str, str]]) -> Any:
    profiler = SimpleNamespace(
        profile=lambda activities: Profile(seen), ProfilerActivity=SimpleNamespace(CUDA="of the device")
    )
    device_type = SimpleNamespace(CUDA="cuda", CPU="cpu")
    cuda = SimpleNamespace(synchronize=lambda: None)
    return SimpleNamespace(profiler=profiler, autograd=SimpleNamespace(DeviceType=device_type), cuda=cuda)


def test_kernels_that_pytorch_ran_are_named_once() -> None:
    seen = [
        ("cudaLaunchKernel", "cpu"),
        ("Memset (Device)", "cuda"),
        ("winograd_3x3", "cuda"),
        ("winograd_3x3", "cuda"),
    ]
    ran: list[int] = []
    assert gpu_kernels.names(profiled_torch([*seen, ("bias", "cuda")]), lambda: ran.append(1)) == [
        "winograd_3x3",
        "bias",
    ]
    assert len(ran) == 2  # the first one before the profiler starts


def test_sums_in_float32_get_names_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_peers, "operands", lambda *_: ())
    monkeypatch.setattr(gpu_peers, "peer", lambda *_: lambda: None)
    conv, pool = "resnet50.l1.3x3", "resnet.pool"
    rows_of = [
        (conv, "float32", "ieee"),
        (conv, "float32", "tf32"),
        (conv, "bfloat16", "ieee"),
        (pool, "float32", "ieee"),
    ]
    rows = [fake_row(Case(LAYERS[name], dtype, "NCHW", precision)) for name, dtype, precision in rows_of]
    torch = profiled_torch([("cudnn::Winograd", "cuda")])
    gpu_kernels.add_names(torch, "none", rows, time.monotonic() - 1)
    assert gpu_kernels.winograd(rows) is None
    gpu_kernels.add_names(torch, "none", rows, time.monotonic() + 60)
    assert [row.get("peer_kernels") for row in rows] == [["cudnn::Winograd"], None, None, None]
    assert str(gpu_kernels.winograd(rows)).endswith("Winograd in 1 of 1 measurements of sums")


# ---------------------------------------------------------------- the picture


def drawn_rows() -> list[dict[str, Any]]:
    rows = []
    drawn = [*((layer, short) for layer in LAYERS.values() for short in ("bf16", "fp32"))]
    drawn += [(layer, short) for layer in DERIVED.values() for short in layer.dtypes]
    for number, (layer, short) in enumerate(drawn):
        dtype = floors.DTYPES[short]
        row = gpu_layer.describe(Case(layer, dtype), 4.3e12)
        floor = row["floor_seconds"]
        times = {"our_median": floor * (1 + number % 7), "peer_median": floor * (1 + number % 5)}
        rows.append(row | times | {"ratio": times["peer_median"] / times["our_median"]})
    del rows[3]["peer_median"], rows[3]["ratio"]
    rows[4]["wrong"] = "y differs"
    return [
        *rows,
        {**rows[0], "layout": "channels_last"},
        gpu_layer.describe(Case(LAYERS["yolo.spp5"], "float16"), 1.0),
    ]


def test_the_picture_s_columns_are_dtypes_with_their_classes() -> None:
    shown = picture.columns(drawn_rows())
    assert list(shown) == ["bfloat16", "float32", "complex64"]  # rows that were not timed are not drawn
    assert [kind for kind, _ in shown["complex64"]] == ["complex Conv"]
    for dtype in ("bfloat16", "float32"):
        groups = shown[dtype]
        assert [kind for kind, _ in groups] == [kind for kind in layers.CLASSES if kind != "complex Conv"]
        assert sum(len(members) for _, members in groups) == len(LAYERS) + sum(
            1 for layer in DERIVED.values() if layer.call
        )
        for _, members in groups:
            ratios = [member["NCHW"].get("ratio", float("inf")) for member in members]
            assert ratios == sorted(ratios)
    (first,) = (member for _, members in shown["bfloat16"] for member in members if len(member) == 2)
    assert list(first) == ["NCHW", "channels_last"]


@pytest.mark.filterwarnings("default")  # matplotlib's own
@pytest.mark.parametrize("rows_of", [drawn_rows, list], ids=["rows", "no row"])
def test_a_picture_is_saved(rows_of: Callable[[], list[Any]], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = rows_of()
    picture.draw(rows, tmp_path / "gpu.png", "test", 4.3e12)
    content = (tmp_path / "gpu.png").read_bytes()
    assert content.startswith(b"\x89PNG\r\n")
    assert len(content) > (60_000 if rows else 5_000)
