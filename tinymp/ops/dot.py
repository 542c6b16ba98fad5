"""Dot products: exact products of stored operands, FP32 accumulator, one rounding (MPT 3.3, NVG 2.2)."""

from __future__ import annotations

from math import prod

from ..arguments import floating, shaped
from ..autograd import Array, Op
from ..backend.extras import held
from ..precision import DOT, gemm, reduce, store, unrounded
from ..tensor import Tensor
from .pointwise import sum_to


class MatMul(Op):
    """c = a b for matrices, batched and broadcast over leading axes;  da = dc b^T, db = a^T dc."""

    kind = DOT
    name = "matmul"
    arguments = ("input", "other")

    def forward(self, a: Array, b: Array) -> Array:
        self.save(a, b)
        return gemm(a, b)

    def backward(self, dc: Array) -> tuple:
        (a, b), (like_a, like_b) = self.saved, self.targets
        # FP32 only where batches were broadcast: they are summed before the one rounding
        batch = dc.shape[:-2]
        da, db = None, None
        if like_a:
            da = sum_to(gemm(dc, b.swapaxes(-1, -2), wide=batch != like_a.shape[:-2]), like_a)
        if like_b:
            db = sum_to(gemm(a.swapaxes(-1, -2), dc, wide=batch != like_b.shape[:-2]), like_b)
        return da, db


class Linear(Op):
    """y = x W^T + b;  dx = dy W, dW = dy^T x, db = sum of dy over all rows."""

    kind = DOT

    def forward(self, x: Array, w: Array, b: Array | None) -> Array:
        self.save(x, w)
        rows = x.reshape(prod(x.shape[:-1]), x.shape[-1])  # -1 does not work with an axis of length 0
        return gemm(rows, w.T, b).reshape(*x.shape[:-1], w.shape[0])

    def backward(self, dy: Array) -> tuple:
        (x, w), (like_x, like_w, like_b) = self.saved, self.targets
        n = prod(x.shape[:-1])
        rows = dy.reshape(n, dy.shape[-1])
        dx = gemm(rows, w).reshape(like_x.shape) if like_x else None
        dw = gemm(rows.T, x.reshape(n, x.shape[-1])) if like_w else None
        exact = unrounded(dy).reshape(rows.shape)
        db = store(reduce(exact, 0, "sum").reshape(like_b.shape), like=like_b) if like_b else None
        return dx, dw, db


# ---------------------------------------------------------------------------------------------------------- functions


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """The matrix product, with PyTorch's rules: vectors are rows on the left and columns on the right, leading axes
    are batches and broadcast. ValueError if the inner lengths or the batches do not match.
    """
    a, b = floating("matmul", "input", input), floating("matmul", "other", other)
    if not a.ndim or not b.ndim or a.shape[-1] != b.shape[-2:][0]:
        inner = "input.shape[-1] == other.shape[-2] (of a vector: shape[0])"
        raise ValueError(f"matmul: expected {inner}, got {a.shape} and {b.shape}")
    if any(m != n and 1 not in (m, n) for m, n in zip(a.shape[-3::-1], b.shape[-3::-1])):
        raise ValueError(f"matmul: expected batch axes that broadcast, got {a.shape[:-2]} and {b.shape[:-2]}")
    stacks = min(a.ndim, b.ndim) > 1 and (a.ndim == 2 or b.ndim > 2)  # else one product over all rows, by more
    return (MatMul.apply if stacks else held("ops.dot.flattened"))(a, b)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input @ weight.T + bias, the bias in the same rounding.

    input: (..., in), weight: (out, in), bias: (out,) or None. Returns (..., out). ValueError if they do not match.
    """
    x, w = floating("linear", "input", input), floating("linear", "weight", weight)
    if not x.ndim or w.ndim != 2 or x.shape[-1] != w.shape[1]:
        raise ValueError(
            f"linear: expected input.shape[-1] == weight.shape[1], got input {x.shape} and weight {w.shape}"
        )
    shaped("linear", "bias", bias, w.shape[:1], "weight.shape[0]")
    return Linear.apply(x, w, bias)
