"""Operators of ONNX Runtime's domain com.microsoft, which its graph optimiser and its quantizer insert.

:mod:`fusions` has Gelu, normalisations and MatMul variants, :mod:`attention` BERT's attention and embeddings,
:mod:`qlinear` quantized operators. :mod:`translating` rewrites those that equal standard operators.
"""
