"""What a graph keeps in memory until its backward pass."""

from __future__ import annotations

from collections.abc import Iterable

from .. import backend
from ..autograd import Array, Op, Variable


def saved_nbytes(root: Variable) -> int:
    """The bytes that the graph behind `root` keeps for backward: see `kept_by`."""
    if not isinstance(root, Variable):
        raise TypeError(f"saved_nbytes: expected a Tensor, got {type(root).__name__}")
    graph: set[Op] = set()
    ops = [root.grad_fn]
    while ops:
        op = ops.pop()
        if op is not None and op not in graph:
            graph.add(op)
            ops += [edge[0] for edge in op.edges if isinstance(edge, tuple)]
    return sum(backend.owner_of(x).nbytes for x in kept_by(graph).values())


def kept_by(ops: Iterable[Op]) -> dict[int, Array]:
    """{owner's id: array} of the arrays that ops keep until backward, activations and statistics: one per memory block.

    Leaves that require gradients (weights) are left out, and so are ops whose backward has run.
    """
    kept: dict[int, Array] = {}
    leaves: set[int] = set()
    for op in ops:
        if op.saved is None:
            continue
        leaves |= {id(backend.owner_of(edge.data)) for edge in op.edges if isinstance(edge, Variable)}
        for value in vars(op).values():  # `saved`, `statistics`, and other attributes that forward has set
            for x in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(x, "nbytes") and hasattr(x, "strides"):
                    kept[id(backend.owner_of(x))] = x
    return {owner: x for owner, x in kept.items() if owner not in leaves}
