// Wrappers of the PTX instructions that only sm_90a has: mbarriers in shared memory, TMA copies (tensor memory
// accelerator), setmaxnreg, and the ordering of wgmma. The products themselves are in conv/wgmma/wgmma.cuh.
#pragma once
#include "base/device.cuh"

// An encoded tensor map (128 bytes): address, extents, strides, box and swizzle of an array that TMA copies from. The
// driver encodes it on the host (gpuconv/cuda/call/tensor_map.py).
struct alignas(64) CUtensorMap { unsigned long long words[16]; };

// ---- mbarriers: a phase completes when all expected threads have arrived and all expected bytes have been copied

DEVICE void barrier_init(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Orders this thread's ordinary (generic-proxy) accesses to shared memory before later TMA copies into the same place.
// TMA and wgmma use the async proxy, which an mbarrier arrival alone does not order against generic accesses.
DEVICE void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Makes freshly initialised barriers visible to TMA. Required once, between barrier_init and the first copy.
DEVICE void barrier_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
DEVICE void barrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and raises the phase's expected byte count by `bytes`, which TMA copies will deliver.
DEVICE void barrier_expect(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Waits for the phase of this parity to complete. A fresh barrier counts as having completed a phase of parity 1, so a
// producer's first wait with parity 1 returns at once.
DEVICE void barrier_wait(unsigned barrier, unsigned parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "AGAIN:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra AGAIN;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

// ---- TMA copies, global -> shared, issued by one thread; they signal `barrier`. Coordinates are innermost first.

// Prefetches a tensor map into the descriptor cache before the first copy needs it.
DEVICE void prefetch_map(const CUtensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

// Copies the box whose first element has these coordinates. Out-of-bounds elements become zero.
DEVICE void copy_box(unsigned target, const CUtensorMap& map, unsigned barrier, int c0, int c1, int c2, int c3) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(target),
                 "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
                 : "memory");
}
DEVICE void copy_box(unsigned target, const CUtensorMap& map, unsigned barrier, int c0, int c1, int c2, int c3,
                     int c4) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(target),
                 "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
                 : "memory");
}
// Copies the inputs of one tap in im2col mode, for consecutive output pixels and a slice of channels. `at` is the
// origin of the first pixel's window in x (innermost axis first), `offset` the tap's distance from that origin.
DEVICE void copy_pixels(unsigned target, const CUtensorMap& map, unsigned barrier, int channel, const int (&at)[1],
                        int n, const int (&offset)[1]) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2], {%6};" ::"r"(target),
                 "l"(&map), "r"(barrier), "r"(channel), "r"(at[0]), "r"(n), "h"(static_cast<unsigned short>(offset[0]))
                 : "memory");
}
DEVICE void copy_pixels(unsigned target, const CUtensorMap& map, unsigned barrier, int channel, const int (&at)[2],
                        int n, const int (&offset)[2]) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};" ::"r"(target),
                 "l"(&map), "r"(barrier), "r"(channel), "r"(at[0]), "r"(at[1]), "r"(n),
                 "h"(static_cast<unsigned short>(offset[0])), "h"(static_cast<unsigned short>(offset[1]))
                 : "memory");
}
DEVICE void copy_pixels(unsigned target, const CUtensorMap& map, unsigned barrier, int channel, const int (&at)[3],
                        int n, const int (&offset)[3]) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], {%8, %9, %10};" ::"r"(target),
                 "l"(&map), "r"(barrier), "r"(channel), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(n),
                 "h"(static_cast<unsigned short>(offset[0])), "h"(static_cast<unsigned short>(offset[1])),
                 "h"(static_cast<unsigned short>(offset[2]))
                 : "memory");
}

// ---- warpgroups: 128 consecutive threads; the first thread's number is a multiple of 128

// setmaxnreg: changes the number of registers per thread. All threads of a warpgroup must execute it.
template <int COUNT> DEVICE void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT> DEVICE void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }
// Named barrier for `threads` threads of the block (whole warps). Number 0 is the one that __syncthreads uses.
DEVICE void synchronise(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// Arrives at a named barrier without waiting for it to complete.
DEVICE void arrive_at(int number, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// wgmma runs asynchronously, in committed groups. From products_begin until products_wait returns, nothing else may
// touch the accumulator registers or the shared memory that the group uses.
DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most KEEP committed groups are still in flight.
template <int KEEP> DEVICE void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(KEEP) : "memory");
}

// wgmma matrix descriptor of a K-major operand: rows of BYTES (128 or 64) along K, swizzled by as much. Groups of eight
// rows follow each other without gaps. Fields: address / 16, leading offset (unused), stride offset, swizzle mode.
template <int BYTES> DEVICE unsigned long long rows_along_k(unsigned address) {
    return (address & 0x3ffff) >> 4 | 1ull << 16 | static_cast<unsigned long long>(BYTES / 2) << 32
         | (BYTES == 128 ? 1ull : 2ull) << 62;
}
// wgmma matrix descriptor of an MN-major operand: rows of 128 bytes across K, swizzled by 128 bytes. Eight rows (of K)
// take 1024 bytes; the next 128 bytes of columns begin NEXT bytes further on.
template <int NEXT> DEVICE unsigned long long rows_across_k(unsigned address) {
    return (address & 0x3ffff) >> 4 | static_cast<unsigned long long>(NEXT / 16) << 16 | 64ull << 32 | 1ull << 62;
}
