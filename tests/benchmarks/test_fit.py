"""Sums of tensor cores: finding a model that explains a recording, and emulating sums by models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuconv
from benchmarks.probes import bits, fit, mma, rules, wgmma
from benchmarks.probes.fit import Model, NoModel, Recording, sums_by
from benchmarks.probes.numbers import KINDS, numbers
from benchmarks.probes.rules import Fused
from benchmarks.probes.wgmma import Form
from emulated_cuda.emulator import accumulation
from tests.benchmarks.probing import Emulated
from tests.emulator import emulated_cuda

pytestmark = pytest.mark.slow

# ---------------------------------------------------------------- the fit, on recordings that a hidden model has made


def recorded(name: str, make: Callable[..., Any], tiles: int = 8, shape: tuple[int, int] = (16, 8)) -> Recording:
    """Return the recording of a device that adds by `make`."""
    kind = name.partition("_")[2]
    inputs = bits.operands(kind, tiles, *shape)
    return Recording(name, inputs, make(inputs, kind))


def hidden(model: Model) -> Callable[..., Any]:
    return lambda inputs, kind: sums_by(model, kind, inputs)


@pytest.mark.parametrize(
    ("kind", "model"),
    [
        ("f16", None),
        ("f16", Fused(4, 23)),
        ("bf16", Fused(16, 25)),
        ("bf16", Fused(2, 28, True)),
        ("tf32", Fused(8, 25)),
    ],
    ids=str,
)
def test_a_hidden_model_is_found(kind: str, model: Model) -> None:
    assert fit.fit(recorded(f"mma_{kind}", hidden(model))) == model


def reversed_order(inputs: tuple[Any, Any, Any], kind: str) -> Any:
    a, b, c = inputs
    return rules.in_order(np.ascontiguousarray(a[..., ::-1]), np.ascontiguousarray(b[..., ::-1]), c, kind)


def in_pairs(inputs: tuple[Any, Any, Any], kind: str) -> Any:
    """Add two neighbouring products in float32 before the sum, unlike every model."""
    a, b, c = inputs
    rows, columns = (numbers(x, kind).astype(np.float32) for x in (a, b))
    products = rows[..., :, None, :] * columns[..., None, :, :]
    for pair in np.moveaxis(products[..., ::2] + products[..., 1::2], -1, 0):
        c = c + pair
    return c


@pytest.mark.parametrize("make", [reversed_order, in_pairs, hidden(Fused(16, 20)), hidden(Fused(16, 31))])
def test_what_no_model_makes_is_refused_with_the_first_sum_that_differs(make: Callable[..., Any]) -> None:
    with pytest.raises(
        NoModel, match=r"mma_f16: no model explains it; .* differ, first at \[\d+, \d+, \d+\]: expected"
    ):
        fit.fit(recorded("mma_f16", make))


def test_a_model_of_one_half_must_explain_the_other() -> None:
    recording = recorded("mma_bf16", hidden(Fused(16, 25)))
    recording.sums[6, 3, 5] = np.nextafter(recording.sums[6, 3, 5], np.float32(np.inf))
    with pytest.raises(NoModel, match=r"explains only one half; the other: 1 of 512 differ, first at \[2, 3, 5\]"):
        fit.fit(recording)
    with pytest.raises(NoModel, match="one tile cannot be halved"):
        fit.fit(recording.part(slice(1)))


def test_the_command_fits_a_file_as_the_probes_write_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, found = tmp_path / "bits.npz", recorded("mma_tf32", hidden(Fused(8, 25)))
    bits.Recorder(path).add(found.name, found.sums, found.inputs)
    assert fit.main([str(path)]) == 0
    sums = accumulation.fused(32, 25)  # 8 numbers of 4 bytes
    assert capsys.readouterr().out == f"mma_tf32: {Fused(8, 25)}; EMULATED_CUDA_SUMS={sums}\n"
    bits.Recorder(path).add("mma_f16", *(lambda other: (other.sums, other.inputs))(recorded("mma_f16", in_pairs)))
    assert fit.main([str(path)]) == 1
    assert "mma_f16: no model explains it" in capsys.readouterr().out
    bits.Recorder(path).add(found.name, found.sums, found.inputs[:2])
    assert fit.main([str(path)]) == 2
    assert "mma_tf32 was recorded with other factors" in capsys.readouterr().err
    assert fit.main([str(tmp_path / "none.npz")]) == 2


# ---------------------------------------------------------------- the emulator adds as the models say


class Adding(Emulated):
    """The emulator, whose tensor cores add by a model."""

    def __init__(self, sums: int) -> None:
        super().__init__()
        self.options = {"sums": sums}


def made(sums: int, kind: str, form: Form | None = None, tiles: int = 4) -> tuple[Any, Any]:
    """Return operands of tiles, and the emulator's results for them."""
    inputs = bits.operands(kind, tiles, *((64, form.columns) if form else (16, 8)))
    device = Adding(sums)
    return inputs, wgmma.multiplied(device, form, *inputs) if form else mma.multiplied(device, kind, *inputs)


@pytest.mark.emulator
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("in order", lambda _: None),
        ("Volta", lambda kind: Fused(2 if kind == "tf32" else 4, 23)),
        ("Ampere", partial(rules.published, architecture="sm_80")),
        ("Hopper", partial(rules.published, architecture="sm_90a")),
    ],
)
def test_the_emulator_adds_by_a_named_model(kind: str, name: str, model: Callable[[str], Model]) -> None:
    for form in (None, Form(kind, 256)):
        inputs, got = made(accumulation.MODELS[name], kind, form, 1 if form else 4)
        np.testing.assert_array_equal(got.view(np.uint32), sums_by(model(kind), kind, inputs).view(np.uint32))


@pytest.mark.emulator
def test_a_model_that_was_found_can_be_given_to_the_emulator() -> None:
    models: dict[str, Model] = {"f16": Fused(8, 24), "bf16": None, "tf32": Fused(4, 26, True)}
    sums = accumulation.of_types(*(fit.number(models[kind], kind) for kind in KINDS))
    for kind in KINDS:
        inputs, got = made(sums, kind)
        assert fit.fit(Recording(f"mma_{kind}", inputs, got)) == models[kind]


@pytest.mark.parametrize(("group_bytes", "fraction"), [(0, 25), (64, 25), (16, 0), (16, 40)])
def test_numbers_of_models_have_limits(group_bytes: int, fraction: int) -> None:
    with pytest.raises(ValueError, match="groups have 1 to 32 bytes and 1 to 39 bits"):
        accumulation.fused(group_bytes, fraction)
    with pytest.raises(ValueError, match="one of all types"):
        accumulation.of_types(0, -1, 0)


@pytest.mark.emulator
def test_a_scrambled_order_is_another_one_for_each_instruction_and_the_same_for_all_its_sums() -> None:
    inputs = bits.operands("bf16", 40, 5, 3)
    row, column, summand = inputs[0][:, 1:2], inputs[1][:, :1], inputs[2][:, 1:2]  # of wide exponents, c as well
    results = []
    for form in (None, Form("bf16", 256)):
        rows, columns = (64, 256) if form else (16, 8)
        a, b = np.repeat(row, rows, 1), np.repeat(column, columns, 1)
        c = np.broadcast_to(summand[:, :, :1], (40, rows, columns)).astype(np.float32)
        device = Adding(accumulation.SCRAMBLED)
        got = wgmma.multiplied(device, form, a, b, c) if form else mma.multiplied(device, "bf16", a, b, c)
        assert (got == got[:, :1, :1]).all()
        results.append(got[:, 0, 0])
    plain = rules.in_order(row, column, summand[:, :, :1], "bf16")[:, 0, 0]
    for one, other in pairwise([plain, *results, plain]):
        assert (one.view(np.uint32) != other.view(np.uint32)).any()


@pytest.mark.emulator
def test_the_setting_is_there_for_operators_too() -> None:
    random = np.random.default_rng(1)
    x, w = random.normal(size=(1, 40, 9, 9)).astype(np.float16), random.normal(size=(40, 40, 3, 3)).astype(np.float16)
    exact = gpuconv.conv(x.astype(np.float64), w.astype(np.float64))
    found = {}
    for name, sums in accumulation.MODELS.items():
        with emulated_cuda("sm_80", sums=sums):
            found[name] = gpuconv.conv(x, w)
        np.testing.assert_allclose(found[name].astype(np.float64), exact, rtol=2**-9, atol=2**-7)
