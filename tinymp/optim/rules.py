"""The rules: SGD and Adam. Each is a definition on arrays, element by element; others are in more/rules.py."""

from __future__ import annotations

from collections.abc import Iterable

from .. import backend
from ..autograd import Array
from .groups import Group, State
from .optimizer import Optimizer


class SGD(Optimizer):
    """Stochastic gradient descent with momentum mu, dampening tau and weight decay lambda, as in PyTorch.

    g <- g + lambda w;  m <- mu m + (1 - tau) g, at first m <- g;  w <- w - lr m, or with Nesterov w - lr (g + mu m)

    "At first" is the first update with mu > 0. Whenever mu is 0, m stays as it is.
    """

    optional_state = ("momentum_buffer",)

    def __init__(
        self, params: Iterable, lr: float = 1e-3, momentum: float = 0.0, dampening: float = 0.0,
        weight_decay: float = 0.0, nesterov: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        numbers = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(params, {**numbers, "nesterov": nesterov, "maximize": maximize})

    def check_options(self, group: Group) -> None:
        super().check_options(group)
        if group["nesterov"] and (group["momentum"] == 0 or group["dampening"] != 0):
            raise ValueError("SGD: nesterov needs momentum > 0 and dampening == 0")

    def initial(self, group: Group) -> dict[str, float]:
        return {"momentum_buffer": 0.0} if group["momentum"] else {}

    def update(self, w: Array, g: Array, state: State, group: Group) -> Array:
        mu, tau = group["momentum"], group["dampening"]
        g = g + group["weight_decay"] * w if group["weight_decay"] else g
        if mu:
            m = state["momentum_buffer"]
            m *= mu
            m += (1 - tau * (state["step"] > state["started_at"] + 1)) * g if tau else g
            g = g + mu * m if group["nesterov"] else m
        return w - group["lr"] * g


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015), as in PyTorch; t counts the updates.

    g <- g + lambda w;  m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2
    m_hat = m / (1 - b1^t);  v_hat = v / (1 - b2^t), with amsgrad the largest v so far / (1 - b2^t);
    w <- w - lr m_hat / (sqrt(v_hat) + eps)

    eps is an FP32 constant: 1e-8 is 0 in FP16, whose smallest positive value is 6e-8, and m / 0 would be infinite.
    """

    optional_state = ("max_exp_avg_sq",)

    def __init__(
        self, params: Iterable, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.0, amsgrad: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        numbers = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**numbers, "amsgrad": amsgrad, "maximize": maximize})

    def initial(self, group: Group) -> dict[str, float]:
        return {"exp_avg": 0.0, "exp_avg_sq": 0.0, **({"max_exp_avg_sq": 0.0} if group["amsgrad"] else {})}

    def update(self, w: Array, g: Array, state: State, group: Group) -> Array:
        xp, t, lr, (b1, b2) = backend.of(w).xp, state["step"], group["lr"], group["betas"]
        m, v = state["exp_avg"], state["exp_avg_sq"]
        g = g + group["weight_decay"] * w if group["weight_decay"] else g
        m *= b1
        m += (1 - b1) * g
        v *= b2
        v += (1 - b2) * g * g
        if group["amsgrad"]:
            v = xp.maximum(state["max_exp_avg_sq"], v, out=state["max_exp_avg_sq"])
        m_hat, v_hat = m / (1 - b1**t), v / (1 - b2**t)
        return w - lr * m_hat / (xp.sqrt(v_hat) + group["eps"])
