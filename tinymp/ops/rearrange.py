"""view, contiguous, repeat, unbind, tril, triu: data movement made of smaller moves; clip, another name of clamp."""

from __future__ import annotations

from typing import Any

from .. import backend
from ..arguments import axis, refuse, sizes, tensor
from ..tensor import Tensor
from .pointwise import clamp, masked_fill
from .shape import expand, reshape, split, squeeze


def view(input: Tensor, *shape: Any, **keyword: Any) -> Tensor:
    """`reshape` that never copies. ValueError where input's memory order would need a copy."""
    new = sizes("view", "shape", shape, keyword)
    x = tensor("view", "input", input)
    y = reshape(x, new)
    if x.numel() and backend.owner_of(y.data) is not backend.owner_of(x.data):
        raise ValueError(
            f"view: a tensor of shape {x.shape} in this memory order has no view of shape {new}; use reshape, which "
            "copies"
        )
    return y


def contiguous(input: Tensor) -> Tensor:
    """input itself if its memory is in row-major order, else a copy that is."""
    return input if tensor("contiguous", "input", input).data.flags.c_contiguous else input.clone()


def repeat(input: Tensor, *repeats: Any, **keyword: Any) -> Tensor:
    """input laid side by side, repeats[i] times along axis i (integers or one tuple); new axes come first.

    ValueError for fewer repeats than axes, and for negative ones. The gradient is summed in FP32.
    """
    times, x = sizes("repeat", "repeats", repeats, keyword), tensor("repeat", "input", input)
    if len(times) < x.ndim or min(times, default=0) < 0:
        raise ValueError(
            f"repeat: expected a count of at least 0 for each of the {x.ndim} axes (or more), got {times} for shape "
            f"{x.shape}"
        )
    old = (1,) * (len(times) - x.ndim) + x.shape
    pairs = reshape(x, [m for n in old for m in (1, n)])
    wide = expand(pairs, [m for r, n in zip(times, old) for m in (r, n)])
    return reshape(wide, [r * n for r, n in zip(times, old)])


def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """The slices of input along dim, without that axis: views."""
    d = axis("unbind", dim, tensor("unbind", "input", input).ndim)
    return tuple([squeeze(part, d) for part in split(input, 1, d)]) if input.shape[d] else ()


def tril(input: Tensor, diagonal: int = 0, *, out: None = None) -> Tensor:
    """The lower triangle of the matrices on input's last two axes, up to `diagonal` (1: one above the main); else 0."""
    refuse("tril", out=out)
    return _triangle("tril", input, diagonal, lower=True)


def triu(input: Tensor, diagonal: int = 0, *, out: None = None) -> Tensor:
    """The upper triangle of the matrices on input's last two axes, from `diagonal` on (1: one above main); else 0."""
    refuse("triu", out=out)
    return _triangle("triu", input, diagonal, lower=False)


def _triangle(op: str, input: Tensor, diagonal: Any, lower: bool) -> Tensor:
    if tensor(op, "input", input).ndim < 2:
        raise ValueError(f"{op}: expected `input` to have at least two axes, got shape {input.shape}")
    if isinstance(diagonal, bool) or not hasattr(diagonal, "__index__"):
        raise TypeError(f"{op}: expected `diagonal` to be an integer, got {diagonal!r}")
    arange, (rows, columns) = backend.of(input.data).xp.arange, input.shape[-2:]
    right = arange(columns) - arange(rows)[:, None] - diagonal.__index__()  # how far right of the diagonal
    return masked_fill(input, Tensor(right > 0 if lower else right < 0), 0)


def clip(input: Tensor, min: Any = None, max: Any = None, *, out: None = None) -> Tensor:
    """input limited to [min, max]: another name of `clamp`."""
    return clamp(input, min, max, out=out)
