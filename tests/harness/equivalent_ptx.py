"""Mutants of PTX that `mutate_ptx` need not notice: they are as right as the kernels. By reason."""

from __future__ import annotations

EQUIVALENT: dict[str, tuple[str, ...]] = {
    "The groups that are still open hold no copies.": (
        "conv/gemm/implicit_gemm.cuh: copy_async_wait<0>();  [cp.async.wait_group removed]",
        "conv/gemm/implicit_gemm.cuh: copy_async_wait<0>();  [cp.async.wait_group 0 -> 1]",
    ),
    "A vector more is copied, of the same run, to where nothing is read.": (
        "conv/wgmma/channels_last.cu: if (vector * kVector - shift < pixels) copy_async<16>(target, source - shift, 16);  [setp.ge.s32 -> setp.gt.s32]",  # noqa: E501
    ),
    "Either of the two fences lets TMA know of the mbarriers.": (
        "conv/wgmma/ring.cuh: barrier_fence();  [fence.proxy.async.shared::cta removed]",
        "conv/wgmma/ring.cuh: barrier_fence();  [fence.mbarrier_init.release.cluster removed]",
    ),
}
