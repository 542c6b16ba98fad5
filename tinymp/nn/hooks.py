"""Hooks: functions that a module calls before and after its forward, and when its gradients have been computed.

Only modules that have hooks, or are kept in another policy (`Policy.cast`), run this code; calling any other module is
calling its forward.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from ..arguments import rename
from ..backend.extras import held
from ..grad_mode import is_grad_enabled
from ..precision import Policy

if TYPE_CHECKING:
    from .module import Module

_keys = count()


class RemovableHandle:
    """What registering a hook returns: `remove()` ends the hook, and so does the end of a `with` block."""

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
        return held("nn.hooks.call_kept")(self, module, args, kwargs)

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
        watch = None
        if self.backward and is_grad_enabled():
            watch = held("nn.hooks.WatchedBackward")(module, tuple(self.backward.values()))
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
    home = str(type(module).forward.__module__)  # None where `exec` made the class
    if home.startswith("tinymp.") and not home.endswith(".containers"):
        rename(error, type(module).__name__)
