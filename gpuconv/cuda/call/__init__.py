"""A plan and arrays in, results out: the only room that knows CuPy and the driver."""
