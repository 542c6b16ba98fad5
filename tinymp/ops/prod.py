"""prod: the product of elements, as a tree of products in FP32."""

from __future__ import annotations

from ..arguments import axis, flag, refuse, tensor
from ..dtypes import FLOATING, float16, float32
from ..tensor import Tensor
from .pointwise import add, mul
from .reduce import sum as total
from .shape import cat, reshape, split


def prod(input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: None = None) -> Tensor:
    """The product over axis dim, or of all elements if dim is None; rounded once. 1 over no elements.

    Halves of the axis are multiplied with each other, in FP32, until one element is left: the gradient of each element
    is the product of the others also where some are 0. Integers and booleans give int64.
    """
    refuse("prod", dtype=dtype)
    x = tensor("prod", "input", input)
    dims = tuple(range(x.ndim)) if dim is None or not x.ndim else (axis("prod", dim, x.ndim),)
    shape = tuple(
        1 if i in dims else n for i, n in enumerate(x.shape) if flag("prod", "keepdim", keepdim) or i not in dims
    )
    y = x.to(float32) if x.dtype == float16 else x if x.dtype in FLOATING else x.to("int64")
    y, d = (y, dims[0]) if len(dims) == 1 else (reshape(y, (x.numel(),)), 0)
    while (n := y.shape[d]) > 1:
        first, second, rest = split(y, [n // 2, n // 2, n % 2], d)
        y = mul(first, second)
        y = cat([y, rest], d) if n % 2 else y
    y = y if n else add(total(y, d, True), 1)  # 1 + an empty sum: a 1 that is part of the graph
    y = reshape(y, shape)
    return y.to(x.dtype) if x.dtype in FLOATING else y
