"""Module: parameters, buffers and sub-modules under names, in the order in which they were assigned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextvars import copy_context
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from .. import backend
from ..arguments import flag, function, named
from ..backend.extras import held
from ..dtypes import FLOATING, fits
from ..events import in_pass
from ..parameter import Parameter, replace, storage_of
from ..precision import Policy, to_dtype
from ..tensor import Tensor
from .hooks import Hooks, Kept, RemovableHandle, name_layer
from .loading import exact, is_rounded, loadable, loadable_copy, overwrite

if TYPE_CHECKING:
    from typing_extensions import Self

_COPY = ".copy"  # after a parameter's name in a state_dict: its working copy


@lru_cache(256)  # hasattr asks often
def _similar(name: str, names: tuple[str, ...]) -> list[str]:
    from difflib import get_close_matches

    return get_close_matches(name, names)


class IncompatibleKeys(NamedTuple):
    """What `load_state_dict(strict=False)` left alone."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Module:
    """A layer or a model: subclass it, call `super().__init__()`, assign parts to attributes, write `forward`.

    A Parameter or a Module becomes part of it by assignment; a buffer (state that no gradient trains) by
    `register_buffer`. A plain Tensor, or a list of modules, is an ordinary attribute: it is not saved, cast or
    trained (see ModuleList, ModuleDict). `m(x)` is `m.forward(x)` with the registered hooks around it.

    training  whether layers such as Dropout and BatchNorm behave as in training; set by `train` and `eval`
    """

    normalisation: ClassVar[bool] = False  # whether its floating buffers take a policy's `norm` (NVG section 5.4.2)
    training: bool
    _persistent: dict[str, bool]  # name of each buffer -> whether it is part of the state_dict

    def __init__(self) -> None:
        vars(self).update(training=True, _persistent={})

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not in_pass.get():  # the outermost call, in which weights are read as their copies
            context = copy_context()
            context.run(in_pass.set, True)
            return context.run(self, *args, **kwargs)
        hooks = vars(self).get("_hooks")
        try:
            return hooks.call(self, args, kwargs) if hooks else self.forward(*args, **kwargs)
        except Exception as error:
            if not hooks:
                name_layer(error, self)
            raise

    # ---- hooks

    def register_forward_pre_hook(
        self, hook: Callable, *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call hook(module, args) before each forward; what it returns, unless None, replaces the arguments.

        with_kwargs: hook(module, args, kwargs), which returns None or (args, kwargs). prepend: before the other hooks.
        """
        return self._hooked("register_forward_pre_hook", "pre", hook, prepend, with_kwargs)

    def register_forward_hook(
        self, hook: Callable, *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call hook(module, args, output) after each forward; what it returns, unless None, replaces the output.

        with_kwargs: hook(module, args, kwargs, output). prepend: before the other hooks.
        """
        return self._hooked("register_forward_hook", "post", hook, prepend, with_kwargs)

    def register_full_backward_hook(self, hook: Callable, prepend: bool = False) -> RemovableHandle:
        """Call hook(module, grad_input, grad_output) when backward has reached the module's inputs.

        Both are tuples of Tensors in storage dtype, None where no gradient is wanted: of the positional arguments of
        forward, and of its output or the items of its output. They still carry the loss scale. What the hook returns,
        unless None, replaces grad_input: of its shapes and dtypes, else ValueError. Inputs that require gradients must
        have one dtype, and so must outputs.
        """
        return self._hooked("register_full_backward_hook", "backward", hook, prepend)

    def _hooked(
        self, how: str, when: str, hook: Any, prepend: bool, with_kwargs: bool | None = None
    ) -> RemovableHandle:
        hooks, prepend = vars(self).setdefault("_hooks", Hooks()), flag(how, "prepend", prepend)
        entry = function(how, "hook", hook)
        entry = entry if with_kwargs is None else (entry, flag(how, "with_kwargs", with_kwargs))
        return RemovableHandle(getattr(hooks, when), entry, prepend)

    # ---- attributes

    def __setattr__(self, name: str, value: Any) -> None:
        owner, old = type(self).__name__, vars(self).get(name)
        if isinstance(value, (Parameter, Module)):
            self._check_name(name)
            if isinstance(value, Module) and any(m is self for m in value.modules()):
                raise ValueError(f"{owner}.{name}: a module cannot be a part of itself")
        for part in (Parameter, Module):
            if isinstance(old, part) and not isinstance(value, (part, type(None))):
                raise TypeError(
                    f"{owner}.{name}: expected a {part.__name__} or None in place of the {part.__name__} there, got "
                    f"{type(value).__name__}"
                    + (f"; for new values use .{name}.copy_(...)" if part is Parameter else "")
                )
        if name in vars(self).get("_persistent", ()):
            self._check_buffer(name, value)
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:  # only called for what is not there
        owner = type(self).__name__
        if "_persistent" not in vars(self):
            raise AttributeError(f"{owner} has no attribute '{name}' (yet): super().__init__() was not called")
        near = _similar(name, tuple(dir(self)))
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise AttributeError(f"{owner} has no attribute '{name}'{hint}")

    def _check_name(self, name: str) -> None:
        owner = type(self).__name__
        if "_persistent" not in vars(self):
            raise AttributeError(f"{owner}.{name}: call super().__init__() before assigning parameters and modules")
        if not isinstance(name, str) or not name or "." in name:
            raise ValueError(f"{owner}: expected a name that is a non-empty string without dots, got {name!r}")
        if hasattr(Module, name):
            raise ValueError(f"{owner}.{name}: this name would hide Module.{name}; choose another")

    def _check_buffer(self, name: str, value: Any) -> None:
        if value is not None and (not isinstance(value, Tensor) or isinstance(value, Parameter)):
            raise TypeError(
                f"{type(self).__name__}.{name}: expected a Tensor or None for a buffer, got {type(value).__name__}"
            )

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter; the same as `self.name = param`, for names known only at run time."""
        self._register(name, param, Parameter)

    def add_module(self, name: str, module: Module | None) -> None:
        """Add a sub-module; the same as `self.name = module`, for names known only at run time."""
        self._register(name, module, Module)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a Tensor that is state but not trained; `persistent`: whether it is part of the state_dict.

        TypeError for anything but a plain Tensor or None; ValueError for a name that is taken.
        """
        self._check_name(name)
        flag("register_buffer", "persistent", persistent)
        if name in vars(self) and name not in self._persistent:
            raise ValueError(f"{type(self).__name__}.register_buffer: there is an attribute '{name}' already")
        self._check_buffer(name, tensor)
        self._persistent[name] = persistent
        setattr(self, name, tensor)

    def _register(self, name: str, part: Any, kind: type) -> None:
        self._check_name(name)
        if not isinstance(part, (kind, type(None))):
            raise TypeError(
                f"{type(self).__name__}.{name}: expected a {kind.__name__} or None, got {type(part).__name__}"
            )
        setattr(self, name, part)

    # ---- what it is made of

    def _own(self, kind: type[Any]) -> dict[str, Any]:
        return {name: x for name, x in vars(self).items() if isinstance(x, kind)}

    def _own_buffers(self) -> dict[str, Tensor]:
        return {name: vars(self)[name] for name in self._persistent if isinstance(vars(self).get(name), Tensor)}

    def _named(self, own: Callable[[Module], dict], prefix: str, recurse: bool, remove_duplicate: bool) -> Iterator:
        seen: set[int] = set()
        modules = self.named_modules(prefix, remove_duplicate) if recurse else iter([(prefix, self)])
        for path, module in modules:
            for name, x in own(module).items():
                if not (remove_duplicate and id(x) in seen):
                    seen.add(id(x))
                    yield (f"{path}.{name}" if path else name), x

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """(name, parameter) in a fixed order: its own as assigned, then those of its sub-modules; shared ones once.

        Also gives each parameter its name, for messages; a longer name, from a larger model, stays.
        """
        for name, p in self._named(lambda m: m._own(Parameter), prefix, recurse, remove_duplicate):
            if not f"{p.name}".endswith(f".{name}"):
                p.name = name
            yield name, p

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Its parameters, in the order of `named_parameters`."""
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """(name, buffer), persistent or not; shared ones once."""
        return self._named(Module._own_buffers, prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Its buffers, in the order of `named_buffers`."""
        return (b for _, b in self.named_buffers(recurse=recurse))

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """(name, module) for each direct sub-module; shared ones once."""
        return self._named(lambda m: m._own(Module), "", False, True)

    def children(self) -> Iterator[Module]:
        """Its direct sub-modules."""
        return (m for _, m in self.named_children())

    def named_modules(self, prefix: str = "", remove_duplicate: bool = True) -> Iterator[tuple[str, Module]]:
        """(path, module) for itself (path "") and every module in it, depth first; shared ones once."""
        waiting, seen = [(prefix, self)], set()
        while waiting:
            path, module = waiting.pop()
            if not (remove_duplicate and id(module) in seen):
                seen.add(id(module))
                yield path, module
                parts = module._own(Module).items()
                waiting += [(f"{path}.{name}" if path else name, part) for name, part in reversed(parts)]

    def modules(self) -> Iterator[Module]:
        """Itself and every module in it."""
        return (m for _, m in self.named_modules())

    # ---- changing all of it

    def train(self, mode: bool = True) -> Self:
        """Set `training` in every module. TypeError unless mode is a bool."""
        mode = flag("train", "mode", mode)
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """`train(False)`."""
        return self.train(False)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters (`grad` becomes None)."""
        if set_to_none is not True:
            raise TypeError(f"zero_grad: a gradient is forgotten, not zeroed; got set_to_none={set_to_none!r}")
        for p in self.parameters():
            p.zero_grad()

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Call fn(module) on every module in it, parts before wholes, itself last."""
        function("apply", "fn", fn)
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set `requires_grad` of all parameters (False freezes them)."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    @named
    def to(self, device: str) -> Self:
        """Move it to a device ("cpu", "gpu"): parameters with their masters and gradients, and buffers, in place.

        An optimizer follows with its state at its next step. TypeError for a dtype; ValueError for an unknown device;
        RuntimeError for a GPU that does not work, which says why. If it fails or is interrupted, nothing has moved.
        """
        if not isinstance(device, str):
            raise TypeError(f"to: expected the name of a device, got {device!r}; for a dtype use policy.cast(model)")
        there = backend.get(device)
        moved: list[tuple[Tensor, dict]] = [
            (p, p.moved_to(device)) for p in self.parameters() if backend.of(p.array) is not there
        ]
        moved += [(b, {"array": there.asarray(b.array)}) for b in self.buffers() if backend.of(b.array) is not there]
        replace(moved)
        return self

    def cast_storage(self, policy: Policy, keep: Mapping[str, Policy] | None = None) -> Self:
        """Take the policy's storage, but for modules to keep (`Policy.cast`). ValueError for values that do not fit.

        All or nothing: if it fails or is interrupted, every parameter and buffer is what it was.
        """
        kept = {} if keep is None else held("nn.module.policies_kept")(self, policy, keep)
        targets: list[tuple[str, Tensor, np.dtype]] = []
        for name, p in self.named_parameters():
            targets.append((name, p, storage_of(kept.get(id(p), policy), p.normalisation)))
        for path, module in self.named_modules():
            own = kept.get(id(module), policy)
            if own.arguments is None:  # PyTorch's autocast leaves buffers as they are
                floating = storage_of(own, module.normalisation)
                for name, b in module.named_buffers(path, recurse=False):
                    targets.append((name, b, floating if b.dtype in FLOATING else b.dtype))
        for name, x, dtype in targets:
            if not fits(exact(x), dtype):
                raise ValueError(f"{policy.name}.cast: '{name}' has values beyond the range of {dtype}")
        changes: list[tuple[Any, dict]] = [
            (x, x.cast_to(kept.get(id(x), policy)) if isinstance(x, Parameter) else {"array": to_dtype(x.array, dtype)})
            for _, x, dtype in targets
        ]
        for module in self.modules():
            if id(module) in kept:
                changes.append((vars(module).setdefault("_hooks", Hooks()), {"kept": Kept(kept[id(module)], policy)}))
            elif "_hooks" in vars(module):
                changes.append((vars(module)["_hooks"], {"kept": None}))
        replace(changes)
        return self

    # ---- saving and loading

    def _state(self) -> dict[str, Tensor]:
        """Every parameter and persistent buffer under every name that it has."""
        state: dict[str, Tensor] = {}
        for path, module in self.named_modules(remove_duplicate=False):
            parts = module._own(Parameter) | {n: b for n, b in module._own_buffers().items() if module._persistent[n]}
            state.update({f"{path}.{name}" if path else name: x for name, x in parts.items()})
        return state

    def state_dict(self) -> dict[str, np.ndarray]:
        """Name -> NumPy array, in order: a copy of each parameter's exact FP32 master and of each persistent buffer.

        PyTorch's names and layouts: `{k: torch.tensor(v) for k, v in ...}` loads into the same PyTorch model. Only
        where a working copy is not the FP16 number nearest to its master (after stochastic rounding) is it added after
        the master, as "name.copy", so that training goes on bit for bit; PyTorch then needs strict=False.
        """
        state = {}
        for name, x in self._state().items():
            state[name] = np.array(backend.to_cpu(exact(x)))
            if isinstance(x, Parameter) and not is_rounded(x):
                state[name + _COPY] = np.array(backend.to_cpu(x.array))
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> IncompatibleKeys:
        """Overwrite masters (exactly), working copies (rounded once, to nearest, unless they are given) and buffers.

        A load that fails or is interrupted changes nothing.

        state_dict: name -> NumPy array, Tensor or anything else with `__array__`, such as a CPU tensor of PyTorch.
        strict: whether missing and unexpected names are errors; without it they are returned.

        Raises TypeError for entries that are not finite real numbers (a buffer may be infinite where it is now), and
        ValueError that lists all missing, unexpected and wrongly shaped entries and those that do not fit FP16.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"load_state_dict: expected a mapping of names to arrays, got {type(state_dict).__name__}")
        flag("load_state_dict", "strict", strict)
        own, new, rounded, bad, wrong = self._state(), {}, {}, [], []
        missing = [name for name in own if name not in state_dict]
        copies = {name + _COPY for name, x in own.items() if isinstance(x, Parameter) and name in state_dict}
        unexpected = [name for name in state_dict if name not in own and name not in copies]
        for name in [name for name in own if name in state_dict]:
            entry = name
            try:
                new[name] = loadable(own[name], state_dict[name])
                entry = name + _COPY
                rounded[name] = loadable_copy(own[name], state_dict.get(entry), new[name])
            except TypeError as error:
                bad.append(f"'{entry}': {error}")
            except ValueError as error:
                wrong.append(f"'{entry}': {error}")
        if bad:
            raise TypeError(f"load_state_dict: {'; '.join(sorted(bad))}")
        if strict:
            wrong += [f"missing: {', '.join(missing)}"] * bool(missing)
            wrong += [f"unexpected: {', '.join(map(str, unexpected))}"] * bool(unexpected)
        if wrong:
            raise ValueError(f"load_state_dict: this does not fit {type(self).__name__}:\n  " + "\n  ".join(wrong))
        overwrite([(own[name], value, rounded[name]) for name, value in new.items()])
        return IncompatibleKeys(missing, unexpected)

    # ---- what it looks like

    def extra_repr(self) -> str:
        """The text between the parentheses in its line of `repr`."""
        return ""

    def _tree(self) -> str:
        weights = ", ".join(f"{name} {p.shape} {p.dtype}" for name, p in self._own(Parameter).items())
        head, lines = f"{type(self).__name__}({self.extra_repr()}", [")" + (f"  {weights}" if weights else "")]
        children = self._own(Module).items()
        if children:
            lines = ["", *[f"  ({name}): {m._tree()}".replace("\n", "\n  ") for name, m in children], *lines]
        return head + "\n".join(lines)

    def __repr__(self) -> str:
        parameters = list(self.parameters())
        if not parameters:
            return self._tree()
        n, data, master = (sum(x) for x in zip(*[(p.array.size, p.nbytes, p.master_nbytes) for p in parameters]))
        return f"{self._tree()}\n{n:,} parameters: {data:,} bytes of weights, {master:,} bytes of masters"
