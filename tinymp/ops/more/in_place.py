"""Changes in place of tensors that are part of a graph: the tensor becomes the result of the op."""

from __future__ import annotations

from sys import getrefcount

from ...tensor import Tensor, tensor


def become(x: Tensor, how: str, y: Tensor) -> Tensor:
    """Have x be the result y of an op from here on: what a change in place of a tensor in a graph comes to.

    RuntimeError where another would have to learn of it: a view of x, the tensor that x is a view of, an op on x that
    saved it (its count of changes has more holders than x and the op that made x); for another shape or dtype of y.
    """
    own = sum(counter is x._version for counter, _ in x.grad_fn.versions) if x.grad_fn is not None else 0
    if getrefcount(x._version) - own > _ALONE:
        raise RuntimeError(
            f"{how}: this tensor is part of a graph, and shares its memory with another tensor, or an op saved it for "
            "backward; build a new tensor (where, masked_fill, cat, pad), or change a clone()"
        )
    if (y.shape, y.dtype) != (x.shape, x.dtype):
        raise RuntimeError(f"{how}: expected a result like the tensor, {x.dtype} {x.shape}, got {y.dtype} {y.shape}")
    x.array, x.requires_grad, x.grad_fn, x.output_nr = y.array, y.requires_grad, y.grad_fn, y.output_nr
    x._version = y._version
    return x


_only = tensor(0.0)
_ALONE = getrefcount(_only._version)  # as that of a tensor whose memory nobody shares or has saved
