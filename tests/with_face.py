"""PyTorch's face changes classes of the core when it is imported; tests that are not about it run without it."""

import importlib.util
from functools import cache

import tinymp as mp
from tinymp import backend

CLASSES = (mp.Tensor, mp.nn.Module, mp.nn.functions.Function)


@cache
def without():
    """The core as it is before the face is imported."""
    return [dict(vars(cls)) for cls in CLASSES], (backend.cpu.name, backend.gpu.name)


def put():
    """Import the face, or bring back what its import does."""
    without()
    torch = importlib.import_module("tinymp.torch")
    for part in ("accepted", "device", "methods"):
        importlib.import_module(f"{torch.__name__}.{part}").install()


def take():
    """Make the core what it was without the face. That is imported, so that no test is the first to do so."""
    without()
    if importlib.util.find_spec("tinymp.torch") is None:  # a copy of the core
        return
    importlib.import_module("tinymp.torch")
    classes, (backend.cpu.name, backend.gpu.name) = without()
    importlib.import_module("tinymp.ops.more.errors").otherwise = None
    for cls, names in zip(CLASSES, classes):
        for name in vars(cls).keys() - names.keys():
            delattr(cls, name)
        for name, x in names.items():
            if vars(cls)[name] is not x:
                setattr(cls, name, x)
    for name in ("cuda", "cuda:0"):
        backend._added.pop(name, None)
