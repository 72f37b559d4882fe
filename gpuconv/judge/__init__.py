"""The judge: named cases as ONNX test data, and whether an implementation agrees with them."""
