"""Dropout (Srivastava et al., 2014)."""

from __future__ import annotations

from ..arguments import flag, floating, number, refuse
from ..autograd import Array, Op
from ..backend import philox
from ..backend.kernels import Kernels
from ..backend.layout import THREADS, chunk_blocks, compact, matching
from ..precision import POINTWISE, store, widen
from ..tensor import Tensor

KERNELS = Kernels(__file__)


class Dropout(Op):
    """y = m x / (1 - p), m = 0 with probability p else 1;  dx = m dy / (1 - p). Dropped infinities become 0."""

    kind = POINTWISE

    def forward(self, x: Array, *, p: float) -> Array:
        kept = self.device.uniform(x.shape) >= p
        self.save(kept)
        self.scale = 1 / (1 - p) if p < 1 else 0.0
        return store(widen(self.device.select(kept, x)) * self.scale, like=x)

    def backward(self, dy: Array) -> Array:
        (kept,) = self.saved
        return store(widen(self.device.select(kept, dy)) * self.scale, like=dy)

    def forward_cuda(self, x: Array, *, p: float) -> Array:
        x = compact(self.xp, x)
        y, kept = self.xp.empty_like(x), self.xp.empty_like(x, dtype=bool)
        self.save(kept)
        self.scale = 1 / (1 - p) if p < 1 else 0.0
        if x.size:
            grid = chunk_blocks(x)
            KERNELS.launch("dropout_forward", x.dtype, grid, THREADS, x, y, kept, philox.state(), x.size, p, self.scale)
            philox.advance()
        return y

    def backward_cuda(self, dy: Array) -> Array:
        (kept,) = self.saved
        kept = compact(self.xp, kept)
        dy = matching(self.xp, dy, like=kept)
        dx = self.xp.empty_like(dy)
        if dy.size:
            KERNELS.launch("dropout_backward", dy.dtype, chunk_blocks(dy), THREADS, dy, kept, dx, dy.size, self.scale)
        return dx


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero each element with probability p and scale the others by 1 / (1 - p); input itself unless training.

    Random numbers come from `manual_seed`'s generator. ValueError unless 0 <= p <= 1.
    """
    refuse("dropout", inplace=inplace)
    x = floating("dropout", "input", input)
    share = number("dropout", "p", p, 0, 1)
    if not flag("dropout", "training", training) or share == 0:
        return x
    return Dropout.apply(x, p=share)
