"""Estimates of speed without a GPU: limits of the plans for known layers, and how the table is made."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from statistics import geometric_mean
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import (
    __main__,
    calls,
    emulated,
    layers,
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
from tests.emulator.device import visible
from tests.harness import machine_code
from tests.harness.toolchain import needs_disassembler, needs_nvrtc

pytestmark = pytest.mark.slow

DEVICE = representative("sm_90a")
CASES = static_plan.cases()
BY_NAME = {str(case): case for case in CASES}
# The first layer of every class in every dtype; float16 has the same kernels as bfloat16 but for its conversions, and
# of gradients one dtype is enough.
USUAL = [
    case
    for case in CASES
    if (case.layout, case.precision) == ("NCHW", "ieee") and case.dtype != ("float32" if case.layer.call else "float16")
]
FEW = list({(case.layer.kind, case.dtype): case for case in reversed(USUAL)}.values())
# Largest ratios of times to the floor: geometric mean of a class in all its dtypes and layouts, and any layer. A class
# without its most suitable family of kernels becomes slower by more than the margin of 5% in its mean.
MOST_OVER_FLOOR = {
    "dense Conv": (2.2, 21.0),  # of one image of 64 channels, launches and the weights' packing take most of the time
    "grouped Conv": (2.4, 3.4),
    "depthwise Conv": (1.7, 2.9),
    "ConvTranspose": (2.7, 7.3),
    "MaxPool values": (1.6, 6.2),  # 13 x 13 windows of bfloat16: the comparisons
    "MaxPool with Indices": (1.6, 2.1),
    "AveragePool": (2.2, 8.1),  # 2 x 7 x 7 windows, summed in float32
    "input gradient": (2.2, 4.5),
    "strided input gradient": (2.5, 8.8),  # three output channels fill no tile
    "depthwise input gradient": (1.8, 2.4),
    "ConvTranspose input gradient": (2.1, 3.2),
    "weight gradient": (3.2, 9.9),  # few sums of many products: split, then added up by another launch
    "depthwise weight gradient": (2.5, 3.2),
    "ConvTranspose weight gradient": (2.4, 3.1),
    "MaxPool gradient": (1.7, 3.0),
    "AveragePool gradient": (3.0, 4.5),
    "complex Conv": (6.6, 10.3),  # separate launches split and join the parts
}
# Layers for which one family of kernels is 1.5 times as fast as all others, or more, and words in its kernels' names.
QUICKEST_BY_FAR = {
    "densenet.transition bfloat16": "average_pool vectors_2x2",
    "inception3.avg bfloat16": "average_pool tiles",
    "inception3.avg/grad bfloat16": "average_pool_grad strips",
    "densenet.transition/grad bfloat16": "average_pool_grad walks",
    "resnet.pool.idx bfloat16": "max_pool vectors indices",
    "yolo.spp13 bfloat16 NHWC": "max_pool patches",
    "yolo.spp13 float32": "max_pool tiles",
    "yolo.spp5/grad bfloat16": "max_pool_grad scatter",
    "srcnn.conv3 float32": "conv_bands",
    "vit.patch16 tf32": "tf32 chunks",
    "deeplab.aspp12 float32 NHWC": "uniform",
    "convnext.dw7.s3 float32 NHWC": "depthwise channels",
    "resnext50.l1.g32 bfloat16 NHWC": "conv_grouped mma",
    "convnext.stem bfloat16 NHWC": "mma halves",
    "alexnet.conv1 bfloat16 NHWC": "conv_stem mma",
    "espcn.conv2 float32 NHWC": "conv_tap_rows",
    "vgg16.conv1_2 tf32": "wgmma pixel_rows",
    "convnext.stem/input_grad float32": "conv_transpose_depth_to_space",
    "convnext.stem/input_grad bfloat16": "conv_transpose_matrix",
    "fsrcnn.deconv float32": "conv_bands",
    "fsrcnn.deconv bfloat16 NHWC": "conv_transpose_phase_rows",
    "fcn.bilinear bfloat16 NHWC": "conv_transpose_depthwise",
    "whisper.conv2/weight_grad bfloat16 NHWC": "weight_grad mma channels",
    "resnet50.conv1/weight_grad bfloat16": "weight_grad mma pixels",
    "resnet50.l1.expand/weight_grad float32": "weight_grad ffma pixels",
    "resnext50.l1.g32/weight_grad float32": "weight_grad few",
    "convnext.dw7.s1/weight_grad bfloat16 NHWC": "weight_grad rows",
}


@cache
def rows() -> dict[Case, dict[str, Any]]:
    return {case: static_plan.planned(case, DEVICE) for case in CASES}


# ---------------------------------------------------------------- what is planned


def test_no_class_of_layers_is_far_above_its_floor() -> None:
    ratios = defaultdict(list)
    for row in rows().values():
        if row["over_floor"] is not None:
            ratios[row["class"]].append(row["over_floor"])
    assert set(ratios) == set(MOST_OVER_FLOOR) == set(layers.CLASSES) - {"fused Conv", "bias gradient", "MaxUnpool"}
    found = {kind: (geometric_mean(of_class), max(of_class)) for kind, of_class in ratios.items()}
    wrong = {kind: pair for kind, pair in found.items() if any(map(float.__gt__, pair, MOST_OVER_FLOOR[kind]))}
    assert not wrong
    assert min(map(min, ratios.values())) >= 1  # no model is faster than the datasheet


def test_layers_get_the_kernels_that_are_quickest_by_far() -> None:
    mains = {name: rows()[BY_NAME[name]]["main"] for name in QUICKEST_BY_FAR}
    wrong = {name: main for name, main in mains.items() if any(w not in main for w in QUICKEST_BY_FAR[name].split())}
    assert not wrong


def test_large_dense_layers_are_near_what_a_device_was_measured_to_reach() -> None:
    large = [one for one in static_summary.classes(rows().values()) if one["class"] == static_summary.LARGE]
    assert {(one["dtype"], one["layout"]) for one in large} >= {("bfloat16", "NCHW"), ("bfloat16", "NHWC")}
    assert max(one["mean"] for one in large) <= 1.35
    assert min(one["best"] for one in large) >= 1  # no model is faster than the measurement


def test_plans_fit_the_device() -> None:
    known = {variant.name for variant in all_variants()}
    most = (2**31 - 1, 65535, 65535)
    for case, row in rows().items():
        assert 1 <= len(row["launches"]) <= 4, case
        assert row["workspace_bytes"] <= 2**29, case
        for launch in row["launches"]:
            assert launch["kernel"] in known
            assert launch["shared_bytes"] <= DEVICE.limits.shared_bytes_per_block, case
            assert all(0 < blocks <= limit for blocks, limit in zip(launch["grid"], most, strict=True)), case


def test_the_kernel_that_a_candidate_is_called_after_does_the_work() -> None:
    def launch(name: str, blocks: int) -> Any:
        return SimpleNamespace(grid=(blocks, 1, 1), variant=SimpleNamespace(name=name, threads=128))

    plan: Any = SimpleNamespace(launches=[launch("pack", 99), launch("gemm_64x64", 9), launch("gemm", 1)])
    candidate: Any = SimpleNamespace(name="gemm_64x64_split")
    assert static_plan.main_kernel(plan, candidate) == "gemm_64x64"
    assert static_plan.main_kernel(plan, None) == "pack"


@pytest.mark.parametrize(
    ("name", "dtype", "has"),
    [
        ("resnet50.l4.3x3", "bfloat16", True),
        ("resnet50.l4.3x3/input_grad", "float32", True),
        ("resnet50.l4.3x3/weight_grad", "bfloat16", False),
        ("resnet.pool", "float32", False),
        ("sparse.synthesis", "complex64", False),
    ],
)
def test_what_can_keep_invariant_bits_has_a_price(name: str, dtype: str, has: bool) -> None:
    found = static.priced(BY_NAME[f"{name} {dtype}"], DEVICE)["invariant"]
    assert (found is not None) == has
    assert found is None or 0.5 < found < 1.5


def test_occupancy_follows_from_registers() -> None:
    launch = {"kernel": "gemm", "shared_bytes": 49152 - 1024}
    kernels = {"gemm": {"threads": 256, "registers": 127, "static_shared_bytes": 1024}}
    (found,) = static.with_occupancy({"launches": [launch]}, kernels, "sm_90a")["launches"]
    assert found == launch | {"blocks_per_sm": 2, "occupancy": 0.25}  # 512 of 2048 threads


@needs_nvrtc
@needs_disassembler
def test_a_kernel_is_described_as_the_compiler_made_it() -> None:
    name = "conv_float32_3d_64x64x16_uniform"
    (variant,) = (variant for variant in all_variants() if variant.name == name)
    (found,) = static_kernels.described([variant], "sm_90a", machine_code.build).values()
    assert (found["threads"], found["spilled_bytes"], found["stack_bytes"]) == (128, 0, 0)
    assert found["multiplications"] == {"FFMA": 64 * 64 * 16 // 128}  # a step of the tile
    assert found["instructions"]["multiply"] == 512
    assert sum(found["instructions"].values()) == found["main_loop"] < 1.5 * 512
    assert 64 * 64 // 128 < found["registers"] <= 128  # the sums of a thread; four blocks of a multiprocessor


# ---------------------------------------------------------------- what is emulated


def counted(case: Case) -> dict[str, Any]:
    assert emulated.unavailable_reason() is None
    with visible():
        return traffic.counted(case, DEVICE)


@pytest.mark.emulator
def test_traffic_is_that_of_a_layers_arrays() -> None:
    found = counted(BY_NAME["resnet.pool float32"])
    assert found["x"] == [1, 64, 56, 112]
    x, y = 64 * 56 * 112 // 8, 64 * 28 * 56 // 8  # sectors: each has 8 elements
    traffic = found["kernels"]["max_pool_float32_3d_vectors_3x2"]
    (loads, _), (stores, _) = traffic["loads"], traffic["stores"]
    assert x <= loads <= 1.2 * x  # rows of neighbouring windows are the same
    assert y <= stores <= 1.2 * y
    assert found["moved"] == pytest.approx((loads + stores) / (x + y), rel=1e-3)


@pytest.mark.thorough
@pytest.mark.emulator
@pytest.mark.parametrize("case", FEW, ids=str)
def test_few_layers_move_little_more_than_they_must(case: Case) -> None:
    found = counted(case)
    assert 0.9 < found["moved"] < 50  # images of 14 x 224 times three channels leave most of a tile empty
    for name, sums in found["kernels"].items():
        for what, most in (("loads", 6.5), ("stores", 4.3), ("shared", 3.2)):
            count, ideal = sums.get(what, (0, 1))
            assert count <= most * ideal, (name, what)


@pytest.mark.thorough
@pytest.mark.emulator
@needs_disassembler
def test_the_command_tells_all_of_a_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.json"
    words = ["benchmarks", "static", "--layers", "resnet.pool.idx", "--json", str(path)]
    monkeypatch.setattr(sys, "argv", words)
    with visible():
        assert __main__.main() == 0
    found = json.loads(path.read_text(encoding="utf-8"))
    assert set(found["rows"]) == {str(case) for case in static_plan.cases("resnet.pool.idx")}
    for row in found["rows"].values():
        launched = {launch["kernel"] for launch in row["launches"]}
        assert launched == set(row["emulated"]["kernels"]) <= set(found["kernels"])
    out = capsys.readouterr().out.splitlines()
    assert out[0] == static_summary.HEAD
    assert len([line for line in out if line.startswith("resnet.pool.idx")]) == len(found["rows"])


# ---------------------------------------------------------------- which layers


def test_every_layer_has_its_rows() -> None:
    known = {layer.id for layer in layers.load()}
    plain = [case for case in CASES if (case.layout, case.precision) == ("NCHW", "ieee") and case.layer.id in known]
    assert len(plain) == sum(len(layer.dtypes) for layer in layers.load())
    assert len([case for case in CASES if case.layout == "NHWC" and case.layer.id in known]) == len(plain)
    sums = [case for case in plain if case.dtype == "float32" and not case.layer.pools]
    for precision in ("tf32", "3xtf32"):
        found = [case for case in CASES if case.precision == precision and case.layer.id in known]
        assert len(found) == len(sums)
    assert len({str(case) for case in CASES}) == len(CASES)


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
    chooser = static_plan.Chooser()
    kernels = {launch.variant.name for launch in static_plan.plan(case, DEVICE, chooser).launches}
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
    assert (small.x[2] - 50_003) % 128 == 0  # rows have the same alignment to 128 elements


def test_what_is_not_accepted_is_not_taken() -> None:
    layer = Layer("a", "", "Conv", (8, 64, 40, 300), (3, 3), (1, 1), (1,) * 4, (1, 1), ("fp32",), k_out=64)
    assert shrink.shrunk(layer, 1.0, lambda _: False) == layer
    small = shrink.shrunk(layer, 1.0, lambda smaller: smaller.x[1] % 16 == 0)
    assert small.x[:2] == (1, 16)
    last = shrink.shrunk(layer, 3e7, lambda _: True, "NHWC")  # where channels are contiguous
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

DISASSEMBLY = """
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_3:
        /*0010*/              @!P0 BRA `(.L_x_1) ;
.L_x_2:
        /*0020*/                   LDS.128 R4, [R2] ;
        /*0030*/              @!PT LDS RZ, [RZ] ;
        /*0040*/                   FFMA R8, R4, R5, R8 ;
        /*0050*/               @P1 BRA `(.L_x_2) ;
        /*0060*/                   FFMA R8, R4, R5, R8 ;
        /*0070*/             @UP2  UIADD3 UR4, UR4, 0x1, URZ ;
        /*0080*/               @P2 BRA `(.L_x_3) ;
.L_x_1:
        /*0090*/                   EXIT ;
.L_x_9:
        /*00a0*/                   BRA `(.L_x_9);
"""


def test_the_disassemblers_text_is_read() -> None:
    body = sass.parse(DISASSEMBLY)
    assert [one.name for one in body][:4] == ["LDC", "BRA", "LDS.128", "LDS"]
    assert body[1] == Instruction("BRA", "!P0", 9)
    assert body[7] == Instruction("UIADD3", "UP2")
    assert list(sass.loops(body)) == [range(2, 6), range(1, 9), range(10, 11)]
    assert sass.main_loop(body) == range(1, 9)
    assert sass.multiplications(body, range(1, 9)) == 2
    assert sass.names(body, range(1, 9), "LDS") == {"LDS.128": 1}


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
    # 0-6 goes round 1-4, which has 2 of 3 multiplications; 8-9 has one; 7 is in no loop.
    body = code("FFMA", "LDG.E", "FFMA", "FFMA", "BRA 1", "IADD3", "BRA 0", "FFMA", "FFMA", "BRA 8")
    assert sass.main_loop(body) == range(1, 5)
    even = code("FFMA", "LDG.E", "FFMA", "BRA 1", "BRA 0")  # the inner loop has no more than half
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
    planned |= {"invariant": 1.25, "main": "gemm"}
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


def test_without_the_disassembler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulated, "unavailable_reason", lambda: None)
    monkeypatch.setattr(sass, "disassembler", lambda: None)
    with pytest.raises(static.ArgumentError, match=r"pip install nvidia-cuda-nvdisasm$"):
        static._device("sm_90a")
