"""The entries of a state_dict: how tensors are saved and loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import backend
from ..autograd import Array
from ..dtypes import fits_dtype
from ..events import unobserved
from ..gradients import put
from ..parameter import Parameter, Weights
from ..precision import MIXED, store, to_dtype, use
from ..tensor import Tensor, real_array

COPY = ".copy"  # after a parameter's name in a state_dict: its working copy
New = tuple[Tensor, Array, Array | None]  # a tensor, its values (a parameter's master's), and those of its copy, if any


def exact(x: Tensor) -> Array:
    return x.master if isinstance(x, Weights) else x.array


def is_rounded(x: Tensor) -> bool:
    """True if the working copy is the FP16 number nearest to the master, or if there is no master."""
    if exact(x) is x.array:
        return True
    with unobserved(), use(MIXED):
        return bool((x.array == store(exact(x), like=x.array)).all())


def load(own: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Load the state's entry for each tensor, all or none: an exception halfway undoes everything."""
    new = [loadable(name, x, state) for name, x in own.items()]
    before = [(x, exact(x).copy(), x.array.copy()) for x, *_ in new]
    try:
        _write(new)
    except BaseException:
        _write(before)
        raise


def _write(new: Sequence[New]) -> None:
    """Write into the existing arrays, so that a captured CUDA graph still finds them."""
    for x, value, copy in new:
        if isinstance(x, Parameter):
            x.write(value, copy)
        else:
            put(x.array, value)
            x.bump_version()


def loadable(name: str, x: Tensor, state: Mapping[str, Any]) -> New:
    """Copies of a state_dict's entries for x; TypeError or ValueError if they do not fit x."""
    value, copied = _array(name, state[name], exact(x)), exact(x) is not x.array and name + COPY in state
    bad = ~np.isfinite(value)
    if not isinstance(x, Parameter):
        bad &= np.isfinite(backend.to_cpu(x.array))  # infinities (a mask of -inf) may stay where they are
    if bad.any():
        raise TypeError(
            f"load_state_dict: '{name}': expected finite values, got {np.count_nonzero(bad)} infinite or nan"
        )
    if not fits_dtype(value, x.dtype):
        raise ValueError(f"load_state_dict: '{name}': has values beyond the range of {x.dtype}")
    copy = to_dtype(_array(name + COPY, state[name + COPY], x.array), x.dtype) if copied else None
    return x, _beside(x, to_dtype(value, exact(x).dtype)), None if copy is None else _beside(x, copy)


def _beside(x: Tensor, array: np.ndarray) -> Array:
    """A copy on the device of x."""
    return backend.of(x.array).asarray(np.array(array))


def _array(name: str, value: Any, into: Array) -> np.ndarray:
    array = backend.to_cpu(real_array(f"load_state_dict: '{name}'", value))
    if not np.can_cast(array.dtype, into.dtype, "same_kind"):
        raise TypeError(f"load_state_dict: '{name}': expected {into.dtype}, got {array.dtype}")
    if array.shape != into.shape:
        raise ValueError(f"load_state_dict: '{name}': expected shape {into.shape}, got {array.shape}")
    return array
