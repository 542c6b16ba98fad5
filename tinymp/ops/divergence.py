"""kl_div: a loss made of FP32 ops. Like all losses it is FP32 for FP16 inputs (NVG section 2.3.1)."""

from __future__ import annotations

from ..arguments import choice, floating, refuse
from ..dtypes import float16
from ..tensor import Tensor
from .compare import eq
from .pointwise import div, exp, log, masked_fill, mul, sub
from .reduce import mean
from .reduce import sum as total


def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """target (ln target - input), the terms of the Kullback-Leibler divergence, for log-probabilities input; in FP32.

    target: of input's shape, probabilities, or with log_target their logarithms. A term with target 0 is 0.
    reduction: "none", "sum", "mean" over all elements, or "batchmean", the sum divided by input.shape[0]: the
    divergence itself.
    ValueError for other shapes. PyTorch broadcasts; losses here do not.
    """
    op = "kl_div"
    refuse(op, **{k: str(v) for k, v in (("size_average", size_average), ("reduce", reduce)) if v is not None})
    choice(op, "reduction", reduction, ("none", "mean", "sum", "batchmean"))
    if floating(op, "input", input).shape != floating(op, "target", target).shape:
        raise ValueError(f"{op}: expected target.shape == input.shape, got {target.shape} and {input.shape}")
    x, t = (v.float() if v.dtype == float16 else v for v in (input, target))
    if log_target:
        terms = mul(exp(t), sub(t, x))
    else:
        none = eq(t, 0)  # there the term is 0 (1 ln 1 - 0), whatever the input is
        terms = mul(t, sub(log(masked_fill(t, none, 1)), masked_fill(x, none, 0)))
    if reduction == "none":
        return terms
    if reduction == "batchmean":
        return div(total(terms), max(input.shape[0], 1) if input.ndim else 1)
    return mean(terms) if reduction == "mean" else total(terms)
