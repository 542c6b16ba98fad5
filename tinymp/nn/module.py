"""Module: parameters, buffers and sub-modules under names, in the order in which they were assigned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from .. import backend
from ..arguments import flag, named, named_by_class
from ..backend.extras import Held, held
from ..dtypes import FLOATING, fits_dtype
from ..events import in_pass, under
from ..parameter import Parameter, replace, storage_of
from ..precision import MIXED, Policy, policy_in_use, to_dtype
from ..tensor import Tensor
from .loading import COPY, exact, is_rounded, load

if TYPE_CHECKING:
    from typing_extensions import Self


class IncompatibleKeys(NamedTuple):
    """The names that `load_state_dict(strict=False)` left alone."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Module:
    """A layer or a model: subclass it, call `super().__init__()`, assign parts to attributes, write `forward`.

    A Parameter or a Module becomes part of it by assignment; a buffer (state that no gradient trains) by
    `register_buffer`. A plain Tensor, or a list of modules, is an ordinary attribute: it is not saved, cast or
    trained (see ModuleList, ModuleDict). `m(x)` is `m.forward(x)` with the registered hooks around it.

    training  True if layers such as Dropout and BatchNorm behave as in training; set by `train` and `eval`
    """

    normalisation: ClassVar[bool] = False  # True if its floating buffers take a policy's `norm` (NVG section 5.4.2)
    training: bool
    _persistent: dict[str, bool]  # name of each buffer -> True if it is part of the state_dict

    def __init__(self) -> None:
        vars(self).update(training=True, _persistent={})

    def __init_subclass__(cls, **options: Any) -> None:
        """Errors of a layer's forward begin with its name; those of a container begin with the inner layer's."""
        super().__init_subclass__(**options)
        if "forward" in vars(cls) and str(cls.__module__).startswith("tinymp.") and "containers" not in cls.__module__:
            cls.forward = named_by_class(cls.forward)  # type: ignore[method-assign]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not in_pass.get():  # the outermost call, in which weights are read as their copies
            context = copy_context()
            context.run(in_pass.set, True)
            return context.run(self, *args, **kwargs)
        hooks = vars(self).get("_hooks")  # nn/more/hooks.py puts them there
        return hooks.call(self, args, kwargs) if hooks else self.forward(*args, **kwargs)

    # ---- attributes

    def __setattr__(self, name: str, value: Any) -> None:
        kinds: list[type] = [Tensor] if name in vars(self).get("_persistent", ()) else []
        kinds += [kind for x in (vars(self).get(name), value) for kind in (Parameter, Module) if isinstance(x, kind)]
        if kinds:
            self._check(name, value, kinds[0])
        super().__setattr__(name, value)

    def _check(self, name: str, part: Any, kind: type) -> None:
        """Refuse a part that is not of this kind (Parameter, Module; Tensor for a buffer), or under this name."""
        owner = type(self).__name__
        if "_persistent" not in vars(self):
            raise AttributeError(f"{owner}.{name}: call super().__init__() before assigning parameters and modules")
        if not isinstance(name, str) or not name or "." in name:
            raise ValueError(f"{owner}: expected a name that is a non-empty string without dots, got {name!r}")
        if hasattr(Module, name):
            raise ValueError(f"{owner}.{name}: this name would hide Module.{name}; choose another")
        if not isinstance(part, (kind, type(None))) or (kind is Tensor and isinstance(part, Parameter)):
            new = f"; for new values use .{name}.copy_(...)" if kind is Parameter else ""
            raise TypeError(f"{owner}.{name}: expected a {kind.__name__} or None, got {type(part).__name__}{new}")
        if isinstance(part, Module) and any(m is self for m in part.modules()):
            raise ValueError(f"{owner}.{name}: a module cannot be a part of itself")

    def _register(self, name: str, part: Any, kind: type) -> None:
        self._check(name, part, kind)
        vars(self)[name] = part

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter; the same as `self.name = param`, for names known only at run time."""
        self._register(name, param, Parameter)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a Tensor that is state but not trained; `persistent`: include it in the state_dict.

        TypeError for anything but a plain Tensor or None; ValueError for a name that is taken.
        """
        flag("register_buffer", "persistent", persistent)
        if name in vars(self) and name not in self._persistent:
            raise ValueError(f"{type(self).__name__}.register_buffer: there is an attribute '{name}' already")
        self._register(name, tensor, Tensor)
        self._persistent[name] = persistent

    # ---- its parts

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

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set `requires_grad` of all parameters (False freezes them)."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    @named
    def to(self, device: str) -> Self:
        """Move it to a device ("cpu", "gpu"): parameters with their masters and gradients, and buffers, in place.

        An optimizer follows with its state at its next step. TypeError for a dtype; ValueError for an unknown device;
        RuntimeError, with the reason, for a GPU that does not work. If it fails or is interrupted, nothing has moved.
        """
        if not isinstance(device, str):
            raise TypeError(f"to: expected the name of a device, got {device!r}; for a dtype use policy.cast(model)")
        there = backend.get(device)
        moved: list[tuple[Tensor, dict]] = [
            (x, x.moved_to(device) if isinstance(x, Parameter) else {"array": there.asarray(x.array)})
            for x in (*self.parameters(), *self.buffers())
            if backend.of(x.array) is not there
        ]
        replace(moved)
        return self

    def cast_storage(self, policy: Policy, keep: Mapping[str, Policy] | None = None) -> Self:
        """Take the policy's storage, except for modules in `keep` (`Policy.cast`). ValueError for values that do not
        fit.

        All or nothing: if it fails or is interrupted, no parameter and no buffer has changed.
        """
        kept = {} if keep is None else held("nn.module.policies_kept")(self, policy, keep)  # by id
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
            if not fits_dtype(exact(x), dtype):
                raise ValueError(f"{policy.name}.cast: '{name}' has values beyond the range of {dtype}")
        changes: list[tuple[Any, dict]] = [
            (x, x.cast_to(kept.get(id(x), policy)) if isinstance(x, Parameter) else {"array": to_dtype(x.array, dtype)})
            for _, x, dtype in targets
        ]
        changes += [(h, {"kept": kept.get(id(h))}) for m in self.modules() if (h := vars(m).get("_hooks")) is not None]
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

        PyTorch's names and layouts: `{k: torch.tensor(v) for k, v in ...}` loads into the same PyTorch model. A working
        copy that is not the FP16 number nearest to its master (after stochastic rounding) follows the master as
        "name.copy", so that training resumes bit for bit; PyTorch then needs strict=False.
        """
        state: dict[str, np.ndarray] = {}
        for name, x in self._state().items():
            arrays = {name: exact(x)} if is_rounded(x) else {name: exact(x), name + COPY: x.array}
            state.update({entry: np.array(backend.to_cpu(array)) for entry, array in arrays.items()})
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> IncompatibleKeys:
        """Overwrite masters (exactly), working copies (rounded once, to nearest, unless they are given) and buffers.

        A load that fails or is interrupted changes nothing.

        state_dict: name -> NumPy array, Tensor or anything else with `__array__`, such as a CPU tensor of PyTorch.
        strict: missing and unexpected names are errors; otherwise they are returned.

        Raises TypeError for an entry that is not finite real numbers (a buffer may be infinite where it already is),
        and ValueError for missing and unexpected names, a wrong shape, and values that do not fit FP16.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"load_state_dict: expected a mapping of names to arrays, got {type(state_dict).__name__}")
        own = self._state()
        known = {*own, *[name + COPY for name in own]}
        left = IncompatibleKeys([n for n in own if n not in state_dict], [n for n in state_dict if n not in known])
        if flag("load_state_dict", "strict", strict) and any(left):
            names = f"missing: {', '.join(left[0])}; unexpected: {', '.join(map(str, left[1]))}"
            raise ValueError(f"load_state_dict: this does not fit {type(self).__name__}: {names}")
        under(policy_in_use, MIXED, load, {name: x for name, x in own.items() if name in state_dict}, state_dict)
        return left

    # ---- in nn/more/module.py and nn/more/hooks.py: methods that training does not need

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


HELD = {name: name for name in ["add_module", "apply", "children", "extra_repr", "named_children"]}
HELD |= {f"register_{when}_hook": f"register_{when}_hook" for when in ("forward", "forward_pre", "full_backward")}
for _method, _function in {**HELD, "__repr__": "text", "__getattr__": "missing"}.items():
    setattr(Module, _method, Held(f"nn.module.{_function}"))
