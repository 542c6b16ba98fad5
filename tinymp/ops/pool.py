"""Pooling by maximum. Like the convolutions, this works on (C, H, W, N) in memory; see conv.py."""

from __future__ import annotations

from typing import Any

from ..arguments import flag, with_axes
from ..autograd import Array, Op
from ..backend.extras import held
from ..precision import MOVEMENT, store, widen
from ..tensor import Tensor
from .conv import Geometry, batch_first, geometry_of, images_last, pad_spatial, pair, taps, unpad_spatial


class MaxPool2d(Op):
    """y = the largest x of each window (nan if one is), its first place kept in `index`;  that place gets dy.

    Nothing is rounded: y's values are x's, and dx's are dy's, as windows do not overlap here (more/pool.py has others).
    """

    kind = MOVEMENT
    name = "max_pool2d"

    def forward(self, x: Array, *, geometry: Geometry) -> Array:
        g, xp = geometry, self.xp
        padded = pad_spatial(xp, widen(images_last(xp, x)), g.pads, -float("inf"))
        (_, _, first), *others = taps(padded, g)
        best, index = first.copy(), xp.broadcast_to(_first_place(xp, g, first), first.shape)
        for i, j, seen in others:
            larger = xp.maximum(best, seen)  # keeps the earlier of equals, and nan
            changed = xp.not_equal(larger, best) & xp.equal(best, best)  # nan differs from itself, but stays
            index = xp.maximum(index, changed * index.dtype.type(i * g.kernel[1] + j))
            best = larger
        self.save(index)
        self.shape = x.shape
        return store(batch_first(best), like=x)

    def backward(self, dy: Array) -> Array:
        (index,), g, (n, c, h, w), dy = self.saved, self.geometry, self.shape, images_last(self.xp, dy)
        total = self.xp.zeros((c, *g.padded(h, w), n), dy.dtype)
        for i, j, seen in taps(total, g):
            chosen = self.xp.equal(index, i * g.kernel[1] + j)
            seen[...] = self.device.select(chosen, dy)  # rounds: never, `total` has the dtype of dy
        return batch_first(unpad_spatial(total, g, (h, w)))


def _first_place(xp: Any, g: Geometry, seen: Array) -> Array:
    """The first kernel position of each window (1, OH, OW, 1) that is not padding: the maximum where all x are -inf."""
    rows, cols = [
        [-(-max(before - i * s, 0) // d) for i in range(o)]
        for o, s, d, (before, _) in zip(seen.shape[1:3], g.stride, g.dilation, g.pads)
    ]
    # rounds: never, whole numbers
    return xp.asarray([[i * g.kernel[1] + j for j in cols] for i in rows], index_dtype(g))[None, :, :, None]


def index_dtype(g: Geometry) -> str:
    return "uint8" if g.kernel[0] * g.kernel[1] <= 256 else "uint32"  # one byte, compared with FP16's two


# ---------------------------------------------------------------------------------------------------------- functions


def max_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The maximum of every window; padding counts as -inf, nan wins.

    input: (N, C, H, W) or (C, H, W). stride defaults to kernel_size. With return_indices also each maximum's place in
    the flattened H * W plane, as integers. ValueError if sizes do not fit.
    """
    op = "max_pool2d"
    flags = flag(op, "ceil_mode", ceil_mode), flag(op, "return_indices", return_indices)
    rest = *flags, pair(op, "dilation", dilation, 1)
    x, kernel = with_axes(op, "input", input, 4, 3), pair(op, "kernel_size", kernel_size, 1)
    steps = kernel if stride is None or stride == () else pair(op, "stride", stride, 1)
    apart = x.ndim == 4 and rest == (False, False, (1, 1)) and all(s >= k for s, k in zip(steps, kernel))
    return (_apart if apart else held("ops.pool.overlapping"))(op, x, kernel, steps, padding, *rest)


def _apart(op: str, x: Tensor, kernel: tuple, steps: tuple, padding: Any, *_: Any) -> Tensor:
    if any(2 * p > k for p, k in zip(pair(op, "padding", padding, 0), kernel)):
        raise ValueError(f"{op}: expected padding to be at most half of kernel_size, got {padding} and {kernel}")
    return MaxPool2d.apply(x, geometry=geometry_of(op, x.shape[2:], kernel, steps, padding, 1, 1))
