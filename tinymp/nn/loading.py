"""Saving and loading: what a state_dict holds of a tensor, and new values for many tensors, all or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import backend
from ..autograd import Array
from ..dtypes import fits, masked
from ..events import here, quietly, tell, unobserved
from ..parameter import Parameter, Weights
from ..precision import MIXED, store, to_dtype, under, use
from ..tensor import Tensor


def exact(x: Tensor) -> Array:
    return x.master if isinstance(x, Weights) else x.array


def loadable(own: Tensor, value: Any) -> Array:
    """A copy of `value` as it will be written into `own`; TypeError or ValueError if it cannot be."""
    array, now = _array(value), exact(own)
    if not np.can_cast(array.dtype, now.dtype, "same_kind"):
        raise TypeError(f"expected {now.dtype}, got {array.dtype}")
    if array.shape != now.shape:
        raise ValueError(f"expected shape {now.shape}, got {array.shape}")
    bad = ~np.isfinite(array)
    if not isinstance(own, Parameter):
        bad &= np.isfinite(backend.to_cpu(now))  # infinities (a mask of -inf) may stay where they are
    if bad.any():
        raise TypeError(f"expected finite values, got {np.count_nonzero(bad)} that are infinite or nan")
    if not fits(array, own.dtype):
        raise ValueError(f"has values beyond the range of {own.dtype}")
    return backend.of(now).asarray(np.array(to_dtype(array, now.dtype)))


def _array(value: Any) -> np.ndarray:
    """An entry of a state_dict on the host."""
    if not hasattr(value, "__array__"):
        raise TypeError(f"expected an array, got {type(value).__name__}")
    if masked(value):
        raise TypeError("expected a number in every place, got a masked array")
    try:
        return backend.to_cpu(exact(value)) if isinstance(value, Tensor) else np.asarray(value)
    except MemoryError:
        raise
    except Exception as error:  # whatever a foreign __array__ raises
        raise TypeError(f"{type(value).__name__} could not be read as an array ({error})") from error


def loadable_copy(own: Tensor, value: Any, master: Array) -> Array | None:
    """The working copy in a state_dict; None if it has none, or if the parameter has a master alone."""
    if value is None or not isinstance(own, Parameter) or own.dtype == master.dtype:
        return None
    array, wide = _array(value), backend.to_cpu(master)
    if array.dtype != own.dtype:
        raise TypeError(f"expected {own.dtype}, got {array.dtype}")
    if array.shape != own.shape:
        raise ValueError(f"expected shape {own.shape}, got {array.shape}")
    if not quietly(under, MIXED, _is_a_neighbour, array, wide):
        raise ValueError("expected FP16 numbers next to those of the master: it belongs to another one")
    return backend.of(master).asarray(np.array(array))


def _is_a_neighbour(array: Array, wide: Array) -> bool:
    """True if each number of `array` is one of the two next to that of `wide`, in the dtype of `array`."""
    nearest = to_dtype(wide, array.dtype)
    towards = to_dtype(np.where(wide > nearest, np.inf, -np.inf), array.dtype)
    other = np.where(wide == nearest, nearest, np.nextafter(nearest, towards))  # the neighbour across the master
    return ((array == nearest) | (array == other)).all()


def is_rounded(p: Parameter) -> bool:
    """True if the working copy is the FP16 number nearest to the master, or all there is."""
    if p.master is p.array:
        return True
    with unobserved(), use(MIXED):
        return bool((p.array == store(p.master, like=p.array)).all())


def overwrite(new: Sequence[tuple[Tensor, Array, Array | None]]) -> None:
    """Give parameters (their masters) and buffers new values, all or none: an exception halfway undoes all of it.

    They keep their arrays: a captured CUDA graph finds them where they were. Their old values are swapped into the
    arrays that brought the new ones: there is never a third copy of the weights.

    new: tensor, value, and for a parameter its working copy, or None: then that is rounded to nearest.
    """
    weights = [x for x, *_ in new if isinstance(x, Parameter)]
    pairs: list[tuple[Array, Array]] = []
    for x, value, rounded in new:
        x.bump_version()
        if isinstance(x, Parameter) and here.inside:
            tell("written", x, value)
        if exact(x) is not x.array:
            pairs.append((exact(x), value))
        pairs.append((x.array, under(MIXED, store, value, like=x.array) if rounded is None else rounded))
    swapped = []
    try:
        for p in weights:
            p.lock(False)
        for target, source in pairs:
            value = source.copy()
            source[...] = target  # rounds: never, values already in the array's dtype
            swapped.append((target, source))
            target[...] = value  # rounds: never, values already in the array's dtype
        for p in weights:
            p.lock()
    except BaseException:
        for p in weights:
            p.lock(False)
        for target, old in reversed(swapped):  # reversed: tied weights come twice
            target[...] = old  # rounds: never, values already in the array's dtype
        for p in weights:
            p.lock()
        raise
