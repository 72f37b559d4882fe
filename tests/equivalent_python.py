"""Mutants of Python modules that `mutate_python` need not notice: they compute the same. By reason."""

from __future__ import annotations

EQUIVALENT: dict[str, tuple[str, ...]] = {
    "Two entries, of images and channels, are in order in either layout.": (
        "_layout.py channels_second: if layout == 'NCHW' or len(entries) < 3:  ->  if layout == 'NCHW' or len(entries) < 2:",  # noqa: E501
    ),
    "Pointers stand first in the struct, where they are whatever the width of its indices.": (
        "cuda/grouped_plan.py _plan: pointers = params.pointers(gemm_structs.correlation(False, RANK), roles)  ->  pointers = params.pointers(gemm_structs.correlation(True, RANK), roles)",  # noqa: E501
    ),
}
