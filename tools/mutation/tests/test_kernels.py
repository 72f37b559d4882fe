"""Mutation testing of CUDA sources: one mutant that is noticed, one that is listed, and the list of equivalent ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.mutation.kernels import FILES, KNOWN, SAME, SURVIVED, mutants, verdict
from tools.mutation.kernels_equivalent import EQUIVALENT

pytestmark = pytest.mark.emulator


def test_the_list_of_equivalent_mutants_names_mutants() -> None:
    names = {mutant.name for path in FILES for mutant in mutants(path)}
    listed = [name for group in EQUIVALENT.values() for name in group]
    assert set(listed) <= names
    assert len(set(listed)) == len(listed)
    assert len(names) > 1500, "the engine hardly changes anything"


def test_a_mutant_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_CACHE_DIR", str(tmp_path))
    assert verdict(mutants("pool/general.cu")[20]) not in (SURVIVED, SAME, KNOWN)


def test_a_mutant_that_is_equivalent_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_CACHE_DIR", str(tmp_path))
    (found,) = [mutant for mutant in mutants("pool/general.cu") if "kBatch = 3;  [3 -> 4]" in mutant.name]
    assert verdict(found) == KNOWN
