// Conv with up to eight output channels per group, as a direct sum in FFMA. A GEMM tile would be nearly empty there. It
// accepts any stride and dilation, which bands.cu does not, and reads w unpacked.
//
// Block: kThreads x kPixels = 512 output pixels of one group. Thread: all FILTERS output channels of kPixels pixels, in
// registers. Adjacent lanes have adjacent pixels, so loads of x are coalesced. All taps of a channel are processed
// before the next channel, so that inputs that taps share hit in L1.
//
//     for each 32 taps:  table of tap offsets in shared memory, one bit mask of valid taps per pixel
//         for some channels at a time:  global w -> shared weights[channel][tap][filter], widened
//             x (through L1) -> register; times FILTERS weights (a broadcast from shared memory)
//
// A tap outside of x is predicated off, so infinite weights need no repair. Each load of x serves FILTERS multiply-adds
// only, so the kernel stays below the FFMA peak.
#include "conv/gather.cuh"
#include "base/numeric.cuh"
#include "base/ptx.cuh"

// Strides of w count elements; see conv/problem.cuh for the others.
template <class Index, int NDIM> struct ConvFewParams {
    Correlation<Index, NDIM> common; // `weights` is w itself, unpacked
    Taps<Index, NDIM> taps;
    Index w_group, w_filter, w_channel, w_stride[NDIM];
    int all_taps;         // number of taps
    int channels_at_once; // channels whose weights fit into shared memory together
};

// One block. See the top of this file.
template <class T, class Acc, class Index, int NDIM, int FILTERS> struct FewTile {
    static constexpr int kThreads = 128, kPixels = 4, kTaps = 32;
    static constexpr int kVector = 16 / sizeof(Acc);
    static_assert(FILTERS % kVector == 0);

    using Vector = Elements<Acc, kVector>;
    struct Tap { Index distance, in_w, away[NDIM]; }; // distance from tap 0: in x, in w, in coordinates

    const ConvFewParams<Index, NDIM>& p;
    Tap* table;
    Acc* weights; // [channel][tap][filter], in shared memory
    Index group, column0;
    const T* x;                 // first channel of this block's group
    Index place[kPixels];       // offset of tap 0 in x; it may lie outside
    unsigned inside_x[kPixels]; // bit mask of the current taps that lie inside x
    Acc sums[kPixels][FILTERS];

    // The GEMM column (output pixel) number i of this thread.
    DEVICE Index column(int i) const { return column0 + i * kThreads + threadIdx.x; }

    // ---- taps

    // Fills the table with `count` taps from tap `first` on.
    DEVICE void fill_table(int first, int count) {
        if (threadIdx.x >= count) return;
        Index tap[NDIM];
        unravel<NDIM>(Index(first + threadIdx.x), p.taps.count, tap);
        Tap& entry = table[threadIdx.x];
#pragma unroll
        for (int axis = 0; axis < NDIM; ++axis) entry.away[axis] = tap[axis] * p.taps.advance[axis];
        entry.distance = dot(entry.away, p.common.x_stride);
        entry.in_w = dot(tap, p.w_stride);
    }
    // Computes, for each pixel, its offset in x and the bit mask of its valid taps.
    DEVICE void find_inputs(int count) {
#pragma unroll
        for (int i = 0; i < kPixels; ++i) {
            Window<Index, NDIM> window;
            window.place(p.common, p.taps, pixel(p.common, column(i)));
            place[i] = dot(window.origin, p.common.x_stride, window.image);
            inside_x[i] = 0;
#pragma unroll 1
            for (int tap = 0; tap < count; ++tap) {
                bool found = window.exists;
#pragma unroll
                for (int axis = 0; axis < NDIM; ++axis)
                    found = found && inside(window.origin[axis] + table[tap].away[axis], p.common.x_extent[axis]);
                inside_x[i] |= unsigned(found) << tap;
            }
        }
    }

    // ---- channels

    // Stages the weights of some channels, for the taps of the table; zeros for filters that do not exist.
    DEVICE void fetch_weights(Index first, int channels, int count) {
        const T* w = static_cast<const T*>(p.common.weights) + group * p.w_group + first * p.w_channel;
        for (int i = threadIdx.x; i < channels * count * FILTERS; i += kThreads) {
            const int m = i % FILTERS, pair = i / FILTERS, channel = pair / count, tap = pair - channel * count;
            weights[i] =
                m < p.common.filters ? widen(w[m * p.w_filter + channel * p.w_channel + table[tap].in_w]) : Acc(0);
        }
    }
    // Multiplies one tap of one channel: kPixels inputs x FILTERS weights.
    DEVICE void add_tap(const T* source, const Acc* of_tap, int tap) {
        const Index distance = table[tap].distance;
        bool found[kPixels];
        T values[kPixels];
#pragma unroll
        for (int i = 0; i < kPixels; ++i) {
            found[i] = inside_x[i] & 1u << tap;
            if (found[i]) values[i] = source[place[i] + distance];
        }
        Vector rows[FILTERS / kVector];
#pragma unroll
        for (int j = 0; j < FILTERS / kVector; ++j) rows[j] = reinterpret_cast<const Vector*>(of_tap)[j];
#pragma unroll
        for (int i = 0; i < kPixels; ++i) {
            if (!found[i]) continue;
#pragma unroll
            for (int m = 0; m < FILTERS; ++m)
                sums[i][m] = multiply_add(rows[m / kVector].values[m % kVector], widen(values[i]), sums[i][m]);
        }
    }
    // Adds the products of the staged channels and taps.
    DEVICE void add_channels(Index first, int channels, int count) {
        const T* source = x + first * p.common.x_channel;
        const Acc* of_tap = weights;
#pragma unroll 1
        for (int channel = 0; channel < channels; ++channel) {
#pragma unroll 3
            for (int tap = 0; tap < count; ++tap) add_tap(source, of_tap + tap * FILTERS, tap);
            source += p.common.x_channel;
            of_tap += count * FILTERS;
        }
    }

    // ---- the whole block

    DEVICE Acc bias(int m) const {
        const T* b = static_cast<const T*>(p.common.b);
        return b == nullptr ? Acc(0) : widen(b[(group * p.common.filters + m) * p.common.b_stride]);
    }
    // Adds the bias, finishes, rounds and stores all outputs of the thread.
    DEVICE void write() const {
        T* y = static_cast<T*>(p.common.y) + group * p.common.filters * p.common.y_channel;
#pragma unroll
        for (int i = 0; i < kPixels; ++i) {
            const Pixel<Index, NDIM> at = pixel(p.common, column(i));
            if (!at.exists) continue;
            const Index offset = dot(at.q, p.common.y_stride, at.n * p.common.y_batch);
#pragma unroll
            for (int m = 0; m < FILTERS; ++m) {
                if (m >= p.common.filters) break;
                T& target = y[offset + m * p.common.y_channel];
                Acc sum = sums[i][m] + bias(m);
                if (p.common.finish.any()) sum = finished(p.common.finish, p.common.y, sum, &target);
                target = narrow<T>(sum);
            }
        }
    }
    // For each 32 taps, and in these for each group of channels: stage the weights, accumulate. Then write.
    DEVICE void run() {
        int tile;
        group = p.common.n_tiles.split(block_number(), tile);
        column0 = Index(tile) * (kThreads * kPixels);
        x = static_cast<const T*>(p.common.x) + group * p.common.channels * p.common.x_channel;
        clear(sums);
#pragma unroll 1
        for (int first = 0; first < p.all_taps; first += kTaps) {
            const int count = min(kTaps, p.all_taps - first);
            __syncthreads(); // all threads have finished reading the table
            fill_table(first, count);
            __syncthreads();
            find_inputs(count);
#pragma unroll 1
            for (Index channel = 0; channel < p.common.channels; channel += p.channels_at_once) {
                const int channels = min(p.channels_at_once, int(p.common.channels - channel));
                __syncthreads(); // all threads have left the weights: they may be overwritten
                fetch_weights(channel, channels, count);
                __syncthreads();
                add_channels(channel, channels, count);
            }
        }
        write();
    }
};

template <class T, class Acc, class Index, int NDIM, int FILTERS>
DEVICE void conv_few(const ConvFewParams<Index, NDIM>& p) {
    using Tile = FewTile<T, Acc, Index, NDIM, FILTERS>;
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ typename Tile::Tap table[Tile::kTaps];
    Tile tile{p, table, reinterpret_cast<Acc*>(shared)};
    tile.run();
}
