// x (images, groups, C, pixels), in any strides, to (images, pixels, groups, parts, C filled up with zeros): elements
// as they are, or float32 rounded to TF32 or split into two parts of TF32; and w to rows of K, with output channels
// for images and taps for pixels. A block makes 128 bytes of channels for up to 112 pixels, of one image or of several
// small ones.
//
// Where the pixels of a channel are contiguous, they are copied to shared memory as they are, in vectors of 16 bytes:
// wherever they begin, all but the ends of x go over the bus in such vectors, and a row's shift says how far after a
// multiple of 16 bytes its first pixel lies. A warp copies bundles of rows: the channels that are 16 bytes of a pixel
// of the result. Then eight lanes (fewer, where there are fewer bundles) write those of a pixel, each gathered from its
// rows. Channels a bundle apart have equal shifts, and bundles lie so in the banks that those of four pixels meet each
// bank once.
//
// Where channels are contiguous, bundles are read as they are written.
#include "conv/gemm/fragments.cuh"
#include "base/geometry.cuh"
#include "base/tickets.cuh"

constexpr int kChannelsLastThreads = 128;
constexpr int kBundles = 8;       // of a pixel, that a block makes
constexpr int kTileVectors = 968; // of shared memory
enum ChannelsLastWay { kRuns, kSingly, kBundled };

// Strides count elements; those of axes of one element are 0.
struct ChannelsLastParams {
    const void* x;
    void* x_last;
    int images, channels, pixels, filled; // C of a group, and with the zeros that follow
    int x_image, x_group, x_channel, x_pixel[3];
    Divider<int> extent[3];                     // of the pixels' axes
    int way;                                    // kRuns: pixels have a stride of 1; kBundled: channels have
    int run_image, run_group, run_channel, run; // where a row begins in its run of neighbours; how long that is
    int y_image, y_group, y_part, y_pixel;
    int tile_images, tile_pixels; // of a block; several images have equal shifts
    int pitch[2], lanes[2];       // vectors of a row in shared memory, without shifts and with them; of
                                  // the lanes that copy a row, one vector each, the power of two
    Divider<int> channel_tiles, groups, pixel_tiles;
    Divider<int> by_image; // pixels of a block's image
    Tickets tickets;
};

// Elements as they are.
template <class T> struct Copied {
    using Element = T;
    static constexpr int kParts = 1;
    static DEVICE Element part(Element value, int) { return value; }
};
using Copied16 = Copied<unsigned short>;
using Copied32 = Copied<float>;
using Copied64 = Copied<double>;

template <class T> DEVICE int bytes_after_vector(const T* place) {
    return int(reinterpret_cast<unsigned long long>(place) & 15);
}

// What one block makes.
template <class Arithmetic> struct ChannelsLastBlock {
    using T = typename Arithmetic::Element;
    static constexpr int kSize = sizeof(T), kVector = 16 / kSize;

    const ChannelsLastParams& p;
    uint4* tile;                      // rows of a bundle, bundles of an image, one vector between bundles
    int image, group, channel, pixel; // the first ones
    int images, pixels, bundles, pitch, lanes;
    const T* x;                     // the first image's and pixel's, of the group's first channel
    int own_bundle, first, at_once; // what this thread writes: of this pixel and those so far after it
    T* y;

    DEVICE ChannelsLastBlock(const ChannelsLastParams& p, uint4* tile) : p(p), tile(tile) {
        const int above = p.groups.split(p.channel_tiles.split(blockIdx.x, channel), group);
        image = p.pixel_tiles.split(above, pixel) * p.tile_images;
        channel *= kBundles * kVector;
        pixel *= p.tile_pixels;
        images = min(p.tile_images, p.images - image);
        pixels = min(p.tile_pixels, p.pixels - pixel);
        const T* begin = static_cast<const T*>(p.x);
        const bool shifted = bytes_after_vector(begin) || (p.x_image | p.x_group | p.x_channel) % kVector;
        pitch = p.pitch[shifted];
        lanes = p.lanes[shifted];
        x = begin + (long long)image * p.x_image + (long long)group * p.x_group;
        bundles = min((p.filled - channel) / kVector, kBundles);
        int shift = 3;
        while (shift > 0 && bundles <= 1 << shift - 1) --shift;
        own_bundle = threadIdx.x & (1 << shift) - 1;
        first = threadIdx.x >> shift;
        at_once = kChannelsLastThreads >> shift;
        const int place = image * p.y_image + group * p.y_group + pixel * p.y_pixel;
        y = static_cast<T*>(p.x_last) + place + channel + own_bundle * kVector;
    }
    DEVICE uint4* bundle_of(int own, int bundle) const {
        return tile + (own * kBundles + bundle) * (kVector * pitch + 1);
    }

    // Copies the rows of a bundle by vectors: `together` rows at once.
    DEVICE void copy_runs(int bundle) const {
        const int together = 32 >> lanes, row = threadIdx.x % 32 >> lanes, vector = threadIdx.x & (1 << lanes) - 1;
        if (vector >= pitch) return;
        const int first = channel + bundle * kVector;
        const int begin = image * p.run_image + group * p.run_group + first * p.run_channel + pixel; // in its run
        const int last = begin + (images - 1) * p.run_image + (kVector - 1) * p.run_channel;
        const bool inside = first + kVector <= p.channels && begin >= kVector - 1 && last + pitch * kVector <= p.run;
        const long long step = (long long)together * p.x_channel;
        for (int own = row / kVector; own < images; own += max(together / kVector, 1)) {
            int k = row % kVector;
            unsigned target = shared_address(bundle_of(own, bundle) + k * pitch + vector);
            const T* source = x + own * p.x_image + (first + k) * p.x_channel + pixel + vector * kVector;
            for (; inside && k < kVector; k += together, source += step, target += together * pitch * 16) {
                const int shift = bytes_after_vector(source) / kSize;
                if (vector * kVector - shift < pixels) copy_async<16>(target, source - shift, 16);
            }
            int place = begin + own * p.run_image + k * p.run_channel + vector * kVector;
            for (; k < kVector; k += together, source += step, target += together * pitch * 16) {
                if (first + k < p.channels) copy_end(target, source, vector * kVector, place);
                else store_shared(target, make_uint4(0, 0, 0, 0));
                place += together * p.run_channel;
            }
        }
    }
    // A vector of which a part may be outside of x: `at` pixels and `place` elements of its run are before `source`.
    DEVICE void copy_end(unsigned target, const T* source, int at, int place) const {
        const int shift = bytes_after_vector(source) / kSize;
        if (place >= shift && place - shift + kVector <= p.run) {
            if (at - shift < pixels) copy_async<16>(target, source - shift, 16);
            return;
        }
#pragma unroll 1
        for (int i = max(shift - at, 0); i < min(kVector, pixels - at + shift); ++i)
            store_shared(target + i * kSize, source[i - shift]);
    }

    // Copies the rows of a bundle by elements, without shifts.
    DEVICE void copy_singly(int bundle) const {
        const int first = channel + bundle * kVector;
        for (int i = threadIdx.x % 32; i < images * pixels; i += 32) {
            int number;
            const int own = p.by_image.split(i, number);
            const T* begin = x + offset(own, pixel + number) + first * p.x_channel;
            T* target = reinterpret_cast<T*>(bundle_of(own, bundle)) + number;
            T values[kVector];
#pragma unroll
            for (int k = 0; k < kVector; ++k) values[k] = first + k < p.channels ? begin[k * p.x_channel] : T(0);
#pragma unroll
            for (int k = 0; k < kVector; ++k) target[k * pitch * kVector] = values[k];
        }
    }
    DEVICE int offset(int own, int number) const {
        int place[3];
        unravel<3>(number, p.extent, place);
        return dot(place, p.x_pixel, own * p.x_image);
    }

    // Writes this thread's bundle of each pixel from the rows in shared memory.
    DEVICE void write_rows() const {
        int rows[kVector]; // bytes from a bundle to its rows' first pixels
#pragma unroll
        for (int k = 0; k < kVector; ++k) // a block's first channel and pixel are whole vectors from these
            rows[k] = k * pitch * 16 + (p.way == kRuns ? bytes_after_vector(x + k * p.x_channel) : 0);
        for (int i = first; i < images * pixels; i += at_once) {
            int number;
            const int own = p.by_image.split(i, number);
            const char* place = reinterpret_cast<const char*>(bundle_of(own, own_bundle)) + number * kSize;
            alignas(16) T values[kVector];
#pragma unroll
            for (int k = 0; k < kVector; ++k) values[k] = *reinterpret_cast<const T*>(place + rows[k]);
            write(own, number, values);
        }
    }
    // The same from x, where a bundle's channels are neighbours.
    DEVICE void write_bundles() const {
        constexpr int kTogether = 4;
        const T* begin = x + channel + own_bundle * kVector;
        const int found = p.channels - channel - own_bundle * kVector;
        for (int i = first; i < images * pixels; i += kTogether * at_once) {
            alignas(16) T values[kTogether][kVector];
            int own[kTogether], number[kTogether];
#pragma unroll
            for (int j = 0; j < kTogether; ++j) {
                own[j] = p.by_image.split(i + j * at_once, number[j]);
                if (i + j * at_once < images * pixels)
                    load(begin + offset(own[j], pixel + number[j]), found, values[j]);
            }
#pragma unroll
            for (int j = 0; j < kTogether; ++j)
                if (i + j * at_once < images * pixels) write(own[j], number[j], values[j]);
        }
    }
    static DEVICE void load(const T* begin, int found, T (&values)[kVector]) {
        if (bytes_after_vector(begin) == 0 && found >= kVector) {
            *reinterpret_cast<uint4*>(values) = *reinterpret_cast<const uint4*>(begin);
            return;
        }
#pragma unroll
        for (int k = 0; k < kVector; ++k) values[k] = k < found ? begin[k] : T(0);
    }
    DEVICE void write(int own, int number, const T (&values)[kVector]) const {
        T* target = y + (own * p.y_image + number * p.y_pixel);
#pragma unroll
        for (int part = 0; part < Arithmetic::kParts; ++part) {
            alignas(16) T parts[kVector];
#pragma unroll
            for (int k = 0; k < kVector; ++k) parts[k] = Arithmetic::part(values[k], part);
            *reinterpret_cast<uint4*>(target + part * p.y_part) = *reinterpret_cast<const uint4*>(parts);
        }
    }
};

template <class Arithmetic> DEVICE void channels_last(const ChannelsLastParams& p) {
    __shared__ uint4 tile[kTileVectors];
    p.tickets.clear();
    const ChannelsLastBlock<Arithmetic> block(p, tile);
    const bool writes = block.own_bundle < block.bundles;
    if (p.way == kBundled) {
        if (writes) block.write_bundles();
        return;
    }
    for (int i = threadIdx.x / 32; i < block.bundles; i += kChannelsLastThreads / 32) {
        if (p.way == kRuns) block.copy_runs(i);
        else block.copy_singly(i);
    }
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
    if (writes) block.write_rows();
}
