// ConvTranspose of one channel a group (depthwise) in which an output meets at most two taps along each axis: without
// dilation, of up to twice as many taps as the stride.
//
// A thread makes outputs of one column and of every stride-th row: they meet the same weights, up to four, which it
// keeps in registers, and every row of x that it loads serves two of them. Lanes follow each other along the columns,
// or, where channels lie one after another, along the channels and then the columns, so that stores are coalesced; what
// they load lies in a line or two. One axis is a column of unit height.
//
// A tap that does not exist or lies in the padding is predicated off, not multiplied by zero: it may meet an infinity.
#include "conv/finish.cuh"
#include "base/geometry.cuh"
#include "base/ptx.cuh"

// Axes are row, column. Strides count elements.
struct DepthwiseTransposeParams {
    const void* x;
    const void* w;
    const void* b; // or null
    void* y;
    int items; // threads with outputs
    int x_batch, x_channel, x_extent[2], x_stride[2];
    int y_batch, y_channel, y_extent[2], y_stride[2];
    int w_group, w_filter, w_stride[2];
    int b_stride;
    int pad[2], taps[2];
    int walk;           // outputs of a thread
    int channels_first; // items that follow each other are those of other channels; else columns, rows, walks
    Divider<int> stride[2];
    Divider<int> channels, columns, rows, walks; // of y; rows: those that lie a stride apart count as one
    Divider<int> filters;                        // of a channel of x
    Finish finish;
};

// What a thread makes, and the inputs and weights for it: those of a row, and of the row before it.
template <class T, class Acc> struct Outputs {
    const DepthwiseTransposeParams& p;
    const T* x; // of the first row and the first tap
    T* y;
    int row_x, row_y; // elements from one row to the next
    int across;       // from a row's first input to the second
    int h, height, count;
    bool exists[2][2]; // the tap, and what it meets along the row
    Acc weights[2][2], bias;

    // All of them; if EACH, all four taps exist; if FINISH, there is something to be done with the sums.
    template <bool EACH, bool FINISH> DEVICE void make() const {
        const bool meets[2] = {exists[0][0] || exists[1][0], exists[0][1] || exists[1][1]};
        const T* inputs[2] = {x, x + across};
        T* to = y;
        keep_global(inputs[0]); // else each address is made anew, of all that it consists of
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

template <class T, class Acc> DEVICE void conv_transpose_depthwise(const DepthwiseTransposeParams& p) {
    constexpr int kThreads = 256; // as the plan launches it
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
    // The first tap that the first output meets along each axis, and its input; that of the second lies one before it.
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
