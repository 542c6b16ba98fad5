"""An LSTM's step between its two products: one kernel each way (recurrent.cu)."""

from __future__ import annotations

from typing import Any

from ..autograd import Array
from ..events import here
from ..fast_path import fast_path
from ..ops.recurrent import LSTM, times
from ..precision import gemm, store
from . import kernel, made
from .kernels import Kernels

KERNELS = Kernels(__file__)
THREADS = 128


@fast_path(times)
def products(w: Array, rows: Array) -> Array:
    return gemm(rows, w.T, wide=True)  # which lies as the kernels read it


@kernel(LSTM.unit)
def unit(op: LSTM, z: Array, m: Array, c: Array, cell: Array, h: Array) -> None:
    in_place("lstm_unit", c, (z, cell, h), z, m, c)


@kernel(LSTM.unit_backward)
def unit_backward(op: LSTM, gates: Array, cell: Array, before: Array, d: Array, dy: Any, dc: Array, dz: Array) -> None:
    in_place("lstm_unit_backward", before, (dz,), gates, cell, before, d, dy, dc)


def in_place(name: str, state: Array, targets: tuple[Array, ...], *arrays: Any) -> None:
    """A kernel that writes into targets; while an observer listens, `store` rounds what goes there."""
    results = [made(y) for y in targets] if here.inside else targets
    blocks = -(-state.size // THREADS)
    KERNELS.launch(name, state.dtype, blocks, THREADS, *arrays, *results, state.size, state.shape[1])
    if here.inside:
        for target, result in zip(targets, results):
            target[...] = store(result, like=target)
