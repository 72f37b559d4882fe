"""Gradient of Conv's weights (wgrad)."""
