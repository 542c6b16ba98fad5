"""Optimizers: they read gradients, update FP32 masters, and refresh the working copies (MPT section 3.1)."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, ClassVar

import numpy as np

from .. import backend, statistics
from ..arguments import number, refuse, require_unscaled, same_keys, whole
from ..autograd import Array, type_name
from ..events import Update, here, running, tell
from ..parameter import Parameter
from ..precision import FLOATING, UPDATE, float16, store, to_dtype, use, widen
from ..sparse import SparseRows, put, rows_of, values_of, with_values
from ..tensor import Tensor
from . import fused

Group = dict[str, Any]
State = dict[str, Any]


class StepResult(Enum):
    """What became of a step. Truthy when it was applied; schedules, averages and statistics follow it."""

    APPLIED = "applied"
    SKIPPED = "skipped: the loss or the gradients were not finite"
    NO_GRADIENTS = "no gradients"

    @property
    def applied(self) -> bool:
        """Whether the parameters were updated."""
        return self is StepResult.APPLIED

    def __bool__(self) -> bool:
        return self.applied


class PendingResult:
    """The StepResult of a step on a GPU, which the host has not looked at: each look (`applied`, bool, ==) waits.

    After a step that was captured in a CUDA graph it tells of the last replay.
    """

    def __init__(self, skipped: Array) -> None:
        self._skipped = skipped

    def result(self) -> StepResult:
        """APPLIED or SKIPPED. Waits for the GPU."""
        return StepResult.SKIPPED if backend.to_cpu(self._skipped).any() else StepResult.APPLIED

    applied = property(lambda self: self.result().applied, doc="Whether the parameters were updated.")
    name = property(lambda self: self.result().name, doc="The name of the StepResult.")
    value = property(lambda self: self.result().value, doc="The value of the StepResult.")

    def __bool__(self) -> bool:
        return self.applied

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PendingResult):
            return self.result() is other.result()
        return self.result() is other

    def __hash__(self) -> int:
        return hash(self.result())

    def __repr__(self) -> str:
        return f"PendingResult({self.result()})"


class Optimizer:
    """Updates parameters from their gradients. A subclass gives `update`, the rule for one parameter, and `initial`.

    params    Parameters, (name, Parameter) pairs, or dicts {"params": ..., option: value} of parameter groups
    defaults  the options of a group and their values where a group does not set them

    param_groups  the groups, as in PyTorch: lists of parameters with their options; changing an option takes effect
                  (and is checked) at the next step
    state         per parameter, in their order: the number of its updates and arrays of its shape, in FP32. Only where
                  a parameter's policy says so (`Policy.state`) are they FP16; beside FP64 parameters they are FP64

    Of a parameter whose gradient is SparseRows, only these rows and their state are updated, by the same rule; the
    others stay as they are. With SGD without momentum and with Adagrad nothing else would happen to a row whose
    gradient is 0. Momentum and Adam's averages would go on and move it: here, as in PyTorch's SparseAdam (its SGD
    differs), they wait for the row's next gradient, and t counts the updates of the parameter. A weight decay is for
    all rows and is refused.

    TypeError for anything but Parameters, for sets (they have no order) and for unknown options; ValueError for no
    parameters, for one given twice, and for options out of range.
    """

    kind: ClassVar = UPDATE
    flags: ClassVar[tuple[str, ...]] = ("maximize", "nesterov", "amsgrad")  # options that are True or False
    signed: ClassVar[tuple[str, ...]] = ("dampening",)  # options that may be negative
    squares: ClassVar[tuple[str, ...]] = ("sum", "exp_avg_sq", "max_exp_avg_sq")  # state that is never negative
    late: ClassVar[tuple[str, ...]] = ()  # state that an option may call for, or no longer, in the middle of a training
    rule: ClassVar[str | None] = None  # the kernels of multi_tensor.py that do the same as `update`, on a GPU

    def __init__(self, params: Iterable, defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        self.param_groups: list[Group] = []
        self.state: dict[Parameter, State] = {}
        entries = self._listed(params)
        if not entries:
            raise ValueError(f"{self._name}: expected at least one parameter, got none")
        for group in entries if isinstance(entries[0], dict) else [{"params": entries}]:
            self.add_param_group(group)

    # ---- what a subclass gives

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "update" in vars(cls) and "rule" not in vars(cls):
            cls.rule = None  # a rule of its own has no kernel

    def update(self, w: Array, g: Array, state: State, group: Group) -> Array:
        """The new weights. All arrays are FP32 (FP64 for FP64 parameters); those in `state` may be written in place.

        Of a sparse gradient, w, g and `state` are the rows that it names.
        """
        raise NotImplementedError(f"{self._name} has no update")

    def initial(self, group: Group) -> dict[str, float]:
        """The names of a parameter's state arrays and the value with which each is filled at first."""
        return {}

    # ---- parameters and their groups

    _name = property(lambda self: type(self).__name__)

    def _listed(self, params: Any) -> list:
        if isinstance(params, (set, frozenset)):
            raise TypeError(f"{self._name}: expected a list of parameters, got a set, which has no fixed order")
        if isinstance(params, Parameter) or not isinstance(params, Iterable):
            raise TypeError(f"{self._name}: expected a list of Parameters or groups, got {type(params).__name__}")
        return list(params)

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
        known = {id(p) for p in self._parameters()}
        for p in group["params"]:
            if id(p) in known:
                raise ValueError(f"{self._name}: a parameter of shape {p.shape} ({p.name or 'unnamed'}) is given twice")
            known.add(id(p))
        self._check_options(group)
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

    def _parameters(self) -> list[Parameter]:
        return [p for group in self.param_groups for p in group["params"]]

    def _label(self, p: Parameter) -> str:
        """How messages call a parameter: by its name, else by its place."""
        place = next(i for i, q in enumerate(self._parameters()) if q is p)
        return f"`{p.name}` {p.shape}" if p.name else f"{place} {p.shape}"

    def _check_options(self, group: Group) -> None:
        """Hold the options of a group to their names and ranges, and make them plain Python numbers."""
        unknown = sorted(group.keys() - self.defaults.keys() - {"params", "initial_lr"})
        if unknown:
            raise TypeError(f"{self._name}: unknown option {unknown[0]!r}; known are {', '.join(self.defaults)}")
        for name, value in group.items():
            if name in self.flags:
                if not isinstance(value, bool):
                    raise TypeError(f"{self._name}: expected `{name}` to be True or False, got {value!r}")
            elif name == "betas":
                if not isinstance(value, (tuple, list)) or len(value) != 2:
                    raise TypeError(f"{self._name}: expected `betas` to be two numbers, got {value!r}")
                group[name] = tuple(number(self._name, name, beta, 0) for beta in value)
                if max(group[name]) >= 1:
                    raise ValueError(f"{self._name}: expected `betas` to be below 1, got {value!r}")
            elif name != "params":
                group[name] = number(self._name, name, value, -math.inf if name in self.signed else 0.0)

    def __repr__(self) -> str:
        """The groups, one per line if there are several: how many parameters, and the options."""
        groups = [
            f"{len(group['params'])} parameters, " + ", ".join(f"{k}={v!r}" for k, v in group.items() if k != "params")
            for group in self.param_groups
        ]
        if len(groups) == 1:
            return f"{self._name}({groups[0]})"
        return "\n".join([f"{self._name}(", *(f"  group {i}: {group}" for i, group in enumerate(groups)), ")"])

    # ---- the step

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients. They are always set to None: an array of zeros would carry no loss scale."""
        if set_to_none is not True:
            raise TypeError(f"{self._name}.zero_grad: only set_to_none=True is supported, got {set_to_none!r}")
        for p in self._parameters():
            p.zero_grad()

    def step(self, closure: None = None, *, allow_missing: bool = False) -> StepResult | PendingResult:
        """Update every parameter that requires a gradient; the gradients must be unscaled. See `StepResult`.

        With a loss scaler, call `scaler.step(optimizer)` instead: every scaler, NoLossScaler too, first looks whether
        the gradients are finite, and this does not. RuntimeError, and nothing is updated, if gradients still carry a
        loss scale, or if only some parameters have a gradient (with allow_missing, the others keep their value).

        A step that is interrupted (KeyboardInterrupt, MemoryError) may have updated some parameters and not others, and
        the state of one of them without its weight. Every working copy is its master's rounding even then.
        """
        refuse(f"{self._name}.step", closure=closure)
        ready = self._ready(allow_missing)
        for _, p in ready:
            require_unscaled(f"{self._name}.step", p, "scaler.step(optimizer)")
        result = self._finish(ready, skip=False)
        statistics.settle(False)  # this ends the iteration, also for layers that it does not train
        return result

    def _ready(self, allow_missing: bool) -> list[tuple[Group, Parameter]]:
        """The parameters to update, with their groups; everything that can be wrong is found out here."""
        for group in self.param_groups:
            self._check_options(group)
        wanted = [(group, p) for group in self.param_groups for p in group["params"] if p.requires_grad]
        ready = [(group, p) for group, p in wanted if p.grad is not None]
        if ready and len(ready) < len(wanted) and not allow_missing:
            p = next(p for _, p in wanted if p.grad is None)
            raise RuntimeError(
                f"{self._name}.step: parameter {self._label(p)} has no gradient while {len(ready)} of {len(wanted)} "
                "have one: the loss does not depend on it. Freeze it with requires_grad_(False), give it a separate "
                "optimizer, or pass step(..., allow_missing=True)"
            )
        for _, p in ready:
            fits = not isinstance(p.grad, Tensor) and getattr(p.grad, "shape", None) == p.shape
            if not fits or p.grad.dtype not in FLOATING or backend.of(values_of(p.grad)) is not backend.of(p.data):
                raise RuntimeError(
                    f"{self._name}.step: expected the grad of parameter {self._label(p)} to be a floating array of its "
                    f"shape on {p.device}, got {type(p.grad).__name__} {getattr(p.grad, 'shape', '')}"
                )
        for group, p in ready:
            if isinstance(p.grad, SparseRows) and group.get("weight_decay"):
                raise RuntimeError(
                    f"{self._name}.step: the weight_decay {group['weight_decay']:g} is for all rows of parameter "
                    f"{self._label(p)}, but its gradient is sparse: give it a group with weight_decay=0, or make the "
                    "gradient dense (sparse=False)"
                )
        return ready

    def _finish(self, ready: list[tuple[Group, Parameter]], skip: Any) -> Any:
        """Apply the update, or skip it if the gradients are not finite, and let the statistics follow.

        skip: a bool, or an array of one on the GPU: then the GPU decides, and the result is a PendingResult.
        """
        pending = not isinstance(skip, bool)
        result: Any = StepResult.SKIPPED if skip is True else StepResult.APPLIED
        result = StepResult.NO_GRADIENTS if not ready else PendingResult(skip) if pending else result
        left = [] if skip is True else ready
        if left and backend.of(left[0][1].data) is backend.gpu and not here.inside:
            left = fused.step(self, left, skip)
        if left and not (pending and backend.to_cpu(skip).any()):
            with np.errstate(all="ignore"):
                for group, p in left:
                    # state and weights are rounded as the parameter's policy says
                    with use(p.policy), running(Update(self, p)):
                        self._update_one(group, p)
        statistics.settle(skip, self._parameters())
        if here.observers:
            tell("stepped", self, result)
        return result

    def _update_one(self, group: Group, p: Parameter) -> None:
        gradient = unscaled(p)
        w, g = widen(rows_of(p.master, gradient)), values_of(gradient)
        if group.get("maximize"):
            g = -g
        state = self._state_of(group, p)
        state["step"] = _count(state["step"]) + 1
        arrays = {name: widen(rows_of(state[name], gradient)) for name in self.initial(group)}
        since = _count(state.get("since", 0))
        w = self.update(w, g, {"step": state["step"], "since": since, **arrays}, group)
        for name, array in arrays.items():
            if array is not state[name]:  # FP16 state, or rows
                put(state[name], with_values(gradient, store(array, like=state[name])))
        # the write-back: exact into the FP32 master, one rounding into the FP16 copy (MPT section 3.1)
        p.write(with_values(gradient, w))

    def _state_of(self, group: Group, p: Parameter) -> State:
        """The state of p, made where it is missing and brought to where p is.

        "since": after how many updates it was made, if there had been any: SGD's first momentum is the gradient.
        """
        state, device = self.state.setdefault(p, {"step": 0}), backend.of(p.data)
        for name, value in self.initial(group).items():
            if name not in state:
                if hasattr(state["step"], "dtype") or state["step"]:
                    state["since"] = copy.copy(state["step"])
                dtype = float16 if p.policy.state == float16 else widen(p.master).dtype
                state[name] = device.xp.full_like(p.master, value, dtype=dtype)
            elif backend.of(state[name]) is not device:
                state[name] = device.asarray(state[name])
        return state

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """A copy: {"state": {index: {"step": n, name: array}}, "param_groups": [{option: value, "params": [i]}]}."""
        index = {p: i for i, p in enumerate(self._parameters())}
        # a GPU makes the state before it is known whether the first step is skipped
        states = {i: self.state[p] for p, i in index.items() if p in self.state and _count(self.state[p]["step"])}
        return {
            "state": {i: self._saved(state) for i, state in states.items()},
            "param_groups": [{**group, "params": [index[p] for p in group["params"]]} for group in self.param_groups],
        }

    def _saved(self, state: State) -> dict[str, Any]:
        """A copy of the state of one parameter, without arrays that no update has written yet."""
        step = _count(state["step"])
        unused = ("since", *(self.late if _count(state.get("since", 0)) == step else ()))
        return {"step": step, **{name: _copied(v) for name, v in state.items() if name not in ("step", *unused)}}

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
            self._check_options(groups[-1])
        owner = {i: (g, p) for g, s in zip(groups, saved, strict=True) for i, p in zip(s["params"], g["params"])}
        same_keys(where, "the state", state_dict["state"], (), optional=owner)  # none before a parameter's first update
        for i, (group, p) in owner.items():
            if i not in state_dict["state"]:
                continue
            loaded = state_dict["state"][i]
            needed = {"step", *self.initial(group)} - set(self.late)
            same_keys(where, f"the state of parameter {self._label(p)}", loaded, needed, optional=self.late)
            state[p] = {"step": whole(f"{where}: parameter {self._label(p)}", "step", loaded["step"])}
            for name in loaded.keys() - {"step"}:
                state[p][name] = self._loadable(where, name, p, loaded[name])
        self.param_groups, self.state = groups, state

    def _loadable(self, where: str, name: str, p: Parameter, value: Any) -> Array:
        """A copy of a saved array of state as it will be kept; ValueError if it cannot be state."""
        entry = f"`{name}` of parameter {self._label(p)}"
        array = np.asarray(backend.to_cpu(value))
        if array.shape != p.shape or array.dtype not in FLOATING:
            raise ValueError(f"{where}: expected {entry} to be floating of its shape, got {array.dtype} {array.shape}")
        dtype = float16 if p.policy.state == float16 else widen(p.master).dtype
        with np.errstate(all="ignore"):
            kept = to_dtype(array, dtype).copy()
        overflowed = array.dtype == dtype == float16  # a second moment in FP16 does, and training goes on
        if np.isnan(array).any() or not (overflowed or np.isfinite(array).all()):
            raise ValueError(f"{where}: expected {entry} to be finite, got {array[~np.isfinite(array)][0]}")
        if not (overflowed or np.isfinite(kept).all()):
            raise ValueError(f"{where}: expected {entry} to fit {dtype}, got {np.abs(array).max():g}")
        if name in self.squares and (array < 0).any():
            raise ValueError(f"{where}: expected {entry} to be at least 0, got {array.min():g}")
        return backend.of(p.data).asarray(kept)


def unscaled(p: Parameter) -> Array:
    """p.grad in FP32, divided by the loss scale that it carries (NVG section 2.3.1, step 5). May be p.grad itself."""
    g, scale = widen(values_of(p.grad)), p.grad_scale
    return with_values(p.grad, g if scale == 1 else g / getattr(scale, "array", scale))  # on a GPU, S may be an array


def _copied(value: Any) -> np.ndarray:
    return np.array(backend.to_cpu(value))


def _count(step: Any) -> int:
    """A number of updates as an int: on a GPU it is counted there (fused.py)."""
    return int(backend.to_cpu(step)[0]) if hasattr(step, "dtype") else step


# ---------------------------------------------------------------------------------------------------- the four rules


class SGD(Optimizer):
    """Stochastic gradient descent with momentum mu, dampening tau and weight decay lambda, as in PyTorch.

    g <- g + lambda w;  m <- mu m + (1 - tau) g, at first m <- g;  w <- w - lr m, or with Nesterov w - lr (g + mu m)

    "At first" is the first update with mu > 0, also where mu was 0 before. While mu is 0 again, m waits.
    """

    rule = "sgd"
    late = ("momentum_buffer",)

    def __init__(
        self,
        params: Iterable,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: None = None,
        differentiable: bool = False,
        fused: None = None,
    ) -> None:
        refuse("SGD", foreach=foreach, differentiable=differentiable, fused=fused)
        options = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(params, {**options, "nesterov": nesterov, "maximize": maximize})

    def _check_options(self, group: Group) -> None:
        super()._check_options(group)
        number("SGD", "momentum", group["momentum"], 0, 1)  # above 1, the buffer would grow without end
        if group["nesterov"] and (group["momentum"] == 0 or group["dampening"] != 0):
            raise ValueError("SGD: nesterov needs momentum > 0 and dampening == 0")

    def initial(self, group: Group) -> dict[str, float]:
        return {"momentum_buffer": 0.0} if group["momentum"] else {}

    def update(self, w: Array, g: Array, state: State, group: Group) -> Array:
        mu = group["momentum"]
        if group["weight_decay"]:
            g = g + group["weight_decay"] * w
        if mu:
            m = state["momentum_buffer"]
            m *= mu
            first = state["step"] == state["since"] + 1
            m += g if first or not group["dampening"] else (1 - group["dampening"]) * g
            g = g + mu * m if group["nesterov"] else m
        return w - group["lr"] * g


class Adagrad(Optimizer):
    """Adagrad (Duchi et al., 2011), as in PyTorch; t counts the updates.

    g <- g + lambda w;  s <- s + g^2;  w <- w - lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps)

    eps is an FP32 constant: 1e-10 is 0 in FP16, whose smallest positive value is 6e-8.
    """

    rule = "adagrad"

    def __init__(
        self,
        params: Iterable,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        foreach: None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: None = None,
    ) -> None:
        refuse("Adagrad", foreach=foreach, differentiable=differentiable, fused=fused)
        options = {"lr": lr, "lr_decay": lr_decay, "weight_decay": weight_decay, "eps": eps}
        more = {"initial_accumulator_value": initial_accumulator_value, "maximize": maximize}
        super().__init__(params, {**options, **more})

    def initial(self, group: Group) -> dict[str, float]:
        return {"sum": group["initial_accumulator_value"]}

    def update(self, w: Array, g: Array, state: State, group: Group) -> Array:
        s = state["sum"]
        if group["weight_decay"]:
            g = g + group["weight_decay"] * w
        s += g * g
        d = backend.of(w).xp.sqrt(s)
        d += group["eps"]
        lr = group["lr"] / (1 + (state["step"] - 1) * group["lr_decay"])
        return w - lr * g / d


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015), as in PyTorch; t counts the updates.

    g <- g + lambda w;  m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2
    w <- w - lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps),  with amsgrad the largest v so far instead of v

    eps is an FP32 constant: 1e-8 is 0 in FP16, whose smallest positive value is 6e-8, and m / 0 would be infinite.
    """

    rule = "adam"
    late = ("max_exp_avg_sq",)
    decoupled: ClassVar[bool] = False

    def __init__(
        self,
        params: Iterable,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        refuse(self._name, foreach=foreach, capturable=capturable, differentiable=differentiable, fused=fused)
        refuse(f"{self._name} (use AdamW)", decoupled_weight_decay=decoupled_weight_decay)
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**options, "amsgrad": amsgrad, "maximize": maximize})

    def initial(self, group: Group) -> dict[str, float]:
        return {"exp_avg": 0.0, "exp_avg_sq": 0.0, **({"max_exp_avg_sq": 0.0} if group["amsgrad"] else {})}

    def update(self, w: Array, g: Array, state: State, group: Group) -> Array:
        xp, t, lr, (b1, b2) = backend.of(w).xp, state["step"], group["lr"], group["betas"]
        m, v = state["exp_avg"], state["exp_avg_sq"]
        if group["weight_decay"] and self.decoupled:
            w = (1 - lr * group["weight_decay"]) * w
        elif group["weight_decay"]:
            g = g + group["weight_decay"] * w
        m *= b1
        m += (1 - b1) * g
        v *= b2
        v += (1 - b2) * g * g
        if group["amsgrad"]:
            v = xp.maximum(state["max_exp_avg_sq"], v, out=state["max_exp_avg_sq"])
        d = xp.sqrt(v, out=xp.empty_like(v))  # a buffer of its own, for all that follows
        d *= 1 / math.sqrt(1 - b2**t)
        d += group["eps"]
        xp.divide(m, d, out=d)
        d *= lr / (1 - b1**t)
        return xp.subtract(w, d, out=d)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019): w <- (1 - lr lambda) w, and g stays."""

    decoupled = True

    def __init__(
        self,
        params: Iterable,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **options)
