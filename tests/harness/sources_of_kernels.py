"""Groups of files of `kernels_cu`, for the marker `kernels` of tests that cover several of them."""

from __future__ import annotations


def _files(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"conv/{folder}/{name}.cu" for name in names)


DIRECT = _files("direct", "bands", "channels", "few", "rows", "transpose")
CONV = _files("gemm", "conv", "split", "tap_rows")  # implicit GEMMs
CONV_TRANSPOSE = _files("gemm", "conv_transpose", "split_transpose", "phase_rows")
PLAIN_GEMMS = _files("gemm", "pointwise", "matrix", "depth_to_space", "depth_to_space_matrix")
OTHER_GEMMS = _files("gemm", "grouped", "interleaved", "stem")
WGMMA = _files("wgmma", "slices", "strips", "pixels")
