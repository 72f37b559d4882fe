"""Mutation testing: change gpuconv in one place at a time and see whether the tests notice; see README.md."""
