"""What would the Tensor Cores of other GPUs have made of the same products? A sample of each, summed as they sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import backend
from ..dtypes import bfloat16, float16, float32
from ..precision import current_policy, widen
from ..study.formats import FORMATS
from ..study.tensor_core import ARCHITECTURES, multiply
from .listener import At, Instrument, Place
from .numbers import SPACE, count, number, share
from .sampling import table

SAMPLE = 24  # so many rows, and so many columns, of a product's result are looked at
CALLS = 4  # of the products at a place, the first so many
COLUMNS = ("ulps", "bias", "felt")
KNOWN = tuple(name for name in ARCHITECTURES if not name.endswith("-mma"))


@dataclass
class Error:
    """How far sums lie from the exact ones: of `n`, the sums of the errors' sizes; of the errors, positive away from 0;
    of those that become another number when they are stored; and of the exact sums' sizes.
    """

    n: int = 0
    sums: np.ndarray = field(default_factory=lambda: np.zeros(4))

    def add(self, found: np.ndarray, exact: np.ndarray, storage: np.dtype) -> None:
        known = np.isfinite(exact) & np.isfinite(found)
        found, exact = found[known], exact[known]
        with np.errstate(over="ignore"):
            # rounds: sums as a policy would store them
            stored, true = (x.astype(float32).astype(storage) for x in (found, exact))
        self.n += exact.size
        errors = abs(found - exact), abs(found) - abs(exact), stored != true, abs(exact)
        self.sums += [float(e.sum()) for e in errors]  # rounds: the errors of sums, in FP64

    def _in_ulps(self, error: float) -> float:
        """A mean error, in ulps of FP32 at the mean sum: one by one, sums of terms that cancel would outweigh all."""
        return float(error / self.sums[3] * 2**23) if self.sums[3] else 0.0

    ulps = property(lambda self: self._in_ulps(self.sums[0]))
    bias = property(lambda self: self._in_ulps(self.sums[1]))
    felt = property(lambda self: float(self.sums[2] / max(self.n, 1)))


@dataclass
class Sums(At):
    """The products at one place with an inner length k: an `Error` for "fp32" (this machine's sums) and for each
    architecture that has the format.
    """

    k: int
    errors: dict[str, Error] = field(default_factory=dict)
    calls: int = 0


class Accumulators(Instrument):
    """Sums a sample of each product of FP16 or BF16 as Tensor Cores do: `mp.audit(accumulators=("volta", "hopper"))`.

    names  of ARCHITECTURES in study/tensor_core.py; ValueError for unknown ones

    The run stays as it is: this says how each sum would differ, not how a training on that GPU would go. `ulps` is the
    mean distance from the exact sums, `bias` the mean signed one (Tensor Cores cut off, so it is negative: towards 0),
    both in 2^-23 of the mean sum; `felt` the share of results that become another stored number than the exact sums do.
    """

    def __init__(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in KNOWN:
                raise ValueError(f"audit: expected accumulators among {', '.join(KNOWN)}, got {name!r}")
        self.names = tuple(dict.fromkeys(names))
        self._rows: dict[tuple[Place, int], Sums] = {}

    def product(self, place: Place, a: Any, b: Any, accumulate: str) -> None:
        kind = {float16: "fp16", bfloat16: "bf16"}.get(current_policy().storage)
        row = self._rows.get((place, a.shape[-1]))
        if kind is None or not a.size or not b.size or (row is not None and row.calls == CALLS):
            return
        one, two = _some(a, -2), _some(b, -1)
        f = FORMATS[kind]
        with np.errstate(all="ignore"):
            if any((f.round(x) != x).any() for x in (one, two)):
                return  # FP32 operands, of a loss for example
        if row is None:
            row = self._rows[place, a.shape[-1]] = Sums.place(place, a.shape[-1])
        row.calls += 1
        x, y = one.astype(np.float64), two.astype(np.float64)  # rounds: never, to FP64
        # rounds: the products that the run makes, in FP32
        found = {"fp32": (one @ two).astype(np.float64)}
        units = {name: ARCHITECTURES[name].get((kind, "fp32")) for name in self.names}
        with np.errstate(all="ignore"):
            found |= {name: multiply(x, y, None, unit, (f, f)) for name, unit in units.items() if unit is not None}
        exact = x @ y  # rounds: exact sums, in FP64
        for name, sums in found.items():
            row.errors.setdefault(name, Error()).add(sums, exact, current_policy().storage)

    # ---- what it found

    @property
    def rows(self) -> list[Sums]:
        """A row per place and inner length; first those whose results would differ most."""
        return sorted(
            self._rows.values(),
            key=lambda row: -max((row.errors[n].felt for n in row.errors if n != "fp32"), default=0),
        )

    def as_dict(self) -> list[dict[str, Any]]:
        """Rows with, under "errors", the COLUMNS for "fp32" and each architecture."""
        return [
            row.site() | {"k": row.k, "errors": {n: {c: getattr(e, c) for c in COLUMNS} for n, e in row.errors.items()}}
            for row in self.rows
        ]

    def __str__(self) -> str:
        if not self._rows:
            return "no product of FP16 or BF16 was seen: there is nothing to sum on Tensor Cores"
        heads = ("product", "k", "FP32", *(head for name in self.names for head in (name, "bias", "felt")))
        lines: list[tuple[str, ...]] = [heads]
        for row in self.rows[:12]:
            cells = [str(row), count(row.k), number(row.errors["fp32"].ulps)]
            for name in self.names:
                e = row.errors.get(name)
                cells += [number(e.ulps), number(e.bias), share(e.felt)] if e else ["-", "-", "-"]
            lines.append(tuple(cells))
        text = "the same products on other Tensor Cores: errors in ulps of FP32, and the share of stored results"
        text += " changed\n" + table(lines, ruled=False)
        short, long = (pick(self._rows.values(), key=lambda row: row.k) for pick in (min, max))
        for name in self.names if short.k < long.k else ():
            if name in short.errors and name in long.errors:
                grown = [f"{number(row.errors[name].ulps)} ulps at k = {count(row.k)}" for row in (short, long)]
                most = max(self.rows, key=lambda row: row.errors.get(name, Error()).felt)
                text += f"\n{name}: {grown[0]}, {grown[1]}; most felt in {most}"
        return text.replace(SPACE, " ")


def _some(x: Any, axis: int) -> np.ndarray:
    """A sample along an axis of a matrix, in FP32 on the host; of a batch the first matrix."""
    x = x[(0,) * (x.ndim - 2)]
    n = x.shape[axis]
    pick = np.arange(0, n, -(-n // SAMPLE))
    return backend.of(x).to_numpy(widen(x.take(pick, axis)))
