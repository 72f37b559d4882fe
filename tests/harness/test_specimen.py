"""Every family of kernels has problems, which reach all of its variants: the tests run every kernel."""

from __future__ import annotations

from typing import Any

import pytest

from gpuconv.cuda.variants import all_variants
from tests.harness.specimen import FAMILIES, files, problems_of, reached, sources_of_kernels


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__.removeprefix("gpuconv.cuda."))
def test_problems_reach_every_variant_of_a_family(family: Any) -> None:
    assert family in reached().families
    assert {variant.name for variant in family.variants()} <= reached().launches.keys()


def test_plans_name_every_kernel_that_is_built_ahead_and_no_other() -> None:
    assert sorted(reached().launches) == sorted({variant.name for variant in all_variants()})


def test_every_source_has_problems_of_several_blocks() -> None:
    assert sources_of_kernels().keys() == {variant.source for variant in all_variants()}
    assert all(problems_of(path) for path in files())
