"""Validation of models before anything runs, and repair of defects that cannot change a result.

:mod:`structure` bounds depth and size, :mod:`limits` attribute values, and :mod:`values` data flow. :mod:`constants`
reads initializers, :mod:`checker` runs onnx's checker, and :mod:`hiding` protects its shape inference. :mod:`native`
and :mod:`isolated` call onnx's C++ in this process or in a child process.
"""
