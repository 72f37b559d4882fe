"""Assertions for testing other implementations of Conv and ConvTranspose against ONNX's specification.

Each element must lie within an error bound around the exact result. A failure also names a known deviation from the
rules that would explain the result, if there is one. The exact result is computed by the operator's definition, in
plain loops, so arrays should be small. Needs the extra ``[onnx]``.
"""

from gpuconv.testing.assertions import assert_conv_close, assert_conv_transpose_close

__all__ = ["assert_conv_close", "assert_conv_transpose_close"]
