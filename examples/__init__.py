"""The trainings that the README shows."""

import tinymp  # before NumPy, see tinymp/backend/blas.py
