// Instructions that sm_90a alone has, each behind one small function: barriers in shared memory, copies by the tensor
// memory accelerator (TMA), registers handed from warps to warps, matrices multiplied by a warpgroup
// (conv/wgmma/wgmma.cuh).
#pragma once
#include "base/device.cuh"

// How an array lies in memory, for the engine that copies boxes of it; the driver encodes it
// (gpuconv/cuda/call/tensor_map.py).
struct alignas(64) CUtensorMap { unsigned long long words[16]; };

// ---- barriers in shared memory: a phase ends when all have arrived, and all bytes that were announced

DEVICE void barrier_init(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Between what this thread has read or written in shared memory and copies over it, whoever starts them: these go
// through another proxy, to which an arrival at a barrier alone says nothing.
DEVICE void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// After their initialisation, before copies meet them.
DEVICE void barrier_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
DEVICE void barrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and announces what copies will bring.
DEVICE void barrier_expect(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Until the phase of a parity has ended; of a fresh barrier, the one before the first, of parity 1, has.
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

// ---- copies to shared memory that arrive at a barrier, by one thread; coordinates and offsets innermost first

// Lets the engine read a map before the first copy needs it.
DEVICE void prefetch_map(const CUtensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

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
// Pixels of a tap, channels first: `at` is where the first pixel's window begins, `offset` how far from it the tap is.
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

// ---- warpgroups: 128 threads, the first of which is a multiple of 128

// Registers of a thread from here on; all threads of a warpgroup say so together.
template <int COUNT> DEVICE void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT> DEVICE void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }
// A barrier of some of the block's threads, of whole warps; that of __syncthreads is number 0.
DEVICE void synchronise(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// Arrives at such a barrier without waiting for the others.
DEVICE void arrive_at(int number, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// Products of a warpgroup run on their own, in groups: registers that they add to and shared memory that they read are
// theirs from `products_begin` to the end of `products_wait`.
DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until no more than KEEP groups are under way.
template <int KEEP> DEVICE void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(KEEP) : "memory");
}

// How a matrix lies in shared memory, of rows of BYTES, 128 or 64, along K, swizzled, eight rows right behind eight.
template <int BYTES> DEVICE unsigned long long rows_along_k(unsigned address) {
    return (address & 0x3ffff) >> 4 | 1ull << 16 | static_cast<unsigned long long>(BYTES / 2) << 32
         | (BYTES == 128 ? 1ull : 2ull) << 62;
}
// Of rows of 128 bytes across K, swizzled: eight rows are 1024 bytes; the next columns of a row begin NEXT bytes
// further.
template <int NEXT> DEVICE unsigned long long rows_across_k(unsigned address) {
    return (address & 0x3ffff) >> 4 | static_cast<unsigned long long>(NEXT / 16) << 16 | 64ull << 32 | 1ull << 62;
}
