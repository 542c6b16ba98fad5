"""Local response normalisation: every value divided by what its channel and those around it hold."""

from __future__ import annotations

from ...arguments import floating, integers, name_all, number
from ...dtypes import HALVES
from ...tensor import Tensor
from ..pointwise import add, div, mul, pow
from ..shape import pad


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """y_c = x_c (k + alpha / size sum of x^2 over the `size` channels around c)^-beta (Krizhevsky et al., 2012).

    input: (N, C, ...). Made of FP32 ops, and rounded once.
    """
    op = "local_response_norm"
    x = floating(op, "input", input)
    if x.ndim < 3:
        raise ValueError(f"{op}: expected `input` (N, C, ...) with at least 3 axes, got {x.shape}")
    (size,) = integers(op, "size", size, 1, 1)
    alpha, beta, k = number(op, "alpha", alpha), number(op, "beta", beta), number(op, "k", k)
    wide, c = x.float() if x.dtype in HALVES else x, x.shape[1]
    before, after = min(size // 2, c), min((size - 1) // 2, c)  # beyond them there are no channels
    squares = pad(mul(wide, wide), (0, 0) * (x.ndim - 2) + (before, after))
    window = squares[:, :c]
    for i in range(1, before + 1 + after):
        window = add(window, squares[:, i : i + c])
    return div(wide, pow(add(mul(window, alpha / size), k), beta)).to(x.dtype)


name_all(globals())
