"""Conv, ConvTranspose, MaxPool and AveragePool of dask arrays, for data larger than memory and for clusters.

Each function computes the output block by block: a block's task loads the input it needs, halo included, and calls the
function of the same name in gpuconv.
"""

try:
    import dask.array  # noqa: F401
except ImportError as error:
    raise ImportError(f"gpuconv.dask needs dask ({error}); pip install gpuconv[dask]") from error

from gpuconv.dask._api import average_pool, conv, conv_transpose, max_pool

__all__ = ["average_pool", "conv", "conv_transpose", "max_pool"]
