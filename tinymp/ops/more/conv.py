"""Convolutions over one axis, as those of images of height 1; padding by name."""

from __future__ import annotations

from typing import Any

from ...arguments import LONGEST, integers, with_axes
from ...tensor import Tensor
from ..conv import conv2d, conv_transpose2d
from .views import squeeze, unsqueeze

__all__ = ["conv1d", "conv_transpose1d"]


def named_padding(op: str, padding: str, kernel: tuple, strides: tuple, dilations: tuple) -> tuple:
    """The padding "valid", none, or "same", the output as large as the input."""
    if padding != "valid" and (padding != "same" or strides != (1, 1)):
        raise ValueError(f"{op}: expected `padding` to be integers, 'valid' or, with stride 1, 'same', got {padding!r}")
    spans = [d * (k - 1) * (padding == "same") for d, k in zip(dilations, kernel)]
    return tuple([(span // 2, span - span // 2) for span in spans])  # the odd one goes to the right and bottom


def _row(op: str, over_images: Any, input: Any, weight: Any, bias: Any, groups: Any, padding: Any, **steps: Any) -> Any:
    """A convolution of input (N, C, L) or (C, L) with weight (., ., k), both with a height of 1."""
    x, w = with_axes(op, "input", input, 3, 2), with_axes(op, "weight", weight, 3)
    least = {"stride": 1, "dilation": 1, "output_padding": 0}
    pairs = {name: (least[name], *integers(op, name, step, 1, least[name], LONGEST)) for name, step in steps.items()}
    if not isinstance(padding, str):
        padding = (0, *integers(op, "padding", padding, 1, 0, LONGEST))
    return squeeze(over_images(unsqueeze(x, -2), unsqueeze(w, -2), bias, padding=padding, groups=groups, **pairs), -2)


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """1-d cross-correlation: `conv2d` of height 1. input: (N, C, L) or (C, L); weight: (O, C / groups, k)."""
    return _row("conv1d", conv2d, input, weight, bias, groups, padding, stride=stride, dilation=dilation)


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """`conv_transpose2d` of height 1. input: (N, C, L) or (C, L); weight: (C, O / groups, k); bias: (O,)."""
    steps = {"stride": stride, "output_padding": output_padding, "dilation": dilation}
    return _row("conv_transpose1d", conv_transpose2d, input, weight, bias, groups, padding, **steps)
