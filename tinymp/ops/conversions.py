"""Methods of Tensor that PyTorch has for single dtypes and devices; all of them are `Tensor.to`."""

from __future__ import annotations

from typing import Any

from ..tensor import Tensor


def long(self: Tensor) -> Tensor:
    """This tensor as int64, fractions cut off; no gradient."""
    return self.to("int64")


def int(self: Tensor) -> Tensor:
    """This tensor as int32, fractions cut off; no gradient."""
    return self.to("int32")


def bool(self: Tensor) -> Tensor:
    """Whether each element is not 0; no gradient."""
    return self.to("bool")


def cpu(self: Tensor) -> Tensor:
    """This tensor on the CPU; itself if it is there."""
    return self.to("cpu")


def cuda(self: Tensor, device: Any = None) -> Tensor:
    """This tensor on the GPU: `to("gpu")`. There is one GPU; TypeError for the name of another."""
    if device not in (None, 0, "cuda", "cuda:0", "gpu"):
        raise TypeError(f"cuda: expected one GPU and no `device`, got {device!r}")
    return self.to("gpu")


METHODS = (long, int, bool, cpu, cuda)
