"""torch.autograd: Variable, which is a Tensor, and gradients of the first order."""

from __future__ import annotations

from typing import Any

from ..autograd import Op as _Op
from ..grad_mode import enable_grad as enable_grad
from ..grad_mode import no_grad as no_grad
from ..precision import POINTWISE as _POINTWISE
from ..tensor import FIRST_ORDER as _FIRST_ORDER
from ..tensor import Tensor
from ..tensor import uses as _uses
from .space import fill


def Variable(data: Tensor, requires_grad: bool | None = None, volatile: bool = False) -> Tensor:
    """data, which needs no wrapper. requires_grad: set it."""
    return data if requires_grad is None else data.detach().requires_grad_(requires_grad)


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool = False,
) -> tuple:
    """The gradients of outputs with respect to leaves, as Tensors, which `grad` of these leaves does not get.

    NotImplementedError for create_graph=True: there are no second derivatives. ValueError for inputs that are not
    leaves; RuntimeError for one that no output depends on, unless allow_unused.
    """
    if create_graph:
        raise NotImplementedError(f"grad: {_FIRST_ORDER} (docs/pytorch.md)")
    outputs, inputs = ([x] if isinstance(x, Tensor) else list(x) for x in (outputs, inputs))
    for x in inputs:
        if not x.is_leaf:
            raise ValueError("grad: expected leaves as `inputs`; make one with x = x.detach().requires_grad_()")
    given = grad_outputs if isinstance(grad_outputs, (list, tuple)) else [grad_outputs] * len(outputs)
    every = {id(x): x for x in _leaves(outputs)} | {id(x): x for x in inputs}
    kept = [(x, x.grad_array, x.grad_scale) for x in every.values()]
    try:
        for x in every.values():
            x.zero_grad()
        for y, dy in zip(outputs, given):
            y.backward(dy, retain_graph=bool(retain_graph))
        found = tuple(None if x.grad_array is None else Tensor(x.grad_array) for x in inputs)
    finally:
        for x, array, scale in kept:
            x.grad_array, x.grad_scale = array, scale
    if None in [g if g is None else True for g in found] and not allow_unused:
        raise RuntimeError("grad: one of `inputs` is not used by `outputs`; pass allow_unused=True to get None for it")
    return found


def _leaves(outputs: list) -> list:
    return [leaf for y in outputs if y.grad_fn is not None for leaf, _ in _uses(y.grad_fn).values()]


class Function:
    """An op that a program defines: static methods forward(ctx, *args) and backward(ctx, *gradients), on Tensors.

    ctx is one call: save_for_backward, saved_tensors, needs_input_grad, and whatever forward keeps on it. Results may
    have another dtype than the Tensors that come in, but those with gradients have one.
    """

    forward: Any
    backward: Any

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """forward(ctx, *args), recorded in the graph."""
        tensors = [a for a in args if isinstance(a, Tensor)]
        return _Call.apply(*tensors, function=cls, given=[_Call if isinstance(a, Tensor) else a for a in args])


class _Context:
    saved_tensors: tuple = ()
    needs_input_grad: tuple = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors


class _Call(_Op):
    """A call of a Function, by the mathematics of a program. In `given`, this class stands for each Tensor."""

    kind, name, arguments, casts = _POINTWISE, "Function", ("args",), True

    def forward(self, *arrays: Any, function: Any, given: list) -> Any:
        self.name = function.__name__
        tensors, needs, self.context = iter(arrays), iter(self.needs or [False] * len(arrays)), _Context()
        self.context.needs_input_grad = tuple(a is _Call and next(needs) for a in given)
        with no_grad():
            y = function.forward(self.context, *[Tensor(next(tensors)) if a is _Call else a for a in given])
        self.save(statistics=tuple([x if x is None else x.array for x in self.context.saved_tensors]))
        self.context.saved_tensors = ()  # backward frees what `save` keeps
        # views, so that a result that is an argument shares its count of changes
        y = tuple([x.array.view() for x in (y if isinstance(y, tuple) else (y,))])
        self.made = [(x.shape, x.dtype) for x in y]
        return y if len(y) > 1 else y[0]

    def backward(self, *dy: Any) -> Any:
        self.context.saved_tensors = tuple([x if x is None else Tensor(x) for x in self.statistics])
        dy = tuple([Tensor(self.xp.zeros(*made) if g is None else g) for g, made in zip(dy, self.made)])
        with no_grad():
            found = self.function.backward(self.context, *dy)
        self.context.saved_tensors = ()
        found = found if isinstance(found, tuple) else (found,)
        found = [g for g, a in zip(found, self.given) if a is _Call]
        return tuple([g if g is None or t is None else g.to(t.dtype).array for g, t in zip(found, self.targets)])


class set_detect_anomaly:
    """Accepted and without effect; `tinymp.audit` tells where a gradient stops being finite."""

    def __init__(self, mode: bool = True, check_nan: bool = True) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: Any) -> None:
        pass


detect_anomaly = set_detect_anomaly
fill(globals(), "torch.autograd", {})
