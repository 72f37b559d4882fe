"""The table of what can be said of speed without a GPU: the committed one is that of today's kernels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import (
    calls,
    layers,
    machine,
    occupancy,
    sass,
    shrink,
    static,
    static_aims,
    static_kernels,
    static_plan,
    static_summary,
)
from benchmarks import static_traffic as traffic
from benchmarks.layers import Layer
from benchmarks.sass import Instruction
from benchmarks.static_plan import Case
from gpuconv.cuda.plan.limits import representative
from gpuconv.cuda.variants import all_variants
from tests.harness import machine_code, records
from tests.harness.toolchain import needs_disassembler, needs_nvrtc

pytestmark = pytest.mark.slow

DEVICE = representative(static.ARCHITECTURE)
TOOL = "-m benchmarks static"
CASES = static_plan.cases()
HEAD, KERNELS, ROWS = static.read()
NOT_PLANNED = ("emulated", "invariant")  # what is counted, and another plan
OF_KERNELS = ("blocks_per_sm", "occupancy")  # of launches: what follows from registers
# The first layer of every class in every dtype; float16 has the same kernels as bfloat16 but for its conversions, and
# of gradients one dtype is enough.
USUAL = [
    case
    for case in CASES
    if (case.layout, case.precision) == ("NCHW", "ieee") and case.dtype != ("float32" if case.layer.call else "float16")
]
FEW = list({(case.layer.kind, case.dtype): case for case in reversed(USUAL)}.values())


def assert_recorded(recorded: dict[str, Any], found: dict[str, Any]) -> None:
    records.assert_same(recorded, found, static.PATH, TOOL)


# ---------------------------------------------------------------- the committed file


def test_every_layer_is_planned_as_the_file_says() -> None:
    found = {str(case): static_plan.planned(case, DEVICE) for case in CASES}
    recorded = {name: _planned(row) for name, row in ROWS.items()}
    assert_recorded(recorded, found)


def _planned(row: dict[str, Any]) -> dict[str, Any]:
    launches = [{key: one[key] for key in one if key not in OF_KERNELS} for one in row["launches"]]
    return {key: row[key] for key in row if key not in NOT_PLANNED} | {"launches": launches}


def test_occupancy_follows_from_the_registers_in_the_file() -> None:
    known = [case for case in CASES if {one["kernel"] for one in ROWS[str(case)]["launches"]} <= set(KERNELS)]
    assert len(known) == len(CASES)
    for case in known:
        row = {key: value for key, value in ROWS[str(case)].items() if key not in NOT_PLANNED}
        assert static.with_occupancy(_planned(row), KERNELS, static.ARCHITECTURE) == row, case


@pytest.mark.sampled(6)
@pytest.mark.parametrize("case", [case for case in CASES if ROWS[str(case)]["invariant"]], ids=str)
def test_prices_of_invariant_bits_are_as_recorded(case: Case) -> None:
    assert static.priced(case, DEVICE) == {"invariant": ROWS[str(case)]["invariant"]}


def test_all_that_keep_invariant_bits_have_a_price() -> None:
    for case in CASES:
        promised = not case.layer.pools and case.layer.call in ("", "input_grad")
        assert bool(ROWS[str(case)]["invariant"]) == (promised and case.dtype != "complex64"), case


def test_the_file_has_the_kernels_that_its_rows_launch_and_no_other() -> None:
    assert set(KERNELS) == {launch["kernel"] for row in ROWS.values() for launch in row["launches"]}
    assert set(KERNELS) <= {variant.name for variant in all_variants()}
    assert HEAD["architecture"] == static.ARCHITECTURE


def test_no_kernel_spills() -> None:
    assert not [name for name, kernel in KERNELS.items() if kernel["spilled_bytes"] or kernel["stack_bytes"]]


@needs_nvrtc
@needs_disassembler
def test_kernels_of_a_few_layers_are_as_recorded() -> None:
    records.require_compiler(static.PATH, TOOL)
    found = static_kernels.described(static.variants(FEW, DEVICE), static.ARCHITECTURE, machine_code.build)
    assert_recorded({name: KERNELS.get(name) for name in found}, found)


@pytest.mark.sampled(3)
@pytest.mark.emulator
@pytest.mark.parametrize("case", FEW, ids=str)
def test_traffic_of_a_few_layers_is_as_recorded(case: Case) -> None:
    records.require_compiler(static.PATH, TOOL)
    assert_recorded({str(case): ROWS[str(case)]["emulated"]}, {str(case): traffic.counted(case, DEVICE)})


def test_every_layer_has_its_rows() -> None:
    known = {layer.id for layer in layers.load()}
    plain = [case for case in CASES if (case.layout, case.precision) == ("NCHW", "ieee") and case.layer.id in known]
    assert len(plain) == sum(len(layer.dtypes) for layer in layers.load())
    assert len([case for case in CASES if case.layout == "NHWC" and case.layer.id in known]) == len(plain)
    sums = [case for case in plain if case.dtype == "float32" and not case.layer.pools]
    for precision in ("tf32", "3xtf32"):
        found = [case for case in CASES if case.precision == precision and case.layer.id in known]
        assert len(found) == len(sums)
    assert len({str(case) for case in CASES}) == len(CASES) == len(ROWS)


def test_every_gradient_has_its_rows() -> None:
    derived = layers.load_derived()
    assert len({layer.id for layer in derived}) == len(derived)
    rows = {str(case) for case in CASES}
    for layer in derived:
        if layer.call == "fused":
            assert not [name for name in rows if name.startswith(f"{layer.id} ")]
        elif layer.call:
            assert {f"{layer.id} bfloat16", f"{layer.id} float32", f"{layer.id} bfloat16 NHWC"} <= rows
            assert (f"{layer.id} 3xtf32" in rows) == (layer.call in ("input_grad", "weight_grad"))
        else:
            assert f"{layer.id} complex64" in rows


@pytest.mark.parametrize(
    ("name", "kind", "inputs", "result"),
    [
        ("whisper.conv2/input_grad", "strided input gradient", ["dy", "w"], (8, 1280, 3000)),
        ("mobilenetv2.dw3s2/weight_grad", "depthwise weight gradient", ["x", "dy"], (96, 1, 3, 3)),
        ("unet.up2x2/input_grad", "ConvTranspose input gradient", ["dy", "w"], (4, 512, 64, 64)),
        ("resnet50.l4.3x3/bias_grad", "bias gradient", ["dy"], (512,)),
        ("unet3d.pool/grad", "MaxPool gradient", ["dy", "indices"], (1, 64, 128, 128, 128)),
        ("segnet.pool1.idx/unpool", "MaxUnpool", ["y", "indices"], (8, 64, 360, 480)),
        ("sparse.synthesis", "complex Conv", ["x", "w", "b"], (1, 1, 266, 266)),
    ],
)
def test_gradients_are_calls_of_their_own(name: str, kind: str, inputs: list[str], result: tuple[int, ...]) -> None:
    (layer,) = (layer for layer in layers.load_derived() if layer.id == name)
    for layout in ("NCHW", "NHWC"):
        call = calls.of(layer, layout)
        assert (layer.kind, list(call.inputs), call.result_shape) == (kind, inputs, result)


def test_few_are_of_every_class() -> None:
    assert {case.layer.kind for case in FEW} == set(layers.CLASSES) - {"fused Conv"}


# ---------------------------------------------------------------- smaller layers


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", [case for case in CASES if case.dtype == "float32"], ids=str)
def test_smaller_layers_take_the_same_kernels_and_little_work(case: Case) -> None:
    small = traffic.scaled(case, DEVICE)
    assert small.layer.flops <= 2 * traffic.WORK[case.layer.op]  # 31 x 31 windows of two groups are more than once
    assert (small.dtype, small.layout, small.precision) == (case.dtype, case.layout, case.precision)
    assert small.layer.kind == case.layer.kind
    assert [getattr(small.layer, name) for name in ("kernel", "strides", "pads", "dilations")] == [
        getattr(case.layer, name) for name in ("kernel", "strides", "pads", "dilations")
    ]
    kernels = {launch["kernel"] for launch in ROWS[str(case)]["launches"]}
    chooser = static_plan.Chooser()
    static_plan.plan(case, DEVICE, chooser)
    name = chooser.picked.name if chooser.picked else None
    plan = static_plan.plan(small, DEVICE, static_plan.Chooser(name))
    assert {launch.variant.name for launch in plan.launches} == kernels


def test_rows_stay_as_long_as_images_rows_and_channels_can_be_fewer() -> None:
    layer = Layer("a", "", "Conv", (8, 64, 40, 300), (3, 3), (1, 1), (1,) * 4, (1, 1), ("fp32",), k_out=64)
    small = shrink.shrunk(layer, 3e7, lambda _: True)
    assert (small.x[0], small.x[3]) == (1, 300)
    assert small.flops <= 3e7
    long = Layer("b", "", "Conv", (1, 8, 50_003), (3,), (1,), (1, 1), (1,), ("fp32",), k_out=8)
    small = shrink.shrunk(long, 1e6, lambda _: True)
    assert small.x[2] < 5000
    assert (small.x[2] - 50_003) % 128 == 0  # rows begin where they did within 128 elements


def test_what_is_not_accepted_is_not_taken() -> None:
    layer = Layer("a", "", "Conv", (8, 64, 40, 300), (3, 3), (1, 1), (1,) * 4, (1, 1), ("fp32",), k_out=64)
    assert shrink.shrunk(layer, 1.0, lambda _: False) == layer
    small = shrink.shrunk(layer, 1.0, lambda smaller: smaller.x[1] % 16 == 0)
    assert small.x[:2] == (1, 16)
    last = shrink.shrunk(layer, 3e7, lambda _: True, "NHWC")  # where channels lie side by side
    assert (last.x[:2], last.k_out) == ((1, 64), 64)
    assert last.x[3] < 300
    grouped = Layer("g", "", "Conv", (1, 64, 8, 8), (3, 3), (1, 1), (1,) * 4, (1, 1), ("fp32",), k_out=128, group=16)
    small = shrink.shrunk(grouped, 1.0, lambda smaller: smaller.group >= 4 and smaller.x[1] == 4 * smaller.group)
    assert (small.group, small.x[1]) == (4, 16)


# ---------------------------------------------------------------- occupancy, by hand


@pytest.mark.parametrize(
    ("architecture", "threads", "registers", "shared", "blocks"),
    [
        ("sm_90a", 256, 127, 49152, 2),  # 128 registers x 256 threads: two blocks have all 65536
        ("sm_90a", 256, 32, 0, 8),  # 2048 threads
        ("sm_86", 256, 32, 0, 6),  # 1536
        ("sm_90a", 32, 16, 0, 32),  # blocks
        ("sm_86", 32, 16, 0, 16),
        ("sm_89", 32, 16, 0, 24),
        ("sm_90a", 128, 32, 57 * 1024, 3),  # 58 KiB with the system's 1: 3 of 4 would be 232
        ("sm_90a", 128, 32, 56 * 1024, 4),  # 57 KiB x 4 = 228
        ("sm_90a", 128, 99, 24576, 4),  # 104 registers: 4 warps on each scheduler, 16 in all
        ("sm_120a", 128, 255, 0, 2),
    ],
)
def test_blocks_of_a_multiprocessor(architecture: str, threads: int, registers: int, shared: int, blocks: int) -> None:
    assert occupancy.blocks(architecture, threads, registers, shared) == blocks


# ---------------------------------------------------------------- main loops


def code(*lines: str) -> list[Instruction]:
    """Read instructions; ``BRA 3`` goes to number 3."""
    return [
        Instruction("BRA", "", int(line.split()[1])) if line.startswith("BRA") else Instruction(line) for line in lines
    ]


def test_kinds_of_instructions() -> None:
    expected = {
        "multiply": ["FFMA", "HMMA.16816.F32.BF16", "DMMA.8x8x4", "FFMA2", "DFMA"],
        "global load": ["LDG.E.128", "LDGSTS.E.BYPASS.128", "LD.E"],
        "shared load": ["LDS.128", "LDSM.16.MT88.4"],
        "store": ["STG.E", "STS.128", "ST.E"],
        "local load": ["LDL"],
        "compare": ["FMNMX", "VIMNMX.S32", "FSETP.GT.AND", "HMNMX2"],
        "integer": ["IMAD.WIDE", "LEA.HI.X", "LDC.64", "ULDC", "ISETP.GE.AND", "SHF.L.U32", "MOV", "R2UR", "LOP3.LUT"],
        "control": ["BRA", "BAR.SYNC.DEFER_BLOCKING", "DEPBAR.LE", "LDGDEPBAR", "EXIT", "NOP"],
    }
    assert {kind: [Instruction(name).kind for name in names] for kind, names in expected.items()} == {
        kind: [kind] * len(names) for kind, names in expected.items()
    }


@pytest.mark.parametrize(
    ("name", "products"),
    [("FFMA", 1), ("FFMA2", 2), ("HMMA.16816.F32.BF16", 64), ("HMMA.1688.F32.TF32", 32), ("DMMA.884", 8), ("IMAD", 0)],
)
def test_products_of_an_instruction(name: str, products: int) -> None:
    assert Instruction(name).products == products


def test_the_main_loop_multiplies_most_and_is_the_innermost_that_does() -> None:
    # 0-6 goes round 1-4, which has 2 of 3 multiplications; 8-9 has one; 7 stands outside.
    body = code("FFMA", "LDG.E", "FFMA", "FFMA", "BRA 1", "IADD3", "BRA 0", "FFMA", "FFMA", "BRA 8")
    assert sass.main_loop(body) == range(1, 5)
    even = code("FFMA", "LDG.E", "FFMA", "BRA 1", "BRA 0")  # the inner one has no more than half
    assert sass.main_loop(even) == range(5)
    tensor = code("FFMA", "FFMA", "FFMA", "BRA 0", "HMMA.16816.F32", "BRA 4")
    assert sass.main_loop(tensor) == range(4, 6)


def test_without_multiplications_the_loop_loads_most_or_is_everything() -> None:
    assert sass.main_loop(code("LDG.E", "FMNMX", "BRA 1", "LDG.E", "LDG.E", "LDG.E", "BRA 3")) == range(3, 7)
    unrolled = code("LDG.E", "LDG.E", "FMNMX", "LDG.E", "BRA 3", "EXIT")
    assert sass.main_loop(unrolled) == range(6)
    assert sass.main_loop(code("FFMA", "EXIT", "BRA 2")) == range(3)


# ---------------------------------------------------------------- tables and the command line


def row(layer: str, kind: str, dtype: str, ratio: float | None, layout: str = "NCHW") -> dict[str, Any]:
    found = {"layer": layer, "class": kind, "dtype": dtype, "layout": layout, "over_floor": ratio}
    return found | {"gflop": 1.0, "over_measured": None}


def test_a_line_shows_the_kernel_that_does_the_work() -> None:
    kernels = {
        "pack": {"threads": 256, "registers": 20, "static_shared_bytes": 0, "multiplications": {}},
        "gemm": {"threads": 128, "registers": 99, "static_shared_bytes": 16, "multiplications": {"FFMA": 60}},
    }
    kernels["gemm"] |= {"instructions": {"multiply": 60, "shared load": 25, "integer": 15}, "spilled_bytes": 0}
    one = {"shared_bytes": 2048, "blocks_per_sm": 4, "occupancy": 0.25}
    planned = row("vgg", "dense Conv", "tf32", 1.5, "NHWC") | {"floor_us": 20.0, "modelled_us": 30.0}
    planned["invariant"] = 1.25
    planned["launches"] = [{"kernel": name, "grid": [9, 1, 1]} | one for name in kernels]
    traffic = {"gemm": {"loads": [30, 20], "shared": [8, 8]}, "pack": {"stores": [1, 1]}}
    planned["emulated"] = {"x": [1, 8, 4, 4], "w": [2, 8, 3, 3], "moved": 2.5, "kernels": traffic}
    assert static_summary.line(planned, kernels).split() == [
        *["vgg", "tf32", "NHWC", "gemm", "1", "99", "2064", "4", "25%", "|"],
        *["60%", "0%", "0%", "25%", "15%", "|", "1.50", "-", "1.00", "2.50", "|"],
        *["30.00", "20.00", "1.50", "1.25", "1x8x4x4", "w", "2x8x3x3"],
    ]
    kernels["gemm"]["spilled_bytes"] = 8
    assert static_summary.line(planned, kernels).endswith("SPILLS 8 bytes")


def test_classes_have_geometric_means() -> None:
    rows = [
        row("a", "dense Conv", "float32", 4.0),
        row("b", "dense Conv", "float32", 1.0),
        row("c", "dense Conv", "float32", None),
        row("b", "dense Conv", "bfloat16", 3.0, "NHWC"),
    ]
    of_float32, of_bfloat16 = static_summary.classes(rows)
    assert (of_float32["mean"], of_float32["worst"], of_float32["best"]) == (pytest.approx(2.0), 4.0, 1.0)
    assert (of_float32["worst_layer"], of_float32["best_layer"], of_float32["layers"]) == ("a", "b", 2)
    rows[0] |= {"gflop": 50.0, "over_measured": 1.25}
    rows[1] |= {"gflop": 49.0, "over_measured": 0.9}
    last = static_summary.classes(rows)[-1]
    assert (last["class"], last["mean"], last["layers"]) == ("large dense Conv", pytest.approx(1.25), 1)
    of_complex = static_summary.classes([row("d", "complex Conv", "complex64", 5.0)])
    assert static_summary.markdown([of_float32, of_bfloat16, *of_complex]).splitlines() == [
        "| class | bfloat16 | bfloat16, NHWC | float32, complex64 | 3xtf32 | float64 |",
        "|---|---|---|---|---|---|",
        "| dense Conv |  | 3.00 (3.00 to 3.00) | 2.00 (1.00 to 4.00) |  |  |",
        "| complex Conv |  |  | 5.00 (5.00 to 5.00) |  |  |",
    ]


def test_what_misses_the_aims_is_named() -> None:
    kernels = {
        "gemm": {"multiplications": {"HMMA": 6}, "instructions": {"multiply": 6, "integer": 4}},
        "lean": {"multiplications": {"HMMA": 9}, "instructions": {"multiply": 9, "integer": 1}},
        "pool": {"multiplications": {}, "instructions": {"integer": 9}},
    }

    def emulated(bound: str, width: int, kernel: str, **traffic: list[int]) -> dict[str, Any]:
        return {"bound": bound, "emulated": {"x": [1, 1, width], "kernels": {kernel: traffic}}}

    rows = {
        "a": emulated("memory", 32, "pool", loads=[24, 20], stores=[12, 10], shared=[12, 8]),  # just 1.2
        "b": emulated("memory", 32, "pool", loads=[25, 20], stores=[12, 10], shared=[11, 8]),
        "c": emulated("memory", 31, "pool", loads=[90, 20]),
        "d": emulated("math", 32, "gemm", loads=[90, 20], shared=[8, 8]),
    }
    assert static_aims.beyond(rows, kernels) == [
        "bank conflicts: 1 of 3 kernels; pool 1.50",
        "more than 1.2 of the ideal sectors: 1 of 2 rows bound by memory; b 1.23",
        "more than 0.15 address work: 1 of 2 kernels with tensor cores; gemm 0.40",
    ]
    assert static_aims.beyond({}, {})[0] == "bank conflicts: 0 of 0 kernels"


def test_the_work_is_done_by_the_launch_that_multiplies() -> None:
    kernels = {"pack": {"multiplications": {}, "threads": 256}, "gemm": {"multiplications": {"FFMA": 9}, "threads": 32}}
    launches = [{"kernel": "pack", "grid": [99, 1, 1]}, {"kernel": "gemm", "grid": [1, 1, 1]}]
    assert static_summary.main_launch({"launches": launches}, kernels)["kernel"] == "gemm"
    kernels["gemm"]["multiplications"] = {}
    assert static_summary.main_launch({"launches": launches}, kernels)["kernel"] == "pack"


def benchmark(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "benchmarks", *words], capture_output=True, text=True, check=False)


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--layers", "lstm"], "no layer's name contains 'lstm'"),
        (["--layers", "resnet", "--write"], "--write is for all layers and sm_90a"),
        (["--arch", "sm_86", "--write"], "--write is for all layers and sm_90a"),
        (["--arch", "sm_70"], "arch must be one of"),
    ],
)
def test_wrong_options_are_refused(words: list[str], reason: str) -> None:
    result = benchmark("static", *words)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("python -m benchmarks static: ")
    assert reason in result.stderr


def test_without_the_disassembler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "unavailable_reason", lambda: None)
    monkeypatch.setattr(sass, "disassembler", lambda: None)
    with pytest.raises(static.ArgumentError, match="pip install nvidia-cuda-nvdisasm brings it"):
        static._device("sm_90a")


def test_differences_are_named(tmp_path: Path) -> None:
    path = tmp_path / "tests" / "rows.json"
    recorded = {"same": {"a": 1}, "other": {"a": [1, 2], "b": 3}, "gone": {"a": 4}}
    found = {"same": {"a": 1}, "other": {"a": [1, 5], "b": 3}, "new": {"a": 6}}
    with pytest.raises(pytest.fail.Exception) as caught:
        records.assert_same(recorded, found, path, "tests/rows.py")
    assert str(caught.value).splitlines() == [
        "3 of the numbers in tests/rows.json are others now; where that is meant: "
        "`python tests/rows.py --write`, and the reason in the commit",
        "other a: recorded [1, 2], found [1, 5]",
        "gone: recorded {'a': 4}, found nothing",
        "new: recorded nothing, found {'a': 6}",
    ]


@needs_nvrtc
def test_rows_of_another_compiler_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.json"
    machine.write(path, {"compiler": records.compiler(), "row": {"a": [1, 2]}})
    monkeypatch.delenv("GPUCONV_REQUIRE_EMULATOR", raising=False)
    records.require_compiler(path, "tests/rows.py")  # neither skips nor fails
    monkeypatch.setattr(records, "compiler", lambda: "NVRTC 99.0")
    with pytest.raises(pytest.skip.Exception, match=r"and here is NVRTC 99\.0: nothing compared but the limits"):
        records.require_compiler(path, "tests/rows.py")
    monkeypatch.setenv("GPUCONV_REQUIRE_EMULATOR", "1")
    with pytest.raises(pytest.fail.Exception, match=r"`python tests/rows\.py --write` makes it anew"):
        records.require_compiler(path, "tests/rows.py")
