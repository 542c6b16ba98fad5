"""Leaves that are no Parameters, for optimizers: PyTorch's update any tensor that requires a gradient."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

from ...parameter import Parameter
from ...precision import FP32
from ...tensor import Tensor

__all__ = ["Leaf", "leaf"]


def _of_leaf(name: str) -> Any:
    return property(
        lambda self: getattr(self.leaf, name),
        lambda self, value: setattr(self.leaf, name, value),
        doc=f"The leaf's `{name}`.",
    )


class Leaf(Parameter):
    """A Tensor in an optimizer's groups, `leaf`: its array, gradient and count of changes are those of the Tensor.

    There is no master: of an FP16 leaf each update is rounded (MPT section 3.1), as in PyTorch; a Parameter has one.
    """

    __slots__ = ("leaf",)

    def __init__(self, leaf: Tensor) -> None:
        self.leaf, self._master, self.name, self.policy, self.normalisation = leaf, None, None, FP32, False

    array, data, _version = _of_leaf("array"), _of_leaf("data"), _of_leaf("_version")
    grad_array, grad_scale, grad_fn = _of_leaf("grad_array"), _of_leaf("grad_scale"), _of_leaf("grad_fn")
    requires_grad, replace_grad = _of_leaf("requires_grad"), _of_leaf("replace_grad")


def leaf(entry: Any) -> Any:
    """entry as an optimizer takes it: a Tensor that is no Parameter as its Leaf. ValueError for results of ops."""
    if not isinstance(entry, Tensor) or isinstance(entry, Parameter):
        return entry
    if not entry.is_leaf:
        raise ValueError("optimizer: expected leaves, got a result of an op; see detach() and requires_grad_()")
    return _leaves.setdefault(id(entry), Leaf(entry))


# By the ids of their tensors, those that an optimizer holds: a tensor that is given twice is found out
_leaves: WeakValueDictionary[int, Leaf] = WeakValueDictionary()
