"""Fast paths on CuPy's arrays: CUDA kernels, each beside the Python file that launches it."""
