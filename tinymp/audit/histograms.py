"""Histograms of exponents: where weights and gradients lie in FP16's range, and which loss scale would suit them.

MPT figures 2b and 3 show such histograms; section 3.2 reads the loss scale off them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from .. import backend
from ..autograd import Op, values_of
from ..dtypes import FP16_MAX, NAMES, float16
from ..parameter import Parameter
from ..precision import LOSS, current_policy
from ..tensor import Tensor
from .exponents import BINS, HIGHEST, INFINITIES, LOWEST, NANS, ZEROS, bin_of, exponents
from .listener import Instrument, Place
from .sampling import BLUE, RED, SKY, Spaced, distinct, table

WEIGHT, WEIGHT_GRADIENT, ACTIVATION_GRADIENT = ROLES = "weight", "weight gradient", "activation gradient"
GRADIENTS = ROLES[1:]
SCALES = [2.0**k for k in range(25)]  # up to 2^24, the largest S of the loss scalers
LIMITS = (-24, "smallest subnormal"), (-14, "smallest normal"), (16, "infinite")  # exponents where FP16 changes
_FINITE = slice(bin_of(LOWEST), bin_of(HIGHEST) + 1)
_NONE = np.zeros(BINS, "int64")


class Lost(NamedTuple):
    """The shares of the nonzero values that FP16 would lose at a scale; see `Exponents.share_lost`."""

    zero: float
    subnormal: float
    overflow: float


class _Histogram:
    """The exponents of one tensor under one policy. `counts`: {loss scale that the values carried: counts in the bins
    of `exponents`}.

    kept        {iteration of a snapshot: (scale, counts)}
    iterations  how many were looked at
    largest     the largest finite magnitude, divided by the scale
    """

    def __init__(self, role: str, name: str, dtype: np.dtype, policy: str, layer: str, normalisation: bool) -> None:
        self.role, self.name, self.dtype, self.policy = role, name, dtype, policy
        self.layer, self.normalisation = layer, normalisation
        self.counts: dict[float, np.ndarray] = {}
        self.kept: dict[int, tuple[float, np.ndarray]] = {}
        self.scale = 1.0  # the last one
        self.iterations, self.largest = 0, 0.0
        self._last: int | None = None

    def add(self, x: Any, underflows: np.ndarray, scale: float, iteration: int, spaced: Spaced) -> None:
        """Count x. `underflows`: the exponents, before rounding, of those of its zeros that were not 0 then."""
        device = backend.of(x)
        x = device.xp.asarray(x)  # NumPy's results of arrays without axes are scalars
        counts = exponents(x) + underflows
        counts[ZEROS] -= sum(underflows.tolist())
        self._see_largest(x, counts, scale)
        self.counts[scale] = self.counts[scale] + counts if scale in self.counts else counts
        self.scale = scale
        self.iterations += iteration != self._last
        self._last = iteration
        if spaced.wants(iteration):
            if iteration in self.kept:  # another part of it, such as a time step
                counts = self.kept[iteration][1] + shifted(counts, self.kept[iteration][0] / scale)
                scale = self.kept[iteration][0]
            elif len(self.kept) > iteration // spaced.distance:
                self.kept = spaced.thinned(self.kept)
            self.kept[iteration] = scale, counts

    def _see_largest(self, x: Any, counts: np.ndarray, scale: float) -> None:
        places = np.flatnonzero(counts[_FINITE])
        if not places.size or math.ldexp(2.0, int(places[-1]) + LOWEST) / scale <= self.largest:
            return
        device = backend.of(x)
        bits = device.bits(x) & (1 << 8 * x.itemsize - 1) - 1  # of |x|, in the order of |x|
        if counts[INFINITIES] or counts[NANS]:
            bits = device.select(bits < device.bits(device.xp.full((), math.inf, x.dtype)), bits)
        largest = backend.to_cpu(bits.max().reshape(1)).view(x.dtype)
        self.largest = max(self.largest, float(largest[0]) / scale)

    def at(self, scale: float) -> np.ndarray:
        """All counts, as if the values carried this loss scale. Infinities, NaN and zeros stay what they are."""
        total = np.zeros(BINS, "int64")
        for own, counts in self.counts.items():
            total += shifted(counts, scale / own)
        return total

    def as_dict(self, spaced: Spaced) -> dict[str, Any]:
        counts = self.at(self.scale)
        used = np.flatnonzero(counts[_FINITE])
        first, end = (int(used[0]), int(used[-1]) + 1) if used.size else (0, 0)
        kept = {i: shifted(c, self.scale / s)[_FINITE] for i, (s, c) in spaced.thinned(self.kept).items()}
        return {
            "name": self.name,
            "layer": self.layer,
            "role": self.role,
            "dtype": NAMES[self.dtype],
            "policy": self.policy,
            "lowest": first + LOWEST,
            "counts": counts[_FINITE][first:end].tolist(),
            "zeros": int(counts[ZEROS]),
            "infinite": int(counts[INFINITIES]),
            "nan": int(counts[NANS]),
            "scale": self.scale,
            "largest": self.largest,
            "iterations": self.iterations,
            "snapshots": [{"iteration": i, "counts": c[first:end].tolist()} for i, c in kept.items()],
        }


def _memory_of(gradients: tuple) -> dict[int, Any]:
    """{id: owner} of the arrays that own the memory of the FP16 gradients."""
    arrays = [values_of(g) for g in gradients if getattr(g, "dtype", None) == float16 and g.ndim]
    return {id(backend.owner_of(x)): backend.owner_of(x) for x in arrays}


def _underflows(x: Any, y: Any) -> np.ndarray:
    """The exponents of the nonzero values of x that became 0 in y. A tie, 2^-25, counts as the next smaller exponent,
    so that `share_lost` counts it as lost.
    """
    device = backend.of(y)
    bits = device.bits(y) & 0x7FFF
    nonzero = int(device.xp.count_nonzero(bits))
    if nonzero == y.size or nonzero == int(device.xp.count_nonzero(device.bits(x))):  # but -0 has a bit
        return _NONE
    counts = exponents(x[bits == 0])
    counts[ZEROS] = 0
    counts[bin_of(-26)] += _between(counts, -25, HIGHEST)
    counts[bin_of(-25) :] = 0
    return counts


def shifted(counts: np.ndarray, factor: float) -> np.ndarray:
    """The counts of values multiplied by a factor: exactly for a power of two, else by the power of two below it."""
    k = math.frexp(factor)[1] - 1
    if not k:
        return counts
    moved = counts.copy()
    moved[_FINITE] = 0
    places = np.flatnonzero(counts[_FINITE])
    # rounds: never, whole numbers are counted
    np.add.at(moved, np.clip(places + k, 0, HIGHEST - LOWEST) + bin_of(LOWEST), counts[_FINITE][places])
    return moved


class Exponents(Instrument):
    """Counts the exponents floor(log2 |x|) of weights and gradients, per layer and over the training.

    weight               when a model is first called, and as updates write it for the next iteration: the FP32 master,
                         where there is one. `dtype` is that of the working copy
    weight gradient      what each `backward` adds to the weight's `grad`. Of SparseRows, the rows that they have
    activation gradient  the gradient of the result of each op of a layer, as it arrives in the op's backward; one that
                         several ops pass on (a flattened one) counts for each. Losses and single numbers are left out

    every  look at one in `every` iterations. `iterations` beside the counts says how many were looked at

    Gradients are counted as they are stored in backward, multiplied by the loss scale S of the moment, and brought to
    one scale afterwards: for powers of two that is exact. A gradient that became 0 when it was rounded to FP16 counts
    with the exponent that it had before. What ops passed on as 0 because it had become 0 before them, or was a part of
    a sum then, is among the zeros: shares lost are exact for FP32 runs, and lower bounds for FP16 runs at a small S.

    Policies are kept apart, by name. Shares and scales for all gradients are of those in FP16, whatever the policy.
    """

    def __init__(self, every: int = 1) -> None:
        self.every = every
        self._spaced = Spaced(every)
        self._tensors: dict[tuple, _Histogram] = {}
        self._roots = 0  # how many models were seen
        # Arrays rounded since the last op ran: memory, number of values, and the exponents of those that became 0
        self._rounded: list[tuple[ref, int, np.ndarray]] = []
        self._underflows: dict[int, tuple[ref, int, np.ndarray]] = {}  # the same for gradients, while they live
        self._unseen = 0  # values that became 0 within an op, it is not known in which gradient

    # ---- looking

    def rounded(self, place: Place, x: Any, y: Any) -> None:
        if place.phase == "backward" and y.dtype == float16 and self._looks():
            whole = backend.owner_of(backend.of(y).xp.asarray(y))
            self._rounded.append((ref(whole), y.size, _underflows(x, y)))

    def ran(self, place: Place, op: Op, inputs: tuple, outputs: tuple) -> None:
        if place.phase == "forward":
            if len(self.listener.models) > self._roots:
                self._first_use()
            return
        self._settle(inputs, outputs)
        if self._looks() and op.kind is not LOSS:
            for dy in inputs:
                if dy is not None and dy.size > 1:
                    name = f"{place.module} {op.name}".strip()
                    self._count(self._of(ACTIVATION_GRADIENT, name, place.module, dy.dtype), dy, self.listener.scale)

    def deposited(self, leaf: Tensor, gradient: Any, scale: Any) -> None:
        self._settle((gradient,), ())
        if isinstance(leaf, Parameter) and self._looks():
            self._add_parameter(leaf, WEIGHT_GRADIENT, gradient, float(scale))

    def written(self, place: Place, parameter: Parameter, value: Any) -> None:
        if place.phase == "update" and self._looks(1):
            self._add_parameter(parameter, WEIGHT, value, ahead=1)

    def _first_use(self) -> None:
        for thing in self.listener.models[self._roots :]:
            for _, p in thing.named_parameters():
                self._add_parameter(p, WEIGHT, p.master)
        self._roots = len(self.listener.models)

    def _settle(self, given: tuple, made: tuple) -> None:
        """Find out which gradients were rounded: as whole arrays, or, if only one was made, in blocks."""
        inputs, outputs = _memory_of(given), _memory_of(made)
        blocks = {key: owner for key, owner in outputs.items() if key not in inputs}
        n, counts = 0, _NONE
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
        else:
            self._unseen += sum(counts.tolist())

    def _keep(self, owner: Any, size: int, underflows: np.ndarray) -> None:
        if underflows.any():
            key = id(owner)
            self._underflows[key] = ref(owner, lambda _: self._underflows.pop(key, None)), size, underflows

    def _looks(self, ahead: int = 0) -> bool:
        return (self.listener.iteration + ahead) % self.every == 0

    def _add_parameter(self, p: Parameter, role: str, x: Any, scale: float = 1.0, ahead: int = 0) -> None:
        name = self.listener.name_of(p)
        histogram = self._of(role, name, name.rpartition(".")[0], p.dtype, p.normalisation)
        self._count(histogram, values_of(distinct(x)), scale, ahead)

    def _of(self, role: str, name: str, layer: str, dtype: np.dtype, normalisation: bool = False) -> _Histogram:
        key = role, name, dtype, current_policy().name
        if key not in self._tensors:
            self._tensors[key] = _Histogram(*key, layer, normalisation)
        return self._tensors[key]

    def _count(self, histogram: _Histogram, x: Any, scale: float, ahead: int = 0) -> None:
        _, size, underflows = self._underflows.get(id(backend.owner_of(x)), (None, 1, _NONE))
        shown = math.prod(n for n, step in zip(x.shape, x.strides) if step)  # of a broadcast array, each several times
        times = x.size // size if shown == size else 0  # of a part of a rounded array, the underflows are not known
        histogram.add(x, times * underflows, scale, self.listener.iteration + ahead, self._spaced)

    # ---- asking

    def share_lost(self, role: str, scale: float | None = None) -> Lost:
        """What FP16 would lose of the values of a role ("weight gradient", ...) that are not 0, at a loss scale.

        scale: by default the last one in use; for weights 1. The shares, counted by exponents alone:
            zero       |x| scale < 2^-25: rounds to 0. (So does 2^-25 itself, a tie, which is counted as kept)
            subnormal  2^-25 <= |x| scale < 2^-14: becomes subnormal, with fewer than 11 significant bits
            overflow   |x| scale >= 2^16: becomes infinite. (So does what is from 65 520 on, which is counted as kept.)
                       And what is infinite already, at its own scale and larger ones

        Of gradients, those that are stored in FP16 count; in an FP32 run, all but those of normalisation layers, which
        stay FP32 in mixed precision too (NVG section 2.3.1).
        """
        return lost_of(self._stored(role), self._scale(role) if scale is None else scale)

    def best_scale(self) -> float | None:
        """The largest power of two S with S max|g| < 65 504 for all gradients seen (MPT section 3.2), and below every S
        at which one was infinite; at most 2^24. None where no gradient was seen that is not 0.
        """
        seen = [t for role in GRADIENTS for t in self._stored(role)]
        infinite = [s for t in seen for s, counts in t.counts.items() if counts[INFINITIES]]
        largest = max((t.largest for t in seen), default=0.0)
        limits = [s / 2 for s in infinite] + ([FP16_MAX / largest] if largest else [])
        if not limits:
            return None
        best = 2.0 ** (math.frexp(min(limits))[1] - 1)
        return min(best / 2 if largest * best >= FP16_MAX else best, SCALES[-1])

    def margin(self) -> float | None:
        """65 504 / (S max|g|) at the best scale S: how much larger gradients may become."""
        best = self.best_scale()
        largest = max((t.largest for role in GRADIENTS for t in self._stored(role)), default=0.0)
        return FP16_MAX / (best * largest) if best and largest else None

    def saved(self) -> dict[str, float]:
        """Per role of gradients: the share of values not 0 that the best scale keeps from becoming 0, against S = 1."""
        best = self.best_scale() or 1.0
        return {r: self.share_lost(r, 1.0).zero - self.share_lost(r, best).zero for r in GRADIENTS if self._stored(r)}

    def _stored(self, role: str) -> list[_Histogram]:
        if role not in ROLES:
            raise ValueError(f"histograms: expected role to be one of {', '.join(map(repr, ROLES))}, got {role!r}")
        tensors = [t for t in self._tensors.values() if t.role == role]
        return [t for t in tensors if t.dtype == float16] or [t for t in tensors if not t.normalisation]

    def _scale(self, role: str) -> float:
        return next((t.scale for t in reversed(self._stored(role))), 1.0)

    def as_dict(self) -> dict[str, Any]:
        """{"tensors": [...], "lost": [...], "best_scale": S, "margin": factor, "saved": {role: share}}, plain types."""
        lost = [
            {"role": role, "scale": scale, **self.share_lost(role, scale)._asdict()}
            for role in ROLES
            if self._stored(role)
            for scale in ([1.0] if role == WEIGHT else sorted({*SCALES, self._scale(role)}))
        ]
        return {
            "tensors": [t.as_dict(self._spaced) for t in self._tensors.values()],
            "lost": lost,
            "best_scale": self.best_scale(),
            "margin": self.margin(),
            "saved": self.saved(),
            "unseen": self._unseen,
            "every": self.every,
        }

    def __str__(self) -> str:
        if not self._tensors:
            return "no weights and no gradients were seen"
        best, several = self.best_scale(), len({t.policy for t in self._tensors.values()}) > 1
        head = ("share of values not 0", "dtype", "loss scale", "values", "zeros", "lost at 1", "lost at S")
        rows: list[tuple[str, ...]] = [(*head, "subnormal", "overflow", "lost at best" if best else "")]
        groups = [(f"all: {role}s", self._stored(role)) for role in ROLES]
        worst = sorted(self._tensors.values(), key=lambda t: -lost_of([t], 1.0).zero)
        single = [(f"{t.name}: {t.role}" + several * f" ({t.policy})", [t]) for t in worst]
        for title, tensors in (*groups, *single):
            if tensors:
                scale, total = tensors[-1].scale, _total(tensors, 1.0)
                elements = sum(total.tolist())
                now, kept = lost_of(tensors, scale), lost_of(tensors, best or 1.0).zero
                shares = [total[ZEROS] / max(elements, 1), lost_of(tensors, 1.0).zero, *now]
                shares += [kept] if best and tensors[0].role != WEIGHT else []
                cells = title, " ".join(sorted({NAMES[t.dtype] for t in tensors})), f"{scale:g}", f"{elements:,}"
                rows.append((*cells, *(f"{share:.2%}" for share in shares), *[""] * (6 - len(shares))))
        lines = [table(rows)]
        if several:
            those = " and ".join(dict.fromkeys(t.policy for role in GRADIENTS for t in self._stored(role)))
            lines.append(f"Several policies ran; all gradients, and the best scale, are those of {those}.")
        if self._unseen:
            lines.append(f"Not among the lost: {self._unseen:,} values that became 0 inside of ops (see the ledger).")
        if best:
            kept_by = ", ".join(f"{share:.2%} of {role}s" for role, share in self.saved().items())
            margin = f", margin {m:.2f} to 65504" if (m := self.margin()) else ""
            lines.append(f"Best loss scale S: 2^{round(math.log2(best))} = {best:,.0f}{margin}.")
            lines.append(f"Against S = 1 it saves {kept_by}.")
        return "\n".join(lines)

    # ---- drawing

    def draw(
        self, axes: Any, role: str = ACTIVATION_GRADIENT, layer: str | None = None, scale: float | None = None
    ) -> None:
        """Bars: the share of values per exponent, and where FP16 ends (MPT figures 2b and 3).

        layer: only this one; scale: show the values multiplied by it, by default by the loss scale that they carried
        last. ValueError if nothing of that kind was seen.
        """
        seen = self._stored(role)
        if not seen:
            raise ValueError(f"histograms: no {role} was seen in this audit")
        tensors = [t for t in seen if layer in (None, t.layer)]
        if not tensors:
            layers = ", ".join(dict.fromkeys(t.layer for t in seen))
            raise ValueError(f"histograms: no {role} of layer {layer!r} was seen; layers: {layers}")
        scale = tensors[-1].scale if scale is None else scale
        counts = _total(tensors, scale)
        shares = 100 * counts / max(sum(counts.tolist()), 1)
        low, high = _range(counts)
        heights = shares[bin_of(low) : bin_of(high) + 1].copy()
        heights[0] += sum(shares[bin_of(LOWEST) : bin_of(low)].tolist())
        colors = ["0.6"] * (-25 - low) + [SKY] * 11 + [BLUE] * 30 + [RED] * (high - 15)
        axes.axvspan(LOWEST, -25, color="0.92", zorder=0)  # to the left edge, also of a wider picture
        axes.bar([e + 0.5 for e in range(low, high + 1)], heights, width=0.85, color=colors, zorder=2)
        top = 1.3 * max(heights.max(), 0.1)
        axes.text(-25.3, top * 0.98, "zero in\nFP16", fontsize=7, color="0.3", va="top", ha="right")
        for at, text in LIMITS:
            axes.axvline(at, color="0.3", linestyle="--", linewidth=0.8, zorder=1)
            axes.text(at + 0.3, top * 0.98, text.replace(" ", "\n"), fontsize=7, color="0.3", va="top")
        where = f"{role}s" + (f" of {layer}" if layer is not None else "")
        below = " (first bar: and below)" if counts[bin_of(LOWEST) : bin_of(low)].any() else ""
        axes.set(
            xlim=(low - 1, high + 1), ylim=(0, top),
            xlabel=f"exponent, floor(log2 |{f'{scale:g} ' if scale != 1 else ''}x|){below}",
            ylabel="share of all values, %",
            title=f"{where[0].upper()}{where[1:]}: {shares[ZEROS]:.1f} % are 0",
        )  # fmt: skip

    def draw_over_time(self, axes: Any, name: str, role: str | None = None) -> None:
        """An image: the share of values per exponent (up) over the iterations (to the right), on a logarithmic scale.

        name: of a tensor, as in `as_dict`; role: which one, where a weight and its gradient share the name: by default
        the gradient. Of several policies, the last. Values as they are stored at the last loss scale. ValueError for an
        unknown name.
        """
        found = [t for t in self._tensors.values() if t.name == name and role in (None, t.role)]
        if not found:
            names = ", ".join(sorted({t.name for t in self._tensors.values()}))
            raise ValueError(f"histograms: no tensor {name!r}; there are {names or 'none'}")
        tensor = max(reversed(found), key=lambda t: ROLES.index(t.role))
        kept = self._spaced.thinned(tensor.kept) or tensor.kept
        if not kept:
            raise ValueError(f"histograms: no snapshot of {name!r} was kept; it was seen too rarely")
        columns = [shifted(counts, tensor.scale / own) for own, counts in kept.values()]
        low, high = _range(tensor.at(tensor.scale))
        image = np.array([100 * c[bin_of(low) : bin_of(high) + 1] / max(sum(c.tolist()), 1) for c in columns]).T
        times = list(kept)
        edges = [*times, times[-1] + self._spaced.distance]
        shown = np.ma.masked_equal(image, 0)
        mesh = axes.pcolormesh(edges, range(low, high + 2), shown, cmap="viridis", norm="log", vmin=1e-3, vmax=100)
        axes.figure.colorbar(mesh, ax=axes, label="share of all values, %")
        for at, text in LIMITS:
            axes.axhline(at, color="0.3", linestyle="--", linewidth=0.8)
            label = axes.annotate(text, (times[0], at), (4, 3), textcoords="offset points", fontsize=7, color="0.3")
            label.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1})  # cells may be dark
        exponent = f"exponent, floor(log2 |{f'{tensor.scale:g} ' if tensor.scale != 1 else ''}x|)"
        axes.set(xlabel="iteration", ylabel=exponent, title=f"{name}: {tensor.role}")


def lost_of(tensors: list[_Histogram], scale: float) -> Lost:
    """The shares that FP16 would lose of these tensors' values at a scale; see `Exponents.share_lost`."""
    values = zero = subnormal = overflow = 0
    for t in tensors:
        for own, stored in t.counts.items():
            counts = shifted(stored, scale / own)
            infinite = int(counts[INFINITIES]) if scale >= own else 0
            values += _between(counts, LOWEST, HIGHEST) + infinite
            zero += _between(counts, LOWEST, -26)
            subnormal += _between(counts, -25, -15)
            overflow += _between(counts, 16, HIGHEST) + infinite
    return Lost(*(n / max(values, 1) for n in (zero, subnormal, overflow)))


def _total(tensors: list[_Histogram], scale: float) -> np.ndarray:
    total = np.zeros(BINS, "int64")
    for t in tensors:
        total += t.at(scale)
    return total


def _range(counts: np.ndarray) -> tuple[int, int]:
    """The exponents to draw: those that occur, from -60 on, and FP16's."""
    used = (np.flatnonzero(counts[_FINITE]) + LOWEST).tolist()
    return max(min([-29, *used]), -60), max([19, *used])


def _between(counts: np.ndarray, low: int, high: int) -> int:
    return sum(counts[bin_of(low) : bin_of(high) + 1].tolist())
