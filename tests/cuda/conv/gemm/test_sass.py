"""SASS of the FFMA main loops: multiply-adds, wide memory accesses, no local memory."""

from __future__ import annotations

import pytest

from benchmarks import sass
from benchmarks.sass import Instruction
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.conv.direct import bands, few, transpose
from gpuconv.cuda.conv.direct import channels as channels_plan
from gpuconv.cuda.conv.direct import rows as rows_plan
from gpuconv.cuda.conv.direct.rows import RowForm
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import ffma, interleaved, pointwise
from gpuconv.cuda.conv.gemm.base import GemmTile
from gpuconv.cuda.plan.numbers import RANK
from gpuconv.cuda.pool import channels as pool_channels
from gpuconv.cuda.pool import tiles as pool_tiles
from gpuconv.cuda.pool import vectors
from gpuconv.cuda.pool.grad import walks
from gpuconv.cuda.weight_grad import plain
from gpuconv.rules import dtypes
from tests.emulator.compile import READ, is_read
from tests.harness import direct_forms, machine_code
from tests.harness.machine_code import code, of_kernels
from tests.harness.toolchain import needs_disassembler, needs_nvrtc

pytestmark = [pytest.mark.slow, needs_nvrtc, needs_disassembler]
over_direct_forms = pytest.mark.parametrize("form", rows_plan.FORMS, ids=direct_forms.title)
OPERATORS = ("conv", "conv_transpose")
FORMS = [
    (dtype, tile, uniform)
    for dtype, tiles in gemm_base.TILES.items()
    for tile in tiles
    for uniform in (True, False)
    if (tile.uniform if uniform else tile.rowwise)
]
WholeRows = tuple[Variant, str, GemmTile, bool]
WHOLE_ROWS: list[WholeRows] = [
    *((interleaved.variant(*form), *form) for form in interleaved.forms()),
    *((pointwise.variant(*form), *form[1:], True) for form in pointwise.forms() if form[0] == "conv_transpose"),
]
_IN_THREE_AXES = ("conv_transpose_interleaved", "conv_transpose_depth_to_space")
# As the assembler reports for every kernel; here are those that are compiled for this architecture anyway, without
# those whose code other tests read.
LOOKED_AT = {
    group: [one for one in machine_code.looked_at(variants, READ) if not is_read(one)]
    for group, variants in machine_code.groups().items()
    if group.endswith(("_2d", "_4d")) or group.startswith(_IN_THREE_AXES)
}
over_forms = pytest.mark.parametrize(("dtype", "tile", "uniform"), FORMS, ids=str)
_SINGLY = 8  # instructions that write two neighbours one by one
_WIDTHS = {16: "LDG.E.128", 8: "LDG.E.64", 4: "LDG.E", 2: "LDG.E.U16"}  # loads of so many bytes


def share(variant: Variant, tile: GemmTile) -> float:
    """Return the multiplications' fraction of the instructions in one iteration of the main loop.

    An inner loop that loads part of the inputs counts as often as it needs to load all of them.
    """
    body = code(variant)
    loop = sass.main_loop(body)
    executed = len(loop)
    for inner in sass.loops(body):
        gathered = sum(gathers(body, inner, variant).values())
        if inner != loop and set(inner) <= set(loop) and gathered:
            executed += (tile.block_k * tile.block_n // tile.threads // gathered - 1) * len(inner)
    return sass.multiplications(body, loop) / executed


def scale_of(dtype: str) -> float:
    """Return the ratio of the plan's efficiency to this fraction for a dtype's first tile: plans compare tiles of one
    dtype."""
    first = gemm_base.TILES[dtype][0]
    return first.efficiency / share(ffma.variant("conv", dtype, False, RANK, first, first.uniform), first)


def gathers(body: list[Instruction], part: range, variant: Variant) -> dict[str, int]:
    """Count the loads of single inputs in a part of the code."""
    name = {2: "LDG.E.U16", 4: "LDGSTS.E", 8: "LDGSTS.E.64"}[itemsize(variant)]
    found = sass.names(body, part, name.partition(".")[0])
    return {name: found[name]} if found[name] else {}


def itemsize(variant: Variant) -> int:
    return next(dtypes.entry(name).itemsize for name in dtypes.CONV_DTYPES if f"_{name}_" in variant.name)


@of_kernels("conv/gemm/conv.cu", "conv/gemm/conv_transpose.cu", "conv/gemm/split.cu", "conv/gemm/split_transpose.cu")
@pytest.mark.parametrize("operator", OPERATORS)
def test_most_of_the_main_loop_multiplies(operator: str) -> None:
    tile = gemm_base.LARGE
    variant = ffma.variant(operator, "float32", False, RANK, tile, True)
    assert variant.name == f"{operator}_float32_3d_128x128x16_uniform"
    body = code(variant)
    loop = sass.main_loop(body)
    assert sass.multiplications(body, loop) == tile.block_k * tile.thread_m * tile.thread_n
    assert share(variant, tile) >= 0.8


@of_kernels("conv/gemm/conv.cu", "conv/gemm/conv_transpose.cu", "conv/gemm/split.cu", "conv/gemm/split_transpose.cu")
@over_forms
def test_tiles_are_as_efficient_as_the_plan_takes_them_to_be(dtype: str, tile: GemmTile, uniform: bool) -> None:
    """The plan stores a tile's FFMA share in two digits, and one common factor for slices that span several taps.

    That factor is off by 0.031 and 0.057 for the two tiles that are compiled both ways.
    """
    found = share(ffma.variant("conv", dtype, False, RANK, tile, uniform), tile) * scale_of(dtype)
    if uniform or not tile.uniform:
        assert found == pytest.approx(tile.efficiency, abs=0.015)
    else:
        assert found == pytest.approx(tile.efficiency * gemm_base._ROWWISE, abs=0.06)


@of_kernels("conv/direct/few.cu")
@pytest.mark.parametrize("dtype", dtypes.CONV_DTYPES)
def test_kernels_of_few_filters_are_as_efficient_as_the_plan_takes_them_to_be(dtype: str) -> None:
    for filters, planned in zip(few._FILTERS, few._EFFICIENCY[dtype], strict=True):
        body = code(few.variant(dtype, filters))
        loop = sass.main_loop(body)
        assert sass.multiplications(body, loop) / len(loop) == pytest.approx(planned, abs=0.02)
        load = _WIDTHS[dtypes.entry(dtype).itemsize]
        assert sass.names(body, loop, "LDG") == {load: 12}  # four pixels' of three taps


@of_kernels("conv/direct/bands.cu")
@pytest.mark.parametrize("dtype", dtypes.CONV_DTYPES)
def test_bands_are_summed_as_efficiently_as_the_plan_takes_them_to_be(dtype: str) -> None:
    """The inner loop over channels covers all taps of an unrolled part of the kernel; it reads only shared memory."""
    for form in bands.forms(dtype):
        body = code(bands.variant(dtype, form))
        columns = 2 if dtype == "float64" else 4
        products = form.filters * form.rows * columns * form.kernel_rows * form.kernel_columns
        loop = min((one for one in sass.loops(body) if sass.multiplications(body, one) == products), key=len)
        assert products / len(loop) == pytest.approx(form.efficiency, abs=0.02), form
        assert not sass.names(body, loop, "LDG", "STS"), form


@of_kernels("conv/direct/channels.cu")
@pytest.mark.parametrize("dtype", dtypes.CONV_DTYPES)
def test_sums_over_channels_take_as_many_instructions_as_the_plan_takes_them_to(dtype: str) -> None:
    """A loop computes all outputs of a thread from one row of x: by vectors of channels, or by single loads."""
    entry = dtypes.entry(dtype)
    vector = 16 // dtypes.entry(entry.accumulator).itemsize
    whole, single = _WIDTHS[vector * entry.itemsize], _WIDTHS[entry.itemsize]
    for stride, taps, columns in channels_plan.FORMS:
        body = code(channels_plan.variant(dtype, (stride, taps, columns)))
        rows, window, products = 16 // columns, (columns - 1) * max(stride, 1) + taps, 16 * vector * taps
        found = {
            tuple(sass.names(body, loop, "LDG").items()): len(loop)
            for loop in sorted(sass.loops(body), key=len, reverse=True)  # of equal names the innermost is the last
            if sass.multiplications(body, loop) == products
        }
        others = products + channels_plan._ROW * rows + channels_plan._TAP * rows * taps
        assert found[(whole, window),] == pytest.approx(others + channels_plan._INPUT[dtype] * window, rel=0.1)
        alone = others + channels_plan._INPUT_SINGLY[dtype] * window + channels_plan._FOUND * (vector - 1)
        assert found[(single, vector * window),] == pytest.approx(alone, rel=0.1)


@of_kernels("conv/direct/transpose.cu")
@pytest.mark.parametrize("dtype", dtypes.CONV_DTYPES)
def test_transposed_columns_take_as_many_instructions_as_the_plan_takes_them_to(dtype: str) -> None:
    """The main loop, where all four taps exist, makes four outputs."""
    body = code(transpose.variant(dtype))
    loop = sass.main_loop(body)
    assert sass.multiplications(body, loop) == 4 * 4
    assert len(loop) == pytest.approx(4 * transpose._OUTPUT, rel=0.05)
    assert set(sass.names(body, loop, "LD")) == set()  # all loads are known to be from global memory


@of_kernels("conv/gemm/pointwise.cu")
def test_plain_products_are_as_efficient_as_the_plan_takes_them_to_be() -> None:
    """The main loop contains both ways to copy inputs, one of which is executed."""
    for tile in pointwise.TILES["conv"]["float32"]:
        body = code(pointwise.variant("conv", "float32", tile))
        loop = sass.main_loop(body)
        assert sass.multiplications(body, loop) / len(loop) == pytest.approx(tile.efficiency, abs=0.02)
        copies = sass.names(body, loop, "LDGSTS", "LDG")
        assert copies == {"LDGSTS.E": 8 + 8, "LDGSTS.E.BYPASS.128": 2}


@of_kernels("conv/gemm/interleaved.cu", "conv/gemm/depth_to_space.cu")
@needs_nvrtc
@needs_disassembler
@pytest.mark.parametrize("form", WHOLE_ROWS, ids=lambda form: form[0].name)
def test_kernels_that_write_whole_rows_multiply_as_much_as_the_plan_takes_them_to(form: WholeRows) -> None:
    variant, dtype, tile, uniform = form
    scale, planned = scale_of(dtype), gemm_base.efficiency(tile, uniform)
    if tile in gemm_base.TILES[dtype]:  # the plan compares it with the same tile of one phase
        planned = share(ffma.variant("conv_transpose", dtype, False, RANK, tile, uniform), tile) * scale
    assert share(variant, tile) * scale == pytest.approx(planned, abs=0.03)


@of_kernels("conv/gemm/conv.cu", "conv/gemm/conv_transpose.cu", "conv/gemm/split.cu", "conv/gemm/split_transpose.cu")
@pytest.mark.parametrize("operator", OPERATORS)
@over_forms
def test_memory_is_accessed_in_the_widths_that_are_meant(
    operator: str, dtype: str, tile: GemmTile, uniform: bool
) -> None:
    variant = ffma.variant(operator, dtype, False, RANK, tile, uniform)
    entry = dtypes.entry(dtype)
    vector = 16 // dtypes.entry(entry.accumulator).itemsize
    body = code(variant)
    loop = sass.main_loop(body)
    multiplied = tile.block_k * (tile.thread_m + tile.thread_n) // vector
    weights = -(-tile.block_k * tile.block_m // vector // tile.threads)
    all_gathers = tile.block_k * tile.block_n // tile.threads
    loads = sass.names(body, loop, "LDG", "LDGSTS")
    assert loads.pop("LDGSTS.E.BYPASS.128") == weights
    assert loads == gathers(body, loop, variant)  # only single inputs
    assert sum(loads.values()) in ((all_gathers,) if uniform or entry.itemsize == 2 else (2, all_gathers))
    if operator == "conv":  # ConvTranspose keeps its taps in shared memory too
        assert sass.names(body, loop, "LDS") == {"LDS.128": multiplied}
    else:
        assert sass.names(body, loop, "LDS")["LDS.128"] >= multiplied
    assert sum(sass.names(body, loop, "STS").values()) == (all_gathers if entry.itemsize == 2 else 0)
    store = {2: "STG.E.U16", 4: "STG.E", 8: "STG.E.64"}[entry.itemsize]
    outputs = tile.thread_m * tile.thread_n
    chunks = outputs // vector**2
    channels_last = 4 * chunks  # in a loop
    finished = (2 + 2) * chunks  # with channels second and last, in loops
    repaired = 1
    stores = sass.names(body, range(len(body)), "STG")
    left = stores.pop("STG.E.128.STRONG.GPU", 0)  # the sums of a shared tile, for the block that adds up
    assert left == (outputs // vector if "split" in variant.function else 0)
    assert stores == {store: outputs + channels_last + finished + repaired}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "group",
    [
        pytest.param(group, marks=pytest.mark.kernels(*sorted({one.source for one in variants})))
        for group, variants in LOOKED_AT.items()
        if variants
    ],
)
def test_nothing_is_kept_in_local_memory(group: str) -> None:
    for variant in LOOKED_AT[group]:
        assert code(variant), variant.name


@of_kernels("pool/vectors.cu")
@pytest.mark.parametrize("indices", [False, True], ids=["values", "indices"])
@pytest.mark.parametrize("dtype", dtypes.MAX_POOL_DTYPES)
def test_max_pool_loads_every_row_of_vectors_once_and_compares_short_elements_in_pairs(
    dtype: str, indices: bool
) -> None:
    size, stride = 3, 2
    body = code(vectors.variant(dtype, indices, size, stride))
    itemsize = dtypes.entry(dtype).itemsize
    width = _WIDTHS[min(16, 2 * stride * itemsize) if indices else 16]
    rows = (vectors.STRIPS[size, stride] - 1) * stride + size
    loads = sass.names(body, range(len(body)), "LDG")
    assert sum(loads.values()) == rows + 1  # one more if elements are loaded one by one
    assert loads[width] >= rows
    pairs = sum(sass.names(body, range(len(body)), "HMNMX2").values())
    assert bool(pairs) == (itemsize <= 2 and not indices)


@of_kernels("pool/tiles.cu")
@pytest.mark.parametrize("variant", [pool_tiles.variant(*one) for one in (("bfloat16", True), ("int8", False))])
def test_max_pool_copies_to_shared_memory_in_vectors(variant: Variant) -> None:
    body = code(variant)
    assert set(sass.names(body, range(len(body)), "LDGSTS")) == {"LDGSTS.E.BYPASS.128.ZFILL"}


@of_kernels("pool/channels.cu")
@pytest.mark.parametrize("indices", [False, True], ids=["values", "indices"])
@pytest.mark.parametrize("dtype", dtypes.MAX_POOL_DTYPES)
def test_max_pool_loads_vectors_of_channels_three_at_a_time(dtype: str, indices: bool) -> None:
    body = code(pool_channels.variant(dtype, indices))
    width = _WIDTHS[2 * dtypes.entry(dtype).itemsize if indices else 16]
    # For walks, and for a column and the others of a window.
    assert sass.names(body, range(len(body)), "LDG")[width] >= 9


# ---------------------------------------------------------------- the direct sum


def direct(form: RowForm, dtype: str = "float32") -> tuple[list[Instruction], range]:
    """The code of one form, and its main loop."""
    body = code(rows_plan.variant(dtype, form))
    return body, sass.main_loop(body)


@of_kernels("conv/direct/rows.cu")
@over_direct_forms
def test_direct_forms_are_as_efficient_as_the_plan_takes_them_to_be(form: RowForm) -> None:
    body, loop = direct(form)
    assert sass.multiplications(body, loop) / len(loop) == pytest.approx(form.efficiency, abs=0.04)


@of_kernels("conv/direct/rows.cu")
@pytest.mark.parametrize("dtype", dtypes.CONV_DTYPES)
@over_direct_forms
def test_unrolled_sums_read_every_vector_of_inputs_once(form: RowForm, dtype: str) -> None:
    body, loop = direct(form, dtype)
    if form.kernel:
        vector = 16 // dtypes.entry(dtypes.entry(dtype).accumulator).itemsize
        assert sass.multiplications(body, loop) == form.kernel**2 * form.filters * form.rows * vector
        rows, lead = (form.rows - 1) * form.stride + form.kernel, -(form.kernel // 2) % vector
        columns = (lead + (vector - 1) * form.stride + form.kernel - 1) // form.stride + 1
        windows = rows * form.stride * -(-columns // vector)
        widths = {"LDS": 0.25, "LDS.64": 0.5, "LDS.128": 1.0}  # of a vector: at edges, some loads are narrower
        loads = sum(widths[name] * count for name, count in sass.names(body, loop, "LDS").items())
        weights = form.kernel * -(-form.kernel * form.filters // vector)
        assert windows / 2 <= loads <= windows + weights
    assert not sass.names(body, loop, "LDG", "STG", "STS")


@of_kernels("conv/direct/rows.cu")
def test_most_of_a_7x7_sum_multiplies() -> None:
    body, loop = direct(next(form for form in rows_plan.FORMS if (form.kernel, form.stride) == (7, 1)))
    assert sass.multiplications(body, loop) / len(loop) >= 0.9


@of_kernels("conv/direct/rows.cu")
@pytest.mark.parametrize("dtype", dtypes.CONV_DTYPES)
@over_direct_forms
def test_rows_are_loaded_and_stored_in_vectors_where_they_consist_of_them(form: RowForm, dtype: str) -> None:
    body, _ = direct(form, dtype)
    loads = sass.names(body, range(len(body)), "LDG")
    stores = sass.names(body, range(len(body)), "STG")
    vector = {2: ".64", 4: ".128", 8: ".128"}[dtypes.entry(dtype).itemsize]
    if form.stride:
        assert loads[f"LDG.E{vector}"] >= 4  # in flight together
        assert stores[f"STG.E{vector}"] == form.filters * form.rows


# ---------------------------------------------------------------- gradients


@of_kernels("weight_grad/plain.cu")
@pytest.mark.parametrize("dtype", dtypes.CONV_DTYPES)
def test_gradients_of_weights_take_as_many_instructions_as_the_plan_takes_them_to(dtype: str) -> None:
    """A slice of pixels: what is around the loop over its vectors, and that loop as often as it has vectors."""
    for tile in plain._TILES:
        body = code(plain.variant(dtype, False, RANK, tile))
        inner, *more = [loop for loop in sass.loops(body) if sass.multiplications(body, loop) > 1]
        found = len(inner) / sass.multiplications(body, inner)
        if more:
            times = tile.slice * dtypes.sums(dtype).itemsize // 16
            found = (len(more[0]) + (times - 1) * len(inner)) / (times * sass.multiplications(body, inner))
        assert found == pytest.approx(tile.instructions, rel=0.1), tile.name


@of_kernels("pool/grad/walks.cu")
@pytest.mark.parametrize("dtype", dtypes.CONV_DTYPES)
def test_gradients_of_max_pool_take_as_many_instructions_as_the_plan_takes_them_to(dtype: str) -> None:
    """Two rows of windows, without the path that writes the elements of a row of x one by one."""
    size = dtypes.entry(dtype).itemsize
    for form in walks._FORMS:
        body = code(walks.variant(dtype, form))
        found = len(max(sass.loops(body), key=len)) - (form.columns > 1) * _SINGLY * 2 * form.stride
        rows = 2 * form.windows[size // 4]
        if form.stride == 0:
            rows = form.windows[size // 4] + form.row + walks._OF_ANY
        assert found == pytest.approx(rows, rel=0.15), form
