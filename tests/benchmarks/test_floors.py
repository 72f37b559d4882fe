"""References for GPU measurements: floors, samples of exact results, means. No device is needed."""

from __future__ import annotations

from dataclasses import replace
from math import isclose
from typing import Any

import numpy as np
import pytest

import gpuconv
from benchmarks import calls, floors, gpu_summary, gpu_timing, gradient_samples, layers, samples
from benchmarks.layers import Layer

pytestmark = pytest.mark.slow

LAYERS = {layer.id: layer for layer in layers.load()}
DERIVED = layers.load_derived()
EVERYTHING = LAYERS | {layer.id: layer for layer in DERIVED}

# By hand, at 4.3e12 bytes a second: layer, dtype, (x read + y + w + b) elements, bytes, flops, microseconds, bound.
FLOORS = [
    # 32x3x224x224 all read; 32x64x112x112; 64x3x7x7 + 64
    ("resnet50.conv1", "bfloat16", 61_032_960, 7_552_892_928, 14.194, "memory"),
    ("resnet50.conv1", "float32", 122_065_920, 7_552_892_928, 125.882, "math"),
    # a 1x1 kernel with stride 2 reads 14x14 of 28x28
    ("resnet50.l3.down", "bfloat16", 20_318_208, 6_576_668_672, 8.325, "math"),
    # depthwise: float32's rate in every dtype, 8.67 us
    ("mobilenetv2.dw3", "bfloat16", 115_608_384, 520_224_768, 26.886, "memory"),
    # 8x64x360x480, a quarter as many values, and 8 bytes of index for each of those
    ("segnet.pool1.idx", "bfloat16", 398_131_200, 0, 92.589, "memory"),
    ("unet.up2x2", "float32", 102_761_472, 17_179_869_184, 286.331, "math"),
    # 32x128x56x56, 32x128x28x28 and 128x128x3x3, whichever of them is the result
    ("resnet50.l2.3x3s2/weight_grad", "bfloat16", 32_407_552, 7_398_752_256, 9.366, "math"),
    ("resnet50.l2.3x3s2/input_grad", "float32", 64_815_104, 7_398_752_256, 123.313, "math"),
    # all of 32x512x28x28 is written, three quarters of it zeros
    ("resnet50.l3.down/input_grad", "bfloat16", 39_583_744, 6_576_668_672, 9.206, "memory"),
    # 32x512x7x7, and 512 sums
    ("resnet50.l4.3x3/bias_grad", "float32", 3_213_312, 0, 0.747, "memory"),
    ("segnet.pool1.idx/grad", "bfloat16", 398_131_200, 0, 92.589, "memory"),
    ("segnet.pool1.idx/unpool", "bfloat16", 398_131_200, 0, 92.589, "memory"),
    # 32x64x56x56 and twice 32x256x56x56, 256x64 and 256
    ("resnet50.l1.expand/fused", "bfloat16", 115_638_784, 3_288_334_336, 26.893, "memory"),
    # 64x64x64, 16x60x60x60, 16x5x5x5 and 16, of 8 bytes; 8 operations for each product
    ("sparse.volume", "complex64", 29_761_280, 3_456_000_000, 57.6, "math"),
]


@pytest.mark.parametrize(("name", "dtype", "nbytes", "flops", "micro", "bound"), FLOORS)
def test_floors_are_those_computed_by_hand(
    name: str, dtype: str, nbytes: int, flops: int, micro: float, bound: str
) -> None:
    floor = floors.of(EVERYTHING[name], dtype, 4.3e12)
    assert (floor.nbytes, floor.flops, floor.bound) == (nbytes, flops, bound)
    assert isclose(floor.seconds * 1e6, micro, abs_tol=5e-4)


def test_tf32_has_a_floor_of_its_own() -> None:
    layer = LAYERS["unet.up2x2"]  # 17.18 GFLOP
    for precision, micro in (("tf32", 43.493), ("3xtf32", 130.480)):
        floor = floors.of(layer, "float32", 4.3e12, precision)
        assert (floor.bound, floor.flops) == ("math", 17_179_869_184)
        assert isclose(floor.seconds * 1e6, micro, abs_tol=5e-4)
    assert floors.label("float32", "tf32") == "tf32"
    assert floors.label("bfloat16", "ieee") == "bfloat16"


def test_every_dtype_of_the_layers_has_a_floor() -> None:
    assert {short for layer in EVERYTHING.values() for short in layer.dtypes} == set(floors.DTYPES)
    for layer in EVERYTHING.values():
        for short in layer.dtypes:
            assert floors.of(layer, floors.DTYPES[short], 1e12).seconds > 0


# ---------------------------------------------------------------- exact results at some outputs


def take(array: Any, index: tuple[Any, ...]) -> Any:
    return array[index].astype(np.int64 if array.dtype.kind in "iu" else np.float64)


def take_complex(array: Any, index: tuple[Any, ...]) -> Any:
    return array[index].astype(np.complex128)


def operands(layer: Layer) -> list[Any]:
    shapes = [layer.x] if layer.pools else [layer.x, layer.w_shape, (layer.k_out,)]
    return [integers(shape, seed) for seed, shape in enumerate(shapes)]


def integers(shape: tuple[int, ...], seed: int) -> Any:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def small(layer: Layer) -> Layer:
    """Return a smaller problem, also in its channels, with more than one image and extents that are not round."""
    layer = layers.scaled(layer, 1e6, 1e5)
    channels = layer.x[1] if layer.group == layer.x[1] else min(layer.x[1], 6 * layer.group)
    k_out = layer.k_out and (channels if layer.group == layer.x[1] else max(2 * layer.group, 1))
    return replace(layer, x=(2, channels, *(min(extent, 70) + 1 for extent in layer.x[2:])), k_out=k_out)


@pytest.mark.parametrize("layer", [layer for layer in LAYERS.values() if not layer.pools], ids=lambda x: x.id)
def test_sampled_sums_are_those_of_the_numpy_backend(layer: Layer) -> None:
    layer = small(layer)
    x, w, b = operands(layer)
    y = (gpuconv.conv if layer.op == "Conv" else gpuconv.conv_transpose)(x, w, b, **layer.attributes())
    at = samples.positions(layer, 40)
    found = samples.sums(layer, take, x, w, b, at)
    np.testing.assert_array_equal(found.values, y[at])
    assert (found.magnitudes >= abs(found.values)).all()


@pytest.mark.parametrize("layer", [layer for layer in LAYERS.values() if layer.op == "MaxPool"], ids=lambda x: x.id)
def test_sampled_maxima_are_those_of_the_numpy_backend(layer: Layer) -> None:
    layer = small(layer)
    (x,) = operands(layer)  # few values: many ties
    y, indices = gpuconv.max_pool(x, return_indices=True, **layer.attributes())
    at = samples.positions(layer, 60)
    values, places = samples.maxima(layer, take, x, at)
    np.testing.assert_array_equal(values, y[at])
    np.testing.assert_array_equal(places, indices[at])


@pytest.mark.parametrize("layer", [one for one in LAYERS.values() if one.op == "AveragePool"], ids=lambda x: x.id)
def test_sampled_averages_are_those_of_the_numpy_backend(layer: Layer) -> None:
    layer = small(layer)
    (x,) = operands(layer)
    y = gpuconv.average_pool(x, **layer.attributes())
    at = samples.positions(layer, 60)
    found = samples.averages(layer, take, x, at)
    np.testing.assert_array_equal(found.values.astype(np.float32), y[at])
    assert (found.magnitudes >= abs(found.values)).all()


def arrays_of(layer: Layer) -> dict[str, Any]:
    """Return the arrays of a gradient's call; Indices are those of an x with few values."""
    shapes = calls.of(layer).inputs
    arrays = {name: integers(shape, seed) for seed, (name, shape) in enumerate(shapes.items())}
    if "indices" in arrays:
        arrays["indices"] = gpuconv.max_pool(integers(layer.x, 5), return_indices=True, **layer.attributes())[1]
    return arrays


@pytest.mark.parametrize("layer", [layer for layer in DERIVED if layer.call not in ("", "fused")], ids=lambda x: x.id)
def test_sampled_gradients_are_those_of_the_numpy_backend(layer: Layer) -> None:
    layer = small(layer)
    if layer.call == "unpool":  # whose places Indices number, whole windows of them
        layer = replace(layer, x=(*layer.x[:2], *(extent // 2 * 2 for extent in layer.x[2:])))
    arrays = arrays_of(layer)
    result = getattr(gpuconv, layer.operator)(*arrays.values(), **calls.of(layer).keywords)
    at = samples.positions(layer, 200)
    found = gradient_samples.sums(layer, take, arrays, at)
    if layer.op == "AveragePool":  # shares are rounded
        assert (abs(found.values - result[at]) <= found.bound("float32")).all()
    else:
        np.testing.assert_array_equal(found.values, result[at])
    assert (found.magnitudes >= abs(found.values)).all()
    assert np.count_nonzero(found.values) > 2


@pytest.mark.parametrize("layer", [layer for layer in DERIVED if not layer.call], ids=lambda x: x.id)
def test_sampled_sums_of_complex_numbers_are_those_of_the_numpy_backend(layer: Layer) -> None:
    layer = small(layer)
    x, w, b = ((array + 1j * array[..., ::-1]).astype(np.complex64) for array in operands(layer))
    y = gpuconv.conv(x, w, b, **layer.attributes())
    at = samples.positions(layer, 40)
    found = samples.sums(layer, take_complex, x, w, b, at)
    np.testing.assert_array_equal(found.values, y[at])
    assert (found.bound("complex64") > 0).all()


@pytest.mark.parametrize("name", ["sd15.vae.down", "whisper.conv2", "wavenet.d512", "unet.up2x2", "pix2pixhd.up"])
def test_the_adjoint_s_adjoint_is_the_layer(name: str) -> None:
    layer = LAYERS[name]
    turned = gradient_samples.adjoint(layer)
    assert (turned.x, turned.y_shape, turned.w_shape) == (layer.y_shape, layer.x, layer.w_shape)
    back = gradient_samples.adjoint(turned)
    assert (back.op, back.x, back.y_shape, back.k_out) == (layer.op, layer.x, layer.y_shape, layer.k_out)


def test_samples_hold_the_corners_and_stay_inside() -> None:
    layer = LAYERS["resnet50.conv1"]
    at = samples.positions(layer, 500)
    assert [index[0] for index in at] == [0, 0, 0, 0]
    assert [index[1] for index in at] == [31, 63, 111, 111]
    of_weights = samples.positions(EVERYTHING["resnet50.conv1/weight_grad"], 1)
    assert [index[1] for index in of_weights] == [63, 2, 6, 6]
    assert all(index.min() >= 0 and index.max() < size for index, size in zip(at, layer.y_shape, strict=True))


def test_the_bound_of_a_sum() -> None:
    sums = samples.Sums(np.array([8.0, -2.0]), np.array([16.0, 2.0]), terms=7)
    np.testing.assert_allclose(sums.bound("float32"), 8 * 2.0**-24 * np.array([16.0, 2.0]), rtol=1e-12)
    expected = 8 * 2.0**-23 * np.array([16.0, 2.0]) + 2.0**-11 * np.array([8.0, 2.0]) + 2.0**-25
    np.testing.assert_allclose(sums.bound("float16"), expected, rtol=1e-12)
    coarse = (8 * 2.0**-23 + 2 * 2.0**-11) * np.array([16.0, 2.0])
    np.testing.assert_allclose(sums.bound("float32", "tf32"), coarse, rtol=1e-12)
    parts = 2**0.5 * (15 * 2.0**-24 * np.array([16.0, 2.0]) + 2.0**-150)
    np.testing.assert_allclose(sums.bound("complex64"), parts, rtol=1e-12)
    close = (8 * 2.0**-23 + 2 * 2.0**-21) * np.array([16.0, 2.0])
    np.testing.assert_allclose(sums.bound("float32", "3xtf32"), close, rtol=1e-12)


# ---------------------------------------------------------------- rotation


def test_sets_are_larger_than_the_cache_three_times() -> None:
    cache = 60 * 2**20
    for nbytes in (10_000, 10**6, 7 * 10**7, 10**8, 10**9):
        count = gpu_timing.sets(nbytes, cache)
        assert count == 512 or count * nbytes >= 3 * cache > (count - 1) * nbytes
    assert gpu_timing.sets(10**9, cache) == 1
    assert gpu_timing.sets(1, cache) == 512


@pytest.mark.parametrize("sets", [1, 3, 40, 512])
@pytest.mark.parametrize("seconds", [1e-6, 2e-5, 1e-3, 0.2])
def test_a_replay_goes_round_all_sets_and_takes_neither_long_nor_no_time(sets: int, seconds: float) -> None:
    calls = gpu_timing.calls(sets, seconds)
    assert calls >= 1
    if sets * seconds <= 60e-3:
        assert calls % sets == 0
        assert calls * seconds * (1 + 1e-9) >= 2e-3
    else:
        assert calls * seconds <= max(60e-3, seconds)


def test_never_less_than_five_rounds() -> None:
    assert [gpu_timing.rounds(seconds) for seconds in (1e-3, 0.25, 10.0)] == [7, 6, 5]


# ---------------------------------------------------------------- means


def row(name: str, kind: str, dtype: str = "float32", ratio: float | None = 1.0, **more: Any) -> dict[str, Any]:
    timed = {} if ratio is None else {"ratio": ratio, "peer_median": ratio * 2e-5}
    fixed = {"layer": {"id": name}, "class": kind, "dtype": dtype, "layout": "NCHW", "floor_seconds": 1e-5}
    fixed |= {"precision": "ieee", "wrong": ""}
    return {**fixed, "our_median": 2e-5, **timed, **more}


def test_means_are_geometric_and_the_worst_layer_is_named() -> None:
    rows = [row("a", "dense Conv", ratio=4.0), row("b", "dense Conv", ratio=0.25), row("c", "MaxPool values", ratio=2)]
    dense, pool = gpu_summary.classes(rows)
    assert (dense["class"], dense["layers"], dense["slowest"], dense["min"]) == ("dense Conv", 2, "b", 0.25)
    assert isclose(dense["mean"], 1.0)
    assert (dense["fastest"], dense["max"]) == ("a", 4.0)
    assert gpu_summary.table([dense])[1].split()[-6:] == ["4.00", "-", "50", "50", "b,", "a"]  # percent of the floor
    assert isclose(dense["our_floors"], 2.0)
    assert isclose(dense["peer_floors"], 2.0)  # of 8 and 0.5
    assert isclose(pool["mean"], 2.0)
    (summary,) = gpu_summary.classes([row("a", "dense Conv", ratio=2, packed_median=1e-5)])
    assert isclose(summary["packed_mean"], 4.0)


def test_aims_and_what_else_pytorch_does_are_in_the_table() -> None:
    rows = [
        row(name, "weight gradient", ratio=ratio, deterministic_median=3e-5) for name, ratio in (("a", 2), ("b", 1))
    ]
    (dense,) = gpu_summary.classes(rows)
    assert dense["others"] == {"deterministic": pytest.approx(1.5), "fused": None}
    assert gpu_summary.table([dense])[1].endswith("b, a  deterministic 1.50  aim 1.0: met")
    (pool,) = gpu_summary.classes([row("a", "MaxPool gradient", ratio=1.99)])
    assert gpu_summary.table([pool])[1].endswith("a, a  aim 2.0: NOT MET")
    assert "torch, deterministic: 30.00 us" in gpu_summary.line(rows[0])
    refused = row("a", "weight gradient", deterministic_error="RuntimeError: no algorithm")
    assert gpu_summary.line(refused).endswith("torch, deterministic: RuntimeError: no algorithm")


def test_a_wrong_result_counts_as_none_at_all_and_a_missing_peer_not_at_all() -> None:
    wrong = row("a", "dense Conv", ratio=4.0, wrong="y differs")
    (summary,) = gpu_summary.classes([wrong, row("b", "dense Conv")])
    assert (summary["mean"], summary["min"], summary["wrong"], summary["slowest"]) == (0.0, 0.0, 1, "a")
    alone = [row("a", "MaxPool values", "int8", ratio=None, peer_error="not implemented"), row("b", "MaxPool values")]
    int8, float32 = gpu_summary.classes(alone)
    assert (int8["dtype"], int8["mean"], int8["compared"], int8["peer_floors"]) == ("int8", None, 0, None)
    assert isclose(int8["our_floors"], 2.0)
    assert float32["compared"] == 1
    assert gpu_summary.ratio_of(row("a", "dense Conv", peer_wrong="another shape")) is None


def test_lines_show_what_there_is() -> None:
    more = {"our_way": "eager (RuntimeError: no)", "our_deviation": 2.5e-7, "packed_median": 1.5e-5}
    text = gpu_summary.line(row("a", "dense Conv", ratio=0.5, our_host_seconds=3e-6, **more))
    assert text.split()[8:13] == ["1.00", "15.00", "3.00", "-", "2.5e-07"]
    tf32 = gpu_summary.line(row("a", "dense Conv", precision="tf32"))
    assert tf32.split()[:2] == ["a", "tf32"]
    assert text.split()[:8] == ["a", "float32", "NCHW", "20.00", "10.00", "0.50", "10.00", "2.00"]
    assert "not by a graph: eager (RuntimeError: no)" in text
    broken = {**row("b", "dense Conv", ratio=None, wrong="it failed"), "our_median": None}
    del broken["our_median"]
    assert gpu_summary.line(broken).endswith("WRONG: it failed")
    table = gpu_summary.table(gpu_summary.classes([broken, row("c", "MaxPool values", ratio=None)]))
    assert table[1].endswith("1 WRONG")
    assert table[2].split()[5:8] == ["-", "-", "-"]
