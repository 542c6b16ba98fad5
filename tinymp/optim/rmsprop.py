"""RMSprop: gradients divided by a running root mean square."""

from __future__ import annotations

from collections.abc import Iterable

from .. import backend
from ..arguments import refuse
from ..autograd import Array
from .optimizer import Group, Optimizer, State


class RMSprop(Optimizer):
    """RMSprop (Tieleman and Hinton, 2012; centered: Graves, 2013), as in PyTorch.

    g <- g + lambda w;  v <- alpha v + (1 - alpha) g^2;  d = sqrt(v) + eps, or centered sqrt(v - a^2) + eps with
    a <- alpha a + (1 - alpha) g;  w <- w - lr g / d, or with momentum mu: b <- mu b + g / d;  w <- w - lr b

    eps is an FP32 constant: 1e-8 is 0 in FP16, whose smallest positive value is 6e-8.
    """

    flags = ("maximize", "centered")

    def __init__(
        self,
        params: Iterable,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        capturable: bool = False,
        foreach: None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        refuse("RMSprop", capturable=capturable, foreach=foreach, differentiable=differentiable)
        options = {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(params, {**options, "centered": centered, "maximize": maximize})

    def initial(self, group: Group) -> dict[str, float]:
        momentum = {"momentum_buffer": 0.0} if group["momentum"] else {}
        return {"square_avg": 0.0, **momentum, **({"grad_avg": 0.0} if group["centered"] else {})}

    def update(self, w: Array, g: Array, state: State, group: Group) -> Array:
        xp, alpha, v = backend.of(w).xp, group["alpha"], state["square_avg"]
        if group["weight_decay"]:
            g = g + group["weight_decay"] * w
        v *= alpha
        v += (1 - alpha) * g * g
        spread = v
        if group["centered"]:
            a = state["grad_avg"]
            a *= alpha
            a += (1 - alpha) * g
            spread = xp.maximum(v - a * a, 0)  # not negative but for rounding
        step = g / (xp.sqrt(spread) + group["eps"])
        if group["momentum"]:
            b = state["momentum_buffer"]
            b *= group["momentum"]
            b += step
            step = b
        return w - group["lr"] * step
