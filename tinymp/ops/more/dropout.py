"""dropout1d and dropout2d: whole channels are zeroed (Tompson et al., 2015)."""

from __future__ import annotations

from ...arguments import flag, name_all, number, with_axes
from ...autograd import Array, Op
from ...precision import POINTWISE, store, widen
from ...tensor import Tensor

__all__ = ["dropout1d", "dropout2d"]


class DropoutOfChannels(Op):
    """y = m x / (1 - p), with one m for each channel: 0 with probability p, else 1;  dx = m dy / (1 - p)."""

    kind = POINTWISE

    def forward(self, x: Array, *, p: float, axes: int) -> Array:
        kept = self.device.uniform(x.shape[:axes] + (1,) * (x.ndim - axes)) >= p
        self.save(kept)
        self.scale = 1 / (1 - p) if p < 1 else 0.0
        return self._kept(kept, x)

    def backward(self, dy: Array) -> Array:
        (kept,) = self.saved
        return self._kept(kept, dy)

    def _kept(self, kept: Array, x: Array) -> Array:
        wide = widen(x)
        return store(self.device.where(kept, wide * self.scale, wide.dtype.type(0)), like=x)


def _dropout(op: str, input: Tensor, p: float, training: bool, ndim: int, axes: int) -> Tensor:
    x = with_axes(op, "input", input, ndim, ndim - 1)
    share = number(op, "p", p, 0, 1)
    if not flag(op, "training", training) or share == 0:
        return x
    return DropoutOfChannels.apply(x, p=share, axes=axes)


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Zero each channel of input (N, C, L) or (C, L) with probability p and scale the others by 1 / (1 - p), in FP32.

    input itself unless training. ValueError for other numbers of axes, and unless 0 <= p <= 1.
    """
    return _dropout("dropout1d", input, p, training, 3, getattr(input, "ndim", 3) - 1)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Zero each channel of input (N, C, H, W) or, as in PyTorch, (N, C, L); see `dropout1d`."""
    return _dropout("dropout2d", input, p, training, 4, 2)


name_all(globals())
