"""Clipping by the norm in two passes over all gradients at once."""

from __future__ import annotations

from ... import backend
from ...autograd import values_of, with_values
from ...dtypes import float64
from ...fast_path import fast_path
from ...optim.clip import clip_norm, summable
from ...tensor import Tensor
from .optimizer import multiply, norm


@fast_path(clip_norm)
def on_device(params: list[Tensor], max_norm: float, norm_type: float, error_if_nonfinite: bool) -> Tensor:
    """The GPU is waited for only where error_if_nonfinite."""
    if any(backend.of(values_of(p.grad_array)) is not backend.gpu or p.dtype == float64 for p in params):
        return NotImplemented
    result = norm([summable(p.grad_array) for p in params], norm_type, max_norm)  # [norm, factor]
    if error_if_nonfinite and not backend.gpu.isfinite(result[:1]):
        raise RuntimeError(f"clip_grad_norm_: the norm of the gradients is {Tensor(result[0]):g}; skip this step")
    for p, g in zip(params, multiply([values_of(p.grad_array) for p in params], result[1:])):
        p.grad_array = with_values(p.grad_array, g)
    return Tensor(result[0])
