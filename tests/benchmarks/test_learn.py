"""What is learnt from the rows of a sweep: rates recovered from simulated times, regrets, kernels that never win."""

from __future__ import annotations

import json
import math
import runpy
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import learn, static_plan, sweep
from benchmarks.progress import Rows
from gpuconv.cuda.plan import measured_rates
from gpuconv.cuda.plan.limits import Rates, rates_of, representative

pytestmark = pytest.mark.slow

DEVICE = representative("sm_90a")
TOLD = (  # few cases, which together depend on every rate
    "resnet50.l3.3x3 float64",
    "resnet50.b1.l4.3x3 bfloat16",
    "resnet50.l4.reduce bfloat16",
    "resnet50.l1.expand/weight_grad bfloat16",
    "resnet50.l3.down bfloat16 NHWC",
    "resnet50.l1.expand bfloat16 NHWC",
    "resnet50.b1.l1.3x3 bfloat16 NHWC",
    "i3d.avg bfloat16 NHWC",
)
TRUE = Rates(
    launch=1.3e-6, beginning=0.9e-6, adding=2.2e-6, cached=22.0, latency=0.8e-6, tensor=0.5, beside_wgmma=0.35,
    alone=1.7, wgmma=0.6, bandwidth=0.92,
)  # fmt: skip


def rows_of(path: Path, times: dict[str, dict[str, float]], picked: dict[str, str]) -> Path:
    """Return a file of rows in the format of a sweep."""
    rows = Rows(path, sweep.STEP)
    for case, kernels in times.items():
        about = {"device": "made up", "architecture": "sm_90a", "multiprocessors": 132, "picked": picked[case]}
        rows.end(f"{case} | {sweep.REFERENCE}", **about)
        for kernel, seconds in kernels.items():
            rows.end(f"{case} | {kernel}", modelled=seconds, seconds=seconds)
    return path


def test_rates_are_found_again() -> None:
    cases = [case for case in static_plan.cases() if str(case) in TOLD]
    assert len(cases) == len(TOLD)
    random = np.random.default_rng(0)
    times = [
        learn.Measured(case, kernel, 0.0, seconds * math.exp(random.normal(0, 0.01)))
        for (case, kernel), seconds in learn.modelled(cases, DEVICE, TRUE).items()
    ]
    times.append(learn.Measured(*random_kernel(times), 0.0, 1.0))  # a kernel that the model misjudges
    found = learn.fit(times, cases, DEVICE, Rates())
    assert found.before > 0.1 > 0.02 > found.after
    for name, value in asdict(found.rates).items():
        within = 3 * found.certain[name] if name in ("beginning", "adding") else 0.05  # small parts of all times
        assert value == pytest.approx(asdict(TRUE)[name], rel=within), name
        assert found.certain[name] < (0.25 if name == "beginning" else 0.15)


def random_kernel(times: list[learn.Measured]) -> tuple[str, str]:
    one = times.pop(7)
    return one.case, one.kernel


def test_a_rate_that_no_time_depends_on_stays() -> None:
    """Pools wait only for memory and its latency; their times depend on no other rate."""
    cases = [case for case in static_plan.cases("resnet.pool") if case.dtype == "float32"][:1]
    times = [learn.Measured(*key, 0.0, 1.5 * s) for key, s in learn.modelled(cases, DEVICE, Rates()).items()]
    found = learn.fit(times, cases, DEVICE, Rates())
    moved = ("bandwidth", "latency", "cached")
    assert {**asdict(found.rates), **{name: asdict(Rates())[name] for name in moved}} == asdict(Rates())
    assert {"bandwidth"} <= set(found.certain) <= set(moved)
    assert found.rates.bandwidth <= 0.85


def test_regret_is_the_time_of_the_pick_over_the_best() -> None:
    times = {"a": {"k1": 2.0, "k2": 1.0}, "b": {"k1": 3.0}, "c": {"k2": 1.0}}
    assert learn.regrets(times, {"a": "k1", "b": "k1", "c": "failed"}) == {"a": 2.0, "b": 1.0}


def test_what_never_wins_by_five_percent_is_idle() -> None:
    wins, near, only, loses = (f"conv_{name}_float32_2d_64x64" for name in ("wins", "near", "only", "loses"))
    times = {"a": {wins: 1.0, near: 2.0, loses: 3.0}, "b": {wins: 1.04, near: 1.0, loses: 1.04}, "c": {only: 5.0}}
    assert learn.idle(times, learn.family) == {"conv_loses": 1.0, "conv_near": pytest.approx(1.04)}
    tiles = {"a": {"f_float32_2d_8x8": 1.0, "f_float32_2d_16x8": 1.2}, "b": {"f_float16_2d_8x8": 1.0}}
    assert learn.idle(tiles, learn.tile) == {"f_16x8": 1.0}


@pytest.mark.parametrize(
    ("kernel", "family", "tile"),
    [
        ("conv_float32_4d_16x128x16_uniform", "conv_uniform", "conv_16x128x16_uniform"),
        ("conv_float32_3d_tf32_wgmma_64x256_pixel_rows", "conv_wgmma_pixel_rows", "conv_wgmma_64x256_pixel_rows"),
        ("conv_float32_3d_3xtf32_64x64x16_scalar", "conv_mma_scalar", "conv_mma_64x64x16_scalar"),
        ("conv_bfloat16_3d_mma_64x64x16_scalar", "conv_mma_scalar", "conv_mma_64x64x16_scalar"),
        ("conv_transpose_interleaved_bfloat16_3d_16x128x8_uniform", "conv_transpose_interleaved_uniform",
         "conv_transpose_interleaved_16x128x8_uniform"),
        ("max_pool_uint8_3d_tiles", "max_pool_tiles", "max_pool_tiles"),
        ("depthwise_float32_3d_7x7s1", "depthwise", "depthwise_7x7s1"),
        ("conv_weight_grad_float32_3d_few4", "conv_weight_grad", "conv_weight_grad_few4"),
        ("max_pool_grad_float32_3d_walks_5xany", "max_pool_grad_walks", "max_pool_grad_walks_5xany"),
    ],
)  # fmt: skip
def test_names_come_apart(kernel: str, family: str, tile: str) -> None:
    assert (learn.family(kernel), learn.tile(kernel)) == (family, tile)


def test_ranks_correlate() -> None:
    assert learn.spearman([1, 2, 3], [10, 20, 300]) == pytest.approx(1)
    assert learn.spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert learn.spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    assert math.isnan(learn.spearman([1, 1], [1, 2]))
    assert math.isnan(learn.spearman([1], [2]))


def test_rows_that_failed_or_were_not_checked_are_left_out(tmp_path: Path) -> None:
    path = rows_of(tmp_path / "rows", {"a": {"k": 1.0, "slow": 2.0}}, {"a": "slow"})
    rows = Rows(path, sweep.STEP)
    rows.end("a | wrong", "failed", modelled=1.0, differing=3, elements=9)
    rows.end("a | lost", "hung")
    rows.end("a | doubtful", modelled=1.0, seconds=0.1, checked=False)
    Rows(path, "another step").end("a | k", modelled=1.0, seconds=0.1)
    found = learn.read(path)
    assert found.by_case == {"a": {"k": 1.0, "slow": 2.0}}
    assert dict(found.others) == {"failed": 1, "hung": 1, "unchecked": 1}


def test_the_command_prints_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = next(case for case in static_plan.cases() if str(case) == "resnet50.l3.3x3 float64")
    found = learn.modelled([case], DEVICE, replace(Rates(), tensor=0.4))
    kernels = {kernel: seconds for (_, kernel), seconds in found.items()}
    slowest = max(kernels, key=kernels.__getitem__)
    path = rows_of(tmp_path / "rows", {str(case): kernels}, {str(case): slowest})
    copy = tmp_path / "measured_rates.py"
    copy.write_text(Path(measured_rates.__file__).read_text())
    monkeypatch.setattr(measured_rates, "__file__", str(copy))
    assert learn.main([str(path), "--write", "--architecture"]) == 0
    out = capsys.readouterr().out
    assert f"made up (sm_90a): {len(kernels)} kernels of 1 cases" in out
    regret = max(kernels.values()) / min(kernels.values())
    assert f"regret of 1 picks: mean {regret:.4f}, worst {regret:.3f}; the worst:\n  {regret:.3f}  {case}: " in out
    assert f"{slowest}, not {min(kernels, key=kernels.__getitem__)}" in out
    written = runpy.run_path(str(copy))["MEASURED"]
    assert set(written) == {"made up", "sm_90a"}
    assert written["made up"]["tensor"] == pytest.approx(0.4, rel=0.1)
    monkeypatch.setattr(measured_rates, "MEASURED", written)
    assert rates_of("made up", "sm_80") == rates_of("another", "sm_90a") == Rates(**written["made up"])
    assert rates_of("another", "sm_80") == Rates()


def test_a_file_without_times_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert learn.main([str(tmp_path / "none")]) == 2
    assert "has no times of a sweep" in capsys.readouterr().err


def test_emulated_times_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, before = tmp_path / "rows.jsonl", Path(measured_rates.__file__).read_bytes()
    monkeypatch.setenv("EMULATED_CUDA", "1")
    rows = Rows(path, sweep.STEP)
    for name, found in {"case | reference": {}, "case | kernel": {"modelled": 1e-4, "seconds": 1e-4}}.items():
        rows.end(name, **found)
    monkeypatch.setenv("EMULATED_CUDA", "0")  # marks are in the file, so the reader's environment has no effect
    assert learn.main([str(path), "--write"]) == 2
    assert capsys.readouterr().err.endswith("has times of the emulated device, which are no measurements\n")
    assert Path(measured_rates.__file__).read_bytes() == before


def test_the_module_that_is_written_reads_the_same_again(tmp_path: Path) -> None:
    path = tmp_path / "measured_rates.py"
    path.write_text(Path(measured_rates.__file__).read_text())
    data = {'a "name"': learn.as_data(TRUE)}
    for wanted in (data, {}, data):
        learn.write(path, wanted)
        assert runpy.run_path(str(path))["MEASURED"] == wanted
    assert json.dumps('a "name"') in path.read_text()


def test_the_first_look_is_a_few_lines(tmp_path: Path) -> None:
    wins, off, idle = (f"conv_{name}_float32_2d_64x64" for name in ("wins", "off", "idle"))
    rows = Rows(tmp_path / "rows", sweep.STEP)
    for case, times in {
        "a": {wins: (1e-5, 1e-5), idle: (2e-5, 2e-5)},
        "b": {wins: (3e-5, 3e-5), off: (1e-5, 4e-5)},
    }.items():
        rows.end(
            f"{case} | {sweep.REFERENCE}", device="made up", architecture="sm_90a", multiprocessors=132, picked=off
        )
        for kernel, (modelled, seconds) in times.items():
            rows.end(f"{case} | {kernel}", modelled=modelled, seconds=seconds)
    lines = learn.brief(learn.read(tmp_path / "rows"))
    assert lines[0].startswith("4 kernels of 2 cases; rank correlation with the model ")
    assert lines[1] == "regret of 1 picks: mean 1.3333, worst 1.333"
    assert lines[2] == "measured over modelled, furthest off: conv_off 4.00, conv_wins 1.00, conv_idle 1.00"
    assert lines[3] == "families that never win by 5%: conv_idle, conv_off"
    assert lines[4] == "tiles that never win by 5%: conv_idle_64x64, conv_off_64x64"
