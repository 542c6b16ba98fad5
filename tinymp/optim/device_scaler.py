"""A loss scaler's state on the GPU, so that a step never waits for the host and can be captured in a CUDA graph.

The rules are those of scaler.py; `scaler.cu` applies them at the end of an iteration. The host reads the scale and the
history on request, which waits for the GPU; that a limit was reached it learns some steps late, from a mailbox.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..autograd import Array
from ..backend import gpu
from ..backend.kernels import Kernels
from ..backend.recording import Mailbox
from ..dtypes import float32, float64
from ..events import here
from ..parameter import Parameter
from ..sparse import values_of, with_values
from ..tensor import Tensor
from . import multi_tensor
from .multi_tensor import NONE

KERNELS = Kernels(__file__.replace("device_scaler", "scaler"))

# Places in `counts`, and the number of them; scaler.cu has the same. STUCK: overflows since S came to its least
ITERATION, GROWTH_TRACKER, SKIPS, BAD_LOSSES, STUCK, CHANGES, OVERFLOWED, COUNTS = range(8)
OPTIMIZERS = 16  # how many one scaler can serve
RING = 1024  # how many changes of S are kept until the host reads them


class DeviceScale:
    """A loss scale on the GPU. It stands beside gradients in place of a number; `float` of it waits for the GPU.

    Two of them compare equal only if they are the same object: the host does not know their values.
    """

    __array_ufunc__ = None  # array * self is for __rmul__, by NumPy's protocol, which CuPy follows

    def __init__(self, array: Array) -> None:
        self.array = array

    def __float__(self) -> float:
        return float(gpu.to_numpy(self.array))

    def __rmul__(self, other: Any) -> Any:
        if hasattr(other, "dtype"):  # a loss, or its gradient
            return _scaled(other, self.array)
        if other != 1:
            raise RuntimeError(f"scale: the loss carries a scale already ({float(other):g}); scale it once")
        return self


class DeviceSide:
    """What a loss scaler keeps on the GPU.

    scale     S, FP32, without axes
    counts    (COUNTS,), int32; see ITERATION and the following
    found     (OPTIMIZERS,), int32: per optimizer the place of its first gradient that is not finite, or NONE
    bad_loss  (1,), int32: 1 if a loss of this iteration is not finite, else 0
    changes   the last RING changes of S, as three arrays (RING,): iteration (int32), new S (FP32), reason (int32);
              see scaler.cu
    """

    def __init__(self, scale: float, arrived: Callable[[int, int, int, str], None]) -> None:
        xp = gpu.xp
        self.scale = xp.full((), scale, float32.name)
        self.counts = xp.zeros(COUNTS, "int32")
        self.found = xp.full(OPTIMIZERS, NONE, "int32")
        self.bad_loss = xp.zeros(1, "int32")
        self.changes = xp.zeros(RING, "int32"), xp.zeros(RING, float32.name), xp.zeros(RING, "int32")
        self.optimizers: list[Any] = []
        self.factor = DeviceScale(self.scale)
        # called some steps late with: skips and bad losses in a row, overflows at the least S, who overflowed
        self._arrived = arrived
        self.box = Mailbox(self.counts, self._tell)

    def _tell(self, counts: np.ndarray) -> None:
        skips, bad_losses, stuck = (int(counts[i]) for i in (SKIPS, BAD_LOSSES, STUCK))
        self._arrived(skips, bad_losses, stuck, self.label(counts[OVERFLOWED]))

    def note_loss(self, loss: Tensor, witness: Any = None) -> None:
        """Remember whether this loss is not finite. (A witness is asked when the host learns of it.)"""
        kernel = "note_loss_fp64" if loss.dtype == float64 else "note_loss"
        KERNELS.launch(kernel, self.scale.dtype, 1, 32, loss.array, self.bad_loss)

    def _found(self, optimizer: Any) -> Array:
        if optimizer not in self.optimizers:
            if len(self.optimizers) == OPTIMIZERS:
                raise ValueError(f"a loss scaler on the GPU serves at most {OPTIMIZERS} optimizers")
            self.optimizers.append(optimizer)
        i = self.optimizers.index(optimizer)
        return self.found[i : i + 1]

    def check(self, optimizer: Any, params: list[Parameter]) -> None:
        """Look for gradients that, divided by their scale, are not finite: one launch per scale and dtype (FP16, FP32).

        FP64 has no kernel: such gradients are checked one by one.
        """
        found, xp = self._found(optimizer), gpu.xp
        for scale, with_this_scale in _by_scale(params):
            grads, array = _gradients(optimizer, with_this_scale), self._array(scale)
            multi_tensor.check([None if _is_fp64(g) else g for g in grads], found, array)
            for i, g in enumerate(grads):
                if _is_fp64(g):
                    xp.minimum(found, xp.where(xp.isfinite(g / array).all(), NONE, i), out=found)

    def _array(self, scale: Any) -> Array:
        return scale.array if isinstance(scale, DeviceScale) else gpu.xp.full((), scale, self.scale.dtype)

    def unscale(self, optimizer: Any, params: list[Parameter]) -> None:
        """Check gradients, and replace them by unscaled ones in FP32 (FP64 for FP64)."""
        self.check(optimizer, [p for p in params if _is_fp64(p.grad)])
        for scale, some in _by_scale(params):
            array, grads = self._array(scale), _gradients(optimizer, some)
            narrow = multi_tensor.unscale([None if _is_fp64(g) else g for g in grads], array, self._found(optimizer))
            for p, g, unscaled in zip(optimizer.parameters(), grads, narrow):
                if g is not None:
                    p.grad, p.grad_scale = with_values(p.grad, g / array if unscaled is None else unscaled), 1.0

    def skip(self, optimizer: Any) -> Array:
        """Whether to skip the step of this optimizer, by what is known now: (1,), bool. All processes agree."""
        if here.group is not None:
            here.group.all_reduce(self._found(optimizer), "min")
            here.group.all_reduce(self.bad_loss, "max")
        skip = gpu.xp.empty(1, "bool")
        KERNELS.launch("judge", self.scale.dtype, 1, 32, self._found(optimizer), self.bad_loss, skip)
        return skip

    def label(self, overflowed: int) -> str:
        """The name of the parameter whose gradient overflowed, for messages; `overflowed` as scaler.cu encodes it."""
        i, j = divmod(int(overflowed), 65536)
        if not 0 <= i < len(self.optimizers):
            return "a parameter"
        optimizer = self.optimizers[i]
        params = optimizer.parameters()
        return optimizer.label(params[j]) if j < len(params) else "a parameter"

    def end(self, dynamic: tuple | None, judged: bool = True) -> None:
        """End the iteration, in one small launch. dynamic: (growth, backoff, interval, least, most), or None.

        judged: whether gradients were checked; if not, what was noted in this iteration is only reset.
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

    def write(self, scale: float, *counts: int) -> None:
        """Set S and the counts: iterations, those since S grew, skips and bad losses in a row, STUCK, changes of S."""
        self.counts[...] = gpu.asarray(np.array([*counts, 0], "int32"))
        self.scale.fill(scale)

    def read(self) -> tuple[float, int, int, int, int, int]:
        """S, and all counts that `write` sets but that of the changes. It waits."""
        counts = gpu.to_numpy(self.counts)
        found = (int(counts[i]) for i in (ITERATION, GROWTH_TRACKER, SKIPS, BAD_LOSSES, STUCK))
        return (float(self.factor), *found)  # type: ignore[return-value]

    def forget_skips(self) -> None:
        """Begin to count skips anew."""
        self.counts[SKIPS] = 0

    def forget_bad_losses(self) -> None:
        """Begin to count losses that are not finite anew."""
        self.counts[BAD_LOSSES] = 0

    def changes_since(self, seen: int) -> list[tuple[int, float, int]]:
        """(iteration, new S, reason) of every change of S after the first `seen` ones. It waits for the GPU."""
        total = int(gpu.to_numpy(self.counts)[CHANGES])
        columns = [gpu.to_numpy(x) for x in self.changes]
        places = [i % RING for i in range(max(seen, total - RING), total)]
        return [(int(columns[0][i]), float(columns[1][i]), int(columns[2][i])) for i in places]


def _scaled(x: Array, scale: Array) -> Array:
    """x, of one element, times the scale."""
    if x.dtype == float64:
        return x * scale
    y = gpu.xp.empty_like(x)
    KERNELS.launch("scale_loss", x.dtype, 1, 32, x, scale, y)
    return y


def _gradients(optimizer: Any, params: list[Parameter]) -> list[Array | None]:
    """The gradients' arrays of `params` at their places among all the optimizer's parameters, None at the others."""
    wanted = {id(p) for p in params}
    return [values_of(p.grad) if id(p) in wanted else None for p in optimizer.parameters()]


def _by_scale(params: list[Parameter]) -> Iterable[tuple[Any, list[Parameter]]]:
    """The parameters by the loss scale that their gradients carry."""
    found: dict[Any, list[Parameter]] = {}
    for p in params:
        found.setdefault(p.grad_scale, []).append(p)
    return found.items()


def _is_fp64(g: Array | None) -> bool:
    return g is not None and g.dtype == float64
