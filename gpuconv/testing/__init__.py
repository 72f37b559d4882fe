"""Assertions for the tests of other implementations: how close is right, and which other rule explains what is not.

They compare with the definition of each operator, in exact arithmetic and plain loops: for small arrays. They need the
extra ``[onnx]``.
"""

from gpuconv.testing.assertions import assert_conv_close, assert_conv_transpose_close

__all__ = ["assert_conv_close", "assert_conv_transpose_close"]
