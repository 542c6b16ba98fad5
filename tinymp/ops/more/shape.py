"""Data movement beyond that of ops/shape.py, most of it made of views, copies and lookups. Nothing is rounded."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ... import backend
from ...arguments import axes, axis, choice, integer, integers, listed, tensor
from ...arguments import sizes as _sizes
from ...autograd import Array, Op
from ...precision import MOVEMENT
from ...tensor import Tensor
from ..index import getitem
from ..pointwise import broadcastable
from ..shape import reshape, transpose
from .index import gather, index_select
from .pad import pad
from .pointwise import masked_fill
from .views import cat, expand, permute, split, squeeze, unsqueeze

__all__ = ["broadcast_tensors", "broadcast_to", "diag", "diagonal", "flip", "hstack", "masked_select", "meshgrid"]
__all__ += ["movedim", "narrow"]
__all__ += ["repeat", "repeat_interleave", "roll", "swapaxes", "take_along_dim", "tile", "tril", "triu", "unbind"]
__all__ += ["unflatten", "vstack"]


class Flip(Op):
    """y = x in reverse order along dims;  dx = dy likewise."""

    kind = MOVEMENT

    def forward(self, x: Array, *, dims: tuple) -> Array:
        return self.xp.flip(x, dims).copy(order="K")  # as PyTorch: kernels need not handle negative strides

    def backward(self, dy: Array) -> Array:
        return self.xp.flip(dy, self.dims)


class Diagonal(Op):
    """y = the view of x along which two axes run together, as its last axis;  dx = dy there, 0 elsewhere."""

    kind = MOVEMENT

    def forward(self, x: Array, *, offset: int, dims: list) -> Array:
        y = x.diagonal(offset, *dims)
        if hasattr(y.flags, "writeable"):  # NumPy's is read-only
            y.flags.writeable = x.flags.writeable
        return y

    def backward(self, dy: Array) -> Array:
        dx = self.xp.zeros(self.targets[0].shape, self.targets[0].dtype)
        self.forward(dx, offset=self.offset, dims=self.dims)[...] = dy  # rounds: never, both have one dtype
        return dx


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


def narrow(input: Tensor, dim: int, start: Any, length: int) -> Tensor:
    """`length` elements of input along dim, from `start` on (negative: from the end): a view. IndexError, ValueError
    for those that are not there.
    """
    d = axis("narrow", dim, tensor("narrow", "input", input).ndim)
    (first,) = integers("narrow", "start", start, 1, -input.shape[d], input.shape[d])
    first += input.shape[d] * (first < 0)
    (n,) = integers("narrow", "length", length, 1, 0, input.shape[d] - first)
    return getitem(input, (slice(None),) * d + (slice(first, first + n),))


def roll(input: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    """A copy of input, its elements moved on by `shifts` along `dims` (integers, or as many of each), the last ones to
    the front; without dims in row-major order. ValueError for other numbers of dims.
    """
    by = _sizes("roll", "shifts", (shifts,), {})
    if dims is None or (isinstance(dims, (tuple, list)) and not dims):
        integers("roll", "shifts without `dims`", by, 1, -(2**63))
        return reshape(roll(reshape(tensor("roll", "input", input), (-1,)), by, 0), input.shape)
    along = _sizes("roll", "dims", (dims,), {})
    if len(by) != len(along):
        raise ValueError(f"roll: expected as many `shifts` as `dims`, got {shifts!r} and {dims!r}")
    for shift, dim in zip(by, along):
        n = tensor("roll", "input", input).shape[axis("roll", dim, input.ndim)]
        cut = -shift % max(n, 1)
        input = cat([narrow(input, dim, cut, n - cut), narrow(input, dim, 0, cut)], dim)
    return input


def movedim(input: Tensor, source: Any, destination: Any) -> Tensor:
    """input with its axes `source` at the places `destination` (an integer or several), the others in order: a view.
    ValueError for another number of destinations, and for an axis that is named twice.
    """
    ndim = tensor("movedim", "input", input).ndim
    old = [axis("movedim", d, ndim, "source") for d in _sizes("movedim", "source", (source,), {})]
    new = [axis("movedim", d, ndim, "destination") for d in _sizes("movedim", "destination", (destination,), {})]
    if len(old) != len(new) or len({*old}) != len(old) or len({*new}) != len(new):
        raise ValueError(f"movedim: expected as many destinations as sources, each once, got {source}, {destination}")
    moved, rest = dict(zip(new, old)), iter([d for d in range(ndim) if d not in old])
    return permute(input, [moved[d] if d in moved else next(rest) for d in range(ndim)])


def swapaxes(input: Tensor, axis0: int, axis1: int) -> Tensor:
    """input with two axes exchanged, a view: another name of `transpose`."""
    ndim = tensor("swapaxes", "input", input).ndim
    return transpose(input, axis("swapaxes", axis0, ndim, "axis0"), axis("swapaxes", axis1, ndim, "axis1"))


def broadcast_to(input: Tensor, size: Any) -> Tensor:
    """input expanded to the shape `size`, a view: `expand`."""
    return expand(input, size)


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Views of the tensors in the shape that they broadcast to. ValueError if there is none."""
    shapes = [tensor("broadcast_tensors", "tensors", x).shape for x in tensors]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        raise ValueError(f"broadcast_tensors: expected shapes that broadcast, got {shapes}") from None
    return tuple(expand(x, shape) for x in tensors)


def unflatten(input: Tensor, dim: int, sizes: Any) -> Tensor:
    """input with axis dim as several, of these lengths (one may be -1). ValueError unless they multiply to its own."""
    d = axis("unflatten", dim, tensor("unflatten", "input", input).ndim)
    lengths, n = [*_sizes("unflatten", "sizes", (listed("unflatten", "sizes", sizes),), {})], input.shape[d]
    known = prod(m for m in lengths if m != -1)
    if lengths.count(-1) == 1 and known and n % known == 0:
        lengths[lengths.index(-1)] = n // known
    if not lengths or prod(lengths) != n or min(lengths) < 0:
        raise ValueError(f"unflatten: expected `sizes` that multiply to input.shape[{d}] == {n}, got {sizes!r}")
    return reshape(input, (*input.shape[:d], *lengths, *input.shape[d + 1 :]))


def _at_least(op: str, tensors: Any, ndim: int) -> list[Tensor]:
    found = [tensor(op, "tensors", x) for x in listed(op, "tensors", tensors)]
    return [x if x.ndim >= ndim else reshape(x, (1,) * (ndim - x.ndim) + x.shape) for x in found]


def hstack(tensors: Any) -> Tensor:
    """The tensors one after another along axis 1; those of one axis or none along axis 0."""
    found = _at_least("hstack", tensors, 1)
    return cat(found, 0 if not found or found[0].ndim == 1 else 1)


def vstack(tensors: Any) -> Tensor:
    """The tensors one below another, along axis 0; those of one axis or none are rows."""
    return cat(_at_least("vstack", tensors, 2), 0)


def repeat(input: Tensor, *repeats: Any, **keyword: Any) -> Tensor:
    """A copy of input laid side by side, repeats[i] times along axis i (integers or one tuple); new axes come first.

    ValueError for fewer repeats than axes, and for negative ones. The gradient is summed in FP32.
    """
    times, x = _sizes("repeat", "repeats", repeats, keyword), tensor("repeat", "input", input)
    if len(times) < x.ndim or min(times, default=0) < 0:
        raise ValueError(
            f"repeat: expected a count of at least 0 for each of the {x.ndim} axes (or more), got {times} for shape "
            f"{x.shape}"
        )
    old = (1,) * (len(times) - x.ndim) + x.shape
    pairs = reshape(x, [m for n in old for m in (1, n)])
    wide = expand(pairs, [m for r, n in zip(times, old) for m in (r, n)])
    return apart(reshape(wide, [r * n for r, n in zip(times, old)]), x)


def apart(y: Tensor, x: Tensor) -> Tensor:
    """y, or where it shares its memory with x a copy: the result of a function that copies for any other shape."""
    return y.clone() if backend.owner_of(y.array) is backend.owner_of(x.array) else y


def tile(input: Tensor, *dims: Any, **keyword: Any) -> Tensor:
    """Copies of input side by side, dims[-1] along its last axis, and so on: `repeat`, but axes may be left out."""
    times = _sizes("tile", "dims", dims, keyword)
    return repeat(input, (1,) * (tensor("tile", "input", input).ndim - len(times)) + times)


def meshgrid(*tensors: Any, indexing: str | None = None) -> tuple[Tensor, ...]:
    """The coordinates of a grid: for each of the tensors, of one axis or none, a view of it that varies along its own
    axis, in the order given ("ij", which None means), or with the first two exchanged ("xy").
    """
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)) else tensors
    found = [reshape(x, (-1,)) for x in given if tensor("meshgrid", "tensors", x).ndim < 2]
    swap = choice("meshgrid", "indexing", indexing, (None, "ij", "xy")) == "xy" and len(found) > 1
    if len(found) != len(given) or not found:
        raise ValueError(f"meshgrid: expected tensors of at most one axis, got shapes {[x.shape for x in given]}")
    found = [found[1], found[0], *found[2:]] if swap else found
    shape, n = [x.shape[0] for x in found], len(found)
    grids = [expand(reshape(x, (1,) * i + (-1,) + (1,) * (n - 1 - i)), shape) for i, x in enumerate(found)]
    return tuple([grids[1], grids[0], *grids[2:]] if swap else grids)


def repeat_interleave(input: Tensor, repeats: Any = None, dim: int | None = None, *, output_size: Any = None) -> Tensor:
    """The slices of input along dim, each as often as `repeats` says (an integer, or a tensor of one for each); without
    dim, its elements. repeat_interleave(repeats) gives the places alone. ValueError for counts that do not fit.
    """
    tensor("repeat_interleave", "input", input)
    if repeats is None:  # as PyTorch: the argument is the counts
        return repeat_interleave(Tensor(backend.of(input.array).xp.arange(input.numel())), input)
    x = reshape(input, (-1,)) if dim is None or not input.ndim else input
    d = axis("repeat_interleave", 0 if dim is None else dim, x.ndim)
    counts = repeats.reshape(-1).tolist() if isinstance(repeats, Tensor) else repeats
    times = integers("repeat_interleave", "repeats", counts, x.shape[d], 0)
    places = backend.of(x.array).asarray(np.repeat(np.arange(x.shape[d]), times))
    if output_size not in (None, places.size):
        raise ValueError(f"repeat_interleave: expected `output_size` to be {places.size}, got {output_size!r}")
    return index_select(x, d, Tensor(places))


def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """`gather` along dim, where the other axes of input and indices broadcast, and negative indices count from the end;
    without dim of all elements in a row.
    """
    x, i = tensor("take_along_dim", "input", input), tensor("take_along_dim", "indices", indices)
    if dim is None:
        return gather(reshape(x, (-1,)), 0, reshape(i, (-1,)))
    d = axis("take_along_dim", dim, x.ndim)
    if i.dtype.kind not in "iu":
        raise TypeError(f"take_along_dim: expected `indices` to hold integers, got {i.dtype}")
    if x.ndim != i.ndim:
        raise ValueError(f"take_along_dim: expected as many axes in `indices` as in input, got {i.shape} and {x.shape}")
    shape = list(np.broadcast_shapes(*[(*v.shape[:d], 1, *v.shape[d + 1 :]) for v in (x, i)]))
    i = Tensor(i.array + x.shape[d] * (i.array < 0))
    x, i = (expand(v, (*shape[:d], v.shape[d], *shape[d + 1 :])) for v in (x, i))
    return gather(x, d, i)


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements of input where mask (bool) holds, in a row; both are broadcast. TypeError for another mask."""
    x, m = tensor("masked_select", "input", input), tensor("masked_select", "mask", mask)
    if m.dtype.kind != "b":
        raise TypeError(f"masked_select: expected `mask` to be bool, got {m.dtype}; compare it with something")
    broadcastable("masked_select", x, m)
    shape = np.broadcast_shapes(x.shape, m.shape)
    return getitem(reshape(expand(x, shape), (-1,)), reshape(expand(m, shape), (-1,)))


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The elements [.., i, i + offset, ..] of input on the axes dim1 and dim2, as its last axis: a view."""
    ndim = tensor("diagonal", "input", input).ndim
    axes = [axis("diagonal", dim1, ndim, "dim1"), axis("diagonal", dim2, ndim, "dim2")]
    if axes[0] == axes[1]:
        raise ValueError(f"diagonal: expected two axes, got dim1={dim1} and dim2={dim2}")
    (right,) = integers("diagonal", "offset", offset, 1, -(2**31), 2**31)
    return Diagonal.apply(input, offset=right, dims=axes)


def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """A copy of a matrix's diagonal, `diagonal` places right of the main one; or the matrix, 0 elsewhere, with the
    vector input there. ValueError for other numbers of axes.
    """
    if tensor("diag", "input", input).ndim == 2:
        return _diagonal_of(input, diagonal).clone()
    if input.ndim != 1 or (right := integer(diagonal)) is None:
        raise ValueError(f"diag: expected a vector or a matrix, and an integer, got {input.shape} and {diagonal!r}")
    n = input.shape[0] + abs(right)
    place = backend.of(input.array).xp.arange(n)
    wide = unsqueeze(pad(input, (0, abs(right))), 1 if right >= 0 else 0)  # one place of each row is kept
    return masked_fill(expand(wide, (n, n)), Tensor(place[None] - place[:, None] != right), 0)


_diagonal_of = diagonal
