"""Dot products: exact products of stored operands, FP32 accumulator, one rounding (MPT 3.3, NVG 2.2)."""

from __future__ import annotations

from math import prod

from ..arguments import floating, shaped, with_axes
from ..autograd import Array, Op
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
    if not a.ndim or not b.ndim:
        raise ValueError(f"matmul: expected at least one axis on each side, got {a.shape} and {b.shape}; use mul")
    inner = b.shape[-2] if b.ndim > 1 else b.shape[0]
    if a.shape[-1] != inner:
        raise ValueError(
            f"matmul: expected input.shape[-1] == other.shape[{-2 if b.ndim > 1 else 0}], got {a.shape[-1]} and "
            f"{inner} (input is {a.shape}, other is {b.shape})"
        )
    matrix_a = a.reshape(1, -1) if a.ndim == 1 else a
    matrix_b = b.reshape(-1, 1) if b.ndim == 1 else b
    batches = matrix_a.shape[:-2], matrix_b.shape[:-2]
    if any(m != n and 1 not in (m, n) for m, n in zip(batches[0][::-1], batches[1][::-1])):
        raise ValueError(f"matmul: expected batch axes that broadcast, got {batches[0]} and {batches[1]}")
    if matrix_a.ndim > 2 and matrix_b.ndim == 2:  # one product over all batches, not one per batch
        rows = MatMul.apply(matrix_a.reshape(prod(matrix_a.shape[:-1]), matrix_a.shape[-1]), matrix_b)
        c = rows.reshape(*matrix_a.shape[:-1], matrix_b.shape[-1])
    else:
        c = MatMul.apply(matrix_a, matrix_b)
    shape = c.shape[:-2] + (c.shape[-2:-1] if a.ndim > 1 else ()) + (c.shape[-1:] if b.ndim > 1 else ())
    return c if shape == c.shape else c.reshape(shape)


def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """The product of two matrices; ValueError for anything but matrices (see `matmul`)."""
    return matmul(with_axes("mm", "input", input, 2), with_axes("mm", "mat2", mat2, 2))


def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """The products of two equally long batches of matrices; ValueError otherwise (see `matmul`)."""
    a, b = with_axes("bmm", "input", input, 3), with_axes("bmm", "mat2", mat2, 3)
    if a.shape[0] != b.shape[0]:
        raise ValueError(f"bmm: expected equally long batches, got {a.shape} and {b.shape}")
    return matmul(a, b)


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
