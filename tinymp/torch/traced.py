"""Forwards that torch.fx records, run by tinymp's functions and methods of the same names."""

from __future__ import annotations

import builtins
import inspect
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from .. import ops
from ..dtypes import as_dtype
from ..events import type_name
from ..nn import Module, Parameter
from ..tensor import Tensor
from .states import array

NO_EFFECT = {"_stacklevel"}  # arguments of functions
UPDATES = "iadd isub imul itruediv ipow imod ifloordiv iand ior imatmul"
PYTHON = (operator, math, builtins)
_INPUT = "placeholder"  # torch.fx's name for an argument of a forward
_EITHER, _NONE = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty


class Result(NamedTuple):
    """The result of an earlier step of a traced forward."""

    name: str


class Traced(Module):
    """A module with a forward of its own, as the steps that torch.fx recorded."""

    def __init__(self, module: Any, path: str, children: dict[str, Module | None]) -> None:
        super().__init__()
        self.traced = type(module).__name__
        for name, child in children.items():
            self.add_module(name, child)
        own = vars(module)
        for name, p in own["_parameters"].items():
            self.register_parameter(name, None if p is None else Parameter(array(p)))
        for name, b in own["_buffers"].items():
            self.register_buffer(name, constant(b), name not in own["_non_persistent_buffers_set"])
        mode = module.training
        try:
            self.steps = {}
            for training in (True, False):
                module.training = training
                self.steps[training] = self._recorded(module, path)
        finally:
            module.training = mode

    def _recorded(self, module: Any, path: str) -> list[tuple]:
        from torch.fx import Proxy, Tracer

        updates = {f"__{name}__": _updating(getattr(operator, name)) for name in UPDATES.split()}
        kind = type("Updated", (Proxy,), updates)

        class Parts(Tracer):
            proxy_buffer_attributes = True

            def proxy(self, node: Any) -> Any:
                return kind(node, self)

            def is_leaf_module(self, m: Any, module_qualified_name: str) -> bool:
                return True  # each part is converted by itself

        before, named = {*vars(module)}, dict(module.named_parameters(remove_duplicate=False))
        named |= dict(module.named_buffers(remove_duplicate=False))
        try:
            record = Parts().trace
            graph = record(module)
        except Exception as error:  # whatever its forward raises when it is given what torch.fx has for a tensor
            raise cannot(module, path, f"torch.fx cannot trace its forward: {error}") from error
        steps = []
        for node in graph.nodes:
            target: Any = node.target
            if node.op == "call_function":
                target = _function(target, module, path)
            elif node.op == "call_method" and not hasattr(Tensor, target):
                raise cannot(module, path, f"Tensor has no method `{target}`")
            elif node.op == "get_attr" and target not in named:
                found, target = part(module, target), target.replace(".", "_")
                self.register_buffer(target, constant(found), persistent=False)
            kwargs = {name: x for name, x in node.kwargs.items() if name not in NO_EFFECT}
            steps.append((node.op, node.name, target, constant(node.args), constant(kwargs)))
        for name in {*vars(module)} - before:  # constants, which torch.fx leaves there
            delattr(module, name)
        return steps

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        steps = self.steps[self.training]
        inputs = [inspect.Parameter(x[2], _EITHER, default=x[3][0] if x[3] else _NONE) for x in steps if x[0] == _INPUT]
        given = inspect.Signature(inputs).bind(*args, **kwargs)
        given.apply_defaults()
        found: dict[str, Any] = {}
        for op, name, target, its_args, its_kwargs in steps:
            if op == _INPUT:
                found[name] = given.arguments[target]
                continue
            own_args, own_kwargs = _filled(its_args, found), _filled(its_kwargs, found)
            if op == "output":
                return own_args[0]
            if op == "get_attr":
                found[name] = part(self, target)
            elif op == "call_method":
                found[name] = getattr(own_args[0], target)(*own_args[1:], **own_kwargs)
            else:
                found[name] = (part(self, target) if op == "call_module" else target)(*own_args, **own_kwargs)
        raise AssertionError("torch.fx ends each graph with its output")

    def extra_repr(self) -> str:
        return self.traced


def _updating(function: Any) -> Any:
    """A function that records `x += y` as the change of x, of which torch.fx makes x + y, a new tensor."""
    return lambda x, y: x.tracer.create_proxy("call_function", function, (x, y), {})


def _function(target: Any, module: Any, path: str) -> Any:
    """tinymp's function of the same name, or Python's own."""
    name = getattr(target, "__name__", str(target))
    if any(getattr(one, name, None) is target for one in PYTHON):
        return target
    for place in (ops, Tensor):
        for known in (name, name.removeprefix("_")):
            if not known.startswith("_") and hasattr(place, known):
                return getattr(place, known)
    raise cannot(module, path, f"tinymp has no function `{name}`")


def constant(x: Any) -> Any:
    """A constant, or what torch.fx recorded as an argument, without anything of PyTorch's."""
    if type(x).__module__ == "torch.fx.node":
        return Result(x.name)
    if hasattr(x, "detach"):
        return Tensor(array(x))
    kind = f"{type(x).__module__}.{type(x).__name__}"
    if kind == "torch.dtype":
        return as_dtype(x)
    return ("cpu" if x.type == "cpu" else "gpu") if kind == "torch.device" else _mapped(constant, x)


def _filled(x: Any, found: dict[str, Any]) -> Any:
    return found[x.name] if isinstance(x, Result) else _mapped(lambda one: _filled(one, found), x)


def _mapped(f: Callable, x: Any) -> Any:
    """x, or what f makes of the items of a list, tuple, dict or slice."""
    if isinstance(x, (list, tuple)):
        return (tuple if isinstance(x, tuple) else list)(map(f, x))
    if isinstance(x, dict):
        return {key: f(one) for key, one in x.items()}
    return slice(f(x.start), f(x.stop), f(x.step)) if isinstance(x, slice) else x


def part(module: Any, path: str) -> Any:
    """The submodule at this path; the module itself for an empty one."""
    return operator.attrgetter(path)(module) if path else module


def cannot(module: Any, path: str, why: str) -> ValueError:
    return ValueError(
        f"from_torch: cannot convert {f'`{path}`' if path else 'the module'} ({type_name(module)}): {why}"
    )
