"""What a graph keeps in memory until its backward pass."""

from __future__ import annotations

from .. import backend
from ..arguments import named
from ..autograd import Variable
from ..memory import kept_by
from ..tensor import behind


@named
def saved_nbytes(root: Variable) -> int:
    """The bytes that the graph behind `root` keeps for backward: see `kept_by`."""
    if not isinstance(root, Variable):
        raise TypeError(f"saved_nbytes: expected a Tensor, got {type(root).__name__}")
    return sum(backend.owner_of(x).nbytes for x in kept_by(behind(root.grad_fn)).values())
