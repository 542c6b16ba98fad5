"""PyTorch's face: `import tinymp.torch as torch`, and a program that was written for PyTorch finds its names here.

The modules below this one are PyTorch's namespaces over the functions of tinymp: tables of names, no mathematics. This
one has what stands at PyTorch's top. docs/pytorch.md says what is different on purpose.
"""

from __future__ import annotations

import builtins as _builtins
import math as _math
import warnings as _warnings
from types import FunctionType as _FunctionType
from typing import Any, ClassVar

import numpy as _np

from .. import backend
from .. import ops as _ops
from ..autograd import enable_grad as _enable_grad
from ..autograd import is_grad_enabled
from ..autograd import no_grad as _no_grad
from ..backend import __version__
from ..backend import manual_seed as _manual_seed
from ..backend.extras import held as _held
from ..dtypes import bfloat16, float16, float32, float64
from ..tensor import Tensor as _Tensor
from ..tensor import from_numpy, tensor
from . import accepted, different, methods
from .device import device, install
from .methods import is_floating_point as is_floating_point
from .methods import t as t
from .space import fill as _fill
from .types import *

accepted.install()
different.install()
install()
methods.install()

# The functions of `ops`, but for those that PyTorch has in nn.functional alone and those that it has not
_ELSEWHERE = """
    bind contiguous expand getitem gru_cell gru_layer
    in_place lstm_cell lstm_layer repeat setitem view where
"""
_ELSEWHERE += methods.FUNCTIONAL
_IN_PLACE = """
    abs_ acos_ asin_ atan_ ceil_ celu_ clamp_ cos_ exp_ floor_ log_ neg_ reciprocal_ relu_ round_ selu_ sigmoid_ sin_
    sqrt_ square_ tan_ tanh_ threshold_
"""
_FUNCTIONS = [n for n in dir(_ops) if n not in vars(_ops) or isinstance(vars(_ops)[n], _FunctionType)]
_FUNCTIONS = [n for n in _FUNCTIONS if n[0] != "_" and n not in _ELSEWHERE.split()] + _IN_PLACE.split()
_ALIASES = {**methods.ALIASES, "concat": "cat", "concatenate": "cat", "row_stack": "vstack", "spmm": "mm"}
_PARTS = "accelerator amp autograd backends cuda distributions nn optim serialization utils"

half, float, double = float16, float32, float64
int8, int16, int32, int64, uint8 = map(_np.dtype, ("int8", "int16", "int32", "int64", "uint8"))
char, short, int, long, bool = int8, int16, int32, int64, _np.dtype("bool")
dtype = _np.dtype
inf, nan, pi, e = _math.inf, _math.nan, _math.pi, _math.e
newaxis = None
contiguous_format, channels_last, preserve_format, strided = "contiguous_format", "channels_last", "preserve", "strided"


def manual_seed(seed: _builtins.int) -> Generator:
    """Seed every random choice. Returns the generator of the CPU, as PyTorch does, with this seed."""
    _manual_seed(seed)
    return Generator().manual_seed(seed)


def seed() -> _builtins.int:
    """Seed every random choice with a number that the system draws, and return it."""
    drawn = _builtins.int(_np.random.SeedSequence().entropy) % 2**63  # type: ignore[arg-type]
    _manual_seed(drawn)
    return drawn


class set_grad_enabled:
    """Record a graph from here on, or not: as a function for the rest of the thread, as a context for its block."""

    _entered: ClassVar[list] = []  # a context that nothing holds would end

    def __init__(self, mode: _builtins.bool) -> None:
        self._context: Any = _enable_grad() if mode else _no_grad()
        self._context.__enter__()
        self._entered.append(self._context)

    def __call__(self, function: Any) -> Any:
        """The function in this mode; outside of it, all is as before."""
        self.__exit__()
        return self._context(function)

    def __enter__(self) -> None:
        """The mode is set already."""

    def __exit__(self, *error: Any) -> None:
        self._entered.remove(self._context)
        self._context.__exit__(*error)


def no_grad(function: Any = None) -> Any:
    """`tinymp.no_grad`, as a decorator also without brackets."""
    return _no_grad() if function is None else _no_grad()(function)


def enable_grad(function: Any = None) -> Any:
    """`tinymp.enable_grad`, as a decorator also without brackets."""
    return _enable_grad() if function is None else _enable_grad()(function)


def inference_mode(mode: Any = True) -> Any:
    """`no_grad`, by its newer name. mode=False records a graph again, also within `no_grad`, as in PyTorch."""
    return no_grad(mode) if callable(mode) else no_grad() if mode else enable_grad()


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> _Tensor:  # noqa: F811
    """data as a Tensor, without a copy if it is one, or an array, of this dtype on this device."""
    made = data if isinstance(data, _Tensor) else from_numpy(data) if isinstance(data, _np.ndarray) else tensor(data)
    return methods.to(made, *[x for x in (device, dtype) if x is not None])


asarray = as_tensor


def where(condition: _Tensor, *values: Any) -> Any:
    """input where the condition holds, else other; without them the places where it does, one Tensor per axis."""
    return _held("ops.where")(condition, *values) if values else _held("ops.nonzero")(condition, as_tuple=True)


numel, clone = _Tensor.numel, _Tensor.clone  # type: ignore[attr-defined]


def set_default_device(device: Any) -> None:  # noqa: F811
    """Make new tensors and layers on this device from here on."""
    backend.device(device or "cpu").__enter__()


def compile(model: Any = None, **options: Any) -> Any:
    """model itself, or as a decorator the function: nothing is compiled, which is said once."""
    _warnings.warn("torch.compile: tinymp compiles nothing, and results are the same", stacklevel=2)
    return (lambda function: function) if model is None else model


get_rng_state, set_rng_state = backend.get_rng_state, backend.set_rng_state
finfo, iinfo = _np.finfo, _np.iinfo

_TABLE = {"save": "torch.serialization.save", "load": "torch.serialization.load", "autocast": "torch.amp.autocast"}
_TABLE |= {name: f"ops.{name}" for name in _FUNCTIONS} | {a: f"ops.{b}" for a, b in _ALIASES.items()}
_fill(globals(), "torch", _TABLE, _PARTS)
