"""The command line ``gpuconv``: one module per command; ``main`` parses arguments and dispatches."""
