"""The GPU's random numbers: Philox 4x32 (Salmon et al., 2011), a function of a seed, an offset and an index: element i
of a draw has its own number, whatever thread computes it. Seed and offset lie in device memory; every draw advances the
offset there, so that a captured CUDA graph draws new numbers at each replay, and nothing waits for the device.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..backend.devices import Array, Device
from ..fast_path import fast_path
from . import recording
from .kernels import Kernels
from .layout import THREADS, blocks, compact

KERNELS = Kernels(__file__)

_F32, _F16 = np.dtype(np.float32), np.dtype(np.float16)
_start: tuple[int, ...] = (0, 0)  # seed and offset where the first draw begins
_state: Array = None  # uint64 [seed, offset] on the device, from the first draw on


def state() -> Array:
    """Seed and offset as the kernels read them. Call `advance` after every draw."""
    global _state
    if _state is None:
        made = _state = recording.lasting((2,), "uint64")
        start = _start
        recording.after_capture(lambda: recording.upload(np.array(start, "uint64"), made))  # a replay goes on
    return _state


def advance(draws: int = 1, unless: Any = False) -> None:
    """Move on by so many offsets, so that the next draw gives other numbers. unless: a bool, on the device or not."""
    offset = state()[1:]
    # rounds: never, whole numbers
    offset += draws if unless is False else draws * (1 - unless.astype(offset.dtype))


@fast_path(Device.manual_seed)
def manual_seed(device: Device, seed: int) -> None:
    _set(seed % 2**64, 0)


@fast_path(Device.get_rng_state)
def get_rng_state(device: Device) -> dict[str, int]:
    """The state of the generator. It waits for the device."""
    seed, offset = _start if _state is None else _state.get().tolist()
    return {"seed": seed, "offset": offset}


@fast_path(Device.set_rng_state)
def set_rng_state(device: Device, state: dict[str, int]) -> None:
    """ValueError for what `get_rng_state` cannot have returned."""
    if state.keys() != {"seed", "offset"}:
        raise ValueError(f"set_rng_state: expected the GPU's state to hold seed and offset, got {state!r}")
    _set(state["seed"], state["offset"])


@fast_path(Device.uniform)
def uniform(device: Device, shape: tuple[int, ...]) -> Array:
    import cupy

    y = cupy.empty(shape, _F32)
    _draw("draw_uniform", prod(shape), y)
    return y


@fast_path(Device.cast_stochastic)
def cast_stochastic(device: Device, x: Array) -> Array:
    """x (FP32, or rounded to it) in FP16, up or down at random. The memory order stays."""
    import cupy

    x = compact(cupy, x.astype(_F32, copy=False))  # rounds: FP64 -> FP32, before it is rounded at random to FP16
    y = cupy.empty_like(x, dtype=_F16)
    _draw("cast_stochastic", x.size, x, y)
    return y


def _draw(kernel: str, n: int, *arrays: Array) -> None:
    if n:
        KERNELS.launch(kernel, _F32, blocks(n, 4 * THREADS), THREADS, state(), *arrays, n)
        advance()


def _set(*start: int) -> None:
    global _start
    if _state is None:
        _start = start
    else:
        recording.upload(np.array(start, "uint64"), _state)
