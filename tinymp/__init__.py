"""tinymp: a small deep-learning framework that trains in mixed precision and shows every precision decision.

    import tinymp as mp
    from tinymp import nn, ops, optim

Read `precision.py` first: precision changes in its four functions and nowhere else.
"""

from . import blas  # isort: skip  # before anything else loads NumPy: the kernels for products are chosen then

from typing import TYPE_CHECKING
from typing import Any as _Any

from . import backend, data, nn, ops, optim, parallel
from .arguments import name_all as _name_all
from .audit import audit
from .audit import meta as _meta
from .audit.kept import saved_nbytes
from .audit.layers import summary
from .backend import default_device, device, get_rng_state, manual_seed, set_rng_state, synchronize
from .capture import capture
from .checkpoint import Checkpointer, load, load_weights, save, save_weights
from .dtypes import bfloat16, float16, float32, float64
from .events import Observer, observe
from .grad_mode import enable_grad, is_grad_enabled, no_grad
from .info import __version__, info
from .instead import missing as _missing
from .ops import (
    arange,
    empty,
    empty_like,
    eye,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    randperm,
    zeros,
    zeros_like,
)
from .precision import (
    BF16,
    FP8,
    FP8_HOPPER,
    FP16_ACCUMULATE,
    FP16_REDUCTIONS,
    FP16_VOLTA,
    FP32,
    KINDS,
    MIXED,
    NO_MASTER,
    POLICIES,
    PURE_FP16,
    STOCHASTIC_ROUNDING,
    TF32,
    Policy,
    current_policy,
    use,
)
from .sparse import SparseRows
from .tensor import Tensor, from_numpy, tensor

_name_all(globals(), SparseRows, Tensor)  # but for those that every op makes
ops.bind(Tensor)
backend.add(_meta)

if BF16 is None:  # `_missing` says what it takes
    del BF16, FP8, FP8_HOPPER, bfloat16

if not TYPE_CHECKING:  # type checkers report missing names themselves

    def __getattr__(name: str) -> _Any:  # only called for names that do not exist
        if hasattr(ops, name) and not name.startswith("_"):
            raise AttributeError(f"tinymp has no attribute '{name}'; use tinymp.ops.{name}")
        raise _missing("tinymp", name, globals())
