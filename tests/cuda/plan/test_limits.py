"""Limits of devices by datasheets and the CUDA programming guide; and the inputs that an operator must read."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from gpuconv import ArgumentError
from gpuconv.cuda.plan import floor, limits, model
from gpuconv.rules import geometry as geometries

# Architecture: multiprocessors and KiB of shared memory of each; TFLOP/s in float32, in float64 and on tensor cores of
# 16-bit factors (with sums in float32), of TF32 and of float64; TB/s of the memory.
SHEETS: dict[str, tuple[Any, ...]] = {
    "sm_80": (108, 164, 19.5, 9.7, 312, 156, 19.5, 2.04),
    "sm_86": (82, 100, 35.6, 0.556, 71.2, 35.6, 0.556, 0.936),
    "sm_87": (16, 164, 5.32, 0.083, 42.5, 21.3, 0.083, 0.205),
    "sm_89": (128, 100, 82.6, 1.29, 165.2, 82.6, 1.29, 1.008),
    "sm_90": (132, 228, 66.9, 33.5, 1070, 535, 66.9, 4.8),
    "sm_120": (170, 100, 104.8, 1.64, 209.5, 104.8, 1.64, 1.792),
}


@pytest.mark.parametrize("architecture", SHEETS)
def test_devices_are_those_of_the_datasheets(architecture: str) -> None:
    multiprocessors, shared, single, double, half, tf32, tensor_double, bandwidth = SHEETS[architecture]
    device = limits.representative(architecture)
    assert device.limits.multiprocessors == multiprocessors
    assert device.limits.shared_bytes_per_multiprocessor == shared * 1024
    assert device.limits.shared_bytes_per_block == (shared - 1) * 1024
    near = 0.01
    assert device.rate("float32") == pytest.approx(single * 1e12, near)
    assert device.rate("float64") == pytest.approx(double * 1e12, near)
    assert device.peak("float16") == device.peak("bfloat16") == pytest.approx(half * 1e12, near)
    assert device.peak("float32") == device.peak("complex64") == pytest.approx(single * 1e12, near)
    assert device.peak("float32", "tf32") == pytest.approx(max(tf32, single) * 1e12, near)
    assert device.peak("float32", "3xtf32") == pytest.approx(max(tf32 / 3, single) * 1e12, near)
    assert device.peak("float64") == device.peak("complex128") == pytest.approx(tensor_double * 1e12, near)
    per_clock = 2 * device.clock * multiprocessors / 1e12
    assert [lanes * per_clock for lanes in device.tensor_lanes] == pytest.approx([half, tf32, tensor_double], 0.006)
    assert device.bandwidth == bandwidth * 1e12


def test_architectures_without_a_device_have_that_of_the_next_lower_one() -> None:
    for architecture, expected in (("sm_75", "A100"), ("sm_103a", "B200"), ("sm_90", "H200"), ("sm_121", "RTX 5090")):
        assert limits.nearest(architecture).name == expected
    for architecture in ("sm_87", "sm_90a", "90"):
        assert limits.representative(architecture).name in ("Jetson AGX Orin", "H200")
    for unknown in ("sm_75", "sm_90b", "hopper", ""):
        with pytest.raises(ArgumentError, match=r"^explain: arch must be one of sm_80, sm_86, sm_87, sm_89, sm_90, "):
            limits.representative(unknown)


def test_memory_that_is_known_is_modelled_as_it_is() -> None:
    """An H100 has the multiprocessors of an H200, but 3.35 instead of 4.8 TB/s; kernels reach 85 % of it."""
    hopper = limits.representative("sm_90a").limits
    half = replace(hopper, multiprocessors=66)
    for found, bandwidth in (
        (hopper, 4.8e12),
        (half, 2.4e12),
        (replace(hopper, bandwidth=3.352e12), 3.352e12),
        (replace(half, bandwidth=3.352e12), 3.352e12),
    ):
        assert model.memory(10**9, found) == pytest.approx(1e9 / (0.85 * bandwidth))


@pytest.mark.parametrize("operator", ["conv", "conv_transpose"])
def test_the_floor_counts_inputs_that_meet_an_output(operator: str) -> None:
    """Compared with trying every input, output and tap of one axis."""
    for n, k, s, d, begin, end in product((1, 4, 7), (1, 2, 3), (1, 2, 4), (1, 3), (0, 1, 2), (0, 2)):
        attributes: dict[str, Any] = {"strides": [s], "dilations": [d], "pads": [begin, end]}
        reach = (k - 1) * d + 1
        size = (n - 1) * s + reach if operator == "conv_transpose" else n
        if (size - begin - end if operator == "conv_transpose" else n + begin + end - reach) < 1:
            continue
        geometry: Any = getattr(geometries, operator)((1, 1, n), (1, 1, k), None, **attributes)
        out = range(geometry.y_shape[2])
        if operator == "conv":
            met = {q * s + t * d - begin for q in out for t in range(k)} & set(range(n))
        else:
            met = {i for i in range(n) for t in range(k) if i * s + t * d - begin in out}
        assert floor._met(geometry, 0) == len(met)


@pytest.mark.parametrize(("outputs", "met"), [(500_000, 1_000_000), (500_001, 1_500_003)])
def test_inputs_of_a_million_outputs_and_taps_are_counted_and_of_more_taken_for_met(outputs: int, met: int) -> None:
    """Two of every three inputs are read."""
    geometry = geometries.conv((1, 1, 3 * outputs), (1, 1, 2), strides=[3])
    assert geometry.y_shape == (1, 1, outputs)
    assert floor._met(geometry, 0) == met


@pytest.mark.parametrize(("pairs", "met"), [(8, 2), (7, 4)])
def test_inputs_of_a_transposed_conv_are_counted_up_to_the_same(
    pairs: int, met: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padding crops all outputs of two of the four inputs."""
    monkeypatch.setattr(floor, "_MOST_PAIRS", pairs)
    geometry = geometries.conv_transpose((1, 1, 4), (1, 1, 2), strides=[2], pads=[2, 2])
    assert geometry.y_shape == (1, 1, 4)
    assert floor._met(geometry, 0) == met


def test_what_has_no_extent_meets_nothing() -> None:
    for x, w, pads in (((1, 2, 0), (3, 2, 1), [1, 1]), ((1, 2, 3), (3, 2, 4), [0, 0])):
        geometry = geometries.conv(x, w, None, pads=pads)
        assert floor._met(geometry, 0) == 0
    assert floor._met(geometries.conv((1, 2, 7), (3, 2, 1), None, strides=[3]), 0) == 3


def test_what_a_multiprocessor_multiplies_per_clock_is_a_power_of_two() -> None:
    """By the programming guide's table of throughput, and the datasheets' of tensor cores."""
    lanes = {"80": (64, 32), "86": (128, 2), "87": (128, 2), "89": (128, 2), "90": (128, 64), "100": (128, 64)}
    for architecture, expected in (lanes | {"120": (128, 2)}).items():
        device = limits.representative(architecture)
        assert (device.lanes, device.double_lanes) == expected
        assert [count & count - 1 for count in device.tensor_lanes] == [0, 0, 0]
        half, single, double = device.tensor_lanes
        assert half == 2 * single > double
