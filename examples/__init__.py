"""The trainings that the README shows."""

import tinymp  # before NumPy, see tinymp/fast/cpu/blas.py
