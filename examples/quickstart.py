"""A small network by hand: convolve, pool with indices, put the maxima back, convolve the other way.

Run it with ``python examples/quickstart.py``; NumPy is all it needs.
"""

from __future__ import annotations

import numpy as np

import gpuconv


def main() -> None:
    """Compute the network on random data and print what comes out."""
    random = np.random.default_rng(0)
    image = random.standard_normal((1, 3, 32, 32)).astype(np.float32)
    weight = random.standard_normal((8, 3, 3, 3)).astype(np.float32)
    bias = np.zeros(8, np.float32)

    features = gpuconv.conv(image, weight, bias, auto_pad="SAME_UPPER", strides=[2, 2])
    pooled, indices = gpuconv.max_pool(features, kernel_shape=[2, 2], strides=[2, 2], return_indices=True)
    print("features", features.shape, "pooled", pooled.shape)

    # Indices count through the whole tensor, so unpooling needs no loop.
    sparse = np.zeros_like(features)
    sparse.reshape(-1)[indices] = pooled
    print("put back", np.count_nonzero(sparse), "of", sparse.size, "elements")

    # w of Conv is (M, C, ...), and w of ConvTranspose (C, M, ...): the same array leads back to three channels.
    back = gpuconv.conv_transpose(sparse, weight, strides=[2, 2], output_shape=[32, 32])
    print("back", back.shape, back.dtype, f"mean {back.mean():.6f}")


if __name__ == "__main__":
    main()
