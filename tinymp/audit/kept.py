"""What a graph keeps in memory until its backward pass."""

from __future__ import annotations

from .. import backend
from ..autograd import Op, Variable
from ..memory import kept_by


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
