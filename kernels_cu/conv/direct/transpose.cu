// Depthwise ConvTranspose (one input channel per group) in which each output has at most two taps along each axis. That
// means no dilation, and at most twice as many taps as the stride. A direct sum from registers; without shared memory.
//
// Thread: `walk` outputs of one column, a stride apart along H. They are in the same phase, so they use the same 2 x 2
// weights, kept in registers; each loaded row of x serves two successive outputs. Adjacent lanes have adjacent columns,
// or adjacent channels in channels-last layout, so stores are coalesced and loads hit one or two lines. Bound by memory
// or L1. 1-D problems are rows of height 1.
//
//     y[h * s + tap] = w[tap] * x[h] + w[tap + s] * x[h - 1]      (and the same along W)
//
// A tap that does not exist, or lies in the padding, is predicated off instead of multiplied by zero: the weight could
// be infinite.
#include "conv/finish.cuh"
#include "base/geometry.cuh"
#include "base/ptx.cuh"

// Axes are row, column. Strides count elements.
struct DepthwiseTransposeParams {
    const void* x;
    const void* w;
    const void* b; // or null
    void* y;
    int items; // number of threads that have outputs
    int x_batch, x_channel, x_extent[2], x_stride[2];
    int y_batch, y_channel, y_extent[2], y_stride[2];
    int w_group, w_filter, w_stride[2];
    int b_stride;
    int pad[2], taps[2];
    int walk;           // outputs per thread
    int channels_first; // threads run over channels first (channels last); otherwise over columns, rows, walks
    Divider<int> stride[2];
    Divider<int> channels, columns, rows, walks; // of y; `rows` counts phases along H, `walks` the threads along each
    Divider<int> filters;                        // filters per channel of x
    Finish finish;
};

// One thread's outputs, with the inputs and weights of the current row of x and of the row before it.
template <class T, class Acc> struct Outputs {
    const DepthwiseTransposeParams& p;
    const T* x; // input of the first output's first tap
    T* y;
    int row_x, row_y;     // elements between successive rows of the thread
    int across;           // elements from a row's first input to its second
    int h, height, count; // row of x, height of x, outputs of the thread
    bool exists[2][2];    // whether tap (i, j) exists and is in bounds along W
    Acc weights[2][2], bias;

    // Computes and stores all outputs of the thread. EACH: all four taps exist. FINISH: there is a residual or an
    // activation.
    template <bool EACH, bool FINISH> DEVICE void make() const {
        const bool meets[2] = {exists[0][0] || exists[1][0], exists[0][1] || exists[1][1]};
        const T* inputs[2] = {x, x + across};
        T* to = y;
        keep_global(inputs[0]); // otherwise each address is recomputed from scratch
        keep_global(inputs[1]);
        keep_global(to);
        Acc before[2] = {};
#pragma unroll
        for (int j = 0; j < 2; ++j)
            if ((EACH || meets[j]) && inside(h - 1, height)) before[j] = widen(inputs[j][-row_x]);
#pragma unroll(FINISH ? 1 : 4)
        for (int i = 0; i < count; ++i) {
            const bool above = inside(h + i - 1, height), found = inside(h + i, height);
            Acc sum = 0;
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                Acc here = 0;
                if ((EACH || meets[j]) && found) here = widen(*inputs[j]);
                if ((EACH || exists[1][j]) && above) sum = multiply_add(weights[1][j], before[j], sum);
                if ((EACH || exists[0][j]) && found) sum = multiply_add(weights[0][j], here, sum);
                before[j] = here;
                inputs[j] += row_x;
            }
            sum += bias;
            if constexpr (FINISH) sum = finished(p.finish, p.y, sum, to);
            *to = narrow<T>(sum);
            to += row_y;
        }
    }
};

// The kernel: decodes the thread's number, loads its weights, and computes its outputs.
template <class T, class Acc> DEVICE void conv_transpose_depthwise(const DepthwiseTransposeParams& p) {
    constexpr int kThreads = 256; // the block size that the planner uses
    const int item = block_number() * kThreads + int(threadIdx.x);
    if (item >= p.items) return;
    int channel, column, row, walk, filter, image;
    if (p.channels_first) {
        image = p.walks.split(p.rows.split(p.columns.split(p.channels.split(item, channel), column), row), walk);
    } else {
        image = p.channels.split(p.walks.split(p.rows.split(p.columns.split(item, column), row), walk), channel);
    }
    const int group = p.filters.split(channel, filter), stride = int(p.stride[0].divisor);
    row += walk * p.walk * stride;
    // The first tap of the first output along each axis, and the input that it reads. The second tap reads the input
    // before it.
    int tap_h, tap_w;
    const int h = p.stride[0].split(row + p.pad[0], tap_h), w_first = p.stride[1].split(column + p.pad[1], tap_w);

    Outputs<T, Acc> outputs{p};
    const T* w = static_cast<const T*>(p.w) + group * p.w_group + filter * p.w_filter;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int kh = tap_h + i * stride, kw = tap_w + j * int(p.stride[1].divisor);
            bool& exists = outputs.exists[i][j];
            exists = kh < p.taps[0] && kw < p.taps[1] && inside(w_first - j, p.x_extent[1]);
            outputs.weights[i][j] = exists ? widen(w[kh * p.w_stride[0] + kw * p.w_stride[1]]) : Acc(0);
        }
    outputs.bias = p.b == nullptr ? Acc(0) : widen(static_cast<const T*>(p.b)[channel * p.b_stride]);
    outputs.x = static_cast<const T*>(p.x) + image * p.x_batch + group * p.x_channel + h * p.x_stride[0]
              + w_first * p.x_stride[1];
    outputs.y =
        static_cast<T*>(p.y) + image * p.y_batch + channel * p.y_channel + row * p.y_stride[0] + column * p.y_stride[1];
    outputs.row_x = p.x_stride[0];
    outputs.row_y = stride * p.y_stride[0];
    outputs.across = -p.x_stride[1];
    outputs.h = h;
    outputs.height = p.x_extent[0];
    outputs.count = min(p.walk, p.stride[0].quotient(p.y_extent[0] - row + stride - 1));
    keep(outputs.row_x);
    keep(outputs.row_y);
    keep(outputs.height);
    const bool (&exists)[2][2] = outputs.exists;
    if (p.finish.any()) outputs.template make<false, true>();
    else if (exists[0][0] && exists[0][1] && exists[1][0] && exists[1][1]) outputs.template make<true, false>();
    else outputs.template make<false, false>();
}
