// Transposes an array to channels last: x (images, groups, C, pixels), with any strides, to (images, pixels, groups,
// parts, C zero-padded). It also converts: unchanged, float32 rounded to TF32, or split into two TF32 parts. It
// prepares x for kernels that need contiguous channels, and packs weights for wgmma (output channels are images, taps
// are pixels).
//
// Block: 128 bytes of channels of up to 112 pixels, of one image or of several small ones. A "bundle" is the 16 bytes
// of channels of one pixel of the result, that is, that number of rows of x.
//
//     pixels contiguous (kRuns):    x rows --16-byte cp.async--> shared rows, then 8 lanes gather and write a pixel
//     anything else (kSingly):      x --element by element--> shared rows, then the same
//     channels contiguous (kBundled): x bundles --> registers --> result
//
// With kRuns, rows begin at any address. Only aligned 16-byte vectors are copied, except at the ends of x; a row's
// shift is the distance of its first pixel from the vector's beginning. Channels a bundle apart have equal shifts, and
// bundles are placed so that those of four pixels fall into different banks. Bound by memory: each element is read and
// written once.
#include "conv/gemm/fragments.cuh"
#include "base/geometry.cuh"
#include "base/tickets.cuh"

constexpr int kChannelsLastThreads = 128;
constexpr int kBundles = 8;       // bundles of a pixel per block
constexpr int kTileVectors = 968; // 16-byte vectors of shared memory
enum ChannelsLastWay { kRuns, kSingly, kBundled };

// Strides count elements; those of axes with one element are 0.
struct ChannelsLastParams {
    const void* x;
    void* x_last;
    int images, channels, pixels, filled; // C of a group, unpadded and padded
    int x_image, x_group, x_channel, x_pixel[3];
    Divider<int> extent[3]; // extents of the pixels' axes
    int way;                // a ChannelsLastWay. kRuns: pixels have stride 1; kBundled: channels have stride 1
    // position of a row in its run of contiguous elements, per image, group and channel; length of the run
    int run_image, run_group, run_channel, run;
    int y_image, y_group, y_part, y_pixel; // strides of the result
    int tile_images, tile_pixels;          // images and pixels per block; several images only if their shifts are equal
    // 16-byte vectors per row in shared memory, without and with shifts; log2 of the lanes that copy a row, one vector
    // each
    int pitch[2], lanes[2];
    Divider<int> channel_tiles, groups, pixel_tiles; // blocks along channels, groups and pixels
    Divider<int> by_image;                           // pixels per image of a block
    Tickets tickets;                                 // counters to set to zero for the next launch
};

// Conversions, with the interface of conv/gemm/fragments.cuh. Copied: elements stay as they are.
template <class T> struct Copied {
    using Element = T;
    static constexpr int kParts = 1;
    static DEVICE Element part(Element value, int) { return value; }
};
using Copied16 = Copied<unsigned short>;
using Copied32 = Copied<float>;
using Copied64 = Copied<double>;

// Distance in bytes of an address from the last multiple of 16.
template <class T> DEVICE int bytes_after_vector(const T* place) {
    return int(reinterpret_cast<unsigned long long>(place) & 15);
}

// One block's part of the result.
template <class Arithmetic> struct ChannelsLastBlock {
    using T = typename Arithmetic::Element;
    static constexpr int kSize = sizeof(T), kVector = 16 / kSize;

    const ChannelsLastParams& p;
    uint4* tile;                      // [image][bundle][row of a bundle], with one unused vector between bundles
    int image, group, channel, pixel; // the block's first image, group, channel and pixel
    int images, pixels, bundles, pitch, lanes; // what exists of them; pitch and lanes of this block's shifts
    const T* x;                                // first channel of the group, in the block's first image
    int own_bundle, first, at_once;            // this thread writes this bundle of pixels first, first + at_once, ...
    T* y;

    // Decodes the block's number, and finds the share of this thread.
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
    // Rows of one bundle of one image in shared memory.
    DEVICE uint4* bundle_of(int own, int bundle) const {
        return tile + (own * kBundles + bundle) * (kVector * pitch + 1);
    }

    // Copies the rows of a bundle by 16-byte vectors. A warp copies `together` rows at once.
    DEVICE void copy_runs(int bundle) const {
        const int together = 32 >> lanes, row = threadIdx.x % 32 >> lanes, vector = threadIdx.x & (1 << lanes) - 1;
        if (vector >= pitch) return;
        const int first = channel + bundle * kVector;
        // position in its run
        const int begin = image * p.run_image + group * p.run_group + first * p.run_channel + pixel;
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
    // Copies one vector at an end of x, which may be partly outside: `at` pixels of the row and `place` elements of the
    // run come before `source`.
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

    // Copies the rows of a bundle element by element, without shifts.
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
    // Offset in x of a pixel of one of the block's images.
    DEVICE int offset(int own, int number) const {
        int place[3];
        unravel<3>(number, p.extent, place);
        return dot(place, p.x_pixel, own * p.x_image);
    }

    // Writes this thread's bundle of each pixel, gathered from the rows in shared memory.
    DEVICE void write_rows() const {
        int rows[kVector]; // bytes between a bundle's beginning and the first pixel of each row
#pragma unroll
        // these addresses stand for all pixels: the block's first one is a whole number of vectors away
        for (int k = 0; k < kVector; ++k)
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
    // Writes this thread's bundle of each pixel straight from x, whose channels are contiguous.
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
    // Loads a bundle: as one vector if aligned and complete, else element by element.
    static DEVICE void load(const T* begin, int found, T (&values)[kVector]) {
        if (bytes_after_vector(begin) == 0 && found >= kVector) {
            *reinterpret_cast<uint4*>(values) = *reinterpret_cast<const uint4*>(begin);
            return;
        }
#pragma unroll
        for (int k = 0; k < kVector; ++k) values[k] = k < found ? begin[k] : T(0);
    }
    // Converts a bundle and writes each of its parts as one vector.
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

// The kernel. It also clears the tickets of the next launch.
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
