"""gpuconv for PyTorch: convolution and pooling as functions of tensors, with the signatures of torch.nn.functional.

It needs PyTorch, which nothing else of gpuconv imports. Without PyTorch this package is empty, and its names raise an
ImportError that says so.
"""

from importlib.util import find_spec
from typing import Any

if find_spec("torch") is not None:
    from gpuconv.torch._functional import (
        avg_pool,
        avg_pool1d,
        avg_pool2d,
        avg_pool3d,
        conv,
        conv1d,
        conv2d,
        conv3d,
        conv_transpose,
        conv_transpose1d,
        conv_transpose2d,
        conv_transpose3d,
        max_pool,
        max_pool1d,
        max_pool2d,
        max_pool3d,
        max_unpool1d,
        max_unpool2d,
        max_unpool3d,
    )
    from gpuconv.torch._mode import batch_invariant, disable, enable
    from gpuconv.torch._report import Report, report

__all__ = [
    "Report",
    "avg_pool",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_invariant",
    "conv",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "disable",
    "enable",
    "max_pool",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
    "report",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        raise ImportError("gpuconv.torch needs PyTorch: pip install 'gpuconv[torch]'")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
