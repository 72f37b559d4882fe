"""SASS of the tensor-core main loops: mma instructions, wide memory accesses, and little else."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.sass import Instruction
from gpuconv.cuda.conv.gemm import fragments, mma, mma_tile
from gpuconv.cuda.conv.gemm.mma_tile import MmaForm, MmaTile
from tests.harness import machine_code
from tests.harness.machine_code import of_kernels
from tests.harness.steady import steady
from tests.harness.toolchain import needs_disassembler, needs_nvrtc

pytestmark = [pytest.mark.slow, needs_nvrtc, needs_disassembler]

HALF, SINGLE, SPLIT, DOUBLE = ("float16", "ieee"), ("float32", "tf32"), ("float32", "3xtf32"), ("float64", "ieee")
FORMS = [
    (operands, tile, form)
    for operands in (HALF, SINGLE, SPLIT, DOUBLE)
    for tile, form in mma_tile.kernels(fragments.ARITHMETICS[operands])
]
FORMS += [(("bfloat16", "ieee"), tile, form) for operands, tile, form in FORMS[:1]]
over_forms = pytest.mark.parametrize(
    ("operands", "tile", "form"), FORMS, ids=[mma.variant("conv", *one[0], *one[1:]).name for one in FORMS]
)
_ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_DEPTH = {"float16": 16, "bfloat16": 16, "float32": 8, "float64": 4}  # of a fragment, along K


def products(operands: tuple[str, str], tile: MmaTile, form: MmaForm, architecture: str) -> int:
    """Return the number of multiplications of fragments in a warp for a slice of K."""
    depth = 16 if operands == DOUBLE and architecture != "sm_80" else _DEPTH[operands[0]]
    rows = 8 if operands == DOUBLE and architecture == "sm_80" else 16
    times = 3 if operands == SPLIT else 1
    return tile.warp_m // rows * (tile.warp_n // 8) * (form.block_k // depth) * times


def parts(operands: tuple[str, str], tile: MmaTile, form: MmaForm, architecture: str) -> Counter[str]:
    """Return the required instructions per iteration by opcode: mma, copies and loads of one slice."""
    size, elements = _ITEMSIZE[operands[0]], tile.block_n * form.block_k // tile.threads
    fragments = tile.block_m // 16 * (form.block_k // _DEPTH[operands[0]]) * (2 if operands == SPLIT else 1)
    found = Counter({"DMMA" if operands == DOUBLE else "HMMA": products(operands, tile, form, architecture)})
    found["LDGSTS"] = -(-fragments * 32 // tile.threads)
    if form.copied:
        found["LDGSTS"] += elements * size // form.copied
    else:
        found["LDG" if size == 2 else "LDGSTS"] += elements
    return found


def round_of(
    operands: tuple[str, str], tile: MmaTile, form: MmaForm, architecture: str, operator: str = "conv"
) -> list[Instruction]:
    code = machine_code.code(mma.variant(operator, *operands, tile, form), architecture)
    return steady(code, parts(operands, tile, form, architecture))


@of_kernels("conv/gemm/conv.cu", "conv/gemm/conv_transpose.cu")
@over_forms
def test_a_slice_is_multiplied_once_and_loaded_in_wide_accesses(
    operands: tuple[str, str], tile: MmaTile, form: MmaForm
) -> None:
    names = Counter(one.name for one in round_of(operands, tile, form, "sm_90a"))
    of_tf32, count = "HMMA.1688.F32.TF32", products(operands, tile, form, "sm_90a")
    shapes = {HALF: "HMMA.16816.F32", SINGLE: of_tf32, SPLIT: of_tf32, DOUBLE: "DMMA.16x8x16"}
    assert names[shapes.get(operands, "HMMA.16816.F32.BF16")] == count, names
    accesses = {name for name in names if name.split(".")[0] in ("LDS", "LDSM", "STS", "LDG", "LDGSTS", "STG")}
    single = {2: {"LDG.E.U16", "STS.128"}, 4: {"LDGSTS.E"}, 8: {"LDGSTS.E.64"}}[_ITEMSIZE[operands[0]]]
    wide = {"LDS.128", "LDSM.16.M88.4", "LDGSTS.E.BYPASS.128"}
    wide |= {"LDS.64"} if operands == DOUBLE and form.copied else set()
    assert accesses <= wide | {0: single, 8: {"LDGSTS.E.64"}, 16: set()}[form.copied]


@of_kernels("conv/gemm/conv.cu", "conv/gemm/conv_transpose.cu")
@pytest.mark.parametrize("operator", ["conv", "conv_transpose"])
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_little_but_products_and_copies_where_channels_lie_side_by_side(operator: str, architecture: str) -> None:
    tile, form = next(mma_tile.kernels(fragments.ARITHMETICS[HALF]))
    assert (tile.block_m, tile.block_n, form.gather) == (128, 128, "vector")
    way = round_of(HALF, tile, form, architecture, operator)
    opcodes = Counter(one.opcode for one in way)
    comparisons = sum(opcodes[name] for name in ("ISETP", "UISETP", "PLOP3"))  # bounds and the loop's own
    addresses = Counter(one.kind for one in way)["integer"] - comparisons
    assert addresses < 0.15 * len(way), opcodes
    assert opcodes["HMMA"] > 0.55 * len(way)
    assert opcodes["HMMA"] + opcodes["LDS"] + opcodes["LDSM"] + opcodes["LDGSTS"] > 0.79 * len(way)


@of_kernels("conv/gemm/conv.cu", "conv/gemm/conv_transpose.cu")
@over_forms
def test_the_plan_knows_how_many_instructions_go_with_a_multiplication(
    operands: tuple[str, str], tile: MmaTile, form: MmaForm
) -> None:
    ratio = len(round_of(operands, tile, form, "sm_90a")) / products(operands, tile, form, "sm_90a")
    assert form.issued == pytest.approx(ratio, rel=0.1)


@of_kernels("conv/gemm/tap_rows.cu", "conv/gemm/phase_rows.cu", "conv/gemm/conv.cu", "conv/gemm/conv_transpose.cu")
@pytest.mark.parametrize("operands", [HALF, SINGLE, SPLIT, DOUBLE])
def test_tiles_whose_filters_have_several_rows_have_the_main_loop_of_others(operands: tuple[str, str]) -> None:
    arithmetic = fragments.ARITHMETICS[operands]
    for operator in ("conv", "conv_transpose"):
        for tile, form in mma_tile.of_rows(arithmetic, operator):
            code = machine_code.code(mma.rows_variant(operator, *operands, tile, form), "sm_90a")
            way = steady(code, parts(operands, tile, form, "sm_90a"))
            assert form.issued == pytest.approx(len(way) / products(operands, tile, form, "sm_90a"), rel=0.1)


# ---------------------------------------------------------------- the tests' own tools


def test_the_steady_way_is_the_shortest_with_all_its_parts() -> None:
    """0 head, 1 past the copy, 2 copy, 3 past the seldom part, 4 seldom, 5 multiply, 6 never, 7 back, 8 outside."""
    body = [
        Instruction("IADD3"),
        Instruction("BRA", "P0", 5),
        Instruction("LDGSTS.E"),
        Instruction("BRA", "P1", 5),
        Instruction("ISETP"),
        Instruction("HMMA.16816.F32"),
        Instruction("LDS", "!PT"),
        Instruction("BRA", "P2", 0),
        Instruction("EXIT"),
    ]
    way = [one.name for one in steady(body, {"HMMA": 1, "LDGSTS": 1})]
    assert way == [
        "IADD3",
        "BRA",
        "LDGSTS.E",
        "BRA",
        body[5].name,
        "BRA",
    ]
    with pytest.raises(AssertionError, match="no way round has"):
        steady(body, {"HMMA": 2})
