"""A loss scaler's state on the GPU, so that a step never waits for the host and can be captured in a CUDA graph.

The rules are those of scaler.py; `scaler.cu` applies them at the end of an iteration. What the host wants to know (the
scale, the history, that a limit was reached) it asks for, which waits, or learns some steps late from a mailbox.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..autograd import Array
from ..backend import gpu
from ..backend.kernels import Kernels
from ..backend.recording import Mailbox
from ..parameter import Parameter
from ..precision import float32, float64
from ..sparse import values_of, with_values
from . import multi_tensor
from .multi_tensor import NONE

KERNELS = Kernels(__file__.replace("device_scaler", "scaler"))

ITERATION, GROWTH_TRACKER, SKIPS, BAD_LOSSES, CHANGES, OVERFLOWED, COUNTS = range(7)  # places in `counts`; scaler.cu
OPTIMIZERS = 16  # how many one scaler can serve
RING = 1024  # how many changes of S are remembered between two looks of the host


class DeviceScale:
    """A loss scale that lives on the GPU. It travels beside gradients like a number; `float` of it waits for the GPU.

    Each is equal to itself alone: whether two hold one value is not known to the host.
    """

    def __init__(self, array: Array) -> None:
        self.array = array

    def __float__(self) -> float:
        return float(gpu.to_numpy(self.array))

    def __rmul__(self, other: float) -> DeviceScale:
        if other != 1:
            raise RuntimeError(f"scale: the loss carries a scale already ({float(other):g}); scale it once")
        return self


class DeviceSide:
    """What a loss scaler keeps on the GPU.

    scale     S, FP32, without axes
    counts    int32; see ITERATION and the following
    found     int32, per optimizer: the first parameter whose gradient is not finite, or NONE
    bad_loss  int32, one: whether a loss of this iteration is not finite
    """

    def __init__(self, scale: float, arrived: Callable[[np.ndarray], None]) -> None:
        xp = gpu.xp
        self.scale = xp.full((), scale, float32.name)
        self.counts = xp.zeros(COUNTS, "int32")
        self.found = xp.full(OPTIMIZERS, NONE, "int32")
        self.bad_loss = xp.zeros(1, "int32")
        self.changes = xp.zeros(RING, "int32"), xp.zeros(RING, float32.name), xp.zeros(RING, "int32")
        self.optimizers: list[Any] = []
        self.factor = DeviceScale(self.scale)
        self.box = Mailbox(self.counts, arrived)

    def note_loss(self, loss: Array) -> None:
        """Remember whether this loss is not finite."""
        self.bad_loss |= ~gpu.xp.isfinite(loss.reshape(1))

    def _found(self, optimizer: Any) -> Array:
        if optimizer not in self.optimizers:
            if len(self.optimizers) == OPTIMIZERS:
                raise ValueError(f"a loss scaler on the GPU serves at most {OPTIMIZERS} optimizers")
            self.optimizers.append(optimizer)
        i = self.optimizers.index(optimizer)
        return self.found[i : i + 1]

    def check(self, optimizer: Any, params: list[Parameter]) -> None:
        """Look for gradients that, without their scale, are not finite: one launch over all of one scale.

        FP64 has no kernels.
        """
        found, xp = self._found(optimizer), gpu.xp
        alike: dict[Any, list[Parameter]] = {}
        for p in params:
            alike.setdefault(p.grad_scale, []).append(p)
        for scale, some in alike.items():
            grads, array = _gradients(optimizer, some), self._array(scale)
            multi_tensor.check([None if _is_fp64(g) else g for g in grads], found, array)
            for i, g in enumerate(grads):
                if _is_fp64(g):
                    xp.minimum(found, xp.where(xp.isfinite(g / array).all(), NONE, i), out=found)

    def _array(self, scale: Any) -> Array:
        return scale.array if isinstance(scale, DeviceScale) else gpu.xp.full((), scale, self.scale.dtype)

    def unscale(self, optimizer: Any, params: list[Parameter], scale: Any) -> None:
        """The same, and replace the gradients, which carry `scale`, by unscaled ones in FP32 (FP64 for FP64)."""
        array = self._array(scale)
        self.check(optimizer, [p for p in params if _is_fp64(p.grad)])
        grads = _gradients(optimizer, params)
        narrow = multi_tensor.unscale([None if _is_fp64(g) else g for g in grads], array, self._found(optimizer))
        for p, g, unscaled in zip(optimizer._parameters(), grads, narrow):
            if g is not None:
                p.grad, p.grad_scale = with_values(p.grad, g / array if unscaled is None else unscaled), 1.0

    def skip(self, optimizer: Any) -> Array:
        """Whether to skip the step of this optimizer: int32, one; as it is now, not as it will be."""
        return (self._found(optimizer) != NONE) | (self.bad_loss != 0)

    def label(self, overflowed: int) -> str:
        """The parameter that scaler.cu calls `overflowed`, for messages."""
        i, j = divmod(int(overflowed), 65536)
        if not 0 <= i < len(self.optimizers):
            return "a parameter"
        optimizer = self.optimizers[i]
        params = optimizer._parameters()
        return optimizer._label(params[j]) if j < len(params) else "a parameter"

    def end(self, dynamic: tuple | None, judged: bool = True) -> None:
        """End the iteration, in one small launch. dynamic: (growth, backoff, interval, least, most), or None.

        judged: whether gradients were looked at; if not, the iteration is only forgotten.
        """
        if not judged:
            self.found.fill(NONE)
            self.bad_loss.fill(0)
            self.counts[ITERATION] += 1
            return
        growth, backoff, interval, least, most = dynamic or (1.0, 1.0, 1, 0.0, 0.0)
        KERNELS.launch(
            "end_iteration", self.scale.dtype, 1, 32,
            self.scale, self.counts, self.found, self.bad_loss, len(self.optimizers), int(dynamic is not None),
            growth, backoff, interval, least, most, *self.changes, RING,
        )  # fmt: skip
        self.box.poll()

    def changes_since(self, seen: int) -> list[tuple[int, float, int]]:
        """(iteration, new S, reason) of every change of S after the first `seen` ones. It waits for the GPU."""
        total = int(gpu.to_numpy(self.counts)[CHANGES])
        columns = [gpu.to_numpy(x) for x in self.changes]
        places = [i % RING for i in range(max(seen, total - RING), total)]
        return [(int(columns[0][i]), float(columns[1][i]), int(columns[2][i])) for i in places]


def _gradients(optimizer: Any, params: list[Parameter]) -> list[Array | None]:
    """The gradients' arrays of `params` at their places among all the optimizer's parameters, None at the others."""
    wanted = {id(p) for p in params}
    return [values_of(p.grad) if id(p) in wanted else None for p in optimizer._parameters()]


def _is_fp64(g: Array | None) -> bool:
    return g is not None and g.dtype == float64
