"""flip, unbind, tril and triu: data movement."""

from __future__ import annotations

from typing import Any

from ... import backend
from ...arguments import axes, axis, integer, name_all, tensor
from ...autograd import Array, Op
from ...precision import MOVEMENT
from ...tensor import Tensor
from ..pointwise import masked_fill
from ..shape import split, squeeze


class Flip(Op):
    """y = x in reverse order along dims;  dx = dy likewise."""

    kind = MOVEMENT

    def forward(self, x: Array, *, dims: tuple) -> Array:
        return self.xp.flip(x, dims).copy(order="K")  # as PyTorch: kernels need not handle negative strides

    def backward(self, dy: Array) -> Array:
        return self.xp.flip(dy, self.dims)


def flip(input: Tensor, dims: Any) -> Tensor:
    """A copy of input in reverse order along dims (an axis or several)."""
    ndim = tensor("flip", "input", input).ndim
    none = dims is None or (isinstance(dims, (tuple, list)) and not dims)
    return Flip.apply(input, dims=() if none else axes("flip", dims, ndim))


def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """The slices of input along dim, without that axis: views."""
    d = axis("unbind", dim, tensor("unbind", "input", input).ndim)
    return tuple([squeeze(part, d) for part in split(input, 1, d)]) if input.shape[d] else ()


def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """The lower triangle of the matrices on input's last two axes, up to `diagonal` (1: one above the main); else 0."""
    return _triangle("tril", input, diagonal, lower=True)


def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """The upper triangle of the matrices on input's last two axes, from `diagonal` on (1: one above main); else 0."""
    return _triangle("triu", input, diagonal, lower=False)


def _triangle(op: str, input: Tensor, diagonal: Any, lower: bool) -> Tensor:
    if tensor(op, "input", input).ndim < 2:
        raise ValueError(f"{op}: expected `input` to have at least two axes, got shape {input.shape}")
    if (offset := integer(diagonal)) is None:
        raise TypeError(f"{op}: expected `diagonal` to be an integer, got {diagonal!r}")
    arange, (rows, columns) = backend.of(input.array).xp.arange, input.shape[-2:]
    right = arange(columns) - arange(rows)[:, None] - min(max(offset, -rows), columns)  # how far right of the diagonal
    return masked_fill(input, Tensor(right > 0 if lower else right < 0), 0)


name_all(globals())
