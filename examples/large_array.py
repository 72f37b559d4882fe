"""An array that may exceed the memory, convolved and pooled block by block, with the memory that it used.

Run it with ``python examples/large_array.py [extent [columns]]``; it needs Linux and dask (the extra ``[dask]``). The
array has four channels of extent x extent float32 numbers: 0.27 GB for 4096, 4.3 GB for 16384. Its blocks have 16.8 MB
each, and the given number of columns: by default whole rows.
"""

from __future__ import annotations

import importlib.util
import resource
import sys
import time

import numpy as np


def main(extent: int = 1024, columns: int | None = None) -> None:
    """Compute the largest value after a convolution and a pooling, and print its position."""
    if importlib.util.find_spec("dask") is None:
        print("dask is not installed; pip install gpuconv[dask]")
        return
    import dask
    import dask.array as da

    import gpuconv.dask

    columns = columns or extent
    chunks = (1, 4, 2**20 // columns, columns)
    x = da.random.default_rng(0).random(
        (1, 4, extent, extent), chunks=chunks, dtype=np.float32
    )
    w = np.random.default_rng(1).standard_normal((8, 4, 3, 3)).astype(np.float32)
    y = gpuconv.dask.conv(x, w, auto_pad="SAME_UPPER", strides=[2, 2])
    y, indices = gpuconv.dask.max_pool(
        y, kernel_shape=[3, 3], strides=[2, 2], return_indices=True
    )

    start = time.perf_counter()
    largest, last = dask.compute(y.max(), indices.max())
    seconds = time.perf_counter() - start
    peak = (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    )  # of the process; Linux counts KiB
    print(
        f"x {x.nbytes / 1e9:.2f} GB in {x.npartitions} blocks -> {y.shape}, at most {largest:.3f}, last index {last}"
    )
    print(f"{seconds:.1f} s, and {peak / 1e9:.2f} GB of memory at the most")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
