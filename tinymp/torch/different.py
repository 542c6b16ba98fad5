"""Names of PyTorch's that tinymp does not have, on purpose: why, and what to write instead.

A program may name them, import them, ask `isinstance` for them and derive from them: each is a class (`Absent`) that
says why it is absent when it is called. The few among them that change no result are there: PRESENT.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any, Final

from ..backend.extras import held
from ..nn import BatchNorm2d, Conv2d, Dropout, Module
from ..tensor import FIRST_ORDER

_NO_3D = "images have two axes here; fold depth into the batch or the channels, or run this part in PyTorch"
_3D = re.compile(r"nn\.(functional\.)?\w+3d")
# Why -> the names, of modules with all that is inside them
_WHY = {
    "all tensors are dense but the gradients of nn.Embedding(sparse=True)": "sparse sparse_coo_tensor",
    "processes are tinymp.parallel's: init, DistributedDataParallel, SyncBatchNorm (docs/parallel.md)": """distributed
        multiprocessing nn.SyncBatchNorm utils.data.DistributedSampler futures""",
    "there are no complex numbers; keep the real and the imaginary part in one axis, and multiply them by hand": """fft
        complex view_as_complex view_as_real polar complex64 complex128 cfloat stft istft""",
    "Python runs as it stands; on a GPU tinymp.capture(step) records a whole step as one CUDA graph": """jit fx onnx
        export _dynamo classes cuda.CUDAGraph cuda.graph""",
    FIRST_ORDER: "func autograd.functional",
    "build the model here and read its weights with tinymp.load_weights, or convert it with tinymp.from_torch": """hub
        utils.model_zoo""",
    "it calls the loss several times a step, which loss scaling does not know; use optim.Adam": "optim.LBFGS",
    "optim.Adam takes sparse gradients": "optim.SparseAdam",
    "tinymp trains; low precisions are studied in tinymp.study": "quantization ao",
    "use tinymp.audit(), or `tinymp.observe`": "profiler autograd.profiler utils.bottleneck",
    "activations are kept in the policy's storage; use smaller batches": "utils.checkpoint",
    "kernels are written in tinymp, see tinymp.gpu": "utils.cpp_extension ops library",
    "a dataset has a length and items by number: read the stream into a list": "utils.data.IterableDataset",
    "use x.diagonal().sum()": "trace",
    "use numpy.linalg of x.numpy(), where no gradient is needed": "linalg",
    "use numpy.testing of x.numpy()": "testing",
    "PyTorch has it, and tinymp does not": """nn.AdaptiveLogSoftmaxWithLoss nn.Bilinear nn.Fold nn.FractionalMaxPool2d
        nn.LPPool2d nn.LazyConv2d nn.MaxUnpool2d nn.RReLU nn.utils.prune nn.utils.parametrize
        nn.utils.parametrizations nn.modules.utils""",
}
_REASONS = {name: reason for reason, names in _WHY.items() for name in names.split()}


def _itself(function: Any = None, *args: Any, **options: Any) -> Any:
    """A function or Module itself; a decorator for anything else."""
    return function if callable(function) else _itself


def _sequence(functions: Any, segments: int, input: Any, **options: Any) -> Any:
    for function in functions:
        input = function(input)
    return input


def _ntuple(n: int) -> Any:
    return lambda x: tuple(x) if isinstance(x, Iterable) else (x,) * n


def _assert(condition: Any, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _parametrized(name: str) -> Any:
    return lambda module, *args, **options: held(f"nn.{name}")(module, *args, **options, parametrized=True)


# What is there of modules that are absent: it changes no result, or answers truly
PRESENT: dict[str, Any] = {
    **dict.fromkeys([f"jit.{n}" for n in "script script_method ignore unused export trace freeze".split()], _itself),
    **dict.fromkeys(["jit.script_if_tracing", "jit._script_if_tracing", "_dynamo.disable", "fx.wrap"], _itself),
    **dict.fromkeys(["jit.is_scripting", "jit.is_tracing", "distributed.is_available"], lambda: False),
    **dict.fromkeys(["distributed.is_initialized", "onnx.is_in_onnx_export"], lambda: False),
    **dict.fromkeys(["profiler.record_function", "autograd.profiler.record_function"], contextlib.nullcontext),
    **{"jit.ScriptModule": Module, "jit.Final": Final, "jit.annotate": lambda the_type, the_value: the_value},
    **{f"nn.modules.utils.{n}": _ntuple(i) for n, i in (("_single", 1), ("_pair", 2), ("_triple", 3), ("_quadruple", 4))},
    **{"nn.modules.utils._ntuple": _ntuple, "_assert": _assert},
    **{"nn._BatchNorm": BatchNorm2d.__base__, "nn._ConvNd": Conv2d.__base__, "nn._DropoutNd": Dropout},
    "utils.checkpoint.checkpoint": lambda function, *args, use_reentrant=None, preserve_rng_state=True, **options: (
        function(*args, **options)
    ),
    "utils.checkpoint.checkpoint_sequential": _sequence,
    **{f"nn.utils.parametrizations.{name}": _parametrized(name) for name in ("weight_norm", "spectral_norm")},
}

# PyTorch's modules whose names programs also find in the module around them
INSIDE = {
    "autograd": "function grad_mode variable",
    "distributions": "bernoulli categorical distribution kl normal",
    "nn": "modules parameter",
    "nn.modules": """activation batchnorm container conv dropout instancenorm linear loss module normalization padding
        pixelshuffle pooling rnn sparse transformer upsampling""",
    "optim": "adam adamw optimizer rmsprop sgd",
    "utils.data": "dataloader dataset distributed sampler",
}


def reason(name: str) -> str:
    """Why tinymp has no `name` ("torch.fft.rfft"), of it or of a module around it; empty if nothing is known."""
    name = name.removeprefix("torch.")
    if _3D.fullmatch(name):
        return _NO_3D
    return _REASONS.get(name) or ("." in name and reason(name.rpartition(".")[0])) or ""


def why(name: str) -> str:
    """For messages: "; " and the reason; empty if nothing is known."""
    return f"; {said}" if (said := reason(name)) else ""


class Absent(type):
    """A class, or a module, that PyTorch has and tinymp has not: NotImplementedError, with the reason, once it is
    called; so are the names that are asked of it.
    """

    __path__: Any = []  # for imports of modules inside it

    def __call__(cls, *args: Any, **options: Any) -> Any:
        first = next(kind for kind in cls.__mro__ if type(kind).__name__ == "Absent" and "path" in vars(kind))
        raise NotImplementedError(f"torch.{first.path} is not in tinymp{why(first.path)}")

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return absent(f"{cls.path}.{name}")

    def __repr__(cls) -> str:
        return f"torch.{cls.path}, which is not in tinymp{why(cls.path)}"


@cache
def absent(path: str) -> Any:
    """What stands for a name of PyTorch's ("fft.rfft") that is absent."""
    return PRESENT[path] if path in PRESENT else Absent(path.rpartition(".")[2], (), {"path": path})


class _Inside(Loader):
    """A module of PyTorch's whose names stand here in the module around it, or one that is absent."""

    def create_module(self, spec: Any) -> Any:
        part = spec.name.partition(f"{__package__}.")[2]
        return absent(part) if reason(part) else None

    def exec_module(self, module: Any) -> None:
        if not isinstance(module, Absent):
            around = sys.modules[module.__name__.rpartition(".")[0]]
            module.__path__ = []
            vars(module).update({name: x for name, x in vars(around).items() if name not in vars(module)})
            for part in INSIDE.get(module.__name__.partition(f"{__package__}.")[2], "").split():
                import_module(f"{module.__name__}.{part}")


class _Last(MetaPathFinder):
    """Asked last for a module: one whose names are here in the module around it, or one that is absent on purpose."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        _, ours, part = name.partition(f"{__package__}.")
        around, _, last = part.rpartition(".")
        known = ours and (reason(part) or last in INSIDE.get(around, "").split())
        return ModuleSpec(name, _Inside()) if known else None


def install() -> None:
    """Have imports asked here, once."""
    if not any(isinstance(one, _Last) for one in sys.meta_path):
        sys.meta_path.append(_Last())
