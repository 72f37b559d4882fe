// What Hopper has and its predecessors do not.
#pragma once

// How an array lies in memory, for the engine that copies boxes of it; the driver encodes it (gpuconv/cuda/tensor_map.py).
struct alignas(64) CUtensorMap {
    unsigned long long words[16];
};
