"""Groups of parameters: which parameters an optimizer has, with which options, and how its state is saved."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from .. import backend
from ..arguments import flag, listed, number, same_keys, whole
from ..autograd import Array
from ..dtypes import FLOATING, float16, real
from ..events import quietly, type_name
from ..parameter import Parameter
from ..precision import to_dtype, widen

Group = dict[str, Any]
State = dict[str, Any]

FLAGS = ("amsgrad", "centered", "decoupled_weight_decay", "maximize", "nesterov")  # options that are True or False
# The least and the largest value of an option; others are at least 0. Above 1, averages and buffers would grow without
# end, and a larger dampening would step uphill.
RANGES = {"alpha": (0.0, 1.0), "rho": (0.0, 1.0), "momentum": (0.0, 1.0), "dampening": (-math.inf, 1.0)}


class Groups:
    """An optimizer without its step: see `Optimizer`, which adds that."""

    squares: ClassVar[tuple[str, ...]] = ("sum", "exp_avg_sq", "max_exp_avg_sq")  # state that is never negative
    optional_state: ClassVar[tuple[str, ...]] = ()  # state that appears or disappears when an option changes
    _name = property(lambda self: type(self).__name__)

    def __init__(self, params: Iterable, defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        self.param_groups: list[Group] = []
        self.state: dict[Parameter, State] = {}
        entries = self._listed(params)
        for group in entries if isinstance(entries[0], dict) else [{"params": entries}]:
            self.add_param_group(group)

    def initial(self, group: Group) -> dict[str, float]:
        """The names of a parameter's state arrays, and the initial value of each."""
        return {}

    # ---- parameters and their options

    def _listed(self, params: Any) -> list:
        if isinstance(params, (set, frozenset, Parameter)):
            got = "a Parameter" if isinstance(params, Parameter) else "a set, which has no fixed order"
            raise TypeError(f"{self._name}: expected a list of parameters, got {got}")
        if not (entries := listed(self._name, "params", params)):
            raise ValueError(f"{self._name}: expected at least one parameter, got none")
        return entries

    def add_param_group(self, param_group: Group) -> None:
        """Add {"params": parameters, option: value, ...}; options left out take the optimizer's defaults."""
        if not isinstance(param_group, dict) or "params" not in param_group:
            raise TypeError(f'{self._name}: expected a group to be a dict with "params", got {type(param_group)}')
        group, given = {**self.defaults, **param_group}, param_group["params"]
        group["params"] = [
            self._parameter(x) for x in ([given] if isinstance(given, Parameter) else self._listed(given))
        ]
        known = [*self.parameters(), *group["params"]]
        if len({id(p) for p in known}) < len(known):
            raise ValueError(f"{self._name}: expected every parameter once, got one that is given twice")
        self.check_options(group)
        self.param_groups.append(group)

    def _parameter(self, entry: Any) -> Parameter:
        name, p = entry if isinstance(entry, tuple) and len(entry) == 2 else (None, entry)
        if not isinstance(p, Parameter):
            raise TypeError(f"{self._name}: expected Parameters, got {type_name(p)}; pass model.parameters()")
        p.name = p.name or name
        return p

    def parameters(self) -> list[Parameter]:
        """All parameters, in the order of the groups."""
        return [p for group in self.param_groups for p in group["params"]]

    def label(self, p: Parameter) -> str:
        """A parameter for messages: its name, or else its number, and its shape."""
        place = next(i for i, q in enumerate(self.parameters()) if q is p)
        return f"`{p.name}` {p.shape}" if p.name else f"{place} {p.shape}"

    def check_options(self, group: Group) -> None:
        """Check the names and ranges of a group's options, and convert them to plain Python numbers."""
        if missing := self.defaults.keys() - group.keys():
            raise TypeError(f"{self._name}: a group has no {', '.join(sorted(missing))}; add groups by add_param_group")
        for name, value in group.items():
            if name == "betas":
                group[name] = tuple([number(self._name, name, x, 0, 1) for x in listed(self._name, name, value)])
                if len(value) != 2 or max(group[name]) >= 1:
                    raise ValueError(f"{self._name}: expected `betas` to be two numbers below 1, got {value!r}")
            elif name in FLAGS:
                group[name] = flag(self._name, name, value)
            elif name in self.defaults or name == "initial_lr":
                group[name] = number(self._name, name, value, *RANGES.get(name, (0.0, math.inf)))
            elif name != "params":
                raise TypeError(f"{self._name}: unknown option {name!r}; known are {', '.join(self.defaults)}")

    def state_dtype(self, p: Parameter) -> np.dtype:
        """The dtype of the state of p: FP32 (FP64 for FP64 parameters), or FP16 where its policy says so."""
        return float16 if p.policy.state == float16 else widen(p.master).dtype

    def state_of(self, group: Group, p: Parameter) -> State:
        """The state of p, on p's device; missing arrays are made.

        "started_at": the number of updates before an array was made, if there were any: SGD's first momentum is the
        gradient.
        """
        state, device = self.state.setdefault(p, {"step": 0}), backend.of(p.array)
        for name, value in self.initial(group).items():
            if name in state:
                state[name] = device.asarray(state[name])
                continue
            if hasattr(state["step"], "dtype") or state["step"]:
                state["started_at"] = copy.copy(state["step"])
            state[name] = device.xp.full_like(p.master, value, dtype=self.state_dtype(p))
        return state

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """A copy: {"state": {index: {"step": n, name: array}}, "param_groups": [{option: value, "params": [i]}]}."""
        index = {p: i for i, p in enumerate(self.parameters())}
        # a GPU makes the state before it knows whether the first step is skipped
        states = {i: self.state[p] for p, i in index.items() if p in self.state and int(self.state[p]["step"])}
        groups = [{**group, "params": [index[p] for p in group["params"]]} for group in self.param_groups]
        return {"state": {i: self._saved(state) for i, state in states.items()}, "param_groups": groups}

    def _saved(self, state: State) -> dict[str, Any]:
        """A copy of the state of one parameter, without arrays that no update has written yet."""
        step = int(state["step"])
        unused = ("started_at", *(self.optional_state if int(state.get("started_at", 0)) == step else ()))
        arrays = {name: np.array(backend.to_cpu(v)) for name, v in state.items() if name not in ("step", *unused)}
        return {"step": step, **arrays}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a result of `state_dict`, for the same parameters in the same order and groups.

        ValueError or TypeError, which name the entry, if groups, parameters, options, names of state or shapes differ,
        or if a value is invalid (a NaN, a negative second moment); then nothing has changed.
        """
        where, state, groups = f"{self._name}.load_state_dict", {}, []
        same_keys(where, "state_dict", state_dict, {"state", "param_groups"})
        saved = listed(where, "param_groups", state_dict["param_groups"])
        sizes, expected = [[len(g["params"]) for g in groups] for groups in (saved, self.param_groups)]
        owner: dict[int, tuple[Group, Parameter]] = {}
        if sizes != expected:
            raise ValueError(f"{where}: expected groups with {expected} parameters, got {sizes}")
        for own, loaded in zip(self.param_groups, saved):
            same_keys(where, "a group", loaded, own.keys(), optional={"initial_lr"})
            groups.append({**loaded, "params": own["params"]})
            self.check_options(groups[-1])
            owner.update({i: (groups[-1], p) for i, p in zip(loaded["params"], own["params"])})
        same_keys(where, "the state", state_dict["state"], (), optional=owner)  # none before a parameter's first update
        for i, loaded in state_dict["state"].items():
            group, p = owner[i]
            needed = {"step", *self.initial(group)} - set(self.optional_state)
            same_keys(where, f"the state of parameter {self.label(p)}", loaded, needed, optional=self.optional_state)
            state[p] = {"step": whole(f"{where}: parameter {self.label(p)}", "step", loaded["step"])}
            state[p] |= {name: self._loadable(where, name, p, x) for name, x in loaded.items() if name != "step"}
        self.param_groups, self.state = groups, state

    def _loadable(self, where: str, name: str, p: Parameter, value: Any) -> Array:
        """A copy of a saved array of state, in its dtype and on p's device; ValueError if it is invalid."""
        array, dtype = real(where, np.asarray(backend.to_cpu(value)), value), self.state_dtype(p)
        kept = quietly(to_dtype, array, dtype).copy() if array.dtype in FLOATING else array
        # a second moment in FP16 overflows, and training goes on
        fine = np.isfinite(kept) | (array == np.inf if dtype == float16 else False)
        fine &= kept >= (0 if name in self.squares else -np.inf)
        if kept.shape != p.shape or kept.dtype != dtype or not fine.all():
            raise ValueError(
                f"{where}: expected `{name}` of parameter {self.label(p)} to be finite numbers of its shape in {dtype}"
                f"{', at least 0' * (name in self.squares)}, got {array.dtype} {array.shape} {array[~fine][:1]}"
            )
        return backend.of(p.array).asarray(kept)
