// Parameters of the wgmma kernels (conv/wgmma/slices.cu, strips.cu and pixels.cu).
//
// K is divided into slices of one tap x 128 bytes of channels: BLOCK_K is 64 for 16-bit elements, 32 for float32. Some
// strip kernels use 64 bytes. A slice consists of steps of 32 bytes along K, one wgmma instruction each.
#pragma once
#include "base/hopper.cuh"
#include "conv/phases.cuh"
#include "conv/gemm/split_k.cuh"

// How slices are loaded. Axes are D, H, W; axes that the problem lacks have one element.
struct Loading {
    int axes;                    // spatial axes of x_map: 1, 2 or 3
    int lower[3];                // lowest input coordinate of column 0, from which im2col offsets count
    Divider<int> channel_slices; // slices per tap
    int last_steps;              // steps of a tap's last slice that hold channels
    int parts; // parts per number: 1, or 2 (3xTF32: large and small); with 2, each slice is multiplied three times
    int x_group, x_part; // channels of x_map between groups, between parts
    Divider<int> w_tap;  // elements of a row of weights between taps
};

// `Problem` is ConvParams<int, 3> or ConvTransposeParams<int, 3>. Its pitch counts the weights of one output channel.
template <class Problem> struct WgmmaParams {
    CUtensorMap x_map; // of x, or of its channels-last copy
    CUtensorMap w_map; // of the packed weights
    Problem problem;
    Loading loading;
    Splits splits; // count is 1 if no tile is divided
    int items;     // whole tiles, plus divided tiles x splits
};

// How x is loaded in strips (conv/wgmma/strips.cuh). Tiles are numbered ((n * D + d) * H + h) * W + w.
struct Strips {
    static constexpr bool kApart = true; // each product of 3xTF32 loads its own strip

    Divider<int> extent[3]; // tiles per image along D, H and W
    int rows, columns;      // outputs between adjacent tiles along H and W
    Divider<int> taps[3];   // strips per slice of channels: taps along D and W; along H 1 if taps share strips
    int inner;              // taps that share a strip
    int pieces;             // pieces of a strip (rows)
    int piece_h, piece_w;   // inputs between adjacent pieces
    int column_h, column_w; // outputs between adjacent rows of a tile
    int shift;              // bytes of a strip between the pixels of adjacent taps that share it
    int stages, bytes;      // strips in shared memory; bytes of each
    int resident; // weights stay in shared memory: all tiles use the same, and every slice of K has its own stage
};

// How x is loaded in strips whose pixels are the M of wgmma (conv/wgmma/pixels.cuh).
struct PixelStrips {
    static constexpr bool kApart = false;

    Divider<int> extent[3];      // tiles per image along D, H and W
    int rows, columns;           // outputs between adjacent tiles along H and W
    Divider<int> taps[3];        // strips per slice of channels: taps; 1 along axes whose taps share strips
    int inner_h, inner_w;        // taps along H and W that share a strip
    int pieces, piece_bytes;     // pieces of a strip; bytes of each
    int piece_h, piece_w;        // inputs between adjacent pieces
    Divider<int> run;            // columns of a tile per run (adjacent outputs along W)
    int column_h, column_w;      // outputs between adjacent runs
    int place_run, place_column; // bytes of a strip between adjacent runs, between adjacent pixels of a run
    int shift_h, shift_w;        // bytes of a strip between taps along H, along W
    int pitch;                   // bytes between channels (rows)
    int stages, bytes;           // strips in shared memory; bytes of each
};

// Parameters of the strip kernels. AnyStrips: Strips or PixelStrips.
template <class AnyStrips> struct StripsParams {
    CUtensorMap x_map;
    CUtensorMap w_map;
    ConvParams<int, 3> problem;
    Loading loading;
    Splits splits; // divide strips, not slices
    int items;
    AnyStrips strips;
};
using WgmmaStripsParams = StripsParams<Strips>;
using WgmmaPixelsParams = StripsParams<PixelStrips>;
