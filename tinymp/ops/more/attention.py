"""scaled_dot_product_attention: one op, whose scores and softmax stay in FP32; and its weights, made of small ops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ... import backend
from ...arguments import axis, flag, floating, number, tensor
from ...autograd import Array, Op
from ...dtypes import FLOATING, HALVES, float32
from ...precision import DOT, gemm, reduce, store, widen
from ...tensor import Tensor
from ..dot import matmul
from ..dropout import dropout
from ..pointwise import add, mul, sum_to
from ..softmax import softmax
from .pointwise import masked_fill

INF = float("inf")


class Attention(Op):
    """y = p v with p = exp(s - z), s = scale q k^T + mask, z = ln sum_j exp s_j;  dv = p^T dy, ds = p (dp - sum_j y_j
    dy_j) with dp = dy v^T, dq = scale ds k, dk = scale ds^T q, dmask = ds.

    Scores, exponentials and their sums stay in FP32. Rounded once each, as operands of the product that follows (MPT
    section 3.3): the weights p, and in backward p and ds. Of all that z alone is kept, a number per row: backward
    computes the scores again (Dao et al., 2022). A row that sees nothing has s = -inf throughout, and z = +inf, so that
    p = 0.

    q: (..., L, E), k: (..., S, E), v: (..., S, Ev), one of them with 3 axes or more; mask: broadcasts to (..., L, S),
    bool (True: seen) or added; kept: (..., L, S), bool, the weights that dropout keeps and divides by 1 - dropout_p, or
    None.
    """

    kind = DOT
    scale: float
    causal: bool
    dropout_p: float
    name = "scaled_dot_product_attention"
    arguments = ("query", "key", "value", "attn_mask", "kept")
    fp32 = ("attn_mask",)

    def forward(self, q: Array, k: Array, v: Array, mask: Array | None, kept: Array | None, **options: Any) -> Array:
        p = self._scores(q, k, mask)
        top = reduce(p, -1, "max", like=q)
        top = self.xp.where(top == -INF, 0, top)
        p = self.xp.exp(p - top)
        total = reduce(p, -1, "sum", like=q)
        total = self.xp.where(total == 0, INF, total)
        y = gemm(store(self._dropped(p / total, kept), like=q), v)
        self.save(q, k, v, mask, kept, y, statistics=(top + self.xp.log(total),))
        return y

    def backward(self, dy: Array) -> tuple:
        (q, k, v, mask, kept, _), (z,) = self.saved, self.statistics
        like_q, like_k, like_v, like_mask, _ = self.targets
        p = self.xp.exp(self._scores(q, k, mask) - z)
        total = reduce(p, -1, "sum", like=q)  # 1, but for the rounding of z
        p /= self.xp.where(total == 0, 1, total)
        weights = store(self._dropped(p, kept), like=q)
        dp = self._dropped(gemm(dy, v.swapaxes(-1, -2), wide=True), kept)
        wide = p * (dp - reduce(p * dp, -1, "sum", like=q))  # y dy is that sum, but cancels wholly where a weight is 1
        ds = store(wide, like=q)
        return (
            sum_to(self.scale * gemm(ds, k, wide=True), like_q) if like_q else None,
            sum_to(self.scale * gemm(ds.swapaxes(-1, -2), q, wide=True), like_k) if like_k else None,
            sum_to(gemm(weights.swapaxes(-1, -2), dy, wide=True), like_v) if like_v else None,
            sum_to(wide, like_mask) if like_mask else None,
            None,
        )

    def _scores(self, q: Array, k: Array, mask: Array | None) -> Array:
        """s in FP32, -inf where nothing is seen. The scale comes last: q k^T may be beyond FP16 before it."""
        s = self.scale * gemm(q, k.swapaxes(-1, -2), wide=True)
        if self.causal:
            mask = self.xp.arange(s.shape[-1]) <= self.xp.arange(s.shape[-2])[:, None]
        if mask is None:
            return s
        if mask.dtype != bool:
            return s + widen(mask)
        # a mask is mostly small. Next to the limit, fmin passes a nan over as well
        return self.xp.fmin(s, self.xp.where(mask, s.dtype.type(INF), s.dtype.type(-INF)))

    def growth(self) -> float:
        """The factor by which dropout enlarges the weights that it keeps."""
        return 1 / (1 - self.dropout_p) if self.dropout_p < 1 else 0.0

    def _dropped(self, x: Array, kept: Array | None) -> Array:
        """x where dropout keeps the weight, and as much larger, else 0."""
        if kept is None:
            return x
        x = self.device.select(kept, x)
        x *= self.growth()
        return x


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(query key^T scale + attn_mask) value (Vaswani et al., 2017): (..., L, Ev).

    query: (..., L, E), key: (..., S, E), value: (..., S, Ev); leading axes broadcast. attn_mask: broadcasts to (..., L,
    S); bool (True: may be attended to), or added (in FP32 where it is). is_causal: row i attends to columns 0 to i. A
    row that may attend to nothing gives 0, as in PyTorch. scale: 1 / sqrt(E) by default. dropout_p: of the weights,
    always applied.

    ValueError for shapes that do not match, and for attn_mask together with is_causal.
    """
    op = "scaled_dot_product_attention"
    is_causal = flag(op, "is_causal", is_causal)
    if is_causal and attn_mask is not None:
        raise ValueError(f"{op}: expected either attn_mask or is_causal, got both")
    return attend(op, query, key, value, attn_mask, dropout_p, scale, is_causal)[0]


def attend(
    op: str,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    dropout_p: float = 0.0,
    scale: float | None = None,
    causal: bool = False,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """(attention, its weights (..., L, S) after dropout if needed); see `scaled_dot_product_attention`."""
    q, k, v, shape = _checked(op, query, key, value, mask)
    factor = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else number(op, "scale", scale)
    p, device = number(op, "dropout_p", dropout_p, 0, 1), backend.of(q.array)
    if need_weights or 0 in shape:
        if causal:
            arange = device.xp.arange
            mask = Tensor(arange(shape[-1]) <= arange(shape[-2])[:, None])
        # the root of the scale comes first, so that no product overflows FP16 that would fit it after scaling
        root = math.sqrt(abs(factor))
        return weighted(op, matmul(mul(q, math.copysign(root, factor)), mul(k, root).transpose(-2, -1)), v, mask, p)
    alone = len(shape) == 2  # the op wants a batch
    if alone:
        q, shape = q.unsqueeze(0), (1, *shape)
    kept = Tensor(device.uniform(shape) >= p) if p else None
    y = Attention.apply(q, k, v, mask, kept, scale=factor, causal=causal, dropout_p=p)
    return y.squeeze(0) if alone else y, None


def _checked(op: str, query: Any, key: Any, value: Any, mask: Any) -> tuple[Tensor, Tensor, Tensor, tuple[int, ...]]:
    """query, key and value, and the shape of the scores; TypeError or ValueError for what does not fit."""
    q, k, v = floating(op, "query", query), floating(op, "key", key), floating(op, "value", value)
    shapes = q.shape, k.shape, v.shape
    if min(map(len, shapes)) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(f"{op}: expected query (..., L, E), key (..., S, E), value (..., S, Ev), got shapes {shapes}")
    try:
        scores = (*np.broadcast_shapes(*[shape[:-2] for shape in shapes]), q.shape[-2], k.shape[-2])
    except ValueError:
        expected = "leading axes of query, key and value that broadcast"
        raise ValueError(f"{op}: expected {expected}, got shapes {shapes}") from None
    if mask is not None:
        _check_mask(op, mask)
        if mask.ndim > len(scores) or any(m not in (1, n) for m, n in zip(mask.shape[::-1], scores[::-1])):
            raise ValueError(f"{op}: expected attn_mask that broadcasts to (..., L, S) = {scores}, got {mask.shape}")
    return q, k, v, scores


def _check_mask(op: str, mask: Any) -> None:
    if tensor(op, "attn_mask", mask).dtype != bool and mask.dtype not in FLOATING:
        raise TypeError(f"{op}: expected `attn_mask` to be bool or floating, got {mask.dtype}")


def weighted(op: str, scores: Tensor, value: Tensor, mask: Any, dropout_p: float = 0.0) -> tuple[Tensor, Tensor]:
    """(weights value, the weights softmax(scores + mask), after dropout): what attention ends in where its scores are
    stored. Made of small ops.

    scores: (..., L, S), value: (..., S, Ev), mask: None, or the attn_mask of `scaled_dot_product_attention`.
    """
    none = None
    if mask is not None:
        _check_mask(op, mask)
        if mask.dtype == bool:
            hidden = ~mask
        else:
            wide = mask.dtype == float32 and scores.dtype in HALVES
            scores = add(scores.float() if wide else scores, mask)
            hidden = mask.detach() == -INF
        none = hidden.all(axis(op, -1, hidden.ndim), keepdim=True)  # rows that see nothing: uniform weights, then 0
        scores = masked_fill(masked_fill(scores, hidden, -INF), none, 0)
    weights = dropout(softmax(scores, -1).to(value.dtype), dropout_p)
    if none is not None:
        weights = masked_fill(weights, none, 0)
    return matmul(weights, value), weights
