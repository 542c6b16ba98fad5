"""The PTX that NVRTC makes of the kernels, run on the CPU: the very instructions that a GPU gets.

nvrtc.py compiles (and keeps what it made), parse.py reads the text, translate.py turns basic blocks into functions of
NumPy arrays, machine.py has the memory and what the lanes of a warp do together, program.py runs a launch in the place
of cuda_on_cpu's. docs/gpu.md says what is not modelled.
"""
