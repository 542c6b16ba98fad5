"""Fast paths on CuPy's arrays: CUDA kernels, each next to the Python file that launches it."""
