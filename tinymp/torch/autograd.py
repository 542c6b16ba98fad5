"""torch.autograd: Variable, which is a Tensor, and gradients of the first order."""

from __future__ import annotations

from contextlib import nullcontext as _nullcontext
from typing import Any

from ..events import Observer as _Observer
from ..events import here as _here
from ..gradients import values_of as _values_of
from ..tensor import Tensor
from .space import fill, names


def Variable(data: Tensor, requires_grad: bool | None = None, volatile: bool = False) -> Tensor:
    """data, which needs no wrapper. requires_grad: set it."""
    return data if requires_grad is None else data.detach().requires_grad_(requires_grad)


class _Anomalies(_Observer):
    def ran(self, op: Any, inputs: tuple, outputs: tuple) -> None:
        for i, g in enumerate(outputs if op.phase == "backward" else ()):
            if g is not None and op.xp.isnan(_values_of(g)).any():
                raise RuntimeError(f"{op.name}: backward returned nan in the gradient of `{op.name_of(i)}`")

    def listen(self, on: bool) -> None:
        if on != (self in _here.observers):
            (_here.observers.append if on else _here.observers.remove)(self)


_anomalies = _Anomalies()


class set_detect_anomaly(_nullcontext):
    """With mode and check_nan, backward in this thread raises RuntimeError at the first op that returns a NaN; as a
    context, up to its end. `tinymp.audit` also names the line, and finds infinities.
    """

    def __init__(self, mode: bool = True, check_nan: bool = True) -> None:
        super().__init__()
        self._before = _anomalies in _here.observers
        _anomalies.listen(mode and check_nan)

    def __exit__(self, *error: Any) -> None:
        _anomalies.listen(self._before)


detect_anomaly = set_detect_anomaly
_TABLE = names("ops.more.autograd", "Function backward grad") | names("torch", "enable_grad no_grad")
fill(globals(), "torch.autograd", _TABLE)
