"""Launches of blocks along x: what a grid has room for, the struct's bytes, and where addresses belong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuconv._errors import ArgumentError
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.plan.launch import Launch

MOST_BLOCKS = 2**31 - 1  # of one launch, along x


def of_blocks(
    operator: str,
    chosen: Variant,
    blocks: int,
    fields: Mapping[str, Any],
    roles: Mapping[str, str],
    shared_bytes: int = 0,
) -> Launch:
    """Return the launch of so many blocks, with these fields in the kernel's struct; ``roles`` has its arrays.

    Raises
    ------
    ArgumentError
        There are more blocks than one launch can have.
    """
    if blocks > MOST_BLOCKS:
        raise ArgumentError(f"{operator}: {blocks} blocks are more than the {MOST_BLOCKS} of one CUDA launch")
    return Launch(chosen, (blocks, 1, 1), shared_bytes, fields, roles)


def of_threads(
    operator: str, chosen: Variant, threads: int, fields: Mapping[str, Any], roles: Mapping[str, str]
) -> Launch:
    """Return a launch of so many threads, in whole blocks; ``roles`` maps pointer fields to the arrays' names."""
    return of_blocks(operator, chosen, -(-threads // chosen.threads), fields, roles)
