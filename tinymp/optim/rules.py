"""The rules: SGD, Adagrad, Adam, AdamW, RMSprop. Each is a definition on arrays."""

from __future__ import annotations

import math
from typing import ClassVar

from .. import backend
from ..autograd import Array
from .groups import Group, State, options
from .optimizer import Optimizer


class SGD(Optimizer):
    """Stochastic gradient descent with momentum mu, dampening tau and weight decay lambda, as in PyTorch.

    g <- g + lambda w;  m <- mu m + (1 - tau) g, at first m <- g;  w <- w - lr m, or with Nesterov w - lr (g + mu m)

    "At first" is the first update with mu > 0, also where mu was 0 before. While mu is 0 again, m waits.
    """

    late = ("momentum_buffer",)

    __init__ = options(lr=1e-3, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False, maximize=False)

    def check_options(self, group: Group) -> None:
        super().check_options(group)
        if group["nesterov"] and (group["momentum"] == 0 or group["dampening"] != 0):
            raise ValueError("SGD: nesterov needs momentum > 0 and dampening == 0")

    def initial(self, group: Group) -> dict[str, float]:
        return {"momentum_buffer": 0.0} if group["momentum"] else {}

    def update(self, w: Array, g: Array, state: State, group: Group) -> Array:
        mu = group["momentum"]
        if group["weight_decay"]:
            g = g + group["weight_decay"] * w
        if mu:
            m = state["momentum_buffer"]
            m *= mu
            first = state["step"] == state["since"] + 1
            m += g if first or not group["dampening"] else (1 - group["dampening"]) * g
            g = g + mu * m if group["nesterov"] else m
        return w - group["lr"] * g


class Adagrad(Optimizer):
    """Adagrad (Duchi et al., 2011), as in PyTorch; t counts the updates.

    g <- g + lambda w;  s <- s + g^2;  w <- w - lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps)

    eps is an FP32 constant: 1e-10 is 0 in FP16, whose smallest positive value is 6e-8.
    """

    __init__ = options(
        lr=1e-2, lr_decay=0.0, weight_decay=0.0, initial_accumulator_value=0.0, eps=1e-10, maximize=False
    )

    def initial(self, group: Group) -> dict[str, float]:
        return {"sum": group["initial_accumulator_value"]}

    def update(self, w: Array, g: Array, state: State, group: Group) -> Array:
        s = state["sum"]
        if group["weight_decay"]:
            g = g + group["weight_decay"] * w
        s += g * g
        d = backend.of(w).xp.sqrt(s)
        d += group["eps"]
        lr = group["lr"] / (1 + (state["step"] - 1) * group["lr_decay"])
        return w - lr * g / d


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015), as in PyTorch; t counts the updates.

    g <- g + lambda w;  m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2
    w <- w - lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps),  with amsgrad the largest v so far instead of v

    eps is an FP32 constant: 1e-8 is 0 in FP16, whose smallest positive value is 6e-8, and m / 0 would be infinite.
    """

    late = ("max_exp_avg_sq",)
    decoupled: ClassVar[bool] = False

    __init__ = options(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, amsgrad=False, maximize=False)

    def initial(self, group: Group) -> dict[str, float]:
        return {"exp_avg": 0.0, "exp_avg_sq": 0.0, **({"max_exp_avg_sq": 0.0} if group["amsgrad"] else {})}

    def update(self, w: Array, g: Array, state: State, group: Group) -> Array:
        xp, t, lr, (b1, b2) = backend.of(w).xp, state["step"], group["lr"], group["betas"]
        m, v = state["exp_avg"], state["exp_avg_sq"]
        if group["weight_decay"] and self.decoupled:
            w = (1 - lr * group["weight_decay"]) * w
        elif group["weight_decay"]:
            g = g + group["weight_decay"] * w
        m *= b1
        m += (1 - b1) * g
        v *= b2
        v += (1 - b2) * g * g
        if group["amsgrad"]:
            v = xp.maximum(state["max_exp_avg_sq"], v, out=state["max_exp_avg_sq"])
        d = xp.sqrt(v, out=xp.empty_like(v))  # a buffer of its own, for all that follows  # rounds: never, FP32 in FP32
        d *= 1 / math.sqrt(1 - b2**t)
        d += group["eps"]
        xp.divide(m, d, out=d)
        d *= lr / (1 - b1**t)
        return xp.subtract(w, d, out=d)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019): w <- (1 - lr lambda) w, and g stays."""

    decoupled = True

    __init__ = options(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, amsgrad=False, maximize=False)


class RMSprop(Optimizer):
    """RMSprop (Tieleman and Hinton, 2012; centered: Graves, 2013), as in PyTorch.

    g <- g + lambda w;  v <- alpha v + (1 - alpha) g^2;  d = sqrt(v) + eps, or centered sqrt(v - a^2) + eps with
    a <- alpha a + (1 - alpha) g;  w <- w - lr g / d, or with momentum mu: b <- mu b + g / d;  w <- w - lr b

    eps is an FP32 constant: 1e-8 is 0 in FP16, whose smallest positive value is 6e-8.
    """

    __init__ = options(lr=1e-2, alpha=0.99, eps=1e-8, weight_decay=0.0, momentum=0.0, centered=False, maximize=False)

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
            spread = xp.maximum(v - a * a, 0)  # negative only through rounding
        step = g / (xp.sqrt(spread) + group["eps"])
        if group["momentum"]:
            b = state["momentum_buffer"]
            b *= group["momentum"]
            b += step
            step = b
        return w - group["lr"] * step
