"""Pooling over one axis, as pooling of images of height 1; and adaptive max pooling, as max pooling of its cells,
copied side by side.
"""

from __future__ import annotations

from typing import Any

from .. import backend
from ..arguments import floating, integers
from ..tensor import Tensor
from .index import index_select
from .pool import adaptive_avg_pool2d, avg_pool2d, max_pool2d
from .shape import squeeze, unsqueeze


def _row(op: str, input: Any) -> Tensor:
    """input (N, C, L) or (C, L) with a height of 1."""
    x = floating(op, "input", input)
    if x.ndim not in (2, 3):
        raise ValueError(f"{op}: expected `input` to be (N, C, L) or (C, L), got shape {x.shape}")
    return unsqueeze(x, -2)


def max_pool1d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The maximum of every window of input (N, C, L) or (C, L); see `max_pool2d`."""
    x, (kernel, step, pad) = _row("max_pool1d", input), _options("max_pool1d", kernel_size, stride, padding)
    spread = 1, integers("max_pool1d", "dilation", dilation, 1, 1)[0]
    y = max_pool2d(x, kernel, step, pad, spread, ceil_mode, return_indices)
    return (squeeze(y[0], -2), squeeze(y[1], -2)) if return_indices else squeeze(y, -2)


def avg_pool1d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of every window of input (N, C, L) or (C, L), summed in FP32; see `avg_pool2d`."""
    x, (kernel, step, pad) = _row("avg_pool1d", input), _options("avg_pool1d", kernel_size, stride, padding)
    y = avg_pool2d(x, kernel, step, pad, ceil_mode, count_include_pad)
    return squeeze(y, -2)


def _options(op: str, kernel_size: Any, stride: Any, padding: Any) -> tuple[Any, Any, Any]:
    """kernel_size, stride and padding for images of height 1."""
    (kernel,), (pad,) = integers(op, "kernel_size", kernel_size, 1, 1), integers(op, "padding", padding, 1, 0)
    step = kernel if stride is None else integers(op, "stride", stride, 1, 1)[0]
    if 2 * pad > kernel:
        raise ValueError(f"{op}: expected padding to be at most half of kernel_size, got {pad} and {kernel}")
    return (1, kernel), (1, step), (0, pad)


def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    """Means over output_size cells that cover input (N, C, L) or (C, L); see `adaptive_avg_pool2d`."""
    (size,) = integers("adaptive_avg_pool1d", "output_size", output_size, 1, 1)
    return squeeze(adaptive_avg_pool2d(_row("adaptive_avg_pool1d", input), (1, size)), -2)


def adaptive_max_pool2d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """Maxima over a grid of output_size (an integer or (OH, OW), None keeps a side) cells that cover the input.

    input: (N, C, H, W) or (C, H, W). A cell reaches from floor(i H / OH) to ceil((i + 1) H / OH), columns likewise.
    With return_indices also each maximum's place in the flattened H * W plane, as integers.
    """
    op, x = "adaptive_max_pool2d", floating("adaptive_max_pool2d", "input", input)
    if x.ndim not in (3, 4) or 0 in x.shape[-2:]:
        raise ValueError(f"{op}: expected `input` (N, C, H, W) or (C, H, W) without empty images, got {x.shape}")
    pair = output_size if isinstance(output_size, (tuple, list)) else (output_size, output_size)
    filled = tuple(n if s is None else s for n, s in zip(x.shape[-2:], pair))
    sizes = integers(op, "output_size", filled if len(pair) == 2 else pair, 2, 1)
    cells = [_cells(n, parts) for n, parts in zip(x.shape[-2:], sizes)]
    for dim, (places, _), n in zip((-2, -1), cells, x.shape[-2:]):
        if places != list(range(n)):
            x = index_select(x, dim, Tensor(backend.of(x.data).xp.asarray(places)))
    found = max_pool2d(x, tuple(kernel for _, kernel in cells), return_indices=return_indices)
    if not return_indices:
        return found
    xp, (rows, columns) = backend.of(x.data).xp, (places for places, _ in cells)
    place = found[1].data
    row, column = xp.asarray(rows)[place // len(columns)], xp.asarray(columns)[place % len(columns)]
    return found[0], Tensor(row * input.shape[-1] + column)


def _cells(n: int, parts: int) -> tuple[list[int], int]:
    """The places of an axis of length n that each cell sees, one cell after another, and how many each has.

    Shorter cells repeat their last place, which changes no maximum.
    """
    spans = [(i * n // parts, -(-(i + 1) * n // parts)) for i in range(parts)]
    longest = max(end - start for start, end in spans)
    return [min(start + k, end - 1) for start, end in spans for k in range(longest)], longest
