"""What is measured."""

import tinymp  # before NumPy, see tinymp/blas.py
