"""ONNX Runtime's own operators, of the domain com.microsoft, which its optimizations and its quantizer write."""
