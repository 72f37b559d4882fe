"""A variant in, a file that a device loads out; nothing here knows what a convolution is."""
