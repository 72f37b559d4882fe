"""Mutants of PTX that `mutate_ptx` need not notice: they are as right as the kernels. By reason."""

from __future__ import annotations

EQUIVALENT: dict[str, tuple[str, ...]] = {
    "The groups that are still open hold no copies.": (
        "conv/gemm/implicit_gemm.cuh: copy_async_wait<0>();  [cp.async.wait_group removed]",
        "conv/gemm/implicit_gemm.cuh: copy_async_wait<0>();  [cp.async.wait_group 0 -> 1]",
    ),
}
