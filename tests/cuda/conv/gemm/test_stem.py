"""Conv with few input channels from a band in shared memory: when, in which boxes, and right results at any address."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gpuconv.cuda.conv.gemm import stem as stem_plan
from gpuconv.cuda.conv.gemm import stem_tile
from gpuconv.cuda.plan.launch import Plan
from tests.harness.emulated import preferred
from tests.harness.plans import fields, plan, problem


def stem(x_shape: Any, w_shape: Any, operator: str = "conv", **more: Any) -> Plan | None:
    with preferred("conv_stem"):
        made = plan(operator, x_shape, w_shape, **more)
    return made if made.launches[-1].variant.name.startswith("conv_stem") else None


def test_a_band_holds_all_inputs_of_a_box() -> None:
    made = stem((2, 3, 224, 224), (64, 3, 7, 7), strides=[2, 2], pads=[3] * 4, bias=True)
    assert made is not None
    packing, launch = made.launches
    assert packing.packs
    assert made.bytes_of("packed") == 3 * 49 * 64 * 4
    struct = fields(launch)
    rows, columns = 1 << struct["row_bits"], 1 << struct["column_bits"]
    assert rows * columns == 256
    band = 2 * (rows - 1) + 7, 2 * (columns - 1) + 7
    assert (struct["band_rows"], struct["band_columns"]) == band
    assert struct["lead"] == 1  # column -3 is the second one of a whole vector
    assert struct["pitch"][2] % 4 == 0
    assert struct["pitch"][2] >= band[1] + 1
    assert struct["band_bytes"] == 3 * struct["pitch"][0] * 4
    assert launch.shared_bytes == struct["band_bytes"] + 21 * 4 + 4 * max(3 * 28 * 32, 4 * 16 * 34)
    assert launch.grid == (2 * -(-112 // rows) * -(-112 // columns) * -(-2 // struct["passes"]), 1, 1)


def test_weights_are_packed_with_the_taps_of_a_row_in_the_channels_place() -> None:
    """By hand: w (64, 3, 2, 4, 5) in two groups; channels, depths and rows are taps. FFMA has channels as an axis."""
    made = stem((1, 6, 7, 20, 40), (64, 3, 2, 4, 5), dtype="float16", group=2)
    assert made is not None
    struct = fields(made.launches[0])
    assert {"filters": 32, "channels": 5, "taps": 24, "extent": [3, 2, 4]}.items() <= struct.items()
    assert {"w_group": 3840, "w_filter": 120, "w_channel": 1, "w_stride": [40, 20, 5]}.items() <= struct.items()
    single = stem((1, 6, 7, 20, 40), (64, 3, 2, 4, 5), group=2)
    assert single is not None
    struct = fields(single.launches[0])
    assert {"filters": 32, "channels": 1, "rows": 120, "taps": [3, 2, 4, 5]}.items() <= struct.items()
    assert {"w_group": 3840, "w_filter": 120, "w_stride": [40, 20, 5, 1]}.items() <= struct.items()


@pytest.mark.parametrize(("taps", "chunk"), [(7, 7), (14, 7), (9, 3), (10, 5), (8, 1), (11, 11), (13, 1), (1, 1)])
def test_as_many_taps_at_once_as_divide_a_row(taps: int, chunk: int) -> None:
    made = stem((1, 3, 40, 40), (64, 3, 3, taps))
    assert made is not None
    assert made.launches[-1].variant.name == f"conv_stem_float32_3d_32x256x{chunk}"
    dilated = stem((1, 3, 40, 40), (64, 3, 3, taps), dilations=[1, 2])
    assert dilated is not None
    assert dilated.launches[-1].variant.name == f"conv_stem_float32_3d_32x256x{1 if taps > 1 else chunk}"


@pytest.mark.parametrize(("stride", "pad", "shift", "copies"), [(2, 3, 1, 1), (2, 2, 0, 1), (1, 3, 0, 2), (4, 1, 1, 1)])
def test_pairs_of_short_elements_are_aligned(stride: int, pad: int, shift: int, copies: int) -> None:
    made = stem((1, 3, 64, 64), (64, 3, 7, 7), dtype="float16", strides=[1, stride], pads=[pad] * 4)
    assert made is not None
    struct = fields(made.launches[-1])
    assert (struct["shift"], struct["copies"]) == (shift, copies)
    assert struct["lead"] == -pad % 8
    assert struct["pitch"][2] % 8 == 0


@pytest.mark.parametrize(
    ("x_shape", "x_strides", "dtype", "runs"),
    [
        ((2, 3, 2, 8, 16), (768, 256, 128, 16, 1), "float32", 1),  # neighbours along columns
        ((2, 3, 2, 8, 16), (768, 256, 128, 16, 1), "float16", 1),
        ((2, 3, 2, 8, 12), (576, 192, 96, 12, 1), "float32", 1),
        ((2, 3, 2, 8, 12), (576, 192, 96, 12, 1), "float16", 0),  # rows of 24 bytes
        ((2, 3, 2, 8, 16), (770, 256, 128, 16, 1), "float32", 0),
        ((2, 3, 2, 8, 16), (768, 258, 128, 16, 1), "float32", 0),
        ((2, 3, 2, 8, 16), (768, 256, 130, 16, 1), "float32", 0),
        ((2, 3, 2, 8, 16), (768, 256, 128, 18, 1), "float32", 0),
        ((2, 3, 1, 8, 16), (768, 256, 99, 16, 1), "float32", 1),  # with one slice, its stride does not matter
        ((2, 3, 2, 8, 16), (1536, 512, 256, 32, 2), "float32", 0),
        ((2, 3, 2, 8, 16), (768, 1, 384, 48, 3), "float32", 2),  # runs of pixels with all channels
        ((2, 3, 2, 8, 16), (768, 1, 384, 48, 3), "float16", 2),
        ((2, 3, 2, 8, 14), (672, 1, 336, 42, 3), "float32", 0),  # rows of 42 elements
        ((2, 2, 2, 8, 14), (448, 1, 224, 28, 2), "float32", 2),
        ((2, 3, 2, 8, 16), (770, 1, 384, 48, 3), "float32", 0),
        ((2, 3, 2, 8, 16), (768, 1, 386, 48, 3), "float32", 0),
        ((2, 3, 2, 8, 16), (768, 1, 384, 50, 3), "float32", 0),
        ((2, 3, 2, 8, 16), (1024, 1, 512, 64, 4), "float32", 0),
    ],
)
def test_whole_vectors_of_neighbours_are_copied_at_once(x_shape: Any, x_strides: Any, dtype: str, runs: int) -> None:
    made = stem(x_shape, (64, x_shape[1], 1, 3, 3), x_strides=x_strides, dtype=dtype)
    assert made is not None
    assert fields(made.launches[-1])["runs"] == runs


def test_channels_of_several_groups_are_not_copied_together() -> None:
    made = stem((2, 6, 8, 16), (128, 3, 3, 3), group=2, x_strides=(768, 1, 96, 6))
    assert made is not None
    assert fields(made.launches[-1])["runs"] == 0


# ---------------------------------------------------------------- bands by hand

Ints = tuple[int, ...]
# Three channels of 2 x 3 x 4 taps, K = 72; y is (2, 8, 7, 3, 2).
UNEQUAL = problem(
    "conv", (2, 6, 5, 7, 9), (8, 3, 2, 3, 4), "float32",
    group=2, strides=[1, 2, 3], dilations=[2, 1, 3], pads=[1, 0, 2, 3, 1, 4],
)  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ((1, 1, 9), {(0, 0, 8)}),
        ((1, 2, 9), {(0, 8 - bits, bits) for bits in range(3, 9)}),
        ((2, 1, 9), {(8 - bits, 0, bits) for bits in range(3, 9)}),
        ((2, 2, 9), {(8 - rows - bits, rows, bits) for bits in range(3, 9) for rows in range(9 - bits)}),
    ],
)
def test_boxes_go_along_axes_of_several_outputs(columns: Ints, expected: set[Ints]) -> None:
    """256 outputs as powers of two per axis, at least eight along columns."""
    found = [box.bits for box in stem_tile.boxes(replace(UNEQUAL, columns=columns))]
    assert set(found) == expected
    assert len(found) == len(expected)


def test_the_struct_of_a_band() -> None:
    (kernel,) = stem_tile.kernels(UNEQUAL)
    assert kernel.chunk == 1  # taps of a row are not adjacent
    found = stem_plan._plan(UNEQUAL, kernel, stem_tile._box(UNEQUAL, (2, 3, 3)), 3)
    struct = fields(found.launches[-1])
    common, taps = struct.pop("common"), struct.pop("taps")
    assert found.launches[-1].grid == (2 * 4, 1, 1)  # groups, and two boxes of each image
    assert found.bytes_of("packed") == 2 * 72 * 4 * 4  # groups, rows of K, filters
    names = ("channels", "filters", "x_batch", "x_channel", "x_extent", "x_stride", "y_batch", "y_channel", "y_stride")
    assert [common[name] for name in names] == [
        1, 4, 1890, 945, [3, 5, 7, 9], [315, 63, 9, 1], 336, 42, [0, 6, 2, 1],
    ]  # fmt: skip
    assert [common[name] for name in ("stride", "extent", "m_tiles", "n_tiles", "all_rows")] == [
        [1, 1, 2, 3], [1, 7, 3, 2], 1, 4, 72,
    ]  # fmt: skip
    assert [taps[name] for name in ("start", "advance", "row", "count", "rows")] == [
        [0, -1, 0, -2], [1, 2, 1, 3], [24, 12, 4, 1], [3, 2, 3, 4], 72,
    ]  # fmt: skip
    assert struct == {
        "tiles": [2, 1, 1], "row_bits": 3, "column_bits": 3, "runs": 0, "lead": 0, "chunks": 8,
        "band_rows": 17, "band_depths": 6, "band_columns": 31, "units": 8 * 6 * 17 * 3,
        "pitch": [6 * 17 * 32, 17 * 32, 32], "shift": 0, "copies": 1,
        "copy_bytes": 4 * 3 * 6 * 17 * 32, "band_bytes": 4 * 3 * 6 * 17 * 32,
        "steps_of_row": 4, "steps": 72, "step_bytes": 12,  # three elements
        "channel_vectors": 0, "pixel_vectors": 0, "passes": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("filters", "found"),
    [(1, [1]), (64, [1]), (65, [2, 1]), (192, [3, 2, 1]), (321, [6, 3, 2, 1]), (448, [7, 4, 2, 1])],
)
def test_blocks_of_a_stem_make_all_filters_or_half_of_them_and_so_on(filters: int, found: list[int]) -> None:
    one, tile = problem("conv", (1, 3, 9, 9), (filters, 3, 3, 3)), SimpleNamespace(block_m=64)
    assert list(stem_tile.passes(one, tile)) == found  # type: ignore[arg-type]
    assert [stem_tile.parts(one, tile, count) for count in found] == [  # type: ignore[arg-type]
        -(-filters // (64 * count)) for count in found
    ]
