// What a launch of conv/wgmma/slices.cu gets.
//
// K runs in slices of one tap and 128 bytes of channels: BLOCK_K is 64 of 16-bit elements, 32 of float32. Some kernels
// of strips take 64 bytes.
#pragma once
#include "base/hopper.cuh"
#include "conv/phases.cuh"
#include "conv/gemm/split_k.cuh"

// How slices are fetched. Axes are D, H, W; those in front that a problem does not have are of one element.
struct Loading {
    int axes;                    // spatial axes of x_map: 1, 2 or 3
    int lower[3];                // input coordinate from which taps are counted, of column 0
    Divider<int> channel_slices; // of a tap
    int last_steps;              // of the last one of them: those of 32 bytes that have channels
    int parts;           // of every number: 1, or 2, a large and a small one; then a slice is multiplied three times
    int x_group, x_part; // channels of x_map from group to group, from part to part
    Divider<int> w_tap;  // elements of a row of weights from tap to tap
};

// `Problem` is ConvParams<int, 3> or ConvTransposeParams<int, 3>; its pitch is that of one output channel's weights.
template <class Problem> struct WgmmaParams {
    CUtensorMap x_map;
    CUtensorMap w_map;
    Problem problem;
    Loading loading;
    Splits splits; // of one split where no tiles are divided
    int items;     // whole tiles, and divided ones times splits
};

// How x is fetched in strips (conv/wgmma/strips.cuh). Tiles are counted ((n * D + d) * H + h) * W + w.
struct Strips {
    static constexpr bool kApart = true; // each product of a number's parts has a strip of its own

    Divider<int> extent[3]; // tiles along D, H and W of an image
    int rows, columns;      // of the output, from a tile to the next, along H and along W
    Divider<int> taps[3];   // strips of a slice of channels: taps, those along H once where they share strips
    int inner;              // taps that share a strip
    int pieces;             // of a strip of rows
    int piece_h, piece_w;   // inputs from a piece to the next
    int column_h, column_w; // outputs from a row of a tile to the next
    int shift;              // bytes of a strip from the pixels of one of its taps to those of the next
    int stages, bytes;      // strips in shared memory, and of each
    int resident; // weights stay in shared memory: all tiles have the same, and there is a stage for each slice of K
};

// How x is fetched in strips whose pixels are rows of products (conv/wgmma/pixels.cuh).
struct PixelStrips {
    static constexpr bool kApart = false;

    Divider<int> extent[3];  // tiles along D, H and W of an image
    int rows, columns;       // of the output, from a tile to the next, along H and along W
    Divider<int> taps[3];    // strips of a slice of channels: taps, those along an axis once where they share strips
    int inner_h, inner_w;    // taps that share a strip
    int pieces, piece_bytes; // of a strip
    int piece_h, piece_w;    // inputs from a piece to the next
    Divider<int> run;        // a tile's columns that are neighbours along W
    int column_h, column_w;  // outputs from a run to the next
    int place_run, place_column; // bytes of a strip from a run's pixels to the next one's, from a pixel to the next
    int shift_h, shift_w;        // likewise, from a tap's to the next one's
    int pitch;                   // from a channel to the next, of rows
    int stages, bytes;           // strips in shared memory, and of each
};

template <class AnyStrips> struct StripsParams {
    CUtensorMap x_map;
    CUtensorMap w_map;
    ConvParams<int, 3> problem;
    Loading loading;
    Splits splits; // of strips
    int items;
    AnyStrips strips;
};
using WgmmaStripsParams = StripsParams<Strips>;
using WgmmaPixelsParams = StripsParams<PixelStrips>;
