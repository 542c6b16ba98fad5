"""scaled_dot_product_attention, made of matmul and softmax: FP16 products with FP32 accumulators, softmax in FP32."""

from __future__ import annotations

import math
from typing import Any

from .. import backend
from ..arguments import axis, floating, tensor
from ..dtypes import FLOATING, float16, float32
from ..tensor import Tensor
from .dot import matmul
from .dropout import dropout
from .pointwise import add, masked_fill, mul
from .softmax import softmax

INF = float("inf")


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query key^T scale + attn_mask) value (Vaswani et al., 2017).

    query: (..., L, E), key: (..., S, E), value: (..., S, Ev); leading axes broadcast. Returns (..., L, Ev).
    attn_mask: broadcasts to (..., L, S); bool (True: may be attended to), or floating (added; FP32 beside FP16 query
    is added in FP32). is_causal: row i attends to columns 0 to i. A row that may attend to nothing gives 0, as in
    PyTorch. scale: 1 / sqrt(E) by default; its root multiplies query and key before their product, so that no product
    overflows FP16 that would fit it after scaling. dropout_p: of the weights, always applied.

    What a mask excludes is set to -inf, which FP16 has: no large negative constant is needed, and none overflows.
    TypeError for `enable_gqa`; ValueError for shapes that do not match, and for attn_mask together with is_causal.
    """
    if enable_gqa:
        raise TypeError("scaled_dot_product_attention: argument `enable_gqa` is not supported: repeat key and value")
    if is_causal and attn_mask is not None:
        raise ValueError("scaled_dot_product_attention: expected either attn_mask or is_causal, got both")
    mask = causal_mask(query, key) if is_causal else attn_mask
    return attend("scaled_dot_product_attention", query, key, value, mask, dropout_p, scale)[0]


def causal_mask(query: Tensor, key: Tensor) -> Tensor:
    """(L, S), True where column j <= row i."""
    arange = backend.of(query.data).xp.arange
    return Tensor(arange(key.shape[-2]) <= arange(query.shape[-2])[:, None])


def attend(
    op: str, query: Any, key: Any, value: Any, mask: Any, dropout_p: float = 0.0, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """(attention, its weights (..., L, S) after dropout); see `scaled_dot_product_attention`."""
    q, k, v = floating(op, "query", query), floating(op, "key", key), floating(op, "value", value)
    if min(q.ndim, k.ndim, v.ndim) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(
            f"{op}: expected query (..., L, E), key (..., S, E) and value (..., S, Ev), got {q.shape}, {k.shape} and "
            f"{v.shape}"
        )
    factor = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else float(scale)
    root = math.sqrt(abs(factor))
    scores = matmul(mul(q, math.copysign(root, factor)), mul(k, root).transpose(-2, -1))
    return weighted(op, scores, v, mask, dropout_p)


def weighted(op: str, scores: Tensor, value: Tensor, mask: Any, dropout_p: float = 0.0) -> tuple[Tensor, Tensor]:
    """(weights value, the weights softmax(scores + mask), after dropout): what all kinds of attention end in.

    scores: (..., L, S), value: (..., S, Ev), mask: None, or the attn_mask of `scaled_dot_product_attention`.
    """
    hidden, none = None, None
    if mask is not None and tensor(op, "attn_mask", mask).dtype != bool:
        if mask.dtype not in FLOATING:
            raise TypeError(f"{op}: expected `attn_mask` to be bool or floating, got {mask.dtype}")
        wide = (mask.dtype, scores.dtype) == (float32, float16)
        scores = add(scores.float() if wide else scores, mask)
        hidden = mask.detach() == -INF
    elif mask is not None:
        hidden = ~mask
    if hidden is not None:
        none = hidden.all(axis(op, -1, hidden.ndim), keepdim=True)  # rows that see nothing: uniform weights, then 0
        scores = masked_fill(masked_fill(scores, hidden, -INF), none, 0)
    weights = dropout(softmax(scores, -1).to(value.dtype), dropout_p)
    if none is not None:
        weights = masked_fill(weights, none, 0)
    return matmul(weights, value), weights
