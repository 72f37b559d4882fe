// Conv with few output channels in a group, without a GEMM, whose tiles would be nearly empty.
//
// A thread makes all output channels of kPixels pixels, its sums in registers. Pixels of a warp are neighbours, so that
// its loads of x are coalesced. All taps of a channel come before the next channel: what one tap reads, the next ones
// find in the L1 cache. Weights come straight from w, widened into shared memory, for up to kTaps taps of some channels
// at a time; every thread of a warp reads the same ones. Which taps of a pixel lie inside x is in the bits of a mask;
// the others are predicated off.
#include "conv/gather.cuh"
#include "base/numeric.cuh"
#include "base/ptx.cuh"

template <class Index, int NDIM> struct ConvFewParams {
    Correlation<Index, NDIM> common; // its weights are w itself
    Taps<Index, NDIM> taps;
    Index w_group, w_filter, w_channel, w_stride[NDIM];
    int all_taps;
    int channels_at_once; // whose weights shared memory has room for
};

template <class T, class Acc, class Index, int NDIM, int FILTERS> struct FewTile {
    static constexpr int kThreads = 128, kPixels = 4, kTaps = 32;
    static constexpr int kVector = 16 / sizeof(Acc);
    static_assert(FILTERS % kVector == 0);

    using Vector = Elements<Acc, kVector>;
    struct Tap { Index distance, in_w, away[NDIM]; }; // from tap 0: in x, in w, in coordinates

    const ConvFewParams<Index, NDIM>& p;
    Tap* table;
    Acc* weights; // channel, tap, filter
    Index group, column0;
    const T* x;                 // of this block's group
    Index place[kPixels];       // of tap 0 in x, which may be outside
    unsigned inside_x[kPixels]; // a bit for each tap
    Acc sums[kPixels][FILTERS];

    DEVICE Index column(int i) const { return column0 + i * kThreads + threadIdx.x; }

    // ---- taps

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

    DEVICE void fetch_weights(Index first, int channels, int count) {
        const T* w = static_cast<const T*>(p.common.weights) + group * p.w_group + first * p.w_channel;
        for (int i = threadIdx.x; i < channels * count * FILTERS; i += kThreads) {
            const int m = i % FILTERS, pair = i / FILTERS, channel = pair / count, tap = pair - channel * count;
            weights[i] =
                m < p.common.filters ? widen(w[m * p.w_filter + channel * p.w_channel + table[tap].in_w]) : Acc(0);
        }
    }
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

    // ---- all of it

    DEVICE Acc bias(int m) const {
        const T* b = static_cast<const T*>(p.common.b);
        return b == nullptr ? Acc(0) : widen(b[(group * p.common.filters + m) * p.common.b_stride]);
    }
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
    DEVICE void run() {
        int tile;
        group = p.common.n_tiles.split(block_number(), tile);
        column0 = Index(tile) * (kThreads * kPixels);
        x = static_cast<const T*>(p.common.x) + group * p.common.channels * p.common.x_channel;
        clear(sums);
#pragma unroll 1
        for (int first = 0; first < p.all_taps; first += kTaps) {
            const int count = min(kTaps, p.all_taps - first);
            __syncthreads(); // all threads have left the table
            fill_table(first, count);
            __syncthreads();
            find_inputs(count);
#pragma unroll 1
            for (Index channel = 0; channel < p.common.channels; channel += p.channels_at_once) {
                const int channels = min(p.channels_at_once, int(p.common.channels - channel));
                __syncthreads(); // all threads have left the weights
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
