"""The functions of torch and torch.nn.functional that tinymp has, by PyTorch's names; one file per family.

`bind` makes those that take a tensor first methods and operators of Tensor.
"""

from __future__ import annotations

import operator as _operator
from typing import TYPE_CHECKING, Any

from .. import arguments
from ..backend.extras import held as _held
from ..dtypes import FLOATING as _FLOATING
from ..dtypes import HALVES as _HALVES
from ..grad_mode import no_grad as _no_grad
from . import convert
from .activation import leaky_relu, relu
from .compare import *
from .conv import conv2d, conv_transpose2d
from .create import arange, empty, empty_like, eye, full, full_like, linspace, ones, ones_like, zeros, zeros_like
from .dot import linear, matmul
from .dropout import dropout
from .embedding import embedding
from .index import getitem, setitem
from .loss import *
from .norm import batch_norm
from .pointwise import *
from .pool import max_pool2d
from .random import rand, rand_like, randint, randn, randn_like, randperm
from .recurrent import lstm_layer
from .reduce import amax, amin, argmax, argmin, cumsum, max, mean, min, std, sum, var
from .shape import *
from .softmax import log_softmax, softmax
from .unary import *

arguments.name_all(globals())  # the public functions, which are those above
del globals()["norm"], globals()["dot"]  # the modules: the functions of these names are in ops/more

METHODS: tuple[Any, ...] = (
    *(add, sub, mul, div, pow, neg, abs, exp, log, sqrt, rsqrt, square, reciprocal, maximum, minimum, clamp),
    *(sin, cos, sign, clip, masked_fill, sum, mean, std, var, amax, amin, max, min, argmax, argmin, cumsum),
    *(reshape, flatten, transpose, permute, squeeze, unsqueeze, expand, split, chunk, view, contiguous),
    *(matmul, softmax, log_softmax, relu, sigmoid, tanh),
    *(eq, ne, lt, le, gt, ge, logical_not, logical_and, logical_or, isnan, isinf, isfinite, all, any),
)
# in ops/more
HELD_METHODS = "argsort bmm flip gather index_select logsumexp mm norm prod repeat scatter sort topk tril triu unbind"
IN_PLACE: tuple[Any, ...] = (add, sub, mul, div, clamp, masked_fill)  # x.add_(y) writes add(x, y) into x
_FUNCTIONS: Any = (add, sub, mul, pow, matmul, neg, abs, eq, ne, lt, le, gt, ge, getitem, setitem)
OPERATORS: dict[str, Any] = {function.__name__: function for function in _FUNCTIONS} | {"truediv": div}
REFLECTED = ("add", "sub", "mul", "truediv", "pow", "matmul")


def _of_masks(symbol: str, function: Any) -> Any:
    """The operator of booleans, and of the bits of integers; TypeError for other numbers."""

    def operator(*masks: Any) -> Any:
        kinds = {x.dtype.kind if hasattr(x, "dtype") else "b" for x in masks}
        if kinds - {*"biu"}:
            got = ", ".join(str(getattr(x, "dtype", x)) for x in masks)
            raise TypeError(f"{symbol}: expected booleans or integers, got {got}; see ops.{function.__name__}")
        bits = getattr(_operator, f"__{symbol}__")
        return function(*masks) if kinds == {"b"} else type(masks[0])(bits(*(getattr(x, "array", x) for x in masks)))

    return operator


for _symbol, _function in (("invert", logical_not), ("and", logical_and), ("or", logical_or)):
    OPERATORS[_symbol] = _of_masks(_symbol, _function)


class _Held:
    """A method that is the function of its name in ops/more, which is loaded when it is first asked for."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: Any) -> Any:
        function = _held(f"ops.{self.name}")
        return function if instance is None else function.__get__(instance)


def bind(tensor: Any) -> None:
    """Give the class Tensor these functions as methods and operators. Called once, by `tinymp/__init__.py`."""
    for function in (*METHODS, *[arguments.named(f) for f in convert.METHODS]):
        setattr(tensor, function.__name__, function)
    for name in HELD_METHODS.split():
        setattr(tensor, name, _Held(name))
    for function in IN_PLACE:
        setattr(tensor, f"{function.__name__}_", in_place(function))
    for name, operator in OPERATORS.items():
        setattr(tensor, f"__{name}__", operator)
    for name in REFLECTED:
        setattr(tensor, f"__r{name}__", _reflected(OPERATORS[name]))
    for name, answer in (("eq", False), ("ne", True)):
        setattr(tensor, f"__{name}__", _beside_none(OPERATORS[name], answer))
    tensor.__hash__ = object.__hash__  # == compares elements; identity still hashes


def _beside_none(function: Any, answer: bool) -> Any:
    """The operator == or !=, which PyTorch and programs that ask `x in [None]` expect to answer for None as well."""

    def operator(self: Any, other: Any) -> Any:
        return answer if other is None else function(self, other)

    return operator


def in_place(function: Any) -> Any:
    """The method that writes the function of a tensor into it, outside the graph.

    Of a weight it is that of the master, of an FP16 gradient that of its numbers in FP32; FP16 operands are widened.
    """

    def method(self: Any, *args: Any, **options: Any) -> Any:
        self.require_outside_graph(method.__name__, *args, *options.values())
        with _no_grad():
            if self.weight is not None:
                args = tuple([x.float() if getattr(x, "dtype", None) in _HALVES else x for x in args])
            own = self.array if self.weight is None else self.wide().array
            value = function(self.result(own, False), *args, **options)
        if value.dtype in _FLOATING and self.dtype not in _FLOATING:
            raise TypeError(f"{method.__name__}: the result is {value.dtype}, which {self.dtype} does not hold")
        return self.overwrite(method.__name__, value)

    method.__name__ = f"{function.__name__}_"
    return arguments.named(method)


def _reflected(function: Any) -> Any:
    def operator(self: Any, other: Any) -> Any:
        return function(other, self)

    return operator


if TYPE_CHECKING:
    from .more.arithmetic import *
    from .more.attention import scaled_dot_product_attention
    from .more.conv import conv1d, conv_transpose1d
    from .more.ctc import ctc_loss
    from .more.einsum import einsum
    from .more.embedding_bag import embedding_bag
    from .more.find import *
    from .more.gru import gru_cell, gru_layer
    from .more.index import *
    from .more.loss import *
    from .more.norm import *
    from .more.pad import *
    from .more.pool import *
    from .more.random import *
    from .more.recurrent import lstm_cell
    from .more.reduce import *
    from .more.resize import interpolate, pixel_shuffle
    from .more.shape import *
    from .more.sort import argsort, sort, topk
    from .more.unary import *
