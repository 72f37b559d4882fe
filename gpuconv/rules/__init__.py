"""The rules of the ONNX operators: validation of arguments, output geometry, dtypes and settings.

The modules work on integers and strings and return frozen dataclasses, so they need no arrays; only the test problems
in :mod:`cases` do.
"""
