"""Padding: elements around those of a tensor, a constant or its own. The gradients of its own are sums in FP32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import backend
from ...arguments import LONGEST, choice, constant, sizes, tensor
from ...autograd import Array, Op
from ...precision import MOVEMENT, scalar
from ...tensor import Tensor
from .index import Index

__all__ = ["pad"]


class Pad(Op):
    """y = x with `value` around it;  dx = the part of dy that came from x.

    widths: (before, after) per axis. A negative width crops, so that the gradient is a padding by the negated widths.
    """

    kind = MOVEMENT

    def forward(self, x: Array, *, widths: Sequence[tuple[int, int]], value: float) -> Array:
        return self._padded(x, widths, value)

    def backward(self, dy: Array) -> Array:
        return self._padded(dy, [(-before, -after) for before, after in self.widths], 0)

    def _padded(self, x: Array, widths: Sequence[tuple[int, int]], value: float) -> Array:
        shape = tuple([n + before + after for n, (before, after) in zip(x.shape, widths)])
        y = self.xp.full_like(x, scalar(value, x.dtype), shape=shape)
        source = [slice(max(-b, 0), n - max(-a, 0)) for n, (b, a) in zip(x.shape, widths)]
        target = [slice(max(b, 0), n - max(a, 0)) for n, (b, a) in zip(shape, widths)]
        y[tuple(target)] = x[tuple(source)]
        return y


class PadFromInside(Index):
    """y = x with copies of its own elements around it;  dx = dy added up where each element was used."""

    name = "pad"


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """input with more elements at the ends of its last axes; PyTorch's `F.pad`, with all modes on any axes.

    pad: (before, after) of the last axis, then of the last but one, ...; negative: that many elements less. mode:
    "constant" (`value`, by default 0), "reflect" (mirrored without the edge), "replicate" (the edge), "circular" (from
    the other end). ValueError for more padding than there is to copy, more cropping than there is, a value that does
    not fit.
    """
    x, given = tensor("pad", "input", input), sizes("pad", "pad", (pad,), {})
    choice("pad", "mode", mode, ("constant", "reflect", "replicate", "circular"))
    if len(given) % 2 or len(given) > 2 * x.ndim:
        raise ValueError(f"pad: expected `pad` to be (before, after) of at most {x.ndim} axes, got {given}")
    first = x.ndim - len(given) // 2  # the first axis that changes
    widths = [(0, 0)] * first + list(zip(given[-2::-2], given[::-2]))
    for n, (before, after) in zip(x.shape, widths):
        cropped = n + min(before, 0) + min(after, 0)
        if (cropped if mode in ("constant", "circular") else n + before + after) < 0:
            raise ValueError(f"pad: expected `pad` to crop at most what is there, got {given} for shape {x.shape}")
        most = {"constant": LONGEST, "reflect": n - 1, "replicate": LONGEST if n else 0, "circular": cropped}[mode]
        if max(before, after) > max(most, 0):
            raise ValueError(f"pad: expected at most {most} on an axis of length {n} with mode {mode!r}, got {given}")
    if mode == "constant":
        return Pad.apply(x, widths=widths, value=constant("pad", "value", 0 if value is None else value, x.dtype))
    if value:
        raise ValueError(f"pad: expected no `value` with mode {mode!r}, got {value!r}")
    xp = backend.of(x.array).xp
    places = [_source(xp, n, *width, mode) for n, width in zip(x.shape[first:], widths[first:])]
    return PadFromInside.apply(x, *map(Tensor, xp.ix_(*places)), axes=range(first, x.ndim)) if given else x


def _source(xp: Any, n: int, before: int, after: int, mode: str) -> Array:
    """The places in an axis of length n from which the elements of the padded axis come."""
    crop = slice(max(-before, 0), n + before + after + max(-before, 0))
    width = (max(before, 0), max(after, 0))
    if mode == "circular":  # PyTorch repeats what cropping leaves, but mirrors what was there before
        return xp.pad(xp.arange(n)[max(-before, 0) : n + min(after, 0)], width, mode="wrap")
    return xp.pad(xp.arange(n), width, mode={"reflect": "reflect", "replicate": "edge"}[mode])[crop]
