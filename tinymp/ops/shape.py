"""Data movement: the same values in another shape or place. Nothing is computed, nothing is rounded."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..arguments import axis, sizes, tensor
from ..autograd import Array, Op
from ..precision import MOVEMENT
from ..tensor import Tensor

__all__ = ["flatten", "reshape", "transpose"]


class Reshape(Op):
    """y = x with another shape, in row-major order;  dx = dy with x's shape."""

    kind = MOVEMENT
    selects = True

    def forward(self, x: Array, *, shape: tuple) -> Array:
        return x.reshape(shape)

    def backward(self, dy: Array) -> Array:
        return dy.reshape(self.targets[0].shape)


class Permute(Op):
    """y = x with its axes in the order `dims`;  dx = dy with them in the old order."""

    kind = MOVEMENT
    selects = True

    def forward(self, x: Array, *, dims: Sequence[int]) -> Array:
        self.inverse = sorted(range(len(dims)), key=dims.__getitem__)
        return x.transpose(dims)

    def backward(self, dy: Array) -> Array:
        return dy.transpose(self.inverse)


class Stack(Op):
    """y = the tensors side by side along the new axis dim;  each gets its slice of dy."""

    kind = MOVEMENT
    name_of = classmethod(lambda cls, i: f"tensors[{i}]")

    def forward(self, *tensors: Array, dim: int) -> Array:
        return self.device.concatenate([x.reshape(*x.shape[:dim], 1, *x.shape[dim:]) for x in tensors], dim)

    def backward(self, dy: Array) -> tuple:
        return tuple(self.xp.moveaxis(dy, self.dim, 0))


# ---------------------------------------------------------------------------------------------------------- functions


def reshape(input: Tensor, *shape: Any, **keyword: Any) -> Tensor:
    """input with another shape (integers or one tuple; one of them may be -1: what is left), a view where possible.

    ValueError unless the number of elements stays the same.
    """
    new, size = sizes("reshape", "shape", shape, keyword), tensor("reshape", "input", input).numel()
    known = prod(n for n in new if n != -1)
    if new.count(-1) == 1 and known > 0 and size % known == 0:
        new = tuple(size // known if n == -1 else n for n in new)
    if prod(new) != size or min(new, default=0) < 0:
        raise ValueError(
            f"reshape: expected a shape of {size} elements (at most one length -1, if the others determine it), got "
            f"{new} for input.shape {input.shape}"
        )
    return Reshape.apply(input, shape=new)


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """input with the axes start_dim to end_dim (inclusive) merged into one. A tensor without axes gets one."""
    ndim = max(tensor("flatten", "input", input).ndim, 1)
    start, end = axis("flatten", start_dim, ndim, "start_dim"), axis("flatten", end_dim, ndim, "end_dim")
    if start > end:
        raise ValueError(f"flatten: expected start_dim <= end_dim, got axes {start} and {end} of shape {input.shape}")
    shape = input.shape
    return Reshape.apply(input, shape=(*shape[:start], prod(shape[start : end + 1]), *shape[end + 1 :]))


def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """input with two axes exchanged, a view."""
    ndim = tensor("transpose", "input", input).ndim
    a, b = axis("transpose", dim0, max(ndim, 1), "dim0"), axis("transpose", dim1, max(ndim, 1), "dim1")
    exchanged = {a: b, b: a}
    return Permute.apply(input, dims=[exchanged.get(i, i) for i in range(ndim)])
