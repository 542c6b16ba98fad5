"""The device's primitives by kernels: sums of rows, random numbers, copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...backend.devices import Array, Device
from ...fast_path import fast_path
from . import checks, philox, row_sums, tables


@fast_path(Device.cast_stochastic)
def cast_stochastic(device: Device, x: Array) -> Array:
    return philox.cast_stochastic(x)  # rounds: `store` at random, by a kernel: random.cuh


@fast_path(Device.scatter_add_rows)
def scatter_add_rows(device: Device, n_rows: int, index: Array, rows: Array) -> Array:
    return row_sums.scatter_add_rows(n_rows, index, rows)  # rounds: `scatter_add` by a kernel: row_sums.cu


@fast_path(Device.require)
def require(device: Device, good: Array, error: type[Exception], message: str, values: Any = None) -> None:
    checks.check(good, message, error(f"{message} (seen on the GPU in an earlier call)"))


@fast_path(Device.concatenate)
def concatenate(device: Device, arrays: Sequence[Array], axis: int) -> Array:
    """In the memory order of the first.

    Slice by slice: of more than 8 arrays CuPy's concatenate uploads a table of addresses, which capturing refuses, and
    its result is C-contiguous.
    """
    shape = list(arrays[0].shape)
    shape[axis] = sum(x.shape[axis] for x in arrays)
    dtype = np.result_type(*[x.dtype for x in arrays])
    y, end = device.xp.empty_like(arrays[0], dtype, shape=tuple(shape)), 0
    for x in arrays:
        y[(slice(None),) * axis + (slice(end, end := end + x.shape[axis]),)] = x
    return y


@fast_path(Device.uniform)
def uniform(device: Device, shape: tuple[int, ...]) -> Array:
    return philox.uniform(shape)


@fast_path(Device.copy_all)
def copy_all(device: Device, sources: Sequence[Array], targets: Sequence[Array], wanted: Any = True) -> None:
    """In one launch. wanted: a bool, or an array of one on the device."""
    tables.copy_all(sources, targets, wanted)


@fast_path(Device.manual_seed)
def manual_seed(device: Device, seed: int) -> None:
    philox.manual_seed(seed)


@fast_path(Device.get_rng_state)
def get_rng_state(device: Device) -> dict:
    return philox.get_rng_state()


@fast_path(Device.set_rng_state)
def set_rng_state(device: Device, state: dict) -> None:
    philox.set_rng_state(state)
