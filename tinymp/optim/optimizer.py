"""The optimizer's step: read gradients, update FP32 masters, refresh the working copies (MPT section 3.1)."""

from __future__ import annotations

from typing import Any, ClassVar

from .. import backend, statistics
from ..arguments import flag, require_unscaled
from ..autograd import Array
from ..events import Update, here, quietly, running, tell, type_name
from ..fast_path import find
from ..gradients import put, rows_of, values_of, with_values
from ..parameter import Parameter
from ..precision import UPDATE, policy_in_use, store, widen
from .groups import Group, Groups, State
from .result import StepResult


class Optimizer(Groups):
    """Updates parameters from their gradients. A subclass defines `update`, the rule for one parameter, and `initial`.

    params    Parameters, (name, Parameter) pairs, or dicts {"params": ..., option: value} of parameter groups
    defaults  the options of a group, with their default values

    param_groups  the groups, as in PyTorch: lists of parameters with their options; changing an option takes effect
                  (and is checked) at the next step
    state         per parameter, in order: the number of its updates, and arrays of its shape in FP32 (FP64 for FP64
                  parameters, FP16 only if the parameter's policy says so: `Policy.state`)

    A sparse gradient (`sparse=True`) updates only its rows and their state, by the same rule. For SGD without momentum
    and for Adagrad this is the same as zeros in the other rows. Momentum and Adam's averages would also move those
    rows; here, as in PyTorch's SparseAdam (but not in its SGD), they wait for the row's next gradient, and t counts the
    updates of the parameter. A weight decay concerns all rows and is refused.

    TypeError for anything but Parameters, for sets (they have no order) and for unknown options; ValueError for no
    parameters, for one given twice, and for options out of range.
    """

    kind: ClassVar = UPDATE

    def update(self, w: Array, g: Array, state: State, group: Group) -> Array:
        """The new weights. All arrays are FP32 (FP64 for FP64 parameters); those in `state` may be written in place.

        For a sparse gradient, w, g and `state` hold only its rows.
        """
        raise NotImplementedError(f"{self._name} has no update")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set all gradients to None, and never to zeros, which would carry no loss scale."""
        if set_to_none is not True:
            raise TypeError(f"{self._name}.zero_grad: only set_to_none=True is supported, got {set_to_none!r}")
        for p in self.parameters():
            p.zero_grad()

    def step(self, *, allow_missing: bool = False) -> StepResult:
        """Update every parameter that requires a gradient; the gradients must be unscaled. See `StepResult`.

        With a loss scaler, call `scaler.step(optimizer)` instead: each scaler, also NoLossScaler, first checks that the
        gradients are finite; this method does not. RuntimeError, and nothing is updated, if gradients still carry a
        loss scale, or if only some parameters have a gradient (with allow_missing, the others keep their value).

        An interrupted step (KeyboardInterrupt, MemoryError) may have updated only some parameters, and the state of one
        of them without its weight. Even then every working copy is its master, rounded.
        """
        ready = self.ready(allow_missing)
        for _, p in ready:
            require_unscaled(f"{self._name}.step", p, "scaler.step(optimizer)")
        result = self.finish(ready, skip=False)
        statistics.settle(False)  # this ends the iteration, also for layers that it does not train
        return result

    def ready(self, allow_missing: bool) -> list[tuple[Group, Parameter]]:
        """The parameters to update, with their groups. All checks are made here, before anything changes."""
        flag(f"{self._name}.step", "allow_missing", allow_missing)
        ready: list[tuple[Group, Parameter]] = []
        missing: list[tuple[Group, Parameter]] = []
        for group in self.param_groups:
            self.check_options(group)
            for p in group["params"]:
                # a frozen parameter that has a gradient is updated
                if p.requires_grad or p.grad_array is not None:
                    (missing if p.grad_array is None else ready).append((group, p))
        for group, p in ready:
            if group.get("weight_decay") and hasattr(p.grad_array, "rows"):
                raise RuntimeError(
                    f"{self._name}.step: a weight_decay is for all rows of parameter {self.label(p)}, but its gradient "
                    "is sparse: give it a group with weight_decay=0, or make the gradient dense (sparse=False)"
                )
        if ready and missing and not allow_missing:
            raise RuntimeError(
                f"{self._name}.step: parameter {self.label(missing[0][1])} has no gradient while {len(ready)} of "
                f"{len(ready) + len(missing)} have one: the loss does not depend on it. Freeze it with "
                "requires_grad_(False), give it a separate optimizer, or pass step(..., allow_missing=True)"
            )
        return ready

    def finish(self, ready: list[tuple[Group, Parameter]], skip: Any) -> StepResult:
        """Apply the update, or skip it if `skip`, and settle the running statistics."""
        device = backend.of(ready[0][1].array).name if ready else "cpu"
        result = (find(Optimizer.apply, device) or Optimizer.apply)(self, ready, skip)
        statistics.settle(skip, self.parameters())
        if here.observers:
            tell("stepped", self, result)
        return result

    def apply(self, ready: list[tuple[Group, Parameter]], skip: Any) -> StepResult:
        """Update these parameters, unless there are none or the step is to be skipped."""
        if not ready:
            return StepResult.NO_GRADIENTS
        if skip:
            return StepResult.SKIPPED
        quietly(self._update_all, ready)
        return StepResult.APPLIED

    def _update_all(self, ready: list[tuple[Group, Parameter]]) -> None:
        for group, p in ready:
            policy_in_use.set(p.policy)  # it rounds state and weights; the context of `quietly` ends it
            running.set(Update(self, p))
            g, state = p.grad_array, self.state_of(group, p)
            counts = {"step": int(state["step"]) + 1, "started_at": int(state.get("started_at", 0))}
            arrays = {name: rows_of(state[name], g) for name in self.initial(group)}
            updated = find(Optimizer.updated, backend.of(p.array).name) or Optimizer.updated
            old = rows_of(p.master, g)
            w, new = updated(self, old, values_of(g), p.grad_scale, arrays, counts, group)
            if getattr(w, "shape", None) != old.shape:
                raise TypeError(f"{self._name}.update: expected new weights of shape {old.shape}, got {type_name(w)}")
            state["step"] = counts["step"]
            for name, array in new.items():
                if array is not state[name]:  # FP16 state, or rows
                    put(state[name], with_values(g, array))
            # the write-back: exact into the FP32 master, one rounding into the FP16 copy (MPT section 3.1)
            p.write(with_values(g, w))

    def updated(self, w: Array, g: Array, scale: Any, arrays: State, counts: State, group: Group) -> tuple:
        """The new weights in FP32, and the new state in its own dtype, from a gradient that carries a loss scale.

        FP32 state is written in place. A GPU calls this with symbols instead of arrays and numbers.
        """
        g, wide = without_scale(g, scale), {name: widen(x) for name, x in arrays.items()}
        w = self.update(widen(w), -g if group.get("maximize") else g, {**wide, **counts}, group)
        return w, {name: store(x, like=arrays[name]) for name, x in wide.items()}


def unscaled(p: Parameter) -> Array:
    """p's gradient in FP32, divided by the loss scale that it carries. It may be the same array."""
    return with_values(p.grad_array, without_scale(values_of(p.grad_array), p.grad_scale))


def without_scale(g: Array, scale: Any) -> Array:
    """g in FP32, divided by its loss scale (NVG section 2.3.1, step 5): a number, or `scale.array` on a GPU."""
    return widen(g) if scale == 1 else widen(g) / getattr(scale, "array", scale)
