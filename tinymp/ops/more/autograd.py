"""Gradients of several outputs in one backward pass, and ops that a program defines, as torch.autograd has them."""

from __future__ import annotations

from math import inf
from typing import Any

from ...autograd import Backward, Op, no_grad
from ...events import quietly
from ...precision import POINTWISE
from ...tensor import FIRST_ORDER, Tensor
from .create import ones_like
from .graph import uses
from .hooks import hooks_of, retain_grad


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool = False,
) -> tuple:
    """The gradients of outputs with respect to leaves or results of ops, as Tensors; no `grad` changes.

    NotImplementedError for create_graph=True: there are no second derivatives. RuntimeError for an input that no output
    depends on, unless allow_unused.
    """
    found = _pass("grad", outputs, grad_outputs, retain_graph, create_graph, inputs, alone=True)
    if not allow_unused and any(g is None for g in found):
        raise RuntimeError("grad: one of `inputs` is not used by `outputs`; pass allow_unused=True to get None for it")
    return found


def backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    inputs: Any = None,
) -> None:
    """`Tensor.backward` of several tensors in one pass. inputs: the leaves whose `grad` it adds to, by default all."""
    given = grad_variables if grad_tensors is None else grad_tensors
    _pass("backward", tensors, given, retain_graph, create_graph, inputs, alone=False)


class _Outputs(Op):
    """Several outputs as one, whose backward hands each its gradient."""

    kind, name, sequence = POINTWISE, "backward", inf  # type: ignore[assignment]
    gradients: list

    def run_backward(self, dys: Any, retain: bool) -> Any:
        return self.gradients


def _pass(how: str, outputs: Any, given: Any, retain: Any, second: bool, inputs: Any, alone: bool) -> tuple:
    """One backward pass from all outputs, which visits each op once. Leaves that are not among `inputs` keep their
    `grad`; with `alone` these do, too, and what the pass found for them is returned.
    """
    if second:
        raise NotImplementedError(f"{how}: {FIRST_ORDER} (docs/pytorch.md)")
    op, outputs = _Outputs(), [outputs] if isinstance(outputs, Tensor) else list(outputs)
    op.edges = tuple([y if y.grad_fn is None else (y.grad_fn, y.output_nr) for y in outputs])
    op.gradients = []
    given = [given] * len(outputs) if given is None or isinstance(given, Tensor) else given
    for y, dy in zip(outputs, given, strict=True):
        if not y.requires_grad or (y.numel() != 1 if dy is None else dy.shape != y.shape):
            raise RuntimeError(
                f"{how}: expected outputs that require a gradient, and for each of more than one element a gradient "
                f"of its shape, got {'none' if dy is None else dy.shape} for shape {y.shape}"
            )
        op.gradients.append(ones_like(y).array if dy is None else dy.to(y.dtype).array.copy())
    leaves: dict[int, Any] = {id(x): x for x, _ in uses(op).values()}
    wanted = [*leaves.values()] if inputs is None else [inputs] if isinstance(inputs, Tensor) else [*inputs]
    mine = {id(x): x for x in wanted}
    results = [x for x in mine.values() if not x.is_leaf and inf not in hooks_of(how, x)]
    kept = [(x, x.grad_array, x.grad_scale) for x in (leaves | mine).values() if alone or id(x) not in mine]
    try:
        for x in results:
            retain_grad(x)
        for x, *_ in kept:
            x.zero_grad()
        root = outputs[0].result(op.gradients[0], True, op)
        quietly(Backward(root, root.array, bool(retain)).run)
        return tuple(None if x.grad_array is None else Tensor(x.grad_array) for x in wanted)
    finally:
        for x in results:
            hooks_of(how, x).pop(inf)
        for x, array, scale in kept:
            x.grad_array, x.grad_scale = array, scale


class Function:
    """An op that a program defines: static methods forward(ctx, *args) and backward(ctx, *gradients), on Tensors.

    ctx is one call: save_for_backward, saved_tensors, needs_input_grad, mark_non_differentiable, set_materialize_grads,
    and whatever forward keeps on it; or forward(*args) and setup_context(ctx, args, output). Results with gradients
    have one dtype. A gradient may be None: then the argument gets none from here.
    """

    forward: Any
    backward: Any
    setup_context: Any = None

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """forward(ctx, *args), recorded in the graph."""
        given, context = [_Call if isinstance(a, Tensor) else a for a in args], _Context()
        found = _Call.apply(*[a for a in args if isinstance(a, Tensor)], function=cls, given=given, context=context)
        for i in context.constant:
            y = found[i] if isinstance(found, tuple) else found
            y.requires_grad, y.grad_fn = False, None
        return found


class _Context:
    saved_tensors: tuple = ()
    needs_input_grad: tuple = ()
    constant: tuple = ()  # what is marked; then the numbers of these results
    materializes = True

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self.constant = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.materializes = value

    def mark_dirty(self, *tensors: Any) -> None:
        raise RuntimeError("mark_dirty: a Function here changes nothing in place: compute a new tensor and return it")


class _Call(Op):
    """A call of a Function, by the mathematics of a program. In `given`, this class stands for each Tensor."""

    kind, name, arguments, casts = POINTWISE, "Function", ("args",), True

    def forward(self, *arrays: Any, function: Any, given: list, context: Any) -> Any:
        self.name = function.__name__
        tensors, needs = iter(arrays), iter(self.needs or [False] * len(arrays))
        context.needs_input_grad = tuple(a is _Call and next(needs) for a in given)
        args = [Tensor(next(tensors)) if a is _Call else a for a in given]
        with no_grad():
            y = function.forward(*args) if function.setup_context else function.forward(context, *args)
            if function.setup_context:
                function.setup_context(context, tuple(args), y)
        self.save(statistics=tuple([x if x is None else x.array for x in context.saved_tensors]))
        context.saved_tensors = ()  # backward frees what `save` keeps
        y = y if isinstance(y, tuple) else (y,)
        context.constant = tuple([i for i, x in enumerate(y) if any(x is one for one in context.constant)])
        self.made = [(x.shape, x.dtype) for x in y]
        # views, so that a result that is an argument shares its count of changes
        return tuple([x.array.view() for x in y]) if len(y) > 1 else y[0].array.view()

    def backward(self, *dy: Any) -> Any:
        context = self.context
        context.saved_tensors = tuple([x if x is None else Tensor(x) for x in self.statistics])
        absent = [Tensor(self.xp.zeros(*made)) if context.materializes else None for made in self.made]
        with no_grad():
            found = self.function.backward(context, *[a if g is None else Tensor(g) for g, a in zip(dy, absent)])
        context.saved_tensors = ()
        found = found if isinstance(found, tuple) else (found,)
        found = [g for g, a in zip(found, self.given) if a is _Call]
        self.targets = tuple([None if g is None else t for g, t in zip(found, self.targets)])
        return tuple([g if g is None or t is None else g.to(t.dtype).array for g, t in zip(found, self.targets)])
