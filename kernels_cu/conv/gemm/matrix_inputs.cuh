// Input loader for kernels of one tap in NCHW: pixels are contiguous in x, so a slice of K is a set of rows of a plain
// matrix (base/matrix_rows.cuh). It has the interface of conv/gemm/slice_inputs.cuh.
#pragma once
#include "conv/problem.cuh"
#include "base/matrix_rows.cuh"

// See the top of this file; the copies are those of MatrixRows.
template <class T, int BLOCK_N, int BLOCK_K, int THREADS>
struct MatrixInputs : MatrixRows<T, BLOCK_N, BLOCK_K, THREADS> {
    using Rows = MatrixRows<T, BLOCK_N, BLOCK_K, THREADS>;
    static constexpr int kTableBytes = 0;

    const Correlation<int, 3>& p;
    const Taps<int, 3>& taps;
    const T* x; // channel 0 of this block's group

    DEVICE MatrixInputs(const Correlation<int, 3>& p, const Taps<int, 3>& taps, void*) : p(p), taps(taps) {}
    DEVICE void stand(int group) { x = static_cast<const T*>(p.x) + group * p.channels * p.x_channel; }
    // Chooses the copy width by the alignment of all planes, and finds this thread's columns.
    DEVICE void start(int column0, int, unsigned buffers) {
        const int image = int(p.extent[0].divisor * p.extent[1].divisor * p.extent[2].divisor);
        const int width = copied_at_once(x, (image | p.x_channel | p.x_batch) * int(sizeof(T)));
        const Pixel<int, 3> mine = pixel(p, column0 + Rows::column(width));
        Rows::start(x + dot(mine.q, p.x_stride, mine.n * p.x_batch), mine.exists, p.x_channel, taps.rows, width,
                    buffers);
    }
};
