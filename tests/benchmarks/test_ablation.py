"""What removing kernels costs: losses of hand-made candidates worked out by hand, and a few real problems."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import ablation, cliffs, static_plan
from benchmarks.ablation import Decision, Option, Table
from gpuconv.cuda.plan.limits import representative

DEVICE = representative("sm_90a")


def option(us: float, *parts: str) -> Option:
    return Option(us * 1e-6, frozenset(parts))


def decision(kind: str, *options: Option, known: bool = False) -> Decision:
    return Decision(f"a {kind}", kind, known, options)


GEMM = ("family gemm", "source gemm.cu", "form gemm_64")
LARGE = ("family gemm", "source gemm.cu", "form gemm_128")
DIRECT = ("family direct", "source direct.cu", "form direct_3")
TABLE = Table(
    [
        decision("Conv", option(10, *GEMM), option(12, *LARGE), option(40, *DIRECT), known=True),
        decision("Conv", option(30, *GEMM), option(20, *LARGE), option(20, *DIRECT), known=True),
        decision("Conv", option(2, *GEMM), option(1, *DIRECT), known=True),
        decision("MaxPool", option(8, "family pool", "source pool.cu", "form pool"), known=True),
        decision("Conv", option(10, *GEMM), option(30, *DIRECT)),
    ]
)


def test_a_decision_takes_the_fastest_candidate_that_is_left() -> None:
    assert TABLE.losses(["form gemm_64"]).tolist() == pytest.approx([1.2, 1, 1, 1, 3])
    assert TABLE.losses(["form gemm_128"]).tolist() == pytest.approx([1, 1, 1, 1, 1])
    assert TABLE.losses(["family gemm"]).tolist() == pytest.approx([4, 1, 1, 1, 3])
    assert TABLE.losses(["source direct.cu"]).tolist() == pytest.approx([1, 1, 2, 1, 1])
    assert TABLE.losses(["form gemm_128", "form direct_3"]).tolist() == pytest.approx([1, 1.5, 2, 1, 1])
    assert TABLE.losses(["family pool"]).tolist() == [1, 1, 1, math.inf, 1]


def test_a_row_has_means_of_all_of_known_layers_and_of_their_classes() -> None:
    row = TABLE.removed("gemm_64", ["form gemm_64"])
    assert row["all"] == pytest.approx((1.2 * 3) ** (1 / 5), rel=1e-4)
    assert row["known"] == pytest.approx(1.2 ** (1 / 4), rel=1e-4)
    assert row["classes"] == {"Conv": pytest.approx(1.2 ** (1 / 3), rel=1e-4)}
    assert (row["worst"], row["worst_case"]) == (3.0, "a Conv")
    assert (row["above_1.5"], row["above_2"], row["chosen"], row["needed"]) == (1, 1, 2, 0)
    assert row["stays"]  # 6.3 % of its class


def test_cases_of_less_than_5_us_are_no_worst_cases() -> None:
    row = TABLE.removed("direct", ["family direct"])
    assert (row["worst"], row["worst_case"], row["above_1.5"]) == (1.0, "", 0)
    assert row["classes"] == {"Conv": pytest.approx(2 ** (1 / 3), rel=1e-4)}


def test_what_some_decision_has_no_alternative_to_stays() -> None:
    row = TABLE.removed("pool", ["family pool"])
    assert (row["needed"], row["all"], row["stays"]) == (1, 1.0, True)


def one_of(count: int, loss: float, known: bool = True) -> dict[str, Any]:
    """Return the row of a form without which one of ``count`` decisions of 100 µs loses."""
    others = [decision("Conv", option(100, *GEMM), known=known)] * (count - 1)
    only = decision("Conv", option(100, "form small"), option(100 * loss, *GEMM), known=known)
    return Table([*others, only]).removed("small", ["form small"])


@pytest.mark.parametrize(
    ("count", "loss", "stays"),
    [
        (100, 1.99, False),  # 0.7 % of its class
        (100, 2.0, True),  # a factor of 2
        (10, 1.21, False),  # 1.92 %: 1.21 ** 0.1 = 1.0192
        (10, 1.23, True),  # 2.09 %
        (1, 1.0, False),  # another kernel is as fast
    ],
)
def test_a_form_stays_for_2_percent_of_its_class_or_a_factor_of_2(count: int, loss: float, stays: bool) -> None:
    assert one_of(count, loss)["stays"] is stays


def test_random_problems_count_as_cases_but_not_in_classes() -> None:
    assert not one_of(10, 1.9, known=False)["stays"]  # 6.6 % of its class
    assert one_of(10, 2.0, known=False)["stays"]


def test_the_table_names_what_goes_after_what_stays() -> None:
    rows = [TABLE.removed(part, [part]) for part in ("form gemm_128", "form gemm_64", "family gemm")]
    _, head, *lines = ablation.lines(rows, TABLE)
    assert head.split()[:2] == ["remove", "variants"]
    assert [line.split("  ")[0] for line in lines] == ["family gemm", "form gemm_64", "form gemm_128"]
    assert " ".join(lines[0].split()[2:]) == "0 64.375 41.421 4.00 2 2 0 stays a Conv; Conv 58.740"
    assert " ".join(lines[2].split()[2:]) == "0 0.000 0.000 1.00 0 0 0 goes"


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("conv_bfloat16_3d_mma_64x64x64_vector", "conv_3d_mma_64x64x64_vector"),
        ("conv_float32_3d_3xtf32_64x64x16_chunks", "conv_3d_64x64x16_chunks"),
        ("max_pool_uint8_4d_indices_wide", "max_pool_4d_indices_wide"),
        ("conv_float32_4d_64x64x16", "conv_4d_64x64x16"),
    ],
)
def test_a_form_is_a_name_without_its_dtype(name: str, form: str) -> None:
    assert ablation.form_of(name) == form


def test_decisions_are_those_of_the_planner() -> None:
    """The fastest option is the planned candidate; what it needs are the kernels that its plan launches."""
    cases = [*static_plan.cases("resnet50.l1"), *ablation.random_cases(20, 43)]
    for case in cases:
        chooser = static_plan.Chooser()
        plan = static_plan.plan(case, DEVICE, chooser)
        decisions = ablation.collected([case], DEVICE)
        if chooser.picked is None:
            assert decisions == []
            continue
        (found,) = decisions
        best = min(found.options, key=lambda one: one.seconds)
        assert best.seconds == chooser.picked.seconds
        assert (found.kind.removesuffix(", float64"), found.known) == (case.layer.kind, case.layer.id != "")
        assert found.kind.endswith(", float64") == (case.dtype == "float64")
        assert f"form {ablation.form_of(static_plan.main_kernel(plan, chooser.picked))}" in best.parts
        assert any(part.startswith("family ") for part in best.parts)
        assert not any(part.startswith(("source passes/", "source conv/gemm/pack_")) for part in best.parts)


def test_known_layers_come_in_float64_too() -> None:
    static, double = static_plan.cases(), ablation.known_cases()[len(static_plan.cases()) :]
    assert ablation.known_cases()[: len(static)] == static
    assert {case.dtype for case in double} == {"float64"}
    single = [(case.layer.id, case.layout) for case in static if static_plan.label(case) == "float32"]
    assert {(case.layer.id, case.layout) for case in double} < set(single)
    assert all(case.layer.multiplies for case in double)


def test_variants_are_counted_once() -> None:
    """Stem has FFMA kernels of 1, 3, 5, 7 and 11 taps, four of 16 bits, two of TF32 and one of 3xTF32."""
    stem = ("family stem", "source conv/gemm/stem.cu")
    table = Table([decision("Conv", option(1, *stem), option(2, "family few filters"))])
    counts = [table.removed("stem", parts)["variants"] for parts in (stem, stem[:1], stem[1:])]
    assert counts == [12, 12, 12]
    assert table.removed("few", ["family few filters"])["variants"] == 8  # 4 or 8 filters, in four dtypes


def test_random_cases_are_those_of_a_seed() -> None:
    first, again, other = ([*map(cliffs.described, ablation.random_cases(5, seed))] for seed in (1, 1, 2))
    assert first == again
    assert first != other


def run(**given: Any) -> int:
    settings = {"arch": "sm_80", "random": 12, "seed": 5, "without": None, "json": None} | given
    return ablation.run(Namespace(**settings))


def test_the_command_prints_every_family(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = static_plan.cases("alexnet")
    monkeypatch.setattr(static_plan, "cases", lambda: known)
    assert run(json=tmp_path / "rows.json") == 0
    printed = capsys.readouterr().out
    assert "family implicit GEMM by FFMA" in printed
    assert "source conv/gemm/stem.cu" in printed
    written = json.loads((tmp_path / "rows.json").read_text())
    stem = next(row for row in written["rows"] if row["remove"] == "family stem")
    assert stem["known"] > 1.0
    assert run(without=["form conv_stem*"]) == 0
    assert "parts together: form conv_stem_3d_" in capsys.readouterr().out


def test_unknown_architectures_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arch="sm_1") == 2
    assert "sm_90" in capsys.readouterr().err
