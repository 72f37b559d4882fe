"""Small rules on the host, each computed by hand: files, BLAS's orders, taps, tuning, and records of models' runs."""

from __future__ import annotations

import importlib
import io
import os
import stat
import sys
from collections import Counter
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

from gpuconv import ArgumentError, _files, _trial
from gpuconv._errors import listed
from gpuconv.cli import compile as _compile
from gpuconv.cli import terminal
from gpuconv.cpu import _gather, _product, _workspace
from gpuconv.cpu.pool import _order, unpool
from gpuconv.cuda.build import pack
from gpuconv.cuda.call import device
from gpuconv.onnx import backend
from gpuconv.onnx.operators import affine, products, shaping
from gpuconv.rules import geometry as geometries
from gpuconv.rules import whole_numbers
from tests.harness.device_arrays import device_arrays
from tests.harness.idle_kernels import Sent
from tests.onnx.models import floats, pool

max_pool: Any = importlib.import_module("gpuconv.cpu.pool.max_pool")  # whose function has the same name
Ints = tuple[int, ...]


# ---------------------------------------------------------------- files


def test_a_file_that_is_replaced_by_another_kind_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, opened, real = tmp_path / "model", [], open
    path.write_bytes(b"x")

    def keeping(*arguments: Any, **more: Any) -> Any:
        opened.append(real(*arguments, **more))
        return opened[-1]

    monkeypatch.setattr(_files, "open", keeping, raising=False)
    check, modes = _files._check, iter((stat.S_IFREG, stat.S_IFIFO))
    monkeypatch.setattr(_files, "_check", lambda _, name: check(next(modes), name))
    with pytest.raises(OSError, match="Not a regular file"):
        _files.open_regular(path)
    assert [stream.closed for stream in opened] == [True]


def test_the_folder_of_packed_kernels_is_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "kernels"
    assert _compile._pack_path(str(path)) == path
    assert stat.S_IMODE(path.parent.stat().st_mode) & ~0o755 == 0
    assert path.parent.is_dir()
    assert not path.exists()


# ---------------------------------------------------------------- NumPy


@pytest.mark.parametrize(
    ("shape", "strides", "order"),
    [
        ((3, 5), (40, 8), (_product._AS_IT_IS, 5)),
        ((3, 5), (56, 8), (_product._AS_IT_IS, 7)),
        ((3, 5), (8, 24), (_product._TRANSPOSED, 3)),
        ((3, 5), (8, 32), (_product._TRANSPOSED, 4)),
        ((3, 5), (32, 8), None),  # rows overlap
        ((3, 5), (44, 8), None),  # and begin between elements
        ((3, 5), (8, 16), None),  # columns overlap
        ((3, 2), (64, 16), None),  # gaps along both axes
        ((2, 3), (16, 64), None),
        ((3, 1), (24, 999), (_product._AS_IT_IS, 3)),  # with one column, the step does not matter
        ((1, 5), (999, 8), (_product._AS_IT_IS, 5)),
        ((1, 5), (999, 24), (_product._TRANSPOSED, 3)),
        ((1, 1), (999, 999), (_product._AS_IT_IS, 1)),
        ((2, 1), (8, 999), (_product._AS_IT_IS, 1)),
    ],
)
def test_how_blas_takes_a_matrix(shape: Ints, strides: Ints, order: tuple[int, int] | None) -> None:
    assert _product._order(shape, strides, 8) == order


@pytest.mark.parametrize(
    ("size", "extent", "step", "start", "inside", "met"),
    [
        (5, 7, 2, -3, range(2, 5), [1, 3, 5]),
        (5, 4, 2, -3, range(2, 4), [1, 3]),
        (4, 9, 1, 0, range(4), [0, 1, 2, 3]),
        (3, 2, 1, 5, range(0), []),
        (3, 2, 5, -1, range(0), []),  # 4 is beyond the end, and -1 before the start
    ],
)
def test_which_inputs_stand_where(size: int, extent: int, step: int, start: int, inside: range, met: list[int]) -> None:
    places, filled, reads = _gather._axis(size, extent, step, start)
    assert places == size
    assert list(range(extent)[reads]) == met
    assert list(range(size)[filled]) == list(inside)


def test_a_window_is_cut_down_to_single_taps_where_memory_holds_no_more() -> None:
    geometry = geometries.max_pool((2, 3, 5, 7), kernel_shape=[2, 3])
    work = max_pool._work(geometry, touched=40, most_bytes=39, together=9)
    assert len(work.windows) == 6
    assert len(work.blocks) == 2 * 3 * 4 * 5
    whole = max_pool._work(geometry, touched=1, most_bytes=2**30, together=9)
    assert (len(whole.windows), len(whole.blocks)) == (1, 1)


def test_unpooling_goes_along_axes_of_two_elements_too() -> None:
    """Only axes of one element are left out of the places."""
    for shape in ((1, 2, 1, 4), (2, 1, 4, 2), (1, 1, 2, 2), (3, 2, 2, 1), (1, 1, 1, 4), (2, *(1,) * 62, 3)):
        size = int(np.prod(shape))
        places = np.array(Random(0).sample(range(size), (size + 1) // 2)).reshape(-1)
        x_shape = (1, 1, 1, places.size)
        y = np.full(shape, 7.0, np.float32)
        windows = SimpleNamespace(count=size, in_planes=False)
        geometry = SimpleNamespace(numbered_shape=shape, index_windows=windows)
        x = np.arange(1, places.size + 1, dtype=np.float32).reshape(x_shape)
        unpool.max_unpool(x, places.reshape(x_shape), y, geometry)  # type: ignore[arg-type]
        expected = np.zeros(size, np.float32)
        expected[places] = x.reshape(-1)
        np.testing.assert_array_equal(y.reshape(-1), expected)


def test_taps_are_met_where_some_output_has_them_inside() -> None:
    random, many = Random(0), 0
    for _ in range(2000):
        count, limit, stride = random.randint(0, 3), random.randint(0, 3), random.randint(1, 4)
        begin, step, taps = random.randint(-9, 4), random.randint(1, 4), random.randint(0, 14)
        offsets = range(begin, begin + step * taps, step)
        met = [t for t in range(taps) if any(0 <= q * stride + offsets[t] < limit for q in range(count))]
        assert list(geometries.taps_met(count, limit, stride, offsets)) == met
        many += taps > count * limit > 0 and bool(met)
    assert many > 100


# ---------------------------------------------------------------- tuning


def on_host(memory: Any, shape: Ints, strides: Ints, start: int) -> Any:
    return np.ndarray(shape, memory.dtype, memory, start, strides)


HOST: Any = SimpleNamespace(to_device=lambda array: array, strided=on_host)


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a,
        lambda a: a[::-1, ::2],
        lambda a: a.transpose(2, 0, 1)[:, ::-1],
        lambda a: a[:, 1:2, ::-3],
        lambda a: a[:1, :1, :1],
    ],
)
@pytest.mark.parametrize("dtype", ["int64", "int8"])
def test_values_lie_as_the_array_does(view: Any, dtype: str) -> None:
    array = view(np.zeros((4, 5, 7), dtype))
    values = np.arange(array.size, dtype=dtype).reshape(array.shape)
    found = whole_numbers.holding(HOST, array, values)
    assert (found.strides, found.dtype) == (array.strides, array.dtype)
    np.testing.assert_array_equal(found, values)


def test_elements_that_share_memory_cannot_differ() -> None:
    array = np.broadcast_to(np.zeros((4, 1), np.int64), (4, 3))
    with pytest.raises(ArgumentError, match="elements share memory"):
        whole_numbers.holding(HOST, array, np.arange(12).reshape(4, 3))


def test_whole_numbers_are_as_large_as_the_smaller_factor_lets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(whole_numbers, "largest", lambda *given: seen.append(given) or 9)
    monkeypatch.setattr(whole_numbers, "alike", lambda runtime, array, most, seed: (array.shape, most, seed))
    x, w, b = (np.zeros(shape, np.float16) for shape in ((8, 6, 9, 9), (4, 6, 3, 2), (4,)))
    made = _trial._whole("conv", (x, w, b), {}, "NCHW", "tf32")  # type: ignore[arg-type]
    assert seen == [("float16", "tf32", 4 * 6 * 3 * 2)]
    assert made == ((x.shape, 9, 0), (w.shape, 9, 1), (b.shape, 9, 2))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ([1.0, 2.0, 5.0], ""),
        ([1.0, 4.5, 5.0], "1 of 3 elements, by up to 2.5, other"),
        ([0.0, -1.0, 5.0], "2 of 3 elements, by up to 3, other"),
        ([1.0, 2.0, np.nan], "1 of 3 elements, by up to inf, other"),
    ],
)
def test_how_far_results_are_apart_is_said(made: list[float], said: str) -> None:
    expected = np.float32([1, 2, 5])
    assert _trial._difference([np.float32(made)], [expected]) == said
    same = np.zeros(4, np.int8)
    assert _trial._difference([same, np.float32(made)], [same, expected]) == said.replace("of 3", "of 7")


def test_complex_results_are_apart_by_both_of_their_parts() -> None:
    assert _trial._difference([np.complex64([4 + 4j])], [np.complex64([1])]) == "1 of 1 elements, by up to 5, other"


def test_other_data_fill_the_cache_twice_before_a_call_is_measured(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    written: list[int] = []
    memory = SimpleNamespace(memset_async=lambda value, size, stream: written.append(size))
    monkeypatch.setattr(device, "workspace", lambda nbytes, _: asked.append(nbytes) or device.Workspace(memory))
    calls: list[int] = []
    assert device.seconds(lambda: calls.append(len(written))) >= 0
    assert set(asked) == set(written) == {2 * sent.cupy.cuda.Device().attributes["L2CacheSize"]}
    assert calls == list(range(1, len(written) + 1))


# ---------------------------------------------------------------- models


@pytest.mark.parametrize(
    ("c", "attributes", "dtype", "with_bias"),
    [
        ((5,), {}, np.float32, True),
        ((1, 5), {}, np.float32, True),
        ((5,), {"alpha": 2.0}, np.float32, False),
        ((5,), {"beta": 2.0}, np.float32, False),
        ((5,), {"alpha": 2.0, "beta": 2.0}, np.float32, False),
        ((3, 1), {}, np.float32, False),
        ((1,), {}, np.float32, False),
        ((3, 5), {}, np.float32, False),
        ((), {}, np.float32, False),
    ],
)
def test_a_row_is_added_by_the_kernel_alone(
    c: Ints, attributes: dict[str, float], dtype: Any, with_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bool] = []
    of_rows = products._of_rows

    def noted(a: Any, b: Any, bias: Any = None) -> Any:
        calls.append(bias is not None)
        return of_rows(a, b, bias)

    monkeypatch.setattr(products, "_of_rows", noted)
    a, b, added = (floats(*shape, seed=seed).astype(dtype) for seed, shape in enumerate(((3, 4), (4, 5), c)))
    node = helper.make_node("Gemm", ["a", "b", "c"], ["y"], **attributes)
    with device_arrays():
        (y,) = backend.run_node(node, [a, b, added], "CUDA")
    assert calls == [with_bias]
    expected = attributes.get("alpha", 1) * (a @ b) + attributes.get("beta", 1) * added
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    calls.clear()
    backend.run_node(node, [a, b, added])
    assert calls == []  # NumPy's product on the host


def test_factors_that_do_not_match_are_refused_with_a_bias_too() -> None:
    node = helper.make_node("Gemm", ["a", "b", "c"], ["y"])
    with device_arrays(), pytest.raises(ArgumentError, match=r"sums over 4 and 3"):
        backend.run_node(node, [floats(3, 4), floats(3, 5), floats(5)], "CUDA")


def test_an_activation_is_applied_where_the_numbers_are() -> None:
    y = floats(2, 3, 5)
    expected = np.maximum(y, 0)
    found = affine.activated(y, "relu")
    assert found is y
    np.testing.assert_array_equal(found, expected)
    assert affine.activated(y, None) is y
    with device_arrays() as arrays:
        there = arrays.array(floats(2, 3, 5))
        np.testing.assert_array_equal(arrays.memory(affine.activated(there, "relu")), expected)
        assert affine.activated(there, None) is there


# ---------------------------------------------------------------- Dask


def test_blocks_that_are_taken_whole_are_no_tasks_of_their_own() -> None:
    dask_api = pytest.importorskip("gpuconv.dask")
    da = pytest.importorskip("dask.array")
    x, w = floats(2, 3, 8), floats(4, 3, 3, seed=1)

    def pieces(chunks: Any, **attributes: Any) -> int:
        graph = dask_api.conv(da.from_array(x, chunks=chunks), w, **attributes).__dask_graph__()
        return Counter(str(key[0]).startswith("piece-") for key in graph)[True]

    assert pieces((2, 3, 8)) == 0
    assert pieces((1, 3, 8)) == 0
    assert pieces((2, 3, 4), strides=[4], pads=[1, 0]) > 0


@pytest.mark.parametrize("group", [1, 2])
def test_blocks_of_no_channels_are_of_as_many_groups(group: int) -> None:
    dask_api = pytest.importorskip("gpuconv.dask")
    da = pytest.importorskip("dask.array")
    x, w, b = np.zeros((2, 0, 5), np.float32), np.zeros((4, 0, 3), np.float32), floats(4)
    found = dask_api.conv(da.from_array(x, chunks=(1, 1, 3)), w, b, group=group).compute(scheduler="synchronous")
    np.testing.assert_array_equal(found, np.broadcast_to(b[:, None], (2, 4, 3)))


def test_models_of_the_first_version_are_read() -> None:
    x = floats(1, 1, 4)
    (y,) = backend.run_model(pool(1, ir_version=1), [x])
    np.testing.assert_array_equal(y, np.maximum(x[..., :-1], x[..., 1:]))
    with pytest.raises(ArgumentError, match="holds no graph or no IR version"):
        backend.run_model(pool(1, ir_version=0), [x])


@pytest.mark.skipif(os.name != "posix", reason="Windows has other permissions")
def test_packed_kernels_are_for_everybody_to_read(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        pack.store(tmp_path / "new" / "kernels", "NVRTC", [])
    finally:
        os.umask(before)
    (path,) = (tmp_path / "new").iterdir()
    assert (path.name, path.read_bytes().split()[:2]) == ("kernels", [b"gpuconv", b"kernels"])
    assert [stat.S_IMODE(one.stat().st_mode) for one in (path.parent, path)] == [0o755, 0o644]


# ---------------------------------------------------------------- numbers and words


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_keys_are_in_the_order_of_numbers(dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    info = ml_dtypes.finfo(kind)
    numbers = [-np.inf, info.min, -1, -info.smallest_subnormal, 0, info.smallest_subnormal, 1, info.max, np.inf, np.nan]
    keys = _order.keys(np.array([*numbers, -0.0, -np.nan], kind), _workspace.Scratch()).tolist()
    *increasing, nan = keys[: len(numbers)]
    assert sorted(set(increasing)) == increasing
    assert increasing[-1] < nan == keys[-1] == np.iinfo(f"int{8 * kind.itemsize}").max
    assert keys[-2] == keys[4]
    assert _order.keys(np.empty((2, 0), kind), _workspace.Scratch()).shape == (2, 0)


def test_many_names_are_listed_as_the_first_ones_and_a_number() -> None:
    names = [*"abcdefghij"]
    assert [listed(names[:count]) for count in (0, 1, 8)] == ["", "a", "a, b, c, d, e, f, g, h"]
    assert listed(names[:9]) == "a, b, c, d, e, f, g, h and 1 more"
    assert listed(names, most=3) == "a, b, c and 7 more"


def test_progress_is_as_wide_as_the_terminal_but_one_column(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "20")
    with terminal.Progress() as progress:
        progress.show("abcdefghijklmnopqrstuvwxyz")
        progress.show("too soon")
    assert stream.getvalue() == "\r\x1b[Kabcdefghijklmnopqrs\r\x1b[K"


def test_tables_and_json() -> None:
    rows = [["a", "bc", "1"], ["abc", "d", "234"]]
    assert terminal.table(["x", "y", "z"], rows) == "x     y    z\na    bc    1\nabc   d  234"
    assert terminal.table(["x", "y", "z"], rows, left=2) == "x    y     z\na    bc    1\nabc  d   234"
    assert terminal.as_json({"a": [1, np.inf, (2,)]}) == '{\n"a": [1, null, [2]]\n}'


def test_what_is_repeated_has_64_bits_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shaping, "_MOST_BYTES", 100)
    x, form = np.arange(12, dtype=np.float32).reshape(3, 4), SimpleNamespace()
    for repeats in ([1, 1], [2, 1], [1, 2], [0, 2]):
        np.testing.assert_array_equal(shaping._tile(form, x, np.array(repeats)), np.tile(x, repeats))
    with pytest.raises(ArgumentError, match="more bytes than 64 bits can address"):
        shaping._tile(form, x, np.array([3, 1]))
    with pytest.raises(ArgumentError, match="more bytes than 64 bits can address"):
        shaping._tile(form, x, np.array([0, 3]))  # NumPy multiplies them nevertheless
    with pytest.raises(ArgumentError, match="more bytes than 64 bits can address"):
        shaping._tile(form, x[:0], np.array([7, 15]))
    assert shaping._tile(form, x[:0], np.array([7, 14])).shape == (0, 56)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_short_numbers_are_mixed_in_float32(mode: str) -> None:
    x = (100 * floats(1, 2, 9, 7)).astype(np.float16)
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode=mode)
    scales = np.array([1, 1, 1.7, 2.3], np.float32)
    (found,), (wide,) = (backend.run_node(node, [one, scales]) for one in (x, x.astype(np.float32)))
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, wide.astype(np.float16))
    assert (found != wide).any() == (mode == "linear")  # rounded once, at the end
