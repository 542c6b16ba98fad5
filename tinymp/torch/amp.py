"""Mixed precision as PyTorch writes it. Programs with autocast and GradScaler need one more line, `prepare`:

    model, optimizer = prepare(model, optimizer)                  # once: FP16 weights, FP32 masters
    scaler = GradScaler()
    with autocast("cuda"):
        loss = loss_function(model(x), target)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

PyTorch's autocast casts the operands of each op. Here tensors are stored in one precision, and each op widens what it
reads: `prepare` casts the model and has it cast its inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ..arguments import flag, name_all, same_keys
from ..events import reusable, type_name
from ..nn import Module
from ..optim import DynamicLossScaler, Optimizer, StepResult
from ..precision import BF16, FP32, MIXED, Policy, use
from ..tensor import Tensor

__all__ = ["GradScaler", "autocast", "prepare"]

POLICIES = {policy.storage: policy for policy in (MIXED, BF16, FP32) if policy is not None}
_prepared: WeakKeyDictionary[Module, Policy] = WeakKeyDictionary()


def _policy(op: str, dtype: Any) -> Policy:
    """The policy that stores in this dtype."""
    if not isinstance(dtype, (str, type, np.dtype)) or (found := POLICIES.get(np.dtype(dtype))) is None:
        known = ", ".join(map(str, POLICIES))
        raise ValueError(f"{op}: expected `dtype` to be one of {known}, got {dtype!r}; bfloat16 needs ml_dtypes")
    return found


def prepare(model: Module, optimizer: Optimizer | None = None, dtype: Any = "float16", enabled: bool = True) -> Any:
    """Cast a model to dtype for `autocast`, with FP32 masters; return it, or (model, optimizer).

    The model is changed in place and gets a forward_pre_hook, `cast_inputs`. Its parameters stay the same objects: an
    optimizer that was made before goes on with their masters, and its state stays FP32. Tensors that forward makes
    itself, such as masks, are the program's to cast: an op that is given FP16 and FP32 says so. dtype: float16,
    bfloat16 or float32. enabled=False: nothing happens.

    TypeError for anything but a Module and an Optimizer; ValueError for another dtype and for weights beyond its range.
    """
    for name, x, kind in (("model", model, Module), ("optimizer", optimizer, Optimizer)):
        if not isinstance(x, kind) and not (x is None and kind is Optimizer):
            raise TypeError(f"prepare: expected `{name}` to be {kind.__name__}, got {type_name(x)}")
    if flag("prepare", "enabled", enabled):
        policy = _policy("prepare", dtype)
        policy.cast(model)
        if _prepared.pop(model, None) is None:
            model.register_forward_pre_hook(cast_inputs, with_kwargs=True)
        _prepared[model] = policy
    return model if optimizer is None else (model, optimizer)


def cast_inputs(module: Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Round floating Tensors to the storage of the module, also those in tuples. The hook of `prepare`.

    Lists and dicts are handed on as they are: the module may write into them.
    """
    parameter: Any = next(module.parameters(), None)
    if parameter is None:
        return args, kwargs

    def cast(x: Any) -> Any:
        return parameter.policy.cast(x) if isinstance(x, Tensor) else tuple(map(cast, x)) if type(x) is tuple else x

    return cast(args), {name: cast(x) for name, x in kwargs.items()}


@reusable
def autocast(
    device_type: Any = "cuda", dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
) -> Iterator[None]:
    """Within the block, or the function that it decorates, ops follow the policy of the model that was prepared.

    dtype: by default the one of the last model that was. enabled=False: nothing happens. device_type and cache_enabled
    change no result. torch.cuda.amp's form, in which `enabled` comes first, is understood.

    RuntimeError where no model was prepared for this dtype.
    """
    if not flag("autocast", "enabled", device_type if isinstance(device_type, bool) else enabled):
        yield
        return
    wanted = None if dtype is None else _policy("autocast", dtype)
    found = [policy for policy in _prepared.values() if wanted in (None, policy)]
    if not found:
        option = "" if wanted in (None, MIXED) else f", dtype=torch.{wanted.storage}"
        raise RuntimeError(
            "autocast: expected a model that was prepared: here a model is cast once, in place of every op's operands. "
            "Before the first step, write\n"
            "    from tinymp.torch.amp import prepare\n"
            f"    model, optimizer = prepare(model, optimizer{option})"
        )
    with use(found[-1]):
        yield


class GradScaler(DynamicLossScaler):
    """PyTorch's names for `DynamicLossScaler`, which see: it raises where PyTorch's would skip steps for ever.

    enabled=False: the loss is not scaled, and `step` is the optimizer's. `device` changes nothing. torch.cuda.amp's
    form, in which init_scale comes first, is understood.
    """

    def __init__(
        self,
        device: Any = "cuda",
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        init_scale = device if isinstance(device, (int, float)) else init_scale
        super().__init__(init_scale, growth_factor, backoff_factor, growth_interval)
        self.enabled = flag("GradScaler", "enabled", enabled)

    def is_enabled(self) -> bool:
        """False if it was made with enabled=False."""
        return self.enabled

    def get_scale(self) -> float:
        """The S by which `scale` multiplies now."""
        return super().get_scale() if self.enabled else 1.0

    def scale(self, outputs: Any) -> Any:
        """S times the loss, or each of several."""
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(map(self.scale, outputs))
        return super().scale(outputs) if self.enabled else outputs

    def unscale_(self, optimizer: Optimizer) -> None:
        """See `LossScaler.unscale_`."""
        if self.enabled:
            super().unscale_(optimizer)

    def step(self, optimizer: Optimizer, *, allow_missing: bool = False) -> StepResult:
        """See `LossScaler.step`."""
        if self.enabled:
            return super().step(optimizer, allow_missing=allow_missing)
        return optimizer.step(allow_missing=allow_missing)

    def update(self) -> None:
        """See `LossScaler.update`."""
        if self.enabled:
            super().update()

    def state_dict(self) -> dict[str, Any]:
        """S and its rule under PyTorch's keys; empty if not enabled."""
        rule = {name: getattr(self, name) for name in ("growth_factor", "backoff_factor", "growth_interval")}
        return {"scale": self.state.scale, **rule, "_growth_tracker": self.growth_tracker} if self.enabled else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state_dict of this class or of PyTorch's GradScaler. Nothing happens if not enabled.

        TypeError and ValueError, as of `DynamicLossScaler`; then nothing changes.
        """
        if not self.enabled:
            return
        same_keys("GradScaler.load_state_dict", "state_dict", state_dict, self.state_dict())
        rule = {name: x for name, x in state_dict.items() if name not in ("scale", "_growth_tracker")}
        new = GradScaler(init_scale=state_dict["scale"], **rule)
        state = {"scale": state_dict["scale"], "growth_tracker": state_dict["_growth_tracker"]}
        super().load_state_dict({**state, "iteration": self.iteration, "history": self.history})
        vars(self).update({name: getattr(new, name) for name in (*rule, "max_consecutive_skips")})


name_all(globals())
