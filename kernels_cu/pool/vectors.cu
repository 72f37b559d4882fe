// MaxPool and AveragePool with K x K windows S elements apart, over rows of whole vectors.
//
// A thread owns the columns of x in one vector, those of some neighbouring outputs, in a strip of STRIP rows of y. It
// loads each row of x that they need once, and all of them together. What a window has beyond its thread's columns
// comes from the neighbouring lanes: the first or the last lane of a warp, or both, stand there for that alone.
//
// Values alone: vectors have 16 bytes. Which of equal elements comes first does not matter, and so maxima are taken
// down the columns first, of short elements two at a time, and then once along the row; sums likewise. With Indices:
// vectors have the columns of two outputs, whose places are 16 bytes, and maxima are taken along every row first, then
// down. Slices of a 3-D window come one after another; no window is empty. Where x begins between two vectors, elements
// are loaded one by one.
#include "base/geometry.cuh"
#include "pool/average.cuh"
#include "pool/packed.cuh"

// Axes are depth, height and width; along the width x and y have a stride of 1. Strides count elements.
struct VectorPoolParams {
    const void* x;
    void* y;
    long long* indices;
    long long plane;                              // numbers per channel, or 0
    int items;                                    // strips times vectors
    int x_extent[3], y_extent[3], kernel, stride; // the window's, along the depth
    int pad[3];
    int x_batch, x_channel, x_stride[2];
    int y_batch, y_channel, y_stride[2];
    int indices_batch, indices_channel, indices_stride[2];
    Divider<int> vectors, strips, depths, channels; // of a row, a slice, a plane, an image
};

struct AverageVectorPoolParams : VectorPoolParams { Counted<int, 3> counted; };

// What a thread makes: its outputs' first row and column, and where its plane begins.
template <class T> struct Strip {
    int plane, row, column, vector, slice;
    const T* x;
    T* y;
    long long* indices;
};

template <int STRIP, class T> DEVICE Strip<T> strip_of(const VectorPoolParams& p, int item, int outputs) {
    Strip<T> strip;
    int channel, depth;
    int above = p.vectors.split(item, strip.vector);
    above = p.depths.split(p.strips.split(above, strip.row), depth);
    const int image = p.channels.split(above, channel);
    strip.plane = above;
    strip.row *= STRIP;
    strip.column = strip.vector * outputs;
    strip.slice = depth * p.stride - p.pad[0];
    strip.x = static_cast<const T*>(p.x) + image * p.x_batch + channel * p.x_channel;
    strip.y = static_cast<T*>(p.y) + image * p.y_batch + channel * p.y_channel + depth * p.y_stride[0]
            + strip.row * p.y_stride[1] + strip.column;
    strip.indices = p.indices + image * p.indices_batch + channel * p.indices_channel + depth * p.indices_stride[0]
                  + strip.row * p.indices_stride[1] + strip.column;
    return strip;
}

// The maxima, or the sums, down the columns of a strip's windows.
template <int K, int S, class T, class Taken, int STRIP>
DEVICE void take_rows(const VectorPoolParams& p, const Strip<T>& strip, bool loads, Taken (&columns)[STRIP]) {
    constexpr int kVector = Taken::kVector, kRows = (STRIP - 1) * S + K;
    const int first = strip.row * S - p.pad[1];
    const int end = loads ? min(strip.slice + p.kernel, p.x_extent[0]) : 0;
#pragma unroll 1
    for (int slice = max(strip.slice, 0); slice < end; ++slice) {
        const T* x = strip.x + slice * p.x_stride[0] + strip.vector * kVector;
        uint4 rows[kRows];
#pragma unroll
        for (int i = 0; i < kRows; ++i)
            if (inside(first + i, p.x_extent[1]))
                rows[i] = *reinterpret_cast<const uint4*>(x + (first + i) * p.x_stride[1]);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            if (!inside(first + i, p.x_extent[1])) continue;
#pragma unroll
            for (int out = 0; out < STRIP; ++out)
                if (out * S <= i && i < out * S + K) columns[out].take(rows[i]);
        }
    }
}

// The elements that the windows of a row need, from the first window's first one on: this lane's COUNT and, where `pad`
// has windows reach there, the neighbouring lanes'. The first and the last lane of a row have `none` on that side.
template <int AROUND, int COUNT, class T, class Own>
DEVICE void look_around(const Own& own, int pad, bool first, bool last, T none, T (&elements)[COUNT + 2 * AROUND]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) elements[AROUND + i] = own[i];
#pragma unroll
    for (int i = 0; i < AROUND; ++i) {
        const T before = from_lane_before(T(own[COUNT - AROUND + i])), after = from_lane_after(T(own[i]));
        elements[i] = first ? none : before;
        elements[AROUND + COUNT + i] = last ? none : after;
    }
    // Moved by the pad, which the compiler cannot know: registers have no index.
#pragma unroll
    for (int distance = AROUND; distance > 0; --distance) {
        if (pad + distance > AROUND) continue;
#pragma unroll
        for (int i = 0; i + 1 < COUNT + 2 * AROUND; ++i) elements[i] = elements[i + 1];
    }
}

template <class T, int OUTPUTS>
DEVICE void write_row(const VectorPoolParams& p, int column, T* target, const T (&row)[OUTPUTS]) {
    if (column + OUTPUTS <= p.y_extent[2]
        && reinterpret_cast<unsigned long long>(target) % (OUTPUTS * sizeof(T)) == 0) {
        store_row(target, row);
        return;
    }
#pragma unroll
    for (int i = 0; i < OUTPUTS; ++i)
        if (column + i < p.y_extent[2]) target[i] = row[i];
}

// One output after another, element by element: put(row, column, what was taken) receives them.
template <int K, int S, int STRIP, int OUTPUTS, class T, class Taken, class Put>
DEVICE void pool_singly(const VectorPoolParams& p, const Strip<T>& strip, const Taken& nothing, const Put& put) {
    const int end_row = min(strip.row + STRIP, p.y_extent[1]), end_column = min(strip.column + OUTPUTS, p.y_extent[2]);
#pragma unroll 1
    for (int q = strip.row; q < end_row; ++q)
#pragma unroll 1
        for (int out = strip.column; out < end_column; ++out) {
            Taken taken = nothing;
            const int slice = max(strip.slice, 0), row = max(q * S - p.pad[1], 0), column = max(out * S - p.pad[2], 0);
#pragma unroll 1
            for (int i = slice; i < min(strip.slice + p.kernel, p.x_extent[0]); ++i)
#pragma unroll 1
                for (int j = row; j < min(q * S - p.pad[1] + K, p.x_extent[1]); ++j)
#pragma unroll 1
                    for (int k = column; k < min(out * S - p.pad[2] + K, p.x_extent[2]); ++k)
                        taken.merge(Taken::of(strip.x[i * p.x_stride[0] + j * p.x_stride[1] + k],
                                              (i * p.x_extent[1] + j) * p.x_extent[2] + k));
            put(q - strip.row, out - strip.column, taken);
        }
}

template <int K, int S, int STRIP, int OUTPUTS, bool INDICES, class T>
DEVICE void maxima_singly(const VectorPoolParams& p, const Strip<T>& strip) {
    pool_singly<K, S, STRIP, OUTPUTS>(
        p, strip, nothing<T, INDICES>(), [&](int row, int column, const Maximum<T, int, INDICES>& maximum) {
            strip.y[row * p.y_stride[1] + column] = maximum.value;
            if constexpr (INDICES)
                strip.indices[row * p.indices_stride[1] + column] = strip.plane * p.plane + maximum.place;
        });
}

// This thread's strip; lanes that do not write stand on their neighbours', and some outputs beyond the last vector.
template <class T> struct Share {
    Strip<T> strip;
    bool loads, writes, first, last; // the last two: of a row
};

template <int THREADS, int K, int S, int STRIP, class T>
DEVICE Share<T> share_of(const VectorPoolParams& p, int outputs) {
    const int before = p.pad[2] > 0, after = K - S > p.pad[2], lane = int(threadIdx.x) % 32;
    const int warp = int(blockIdx.x) * (THREADS / 32) + int(threadIdx.x) / 32;
    const int item = warp * (32 - before - after) + lane - before;
    Share<T> share;
    const bool exists = inside(item, p.items);
    share.writes = exists && lane >= before && lane < 32 - after;
    share.strip = strip_of<STRIP, T>(p, exists ? item : 0, outputs);
    share.loads = exists && share.strip.vector * outputs * S < p.x_extent[2];
    share.first = share.strip.vector == 0;
    share.last = share.strip.vector + 1 == int(p.vectors.divisor);
    return share;
}

template <class T, int K, int S, int STRIP> DEVICE void max_pool_vectors(const VectorPoolParams& p) {
    constexpr int kThreads = 128, kVector = Columns<T>::kVector, kOutputs = kVector / S; // threads as the plan launches
    const Share<T> share = share_of<kThreads, K, S, STRIP, T>(p, kOutputs);
    const Strip<T>& strip = share.strip;
    if (reinterpret_cast<unsigned long long>(p.x) % 16 != 0) {
        if (share.writes) maxima_singly<K, S, STRIP, kOutputs, false>(p, strip);
        return;
    }
    Columns<T> maxima[STRIP];
    take_rows<K, S>(p, strip, share.loads, maxima);
    T rows[STRIP][kOutputs];
#pragma unroll
    for (int out = 0; out < STRIP; ++out) {
        T elements[kVector + 2 * (K - S)];
        look_around<K - S, kVector>(maxima[out], p.pad[2], share.first, share.last, least<T>(), elements);
#pragma unroll
        for (int i = 0; i < kOutputs; ++i) {
            rows[out][i] = elements[i * S];
#pragma unroll
            for (int tap = 1; tap < K; ++tap) rows[out][i] = larger(rows[out][i], elements[i * S + tap]);
        }
    }
    if (!share.writes) return;
#pragma unroll
    for (int out = 0; out < STRIP; ++out)
        if (strip.row + out < p.y_extent[1]) write_row(p, strip.column, strip.y + out * p.y_stride[1], rows[out]);
}

// ---- averages

template <class T, class Acc, int K, int S, int STRIP>
DEVICE void average_pool_vectors(const AverageVectorPoolParams& p) {
    using Taken = ColumnSums<T, Acc>;
    constexpr int kThreads = 128, kVector = Taken::kVector, kOutputs = kVector / S; // threads as the plan launches
    const Share<T> share = share_of<kThreads, K, S, STRIP, T>(p, kOutputs);
    const Strip<T>& strip = share.strip;
    const Acc slices = count(p.counted, 0, strip.slice + p.pad[0]);
    const auto counts = [&](int row, int column) {
        return slices * Acc(count(p.counted, 1, (strip.row + row) * S))
             * Acc(count(p.counted, 2, (strip.column + column) * S));
    };
    if (reinterpret_cast<unsigned long long>(p.x) % 16 != 0) {
        if (!share.writes) return;
        pool_singly<K, S, STRIP, kOutputs>(p, strip, Sum<T, Acc>{0}, [&](int row, int column, const Sum<T, Acc>& sum) {
            strip.y[row * p.y_stride[1] + column] = average<T>(sum.value, counts(row, column));
        });
        return;
    }
    Taken sums[STRIP];
    take_rows<K, S>(p, strip, share.loads, sums);
#pragma unroll
    for (int out = 0; out < STRIP; ++out) {
        Acc elements[kVector + 2 * (K - S)];
        look_around<K - S, kVector>(sums[out], p.pad[2], share.first, share.last, Acc(0), elements);
        if (!share.writes || strip.row + out >= p.y_extent[1]) continue;
        T row[kOutputs];
#pragma unroll
        for (int i = 0; i < kOutputs; ++i) {
            Acc sum = elements[i * S];
#pragma unroll
            for (int tap = 1; tap < K; ++tap) sum += elements[i * S + tap];
            row[i] = average<T>(sum, counts(out, i));
        }
        write_row(p, strip.column, strip.y + out * p.y_stride[1], row);
    }
}

// ---- with Indices

template <class T, int K, int S, int STRIP, int OUTPUTS>
DEVICE void take_slice(const VectorPoolParams& p, const Share<T>& share, int slice, const int (&starts)[OUTPUTS],
                       Maximum<T, int, true> (&windows)[STRIP][OUTPUTS]) {
    constexpr int kVector = OUTPUTS * S, kRows = (STRIP - 1) * S + K;
    using Row = Neighbours<T, kVector>;
    const int first = share.strip.row * S - p.pad[1];
    const T* x = share.strip.x + slice * p.x_stride[0] + share.strip.vector * kVector;
    const bool met = share.loads && inside(slice, p.x_extent[0]);
    Row rows[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < kVector; ++j) rows[i].elements[j] = least<T>();
        if (met && inside(first + i, p.x_extent[1]))
            rows[i] = *reinterpret_cast<const Row*>(x + (first + i) * p.x_stride[1]);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        T elements[kVector + 2 * (K - S)];
        look_around<K - S, kVector>(rows[i], p.pad[2], share.first, share.last, least<T>(), elements);
        const int place = (slice * p.x_extent[1] + first + i) * p.x_extent[2];
#pragma unroll
        for (int j = 0; j < OUTPUTS; ++j) {
            Maximum<T, int, true> maximum{elements[j * S], place + starts[j]};
#pragma unroll
            for (int tap = 1; tap < K; ++tap) maximum.take(elements[j * S + tap], place + starts[j] + tap);
#pragma unroll
            for (int out = 0; out < STRIP; ++out)
                if (out * S <= i && i < out * S + K) windows[out][j].take(maximum.value, maximum.place);
        }
    }
}

template <class T, int K, int S, int STRIP> DEVICE void max_pool_pairs(const VectorPoolParams& p) {
    constexpr int kThreads = 128, kOutputs = 2 * S * sizeof(T) > 16 ? 1 : 2; // threads as the plan launches them
    const Share<T> share = share_of<kThreads, K, S, STRIP, T>(p, kOutputs);
    const Strip<T>& strip = share.strip;
    if (reinterpret_cast<unsigned long long>(p.x) % (kOutputs * S * sizeof(T)) != 0) {
        if (share.writes) maxima_singly<K, S, STRIP, kOutputs, true>(p, strip);
        return;
    }
    // Windows of nothing that exceeds the least have the number of their first element.
    int starts[kOutputs];
    Maximum<T, int, true> windows[STRIP][kOutputs];
#pragma unroll
    for (int j = 0; j < kOutputs; ++j) {
        starts[j] = (strip.column + j) * S - p.pad[2];
#pragma unroll
        for (int out = 0; out < STRIP; ++out) {
            const int row = max((strip.row + out) * S - p.pad[1], 0);
            windows[out][j] = {least<T>(),
                               (max(strip.slice, 0) * p.x_extent[1] + row) * p.x_extent[2] + max(starts[j], 0)};
        }
    }
#pragma unroll 1
    for (int slice = 0; slice < p.kernel; ++slice) take_slice<T, K, S>(p, share, strip.slice + slice, starts, windows);
    if (!share.writes) return;
#pragma unroll
    for (int out = 0; out < STRIP; ++out) {
        if (strip.row + out >= p.y_extent[1]) continue;
        T values[kOutputs];
        long long numbers[kOutputs];
#pragma unroll
        for (int j = 0; j < kOutputs; ++j) {
            values[j] = windows[out][j].value;
            numbers[j] = strip.plane * p.plane + windows[out][j].place;
        }
        write_row(p, strip.column, strip.y + out * p.y_stride[1], values);
        write_row(p, strip.column, strip.indices + out * p.indices_stride[1], numbers);
    }
}
