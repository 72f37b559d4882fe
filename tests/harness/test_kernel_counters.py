"""No bank conflicts, and hardly more memory traffic than necessary: what the emulator counts for the main kernels."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuconv.rules import dtypes
from tests.emulated_cuda.emulator.counters import FIELDS, Counters
from tests.harness import kernel_counters, records
from tests.harness.kernel_counters import PATH, TOOL, WIDTHS, Bands, Form, Row, TensorForm, WholeRows
from tests.harness.toolchain import needs_nvrtc

pytestmark = [pytest.mark.emulator, pytest.mark.sampled(3)]

MOST_SECTORS = 1.3  # of what is necessary
MOST_OF_16_BIT = 1.6  # in rows of 33: 64 bytes that begin in the middle of a sector touch three of them instead of two
MOST_SECTORS_OF_WHOLE_ROWS = 1.2
MOST_WAVEFRONTS_OF_WHOLE_ROWS = 1.16  # no number of banks can be shared out to three phases evenly
MOST_WAVEFRONTS_OF_PAIRS = 1.45  # sums on tensor cores are laid down in pairs, in rows apart as suits those who read
MOST_SECTORS_OF_LOADS, MOST_WAVEFRONTS_OF_ROWS = 1.16, 1.2  # rows begin between vectors, images meet in banks
MOST_OF_STEMS = {"NCHW": 1.1, "NHWC": 3.2}  # lanes have four channels each, one by one
MOST_WAVEFRONTS_OF_SUMS, MOST_WAVEFRONTS_OF_FRAGMENTS = 1.15, 1.5  # pixels of several rows meet in some banks
MOST_OF_VECTORS = 1.2  # of direct sums, whose rows are copied in vectors
MOST_OF_ODD_ROWS = 1.75  # of direct sums in 16 bits, in rows of 33
# Lanes two elements apart take two, of 4 or 8 bytes; the last lane of a row and the first one of the next may meet.
MOST_OF_BANDS = 1.36  # a warp reads the weights of several filters, each filter's a few neighbours
MOST_OF_16_BIT_BANDS = 1.75
MOST_WAVEFRONTS_OF_GROUPS, MOST_OF_COLUMNS = 1.6, 4.0
MOST_OF_ROWS = 1.2  # sectors of MaxPool's loads and stores together
MOST_OF_BYTES = 1.25  # whose rows begin and end in the middle of a sector
MOST_OF_PAIRED_LOADS = 2.2
MOST_WAVEFRONTS = {"3d_tiles": 2.0, "3d_patches": 1.3}
Rows = Mapping[str, Row]


@pytest.fixture(scope="module", params=kernel_counters.forms(), ids=str)
def gemm(request: pytest.FixtureRequest) -> tuple[Form, Rows]:
    """One form of one tile, and its rows and those of the kernel that packs the weights."""
    form: Form = request.param
    return form, {title: row for width in WIDTHS for title, row in form.run(width).items()}


def test_no_bank_conflicts(gemm: tuple[Form, Rows]) -> None:
    _, rows = gemm
    conflicts = {title: row["shared"] for title, row in rows.items() if row["shared"][0] != row["shared"][1]}
    assert not conflicts
    assert all(row["shared"][0] > 0 for row in rows.values())


def test_few_sectors_more_than_necessary(gemm: tuple[Form, Rows]) -> None:
    form, rows = gemm
    wide = dtypes.entry(form.dtype).itemsize > 2
    of_form = {title: row for title, row in rows.items() if title.startswith(str(form))}
    assert len(of_form) == len(WIDTHS)
    for title, row in of_form.items():
        most = MOST_SECTORS if wide or not title.endswith("x33") else MOST_OF_16_BIT
        for name in ("loads", "stores", "inputs") if wide else ("loads", "stores"):
            sectors, ideal = row[name]
            assert ideal <= sectors <= most * ideal, f"{title}: {name}"


def test_gemm_counts_are_as_recorded(gemm: tuple[Form, Rows]) -> None:
    assert_recorded(gemm[1])


@pytest.mark.parametrize("one", kernel_counters.whole_rows(), ids=WholeRows.title)
def test_conv_transpose_writes_whole_rows(one: WholeRows) -> None:
    rows = one.run()
    ((title, row),) = rows.items()
    wavefronts = MOST_WAVEFRONTS_OF_PAIRS if "transpose_matrix" in title else MOST_WAVEFRONTS_OF_WHOLE_ROWS
    for name, most in (("stores", MOST_SECTORS_OF_WHOLE_ROWS), ("shared", wavefronts)):
        found, ideal = row[name]
        assert 0 < ideal <= found <= most * ideal, f"{title}: {name}"
    assert_recorded(rows)


@pytest.mark.parametrize("direct", kernel_counters.directs(), ids=str)
def test_direct_sums_read_little_more_than_necessary(direct: kernel_counters.Direct) -> None:
    ((title, row),) = direct.run().items()
    wavefronts, of_vectors = row["sums"]
    assert 0 < wavefronts <= of_vectors
    if not direct.form.kernel:  # whose windows use whole vectors
        assert row["shared"][0] <= 1.2 * row["shared"][1]
    whole = direct.width % 4 == 0 and direct.form.stride  # rows of whole vectors, copied as such
    most = MOST_OF_VECTORS if whole else MOST_SECTORS if direct.dtype == "float32" else MOST_OF_ODD_ROWS
    for name in ("loads", "stores"):
        sectors, ideal = row[name]
        assert ideal <= sectors <= most * ideal or direct.form.stride == 0, name
    assert_recorded({title: row})


@pytest.mark.parametrize("form", kernel_counters.tensor_forms(), ids=str)
def test_tensor_cores_are_fed_without_bank_conflicts(form: TensorForm) -> None:
    packed, made = (kernel_counters.row(one) for one in form.counters(WIDTHS[0]).values())
    assert made["shared"][0] == made["shared"][1] > 0
    most = MOST_OF_16_BIT if form.form.gather == "scalar" and form.dtype.endswith("16") else MOST_SECTORS
    assert made["loads"][0] <= most * made["loads"][1]
    assert made["stores"][0] == made["stores"][1]
    if not form.form.rowwise:
        assert packed["loads"][0] <= MOST_SECTORS * packed["loads"][1]
    assert_recorded(dict(zip(form.titles(WIDTHS[0]), (packed, made), strict=True)))


@pytest.mark.parametrize("form", kernel_counters.tensor_forms(), ids=str)
def test_tensor_cores_multiply_whole_slices_and_nothing_else(form: TensorForm) -> None:
    _, made = form.counters(WIDTHS[0]).values()
    (n, channels, *spatial), (filters, *_) = form._shapes(WIDTHS[0])
    rows = -(-9 * channels // form.form.block_k) * form.form.block_k
    pixels = -(-n * spatial[0] * spatial[1] // form.tile.block_n) * form.tile.block_n
    products = 3 if form.precision == "3xtf32" else 1
    assert made.counts[:, FIELDS.index("mma_macs")].sum() == filters * pixels * rows * products


@pytest.mark.parametrize("few", kernel_counters.unpacked(), ids=str)
def test_kernels_that_pack_nothing_read_whole_sectors(few: Any) -> None:
    rows = {title: row for width in WIDTHS for title, row in few.run(width).items()}
    for title, row in rows.items():
        most = MOST_OF_16_BIT if "float16" in title else MOST_SECTORS
        for name in ("loads", "stores"):
            assert row[name][0] <= most * row[name][1], f"{title}: {name}"
        assert row["shared"][0] == row["shared"][1], title
    assert_recorded(rows)


@pytest.mark.parametrize("bands", kernel_counters.bands(), ids=Bands.title)
def test_bands_are_read_once_and_with_few_bank_conflicts(bands: Bands) -> None:
    ((title, row),) = bands.run().items()
    for name in ("loads", "stores", "shared"):
        found, ideal = row[name]
        most = MOST_OF_BANDS if name == "shared" or bands.dtype == "float32" else MOST_OF_16_BIT_BANDS
        assert 0 < ideal <= found <= most * ideal, f"{title}: {name}"
    assert_recorded({title: row})


@pytest.mark.parametrize("kernel", kernel_counters.channels(), ids=str)
def test_depthwise_kernels_load_and_store_whole_sectors(kernel: Any) -> None:
    rows = kernel.run()
    small = isinstance(kernel, kernel_counters.DepthwiseTransposed)  # so that most of its loads are of weights
    for name in ("stores",) if small else ("loads", "stores"):
        assert rows[kernel.title()][name][0] <= MOST_SECTORS * rows[kernel.title()][name][1], name
    assert_recorded(rows)


@pytest.mark.parametrize("one", kernel_counters.moved(), ids=kernel_counters.Moved.title)
def test_channels_are_brought_together_in_hardly_more_sectors_than_those_of_a_copy(one: kernel_counters.Moved) -> None:
    """Stores are of whole lines; of loads, vectors at the ends of rows are shared with neighbours."""
    rows = one.run()
    (row,) = rows.values()
    itemsize = dtypes.entry(one.dtype).itemsize
    assert row["stores"][0] == row["stores"][1]
    assert row["loads"][0] <= MOST_SECTORS_OF_LOADS * prod(one.shape) * itemsize / 32
    assert row.get("shared", [0, 0])[0] <= MOST_WAVEFRONTS_OF_ROWS * row.get("shared", [0, 0])[1]
    assert_recorded(rows)


@pytest.mark.parametrize("stem", kernel_counters.stems(), ids=str)
def test_bands_of_few_channels_are_read_and_written_in_whole_sectors(stem: kernel_counters.Stem) -> None:
    rows = stem.run()
    ((title, row),) = rows.items()
    assert row["stores"][0] == row["stores"][1], title
    assert row["loads"][0] <= MOST_OF_STEMS[stem.layout] * row["loads"][1], title
    most = MOST_WAVEFRONTS_OF_FRAGMENTS if stem.kernel.arithmetic else MOST_WAVEFRONTS_OF_SUMS
    assert row["shared"][0] <= most * row["shared"][1], title
    assert_recorded(rows)


@pytest.mark.parametrize("kernel", kernel_counters.grouped(), ids=kernel_counters.Grouped.title)
def test_groups_on_tensor_cores_count_as_recorded(kernel: kernel_counters.Grouped) -> None:
    """Weights are read where they lie, in small pieces; without channels last, stores are of few columns at a time."""
    rows = kernel.run()
    stores = MOST_SECTORS if kernel.channels_last else MOST_OF_COLUMNS
    for name, most in (("stores", stores), ("shared", MOST_WAVEFRONTS_OF_GROUPS)):
        found, ideal = rows[kernel.title()][name]
        assert 0 < ideal <= found <= most * ideal, name
    assert_recorded(rows)


@pytest.mark.parametrize("pool", kernel_counters.pools(), ids=str)
def test_max_pool_counts_are_as_recorded(pool: kernel_counters.Pool) -> None:
    rows = pool.run()
    assert_few(pool, rows[pool.title()])
    assert_recorded(rows)


def assert_few(pool: kernel_counters.Pool, row: Row) -> None:
    """Assert what kernels of rows are for: sectors read and written once, banks that are seldom asked twice."""
    if pool.kernel == "3d":
        assert "shared" not in row
        return
    sectors, ideal = np.add(row["loads"], row["stores"])
    assert sectors <= (MOST_OF_BYTES if pool.dtype in ("int8", "uint8") else MOST_OF_ROWS) * ideal
    wavefronts, ideal = row.get("shared", (0, 0))
    assert wavefronts <= MOST_WAVEFRONTS.get(pool.kernel, 0) * ideal


@pytest.mark.parametrize("one", kernel_counters.pool_grads(), ids=kernel_counters.PoolGrad.title)
def test_gradients_of_max_pool_read_neighbours_and_write_whole_sectors(one: kernel_counters.PoolGrad) -> None:
    """Lanes of two columns each read every other window; rows of 14 or 40 elements do not all begin with a sector.

    Of the general kernel neighbours read the same windows, fewer sectors than lanes that shared none would.
    """
    rows = one.run()
    ((title, row),) = rows.items()
    assert set(row) == {"loads", "stores"}
    for name, most in (("loads", MOST_OF_PAIRED_LOADS), ("stores", MOST_OF_ROWS)):
        sectors, ideal = row[name]
        assert (1 if one.kernel == "3d" else ideal) <= sectors <= most * ideal, f"{title}: {name}"
    assert_recorded(rows)


def assert_recorded(rows: Rows) -> None:
    records.require_compiler(PATH, TOOL)
    recorded = records.read(PATH)
    records.assert_same({title: recorded.get(title) for title in rows}, rows, PATH, TOOL)


def test_no_row_is_of_a_kernel_that_is_gone() -> None:
    gone = dict(records.read(PATH))
    for key in ("compiler", "columns"):
        gone.pop(key)
    titles = {title for form in kernel_counters.forms() for width in WIDTHS for title in form.titles(width)}
    titles |= {direct.title() for direct in kernel_counters.directs()}
    titles |= {title for form in kernel_counters.tensor_forms() for title in form.titles(WIDTHS[0])}
    titles |= {few.title(width) for few in kernel_counters.unpacked() for width in WIDTHS}
    titles |= {
        one.title() for one in (*kernel_counters.whole_rows(), *kernel_counters.pools(), *kernel_counters.bands())
    }
    titles |= {one.title() for one in (*kernel_counters.pool_grads(), *kernel_counters.moved())}
    more = (*kernel_counters.channels(), *kernel_counters.stems(), *kernel_counters.grouped())
    titles |= {one.title() for one in more}
    assert set(gone) == titles


def test_sums_are_by_kind_of_access() -> None:
    weights = f"base/ptx.cuh:1 (inlined at conv/gemm/ffma.cuh:{kernel_counters._line_of_weights()})"
    accesses = [
        ("cp.async", weights, {"shared_requests": 1, "shared_wavefronts": 5, "shared_ideal": 4}),
        ("cp.async", weights, {"global_requests": 1, "global_sectors": 17, "global_ideal": 16}),
        (
            "cp.async",
            "base/ptx.cuh:2 (inlined at conv/gemm/ffma.cuh:1)",
            {"global_requests": 1, "global_sectors": 3, "global_ideal": 2},
        ),
        ("ld.shared", "conv/gemm/ffma.cuh:3", {"shared_requests": 2, "shared_wavefronts": 8, "shared_ideal": 8}),
        ("st.global", "conv/gemm/ffma.cuh:4", {"global_requests": 1, "global_sectors": 7, "global_ideal": 6}),
        ("add.s32", "conv/gemm/ffma.cuh:5", {"instructions": 9}),
    ]
    counts = np.array([[numbers.get(field, 0) for field in FIELDS] for _, _, numbers in accesses], np.uint64)
    counters = Counters([key for key, _, _ in accesses], [line for _, line, _ in accesses], counts)
    assert kernel_counters.row(counters) == {
        "shared": [13, 12],
        "loads": [20, 18],
        "inputs": [3, 2],
        "stores": [7, 6],
    }


# ---------------------------------------------------------------- the tests' own tools


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
    records.write(path, {"columns": "what there is"}, {"row": {"a": [1, 2]}})
    assert path.read_text(encoding="utf-8").splitlines()[3] == '"row": {"a": [1, 2]}'
    monkeypatch.delenv("GPUCONV_REQUIRE_EMULATOR", raising=False)
    records.require_compiler(path, "tests/rows.py")  # neither skips nor fails
    monkeypatch.setattr(records, "compiler", lambda: "NVRTC 99.0")
    with pytest.raises(pytest.skip.Exception, match=r"and here is NVRTC 99\.0: nothing compared but the limits"):
        records.require_compiler(path, "tests/rows.py")
    monkeypatch.setenv("GPUCONV_REQUIRE_EMULATOR", "1")
    with pytest.raises(pytest.fail.Exception, match=r"`python tests/rows\.py --write` makes it anew"):
        records.require_compiler(path, "tests/rows.py")
