"""torch.amp, torch.cuda.amp, torch.autocast: mixed precision as PyTorch writes it, over a policy and a loss scaler.

PyTorch keeps weights in FP32 and converts them at every product, where autocast lists the op. Here a model *stores* its
weights in FP16, with FP32 masters behind them (MPT section 3.1): one line more, torch.amp.prepare(model), says which.
autocast and GradScaler stay as they are written. Within autocast ops take their arguments as PyTorch's do:

    products      FP32 is rounded to FP16; of a weight they read the FP16 copy
    FP32, below   FP16 is widened; so results, and what backward keeps, are FP32
    losses        FP16 as it is: they compute in FP32
    other ops     as their arguments are; where FP16 meets FP32, it is widened

All but products read a weight's FP32 master.
"""

from __future__ import annotations

from contextlib import ContextDecorator, ExitStack
from typing import Any
from weakref import WeakKeyDictionary

from ..arguments import choice, flag, instance, same_keys
from ..dtypes import FLOATING, HALVES, as_dtype, float16, float32, float64
from ..events import Setting
from ..nn import Module
from ..nn.more.keep import kept_policy
from ..optim import DynamicLossScaler, Optimizer
from ..precision import DOT, FP32, POLICIES, Policy, policy_in_use
from ..tensor import Tensor

__all__ = ["GradScaler", "autocast", "prepare"]

_prepared: WeakKeyDictionary[Module, Policy] = WeakKeyDictionary()
_OPTIONS = ("growth_factor", "backoff_factor", "growth_interval")

# Of PyTorch 2.11's lists for CUDA, what tinymp has by name. tests/face/autocast.json holds what PyTorch answers
_WIDENED = """
    acos asin cosh cosine_similarity cdist cumprod cumsum erfinv exp expm1 group_norm interpolate layer_norm log log10
    log1p log2 log_softmax logsumexp norm normalize pairwise_distance pow prod reciprocal rsqrt sinh softmax softplus
    square sum tan
"""
_FP32 = {*_WIDENED.split()}
_PRODUCTS = {"addmm", "cell", "prelu"}  # beside the ops that are DOT


def _as(x: Any, dtype: Any) -> Any:
    return x.to(dtype) if dtype != float32 or x.weight is None else x.wide()


class Autocast(Policy):
    """A policy whose ops take their arguments as PyTorch's do. region: True within autocast. False within
    autocast(enabled=False) in it: weights are their masters, and FP16 that meets FP32 is widened. None elsewhere: ops
    do as the policy does; FP16 that would be refused beside FP32 is treated as within autocast.
    """

    region: bool | None = None

    def __reduce__(self) -> tuple:
        return _within, (self.region, Policy(**{name: x for name, x in vars(self).items() if name != "region"}))

    def arguments(self, op: Any, args: tuple, options: dict) -> Any:
        """The arguments that `op`, an Op or a function's name, gets. RuntimeError for an op that PyTorch refuses."""
        name, fp32, region = getattr(op, "name", op), getattr(op, "_fp32", ()), self.region
        floats = {i: x for i, x in enumerate(args) if isinstance(x, Tensor) and x.array.dtype in FLOATING}
        if not floats or self.storage not in HALVES:
            return args
        if region and name == "binary_cross_entropy":
            raise RuntimeError(f"{name}: PyTorch's autocast refuses it as unsafe; use {name}_with_logits")
        product = region is not False and (name in _PRODUCTS or getattr(op, "kind", None) is DOT)
        masters = region is not None and not product and not options.get("sparse")
        new = {i: float32 if masters and x.weight is not None else x.array.dtype for i, x in floats.items()}
        free = [i for i in new if (new[i] != float32 or i not in fp32) and not (product and new[i] == float64)]
        found = [new[i] for i in free if floats[i].array.ndim] or [new[i] for i in free]  # without axes: as numbers
        if name in _FP32 or (name == "div" and 0 not in floats):  # a number / x is x's reciprocal
            found += [float32] * bool(region)
        wide = max(found, key=lambda dtype: dtype.itemsize, default=float32)
        new |= dict.fromkeys(free, self.storage if product and (region or {*found} & {*HALVES}) else wide)
        return [x if i not in new or x.array.dtype == new[i] else _as(x, new[i]) for i, x in enumerate(args)]


def _within(region: bool | None, policy: Policy) -> Autocast:
    made: Any = Autocast.__new__(Autocast)
    vars(made).update({**vars(policy), "region": region})
    return made


def prepare(model: Module, optimizer: Any = None, dtype: Any = float16, enabled: bool = True) -> Any:
    """Give the model the storage of mixed precision, in place; return it, or (model, optimizer).

    It keeps FP32 masters; normalisation layers and buffers stay FP32. Outside of autocast, the model, or a module in
    it, that is called converts FP32 Tensors among its arguments to `dtype`, and what it returns to FP32: this is
    `FP32.cast(model, keep={"": policy})`. An optimizer may be made before or after.

    dtype: torch.float16, torch.bfloat16, torch.float32 (as if it had not been prepared), or a tinymp.Policy. TypeError
    or ValueError for another; ValueError for a weight that does not fit FP16.
    """
    instance("prepare", "model", model, Module)
    known = {POLICIES[name].storage: POLICIES[name] for name in ("MIXED", "BF16", "FP32") if name in POLICIES}
    policy = dtype if isinstance(dtype, Policy) else known.get(as_dtype(dtype, "prepare"))
    if policy is None:
        raise ValueError(f"prepare: expected `dtype` to be one of {', '.join(map(str, known))}, got {dtype}")
    on = flag("prepare", "enabled", enabled) and policy is not FP32
    FP32.cast(model, keep={"": (policy := _within(None, policy))} if on else None)
    _prepared.pop(model, None)
    if on:
        _prepared[model] = policy
    return model if optimizer is None else (model, optimizer)


class autocast(ContextDecorator):
    """A block, or as a decorator a function, in which ops follow the policy of a prepared model, and take their
    arguments as PyTorch's do. With enabled=False, or in torch.float32, nothing happens, but within autocast: there FP32
    is computed in FP32, also with the model's weights. RuntimeError on entry where no model is prepared for this dtype
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
        on, now = self.enabled and self.dtype != float32, policy_in_use.get()
        policy = self._policy() if on else now
        with ExitStack() as stack:
            if on or getattr(now, "region", None) is not None:
                for variable in (policy_in_use, kept_policy):
                    stack.enter_context(Setting(variable, _within(on, policy)))
            self._blocks.append(stack.pop_all())
        return self

    def __exit__(self, *error: Any) -> None:
        self._blocks.pop().__exit__(*error)

    def _policy(self) -> Policy:
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
    raises.
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
