"""Adaptive average pooling: the means of a grid of cells that cover an image."""

from __future__ import annotations

from typing import Any

from ...arguments import integers, name_all
from ...autograd import Array, Op
from ...precision import REDUCTION, add_to, reduce, store, widen
from ...tensor import Tensor
from ..conv import Pair, batch_first, images_last
from ..pool import image

MOST_CELLS = 1 << 16  # along one side of adaptive pooling, unless the input is longer: more must be a mistake


class AdaptiveAvgPool2d(Op):
    """y_ij = mean of x over rows floor(i H / OH) to ceil((i + 1) H / OH) and columns likewise."""

    kind = REDUCTION
    name = "adaptive_avg_pool2d"

    def forward(self, x: Array, *, size: Pair) -> Array:
        self.shape = x.shape
        if size == (1, 1):
            return store(reduce(x, (2, 3), "mean"), like=x)
        images = widen(images_last(self.xp, x))
        y = self.xp.empty((images.shape[0], *size, images.shape[3]), images.dtype)
        for i, j, rows, cols in _cells(self.shape, size):
            y[:, i : i + 1, j : j + 1] = reduce(images[:, rows, cols], (1, 2), "mean", like=x)
        return batch_first(store(y, like=x))

    def backward(self, dy: Array) -> Array:
        (n, c, h, w), wide = self.shape, widen(images_last(self.xp, dy))
        dx = self.xp.zeros((c, h, w, n), wide.dtype)
        for i, j, rows, cols in _cells(self.shape, self.size):
            cell = dx[:, rows, cols]
            add_to(cell, wide[:, i : i + 1, j : j + 1] / (cell.shape[1] * cell.shape[2]), like=dy)
        return batch_first(store(dx, like=dy))


def _cells(shape: tuple, size: Pair) -> Any:
    def spans(n: int, parts: int) -> list[slice]:
        return [slice(i * n // parts, -(-(i + 1) * n // parts)) for i in range(parts)]

    for i, rows in enumerate(spans(shape[2], size[0])):
        for j, cols in enumerate(spans(shape[3], size[1])):
            yield i, j, rows, cols


# ---------------------------------------------------------------------------------------------------------- functions


def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """Means over a grid of output_size (an integer or (OH, OW), None keeps a side) cells that cover the input.

    ValueError for a side longer than both the input's and 65,536.
    """
    x, unbatched = image("adaptive_avg_pool2d", input)
    y = AdaptiveAvgPool2d.apply(x, size=cells_of("adaptive_avg_pool2d", output_size, x.shape[2:]))
    return y.squeeze(0) if unbatched else y


def cells_of(op: str, output_size: Any, sides: Pair) -> Pair:
    """The output_size of adaptive pooling, None in it filled by the input's sides."""
    given = output_size if isinstance(output_size, (tuple, list)) else (output_size, output_size)
    filled = tuple([n if s is None else s for n, s in zip(sides, given)])
    size = integers(op, "output_size", filled if len(given) == 2 else given, 2, 1)
    if any(s > max(n, MOST_CELLS) for s, n in zip(size, sides)):
        raise ValueError(f"{op}: expected `output_size` to be at most {MOST_CELLS}, got {output_size!r}")
    return size


name_all(globals())
