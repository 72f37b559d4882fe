"""tune() measures every candidate, and later calls use the fastest; with idle kernels and in the emulator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv import OutOfDeviceMemory, _trial, tune
from gpuconv.cuda.call import device, tuned
from gpuconv.cuda.conv import families as conv_families
from gpuconv.cuda.conv.direct import few as few_plan
from gpuconv.cuda.conv.gemm import ffma
from gpuconv.cuda.plan.limits import Limits
from gpuconv.cuda.plan.offers import Candidate, Offer
from gpuconv.rules import whole_numbers
from tests.emulator import emulated_cuda
from tests.gpu.on_device import cupy, moved
from tests.harness.idle_kernels import Sent
from tests.oracle import oracle
from tests.oracle.operands import filled

QUICK = "conv_float32_3d_16x128x16"  # in the measurements here; the model chooses another one


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep choices out of the user's cache, and out of other tests."""
    monkeypatch.setenv("GPUCONV_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def sent(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> Sent:
    sent.times = {QUICK: 0.25}
    monkeypatch.setattr(_trial, "_difference", lambda *_: "")  # kernels that do nothing leave arbitrary results
    return sent


def arrays(sent: Sent, rows: int = 9) -> tuple[Any, Any]:
    return sent.cupy.empty((8, 16, rows, 9), np.float32), sent.cupy.empty((20, 16, 3, 3), np.float32)


def kernel(sent: Sent, x: Any, w: Any, **attributes: Any) -> str:
    """Return the kernel of a call."""
    gpuconv.conv(x, w, **attributes)
    return sent.launches[-1].name


def test_the_quickest_kernel_is_taken_from_then_on(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = arrays(sent)
    modelled = kernel(sent, x, w)
    assert modelled != QUICK
    times = gpuconv.tune("conv", x, w)
    assert len(times) > 2
    assert (times[QUICK], times[modelled]) == pytest.approx((1.25e-3, 2e-3))  # with a millisecond for the packing
    assert list(times.values()) == sorted(times.values())
    assert next(iter(times)) == kernel(sent, x, w) == QUICK
    monkeypatch.setattr(tuned, "_read", {})  # another process
    device.prepared.clear()
    assert kernel(sent, x, w) == QUICK
    (prepared,) = device.prepared.values()
    assert any(reason.endswith("chosen, as measured on Emulated device") for reason in prepared.plan.reasons)


def test_other_calls_are_chosen_by_the_model_still(sent: Sent) -> None:
    x, w = arrays(sent)
    gpuconv.tune("conv", x, w)
    assert kernel(sent, *arrays(sent, rows=10)) != QUICK
    assert kernel(sent, x, w, pads=[1, 1, 1, 1]) != QUICK


def test_a_measured_order_holds_for_every_batch(sent: Sent) -> None:
    """All idle kernels take the same time except one of another summation order, which then is used."""
    x, w = arrays(sent)
    times = gpuconv.tune("conv", x, w, invariant="batch")
    best = next(iter(times))
    assert list(times.values()) == sorted(times.values())
    for images in (1, 3, 8):
        gpuconv.conv(x[:images], w, invariant="batch")
    plans = [prepared.plan for prepared in device.prepared.values()]
    assert {plan.kernel for plan in plans} == {best}
    assert all(
        plan.reasons[0].startswith("one order of sums for every batch, as measured on Emulated") for plan in plans
    )
    assert kernel(sent, x, w) != QUICK  # calls without tune are not affected


def test_a_device_of_another_name_is_modelled_still(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = arrays(sent)
    gpuconv.tune("conv", x, w)
    assert kernel(sent, x, w) == QUICK
    monkeypatch.setattr(sent.cupy.cuda.runtime, "getDeviceProperties", lambda _: {"name": b"Another device"})
    device._limits.clear()
    device.prepared.clear()
    assert kernel(sent, x, w) != QUICK


def test_a_kernel_whose_workspace_does_not_fit_takes_for_ever(sent: Sent) -> None:
    x, w = arrays(sent)
    gpuconv.conv(x, w)
    with sent.room(2**17):  # as much as fills the L2 cache
        times = gpuconv.tune("conv", x, w)
    assert set(times.values()) == {float("inf")}


def test_a_choice_that_cannot_be_kept_is_warned_of(sent: Sent, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GPUCONV_CACHE_DIR", str(tmp_path / "file"))
    x, w = arrays(sent)
    with pytest.warns(RuntimeWarning, match="^tune: the choice is not kept for later processes: "):
        best = next(iter(gpuconv.tune("conv", x, w)))
    assert kernel(sent, x, w) == best


# ---------------------------------------------------------------- gradients


def chosen(name: str, *operands: Any, **attributes: Any) -> str:
    """Return the kernel of a call of another operator."""
    device.prepared.clear()
    getattr(gpuconv, name)(*operands, **attributes)
    (prepared,) = device.prepared.values()
    return str(prepared.plan.kernel)


def of_gradients(sent: Sent, dtype: Any = np.float32) -> tuple[Any, Any, Any]:
    return tuple(sent.cupy.empty(shape, dtype) for shape in ((8, 16, 9, 9), (20, 16, 3, 3), (8, 20, 7, 7)))


@pytest.mark.parametrize("dtype", [np.float32, np.complex64], ids=["float32", "complex64"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_the_quickest_kernel_of_a_gradient_is_taken(
    sent: Sent, monkeypatch: pytest.MonkeyPatch, dtype: Any, layout: str
) -> None:
    x, w, dy = of_gradients(sent, dtype)
    if layout == "NHWC":
        x, dy = (sent.cupy.empty((a.shape[0], *a.shape[2:], a.shape[1]), dtype) for a in (x, dy))
    calls = {"conv_weight_grad": (x, dy, w.shape), "conv_input_grad": (dy, w, x.shape)}
    calls |= {"conv_transpose_weight_grad": (dy, x, w.shape), "conv_transpose_input_grad": (x, w, dy.shape)}
    for name, operands in calls.items():
        modelled = chosen(name, *operands, layout=layout)
        sent.times = {}
        slow = gpuconv.tune(name, *operands, layout=layout)
        quick = next(kernel for kernel in slow if kernel != modelled)
        sent.times = {quick: 0.25}
        times = gpuconv.tune(name, *operands, layout=layout)
        assert times.keys() == slow.keys() > {quick}
        assert next(iter(times)) == quick
        assert times[quick] < min(slow[quick], times[modelled])
        monkeypatch.setattr(tuned, "_read", {})  # another process
        assert chosen(name, *operands, layout=layout) == quick


def test_the_gradient_of_an_input_and_the_operator_that_it_is_share_a_choice(sent: Sent) -> None:
    x, w, dy = of_gradients(sent)
    modelled = chosen("conv_transpose", dy, w)
    other = next(kernel for kernel in gpuconv.tune("conv_transpose", dy, w) if kernel != modelled)
    sent.times = {other: 0.25}
    gpuconv.tune("conv_input_grad", dy, w, x.shape)
    assert chosen("conv_transpose", dy, w) == other
    sent.times = {modelled: 0.125}
    gpuconv.tune("conv_transpose", dy, w)
    assert chosen("conv_input_grad", dy, w, x.shape) == modelled


def test_the_time_of_an_only_kernel_is_told(sent: Sent, tmp_path: Path) -> None:
    _, _, dy = of_gradients(sent)
    indices = sent.cupy.empty(dy.shape, np.int64)
    windows: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    assert gpuconv.tune("conv_bias_grad", dy) == {"channel_sums_float32_3d": pytest.approx(2e-3)}  # and for sums
    assert gpuconv.tune("conv_transpose_bias_grad", dy, layout="NHWC") == {"channel_sums_float32_3d_last": 2e-3}
    unpooled = gpuconv.tune("max_unpool", dy, indices, **windows, check_indices=True)
    assert unpooled == {"max_unpool_32bit_3d": pytest.approx(3e-3)}  # and for clearing and for claims
    assert not (tmp_path / "cache" / "choices.json").exists()  # nothing was chosen
    pooled = gpuconv.tune("max_pool_grad", dy, indices, (8, 20, 14, 14), **windows)
    assert pooled.keys() == {f"max_pool_grad_float32_3d{form}" for form in ("", "_walks_2x2", "_scatter")}


def test_arguments_have_their_names_too(sent: Sent) -> None:
    x, w, dy = of_gradients(sent)
    b = sent.cupy.empty((20,), np.float32)
    in_order = gpuconv.tune("conv_weight_grad", x, dy, w.shape, pads=[0] * 4)
    assert gpuconv.tune("conv_weight_grad", w_shape=iter(w.shape), dy=dy, x=x, pads=iter([0] * 4)) == in_order
    assert gpuconv.tune("conv", x=x, b=b, w=w) == gpuconv.tune("conv", x, w, b)
    assert gpuconv.tune("conv", x, w, None) == gpuconv.tune("conv", x, w)
    assert gpuconv.tune("max_pool", x, None, None, kernel_shape=[2, 2]).keys() > {"max_pool_float32_3d"}


def test_the_precision_of_the_context_is_tuned(sent: Sent) -> None:
    x, w, dy = of_gradients(sent)
    with gpuconv.precision("tf32"):
        in_context = gpuconv.tune("conv_input_grad", dy, w, x.shape)
    assert in_context == gpuconv.tune("conv_input_grad", dy, w, x.shape, precision="tf32")
    exact = gpuconv.tune("conv_input_grad", dy, w, x.shape)
    assert in_context.keys() > {name for name in exact if "_split" not in name}  # splits of FFMA are only for IEEE


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x, w: gpuconv.tune("convolve", x, w), gpuconv.ArgumentError, "^tune: operator must be one of conv, "),
        (lambda x, w: gpuconv.tune("conv", x, w, stride=[1, 1]), gpuconv.ArgumentTypeError,
         "^tune: stride of conv is called strides here, as in ONNX$"),
        (lambda x, w: gpuconv.tune("conv", np.ones((1, 1, 3)), np.ones((1, 1, 3))), gpuconv.ArgumentTypeError,
         "^tune: kernels are measured on a CUDA device; pass CuPy arrays"),
        (lambda x, w: gpuconv.tune("max_pool", x), gpuconv.ArgumentTypeError, "^max_pool: kernel_shape"),
        (lambda x, w: gpuconv.tune("conv", x, w, pads=[1]), gpuconv.ArgumentError, "^conv: pads"),
        (lambda x, w: gpuconv.tune("conv", x, w, precision="half"), gpuconv.ArgumentError, "^conv: precision"),
        (lambda x, w: gpuconv.tune(["conv"], x, w), gpuconv.ArgumentError, "^tune: operator must be one of conv, "),
        (lambda x, w: gpuconv.tune("conv", x), gpuconv.ArgumentTypeError, "^conv: w is required, a NumPy or CuPy"),
        (lambda x, w: gpuconv.tune("conv", x, w, w, w), gpuconv.ArgumentTypeError,
         "^tune: conv takes x, w, b, not 4 arguments"),
        (lambda x, w: gpuconv.tune("conv", x, w, x=x), gpuconv.ArgumentTypeError, "^tune: conv is given x twice"),
        (lambda x, w: gpuconv.tune("conv_weight_grad", x, x), gpuconv.ArgumentTypeError,
         "^conv_weight_grad: w_shape is required"),
        (lambda x, w: gpuconv.tune("conv_weight_grad", x, x, w.shape), gpuconv.ArgumentError,
         "^conv_weight_grad: dy must have the shape of the result"),
        (lambda x, w: gpuconv.tune("conv_input_grad", np.ones((1, 1, 3)), np.ones((1, 1, 1)), (1, 1, 3)),
         gpuconv.ArgumentTypeError, "^tune: kernels are measured on a CUDA device"),
        (lambda x, w: gpuconv.tune("conv_bias_grad", x, precision="tf32"), gpuconv.ArgumentTypeError,
         "^tune: conv_bias_grad has no attribute 'precision'; it has none"),
        (lambda x, w: gpuconv.tune("conv", x, w, return_indices=True), gpuconv.ArgumentTypeError,
         "^tune: conv has no attribute 'return_indices'"),
        (lambda x, w: gpuconv.tune("max_unpool", x, x, kernel_shape=[1, 1]), gpuconv.ArgumentTypeError,
         "^max_unpool: indices must have dtype int64, not float32"),
    ],
)  # fmt: skip
def test_errors_name_the_rule(call: Any, error: Any, message: str, sent: Sent) -> None:
    with pytest.raises(error, match=message) as caught:
        call(*arrays(sent))
    assert "\n" not in str(caught.value)


def named(limits: Limits) -> Limits:
    """Return the limits of a device with a name, under which choices are stored."""
    return replace(limits, name="emulated", measured=partial(tuned.find, "emulated"))


@pytest.fixture
def few_families(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the number of kernels, which limits the emulator's time."""
    monkeypatch.setattr(conv_families, "FAMILIES", (ffma, few_plan))


@pytest.mark.emulator
@pytest.mark.usefixtures("few_families")
def test_results_stay_right_whatever_is_chosen() -> None:
    (x, w, b), attributes = filled("conv_transpose", (1, 5, 6, 7), (5, 4, 3, 2), {"strides": [2, 1]}, "float32")
    expected = oracle.conv_transpose(x, w, b, **attributes)
    with emulated_cuda() as emulated:
        emulated.limits = named(emulated.limits)
        times = gpuconv.tune("conv_transpose", x, w, b, **attributes)
        assert len(times) > 1
        oracle.assert_close(gpuconv.conv_transpose(x, w, b, **attributes), expected, "float32")
        assert emulated.launches[-1].variant.name == next(iter(times))
        pooled = gpuconv.tune("max_pool", x, kernel_shape=[2, 2], return_indices=True)
        assert all(name.startswith("max_pool_float32") for name in pooled)
        assert gpuconv.tune("conv", x[:0], np.ones((4, 5, 2, 2), np.float32)) == {}


@pytest.mark.emulator
@pytest.mark.usefixtures("few_families")
def test_gradients_stay_right_whatever_is_chosen() -> None:
    (x, w, _), attributes = filled("conv", (1, 5, 6, 7), (4, 5, 3, 2), {"strides": [2, 1]}, "float32")
    dy = np.arange(4 * 2 * 6, dtype=np.float32).reshape(1, 4, 2, 6)
    expected = {  # on the CPU
        "conv_weight_grad": gpuconv.conv_weight_grad(x, dy, w.shape, **attributes),
        "conv_input_grad": gpuconv.conv_input_grad(dy, w, x.shape, **attributes),
    }
    with emulated_cuda() as emulated:
        emulated.limits = named(emulated.limits)
        for name, operands in {"conv_weight_grad": (x, dy, w.shape), "conv_input_grad": (dy, w, x.shape)}.items():
            times = gpuconv.tune(name, *operands, **attributes)
            assert len(times) > 2
            emulated.launches.clear()
            result = getattr(gpuconv, name)(*operands, **attributes)
            np.testing.assert_allclose(result, expected[name], rtol=1e-5, atol=1e-4)
            assert next(iter(times)) in [launch.variant.name for launch in emulated.launches]
        assert list(gpuconv.tune("conv_bias_grad", dy)) == ["channel_sums_float32_3d"]
        assert gpuconv.tune("conv_input_grad", dy[:0], w, (0, *x.shape[1:]), **attributes) == {}


# ---------------------------------------------------------------- kernels that are wrong


def _without(roles: Mapping[str, str], role: str) -> dict[str, str]:
    return {member: other for member, other in roles.items() if other != role}


def without(role: str, family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bind an array of a family's kernels to address 0, as if it were missing."""
    real = family.offers

    def changed(candidate: Candidate) -> Any:
        plan = candidate.make()
        launches = [replace(one, roles=_without(one.roles, role)) for one in plan.launches]
        return replace(plan, launches=tuple(launches))

    def offers(*arguments: Any) -> Iterator[Offer]:
        for offer in real(*arguments):
            yield replace(offer, make=partial(changed, offer)) if isinstance(offer, Candidate) else offer

    monkeypatch.setattr(family, "offers", offers)


@pytest.mark.emulator
def test_a_kernel_that_is_wrong_is_left_out_and_not_kept(few_families: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = np.full((1, 2, 5, 6), np.nan, np.float32), np.ones((3, 2, 2, 2), np.float32)
    b = np.zeros(3, np.float32)  # which would not affect the results of this call
    with emulated_cuda() as emulated:
        emulated.limits = named(emulated.limits)
        there = moved([x, w, b])
        right = tune("conv", *there)
        few = next(name for name in right if name.startswith("conv_few"))
        without("b", few_plan, monkeypatch)
        with pytest.warns(RuntimeWarning, match=f"^tune: {few} is left out: of whole numbers it makes ") as caught:
            found = tune("conv", *there)
        assert [Path(warning.filename).name for warning in caught] == ["test_tune.py"]
        assert "of 60 elements, by up to " in str(caught[0].message)
        assert found.keys() == right.keys() - {few}
        emulated.launches.clear()
        gpuconv.conv(*there)
        assert emulated.launches[-1].variant.name == next(iter(found))


@pytest.mark.emulator
def test_arrays_that_lie_anyhow_and_wrong_indices_are_no_reason(few_families: None) -> None:
    base = np.full((2, 6, 7, 3, 2), np.nan, np.float32)
    x = base[:, ::-1, :, :, 0].transpose(0, 3, 1, 2)
    w = np.broadcast_to(np.full((1, 3, 1, 2), np.inf, np.float32), (4, 3, 3, 2))
    dy = np.full((2, 2, 3, 3), np.nan, np.float32)
    indices = np.full(dy.shape, -(2**40), np.int64)[:, ::-1]
    with emulated_cuda():
        assert len(gpuconv.tune("conv", x, w)) > 1
        found = gpuconv.tune("max_pool_grad", dy, indices, (2, 2, 6, 6), kernel_shape=[2, 2], strides=[2, 2])
        assert len(found) == 3


def test_without_memory_to_compare_it_says_so(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = arrays(sent)

    def refused(array: Any) -> Any:
        raise OutOfDeviceMemory("to_device: no room")

    monkeypatch.setattr(device, "to_device", refused)
    with pytest.warns(RuntimeWarning, match="^tune: kernels are not compared with conv_float32_.*: to_device: no room"):
        times = gpuconv.tune("conv", x, w)
    assert next(iter(times)) == QUICK


def test_one_kernel_alone_is_not_compared(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, dy = of_gradients(sent)
    gpuconv.tune("conv_bias_grad", dy)
    before = len(sent.launches)
    gpuconv.tune("conv_bias_grad", dy)
    assert len(sent.launches) == 2 * before


# ---------------------------------------------------------------- whole numbers


@pytest.mark.parametrize("terms", [1, 9, 2304, 600_000])
@pytest.mark.parametrize(("dtype", "precision"), [("float32", "ieee"), ("float32", "tf32"), ("float64", "ieee")])
def test_sums_of_whole_numbers_are_exact_however_they_are_ordered(dtype: str, precision: str, terms: int) -> None:
    most = whole_numbers.largest(dtype, precision, terms)
    x, w = (whole_numbers.random(terms, np.dtype(dtype), most, seed) for seed in (0, 1))
    assert most > 40
    assert abs(x).max() <= most
    if precision == "tf32":
        assert most <= 2**11
    exact = sum(int(a) * int(b) for a, b in zip(x, w, strict=True))
    products = x * w
    for order in (products, products[::-1], np.random.default_rng(2).permutation(products)):
        assert int(np.cumsum(order)[-1]) == exact  # summed sequentially, in the dtype itself


@pytest.mark.parametrize(
    ("dtype", "precision", "terms", "most"),
    [
        ("float32", "ieee", 1, 1448),  # the root of 2^24 / 8
        ("float32", "ieee", 100, 457),  # of 2^24 / 80
        ("complex64", "ieee", 100, 385),  # two products each: of 2^24 / (8 sqrt(200))
        ("float32", "tf32", 1, 1448),
        ("float64", "ieee", 0, 33_554_432),  # of 2^53 / 8
        ("float16", "ieee", 2304, 13),  # of 65504 / 384
        ("float16", "ieee", 10**12, 1),
    ],
)
def test_how_large_whole_numbers_are(dtype: str, precision: str, terms: int, most: int) -> None:
    assert whole_numbers.largest(dtype, precision, terms) == most


def test_whole_numbers_fit_their_dtype() -> None:
    assert whole_numbers.largest("int8", "ieee", 10) == 127
    half = whole_numbers.largest("float16", "ieee", 2304)
    assert half > 1
    assert abs(sum(whole_numbers.random(2304, np.dtype(np.int64), half, 0) ** 2)) > 65504  # of one sign, too much
    assert whole_numbers.largest("bfloat16", "ieee", 1) == 256
    unsigned = whole_numbers.random(1000, np.dtype(np.uint8), 127, 0)
    assert (unsigned.min(), unsigned.max()) == (0, 127)
    parts = whole_numbers.random(1000, np.dtype(np.complex64), 3, 0)
    assert {*parts.real, *parts.imag} == {-3, -2, -1, 0, 1, 2, 3}


@pytest.mark.gpu
def test_arrays_alike_lie_as_those_they_stand_for() -> None:
    base = gpuconv.to_device(np.zeros((3, 4, 10), np.float32))
    array = base[::-1, :, 1:9:2]
    made = whole_numbers.alike(device, array, 9, 0)
    assert (made.shape, made.strides, made.dtype) == (array.shape, array.strides, array.dtype)
    assert len(np.unique(gpuconv.to_host(made))) > 10
    values = np.arange(120, dtype=np.float32).reshape(base.shape)
    held = whole_numbers.holding(device, array, values[..., :4])
    assert held.strides == array.strides
    np.testing.assert_array_equal(gpuconv.to_host(held), values[..., :4])
    with pytest.raises(gpuconv.ArgumentError):
        whole_numbers.holding(device, cupy().broadcast_to(base[:1], base.shape), values)
