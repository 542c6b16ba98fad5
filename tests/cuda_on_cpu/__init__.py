"""CUDA kernels on a CPU: compile.py runs them, on memory.py's fenced memory, as runtime.cpp plays a GPU.

`with cuda_on_cpu.installed():` gives tinymp a GPU that is none: stand_in.py takes the place of CuPy, cublas.py that of
NVIDIA's library, and kernels are compiled for the CPU.
"""

from __future__ import annotations

import contextlib
import copy
import sys

from .compile import HARDWARE, KernelError, Program, RaceError, problem


@contextlib.contextmanager
def installed():
    """Within the block, tinymp's device "gpu" is the stand-in (the value of the block, what `import cupy` finds)."""
    import tinymp.optim.multi_tensor  # some modules keep what lies on the device: they are put back at the end
    from tinymp.backend import cublas, gpu, kernels

    from . import cublas as library
    from . import stand_in

    # not `watch`'s list: what leaves it takes itself out
    touched = [m for name, m in sys.modules.items() if name.startswith("tinymp.") and name != "tinymp.tensor"]
    before = [_state(module) for module in touched]
    with stand_in.install_modules(sys.modules) as cupy:
        kernels.HARDWARE = HARDWARE
        cublas._library = library.Library()
        gpu._problem = gpu.xp = gpu.array_type = None
        try:
            gpu.require()
            yield cupy
        finally:
            for module, state in zip(touched, before):
                _restore(module, state)


def _state(module):
    """The module's variables, containers as copies."""
    return {
        name: (x, copy.copy(x) if isinstance(x, (dict, list)) else x)
        for name, x in vars(module).items()
        if not name.startswith("__")
    }


def _restore(module, state):
    for name in vars(module).keys() - state.keys():
        if not name.startswith("__"):
            delattr(module, name)
    for name, (x, content) in state.items():
        if isinstance(x, dict):
            x.clear()
            x.update(content)
        elif isinstance(x, list):
            x[:] = content
        setattr(module, name, x)


_installation = contextlib.ExitStack()


def install():
    """`installed()` without a block: until `uninstall()`. For notebooks and scripts; returns the stand-in."""
    return _installation.enter_context(installed())


def uninstall():
    """End what `install()` began."""
    _installation.close()
