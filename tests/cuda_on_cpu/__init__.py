"""CUDA kernels on a CPU: compile.py runs them, on memory.py's fenced memory, as runtime.cpp plays a GPU.

`with cuda_on_cpu.installed():` gives tinymp a GPU that is none: stand_in.py takes the place of CuPy, cublas.py that of
NVIDIA's library, and kernels are compiled for the CPU.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import os
import pathlib
import sys
from unittest import mock

from .compile import HARDWARE, KernelError, Program, RaceError, problem


@contextlib.contextmanager
def installed():
    """Within the block, tinymp's device "gpu" is the stand-in (the value of the block, what `import cupy` finds)."""
    import tinymp
    from tinymp.backend import gpu

    for path in pathlib.Path(tinymp.__file__).parent.glob("gpu/*.py"):
        importlib.import_module(f"tinymp.gpu.{path.stem}")  # some keep what lies on the device: put back at the end
    from tinymp.gpu import kernels

    from . import cublas as library
    from . import device, stand_in

    # not `watch`'s list, which what leaves it takes itself out of, and not which fast paths have been found
    kept = ("tinymp.tensor", "tinymp.fast_path")
    touched = [m for name, m in sys.modules.items() if name.startswith("tinymp.") and name not in kept]
    before, device_before = [_state(module) for module in touched], dict(vars(gpu))
    with stand_in.install_modules(sys.modules) as cupy:
        kernels.HEADERS[0] = HARDWARE
        kernels.alone = lambda code, name: code  # g++ takes a file at once: kernel by kernel it takes longer
        sys.modules["tinymp.gpu.cublas"]._library = library.Library()
        gpu._problem = gpu.xp = gpu.array_type = None
        try:
            with mock.patch.dict(os.environ, CUPY_CACHE_DIR=str(pathlib.Path(__file__).parent)):  # nothing to compile
                gpu.first_use()
            yield cupy
        finally:
            device.forget()
            for module, state in zip(touched, before):
                _restore(module, state)
            vars(gpu).clear()
            vars(gpu).update(device_before)


@functools.cache
def _containers(module):
    return [name for name, x in vars(module).items() if isinstance(x, (dict, list)) and not name.startswith("__")]


def _state(module):
    """The module's variables, and copies of those that are containers."""
    return dict(vars(module)), {name: copy.copy(vars(module)[name]) for name in _containers(module)}


def _restore(module, state):
    variables, contents = state
    for name in vars(module).keys() - variables.keys():
        delattr(module, name)
    vars(module).update(variables)
    for name, content in contents.items():
        x = variables[name]
        if isinstance(x, dict):
            x.clear()
            x.update(content)
        else:
            x[:] = content


_installation = contextlib.ExitStack()


def install():
    """`installed()` without a block: until `uninstall()`. For notebooks and scripts; returns the stand-in."""
    return _installation.enter_context(installed())


def uninstall():
    """End what `install()` began."""
    _installation.close()
