// Accumulators of a warpgroup, PRODUCTS x 64 rows by COLUMNS, and what the tiles of all wgmma kernels share.
#pragma once
#include "conv/wgmma/params.cuh"

// sums[i][j]: rows 64 i to 64 i + 63, columns 8 j to 8 j + 7, distributed as wgmma does it (wgmma.cuh).
template <class T, int PRODUCTS, int COLUMNS> struct WgmmaSums {
    using Acc = float;

    const Correlation<int, 3>& p;
    const Loading& loading;
    int group;
    Acc sums[PRODUCTS][COLUMNS / 8][4];

    template <class Params> DEVICE WgmmaSums(const Params& p) : p(p.problem.common), loading(p.loading), group(0) {}

    // A compiler barrier for the accumulators: no access to them is moved across it. Needed before and after wgmma,
    // which uses these registers asynchronously.
    DEVICE void settle() {
#pragma unroll
        for (int i = 0; i < PRODUCTS; ++i)
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; ++j)
#pragma unroll
                for (int k = 0; k < 4; ++k) asm volatile("" : "+f"(sums[i][j][k])::"memory");
    }
    // One packed weight, for repair. The parts of 3xTF32 weights are added.
    DEVICE Acc weight(int row, int m) const {
        const T* first = static_cast<const T*>(p.weights) + ((group * loading.parts * p.filters + m) * p.pitch + row);
        return loading.parts == 1 ? widen(*first) : widen(*first) + widen(first[p.filters * p.pitch]);
    }
};
