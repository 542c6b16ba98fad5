"""Losses of other formats: every number that a primitive rounds is also rounded from FP32 to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..dtypes import float32
from ..study.formats import LOSSES, SCALED, Scaled, largest_finite
from .listener import At, Instrument, Place
from .numbers import number, share
from .sampling import Told, table

SAMPLE = 1 << 15  # of a larger array, about so many numbers are looked at: evenly spaced runs of
RUN = 32  # neighbours, as many as share a scale in a block of MXFP8
COLUMNS = ("elements", "zero", "subnormal", "beyond", "bias", "snr")


@dataclass
class Loss:
    """The losses of a format among numbers that are finite and not 0; for large arrays in a sample.

    zero, subnormal  how many of the `elements` became 0; are below what the format holds with all its bits, but not 0
    beyond           how many were larger than the format's largest: infinite or NaN now or, if it is scaled, the
                     largest
    sums             those of LOSSES
    """

    sums: np.ndarray = field(default_factory=lambda: np.zeros(len(LOSSES)))

    def __getattr__(self, name: str) -> float:
        if name not in LOSSES:
            raise AttributeError(name)
        return float(self.sums[LOSSES.index(name)])

    @property
    def bias(self) -> float:
        """The mean signed error, in units of the mean magnitude: 0 where errors cancel."""
        return self.error / self.magnitude if self.magnitude else 0.0

    @property
    def snr(self) -> float:
        """Signal to noise in dB, 10 log10(sum x^2 / sum error^2): 6 dB are one bit. Infinite without noise."""
        return 10 * math.log10(self.signal / self.noise) if self.noise and self.signal else math.inf

    def as_dict(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in COLUMNS}


def sample(x: Any) -> Any:
    """x, or evenly spaced runs of neighbours: the same places for every array of this size."""
    if x.size <= SAMPLE:
        return x
    flat = x.reshape(-1)
    rows = flat[: flat.size // RUN * RUN].reshape(-1, RUN)
    return rows[:: -(-len(rows) // (SAMPLE // RUN))]


@dataclass
class FormatRow(At):
    """The losses of the numbers rounded at one place, by the name of a format."""

    losses: dict[str, Loss]


class Formats(Told, Instrument):
    """Rounds what a primitive rounds to other formats, too: `mp.audit(formats=("bf16", "e4m3-tensor"))`.

    names  of SCALED: fp16, bf16, e4m3, e5m2 as they are; e4m3-tensor, e5m2-tensor with a power of two per array;
           mxfp8, mxfp8-e5m2 with one per 32 neighbours; nvfp4. ValueError for an unknown one

    The run stays as it is: this says what one rounding more would do, not how a training in that format would go.
    """

    def __init__(self, names: Sequence[str] = ("bf16", "e4m3-tensor", "e5m2-tensor")) -> None:
        for name in names:
            if name not in SCALED:
                raise ValueError(f"audit: unknown format {name!r}; there are {', '.join(SCALED)}")
        self.formats: list[Scaled] = [SCALED[name] for name in dict.fromkeys(names)]
        self._rows: dict[Place, FormatRow] = {}

    def rounded(self, place: Place, x: Any, y: Any) -> None:
        if x.dtype != float32 or not x.size:
            return
        if (row := self._rows.get(place)) is None:
            row = self._rows[place] = FormatRow.place(place, {f.name: Loss() for f in self.formats})
        seen, largest = sample(x), largest_finite(x)  # the scales of a sample are those of the whole
        with np.errstate(all="ignore"):
            for f in self.formats:
                row.losses[f.name].sums += f.loss(seen, largest)

    # ---- what it found

    @property
    def rows(self) -> list[FormatRow]:
        """A row per place, in the order in which it first rounded."""
        return list(self._rows.values())

    def total(self, name: str) -> Loss:
        total = Loss()
        for row in self.rows:
            total.sums += row.losses[name].sums
        return total

    def as_dict(self) -> list[dict[str, Any]]:
        """Rows with, under "losses", the COLUMNS by format."""
        return [row.site() | {"losses": {n: v.as_dict() for n, v in row.losses.items()}} for row in self.rows]

    def parts(self) -> list[str]:
        heads = ("format", "zero", "subnormal", "too large", "mean signed error", "signal to noise", "worst in")
        lines: list[tuple[str, ...]] = [heads]
        for f in self.formats:
            loss = self.total(f.name)
            parts = [share(n / max(loss.elements, 1)) for n in (loss.zero, loss.subnormal, loss.beyond)]
            worst = min(self.rows, key=lambda row: row.losses[f.name].snr, default=None)
            lines.append((f.name, *parts, share(loss.bias), f"{number(loss.snr)} dB", str(worst or "")))
        return ["the same numbers in other formats", table(lines, left=(0, 6), ruled=False)]
