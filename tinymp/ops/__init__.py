"""The functions of torch and torch.nn.functional that tinymp has, by PyTorch's names; one file per family.

`bind` makes those that take a tensor first methods and operators of Tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import arguments
from ..dtypes import FLOATING as _FLOATING
from ..grad_mode import no_grad as _no_grad
from . import convert
from .activation import elu, gelu, glu, hardtanh, leaky_relu, prelu, relu, relu6, softplus
from .attention import scaled_dot_product_attention
from .compare import (
    all,
    any,
    eq,
    ge,
    gt,
    isfinite,
    isinf,
    isnan,
    le,
    logical_and,
    logical_not,
    logical_or,
    lt,
    ne,
)
from .conv import conv1d, conv2d, conv_transpose1d, conv_transpose2d, unfold
from .create import arange, empty, empty_like, eye, full, full_like, linspace, ones, ones_like, zeros, zeros_like
from .dot import bmm, einsum, linear, matmul, mm
from .dropout import dropout
from .embedding import embedding
from .group_norm import group_norm, instance_norm, rms_norm
from .index import gather, getitem, index_select, setitem
from .loss import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cross_entropy,
    huber_loss,
    l1_loss,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
)
from .norm import batch_norm, layer_norm, normalize
from .pointwise import (
    add,
    clamp,
    div,
    masked_fill,
    maximum,
    minimum,
    mul,
    neg,
    pow,
    sub,
    where,
)
from .pool import adaptive_avg_pool2d, avg_pool2d, max_pool2d
from .pool1d import adaptive_avg_pool1d, adaptive_max_pool2d, avg_pool1d, max_pool1d
from .prod import prod
from .random import rand, rand_like, randint, randn, randn_like, randperm
from .rearrange import clip, contiguous, repeat, tril, triu, unbind, view
from .recurrent import gru_cell, gru_layer, lstm_cell, lstm_layer
from .reduce import amax, amin, argmax, argmin, cumsum, logsumexp, max, mean, min, std, sum, var
from .scatter import scatter
from .shape import (
    cat,
    chunk,
    expand,
    flatten,
    flip,
    pad,
    permute,
    reshape,
    split,
    squeeze,
    stack,
    transpose,
    unsqueeze,
)
from .softmax import log_softmax, softmax
from .sort import argsort, sort, topk
from .unary import (
    abs,
    cos,
    exp,
    hardswish,
    log,
    logsigmoid,
    mish,
    reciprocal,
    rsqrt,
    sigmoid,
    sign,
    silu,
    sin,
    sqrt,
    square,
    tanh,
)
from .vector_norm import norm

arguments.name_all(globals())  # the public functions, which are those above

METHODS: tuple[Any, ...] = (
    *(add, sub, mul, div, pow, neg, abs, exp, log, sqrt, rsqrt, square, reciprocal, maximum, minimum, clamp),
    *(sin, cos, sign, clip, norm, prod, sort, argsort, topk),
    *(masked_fill, sum, mean, std, var, amax, amin, max, min, argmax, argmin, logsumexp, cumsum),
    *(reshape, flatten, transpose, permute, squeeze, unsqueeze, expand, split, chunk, flip, gather, index_select),
    *(view, contiguous, repeat, unbind, tril, triu, scatter),
    *(matmul, mm, bmm, softmax, log_softmax, relu, sigmoid, tanh),
    *(eq, ne, lt, le, gt, ge, logical_not, logical_and, logical_or, isnan, isinf, isfinite, all, any),
)
IN_PLACE: tuple[Any, ...] = (add, sub, mul, div, clamp, masked_fill)  # x.add_(y) writes add(x, y) into x
OPERATORS: dict[str, Any] = {
    "add": add,
    "sub": sub,
    "mul": mul,
    "truediv": div,
    "pow": pow,
    "matmul": matmul,
    "neg": neg,
    "abs": abs,
    "eq": eq,
    "ne": ne,
    "lt": lt,
    "le": le,
    "gt": gt,
    "ge": ge,
    "getitem": getitem,
    "setitem": setitem,
}
REFLECTED = ("add", "sub", "mul", "truediv", "pow", "matmul")


def _of_masks(symbol: str, function: Any) -> Any:
    """The operator of booleans; TypeError for integers, whose bits PyTorch would combine."""

    def operator(*masks: Any) -> Any:
        for x in masks:
            if hasattr(x, "dtype") and x.dtype.kind != "b":
                raise TypeError(f"{symbol}: expected boolean tensors, got {x.dtype}; see ops.{function.__name__}")
        return function(*masks)

    return operator


OPERATORS |= {
    "invert": _of_masks("~", logical_not),
    "and": _of_masks("&", logical_and),
    "or": _of_masks("|", logical_or),
}


def bind(tensor: Any) -> None:
    """Give the class Tensor these functions as methods and operators. Called once, by `tinymp/__init__.py`."""
    for function in (*METHODS, *[arguments.named(f) for f in convert.METHODS]):
        setattr(tensor, function.__name__, function)
    for function in IN_PLACE:
        setattr(tensor, f"{function.__name__}_", _in_place(function))
    for name, operator in OPERATORS.items():
        setattr(tensor, f"__{name}__", operator)
    for name in REFLECTED:
        setattr(tensor, f"__r{name}__", _reflected(OPERATORS[name]))
    for name, answer in (("eq", False), ("ne", True)):
        setattr(tensor, f"__{name}__", _beside_none(OPERATORS[name], answer))
    tensor.__hash__ = object.__hash__  # == compares elements; identity still hashes


def _beside_none(function: Any, answer: bool) -> Any:
    """The operator == or !=, which PyTorch and programs that ask `x in [None]` expect to answer for None, too."""

    def operator(self: Any, other: Any) -> Any:
        return answer if other is None else function(self, other)

    return operator


def _in_place(function: Any) -> Any:
    """The method that writes the function of a tensor into it, outside the graph; of weights, that of the master."""

    def method(self: Any, *args: Any, **options: Any) -> Any:
        self.require_outside_graph(method.__name__)
        with _no_grad():
            value = function(self.result(getattr(self, "master", self.array), False), *args, **options)
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
    from ..vision.boxes import (
        batched_nms,
        box_iou,
        clip_boxes_to_image,
        decode_boxes,
        encode_boxes,
        nms,
        remove_small_boxes,
    )
    from ..vision.roi import roi_align, roi_pool
    from .more.ctc import ctc_loss
    from .more.divergence import kl_div
    from .more.embedding_bag import embedding_bag
    from .more.local_response_norm import local_response_norm
    from .more.resize import interpolate, pixel_shuffle
    from .more.sampled import Sample, log_uniform_sample, sampled_softmax_loss
