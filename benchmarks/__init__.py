"""What is measured."""

import tinymp  # before NumPy, see tinymp/backend/blas.py
