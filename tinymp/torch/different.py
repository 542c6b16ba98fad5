"""Names of PyTorch's that tinymp does not have, on purpose: why, and what to write instead.

A program may name them, import them, ask `isinstance` for them and derive from them: each is a class (`Absent`) that
says why it is absent when it is called. What changes no result, or answers truly, is there: PRESENT.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from functools import cache, partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from math import prod
from typing import Any, Final

from .. import backend
from ..backend.extras import held
from ..dtypes import float32
from ..nn import BatchNorm2d, Conv2d, Dropout, Linear, Module
from ..tensor import FIRST_ORDER, Tensor

# A line each: the names, of modules with all that is inside them, and why
_WHY = """
sparse sparse_coo_tensor: all tensors are dense but the gradients of nn.Embedding(sparse=True)
distributed multiprocessing futures nn.SyncBatchNorm utils.data.DistributedSampler: processes are tinymp.parallel's\
 (docs/parallel.md)
fft complex view_as_complex view_as_real polar complex64 complex128 cfloat stft istft: there are no complex numbers;\
 keep the real and the imaginary part in one axis, and multiply them by hand
jit fx onnx export _dynamo classes cuda.CUDAGraph cuda.graph: Python runs as it stands; on a GPU tinymp.capture(step)\
 records a whole step as one CUDA graph
hub utils.model_zoo: build the model here and read its weights with tinymp.load_weights, or convert it with\
 tinymp.from_torch
optim.LBFGS: it calls the loss several times a step, which loss scaling does not know; use optim.Adam
optim.SparseAdam: optim.Adam takes sparse gradients
optim.swa_utils.get_ema_multi_avg_fn optim.swa_utils.get_swa_multi_avg_fn: averages are of one tensor; pass\
 avg_fn=get_ema_avg_fn(decay)
optim.lr_scheduler.CyclicLR: use OneCycleLR, or LambdaLR with a function of the step
nn.init.dirac_ nn.init.eye_: write weight.copy_(...) under no_grad, of torch.eye(n, m) and zeros
optim.lr_scheduler.ChainedScheduler: call step() of each schedule, one after the other
func.functional_call: load the tensors with module.load_state_dict, or write the forward as a function of them
quantization ao: tinymp trains; low precisions are studied in tinymp.study
profiler autograd.profiler utils.bottleneck: use tinymp.audit(), or `tinymp.observe`
utils.checkpoint: activations are kept in the policy's storage; use smaller batches
utils.cpp_extension ops library: kernels are tinymp's own, see docs/gpu.md
cuda.Stream cuda.stream cuda.current_stream cuda.Event: there is one stream
utils.data.IterableDataset: a dataset has a length and items by number: read the stream into a list
trace: use x.diagonal().sum()
linalg: use numpy.linalg of x.numpy(), where no gradient is needed
testing: use numpy.testing of x.numpy()
version: see tinymp.info()
nn.AdaptiveLogSoftmaxWithLoss nn.Bilinear nn.Fold nn.FractionalMaxPool2d nn.LPPool2d nn.LazyConv2d nn.MaxUnpool2d\
 nn.RReLU nn.attention nn.modules.utils nn.utils.prune nn.utils.parametrize nn.utils.parametrizations: nobody needed it
"""
# Of all other names
MISSING = "write it with functions that are there, or over NumPy as an autograd.Function (docs/pytorch.md)"
_DISTRIBUTIONS = """Beta Dirichlet Exponential Gamma Independent Laplace LogNormal MultivariateNormal OneHotCategorical
    Poisson RelaxedBernoulli RelaxedOneHotCategorical StudentT TransformedDistribution Uniform"""
_INDEPENDENT = (
    "there are Bernoulli, Categorical, Normal; of independent numbers, Normal(mean, std) and log_prob(x).sum(-1)"
)
_LINES = [line.partition(": ") for line in _WHY.strip().splitlines()]
_REASONS = {name: reason for names, _, reason in _LINES for name in names.split()}
_REASONS |= {f"distributions.{name}": _INDEPENDENT for name in _DISTRIBUTIONS.split()}
_REASONS |= dict.fromkeys(["func", "autograd.functional"], FIRST_ORDER)
_NO_3D = "images have two axes here; fold depth into the batch or the channels, or run this part in PyTorch"
_3D = re.compile(r"nn\.(functional\.)?\w+3d")


def _itself(function: Any = None, *args: Any, **options: Any) -> Any:
    """A function or Module itself; a decorator for anything else."""
    return function if callable(function) else _itself


def _checkpoint(
    function: Any, *args: Any, use_reentrant: Any = None, preserve_rng_state: Any = True, **named: Any
) -> Any:
    return function(*args, **named)


def _sequential(functions: Any, segments: Any, input: Any, **options: Any) -> Any:
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


_SETTINGS = "set_num_threads set_printoptions set_float32_matmul_precision use_deterministic_algorithms"
_JIT = "script script_method script_if_tracing _script_if_tracing ignore unused export trace freeze _overload_method"
_FALSE = "jit.is_scripting jit.is_tracing onnx.is_in_onnx_export distributed.is_available distributed.is_initialized"
_TUPLES = enumerate(("_single", "_pair", "_triple", "_quadruple"), 1)
PRESENT: dict[str, Any] = {
    **dict.fromkeys([*[f"jit.{name}" for name in _JIT.split()], "_dynamo.disable", "fx.wrap"], _itself),
    **dict.fromkeys([*_FALSE.split(), "cuda.is_bf16_supported"], lambda: False),
    **dict.fromkeys(["profiler.record_function", "autograd.profiler.record_function"], nullcontext),
    **{"jit.ScriptModule": Module, "jit.Final": Final, "jit.annotate": lambda the_type, the_value: the_value},
    **dict.fromkeys(_SETTINGS.split(), lambda *settings, **options: None),
    **{"cuda.current_device": lambda: 0, "cuda.set_device": lambda device: None, "get_default_dtype": lambda: float32},
    **{"is_tensor": lambda obj: isinstance(obj, Tensor), "initial_seed": lambda: backend.last_seed or 0},
    "utils.checkpoint.checkpoint_sequential": _sequential,
    **{"utils.checkpoint.checkpoint": _checkpoint, "get_num_threads": lambda: 1},  # tinymp has no threads of its own
    **{f"nn.utils.parametrizations.{name}": _parametrized(name) for name in ("weight_norm", "spectral_norm")},
    **{f"nn.modules.utils.{name}": _ntuple(n) for n, name in _TUPLES},
    **{"nn.modules.utils._ntuple": _ntuple, "_assert": _assert, "nn._BatchNorm": BatchNorm2d.__base__},
    **{"nn._ConvNd": Conv2d.__base__, "nn._DropoutNd": Dropout, "nn.NonDynamicallyQuantizableLinear": Linear},
    **{"nn.attention.sdpa_kernel": lambda *backends, **options: nullcontext(), "version.cuda": None},
    "nn.init._calculate_fan_in_and_fan_out": lambda w: (prod(w.shape[1:]), w.shape[0] * prod(w.shape[2:])),
}

# PyTorch's modules whose names programs also find in the module around them
INSIDE = {
    "autograd": "function grad_mode variable",
    "distributions": "bernoulli categorical distribution kl normal",
    "nn": "modules parameter",
    "nn.modules": """activation batchnorm container conv dropout instancenorm linear loss module normalization padding
        pixelshuffle pooling rnn sparse transformer upsampling utils""",
    "optim": "adam adamw optimizer rmsprop sgd",
    "utils.data": "dataloader dataset distributed sampler",
}


def reason(name: str) -> str:
    """Why tinymp has no `name` ("fft.rfft"), of it or of a module around it; empty if nothing is known."""
    if _3D.fullmatch(name):
        return _NO_3D
    return _REASONS.get(name) or ("." in name and reason(name.rpartition(".")[0])) or ""


class Absent(type):
    """A class that stands for what PyTorch has and tinymp has not, and its attributes: NotImplementedError once it is
    called.
    """

    path: str

    def __call__(cls, *args: Any, **options: Any) -> Any:
        raise NotImplementedError(f"torch.{cls.path} is not in tinymp; {reason(cls.path)}")

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return absent(f"{cls.path}.{name}")

    def __repr__(cls) -> str:
        return f"torch.{cls.path} (not in tinymp: {reason(cls.path)})"


@cache
def absent(path: str) -> Any:
    """The class that stands for a name of PyTorch's ("fft.rfft") that is absent, or what is present for it."""
    return PRESENT[path] if path in PRESENT else Absent(path.rpartition(".")[2], (), {"path": path})


class _Last(Loader, MetaPathFinder):
    """Asked last for a module: one whose names are here in the module around it, or one that is absent on purpose."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        _, ours, part = name.partition(f"{__package__}.")
        around, _, last = part.rpartition(".")
        return ModuleSpec(name, self) if ours and (reason(part) or last in INSIDE.get(around, "").split()) else None

    def exec_module(self, module: Any) -> None:
        part, module.__path__ = module.__name__.partition(f"{__package__}.")[2], []
        if reason(part):
            module.__getattr__ = partial(getattr, absent(part))
            return
        around = vars(sys.modules[module.__name__.rpartition(".")[0]])
        vars(module).update({name: x for name, x in around.items() if name not in vars(module)})
        for inside in INSIDE.get(part, "").split():
            import_module(f"{module.__name__}.{inside}")


def install() -> None:
    if not any(isinstance(one, _Last) for one in sys.meta_path):
        sys.meta_path.append(_Last())
