"""The gradient of MaxPool."""
