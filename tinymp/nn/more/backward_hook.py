"""Hooks that a module calls when backward has computed the gradients of its inputs (`register_full_backward_hook`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...autograd import Array, Op
from ...events import type_name
from ...precision import MOVEMENT
from ...tensor import Tensor
from ..module import Module


class BackwardHook(Op):
    """ys = the xs;  dxs = the dys, or what a hook returns in their place."""

    kind = MOVEMENT

    def forward(self, *x: Array, shown: Callable) -> tuple:
        self.shown = shown
        return tuple([a[...] for a in x])

    def backward(self, *dy: Array) -> tuple:
        dys = [g if g is not None or not t else self.xp.zeros(t.shape, t.dtype) for g, t in zip(dy, self.targets)]
        return tuple(self.shown(dys) if self.edges else dys)  # an audit's second run is not part of a graph


class WatchedBackward:
    """One forward of a module with backward hooks: its inputs and outputs pass a `BackwardHook` each."""

    def __init__(self, module: Module, hooks: tuple[Callable, ...]) -> None:
        self.module, self.hooks = module, hooks
        self.places: list[int] = []  # of the inputs that require a gradient
        self.n = 0  # inputs
        self.grad_output: tuple = ()

    def inputs(self, args: tuple) -> tuple:
        self.n, self.places = len(args), _tracked(args)
        return _through(args, self.places, self._at_inputs)

    def outputs(self, output: Any) -> Any:
        items = tuple(output) if isinstance(output, (tuple, list)) else (output,)
        places = _tracked(items)

        def at_outputs(dys: list) -> list:
            self.grad_output = _spread(dys, places, len(items))
            if not self.places:  # no input needs a gradient
                self._run((None,) * self.n)
            return dys

        items = _through(items, places, at_outputs)
        if not isinstance(output, (tuple, list)):
            return items[0]
        return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)

    def _at_inputs(self, dys: list) -> list:
        grads = self._run(_spread(dys, self.places, self.n))
        return [grads[i].array for i in self.places]

    def _run(self, grad_input: tuple) -> tuple:
        for hook in self.hooks:
            found = hook(self.module, grad_input, self.grad_output)
            if found is None:
                continue
            new = found if isinstance(found, tuple) else (found,)
            if len(new) != len(grad_input) or any(_like(a) != _like(b) for a, b in zip(new, grad_input)):
                raise ValueError(
                    f"{type(self.module).__name__}: expected a full_backward_hook to return None or gradients like its "
                    f"grad_input, {', '.join(map(_like, grad_input))}, got {', '.join(map(_like, new))}"
                )
            grad_input = new
        return grad_input


def _tracked(items: tuple) -> list[int]:
    return [i for i, x in enumerate(items) if isinstance(x, Tensor) and x.requires_grad]


def _through(items: tuple, places: list[int], shown: Callable) -> tuple:
    """items, those at `places` through one BackwardHook."""
    if not places:
        return items
    new = dict(zip(places, BackwardHook.apply(*[items[i] for i in places], shown=shown)))
    return tuple([new.get(i, x) for i, x in enumerate(items)])


def _spread(dys: list, places: list[int], n: int) -> tuple:
    """Gradients as Tensors, None where there is none."""
    found = dict(zip(places, dys))
    return tuple([Tensor(found[i]) if i in found else None for i in range(n)])


def _like(x: Any) -> str:
    return f"{x.dtype} {x.shape}" if isinstance(x, Tensor) else type_name(x)
