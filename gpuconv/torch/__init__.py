"""gpuconv for PyTorch. Nothing else of gpuconv imports it, and its modules here do not import PyTorch."""
