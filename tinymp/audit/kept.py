"""What a graph keeps in memory until its backward pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import backend
from ..arguments import named
from ..autograd import Variable
from ..backend.memory import behind


@named
def saved_nbytes(root: Variable) -> int:
    """The bytes that the graph behind `root` keeps for backward: see `kept_by`."""
    if not isinstance(root, Variable):
        raise TypeError(f"saved_nbytes: expected a Tensor, got {type(root).__name__}")
    return sum(backend.owner_of(x).nbytes for x in kept_by(behind(root.grad_fn)).values())


def kept_by(ops: Iterable[Any]) -> dict[int, Any]:
    """{owner's id: array} of the arrays that ops keep until backward, activations and statistics: one per memory block.

    Leaves that require gradients (weights) are left out, and so are ops whose backward has run.
    """
    kept: dict[int, Any] = {}
    leaves: set[int] = set()
    for op in ops:
        if op.saved is None:
            continue
        leaves |= {id(backend.owner_of(edge.array)) for edge in op.edges if hasattr(edge, "array")}
        for value in vars(op).values():  # `saved`, `statistics`, and other attributes that forward has set
            for x in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(x, "nbytes") and hasattr(x, "strides"):
                    kept[id(backend.owner_of(x))] = x
    return {owner: x for owner, x in kept.items() if owner not in leaves}
