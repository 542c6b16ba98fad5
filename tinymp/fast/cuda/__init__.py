"""Fast paths on CuPy's arrays: CUDA kernels, each next to the Python file that launches it."""

from ...ops.base import base as kernel  # for a phase of an op that kernels do

__all__ = ["kernel"]
