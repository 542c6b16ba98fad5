"""Hooks: functions that a module calls before and after its forward, and when its gradients have been computed.

`Module.__call__` calls the `Hooks` of a module that has any, or is kept in another policy (`Policy.cast`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ...arguments import flag, function
from ...autograd import Array, Op, is_grad_enabled
from ...backend.extras import held
from ...events import type_name
from ...ops.more.hooks import RemovableHandle
from ...precision import MOVEMENT, Policy
from ...tensor import Tensor
from ..module import Module


class Kept(NamedTuple):
    """own: the policy of a module that is kept in another one; around: that of the model.

    It is called from the model, or from another kept module.
    """

    own: Policy
    around: Policy


class Hooks:
    """The hooks of one module, in the order in which they are called, and whether it is kept in another policy."""

    def __init__(self) -> None:
        self.kept: Kept | None = None
        self.pre: dict[int, tuple[Callable, bool]] = {}  # (hook, whether it is given keyword arguments, too)
        self.post: dict[int, tuple[Callable, bool]] = {}
        self.backward: dict[int, Callable] = {}

    def __bool__(self) -> bool:
        return bool(self.kept or self.pre or self.post or self.backward)

    def call(self, module: Module, args: tuple, kwargs: dict[str, Any]) -> Any:
        """module.forward(*args, **kwargs) with the hooks around it, all of it in the policy in which it is kept."""
        if self.kept is None:
            return self.run(module, args, kwargs)
        return held("nn.module.call_kept")(self, module, args, kwargs)

    def run(self, module: Module, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The same in the policy that is in use."""
        for hook, with_kwargs in tuple(self.pre.values()):
            if with_kwargs:
                found = hook(module, args, kwargs)
                if found is not None and not (isinstance(found, tuple) and len(found) == 2):
                    raise TypeError(
                        f"{type(module).__name__}: expected a forward_pre_hook to return None or (args, kwargs)"
                    )
                args, kwargs = (args, kwargs) if found is None else found
            elif (found := hook(module, args)) is not None:
                args = found if isinstance(found, tuple) else (found,)
        watch = WatchedBackward(module, tuple(self.backward.values())) if is_grad_enabled() and self.backward else None
        args = args if watch is None else watch.inputs(args)
        output = module.forward(*args, **kwargs)
        for hook, with_kwargs in tuple(self.post.values()):
            found = hook(module, args, kwargs, output) if with_kwargs else hook(module, args, output)
            output = output if found is None else found
        return output if watch is None else watch.outputs(output)


def hooks_of(module: Module) -> Hooks:
    """Its hooks, of which there may be none."""
    return vars(module).setdefault("_hooks", Hooks())


def register_forward_pre_hook(
    self: Module, hook: Callable, *, prepend: bool = False, with_kwargs: bool = False
) -> RemovableHandle:
    """Call hook(module, args) before each forward; what it returns, unless None, replaces the arguments.

    with_kwargs: hook(module, args, kwargs), which returns None or (args, kwargs). prepend: before the other hooks.
    """
    return _hooked(self, "register_forward_pre_hook", "pre", hook, prepend, with_kwargs)


def register_forward_hook(
    self: Module, hook: Callable, *, prepend: bool = False, with_kwargs: bool = False
) -> RemovableHandle:
    """Call hook(module, args, output) after each forward; what it returns, unless None, replaces the output.

    with_kwargs: hook(module, args, kwargs, output). prepend: before the other hooks.
    """
    return _hooked(self, "register_forward_hook", "post", hook, prepend, with_kwargs)


def register_full_backward_hook(self: Module, hook: Callable, prepend: bool = False) -> RemovableHandle:
    """Call hook(module, grad_input, grad_output) when backward has reached the module's inputs.

    Both are tuples of Tensors in storage dtype, still with the loss scale, None where no gradient is wanted: of
    forward's positional arguments, and of its output or the items of it. What the hook returns, unless None, replaces
    grad_input: of its shapes and dtypes, else ValueError. Inputs that require gradients must have one dtype, and so
    must outputs.
    """
    return _hooked(self, "register_full_backward_hook", "backward", hook, prepend)


def _hooked(
    module: Module, how: str, when: str, hook: Any, prepend: bool, with_kwargs: bool | None = None
) -> RemovableHandle:
    prepend, entry = flag(how, "prepend", prepend), function(how, "hook", hook)
    entry = entry if with_kwargs is None else (entry, flag(how, "with_kwargs", with_kwargs))
    return RemovableHandle(getattr(hooks_of(module), when), entry, prepend)


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
