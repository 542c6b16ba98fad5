"""PyTorch's face, for programs that were written for PyTorch."""
