"""Conv, ConvTranspose and pooling of dask arrays, block by block: for arrays larger than memory, and for clusters."""

try:
    import dask.array  # noqa: F401
except ImportError as error:
    raise ImportError(f"gpuconv.dask needs dask ({error}); pip install gpuconv[dask]") from error

from gpuconv.dask._api import average_pool, conv, conv_transpose, max_pool

__all__ = ["average_pool", "conv", "conv_transpose", "max_pool"]
