"""Two layers captured in a CUDA graph, which one launch replays with new inputs.

Run it with ``python examples/cuda_graph.py``; without a GPU it says why it does nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import gpuconv


def network(x: Any, w: gpuconv.PackedWeights) -> Any:
    """Convolve and pool."""
    return gpuconv.max_pool(
        gpuconv.conv(x, w, pads=[1, 1, 1, 1]), kernel_shape=[2, 2], strides=[2, 2]
    )


def main() -> None:
    """Capture the network once, replay it for three inputs, compare with the CPU."""
    random = np.random.default_rng(0)
    weights = gpuconv.pack(random.integers(-3, 4, (16, 3, 3, 3)).astype(np.float32))
    inputs = [
        random.integers(-9, 10, (2, 3, 32, 32)).astype(np.float32) for _ in range(3)
    ]
    try:
        w = gpuconv.to_device(weights)
    except gpuconv.DeviceError as error:
        print(error)
        return
    graph = gpuconv.graph(lambda x: network(x, w), gpuconv.to_device(inputs[0]))
    for host in inputs:
        y = graph(gpuconv.to_device(host))  # the next replay overwrites it
        same = (gpuconv.to_host(y) == network(host, weights)).all()
        print("the graph's result", "is" if same else "IS NOT", "that of the CPU")


if __name__ == "__main__":
    main()
