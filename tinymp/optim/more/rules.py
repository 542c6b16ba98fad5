"""Further rules, definitions on arrays as those of optim/rules.py."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ... import backend
from ...arguments import number
from ...autograd import Array
from ...dtypes import require_fit
from ..groups import Group, Groups, State
from ..optimizer import Optimizer
from ..rules import Adam

__all__ = ["Adadelta", "Adagrad", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop"]


def options(**defaults: Any) -> Callable[..., None]:
    """The constructor of a rule with these options: it takes params, and each option by place (but for `maximize`) or
    by name.
    """
    kinds: dict[str, Any] = dict.fromkeys(("self", "params", *defaults), inspect.Parameter.POSITIONAL_OR_KEYWORD)
    kinds["maximize"] = inspect.Parameter.KEYWORD_ONLY
    empty = inspect.Parameter.empty
    parameters = [inspect.Parameter(n, kind, default=defaults.get(n, empty)) for n, kind in kinds.items()]
    signature = inspect.Signature(parameters)

    def __init__(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        self, params, *_ = bound.arguments.values()
        Groups.__init__(self, params, {name: bound.arguments[name] for name in defaults})

    vars(__init__)["__signature__"] = signature
    return __init__


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019): w <- (1 - lr lambda) w, and g stays."""

    decoupled = True

    __init__ = options(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, amsgrad=False, maximize=False)

    def update(self, w: Array, g: Array, state: State, group: Group) -> Array:
        if group["weight_decay"]:
            w = (1 - group["lr"] * group["weight_decay"]) * w
        return super().update(w, g, state, {**group, "weight_decay": 0.0})


class Adagrad(Optimizer):
    """Adagrad (Duchi et al., 2011), as in PyTorch; t counts the updates.

    g <- g + lambda w;  s <- s + g^2;  w <- w - lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps)

    eps is an FP32 constant: 1e-10 is 0 in FP16, whose smallest positive value is 6e-8.
    """

    __init__ = options(
        lr=1e-2, lr_decay=0.0, weight_decay=0.0, initial_accumulator_value=0.0, eps=1e-10, maximize=False
    )

    def check_options(self, group: Group) -> None:
        super().check_options(group)
        for p in group["params"]:
            require_fit(self._name, group["initial_accumulator_value"], self.state_dtype(p))

    def initial(self, group: Group) -> dict[str, float]:
        return {"sum": group["initial_accumulator_value"]}

    def update(self, w: Array, g: Array, state: State, group: Group) -> Array:
        s = state["sum"]
        if group["weight_decay"]:
            g = g + group["weight_decay"] * w
        s += g * g
        lr = group["lr"] / (1 + (state["step"] - 1) * group["lr_decay"])
        return w - lr * g / (backend.of(w).xp.sqrt(s) + group["eps"])


class RMSprop(Optimizer):
    """RMSprop (Tieleman and Hinton, 2012; centered: Graves, 2013), as in PyTorch.

    g <- g + lambda w;  v <- alpha v + (1 - alpha) g^2;  d = sqrt(v) + eps, or centered sqrt(v - a^2) + eps with
    a <- alpha a + (1 - alpha) g;  w <- w - lr g / d, or with momentum mu: b <- mu b + g / d;  w <- w - lr b

    eps is an FP32 constant: 1e-8 is 0 in FP16, whose smallest positive value is 6e-8.
    """

    optional_state = ("momentum_buffer", "grad_avg")

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


class Adadelta(Optimizer):
    """Adadelta (Zeiler, 2012), as in PyTorch.

    g <- g + lambda w;  v <- rho v + (1 - rho) g^2;  d = sqrt((a + eps) / (v + eps)) g;  a <- rho a + (1 - rho) d^2
    w <- w - lr d
    """

    squares = (*Optimizer.squares, "square_avg", "acc_delta")

    __init__ = options(lr=1.0, rho=0.9, eps=1e-6, weight_decay=0.0, maximize=False)

    def initial(self, group: Group) -> dict[str, float]:
        return {"square_avg": 0.0, "acc_delta": 0.0}

    def update(self, w: Array, g: Array, state: State, group: Group) -> Array:
        xp, rho, eps, v, a = backend.of(w).xp, group["rho"], group["eps"], state["square_avg"], state["acc_delta"]
        if group["weight_decay"]:
            g = g + group["weight_decay"] * w
        v *= rho
        v += (1 - rho) * g * g
        d = xp.sqrt(a + eps) / xp.sqrt(v + eps) * g
        a *= rho
        a += (1 - rho) * d * d
        return w - group["lr"] * d


USUAL: dict = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}  # options of Adam's relatives


class _Adam(Optimizer):
    """The relatives of Adam share a moment of order 1, another one, and the decay of weights."""

    second = "exp_avg_sq"

    def initial(self, group: Group) -> dict[str, float]:
        return {"exp_avg": 0.0, self.second: 0.0}

    def _decayed(self, w: Array, g: Array, state: State, group: Group) -> tuple[Array, Array]:
        """w and g after the weight decay; the first moment has g's share."""
        if group["weight_decay"] and group.get("decoupled_weight_decay"):
            w = (1 - group["lr"] * group["weight_decay"]) * w
        elif group["weight_decay"]:
            g = g + group["weight_decay"] * w
        m, b1 = state["exp_avg"], group["betas"][0]
        m *= b1
        m += (1 - b1) * g
        return w, g

    def _squares(self, g: Array, state: State, group: Group) -> Array:
        """The second moment, with g's share."""
        v, b2 = state["exp_avg_sq"], group["betas"][1]
        v *= b2
        v += (1 - b2) * g * g
        return v


class Adamax(_Adam):
    """Adamax (Kingma and Ba, 2015, section 7.1), as in PyTorch; t counts the updates.

    g <- g + lambda w;  m <- b1 m + (1 - b1) g;  u <- max(b2 u, |g| + eps);  w <- w - lr / (1 - b1^t) m / u
    """

    second = "exp_inf"
    squares = (*Optimizer.squares, "exp_inf")

    __init__ = options(lr=2e-3, **USUAL, maximize=False)

    def update(self, w: Array, g: Array, state: State, group: Group) -> Array:
        xp, (b1, b2), u = backend.of(w).xp, group["betas"], state["exp_inf"]
        w, g = self._decayed(w, g, state, group)
        xp.maximum(b2 * u, xp.abs(g) + group["eps"], out=u)  # rounds: never, FP32 in FP32
        return w - group["lr"] / (1 - b1 ** state["step"]) * state["exp_avg"] / u


class NAdam(_Adam):
    """Adam with Nesterov momentum (Dozat, 2016), as in PyTorch; t counts the updates.

    g <- g + lambda w (or decoupled, as AdamW);  m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2
    mu_t = b1 (1 - 0.96^(t momentum_decay) / 2);  d = sqrt(v / (1 - b2^t)) + eps;  M_t = mu_1 ... mu_t
    w <- w - lr ((1 - mu_t) / (1 - M_t) g + mu_(t+1) / (1 - M_(t+1)) m) / d

    M_t is state, `mu_product`: where b1 or the decay changes during a training, it keeps the momenta of the past.
    """

    optional_state = ("mu_product",)

    __init__ = options(lr=2e-3, **USUAL, momentum_decay=4e-3, decoupled_weight_decay=False, maximize=False)

    def _update_all(self, ready: list) -> None:
        for group, p in ready:
            state = self.state_of(group, p)
            t = int(state["step"])
            if (product := state.get("mu_product")) is None:  # the first update, or a state that was saved without it
                product = prod(_mu(group, i) for i in range(1, t + 1))
            self._product = product * _mu(group, t + 1)
            super()._update_all([(group, p)])
            state["mu_product"] = self._product

    def update(self, w: Array, g: Array, state: State, group: Group) -> Array:
        xp, t, lr, product = backend.of(w).xp, state["step"], group["lr"], self._product
        w, g = self._decayed(w, g, state, group)
        d = xp.sqrt(self._squares(g, state, group) / (1 - group["betas"][1] ** t)) + group["eps"]
        mu, following = _mu(group, t), _mu(group, t + 1)
        own, momentum = (1 - mu) / (1 - product), following / (1 - product * following)
        return w - (lr * own * g + lr * momentum * state["exp_avg"]) / d

    def _loadable(self, where: str, name: str, p: Any, value: Any) -> Any:
        if name == "mu_product":
            return number(where, name, np.asarray(value)[()], 0, 1)
        return super()._loadable(where, name, p, value)


def _mu(group: Group, t: int) -> float:
    """The momentum of update t."""
    return group["betas"][0] * (1 - 0.5 * 0.96 ** (t * group["momentum_decay"]))


class RAdam(_Adam):
    """Rectified Adam (Liu et al., 2020), as in PyTorch; t counts the updates.

    g <- g + lambda w (or decoupled, as AdamW);  m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2
    r = 2 / (1 - b2) - 1;  r_t = r - 2 t b2^t / (1 - b2^t);  m' = m / (1 - b1^t)
    w <- w - lr m', and where r_t > 5: w <- w - lr m' sqrt(1 - b2^t) / (sqrt(v) + eps) times
    sqrt((r_t - 4) (r_t - 2) r / ((r - 4) (r - 2) r_t))
    """

    __init__ = options(lr=1e-3, **USUAL, decoupled_weight_decay=False, maximize=False)

    def update(self, w: Array, g: Array, state: State, group: Group) -> Array:
        t, (b1, b2) = state["step"], group["betas"]
        w, g = self._decayed(w, g, state, group)
        v, r = self._squares(g, state, group), 2 / (1 - b2) - 1
        rt = r - 2 * t * b2**t / (1 - b2**t)
        rectifies = 1 * (rt > 5)  # an exponent, as x^0 = 1: a GPU does not know t when it compiles this
        rt, r = (5 + (x - 5) * (x > 5) for x in (rt, r))  # at least 5: where it is not used, there is a root as well
        root = ((rt - 4) * (rt - 2) * r / ((r - 4) * (r - 2) * rt) * (1 - b2**t)) ** 0.5
        adapted = (root / (backend.of(w).xp.sqrt(v) + group["eps"])) ** rectifies
        return w - group["lr"] / (1 - b1**t) * state["exp_avg"] * adapted
