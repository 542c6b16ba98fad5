"""Programs copy, move and print weights outside of a model's call: docs/policies.md has the table."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from ... import backend
from ...autograd import Array, Op, Variable
from ...dtypes import FLOATING
from ...events import in_pass
from ...parameter import Parameter, Weights
from ...precision import LOSS, store
from ...tensor import Tensor


class Wide(Tensor):
    """The master of `weight` as an op reads it: read-only where there is a copy, which would not learn of a change.

    again: True in a module's call, where weights are FP16: the op's result is weights, with a rounding of its own.
    """

    __slots__ = ("again", "weight")
    again: bool

    def wide(self, op: Any = None) -> Wide:
        """Itself."""
        return self

    def result(self, array: Array, *graph: Any) -> Tensor:
        """The result of an op on it."""
        if not self.again or array.dtype not in FLOATING:
            return super().result(array, *graph)
        return _weights(self.weight, store(array, like=self.weight.array), array)


def wide(self: Weights, op: Any = None) -> Wide:
    """The master in its place in the graph, for an op that the user's program calls itself (`autograd.taken`)."""
    made = Wide.__new__(Wide)
    Variable.__init__(made, self.numbers, self.requires_grad, self.grad_fn, self.output_nr)
    made._version, made.weight = self._version, self
    fp32 = op is None or getattr(op, "casts", False) or getattr(op, "kind", None) is LOSS  # as its result is meant
    made.again = self.apart and in_pass.get() and not fp32
    return made


def selected(self: Weights, op: Op, made: Tensor, indices: list[Tensor]) -> Tensor:
    """`made`, which op has selected of the working copy, with the same part of the master: weights again.

    Rows that are looked up for a backward pass remain FP16: a lookup begins a forward pass.
    """
    if made.requires_grad and backend.owner_of(made.array) is not backend.owner_of(self.array) and op.gradient:
        return made
    part = copy(op).run("forward", [self.master, *(i.array for i in indices)], op.options)
    graph = made.requires_grad, made.grad_fn, made.output_nr
    weights = _weights(self, made.array, part[made.output_nr] if isinstance(part, tuple) else part, *graph)
    weights._version = made._version
    return weights


def _weights(like: Weights, array: Array, master: Array, *graph: Any) -> Weights:
    made = like.detach()
    Variable.__init__(made, array, *(graph or (False,)))
    made._master = master
    return made


def __setstate__(self: Weights, state: tuple) -> None:
    """For copy and pickle: the two arrays as they were, the working copy read-only again, and no gradient."""
    for name, value in {**state[1], "grad_array": None, "grad_scale": 1.0}.items():
        setattr(self, name, _writeable(value))
    self.lock()


def _writeable(x: Any) -> Any:
    """x, or if it is an array that is read-only (which `lock` decides anew), the same to write into."""
    if isinstance(x, np.ndarray):
        try:
            x.flags.writeable = True
        except ValueError:  # of pickle, in memory of bytes
            return x.copy()
    return x


def moved_to(self: Parameter, device: str) -> dict[str, Any]:
    """The attributes that `replace` must set to move it to a device; nothing changes yet."""
    to = backend.get(device)
    master: Array | None = None if self._master is None else to.asarray(self._master)
    grad = self.grad_array.dense() if hasattr(self.grad_array, "dense") else self.grad_array
    grad = None if grad is None else to.asarray(grad)
    return {"array": to.asarray(self.array), "_master": master, "grad_array": grad, "_version": [0]}


def __repr__(self: Parameter) -> str:
    master = f", master {self._master.dtype}" if self._master is not None else ""
    name = f"{self.name}: " if self.name else ""
    values = np.array2string(backend.to_cpu(self.numbers), precision=4, threshold=20, prefix="Parameter(")
    return f"Parameter({name}{values}, dtype={self.dtype}{master}, device={self.device})"
