"""Mutants of PTX that `mutate_ptx` need not notice: they are as right as the kernels. By reason."""

from __future__ import annotations

EQUIVALENT: dict[str, tuple[str, ...]] = {
    "The groups that are still open hold no copies.": (
        "conv/gemm/implicit_gemm.cuh: copy_async_wait<0>();  [cp.async.wait_group removed]",
        "conv/gemm/implicit_gemm.cuh: copy_async_wait<0>();  [cp.async.wait_group 0 -> 1]",
    ),
    "A vector more is copied, of the same run, to where nothing is read.": (
        "passes/channels_last.cu: if (vector * kVector - shift < pixels) copy_async<16>(target, source - shift, 16);  [setp.ge.s32 -> setp.gt.s32]",  # noqa: E501
    ),
    "A loop of at least one turn: the compiler's guard before it never skips it.": (
        "conv/wgmma/ring.cuh: for (int i = 0; i < count(); ++i) {  [setp.lt.s32 -> setp.le.s32]",
        "pool/channels.cu: for (int slice = walk.slices.first; slice < walk.slices.end; ++slice) {  [setp.ge.s32 -> setp.gt.s32]",  # noqa: E501
        "pool/channels.cu: for (int row = walk.rows.first; row < walk.rows.end; row += kBatch) {  [setp.ge.s32 -> setp.gt.s32]",  # noqa: E501
        "pool/channels.cu: for (int q = walk.column; q < walk.end; ++q)  [setp.ge.s32 -> setp.gt.s32]",
        "pool/channels.cu: for (int q = walk.column; q < walk.end; ++q) {  [setp.ge.s32 -> setp.gt.s32]",
        "pool/channels.cu: for (int i = walk.slices.first; i < walk.slices.end; ++i)  [setp.ge.s32 -> setp.gt.s32]",
        "pool/channels.cu: for (int j = walk.rows.first; j < walk.rows.end; ++j)  [setp.ge.s32 -> setp.gt.s32]",
        "pool/channels.cu: for (int k = columns.first; k < columns.end; ++k)  [setp.ge.s32 -> setp.gt.s32]",
    ),
    "Either of the two fences lets TMA know of the mbarriers.": (
        "conv/wgmma/ring.cuh: barrier_fence();  [fence.proxy.async.shared::cta removed]",
        "conv/wgmma/ring.cuh: barrier_fence();  [fence.mbarrier_init.release.cluster removed]",
    ),
}
