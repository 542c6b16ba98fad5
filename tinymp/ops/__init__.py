"""The functions of torch and torch.nn.functional that tinymp has, by PyTorch's names; one file per family.

`bind` makes those whose first argument is a tensor methods and operators of Tensor. Other names are in ops/more, which
is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import arguments
from ..backend.extras import Held as _Held
from . import convert
from .activation import leaky_relu, relu
from .conv import conv2d, conv_transpose2d
from .create import empty, full, full_like, ones, zeros
from .dot import linear, matmul
from .dropout import dropout
from .embedding import embedding
from .index import getitem, setitem
from .loss import *
from .norm import batch_norm
from .pointwise import *
from .pool import max_pool2d
from .random import randn
from .recurrent import lstm_layer
from .reduce import argmax, mean, sum
from .shape import *
from .softmax import softmax
from .unary import *

arguments.name_all(globals())  # the public functions, which are those above
del globals()["norm"], globals()["dot"]  # the modules: the functions of these names are in ops/more

METHODS = """
    abs add all amax amin any argmax argmin argsort bmm chunk clamp clip contiguous cos cumsum div eq exp expand flatten
    flip gather ge gt index_select isfinite isinf isnan le log log_softmax logical_and logical_not logical_or logsumexp
    lt masked_fill matmul max maximum mean min minimum mm mul ne neg norm permute pow prod reciprocal relu repeat
    reshape rsqrt scatter sigmoid sign sin softmax sort split sqrt square squeeze std sub sum tanh topk transpose tril
    triu unbind unsqueeze var view
"""
FURTHER = {  # methods and operators whose functions have other names
    **{name: f"convert.{name}" for name in ("bfloat16", "clone", "cuda")},
    **{f"{name}_": f"pointwise.{name}_" for name in ("add", "sub", "mul", "div", "clamp", "masked_fill")},
    **{
        f"__{name}__": name
        for name in ["abs", "add", "ge", "getitem", "gt", "le", "lt", "matmul", "mul", "neg", "pow", "setitem", "sub"]
    },
    **{"__truediv__": "div", "__eq__": "pointwise.equal_or_none", "__ne__": "pointwise.different_or_none"},
    **{"__invert__": "pointwise.invert", "__and__": "pointwise.both", "__or__": "pointwise.either"},
}


def bind(tensor: Any) -> None:
    """Give the class Tensor these functions as methods and operators. Called once, by `tinymp/__init__.py`."""
    table: dict[str, Any] = {name: globals().get(held) or _Held(f"ops.{held}") for name, held in FURTHER.items()}
    table |= {name: globals().get(name) or _Held(f"ops.{name}") for name in METHODS.split()}
    table |= {function.__name__: function for function in convert.METHODS}
    table |= {f"__r{name}__": _reflected(function) for name, function in _REFLECTED.items()}
    table["__hash__"] = object.__hash__  # == compares elements; identity still hashes
    for name, method in table.items():
        setattr(tensor, name, method)


_REFLECTED = {"add": add, "sub": sub, "mul": mul, "truediv": div, "pow": pow, "matmul": matmul}


def _reflected(function: Any) -> Any:
    return lambda self, other: function(other, self)


if TYPE_CHECKING:
    from .more.arithmetic import *
    from .more.attention import scaled_dot_product_attention
    from .more.compare import *
    from .more.conv import conv1d, conv_transpose1d
    from .more.create import *
    from .more.ctc import ctc_loss
    from .more.einsum import einsum
    from .more.embedding_bag import embedding_bag
    from .more.find import *
    from .more.gru import gru_cell, gru_layer
    from .more.index import *
    from .more.log_softmax import *
    from .more.loss import *
    from .more.norm import *
    from .more.pad import *
    from .more.pointwise import *
    from .more.pool import *
    from .more.random import *
    from .more.recurrent import lstm_cell
    from .more.reduce import *
    from .more.resize import interpolate, pixel_shuffle
    from .more.scatter import *
    from .more.shape import *
    from .more.sort import argsort, sort, topk
    from .more.unary import *
    from .more.views import *
