"""Views that share memory with their input. Nothing is rounded but the gradient of expand, a sum in FP32."""

from __future__ import annotations

from typing import Any

from ... import backend
from ...arguments import axes, axis, name_all, sizes, tensor
from ...autograd import Array, Op
from ...precision import MOVEMENT, REDUCTION
from ...tensor import Tensor
from ..pointwise import sum_to
from ..shape import Permute, Reshape, reshape

__all__ = ["contiguous", "expand", "permute", "squeeze", "unsqueeze", "view"]


class Expand(Op):
    """y = x repeated along axes of length 1 and new leading axes;  dx = sum of dy over them, in FP32."""

    kind = MOVEMENT
    selects = True
    gradient = REDUCTION

    def forward(self, x: Array, *, shape: tuple) -> Array:
        return self.xp.broadcast_to(x, shape)

    def backward(self, dy: Array) -> Array:
        return sum_to(dy, self.targets[0])


# ---------------------------------------------------------------------------------------------------------- functions


def permute(input: Tensor, *dims: Any, **keyword: Any) -> Tensor:
    """input with its axes in the order `dims` (integers or one tuple), a view. ValueError unless each occurs once."""
    ndim = tensor("permute", "input", input).ndim
    order = [axis("permute", d, ndim, "dims") for d in sizes("permute", "dims", dims, keyword)]
    if sorted(order) != list(range(ndim)):
        raise ValueError(f"permute: expected each of the {ndim} axes of shape {input.shape} once in dims, got {order}")
    return Permute.apply(input, dims=order)


def squeeze(input: Tensor, dim: Any = None) -> Tensor:
    """input without its axes of length 1, or without those of them that dim (an axis or several) names. A view."""
    ndim = tensor("squeeze", "input", input).ndim
    dims = () if isinstance(dim, tuple) and not dim else axes("squeeze", dim, ndim)
    return Reshape.apply(input, shape=tuple(n for i, n in enumerate(input.shape) if n != 1 or i not in dims))


def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """input with a new axis of length 1 at position dim of the result. A view."""
    shape = tensor("unsqueeze", "input", input).shape
    d = axis("unsqueeze", dim, len(shape) + 1, "dim of the result")
    return Reshape.apply(input, shape=(*shape[:d], 1, *shape[d:]))


def expand(input: Tensor, *size: Any, **keyword: Any) -> Tensor:
    """input repeated along axes of length 1 and new leading axes up to `size` (-1: as it is), a view without copies.

    ValueError where an axis of another length would have to change. The gradient is summed in FP32.
    """
    shape, old = sizes("expand", "size", size, keyword), tensor("expand", "input", input).shape
    lead = len(shape) - len(old)
    new = tuple(old[i - lead] if n == -1 and i >= lead else n for i, n in enumerate(shape))
    if lead < 0 or min(new, default=0) < 0 or any(n not in (1, m) for n, m in zip(old, new[max(lead, 0) :])):
        raise ValueError(
            f"expand: expected sizes that equal input.shape from the right (or -1) except where it is 1, got {shape} "
            f"for an input of shape {old}"
        )
    return Expand.apply(input, shape=new)


def view(input: Tensor, *shape: Any, **keyword: Any) -> Tensor:
    """`reshape` that never copies. ValueError where input's memory order would need a copy."""
    new = sizes("view", "shape", shape, keyword)
    x = tensor("view", "input", input)
    y = reshape(x, new)
    if x.numel() and backend.owner_of(y.array) is not backend.owner_of(x.array):
        found = f"a tensor of shape {x.shape} in this memory order has no view of shape {new}"
        raise ValueError(f"view: {found}; use reshape, which copies")
    return y


def contiguous(input: Tensor) -> Tensor:
    """input itself if its memory is in row-major order, else a copy that is."""
    return input if tensor("contiguous", "input", input).array.flags.c_contiguous else input.clone()


name_all(globals())
