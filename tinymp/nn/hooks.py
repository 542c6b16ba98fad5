"""Hooks: functions that a module calls before and after its forward, and when its gradients have been computed.

Only modules that have hooks, or are kept in another policy (`Policy.cast`), run this code; calling any other module is
calling its forward.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from ..arguments import rename
from ..autograd import Array, Op
from ..events import type_name
from ..grad_mode import is_grad_enabled
from ..precision import MOVEMENT, Policy
from ..tensor import Tensor

if TYPE_CHECKING:
    from .module import Module

_keys = count()


class RemovableHandle:
    """What registering a hook returns: `remove()` ends the hook, and so does the end of a `with` block."""

    def __init__(self, hooks: dict[int, Any], hook: Any, prepend: bool) -> None:
        self._hooks, self._key = hooks, next(_keys)
        others = dict(hooks) if prepend else {}
        if prepend:
            hooks.clear()
        hooks[self._key] = hook
        hooks.update(others)

    def remove(self) -> None:
        """End the hook. Removing it twice does nothing."""
        self._hooks.pop(self._key, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *error: Any) -> None:
        self.remove()


class Kept(NamedTuple):
    """Of a module that is kept in another policy: its own, and that of the model, from which it is called unless it is
    called from another kept module.
    """

    own: Policy
    around: Policy


class Hooks:
    """The hooks of one module, in the order in which they are called, and whether it is kept in another policy."""

    kept: Kept | None = None

    def __init__(self) -> None:
        self.pre: dict[int, tuple[Callable, bool]] = {}  # (hook, whether it is given keyword arguments, too)
        self.post: dict[int, tuple[Callable, bool]] = {}
        self.backward: dict[int, Callable] = {}

    def __bool__(self) -> bool:
        return bool(self.kept or self.pre or self.post or self.backward)

    def call(self, module: Module, args: tuple, kwargs: dict[str, Any]) -> Any:
        """module.forward(*args, **kwargs) with the hooks around it, all of it in the policy in which it is kept."""
        if self.kept is None:
            return self.run(module, args, kwargs)
        return sys.modules["tinymp.nn"].call_kept(self, module, args, kwargs)

    def run(self, module: Module, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The same in the policy that is in use."""
        for hook, with_kwargs in tuple(self.pre.values()):
            if with_kwargs:
                found = hook(module, args, kwargs)
                if found is not None and not (isinstance(found, tuple) and len(found) == 2):
                    raise TypeError(f"{_name(module)}: expected a forward_pre_hook to return None or (args, kwargs)")
                args, kwargs = (args, kwargs) if found is None else found
            elif (found := hook(module, args)) is not None:
                args = found if isinstance(found, tuple) else (found,)
        watch = _Backward(module, tuple(self.backward.values())) if self.backward and is_grad_enabled() else None
        args = args if watch is None else watch.inputs(args)
        try:
            output = module.forward(*args, **kwargs)
        except Exception as error:
            name_layer(error, module)
            raise
        for hook, with_kwargs in tuple(self.post.values()):
            found = hook(module, args, kwargs, output) if with_kwargs else hook(module, args, output)
            output = output if found is None else found
        return output if watch is None else watch.outputs(output)


def name_layer(error: Exception, module: Module) -> None:
    """Have an error of a layer's forward begin with the layer's name. A class of the user's leaves it as it is, and so
    does a container: the layer that they called has been named.
    """
    home = type(module).forward.__module__
    if home.startswith("tinymp.") and not home.endswith(".containers"):
        rename(error, type(module).__name__)


class BackwardHook(Op):
    """ys = the xs;  dxs = the dys, or what a hook returns in their place."""

    kind = MOVEMENT

    def forward(self, *x: Array, shown: Callable) -> tuple:
        self.shown = shown
        return tuple([a[...] for a in x])

    def backward(self, *dy: Array) -> tuple:
        dys = [g if g is not None or not t else self.xp.zeros(t.shape, t.dtype) for g, t in zip(dy, self.targets)]
        return tuple(self.shown(dys) if self.edges else dys)  # an audit's second run is not part of a graph


class _Backward:
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
                    f"{_name(self.module)}: expected a full_backward_hook to return None or gradients like its "
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


def _name(module: Module) -> str:
    return type(module).__name__
