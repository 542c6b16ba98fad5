"""Devices compute what the precision primitives decide; the type of an array determines its device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from ..events import Setting
from .cpu import Cpu
from .devices import Device
from .extras import __version__
from .gpu import Gpu

__all__ = ["Device", "__version__", "add", "cpu", "default", "default_device", "device", "get"]
__all__ += ["get_rng_state", "gpu", "manual_seed", "of", "owner_of", "set_rng_state", "synchronize", "to_cpu"]
__all__ += ["writeable"]

cpu, gpu = Cpu(), Gpu()
_ndarray = np.ndarray
_default: ContextVar[Device] = ContextVar("device", default=cpu)


_added: dict[str, Callable[[], Device]] = {}  # further devices by name


def add(name: str, load: Callable[[], Device]) -> None:
    """Register a further device, which `load` returns. The class of its arrays has it as `tinymp_backend`."""
    _added[name] = load


def get(device: Any) -> Device:
    """The backend of a device name. ValueError names those that exist; RuntimeError says why one does not work."""
    if isinstance(device, str):
        for known in (cpu, gpu):
            if device == known.name:
                known.first_use()
                return known
        if device in _added:
            return _added[device]()
    hint = '; PyTorch\'s "cuda" is "gpu" here' if isinstance(device, str) and device.startswith("cuda") else ""
    raise ValueError(f"device: expected a device, 'cpu' or 'gpu', got {device!r}{hint}")


def of(x: Any) -> Device:
    """The backend that owns array x."""
    if type(x) is _ndarray:  # the most frequent case first
        return cpu
    if gpu.array_type is not None and isinstance(x, gpu.array_type):
        return gpu
    return getattr(type(x), "tinymp_backend", cpu)


def to_cpu(x: Any) -> np.ndarray:
    """x as a NumPy array: itself, or from a GPU a copy (which waits for the GPU)."""
    return gpu.to_numpy(x) if of(x) is gpu else x


def writeable(x: Any) -> bool:
    """True if x may be written to. CuPy has no read-only arrays, and writing to "meta" arrays does nothing."""
    return of(x) is not cpu or x.flags.writeable


def owner_of(x: Any) -> Any:
    """The array that owns the memory of x; if no array does (a mapped file, another library's array, which may have a
    dtype as well), the last base that is one.
    """
    while (base := x.base) is not None and (isinstance(base, _ndarray) or of(base) is not cpu):
        x = base
    return x


# ----------------------------------------------------------------------------------------------------- default device


def device(name: str) -> Setting:
    """Within the block, new tensors (`mp.tensor`, `ops.zeros`, ...) and new layers lie on this device: "cpu" or "gpu",
    or "meta", where they have shapes and no memory (audit/meta.py).

    Existing tensors stay where they are. ValueError for an unknown device; RuntimeError, with the reason and a remedy,
    for a GPU that does not work.
    """
    return Setting(_default, get(name), name)


def default() -> Device:
    """The backend of new tensors: the CPU, unless `device` says otherwise."""
    return _default.get()


def default_device() -> str:
    """ "gpu" if there is one that works, else "cpu": the default device of the examples."""
    return "cpu" if gpu.problem() else "gpu"


def synchronize() -> None:
    """Wait until the GPU has done all its work, and raise errors that it recorded. Without a GPU, do nothing."""
    if gpu.array_type is not None:
        gpu.synchronize()


# ----------------------------------------------------------------------------------------------------- random numbers


def _active() -> dict[str, Device]:
    return {"cpu": cpu} if gpu.array_type is None else {"cpu": cpu, "gpu": gpu}


last_seed: int | None = None  # of the last `manual_seed`


def manual_seed(seed: int) -> None:
    """Seed every random choice of tinymp (initialisers, dropout, shuffling, stochastic rounding)."""
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"manual_seed: expected a non-negative integer, got {seed!r}")
    global last_seed
    cpu.manual_seed(seed)
    gpu.manual_seed(seed)
    last_seed = seed


def get_rng_state() -> dict[str, dict]:
    """The state of every generator in use. With it and the state_dicts a run resumes as if never stopped."""
    return {name: backend.get_rng_state() for name, backend in _active().items()}


def set_rng_state(state: dict[str, dict]) -> None:
    """Restore a result of `get_rng_state`. ValueError if it names other backends."""
    active = _active()
    if not isinstance(state, dict) or "cpu" not in state or not state.keys() <= active.keys():
        raise ValueError(f"set_rng_state: expected the states of {sorted(active)}, got {state!r}")
    for name, one in state.items():
        try:
            active[name].set_rng_state(one)
        except (TypeError, ValueError, KeyError) as error:
            raise ValueError(f"set_rng_state: expected the state of a generator for {name!r}: {error}") from None
