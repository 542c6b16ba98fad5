"""Other devices, copies, batches that a policy casts, and methods for BF16 and a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import dtypes
from ...arguments import name_all
from ...autograd import Array, Op
from ...backend.extras import hint
from ...dtypes import real
from ...precision import MOVEMENT, Policy, fit
from ...tensor import Tensor


class Move(Op):
    """y = x on another device;  dx = dy on the device of x."""

    kind = MOVEMENT
    name = "to"

    def forward(self, x: Array, *, to: Any) -> Array:
        self.source, self.device = self.device, to
        return to.asarray(x)

    def backward(self, dy: Array) -> Array:
        return self.source.asarray(dy)


class Copy(Op):
    """y = x in new memory;  dx = dy."""

    kind = MOVEMENT
    name = "clone"

    def forward(self, x: Array) -> Array:
        return x.copy()

    def backward(self, dy: Array) -> Array:
        return dy


def clone(input: Tensor) -> Tensor:
    """A copy of the data, inside the graph."""
    return Copy.apply(input)


def cast_items(policy: Policy, target: Any) -> Any:
    """`policy.cast` of an array, or of a list, tuple or dict item by item. TypeError for anything else."""
    if isinstance(target, np.ndarray):
        target = real("Policy.cast", target, target)
        return target if target.dtype.kind in "iub" else fit("Policy.cast", target, policy.storage)
    if not isinstance(target, (dict, list, tuple)):
        raise TypeError(f"Policy.cast: expected a Module, Tensor, array or a collection of them, got {type(target)}")
    if isinstance(target, dict):
        return dict(zip(target, policy.cast([*target.values()])))
    # a batch may carry names beside its arrays
    found = [item if isinstance(item, (str, bytes)) else policy.cast(item) for item in target]
    return type(target)(*found) if hasattr(target, "_fields") else type(target)(found)


def bfloat16(input: Tensor) -> Tensor:
    """input in BF16 (one rounding), on the CPU. ImportError without ml_dtypes."""
    if dtypes.bfloat16 is None:
        raise ImportError(f"bfloat16: BF16 needs ml_dtypes: {hint('bf16')}")
    return input.to(dtypes.bfloat16)


def cuda(input: Tensor, device: Any = None) -> Tensor:
    """input on the GPU: `to("gpu")`. There is one GPU; TypeError for the name of another."""
    if str(device) not in ("None", "0", "cuda", "cuda:0", "gpu"):  # a torch.device, too
        raise TypeError(f"cuda: expected one GPU and no `device`, got {device!r}")
    return input.to("gpu")


name_all(globals(), cast_items)
