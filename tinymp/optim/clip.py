"""Gradient clipping, in FP32, on gradients without a loss scale (NVG section 2.3.1: unscale first)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from .. import backend
from ..arguments import flag, listed, number, require_unscaled
from ..autograd import Array
from ..backend.extras import held
from ..events import quietly
from ..gradients import values_of, with_values
from ..parameter import Parameter
from ..precision import reduce, to_dtype, widen
from ..tensor import Tensor, tensor


def clip_grad_norm_(
    parameters: Parameter | Iterable[Parameter], max_norm: float, norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:  # fmt: skip
    """Shrink all gradients by one factor so that the norm of their concatenation is at most max_norm.

    Returns the norm before clipping, an FP32 scalar: (sum |g|^p)^(1/p) with p = norm_type > 0, or max |g| for infinity.
    Each `grad` is replaced by g min(1, max_norm / (norm + 1e-6)) in FP32; a sparse one stays sparse. RuntimeError if a
    gradient still carries a loss scale, or if error_if_nonfinite and the norm is not finite; then nothing has changed.
    """
    flag("clip_grad_norm_", "error_if_nonfinite", error_if_nonfinite)
    max_norm = math.inf if max_norm == math.inf else number("clip_grad_norm_", "max_norm", max_norm, 0)
    norm = norm_2 if norm_type == 2 else held("optim.clip.norm_p")(norm_type)
    params = with_gradient("clip_grad_norm_", parameters)
    return quietly(clip_norm, params, max_norm, norm, error_if_nonfinite) if params else tensor(0.0)


def norm_2(params: list[Tensor]) -> Array:
    """sqrt(sum g^2) over all elements of all gradients, FP32 without axes."""
    total: Any = 0
    for p in params:
        g = wide_gradient(p)
        total = total + reduce(g * g, tuple(range(g.ndim)), "sum").reshape(())
    return total**0.5


def wide_gradient(p: Tensor) -> Array:
    """p's gradient in FP32; for a sparse one the values of its rows, each row once."""
    g = p.grad_array
    return widen(g.summable() if hasattr(g, "summable") else g)


def clip_norm(params: list[Tensor], max_norm: float, norm: Any, error_if_nonfinite: bool) -> Tensor:
    """`clip_grad_norm_` for parameters that all have a gradient."""
    total = norm(params)
    if error_if_nonfinite and not backend.of(total).isfinite(total):
        raise RuntimeError(f"clip_grad_norm_: the norm of the gradients is {float(total):g}; skip this step")
    factor = backend.of(total).xp.minimum(max_norm / (total + 1e-6), 1.0)
    for p in params:
        g = widen(values_of(p.grad_array))
        out = g if backend.writeable(g) else None  # `grad` in FP32 may be memory of the program's
        g = backend.of(g).xp.multiply(g, to_dtype(factor, g.dtype), out=out)
        p.replace_grad(with_values(p.grad_array, g), 1.0)
    return params[0].result(backend.of(total).xp.asarray(total))


def with_gradient(op: str, parameters: Any) -> list[Tensor]:
    """The parameters that have a gradient; none of them may carry a loss scale."""
    found = []
    for p in [parameters] if isinstance(parameters, Tensor) else listed(op, "parameters", parameters):
        if not isinstance(p, Tensor):
            raise TypeError(f"{op}: expected Parameters, got {type(p).__name__}; pass model.parameters()")
        require_unscaled(op, p, "scaler.unscale_(optimizer) first")
        if p.grad_array is not None:
            found.append(p)
    return found
