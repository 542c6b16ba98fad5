"""huber_loss and smooth_l1_loss: quadratic near 0, linear beyond."""

from __future__ import annotations

from ...arguments import name_all, number
from ...autograd import Array
from ...tensor import Tensor
from ..loss import Elementwise, elementwise


class HuberLoss(Elementwise):
    """f = d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2), with d = x - t;  f_x = d within [-delta, delta].

    With c = min(|d|, delta) both branches are c (|d| - c / 2).
    """

    name = "huber_loss"

    def f(self, x: Array, t: Array) -> Array:
        d = self.xp.abs(x - t)
        c = self.xp.minimum(d, self.delta)
        return c * (d - 0.5 * c)

    def f_x(self, x: Array, t: Array) -> Array:
        return self.xp.clip(x - t, -self.delta, self.delta)


class SmoothL1Loss(HuberLoss):
    """Huber's f and f_x divided by delta, here called beta; at beta = 0 the limit, |d| and sign d."""

    name = "smooth_l1_loss"

    def f(self, x: Array, t: Array) -> Array:
        return super().f(x, t) / self.delta if self.delta else self.xp.abs(x - t)

    def f_x(self, x: Array, t: Array) -> Array:
        return super().f_x(x, t) / self.delta if self.delta else self.xp.sign(x - t)


def smooth_l1_loss(input: Tensor, target: Tensor, *, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """d^2 / (2 beta) where d = |input - target| < beta, else d - beta / 2, in FP32 (Girshick, 2015).

    beta = 0 is `l1_loss`. ValueError unless both have one shape and beta is at least 0.
    """
    op = "smooth_l1_loss"
    beta = number(op, "beta", beta, 0)
    return elementwise(SmoothL1Loss, input, target, None, reduction, delta=beta)


def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None
) -> Tensor:
    """weight d^2 / 2 where d = |input - target| <= delta, else weight delta (d - delta / 2), in FP32 (Huber, 1964).

    "mean" divides by the number of elements, also with weights (as in PyTorch). weight gets no gradient. ValueError
    unless all have one shape and delta is positive.
    """
    op = "huber_loss"
    delta = number(op, "delta", delta, 0, above=True)
    return elementwise(HuberLoss, input, target, weight, reduction, delta=delta)


name_all(globals())
