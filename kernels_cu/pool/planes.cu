// AveragePool and MaxPool with a single window per channel (GlobalAveragePool, GlobalMaxPool): parallel reductions.
// Many threads share one window; long windows are divided into parts, which a second launch reduces in order.
//
// NCHW (reduce_planes): GROUP threads reduce a window or a part of it: a strided loop over the elements, then warp
// shuffles, then shared memory. Channels last (reduce_pixels): each lane has its own channel, and the block's warps
// divide the elements. Loads are coalesced in both cases; bound by memory.
//
// Which elements a thread adds depends only on the window and the number of channels. So an image's averages have the
// same bits in any batch. With Indices, of equal elements the lower number in the window wins.
#include "base/geometry.cuh"
#include "base/numeric.cuh"
#include "base/ptx.cuh"
#include "pool/average.cuh"
#include "pool/packed.cuh"

// Outputs are numbered by image, channel, and the position along one more axis that windows do not cover ("inner").
// Strides count elements.
struct PlanePoolParams {
    const void* x;
    void* y;
    void* sums;        // partial results (part, output); unused if there is one part
    double counts;     // of averages: taps to divide by
    long long x_first; // offset of the first window's first element in x
    long long x_batch, x_channel, x_inner;
    long long y_batch, y_channel, y_inner;
    int items;                   // parts of all outputs (channels last: of all tiles of channels)
    int outputs, elements, each; // elements per window, per part
    int x_stride[3];
    int flat;                                   // the window is a single run along the last axis
    Divider<int> parts, channels, inner, tiles; // tiles: of 32 channels
    Divider<int> extent[3];                     // extents of the window
};

// The same with Indices.
struct NumberedPlaneParams : PlanePoolParams {
    long long* indices;
    int* places; // partial results: numbers of the maxima within their window
    long long place_first, place_batch, place_channel, place_inner; // Index distances
    long long indices_batch, indices_channel, indices_inner;
    int place_stride[3];
};

// Reductions: `none` is the identity, `taken` adds an element, `merged` a partial result, `behind` fetches that of
// another lane. `put` and `of_part` store and load partial results; `result` is the final value.
template <class T, class Acc> struct Averages {
    using Element = T;
    using Value = Acc;

    static DEVICE Acc none(int) { return 0; }
    static DEVICE Acc taken(Acc sum, T element, int) { return sum + widen(element); }
    static DEVICE Acc merged(Acc sum, Acc other) { return sum + other; }
    static DEVICE Acc behind(Acc sum, int distance) { return shuffle_down(sum, distance); }
    template <class Params> static DEVICE void put(const Params& p, long long part, Acc sum) {
        static_cast<Acc*>(p.sums)[part] = sum;
    }
    template <class Params> static DEVICE Acc of_part(const Params& p, long long part) {
        return static_cast<const Acc*>(p.sums)[part];
    }
    template <class Params> static DEVICE T result(const Params& p, Acc sum, int, int, int) {
        return average<T>(sum, Acc(p.counts));
    }
};
// MaxPool without Indices.
template <class T> struct Maxima {
    using Element = T;
    using Value = T;

    static DEVICE T none(int) { return least<T>(); }
    static DEVICE T taken(T maximum, T element, int) { return larger(maximum, element); }
    static DEVICE T merged(T maximum, T other) { return larger(maximum, other); }
    static DEVICE T behind(T maximum, int distance) {
        if constexpr (sizeof(T) >= 4) return shuffle_down(maximum, distance);
        else return of_bits<T>(shuffle_down(bits_of(maximum), distance));
    }
    template <class Params> static DEVICE void put(const Params& p, long long part, T maximum) {
        static_cast<T*>(p.sums)[part] = maximum;
    }
    template <class Params> static DEVICE T of_part(const Params& p, long long part) {
        return static_cast<const T*>(p.sums)[part];
    }
    template <class Params> static DEVICE T result(const Params&, T maximum, int, int, int) { return maximum; }
};
// With Indices: elements are numbered row-major within the window. A thread begins with the number of its first element
// at the identity value, which every element exceeds or equals.
constexpr int kNoNumber = 0x7fffffff;
template <class T> struct NumberedMaxima {
    using Element = T;
    using Value = Maximum<T, int, true>;

    static DEVICE Value none(int number) { return {least<T>(), number}; }
    static DEVICE Value taken(Value maximum, T element, int number) {
        maximum.take(element, number);
        return maximum;
    }
    static DEVICE Value merged(Value maximum, const Value& other) {
        maximum.merge(other);
        return maximum;
    }
    static DEVICE Value behind(const Value& maximum, int distance) {
        return {Maxima<T>::behind(maximum.value, distance), shuffle_down(maximum.place, distance)};
    }
    static DEVICE void put(const NumberedPlaneParams& p, long long part, const Value& maximum) {
        static_cast<T*>(p.sums)[part] = maximum.value;
        p.places[part] = maximum.place;
    }
    static DEVICE Value of_part(const NumberedPlaneParams& p, long long part) {
        return {static_cast<const T*>(p.sums)[part], p.places[part]};
    }
    // Stores the Index, and returns the maximum.
    static DEVICE T result(const NumberedPlaneParams& p, const Value& maximum, int image, int channel, int inner) {
        int at[3];
        unravel(maximum.place, p.extent, at);
        p.indices[image * p.indices_batch + channel * p.indices_channel + inner * p.indices_inner] =
            p.place_first + image * p.place_batch + channel * p.place_channel + inner * p.place_inner
            + dot(at, p.place_stride);
        return maximum.value;
    }
};

// Stores the final value of an output.
template <class By, class Params> DEVICE void write(const Params& p, int output, const typename By::Value& value) {
    int channel, inner;
    const int image = p.channels.split(p.inner.split(output, inner), channel);
    static_cast<typename By::Element*>(p.y)[image * p.y_batch + channel * p.y_channel + inner * p.y_inner] =
        By::result(p, value, image, channel, inner);
}

// Stores the result of a window, or of one of its parts.
template <class By, class Params>
DEVICE void put(const Params& p, int output, int part, const typename By::Value& value) {
    if (p.parts.divisor > 1) By::put(p, static_cast<long long>(part) * p.outputs + output, value);
    else write<By>(p, output, value);
}

// Reduces every STEP-th element of a window in [first, end).
template <int STEP, class By>
DEVICE typename By::Value reduced(const PlanePoolParams& p, const typename By::Element* x, int first, int end) {
    typename By::Value value = By::none(first < end ? first : kNoNumber);
    if (p.flat) {
#pragma unroll 8
        for (int element = first; element < end; element += STEP)
            value = By::taken(value, x[element * p.x_stride[2]], element);
        return value;
    }
#pragma unroll 4
    for (int element = first; element < end; element += STEP) {
        int at[3];
        unravel(element, p.extent, at);
        value = By::taken(value, x[dot(at, p.x_stride)], element);
    }
    return value;
}

// The first element of an output's window.
template <class T> DEVICE const T* window_of(const PlanePoolParams& p, int image, int channel, int inner) {
    return static_cast<const T*>(p.x) + (p.x_first + image * p.x_batch + channel * p.x_channel + inner * p.x_inner);
}

// NCHW: GROUP threads per window or part.
template <class By, int GROUP, class Params> DEVICE void reduce_planes(const Params& p) {
    using Value = typename By::Value;
    // the block size that the planner uses
    constexpr int kThreads = 256, kGroups = kThreads / GROUP, kLanes = GROUP < 32 ? GROUP : 32;
    const int thread = int(threadIdx.x), lane = thread % GROUP;
    const int number = int(blockIdx.x) * kGroups + thread / GROUP;
    const bool exists = number < p.items;
    int part, inner, channel;
    const int output = p.parts.split(exists ? number : 0, part);
    const int image = p.channels.split(p.inner.split(output, inner), channel);
    const int first = part * p.each, end = exists ? min(first + p.each, p.elements) : 0;
    const auto* window = window_of<typename By::Element>(p, image, channel, inner);
    Value value = reduced<GROUP, By>(p, window, first + lane, end);
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2)
        value = By::merged(value, By::behind(value, distance));
    if constexpr (GROUP > 32) {
        __shared__ Value of_warps[GROUP / 32];
        if (thread % 32 == 0) of_warps[thread / 32] = value;
        __syncthreads();
        if (thread != 0) return;
#pragma unroll
        for (int warp = 1; warp < GROUP / 32; ++warp) value = By::merged(value, of_warps[warp]);
    }
    if (exists && lane == 0) put<By>(p, output, part, value);
}

// Channels last: one channel per lane.
template <class By, class Params> DEVICE void reduce_pixels(const Params& p) {
    constexpr int kThreads = 256, kWarps = kThreads / 32; // the block size that the planner uses
    __shared__ typename By::Value of_warps[kWarps][32];
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    int tile, part, inner;
    const int image = p.inner.split(p.parts.split(p.tiles.split(int(blockIdx.x), tile), part), inner);
    const int channel = tile * 32 + lane, first = part * p.each, end = min(first + p.each, p.elements);
    typename By::Value value = By::none(kNoNumber);
    if (channel < int(p.channels.divisor)) {
        const auto* window = window_of<typename By::Element>(p, image, channel, inner);
        value = reduced<kWarps, By>(p, window, first + warp, end);
    }
    of_warps[warp][lane] = value;
    __syncthreads();
    if (warp != 0 || channel >= int(p.channels.divisor)) return;
#pragma unroll
    for (int other = 1; other < kWarps; ++other) value = By::merged(value, of_warps[other][lane]);
    put<By>(p, (image * int(p.channels.divisor) + channel) * int(p.inner.divisor) + inner, part, value);
}

// Second launch: reduces the parts of every output, one thread each.
struct PlanePartsParams {
    void* sums; // partial results (part, output)
    void* y;
    double counts; // of averages: taps to divide by
    long long y_batch, y_channel, y_inner;
    int parts, outputs;
    Divider<int> channels, inner;
};

// `parts`: partial results per output.
template <class By, class Params> DEVICE void reduce_parts(const Params& p, int parts) {
    const int output = int(blockIdx.x) * int(blockDim.x) + int(threadIdx.x);
    if (output >= p.outputs) return;
    typename By::Value value = By::of_part(p, output);
#pragma unroll 4
    for (int number = 1; number < parts; ++number)
        value = By::merged(value, By::of_part(p, static_cast<long long>(number) * p.outputs + output));
    write<By>(p, output, value);
}

template <class T, class Acc, int GROUP> DEVICE void average_planes(const PlanePoolParams& p) {
    reduce_planes<Averages<T, Acc>, GROUP>(p);
}
template <class T, class Acc> DEVICE void average_pixels(const PlanePoolParams& p) {
    reduce_pixels<Averages<T, Acc>>(p);
}
template <class T, class Acc> DEVICE void average_parts(const PlanePartsParams& p) {
    reduce_parts<Averages<T, Acc>>(p, p.parts);
}

template <class T, int GROUP> DEVICE void max_planes(const PlanePoolParams& p) { reduce_planes<Maxima<T>, GROUP>(p); }
template <class T> DEVICE void max_pixels(const PlanePoolParams& p) { reduce_pixels<Maxima<T>>(p); }
template <class T> DEVICE void max_parts(const PlanePartsParams& p) { reduce_parts<Maxima<T>>(p, p.parts); }

template <class T, int GROUP> DEVICE void max_planes_indices(const NumberedPlaneParams& p) {
    reduce_planes<NumberedMaxima<T>, GROUP>(p);
}
template <class T> DEVICE void max_pixels_indices(const NumberedPlaneParams& p) {
    reduce_pixels<NumberedMaxima<T>>(p);
}
template <class T> DEVICE void max_parts_indices(const NumberedPlaneParams& p) {
    reduce_parts<NumberedMaxima<T>>(p, int(p.parts.divisor));
}
