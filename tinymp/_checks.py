"""Checks of numbers and saved states that layers, optimizers, scalers, clipping and schedules share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

from .precision import FP32_OVERFLOW
from .tensor import Tensor

FP32_TINY = 2.0**-126  # the smallest normal FP32 number


def number(op: str, name: str, value: Any, least: float = 0.0, *, above: bool = False) -> float:
    """value (a number, or a tensor without axes) as a Python float: finite in FP32, at least `least` (`above`: more).

    A NumPy scalar must not stay one: a np.float64 would lift every FP32 array that it meets to FP64.
    """
    value = value.item() if isinstance(value, Tensor) and not value.ndim else value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{op}: expected `{name}` to be a number, got {value!r}")
    try:
        x = float(value)
    except OverflowError:  # an integer beyond FP64
        x = math.inf
    if not least <= x < math.inf or abs(x) >= FP32_OVERFLOW or (above and x == least):
        bounds = "finite" if least == -math.inf else f"{'above' if above else 'at least'} {least:g} and finite"
        in_fp32 = " in FP32" if math.isfinite(x) and abs(x) >= FP32_OVERFLOW else ""
        raise ValueError(f"{op}: expected `{name}` to be {bounds}{in_fp32}, got {value!r}")
    return x


def loss_scale(op: str, name: str, value: Any, least: float = 0.0) -> float:
    """value as a Python float, if it can be a loss scale: at least `least`, and a normal number in FP32.

    A scale that is 0 in FP32 makes every gradient 0 / 0; a subnormal one has lost bits.
    """
    x = number(op, name, value, least, above=not least)
    if x < FP32_TINY:
        raise ValueError(f"{op}: expected `{name}` to be at least 2^-126, FP32's smallest normal number, got {value!r}")
    return x


def fraction(op: str, name: str, value: Any) -> float:
    """value as a Python float, if it is a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{op}: expected `{name}` to be a number, got {value!r}")
    if not 0 <= (x := float(value)) <= 1:
        raise ValueError(f"{op}: expected 0 <= {name} <= 1, got {value!r}")
    return x


def whole(op: str, name: str, value: Any) -> int:
    """value as a Python int, if it is a whole number from 0 to 2^31 - 2: what can be counted on a GPU."""
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value).is_integer():
        raise TypeError(f"{op}: expected `{name}` to be an integer, got {value!r}")
    if not 0 <= float(value) < 2**31 - 1:
        raise ValueError(f"{op}: expected `{name}` to be at least 0 and below 2^31 - 1, got {value!r}")
    return int(float(value))


def flag(op: str, name: str, value: Any) -> bool:
    """value, if it is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{op}: expected `{name}` to be True or False, got {value!r}")
    return value


def count(op: str, name: str, value: Any) -> int:
    """value, if it is a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{op}: expected `{name}` to be an integer, got {value!r}")
    if value < 1:
        raise ValueError(f"{op}: expected `{name}` to be positive, got {value!r}")
    return value


def same_keys(where: str, what: str, got: Any, expected: Iterable, optional: Iterable = ()) -> None:
    """ValueError that names the keys that are missing from `got` or too many in it."""
    if not isinstance(got, Mapping):
        raise TypeError(f"{where}: expected {what} to be a dict, got {type(got).__name__}")
    missing, extra = set(expected) - set(got) - set(optional), set(got) - set(expected) - set(optional)
    if missing or extra:
        wrong = [f"lacks {sorted(missing, key=str)}"] if missing else []
        wrong += [f"has unknown {sorted(extra, key=str)}"] if extra else []
        raise ValueError(f"{where}: expected other keys in {what}: it {' and '.join(wrong)}")


def require_unscaled(op: str, p: Tensor, remedy: str) -> None:
    """RuntimeError if p.grad still carries a loss scale: it must not reach clipping, weight decay or an update."""
    if p.grad is not None and p.grad_scale != 1:
        raise RuntimeError(f"{op}: gradients still carry the loss scale {float(p.grad_scale):g}: call {remedy}")
