"""How the audit's reports write numbers."""

from __future__ import annotations

import math
from typing import Any

NUMBERS = (int, float)
LONG = 30  # seconds: what takes longer says so
SPACE = "\N{NO-BREAK SPACE}"


def real(value: Any) -> float:
    """A float from what instruments write (infinity and NaN as strings); 0 for None and NaN, so that floats sort."""
    if isinstance(value, str):
        value = float(value) if value in ("inf", "-inf") else 0.0
    return float(value) if isinstance(value, NUMBERS) and value == value else 0.0


def count(value: Any) -> str:
    """1,234 in full, 22.5 M from a million on."""
    if not isinstance(value, NUMBERS):
        return "–"
    for unit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{SPACE}{letter}"
    return f"{value:,.0f}"


def share(value: Any) -> str:
    """As a percentage."""
    if not isinstance(value, NUMBERS) or value != value:
        return "–"
    percent = 100 * float(value)
    if percent in (0, 100):
        text = f"{percent:.0f}"
    elif abs(percent) < 0.01:
        text = f"<{SPACE}0.01"
    elif 99.95 <= percent < 100:
        text = f">{SPACE}99.9"
    else:
        text = f"{percent:.3g}" if percent < 1000 else f"{percent:,.0f}"
    return f"{text}{SPACE}%"


def number(value: Any) -> str:
    """Four significant digits, but all digits before the point, and powers of ten as superscripts."""
    if isinstance(value, str):
        value = float(value) if value in ("inf", "-inf", "nan") else None
    if not isinstance(value, NUMBERS):
        return "–"
    if value != value:
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        text = f"{float(f'{value:.4g}'):,g}" if abs(value) < 1e4 else f"{value:,.0f}"
    else:
        mantissa, exponent = f"{value:.2e}".split("e")
        text = f"{mantissa}{SPACE}×{SPACE}10{_raised(int(exponent))}"
    return text.replace("-", "−")


def apart(distance: Any) -> str:
    """A distance of two runs (see diff.py), in two digits."""
    return "same" if not real(distance) else "∞" if math.isinf(real(distance)) else f"{real(distance):.2g}"


def power(value: Any) -> str:
    """2¹⁶ for a power of two, else the number."""
    exponent = math.log2(value) if isinstance(value, NUMBERS) and 0 < value < math.inf else 0.5
    return f"2{_raised(int(exponent))}" if exponent == int(exponent) else number(value)


def _raised(exponent: int) -> str:
    return str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def dtypes(names: Any) -> str:
    """ "float16, float32" as FP16, FP32."""
    return str(names or "–").replace("bfloat", "BF").replace("float", "FP") if names != "-" else "–"


def lasts(seconds: float) -> str:
    """How long something takes: 45 s, 12 min, 3.5 h."""
    for unit, name in ((3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.2g} {name}"
    return f"{seconds:.0f} s"


def many(n: float, noun: str) -> str:
    """1 step, 1,234 steps."""
    return f"{count(n)} {noun}" + "s" * (n != 1)
