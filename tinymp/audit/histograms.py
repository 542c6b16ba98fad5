"""Histograms of exponents: where weights and gradients lie in FP16's range, and which loss scale would suit them (MPT
figures 2b and 3, section 3.2).
"""

from __future__ import annotations

import math
from typing import Any
from weakref import ref

import numpy as np

from .. import backend
from ..autograd import Op
from ..dtypes import FP16_MAX, NAMES, float16
from ..gradients import values_of
from ..parameter import Parameter
from ..precision import LOSS, current_policy
from ..tensor import Tensor
from .exponents import (
    HIGHEST,
    NONE,
    ZEROS,
    Histogram,
    Lost,
    between,
    bin_of,
    draw,
    exponents,
    lost_of,
    nonzero,
    total,
)
from .listener import Instrument, Place
from .replay import overflowed
from .sampling import Told, distinct, table
from .scales import Scales

WEIGHT, WEIGHT_GRADIENT, ACTIVATION_GRADIENT = ROLES = "weight", "weight gradient", "activation gradient"
GRADIENTS = ROLES[1:]
SCALES = [2.0**k for k in range(25)]  # up to 2^24, the largest S of the loss scalers


def _memory_of(gradients: tuple) -> dict[int, Any]:
    """{id: owner} of the arrays that own the memory of the FP16 gradients."""
    arrays = [values_of(g) for g in gradients if getattr(g, "dtype", None) == float16 and g.ndim]
    return {id(backend.owner_of(x)): backend.owner_of(x) for x in arrays}


def _underflows(x: Any, y: Any) -> np.ndarray:
    """The exponents of the nonzero values of x that became 0 in y. A tie, 2^-25, counts as the next smaller exponent:
    as lost.
    """
    device = backend.of(y)
    bits = device.bits(y) & 0x7FFF
    nonzero = int(device.xp.count_nonzero(bits))
    if nonzero == y.size or nonzero == int(device.xp.count_nonzero(device.bits(x))):  # but -0 has a bit
        return NONE
    counts = exponents(x[bits == 0])
    counts[ZEROS] = 0
    counts[bin_of(-26)] += between(counts, -25, HIGHEST)
    counts[bin_of(-25) :] = 0
    return counts


class Exponents(Told, Instrument):
    """Counts the exponents floor(log2 |x|) of weights and gradients, per layer and over the training.

    weight               when a model is first called, and as updates write it: the FP32 master, where there is one.
                         `dtype` is that of the working copy
    weight gradient      what each `backward` adds to the weight's `grad`. Of SparseRows, the rows that they have
    activation gradient  the gradient of the result of each op of a layer, as it arrives in the op's backward; losses
                         and single numbers are left out

    Gradients are counted as they are stored in backward, multiplied by the loss scale S of the moment, and brought to
    one scale afterwards: for powers of two that is exact. A gradient that became 0 when it was rounded to FP16 counts
    with the exponent that it had before. What was 0 before an op read it is among the zeros: shares lost are exact for
    FP32 runs, and lower bounds for FP16 runs at a small S. Policies are kept apart, by name. Shares and scales for all
    gradients are of those in FP16.
    """

    def __init__(self, scales: Scales | None = None) -> None:
        """scales: the instrument that has tried which loss scale would have spared a skipped step."""
        self._scales, self._overflowed = scales, set[float]()  # the loss scales at which a gradient was rounded to inf
        self._tensors: dict[tuple, Histogram] = {}
        self._roots = 0  # how many models were seen
        # Arrays rounded since the last op ran: memory, number of values, and the exponents of those that became 0
        self._rounded: list[tuple[ref, int, np.ndarray]] = []
        self._underflows: dict[int, tuple[ref, int, np.ndarray]] = {}  # the same for gradients, while they live

    # ---- looking

    def rounded(self, place: Place, x: Any, y: Any) -> None:
        if place.phase == "backward" and y.dtype == float16:
            whole = backend.owner_of(backend.of(y).xp.asarray(y))
            self._rounded.append((ref(whole), y.size, _underflows(x, y)))
            if not backend.of(y).isfinite(y) and overflowed(x, y) is not None:
                self._overflowed.add(self.listener.scale)

    def ran(self, place: Place, op: Op, inputs: tuple, outputs: tuple) -> None:
        if place.phase == "forward":
            if len(self.listener.models) > self._roots:
                self._first_use()
            return
        self._settle(inputs, outputs)
        if op.kind is not LOSS:
            for dy in inputs:
                if dy is not None and dy.size > 1:
                    name = f"{place.module} {op.name}".strip()
                    self._count(self._of(ACTIVATION_GRADIENT, name, place.module, dy.dtype), dy, self.listener.scale)

    def deposited(self, leaf: Tensor, gradient: Any, scale: Any) -> None:
        self._settle((gradient,), ())
        if isinstance(leaf, Parameter):
            self._add_parameter(leaf, WEIGHT_GRADIENT, gradient, float(scale))

    def written(self, place: Place, parameter: Parameter, value: Any) -> None:
        if place.phase == "update":
            self._add_parameter(parameter, WEIGHT, value)

    def _first_use(self) -> None:
        for thing in self.listener.models[self._roots :]:
            for _, p in thing.named_parameters():
                self._add_parameter(p, WEIGHT, p.master)
        self._roots = len(self.listener.models)

    def _settle(self, given: tuple, made: tuple) -> None:
        """Find out which gradients were rounded: as whole arrays, or, if only one was made, in blocks."""
        inputs, outputs = _memory_of(given), _memory_of(made)
        blocks = {key: owner for key, owner in outputs.items() if key not in inputs}
        n, counts = 0, NONE
        for memory, size, underflows in self._rounded:
            owner = memory()
            if id(owner) in inputs or id(owner) in outputs:
                self._keep(owner, size, underflows)
                blocks.pop(id(owner), None)
            else:
                n, counts = n + size, counts + underflows
        self._rounded.clear()
        if len(blocks) == 1 and (owner := next(iter(blocks.values()))).size == n:
            self._keep(owner, n, counts)

    def _keep(self, owner: Any, size: int, underflows: np.ndarray) -> None:
        if underflows.any():
            key = id(owner)
            self._underflows[key] = ref(owner, lambda _: self._underflows.pop(key, None)), size, underflows

    def _add_parameter(self, p: Parameter, role: str, x: Any, scale: float = 1.0) -> None:
        name = self.listener.name_of(p)
        histogram = self._of(role, name, name.rpartition(".")[0], p.dtype, p.normalisation)
        self._count(histogram, values_of(distinct(x)), scale)

    def _of(self, role: str, name: str, layer: str, dtype: np.dtype, normalisation: bool = False) -> Histogram:
        key = role, name, dtype, current_policy().name
        if key not in self._tensors:
            self._tensors[key] = Histogram(*key, layer, normalisation)
        return self._tensors[key]

    def _count(self, histogram: Histogram, x: Any, scale: float) -> None:
        if not backend.of(x).has_values:
            return  # on the device "meta"
        _, size, underflows = self._underflows.get(id(backend.owner_of(x)), (None, 1, NONE))
        shown = math.prod(n for n, step in zip(x.shape, x.strides) if step)  # of a broadcast array, each several times
        times = x.size // size if shown == size else 0  # of a part of a rounded array, the underflows are not known
        histogram.add(x, times * underflows, scale)

    # ---- asking

    def share_lost(self, role: str, scale: float | None = None) -> Lost:
        """The share that FP16 would lose of the nonzero values of a role ("weight gradient", ...), at a loss scale.

        scale: by default the last one in use; for weights 1. The shares, counted by exponents alone:
            zero       |x| scale < 2^-25: rounds to 0. (2^-25 itself, a tie, is counted as kept)
            subnormal  2^-25 <= |x| scale < 2^-14: becomes subnormal, with fewer than 11 significant bits
            overflow   |x| scale >= 2^16: becomes infinite (what is from 65 520 on is counted as kept); and what is
                       infinite already, at its own scale and larger ones

        Of gradients, those stored in FP16 count; in an FP32 run, all but those of normalisation layers (NVG section
        2.3.1).
        """
        return lost_of(self._stored(role), self.scale_of(role) if scale is None else scale)

    def best_scale(self) -> float | None:
        """The largest power of two S with S max|g| < 65 504 for all gradients seen (MPT section 3.2), below every S
        at which one overflowed, and at which skipped steps had fitted; at most 2^24. None where all gradients are 0.
        """
        if (ceiling := self.ceiling()) is None:
            return None
        mantissa, exponent = math.frexp(ceiling["below"])  # from 0.5 to 1
        return min(2.0 ** (exponent - (1 if mantissa > 0.5 else 2)), SCALES[-1])

    def ceiling(self) -> dict[str, Any] | None:
        """The limit of the best scale: the gradient ("name", "role") that overflows first, its "largest" magnitude
        without a loss scale (None: the skipped steps were tried), the S at which it was "infinite" (None: it was not),
        and the S "below" which the best one lies.
        """
        causes = [c for c in self._scales.causes if c.largest_scale] if self._scales else []
        limits: list[Any] = [
            (2 * (c.largest_scale or 0), c.scale, None, "gradient", f"{c.module} {c.op}".strip()) for c in causes
        ]
        limits += [(FP16_MAX / t.largest, None, t.largest, t.role, t.name) for t in self._gradients if t.largest]
        over = [(s, t) for t in self._gradients for s in t.infinite if s in self._overflowed]
        limits += [(s, s, t.largest, t.role, t.name) for s, t in over]
        first = min(limits, key=lambda one: one[0], default=None)
        return first and dict(zip(("below", "infinite", "largest", "role", "name"), first))

    def margin(self) -> float | None:
        """65 504 / (S max|g|) at the best scale S: how much larger gradients may become."""
        best, largest = self.best_scale(), max((t.largest for t in self._gradients), default=0.0)
        return FP16_MAX / (best * largest) if best and largest else None

    @property
    def _gradients(self) -> list[Histogram]:
        return [t for role in GRADIENTS for t in self._stored(role)]

    def _stored(self, role: str) -> list[Histogram]:
        if role not in ROLES:
            raise ValueError(f"histograms: expected role to be one of {', '.join(map(repr, ROLES))}, got {role!r}")
        tensors = [t for t in self._tensors.values() if t.role == role]
        return [t for t in tensors if t.dtype == float16] or [t for t in tensors if not t.normalisation]

    def scale_of(self, role: str) -> float:
        return next((t.scale for t in reversed(self._stored(role))), 1.0)

    def as_dict(self) -> dict[str, Any]:
        """The "tensors"; what FP16 would have "lost", by role and loss scale; "best_scale", "margin", "ceiling"."""
        lost = [
            {"role": role, "scale": scale, "values": nonzero(stored), **lost_of(stored, scale)._asdict()}
            for role in ROLES
            if (stored := self._stored(role))
            for scale in ([1.0] if role == WEIGHT else sorted({*SCALES, self.scale_of(role)}))
        ]
        best = {"best_scale": self.best_scale(), "margin": self.margin(), "ceiling": self.ceiling()}
        return {"tensors": [t.as_dict() for t in self._tensors.values()], "lost": lost, **best}

    def parts(self) -> list[str]:
        if not self._tensors:
            return ["no weights and no gradients were seen"]
        best, several = self.best_scale() or 1.0, len({t.policy for t in self._tensors.values()}) > 1
        head = ("share of values not 0", "dtype", "loss scale", "values", "zeros", "lost at 1", "lost at S")
        rows: list[tuple[str, ...]] = [(*head, "subnormal", "overflow", "lost at best")]
        groups = [(f"all: {role}s", self._stored(role)) for role in ROLES]
        worst = sorted(self._tensors.values(), key=lambda t: -lost_of([t], 1.0).zero)
        groups += [(f"{t.name}: {t.role}" + several * f" ({t.policy})", [t]) for t in worst]
        for title, tensors in groups:
            if tensors:
                scale, zeros, values = tensors[-1].scale, int(total(tensors)[ZEROS]), nonzero(tensors)
                shares = [zeros / max(zeros + values, 1), lost_of(tensors, 1.0).zero, *lost_of(tensors, scale)]
                kept = "" if tensors[0].role == WEIGHT else f"{lost_of(tensors, best).zero:.2%}"
                cells = title, " ".join(sorted({NAMES[t.dtype] for t in tensors})), f"{scale:g}", f"{zeros + values:,}"
                rows.append((*cells, *(f"{share:.2%}" for share in shares), kept))
        if (margin := self.margin()) is None:
            return [table(rows)]
        return [
            table(rows),
            f"Best loss scale S: 2^{round(math.log2(best))} = {best:,.0f}, margin {margin:.2f} to 65504.",
        ]

    # ---- drawing

    def draw(self, axes: Any, role: str = ACTIVATION_GRADIENT, layer: str | None = None) -> None:
        """Bars: the share of values per exponent at the last loss scale, and where FP16 ends (MPT figures 2b and 3).
        layer: only this one. ValueError if nothing of that kind was seen.
        """
        where = f"{role}s" + (f" of {layer}" if layer is not None else "")
        tensors = [t for t in self._stored(role) if layer in (None, t.layer)]
        if not tensors:
            layers = ", ".join(dict.fromkeys(t.layer for t in self._stored(role)))
            raise ValueError(f"histograms: no {where} were seen in this audit; layers: {layers or 'none'}")
        draw(axes, tensors, f"{where[0].upper()}{where[1:]}")

    def worst(self, role: str, most: int) -> list[Histogram]:
        """So many tensors of a role, of the policy that is asked about: those of which FP16 loses most come first."""
        return sorted(self._stored(role), key=lambda t: lost_of([t], t.scale), reverse=True)[:most]
