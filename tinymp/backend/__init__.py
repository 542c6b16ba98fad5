"""What the gates stand on. Each backend is a module with the same functions; arrays say which one they belong to."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from . import cpu

__all__ = ["cpu", "get", "get_rng_state", "manual_seed", "of", "set_rng_state"]

_BACKENDS: dict[str, ModuleType] = {"cpu": cpu}


def get(device: Any) -> ModuleType:
    """The backend of a device name. ValueError names the devices that exist."""
    try:
        return _BACKENDS[device]
    except (KeyError, TypeError):
        raise ValueError(f"device: expected one of {sorted(_BACKENDS)}, got {device!r}") from None


def of(x: Any) -> ModuleType:
    """The backend that owns array x."""
    return cpu


def manual_seed(seed: int) -> None:
    """Seed every random choice of tinymp (initialisers, dropout, shuffling, stochastic rounding)."""
    if not isinstance(seed, int) or seed < 0:
        raise ValueError(f"manual_seed: expected a non-negative integer, got {seed!r}")
    for backend in _BACKENDS.values():
        backend.manual_seed(seed)


def get_rng_state() -> dict[str, dict]:
    """The state of every backend's generator: with the state_dicts, what a run needs to go on as if never stopped."""
    return {name: backend.get_rng_state() for name, backend in _BACKENDS.items()}


def set_rng_state(state: dict[str, dict]) -> None:
    """Go back to what `get_rng_state` returned. ValueError if it names other backends."""
    if not isinstance(state, dict) or state.keys() != _BACKENDS.keys():
        raise ValueError(f"set_rng_state: expected the states of {sorted(_BACKENDS)}, got {state!r}")
    for name, backend in _BACKENDS.items():
        backend.set_rng_state(state[name])
