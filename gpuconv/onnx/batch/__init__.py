"""Batch invariance of ONNX models: tracking of the batch axis, and per-operator rules that keep images independent."""
