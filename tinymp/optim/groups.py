"""Groups of parameters: which parameters an optimizer has, with which options, and how its state is saved."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from .. import backend
from ..arguments import flag, listed, number, same_keys, whole
from ..autograd import Array
from ..dtypes import FLOATING, float16, masked, require_fit
from ..events import quietly, type_name
from ..parameter import Parameter
from ..precision import to_dtype, widen

Group = dict[str, Any]
State = dict[str, Any]


FLAGS = ("amsgrad", "centered", "decoupled_weight_decay", "maximize", "nesterov")  # options that are True or False
# The least and most that an option may be; others may be anything from 0 on. Above 1, averages and buffers would grow
# without end, and with such a dampening steps would go up the hill.
RANGES = {"alpha": (0.0, 1.0), "rho": (0.0, 1.0), "momentum": (0.0, 1.0), "dampening": (-math.inf, 1.0)}


def options(**defaults: Any) -> Callable[..., None]:
    """The constructor of a rule with these options: it takes params, and each option by place (but for `maximize`) or
    by name.
    """
    kinds: dict[str, Any] = dict.fromkeys(("self", "params", *defaults), inspect.Parameter.POSITIONAL_OR_KEYWORD)
    kinds["maximize"] = inspect.Parameter.KEYWORD_ONLY
    empty = inspect.Parameter.empty
    parameters = [inspect.Parameter(n, kind, default=defaults.get(n, empty)) for n, kind in kinds.items()]
    signature = inspect.Signature(parameters)

    def __init__(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        self, params, *_ = bound.arguments.values()
        Groups.__init__(self, params, {name: bound.arguments[name] for name in defaults})

    vars(__init__)["__signature__"] = signature
    return __init__


class Groups:
    """An optimizer without its step: see `Optimizer`, which adds that."""

    squares: ClassVar[tuple[str, ...]] = ("sum", "exp_avg_sq", "max_exp_avg_sq")  # state that is never negative
    late: ClassVar[tuple[str, ...]] = ()  # state that an option may call for, or no longer, in the middle of a training

    def __init__(self, params: Iterable, defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        self.param_groups: list[Group] = []
        self.state: dict[Parameter, State] = {}
        entries = self._listed(params)
        if not entries:
            raise ValueError(f"{self._name}: expected at least one parameter, got none")
        for group in entries if isinstance(entries[0], dict) else [{"params": entries}]:
            self.add_param_group(group)

    def initial(self, group: Group) -> dict[str, float]:
        """The names of a parameter's state arrays and the value with which each is filled at first."""
        return {}

    # ---- parameters and their options

    _name = property(lambda self: type(self).__name__)

    def _listed(self, params: Any) -> list:
        if isinstance(params, (set, frozenset)):
            raise TypeError(f"{self._name}: expected a list of parameters, got a set, which has no fixed order")
        if isinstance(params, Parameter) or not isinstance(params, Iterable):
            raise TypeError(f"{self._name}: expected a list of Parameters or groups, got {type(params).__name__}")
        return listed(self._name, "params", params)

    def add_param_group(self, param_group: Group) -> None:
        """Add {"params": parameters, option: value, ...}; options left out take the optimizer's defaults."""
        if not isinstance(param_group, dict) or "params" not in param_group:
            raise TypeError(f'{self._name}: expected a group to be a dict with "params", got {type(param_group)}')
        group = {**param_group, **{k: v for k, v in self.defaults.items() if k not in param_group}}
        given = group["params"]
        entries = [given] if isinstance(given, Parameter) else self._listed(given)
        if not entries:
            raise ValueError(f"{self._name}: expected parameters in group {len(self.param_groups)}, got none")
        group["params"] = [self._parameter(entry) for entry in entries]
        known = {id(p) for p in self.parameters()}
        for p in group["params"]:
            if id(p) in known:
                raise ValueError(f"{self._name}: a parameter of shape {p.shape} ({p.name or 'unnamed'}) is given twice")
            known.add(id(p))
        self.check_options(group)
        self.param_groups.append(group)

    def _parameter(self, entry: Any) -> Parameter:
        name, p = entry if isinstance(entry, tuple) and len(entry) == 2 else (None, entry)
        if not isinstance(p, Parameter):
            raise TypeError(
                f"{self._name}: expected Parameters of tinymp.nn, got {type_name(p)}; pass model.parameters()"
            )
        if p.name is None:
            p.name = name
        return p

    def parameters(self) -> list[Parameter]:
        """All parameters, in the order of the groups."""
        return [p for group in self.param_groups for p in group["params"]]

    def label(self, p: Parameter) -> str:
        """How messages call a parameter: by its name, else by its place."""
        place = next(i for i, q in enumerate(self.parameters()) if q is p)
        return f"`{p.name}` {p.shape}" if p.name else f"{place} {p.shape}"

    def check_options(self, group: Group) -> None:
        """Hold the options of a group to their names and ranges, and make them plain Python numbers."""
        unknown = sorted(group.keys() - self.defaults.keys() - {"params", "initial_lr"})
        if unknown:
            raise TypeError(f"{self._name}: unknown option {unknown[0]!r}; known are {', '.join(self.defaults)}")
        for name, value in group.items():
            if name == "betas":
                if not isinstance(value, (tuple, list)) or len(value) != 2:
                    raise TypeError(f"{self._name}: expected `betas` to be two numbers, got {value!r}")
                group[name] = tuple(number(self._name, name, beta, 0) for beta in value)
                if max(group[name]) >= 1:
                    raise ValueError(f"{self._name}: expected `betas` to be below 1, got {value!r}")
            elif name in FLAGS:
                group[name] = flag(self._name, name, value)
            elif name != "params":
                group[name] = number(self._name, name, value, *RANGES.get(name, (0.0, math.inf)))
        for start in filter(None, self.initial(group).values()):
            for p in group["params"]:
                require_fit(self._name, start, self.state_dtype(p))

    def __repr__(self) -> str:
        """The groups, one per line if there are several: how many parameters, and the options."""
        groups = [
            f"{len(group['params'])} parameters, " + ", ".join(f"{k}={v!r}" for k, v in group.items() if k != "params")
            for group in self.param_groups
        ]
        if len(groups) == 1:
            return f"{self._name}({groups[0]})"
        return "\n".join([f"{self._name}(", *(f"  group {i}: {group}" for i, group in enumerate(groups)), ")"])

    def state_dtype(self, p: Parameter) -> np.dtype:
        """The dtype of the state of p: FP32 (FP64 for FP64 parameters), or FP16 where its policy says so."""
        return float16 if p.policy.state == float16 else widen(p.master).dtype

    def state_of(self, group: Group, p: Parameter) -> State:
        """The state of p, made where it is missing and brought to where p is.

        "since": after how many updates it was made, if there had been any: SGD's first momentum is the gradient.
        """
        state, device = self.state.setdefault(p, {"step": 0}), backend.of(p.array)
        for name, value in self.initial(group).items():
            if name not in state:
                if hasattr(state["step"], "dtype") or state["step"]:
                    state["since"] = copy.copy(state["step"])
                state[name] = device.xp.full_like(p.master, value, dtype=self.state_dtype(p))
            elif backend.of(state[name]) is not device:
                state[name] = device.asarray(state[name])
        return state

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """A copy: {"state": {index: {"step": n, name: array}}, "param_groups": [{option: value, "params": [i]}]}."""
        index = {p: i for i, p in enumerate(self.parameters())}
        # a GPU makes the state before it is known whether the first step is skipped
        states = {i: self.state[p] for p, i in index.items() if p in self.state and int(self.state[p]["step"])}
        return {
            "state": {i: self._saved(state) for i, state in states.items()},
            "param_groups": [{**group, "params": [index[p] for p in group["params"]]} for group in self.param_groups],
        }

    def _saved(self, state: State) -> dict[str, Any]:
        """A copy of the state of one parameter, without arrays that no update has written yet."""
        step = int(state["step"])
        unused = ("since", *(self.late if int(state.get("since", 0)) == step else ()))
        arrays = {name: np.array(backend.to_cpu(v)) for name, v in state.items() if name not in ("step", *unused)}
        return {"step": step, **arrays}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` returned, for the same parameters in the same order and groups.

        ValueError or TypeError, which name the entry, if groups, parameters, options, names of state or shapes differ,
        or if a value cannot be (a NaN, a negative second moment); then nothing has changed.
        """
        where = f"{self._name}.load_state_dict"
        same_keys(where, "state_dict", state_dict, {"state", "param_groups"})
        saved = state_dict["param_groups"]
        for group in saved if isinstance(saved, (list, tuple)) else [saved]:
            if not isinstance(group, Mapping) or not isinstance(group.get("params"), (list, tuple)):
                raise TypeError(f"{where}: expected `param_groups` to be a list of dicts, each with a list of `params`")
        sizes, expected = [[len(g["params"]) for g in gs] for gs in (saved, self.param_groups)]
        if sizes != expected:
            raise ValueError(f"{where}: expected groups with {expected} parameters, got {sizes}")
        places = [whole(where, "params", i) for g in saved for i in g["params"]]
        if len(set(places)) < len(places):
            raise ValueError(f"{where}: expected every parameter once in `param_groups`, got {places}")
        groups, state = [], {}
        for own, loaded in zip(self.param_groups, saved, strict=True):
            same_keys(where, "a group", loaded, own.keys(), optional={"initial_lr"})
            groups.append({**loaded, "params": own["params"]})
            self.check_options(groups[-1])
        owner = {i: (g, p) for g, s in zip(groups, saved, strict=True) for i, p in zip(s["params"], g["params"])}
        same_keys(where, "the state", state_dict["state"], (), optional=owner)  # none before a parameter's first update
        for i, (group, p) in owner.items():
            if i not in state_dict["state"]:
                continue
            loaded = state_dict["state"][i]
            needed = {"step", *self.initial(group)} - set(self.late)
            same_keys(where, f"the state of parameter {self.label(p)}", loaded, needed, optional=self.late)
            state[p] = {"step": whole(f"{where}: parameter {self.label(p)}", "step", loaded["step"])}
            for name in loaded.keys() - {"step"}:
                state[p][name] = self._loadable(where, name, p, loaded[name])
        self.param_groups, self.state = groups, state

    def _loadable(self, where: str, name: str, p: Parameter, value: Any) -> Array:
        """A copy of a saved array of state as it will be kept; ValueError if it cannot be state."""
        entry = f"`{name}` of parameter {self.label(p)}"
        array = np.asarray(backend.to_cpu(value))
        if masked(value) or array.shape != p.shape or array.dtype not in FLOATING:
            got = "a masked array" if masked(value) else f"{array.dtype} {array.shape}"
            raise ValueError(f"{where}: expected {entry} to be floating of its shape, got {got}")
        dtype = self.state_dtype(p)
        kept = quietly(to_dtype, array, dtype).copy()
        overflowed = array.dtype == dtype == float16  # a second moment in FP16 does, and training goes on
        if np.isnan(array).any() or not (overflowed or np.isfinite(array).all()):
            raise ValueError(f"{where}: expected {entry} to be finite, got {array[~np.isfinite(array)][0]}")
        if not (overflowed or np.isfinite(kept).all()):
            raise ValueError(f"{where}: expected {entry} to fit {dtype}, got {np.abs(array).max():g}")
        if name in self.squares and (array < 0).any():
            raise ValueError(f"{where}: expected {entry} to be at least 0, got {array.min():g}")
        return backend.of(p.array).asarray(kept)
