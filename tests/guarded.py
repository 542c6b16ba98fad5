"""The guard at run time: on arrays of the meta device, what changes precision outside of the primitives is an error.

Within `guarded()` an array of the meta device (tinymp/audit/meta.py) notes each result, and each place that is written
to, whose floating dtype is narrower than that of a value that went into it, and each ufunc that computes in FP16: but
not in precision.py, and in what carries its primitives out (backend/, study/), which run under it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import tinymp as mp
from tinymp.audit import meta

PACKAGE = Path(mp.__file__).parent
CARRIES = (str(PACKAGE / "precision.py"), str(PACKAGE / "backend"), str(PACKAGE / "study"))
# Results that FP16 holds exactly, so that computing them in FP16 rounds nothing
EXACT = {
    *("absolute", "negative", "positive", "sign", "copysign", "maximum", "minimum", "fmax", "fmin", "conjugate"),
    *("floor", "ceil", "trunc", "rint", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
    *("isfinite", "isinf", "isnan", "signbit", "logical_not", "logical_and", "logical_or"),
}


def floats(x: Any) -> list[int]:
    """The sizes in bytes of the floating arrays in x, also in lists of them. Constants, from the host, are none."""
    if isinstance(x, (list, tuple)):
        return [size for item in x for size in floats(item)]
    return [x.dtype.itemsize] if isinstance(x, meta.MetaArray) and x.dtype in mp.dtypes.FLOATING else []


def asking() -> Any:
    """The frame of tinymp, or of the program, whose operation this is; None where a primitive's work is under way."""
    frame: Any = sys._getframe(2)
    while frame.f_code.co_filename in (__file__, meta.__file__, mock.__file__) or "numpy" in frame.f_code.co_filename:
        frame = frame.f_back
    return None if frame.f_code.co_filename.startswith(CARRIES) else frame


@contextmanager
def guarded() -> Iterator[list[str]]:
    """Within the block, what rounds outside of the primitives is added to the list, as "file:line: why"."""
    found: list[str] = []

    def note(result: Any, operands: Any, what: str) -> None:
        to, of = floats(result), floats(operands)
        if to and of and min(to) < max(of) and (frame := asking()) is not None:
            place = Path(frame.f_code.co_filename)
            found.append(f"{place.name}:{frame.f_lineno}: {what} makes {8 * min(to)} bits of {8 * max(of)}")

    def ufunc(self: Any, function: Any, method: str, *inputs: Any, **options: Any) -> Any:
        y = plain["__array_ufunc__"](self, function, method, *inputs, **options)
        note(y, inputs, function.__name__)
        computed = method == "__call__" and function.__name__ not in EXACT and floats(inputs)
        if computed and max(floats(inputs)) == 2 and 2 in floats(y) and (frame := asking()) is not None:
            found.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}: {function.__name__} in FP16")
        return y

    def setitem(self: Any, index: Any, value: Any) -> None:
        note(self, value, "an assignment")

    def astype(self: Any, dtype: Any, *args: Any, **options: Any) -> Any:
        y = plain["astype"](self, dtype, *args, **options)
        note(y, self, "astype")
        return y

    def checked(function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            y = function(*args, **options)
            note(y, (*args, *options.values()), getattr(function, "__name__", "a function"))
            return y

        return call

    new = {"__array_ufunc__": ufunc, "__setitem__": setitem, "astype": astype}
    plain = {name: vars(meta.MetaArray)[name] for name in new}
    functions = {name: checked(f) for name, f in meta._FUNCTIONS.items()}
    # a device's own, which the primitives call, and nobody else
    carried = {name: checked(getattr(meta.Meta, name)) for name in ("cast", "cast_stochastic", "gemm", "concatenate")}
    with (
        mock.patch.multiple(meta.MetaArray, **new),
        mock.patch.dict(meta._FUNCTIONS, functions),
        mock.patch.multiple(meta.Meta, **carried),
    ):
        yield found


def on_meta(values: Any, requires_grad: bool = False, **options: Any) -> mp.Tensor:
    """`mp.tensor`, on the meta device."""
    return mp.Tensor(meta.meta.asarray(np.asarray(mp.tensor(values, **options).array)), requires_grad=requires_grad)
