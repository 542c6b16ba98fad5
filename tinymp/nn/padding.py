"""Padding modules that copy elements of the input: reflection and replication (`ops.pad` with that mode)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .. import ops
from ..arguments import floating
from ..tensor import Tensor
from .functions import Function


@dataclass(eq=False, repr=False)
class _Pad(Function):
    axes: ClassVar[int]  # how many of the last axes are padded
    mode: ClassVar[str]
    op = "pad"
    padding: Any

    def forward(self, input: Tensor) -> Tensor:
        name, n = type(self).__name__, self.axes
        if floating(name, "input", input).ndim not in (n + 1, n + 2):
            raise ValueError(f"{name}: expected `input` to have {n + 1} or {n + 2} axes, got shape {input.shape}")
        padding = (self.padding,) * (2 * n) if isinstance(self.padding, int) else self.padding
        if len(padding) != 2 * n:
            raise ValueError(f"{name}: expected `padding` to be an integer or {2 * n} of them, got {self.padding!r}")
        return ops.pad(input, padding, self.mode)


@dataclass(eq=False, repr=False)
class ReflectionPad1d(_Pad):
    """Both ends of (N, C, L) mirrored without the edge: padding is an integer or (left, right). See `ops.pad`."""

    axes, mode = 1, "reflect"


@dataclass(eq=False, repr=False)
class ReflectionPad2d(_Pad):
    """Images (N, C, H, W) mirrored at their edges: an integer or (left, right, top, bottom). See `ops.pad`."""

    axes, mode = 2, "reflect"


@dataclass(eq=False, repr=False)
class ReplicationPad1d(_Pad):
    """Both ends of (N, C, L) repeated: padding is an integer or (left, right). See `ops.pad`."""

    axes, mode = 1, "replicate"


@dataclass(eq=False, repr=False)
class ReplicationPad2d(_Pad):
    """The edges of images (N, C, H, W) repeated: an integer or (left, right, top, bottom). See `ops.pad`."""

    axes, mode = 2, "replicate"
