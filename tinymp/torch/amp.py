"""torch.amp, torch.cuda.amp, torch.autocast: mixed precision as PyTorch writes it, over a policy and a loss scaler.

PyTorch keeps weights in FP32 and converts them at every product, where autocast lists the op. Here a model *stores* its
weights in FP16, with FP32 masters behind them (MPT section 3.1), and nobody guesses: one line more says which model:

    torch.amp.prepare(model)

and autocast and GradScaler stay as they are written.
"""

from __future__ import annotations

from contextlib import ContextDecorator, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

from ..arguments import choice, flag, instance, same_keys
from ..dtypes import as_dtype, float16, float32
from ..nn import Module
from ..optim import DynamicLossScaler, Optimizer
from ..precision import FP32, POLICIES, Policy, use

__all__ = ["GradScaler", "autocast", "prepare"]

_prepared: WeakKeyDictionary[Module, Policy] = WeakKeyDictionary()
_OPTIONS = ("growth_factor", "backoff_factor", "growth_interval")


def prepare(model: Module, optimizer: Any = None, dtype: Any = float16, enabled: bool = True) -> Any:
    """Give the model the storage of mixed precision, in place; return it, or (model, optimizer).

    It keeps FP32 masters; normalisation layers stay FP32. When the model, or a module in it, is called from
    outside, FP32 Tensors among its arguments are converted to `dtype`, and what it returns to FP32: this is
    `FP32.cast(model, keep={"": policy})`.
    Forward and backward follow the policy also outside of autocast. An optimizer may be made before or after.

    dtype: torch.float16, torch.bfloat16, torch.float32 (as if it had not been prepared), or a tinymp.Policy. TypeError
    or ValueError for another; ValueError for a weight that does not fit FP16.
    """
    instance("prepare", "model", model, Module)
    known = {POLICIES[name].storage: POLICIES[name] for name in ("MIXED", "BF16", "FP32") if name in POLICIES}
    policy = dtype if isinstance(dtype, Policy) else known.get(as_dtype(dtype, "prepare"))
    if policy is None:
        raise ValueError(f"prepare: expected `dtype` to be one of {', '.join(map(str, known))}, got {dtype}")
    policy = policy if flag("prepare", "enabled", enabled) else FP32
    FP32.cast(model, keep=None if policy is FP32 else {"": policy})
    _prepared.pop(model, None)
    if policy is not FP32:
        _prepared[model] = policy
    return model if optimizer is None else (model, optimizer)


class autocast(ContextDecorator):
    """A block, or as a decorator a function, in which the primitives follow the policy of a prepared model.

    The model has its precision from `prepare`, also outside. With enabled=False, or in torch.float32, nothing happens.
    torch.cuda.amp.autocast gives `enabled` first. RuntimeError on entry where no model is prepared for this dtype
    (None: for any).
    """

    def __init__(
        self, device_type: Any = "cuda", dtype: Any = None, enabled: bool = True, cache_enabled: Any = None
    ) -> None:
        if isinstance(device_type, bool):
            device_type, enabled = "cuda", device_type
        choice("autocast", "device_type", device_type, ("cuda", "cpu", "gpu", "mps", "xpu"))
        self.enabled = flag("autocast", "enabled", enabled)
        self.dtype = None if dtype is None else as_dtype(dtype, "autocast")
        self._blocks: list = []

    def __enter__(self) -> autocast:
        block: Any = use(self._policy()) if self.enabled and self.dtype != float32 else nullcontext()
        block.__enter__()
        self._blocks.append(block)
        return self

    def __exit__(self, *error: Any) -> None:
        self._blocks.pop().__exit__(*error)

    def _policy(self) -> Policy:
        """That of the model that was prepared last."""
        for policy in reversed(list(_prepared.values())):
            if self.dtype in (None, policy.storage):
                return policy
        other, dtype = next(iter(_prepared.values()), None), self.dtype or float16
        got = "none" if other is None else f"one for {other.storage}"
        raise RuntimeError(
            f"autocast: expected a model that is prepared for {dtype}, got {got}; in tinymp a model is stored in mixed "
            f"precision. Write, once for each model, behind the line that makes it,\n"
            f"    torch.amp.prepare(model{'' if dtype == float16 else f', dtype=torch.{dtype}'})\n"
            "and leave autocast and GradScaler as they are"
        )


class GradScaler(DynamicLossScaler):
    """`optim.DynamicLossScaler` with PyTorch's arguments: GradScaler(device="cuda", init_scale=65536.0,
    growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, enabled=True); torch.cuda.amp.GradScaler has no device.

    What differs: a parameter without a gradient is left as it is, but gradients whose loss was not passed through
    `scale` are refused; a loss that is not finite skips the step and leaves S; after many skips in a row `update`
    raises (see LossScaler). The other arguments of DynamicLossScaler are taken by name.
    """

    def __init__(self, *args: Any, enabled: bool = True, device: Any = "cuda", **options: Any) -> None:
        self._enabled = flag(self._name, "enabled", enabled)
        super().__init__(*(args[1:] if args and not isinstance(args[0], (int, float)) else args), **options)

    def is_enabled(self) -> bool:
        """False if every method passes through."""
        return self._enabled

    def get_scale(self) -> float:
        """The S by which `scale` multiplies now; 1 if not enabled."""
        return super().get_scale() if self._enabled else 1.0

    def scale(self, outputs: Any) -> Any:
        """S times a loss, or times each of several. See LossScaler.scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(map(super().scale, outputs))
        return super().scale(outputs)

    def unscale_(self, optimizer: Optimizer) -> None:
        """See LossScaler.unscale_."""
        if self._enabled:
            super().unscale_(optimizer)

    def step(self, optimizer: Any, *args: Any, **options: Any) -> Any:
        """See LossScaler.step; optimizer.step(*args, **options) if not enabled. RuntimeError for a closure."""
        if not self._enabled:
            return optimizer.step(*args, **options)
        if args or "closure" in options:
            raise RuntimeError(f"{self._name}.step: a closure is not supported with loss scaling; call backward first")
        return super().step(optimizer, **{"allow_missing": True, **options})

    def update(self) -> None:
        """See LossScaler.update."""
        if self._enabled:
            super().update()

    def state_dict(self) -> dict[str, Any]:
        """PyTorch's entries: S, the three options, and how many iterations went by since S changed."""
        options = {name: getattr(self, name) for name in _OPTIONS}
        return {"scale": self.get_scale(), **options, "_growth_tracker": self.growth_tracker} if self._enabled else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` returned, here or in PyTorch, whose scale has no ceiling: for one above 2^24 make
        the scaler with max_scale=. The errors are those of LossScaler.
        """
        if not self._enabled:
            return
        same_keys(f"{self._name}.load_state_dict", "state_dict", state_dict, {"scale", *_OPTIONS, "_growth_tracker"})
        low, high = self.min_scale, self.max_scale
        rule = type(self)(low, min_scale=low, max_scale=high, **{name: state_dict[name] for name in _OPTIONS})
        state = {"scale": state_dict["scale"], "growth_tracker": state_dict["_growth_tracker"]}
        super().load_state_dict({**state, "iteration": self.iteration, "history": self.history})
        vars(self).update({name: getattr(rule, name) for name in (*_OPTIONS, "max_consecutive_skips")})
