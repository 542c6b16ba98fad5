"""What is measured."""

import tinymp  # before NumPy, see tinymp/fast/cpu/blas.py
