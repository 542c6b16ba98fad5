"""Gradient clipping by value, and by norms that are not Euclidean."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from ... import backend
from ...arguments import number
from ...autograd import Array
from ...gradients import values_of, with_values
from ...parameter import Parameter
from ...precision import reduce, widen
from ...tensor import Tensor
from ..clip import wide_gradient, with_gradient

__all__ = ["clip_grad_value_"]


def clip_grad_value_(parameters: Parameter | Iterable[Parameter], clip_value: float) -> None:
    """Limit every element of the gradients to [-clip_value, clip_value]; each `grad` becomes a new FP32 array.

    RuntimeError if a gradient still carries a loss scale.
    """
    limit = number("clip_grad_value_", "clip_value", clip_value, 0)
    for p in with_gradient("clip_grad_value_", parameters):
        g = widen(values_of(p.grad_array))
        p.replace_grad(with_values(p.grad_array, backend.of(g).xp.clip(g, -limit, limit)), 1.0)


def norm_p(order: float) -> Callable[[list[Tensor]], Array]:
    """The norm of all elements of gradients, (sum |g|^p)^(1 / p) with p = order, or max |g| for infinity."""
    p = math.inf if order == math.inf else number("clip_grad_norm_", "norm_type", order, 0, above=True)

    def norm(params: list[Tensor]) -> Array:
        xp, parts = backend.of(params[0].array).xp, []
        for x in params:
            g = wide_gradient(x)
            axes = tuple(range(g.ndim))
            if p < math.inf:
                parts.append(reduce(xp.abs(g) ** p, axes, "sum").reshape(()))
            elif g.size:
                parts.append(reduce(xp.abs(g), axes, "max").reshape(()))
        if p < math.inf:
            return sum(parts[1:], parts[0]) ** (1 / p)
        return reduce(xp.stack(parts or [xp.zeros((), widen(params[0].array).dtype)]), 0, "max").reshape(())

    return norm
