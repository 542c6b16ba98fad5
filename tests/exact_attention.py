"""Attention in float64, and how far FP16 or FP32 may be from it: one bound for the definition and for the kernels.

Inputs are taken as they are stored. u is storage's unit roundoff, t half the spacing of its subnormal numbers, w the
unit roundoff of the arithmetic. A sum of n terms is off by at most n w times the sum of their magnitudes, exp by 4 w
besides what its argument is off. The kernels change the maximum that they subtract up to once per 16 keys. The weights
p are rounded once, u p + t, as are the gradients of the scores; y and the gradients once more.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

UNITS = {
    "float16": (2.0**-11, 2.0**-25, 2.0**-24),
    "float32": (2.0**-24, 0, 2.0**-24),
    "float64": (2.0**-53, 0, 2.0**-53),
}


class Held(NamedTuple):
    """A result, and the largest difference from it that is allowed."""

    value: np.ndarray
    bound: np.ndarray

    def check(self, y: np.ndarray, what: str) -> None:
        worst = np.abs(np.asarray(y).astype(np.float64) - self.value) - self.bound
        at = np.unravel_index(np.argmax(np.where(np.isnan(worst), np.inf, worst)), worst.shape)
        assert worst[at] <= 0, f"{what}{at}: got {y[at]}, expected {self.value[at]} within {self.bound[at]:.3g}"


def turned(x: np.ndarray) -> np.ndarray:
    return np.swapaxes(x, -1, -2)


def exact(dtype: str, q, k, v, dy, mask=None, scale=None, kept=1.0, dropout_p=0.0) -> dict[str, Held]:
    """y, dq, dk, dv and dmask of arrays in `dtype`; leading axes are not broadcast. mask: bool, or added; kept: which
    weights dropout keeps.
    """
    u, t, w = UNITS[dtype]
    q, k, v, dy = (np.asarray(x, np.float64) for x in (q, k, v, dy))
    (E, S), L, Ev = (q.shape[-1], k.shape[-2]), q.shape[-2], v.shape[-1]
    scale = E**-0.5 if scale is None else scale
    added = np.zeros(1) if mask is None else np.where(mask, 0, -np.inf) if mask.dtype == bool else mask.astype("f8")
    s = scale * q @ turned(k) + added
    seen = s > -np.inf
    top = s.max(-1, keepdims=True)
    none = top == -np.inf
    top = np.where(none, 0, top)
    e = np.exp(s - top)
    total = np.where(none, 1, e.sum(-1, keepdims=True))
    p, z = e / total, top + np.log(total)
    m = kept / (1 - dropout_p)
    y = (m * p) @ v
    dp, delta = m * (dy @ turned(v)), (dy * y).sum(-1, keepdims=True)
    ds = p * (dp - delta)

    size = np.where(seen, np.abs(s), 0)
    off = w * ((E + 2) * abs(scale) * (np.abs(q) @ turned(np.abs(k))) + size + np.abs(top))  # s - top, absolutely
    off = np.where(seen, off + w * (size + 8 * (S / 16 + 1)), 0)  # e, relatively
    off = off + (p * off).sum(-1, keepdims=True) + (S + 8) * w  # p, relatively
    again = off + w * (2 * np.abs(z) + size + 8)  # p in backward, from z
    weight = np.where(seen, (u + off + w) * m * p + t, 0)
    value = (weight + (S + S / 16) * w * m * p) @ np.abs(v) + u * np.abs(y) + t
    weight, exact_dv = np.where(seen, (u + again + w) * m * p + t, 0), turned(m * p) @ dy
    dv = turned(weight + L * w * m * p) @ np.abs(dy) + u * np.abs(exact_dv) + t
    slope = m * (Ev + 1) * w * (np.abs(dy) @ turned(np.abs(v)))  # dp
    slope = slope + (np.abs(dy) * (value + Ev * w * np.abs(y))).sum(-1, keepdims=True)
    slope = p * slope + (again + 2 * w) * np.abs(ds)  # ds, before it is rounded
    rounded = np.where(seen, slope + u * np.abs(ds) + t, 0)
    dq, dk = scale * ds @ k, scale * turned(ds) @ q
    off_q = abs(scale) * ((rounded + (S + 2) * w * np.abs(ds)) @ np.abs(k)) + u * np.abs(dq) + t
    off_k = abs(scale) * (turned(rounded + (L + 2) * w * np.abs(ds)) @ np.abs(q)) + u * np.abs(dk) + t
    found = {"y": (y, value), "dq": (dq, off_q), "dk": (dk, off_k), "dv": (exact_dv, dv), "ds": (ds, slope)}
    second_order = 1 + 2.0**-6
    return {name: Held(x, second_order * bound) for name, (x, bound) in found.items()}
