"""The gradient of Conv's weights."""
