"""SASS of the wgmma kernels: batches of wgmma, TMA copies, no spills to local memory."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pytest

from benchmarks import sass
from benchmarks.sass import Instruction
from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.conv.wgmma import tiles
from gpuconv.cuda.conv.wgmma.family import variant, variants
from gpuconv.cuda.conv.wgmma.tiles import StripsTile, WgmmaTile
from tests.harness import machine_code
from tests.harness.changed_kernels import changed_kernels, exchanged
from tests.harness.machine_code import of_kernels
from tests.harness.toolchain import needs_disassembler, needs_nvrtc

pytestmark = [pytest.mark.slow, needs_nvrtc, needs_disassembler]


def over(kernels: list[tuple[str, str, WgmmaTile]]) -> Any:
    """Mark a test of the machine code of these kernels, each of which changes with its own source alone."""
    found = [(kernel, variant(*kernel)) for kernel in kernels]
    marks = {one.source: (pytest.mark.thorough, pytest.mark.kernels(one.source)) for _, one in found}
    params = [pytest.param(*kernel, id=one.name, marks=marks[one.source]) for kernel, one in found]
    return pytest.mark.parametrize(("operator", "dtype", "tile"), params)


SLICES: list[tuple[str, str, WgmmaTile]] = [
    *(("conv", "bfloat16", tile) for tile in tiles.TILES),
    *(("conv", dtype, tiles.TILES[-1]) for dtype in ("float16", "float32")),
    *(("conv_transpose", dtype, tiles.TILES[1]) for dtype in ("bfloat16", "float32")),
]
# Of strips, those that plans can name: all of bfloat16, one of float16, the patches of most pixels of float32.
NAMED = {each.name for each in variants()}
STRIPS: list[tuple[str, str, WgmmaTile]] = [
    *(("conv", "bfloat16", tile) for tile in tiles.STRIPS),
    ("conv", "float16", tiles.STRIPS[0]),
    *[("conv", "float32", tile) for tile in tiles.STRIPS if variant("conv", "float32", tile).name in NAMED][-1:],
]
PIXELS: list[tuple[str, str, WgmmaTile]] = [("conv", "float32", tile) for tile in tiles.PIXELS]
_TYPES = {"float16": "16.F32", "bfloat16": "16.F32.BF16", "float32": "8.F32.TF32"}
# Instructions from one product of a slice to the next, and from one slice's last product to the next one's first.
_IN_SLICES, _BETWEEN_SLICES = 25, 55


def built(chosen: Variant) -> tuple[list[Instruction], str]:
    """Return a kernel's SASS and ptxas' log."""
    found = machine_code.build(chosen, "sm_90a")
    return sass.disassemble(found.path), found.log


def text_of(chosen: Variant) -> list[str]:
    """Return the lines of a kernel's machine code, with operands."""
    tool = sass.disassembler()
    assert tool is not None
    found = machine_code.build(chosen, "sm_90a")
    command = [tool, "-c", str(found.path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@lru_cache(maxsize=64)
def code_of(operator: str, dtype: str, tile: WgmmaTile) -> tuple[list[Instruction], str]:
    return built(variant(operator, dtype, tile))


def batches(code: Sequence[Instruction]) -> Iterator[list[str]]:
    """Yield the wgmma instructions between a warpgroup's arrive and the wait for all but the last ones."""
    found: list[str] | None = None
    for one in code:
        if one.name == "WARPGROUP.ARRIVE":
            found = []
        elif one.opcode == "HGMMA":
            assert found is not None, "a product before the warpgroup has begun"
            found.append(one.name)
        elif one.name.startswith("WARPGROUP.DEPBAR") and found is not None:
            yield found
            found = None
    assert found is None


def products_of(tile: WgmmaTile) -> int:
    """Return the number of products, of 32 bytes along K and 64 rows, that a warpgroup starts for a slice."""
    slice_bytes = tile.slice_bytes if isinstance(tile, StripsTile) else tiles.SLICE_BYTES
    rows = tile.block_m if tile.ping_pong else tile.block_m // 2
    return slice_bytes // 32 * rows // 64


def complaints(log: str) -> list[str]:
    """Return ptxas' warnings about serialised wgmma."""
    return [line for line in log.splitlines() if re.search(r"\bC75\d\d\b|serializ", line)]


def test_kernels_of_strips_are_those_that_plans_name() -> None:
    assert {variant(*strips).name for strips in STRIPS} <= NAMED
    assert {dtype for _, dtype, _ in STRIPS} == {"bfloat16", "float16", "float32"}


@over([*SLICES, *STRIPS])
def test_a_slice_or_a_tap_of_a_strip_is_one_batch_of_products(operator: str, dtype: str, tile: WgmmaTile) -> None:
    code, log = code_of(operator, dtype, tile)
    product = f"HGMMA.64x{tile.block_n}x{_TYPES[dtype]}"
    found = list(batches(code))
    assert found
    assert all(batch == [product] * products_of(tile) for batch in found), found
    assert not complaints(log)


@over([*SLICES, *STRIPS, *PIXELS])
def test_inputs_come_by_tma_and_sums_stay_in_registers(operator: str, dtype: str, tile: WgmmaTile) -> None:
    """A launch has the registers that its warpgroups share and ask for; otherwise they would wait for ever."""
    code, log = code_of(operator, dtype, tile)
    ranks = ("3D.IM2COL", "4D.IM2COL", "5D.IM2COL", "4D") if (operator, dtype, tile) in SLICES else ("4D", "5D")
    assert {one.name for one in code if one.opcode == "UTMALDG"} == {f"UTMALDG.{rank}" for rank in ranks}
    assert not [one.name for one in code if one.opcode in ("LDL", "STL")]
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log
    launched = re.search(r"Used (\d+) registers", log)
    assert launched is not None
    registers = -(-int(launched[1]) // 8) * 8 * tiles.THREADS
    assert 128 * (2 * tiles.CONSUMER_REGISTERS + tiles.PRODUCER_REGISTERS) <= registers <= 65536
    assert fits(variant(operator, dtype, tile))


@over(STRIPS)
def test_products_follow_each_other_closely(operator: str, dtype: str, tile: WgmmaTile) -> None:
    code, _ = code_of(operator, dtype, tile)
    each = products_of(tile)
    products = [number for number, one in enumerate(code) if one.opcode == "HGMMA"]
    between = [after - before - 1 for before, after in pairwise(products)]
    assert max(gap for number, gap in enumerate(between, 1) if number % each) <= _IN_SLICES
    assert max(between[each - 1 :: each]) <= _BETWEEN_SLICES


# ---------------------------------------------------------------- pixels from registers

_WHILE_TENSOR_CORES_WORK = 50  # instructions of a warp at most from one step's products to the next ones'
_IN_PARTS = 90


@over(PIXELS)
def test_pixels_are_read_while_products_of_others_are_under_way(operator: str, dtype: str, tile: WgmmaTile) -> None:
    """A step is of eight channels and two products of 64 pixels, by the large parts of these, or by both.

    The steps of a partial slice are in a loop with one iteration per eight channels.
    """
    code, log = code_of(operator, dtype, tile)
    assert not complaints(log)
    product = f"HGMMA.64x{tile.block_m}x8.F32.TF32"
    found = list(batches(code))
    steps = 5 * tile.block_n // (128 if tile.ping_pong else 256)
    assert sorted(map(len, found)) == [2] * steps + [4] * steps
    assert all(set(batch) == {product} for batch in found)
    for count, most in ((2, _WHILE_TENSOR_CORES_WORK), (4, _IN_PARTS)):
        assert max(gaps(code, count)) <= most


def gaps(code: Sequence[Instruction], count: int) -> Iterator[int]:
    """Yield the numbers of instructions between steps of ``count`` wgmma each, without loops."""
    products = [number for number, one in enumerate(code) if one.opcode == "HGMMA"]
    steps: list[list[int]] = []
    for number in products:
        begun = any(one.name == "WARPGROUP.ARRIVE" for one in code[steps[-1][-1] : number]) if steps else True
        if begun:
            steps.append([])
        steps[-1].append(number)
    for before, after in pairwise(steps):
        straight = not any(one.opcode == "BRA" for one in code[before[-1] : after[0]])
        if len(before) == len(after) == count and straight:
            yield after[0] - before[-1] - 1


@over(PIXELS)
def test_sums_of_pixels_go_to_y_from_registers(operator: str, dtype: str, tile: WgmmaTile) -> None:
    code, _ = code_of(operator, dtype, tile)
    assert len([one for one in code if one.opcode == "STS"]) == 1  # the ticket's answer
    assert {one.name for one in code if one.opcode == "STG"} >= {"STG.E", "STG.E.64"}


# ---------------------------------------------------------------- rows across K


@over([kernel for kernel in STRIPS if kernel[1] == "bfloat16"])
def test_rows_are_multiplied_across(operator: str, dtype: str, tile: StripsTile) -> None:
    products = [line for line in text_of(variant(operator, dtype, tile)) if "HGMMA" in line]
    assert products
    assert all((".tnspB" in line) == tile.rows for line in products)


def fits(chosen: Variant) -> bool:
    """Return whether setmaxnreg requests at most the registers of a block; larger requests would deadlock."""
    text = compiler.ptx(chosen, "sm_90a")
    taken, given = (
        {int(count) for count in re.findall(rf"setmaxnreg\.{what}\.sync\.aligned\.u32\s+(\d+)", text)}
        for what in ("inc", "dec")
    )
    assert (len(taken), len(given)) == (1, 1)
    return tiles.registers_fit(taken.pop(), given.pop())


def test_more_registers_than_a_block_has_are_refused() -> None:
    assert not tiles.registers_fit(240, 40)
    assert not tiles.registers_fit(232, 48)
    assert not tiles.registers_fit(236, 24)
    assert tiles.registers_fit(240, 24)


FETCHING: list[tuple[str, str, WgmmaTile]] = [
    ("conv_transpose", "bfloat16", tiles.TILES[1]),
    ("conv", "float16", tiles.STRIPS[0]),
    *(("conv", "float32", tile) for tile in (tiles.TILES[-1], tiles.PIXELS[0], tiles.PIXELS[-1])),
]


@over(FETCHING)
def test_who_fetches_keeps_to_the_registers_that_are_left(operator: str, dtype: str, tile: WgmmaTile) -> None:
    """The producer warps' code must keep to the registers left after setmaxnreg.dec; ptxas does not check this."""
    used = set(registers_after(text_of(variant(operator, dtype, tile)), "USETMAXREG.DEALLOC"))
    assert 4 < max(used) < tiles.PRODUCER_REGISTERS


def registers_after(text: Sequence[str], start: str) -> Iterator[int]:
    """Yield the registers of all instructions reachable after the first instruction named ``start``."""
    code: list[tuple[str, str, str]] = []
    labels: dict[str, int] = {}
    for line in text:
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(code)
        elif found := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?(\S+)([^;]*);", line):
            code.append((found[1] or "", found[2], found[3]))
    todo, seen = [number for number, (_, name, _) in enumerate(code) if name.startswith(start)], set[int]()
    assert len(todo) == 1
    while todo:
        number = todo.pop()
        if number in seen:
            continue
        seen.add(number)
        predicate, name, operands = code[number]
        assert not name.startswith(("HGMMA", "BRX", "RET")), "what multiplies is another way"
        yield from map(int, re.findall(r"\bR(\d+)\b", operands))
        todo += [labels[label] for label in re.findall(r"\.L_x_\d+", operands)]
        always = not predicate and not re.search(r"\bU?P\d", operands)
        if not (always and name.startswith(("EXIT", "BRA"))):
            todo.append(number + 1)


# ---------------------------------------------------------------- the tests' own tools


def test_a_thread_has_its_part_of_a_warpgroups_products() -> None:
    assert Instruction("HGMMA.64x256x16.F32.BF16").products == 64 * 256 * 16 / 128


@of_kernels("conv/wgmma/slices.cu", "conv/wgmma/strips.cu", "conv/wgmma/pixels.cu")
@pytest.mark.usefixtures("cache_of_broken_kernels")
def test_the_assembler_complains_of_sums_that_are_used_too_early() -> None:
    wait, kernel = "        products_wait<0>();\n", "conv/wgmma/run.cuh"
    with changed_kernels({kernel: exchanged(kernel, wait, "")}):
        _, log = built(variant("conv", "bfloat16", tiles.TILES[-1]))
    assert complaints(log)


@of_kernels("conv/wgmma/slices.cu", "conv/wgmma/strips.cu", "conv/wgmma/pixels.cu")
@pytest.mark.usefixtures("cache_of_broken_kernels")
def test_a_kernel_that_takes_too_many_registers_is_noticed() -> None:
    taken, kernel = "take_registers<232>", "conv/wgmma/run.cuh"
    with changed_kernels({kernel: exchanged(kernel, taken, taken.replace("232", "240"))}):
        assert not fits(variant("conv", "bfloat16", tiles.TILES[-1]))
