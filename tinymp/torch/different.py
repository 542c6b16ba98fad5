"""Names of PyTorch's that tinymp does not have, on purpose: why, and what to write instead."""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

from ..tensor import FIRST_ORDER

_NO_3D = "images have two axes here; fold depth into the batch or the channels, or run this part in PyTorch"
_SPARSE = "all tensors are dense but the gradients of nn.Embedding(sparse=True)"
_PROCESSES = "processes are tinymp.parallel's: init, DistributedDataParallel, SyncBatchNorm (docs/parallel.md)"
_COMPLEX = "there are no complex numbers; keep the real and the imaginary part in one axis, and multiply them by hand"
_COMPILE = "Python runs as it stands; on a GPU tinymp.capture(step) records a whole step as one CUDA graph"
_WRAPS = "write a Module that holds the layer's direction and size, and computes the weight in its forward"

DIFFERENT = {
    **{f"nn.{name}3d": _NO_3D for name in ("Conv", "ConvTranspose", "BatchNorm", "MaxPool", "AvgPool", "Dropout")},
    **{f"nn.functional.{name}3d": _NO_3D for name in ("conv", "conv_transpose", "max_pool", "avg_pool")},
    **dict.fromkeys(["sparse", "sparse_coo_tensor"], _SPARSE),
    **dict.fromkeys(["distributed", "multiprocessing", "nn.SyncBatchNorm"], _PROCESSES),
    **dict.fromkeys(["fft", "complex", "view_as_complex", "view_as_real", "polar", "complex64", "cfloat"], _COMPLEX),
    **dict.fromkeys(["jit", "fx", "onnx", "export", "_dynamo"], _COMPILE),
    **dict.fromkeys(["func", "autograd.functional"], FIRST_ORDER),
    "hub": "build the model here and read its weights with tinymp.load_weights, or convert it with tinymp.from_torch",
    "optim.LBFGS": "it calls the loss several times a step, which loss scaling does not know; use optim.Adam",
    "optim.SparseAdam": "optim.Adam takes sparse gradients",
    "quantization": "tinymp trains; low precisions are studied in tinymp.study",
    "profiler": "use tinymp.audit(), or `tinymp.observe`",
    "utils.checkpoint": "nothing is computed twice: activations are kept in the policy's storage; use smaller batches",
    **dict.fromkeys(["nn.utils.weight_norm", "nn.utils.spectral_norm"], _WRAPS),
    "utils.data.IterableDataset": "a dataset has a length and items by number: read the stream into a list",
    "trace": "use x.diagonal().sum()",
    "linalg": "use numpy.linalg of x.numpy(), where no gradient is needed",
}

# PyTorch's modules whose names programs also find in the module around them
INSIDE = {
    "autograd": "function grad_mode variable",
    "distributions": "bernoulli categorical distribution kl normal",
    "nn": "modules parameter",
    "nn.modules": "activation batchnorm container conv dropout linear loss module normalization pooling rnn sparse",
    "optim": "adam adamw optimizer rmsprop sgd",
    "utils.data": "dataloader dataset distributed sampler",
}


def why(name: str) -> str:
    """For messages: "; " and the reason why tinymp has no `name` ("torch.fft"); empty if nothing is known."""
    said = DIFFERENT.get(name.removeprefix("torch."))
    return f"; {said}" if said else ""


class _Inside(Loader):
    """A module of PyTorch's whose names stand here in the module around it."""

    def exec_module(self, module: Any) -> None:
        around = sys.modules[module.__name__.rpartition(".")[0]]
        module.__path__ = []
        vars(module).update({name: x for name, x in vars(around).items() if name not in vars(module)})


class _Last(MetaPathFinder):
    """Asked last for a module: one whose names are here in the module around it; ImportError with the reason for one
    that is absent on purpose.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        _, ours, part = name.partition(f"{__package__}.")
        if ours and (said := why(part)):
            raise ImportError(f"torch has no module '{part}' in tinymp{said}", name=name)
        around, _, last = part.rpartition(".")
        return ModuleSpec(name, _Inside()) if ours and last in INSIDE.get(around, "").split() else None


def install() -> None:
    """Have imports asked here, once."""
    if not any(isinstance(one, _Last) for one in sys.meta_path):
        sys.meta_path.append(_Last())
