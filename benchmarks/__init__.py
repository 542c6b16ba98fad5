"""Measurements of speed, of agreement with PyTorch, and of a GPU."""

import tinymp  # before NumPy, see tinymp/fast/cpu/blas.py
