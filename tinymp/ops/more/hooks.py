"""Hooks of tensors: functions that are given a gradient on its way, and may answer with another."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import count
from math import inf
from typing import Any
from weakref import finalize, ref

from ...arguments import function
from ...autograd import Array, Backward, no_grad
from ...events import backward as backward_run
from ...gradients import Target, added, joined
from ...tensor import Tensor

_keys = count()
_leaves: dict[int, dict] = {}  # by the id of a leaf, its hooks


class RemovableHandle:
    """The handle of a registered hook: `remove()` ends the hook, and so does the end of a `with` block."""

    def __init__(self, hooks: dict[int, Any], hook: Any, prepend: bool) -> None:
        self._hooks, self._key = hooks, next(_keys)
        hooks[self._key] = hook
        for other in list(hooks)[:-1] if prepend else ():
            hooks[other] = hooks.pop(other)  # behind it

    def remove(self) -> None:
        """End the hook. Removing it twice does nothing."""
        self._hooks.pop(self._key, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *error: Any) -> None:
        self.remove()


def register_hook(self: Tensor, hook: Callable) -> RemovableHandle:
    """Call hook(gradient) once in each backward pass that reaches this tensor, with the sum over all its uses, also
    those before this call. What it returns, unless None, takes the gradient's place: of its shape, else ValueError.

    The gradient has the dtype of the tensor, and still its loss scale. RuntimeError for a tensor without a gradient.
    """
    return RemovableHandle(hooks_of("register_hook", self), function("register_hook", "hook", hook), False)


def retain_grad(self: Tensor) -> None:
    """Have backward passes add the gradient to the `grad` of this result of an op, as of a leaf."""
    hooks, me = hooks_of("retain_grad", self), ref(self)

    def keep(g: Tensor) -> None:
        if (x := me()) is not None:
            x.grad_scale = backward_run.get().scale
            x.grad_array = g.array if x.grad_array is None else added(x.grad_array, g.array)

    if not self.is_leaf:
        hooks[inf] = keep  # after all others


def hooks_of(how: str, x: Tensor) -> dict:
    """The hooks of a tensor; its gradient passes them from here on: where the op that made it runs backward, or where
    the pass adds to the `grad` of a leaf. The class of a pass is changed when the first leaf has hooks, so that nobody
    else pays for them.
    """
    if not x.requires_grad:
        raise RuntimeError(f"{how}: this tensor does not require a gradient: no input does or no_grad cut it off")
    if (op := x.grad_fn) is None:
        if "hears" not in vars(Backward.deposit):
            Backward.deposit = _hearing(Backward.deposit)  # type: ignore[method-assign]
        if id(x) not in _leaves:
            finalize(x, _leaves.pop, id(x), None)
        return _leaves.setdefault(id(x), {})
    if (heard := vars(op).get("heard")) is None:
        me: Any = ref(op)  # for it holds the function
        op.heard = heard = {}  # type: ignore[attr-defined]

        def run_backward(dys: list, retain: bool) -> tuple:
            own = me()
            for i, hooks in own.heard.items():
                if hooks and dys[i] is not None:
                    dys[i] = _passed(joined(dys[i], Target((), own.dtype)), hooks)
            return type(own).run_backward(own, dys, retain)

        op.run_backward = run_backward  # type: ignore[method-assign]
    return heard.setdefault(x.output_nr, {})


def _hearing(deposit: Callable) -> Callable:
    @wraps(deposit)
    def method(self: Backward) -> None:
        for slot in self.leaves.values():
            if hooks := _leaves.get(id(slot[0])):
                g = slot[1].dense() if hasattr(slot[1], "dense") else joined(slot[1], slot[0].array)
                slot[1] = _passed(g, hooks)
        deposit(self)

    method.hears = True  # type: ignore[attr-defined]
    return method


def _passed(g: Array, hooks: dict) -> Array:
    """The gradient after all hooks, which get a copy and may keep it: others may read the same memory."""
    given = Tensor(g.copy())
    for key in sorted(hooks):
        with no_grad():
            found = hooks[key](given)
        given = given if found is None else found.to(g.dtype)
        if given.shape != g.shape:
            raise ValueError(f"register_hook: expected a gradient of shape {g.shape} from the hook, got {given.shape}")
    return given.array.copy()
