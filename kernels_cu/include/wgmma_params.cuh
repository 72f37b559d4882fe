// What a launch of conv_wgmma.cu gets (gpuconv/cuda/wgmma_structs.py mirrors the layout).
//
// K runs in slices of one tap and 128 bytes of channels: BLOCK_K is 64 of 16-bit elements, 32 of float32.
#pragma once
#include "conv_params.cuh"
#include "hopper.cuh"
#include "phases.cuh"
#include "split_k.cuh"

// How slices are fetched. Axes are D, H, W; those in front that a problem does not have are of one element.
struct Loading {
    int axes;                    // spatial axes of x_map: 1, 2 or 3
    int lower[3];                // input coordinate from which taps are counted, of column 0
    int channel_slices;          // of a tap
    int parts;                   // of every number: 1, or 2, a large and a small one; then a slice is multiplied three times
    int x_group, x_part;         // channels of x_map from group to group, from part to part
};

// `Problem` is ConvParams<int, 3> or ConvTransposeParams<int, 3>; its pitch is that of one output channel's weights.
template <class Problem> struct WgmmaParams {
    CUtensorMap x_map;
    CUtensorMap w_map;
    Problem problem;
    Loading loading;
    Splits splits;               // of one split where no tiles are divided
    int items;                   // whole tiles, and divided ones times splits
};
