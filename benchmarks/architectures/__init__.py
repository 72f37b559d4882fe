"""Networks of kinds that the onnx package does not ship, built node by node as exporters write them."""
