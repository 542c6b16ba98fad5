"""torch.nn: tinymp's layers, losses and modules, by PyTorch's names."""

from ... import nn as _nn
from ...nn import Parameter
from ..space import fill, names
from . import functional, init, parallel, utils
from .module import Module
from .module import layer as _layer

_LAYERS = [name for name in _nn.__all__ if name[0].isupper() and name not in ("AveragedModel", "PackedSequence")]


class DataParallel(Module):
    """The module itself, which runs on one GPU, as `module`: what PyTorch's does where there is one."""

    def __init__(self, module: Module, device_ids: object = None, output_device: object = None, dim: int = 0) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: object, **options: object) -> object:
        return self.module(*args, **options)


fill(globals(), "torch.nn", names("nn", _LAYERS), "functional init parallel utils", _layer)
