"""Views that share memory with their input, and tensors joined. Only expand's gradient is rounded, a sum in FP32."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ... import backend
from ...arguments import axes, axis, integer, integers, sizes
from ...arguments import tensor as a_tensor
from ...autograd import Array, Op
from ...dtypes import FLOATING
from ...precision import MOVEMENT, REDUCTION
from ...tensor import Tensor
from ..pointwise import sum_to
from ..shape import Permute, Reshape, Stack, reshape

__all__ = ["cat", "chunk", "contiguous", "expand", "permute", "split", "squeeze", "stack", "unsqueeze", "view"]


class Expand(Op):
    """y = x repeated along axes of length 1 and new leading axes;  dx = sum of dy over them, in FP32."""

    kind = MOVEMENT
    selects = True
    gradient = REDUCTION

    def forward(self, x: Array, *, shape: tuple) -> Array:
        return self.xp.broadcast_to(x, shape)

    def backward(self, dy: Array) -> Array:
        return sum_to(dy, self.targets[0])


def permute(input: Tensor, *dims: Any, **keyword: Any) -> Tensor:
    """input with its axes in the order `dims` (integers or one tuple), a view. ValueError unless each occurs once."""
    ndim = a_tensor("permute", "input", input).ndim
    order = [axis("permute", d, ndim, "dims") for d in sizes("permute", "dims", dims, keyword)]
    if sorted(order) != list(range(ndim)):
        raise ValueError(f"permute: expected each of the {ndim} axes of shape {input.shape} once in dims, got {order}")
    return Permute.apply(input, dims=order)


def squeeze(input: Tensor, dim: Any = None) -> Tensor:
    """input without its axes of length 1, or without those of them that dim (an axis or several) names. A view."""
    ndim = a_tensor("squeeze", "input", input).ndim
    dims = () if isinstance(dim, tuple) and not dim else axes("squeeze", dim, ndim)
    return Reshape.apply(input, shape=tuple(n for i, n in enumerate(input.shape) if n != 1 or i not in dims))


def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """input with a new axis of length 1 at position dim of the result. A view."""
    shape = a_tensor("unsqueeze", "input", input).shape
    d = axis("unsqueeze", dim, len(shape) + 1, "dim of the result")
    return Reshape.apply(input, shape=(*shape[:d], 1, *shape[d:]))


def expand(input: Tensor, *size: Any, **keyword: Any) -> Tensor:
    """input repeated along axes of length 1 and new leading axes up to `size` (-1: as it is), a view without copies.

    ValueError where an axis of another length would have to change. The gradient is summed in FP32.
    """
    shape, old = sizes("expand", "size", size, keyword), a_tensor("expand", "input", input).shape
    lead = len(shape) - len(old)
    new = tuple(old[i - lead] if n == -1 and i >= lead else n for i, n in enumerate(shape))
    if lead < 0 or min(new, default=0) < 0 or any(n not in (1, m) for n, m in zip(old, new[max(lead, 0) :])):
        raise ValueError(
            f"expand: expected sizes that equal input.shape from the right (or -1) except where it is 1, got {shape} "
            f"for an input of shape {old}"
        )
    return Expand.apply(input, shape=new)


def view(input: Tensor, *shape: Any, **keyword: Any) -> Tensor:
    """`reshape` that never copies. RuntimeError where input's memory order would need a copy."""
    new = sizes("view", "shape", shape, keyword)
    x = a_tensor("view", "input", input)
    y = reshape(x, new)
    if x.numel() and backend.owner_of(y.array) is not backend.owner_of(x.array):
        found = f"a tensor of shape {x.shape} in this memory order has no view of shape {new}"
        raise RuntimeError(f"view: {found}; use reshape, which copies")
    return y


def contiguous(input: Tensor) -> Tensor:
    """input itself if its memory is in row-major order, else a copy that is."""
    return input if a_tensor("contiguous", "input", input).array.flags.c_contiguous else input.clone()


class Cat(Stack):
    """y = the tensors one after another along dim;  each gets its part of dy."""

    def forward(self, *tensors: Array, dim: int) -> Array:
        self.lengths = [x.shape[dim] for x in tensors]
        return self.device.concatenate(tensors, dim)

    def backward(self, dy: Array) -> tuple:
        return _parts(dy, self.lengths, self.dim)


class Split(Op):
    """ys = the parts of x along dim;  dx = the dys one after another, zeros for an unused part."""

    kind = MOVEMENT
    selects = True

    def forward(self, x: Array, *, lengths: Sequence[int], dim: int) -> tuple:
        return _parts(x, lengths, dim)

    def backward(self, *dys: Array) -> Array:
        dx = self.xp.zeros(self.targets[0].shape, self.targets[0].dtype)
        for part, dy in zip(_parts(dx, self.lengths, self.dim), dys):
            if dy is not None:
                part[...] = dy  # rounds: never, both have one dtype
        return dx


def _parts(x: Array, lengths: Sequence[int], dim: int) -> tuple:
    """Views of x: its consecutive parts of these lengths along dim."""
    ends = [0]
    for n in lengths:
        ends.append(ends[-1] + n)
    return tuple([x[(slice(None),) * dim + (slice(a, b),)] for a, b in pairwise(ends)])


def _matching(op: str, tensors: Any, dim: Any) -> tuple[Sequence[Tensor], int]:
    """The tensors, and the axis dim of what they become. They have one shape (cat: but along dim), and all or none are
    floating.
    """
    if not isinstance(tensors, (tuple, list)):
        raise TypeError(f"{op}: expected `tensors` to be a list or tuple of tensors, got {type(tensors).__name__}")
    if not tensors:
        raise ValueError(f"{op}: expected at least one tensor, got an empty {type(tensors).__name__}")
    along = op == "cat"
    if along:  # empty vectors are skipped, as in PyTorch, whatever the others are
        tensors = [x for x in tensors if getattr(x, "shape", ()) != (0,)] or tensors
    first = a_tensor(op, "tensors[0]", tensors[0])
    if along and not first.ndim:
        raise ValueError("cat: expected tensors with at least one axis, got tensors[0] of shape (); use stack")
    d = axis(op, dim, first.ndim) if along else axis(op, dim, first.ndim + 1, "dim of the result")
    for i, x in enumerate(tensors):
        shape = a_tensor(op, f"tensors[{i}]", x).shape
        if along and len(shape) == first.ndim:
            shape = (*shape[:d], first.shape[d], *shape[d + 1 :])
        if shape != first.shape:
            but = f" except along axis {d}" if along else ""
            found = f"{x.shape} for tensors[{i}] and {first.shape} for tensors[0]"
            raise ValueError(f"{op}: expected tensors of one shape{but}, got {found}")
        if (x.dtype in FLOATING) != (first.dtype in FLOATING):  # FP16 beside FP32 is refused by Op.apply
            raise TypeError(
                f"{op}: expected tensors of one dtype, got {x.dtype} for tensors[{i}] and {first.dtype} for "
                "tensors[0]; convert one with .to(dtype)"
            )
    return tensors, d


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The tensors one after another along dim. Their other axes agree; they have one dtype.

    Empty 1-d tensors are skipped. ValueError for no tensors, tensors without axes, or shapes that do not fit. TypeError
    for mixed dtypes.
    """
    tensors, d = _matching("cat", tensors, dim)
    return Cat.apply(*tensors, dim=d)


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The tensors, all of one shape and dtype, side by side along a new axis dim. ValueError for no tensors."""
    tensors, d = _matching("stack", tensors, dim)
    return Stack.apply(*tensors, dim=d)


def split(tensor: Tensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of consecutive parts along dim: of one length (the last may be shorter), or of the listed lengths.

    ValueError unless the lengths add up to that of the axis.
    """
    d = axis("split", dim, a_tensor("split", "tensor", tensor).ndim)
    n, given = tensor.shape[d], split_size_or_sections
    if (size := integer(given)) is not None:
        if size < 0 or (size == 0 and n > 0):
            raise ValueError(f"split: expected split_size_or_sections to be at least 1, got {given!r}")
        lengths = tuple(min(size, n - i) for i in range(0, n, size)) if n else (0,)
    else:
        lengths = sizes("split", "split_size_or_sections", (given,), {})
        if min(lengths, default=0) < 0 or sum(lengths) != n:
            raise ValueError(
                f"split: expected split_size_or_sections to add up to tensor.shape[{d}] == {n}, got {list(lengths)}"
            )
    return Split.apply(tensor, lengths=lengths, dim=d)


def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of at most `chunks` consecutive parts along dim, of equal length except the last."""
    d = axis("chunk", dim, a_tensor("chunk", "input", input).ndim)
    (chunks,) = integers("chunk", "chunks", chunks, 1, 1)
    n = input.shape[d]
    return split(input, -(-n // chunks) if n else [0] * chunks, d)
