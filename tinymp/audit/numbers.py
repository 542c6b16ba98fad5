"""The number formats of the audit's reports."""

from __future__ import annotations

import math


def count(value: float) -> str:
    """1,234 in full, 22.5 M from a million on."""
    for unit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= unit:
            return f"{value / unit:.3g} {letter}"
    return f"{value:,.0f}"


def share(value: float) -> str:
    """As a percentage."""
    percent = 100 * value
    if percent and abs(percent) < 0.01:
        return "< 0.01 %"
    return "> 99.9 %" if 99.95 <= percent < 100 else f"{percent:.3g} %"


def number(value: float) -> str:
    """Four significant digits, but all digits before the point, and powers of ten as superscripts."""
    if not math.isfinite(value):
        return "NaN" if value != value else "∞" if value > 0 else "−∞"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        text = f"{float(f'{value:.4g}'):,g}" if abs(value) < 1e4 else f"{value:,.0f}"
    else:
        mantissa, exponent = f"{value:.2e}".split("e")
        text = f"{mantissa} × 10{_raised(int(exponent))}"
    return text.replace("-", "−")


def apart(distance: float | None) -> str:
    """A distance of two runs (see diff.py), in two digits."""
    return "same" if not distance else "∞" if math.isinf(distance) else f"{distance:.2g}"


def power(value: float) -> str:
    """2¹⁶ for a power of two, else the number."""
    mantissa, exponent = math.frexp(value)
    return f"2{_raised(exponent - 1)}" if mantissa == 0.5 else number(value)


def _raised(exponent: int) -> str:
    return str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def dtypes(names: str | None) -> str:
    """ "float16, float32" as FP16, FP32."""
    return str(names).replace("bfloat", "BF").replace("float", "FP")


def many(n: float, noun: str) -> str:
    """1 step, 1,234 steps."""
    return f"{count(n)} {noun}" + "s" * (n != 1)
