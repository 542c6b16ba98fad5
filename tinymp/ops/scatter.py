"""scatter: elements of one tensor put into places of another. Nothing is rounded."""

from __future__ import annotations

from typing import Any

from ..precision import MOVEMENT, scalar
from ..tensor import Array, Op, Tensor
from ._arguments import axis, constant, tensor
from .index import in_range
from .shape import reshape


class Scatter(Op):
    """y = x with y[.., index[.., i, ..], ..] = src[.., i, ..] along one axis;  dsrc = dy there, dx = dy elsewhere."""

    kind = MOVEMENT
    arguments = ("input", "index", "src")

    def forward(self, x: Array, index: Array, src: Array, *, dim: int) -> Array:
        self.save(index)
        self.dim = dim
        y = x.copy()
        y[self._places()] = src[self._part()] if hasattr(src, "dtype") and src.ndim else scalar(src, x.dtype)
        return y

    def backward(self, dy: Array) -> tuple:
        (like_x, _, like_src), places = self.like, self._places()
        dx = like_x and dy.copy()
        if like_x:
            dx[places] = 0
        dsrc = like_src and self.xp.zeros(*like_src)
        if like_src:
            dsrc[self._part()] = dy[places]
        return dx, None, dsrc

    def _places(self) -> tuple:
        (index,) = self.saved
        places = list(self.xp.ogrid[self._part()])
        places[self.dim] = index
        return tuple(places)

    def _part(self) -> tuple:
        """The part of src that is used: as large as the index."""
        return tuple([slice(n) for n in self.saved[0].shape])


def scatter(
    input: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None, reduce: None = None
) -> Tensor:
    """A copy of input with result[index[i][j]][j] = src[i][j] for dim 0, result[i][index[i][j]] = src[i][j] for dim 1.

    index: integers in [0, input.shape[dim]), as many axes as input, along the others no longer than it, nowhere longer
    than src. src: a tensor of input's dtype, or a number (which may be given as `value`, too). Where an index comes
    twice, one of its elements is taken; gradients are right only without such. IndexError for an index out of range;
    ValueError for shapes that do not fit; TypeError for another dtype and for `reduce`.
    """
    x, source = tensor("scatter", "input", input), value if src is None else src
    if not x.ndim and not tensor("scatter", "index", index).ndim:  # as one element along one axis
        source = reshape(source, (1,)) if isinstance(source, Tensor) else source
        return reshape(scatter(reshape(x, (1,)), dim, reshape(index, (1,)), source, reduce=reduce), ())
    d = axis("scatter", dim, x.ndim)
    if reduce is not None:
        raise TypeError(f"scatter: argument `reduce` is not supported (got {reduce!r})")
    if (src is None) == (value is None):
        raise TypeError("scatter: expected exactly one of `src` and `value`")
    if tensor("scatter", "index", index).dtype.kind not in "iu":
        raise TypeError(f"scatter: expected `index` to hold integers, got {index.dtype}")
    larger = [source] if isinstance(source, Tensor) else []
    fits = all(y.ndim == index.ndim for y in (x, *larger)) and not any(
        m > n for y in (x, *larger) for a, (m, n) in enumerate(zip(index.shape, y.shape)) if a != d or y is not x
    )
    if not fits:
        raise ValueError(
            f"scatter: expected index.shape to be at most src.shape, and input.shape except along axis {d}, got "
            f"{index.shape} for input {x.shape}" + "".join(f" and src {y.shape}" for y in larger)
        )
    in_range("scatter", index.data, x.shape[d], f"axis {d}")
    if not isinstance(source, Tensor):
        source = constant("scatter", "value", source, x.dtype)
    elif source.dtype != x.dtype:
        raise TypeError(f"scatter: expected `src` to be {x.dtype} like `input`, got {source.dtype}")
    return Scatter.apply(x, index, source, dim=d)
