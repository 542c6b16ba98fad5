"""Pooling. Like the convolutions, these ops work on (C, H, W, N) in memory; see conv.py."""

from __future__ import annotations

from typing import Any

from ..arguments import flag, floating
from ..autograd import Array, Op
from ..precision import MOVEMENT, REDUCTION, add_to, store, widen
from ..tensor import Tensor
from .conv import Geometry, batch_first, images_last, pad_spatial, pair, taps, unpad_spatial


def overlaps(g: Geometry) -> bool:
    """True if a pixel may lie in several windows."""
    return any(d * (k - 1) >= s for k, s, d in zip(g.kernel, g.stride, g.dilation))


class MaxPool2d(Op):
    """y = the largest x of each window (nan if one is), its first place kept in `index`;  that place gets dy.

    Nothing is rounded: y's values are x's. Where windows overlap, gradients add up in FP32.
    """

    kind = MOVEMENT
    gradient = REDUCTION
    name = "max_pool2d"

    def forward(self, x: Array, *, geometry: Geometry, indices: bool) -> Any:
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
        self.geometry, self.shape = g, x.shape
        y = store(batch_first(best), like=x)
        return (y, batch_first(self.places(index))) if indices else y

    def places(self, index: Array) -> Array:
        """Kernel positions (C, OH, OW, N) as places in the flattened, unpadded H * W plane."""
        g, arange = self.geometry, self.xp.arange
        i, j = divmod(index + arange(1), g.kernel[1])  # int64: the places do not fit the dtype of index
        top, left = (arange(n) * s - before for n, s, (before, _) in zip(index.shape[1:], g.stride, g.pads))
        rows, cols = top[:, None, None] + i * g.dilation[0], left[:, None] + j * g.dilation[1]
        return rows * self.shape[3] + cols

    def backward(self, dy: Array, _: None = None) -> Array:  # places have no gradient
        (index,), g, (n, c, h, w) = self.saved, self.geometry, self.shape
        overlap = overlaps(g)
        dy = images_last(self.xp, widen(dy) if overlap else dy)
        total = self.xp.zeros((c, *g.padded(h, w), n), dy.dtype)
        for i, j, seen in taps(total, g):
            part = self.device.select(self.xp.equal(index, i * g.kernel[1] + j), dy)
            if overlap:
                add_to(seen, part, like=self.targets[0])
            else:
                seen[...] = part  # rounds: never, `total` has the dtype of dy
        return store(batch_first(unpad_spatial(total, g, (h, w))), like=self.targets[0])


def _first_place(xp: Any, g: Geometry, seen: Array) -> Array:
    """The first kernel position of each window (1, OH, OW, 1) that is not padding: the maximum where all x are -inf."""
    rows, cols = [
        [-(-max(before - i * s, 0) // d) for i in range(o)]
        for o, s, d, (before, _) in zip(seen.shape[1:3], g.stride, g.dilation, g.pads)
    ]
    # rounds: never, whole numbers
    return xp.asarray([[i * g.kernel[1] + j for j in cols] for i in rows], index_dtype(g))[None, :, :, None]


def index_dtype(g: Geometry) -> str:
    return "uint8" if g.kernel[0] * g.kernel[1] <= 256 else "uint32"  # one byte beside two of FP16


# ---------------------------------------------------------------------------------------------------------- functions


def image(op: str, input: Any) -> tuple[Tensor, bool]:
    """input with a batch axis, and whether it had none."""
    x = floating(op, "input", input)
    if x.ndim not in (3, 4) or 0 in x.shape[-3:]:
        raise ValueError(f"{op}: expected `input` to be (N, C, H, W) or (C, H, W), of which N may be 0, got {x.shape}")
    return (x, False) if x.ndim == 4 else (x.unsqueeze(0), True)


def windows_of(
    op: str, shape: tuple, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> Geometry:
    kernel, none = pair(op, "kernel_size", kernel_size, 1), stride is None or (type(stride) is tuple and not stride)
    strides = kernel if none else pair(op, "stride", stride, 1)
    pads, dilations = pair(op, "padding", padding, 0), pair(op, "dilation", dilation, 1)
    ceil = flag(op, "ceil_mode", ceil)
    if any(2 * p > k for p, k in zip(pads, kernel)):
        raise ValueError(f"{op}: expected padding to be at most half of kernel_size, got {pads} and {kernel}")
    sides = []
    for n, k, s, p, d in zip(shape, kernel, strides, pads, dilations):
        span = n + 2 * p - d * (k - 1) - 1
        count = (-(-span // s) if ceil else span // s) + 1
        if ceil and (count - 1) * s >= n + p:
            count -= 1  # the last window must begin inside the input or its left padding
        if count < 1:
            raise ValueError(f"{op}: the kernel {kernel} does not fit the input of {tuple(shape)} with padding {pads}")
        sides.append((p, max((count - 1) * s + d * (k - 1) + 1 - n - p, p)))
    return Geometry(kernel, strides, tuple(sides), dilations)


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
    x, unbatched = image("max_pool2d", input)
    g = windows_of("max_pool2d", x.shape[2:], kernel_size, stride, padding, dilation, ceil_mode)
    found = MaxPool2d.apply(x, geometry=g, indices=flag("max_pool2d", "return_indices", return_indices))
    if not unbatched:
        return found
    return tuple(y.squeeze(0) for y in found) if return_indices else found.squeeze(0)
